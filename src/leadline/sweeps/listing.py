"""Stored runs for people: conditions, a short table, and files."""

from __future__ import annotations

import dataclasses
import io
import operator
import re
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from leadline.errors import TableError
from leadline.runs import Runs
from leadline.sweeps.store import publish

OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FORMATS = (".csv", ".jsonl", ".parquet")


def select(runs: Runs, conditions: Iterable[str]) -> Runs:
    """The runs that meet all `conditions`, such as "depth=4", "loss<0.1" or "status!=ok".

    **Raises:** `TableError` for an unknown column, with the nearest, or a value that cannot be
    compared with it.
    """
    frame = runs.frame
    for condition in conditions:
        match = re.fullmatch(r"\s*(\w+)\s*(=|!=|<=?|>=?)\s*(.*?)\s*", condition)
        if match is None:
            raise TableError(
                f"where: got {condition!r}, expected COLUMN=VALUE, or !=, <, <=, >, >="
            )
        name, sign, text = match.groups()
        column = runs.column(name)
        if column.dtype.is_numeric():
            try:
                value: float | str = float(text)
            except ValueError:
                raise TableError(f"where: {name} is a number, got {text!r}") from None
        elif column.dtype == pl.String:
            value = text
        else:
            raise TableError(f"where: {name} is a list; conditions are on single values")
        frame = frame.filter(OPERATORS[sign](pl.col(name), value))
    return dataclasses.replace(runs, frame=frame)


def overview(runs: Runs) -> pl.DataFrame:
    """A short table: the start of each id, the status, the loss, and every single value in which
    the runs differ.
    """
    frame = runs.frame
    shown = ("run_id", "engine", "status", "loss", "loss_error")
    varied = [
        name
        for name, kind in frame.schema.items()
        if name not in (*shown, "spec") and not kind.is_nested() and frame[name].n_unique() > 1
    ]
    order = ["run_id", "engine", "status", *varied, "loss", "loss_error"]
    return frame.select(order).with_columns(pl.col("run_id").str.head(8))


def export(runs: Runs, path: Path) -> tuple[str, ...]:
    """Write the runs as csv, jsonl or parquet, by the suffix of `path`; the file is complete or
    absent.

    **Returns** what the format could not hold, in words: csv has no lists and thus no curves,
    jsonl has neither infinity nor NaN.

    **Raises:** `TableError` for another suffix, `StoreError` if the file cannot be written.
    """
    frame, buffer, notes = runs.frame, io.BytesIO(), ()
    match path.suffix:
        case ".csv":
            lists = [name for name, kind in frame.schema.items() if kind.is_nested()]
            frame.drop(lists).write_csv(buffer)
            notes = (f"csv has no lists: without {', '.join(lists)}",) if lists else ()
        case ".jsonl":
            frame.write_ndjson(buffer)
            bad = [name for name in frame.columns if not _finite(frame[name])]
            notes = (f"jsonl has no infinity or NaN: null in {', '.join(bad)}",) if bad else ()
        case ".parquet":
            frame.write_parquet(buffer)
        case other:
            raise TableError(f"export: got the suffix {other!r}, expected one of {FORMATS}")
    publish(path, buffer.getvalue())
    return notes


def _finite(column: pl.Series) -> bool:
    if column.dtype == pl.List(pl.Float64):
        column = column.explode()
    return column.dtype != pl.Float64 or bool(column.is_finite().all())
