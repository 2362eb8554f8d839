"""What the curvature at a minimum says of the parameters: sandwich and model covariance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.laws.newton import Bools
from leadline.laws.objectives import AsymmetricAbsolute, Huber, LeastSquares, StudentT
from leadline.laws.solve import Task, derivatives, residuals

ROWS_INSIDE = 3
"""Rows near the kink, or inside delta, that each parameter needs before the curvature there can be
trusted."""


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """At one minimum: `sandwich` covariance of the unknowns and the one of the noise model
    (`model`, None where the objective has none); the noise `scale`; the `condition` number of the
    sensitivities; whether `enough` rows carry the curvature.
    """

    sandwich: Floats
    model: Floats | None
    scale: float | None
    condition: float
    enough: bool


def curvature(
    task: Task,
    unknowns: Floats,
    width: float,
    free: Bools,
    unit: NDArray[np.int64],
    *,
    known_noise: bool,
) -> Curvature:
    """The curvature at `unknowns` (unknown); unknowns that are not `free` have variance 0."""
    objective, weight = task.objective, task.weight[0]
    z, slope = (part[0] for part in residuals(task, unknowns[None]))
    lengths = np.linalg.norm(slope[:, free], axis=0)
    count = int(free.sum())
    rows = len(z)
    _, pull, _ = objective.penalty(z, width)
    enough = True
    if isinstance(objective, StudentT):
        near = np.ones(rows)
        scores = (weight * pull)[:, None] * slope
        scores[:, -1] += weight
    else:
        near = objective.curvature(z, kernel_width(z))
        if isinstance(objective, (Huber, AsymmetricAbsolute)):
            inside = near if isinstance(objective, Huber) else near > 0
            enough = bool(inside.sum() >= ROWS_INSIDE * count)
        scores = (weight * pull)[:, None] * slope
    units = int(unit.max()) + 1
    summed = np.zeros((units, len(unknowns)))
    np.add.at(summed, unit, scores)
    small = units / max(units - 1, 1) * (rows - 1) / max(rows - count, 1)
    both = np.ix_(free, free)
    sandwich = np.zeros((len(unknowns), len(unknowns)))
    model: Floats | None = None
    scale: float | None = None
    square = (weight * z * z).sum() / max(rows - count, 1)
    if isinstance(objective, LeastSquares):
        scale = 1.0 if known_noise else float(np.sqrt(square))
    elif isinstance(objective, StudentT):
        scale = float(np.exp(unknowns[-1]))
    try:
        if isinstance(objective, StudentT):
            hessian = derivatives(task, unknowns[None], width, curved=True)[2][0]
            inverse = np.asarray(np.linalg.inv(hessian[both]), np.float64)
        else:
            # through a root of the curvature, so that it is never squared
            scaled = slope[:, free] * np.sqrt(weight * near)[:, None] / lengths
            inverse = _from_root(np.linalg.qr(scaled).R, lengths)
        spread = inverse @ summed[:, free].T
        sandwich[both] = small * spread @ spread.T
    except np.linalg.LinAlgError:
        inverse = np.full((count, count), np.nan)
        sandwich[both] = np.nan
    if scale is not None:
        gaussian = isinstance(objective, LeastSquares) and not known_noise
        model = np.zeros_like(sandwich)
        model[both] = inverse * (square if gaussian else 1.0)
    return Curvature(
        sandwich=sandwich,
        model=model,
        scale=scale,
        condition=float(np.linalg.cond(slope[:, free] / lengths)) if count else 1.0,
        enough=enough,
    )


def _from_root(root: Floats, lengths: Floats) -> Floats:
    """The inverse of a curvature from a triangular root of it in unknowns divided by `lengths`."""
    inverse = np.asarray(np.linalg.inv(root), np.float64) / lengths[:, None]
    return inverse @ inverse.T


def kernel_width(residuals: Floats) -> float:
    r"""Half-width of the uniform kernel that density estimation takes, 1.06 sigma rows^(-1/5).

    The curvature of a robust objective counts only rows inside delta. The bare count jumps as the
    law moves; smoothing estimates its expectation, as in quantile regression.
    """
    low, high = np.quantile(residuals, [0.25, 0.75])
    sigma = min(float(residuals.std()), float(high - low) / 1.349)
    return float(1.06 * sigma * len(residuals) ** -0.2 + 1e-300)
