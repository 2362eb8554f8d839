"""Intervals that the claims of several papers share."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from leadline.claims import Interval

LEVEL = 0.99
"""Of sampled claims: at 0.95, nine of them would misjudge one in every third rerun."""


def student(
    values: ArrayLike, *, level: float = LEVEL, unit: str = "seed", resolution: float = 0.0
) -> Interval:
    """Student's interval of the mean of independent `values`, one a `unit`; never narrower than
    plus and minus the `resolution` to which a claim is read, because seeds do not see what a finite
    problem and a finite training leave.
    """
    found = np.asarray(values, float)
    mean, count = float(found.mean()), found.size
    error = float(found.std(ddof=1)) / math.sqrt(count)
    margin = max(float(stats.t.ppf((1 + level) / 2, count - 1)) * error, resolution)
    least = f", at least {resolution:g} to each side" if resolution else ""
    return Interval(
        estimate=mean,
        low=mean - margin,
        high=mean + margin,
        level=level,
        method=f"Student's t over {count} {unit}s{least}",
        unit=unit,
    )
