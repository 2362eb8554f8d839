"""Which law: prediction of larger runs than those fitted, of groups left out, and likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from leadline.errors import FitError
from leadline.laws.families import Family, Separable
from leadline.laws.fit import Fit, fit
from leadline.laws.forecast import forecast
from leadline.laws.forms import RotatedCovariance, Turning
from leadline.laws.objectives import LeastSquares, Objective
from leadline.runs import Runs

LEAST_SQUARES = LeastSquares()
"""Log least squares: the likelihood of log-normal noise with fitted scale."""
MIN_UNITS = 8
"""Runs below which flipping their signs gives too few tables for a test."""
SCHEMA = {
    "family": pl.String,
    "measure": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "level": pl.Float64,
    "method": pl.String,
    "unit": pl.String,
}


def compare(
    families: Sequence[Family],
    runs: Runs,
    *,
    holdout: float,
    by: str | None = None,
    groups: str | None = None,
    objective: Objective | None = None,
    level: float = 0.95,
    draws: int = 99,
    seed: int = 0,
) -> pl.DataFrame:
    r"""How well each of `families` predicts runs that it was not fitted to, and its likelihood.

    All are fitted to the rows that have every variable of all of them.

    - *held-out error*, *bias*, *coverage*: the law fitted to the smaller runs predicts the largest.
      Root mean square and mean of log observed - log predicted, and the share of observations
      inside the intervals that `forecast` gives for one more run at `level`, with its own exact
      binomial interval. Coverage far below the level says that the law does not
      hold out there, whatever its interval.
    - *left-out error*: each value of the column `groups` is predicted from the others.
    - *AIC*: $n\log\hat\sigma^2 + 2p$, corrected for small samples, above the least among
      `families`, under log least squares with fitted scale. Not given (null) where rows share
      runs: they are not independent.
    - *likelihood ratio*: $n\log(\hat\sigma_0^2/\hat\sigma_1^2)$ of a family over one nested in it,
      and as `p` the share of tables of the smaller law (residuals with random signs, one sign a
      run) whose ratio is as large: the usual chi-squared fails where a term vanishes, because its
      exponent then means nothing.

    **Arguments:** `holdout` a share below 1 or a number of rows, the largest by the column `by`
    (flops; params times tokens without it), ties included; `groups` a column; `objective` of the
    predictions (default `Huber()`); `draws` tables and their `seed` for each likelihood ratio.

    **Returns** one row a family and measure: `family`, `measure`, `value`, `low`, `high`,
    `level`, `method`, `unit`.

    **Raises:** `FitError` where a family cannot be fitted to the smaller rows, or for a hold-out
    that leaves none.
    """
    if not 0 < level < 1:
        raise FitError(f"level: got {level}, expected a number within (0, 1)")
    if not families:
        raise FitError("families: got none, expected one or more")
    table = _common(families, runs)
    labels = _labels(families)
    small, large, how = _split(table, holdout, by)
    rows: list[dict[str, Any]] = []
    for label, family in zip(labels, families, strict=True):
        fitted = fit(family, small, objective=objective)
        rows += [{"family": label} | row for row in _held_out(fitted, large, how, level)]
        if groups is not None:
            error, unit = _left_out(family, table, groups, objective)
            rows.append(
                _row("left-out error", error, method=f"leave one {groups} out, rms", unit=unit)
                | {"family": label}
            )
    whole = [fit(family, table, objective=LEAST_SQUARES) for family in families]
    rows += _information(labels, whole)
    rows += _ratios(labels, whole, draws=draws, seed=seed)
    return pl.DataFrame(rows, schema=SCHEMA)


def likelihood_ratio(
    small: Fit, large: Fit, *, draws: int = 99, seed: int = 0
) -> tuple[float, float]:
    """The ratio of a law over one nested in it, both fitted by `LEAST_SQUARES` to the same runs,
    and its p-value by wild bootstrap under the smaller: residuals of the smaller keep their run and
    get one random sign a run.

    **Raises:** `FitError` if the fits have other rows or objectives, or there are fewer than 8
    runs.
    """
    if small.objective != LEAST_SQUARES or large.objective != LEAST_SQUARES:
        raise FitError("likelihood_ratio: both fits need the objective LEAST_SQUARES")
    if small.rows != large.rows or not small.runs.column("loss").equals(large.runs.column("loss")):
        raise FitError("likelihood_ratio: the two fits have different rows")
    unit, name = _units(small.runs)
    count = int(unit.max()) + 1
    if count < MIN_UNITS:
        raise FitError(f"likelihood_ratio: {count} {name}s; the test needs at least {MIN_UNITS}")
    statistic = _ratio(small, large)
    rng = np.random.default_rng(seed)
    prediction = small.law.loss(small.runs.frame)
    scale = math.sqrt(small.rows / max(small.degrees_of_freedom, 1))
    reached = 0
    for _ in range(draws):
        sign = rng.choice([-1.0, 1.0], count)[unit]
        loss = prediction * np.exp(scale * sign * small.residuals)
        drawn = replace(small.runs, frame=small.runs.frame.with_columns(loss=pl.Series(loss)))
        # the smaller optimum is a point of the larger family: starting there keeps the order
        one = fit(small.law.family, drawn, objective=LEAST_SQUARES)
        two = fit(large.law.family, drawn, objective=LEAST_SQUARES)
        reached += _ratio(one, two) >= statistic
    return statistic, (1 + reached) / (1 + draws)


def nested(small: Family, large: Family) -> bool:
    """Whether every law of `small` is known to be one of `large`: fewer terms of the same sum, no
    floor, exponents tied by theory, or a depth term that does not turn.
    """
    if small == large or not set(small.variables) <= set(large.variables):
        return False
    if isinstance(small, Separable) and isinstance(large, (Separable, Turning)):
        return large.floor or not small.floor
    return isinstance(small, RotatedCovariance) and isinstance(large, (Separable, Turning))


def _ratio(small: Fit, large: Fit) -> float:
    if large.value <= 0:
        return math.inf if small.value > 0 else 0.0
    return max(0.0, small.rows * math.log(small.value / large.value))


def _row(
    measure: str,
    value: float | None,
    *,
    method: str,
    unit: str,
    low: float | None = None,
    high: float | None = None,
    level: float | None = None,
) -> dict[str, Any]:
    return {
        "measure": measure,
        "value": value,
        "low": low,
        "high": high,
        "level": level,
        "method": method,
        "unit": unit,
    }


def _labels(families: Sequence[Family]) -> list[str]:
    """The name of each family, with its variables where two share a name."""
    names = [family.name for family in families]
    labels = [
        name if names.count(name) == 1 else f"{name} ({', '.join(family.variables)})"
        for name, family in zip(names, families, strict=True)
    ]
    if len(set(labels)) < len(labels):
        raise FitError(f"families: {labels[0]!r} occurs twice")
    return labels


def _common(families: Sequence[Family], runs: Runs) -> Runs:
    """The rows that have every variable of every family."""
    names = dict.fromkeys(("loss", *(name for family in families for name in family.variables)))
    whole = pl.all_horizontal(
        pl.col(name).cast(pl.Float64).is_finite().fill_null(value=False) & (pl.col(name) > 0)
        for name in names
        if runs.column(name).dtype.is_numeric()
    )
    kept = runs.frame.filter(whole)
    if not kept.height:
        raise FitError(f"{runs.source}: no row has all of {', '.join(names)}")
    return replace(runs, frame=kept)


def _split(table: Runs, holdout: float, by: str | None) -> tuple[Runs, Runs, str]:
    """The smaller rows, the larger, and how they were told apart."""
    columns = table.frame.columns
    if by is None and "flops" not in columns and {"params", "tokens"} <= set(columns):
        size, name = table.frame["params"] * table.frame["tokens"], "params x tokens"
    else:
        name = by or "flops"
        size = table.column(name)
    count = holdout * len(table) if holdout < 1 else float(holdout)
    if not 1 <= count < len(table):
        raise FitError(
            f"holdout: got {holdout}, expected a share within (0, 1) or a number of the "
            f"{len(table)} rows"
        )
    largest = size >= size.sort(descending=True)[round(count) - 1]
    if largest.all():
        raise FitError(f"holdout: all rows have the same {name}; nothing is smaller")
    small = replace(table, frame=table.frame.filter(~largest))
    large = replace(table, frame=table.frame.filter(largest))
    return small, large, f"the {len(large)} largest by {name} from the {len(small)} others"


def _units(runs: Runs) -> tuple[NDArray[np.int64], str]:
    """The number of each row's run, counted from 0, and what the unit is called."""
    if "run" not in runs.frame.columns:
        return np.arange(len(runs)), "row"
    rank = runs.frame["run"].cast(pl.String).fill_null("").rank("dense")
    return rank.to_numpy().astype(np.int64) - 1, "run"


def _held_out(fitted: Fit, large: Runs, how: str, level: float) -> Iterator[dict[str, Any]]:
    """Error, bias and coverage on the rows of `large`."""
    from scipy import stats

    unit, name = _units(large)
    units = int(unit.max()) + 1
    loss = large.column("loss").to_numpy()
    error = np.log(loss) - np.log(fitted.law.loss(large.frame))
    yield _row("held-out error", float(np.sqrt(np.mean(error**2))), method=how, unit=name)
    yield _row("held-out bias", float(error.mean()), method=how, unit=name)
    if not fitted.converged:
        yield _row("held-out coverage", None, method="the fit has not converged", unit=name)
        return
    band = forecast(fitted, large.frame, level=level)
    inside = (band["run_low"].to_numpy() <= loss) & (loss <= band["run_high"].to_numpy())
    share = float(inside.mean())
    # rows of a run fall inside or outside together
    hits = share * units
    tail = (1 - level) / 2
    yield _row(
        "held-out coverage",
        share,
        low=float(stats.beta.ppf(tail, hits, units - hits + 1)) if hits > 0 else 0.0,
        high=float(stats.beta.ppf(1 - tail, hits + 1, units - hits)) if hits < units else 1.0,
        level=level,
        method=f"{band['method'][0]}; {how}",
        unit=name,
    )


def _left_out(
    family: Family, table: Runs, groups: str, objective: Objective | None
) -> tuple[float, str]:
    """Root mean square log error over groups, each predicted from the others."""
    column = table.column(groups)
    values = column.unique(maintain_order=True)
    if len(values) < 3:
        raise FitError(f"groups: {groups} has {len(values)} values, expected at least 3")
    squares = 0.0
    for value in values:
        inside = column.eq_missing(value)
        rest = replace(table, frame=table.frame.filter(~inside))
        out = table.frame.filter(inside)
        law = fit(family, rest, objective=objective).law
        squares += float(np.sum((np.log(out["loss"].to_numpy()) - np.log(law.loss(out))) ** 2))
    return math.sqrt(squares / len(table)), groups


def _information(labels: Sequence[str], fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """AIC above the least, corrected for small samples."""
    _, unit = _units(fits[0].runs)
    shared = unit == "run" and fits[0].runs.frame["run"].n_unique() < fits[0].rows
    method = "log least squares, fitted scale, AICc above the least"
    if shared:
        method = "not given: rows of one run are not independent; use the held-out errors"
    values: list[float] = []
    for fitted in fits:
        count = 1 + fitted.rows - fitted.degrees_of_freedom
        spare = fitted.rows - count - 1
        small = 2 * count * (count + 1) / spare if spare > 0 else math.inf
        scale = max(fitted.value, 1e-300) / fitted.rows
        values.append(fitted.rows * math.log(2 * scale) + 2 * count + small)
    return [
        {"family": label}
        | _row("AIC", None if shared else value - min(values), method=method, unit="row")
        for label, value in zip(labels, values, strict=True)
    ]


def _ratios(
    labels: Sequence[str], fits: Sequence[Fit], *, draws: int, seed: int
) -> Iterator[dict[str, Any]]:
    """The likelihood ratio of each family over each that is nested in it."""
    _, unit = _units(fits[0].runs)
    for label, large in zip(labels, fits, strict=True):
        for name, small in zip(labels, fits, strict=True):
            if nested(small.law.family, large.law.family):
                statistic, p = likelihood_ratio(small, large, draws=draws, seed=seed)
                method = f"wild bootstrap under {name}, {draws} draws"
                over = f"likelihood ratio over {name}"
                yield {"family": label} | _row(over, statistic, method=method, unit=unit)
                yield {"family": label} | _row(f"p of {over}", p, method=method, unit=unit)
