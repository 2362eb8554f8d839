"""The answer of either engine: a loss curve with its error and status, and named arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.costs import training_flops
from leadline.display import Card, Shown, short, thinned
from leadline.spec import (
    RunSpec,
    Training,
    is_regression,
    is_retrieval,
    is_sparse,
    is_transformer,
)

Floats = NDArray[np.float64]
Status = Literal["ok", "sampled", "unstable", "diverged"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A named array recorded beside the loss, such as a layer error matrix."""

    name: str
    values: Floats


@dataclass(frozen=True, kw_only=True)
class Curve(Shown):
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

    def card(self) -> Card:
        """Loss against what was spent, ten points at most; empty columns are left out."""
        columns = ("step", "time", "tokens", "flops", "loss", "loss_error")
        told = [n for n in columns if n == "loss" or np.nan_to_num(getattr(self, n)).any()]
        shown = thinned(len(self.loss))
        counted = "" if len(shown) == len(self.loss) else f", {len(shown)} shown"
        notes = [f"{name} = {short(value)}" for name, value in self.scalars]
        if self.measures:
            kinds = (f"{m.name} {m.values.shape}" for m in self.measures)
            notes.append(f"measures: {', '.join(kinds)}")
        return Card(
            title=f"loss curve, status {self.status}, points: {len(self.loss)}{counted}",
            columns=told,
            rows=[[short(getattr(self, name)[i]) for name in told] for i in shown],
            notes=notes,
        )

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
    tokens_per_step: float = 0.0,
) -> Curve:
    """The curve of a trained model, with what it spent: every token of every context and its
    queries, and the FLOPs of `unit_flops` times t, the number of steps or the time of a gradient
    flow (which sees no tokens). `tokens_per_step` is read for sparse features only, whose
    sequences differ in length.
    """
    recipe, spent, per_step = spec.recipe, time, 0.0
    if isinstance(recipe, Training):
        spent, per_step = step, tokens_per_step
        if not is_sparse(spec):
            assert is_regression(spec) or is_transformer(spec) or is_retrieval(spec)
            per_step = recipe.batch_size * (spec.task.context + recipe.queries)
    per_unit = unit_flops(spec)
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


def unit_flops(spec: RunSpec) -> float:
    """FLOPs of one step of training, or of a unit of time: in the convention "t P^2 N^2 L" for
    in-context regression, "t D" for sparse features, "t B K L (4 P d + 12 d^2)" for retrieval.
    """
    if is_sparse(spec):
        return training_flops("t D", steps=1, width=model_width(spec))
    if is_retrieval(spec):
        recipe = spec.recipe
        return training_flops(
            "t B K L (4 P d + 12 d^2)",
            steps=1,
            queries=recipe.batch_size * recipe.queries if isinstance(recipe, Training) else 0,
            context=spec.task.context,
            dim=spec.task.spectrum.dim,
            depth=spec.model.depth,
        )
    assert is_regression(spec) or is_transformer(spec)
    context, depth = spec.task.context, spec.model.depth
    return training_flops(
        "t P^2 N^2 L", steps=1, context=context, width=model_width(spec), depth=depth
    )


def model_width(spec: RunSpec) -> int | float:
    """The width of the residual stream, or the number of sparse tasks that the model can learn."""
    if is_sparse(spec):
        return min(spec.model.size, spec.task.num_tasks)
    if is_transformer(spec):
        return spec.model.width
    assert is_regression(spec) or is_retrieval(spec)
    width = spec.model.width
    return spec.task.spectrum.dim if width is None else width
