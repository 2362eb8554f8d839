"""From a table of runs to the arrays that a fit works on, checked to determine the law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.errors import FitError
from leadline.laws.families import Separable
from leadline.laws.newton import Problem, problem
from leadline.runs import Runs

MIN_VALUES = 3
"""Distinct values that a variable needs: one difference cannot give a coefficient and an exponent.
"""
ON_ONE_LINE = 1e-6
"""Sine of the angle between two centered logarithms below which they count as one direction."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """The rows of a table in the form that the minimizer takes.

    **Arguments:** `family`; `rows` in a canonical order, `order` the index of each in the table;
    `centers` (variable) the mean logarithms, `level` the geometric mean of the loss: lanes are in
    units of both; `unit` (row) numbers the resampling unit of each row from 0.
    """

    family: Separable
    rows: Problem
    order: NDArray[np.int64]
    centers: Floats
    level: float
    unit: NDArray[np.int64]

    def to_lanes(self, parameters: Floats) -> Floats:
        """The lanes (lane, unknown) of parameter vectors for raw counts."""
        return self._scaled(parameters, 1 / self.level, -self.centers)

    def to_parameters(self, lanes: Floats) -> Floats:
        """The parameters for raw counts (lane, parameter); the inverse of `to_lanes`."""
        return self._scaled(lanes, self.level, self.centers)

    def _scaled(self, values: Floats, level: float, centers: Floats) -> Floats:
        count = len(centers)
        result = values.copy()
        result[:, : 1 + count] *= level
        result[:, 1 : 1 + count] *= np.exp(values[:, 1 + count :] * centers)
        return result

    def jacobian(self, lane: Floats) -> Floats:
        """Derivatives (parameter, unknown) of the raw parameters by one lane's unknowns."""
        count = len(self.centers)
        coefficient, exponent = lane[1 : 1 + count], lane[1 + count :]
        factor = self.level * np.exp(exponent * self.centers)
        result = np.eye(len(lane))
        result[0, 0] = self.level
        i = np.arange(1, 1 + count)
        result[i, i] = factor
        result[i, i + count] = coefficient * self.centers * factor
        return result


def design(family: Separable, runs: Runs) -> tuple[Runs, Design]:
    """The rows of `runs` that have the loss and every variable of `family`, and their arrays.

    Rows are sorted, so that sums do not depend on the order of the table.

    **Raises:** `TableError` for a missing column; `FitError` for too few rows, points or values, or
    two variables on one line.
    """
    table = _with_all(family, runs)
    columns = [_numbers(table.column(name)) for name in (*family.variables, "loss")]
    order = np.lexsort(columns[::-1])
    values = np.array([column[order] for column in columns])
    changes = np.diff(values, axis=1) != 0
    _check_counts(family, table, values, points=1 + int(changes[:-1].any(axis=0).sum()))
    logs = np.log(values)
    means = logs.mean(axis=1, keepdims=True)
    logs -= means
    _refuse_lines(family, logs[:-1])
    return table, Design(
        family=family,
        rows=problem(logs[:-1], logs[-1]),
        order=order,
        centers=means[:-1, 0],
        level=float(np.exp(means[-1, 0])),
        unit=_units(table, order, changes.any(axis=0)),
    )


def _numbers(column: pl.Series) -> Floats:
    return column.to_numpy().astype(np.float64)


def _with_all(family: Separable, runs: Runs) -> Runs:
    """The rows that have every quantity of the law; the others are listed as excluded."""
    table = runs
    for name in (*family.variables, "loss"):
        column = table.column(name)
        if not column.dtype.is_numeric():
            raise FitError(f"{runs.source}: column {name!r} holds {column.dtype}, expected numbers")
        values = _numbers(column)
        bad = ~((values > 0) & np.isfinite(values))
        if bad.any():
            reason = "missing or not a finite number > 0"
            if "row" not in table.frame.columns:
                raise FitError(
                    f"{runs.source}: {name} is {reason} in {bad.sum()} of {len(table)} rows"
                )
            table = table.exclude(pl.Series(bad), field=name, reason=reason)
    return table


def _check_counts(family: Separable, table: Runs, values: Floats, *, points: int) -> None:
    parameters = len(family.parameters)
    if len(table) <= parameters:
        raise FitError(
            f"{table.source}: {len(table)} usable rows; the law {family.name} has {parameters} "
            f"parameters and needs at least {parameters + 1}"
        )
    for name, column in zip(family.variables, values[:-1], strict=True):
        distinct = len(np.unique(column))
        if distinct < MIN_VALUES:
            raise FitError(
                f"{table.source}: {name} has {distinct} distinct values; a coefficient and an "
                f"exponent need at least {MIN_VALUES}"
            )
    if points < parameters:
        raise FitError(
            f"{table.source}: {points} distinct points in {', '.join(family.variables)}; the law "
            f"{family.name} has {parameters} parameters and needs at least as many"
        )


def _refuse_lines(family: Separable, logs: Floats) -> None:
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
