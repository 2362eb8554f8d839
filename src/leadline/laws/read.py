"""Read a table of runs from csv, jsonl or parquet into canonical columns; nothing is repaired."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import polars as pl

from leadline.errors import TableError, nearest
from leadline.runs import EXCLUDED_SCHEMA, UNITS, Runs

ALIASES: dict[str, tuple[str, ...]] = {
    "params": (
        "params",
        "n",
        "model_size",
        "model size",
        "parameter_count",
        "num_params",
        "params_active_precise",
        "n_no_emb",
    ),
    "tokens": ("tokens", "d", "num_tokens", "n_tokens", "train_tokens"),
    "flops": ("flops", "c", "flop", "budget", "training flop"),
    "width": ("width", "d_model", "hidden_dim", "h", "n_embd"),
    "depth": ("depth", "n_layers", "n_layer", "numl", "layers"),
    "context": ("context", "seq_len", "ctx", "n_points", "p"),
    "loss": ("loss", "final_loss", "smooth loss", "val/loss", "train/loss", "eval/*/bpb"),
    "run": ("run", "run_name", "run_id", "experiment"),
    "step": ("step",),
    "rate": ("rate", "lr", "peak_lr"),
    "batch_size": ("batch_size", "bs"),
    "seed": ("seed",),
    "seconds_per_step": ("seconds_per_step",),
}
"""Names under which each canonical column is found, in any case and with spaces or hyphens for
underscores; `*` stands for anything."""
FURTHER: dict[str, tuple[str, ...]] = {
    "params": ("parameters", "n_params", "n_parameters", "num_parameters"),
    "flops": ("compute", "train_flops", "training_flops", "total_flops"),
    "loss": ("val_loss", "validation_loss", "eval_loss", "test_loss"),
}
"""Names that are tried where a table has none of `ALIASES`."""

POSITIVE = ("loss", "params", "tokens", "flops", "width", "depth", "context")
"""Columns whose values must be finite and > 0; a row with another value is excluded."""

FIRST_ROWS = 5
"""How many offending rows a message names."""


def read_runs(
    path: str | Path, *, columns: Mapping[str, str] | None = None, strict: bool = False
) -> Runs:
    """The runs of a csv, jsonl or parquet file, told apart by their content.

    Columns get their canonical names: those of `ALIASES`, in any case, unless `columns` says
    otherwise. Further columns stay as they are. `row` counts the data rows of the file from 1.
    Where the file has params and flops but no tokens, tokens = flops / (6 params), which
    `units` says. A loss or size that is not a finite number > 0, or is a number stored as text,
    excludes its row, and so does a missing loss or a row that breaks off; a missing size does not
    (a law that needs it leaves the row out).

    **Arguments:** `columns` maps canonical names to those of the file and wins over the aliases; a
    column of the file whose name it displaces is kept as "<name> (unmapped)". `strict` refuses a
    file with rows to exclude.

    **Raises:** `TableError`, on one line: no such file, a folder, an empty or binary file, a column
    that is missing or that two columns could be, no usable row, or, if `strict`, the bad rows.
    """
    source = str(path)
    table, is_text, faults = _load(Path(path))
    names = _canonical(source, list(table), dict(columns or {}))
    series: list[pl.Series] = []
    for theirs, values in table.items():
        ours = names.get(theirs, theirs)
        if theirs not in names and (ours == "row" or ours in names.values()):
            ours = f"{theirs} (unmapped)"
        if ours in POSITIVE:
            numbers, fault = _positive(ours, values, is_text=is_text)
            series.append(numbers)
            faults += fault
        else:
            series.append(_further(ours, values, is_text=is_text))
    frame = pl.DataFrame(series)
    frame = frame.select(pl.int_range(1, frame.height + 1).alias("row"), pl.all())
    excluded = pl.DataFrame(faults, schema=EXCLUDED_SCHEMA, orient="row")
    excluded = excluded.unique("row", keep="first", maintain_order=True).sort("row")
    if excluded.height and (strict or excluded.height == frame.height):
        lead = "" if strict else "no usable rows; "
        raise TableError(f"{source}: {lead}{_listed(excluded)}")
    frame = frame.join(excluded, on="row", how="anti", maintain_order="left")
    units = {name: UNITS[name] for name in frame.columns if name in UNITS}
    if any(ours == "loss" and theirs.lower().endswith("bpb") for theirs, ours in names.items()):
        units["loss"] = "bits per byte"
    if {"params", "flops"} <= set(frame.columns) and "tokens" not in frame.columns:
        frame = frame.with_columns(tokens=pl.col("flops") / (6 * pl.col("params")))
        units["tokens"] = "tokens, from flops/(6 params)"
    return Runs(frame=frame, units=units, excluded=excluded, source=source)


def drop_largest_losses(runs: Runs, count: int) -> Runs:
    """These runs without those whose loss reaches the `count`-th largest. Runs that tie with it go
    too, which their reason in `excluded` says.

    **Raises:** `TableError` unless 0 <= `count` < the number of runs.
    """
    if not 0 <= count < len(runs):
        raise TableError(
            f"{runs.source}: cannot drop the {count} largest losses of {len(runs)} runs"
        )
    if count == 0:
        return runs
    loss = runs.column("loss")
    threshold = float(loss.sort(descending=True)[count - 1])
    gone = loss >= threshold
    reason = f"at or above the {count}-th largest loss, {threshold:.10g}"
    if gone.sum() > count:
        reason += f"; with ties {gone.sum()} runs"
    return runs.exclude(gone, field="loss", reason=reason)


Columns = dict[str, Sequence[Any] | pl.Series]
Fault = tuple[int, str, str, str]
"""Row, field, value and reason of one excluded row."""


def _load(path: Path) -> tuple[Columns, bool, list[Fault]]:
    """The columns of a file, whether every value is text because the format has only text, and the
    rows that break off.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise TableError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise TableError(f"{path}: a folder; expected a csv, jsonl or parquet file") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from None
    if content[:4] == b"PAR1":
        return _load_parquet(path, content), False, []
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise TableError(f"{path}: binary; expected a csv, jsonl or parquet file")
    if not text.strip():
        raise TableError(f"{path}: empty")
    if text.lstrip().startswith("{"):
        table, faults = _load_jsonl(path, text)
        return table, False, faults
    if text.lstrip().startswith("["):
        raise TableError(f"{path}: a JSON array; expected one JSON object a line")
    table, faults = _load_csv(path, text)
    return table, True, faults


def _load_parquet(path: Path, content: bytes) -> Columns:
    try:
        frame = pl.read_parquet(io.BytesIO(content))
    except pl.exceptions.PolarsError as error:
        raise TableError(f"{path}: damaged parquet file ({_one_line(error)})") from None
    if frame.height == 0:
        raise TableError(f"{path}: no data rows")
    return dict(zip(frame.columns, frame.get_columns(), strict=True))


def _load_jsonl(path: Path, text: str) -> tuple[Columns, list[Fault]]:
    rows: list[dict[str, Any]] = []
    faults: list[Fault] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            faults.append((len(rows) + 1, "row", _short(line), "not a JSON object"))
            row = {}
        rows.append(cast(dict[str, Any], row))
    names = dict.fromkeys(name for row in rows for name in row)
    if not names:
        raise TableError(f"{path}: no line is a JSON object with columns")
    return {name: [row.get(name) for row in rows] for name in names}, faults


def _load_csv(path: Path, text: str) -> tuple[Columns, list[Fault]]:
    text = text.lstrip()
    first = text.split("\n", 1)[0]
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
    try:
        header, *rows = (row for row in reader if row)
    except csv.Error as error:
        raise TableError(f"{path}: damaged csv near line {reader.line_num} ({error})") from None
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise TableError(f"{path}: the header names the column {twice[0]!r} twice")
    if not rows:
        raise TableError(f"{path}: no data rows")
    faults: list[Fault] = []
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            count = f"{len(row)} values for {len(header)} columns"
            faults.append((number, "row", _short(separator.join(row)), count))
    full = (row[: len(header)] + [""] * (len(header) - len(row)) for row in rows)
    values = [[value or None for value in column] for column in zip(*full, strict=True)]
    return dict(zip(header, values, strict=True)), faults


def _canonical(source: str, existing: Sequence[str], mapping: dict[str, str]) -> dict[str, str]:
    """The canonical name of each column of the file that has one."""
    for ours, theirs in mapping.items():
        if ours not in ALIASES:
            raise TableError(
                f"{source}: {ours!r} is not a canonical column; these are {', '.join(ALIASES)}"
                f"{nearest(ours, ALIASES)}"
            )
        if theirs not in existing:
            raise TableError(
                f"{source}: no column {theirs!r} for {ours}; it has {_some(existing)}"
                f"{nearest(theirs, existing)}"
            )
    if len(set(mapping.values())) < len(mapping):
        raise TableError(f"{source}: one column is mapped to two names: {mapping}")
    names = {theirs: ours for ours, theirs in mapping.items()}
    for ours, patterns in ALIASES.items():
        if ours in mapping:
            continue
        free = [theirs for theirs in existing if theirs not in mapping.values()]
        found = _matching(free, patterns) or _matching(free, FURTHER.get(ours, ()))
        if len(found) > 1:
            raise TableError(
                f"{source}: {ours} could be any of {_some([repr(f) for f in found])}; choose with "
                f"--map {ours}={_quoted(found[0])}"
            )
        if found:
            names[found[0]] = ours
    if "loss" not in names.values():
        close = nearest("loss", existing) or nearest("final_loss", existing)
        raise TableError(
            f"{source}: no column for loss; it has {_some(existing)}{close}; name it with "
            "--map loss=COLUMN"
        )
    return names


def _matching(existing: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The columns whose name follows one of `patterns`."""
    return [
        name
        for name in existing
        if any(fnmatch.fnmatchcase(_plain(name), _plain(pattern)) for pattern in patterns)
    ]


def _plain(name: str) -> str:
    return re.sub(r"[ -]", "_", name.strip().lower())


def _positive(name: str, values: Iterable[Any], *, is_text: bool) -> tuple[pl.Series, list[Fault]]:
    """The values as numbers, and what is wrong with those that are not finite and > 0."""
    numbers: list[float | None] = []
    faults: list[Fault] = []
    for row, value in enumerate(values, start=1):
        number, reason = _number(value, is_text=is_text)
        numbers.append(number)
        if reason and (value is not None or name == "loss"):
            faults.append((row, name, "" if value is None else _short(str(value)), reason))
    return pl.Series(name, numbers, dtype=pl.Float64), faults


def _number(value: Any, *, is_text: bool) -> tuple[float | None, str]:
    """A finite number > 0 and no reason, or None and why it is not one."""
    if value is None:
        return None, "missing"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None, "not a number"
    try:
        number = float(value)
    except ValueError:
        return None, "not a number"
    except OverflowError:
        return None, "not finite"
    if isinstance(value, str) and ("_" in value or not is_text):
        return None, "not a number" if is_text else "a number stored as text"
    if not math.isfinite(number):
        return None, "not finite"
    return (number, "") if number > 0 else (None, "not > 0")


def _further(name: str, values: Sequence[Any] | pl.Series, *, is_text: bool) -> pl.Series:
    """A column kept as it is. Text from a csv becomes numbers only if that loses nothing."""
    if isinstance(values, pl.Series):
        return values.alias(name)
    if is_text:
        present = [value for value in values if value is not None]
        if present and all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", value) for value in present):
            return pl.Series(name, [None if v is None else int(v) for v in values], dtype=pl.Int64)
        if present and all(_is_decimal(value) for value in present):
            return pl.Series(
                name, [None if v is None else float(v) for v in values], dtype=pl.Float64
            )
        return pl.Series(name, values, dtype=pl.String)
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        texts = [None if value is None else json.dumps(value) for value in values]
        return pl.Series(name, texts, dtype=pl.String)


def _is_decimal(text: str) -> bool:
    return bool(re.fullmatch(r"[+-]?(0|[1-9]\d*)?(\.\d+)?([eE][+-]?\d+)?|nan|[+-]?inf", text))


def _listed(excluded: pl.DataFrame) -> str:
    """The excluded rows in one line, the first few by row and value."""
    rows = [
        f"row {row}: {field} {value} ({reason})" if value else f"row {row}: {field} {reason}"
        for row, field, value, reason in excluded.head(FIRST_ROWS).iter_rows()
    ]
    more = excluded.height - len(rows)
    noun = "bad row" if excluded.height == 1 else "bad rows"
    tail = f", and {more} more" if more else ""
    return f"{excluded.height} {noun}: {', '.join(rows)}{tail}"


def _some(names: Sequence[str], most: int = 20) -> str:
    listed = ", ".join(names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
