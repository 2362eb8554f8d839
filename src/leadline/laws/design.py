"""From a table of runs to the arrays that a fit works on, checked to determine the law."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.errors import FitError
from leadline.laws.families import Family, PowerSum, Separable
from leadline.laws.forms import Coupled, Custom
from leadline.laws.newton import Problem, problem
from leadline.laws.objectives import Residual
from leadline.runs import Runs

MIN_VALUES = 3
"""Distinct values that a variable needs: one difference cannot give a coefficient and an exponent.
"""
ON_ONE_LINE = 1e-6
"""Sine of the angle between two centered logarithms below which they count as one direction."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The rows that a fit uses.

    **Arguments:** `points` (variable, row) raw counts, `loss`, `weight` and `noise` (row) in a
    canonical order, `order` the index of each in the table; `unit` (row) numbers the resampling
    unit of each row from 0.
    """

    points: Floats
    loss: Floats
    weight: Floats
    noise: Floats
    order: NDArray[np.int64]
    unit: NDArray[np.int64]


def sample(
    family: Family,
    runs: Runs,
    *,
    residual: Residual = "log",
    weights: str | None = None,
    noise: str | None = None,
    set_by_hand: Collection[str] = (),
    free: int | None = None,
) -> tuple[Runs, Sample]:
    """The rows of `runs` that have the loss and every variable of `family`, and their arrays.

    Rows are sorted, so that sums do not depend on the order of the table.

    **Arguments:** `weights` and `noise` name columns; `set_by_hand` parameters that are fixed or
    shared; `free` counts the parameters to fit, all by default.

    **Raises:** `TableError` for a missing column; `FitError` for too few rows, points or values, or
    two variables on one line.
    """
    free = len(family.parameters) if free is None else free
    extra = [name for name in (weights, noise) if name is not None]
    any_sign = () if family.positive else family.variables
    any_sign = (*any_sign, *(("loss",) if residual == "raw" else ()))
    names = (*family.variables, "loss", *extra)
    table = _with_all(runs, names, any_sign=any_sign)
    columns = [_numbers(table.column(name)) for name in names]
    order = np.lexsort(columns[::-1])
    values = np.array([column[order] for column in columns])
    count = len(family.variables)
    changes = np.diff(values, axis=1) != 0
    points = 1 + int(changes[:count].any(axis=0).sum())
    _check_counts(family, table, values[:count], points=points, free=free, loose=bool(set_by_hand))
    if not set_by_hand and isinstance(family, (PowerSum, Coupled)):
        logs = np.log(values[:count])
        _refuse_lines(family, logs - logs.mean(axis=1, keepdims=True))
    ones = np.ones(len(table))
    return table, Sample(
        points=values[:count],
        loss=values[count],
        weight=values[count + 1] if weights is not None else ones,
        noise=values[-1] if noise is not None else ones,
        order=order,
        unit=_units(table, order, changes.any(axis=0)),
    )


@dataclass(frozen=True, kw_only=True)
class Design:
    """The rows of a table in the form that the batched minimizer of separable laws takes.

    **Arguments:** `family`; `rows` the problem; `sample` the rows in raw counts; `centers`
    (variable) the mean logarithms, `level` the geometric mean of the loss: lanes are in units of
    both.
    """

    family: Separable
    rows: Problem
    sample: Sample
    centers: Floats
    level: float

    @property
    def order(self) -> NDArray[np.int64]:
        """The index in the table of each row."""
        return self.sample.order

    @property
    def unit(self) -> NDArray[np.int64]:
        """The resampling unit of each row."""
        return self.sample.unit

    def to_lanes(self, parameters: Floats) -> Floats:
        """The lanes (lane, unknown) of parameter vectors for raw counts."""
        return self.family.scaled(parameters, self.centers, self.level)

    def to_parameters(self, lanes: Floats) -> Floats:
        """The parameters for raw counts (lane, parameter); the inverse of `to_lanes`."""
        return self.family.raw(lanes, self.centers, self.level)[0]


def design(family: Separable, runs: Runs, *, weights: str | None = None) -> tuple[Runs, Design]:
    """The rows of `runs` for a separable law, in the form that the batched minimizer takes.

    **Raises:** as `sample`.
    """
    table, rows = sample(family, runs, weights=weights)
    return table, separable_design(family, rows)


def separable_design(family: Separable, rows: Sample) -> Design:
    """These rows in the form that the batched minimizer takes."""
    values = np.log(np.concatenate([rows.points, rows.loss[None]]))
    means = values.mean(axis=1, keepdims=True)
    values -= means
    return Design(
        family=family,
        rows=problem(values[:-1], values[-1]),
        sample=rows,
        centers=means[:-1, 0],
        level=float(np.exp(means[-1, 0])),
    )


def _numbers(column: pl.Series) -> Floats:
    return column.to_numpy().astype(np.float64)


def _with_all(runs: Runs, names: Collection[str], *, any_sign: Collection[str]) -> Runs:
    """The rows that have every one of these quantities; the others are listed as excluded."""
    table = runs
    for name in names:
        column = table.column(name)
        if not column.dtype.is_numeric():
            raise FitError(f"{runs.source}: column {name!r} holds {column.dtype}, expected numbers")
        values = _numbers(column)
        bad = ~np.isfinite(values) if name in any_sign else ~((values > 0) & np.isfinite(values))
        if bad.any():
            reason = f"missing or not a finite number{'' if name in any_sign else ' > 0'}"
            if "row" not in table.frame.columns:
                raise FitError(
                    f"{runs.source}: {name} is {reason} in {bad.sum()} of {len(table)} rows"
                )
            table = table.exclude(pl.Series(bad), field=name, reason=reason)
    return table


def _check_counts(
    family: Family, table: Runs, values: Floats, *, points: int, free: int, loose: bool
) -> None:
    if len(table) <= free:
        raise FitError(
            f"{table.source}: {len(table)} usable rows; the law {family.name} has {free} "
            f"parameters and needs at least {free + 1}"
        )
    needed = 2 if loose else MIN_VALUES
    for name, column in zip(family.variables, values, strict=True):
        found = len(np.unique(column))
        if found < needed and not isinstance(family, Custom):
            raise FitError(
                f"{table.source}: {name} has {found} distinct values; a coefficient and an "
                f"exponent need at least {needed}"
            )
    if points < free:
        raise FitError(
            f"{table.source}: {points} distinct points in {', '.join(family.variables)}; the law "
            f"{family.name} has {free} parameters and needs at least as many"
        )


def _refuse_lines(family: Family, logs: Floats) -> None:
    """Refuse two variables that determine each other: their terms cannot be told apart."""
    unit = logs / np.linalg.norm(logs, axis=1, keepdims=True)
    for i, one in enumerate(family.variables):
        for j in range(i):
            if np.linalg.norm(unit[i] - (unit[i] @ unit[j]) * unit[j]) < ON_ONE_LINE:
                raise FitError(
                    f"{family.variables[j]} and {one} lie on one line in their logarithms: these "
                    "runs cannot tell their exponents apart; fit one of the two, or add runs off "
                    "the line"
                )


def _units(table: Runs, order: NDArray[np.int64], changes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The resampling unit of each sorted row: the run where the table names runs, else the row;
    identical rows are one unit, so that a table pasted twice has the same intervals.
    """
    if "run" not in table.frame.columns:
        return np.concatenate([[0], np.cumsum(changes)])
    names = table.frame["run"].to_list()
    numbers: dict[object, int] = {}
    # a row without a name is a run of its own
    keys = [names[i] if names[i] is not None else (int(i),) for i in order]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
