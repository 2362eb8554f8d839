r"""Theory's answer to a run on sparse features.

The loss of a curve is the mean squared error, twice that of the paper, and its flow runs twice as
fast: the time of a curve is half that of the paper.
"""

from __future__ import annotations

import math

import numpy as np

from leadline.curve import Curve, Floats, Measure, trained
from leadline.errors import SolverError, SpecError, nearest
from leadline.spec import GradientFlow, SparseRun
from leadline.theory.sparse import Solution, adapted_output, solution, start_at
from leadline.theory.sparse_counts import binomial_nodes
from leadline.theory.sparse_loss import time_loss, types_drawn
from leadline.theory.sparse_softmax import ACCURACY, softmax_output
from leadline.theory.sparse_types import EXPLICIT, Types, types_of

EPS = float(np.finfo(np.float64).eps)
MEASURES = {"output": "the solution f_s of each task: (time, task)"}
MOST_TASKS = 2**20
"""Tasks of a run that needs them one by one."""
MOST_SOFTMAX = 2**12
"""Tasks of softmax attention, of which every strength is integrated by itself."""


def check_context(spec: SparseRun) -> None:
    r"""The solution is the leading order in $1/\psi_s$ and needs at least one token in every task
    that the model learns.

    **Raises:** `SpecError` naming the first task with less than one.
    """
    task = spec.task
    last = min(task.num_tasks, spec.model.size)
    if isinstance(task.context, tuple):
        short = [s for s, psi in enumerate(task.context, 1) if psi < 1 and s <= last]
        first = short[0] if short else math.inf
    elif task.context < 1:
        first = 1
    elif task.context_exponent == 0:
        first = math.inf
    else:
        log = math.log(task.context) / task.context_exponent
        first = math.floor(math.exp(log) * (1 + 4 * EPS)) + 1 if log < 600 else math.inf
    if first <= last and math.isfinite(first):
        raise SpecError(
            f"task.context: from task {first} on there is less than one token; expected "
            f"model.size < {first}, or longer contexts"
        )


def solve(spec: SparseRun) -> Curve:
    r"""The answer to `spec`, for a `GradientFlow`: the leading order in the inverse context.

    `evaluation.strength` is answered for every task by what the model trained so far makes of
    sequences of that strength; finitely many training sequences by the expectation over their
    counts. The measure "output" holds the outputs $f_s$, on sequences of that strength. The scalar
    "inverse_context" is the largest $1/\psi_s$, the size of what the leading order leaves out.

    Softmax attention is answered in the limit of long contexts, for up to 4,096 tasks.

    **Raises:** `SolverError` for `Training` by any optimizer, features of every kind and a shared
    value vector; `SpecError` where a task has less than one token.
    """
    if not isinstance(spec.recipe, GradientFlow):
        raise SolverError(
            f"recipe: got {type(spec.recipe).__name__} on sparse features; theory answers "
            "GradientFlow, simulate the other"
        )
    if not spec.task.sparse:
        name = "feature_noise" if spec.task.feature_noise else "feature_decay"
        raise SolverError(
            f"task.{name}: got {getattr(spec.task, name):g}; the closed form holds where the other "
            "features are zero, train it"
        )
    if spec.model.shared_value:
        raise SolverError(
            "model.shared_value: got True, which couples the tasks; theory answers a value vector "
            "for each task, simulate the other"
        )
    check_context(spec)
    times = 2 * np.array(spec.recipe.times)
    if spec.model.attention == "softmax":
        return _softmax_curve(spec, times)
    if spec.evaluation.strength is not None:
        loss, error = _adapted_loss(spec, times, spec.evaluation.strength), None
    elif math.isfinite(spec.task.sequences):
        loss = _counted_loss(spec, times, EXPLICIT)
        error = np.abs(loss - _counted_loss(spec, times, EXPLICIT // 2))
    else:
        loss = 2 * time_loss(spec.task, times, model=spec.model)
        error = np.abs(
            loss - 2 * time_loss(spec.task, times, model=spec.model, explicit=EXPLICIT // 2)
        )
    rounding = 64 * EPS * loss
    return trained(
        spec,
        step=np.zeros(len(times), np.int64),
        time=np.array(spec.recipe.times),
        loss=loss,
        error=rounding if error is None else error + rounding,
        scalars={"inverse_context": _inverse_context(spec)},
        measures=_recorded(spec, times),
    )


def _softmax_curve(spec: SparseRun, times: Floats) -> Curve:
    """Softmax attention in the limit of long contexts, the types one by one."""
    for name, value, wanted in (
        ("task.sequences", spec.task.sequences, math.inf),
        ("evaluation.strength", spec.evaluation.strength, None),
    ):
        if value != wanted:
            raise SolverError(
                f"{name}: got {value} with softmax attention; theory answers {wanted}, simulate "
                "the rest"
            )
    if spec.task.num_tasks > MOST_SOFTMAX:
        raise SolverError(
            f"task.num_tasks: got {spec.task.num_tasks}, expected at most {MOST_SOFTMAX} with "
            "softmax attention"
        )
    types, share = _every_task(spec, "to record"), spec.model.start
    output = np.tile(share * types.strength, (len(times), 1))
    kept = np.flatnonzero(types.index <= spec.model.size)
    for strength in np.unique(types.strength[kept]).tolist():
        same = kept[types.strength[kept] == strength]
        if strength:
            output[:, same] = softmax_output(
                times[:, None] * types.probability[same],
                rate=1.0,
                strength=strength,
                output=share * strength,
            )
    wrong = output - types.strength
    loss = wrong**2 @ types.probability
    error = ACCURACY * (2 * np.abs(wrong * types.strength) @ types.probability + ACCURACY)
    return trained(
        spec,
        step=np.zeros(len(times), np.int64),
        time=np.array(spec.recipe.times) if isinstance(spec.recipe, GradientFlow) else times,
        loss=loss,
        error=error,
        scalars={"inverse_context": _inverse_context(spec)},
        measures=tuple(Measure(name=n, values=output) for n in _known(spec)),
    )


def _inverse_context(spec: SparseRun) -> float:
    task = spec.task
    last = min(task.num_tasks, spec.model.size)
    if isinstance(task.context, tuple):
        return 1 / min(task.context[: int(last)])
    return last**task.context_exponent / task.context


def _every_task(spec: SparseRun, why: str) -> Types:
    """The types one by one, also those beyond the model's size."""
    if spec.task.num_tasks > MOST_TASKS:
        raise SolverError(
            f"task.num_tasks: got {spec.task.num_tasks}, expected at most {MOST_TASKS} {why}"
        )
    return types_of(spec.task, explicit=int(spec.task.num_tasks))


def _rates(spec: SparseRun, types: Types) -> Floats:
    """The rates of all types, zero beyond the model's size."""
    rates = np.abs(types.constrained_rates) if spec.model.constrained else types.rates
    return np.where(types.index <= spec.model.size, rates, 0.0)


def _adapted(spec: SparseRun, times: Floats, new: float) -> tuple[Floats, Types]:
    """The outputs of every task on sequences of the strength `new`, (time, task)."""
    if math.isfinite(spec.task.sequences):
        raise SolverError(
            f"task.sequences: got {spec.task.sequences} with evaluation.strength; expected infinity"
        )
    types, model = _every_task(spec, "for evaluation.strength"), spec.model
    solved = _solved(spec, types, times)
    if model.constrained:
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(types.strength == 0, 0.0, new / types.strength)
        return solved.output * share, types
    mass = types.context * (1 + types.strength**2)
    output = adapted_output(
        new,
        strength=types.strength,
        context=types.context,
        sum_along=np.sqrt(solved.sum_square / mass),
        difference_along=np.sqrt(solved.difference_square / mass),
        across=(model.offset, model.offset),
    )
    return output, types


def _adapted_loss(spec: SparseRun, times: Floats, new: float) -> Floats:
    output, types = _adapted(spec, times, new)
    return (output - new) ** 2 @ types.probability


def _solved(spec: SparseRun, types: Types, times: Floats) -> Solution:
    return solution(
        times[:, None],
        rate=_rates(spec, types),
        strength=types.strength,
        start=start_at(spec.model.start * types.strength, invariant=spec.model.invariant),
    )


def _counted_loss(spec: SparseRun, times: Floats, explicit: int) -> Floats:
    r"""$\sum_sP_s\,\mathbb E(f_s-\Lambda_s)^2$ over the counts of $N$ sequences: a type that occurs
    $k$ times runs at the rate $k/NP_s$ times that of unlimited data.
    """
    total, model = float(spec.task.sequences), spec.model
    types = types_drawn(spec.task, total, model=model, explicit=explicit)
    nodes = [binomial_nodes(total, share) for share in types.probability.tolist()]
    counts = np.concatenate([c for c, _ in nodes])
    which = np.repeat(np.arange(len(nodes)), [len(c) for c, _ in nodes])
    share = types.probability[which]
    weights = np.concatenate([w for _, w in nodes]) * (types.counts * types.probability)[which]
    strength = types.strength[which]
    rates = _rates(spec, types)[which] * counts / (total * share)
    start = start_at(model.start * strength, invariant=model.invariant)
    losses = [
        float(solution(t, rate=rates, strength=strength, start=start).residual ** 2 @ weights)
        for t in times.tolist()
    ]
    return np.array(losses) + (1 - model.start) ** 2 * types.rest


def _known(spec: SparseRun) -> tuple[str, ...]:
    for name in spec.evaluation.measures:
        if name not in MEASURES:
            raise SpecError(
                f"evaluation.measures: got {name!r}, expected some of {', '.join(MEASURES)}"
                f"{nearest(name, MEASURES)}"
            )
    return spec.evaluation.measures


def _recorded(spec: SparseRun, times: Floats) -> tuple[Measure, ...]:
    _known(spec)
    if not spec.evaluation.measures:
        return ()
    if math.isfinite(spec.task.sequences):
        raise SolverError("evaluation.measures: the output depends on the sequences drawn")
    if spec.evaluation.strength is not None:
        return (Measure(name="output", values=_adapted(spec, times, spec.evaluation.strength)[0]),)
    types = _every_task(spec, "to record")
    return (Measure(name="output", values=_solved(spec, types, times).output),)
