"""Bootstrap over runs, and the intervals that it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.errors import FitError
from leadline.laws.design import Design
from leadline.laws.fit import Fit, Posed, pose
from leadline.laws.newton import Bools, Minima, minimize, persist, replace_lanes, take
from leadline.laws.solve import Task
from leadline.laws.solve import minimize as minimize_any
from leadline.laws.starts import grid_starts, start_count

MIN_DRAWS = 20
"""Converged draws below which no interval is given."""
FEW_UNITS = 200
"""Runs below which percentiles of the bootstrap cover less than they say."""
WIDE_UNITS = 30
"""Runs below which the jackknife covers 95% to 98% at 95%."""


Unit = Literal["run", "row", "residual"]


def bootstrap(fit: Fit, *, draws: int, unit: Unit = "run", seed: int = 0) -> pl.DataFrame:
    """Refits of `fit` to resampled tables, all solved together.

    Each draw takes as many units as the table has, with replacement. A draw starts at the fitted
    law and follows the objective down in delta; one that does not converge there is solved again
    from the grid of starts.

    **Arguments:** `draws` >= 1; `unit` "run" keeps the rows of one run together where the table has
    a column `run` (else each row is a run; identical rows count as one); "row" resamples rows;
    "residual" keeps every row's sizes and gives it the residual of a row drawn with replacement,
    which needs rows whose noise is independent and alike. Units are numbered in the sorted order of
    the variables and the loss; draw i takes them as the i-th of NumPy's multinomial draws with
    `seed` says.

    **Returns** one row a draw: `draw`, `unit`, each parameter for raw counts, `objective`, and
    `status` ("ok", "at bound", "not converged").

    **Raises:** `FitError` for a number of draws below 1, an unknown unit, fewer than two units, or
    a fit that has not converged.
    """
    if draws < 1:
        raise FitError(f"draws: got {draws}, expected at least 1")
    if unit not in get_args(Unit):
        raise FitError(f"unit: got {unit!r}, expected 'run', 'row' or 'residual'")
    if not fit.converged:
        raise FitError("bootstrap: this fit has not converged; its draws would mean nothing")
    family = fit.law.family
    problem = posed_again(fit)
    rows = problem.rows
    if unit == "residual":
        ends, parameters, held = _general(fit, resampled_residuals(fit, problem, draws, seed))
    else:
        units = np.arange(fit.rows) if unit == "row" else rows.unit
        ends, parameters, held = _reweighted(fit, problem, _weights(units, draws, seed))
    settled = np.where(held.any(axis=1), "at bound", "ok")
    return pl.DataFrame(
        {"draw": np.arange(draws), "unit": [unit] * draws}
        | {name: parameters[:, i] for i, name in enumerate(family.parameters)}
        | {
            "objective": ends.value,
            "status": np.where(ends.sound, settled, "not converged").tolist(),
        }
    )


def _reweighted(fit: Fit, problem: Posed, counts: Floats) -> tuple[Minima, Floats, Bools]:
    """The minimum for each of `counts` (lane, row) of the rows, its parameters for raw counts, and
    which unknowns are held.
    """
    data, weights = problem.design, problem.rows.weight * counts
    if data is None:
        return _general(fit, replace(problem.task, weight=weights))
    ends = _separable(data, fit, weights)
    held = (ends.unknowns <= data.rows.low) | (ends.unknowns >= data.rows.high)
    return ends, data.to_parameters(ends.unknowns), held


def posed_again(fit: Fit) -> Posed:
    """The problem that `fit` solved."""
    return pose(
        fit.law.family,
        fit.runs,
        fit.objective,
        fit.restriction,
        weights=fit.weights,
        noise=fit.noise,
    )


def resampled_residuals(fit: Fit, problem: Posed, draws: int, seed: int) -> Task:
    """The task whose lanes have the law's losses with residuals drawn from those of the fit.

    Residuals are standardized by the known noise, if any; their mean is kept.
    """
    rng = np.random.default_rng(seed)
    rows = problem.rows
    residual = fit.residuals[rows.order] / rows.noise
    drawn = residual[rng.integers(fit.rows, size=(draws, fit.rows))] * rows.noise
    predicted = fit.law.family.value(rows.points, fit.law.vector[None])
    loss = predicted * np.exp(-drawn) if fit.objective.residual == "log" else predicted - drawn
    return replace(problem.task, loss=loss)


def _weights(unit: NDArray[np.int64], draws: int, seed: int) -> Floats:
    """How often each draw takes each row (draw, row): as many units as there are, with
    replacement.
    """
    units = int(unit.max()) + 1
    if units < 2:
        raise FitError("bootstrap: the table is one run; resampling needs at least 2")
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(units, np.full(units, 1 / units), size=draws)
    return counts[:, unit].astype(np.float64)


def _general(fit: Fit, task: Task) -> tuple[Minima, Floats, Bools]:
    """The minimum of every draw, its parameters for raw counts, and which unknowns are held."""
    draws = max(len(task.weight), len(task.loss))
    start = fitted_unknowns(fit, task)
    spread = float(np.median(np.abs(fit.residuals))) / 3
    path = task.objective.path(spread)
    ends = minimize_any(task, np.repeat(start, draws, axis=0), path)
    lost = np.flatnonzero(~ends.sound)
    if len(lost):
        more = minimize_any(task.of(lost), ends.unknowns[lost], path[-1:], steps=1000)
        ends = replace_lanes(ends, lost, more)
    count = task.coordinates.place.shape[1]
    parameters, _ = task.coordinates.parameters(ends.unknowns[:, :count])
    return ends, parameters, (ends.unknowns <= task.low) | (ends.unknowns >= task.high)


def fitted_unknowns(fit: Fit, task: Task) -> Floats:
    """The unknowns (1, unknown) of the fitted law."""
    start = task.coordinates.unknowns(fit.law.vector[None])
    if task.scaled_noise:
        assert fit.scale is not None
        start = np.append(start, [[np.log(fit.scale)]], axis=1)
    return np.clip(start, task.low, task.high)


def _separable(data: Design, fit: Fit, weights: Floats) -> Minima:
    """The minimum of every draw (lane) by the batched minimizer of separable laws."""
    rows = data.rows
    start = data.to_lanes(fit.law.vector[None])
    # from the delta that holds half of the rows the valley leads to the draw's own optimum
    path = fit.objective.path(float(np.median(np.abs(fit.residuals))) / 3)
    ends = minimize(rows, np.repeat(start, len(weights), axis=0), weights, path)
    ends = persist(rows, ends, weights, path[-1], np.flatnonzero(~ends.sound))
    lost = np.flatnonzero(~ends.sound)
    if len(lost):
        starts, spread = grid_starts(rows, count=start_count(len(rows.logs)), seed=0)
        path = fit.objective.path(spread)
        for draw in lost:
            again = minimize(rows, starts, weights[[draw]], path)
            value = np.where(again.sound, again.value, np.inf)
            if value.min() <= ends.value[draw] * (1 + 1e-9):
                best = np.array([value.argmin()])
                ends = replace_lanes(ends, np.array([draw]), take(again, best))
    return ends


def intervals(fit: Fit, draws: pl.DataFrame, *, level: float = 0.95) -> dict[str, Interval]:
    """Intervals of each parameter: percentiles of the converged rows of `bootstrap`, or, below 200
    runs, the `jackknife` where it holds. Percentiles of few runs are too narrow: at 95% they cover
    91% to 95% of 40 to 120, down to 86% of 8 runs with checkpoints (docs/diagnosis.md).

    **Arguments:** `level` within (0, 1). Draws that did not converge are left out, and counted in
    the interval's `method`, which also says which of the two it is.

    **Raises:** `FitError` for percentiles of fewer than 20 converged draws, or a level outside
    (0, 1).
    """
    unit = str(draws["unit"][0])
    units = posed_again(fit).rows.unit if unit == "run" else np.arange(fit.rows)
    if unit != "residual" and units.max() + 1 < FEW_UNITS and fit.covariance_accurate:
        found = jackknife(fit, level=level, unit="run" if unit == "run" else "row")
        if found:
            return found
    kept = converged(draws)
    return {
        name: percentile_interval(
            kept[name].to_numpy(), estimate=fit.law.parameters[name], draws=draws, level=level
        )
        for name in fit.law.family.parameters
    }


def jackknife(
    fit: Fit, *, level: float = 0.95, unit: Literal["run", "row"] = "run"
) -> dict[str, Interval]:
    r"""Intervals from refits that each leave one of U units out: the estimate plus and minus
    Student's t with U - 1 degrees of freedom times $\sqrt{(U-1)/U \sum_u (\theta_u -
    \bar\theta)^2}$; of coefficients with a unit, in their logarithm.

    Leaving a unit out moves the estimate by as much as that unit pulls, residuals of the fit pull
    too little: so the jackknife errs on the wide side, and holds with few runs. It needs an
    objective that is smooth where the rows are; empty unless the sandwich is accurate for this fit
    and every refit converges inside its bounds.

    **Raises:** `FitError` for a level outside (0, 1).

    Ref: Efron and Stein 1981; MacKinnon and White 1985 (HC3).
    """
    if not 0 < level < 1:
        raise FitError(f"level: got {level}, expected a number within (0, 1)")
    problem = posed_again(fit)
    units = np.arange(fit.rows) if unit == "row" else problem.rows.unit
    count = int(units.max()) + 1
    if count < 2 or not fit.covariance_accurate:
        return {}
    ends, parameters, held = _reweighted(
        fit, problem, (units != np.arange(count)[:, None]).astype(np.float64)
    )
    if not ends.sound.all() or held.any():
        return {}
    from scipy import stats

    wide = float(stats.t.ppf((1 + level) / 2, count - 1))
    family = fit.law.family
    found: dict[str, Interval] = {}
    for name, values in zip(family.parameters, parameters.T, strict=True):
        estimate = fit.law.parameters[name]
        in_logs = name not in family.unit_free and name != "E" and bool(np.all(values > 0))
        spread = np.log(values) if in_logs else values
        margin = wide * float(spread.std()) * (count - 1) ** 0.5
        low, high = estimate - margin, estimate + margin
        if in_logs:
            low, high = estimate * np.exp(-margin), estimate * np.exp(margin)
        found[name] = Interval(
            estimate=estimate,
            low=float(low),
            high=float(high),
            level=level,
            method=f"jackknife over {count} {unit}s, Student t"
            + (", on the wide side" if count < WIDE_UNITS else ""),
            unit=unit,
        )
    return found


def converged(draws: pl.DataFrame) -> pl.DataFrame:
    """The draws that converged.

    **Raises:** `FitError` if they are fewer than 20.
    """
    kept = draws.filter(pl.col("status") != "not converged")
    if kept.height < MIN_DRAWS:
        raise FitError(
            f"draws: {kept.height} of {draws.height} converged; an interval needs {MIN_DRAWS}"
        )
    return kept


def percentile_interval(
    values: Floats, *, estimate: float, draws: pl.DataFrame, level: float
) -> Interval:
    """The central interval of `values`, a quantity computed from the converged rows of `draws`.

    **Raises:** `FitError` for a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise FitError(f"level: got {level}, expected a number within (0, 1)")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    lost = draws.height - len(values)
    return Interval(
        estimate=estimate,
        low=float(low),
        high=float(high),
        level=level,
        method=f"percentile bootstrap, {len(values)} draws"
        + (f", {lost} left out" if lost else ""),
        unit=str(draws["unit"][0]),
    )
