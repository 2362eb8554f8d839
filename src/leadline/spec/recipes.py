"""How a model learns, and on what its loss is measured."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from leadline.errors import SpecError
from leadline.spec.fields import Bounds, Count, Extent, NonNegative, Positive, Real, Seed, Spec
from leadline.spec.tasks import InContextRegression


@dataclass(frozen=True, kw_only=True)
class Training(Spec):
    r"""Gradient descent on fresh contexts at every step.

    **Arguments:** `steps`; `batch_size` $B$ contexts a step and `queries` $K$ query tokens a
    context (infinity: the exact gradient, theory only); `rate` $\eta$ in
    $\Gamma \leftarrow \Gamma - \eta\,\nabla$Loss, Loss being the mean squared error without 1/2;
    `optimizer` is plain stochastic gradient descent, Adam or AdamW ($\beta_1 = 0.9$, $\beta_2 =
    0.999$, $\epsilon = 10^{-8}$), the last with `weight_decay`; `warmup` is the number of steps
    over which the rate rises linearly from zero, after which the `schedule` holds it or lets it
    fall to zero along a cosine. `precision` is that of the floats that train retrieval and
    transformers; the reduced model always trains in single, sparse features in double.
    """

    role: ClassVar[str] = "recipe"

    steps: Annotated[int, Bounds(low=0)]
    batch_size: Extent
    queries: Extent
    rate: Positive
    optimizer: Literal["sgd", "adam", "adamw"] = field(default="sgd", metadata={"added": True})
    weight_decay: NonNegative = field(default=0.0, metadata={"added": True})
    schedule: Literal["constant", "cosine"] = field(default="constant", metadata={"added": True})
    warmup: Annotated[int, Bounds(low=0)] = field(default=0, metadata={"added": True})
    precision: Literal["single", "double"] = field(default="single", metadata={"added": True})

    @property
    def plain(self) -> bool:
        """Whether this is plain stochastic gradient descent at a constant rate."""
        return self.optimizer == "sgd" and self.schedule == "constant" and self.warmup == 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay and self.optimizer != "adamw":
            raise SpecError(
                f"recipe.weight_decay: got {self.weight_decay:g} with optimizer "
                f"{self.optimizer!r}; only 'adamw' decays weights, expected 0"
            )
        if self.warmup > self.steps:
            raise SpecError(
                f"recipe.warmup: got {self.warmup} with recipe.steps = {self.steps}; expected at "
                "most as many"
            )


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
    the strength of every sparse task that is evaluated, if not the one trained on;
    `relative_error` is the largest relative standard error that the loss of a retrieval run may
    have: too few contexts for it are refused before training.
    """

    role: ClassVar[str] = "evaluation"

    contexts: Count = 64
    queries: Extent = math.inf
    seed: Seed = 0
    record: tuple[Annotated[int, Bounds(low=0)], ...] = ()
    measures: tuple[str, ...] = ()
    task: InContextRegression | None = field(default=None, metadata={"added": True})
    strength: Annotated[float | None, Bounds()] = field(default=None, metadata={"added": True})
    relative_error: Annotated[float | None, Bounds(low=0, open_low=True)] = field(
        default=None, metadata={"added": True}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(a >= b for a, b in itertools.pairwise(self.record)):
            raise SpecError("evaluation.record: expected steps in increasing order")
