"""Reading the tables of this paper's sweeps, and what is measured on curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.ident import from_json
from leadline.spec import RunSpec, Sweep

NAME = "bordelon2025"
SOURCE = "arXiv:2510.01098"
Tables = Mapping[str, pl.DataFrame]
"""The stored runs of each sweep, by the name of the sweep."""


def times(low: int, high: int, *, per_decade: int) -> tuple[float, ...]:
    """Times from 10^`low` to 10^`high`, evenly spaced in the logarithm."""
    count = (high - low) * per_decade
    return tuple(10 ** (low + i / per_decade) for i in range(count + 1))


def sweeps_of(named: Mapping[str, Sequence[RunSpec]]) -> tuple[Sweep, ...]:
    """One sweep for each name, which ends in that of its engine."""
    return tuple(
        Sweep(
            name=f"{NAME}/{name}",
            engine="theory" if name.endswith("/theory") else "simulation",
            runs=tuple(runs),
        )
        for name, runs in named.items()
    )


def table(tables: Tables, name: str, engine: str) -> pl.DataFrame:
    """The runs of one sweep."""
    return tables[f"{NAME}/{name}/{engine}"]


def has(tables: Tables, name: str, engine: str) -> bool:
    """Whether the sweep was run at this scale."""
    return f"{NAME}/{name}/{engine}" in tables


def spec_column(runs: pl.DataFrame, name: str, read: Callable[[RunSpec], float]) -> pl.DataFrame:
    """`runs` with the column `name` of what `read` finds in each run's spec."""
    values = [read(from_json(text)) for text in runs["spec"].to_list()]
    return runs.with_columns(pl.Series(name, values, dtype=pl.Float64))


def points(runs: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """One row for each recorded point of each run: `keys`, time, loss and its error."""
    curves = ("time", "loss", "loss_error")
    long = runs.select("engine", *keys, *(pl.col(f"curve_{c}").alias(c) for c in curves))
    return long.explode(*curves).sort(*keys, "time")


def measure(runs: pl.DataFrame, name: str, **values: float) -> Floats:
    """The array `name` recorded by the one run that has `values` in its columns."""
    row: dict[str, Any] = runs.filter(*(pl.col(k) == v for k, v in values.items())).row(
        0, named=True
    )
    found = next(m for m in row["measures"] if m["name"] == name)
    return np.array(found["values"]).reshape(found["shape"])


def curve(runs: pl.DataFrame, **values: float) -> tuple[Floats, Floats, Floats]:
    """Times, losses and their errors of the one run that has `values` in its columns."""
    long = points(runs.filter(*(pl.col(k) == v for k, v in values.items())))
    return long["time"].to_numpy(), long["loss"].to_numpy(), long["loss_error"].to_numpy()


def local_slope(points: tuple[Floats, Floats, Floats], window: tuple[float, float]) -> Interval:
    r"""$-\Delta\ln\mathcal L/\Delta\ln x$ between the ends of `window`, which are among the x of
    `points`, (x, loss, error); the interval is what the errors of the two losses can change.
    """
    x, loss, error = points
    i, j = (int(np.argmin(np.abs(np.log(x / end)))) for end in window)
    length = math.log(x[j] / x[i])
    slope = -math.log(loss[j] / loss[i]) / length
    margin = float(error[i] / loss[i] + error[j] / loss[j]) / length
    return Interval(
        estimate=slope,
        low=slope - margin,
        high=slope + margin,
        level=1.0,
        method=f"slope from {window[0]:g} to {window[1]:g}, numerical error bound",
        unit="none",
    )


def limit(last: Interval, before: Interval) -> Interval:
    """The limit of a converging sequence from its last two members: the last one, give or take
    twice what it moved. That covers the rest if each move is at most two thirds of the one before.
    """
    margin = 2 * abs(last.estimate - before.estimate) + last.width / 2
    return Interval(
        estimate=last.estimate,
        low=last.estimate - margin,
        high=last.estimate + margin,
        level=1.0,
        method="last window, give or take twice the change from the one before",
        unit="none",
    )


def difference(first: Interval, second: Interval) -> Interval:
    """`first` minus `second`, with the sum of their margins."""
    estimate = first.estimate - second.estimate
    margin = (first.width + second.width) / 2
    return Interval(
        estimate=estimate,
        low=estimate - margin,
        high=estimate + margin,
        level=min(first.level, second.level),
        method=first.method,
        unit=first.unit,
    )
