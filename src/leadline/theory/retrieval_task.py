r"""Retrieval of the tokens most aligned with a query: the law of scores and targets.

A context holds `context` $P$ isotropic tokens of dimension `dim` $d$; the targets are the `targets`
$k$ tokens with the largest score, the cosine $s$ between token and query. A score has the density
$c_d(1-s^2)^{(d-3)/2}$; given the score $y$ of the first token that is not a target, the targets
are independent with scores above it and the other tokens with scores below. Lengths of tokens
are independent of all scores.

Derived in docs/theory/retrieval.md. Task: arXiv:2610.11063, section 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.spec import Spectrum
from leadline.theory.spectra import eigenvalues

THRESHOLDS = 48
NEGLIGIBLE = 1e-13


def check_retrieval(*, dim: int, context: int, targets: int) -> None:
    r"""Whether the task exists.

    **Raises:** `SolverError` unless `dim` $d\ge4$ and $1\le$ `targets` < `context`.
    """
    if targets < 1:
        raise SolverError(f"targets: got {targets}, expected at least 1 token to retrieve")
    if targets >= context:
        raise SolverError(
            f"targets: got {targets} of {context} tokens, expected fewer targets than "
            f"context = {context}: retrieving all tokens selects nothing"
        )
    if dim < 4:
        raise SolverError(
            f"dim: got {dim}, expected at least 4: in fewer dimensions the directions "
            "perpendicular to a query have no smooth law of angles"
        )


def radial_moment(dim: int) -> float:
    r"""$m = (E|x|)^2 = 2\,[\Gamma(\frac{d+1}2)/\Gamma(\frac d2)]^2$ of a standard normal token."""
    return 2 * math.exp(2 * (math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2)))


def task_factor(spectrum: Spectrum) -> float:
    r"""The factor between the loss at input exponent zero and any task exponent, and that at
    $\Omega = I$, for the same predictor: $R(0, b) = R(0, 0)\,\frac1d\sum_k\omega_k$.

    Inputs of covariance $I$ do not know the rotation $O$ of the task, so that the average over it
    turns $\Omega$ into $(\mathrm{tr}\,\Omega/d)\,I$ whatever the predictor, its depth and the
    number of targets.

    **Raises:** `SolverError` if the inputs are not isotropic.
    """
    if spectrum.input_exponent:
        raise SolverError(
            f"task.spectrum.input_exponent: got {spectrum.input_exponent:g}, expected 0: only "
            "isotropic inputs do not know the rotation of the task"
        )
    return float(np.mean(eigenvalues(spectrum)[1]))


def upper_tail(score: Floats, *, dim: int) -> Floats:
    r"""The probability $S(y)$ that the cosine of a token and a fixed direction exceeds `score`,
    $\frac12I_{1-y^2}(\frac{d-1}2, \frac12)$ for $y\ge0$.
    """
    from scipy.special import betainc

    half = 0.5 * betainc((dim - 1) / 2, 0.5, 1 - score**2)
    return np.where(score < 0, 1 - half, half)


def tail_score(probability: float, *, dim: int) -> float:
    """The score that a token exceeds with this probability, the inverse of `upper_tail`."""
    from scipy.special import betaincinv

    small = min(probability, 1 - probability)
    score = math.sqrt(1 - float(betaincinv((dim - 1) / 2, 0.5, 2 * small)))
    return score if probability < 0.5 else -score


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    r"""The law of the score $y$ of the first token that is not a target as a quadrature, with
    $\int g$ over it = `mass` $\cdot g($`score`$)$; `tail` is $S(y)$, `mean` is
    $\mu(y) = E[s\,|\,s>y]$. `score` increases.
    """

    score: Floats
    mass: Floats
    tail: Floats
    mean: Floats


def thresholds(*, dim: int, context: int, targets: int, nodes: int = THRESHOLDS) -> Thresholds:
    r"""Gauss-Legendre nodes in the angle between the extreme quantiles of $y$: its tail $S(y)$ is
    a Beta($k+1$, $P-k$) variable.

    **Raises:** `SolverError` for an impossible task, or if the rule misses the total probability
    by more than $10^{-8}$.
    """
    from scipy.special import betaincinv

    check_retrieval(dim=dim, context=context, targets=targets)
    low, high = (
        math.asin(tail_score(float(betaincinv(targets + 1, context - targets, q)), dim=dim))
        for q in (1 - 1e-11, 1e-11)
    )
    x, w = gauss_legendre(nodes)
    angle = (low + high) / 2 + (high - low) / 2 * x
    score = np.sin(angle)
    tail = upper_tail(score, dim=dim)
    log_count = math.lgamma(context + 1) - math.lgamma(targets + 1) - math.lgamma(context - targets)
    log_density = log_count + targets * np.log(tail) + (context - targets - 1) * np.log1p(-tail)
    density = log_angle_density(angle, dim=dim)
    mass = np.exp(log_density + density) * w * (high - low) / 2
    if abs(mass.sum() - 1) > 1e-8:
        raise SolverError(
            f"context: got {context} tokens of dim {dim} with {targets} targets, for which "
            f"{nodes} thresholds carry a probability of {mass.sum():.9f} instead of 1"
        )
    mean = np.exp(density) * np.cos(angle) / ((dim - 1) * tail)
    return Thresholds(score=score, mass=mass, tail=tail, mean=mean)


def log_angle_density(angle: Floats, *, dim: int) -> Floats:
    r"""The log density $c_d\cos^{d-2}\alpha$ of the angle $\alpha = \arcsin s$ of a score."""
    log_constant = math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2) - 0.5 * math.log(math.pi)
    return log_constant + (dim - 2) * np.log(np.cos(angle))


def second_moments(y: Thresholds, *, dim: int) -> tuple[Floats, Floats]:
    r"""$E[s^2\,|\,s>y]$ and $E[s^2\,|\,s<y]$ at every threshold. Integrating by parts,
    $\int_y^1s^2f\,ds = \frac1d[S(y) + y(1-y^2)^{(d-1)/2}c_d]$.
    """
    edge = y.score * y.mean * y.tail * (dim - 1)
    above = (y.tail + edge) / dim
    return above / y.tail, (1 / dim - above) / (1 - y.tail)


def target_energy(*, dim: int, context: int, targets: int) -> float:
    r"""$T = E|t|^2 = \frac dk + m\frac{k-1}k\,E\,\mu(y)^2$, the loss of the prediction zero."""
    y = thresholds(dim=dim, context=context, targets=targets)
    selected = float(y.mass @ y.mean**2)
    return dim / targets + radial_moment(dim) * (targets - 1) / targets * selected


@lru_cache(maxsize=64)
def gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """Nodes and weights on [-1, 1], Gauss and Legendre's up to 48 and beyond those of equal panels
    of 24 nodes, at least `count` in all.
    """
    if count <= 48:
        return np.polynomial.legendre.leggauss(count)
    x, w = np.polynomial.legendre.leggauss(24)
    panels = math.ceil(count / 24)
    centers = (2 * np.arange(panels) + 1) / panels - 1
    return (centers[:, None] + x / panels).ravel(), np.tile(w / panels, panels)
