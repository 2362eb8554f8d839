r"""Losses of gradient descent in context as sums over modes, at infinite context and width.

Whatever the covariances, with $\Gamma = \gamma I$ (or any $\Gamma$ after a change of basis, see
`fixed.shifted_modes`) the loss is

$$\mathcal L(\gamma) = \sum_k w_k\,(1 - \gamma\lambda_k/L)^{2L}, \qquad w_k = \omega_k\lambda_k,$$

and $\sum_k w_k e^{-2\gamma\lambda_k}$ at $L = \infty$. It is convex in $\gamma$. Powers are taken
through logarithms that keep the relative accuracy of $1 - \gamma\lambda/L$ on both sides of zero,
so that a depth of a million costs no digits.

Derived in docs/theory/rotated.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.theory.spectra import Modes

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    r"""An asymptote $C\,x^{-\alpha}$ with `prefactor` $C$ and `exponent` $\alpha$."""

    prefactor: float
    exponent: float

    def __call__(self, x: ArrayLike) -> Floats:
        """The value at `x` > 0."""
        return self.prefactor * np.asarray(x, float) ** -self.exponent


def local_exponent(values: ArrayLike, at: ArrayLike) -> Floats:
    r"""The local exponents $-\Delta\ln v/\Delta\ln x$ between neighboring points of a curve.

    **Arguments:** `values` > 0 and `at` > 0 (increasing), arrays of one length n.
    Returns n - 1 exponents; the one of $x^{-\alpha}$ is $\alpha$.
    """
    return -np.diff(np.log(np.asarray(values, float))) / np.diff(np.log(np.asarray(at, float)))


def log_residual(eigenvalues: Floats, gamma: float | Floats, *, depth: float) -> Floats:
    r"""$L\ln|1 - \gamma\lambda/L|$, the logarithm of what $L$ layers leave of a mode;
    $-\gamma\lambda$ at infinite depth.
    """
    if math.isinf(depth):
        return -gamma * eigenvalues
    x = gamma * eigenvalues / depth
    # |1 - x| = |1 - (2 - x)|, and 2 - x is exact where x is near 2
    with np.errstate(divide="ignore"):
        return depth * np.log1p(-np.minimum(x, 2 - x))


def loss(modes: Modes, gamma: ArrayLike, *, depth: float) -> Floats:
    r"""The loss $\sum_k w_k(1-\gamma\lambda_k/L)^{2L}$ at every `gamma`.

    **Arguments:** `gamma` a number or an array of any shape, finite; `depth` $L\ge1$ or infinity.
    Returns an array of that shape; infinite where it exceeds the largest float.
    """
    gammas = np.asarray(gamma, float)
    with np.errstate(over="ignore"):
        values = [
            modes.weights @ np.exp(2 * log_residual(modes.eigenvalues, g, depth=depth))
            for g in gammas.ravel().tolist()
        ]
    return np.array(values).reshape(gammas.shape)


def slope(modes: Modes, gamma: ArrayLike, *, depth: float) -> Floats:
    r"""The derivative $d\mathcal L/d\gamma = -2\sum_k w_k\lambda_k(1-\gamma\lambda_k/L)^{2L-1}$.

    **Arguments:** as for `loss`. Returns an array of the shape of `gamma`.
    """
    gammas = np.asarray(gamma, float)
    moments = -2 * modes.weights * modes.eigenvalues
    values: list[float] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for g in gammas.ravel().tolist():
            power = _odd_power(modes.eigenvalues, g, depth)
            flipped = g * modes.eigenvalues > depth
            values.append(float(moments @ np.where(flipped, -power, power)))
    return np.array(values).reshape(gammas.shape)


def _odd_power(eigenvalues: Floats, gamma: float, depth: float) -> Floats:
    r"""$|1-\gamma\lambda/L|^{2L-1}$."""
    exponent = 2 - (0 if math.isinf(depth) else 1 / depth)
    return np.exp(exponent * log_residual(eigenvalues, gamma, depth=depth))


def rounding(modes: Modes, gamma: ArrayLike, *, depth: float) -> Floats:
    r"""A bound on the rounding error of `loss`: what one rounding of every
    $\gamma\lambda_k$ can change, plus that of the sum.

    **Arguments:** as for `loss`.
    """
    gammas = np.asarray(gamma, float)
    moments = 2 * modes.weights * modes.eigenvalues
    with np.errstate(over="ignore"):
        moved = [
            abs(g) * float(moments @ _odd_power(modes.eigenvalues, g, depth))
            for g in gammas.ravel().tolist()
        ]
        return 4 * EPS * (np.array(moved).reshape(gammas.shape) + loss(modes, gammas, depth=depth))


def edge(modes: Modes, *, depth: float) -> float:
    r"""The edge of stability $\gamma = 2L/\lambda_1$: beyond it the top mode grows with every
    layer. Infinite at infinite depth.
    """
    return 2 * depth / float(modes.eigenvalues.max())


def best_scale(modes: Modes, *, depth: float) -> float:
    r"""The $\gamma$ of least loss; infinite at infinite depth, where the loss falls for ever.

    The slope changes sign once. Left of the root the modes with $\gamma\lambda < L$ outweigh the
    flipped ones, right of it the flipped ones do; bisection on the sign of their difference,
    scaled by the largest term, cannot underflow at any depth, and finds the root to the last
    digits.
    """
    if math.isinf(depth):
        return math.inf
    log_moments = np.log(modes.weights * modes.eigenvalues)

    def rising(gamma: float) -> bool:
        flipped = gamma * modes.eigenvalues > depth
        logs = log_moments + (2 - 1 / depth) * log_residual(modes.eigenvalues, gamma, depth=depth)
        terms = np.exp(logs - logs.max())
        return bool(terms[flipped].sum() > terms[~flipped].sum())

    low = depth / float(modes.eigenvalues.max())
    high = 2 * low
    while not rising(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if rising(middle) else (middle, high)
    return (low + high) / 2


def depth_exponent(modes: Modes, *, depth: float) -> float:
    r"""The local exponent $-d\ln\mathcal L/d\ln L$ of the least loss, depth taken as a real
    number. At the minimum the derivative at fixed $\gamma/L$ is the whole derivative:
    $d\mathcal L/dL = 2\sum_k w_k r_k^{2L}\ln|r_k|$ with $r_k = 1-\gamma\lambda_k/L$.

    **Arguments:** `depth` $L \ge 1$, finite.
    """
    logs = 2 * log_residual(modes.eigenvalues, best_scale(modes, depth=depth), depth=depth)
    terms = modes.weights * np.exp(logs)
    kept = terms > 0
    return -float(terms[kept] @ logs[kept]) / float(terms.sum())
