"""What is asked: spectra, tasks, models, recipes, evaluations, runs and sweeps.

Everything here is a frozen value over plain numbers, strings and tuples, checked once when it is
made. Both engines answer a `RunSpec`; neither appears here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
import operator
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

from leadline.errors import SpecError, nearest

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Bounds:
    """The values that a numeric field may take: `low <= value <= high`, or `low < value` if
    `open_low`. Integer fields must be whole. Infinity is allowed only where it has a meaning.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    infinite: bool = False

    def describe(self, whole: bool) -> str:
        """The allowed values in words."""
        noun = "a whole number" if whole else "a finite number"
        sign = ">" if self.open_low else ">="
        low = "" if self.low == -math.inf else f" {sign} {self.low:g}"
        high = "" if self.high == math.inf else f" and <= {self.high:g}"
        return noun + low + high + (" or infinity" if self.infinite else "")


Count = Annotated[int, Bounds(low=1)]
Extent = Annotated[int | float, Bounds(low=1, infinite=True)]
"""A whole number of at least one, or infinity."""
Seed = Annotated[int, Bounds(low=0, high=MAX_SEED)]
Real = Annotated[float, Bounds()]
NonNegative = Annotated[float, Bounds(low=0)]
Positive = Annotated[float, Bounds(low=0, open_low=True)]


def _number(path: str, value: object, whole: bool, bounds: Bounds) -> int | float:
    wanted = bounds.describe(whole)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        kind = type(value).__name__
        raise SpecError(f"{path}: got {kind} {_short(value)}, expected {wanted}")
    try:
        number = float(value)
    except OverflowError:
        raise SpecError(f"{path}: got {_short(value)}, expected {wanted}") from None
    exact = operator.index(value) if isinstance(value, numbers.Integral) else number
    inside = bounds.low < exact if bounds.open_low else bounds.low <= exact
    if math.isnan(number) or not (inside and exact <= bounds.high):
        raise SpecError(f"{path}: got {value}, expected {wanted}")
    if math.isinf(number):
        if not bounds.infinite:
            raise SpecError(f"{path}: got {value}, expected {wanted}")
        return number
    if not whole:
        return number + 0.0  # -0.0 and 0.0 are one value
    if number != math.floor(number):
        raise SpecError(f"{path}: got {value}, expected {wanted}")
    return operator.index(value) if isinstance(value, numbers.Integral) else int(number)


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


def check_value(path: str, value: object, hint: Any) -> Any:
    """`value` in the form that the annotation `hint` asks for, or `SpecError` naming `path`."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        base, bounds = typing.get_args(hint)[:2]
        options = typing.get_args(base) or (base,)
        if type(None) in options and value is None:
            return None
        return _number(path, value, int in options, bounds)
    if origin is Literal:
        options = typing.get_args(hint)
        if not isinstance(value, str) or value not in options:
            close = nearest(value, options) if isinstance(value, str) else ""
            raise SpecError(f"{path}: got {_short(value)}, expected one of {options}{close}")
        return value
    if origin is tuple:
        return _sequence(path, value, typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        if value is None and type(None) in members:
            return None
        tuples = [m for m in members if typing.get_origin(m) is tuple]
        if tuples and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            return check_value(path, value, tuples[0])
        annotated = [m for m in members if typing.get_origin(m) is Annotated]
        if annotated:
            return check_value(path, value, annotated[0])
        if isinstance(value, members):
            return value
        names = ", ".join("none" if m is type(None) else m.__name__ for m in members)
        raise SpecError(f"{path}: got {type(value).__name__} {_short(value)}, expected {names}")
    if not isinstance(value, hint):
        raise SpecError(
            f"{path}: got {type(value).__name__} {_short(value)}, expected {hint.__name__}"
        )
    return value


def _sequence(path: str, value: object, item: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        kind = type(value).__name__
        raise SpecError(f"{path}: got {kind} {_short(value)}, expected a tuple")
    values = typing.cast(Sequence[object], value)
    return tuple(check_value(f"{path}[{i}]", v, item) for i, v in enumerate(values))


@cache
def field_hints(kind: type[Spec]) -> dict[str, Any]:
    """The annotation of every field of a spec class, bounds included."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Base of all specifications: every field is checked against its annotation when made."""

    role: ClassVar[str] = ""
    """The dotted place of this value in a `RunSpec`, for error messages."""

    def __post_init__(self) -> None:
        for name, hint in field_hints(type(self)).items():
            path = f"{self.role}.{name}" if self.role else name
            object.__setattr__(self, name, check_value(path, getattr(self, name), hint))


@dataclass(frozen=True, kw_only=True)
class Spectrum(Spec):
    r"""Power-law spectra of inputs and tasks: $\lambda_k = k^{-a}$, $\omega_k = s\,k^{-b}$ for
    $k = 1, \dots,$ `dim`.

    **Arguments:** `dim` is a whole number or infinity (theory only); `input_exponent` is
    $a \ge 0$; `task_exponent` is $b$; `total` sets the scale $s$ such that
    $\sum_k \omega_k \lambda_k$ equals it, None means $s = 1$.

    The source exponent is $\beta = (a + b - 1)/a$.
    """

    role: ClassVar[str] = "task.spectrum"

    dim: Extent
    input_exponent: NonNegative
    task_exponent: Real
    total: Annotated[float | None, Bounds(low=0, open_low=True)] = None


def flat(dim: int) -> Spectrum:
    r"""The isotropic spectrum: $\lambda_k = 1$, $\omega_k = 1/$`dim`, so that the loss of the
    prediction zero is one.
    """
    return Spectrum(dim=dim, input_exponent=0.0, task_exponent=0.0, total=1.0)


def source_capacity(dim: int | float, *, nu: float, beta: float) -> Spectrum:
    r"""Source and capacity conditions: $\lambda_k = k^{-\nu}$ and
    $\omega_k\lambda_k \propto k^{-\nu\beta - 1}$ with sum one.

    **Arguments:** `nu` $> 0$ is the input exponent, `beta` $> 0$ the source exponent.

    Ref: arXiv:2510.01098, section 3.3.
    """
    check_value("task.spectrum.nu", nu, Positive)
    check_value("task.spectrum.beta", beta, Positive)
    return Spectrum(dim=dim, input_exponent=nu, task_exponent=1 + nu * beta - nu, total=1.0)


@dataclass(frozen=True, kw_only=True)
class Turn(Spec):
    r"""A rotation of the input covariance away from the basis of the task vectors:
    $\Sigma' = e^{-\theta S}\,\Sigma\,e^{\theta S}$ with $\theta$ = `angle` and the antisymmetric
    $S = (G - G^T)/\sqrt{2D}$, whose eigenvalues fill $[-2i, 2i]$, where $G$ is
    `numpy.random.default_rng(seed).standard_normal((D, D))`.
    """

    role: ClassVar[str] = "task.turn"

    angle: Real
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class InContextRegression(Spec):
    r"""Linear regression in context: $y = \beta\cdot x + \sigma\epsilon$.

    Each context draws $\beta$ with covariance $\Omega$ and `context` labeled inputs with
    covariance $\Sigma$. `covariance` is "isotropic" ($\Sigma = I$, $\Omega = I/D$), "fixed" (both
    diagonal in one basis, the same in every context) or "rotated" (a fresh Haar rotation of both
    in every context).

    **Arguments:** `context` is the number of labeled examples $P$ (or infinity); `noise` is
    $\sigma$ on the labels in context; `query_noise` the standard deviation of label noise on
    the query tokens that training sees. The loss always excludes the noise of the queries.
    `turn` rotates the inputs of a fixed covariance; only the task of an evaluation has one.
    """

    role: ClassVar[str] = "task"

    spectrum: Spectrum
    covariance: Literal["isotropic", "fixed", "rotated"]
    context: Extent
    noise: NonNegative = 0.0
    query_noise: NonNegative = 0.0
    turn: Turn | None = field(default=None, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        s = self.spectrum
        if self.turn is not None and (self.covariance != "fixed" or math.isinf(s.dim)):
            raise SpecError(
                f"task.turn: got a turn of {self.covariance} covariance in dimension {s.dim}, "
                "expected fixed covariance in finite dimension"
            )
        if self.covariance == "isotropic" and (
            s.input_exponent != 0 or s.task_exponent != 0 or s.total != 1
        ):
            raise SpecError("task.spectrum: an isotropic task needs the spectrum flat(dim)")


@dataclass(frozen=True, kw_only=True)
class ReducedAttention(Spec):
    r"""The reduced linear transformer: `depth` layers that share the matrix $\Gamma$, predicting
    $f(x_*) = \frac1{LP} x_*^T\Gamma\sum_{l<L}(I - \hat\Sigma\Gamma/L)^l X y$.

    **Arguments:** `depth` $L$ (infinity in theory); `width` $N$ of the residual stream, None for
    the full dimension; `projection` says how inputs enter a narrower stream; `power` is that of
    the projection in the reduced form; `tied` says whether all layers share one matrix.

    Ref: arXiv:2510.01098, equation 5.
    """

    role: ClassVar[str] = "model"

    depth: Extent
    width: Annotated[int | None, Bounds(low=1)] = None
    projection: Literal["none", "orthogonal", "gaussian"] = "none"
    power: Annotated[int, Bounds(low=1, high=2)] = 2
    tied: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.width is None) != (self.projection == "none"):
            raise SpecError(
                f"model.projection: got {self.projection!r} with width {self.width}; a narrower "
                "stream needs both a width and a projection, a full one neither"
            )


@dataclass(frozen=True, kw_only=True)
class SparseFeatures(Spec):
    r"""Multitask sparse feature regression: a sequence of type $s$, drawn with probability
    $P_s \propto s^{-\alpha}$, $s = 1, \dots,$ `num_tasks`, holds $\psi_s$ labeled tokens. Feature
    number $s$ of a token is a random sign, all others are zero, and its label is $\Lambda_s$ times
    the feature. The query token has a feature and no label.

    **Arguments:** `type_exponent` is $\alpha$; `context` is $\psi_1$ and $\psi_s = \psi_1
    s^{-\beta}$ with $\beta$ = `context_exponent`; `strength` is $\Lambda_1$ and $\Lambda_s =
    \Lambda_1 s^{-\gamma}$ with $\gamma$ = `strength_exponent`. A tuple gives $\psi_s$ or
    $\Lambda_s$ one by one. `sequences` is the number $N$ of training sequences, drawn once;
    infinity stands for fresh sequences, or their average, at every step.

    Ref: Lyu, Wang, Zhu (ICLR 2025); docs/theory/sparse.md.
    """

    role: ClassVar[str] = "task"

    num_tasks: Extent
    type_exponent: NonNegative
    context: Positive | tuple[Positive, ...]
    context_exponent: NonNegative = 0.0
    strength: Real | tuple[Real, ...] = 1.0
    strength_exponent: NonNegative = 0.0
    sequences: Extent = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isinf(self.num_tasks) and self.type_exponent <= 1:
            raise SpecError(
                f"task.type_exponent: got {self.type_exponent:g} with infinitely many tasks, whose "
                "probabilities have no finite sum; expected a number > 1, or a finite num_tasks"
            )
        for name in ("context", "strength"):
            values, exponent = getattr(self, name), getattr(self, f"{name}_exponent")
            if not isinstance(values, tuple):
                continue
            count = len(typing.cast(tuple[float, ...], values))
            if count != self.num_tasks:
                raise SpecError(
                    f"task.{name}: got {count} values, expected task.num_tasks = {self.num_tasks}"
                )
            if exponent:
                raise SpecError(
                    f"task.{name}_exponent: got {exponent:g} beside one value a task; expected 0"
                )


@dataclass(frozen=True, kw_only=True)
class PerTaskAttention(Spec):
    r"""One layer of linear attention whose value vector $v_s$ belongs to the type of the sequence:
    $f_s = v_s^TH_sw_s$ with $H_s = \sum_i(\text{token}_i)(\text{token}_i)^T$ on feature $s$ and the
    label, trained towards $\Lambda_s$.

    **Arguments:** `size` $D$: the model has the features $s \le D$, the other tasks stay as they
    start; `start` is $f_s(0)/\Lambda_s$ and `invariant` the product $c = gh$ of
    $g = \eta^TH\eta$ and $h = \rho^TH\rho$ at the start, $\eta = v + w$, $\rho = v - w$ (zero for
    aligned $v$ and $w$, large for lazy training); `offset` is the component of $v$ and of $w$
    perpendicular to the tokens $(1, \Lambda_s)$, which training does not move; `constrained` keeps
    the value vector on the label and the rest on the feature, $v = (0, v_c)$, $w = (w_s, 0)$;
    `shared_value` makes the label coordinate of $v$ one number for all types, which starts where
    that of the first would (simulation only).

    Ref: Lyu, Wang, Zhu (ICLR 2025); docs/theory/sparse.md.
    """

    role: ClassVar[str] = "model"

    size: Extent = math.inf
    start: Real = 0.01
    invariant: NonNegative = 0.0
    offset: Real = 0.0
    constrained: bool = False
    shared_value: bool = field(default=False, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start <= 0 and self.invariant == 0:
            raise SpecError(
                f"model.start: got {self.start:g} with invariant 0: g(0) = 0, and gradient flow "
                "ends in the saddle f = 0 without learning; expected start > 0 or invariant > 0"
            )
        if self.constrained and self.offset:
            raise SpecError(
                f"model.offset: got {self.offset:g}; a constrained model has no perpendicular "
                "component, leave it at 0"
            )


@dataclass(frozen=True, kw_only=True)
class Training(Spec):
    r"""Gradient descent from $\Gamma = 0$ on fresh contexts at every step.

    **Arguments:** `steps`; `batch_size` $B$ contexts a step and `queries` $K$ query tokens a
    context (infinity: the exact gradient, theory only); `rate` $\eta$ in
    $\Gamma \leftarrow \Gamma - \eta\,\nabla$Loss, Loss being the mean squared error without 1/2.
    """

    role: ClassVar[str] = "recipe"

    steps: Annotated[int, Bounds(low=0)]
    batch_size: Extent
    queries: Extent
    rate: Positive


@dataclass(frozen=True, kw_only=True)
class GradientFlow(Spec):
    r"""Continuous time: $\dot\gamma = -d\,$Loss$/d\gamma$ from `start`, recorded at `times`. Where
    $\Gamma$ does not stay a multiple of the identity (fixed covariance), the flow of the matrix:
    $\dot\Gamma = -\partial\,$Loss$/\partial\Gamma$ from `start` times the identity. Untied layers
    learn at $L$ times the rate, so that layers that start equal follow the tied flow.

    **Arguments:** `spread` takes untied layers off that balance: they start alternately at `start`
    + `spread` and `start` - `spread`, the first one above. Simulation trains on as many contexts
    as `Evaluation.contexts`, drawn once from the seed of the run.
    """

    role: ClassVar[str] = "recipe"

    times: tuple[NonNegative, ...]
    start: Real = 0.0
    spread: Real = field(default=0.0, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.times or any(a >= b for a, b in itertools.pairwise(self.times)):
            raise SpecError("recipe.times: expected at least one time, in increasing order")


@dataclass(frozen=True, kw_only=True)
class GivenScale(Spec):
    r"""No training: $\Gamma = \gamma I$ with this `gamma`, one point of the landscape."""

    role: ClassVar[str] = "recipe"

    gamma: Real


@dataclass(frozen=True, kw_only=True)
class BestScale(Spec):
    r"""No training: $\Gamma = \gamma I$ at the $\gamma$ of least loss."""

    role: ClassVar[str] = "recipe"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Spec):
    """On what the loss is measured.

    **Arguments:** `contexts` fresh contexts, shared by every model evaluated with the same task
    and evaluation; `queries` a context (infinity: the exact average over queries and task
    vectors); `seed` of that stream; `record` the steps at which the loss is measured, in
    increasing order, empty for the last step only; `measures` names further arrays to record;
    `task` is the task evaluated, if not the one trained on (a distribution shift); `strength` is
    the strength of every sparse task that is evaluated, if not the one trained on.
    """

    role: ClassVar[str] = "evaluation"

    contexts: Count = 64
    queries: Extent = math.inf
    seed: Seed = 0
    record: tuple[Annotated[int, Bounds(low=0)], ...] = ()
    measures: tuple[str, ...] = ()
    task: InContextRegression | None = field(default=None, metadata={"added": True})
    strength: Annotated[float | None, Bounds()] = field(default=None, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(a >= b for a, b in itertools.pairwise(self.record)):
            raise SpecError("evaluation.record: expected steps in increasing order")


Task = InContextRegression | SparseFeatures
Model = ReducedAttention | PerTaskAttention
Recipe = Training | GradientFlow | GivenScale | BestScale


@dataclass(frozen=True, kw_only=True)
class RunSpec(Spec):
    """One question: this task, this model, this recipe, measured so, with this seed."""

    task: Task
    model: Model
    recipe: Recipe
    evaluation: Evaluation = Evaluation()
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_regression(self):
            _check_regression(self)
        elif is_sparse(self):
            _check_sparse(self)
        else:
            raise SpecError(
                f"model: got {type(self.model).__name__} for {type(self.task).__name__}; "
                "InContextRegression goes with ReducedAttention, SparseFeatures with "
                "PerTaskAttention"
            )
        if isinstance(self.recipe, Training) and self.evaluation.record:
            last = self.evaluation.record[-1]
            if last > self.recipe.steps:
                raise SpecError(
                    f"evaluation.record: step {last} is after the last step {self.recipe.steps}"
                )


@dataclass(frozen=True, kw_only=True)
class RegressionRun(RunSpec):
    """The type of a run of in-context regression, for annotations. Make a `RunSpec`."""

    task: InContextRegression
    model: ReducedAttention


@dataclass(frozen=True, kw_only=True)
class SparseRun(RunSpec):
    """The type of a run on sparse features, for annotations. Make a `RunSpec`."""

    task: SparseFeatures
    model: PerTaskAttention


def is_regression(spec: RunSpec) -> TypeGuard[RegressionRun]:
    """Whether task and model are those of in-context regression."""
    return isinstance(spec.task, InContextRegression) and isinstance(spec.model, ReducedAttention)


def is_sparse(spec: RunSpec) -> TypeGuard[SparseRun]:
    """Whether task and model are those of sparse feature regression."""
    return isinstance(spec.task, SparseFeatures) and isinstance(spec.model, PerTaskAttention)


def _check_regression(spec: RegressionRun) -> None:
    dim, width = spec.task.spectrum.dim, spec.model.width
    if spec.model.projection == "orthogonal" and width is not None and width > dim:
        raise SpecError(
            f"model.width: {width} exceeds task.spectrum.dim {dim}: an orthogonal projection "
            "needs width <= dim"
        )
    if spec.task.turn is not None:
        raise SpecError("task.turn: only evaluation.task may have one; the basis is the task's")
    if isinstance(spec.recipe, GradientFlow) and spec.recipe.spread and spec.model.tied:
        raise SpecError(
            f"recipe.spread: got {spec.recipe.spread:g} for tied layers, which share one "
            "start; expected 0, or model.tied False"
        )
    shifted = spec.evaluation.task
    if shifted is not None and shifted.spectrum.dim != dim:
        raise SpecError(
            f"evaluation.task.spectrum.dim: got {shifted.spectrum.dim}, expected the "
            f"{dim} of task.spectrum.dim"
        )
    if spec.evaluation.strength is not None:
        raise SpecError(
            f"evaluation.strength: got {spec.evaluation.strength:g}; only sparse tasks have one"
        )


def _check_sparse(spec: SparseRun) -> None:
    recipe = spec.recipe
    if isinstance(recipe, GivenScale | BestScale):
        raise SpecError(
            f"recipe: got {type(recipe).__name__}, which sets a scale of in-context regression; "
            "sparse features are learned by GradientFlow or Training"
        )
    if isinstance(recipe, GradientFlow) and (recipe.start or recipe.spread):
        raise SpecError(
            f"recipe.start: got start {recipe.start:g}, spread {recipe.spread:g}; sparse features "
            "start from model.start, leave both at 0"
        )
    if isinstance(recipe, Training) and recipe.queries != 1:
        raise SpecError(
            f"recipe.queries: got {recipe.queries}; a sequence of sparse features has one query"
        )
    if spec.evaluation.task is not None:
        raise SpecError(
            "evaluation.task: got InContextRegression for SparseFeatures; unseen strengths are "
            "given by evaluation.strength"
        )


@dataclass(frozen=True, kw_only=True)
class Sweep(Spec):
    """A named list of runs for one engine."""

    role: ClassVar[str] = "sweep"

    name: str
    engine: Literal["theory", "simulation"]
    runs: tuple[RunSpec, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise SpecError(f"sweep.runs: the sweep {self.name!r} has no runs")


def replace(base: Any, path: str, value: object) -> Any:
    """A copy of `base` with the field at the dotted `path` set to `value`.

    **Raises:** `SpecError` for an unknown field, with the nearest name.
    """
    return _replace(base, {path: value})


def _replace(base: Any, changes: Mapping[str, object], prefix: str = "") -> Any:
    """A copy of `base` with the fields at the dotted paths of `changes` set together, so that only
    the result has to be possible.
    """
    known = [f.name for f in dataclasses.fields(base)] if isinstance(base, Spec) else []
    whole: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if name not in known:
            raise SpecError(
                f"{prefix}{path}: no field {name!r} in {type(base).__name__}; it has "
                f"{', '.join(known) or 'none'}{nearest(path, dotted_paths(base))}"
            )
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            whole[name] = value
    for name, below in inner.items():
        own = whole.get(name, getattr(base, name))
        whole[name] = _replace(own, below, f"{prefix}{name}.")
    return dataclasses.replace(base, **whole)


def dotted_paths(base: object, prefix: str = "") -> list[str]:
    """Every dotted field path below `base`."""
    if not isinstance(base, Spec):
        return []
    paths: list[str] = []
    for f in dataclasses.fields(base):
        paths.append(prefix + f.name)
        paths.extend(dotted_paths(getattr(base, f.name), f"{prefix}{f.name}."))
    return paths


def grid(base: RunSpec, axes: Mapping[str, Sequence[object]]) -> tuple[RunSpec, ...]:
    """Every combination of the values of `axes`, a mapping from dotted paths to values, applied
    to `base` together. The last axis varies fastest.

    **Raises:** `SpecError` for an unknown path (with the nearest) or an impossible value.
    """
    return tuple(
        _replace(base, dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    )
