"""Speed of fits and bootstraps against the usual optimizers, in CPU seconds on one thread.

Ours and the opponent alternate; the ratio is the median over the pairs. Run with
`python benchmarks/fit.py`; benchmarks/README.md describes the output.
"""

# the number of threads must be set before NumPy loads
# ruff: noqa: E402
from __future__ import annotations

import os

for variable in (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "POLARS_MAX_THREADS",
):
    os.environ[variable] = "1"

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from leadline.data import bundled
from leadline.laws import (
    CHINCHILLA,
    Fit,
    bootstrap,
    drop_largest_losses,
    fit,
    read_runs,
    separable,
)

REPEATS = 7
DELTA = 1e-3


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def arrays(fitted: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Centered logarithms (variable, row) and log loss of a fit's rows, sorted."""
    names = list(fitted.law.family.variables)
    frame = fitted.runs.frame.sort(*names, "loss")
    logs = np.log(frame.select(names).to_numpy().T)
    return logs - logs.mean(axis=1, keepdims=True), np.log(frame["loss"].to_numpy())


def centered(fitted: Fit) -> np.ndarray:
    """The fitted parameters with coefficients for centered logarithms."""
    names = list(fitted.law.family.variables)
    centers = np.log(fitted.runs.frame.select(names).to_numpy()).mean(axis=0)
    vector, count = fitted.law.vector, len(names)
    vector[1 : 1 + count] *= np.exp(-vector[1 + count :] * centers)
    return vector


def lbfgsb(logs: np.ndarray, target: np.ndarray, weights: np.ndarray, start: np.ndarray) -> float:
    """One weighted fit by L-BFGS-B: exact gradient, objective times 1e6, tight tolerances, warm
    start, centered logarithms. Returns the objective.
    """
    count = len(logs)

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        powers = np.exp(-x[1 + count :, None] * logs)
        loss = x[0] + x[1 : 1 + count] @ powers
        residual = np.log(loss) - target
        clipped = np.minimum(np.maximum(residual, -DELTA), DELTA)
        pull = 1e6 * weights * clipped
        value = pull @ (residual - 0.5 * clipped)
        pull /= loss
        slopes = -x[1 : 1 + count] * ((powers * logs) @ pull)
        return value, np.concatenate([[pull.sum()], powers @ pull, slopes])

    bounds = [(0.0, float(np.exp(target.min())))] + [(0.0, None)] * (2 * count)
    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-6}
    end = minimize(both, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return end.fun / 1e6


def adam(
    logs: np.ndarray, target: np.ndarray, weights: np.ndarray, start: np.ndarray, steps: int
) -> float:
    """One weighted fit by Adam on log floor, log coefficients and exponents, with a log-sum-exp.
    Returns the objective.
    """
    count = len(logs)
    x = np.concatenate([np.log(np.maximum(start[: 1 + count], 1e-3)), start[1 + count :]])
    first, second = np.zeros_like(x), np.zeros_like(x)
    exponents = np.empty((1 + count, target.size))
    value = np.inf
    for step in range(1, steps + 1):
        exponents[0] = x[0]
        exponents[1:] = x[1 : 1 + count, None] - x[1 + count :, None] * logs
        top = exponents.max(axis=0)
        parts = np.exp(exponents - top)
        total = parts.sum(axis=0)
        residual = top + np.log(total) - target
        clipped = np.minimum(np.maximum(residual, -DELTA), DELTA)
        pull = weights * clipped
        value = pull @ (residual - 0.5 * clipped)
        parts *= pull / total
        gradient = np.concatenate([parts.sum(axis=1), -(parts[1:] * logs).sum(axis=1)])
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient * gradient - second)
        rate = 0.01 * 0.5 * (1 + np.cos(np.pi * step / steps))
        x -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-12)
    return value


def draw_weights(rows: int, draws: int) -> np.ndarray:
    """How often each draw takes each sorted row: the draws of `bootstrap` with seed 0."""
    return np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), draws).astype(float)


def report(
    what: str, ours: list[float], opponent: list[float], scale: float, **more: object
) -> None:
    """Print one measurement as a line of JSON; the opponent's seconds are times `scale`."""
    ratios = [scale * o / u for u, o in zip(ours, opponent, strict=True)]
    line = {
        "what": what,
        "ours_cpu_s": round(statistics.median(ours), 5),
        "opponent_cpu_s": round(scale * statistics.median(opponent), 4),
        "ratio": round(statistics.median(ratios), 1),
        "ratio_min": round(min(ratios), 1),
        "ratio_max": round(max(ratios), 1),
    }
    print(json.dumps(line | more), flush=True)


def main() -> None:
    epoch = drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), 5)
    chinchilla = fit(CHINCHILLA, epoch)
    logs, target = arrays(chinchilla)
    start = centered(chinchilla)

    single = [seconds(lambda: fit(CHINCHILLA, epoch)) for _ in range(40)]
    print(
        json.dumps(
            {
                "what": "one Chinchilla fit, 240 rows",
                "ours_cpu_s": round(statistics.median(cpu for cpu, _ in single), 5),
                "ours_wall_s": round(statistics.median(wall for _, wall in single), 5),
                "must_s": 0.010,
                "stretch_s": 0.003,
            }
        ),
        flush=True,
    )

    sample = 50
    weights = draw_weights(chinchilla.rows, 1000)
    ours, walls, theirs = [], [], []
    ends: list[float] = []
    for _ in range(REPEATS):
        cpu, wall = seconds(lambda: bootstrap(chinchilla, draws=1000))
        ours.append(cpu)
        walls.append(wall)
        cpu, _ = seconds(
            lambda: ends.extend(lbfgsb(logs, target, w, start) for w in weights[:sample])
        )
        theirs.append(cpu)
    exact = bootstrap(chinchilla, draws=1000)["objective"].to_numpy()[:sample]
    report(
        "1,000 bootstraps of the Chinchilla law against L-BFGS-B",
        ours,
        theirs,
        1000 / sample,
        ours_wall_s=round(statistics.median(walls), 4),
        opponent_at_optimum=round(float(np.mean(np.array(ends[:sample]) < exact * (1 + 1e-6))), 3),
        opponent_lower=round(float(np.mean(np.array(ends[:sample]) < exact * (1 - 1e-6))), 3),
        must=4,
        stretch=8,
        must_s=1.5,
        stretch_s=0.6,
    )

    shape = fit(separable(["width", "depth", "tokens"]), read_runs(bundled("gemstones_hot.jsonl")))
    logs, target = arrays(shape)
    ours, walls, theirs, ends = [], [], [], []
    typical = np.exp(target.mean())
    cold = np.array([0.5 * typical, *np.full(3, 0.15 * typical), 0.3, 0.3, 0.3])
    for _ in range(REPEATS):
        cpu, wall = seconds(lambda: bootstrap(shape, draws=200))
        ours.append(cpu)
        walls.append(wall)
        theirs.append(
            seconds(lambda: ends.append(adam(logs, target, np.ones(shape.rows), cold, 10_000)))[0]
        )
    report(
        "200 bootstraps of the width-depth-token law against Adam",
        ours,
        theirs,
        200,
        ours_wall_s=round(statistics.median(walls), 4),
        opponent_gap=f"{ends[0] / shape.value - 1:.1e}",
        must=200,
        stretch=1000,
    )


if __name__ == "__main__":
    main()
