"""Bootstrap over runs, and the intervals that it gives."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.errors import FitError
from leadline.laws.design import Design, design
from leadline.laws.fit import Fit
from leadline.laws.newton import Minima, homotopy, minimize, persist, replace_lanes, take
from leadline.laws.starts import grid_starts, start_count

MIN_DRAWS = 20
"""Converged draws below which no interval is given."""


def bootstrap(
    fit: Fit, *, draws: int, unit: Literal["run", "row"] = "run", seed: int = 0
) -> pl.DataFrame:
    """Refits of `fit` to resampled tables, all solved together.

    Each draw takes as many units as the table has, with replacement. A draw starts at the fitted
    law and follows the objective down in delta; one that does not converge there is solved again
    from the grid of starts.

    **Arguments:** `draws` >= 1; `unit` "run" keeps the rows of one run together where the table has
    a column `run` (else each row is a run; identical rows count as one); "row" resamples rows.
    Units are numbered in the sorted order of the variables and the loss; draw i takes them as the
    i-th of NumPy's multinomial draws with `seed` says.

    **Returns** one row a draw: `draw`, `unit`, each parameter for raw counts, `objective`, and
    `status` ("ok", "at bound", "not converged").

    **Raises:** `FitError` for a number of draws below 1, an unknown unit, fewer than two units, or
    a fit that has not converged.
    """
    if draws < 1:
        raise FitError(f"draws: got {draws}, expected at least 1")
    if unit not in ("run", "row"):
        raise FitError(f"unit: got {unit!r}, expected 'run' or 'row'")
    if not fit.converged:
        raise FitError("bootstrap: this fit has not converged; its draws would mean nothing")
    family = fit.law.family
    _, data = design(family, fit.runs)
    weights = _weights(np.arange(fit.rows) if unit == "row" else data.unit, draws, seed)
    ends = _solve(data, fit, weights)
    held = (ends.unknowns <= data.rows.low) | (ends.unknowns >= data.rows.high)
    parameters = data.to_parameters(ends.unknowns)
    settled = np.where(held.any(axis=1), "at bound", "ok")
    return pl.DataFrame(
        {"draw": np.arange(draws), "unit": [unit] * draws}
        | {name: parameters[:, i] for i, name in enumerate(family.parameters)}
        | {
            "objective": ends.value,
            "status": np.where(ends.sound, settled, "not converged").tolist(),
        }
    )


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


def _solve(data: Design, fit: Fit, weights: Floats) -> Minima:
    """The minimum of every draw (lane)."""
    rows, delta = data.rows, fit.objective.delta
    start = data.to_lanes(fit.law.vector[None])
    # from the delta that holds half of the rows the valley leads to the draw's own optimum
    path = homotopy(delta, float(np.median(np.abs(fit.residuals))))
    ends = minimize(rows, np.repeat(start, len(weights), axis=0), weights, path)
    ends = persist(rows, ends, weights, delta, np.flatnonzero(~ends.sound))
    lost = np.flatnonzero(~ends.sound)
    if len(lost):
        starts, spread = grid_starts(rows, count=start_count(len(rows.logs)), seed=0)
        path = homotopy(delta, 3 * spread)
        for draw in lost:
            again = minimize(rows, starts, weights[[draw]], path)
            value = np.where(again.sound, again.value, np.inf)
            if value.min() <= ends.value[draw] * (1 + 1e-9):
                best = np.array([value.argmin()])
                ends = replace_lanes(ends, np.array([draw]), take(again, best))
    return ends


def intervals(fit: Fit, draws: pl.DataFrame, *, level: float = 0.95) -> dict[str, Interval]:
    """Percentile intervals of each parameter from the converged rows of `bootstrap`.

    **Arguments:** `level` within (0, 1). Draws that did not converge are left out, and counted in
    the interval's `method`.

    **Raises:** `FitError` if fewer than 20 draws converged.
    """
    kept = converged(draws)
    return {
        name: percentile_interval(
            kept[name].to_numpy(), estimate=fit.law.parameters[name], draws=draws, level=level
        )
        for name in fit.law.family.parameters
    }


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
