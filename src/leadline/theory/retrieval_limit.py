r"""Retrieval in many dimensions: the limit $d\to\infty$ at fixed $\frac1d\ln P$.

The best scores crowd below $s_*$, $s_*^2 = 1 - P^{-2/d}$; in units of $1/\lambda$,
$\lambda = ds_*/(1-s_*^2)$, they become a Poisson process of intensity $e^{-e}$, and directions
perpendicular to the query become orthogonal. The weights of a softmax of sharpness
$\tau = \beta s_*/(1-s_*^2)$ are then those of Poisson and Dirichlet with parameter
$\alpha = 1/\beta$. Nothing of the dimension remains but $s_*^2$, the `alignment`: losses are in
units of $d$.

The exchange of limits is heuristic; the formulas are exact in the limit, which is approached like
$1/\ln(P/k)$. Derived in docs/theory/retrieval.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory.retrieval_bound import least_weights


@dataclass(frozen=True, kw_only=True)
class LimitLayer:
    r"""The best softmax layer in the limit: `loss` $R_1/d$, `beta` $\beta$, `gain` $g$ and
    `mass` $m_k$, the mean weight of a target. `beta` is at most 1 where only the query's own
    direction is retrieved.
    """

    loss: float
    beta: float
    gain: float
    mass: float


@dataclass(frozen=True, kw_only=True)
class LimitMixture:
    r"""The best ensemble in the limit: `loss` $R_\infty/d$, the `gain`, the `noise` scales $r$ in
    units of the gap between scores and their `weight`, and `disagreement` $(A-C)/d$.
    """

    loss: float
    gain: float
    disagreement: float
    noise: tuple[float, ...]
    weight: tuple[float, ...]


def alignment(*, dim: int, context: int) -> float:
    r"""$s_*^2 = 1 - P^{-2/d}$, the squared score of the best of $P$ tokens in the limit.

    **Raises:** `SolverError` unless `dim` and `context` are at least 2.
    """
    for name, value in (("dim", dim), ("context", context)):
        if value < 2:
            raise SolverError(f"{name}: got {value}, expected at least 2")
    return -math.expm1(-2 * math.log(context) / dim)


def _check(targets: int, s2: float) -> None:
    if targets < 1:
        raise SolverError(f"targets: got {targets}, expected at least 1 token to retrieve")
    if not 0 <= s2 < 1:
        raise SolverError(f"alignment: got {s2}, expected s*^2 in [0, 1)")


def target_mass(targets: int, alpha: float) -> float:
    r"""The mean weight $m_k(\alpha)$ of one of the $k$ largest weights of Poisson and Dirichlet,
    $$m_k = \frac1k\int_0^\infty\frac{e^{-t}t^{-\alpha}}{\Gamma(1-\alpha)}
      \Big[1-\Big(\frac{\varphi}{t^\alpha\Gamma(1-\alpha)+\varphi}\Big)^k\Big]dt,\qquad
      \varphi = e^{-t}-t^\alpha\,\Gamma(1-\alpha, t).$$

    **Arguments:** $0<$ `alpha` $<1$.
    """
    from scipy.special import gamma, gammaincc

    step = 0.05
    t = np.exp(np.arange(-42.0, 4.0, step))  # the integrand falls like t, and like e^-t
    whole = t**alpha * gamma(1 - alpha)
    phi = np.maximum(np.exp(-t) - whole * gammaincc(1 - alpha, t), 0.0)
    share = -np.expm1(targets * np.log(np.maximum(phi / (whole + phi), 1e-300)))
    return float((np.exp(-t) * t / whole * share).sum() * step / targets)


def softmax_limit(*, targets: int, alignment: float = 0.0) -> LimitLayer:
    r"""$R_1/d = \min_\alpha\ \frac{1-s^2}k + s^2 -
    \frac{[(1-s^2)m_k+s^2]^2}{(1-s^2)(1-\alpha)+s^2}$ with $s^2$ = `alignment`. At zero it is
    $\rho_1(k)$, the whole dependence on $k$; one target is retrieved without loss.

    **Raises:** `SolverError` unless `targets` $\ge1$ and $0\le$ `alignment` $<1$.
    """
    from scipy.optimize import minimize_scalar

    _check(targets, alignment)
    s2 = alignment
    if targets == 1:
        return LimitLayer(loss=0.0, beta=math.inf, gain=1.0, mass=1.0)

    def moments(alpha: float) -> tuple[float, float]:
        return (1 - s2) * target_mass(targets, alpha) + s2, (1 - s2) * (1 - alpha) + s2

    def gained(alpha: float) -> float:
        h, own = moments(alpha)
        return -h * h / own

    found = minimize_scalar(gained, bounds=(1e-3, 1 - 1e-6), method="bounded")
    alpha = float(found.x)
    if -gained(alpha) <= s2:  # nothing gained beyond the direction of the query
        return LimitLayer(loss=(1 - s2) / targets, beta=1.0, gain=1.0, mass=0.0)
    h, own = moments(alpha)
    return LimitLayer(
        loss=(1 - s2) / targets + s2 - h * h / own,
        beta=1 / alpha,
        gain=h / own,
        mass=target_mass(targets, alpha),
    )


def ensemble_limit(*, targets: int, alignment: float = 0.0) -> LimitMixture:
    r"""$R_\infty/d = \min_{\nu\ge0}\ (1-s^2)\,[\frac1k-2h\cdot\nu+\nu^TG\nu]
    + s^2\,(1-g)_-^2$ over mixtures of the token with the largest perturbed score $e + rn$, $n$
    normal. Layers with $\beta<1$ retrieve the query's own direction without weight on any token,
    so that only a gain $g = \sum\nu$ above one is in conflict with it. At `alignment` zero it is
    $\rho_\infty(k)$.

    **Raises:** `SolverError` unless `targets` $\ge1$ and $0\le$ `alignment` $<1$.
    """
    _check(targets, alignment)
    s2 = alignment
    noise, overlap, gram = perturbed(targets)
    weight = least_weights(gram, overlap)
    if weight.sum() > 1 and s2:
        weight = least_weights((1 - s2) * gram + s2, (1 - s2) * overlap + s2)
    gain = float(weight.sum())
    excess = 1 / targets - 2 * float(overlap @ weight) + float(weight @ gram @ weight)
    whole = max(gain, 1.0)
    kept = weight > 1e-9
    return LimitMixture(
        loss=(1 - s2) * excess + s2 * (whole - 1) ** 2,
        gain=gain,
        disagreement=(1 - s2) * (whole * gain - float(weight @ gram @ weight)),
        noise=tuple(noise[kept].tolist()),
        weight=tuple(weight[kept].tolist()),
    )


_NOISE = (0.0, *np.geomspace(0.1, 12, 48).tolist())


@lru_cache(maxsize=16)
def perturbed(targets: int, *, noise: tuple[float, ...] = _NOISE) -> tuple[Floats, Floats, Floats]:
    r"""The point with the largest perturbed score $e + rn$ at every scale $r$ of `noise`: the
    scales, the overlap with the target, $h(r) = \frac1kP(\text{it is a target})$, and the
    probability $G(r, r')$ that it is the same under two independent perturbations.

    Given the perturbation $n$ and the score $e$ of the winner the others are a Poisson process;
    those above $e$, which decide whether it is a target, are a thinned part of it.
    """
    from scipy.special import log_ndtr, roots_hermitenorm

    z, weight = roots_hermitenorm(200)
    weight = weight / math.sqrt(2 * math.pi)

    scales = np.asarray(noise)
    r = np.where(scales > 0, scales, 1.0)[:, None]
    log_m = r**2 / 2 - r * z
    log_rate = np.logaddexp(log_ndtr(r / 2 - log_m / r), log_m + log_ndtr(r / 2 + log_m / r))
    share = np.minimum(np.exp(log_m - log_rate), 1 - 1e-16)
    won = -np.expm1(targets * np.log1p(-share)) * np.exp(-log_m)
    overlap = np.where(scales > 0, won @ weight, 1.0) / targets

    # G: the same token wins under both of two independent perturbations
    a = np.sqrt(scales[:, None] ** 2 + scales**2)[..., None]
    log_total = np.logaddexp(log_ndtr(z), -a * (z - a / 2) + log_ndtr(a - z))
    return scales, overlap, np.exp(-log_total) @ weight
