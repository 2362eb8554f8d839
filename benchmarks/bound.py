"""Speed of the exact single layer of retrieval and of the bound on all ensembles.

Run with `python benchmarks/bound.py`; benchmarks/README.md describes the output.
"""

# the number of threads must be set before NumPy loads
# ruff: noqa: E402
from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import json
import math
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from leadline.theory.retrieval import best_layer, layer_loss
from leadline.theory.retrieval_bound import depth_law, ensemble_bound, layer_grid
from leadline.theory.sampled import sample_kinds

TASK = {"dim": 16, "context": 64, "targets": 2}


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def measure(work: Callable[[], object], what: str, *, repeats: int, **fields: float) -> None:
    runs = [seconds(work) for _ in range(repeats)]
    cpu, wall = (statistics.median(column) for column in zip(*runs))
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(
        json.dumps(
            {"what": what, "ours_cpu_s": cpu, "ours_wall_s": wall, "peak_mib": peak} | fields
        ),
        flush=True,
    )


def single_layer() -> None:
    """Against sampled contexts, 2,000 of them, extrapolated to the error of the quadrature."""
    drawn: list[float] = []

    def draw() -> None:
        moments = sample_kinds(**TASK, sharpness=0.9046, noise=0.0, contexts=2000, pairs=2, seed=0)
        drawn.append(float(moments.single.std(ddof=1) / moments.single.mean() / math.sqrt(2000)))

    cpu, _ = seconds(draw)
    layer = layer_loss(**TASK, sharpness=0.9046, gain=1.0258)
    wanted = max(layer.loss_error / layer.loss, 1e-4)
    measure(
        lambda: layer_loss(**TASK, sharpness=0.9046, gain=1.0258),
        "one softmax layer and its error",
        repeats=5,
        must_s=1,
        relative_error=layer.loss_error / layer.loss,
        sampled_to_1e4_cpu_s=cpu * (drawn[0] / wanted) ** 2,
    )
    measure(lambda: best_layer(**TASK), "best softmax layer", repeats=5, must_s=1)


def bound() -> None:
    grid = layer_grid(**TASK)
    measure(lambda: layer_grid(**TASK), "moments of 405 kinds of layers", repeats=1, must_s=60)
    measure(lambda: ensemble_bound(grid), "bound from the moments", repeats=3)
    measure(
        lambda: [
            depth_law(grid, depth=depth, perturbation="antithetic")
            for depth in np.geomspace(2, 1024, 10).astype(int).tolist()
        ],
        "law of depth, ten depths",
        repeats=1,
    )


if __name__ == "__main__":
    single_layer()
    bound()
