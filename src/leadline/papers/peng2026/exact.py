"""What theory is asked: the runs behind each comparison that needs no training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.papers.peng2026.published import (
    LINEAR_CONTEXT,
    LINEAR_DIM,
    NAME,
    NONLINEAR,
    SOFTMAX_CONTEXT,
    SOFTMAX_DIM,
    TABLE2,
    TABLE3,
    Row,
)
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
    """The sweeps that theory answers at `scale`."""
    return tuple(
        Sweep(name=f"{NAME}/{name}/theory", engine="theory", runs=tuple(runs))
        for name, runs in named_runs(scale).items()
    )
