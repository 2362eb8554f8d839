r"""The test loss of sparse feature regression over any number of types: against time, model size,
number of sequences and compute.

$\mathcal L = \frac12\sum_sP_s(f_s-\Lambda_s)^2$, the factor 1/2 as in the paper; types $s$ beyond
the size $D$ of the model keep the $f_s(0)$ they start with. Zeroth order in $1/\psi_s$.

Derived in docs/theory/sparse.md. Ref: Lyu, Wang, Zhu (ICLR 2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.spec import PerTaskAttention, SparseFeatures, replace
from leadline.theory.sparse import solution, start_at
from leadline.theory.sparse_types import EXPLICIT, Types, front_of, power_sum, types_of

CHUNK = 32
"""Times evaluated together, so that their arrays stay in cache."""


def time_loss(
    task: SparseFeatures,
    time: ArrayLike,
    *,
    model: PerTaskAttention,
    explicit: int = EXPLICIT,
) -> Floats:
    r"""The loss at every `time` $\ge0$ of the flow, unlimited data.

    **Arguments:** `time` of any shape; `explicit` types are kept one by one, the others by
    quadrature.
    """
    t = np.asarray(time, float)
    flat = t.ravel()
    types = types_reached(task, float(flat.max(initial=0.0)), model=model, explicit=explicit)
    weights = types.counts * types.probability
    losses = np.empty(flat.shape)
    for first in range(0, len(flat), CHUNK):
        part = slice(first, first + CHUNK)
        residual = residuals(types, flat[part, None], model=model)
        losses[part] = (residual * residual) @ weights
    return (losses + (1 - model.start) ** 2 * types.rest).reshape(t.shape) / 2


def residuals(types: Types, time: ArrayLike, *, model: PerTaskAttention) -> Floats:
    r"""$f_s(t) - \Lambda_s$ of `types`, unlimited data; `time` broadcasts against the types.

    **Raises:** `SolverError` for softmax attention.
    """
    if model.attention != "linear":
        raise SolverError(
            f"model.attention: got {model.attention!r}; the closed form is that of 'linear'"
        )
    rates = np.abs(types.constrained_rates) if model.constrained else types.rates
    start = start_at(model.start * types.strength, invariant=model.invariant)
    return solution(time, rate=rates, strength=types.strength, start=start).residual


def types_reached(
    task: SparseFeatures, time: float, *, model: PerTaskAttention, explicit: int = EXPLICIT
) -> Types:
    """The types of `task` that `model` has, up to where nothing has happened by `time`.

    **Raises:** `SolverError` for infinite time and infinitely many types of a model of any size.
    """
    if isinstance(task.context, tuple) or isinstance(task.strength, tuple):
        return types_of(task, size=model.size)
    first = types_of(task, size=1)
    rate = first.constrained_rates if model.constrained else first.rates
    delta = math.hypot(2 * task.strength, math.sqrt(model.invariant))
    nu = task.type_exponent + task.context_exponent
    nu += 0.0 if model.invariant else task.strength_exponent
    reach = abs(float(rate[0])) * delta * time if time else 0.0
    return types_of(
        task,
        size=model.size,
        front=front_of(task, reach, exponent=nu) if math.isfinite(reach) else math.inf,
        sharpness=sharpness_of(task.strength, model=model),
        explicit=explicit,
    )


def sharpness_of(strength: float, *, model: PerTaskAttention) -> float:
    r"""$\ln b$, $b = (g_+-g_0)/(g_0+\Delta-2\Lambda)$, of a task of `strength`: how long it waits
    before it learns, in units of the time that learning takes; zero where it does not wait.
    """
    target = abs(strength)
    start = start_at(model.start * target, invariant=model.invariant)
    g0 = float(np.asarray(start.sum_square))
    above = 2 * target + math.hypot(2 * target, math.sqrt(model.invariant))
    below = model.invariant / above if above else 0.0
    ratio = (above - g0) / (g0 + below) if g0 + below > 0 else 1.0
    return math.log(max(ratio, 1.0))


def size_loss(task: SparseFeatures, size: ArrayLike, *, model: PerTaskAttention) -> Floats:
    r"""The loss after infinite time on unlimited data of a model with the features $s\le D$ =
    `size`: $\frac12(1-f(0)/\Lambda)^2\sum_{s>D}P_s\Lambda_s^2$.
    """
    sizes = np.asarray(size, float)
    if isinstance(task.context, tuple) or isinstance(task.strength, tuple):
        kept = [types_of(task, size=d).rest for d in sizes.ravel().tolist()]
    else:
        delta = task.type_exponent + 2 * task.strength_exponent
        scale = task.strength**2 / power_sum(task.type_exponent, stop=task.num_tasks)
        kept = [
            scale * power_sum(delta, start=d, stop=task.num_tasks) if d < task.num_tasks else 0.0
            for d in sizes.ravel().tolist()
        ]
    return (1 - model.start) ** 2 * np.array(kept).reshape(sizes.shape) / 2


def data_loss(task: SparseFeatures, sequences: ArrayLike, *, model: PerTaskAttention) -> Floats:
    r"""The expected loss after infinite time on $N$ = `sequences` training sequences, over the
    multinomial counts of the types: those never drawn stay as they start,
    $\frac12(1-f(0)/\Lambda)^2\sum_sP_s\Lambda_s^2(1-P_s)^N$, beside those beyond the model's size.

    Infinite time is that beyond $N\ln b/2\psi_s\Lambda_s(1+\Lambda_s^2)$, when a type drawn once is
    learned.
    """
    counts = np.asarray(sequences, float)
    types = types_drawn(task, float(counts.max(initial=1.0)), model=model)
    with np.errstate(divide="ignore"):
        logs = np.log1p(-types.probability)
    missed = np.exp(counts.ravel()[:, None] * logs)
    missed = np.where(counts.ravel()[:, None] == 0, 1.0, missed)
    losses = missed @ types.power + types.rest
    return (1 - model.start) ** 2 * losses.reshape(counts.shape) / 2


def types_drawn(
    task: SparseFeatures, sequences: float, *, model: PerTaskAttention, explicit: int = EXPLICIT
) -> Types:
    """The types of `task` that `model` has, up to where none is among `sequences` drawn."""
    if isinstance(task.context, tuple) or isinstance(task.strength, tuple):
        return types_of(task, size=model.size)
    reach = sequences / power_sum(task.type_exponent, stop=task.num_tasks)
    return types_of(
        task,
        size=model.size,
        front=front_of(task, reach, exponent=task.type_exponent),
        sharpness=sharpness_of(task.strength, model=model),
        explicit=explicit,
    )


@dataclass(frozen=True, kw_only=True)
class ComputeOptimum:
    """The model size, time and loss of least loss at `compute` = time times size."""

    compute: float
    size: int
    time: float
    loss: float


def compute_optimum(
    task: SparseFeatures, compute: float, *, model: PerTaskAttention
) -> ComputeOptimum:
    r"""The least loss over $D$ at $C = tD$ = `compute`: a larger model learns more types, a smaller
    one trains longer.

    The size is found among whole numbers by shrinking a bracket on the logarithm of $D$ in which
    the loss has one minimum.

    **Raises:** `SolverError` unless `compute` is finite and > 0.
    """
    if not 0 < compute < math.inf:
        raise SolverError(f"compute: got {compute}, expected a finite number > 0")

    @cache
    def loss(size: int) -> float:
        own = replace(model, "size", size)
        return float(time_loss(task, compute / size, model=own))

    largest = task.num_tasks if math.isfinite(task.num_tasks) else 2**62
    low, high = 1, int(min(model.size, largest))
    while high - low > 8:
        grid = sorted({round(low * (high / low) ** (i / 16)) for i in range(17)})
        best = min(range(len(grid)), key=lambda i: loss(grid[i]))
        shrunk = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        if shrunk == (low, high):
            break
        low, high = shrunk
    size = min(range(low, high + 1), key=loss)
    return ComputeOptimum(compute=compute, size=size, time=compute / size, loss=loss(size))
