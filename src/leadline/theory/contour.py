r"""Contours around a spectrum on which powers and exponentials of any degree stay small.

A function $f$ of a matrix $M$ with spectrum in $[0, e]$ is
$f(M) = \frac1{2\pi i}\oint f(-s)\,(s+M)^{-1}ds$ around the cut $[-e, 0]$. Here $f(-s)$ is
$(1+gs)^L$ or $e^{\gamma s}$: it grows to the right of the origin on the scale $1/\gamma$ and
shrinks to the left. The plane without the cut, and without the two parts of the real axis where
$f$ has grown by $e^c$, is a ring. A Moebius map and the elliptic function sn turn the ring into a
rectangle, in which the trapezoidal rule converges geometrically. The number of nodes grows like the
logarithm of the degree (a circle around the cut needs as many as the degree), and nothing much
larger than the result occurs in the sum.

Derived in docs/theory/equivalents.md, "The contour". The map is that of N. Hale, N. Higham and
L. Trefethen, SIAM J. Numer. Anal. 46 (2008), for another ring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats

Complex = NDArray[np.complex128]

GROWTH = 16.0
"""c: e-folds by which f may grow outside the contour. More widens the ring, which shortens the
rule, and lets f grow on the contour itself, to about e^(c/8)."""
SPAN = 4.0
"""The farthest that the ring reaches, in lengths of the cut: so the smallest gammas lose no
digits."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Contour:
    r"""Nodes in the upper half plane, shape (contour, node), such that for a function $F$ real on
    the real axis $\frac1{2\pi i}\oint F\,ds = \operatorname{Re}\sum_j$ `weights`$_j
    F($`nodes`$_j)$.
    """

    nodes: Complex
    weights: Complex


def contours(edge: float, left: Floats, right: Floats, *, efolds: float) -> Contour:
    r"""Contours around $[-e, 0]$, $e$ = `edge`, one for each pair of `left` $< -e$ and `right`
    $> 0$, at which the integrand has grown by $e^c$, $c$ = `GROWTH`.

    **Arguments:** `efolds` of accuracy asked for: the relative error is about $e^{-\text{efolds}}$.
    """
    right = np.minimum(right, SPAN * edge)
    left = np.maximum(left, -(1 + SPAN) * edge)
    # the ring is that of [-1, 1] and 1/k if (1-k)/(1+k) is y, from the cross ratio of its ends
    y = np.sqrt((-edge - left) * right / ((-left) * (right + edge)))
    k, k_prime = (1 - y) / (1 + y), 2 * np.sqrt(y) / (1 + y)
    quarter, quarter_prime = np.pi / 2 / _agm(k_prime), np.pi / 2 / _agm(k)
    aspect = quarter / quarter_prime
    count = math.ceil(float(np.max((2 * efolds + GROWTH) * aspect)) * 2 / np.pi)
    count = max(count, 8)
    # the cut is efolds away from the contour, the circle of growth e^c is efolds + c away
    height = quarter_prime / 2 * efolds / (2 * efolds + GROWTH)
    step = 2 * quarter / count
    u = -quarter[:, None] + step[:, None] * (np.arange(count) + 0.5) + 1j * height[:, None]
    v, slope = _sn(u, k[:, None], k_prime[:, None])
    pull = (y * (right + edge) / right)[:, None]
    bottom = pull * (1 + v) + (1 - v)
    nodes = -edge * (1 - v) / bottom
    weights = (1j / np.pi) * step[:, None] * slope * (2 * edge * pull) / bottom**2
    return Contour(nodes=nodes, weights=weights)


def _agm(b: Floats) -> Floats:
    """The arithmetic-geometric mean of one and `b`."""
    a = np.ones_like(b)
    for _ in range(12):
        a, b = (a + b) / 2, np.sqrt(a * b)
    return a


def _sn(u: Complex, k: Floats, k_prime: Floats) -> tuple[Complex, Complex]:
    """sn(u, k) and its derivative, by descending Landen transformations."""
    if np.all(k < 1e-8):
        return np.sin(u), np.cos(u)
    lower = (k / (1 + k_prime)) ** 2  # (1 - k') / (1 + k') without cancellation
    inner, slope = _sn(u / (1 + lower), lower, 2 * np.sqrt(k_prime) / (1 + k_prime))
    bottom = 1 + lower * inner**2
    return (1 + lower) * inner / bottom, slope * (1 - lower * inner**2) / bottom**2
