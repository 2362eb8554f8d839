"""The state of an unfinished training in one file: written whole or not at all."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.errors import StoreError
from leadline.ident import VERSION, to_plain
from leadline.spec import RunSpec


def identity(spec: RunSpec) -> str:
    """What a run is known by in a checkpoint that can name the field in which another differs."""
    return json.dumps({"version": VERSION["simulation"], "run": to_plain(spec)}, sort_keys=True)


def save(path: Path, arrays: Mapping[str, NDArray[Any]], *, runs: Sequence[str]) -> None:
    """Write `arrays` and the ids or identities of the runs they belong to: to a temporary name,
    flushed to the disk, then renamed.
    """
    temporary = path.with_name(path.name + ".tmp")
    names = np.frombuffer(json.dumps(list(runs)).encode(), np.uint8)
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, runs=names, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path, *, runs: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays that `save` wrote for the same runs.

    **Raises:** `StoreError` if the file is damaged or belongs to other runs; of runs known by their
    `identity` it names the field that differs.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored_arrays:
            arrays = {name: stored_arrays[name] for name in stored_arrays.files}
        stored = json.loads(arrays.pop("runs").tobytes().decode())
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StoreError(
            f"{path}: not a checkpoint of leadline ({error}); remove it to start over"
        ) from None
    if stored != list(runs):
        raise StoreError(
            f"{path}: this checkpoint belongs to other runs ({_difference(stored, runs)}); "
            "remove it to start over"
        )
    return arrays


def _difference(stored: Sequence[str], wanted: Sequence[str]) -> str:
    if len(stored) != len(wanted):
        return f"{len(stored)}, expected {len(wanted)}"
    number, pair = next(
        (i, p) for i, p in enumerate(zip(stored, wanted, strict=True)) if len(set(p)) > 1
    )
    try:
        path, old, new = _first_field(*(json.loads(text) for text in pair))
    except ValueError:
        return f"number {number + 1} is {pair[0][:40]}"
    return f"number {number + 1} has {path.removeprefix('run.')} = {old}, expected {new}"


def _first_field(stored: Any, wanted: Any) -> tuple[str, Any, Any]:
    """The dotted path of the first value in which two unequal pieces of JSON differ."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for name in sorted({*stored, *wanted}):
            old, new = stored.get(name, "its default"), wanted.get(name, "its default")
            if old != new:
                path, old, new = _first_field(old, new)
                return f"{name}.{path}".removesuffix("."), old, new
    return "", stored, wanted
