"""The runs behind each figure, in theory and in simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leadline.spec import (
    Evaluation,
    GradientFlow,
    PerTaskAttention,
    RunSpec,
    SparseFeatures,
    Sweep,
    Training,
    replace,
)
from leadline.theory.sparse_laws import front_exponent
from leadline.theory.sparse_types import power_sum

NAME = "lyu2025"
SOURCE = "Lyu, Wang, Zhu (ICLR 2025)"
ALPHA, BETA, GAMMA = 1.8, 0.6, 0.4
CASES: Mapping[str, tuple[float, float]] = {
    "fixed": (0.0, 0.0),
    "context": (BETA, 0.0),
    "strength": (0.0, GAMMA),
    "both": (BETA, GAMMA),
}
r"""$(\beta, \gamma)$ of each case."""
LONG = 1e9
r"""$\psi_1$ where contexts shorten: tasks up to 1e15 have a token."""
LONG_SIZE = 10**14
START = PerTaskAttention(start=0.01)
LAZY = PerTaskAttention(start=0.0, invariant=1.0)
SMALL_TASKS = 64
SHARED_TASKS = 96
CONTEXTS = (10, 20, 40, 80, 160, 320)
ORDER_RATE = 15.0
r"""$\kappa\psi$ of the single task whose context varies."""
ORDER_STRENGTH = 0.8
SEQUENCES = 400
DRAWN, SEEDS = (32, 128, 512, 2048), 4
LIMITED = (2, 4, 8, 16, 32)
RATES = (2e-5, 1e-5)
DESCENT_TIME = 0.2
SEEN, NEW = 0.5, (0.0, 0.25, 0.5, 0.8, 1.25, 2.0)
ADAPTATION_CONTEXT = 1e4
FRONTS = tuple(10 ** (i / 4) for i in range(4, 25))
"""The last task learned, at each time of a curve."""
LAZY_FRONTS = tuple(10 ** (i / 2) for i in range(4, 25))


def power_task(case: str, *, num_tasks: float = math.inf, context: float = 100.0) -> SparseFeatures:
    """The task of one of the `CASES`."""
    beta, gamma = CASES[case]
    return SparseFeatures(
        num_tasks=num_tasks,
        type_exponent=ALPHA,
        context=context,
        context_exponent=beta,
        strength_exponent=gamma,
    )


def times_of(
    task: SparseFeatures, fronts: Sequence[float], *, model: PerTaskAttention = START
) -> tuple[float, ...]:
    r"""The times of a curve at which the front $s^\nu = At$ passes the tasks `fronts`."""
    assert not isinstance(task.context, tuple)
    assert not isinstance(task.strength, tuple)
    mass = 1 + task.strength**2 if task.strength_exponent == 0 else 1.0
    scale = 2 * task.strength if model.invariant == 0 else math.sqrt(model.invariant)
    speed = task.context * mass * scale / power_sum(task.type_exponent)
    nu = front_exponent(task, model=model)
    return tuple(s**nu / speed / 2 for s in fronts)


def flow(task: SparseFeatures, model: PerTaskAttention, times: Sequence[float]) -> RunSpec:
    """Gradient flow, recorded at `times`."""
    return RunSpec(task=task, model=model, recipe=GradientFlow(times=tuple(times)))


def _measured(run: RunSpec, *names: str) -> RunSpec:
    return replace(run, "evaluation.measures", names)


def solution_runs() -> dict[str, Sequence[RunSpec]]:
    """Figure 1: five tasks by descent on sampled sequences and by the exact flow; one task whose
    context varies.
    """
    task = SparseFeatures(num_tasks=5, type_exponent=ALPHA, context=100, sequences=SEQUENCES)
    descents: list[RunSpec] = []
    for rate in RATES:
        steps = round(DESCENT_TIME / rate)
        recipe = Training(steps=steps, batch_size=math.inf, queries=1, rate=rate)
        run = RunSpec(task=task, model=START, recipe=recipe)
        record = tuple(range(0, steps + 1, steps // 50))
        descents.append(replace(_measured(run, "output", "counts"), "evaluation.record", record))
    times = np.linspace(0, DESCENT_TIME, 51).tolist()
    orders = [
        _measured(
            flow(
                SparseFeatures(num_tasks=1, type_exponent=1, context=psi, strength=ORDER_STRENGTH),
                PerTaskAttention(start=0.05),
                [ORDER_RATE / psi * t for t in np.linspace(0.005, 0.35, 70).tolist()],
            ),
            "output",
        )
        for psi in CONTEXTS
    ]
    return {
        "solution/simulation": (*descents, _measured(flow(task, START, times), "output")),
        "order/simulation": orders,
        "order/theory": orders,
    }


def law_runs(case: str) -> dict[str, Sequence[RunSpec]]:
    """Figures 2 to 4, one case: loss against time, model size, data, and at every compute."""
    beta, _ = CASES[case]
    task = power_task(case, context=LONG if beta else 100.0)
    whole = replace(START, "size", LONG_SIZE) if beta else START
    late = (1e30,)
    sizes = [round(10 ** (i / 4)) for i in range(2, 25)]
    counts = [round(10 ** (i / 2)) for i in range(2, 25)]
    times = times_of(task, [10 ** (i / 32) for i in range(-16, 161)])
    small = power_task(case, num_tasks=SMALL_TASKS, context=1e4)
    few = times_of(small, [2 ** (i / 2) for i in range(-2, 12)])
    settled = (times_of(small, [10.0 * SMALL_TASKS])[0] * 1e3,)
    drawn = [
        replace(replace(flow(small, START, settled), "task.sequences", n), "seed", seed)
        for n in DRAWN
        for seed in range(SEEDS)
    ]
    limited = [flow(small, replace(START, "size", d), settled) for d in LIMITED]
    small_runs = (flow(small, START, few), *limited)
    return {
        f"{case}/time/theory": (flow(task, whole, times_of(task, FRONTS)),),
        f"{case}/size/theory": [flow(task, replace(START, "size", d), late) for d in sizes],
        f"{case}/data/theory": [
            flow(
                replace(task, "sequences", n), replace(whole, "size", min(whole.size, 10**14)), late
            )
            for n in counts
        ],
        f"{case}/compute/theory": [
            flow(task, replace(START, "size", round(2 ** (i / 4))), times) for i in range(8, 60)
        ],
        f"{case}/small/theory": (
            *small_runs,
            *dict.fromkeys(replace(run, "seed", 0) for run in drawn),
        ),
        f"{case}/small/simulation": (*small_runs, *drawn),
    }


def adaptation_runs() -> dict[str, Sequence[RunSpec]]:
    """Figure 9: one task learned at the strength `SEEN`, evaluated at others; and the time law from
    a start that is not small.
    """
    task = SparseFeatures(num_tasks=1, type_exponent=1, context=ADAPTATION_CONTEXT, strength=SEEN)
    starts = {
        "vanishing": PerTaskAttention(start=1e-6),
        "general": PerTaskAttention(start=0.05, offset=1e-3),
        "constrained": PerTaskAttention(start=0.05, constrained=True),
    }
    runs = [
        RunSpec(
            task=task,
            model=model,
            recipe=GradientFlow(times=(1.0,)),
            evaluation=Evaluation(strength=new, measures=("output",)),
        )
        for model in starts.values()
        for new in NEW
    ]
    lazy = power_task("strength")
    return {
        "adaptation/theory": runs,
        "adaptation/simulation": runs,
        "lazy/theory": (flow(lazy, LAZY, times_of(lazy, LAZY_FRONTS, model=LAZY)),),
    }


def shared_runs() -> dict[str, Sequence[RunSpec]]:
    """Figure 10: one label coordinate of the value vector for all tasks."""
    runs: list[RunSpec] = []
    for case in ("fixed", "strength"):
        task = power_task(case, num_tasks=SHARED_TASKS)
        last = times_of(task, [SHARED_TASKS])[0]
        times = np.geomspace(last * 1e-4, last, 120).tolist()
        run = flow(task, replace(START, "shared_value", True), times)
        runs.append(_measured(run, "output"))
    return {"shared/simulation": runs}


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """Every sweep of this paper; "demo" has fixed contexts and strengths only."""
    # these modules read the constants of this one
    from leadline.papers.lyu2025.approximate import approximate_runs
    from leadline.papers.lyu2025.trained import trained_runs

    named = solution_runs() | adaptation_runs()
    for case in ("fixed",) if scale == "demo" else tuple(CASES):
        named |= law_runs(case)
    if scale != "demo":
        named |= shared_runs() | approximate_runs() | trained_runs()
    return tuple(
        Sweep(
            name=f"{NAME}/{name}",
            engine="theory" if name.endswith("/theory") else "simulation",
            runs=tuple(runs),
        )
        for name, runs in named.items()
    )
