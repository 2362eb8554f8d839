"""The answer of either engine: a loss curve with its error and status, and named arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.costs import training_flops
from leadline.spec import RunSpec, Training

Floats = NDArray[np.float64]
Status = Literal["ok", "sampled", "unstable", "diverged"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A named array recorded beside the loss, such as a layer error matrix."""

    name: str
    values: Floats


@dataclass(frozen=True, kw_only=True)
class Curve:
    r"""Loss against training, one value a recorded point.

    **Arguments**, arrays of one length:
    - `step`: optimizer steps; 0 where nothing is trained.
    - `time`: scalar-flow time, $\dot\gamma = -d\,$Loss$/d\gamma$; NaN where nothing is trained.
    - `tokens`, `flops`: spent so far, in the conventions of `leadline.costs`.
    - `loss`: mean squared error without 1/2, label noise of the queries excluded.
    - `loss_error`: numerical error bound in theory; standard error where the loss was sampled.
    - `status`: "ok"; "sampled" (theory by sampling); "unstable" (past the edge of stability, the
      value holds but training would not stay there); "diverged" (not finite).
    - `scalars`: named numbers of the final point, such as the best gamma.
    - `measures`: named arrays.
    """

    step: NDArray[np.int64]
    time: Floats
    tokens: Floats
    flops: Floats
    loss: Floats
    loss_error: Floats
    status: Status
    scalars: tuple[tuple[str, float], ...] = ()
    measures: tuple[Measure, ...] = ()

    def __post_init__(self) -> None:
        lengths = {
            name: np.shape(getattr(self, name))
            for name in ("step", "time", "tokens", "flops", "loss", "loss_error")
        }
        if len(set(lengths.values())) != 1 or len(next(iter(lengths.values()))) != 1:
            raise ValueError(f"curve arrays differ in shape: {lengths}")

    def scalar(self, name: str) -> float:
        """The named number of the final point."""
        return dict(self.scalars)[name]


def point(
    loss: float, *, error: float, status: Status = "ok", scalars: dict[str, float] | None = None
) -> Curve:
    """The curve of a model that is not trained: one point."""
    return Curve(
        step=np.zeros(1, np.int64),
        time=np.array([np.nan]),
        tokens=np.zeros(1),
        flops=np.zeros(1),
        loss=np.array([loss]),
        loss_error=np.array([error]),
        status=status,
        scalars=tuple((scalars or {}).items()),
    )


def trained(
    spec: RunSpec,
    *,
    step: NDArray[np.int64],
    time: Floats,
    loss: Floats,
    error: Floats,
    status: Status = "ok",
    scalars: dict[str, float] | None = None,
    measures: tuple[Measure, ...] = (),
) -> Curve:
    """The curve of a trained model, with what it spent: every token of every context and its
    queries, and the FLOPs of the convention "t P^2 N^2 L", where t is the number of steps, or the
    time of a gradient flow (which sees no tokens).
    """
    recipe, task, model = spec.recipe, spec.task, spec.model
    per_step, spent = 0.0, time
    if isinstance(recipe, Training):
        per_step, spent = recipe.batch_size * (task.context + recipe.queries), step
    width = task.spectrum.dim if model.width is None else model.width
    per_unit = training_flops(
        "t P^2 N^2 L", steps=1, context=task.context, width=width, depth=model.depth
    )
    return Curve(
        step=step,
        time=time,
        tokens=np.array([per_step * t if t else 0.0 for t in step.tolist()]),
        flops=np.array([per_unit * t if t else 0.0 for t in spent.tolist()]),
        loss=loss,
        loss_error=error,
        status=status,
        scalars=tuple((scalars or {}).items()),
        measures=measures,
    )
