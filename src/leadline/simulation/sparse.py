r"""Sparse feature regression simulated: what can be, by which program, and the curve of what was
measured.

On a sequence of type $s$ the layer sees two coordinates, feature $s$ and the label. Its prediction
is $\hat\phi\,v_s^TH_sw_s$ with $H_s = \psi_suu^T + ee^T$, $u = (1,\Lambda_s)$, $e = (1,0)$,
whatever the signs of the tokens: squares of signs are one. So blocks $v_s, w_s$ of two numbers
train exactly as the matrices of `sequences.literal_predictions` do; softmax attention needs five
numbers. Where features of every kind are present the matrices themselves are trained.

The loss of a curve is the mean squared error over all types, no sampling left unless features of
every kind are present; the flow of that loss without 1/2 has $\dot v_s = -2\kappa_sr_sH_sw_s$,
$\kappa_s$ the share of type $s$ in the data.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from leadline.curve import Curve, Floats, Measure, trained
from leadline.errors import SolverError, SpecError, nearest
from leadline.simulation import sparse_dense, sparse_descent
from leadline.simulation.blocks import kept_numbers, training_shares
from leadline.simulation.lanes import Observer
from leadline.simulation.optimizers import summed_rates
from leadline.simulation.sequences import numbers_of
from leadline.simulation.sparse_flow import follow
from leadline.spec import GradientFlow, SparseRun, Training

MEASURES = {
    "output": "the prediction f_s of each task: (record, task)",
    "counts": "training sequences of each task: (task)",
}
MOST_TASKS = 2**16
INTEGRATION = 1e-7
"""Relative error of a loss that the tolerance of a flow may leave."""


def program_key(spec: SparseRun) -> Hashable:
    """What the program of `spec` depends on.

    **Raises:** `SolverError` for what only theory can answer, `SpecError` for tasks without a
    token, steps too large to be stable, and unknown measures.
    """
    task, model, recipe = spec.task, spec.model, spec.recipe
    if task.num_tasks > MOST_TASKS:
        raise SolverError(
            f"task.num_tasks: got {task.num_tasks}, expected at most {MOST_TASKS} to simulate; "
            "theory answers any number"
        )
    for name in spec.evaluation.measures:
        if name not in MEASURES:
            raise SpecError(
                f"evaluation.measures: got {name!r}, expected some of {', '.join(MEASURES)}"
                f"{nearest(name, MEASURES)}"
            )
    kept = min(model.size, task.num_tasks)
    if spec.evaluation.strength is not None and kept < task.num_tasks:
        raise SpecError(
            f"model.size: got {model.size} with evaluation.strength; expected all tasks"
        )
    short = np.flatnonzero(kept_numbers(spec).context < 1)
    if len(short):
        raise SpecError(
            f"task.context: from task {short[0] + 1} on there is less than one token; expected "
            f"model.size or task.num_tasks < {short[0] + 1}, or longer contexts"
        )
    if isinstance(recipe, GradientFlow):
        _check_flow(spec)
        return ("sparse flow", task.num_tasks, kept)
    assert isinstance(recipe, Training)
    if recipe.optimizer == "sgd" and model.attention == "linear":
        _check_rate(recipe.rate, spec)
    if task.sparse:
        return ("sparse", task.num_tasks, kept, *sparse_descent.program_shape(spec))
    if math.isinf(recipe.batch_size) and math.isinf(task.sequences):
        raise SolverError(
            "task.sequences: got infinity with recipe.batch_size infinity and features of every "
            "kind, whose average has no closed form; expected one of them to be finite"
        )
    return ("dense", task.num_tasks, *sparse_dense.program_shape(spec))


def _check_flow(spec: SparseRun) -> None:
    if not spec.task.sparse:
        raise SolverError(
            "recipe: got GradientFlow with features of every kind; expected Training at a small "
            "rate"
        )
    if spec.model.attention == "softmax" and math.isfinite(spec.task.sequences):
        raise SolverError(
            f"task.sequences: got {spec.task.sequences} for the flow of softmax attention, which "
            "averages over sequences; expected infinity, or the recipe Training"
        )


def _check_rate(rate: float, spec: SparseRun) -> None:
    r"""Refuse steps above $2/a\Delta$ of the first tasks, the edge of stability at the solution."""
    numbers = kept_numbers(spec)
    mass = numbers.context * (1 + numbers.strength**2)
    if spec.model.constrained:
        mass = numbers.context * np.abs(numbers.strength)
    speed = numbers.probability * mass
    speed = speed * np.hypot(2 * numbers.strength, math.sqrt(spec.model.invariant))
    worst = int(np.argmax(speed))
    # the loss without 1/2 moves twice as fast
    largest = 1 / float(speed[worst])
    if rate > largest:
        raise SpecError(
            f"recipe.rate: got {rate:g}, above the edge of stability {largest:g} = 1/(a Delta) of "
            f"task {worst + 1}; expected less"
        )


def solve(
    specs: Sequence[SparseRun], *, checkpoint: Path | None, observe: Observer | None
) -> list[Curve]:
    """The curves of `specs`, which share a program: flows one after the other, trainings as lanes.

    A `Training` with infinite batch uses the shares of the drawn sequences, or of all types if
    `task.sequences` is infinite, at every step.
    """
    with jax.enable_x64(True):
        if isinstance(specs[0].recipe, GradientFlow):
            curves: list[Curve] = []
            for number, spec in enumerate(specs, 1):
                output, square = follow(spec)
                curves.append(_curve(spec, {"output": output, "square": square}))
                if observe is not None:
                    observe(number, len(specs))
            return curves
        engine = sparse_descent if specs[0].task.sparse else sparse_dense
        found = engine.descend(specs, checkpoint=checkpoint, observe=observe)
        return [
            _curve(spec, {name: values[row] for name, values in found.items()})
            for row, spec in enumerate(specs)
        ]


def _clock(spec: SparseRun) -> tuple[NDArray[np.int64], Floats, float]:
    """Recorded steps and times, and the tokens of a step."""
    recipe, every = spec.recipe, numbers_of(spec.task)
    if isinstance(recipe, GradientFlow):
        return np.zeros(len(recipe.times), np.int64), np.array(recipe.times), 0.0
    assert isinstance(recipe, Training)
    record = spec.evaluation.record or (recipe.steps,)
    batch = spec.task.sequences if math.isinf(recipe.batch_size) else recipe.batch_size
    tokens = batch * (float(every.probability @ every.context) + 1)
    return np.asarray(record, np.int64), summed_rates(recipe, record), tokens


def _curve(spec: SparseRun, found: Mapping[str, NDArray[Any]]) -> Curve:
    """The curve of the means of every type that the model has, (record, task); the other types
    stay as they start.
    """
    probability, _, strength = numbers_of(spec.task)
    new, kept = spec.evaluation.strength, found["output"].shape[1]
    seen = strength if new is None else np.full_like(strength, new)
    output = np.tile(spec.model.start * strength, (len(found["output"]), 1))
    square = (output - seen) ** 2
    output[:, :kept], square[:, :kept] = found["output"], found["square"]
    with np.errstate(over="ignore", invalid="ignore"):
        loss = square @ probability
    if "variance" in found:
        error = np.sqrt(found["variance"] @ probability**2)
    else:
        flowed = isinstance(spec.recipe, GradientFlow)
        error = INTEGRATION * loss if flowed else np.zeros_like(loss)
    available = {"output": output, "counts": training_shares(spec) * spec.task.sequences}
    step, time, tokens = _clock(spec)
    return trained(
        spec,
        step=step,
        time=time,
        loss=loss,
        error=error,
        status="ok" if np.isfinite(loss).all() else "diverged",
        measures=tuple(Measure(name=n, values=available[n]) for n in spec.evaluation.measures),
        tokens_per_step=tokens,
    )
