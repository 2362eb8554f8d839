"""What a law says of sizes that were not run, and how sure it is of the law and of one more run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import FitError
from leadline.laws.artifact import SavedFit
from leadline.laws.families import Law
from leadline.laws.fit import Fit
from leadline.laws.objectives import LeastSquares, StudentT


def forecast(
    law: Law | Fit | SavedFit,
    at: Mapping[str, ArrayLike] | pl.DataFrame,
    *,
    level: float = 0.95,
) -> pl.DataFrame:
    r"""The loss of `law` at the sizes `at`.

    `low` to `high` is the interval of the law itself, by the delta method: with $g$ the derivative
    of the loss by the parameters and $C$ their covariance (that of the noise model for least
    squares and Student's t, else the sandwich) the variance is $g^T C g$, taken on the logarithm
    where the objective is. `run_low` to `run_high` is the interval of the loss of one more run: the
    noise, of the noise model or, for a robust objective, the quantiles of the residuals, added in
    quadrature. Both hold within the law; neither knows whether the law holds there.

    **Arguments:** `law`, or its fit, or a loaded law.json; a bare law has no intervals. `at` has a
    column or an array of raw counts for each variable; `level` within (0, 1).

    **Returns** one row a point: the variables, `loss`, the four ends (null for a bare law), `reach`
    (how many times the point lies outside the data in its farthest variable, 1 within), `level`,
    `method`, `unit`.

    **Raises:** `FitError` for a missing or impossible size, or a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise FitError(f"level: got {level}, expected a number within (0, 1)")
    known = law if isinstance(law, Law) else law.law
    names = known.family.variables
    loss = known.loss(at)
    full = np.broadcast_arrays(*(np.asarray(at[name], np.float64) for name in names))
    columns = {name: value.ravel() for name, value in zip(names, full, strict=True)}
    frame = pl.DataFrame({**columns, "loss": loss.ravel()})
    if isinstance(law, Law):
        empty = pl.lit(None, dtype=pl.Float64)
        return frame.with_columns(
            *(empty.alias(n) for n in ("low", "high", "run_low", "run_high", "reach", "level")),
            method=pl.lit("none: a bare law, without data"),
            unit=pl.lit("none"),
        )
    ends, method = _ends(law, frame["loss"].to_numpy(), known.gradient(columns), level)
    reach = np.ones(frame.height)
    for name, (least, most) in law.ranges.items():
        if known.family.positive:
            reach = np.maximum(reach, np.maximum(columns[name] / most, least / columns[name]))
    if not law.covariance_accurate:
        method += f"; the covariance is not accurate (status: {law.status})"
    return frame.with_columns(
        *(pl.Series(name, values) for name, values in ends.items()),
        reach=pl.Series(reach),
        level=pl.lit(level),
        method=pl.lit(method),
        unit=pl.lit("run"),
    )


def _ends(
    fit: Fit | SavedFit, loss: Floats, gradient: Floats, level: float
) -> tuple[dict[str, Floats], str]:
    """The ends of both intervals, and how they were obtained."""
    from scipy.special import ndtri, stdtrit

    model = fit.model_covariance
    covariance = fit.covariance if model is None else model
    log = fit.objective.residual == "log"
    slope = gradient / loss[:, None] if log else gradient
    error = np.sqrt(np.einsum("rp,pq,rq->r", slope, covariance, slope))
    tail = (1 + level) / 2
    exact = model is None or fit.noise is not None
    half = error * float(ndtri(tail) if exact else stdtrit(fit.degrees_of_freedom, tail))
    if isinstance(fit.objective, LeastSquares) and fit.scale is not None and fit.noise is None:
        below = above = fit.scale * float(stdtrit(fit.degrees_of_freedom, tail))
        noise = "Gaussian noise of the fitted scale"
    elif isinstance(fit.objective, StudentT) and fit.scale is not None and fit.noise is None:
        below = above = fit.scale * float(stdtrit(fit.objective.dof, tail))
        noise = f"Student's t noise, {fit.objective.dof:g} degrees of freedom, fitted scale"
    else:
        # losses scatter around the law by minus the residuals
        few = np.sqrt(fit.rows / max(fit.degrees_of_freedom, 1))
        low, high = np.quantile(-fit.residuals, [1 - tail, tail]) * few
        below, above = -min(low, 0.0), max(high, 0.0)
        noise = "noise from the quantiles of the residuals"
    kind = "sandwich" if model is None else "noise model"

    def shifted(by: Floats) -> Floats:
        return loss * np.exp(by) if log else loss + by

    return {
        "low": shifted(-half),
        "high": shifted(half),
        "run_low": shifted(-np.hypot(half, below)),
        "run_high": shifted(np.hypot(half, above)),
    }, f"delta method, {kind} covariance; runs: {noise}"
