r"""Overlaps between softmax layers that retrieve with different effective queries, exactly.

For isotropic tokens the overlap $E\,f_v\cdot f_{v'}$ of two layers depends on the lengths
$\sigma,\sigma'$ of their effective queries and on the angle between them only. The scores
$s, s'$ of one token on the two queries have a joint law that is diagonal in Gegenbauer polynomials,
$\langle g(s)g'(s')\rangle = \sum_nP_n(\cos\varphi)\,g_ng_n'$, so that the two integrals over
$\ln s$ of `leadline.theory.retrieval` become products of matrices:

$$K_{\sigma\sigma'}(\varphi) = \int\!\!\int dz\,dz'\,\{dP\,L^{P-1}\langle aa'\rangle
  + mP(P-1)\,L^{P-2}\,\langle\hat xal'\rangle\cdot\langle\hat xla'\rangle\},\qquad
  L = \langle ll'\rangle .$$

A layer perturbed in a random direction, $v = \tau\hat q + \rho u$, lies at the angle
$\theta = \arctan\rho/\tau$ from the query. Every average over perturbations is an average of the
one kernel $K$ over the angle between the two effective queries.

Derived in docs/theory/retrieval.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.curve import Floats
from leadline.theory.retrieval import log_times, overlap, own_energy, target_rule
from leadline.theory.retrieval_task import radial_moment, target_energy

STEP = 0.5
ANGLES = 24
_DIRECTIONS = 20
_NEGLIGIBLE = 1e-11


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerSeries:
    r"""The functions of the score in one layer as series in orthonormal Gegenbauer polynomials,
    arrays of shape (number of $z$, number of harmonics): `idle` $l$, `rate` $a$ and both
    times the score; `size` is the largest coefficient of each harmonic.
    """

    dim: int
    context: int
    step: float
    idle: Floats
    rate: Floats
    idle_score: Floats
    rate_score: Floats
    size: Floats


def layer_series(*, dim: int, context: int, norm: float, resolution: float = 1.0) -> LayerSeries:
    r"""The series of a layer whose effective query has length `norm`, by Gauss quadrature.

    **Raises:** `SolverError` if the logits exceed the largest that the quadrature resolves.
    """
    from scipy.linalg import eigh_tridiagonal

    z = log_times(dim=dim, context=context, norm=norm, step=STEP / resolution)
    count = math.ceil(resolution * (48 + 4.5 * dim * norm))
    off = _recurrence(count, dim=dim)
    nodes, vectors = eigh_tridiagonal(np.zeros(count), off)
    # column j holds the polynomials at node j times the root of its weight
    root = vectors[0]
    e = np.exp(np.minimum(z[:, None] + dim * norm * nodes, 6.0))
    at_idle = np.exp(-e) * root
    at_rate = e * at_idle
    idle, rate, idle_score, rate_score = (
        table @ vectors.T for table in (at_idle, at_rate, nodes * at_idle, nodes * at_rate)
    )
    return LayerSeries(
        dim=dim,
        context=context,
        step=float(z[1] - z[0]),
        idle=idle,
        rate=rate,
        idle_score=idle_score,
        rate_score=rate_score,
        size=np.maximum(np.abs(idle).max(axis=0), np.abs(rate).max(axis=0)),
    )


def kernel(left: LayerSeries, right: LayerSeries, angles: Floats) -> Floats:
    r"""$K_{\sigma\sigma'}(\varphi)$ at every one of `angles`, in $[0, \pi]$."""
    dim, context = left.dim, left.context
    harmonics = min(len(left.size), len(right.size))
    legendre = _zonal(np.cos(angles), harmonics, dim=dim)
    values: list[float] = []
    for angle, zonal in zip(angles.tolist(), legendre, strict=True):
        size = np.abs(zonal) * left.size[:harmonics] * right.size[:harmonics]
        kept = 1 + int(np.flatnonzero(size > _NEGLIGIBLE)[-1])

        def mean(g: Floats, h: Floats, kept: int = kept, zonal: Floats = zonal) -> Floats:
            return (g[:, :kept] * zonal[:kept]) @ h[:, :kept].T

        ll = mean(left.idle, right.idle)
        power = ll ** (context - 2)
        same = dim * context * float((power * ll * mean(left.rate, right.rate)).sum())
        # <x a l'> and <x l a'> by their components along the two queries
        x1, y1 = mean(left.rate_score, right.idle), mean(left.idle_score, right.rate)
        cosine, sine = math.cos(angle), math.sin(angle)
        if sine < 1e-6:
            product = x1 * y1
        else:
            x2, y2 = mean(left.rate, right.idle_score), mean(left.idle, right.rate_score)
            product = x1 * y1 + (x2 - cosine * x1) * (y2 - cosine * y1) / sine**2
        pairs = context * (context - 1) * float((power * product).sum())
        values.append((same + radial_moment(dim) * pairs) * left.step * right.step)
    return np.array(values)


def _zonal(cosines: Floats, count: int, *, dim: int) -> Floats:
    r"""Gegenbauer polynomials of the sphere in `dim` dimensions with $P_n(1) = 1$, shape
    (number of cosines, count).
    """
    values = np.empty((len(cosines), max(count, 2)))
    values[:, 0], values[:, 1] = 1.0, cosines
    for n in range(1, count - 1):
        values[:, n + 1] = (2 * n + dim - 2) * cosines * values[:, n] - n * values[:, n - 1]
        values[:, n + 1] /= n + dim - 2
    return values[:, :count]


def _recurrence(count: int, *, dim: int) -> Floats:
    """Off-diagonal entries of the Jacobi matrix of the law of a score."""
    n, order = np.arange(1, count), (dim - 2) / 2
    return np.sqrt(n * (n + dim - 3) / (4 * (n + order) * (n + order - 1)))


def _orthonormal(scores: Floats, count: int, *, dim: int) -> Floats:
    r"""Orthonormal Gegenbauer polynomials, shape (count, number of scores)."""
    off = _recurrence(count, dim=dim)
    values = np.empty((count, len(scores)))
    values[0], values[1] = 1.0, scores / off[0]
    for k in range(1, count - 1):
        values[k + 1] = (scores * values[k] - off[k - 1] * values[k - 1]) / off[k]
    return values


@dataclass(frozen=True, eq=False, kw_only=True)
class Ensembles:
    r"""All moments of layers on a grid of effective queries, flattened with the angle running
    fastest; what a mixture of layers can reach is a quadratic form in them.

    **Arguments:** `dim`; `angles` the number of angles; `energy` $T$ of the target; `sharpness`
    $\tau$ and `noise` $\rho$ of every kind of layer; `overlap` $h$ with the target; `own` $E|f|^2$;
    `gram` $G$ between layers of independent perturbations; `opposite` and `perpendicular` the
    overlap of two layers of one kind whose perturbations are $u, -u$ or orthogonal to each other.
    """

    dim: int
    angles: int
    energy: float
    sharpness: Floats
    noise: Floats
    overlap: Floats
    own: Floats
    gram: Floats
    opposite: Floats
    perpendicular: Floats


def ensembles(
    *,
    dim: int,
    context: int,
    targets: int,
    norms: Sequence[float],
    angles: Sequence[float],
    resolution: float = 1.0,
) -> Ensembles:
    r"""The moments of all layers with an effective query of one of the lengths `norms` at one of
    the `angles` $\theta\in[0,\pi)$ from the query.

    The kernel of each pair of lengths is computed at Chebyshev nodes of the angle and
    interpolated; the cosine $c$ between two independent perturbations is averaged by Gauss
    quadrature, $\cos\varphi = \cos\theta\cos\theta' + c\,\sin\theta\sin\theta'$.

    **Raises:** `SolverError` for an impossible task, or logits beyond the quadrature.
    """
    from scipy.special import roots_gegenbauer

    tilt = np.asarray(angles, float)
    nodes = 1 if not tilt.any() else math.ceil(ANGLES * resolution)
    widest = min(math.pi, 2 * float(tilt.max()))
    grid = widest * (1 - np.cos(math.pi * (np.arange(nodes) + 0.5) / nodes)) / 2
    c, weight = roots_gegenbauer(round(_DIRECTIONS * resolution), (dim - 3) / 2)
    cos, sin = np.cos(tilt), np.sin(tilt)
    aligned, across = np.multiply.outer(cos, cos), np.multiply.outer(sin, sin)
    between = np.arccos(np.clip(aligned[..., None] + across[..., None] * c, -1, 1))
    average = _interpolation(grid, widest, between).transpose(0, 1, 3, 2) @ (weight / weight.sum())
    opposite = _interpolation(grid, widest, np.minimum(2 * tilt, 2 * math.pi - 2 * tilt))
    perpendicular = _interpolation(grid, widest, np.arccos(cos**2))

    series = [
        layer_series(dim=dim, context=context, norm=norm, resolution=resolution) for norm in norms
    ]
    size = len(tilt)
    gram = np.empty((len(norms), size, len(norms), size))
    spread: list[tuple[Floats, Floats]] = []
    for i, left in enumerate(series):
        for j, right in enumerate(series[: i + 1]):
            values = kernel(left, right, grid)
            gram[i, :, j] = average @ values
            gram[j, :, i] = gram[i, :, j].T
            if i == j:
                spread.append((opposite @ values, perpendicular @ values))
    shape = (len(norms) * size,)
    sharpness = np.multiply.outer(np.asarray(norms, float), cos).ravel()
    noise = np.multiply.outer(np.asarray(norms, float), sin).ravel()
    return Ensembles(
        dim=dim,
        angles=size,
        energy=target_energy(dim=dim, context=context, targets=targets),
        sharpness=sharpness,
        noise=noise,
        overlap=np.concatenate(
            [
                _overlaps(one, targets=targets, norm=norm, angles=tilt, resolution=resolution)
                for one, norm in zip(series, norms, strict=True)
            ]
        ),
        own=np.repeat(
            [
                own_energy(dim=dim, context=context, norm=norm, resolution=resolution)
                for norm in norms
            ],
            size,
        ),
        gram=gram.reshape(shape * 2),
        opposite=np.concatenate([pair[0] for pair in spread]),
        perpendicular=np.concatenate([pair[1] for pair in spread]),
    )


def _overlaps(
    series: LayerSeries, *, targets: int, norm: float, angles: Floats, resolution: float
) -> Floats:
    r"""$h$ of layers of one length at every one of `angles` from the query.

    Averaging $l(\hat x\cdot\hat v)$ at a given score $s$ on the query multiplies its harmonics by
    $P_n(\cos\theta)$, and $\sqrt{1-s^2}\,\eta\sin\theta$ is the score on $v$ less
    $s\cos\theta$.
    """
    dim, context = series.dim, series.context
    rule = target_rule(
        dim=dim, context=context, targets=targets, sharpness=norm, resolution=resolution
    )
    harmonics = _orthonormal(rule.score, len(series.size), dim=dim)
    values: list[float] = []
    for angle, zonal in zip(
        angles.tolist(), _zonal(np.cos(angles), len(series.size), dim=dim), strict=True
    ):
        if angle == 0:
            h = overlap(
                dim=dim, context=context, targets=targets, sharpness=norm, resolution=resolution
            )
            values.append(h)
            continue
        kept = 1 + int(np.flatnonzero(np.abs(zonal) * series.size > _NEGLIGIBLE)[-1])
        smooth = zonal[:kept, None] * harmonics[:kept]
        tables = (series.idle, series.rate, series.idle_score, series.rate_score)
        idle, rate, idle_score, rate_score = (table[:, :kept] @ smooth for table in tables)
        along, sine = math.cos(angle) * rule.score, math.sin(angle)
        across = ((idle_score - along * idle) / sine, (rate_score - along * rate) / sine)
        values.append(rule.overlap(idle, rate, across=across) * series.step)
    return np.array(values)


def _interpolation(grid: Floats, widest: float, at: Floats) -> Floats:
    """The weights of the values at the Chebyshev nodes `grid` of [0, widest] in the polynomial
    through them, at every angle of `at`: an array of shape (*at, grid).
    """
    count = len(grid)
    if count == 1:
        return np.ones((*at.shape, 1))
    degrees = np.arange(count)
    to_angle = np.arccos(np.clip(1 - 2 * grid / widest, -1, 1))
    basis = np.cos(np.multiply.outer(to_angle, degrees))
    fit = (2 - (degrees == 0)) * basis / count
    position = np.arccos(np.clip(1 - 2 * at / widest, -1, 1))
    return np.cos(position[..., None] * degrees) @ fit.T
