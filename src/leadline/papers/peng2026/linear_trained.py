r"""Trained linear attention, and the easy task of either attention: the runs, and what is read from
them.

Layers learn a scale each where the task turns every context at random, since multiples of the
identity are then optimal; the loss of scales $\kappa_l$ is exact on the easy task,
$\sum_k\lambda_k\omega_k\prod_l(1-\kappa_l\lambda_k)^2$, and on the difficult one it is that of a
polynomial of the context's covariance, evaluated on the contexts of the floor. Full matrices are
trained to see what they do otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from leadline.curve import Floats
from leadline.papers.peng2026.exact import FLOOR_DEPTH, POWERS
from leadline.papers.peng2026.published import (
    LINEAR,
    LINEAR_CONTEXT,
    LINEAR_DIM,
    NAME,
    SOFTMAX_CONTEXT,
    SOFTMAX_DIM,
    TABLE2,
    TABLE3,
    Row,
)
from leadline.papers.peng2026.tables import Tables, key, rows
from leadline.spec import (
    Evaluation,
    LinearAttention,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    Spectrum,
    Sweep,
    Training,
    replace,
)
from leadline.theory.linear_floor import FloorMoments, sample_moments
from leadline.theory.spectra import eigenvalues, power_law_modes

Easy = tuple[float, float, int, tuple[float, float]]
"""A training on the easy task: exponents a and b, steps, mean and deviation of the start."""
EASY_SEEDS = {"small": 5, "paper": 16}
SEEDS = {"small": 3, "paper": 5}
LENGTHS = {"small": (2_000, 10_000), "paper": (2_000, 10_000, 50_000)}
"""Steps of training of linear attention on the easy task."""
EASY_SPECTRUM = (2.0, 1.0)
"""Of the starts and of the full matrices."""
STARTS = ((0.5, 0.25), (0.5, 0.05), (0.25, 0.25))
"""Mean and deviation of the scales at the start; the first is that of every other sweep."""
FULL_DEPTHS = {"small": (1, 2, 4), "paper": POWERS}
FULL_STEPS = {"small": 1_500, "paper": 30_000}
FULL_RATE = 0.003
"""At 0.01 the noise of 16,384 entries a layer makes eight layers diverge."""
DIFFICULT_DEPTHS = (1, 2, 4)
NOISE: dict[Row, tuple[tuple[float, str], ...]] = {
    (2, 0, 0): ((0.001, "constant"), (0.003, "constant"), (0.003, "cosine")),
    (2, 0.5, 0.5): ((0.003, "constant"), (0.003, "cosine")),
}
"""Rates and schedules of the full matrices on the difficult task, one layer."""
NOISE_STEPS = {"small": 800, "paper": 10_000}
SOFTMAX_SPECTRA = (0.0, 0.25, 0.5, 1.0)
"""Exponents a of softmax attention on the easy task, b = 0; a = 0 serves every b."""
SOFTMAX_DEPTHS = (1, 2, 4)
SOFTMAX_STEPS, SOFTMAX_LONG = 3_000, 12_000
SOFTMAX_RECORD = (0, 10, 30, 100, 300, 1_000, SOFTMAX_STEPS)
MOMENTS = 600
"""Contexts on which trained scales and floors of the difficult task are compared."""
MOMENT_QUERIES = 48


def _seeded(run: RunSpec, count: int) -> list[RunSpec]:
    """`run` with `count` seeds, each evaluated on contexts of its own."""
    return [replace(replace(run, "seed", n), "evaluation.seed", n) for n in range(count)]


def _spectrum(a: float, b: float, *, dim: int) -> Spectrum:
    return Spectrum(dim=dim, input_exponent=a, task_exponent=b)


def scale_run(
    a: float, b: float, depth: int, *, steps: int, begin: tuple[float, float] = STARTS[0]
) -> RunSpec:
    """A scale a layer on the easy task. Its loss is read from the scales, so that hardly anything
    is spent on contexts to evaluate.
    """
    start, spread = begin
    return RunSpec(
        task=Retrieval(
            spectrum=_spectrum(a, b, dim=LINEAR_DIM),
            context=math.inf,
            targets=1,
            difficulty="easy",
        ),
        model=LinearAttention(depth=depth, matrix="scale", start=start, spread=spread),
        recipe=Training(
            steps=steps,
            batch_size=1,
            queries=8,
            rate=0.01,
            optimizer="adam",
            warmup=100,
            schedule="cosine",
        ),
        evaluation=Evaluation(contexts=16, queries=16, measures=("scale",)),
    )


def full_run(a: float, b: float, depth: int, *, steps: int) -> RunSpec:
    """Full matrices on the easy task."""
    run = scale_run(a, b, depth, steps=steps)
    run = replace(replace(run, "model.matrix", "full"), "recipe.batch_size", 4)
    run = replace(run, "recipe.rate", FULL_RATE)
    record = (steps // 10, steps // 3, steps)
    evaluation = Evaluation(contexts=200, queries=16, measures=("scale",), record=record)
    return replace(replace(run, "recipe.queries", 16), "evaluation", evaluation)


def difficult_run(row: Row, depth: int) -> RunSpec:
    """A scale a layer on the difficult task; deep layers of steep spectra part slowly, and train
    four times as long.
    """
    targets, a, b = row
    start, spread = STARTS[0]
    slow = depth > 2 and a >= 1
    return RunSpec(
        task=Retrieval(
            spectrum=_spectrum(a, b, dim=LINEAR_DIM), context=LINEAR_CONTEXT, targets=targets
        ),
        model=LinearAttention(depth=depth, matrix="scale", start=start, spread=spread),
        recipe=Training(
            steps=800 if slow else 200,
            batch_size=2,
            queries=64,
            rate=0.05,
            optimizer="adam",
            warmup=20,
            schedule="cosine",
        ),
        evaluation=Evaluation(contexts=64, queries=16, measures=("scale",)),
    )


def noise_run(row: Row, rate: float, schedule: str, *, steps: int) -> RunSpec:
    """One full matrix on the difficult task, evaluated on the contexts of `difficult_run`."""
    run = difficult_run(row, 1)
    recipe = Training(
        steps=steps,
        batch_size=2,
        queries=64,
        rate=rate,
        optimizer="adam",
        warmup=100,
        schedule="cosine" if schedule == "cosine" else "constant",
    )
    model = LinearAttention(depth=1, start=0.25, spread=0.1)
    return replace(replace(run, "recipe", recipe), "model", model)


def softmax_run(a: float, depth: int, *, steps: int = SOFTMAX_STEPS) -> RunSpec:
    """Softmax attention on the easy task, b = 0."""
    return RunSpec(
        task=Retrieval(
            spectrum=_spectrum(a, 0, dim=SOFTMAX_DIM),
            context=SOFTMAX_CONTEXT,
            targets=1,
            difficulty="easy",
        ),
        model=SoftmaxAttention(depth=depth, start=0.1, spread=0.05),
        recipe=Training(
            steps=steps,
            batch_size=16,
            queries=16,
            rate=0.02,
            optimizer="adam",
            warmup=100,
            schedule="cosine",
        ),
        evaluation=Evaluation(
            contexts=500,
            queries=16,
            measures=("mass",),
            record=SOFTMAX_RECORD if steps == SOFTMAX_STEPS else (steps,),
        ),
    )


DIFFICULT: tuple[Row, ...] = (*TABLE3, *(row for row in LINEAR if row[1] > 0))
"""Rows of tables 3 and 1 that are trained; those with a = 0 are the first one, times a factor."""


def named_runs(scale: str) -> dict[str, Sequence[RunSpec]]:
    """The runs of each sweep at `scale`, nothing below "small"."""
    if scale not in SEEDS:
        return {}
    every = scale == "paper"
    full, noise = FULL_STEPS[scale], NOISE_STEPS[scale]
    spectra = tuple(TABLE2) if every else (EASY_SPECTRUM,)
    many, few = EASY_SEEDS[scale], SEEDS[scale]
    settings: dict[str, tuple[int, list[RunSpec]]] = {
        "linear-easy": (
            many,
            [
                scale_run(a, b, depth, steps=steps)
                for a, b in TABLE2
                for steps in LENGTHS[scale]
                for depth in POWERS
            ],
        ),
        "linear-easy-start": (
            many,
            [
                scale_run(*EASY_SPECTRUM, depth, steps=LENGTHS[scale][0], begin=begin)
                for begin in STARTS[1:]
                for depth in POWERS
            ],
        ),
        "linear-easy-full": (
            few,
            [full_run(a, b, depth, steps=full) for a, b in spectra for depth in FULL_DEPTHS[scale]],
        ),
        "linear-difficult": (
            few,
            [difficult_run(row, depth) for row in DIFFICULT for depth in DIFFICULT_DEPTHS],
        ),
        "linear-difficult-full": (
            few,
            [
                noise_run(row, rate, schedule, steps=noise)
                for row in (DIFFICULT if every else tuple(NOISE))
                for rate, schedule in NOISE.get(row, NOISE[2, 0.5, 0.5])
            ],
        ),
        "softmax-easy": (
            few,
            [softmax_run(a, depth) for a in SOFTMAX_SPECTRA for depth in SOFTMAX_DEPTHS],
        ),
        "softmax-easy-long": (few, [softmax_run(0.0, 1, steps=SOFTMAX_LONG)]),
    }
    return {
        name: [r for run in own for r in _seeded(run, count)]
        for name, (count, own) in settings.items()
    }


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """What is trained at `scale`."""
    return tuple(
        Sweep(name=f"{NAME}/{name}/simulation", engine="simulation", runs=tuple(runs))
        for name, runs in named_runs(scale).items()
    )


def chosen(
    tables: Tables, name: str, row: Row | None = None, depth: int | None = None
) -> list[tuple[RunSpec, dict[str, Any]]]:
    """The runs of a sweep, of one row and one depth where they are given, in the order of their
    seeds.
    """
    own = [
        (spec, found)
        for spec, found in rows(tables, name, engine="simulation")
        if (row is None or key(spec) == row) and depth in (None, found["depth"])
    ]
    return sorted(own, key=lambda run: run[0].seed)


def measured(row: dict[str, Any], name: str) -> Floats:
    """A stored measure of one run, the record first."""
    found = next(m for m in row["measures"] if m["name"] == name)
    return np.array(found["values"], float).reshape([int(n) for n in found["shape"]])


def easy_loss(a: float, b: float, scales: Floats) -> float:
    r"""The loss of layers of `scales` $\kappa_l$ on the easy task."""
    modes = power_law_modes(_spectrum(a, b, dim=LINEAR_DIM))
    left = np.prod(1 - np.multiply.outer(scales, modes.eigenvalues), axis=0)
    return float(modes.weights @ left**2)


def easy_losses(tables: Tables, name: str = "linear-easy") -> dict[Easy, Floats]:
    """Losses of trained scales by seed and depth in `POWERS`, for every setting of a sweep."""
    found: dict[Easy, dict[int, dict[int, float]]] = {}
    for spec, row in chosen(tables, name):
        assert isinstance(spec.model, LinearAttention)
        _, a, b = key(spec)
        setting = a, b, int(row["step"]), (spec.model.start, spec.model.spread)
        own = found.setdefault(setting, {}).setdefault(spec.seed, {})
        own[spec.model.depth] = easy_loss(a, b, measured(row, "scale")[-1])
    return {
        setting: np.array([[own[depth] for depth in POWERS] for own in seeds.values()])
        for setting, seeds in found.items()
    }


def lengths(found: Iterable[Easy]) -> tuple[int, ...]:
    """The numbers of steps among settings, in order."""
    return tuple(sorted({steps for _, _, steps, _ in found}))


@lru_cache(maxsize=32)
def moments(row: Row) -> FloorMoments:
    """Sampled contexts of one row of the difficult task."""
    inputs, tasks = eigenvalues(_spectrum(*row[1:], dim=LINEAR_DIM))
    return sample_moments(
        inputs=inputs,
        tasks=tasks,
        context=LINEAR_CONTEXT,
        targets=row[0],
        depth=FLOOR_DEPTH,
        contexts=MOMENTS,
        queries=MOMENT_QUERIES,
        seed=6,
    )


def context_losses(row: Row, scales: Floats) -> Floats:
    r"""The loss on each of the contexts of `moments` of layers of `scales` $\kappa_l$, with
    $1-\prod_l(1-\kappa_lS) = \sum_ra_rS^r$.
    """
    own = moments(row)
    residual = np.ones(1)  # by rising power
    for scale in scales.tolist():
        residual = np.convolve(residual, [1.0, -scale])
    depth, a = len(scales), -residual[1:]
    h, gram = own.overlap[1][:, :depth], own.gram[1][:, :depth, :depth]
    return own.target - 2 * h @ a + (gram @ a) @ a
