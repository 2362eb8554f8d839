import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.sweeps.definition import load_sweep
from leadline.sweeps.store import load_runs

COORDINATOR = Path(__file__).with_name("coordinator.py")


@pytest.fixture(scope="session")
def sweeps():
    """The sweeps of coordinator.py by name."""
    return lambda name: load_sweep(f"{COORDINATOR}:{name}")


@pytest.fixture(scope="session")
def coordinate(tmp_path_factory):
    """Start coordinator.py in a process of its own."""
    compiled = tmp_path_factory.mktemp("compiled")
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def start(name, store, *, backend="process", workers=1, write=None, command=()):
        arguments = [name, store.root, backend, workers] + ([] if write is None else [write])
        return subprocess.Popen(
            [*command, sys.executable, COORDINATOR, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    return start


@pytest.fixture(scope="session")
def table_bytes():
    """The canonical table of a store, serialized."""

    def serialize(store, sweep) -> bytes:
        runs = load_runs(store, sweep=sweep)
        assert runs.excluded.is_empty(), runs.excluded
        buffer = io.BytesIO()
        runs.frame.write_parquet(buffer)
        return buffer.getvalue()

    return serialize
