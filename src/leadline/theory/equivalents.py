r"""The two-point deterministic equivalent: the loss at finite width and context.

At large dimension, averaged over rotations, projections and contexts, the loss of $L$ layers with
$\Gamma=\gamma I$ is a function of the spectra alone. With $M = O B O^T\hat\Sigma$, $B$ the matrix
through which a stream of width $N$ sees the inputs, it is

$$\mathcal L(\gamma) = \frac1{(2\pi i)^2}\oint\!\oint f(s)f(s')\,G(s,s')\,ds\,ds',\qquad
f(s) = (1+\gamma s/L)^L,$$

where $G(s,s') = \mathbb E\operatorname{Tr}\Omega(s+M)^{-T}\Lambda(s'+M)^{-1}$ follows from one
complex number $\kappa(s)$. Everything here is exact in the limit of large $D$, $N$, $P$; real
systems are off by $O(1/D)$, which no error below contains.

The integrals run over the contours of `leadline.theory.contour`; the kernel is written without
differences of large numbers, so that no scale, however small, loses digits, and both contours may
share their nodes.

Derived in docs/theory/equivalents.md, with the corrections of the printed formulas.
Ref: arXiv:2510.01098, Result 7 and appendix G.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory.contour import GROWTH, Complex, Contour, contours
from leadline.theory.streams import Stream, edge, pair_excess, response, subordinate

EPS = float(np.finfo(np.float64).eps)
CHUNK = 2**19
"""Complex numbers that one array of intermediate results may hold; there are about ten."""
TOLERANCE = 1e-10
SMALLEST_TOLERANCE = 1e-12
RESERVE = 5.0
"""E-folds of accuracy beyond the tolerance."""


def landscape(
    stream: Stream,
    gamma: ArrayLike,
    *,
    depth: float,
    noise: float = 0.0,
    tolerance: float = TOLERANCE,
) -> tuple[Floats, Floats]:
    r"""The loss $\mathcal L(\gamma)$ and its derivative $d\mathcal L/d\gamma$.

    **Arguments:** `gamma`, any shape, finite, of either sign; `depth` $L\ge1$, whole, or infinity;
    `noise` $\sigma$ of the labels in context; `tolerance`, relative to the loss.

    **Returns:** two arrays of the shape of `gamma`, also past the edge of stability; not finite
    where they overflow. Many scales in one call share its overhead.

    **Raises:** `SolverError` for a tolerance below what double precision gives, or where the
    equivalent cannot be solved.
    """
    return _landscape(stream, gamma, depth=depth, noise=noise, efolds=_efolds(tolerance))


def landscape_error(
    stream: Stream,
    gamma: ArrayLike,
    *,
    depth: float,
    noise: float = 0.0,
    tolerance: float = TOLERANCE,
) -> Floats:
    r"""A bound on the numerical error of the loss of `landscape`: twice its distance from the
    value on another contour, with fewer nodes, whose own error is about $e^4$ times as large.
    Arguments as in `landscape`.
    """
    efolds = _efolds(tolerance)
    fine, _ = _landscape(stream, gamma, depth=depth, noise=noise, efolds=efolds)
    coarse, _ = _landscape(stream, gamma, depth=depth, noise=noise, efolds=efolds - 4)
    with np.errstate(invalid="ignore"):
        error = 2 * np.abs(fine - coarse) + 16 * EPS * np.abs(fine)
    return np.where(np.isfinite(error), error, np.inf)


def _efolds(tolerance: float) -> float:
    if not SMALLEST_TOLERANCE <= tolerance < 1:
        raise SolverError(
            f"tolerance: got {tolerance:g}, expected from {SMALLEST_TOLERANCE:g}, which double "
            "precision gives, to below 1"
        )
    return RESERVE - math.log(tolerance)


def _landscape(
    stream: Stream, gamma: ArrayLike, *, depth: float, noise: float, efolds: float
) -> tuple[Floats, Floats]:
    gammas = np.asarray(gamma, np.float64)
    flat = gammas.ravel()
    if not np.isfinite(flat).all():
        raise SolverError("gamma: expected finite numbers")
    if math.isinf(stream.context):
        noise = 0.0
    results = np.empty((2, flat.size))
    end = edge(stream)
    # the one-point formulas contain the square of f
    order = 2 if noise or math.isinf(stream.context) else 1
    at = contours(end, *_growth(end, flat, depth, order), efolds=efolds)
    nodes = at.nodes.shape[1]
    rows = max(1, CHUNK // (nodes * max(nodes, stream.modes.eigenvalues.size)))
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, flat.size, rows):
            part = slice(first, first + rows)
            chunk = Contour(nodes=at.nodes[part], weights=at.weights[part])
            results[:, part] = _integrate(stream, chunk, flat[part], depth, noise, end)
    loss, slope = results.reshape(2, *gammas.shape)
    return loss, slope


def _growth(end: float, gamma: Floats, depth: float, order: int) -> tuple[Floats, Floats]:
    """Where f to the power `order` has grown by e^c, left and right of the cut."""
    with np.errstate(divide="ignore", over="ignore"):
        if math.isinf(depth):
            away = GROWTH / order / np.abs(gamma)
            behind = np.full_like(away, np.inf)
        else:
            g = gamma / depth
            largest = np.maximum(1.0, np.abs(1 - g * end)) * np.exp(GROWTH / (order * depth))
            away, behind = (largest - 1) / np.abs(g), (largest + 1) / np.abs(g)
    falling = gamma >= 0
    return -np.where(falling, behind, away), np.where(falling, away, behind)


def _power(s: Complex, gamma: Floats, depth: float) -> tuple[Complex, Complex, Complex]:
    r"""$f = (1+\gamma s/L)^L$, $1-f$, and $df/d\gamma$."""
    if math.isinf(depth):
        logs = gamma[:, None] * s
        power = np.exp(logs)
        return power, -np.expm1(logs), s * power
    steps = gamma[:, None] / depth * s
    logs = depth * np.log1p(steps)
    power = np.exp(logs)
    return power, -np.expm1(logs), s * power / (1 + steps)


def _integrate(
    stream: Stream, at: Contour, gamma: Floats, depth: float, noise: float, end: float
) -> Floats:
    """Loss and slope at every gamma, one contour each."""
    modes, context = stream.modes, stream.context
    s, c = at.nodes, at.weights
    kappa = subordinate(stream, s, end=end)
    inverse = 1 / (kappa[..., None] + modes.eigenvalues)
    freedom, trace = inverse @ modes.inputs, inverse @ modes.weights
    psi, _ = response(stream, freedom)
    power, fitted, moved = _power(s, gamma, depth)
    left = 1 - freedom / context
    c = c / (psi * left)
    whole = np.ones_like(power)
    if math.isinf(context):
        rows = np.stack([power * power, 2 * power * moved, whole])
        loss, slope, total = (c * rows * trace).sum(axis=-1).real
    else:
        against = np.stack([power, whole], axis=-1) * c[..., None]
        sides = np.zeros_like(against)
        for conjugate in (False, True):
            kernel = _kernel(stream, kappa, inverse, freedom, trace, conjugate=conjugate)
            sides += kernel @ (against.conj() if conjugate else against)
        loss = (c * power * sides[..., 0]).sum(axis=-1).real / 2
        slope = (c * moved * sides[..., 0]).sum(axis=-1).real
        total = (c * sides[..., 1]).sum(axis=-1).real / 2
    if noise:
        c = noise**2 / context * freedom * psi * c
        loss = loss - (c * fitted**2 / s).sum(axis=-1).real
        slope = slope + 2 * (c * fitted * moved / s).sum(axis=-1).real
    # with f = 1 the integral is Tr Omega Lambda; a wrong branch of kappa would not give it
    missed = float(np.max(np.abs(total / modes.total - 1)))
    if not missed < 1e-3:
        raise SolverError(
            f"equivalent: the resolvent misses its sum rule by {missed:.1e} at context "
            f"{context:g}, width {stream.width:g}; expected below 1e-3"
        )
    return np.stack([loss, slope])


def _kernel(
    stream: Stream,
    kappa: Complex,
    inverse: Complex,
    freedom: Complex,
    trace: Complex,
    *,
    conjugate: bool,
) -> Complex:
    r"""$G(s,s')\,\Psi\Psi'(1-d/P)(1-d'/P)$ for all pairs of nodes of each contour, shape
    (contour, node, node), or with all $s'$ conjugate.

    With $a,b$ the sums of $\lambda/(\cdot)$ and $\lambda^2/(\cdot)$ over modes, $d, e$ those of
    $\omega\lambda/(\cdot)$ and $\omega\lambda^2/(\cdot)$,
    $(\cdot) = (\kappa+\lambda)(\kappa'+\lambda)$, which are the divided differences of the
    degrees of freedom and of the trace $q$.
    """
    modes, context = stream.modes, stream.context

    def other(values: Complex) -> Complex:
        return values.conj() if conjugate else values

    across = other(inverse).swapaxes(-1, -2)
    a = (inverse * modes.inputs) @ across
    b = (inverse * (modes.inputs * modes.eigenvalues)) @ across
    d = (inverse * modes.weights) @ across
    e = (inverse * (modes.weights * modes.eigenvalues)) @ across
    freedom_, trace_ = other(freedom)[:, None, :], other(trace)[:, None, :]
    weighted = (kappa * freedom)[..., None]
    gap = 1 - b / context
    excess = pair_excess(stream, freedom[..., None], freedom_)
    task = (e - (b * trace_ - weighted * d) / context) / gap
    inputs = (b - (b * freedom_ - weighted * a) / context) / gap
    return (d + excess * a * task / (1 - excess * inputs)) / gap
