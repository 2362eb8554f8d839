"""What the paper published, and the runs of theory behind each comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leadline.spec import (
    BestScale,
    Evaluation,
    LinearAttention,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    Spectrum,
    Sweep,
)

NAME = "peng2026"
SOURCE = "arXiv:2610.11063"
Row = tuple[int, float, float]
"""Targets $k$ and the exponents $a$ of the inputs and $b$ of the tasks."""

LINEAR_DIM, LINEAR_CONTEXT = 128, 1024
SOFTMAX_DIM, SOFTMAX_CONTEXT = 16, 64
TABLE2: Mapping[tuple[float, float], tuple[float, float, float]] = {
    (2, 0.5): (0.75, 1.121, 1.5),
    (2, 1): (1.0, 1.485, 2.0),
    (2, 1.5): (1.25, 1.684, 2.5),
    (2, 2): (1.5, 1.987, 3.0),
    (0.5, 2): (3.0, 3.31, 6.0),
    (1, 2): (2.0, 2.552, 4.0),
    (1.5, 2): (1.667, 2.163, 3.333),
}
"""Depth exponents of linear attention by (a, b): constrained, measured, free."""
TABLE3: Mapping[Row, tuple[float, float, float]] = {
    (2, 0, 0): (59.3714, 0.0213, 59.8502),
    (2, 0.25, 0.25): (9.7004, 0.0049, 9.7387),
    (2, 0.5, 0.5): (2.2715, 0.0061, 2.3274),
    (2, 1, 0.25): (1.2246, 0.0106, 1.2259),
    (2, 1, 1): (0.4975, 0.0102, 0.5036),
    (16, 0.5, 0.5): (0.3218, 0.0042, 0.3083),
    (16, 1, 0): (0.4481, 0.0086, 0.4452),
    (16, 1, 0.25): (0.3186, 0.0085, 0.3222),
    (16, 1.25, 0): (0.3595, 0.0090, 0.3659),
}
"""Linear attention on the difficult task: predicted floor, its error, measured plateau."""
NONLINEAR: Mapping[Row, tuple[float, float]] = {
    (2, 0, 0): (2.007, 5e-4),
    (2, 0, 0.25): (1.268, 5e-4),
    (2, 0, 0.5): (0.836, 5e-4),
    (2, 0, 1): (0.424, 5e-4),
    (2, 0.25, 0): (1.255, 5e-4),
    (2, 0.5, 0): (0.798, 5e-4),
    (2, 1, 0): (0.341, 5e-4),
    (16, 0, 0.25): (0.173237, 5e-7),
    (16, 0, 0.5): (0.114436, 5e-7),
}
"""Plateaus $L_0$ of softmax attention, with half a unit of the last digit: table 1 and table 4."""
LINEAR: Mapping[Row, tuple[float, float]] = {
    (2, 0, 0): (59.853, 5e-4),
    (2, 0, 0.25): (23.055, 5e-4),
    (2, 0, 0.5): (9.766, 5e-4),
    (2, 0, 1): (2.504, 5e-4),
    (2, 0.25, 0): (22.962, 5e-4),
    (2, 0.5, 0): (9.501, 5e-4),
    (2, 1, 0): (2.120, 5e-4),
}
"""The same of linear attention, table 1."""
TABLE5 = 0.980
"""Exponent of $L_0 - C_L$ at (0, 0)."""
DEPTHS = tuple(range(1, 17))
POWERS = (1, 2, 4, 8, 16)
FREE_LIMIT, TIED_LIMIT = (64, 128, 256), (512, 1024, 2048)
FLOOR_DEPTH = 4
"""Layers of the sampled floors: more change nothing that sampling resolves."""
CONTEXTS = {"small": 200, "paper": 1000}
ALIKE = ((2, 0, 0), (2, 0.25, 0), (2, 0.5, 0), (2, 1, 0))


def easy_run(a: float, b: float, *, depth: int, tied: bool, dim: float = LINEAR_DIM) -> RunSpec:
    """Linear attention of the best scales on the easy task with infinitely many tokens."""
    return RunSpec(
        task=Retrieval(
            spectrum=Spectrum(dim=dim, input_exponent=a, task_exponent=b),
            context=math.inf,
            targets=1,
            difficulty="easy",
        ),
        model=LinearAttention(depth=depth, tied=tied),
        recipe=BestScale(),
    )


def _difficult(row: Row, *, dim: int, context: int) -> Retrieval:
    targets, a, b = row
    spectrum = Spectrum(dim=dim, input_exponent=a, task_exponent=b)
    return Retrieval(spectrum=spectrum, context=context, targets=targets)


def floor_run(row: Row, *, dim: int, context: int, contexts: int, queries: int) -> RunSpec:
    """The least loss of linear attention on the difficult task: one layer on isotropic inputs,
    where it is exact, and otherwise sampled at `FLOOR_DEPTH`.
    """
    exact = row[1] == 0
    return RunSpec(
        task=_difficult(row, dim=dim, context=context),
        model=LinearAttention(depth=1 if exact else FLOOR_DEPTH),
        recipe=BestScale(),
        evaluation=Evaluation() if exact else Evaluation(contexts=contexts, queries=queries),
    )


def softmax_run(row: Row) -> RunSpec:
    """The best single layer of softmax attention on isotropic inputs."""
    return RunSpec(
        task=_difficult(row, dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT),
        model=SoftmaxAttention(depth=1),
        recipe=BestScale(),
    )


def named_runs(scale: str) -> dict[str, Sequence[RunSpec]]:
    """The runs of each sweep at `scale`: "demo" has what needs no large sample and no limit."""
    runs: dict[str, Sequence[RunSpec]] = {
        "easy": [
            easy_run(a, b, depth=depth, tied=tied)
            for a, b in TABLE2
            for tied in (True, False)
            for depth in DEPTHS
        ],
        "softmax": [softmax_run(row) for row in NONLINEAR if row[1] == 0],
        "alike": [
            floor_run(row, dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, contexts=400, queries=64)
            for row in ALIKE
        ],
        "isotropic": [
            floor_run((2, 0, 0), dim=LINEAR_DIM, context=LINEAR_CONTEXT, contexts=1, queries=1)
        ],
    }
    if scale in CONTEXTS:
        runs["limit"] = [
            easy_run(a, b, depth=depth, tied=tied, dim=math.inf)
            for a, b in TABLE2
            for tied, depths in ((True, TIED_LIMIT), (False, FREE_LIMIT))
            for depth in depths
        ]
        runs["difficult"] = [
            floor_run(
                row,
                dim=LINEAR_DIM,
                context=LINEAR_CONTEXT,
                contexts=CONTEXTS[scale],
                queries=48,
            )
            for row in TABLE3
            if row[1] > 0
        ]
    return runs


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """The sweeps of the paper at `scale`, all answered by theory."""
    return tuple(
        Sweep(name=f"{NAME}/{name}/theory", engine="theory", runs=tuple(runs))
        for name, runs in named_runs(scale).items()
    )
