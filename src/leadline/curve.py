"""The answer of either engine: a loss curve with its error and status, and named arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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


def spent(step: NDArray[np.int64], per_step: float) -> Floats:
    """What `step` steps at `per_step` each have spent: nothing at step 0, also if one step costs
    infinitely much.
    """
    with np.errstate(invalid="ignore"):
        return np.where(step == 0, 0.0, step * np.float64(per_step))


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
