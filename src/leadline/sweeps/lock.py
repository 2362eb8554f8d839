"""The advisory lock of a store: one coordinator writes, and others learn its host and process."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from leadline.errors import StoreError

NAME = "lock"
HEARTBEAT = 20.0
"""Seconds between two signs of life of a lock's owner."""

EXPIRY = 120.0
"""Seconds without a sign of life after which an owner that cannot be asked counts as gone."""


@contextmanager
def locked(root: Path) -> Generator[str | None, None, None]:
    """Hold the lock of the store at `root`.

    The kernel releases the lock of a process that dies, so a lock file that still names an owner
    is stale. File systems that do not lock between hosts are covered by signs of life: the owner
    touches the file, and another host waits until they stop.

    **Yields** a note if the lock was taken over from a process that died, else None.

    **Raises:** `StoreError` naming the host and process of a live owner, or if `root` cannot be
    written.
    """
    path = root / NAME
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"{root}: cannot write to this store: {error.strerror}") from None
    try:
        note = _acquire(path, handle)
        stop = threading.Event()
        pulse = threading.Thread(target=_beat, args=(handle, stop), daemon=True)
        pulse.start()
        try:
            yield note
        finally:
            stop.set()
            pulse.join()
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _acquire(path: Path, handle: int) -> str | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(_refusal(path, _owner(handle))) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot lock this store: {error.strerror}") from None
    host, owner = platform.node(), _owner(handle)
    if owner:
        silent = time.time() - os.fstat(handle).st_mtime
        running = owner["host"] != host or _exists(int(owner["process"]))
        if running and silent < EXPIRY:
            raise StoreError(_refusal(path, owner))
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    text = json.dumps({"host": host, "process": str(os.getpid()), "since": now})
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
        os.fsync(handle)
    except OSError as error:
        raise StoreError(f"{path}: cannot lock this store: {error.strerror}") from None
    if not owner:
        return None
    return (
        f"took over the lock of process {owner['process']} on {owner['host']}, which ended "
        f"without releasing it (started {owner['since']})"
    )


def _refusal(path: Path, owner: dict[str, str]) -> str:
    who = (
        f"process {owner['process']} on host {owner['host']}, since {owner['since']}"
        if owner
        else "another process"
    )
    return f"{path.parent}: another sweep is writing to this store: {who}"


def _owner(handle: int) -> dict[str, str]:
    """Who wrote the lock file; empty if nobody, or if the writing was cut short."""
    try:
        owner = json.loads(os.pread(handle, 4096, 0))
        return {name: str(owner[name]) for name in ("host", "process", "since")}
    except (ValueError, KeyError, TypeError):
        return {}


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _beat(handle: int, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT):
        os.utime(handle)
