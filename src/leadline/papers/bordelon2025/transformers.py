r"""Trained transformers (Figures 1, 6, 8 and 9): their runs, and what theory says of them in the
dimension that is simulated.

Linear attention is trained with inputs and labels apart, so that every trained weight is one of
$\Gamma$'s factors, by plain gradient descent where theory has its flow. Every seed has weights,
training contexts and evaluation contexts of its own: seeds are independent, and runs of one seed
that differ in depth are compared on common contexts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from scipy.optimize import minimize_scalar

from leadline.curve import Floats
from leadline.papers.bordelon2025.rotated import NU
from leadline.papers.bordelon2025.tables import sweeps_of
from leadline.spec import (
    Evaluation,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Spectrum,
    Sweep,
    Training,
    Transformer,
    flat,
    replace,
    source_capacity,
)
from leadline.theory import landscape
from leadline.theory.layerwise import attention_flow, balanced
from leadline.theory.spectra import Modes, power_law_modes

SEEDS = {"small": 8, "paper": 32}

DIM = 32
"""Of Figure 1, as in the paper."""
RATIOS = (0.25, 0.5, 1.0, 2.0)
DEPTHS = (1, 4, 16)
CURVE_DEPTHS = (1, 2, 4, 8, 16)
"""Of Figure 1b; the others are trained at every context ratio."""
STEPS, RATE, BATCH = 1200, 0.001, 32
"""Of Figure 1, by Adam along a cosine: plain descent at a rate that suits one depth diverges at
another, for the gradient grows with the power 2L of the largest eigenvalue of a context; at twice
this rate the noise left in the weights costs 4% of the loss at L = 16, P = D."""

FLOW_DIM = {"small": 16, "paper": 32}
BETA = 1.25
START = 0.5
"""Scale of the weights at the start of Figures 6a, 6b and 8, where gamma = 2 START^5."""
FLOW_RATE, FLOW_TIME, FLOW_BATCH = 0.1, 100.0, 32
FLOW_DEPTHS = (1, 4, 16)
SLOPE_DEPTH = 16
UNTIED_DEPTH = 4
UNTIED_TIME = 100 * 10**0.75
"""Of Figure 8: its recorded times are those of Figure 6b and later ones."""

SOFTMAX_DIM = {"small": 8, "paper": 16}
SOFTMAX_DEPTHS = (1, 2, 4, 8)
SOFTMAX_STEPS = {"small": 400, "paper": 3000}
SOFTMAX_BATCH, QUERIES = 16, 8

SPECTRA = 40_000
"""Sampled spectra behind the optimum in a finite dimension."""
FLOW_SPECTRA = 4_000
"""Sampled spectra behind the flow on isotropic contexts."""


def record(steps: int, *, per_decade: int) -> tuple[int, ...]:
    """Zero and steps down to a hundredth of `steps`, evenly spaced in the logarithm."""
    wanted = (round(steps * 10 ** (-i / per_decade)) for i in range(2 * per_decade + 1))
    return (0, *sorted(set(wanted)))


def _seeded(run: RunSpec, count: int) -> list[RunSpec]:
    """`run` with `count` seeds, each evaluated on contexts of its own."""
    return [replace(replace(run, "seed", n), "evaluation.seed", n) for n in range(count)]


def linear_run(ratio: float, depth: int) -> RunSpec:
    """Figure 1: tied layers of linear attention on isotropic contexts, read-in and read-out fixed,
    from an aligned start with half of the step size that is best in infinite dimension.
    """
    return RunSpec(
        task=InContextRegression(
            spectrum=flat(DIM), covariance="isotropic", context=round(ratio * DIM)
        ),
        model=Transformer(
            depth=depth,
            width=DIM + 1,
            tied=True,
            trainable="attention",
            channels="separate",
            initial="aligned",
            start=(depth * ratio / (1 + ratio) / 2) ** (1 / 3),
        ),
        recipe=Training(
            steps=STEPS,
            batch_size=BATCH,
            queries=math.inf,
            rate=RATE,
            optimizer="adam",
            schedule="cosine",
        ),
        evaluation=Evaluation(contexts=1024, record=record(STEPS, per_decade=3)),
    )


def reference_run(ratio: float, depth: int) -> RunSpec:
    """An untrained model with a fixed step size near the best, on the contexts of `linear_run`: the
    luck of those contexts is taken from the trained loss.
    """
    trained = linear_run(ratio, depth)
    return RunSpec(
        task=trained.task,
        model=ReducedAttention(depth=depth),
        recipe=GivenScale(gamma=0.85 * depth * ratio / (1 + ratio)),
        evaluation=Evaluation(contexts=trained.evaluation.contexts),
    )


def attention_run(
    task: InContextRegression,
    depth: int,
    *,
    rate: float = FLOW_RATE,
    until: float = FLOW_TIME,
    tied: bool = True,
) -> RunSpec:
    """Figures 6a, 6b and 8: W_x, W_k, W_q and W_v of linear attention from a small balanced start,
    by plain gradient descent with steps so small that it follows its flow.
    """
    steps = round(until / rate)
    return RunSpec(
        task=task,
        model=Transformer(
            depth=depth,
            width=int(task.spectrum.dim) + 1,
            tied=tied,
            trainable="attention and read-in",
            channels="separate",
            initial="aligned",
            start=START,
        ),
        recipe=Training(steps=steps, batch_size=FLOW_BATCH, queries=math.inf, rate=rate),
        evaluation=Evaluation(
            contexts=256, record=record(steps, per_decade=4), measures=("scale",)
        ),
    )


def isotropic_task(dim: int) -> InContextRegression:
    """Isotropic contexts with P = D."""
    return InContextRegression(spectrum=flat(dim), covariance="isotropic", context=dim)


def rotated_task(dim: int) -> InContextRegression:
    r"""Power laws in a fresh basis, $\beta = 1.25$, infinite context."""
    return InContextRegression(
        spectrum=source_capacity(dim, nu=NU, beta=BETA), covariance="rotated", context=math.inf
    )


def softmax_run(depth: int, *, scale: str, mlp: bool) -> RunSpec:
    """Figures 6c and 9: untied layers of softmax attention on isotropic contexts, P = 4D, by Adam;
    with MLP blocks all weights start at random and no channel is kept apart.
    """
    dim, steps = SOFTMAX_DIM[scale], SOFTMAX_STEPS[scale]
    model = (
        Transformer(depth=depth, width=2 * dim, attention="softmax", mlp=2)
        if mlp
        else Transformer(
            depth=depth,
            width=dim + 1,
            attention="softmax",
            channels="separate",
            initial="aligned",
        )
    )
    return RunSpec(
        task=InContextRegression(spectrum=flat(dim), covariance="isotropic", context=4 * dim),
        model=model,
        recipe=Training(
            steps=steps,
            batch_size=SOFTMAX_BATCH,
            queries=QUERIES,
            rate=0.01 if mlp else 0.1,
            optimizer="adam",
            schedule="cosine",
            warmup=steps // 20,
        ),
        evaluation=Evaluation(contexts=512, queries=QUERIES, record=record(steps, per_decade=4)),
    )


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """Figures 1, 6, 8 (trained) and 9, simulation only, and the runs behind the local slope."""
    dim = FLOW_DIM[scale]
    isotropic, rotated = isotropic_task(dim), rotated_task(dim)
    trained = [linear_run(ratio, depth) for depth in DEPTHS for ratio in RATIOS]
    more = [linear_run(1.0, depth) for depth in CURVE_DEPTHS if depth not in DEPTHS]
    runs: dict[str, Sequence[RunSpec]] = {
        "figure1": [*trained, *more],
        "figure1-reference": [reference_run(r, depth) for depth in DEPTHS for r in RATIOS],
        "figure6a": [attention_run(isotropic, depth) for depth in FLOW_DEPTHS],
        "figure6b": [attention_run(rotated, depth) for depth in FLOW_DEPTHS],
        "figure6c": [softmax_run(depth, scale=scale, mlp=False) for depth in SOFTMAX_DEPTHS],
        "figure6-slope": [attention_run(rotated, SLOPE_DEPTH, rate=FLOW_RATE / 2)],
        "figure8-trained": [attention_run(rotated, UNTIED_DEPTH, until=UNTIED_TIME, tied=False)],
        "figure9": [softmax_run(depth, scale=scale, mlp=True) for depth in SOFTMAX_DEPTHS],
    }
    return sweeps_of(
        {
            f"{name}/simulation": [r for run in own for r in _seeded(run, SEEDS[scale])]
            for name, own in runs.items()
        }
    )


@cache
def spectra(dim: int, context: int, count: int) -> Floats:
    r"""Eigenvalues of $XX^T/P$ for `count` samples, shape (count, dim)."""
    rng = np.random.default_rng([dim, context])
    parts: list[Floats] = []
    for begin in range(0, count, 1000):
        x = rng.standard_normal((min(1000, count - begin), dim, context))
        parts.append(np.linalg.eigvalsh(x @ x.swapaxes(1, 2) / context).astype(float))
    return np.concatenate(parts)


def step_losses(dim: int, context: int, depth: int, *, step: float) -> Floats:
    r"""The loss of $L$ gradient steps of one size `step`, $\gamma/L$, on each of `SPECTRA`
    isotropic contexts, $\frac1D\sum_x(1-\gamma x/L)^{2L}$.
    """
    return np.mean((1 - step * spectra(dim, context, SPECTRA)) ** (2 * depth), axis=1)


@cache
def finite_optimum(dim: int, context: int, depth: int) -> tuple[float, float, float]:
    """The least mean of `step_losses`, its standard error, and the step."""
    # convex in the step; in infinite dimension the best is 1/(1 + D/P), and no more in a finite one
    best = minimize_scalar(
        lambda step: float(step_losses(dim, context, depth, step=step).mean()),
        bounds=(0.0, 1.1 / (1 + dim / context)),
        method="bounded",
        options={"xatol": 1e-5},
    )
    found = step_losses(dim, context, depth, step=float(best.x))
    return float(found.mean()), float(found.std()) / math.sqrt(SPECTRA), float(best.x)


@cache
def modes_of(task: InContextRegression) -> Modes:
    """The modes of the loss of `task`, one of the two of Figure 6."""
    spectrum: Spectrum = task.spectrum
    if task.covariance == "rotated":
        return power_law_modes(spectrum)
    x = spectra(int(spectrum.dim), int(task.context), FLOW_SPECTRA).ravel()
    share = np.full(x.size, 1 / x.size)
    return Modes(eigenvalues=x.copy(), power=share, weights=share)


@cache
def theory_curve(
    task: InContextRegression, depth: int, at: tuple[float, ...]
) -> tuple[Floats, Floats]:
    r"""$\gamma$ and loss of the flow of full attention from `START`, tied or balanced layers, at
    the times `at`.
    """
    modes, dim = modes_of(task), int(task.spectrum.dim)
    gamma = attention_flow(modes, at, depth=depth, start=balanced(START), dim=dim)
    return gamma, landscape.loss(modes, gamma, depth=depth)


@cache
def tied_optimum(task: InContextRegression, depth: int) -> float:
    """The least loss of one scale for all layers."""
    modes = modes_of(task)
    return float(landscape.loss(modes, landscape.best_scale(modes, depth=depth), depth=depth))
