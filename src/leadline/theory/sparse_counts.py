r"""Expectations over the number of times that a type occurs among $N$ training sequences.

The counts are multinomial, so that each is binomial; a loss that is a sum over types needs no more.
Derived in docs/theory/sparse.md.
"""

from __future__ import annotations

import math

import numpy as np

from leadline.curve import Floats

_SPREAD = 9.0
"""Standard deviations kept on each side."""
_DIRECT = 100.0
"""Up to this mean every count is a node; beyond, every quarter of a standard deviation."""


def binomial_nodes(sequences: float, probability: float) -> tuple[Floats, Floats]:
    r"""Counts and weights for expectations of smooth functions of a binomial count, the weights sum
    to one.

    Where counts are many the sum takes one in `stride`: a trapezoidal rule on a nearly normal
    weight, whose error falls as $e^{-2\pi^2\sigma^2/h^2}$ for the stride $h = \sigma/4$.
    """
    mean = sequences * probability
    deviation = math.sqrt(mean * (1 - probability))
    if mean <= _DIRECT:
        counts = np.arange(0.0, min(sequences, mean + 12 * math.sqrt(mean) + 30) + 1)
    else:
        stride = max(1.0, math.floor(deviation / 4))
        low = max(0.0, math.floor(mean - _SPREAD * deviation))
        high = min(sequences, mean + _SPREAD * deviation)
        counts = np.arange(low, high + 1, stride)
    logs = _log_binomial(counts, sequences, probability)
    weights = np.exp(logs - logs.max())
    return counts, weights / weights.sum()


def _log_binomial(counts: Floats, total: float, probability: float) -> Floats:
    """The logarithm of the binomial probability up to a constant, with no cancellation of large
    factorials: deviances beside Stirling errors (Loader, 2000).
    """
    others = total - counts
    logs = -_deviance(counts, total * probability)
    logs -= _deviance(others, total * (1 - probability))
    return logs - _stirling_error(counts) - _stirling_error(others)


def _deviance(x: Floats, mean: float) -> Floats:
    r"""$x\ln(x/m) + m - x$, and half the logarithm of x that Stirling's formula has beside it."""
    if mean == 0:
        return np.where(x == 0, 0.0, np.inf)
    apart = (x - mean) / mean
    with np.errstate(divide="ignore", invalid="ignore"):
        own = mean * ((1 + apart) * np.log1p(apart) - apart)
    return np.where(x == 0, mean, own + np.log(np.maximum(x, 1)) / 2)


def _stirling_error(x: Floats) -> Floats:
    r"""$\ln x! - [(x+\frac12)\ln x - x]$, zero at $x = 0$."""
    far = np.maximum(x, 16.0)
    series = 1 / (12 * far) - 1 / (360 * far**3) + 1 / (1260 * far**5) - 1 / (1680 * far**7)
    table = np.array(
        [0.0] + [math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n for n in range(1, 16)]
    )
    near = table[np.minimum(x, 15).astype(np.int64)]
    return np.where(x < 16, near, series + math.log(2 * math.pi) / 2)
