"""A run: which task, model, recipe and evaluation go together; a sweep: many runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeGuard

from leadline.errors import SpecError
from leadline.spec.fields import Seed, Spec
from leadline.spec.models import PerTaskAttention, ReducedAttention
from leadline.spec.recipes import BestScale, Evaluation, GivenScale, GradientFlow, Training
from leadline.spec.tasks import InContextRegression, SparseFeatures

Task = InContextRegression | SparseFeatures
Model = ReducedAttention | PerTaskAttention
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
        else:
            raise SpecError(
                f"model: got {type(self.model).__name__} for {type(self.task).__name__}; "
                "InContextRegression goes with ReducedAttention, SparseFeatures with "
                "PerTaskAttention"
            )
        if isinstance(self.recipe, Training) and not self.recipe.plain:
            raise SpecError(
                f"recipe.optimizer: {type(self.model).__name__} is trained by plain gradient "
                "descent; expected optimizer 'sgd', schedule 'constant', warmup 0"
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
