r"""Residual polynomials: what $L$ steps of gradient descent in context can leave of each mode.

Layers with scales $\gamma_1,\dots,\gamma_L$ multiply a mode by
$p(\lambda) = \prod_l(1-\gamma_l\lambda/L)$, any polynomial of degree $L$ with $p(0)=1$ and real
roots, and lose $\sum_k w_k\,p(\lambda_k)^2$. One common scale is `landscape.best_scale`. A cycle
of $m$ scales is $p = q^{L/m}$ with $q$ of degree $m$. Free scales reach the Christoffel function of
the measure $w$ at zero, $1/\sum_{j\le L}\pi_j(0)^2$ over its orthonormal polynomials.

Derived in docs/theory/untied.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory.landscape import log_residual
from leadline.theory.spectra import Modes

MAX_DEGREE = 1024
MAX_ITERATIONS = 200


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    r"""The best step sizes found, and what they leave.

    **Arguments:** `scales` $\gamma_l$ of the layers, in increasing order, one a distinct step size;
    `loss` $\sum_k w_k\,p(\lambda_k)^2$; `gap`, relative, by how much less it could be at most;
    `status` "converged" if the gap is below $10^{-9}$, else "stalled".
    """

    scales: Floats
    loss: float
    gap: float
    status: Literal["converged", "stalled"]


def free_steps(modes: Modes, *, depth: int) -> StepSizes:
    r"""The least loss of `depth` layers with a scale each, over all residual polynomials of degree
    $L$: the Christoffel function.

    The orthonormal polynomials come from the bidiagonal form of $\sqrt\Lambda$ started at
    $\sqrt w$, whose entries $\alpha_j, \beta_j$ give $|\pi_j(0)| = \prod_{i\le j}
    \alpha_i/\beta_{i+1}$, a sum of positive terms that keeps its relative accuracy however small
    the loss. The roots are the nodes of the Gauss-Radau rule with a node at zero.

    **Arguments:** `depth` $1\le L\le 1024$.

    **Raises:** `SolverError` for a larger depth.

    Ref: derived in docs/theory/untied.md.
    """
    _check_degree(depth)
    residual = _least_squares(modes.eigenvalues, modes.weights, depth)
    return StepSizes(
        scales=np.sort(depth / residual.roots), loss=residual.loss, gap=0.0, status="converged"
    )


def cyclic_steps(modes: Modes, *, depth: int, distinct: int) -> StepSizes:
    r"""The least loss of `depth` layers that repeat a cycle of `distinct` scales.

    $\sum_k w_k|q(\lambda_k)|^{2L/m}$ is convex in $q$, so its minimum is the only one. Newton's
    step leads toward the polynomial of least squares for the weights $w|q|^{2L/m-2}$, again a
    Christoffel function; Chebyshev's polynomial of the best interval is the start. With nearly as
    many scales as layers the search may stall, as it says.

    **Arguments:** `distinct` $m$ divides `depth` $L$, $1\le m\le 1024$.

    **Raises:** `SolverError` otherwise.

    Ref: derived in docs/theory/untied.md.
    """
    _check_degree(distinct)
    if depth % distinct:
        raise SolverError(f"distinct: got {distinct}, expected a divisor of the depth {depth}")
    free = _least_squares(modes.eigenvalues, modes.weights, distinct)
    if distinct == depth or free.loss == 0:
        return StepSizes(
            scales=np.sort(depth / free.roots), loss=free.loss, gap=0.0, status="converged"
        )
    final = 2 * depth / distinct
    doublings = max(0, math.ceil(math.log2(final / 16)))
    q, roots, gap = _best_chebyshev(modes, final / 2**doublings, distinct), free.roots, 1.0
    for n in range(doublings + 1):
        q, roots, gap = _newton(modes, q, final / 2 ** (doublings - n), distinct)
    return StepSizes(
        scales=np.sort(depth / roots),
        loss=math.exp(_log_sum(modes, q, final)),
        gap=gap,
        status="converged" if gap < 1e-9 else "stalled",
    )


def outlier_steps(modes: Modes, *, depth: int, outliers: int = 1) -> StepSizes:
    r"""The least loss of `depth` layers of which all but `outliers` share one scale.

    At a common step $\kappa$ the outliers are the free optimum for the weights
    $w(1-\kappa\lambda)^{2(L-m)}$. The best $\kappa$ may lie in a narrow valley far beyond the
    edge of stability, where an outlier has its root at the top mode; it is sought on a fine
    logarithmic grid and refined there.

    **Arguments:** `outliers` $0\le m<L$.

    **Raises:** `SolverError` otherwise.

    Ref: derived in docs/theory/retrieval.md.
    """
    from scipy.optimize import minimize_scalar

    if not 0 <= outliers < depth:
        raise SolverError(
            f"outliers: got {outliers} of {depth} layers, expected fewer outliers than layers"
        )
    _check_degree(max(outliers, 1))
    top = float(modes.eigenvalues.max())

    def solve(log_step: float) -> tuple[float, Floats]:
        values = log_residual(
            modes.eigenvalues, math.exp(log_step) * (depth - outliers), depth=depth - outliers
        )
        logs = np.log(modes.weights) + 2 * values
        weights = np.exp(logs - logs.max())
        if outliers == 0:
            return float(logs.max() + math.log(weights.sum())), np.empty(0)
        residual = _least_squares(modes.eigenvalues, weights, outliers)
        if residual.loss == 0:
            return -math.inf, residual.roots
        return float(logs.max() + math.log(residual.loss)), residual.roots

    steps = np.linspace(math.log(0.05), math.log(50), 400) - math.log(top)
    losses = [solve(step)[0] for step in steps.tolist()]
    best = int(np.argmin(losses))
    low, high = steps[max(best - 1, 0)], steps[min(best + 1, len(steps) - 1)]
    found = minimize_scalar(
        lambda step: solve(step)[0], bounds=(low, high), method="bounded", options={"xatol": 1e-10}
    )
    log_loss, roots = solve(float(found.x))
    common = np.full(depth - outliers, math.exp(found.x))
    return StepSizes(
        scales=np.sort(depth * np.concatenate([common, 1 / roots])),
        loss=math.exp(log_loss),
        gap=0.0,
        status="converged",
    )


def _check_degree(degree: int) -> None:
    if not 1 <= degree <= MAX_DEGREE:
        raise SolverError(f"depth: got {degree} free step sizes, expected 1 to {MAX_DEGREE}")


@dataclass(frozen=True, kw_only=True)
class _Residual:
    """A residual polynomial: its values at the modes, its roots, its weighted sum of squares."""

    values: Floats
    roots: Floats
    loss: float


def _least_squares(eigenvalues: Floats, weights: Floats, degree: int) -> _Residual:
    """The residual polynomial of least weighted squares, by bidiagonalization with full
    reorthogonalization.
    """
    kept = weights > 0
    lam = eigenvalues[kept]
    distinct = len(np.unique(lam))
    if degree >= distinct:  # one root a mode; the rest repeat the smallest
        roots = np.unique(lam)[::-1]
        roots = np.concatenate([roots, np.full(degree - distinct, roots[-1])])
        values = np.zeros(len(weights))
        return _Residual(values=values, roots=roots, loss=0.0)
    root, start = np.sqrt(lam), np.sqrt(weights[kept])
    left, right = np.empty((degree + 1, len(lam))), np.empty((degree, len(lam)))
    alpha, beta = np.empty(degree), np.empty(degree)
    scale = float(np.linalg.norm(start))
    left[0] = start / scale
    for j in range(degree):
        v = root * left[j]
        v -= right[:j].T @ (right[:j] @ v)
        alpha[j] = np.linalg.norm(v)
        right[j] = v / alpha[j]
        u = root * right[j]
        u -= left[: j + 1].T @ (left[: j + 1] @ u)
        beta[j] = np.linalg.norm(u)
        left[j + 1] = u / beta[j]
    # pi_j(0) = (-1)^j prod alpha/beta, in units of pi_0
    ratios = np.concatenate([[0.0], np.cumsum(np.log(alpha / beta))])
    logs = 2 * ratios - 2 * ratios.max()
    kernel = float(np.exp(logs).sum())
    loss = scale**2 * math.exp(-2 * ratios.max()) / kernel
    coefficients = np.exp(logs / 2) * (-1.0) ** np.arange(degree + 1)
    roots = _radau_nodes(alpha, beta)
    # a mode of much weight has almost a root beside it, which the product over rounded roots
    # misses; a mode of little weight is lost in the rounding of the basis
    values = _product(eigenvalues, roots)
    heavy = weights > 1e-12 * weights.sum()
    seen = (coefficients @ left)[heavy[kept]] / np.sqrt(weights[heavy])
    values[heavy] = seen * (math.exp(-ratios.max()) * scale / kernel)
    return _Residual(values=values, roots=roots, loss=loss)


def _radau_nodes(alpha: Floats, beta: Floats) -> Floats:
    r"""The roots of $\sum_j\pi_j(0)\pi_j$: the eigenvalues but zero of the Jacobi matrix
    $B^TB$ whose last diagonal entry makes it singular, hence the squared singular values of the
    $L\times(L+1)$ upper bidiagonal $B$.
    """
    degree = len(alpha)
    upper = np.zeros((degree, degree + 1))
    index = np.arange(degree)
    upper[index, index], upper[index, index + 1] = alpha, beta
    return np.square(np.linalg.svd(upper, compute_uv=False), dtype=np.float64)


def _product(eigenvalues: Floats, roots: Floats) -> Floats:
    values = np.ones(len(eigenvalues))
    with np.errstate(over="ignore"):
        for root in roots.tolist():
            values *= 1 - eigenvalues / root
    return values


def _log_terms(modes: Modes, values: Floats, exponent: float) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(modes.weights) + exponent * np.log(np.abs(values))


def _log_sum(modes: Modes, values: Floats, exponent: float) -> float:
    logs = _log_terms(modes, values, exponent)
    return float(logs.max() + np.log(np.exp(logs - logs.max()).sum()))


def _best_chebyshev(modes: Modes, exponent: float, degree: int) -> Floats:
    """The best of Chebyshev's residual polynomials of intervals that end at the top mode."""
    angles = math.pi * (np.arange(degree) + 0.5) / degree
    high = float(modes.eigenvalues.max())
    starts = [
        _product(modes.eigenvalues, low + (high - low) * np.cos(angles / 2) ** 2)
        for low in high * np.geomspace(1e-8, 0.5, 30)
    ]
    return min(starts, key=lambda q: _log_sum(modes, q, exponent))


def _newton(modes: Modes, q: Floats, exponent: float, degree: int) -> tuple[Floats, Floats, float]:
    """The residual polynomial of least weighted sum of |q|^exponent, sought from `q`: its values at
    the modes, its roots, and by how much, relatively, the sum could still be less.
    """
    current, gap, roots = _log_sum(modes, q, exponent), 1.0, np.empty(0)
    for _ in range(MAX_ITERATIONS):
        logs = _log_terms(modes, q, exponent - 2)
        weights = np.exp(logs - logs.max())
        residual = _least_squares(modes.eigenvalues, weights, degree)
        roots = residual.roots
        # Hoelder: no polynomial has a sum below this power of the ratio of the squares
        ratio = residual.loss / float(weights @ q**2)
        gap = 1 - min(1.0, ratio) ** (exponent / 2)
        move, step = residual.values - q, min(1.0, 4 / (exponent - 1))
        trial = _log_sum(modes, q + step * move, exponent)
        while step > 1e-12:  # halve as long as that helps: the sum is convex along the line
            halved = _log_sum(modes, q + step / 2 * move, exponent)
            if halved >= trial and trial < current:
                break
            step, trial = step / 2, halved
        if gap < 1e-13 or not trial < current:
            break
        q, current = q + step * move, trial
    return q, roots, gap
