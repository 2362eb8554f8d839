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


def save(path: Path, arrays: Mapping[str, NDArray[Any]], *, runs: Sequence[str]) -> None:
    """Write `arrays` and the ids of the runs they belong to: to a temporary name, flushed to the
    disk, then renamed.
    """
    temporary = path.with_name(path.name + ".tmp")
    identity = np.frombuffer(json.dumps(list(runs)).encode(), np.uint8)
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, runs=identity, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path, *, runs: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays that `save` wrote for the same runs.

    **Raises:** `StoreError` if the file is damaged or belongs to other runs.
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
            f"{path}: this checkpoint belongs to other runs ({len(stored)}, the first "
            f"{stored[0]}); remove it to start over"
        )
    return arrays
