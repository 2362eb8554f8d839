r"""The types of sequence of a power law, $P_s = s^{-\alpha}/Z$, $\psi_s = \psi_1s^{-\beta}$,
$\Lambda_s = \Lambda_1s^{-\gamma}$, as nodes and weights: any sum over types, of which there may be
infinitely many, costs a thousand evaluations.

The first types are kept one by one. The others enter through the integral from half a type after
the last explicit one, $K$, whose summand is smooth in $\ln s$; with the correction
$[f(K+1)-f(K)]/24$ the error is $\frac{17}{5760}f'''(K)$, of relative order $(p/K)^3/K$ for a
summand that falls as $s^{-p}$. Gauss-Legendre panels in $\ln s$ are as long as the distance of the
nearest pole of the learning front, $\arctan(\pi/\ln b)/\nu$, $b = \Lambda/f(0) - 1$.

Derived in docs/theory/sparse.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.spec import SparseFeatures

EXPLICIT = 512
NEGLIGIBLE = 32.0  # e^-32 = 1e-14
_PANEL = 16
_LONGEST = 0.6  # of a panel, in units of ln s


@dataclass(frozen=True, eq=False, kw_only=True)
class Types:
    r"""Types of sequence, arrays of one length.

    **Arguments:** `index` $s$, whole numbers among the explicit types and real in the tail;
    `counts` the number of types for which a node stands; `probability` $P_s$; `context` $\psi_s$;
    `strength` $\Lambda_s$; `rest` is $\sum P_s\Lambda_s^2$ over what lies beyond the last node,
    `total` the same over all types.
    """

    index: Floats
    counts: Floats
    probability: Floats
    context: Floats
    strength: Floats
    rest: float
    total: float

    @property
    def rates(self) -> Floats:
        r"""$a_s = P_s\psi_s(1+\Lambda_s^2)$, with unlimited data."""
        return self.probability * self.context * (1 + self.strength**2)

    @property
    def constrained_rates(self) -> Floats:
        r"""$a_s = P_s\psi_s\Lambda_s$ of the model with $v = (0, v_c)$, $w = (w_s, 0)$."""
        return self.probability * self.context * self.strength

    @property
    def power(self) -> Floats:
        r"""$P_s\Lambda_s^2$ times the number of types."""
        return self.counts * self.probability * self.strength**2


def power_sum(exponent: float, *, start: float = 0, stop: float = math.inf) -> float:
    r"""$\sum_{\text{start}<s\le\text{stop}}s^{-p}$ over whole numbers, relative error below 1e-15:
    a difference of Hurwitz zeta functions, by Euler and Maclaurin.

    **Raises:** `SolverError` where the sum diverges: $p\le1$ to infinity.
    """
    if math.isinf(stop) and exponent <= 1:
        raise SolverError(f"exponent: got {exponent:g}, expected > 1 for infinitely many types")
    near = max(start, 32)
    if stop <= near:
        return float(np.sum(np.arange(start + 1.0, stop + 1) ** -exponent))
    head = float(np.sum(np.arange(start + 1.0, near + 1) ** -exponent))
    return head + _integral(exponent, near, stop) + _ends(exponent, near) - _ends(exponent, stop)


def _integral(p: float, low: float, high: float) -> float:
    if math.isinf(high):
        return low ** (1 - p) / (p - 1)
    length = math.log(high / low)
    return low ** (1 - p) * (length if p == 1 else -math.expm1((1 - p) * length) / (p - 1))


def _ends(p: float, at: float) -> float:
    """What the sum from `at` + 1 on has beside the integral from `at`."""
    if math.isinf(at):
        return 0.0
    first, third = p / 12, p * (p + 1) * (p + 2) / 720
    fifth = third * (p + 3) * (p + 4) / 42
    seventh = fifth * (p + 5) * (p + 6) / 40
    return at**-p * (-0.5 + first / at - third / at**3 + fifth / at**5 - seventh / at**7)


def types_of(
    task: SparseFeatures,
    *,
    size: float = math.inf,
    front: float = math.inf,
    sharpness: float = 0.0,
    explicit: int = EXPLICIT,
) -> Types:
    r"""The types of `task`, as nodes for sums over $s\le$ `size`; the others are in `rest`.

    **Arguments:** `front` is the last type that anything happens to: beyond it only the power
    $P_s\Lambda_s^2$ counts, and it joins `rest`; `sharpness` is $\ln b$ of the learning front;
    `explicit` types are kept one by one.

    **Raises:** `SolverError` for infinitely many types without a front.
    """
    if isinstance(task.context, tuple) or isinstance(task.strength, tuple):
        return _explicit_types(task, size)
    alpha, delta = task.type_exponent, task.type_exponent + 2 * task.strength_exponent
    norm = power_sum(alpha, stop=task.num_tasks)
    scale = task.strength**2 / norm
    last = min(size, task.num_tasks, max(front, explicit))
    if math.isinf(last):
        raise SolverError("front: got infinity, expected a finite one for infinitely many types")
    last = float(math.ceil(last))
    s = np.arange(1.0, (last if last <= 2 * explicit else explicit) + 1)
    counts = np.ones(len(s))
    if last > 2 * explicit:
        nu = alpha + task.context_exponent + task.strength_exponent
        length = min(_LONGEST, 2 * math.atan2(math.pi, sharpness) / nu)
        nodes, weights = _panels(math.log(explicit + 0.5), math.log(last + 0.5), length)
        # the derivative at both ends of the integral
        counts[-1] -= 1 / 24
        s = np.concatenate([s, np.exp(nodes), [explicit + 1, last, last + 1]])
        counts = np.concatenate([counts, weights * np.exp(nodes), [1 / 24, 1 / 24, -1 / 24]])
    rest = scale * power_sum(delta, start=last, stop=task.num_tasks) if last < task.num_tasks else 0
    return Types(
        index=s,
        counts=counts,
        probability=s**-alpha / norm,
        context=task.context * s**-task.context_exponent,
        strength=task.strength * s**-task.strength_exponent,
        rest=rest,
        total=scale * power_sum(delta, stop=task.num_tasks),
    )


def _explicit_types(task: SparseFeatures, size: float) -> Types:
    s = np.arange(1.0, task.num_tasks + 1)
    probability = s**-task.type_exponent / np.sum(s**-task.type_exponent)
    context = np.asarray(task.context, float) * s**-task.context_exponent
    strength = np.asarray(task.strength, float) * s**-task.strength_exponent
    kept, power = s <= size, probability * strength**2
    return Types(
        index=s[kept],
        counts=np.ones(int(kept.sum())),
        probability=probability[kept],
        context=context[kept],
        strength=strength[kept],
        rest=float(power[~kept].sum()),
        total=float(power.sum()),
    )


def _panels(low: float, high: float, length: float) -> tuple[Floats, Floats]:
    nodes, weights = _legendre()
    count = max(1, math.ceil((high - low) / length))
    half = (high - low) / count / 2
    centers = low + half * (2 * np.arange(count) + 1)
    return (centers[:, None] + half * nodes).ravel(), np.tile(half * weights, count)


@cache
def _legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(_PANEL)
    return nodes, weights


def front_of(task: SparseFeatures, reach: float, *, exponent: float) -> float:
    r"""The type beyond which $x_s = $ `reach` $s^{-\nu}$, $\nu$ = `exponent`, changes less than
    e^-32 of the sum: the tail of the power weighs $x^{(\delta-1)/\nu}$ there, and moves by $x$.
    """
    if reach <= 0:
        return 1.0
    tail = max(task.type_exponent + 2 * task.strength_exponent - 1, 0.0) / exponent
    return math.exp(min(max(math.log(reach) + NEGLIGIBLE / (1 + tail), 0.0) / exponent, 600.0))
