"""Reading the tables of this paper's sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.papers.lyu2025.sweeps import NAME

Tables = Mapping[str, pl.DataFrame]


def table(tables: Tables, name: str, engine: str) -> pl.DataFrame:
    """The runs of one sweep."""
    return tables[f"{NAME}/{name}/{engine}"]


def has(tables: Tables, name: str, engine: str) -> bool:
    """Whether the sweep was run at this scale."""
    return f"{NAME}/{name}/{engine}" in tables


def column(row: Mapping[str, Any], name: str) -> Floats:
    """A recorded curve of one run, such as "time" or "loss"."""
    return np.array(row[f"curve_{name}"], float)


def measure(row: Mapping[str, Any], name: str) -> Floats:
    """A recorded array of one run."""
    found = next(m for m in row["measures"] if m["name"] == name)
    return np.array(found["values"]).reshape(found["shape"])


def limit_slope(x: Floats, loss: Floats, error: Floats) -> Interval:
    r"""The exponent $-d\ln\mathcal L/d\ln x$ in the limit of large x, from the last of three equal
    thirds of a curve (on the logarithm of x): give or take twice what it moved since the third
    before, which covers the rest if moves at least halve, and what the errors can change.
    """
    logs, values = np.log(x), np.log(loss)
    third = (logs[-1] - logs[0]) / 3
    ends = [int(np.argmin(np.abs(logs - (logs[-1] - k * third)))) for k in range(3)]
    last, before = (
        -float((values[j] - values[i]) / (logs[j] - logs[i]))
        for i, j in ((ends[1], ends[0]), (ends[2], ends[1]))
    )
    noise = float((error[ends[0]] / loss[ends[0]] + error[ends[1]] / loss[ends[1]]) / third)
    margin = 2 * abs(last - before) + noise
    return Interval(
        estimate=last,
        low=last - margin,
        high=last + margin,
        level=1.0,
        method="last third of the curve, give or take twice the change from the one before",
        unit="none",
    )


def law_curve(tables: Tables, case: str, law: str) -> tuple[Floats, Floats, Floats]:
    """What the loss is plotted against, the loss and its error, of one law of theory: "time",
    "size", "data", or "compute", where the least loss over sizes is taken.
    """
    runs = table(tables, f"{case}/{law}", "theory")
    if law == "time":
        row = runs.row(0, named=True)
        return column(row, "time"), column(row, "loss"), column(row, "loss_error")
    if law == "compute":
        return envelope(runs)
    x = runs["width"] if law == "size" else sequences(runs)
    order = np.argsort(x.to_numpy())
    return (
        x.to_numpy().astype(float)[order],
        runs["loss"].to_numpy()[order],
        runs["loss_error"].to_numpy()[order],
    )


def half_times(row: Mapping[str, Any], strength: Floats) -> Floats:
    """When each task of a run passes half its strength; NaN if it does not."""
    output, logs = measure(row, "output") / strength, np.log(column(row, "time"))
    return np.array(
        [np.exp(np.interp(0.5, f, logs)) if f[0] < 0.5 < f[-1] else np.nan for f in output.T]
    )


def sequences(runs: pl.DataFrame) -> pl.Series:
    """The number of training sequences of each run."""
    return runs["spec"].str.json_path_match("$.task.sequences").cast(pl.Float64)


def envelope(runs: pl.DataFrame) -> tuple[Floats, Floats, Floats]:
    """The least loss over sizes at evenly spaced log compute, from curves over time: losses between
    recorded times are interpolated in the logarithms, and the minimum over sizes by a parabola
    through the three best. Ends where the best size is close to the smallest or the largest.
    The error is what the parabola changes.
    """
    rows = list(runs.sort("width").iter_rows(named=True))
    curves = [(r["width"] * column(r, "time"), column(r, "loss")) for r in rows]
    sizes = np.log([r["width"] for r in rows])
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    budgets = np.geomspace(low, high, 200)
    logs = np.array([np.interp(np.log(budgets), np.log(x), np.log(y)) for x, y in curves])
    best = logs.argmin(axis=0)
    inside = (best > 3) & (best < len(curves) - 4)
    budgets, logs, best = budgets[inside], logs[:, inside], best[inside]
    least, parabola = np.empty(len(best)), np.empty(len(best))
    for i, k in enumerate(best.tolist()):
        x, y = sizes[k - 1 : k + 2] - sizes[k], logs[k - 1 : k + 2, i]
        a, b, c = np.polyfit(x, y, 2)
        least[i], parabola[i] = np.exp(y[1]), np.exp(c - b * b / (4 * a))
    return budgets, parabola, least - parabola
