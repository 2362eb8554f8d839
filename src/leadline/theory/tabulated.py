r"""A costly smooth function as Chebyshev series, made where it is asked for.

A gradient flow asks for the slope at thousands of nearby scales, one at a time; an equivalent
evaluates fifty at once almost as fast as one.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError

NARROWEST = 2.0**-20
"""In units of asinh(x / scale); narrower pieces are not refined."""


class Tabulated:
    r"""`function` between pieces of the variable $\operatorname{asinh}(x/$`scale`$)$, linear near
    zero and logarithmic beyond.

    **Arguments:** `function` maps an array to an array; `scale` > 0; `tolerance`, relative to the
    largest value of a piece.

    `error` is the largest such relative error met so far.
    """

    def __init__(
        self, function: Callable[[Floats], Floats], *, scale: float, tolerance: float
    ) -> None:
        self._function = function
        self._scale = scale
        self._tolerance = tolerance
        self._starts: list[float] = []
        self._pieces: list[tuple[float, Floats]] = []
        terms = math.ceil(8 - 1.6 * math.log10(tolerance))
        angles = np.pi * (np.arange(terms) + 0.5) / terms
        self._nodes = np.cos(angles)
        self._order = np.arange(terms)
        self._transform = np.cos(np.outer(self._order, angles)) * (2 / terms)
        self._transform[0] /= 2
        self.error = 0.0

    def __call__(self, x: float) -> float:
        """The value at `x`."""
        t = math.asinh(x / self._scale)
        i = bisect.bisect_right(self._starts, t) - 1
        if i < 0 or t > self._pieces[i][0]:
            i = self._extend(t)
        start, (stop, series) = self._starts[i], self._pieces[i]
        cosine = min(1.0, max(-1.0, (2 * t - start - stop) / (stop - start)))
        return float(series @ np.cos(self._order * math.acos(cosine)))

    def _extend(self, t: float) -> int:
        """Add the piece that contains `t`: one unit long, halved until its series has converged."""
        start, stop = math.floor(t), math.floor(t) + 1.0
        while True:
            middle, half = (start + stop) / 2, (stop - start) / 2
            values = self._function(self._scale * np.sinh(middle + half * self._nodes))
            if not np.isfinite(values).all():
                raise SolverError(
                    f"slope: not finite near {self._scale * math.sinh(t):g}; expected a start "
                    "closer to the stable scales"
                )
            series = self._transform @ values
            error = float(np.abs(series[-3:]).max() / (np.abs(values).max() or 1.0))
            if error <= self._tolerance or stop - start <= NARROWEST:
                break
            start, stop = (start, middle) if t < middle else (middle, stop)
        self.error = max(self.error, error)
        i = bisect.bisect_right(self._starts, start)
        self._starts.insert(i, start)
        self._pieces.insert(i, (stop, series))
        return i
