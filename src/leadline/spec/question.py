"""A run: which task, model, recipe and evaluation go together; a sweep: many runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeGuard

from leadline.errors import SpecError
from leadline.spec.fields import Seed, Spec
from leadline.spec.models import (
    LinearAttention,
    PerTaskAttention,
    ReducedAttention,
    SoftmaxAttention,
    StreamAttention,
    Transformer,
)
from leadline.spec.recipes import BestScale, Evaluation, GivenScale, GradientFlow, Training
from leadline.spec.tasks import InContextRegression, Retrieval, SparseFeatures

Task = InContextRegression | SparseFeatures | Retrieval
RetrievalModel = LinearAttention | SoftmaxAttention | StreamAttention
Model = ReducedAttention | Transformer | PerTaskAttention | RetrievalModel
Recipe = Training | GradientFlow | GivenScale | BestScale


@dataclass(frozen=True, kw_only=True)
class RunSpec(Spec):
    """One question: this task, this model, this recipe, measured so, with this seed."""

    task: Task
    model: Model
    recipe: Recipe
    evaluation: Evaluation = Evaluation()  # noqa: RUF009 (frozen)
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_regression(self):
            _check_regression(self)
        elif is_sparse(self):
            _check_sparse(self)
        elif is_retrieval(self):
            _check_retrieval(self)
        elif is_transformer(self):
            _check_transformer(self)
        else:
            raise SpecError(
                f"model: got {type(self.model).__name__} for {type(self.task).__name__}; "
                "InContextRegression goes with ReducedAttention or Transformer, SparseFeatures "
                "with PerTaskAttention, Retrieval with LinearAttention, SoftmaxAttention or "
                "StreamAttention"
            )
        if not (is_retrieval(self) or is_transformer(self)):
            _check_plain(self)
        if not (is_retrieval(self) or is_transformer(self)):
            _check_single(self)
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
class TransformerRun(RunSpec):
    """The type of a run of a transformer on in-context regression, for annotations. Make a
    `RunSpec`.
    """

    task: InContextRegression
    model: Transformer


@dataclass(frozen=True, kw_only=True)
class SparseRun(RunSpec):
    """The type of a run on sparse features, for annotations. Make a `RunSpec`."""

    task: SparseFeatures
    model: PerTaskAttention


@dataclass(frozen=True, kw_only=True)
class RetrievalRun(RunSpec):
    """The type of a run of retrieval in context, for annotations. Make a `RunSpec`."""

    task: Retrieval
    model: RetrievalModel


def is_regression(spec: RunSpec) -> TypeGuard[RegressionRun]:
    """Whether task and model are those of in-context regression."""
    return isinstance(spec.task, InContextRegression) and isinstance(spec.model, ReducedAttention)


def is_transformer(spec: RunSpec) -> TypeGuard[TransformerRun]:
    """Whether task and model are those of a transformer on in-context regression."""
    return isinstance(spec.task, InContextRegression) and isinstance(spec.model, Transformer)


def is_sparse(spec: RunSpec) -> TypeGuard[SparseRun]:
    """Whether task and model are those of sparse feature regression."""
    return isinstance(spec.task, SparseFeatures) and isinstance(spec.model, PerTaskAttention)


def is_retrieval(spec: RunSpec) -> TypeGuard[RetrievalRun]:
    """Whether task and model are those of retrieval in context."""
    return isinstance(spec.task, Retrieval) and isinstance(spec.model, RetrievalModel)


def _check_plain(spec: RunSpec) -> None:
    recipe = spec.recipe
    if isinstance(recipe, Training) and not recipe.plain and not is_sparse(spec):
        raise SpecError(
            f"recipe.optimizer: {type(spec.model).__name__} is trained by plain gradient "
            "descent; expected optimizer 'sgd', schedule 'constant', warmup 0"
        )


def _check_single(spec: RunSpec) -> None:
    recipe = spec.recipe
    if isinstance(recipe, Training) and recipe.precision != "single":
        raise SpecError(
            f"recipe.precision: got {recipe.precision!r}; {type(spec.model).__name__} trains in "
            "'single'"
        )
    if spec.evaluation.relative_error is not None:
        raise SpecError(
            f"evaluation.relative_error: got {spec.evaluation.relative_error:g}; only retrieval "
            "has one"
        )


def _check_regression(spec: RegressionRun) -> None:
    dim, width = spec.task.spectrum.dim, spec.model.width
    if spec.model.projection == "orthogonal" and width is not None and width > dim:
        raise SpecError(
            f"model.width: {width} exceeds task.spectrum.dim {dim}: an orthogonal projection "
            "needs width <= dim"
        )
    if isinstance(spec.recipe, GradientFlow) and spec.recipe.spread and spec.model.tied:
        raise SpecError(
            f"recipe.spread: got {spec.recipe.spread:g} for tied layers, which share one "
            "start; expected 0, or model.tied False"
        )
    _check_shift(spec)


def _check_shift(spec: RegressionRun | TransformerRun) -> None:
    dim, shifted = spec.task.spectrum.dim, spec.evaluation.task
    if spec.task.turn is not None:
        raise SpecError("task.turn: only evaluation.task may have one; the basis is the task's")
    if shifted is not None and shifted.spectrum.dim != dim:
        raise SpecError(
            f"evaluation.task.spectrum.dim: got {shifted.spectrum.dim}, expected the "
            f"{dim} of task.spectrum.dim"
        )
    if spec.evaluation.strength is not None:
        raise SpecError(
            f"evaluation.strength: got {spec.evaluation.strength:g}; only sparse tasks have one"
        )


def _check_transformer(spec: TransformerRun) -> None:
    model, recipe, evaluation = spec.model, spec.recipe, spec.evaluation
    if not isinstance(recipe, Training):
        raise SpecError(f"recipe: got {type(recipe).__name__}; a Transformer learns by Training")
    _check_shift(spec)
    for name, value in (
        ("task.spectrum.dim", spec.task.spectrum.dim),
        ("recipe.batch_size", recipe.batch_size),
    ):
        if math.isinf(value):
            raise SpecError(f"{name}: got infinity; a Transformer needs a whole number")
    if model.initial == "aligned" and model.width <= spec.task.spectrum.dim:
        raise SpecError(
            f"model.width: got {model.width} with initial 'aligned', which gives each of the "
            f"{spec.task.spectrum.dim} inputs and the label a direction; expected at least "
            f"{spec.task.spectrum.dim + 1}"
        )
    if not model.linear:
        evaluated = evaluation.task or spec.task
        for name, value in (
            ("task.context", spec.task.context),
            ("evaluation.task.context", evaluated.context),
            ("recipe.queries", recipe.queries),
            ("evaluation.queries", evaluation.queries),
        ):
            if math.isinf(value):
                raise SpecError(
                    f"{name}: got infinity; softmax attention and MLP blocks act on tokens, "
                    "expected a whole number"
                )
    if evaluation.relative_error is not None:
        raise SpecError(
            f"evaluation.relative_error: got {evaluation.relative_error:g}; only retrieval has one"
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
    model = spec.model
    if not spec.task.sparse:
        for name, value in (
            ("attention", "linear"),
            ("constrained", False),
            ("shared_value", False),
        ):
            if getattr(model, name) != value:
                raise SpecError(
                    f"model.{name}: got {getattr(model, name)} beside features of every kind; "
                    f"expected {value}, or a task without feature_noise and feature_decay"
                )
        if model.size < spec.task.num_tasks:
            raise SpecError(
                f"model.size: got {model.size} beside features of every kind; expected infinity"
            )
    if spec.evaluation.task is not None:
        raise SpecError(
            "evaluation.task: got InContextRegression for SparseFeatures; unseen strengths are "
            "given by evaluation.strength"
        )


def _check_retrieval(spec: RetrievalRun) -> None:
    model = type(spec.model).__name__
    if not isinstance(spec.model, LinearAttention) and math.isinf(spec.task.context):
        raise SpecError(
            f"task.context: got infinity for {model}; only LinearAttention has a limit without "
            "its tokens, expected a whole number"
        )
    if isinstance(spec.recipe, GradientFlow):
        raise SpecError(
            f"recipe: got GradientFlow; {model} learns retrieval by Training, theory answers "
            "GivenScale and BestScale"
        )
    for name in ("task", "strength"):
        if getattr(spec.evaluation, name) is not None:
            raise SpecError(
                f"evaluation.{name}: retrieval is evaluated on its own task, leave it out"
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
