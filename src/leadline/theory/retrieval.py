r"""Retrieval by one softmax layer, exactly: the loss by quadrature, the best sharpness and gain.

A layer with normalized tokens sees only directions. Its attention is a softmax of
$d\,(\hat x_i\cdot v)$ with an effective query $v = \tau\hat q + \rho u$: `sharpness` $\tau$ (an
inverse temperature) along the query and `noise` $\rho$ along a direction $u$ perpendicular to it.
With $f = \sum_iw_ix_i$ and the target $t = \frac1k\sum_{i\in S_k}x_i$, the loss of the prediction
$g f\cdot\beta$, tasks integrated out ($\Omega = I$), is

$$R = T - 2g\,h + g^2G,\qquad T = E|t|^2,\quad h = E\,f\cdot t,\quad G = E|f|^2 .$$

Writing $1/\Sigma = \int e^{-r\Sigma}dr$ for the normalization of the softmax makes the tokens
independent: at "time" $r = e^z$ a token with logit $x - z$ is still idle with probability
$l = e^{-e^x}$ and fires at the rate $a = e^xl$ per unit of $z$. Every expectation is then an
integral over $z$, one score and one threshold.

Derived in docs/theory/retrieval.md. Task: arXiv:2610.11063, section 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory.retrieval_task import (
    NEGLIGIBLE,
    THRESHOLDS,
    Thresholds,
    check_retrieval,
    gauss_legendre,
    log_angle_density,
    radial_moment,
    tail_score,
    target_energy,
    thresholds,
)

MAX_LOGIT = 2000.0
_BLOCK = 2**21


@dataclass(frozen=True, kw_only=True)
class SoftmaxLayer:
    r"""One softmax layer: `loss` $R$ with its numerical error `loss_error`, at the `sharpness`
    $\tau$ and the `gain` $g$.
    """

    loss: float
    loss_error: float
    sharpness: float
    gain: float


def log_times(*, dim: int, context: int, norm: float, step: float) -> Floats:
    r"""The nodes of $\ln s$ for layers whose effective query has length `norm`: from where no
    token matters to where the largest logit has ended the integral.

    **Raises:** `SolverError` if the logits exceed the largest that the quadrature resolves.
    """
    if not 0 < norm * dim <= MAX_LOGIT:
        raise SolverError(
            f"sharpness: got an effective query of length {norm:g} in dim {dim}, expected "
            f"logits up to {MAX_LOGIT:g}, hence a length in (0, {MAX_LOGIT / dim:g}]"
        )
    top = tail_score(NEGLIGIBLE / context, dim=dim)
    least = tail_score(-math.expm1(math.log(NEGLIGIBLE) / context), dim=dim)
    low = -dim * norm * top - math.log(context) - 14
    return np.arange(low, -dim * norm * least + 5, step)


def own_energy(*, dim: int, context: int, norm: float, resolution: float = 1.0) -> float:
    r"""$G = E|f|^2$ of a layer whose effective query has length `norm` $\sqrt{\tau^2+\rho^2}$:
    $$G = \int dz\,\{dP\,\langle l\rangle^{P-1}\langle b\rangle
      + mP(P-1)\,\langle l\rangle^{P-2}\langle sa\rangle^2\},$$
    $l = e^{-e^x}$, $a = e^xl$, $b = e^{2x}l$, $x = z + d\,|v|\,s$, averages over one score $s$.
    """
    z = log_times(dim=dim, context=context, norm=norm, step=0.3 / resolution)
    count = math.ceil(resolution * max(160, 4 * dim * norm))
    limit = math.asin(tail_score(NEGLIGIBLE / context, dim=dim))
    x, w = gauss_legendre(count)
    angle = limit * x
    weight = limit * w * np.exp(log_angle_density(angle, dim=dim))
    score = np.sin(angle)
    total = 0.0
    for block in _blocks(z, len(score)):
        e = np.exp(np.minimum(block[:, None] + dim * norm * score, 6.0))
        idle = np.exp(-e)
        rate = e * idle
        mean = idle @ weight
        same = dim * context * mean ** (context - 1) * ((e * rate) @ weight)
        along = rate @ (weight * score)
        pairs = context * (context - 1) * mean ** (context - 2) * along**2
        total += float((same + radial_moment(dim) * pairs).sum())
    return total * 0.3 / resolution


def _blocks(z: Floats, width: int) -> list[Floats]:
    """`z` in pieces whose tables of `width` columns fit into memory."""
    return np.array_split(z, math.ceil(len(z) * width / _BLOCK))


def overlap(
    *,
    dim: int,
    context: int,
    targets: int,
    sharpness: float,
    noise: float = 0.0,
    resolution: float = 1.0,
) -> float:
    r"""$h = E\,f\cdot t$ of a layer with the effective query $\tau\hat q + \rho u$.

    Given the threshold $y$ the targets are independent with scores above it and the others below;
    each pair of tokens adds $m\,(s_is_j + \sqrt{1-s_i^2}\sqrt{1-s_j^2}\,\eta_i\eta_j)$ with
    $\eta$ the cosine between $u$ and the part of a token perpendicular to the query.

    **Arguments:** `sharpness` $\tau\ge0$, `noise` $\rho\ge0$, not both zero; `resolution`
    multiplies all numbers of nodes.

    **Raises:** `SolverError` for an impossible task, or logits beyond the quadrature.
    """
    z = log_times(
        dim=dim, context=context, norm=math.hypot(sharpness, noise), step=0.3 / resolution
    )
    rule = target_rule(
        dim=dim, context=context, targets=targets, sharpness=sharpness, resolution=resolution
    )
    total = 0.0
    for block in _blocks(z, len(rule.score)):
        x = block[:, None] + dim * sharpness * rule.score
        if noise:
            total += _noisy(rule, x, dim * noise, resolution)
        else:
            e = np.exp(np.minimum(x, 6.0))
            idle = np.exp(-e)
            total += rule.overlap(idle, e * idle)
    return total * 0.3 / resolution


def _noisy(rule: TargetRule, x: Floats, noise: float, resolution: float) -> float:
    """The sum of `overlap` over some $z$, averaged over the cosine with the perturbation."""
    from scipy.special import roots_gegenbauer

    count = math.ceil(resolution * (20 + 1.5 * noise))
    nodes, weights = roots_gegenbauer(count, (rule.dim - 3) / 2)
    idle, rate, idle_across, rate_across = (np.zeros(x.shape) for _ in range(4))
    cosine = np.sqrt(1 - rule.score**2)
    for eta, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True):
        e = np.exp(np.minimum(x + noise * eta * cosine, 6.0))
        one = weight * np.exp(-e)
        each = e * one
        idle += one
        rate += each
        idle_across += eta * cosine * one
        rate_across += eta * cosine * each
    return rule.overlap(idle, rate, across=(idle_across, rate_across))


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetRule:
    r"""The quadrature over scores and thresholds of `overlap`.

    **Arguments:** `score` all scores at which a layer is asked: those of the panels between
    thresholds, of probability `weight`, panel by panel from `starts`, then the thresholds.
    """

    dim: int
    context: int
    targets: int
    thresholds: Thresholds
    score: Floats
    weight: Floats
    starts: NDArray[np.int64]

    def overlap(
        self, idle: Floats, rate: Floats, *, across: tuple[Floats, Floats] | None = None
    ) -> float:
        r"""$\sum_zh(z)$ from the averages over the directions perpendicular to the query.

        **Arguments:** `idle` $l$ and `rate` $a$ of shape ($z$, score); `across` the averages of
        $\sqrt{1-s^2}\,\eta\,l$ and $\sqrt{1-s^2}\,\eta\,a$, None without noise.
        """
        y, inner, targets = self.thresholds, len(self.weight), self.targets
        others = self.context - targets - 1

        def panels(table: Floats) -> Floats:
            return np.add.reduceat(table[:, :inner] * self.weight, self.starts, axis=1)

        def above(table: Floats) -> Floats:
            return np.cumsum(panels(table)[:, :0:-1], axis=1)[:, ::-1] / y.tail

        def below(table: Floats) -> Floats:
            return np.cumsum(panels(table)[:, :-1], axis=1) / (1 - y.tail)

        up, low, at = above(idle), below(idle), idle[:, inner:]
        total = self.dim * above(rate) * up ** (targets - 1) * low**others * at
        along = (self.score * idle, self.score * rate)
        for idle_part, rate_part in (along,) if across is None else (along, across):
            pairs = up ** (targets - 1) * rate_part[:, inner:] * low**others
            if others:
                pairs += others * up ** (targets - 1) * below(rate_part) * low ** (others - 1) * at
            if targets > 1:
                one_less = (targets - 1) * up ** (targets - 2)
                pairs += one_less * above(rate_part) * low**others * at
            total += radial_moment(self.dim) * above(idle_part) * pairs
        return float((total @ y.mass).sum())


def target_rule(
    *, dim: int, context: int, targets: int, sharpness: float, resolution: float = 1.0
) -> TargetRule:
    r"""The rule that resolves layers up to this sharpness $\tau$ along the query."""
    count = round(THRESHOLDS * resolution)
    y = thresholds(dim=dim, context=context, targets=targets, nodes=count)
    limit = math.asin(tail_score(NEGLIGIBLE / context, dim=dim))
    edges = [-limit, *np.arcsin(y.score).tolist(), limit]
    angle, weight, starts = _panels(edges, dim=dim, sharpness=sharpness, resolution=resolution)
    return TargetRule(
        dim=dim,
        context=context,
        targets=targets,
        thresholds=y,
        score=np.concatenate([np.sin(angle), y.score]),
        weight=weight,
        starts=starts,
    )


def _panels(
    edges: list[float], *, dim: int, sharpness: float, resolution: float
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Gauss-Legendre nodes in the angle between neighboring edges, their probabilities, and the
    first node of each panel.
    """
    angles: list[Floats] = []
    weights: list[Floats] = []
    for low, high in itertools.pairwise(edges):
        half = (high - low) / 2
        count = math.ceil(resolution * (5 + half * (8 * math.sqrt(dim) + 5 * dim * sharpness)))
        x, w = gauss_legendre(count)
        angles.append(low + half * (1 + x))
        weights.append(half * w * np.exp(log_angle_density(angles[-1], dim=dim)))
    starts = np.cumsum([0] + [len(panel) for panel in angles[:-1]])
    return np.concatenate(angles), np.concatenate(weights), starts


def layer_loss(
    *, dim: int, context: int, targets: int, sharpness: float, gain: float, noise: float = 0.0
) -> SoftmaxLayer:
    r"""The loss $T - 2gh + g^2G$ of one softmax layer with this sharpness $\tau$ and gain $g$.

    `loss_error` is the change with half as many nodes again, the largest of the errors.

    **Raises:** `SolverError` for an impossible task, or logits beyond the quadrature.
    """
    energy = target_energy(dim=dim, context=context, targets=targets)
    norm = math.hypot(sharpness, noise)

    def loss(resolution: float) -> float:
        h = overlap(
            dim=dim,
            context=context,
            targets=targets,
            sharpness=sharpness,
            noise=noise,
            resolution=resolution,
        )
        own = own_energy(dim=dim, context=context, norm=norm, resolution=resolution)
        return energy - 2 * gain * h + gain**2 * own

    fine = loss(1.5)
    error = abs(fine - loss(1.0)) + 1e-12 * energy
    return SoftmaxLayer(loss=fine, loss_error=error, sharpness=sharpness, gain=gain)


def best_gain(*, dim: int, context: int, targets: int, sharpness: float) -> SoftmaxLayer:
    r"""The least loss of one layer of this sharpness, $T - h^2/G$ at the gain $g = h/G$.

    **Raises:** as for `layer_loss`.
    """
    h = overlap(dim=dim, context=context, targets=targets, sharpness=sharpness)
    own = own_energy(dim=dim, context=context, norm=sharpness)
    return layer_loss(dim=dim, context=context, targets=targets, sharpness=sharpness, gain=h / own)


def best_layer(*, dim: int, context: int, targets: int) -> SoftmaxLayer:
    r"""The least loss of one softmax layer, $\min_\tau T - h^2/G$ at the gain $g = h/G$.

    A layer that treats all directions alike, $M = \tau I$, is the best among all matrices $M$
    for isotropic tokens: numerical evidence in arXiv:2610.11063 and docs/theory/retrieval.md.

    **Raises:** `SolverError` for an impossible task, for one target, which an infinitely sharp
    layer retrieves without loss, or if the best layer is sharper than the quadrature resolves.
    """
    check_retrieval(dim=dim, context=context, targets=targets)
    if targets == 1:
        raise SolverError(
            "targets: got 1, which an infinitely sharp layer retrieves without loss; expected at "
            "least 2, or a given sharpness"
        )
    energy = target_energy(dim=dim, context=context, targets=targets)

    def loss(log_sharpness: float) -> float:
        sharpness = math.exp(log_sharpness)
        h = overlap(dim=dim, context=context, targets=targets, sharpness=sharpness)
        return energy - h * h / own_energy(dim=dim, context=context, norm=sharpness)

    best = math.exp(_least(loss, start=-0.5 * math.log(dim)))
    return best_gain(dim=dim, context=context, targets=targets, sharpness=best)


def _least(function: Callable[[float], float], *, start: float) -> float:
    """The minimum of a function with one: bracketed by doubling, then Brent's search."""
    from scipy.optimize import minimize_scalar

    bracket = [start - 0.5, start, start + 0.5]
    values = [function(x) for x in bracket]
    while not values[0] > values[1] < values[2]:
        downhill = -1 if values[0] <= values[2] else 1
        step = bracket[::downhill][2] + downhill * 0.7
        value = function(step)
        if downhill > 0:
            bracket, values = [*bracket[1:], step], [*values[1:], value]
        else:
            bracket, values = [step, *bracket[:2]], [value, *values[:2]]
    low, middle, high = bracket
    found = minimize_scalar(
        function, bracket=(low, middle, high), method="brent", options={"xtol": 1e-6}
    )
    return float(found.x)
