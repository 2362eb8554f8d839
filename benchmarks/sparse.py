"""The test loss over a million sparse tasks at a thousand times, beside the direct sum."""

from __future__ import annotations

import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from leadline.spec import PerTaskAttention, SparseFeatures
from leadline.theory.sparse_loss import time_loss

TASKS, TIMES, REPEATS = 10**6, 1000, 5
SAMPLED = 8
"""Times at which the direct sum is taken."""
CASES = ((1.8, 0.0, 0.0), (1.8, 0.6, 0.4), (2.5, 0.0, 0.0), (1.2, 0.5, 0.5))


def direct_sum(task: SparseFeatures, times: np.ndarray, start: float) -> np.ndarray:
    """Every task in turn, by the logistic formula."""
    s = np.arange(1.0, task.num_tasks + 1)
    p = s**-task.type_exponent / np.sum(s**-task.type_exponent)
    strength = s**-task.strength_exponent
    rate = 2 * p * task.context * s**-task.context_exponent * (1 + strength**2) * strength
    losses = []
    for t in times:
        left = (1 / start - 1) * np.exp(-rate * t)
        losses.append(np.sum(p * (strength * left / (1 + left)) ** 2) / 2)
    return np.array(losses)


def main() -> None:
    for alpha, beta, gamma in CASES:
        task = SparseFeatures(
            num_tasks=TASKS,
            type_exponent=alpha,
            context=100,
            context_exponent=beta,
            strength_exponent=gamma,
        )
        model = PerTaskAttention(start=0.01)
        times = np.geomspace(1e-3, 1e8, TIMES)
        cpu, wall = [], []
        for _ in range(REPEATS):
            began, ticked = time.process_time(), time.perf_counter()
            losses = time_loss(task, times, model=model)
            cpu.append(time.process_time() - began)
            wall.append(time.perf_counter() - ticked)
        few = slice(None, None, TIMES // SAMPLED)
        began = time.process_time()
        exact = direct_sum(task, times[few], model.start)
        opponent = (time.process_time() - began) * TIMES / len(exact)
        print(
            json.dumps(
                {
                    "what": f"sparse loss, alpha {alpha} beta {beta} gamma {gamma}",
                    "ours_cpu_s": float(np.median(cpu)),
                    "ours_wall_s": float(np.median(wall)),
                    "opponent_cpu_s": opponent,
                    "ratio": opponent / float(np.median(cpu)),
                    "largest_relative_error": float(np.abs(losses[few] / exact - 1).max()),
                    "must_s": 2.0,
                    "stretch_s": 0.2,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
