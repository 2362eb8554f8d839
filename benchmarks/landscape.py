"""Speed of the equivalent at finite width and context, and of the best shape.

Run with `python benchmarks/landscape.py`; benchmarks/README.md describes the output.
"""

# the number of threads must be set before NumPy loads
# ruff: noqa: E402
from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import importlib.util
import itertools
import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from leadline.planning.exact import best_shape
from leadline.spec import (
    Evaluation,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    source_capacity,
)
from leadline.theory.compression import compressed
from leadline.theory.equivalents import landscape
from leadline.theory.streams import Stream, edge

REPEATS = 5
STANDARD_ERROR = 0.003
CONTEXT, WIDTH = 200, 100
BATCH = 25
"""Contexts of one call of the simulation."""


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def report(**fields: object) -> None:
    fields["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(fields), flush=True)


def median(work: Callable[[], object], what: str, **limits: float) -> None:
    runs = [seconds(work) for _ in range(REPEATS)]
    cpu, wall = (statistics.median(column) for column in zip(*runs))
    report(what=what, ours_cpu_s=cpu, ours_wall_s=wall, **limits)


def hundred_scales() -> None:
    modes = compressed(source_capacity(1000, nu=1.25, beta=0.8))
    system = Stream(modes=modes, context=200, width=300, projection="orthogonal")
    gamma = np.linspace(0.01, 1, 100) * 2 * 64 / edge(system)
    cpu, wall = seconds(lambda: landscape(system, 8 * gamma[50], depth=512))
    report(
        what="first scale, D 1000, N 300, P 200, L 512",
        ours_cpu_s=cpu,
        ours_wall_s=wall,
        must_mib=4096,
    )
    median(
        lambda: landscape(system, gamma, depth=64),
        "landscape of 100 scales, D 1000, N 300, P 200, L 64",
        must_s=5,
        stretch_s=2,
    )
    median(lambda: landscape(system, gamma[50], depth=512), "one scale, L 512")
    median(lambda: landscape(system, gamma[50], depth=2**20), "one scale, L 1048576")


def literal_draw(
    rng: np.random.Generator, lam: np.ndarray, om: np.ndarray, gamma: np.ndarray
) -> list[float]:
    """The loss of one context and projection at every scale: powers of the D x D residual."""
    x, frame = drawn(rng, lam)
    seen = frame @ ((frame.T @ x) @ x.T) / CONTEXT
    losses: list[float] = []
    for g in gamma:
        residual = np.linalg.matrix_power(np.eye(lam.size) - g * seen, 64)
        losses.append(float((residual**2 * lam[:, None]).sum(axis=0) @ om))
    return losses


def absorbed_draw(
    rng: np.random.Generator, lam: np.ndarray, om: np.ndarray, gamma: np.ndarray
) -> list[float]:
    """The same through the eigenbasis within the stream, shared by all scales."""
    x, frame = drawn(rng, lam)
    values, vectors = np.linalg.eigh(frame.T @ (x @ (x.T @ frame)) / CONTEXT)
    seen = vectors.T @ (frame.T @ x) @ x.T / CONTEXT
    losses: list[float] = []
    for g in gamma:
        series = (1 - (1 - g * values) ** 64) / values
        residual = np.eye(lam.size) - (frame @ vectors) @ (series[:, None] * seen)
        losses.append(float((residual**2 * lam[:, None]).sum(axis=0) @ om))
    return losses


def drawn(rng: np.random.Generator, lam: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = np.sqrt(lam)[:, None] * rng.standard_normal((lam.size, CONTEXT))
    frame, _ = np.linalg.qr(rng.standard_normal((lam.size, WIDTH)))
    return x, frame


def simulation(gamma: np.ndarray) -> Callable[[], object]:
    """The answer of `leadline.simulation` at every scale, on `BATCH` new contexts a call."""
    from leadline.simulation.train import train

    task = InContextRegression(
        spectrum=source_capacity(400, nu=1.25, beta=0.8), covariance="rotated", context=CONTEXT
    )
    model = ReducedAttention(depth=64, width=WIDTH, projection="orthogonal")
    seeds = itertools.count()

    def batch() -> object:
        evaluation = Evaluation(contexts=BATCH, seed=next(seeds))
        recipes = [GivenScale(gamma=g) for g in gamma]
        return train(
            [RunSpec(task=task, model=model, recipe=r, evaluation=evaluation) for r in recipes]
        )

    return batch


def against_sampling() -> None:
    """Ours against Monte Carlo at D = 400 to a standard error of 0.3%, 20 scales."""
    k = np.arange(1, 401.0)
    lam, power = k**-1.25, k**-2.0 / np.sum(k**-2.0)
    modes = compressed(source_capacity(400, nu=1.25, beta=0.8))
    system = Stream(modes=modes, context=CONTEXT, width=WIDTH, projection="orthogonal")
    gamma = np.linspace(0.1, 1, 20) * 2 * 64 / edge(system)
    rng = np.random.default_rng(0)
    middle = gamma[10:11] / 64
    losses = [absorbed_draw(rng, lam, power / lam, middle)[0] for _ in range(100)]
    draws = math.ceil((statistics.stdev(losses) / statistics.mean(losses) / STANDARD_ERROR) ** 2)
    opponents: dict[str, tuple[Callable[[], object], int]] = {
        "literal": (lambda: literal_draw(rng, lam, power / lam, gamma / 64), 1),
        "absorbed": (lambda: absorbed_draw(rng, lam, power / lam, gamma / 64), 1),
    }
    if importlib.util.find_spec("jax"):
        opponents["simulation"] = simulation(gamma), BATCH
    for name, (draw, count) in opponents.items():
        ratios: list[float] = []
        draw()  # compiles
        for _ in range(REPEATS):
            ours, _ = seconds(lambda: landscape(system, gamma, depth=64))
            theirs, _ = seconds(draw)
            ratios.append(theirs / count * draws / ours)
        report(
            what=f"landscape of 20 scales against Monte Carlo ({name}), D 400, N 100, P 200, L 64",
            draws=draws,
            ratio=statistics.median(ratios),
            ratio_min=min(ratios),
            ratio_max=max(ratios),
            must=1000,
            stretch=10000,
        )


def shapes() -> None:
    for budget in (1e6, 1e9, 1e12):
        wanted = InContextRegression(
            spectrum=source_capacity(10**9, nu=1.25, beta=0.8),
            covariance="rotated",
            context=math.inf,
        )
        cpu, wall = seconds(partial(best_shape, wanted, budget, cost="t P^2 N^2 L"))
        report(
            what=f"best shape, budget {budget:g}",
            ours_cpu_s=cpu,
            ours_wall_s=wall,
            must_s=10,
            stretch_s=2,
        )


if __name__ == "__main__":
    hundred_scales()
    against_sampling()
    shapes()
