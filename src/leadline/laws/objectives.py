r"""What a fit minimizes: a sum over rows of a function of the residual.

The residual of a row is $z = (\log\hat L - \log L)/\sigma$ or, raw, $(\hat L - L)/\sigma$, with
$\sigma = 1$ unless the noise of each row is known. A sum, never a mean, so that no tolerance
depends on the number of rows; weights multiply the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leadline.curve import Floats
from leadline.errors import FitError

Residual = Literal["log", "raw"]

SHARPEST = 1e-7
"""Half-width, relative to the spread of residuals, of the parabola that rounds the kink of an
absolute value at the end."""


@dataclass(frozen=True, kw_only=True)
class Huber:
    r"""The sum over rows of $H_\delta(z)$, with $H_\delta(z) = z^2/2$ for $|z| \le \delta$ and
    $\delta(|z| - \delta/2)$ beyond.

    **Arguments:** `delta` $> 0$, in the unit of the residual; 1e-3 as in arXiv:2203.15556, appendix
    D.3. `residual` "log" or "raw".
    """

    delta: float = 1e-3
    residual: Residual = "log"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise FitError(f"delta: got {self.delta}, expected a finite number > 0")
        _check(self.residual)

    def __str__(self) -> str:
        return f"sum of {_prefix(self.residual)}Huber, delta {self.delta:g}"

    def path(self, spread: float) -> list[float]:
        """Widths from about three times `spread` down to delta."""
        return homotopy(self.delta, 3 * spread)

    def penalty(self, z: Floats, width: float) -> tuple[Floats, Floats, Floats]:
        """The function, its slope and its curvature at residuals `z`."""
        clipped = np.minimum(np.maximum(z, -width), width)
        return clipped * (z - 0.5 * clipped), clipped, (z == clipped).astype(np.float64)

    def curvature(self, z: Floats, width: float) -> Floats:
        """The curvature averaged over a uniform kernel of half-width `width`."""
        overlap = np.minimum(z + width, self.delta) - np.maximum(z - width, -self.delta)
        return np.clip(overlap, 0.0, None) / (2 * width)


@dataclass(frozen=True, kw_only=True)
class LeastSquares:
    r"""Half the sum of squares, $\sum_j z_j^2/2$. Its noise model is Gaussian with a scale that is
    fitted, or known where the noise of each row is.

    **Arguments:** `residual` "log" or "raw".
    """

    residual: Residual = "log"

    def __post_init__(self) -> None:
        _check(self.residual)

    def __str__(self) -> str:
        return f"half the sum of {'squared logs' if self.residual == 'log' else 'squares'}"

    def path(self, spread: float) -> list[float]:
        """One step: least squares needs no homotopy."""
        del spread
        return [math.inf]

    def penalty(self, z: Floats, width: float) -> tuple[Floats, Floats, Floats]:
        """The function, its slope and its curvature at residuals `z`."""
        del width
        return 0.5 * z * z, z, np.ones_like(z)

    def curvature(self, z: Floats, width: float) -> Floats:
        """One."""
        del width
        return np.ones_like(z)


@dataclass(frozen=True, kw_only=True)
class AsymmetricAbsolute:
    r"""The sum over rows of $|z|$ where the law lies below the loss and `over` times $|z|$ where it
    lies above: the regression of the quantile $1/(1 + \text{over})$, a law near the lower envelope.

    **Arguments:** `over` $> 0$; `residual` "raw" or "log". With 10 and raw it is the number of rows
    times the mean asymmetric absolute error of the package `chinchilla`.
    """

    over: float = 10.0
    residual: Residual = "raw"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.over) and self.over > 0):
            raise FitError(f"over: got {self.over}, expected a finite number > 0")
        _check(self.residual)

    def __str__(self) -> str:
        return f"sum of {_prefix(self.residual)}absolute errors, {self.over:g} times above the loss"

    def path(self, spread: float) -> list[float]:
        """Widths from about three times `spread` down to where rounding the kink costs nothing."""
        return homotopy(SHARPEST * spread, 3 * spread)

    def penalty(self, z: Floats, width: float) -> tuple[Floats, Floats, Floats]:
        """The function, with its kink rounded within `width`, its slope and its curvature."""
        clipped = np.minimum(np.maximum(z, -width), width) / width
        weight = np.where(z > 0, self.over, 1.0)
        value = weight * clipped * (z - 0.5 * width * clipped)
        return value, weight * clipped, weight * (np.abs(z) < width) / width

    def curvature(self, z: Floats, width: float) -> Floats:
        """The jump of the slope times the density of residuals at zero."""
        return np.where(np.abs(z) < width, (1 + self.over) / (2 * width), 0.0)


@dataclass(frozen=True, kw_only=True)
class StudentT:
    r"""The negative log-likelihood of Student's t with a fitted scale $s$, up to a constant:
    $\sum_j \left[\tfrac{\nu+1}2\log\left(1 + \tfrac{z_j^2}{\nu s^2}\right) + \log s\right]$.

    **Arguments:** `dof` $\nu > 0$, the degrees of freedom: small values allow more outliers;
    `residual` "log" or "raw".
    """

    dof: float = 4.0
    residual: Residual = "log"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.dof) and self.dof > 0):
            raise FitError(f"dof: got {self.dof}, expected a finite number > 0")
        _check(self.residual)

    def __str__(self) -> str:
        return (
            f"negative log-likelihood of Student's t with {self.dof:g} degrees of freedom, "
            f"{self.residual} residuals"
        )

    def path(self, spread: float) -> list[float]:
        """One step: the fitted scale is the homotopy."""
        del spread
        return [math.inf]

    def penalty(self, z: Floats, width: float) -> tuple[Floats, Floats, Floats]:
        """The function, its slope and its curvature at residuals in units of the scale."""
        del width
        square, n = z * z, self.dof
        slope = (n + 1) / (n + square)
        return (
            0.5 * (n + 1) * np.log1p(square / n),
            slope * z,
            slope * (n - square) / (n + square),
        )


Objective = Huber | LeastSquares | AsymmetricAbsolute | StudentT

OBJECTIVES: dict[str, type[Objective]] = {
    "huber": Huber,
    "least squares": LeastSquares,
    "asymmetric absolute": AsymmetricAbsolute,
    "student t": StudentT,
}
"""The objectives by the name under which an artifact stores them."""


def has_noise_model(objective: Objective) -> bool:
    """Whether the objective is a likelihood, so that profiles and information criteria hold."""
    return isinstance(objective, (LeastSquares, StudentT))


def homotopy(delta: float, first: float) -> list[float]:
    """Deltas from about `first` down to `delta`, each a third of the one before."""
    deltas = [delta]
    while deltas[-1] < first:
        deltas.append(3 * deltas[-1])
    return deltas[::-1]


def _check(residual: str) -> None:
    if residual not in ("log", "raw"):
        raise FitError(f"residual: got {residual!r}, expected 'log' or 'raw'")


def _prefix(residual: Residual) -> str:
    return "log-" if residual == "log" else "raw "
