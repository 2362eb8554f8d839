"""What can be said of a table or a fit, and the columns that checks read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from leadline.curve import Floats
from leadline.runs import Runs

Severity = Literal["error", "warning", "note"]
SIZES = ("params", "tokens", "flops", "width", "depth", "context", "batch_size", "time")
"""Columns that say how large a run is."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about a table or a fit: `code` names it (docs/diagnosis.md lists all),
    `message` says in one line what was seen and what to do, `rows` are the rows of the source that
    it concerns, counted from 1 (empty: all of them). An "error" makes a fit meaningless, a
    "warning" may bias it or its intervals, a "note" is good to know.
    """

    code: str
    severity: Severity
    message: str
    rows: tuple[int, ...] = ()


def numbers(runs: Runs, name: str) -> Floats:
    """A column as floats; not a number where it is missing."""
    return runs.frame[name].cast(pl.Float64).fill_null(math.nan).to_numpy()


def present(runs: Runs, names: Iterable[str]) -> list[str]:
    """Those of `names` that are columns of positive finite numbers, not all of them one value."""
    found: list[str] = []
    for name in names:
        if name in runs.frame.columns and runs.frame[name].dtype.is_numeric():
            values = numbers(runs, name)
            if np.all(np.isfinite(values) & (values > 0)) and np.ptp(values) > 0:
                found.append(name)
    return found


def row_numbers(runs: Runs, mask: Any) -> tuple[int, ...]:
    """The numbers in the source of the rows where `mask` is true."""
    index = np.flatnonzero(np.asarray(mask))
    if "row" in runs.frame.columns:
        return tuple(int(runs.frame["row"][int(i)]) for i in index)
    return tuple(int(i) + 1 for i in index)


def listed(rows: Sequence[int], most: int = 6) -> str:
    """Row numbers as a message shows them."""
    shown = ", ".join(str(row) for row in rows[:most])
    return f"rows {shown}" + (f" and {len(rows) - most} more" if len(rows) > most else "")
