"""The store: a folder of immutable Parquet parts, one row a run, read back as `Runs`.

No database is the truth. A part is written under a temporary name, flushed, and renamed; its name
is the digest of its bytes, so that parts of several stores merge by copying, and damage is seen.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from leadline.errors import LeadlineError, StoreError
from leadline.ident import from_json, run_id
from leadline.runs import CURVE_SCHEMA, EXCLUDED_SCHEMA, MEASURES_SCHEMA, Runs, engine_units
from leadline.spec import Sweep

SCHEMA_VERSION = 1
"""The version of the parts' columns. Parts of an older one stay readable; a newer is refused."""

PROVENANCE: dict[str, type[pl.DataType]] = {
    "schema_version": pl.Int64,
    "sweep": pl.String,
    "written": pl.String,
    "commit": pl.String,
    "host": pl.String,
    "device": pl.String,
    "packages": pl.String,
    "seconds": pl.Float64,
}
"""How a row came about. None of it is part of a run's identity or of the canonical table."""

IDENTITY = ("run_id", "engine", "version", "status")
WHOLE = frozenset({"version", "seed", "step", "schema_version"})
NESTED = {f"curve_{name}": kind for name, kind in CURVE_SCHEMA.items()} | {
    "measures": MEASURES_SCHEMA
}
REQUIRED = {*IDENTITY, *NESTED, "spec", "schema_version"}
PART_NAME = re.compile(r"part-[0-9a-f]{32}\.parquet")
AGREEMENT = 1e-9
"""Relative difference up to which two rows of one run agree: the last digits of a machine."""

MANY_PARTS = 64
SMALL_PART = 2**23
"""When more than `MANY_PARTS` parts are smaller than this number of bytes, they become one."""


@dataclass(frozen=True)
class Store:
    """A folder of runs.

    **Arguments:** `root` is the folder; it is made at the first write.

    **Raises:** `StoreError` if `root` is something else than a folder.
    """

    root: Path

    def __init__(self, root: str | Path) -> None:
        object.__setattr__(self, "root", Path(root))
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"{self.root}: a store is a folder, this is a file")

    @property
    def failed(self) -> Path:
        """The folder of the records of failed groups."""
        return self.root / "failed"

    @property
    def checkpoints(self) -> Path:
        """The folder of the states of unfinished trainings."""
        return self.root / "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the parts of a store hold.

    **Arguments:** `frame` has one row a stored row, duplicates included, and the column `part`;
    `names` are all parts seen; `skipped` pairs the name of a torn or foreign part with the reason.
    """

    frame: pl.DataFrame
    names: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]


def part_names(store: Store) -> tuple[str, ...]:
    """The names of the parts, in order."""
    return tuple(sorted(path.name for path in store.root.glob("*.parquet")))


def read_parts(store: Store, *, columns: Sequence[str] | None = None) -> Parts:
    """Read every part, or `columns` of it.

    Torn and foreign parts are listed in `skipped`, never repaired.

    **Raises:** `StoreError` for a part of a newer schema, or one that cannot be opened.
    """
    while True:
        try:
            return _read(store, part_names(store), columns)
        except FileNotFoundError:  # compacted since it was listed: there is a new list
            continue


def _read(store: Store, names: Sequence[str], columns: Sequence[str] | None) -> Parts:
    frames: list[pl.DataFrame] = []
    skipped: list[tuple[str, str]] = []
    for name in names:
        path = store.root / name
        try:
            frame = _parse(path, path.read_bytes(), columns)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
        if isinstance(frame, str):
            skipped.append((name, frame))
        else:
            frames.append(frame.with_columns(part=pl.lit(name)))
    frame = pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()
    return Parts(frame=frame, names=tuple(names), skipped=tuple(skipped))


def _parse(path: Path, data: bytes, columns: Sequence[str] | None) -> pl.DataFrame | str:
    """The rows of a part, or why it is skipped."""
    if not PART_NAME.fullmatch(path.name):
        return "foreign: not the name of a part"
    if path.name != part_name(data):
        return "torn or damaged: its content does not match its name"
    try:
        present = pl.read_parquet_schema(io.BytesIO(data))
        if present.get("schema_version") != pl.Int64:
            return "foreign: it has no schema version"
        versions = pl.read_parquet(io.BytesIO(data), columns=["schema_version"])
        newest = versions["schema_version"].max()
        if isinstance(newest, int) and newest > SCHEMA_VERSION:
            raise StoreError(
                f"{path}: written with schema {newest}, this leadline reads up to "
                f"{SCHEMA_VERSION}; use a newer leadline"
            )
        missing = sorted(REQUIRED - set(present))
        if missing:
            return f"foreign: it lacks the column {missing[0]!r}"
        return pl.read_parquet(io.BytesIO(data), columns=list(columns or present))
    except (pl.exceptions.PolarsError, OSError) as error:
        return f"foreign: {' '.join(str(error).split())}"


def part_name(data: bytes) -> str:
    """The name of the part with this content."""
    return f"part-{hashlib.sha256(data).hexdigest()[:32]}.parquet"


def write_part(store: Store, frame: pl.DataFrame) -> Path:
    """Add `frame`, rows with provenance, as a part: complete under its name or not there at all.

    **Raises:** `StoreError` if it cannot be written, for one on a full disk.
    """
    unknown = [name for name in frame.columns if frame.schema[name] == pl.Null]
    floats = [n for n in frame.columns if frame.schema[n].is_integer() and n not in WHOLE]
    buffer = io.BytesIO()
    frame.cast(dict.fromkeys([*unknown, *floats], pl.Float64)).write_parquet(buffer)
    data = buffer.getvalue()
    path = store.root / part_name(data)
    publish(path, data)
    return path


def publish(path: Path, data: bytes) -> None:
    """Write a file so that a crash at any moment leaves it complete or absent: temporary name,
    flush to the disk, rename, flush of the folder.

    **Raises:** `StoreError` if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(
            f"{path.parent}: cannot write {path.name}: {error.strerror}; "
            "what is stored is intact, repeat the command when this is solved"
        ) from None


def remove_leftovers(store: Store) -> None:
    """Delete what writes that were cut short left behind. Needs the lock."""
    for folder in (store.root, store.failed):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def compact(store: Store) -> None:
    """Rewrite the small parts as one, if there are many. Needs the lock. A crash before the old
    ones are removed leaves rows twice, equal, which is allowed.
    """
    sizes = {name: (store.root / name).stat().st_size for name in part_names(store)}
    small = [name for name, size in sizes.items() if size < SMALL_PART]
    if len(small) <= MANY_PARTS:
        return
    frame = _read(store, small, None).frame
    if not frame.height:
        return
    kept = write_part(store, _settle(store, frame).drop("part"))
    for name in frame["part"].unique():
        if name != kept.name:
            (store.root / name).unlink()


def stored_ids(parts: Parts) -> frozenset[str]:
    """The ids of the runs that `parts` hold."""
    return frozenset(parts.frame["run_id"]) if parts.frame.height else frozenset()


def load_runs(store: Store, *, sweep: Sweep | None = None, provenance: bool = False) -> Runs:
    """The canonical table of the stored runs: one row a run, sorted by run id, equal byte for byte
    however the runs were computed.

    **Arguments:** `sweep` limits the table to its runs; `provenance` adds the columns of
    `PROVENANCE`.

    **Returns** `Runs`; `excluded` lists torn and foreign parts, and runs of `sweep` that are not
    stored.

    **Raises:** `StoreError` if there is no store, a part is of a newer schema, a stored
    specification has an unknown field, or two rows of one run disagree.
    """
    if not store.root.is_dir():
        raise StoreError(f"{store.root}: there is no store here")
    parts = read_parts(store)
    excluded = [("part", name, reason) for name, reason in parts.skipped]
    frame = parts.frame if parts.frame.height else _no_rows()
    if sweep is not None:
        wanted = {run_id(spec, engine=sweep.engine): None for spec in sweep.runs}
        absent = wanted.keys() - set(frame["run_id"])
        excluded += [("run_id", name, "not stored") for name in wanted if name in absent]
        frame = frame.filter(pl.col("run_id").is_in(list(wanted)))
    frame = _settle(store, frame)
    _check_identity(store, frame)
    rows = [{"row": None, "field": f, "value": v, "reason": r} for f, v, r in excluded]
    table = _canonical(frame, provenance=provenance)
    return Runs(
        frame=table,
        units=engine_units(table.columns),
        excluded=pl.DataFrame(rows, schema=EXCLUDED_SCHEMA),
        source=str(store.root),
    )


def _no_rows() -> pl.DataFrame:
    strings = dict.fromkeys(("run_id", "engine", "status", "spec", "part"), pl.String)
    return pl.DataFrame(schema={**strings, "version": pl.Int64, **NESTED, **PROVENANCE})


def _canonical(frame: pl.DataFrame, *, provenance: bool) -> pl.DataFrame:
    """Columns in an order that does not depend on the parts, rows by id."""
    ends = {*IDENTITY, *NESTED, "spec", "part", *PROVENANCE}
    # a column that no row fills comes from another sweep's parts
    middle = sorted(
        c for c in frame.columns if c not in ends and frame[c].null_count() < len(frame)
    )
    tail = [c for c in PROVENANCE if c in frame.columns] if provenance else []
    order = [*IDENTITY, *middle, *NESTED, "spec", *tail]
    return frame.select(order).sort("run_id").rechunk()


def _settle(store: Store, frame: pl.DataFrame) -> pl.DataFrame:
    """One row a run.

    **Raises:** `StoreError` naming the run and the parts if two rows of it disagree.
    """
    if not frame["run_id"].is_duplicated().any():
        return frame
    numbers = [c for c in frame.columns if c not in PROVENANCE and c != "part"]
    frame = frame.unique(numbers, keep="first", maintain_order=True)
    twice = frame.filter(pl.col("run_id").is_duplicated()).sort("run_id", maintain_order=True)
    for (name,), rows in twice.group_by("run_id", maintain_order=True):
        first, *others = rows.select(numbers).rows()
        for place, other in enumerate(others, start=1):
            if not agree(first, other):
                raise StoreError(
                    f"{store.root}: run {name} is stored twice with different numbers, in "
                    f"{rows['part'][0]} (host {rows['host'][0]}) and {rows['part'][place]} "
                    f"(host {rows['host'][place]}); remove one of these parts"
                )
    return frame.unique(["run_id"], keep="first", maintain_order=True)


def agree(first: Any, second: Any) -> bool:
    """Whether two stored values are equal, numbers up to a relative difference of `AGREEMENT`."""
    if isinstance(first, dict) and isinstance(second, dict):
        return agree(list(first.items()), list(second.items()))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(agree, first, second))
    if isinstance(first, float) and isinstance(second, float):
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or math.isclose(first, second, rel_tol=AGREEMENT)
    return first == second


def _check_identity(store: Store, frame: pl.DataFrame) -> None:
    """Every id must be the hash of its row's specification, and every specification readable."""
    for name, engine, version, text in frame.select("run_id", "engine", "version", "spec").rows():
        if hashlib.sha256(f"{engine} {version} {text}".encode()).hexdigest()[:32] != name:
            raise StoreError(f"{store.root}: run {name}: its id does not belong to its spec")
    # specifications that differ only in numbers are all readable if one is
    form = pl.col("spec").str.replace_all(r'(:|\[|,)(-?[0-9.eE+-]+|"-?inf")', "${1}0")
    for text in frame.group_by(form.alias("form")).agg(pl.col("spec").first())["spec"]:
        try:
            from_json(text)
        except LeadlineError as error:
            raise StoreError(
                f"{store.root}: a stored run cannot be read: {error}; written by a newer leadline?"
            ) from None


def record_failure(
    store: Store, *, sweep: Sweep, runs: Sequence[str], error: str, traceback: str, host: str
) -> Path:
    """Keep why these runs failed, in one JSON file named after the first."""
    path = store.failed / f"{runs[0]}.json"
    record = {
        "sweep": sweep.name,
        "engine": sweep.engine,
        "error": error,
        "host": host,
        "written": now(),
        "runs": list(runs),
        "traceback": traceback,
    }
    try:
        store.failed.mkdir(exist_ok=True)
    except OSError as trouble:
        raise StoreError(f"{store.failed}: cannot be made: {trouble.strerror}") from None
    publish(path, json.dumps(record, indent=1).encode())
    return path


def failures(store: Store) -> dict[Path, dict[str, Any]]:
    """The records of failed groups that have not been answered since."""
    records: dict[Path, dict[str, Any]] = {}
    for path in sorted(store.failed.glob("*.json")):
        try:
            records[path] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise StoreError(f"{path}: not a record of a failed group ({error})") from None
    return records


def clear_failures(store: Store, runs: Iterable[str]) -> None:
    """Forget the failures of `runs`, which are stored by now or about to be tried again."""
    gone = set(runs)
    for path, record in failures(store).items():
        if gone.issuperset(record["runs"]):
            path.unlink()


def now() -> str:
    """The present second, UTC, ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
