"""The life of a worker process: receive a group, answer it, send the answer, until told to end."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection

from leadline.sweeps.engines import attempt

READY = "ready"
"""The first message of a worker, before any answer."""


def main(handle: int) -> None:
    """Serve the connection with the file descriptor `handle`."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    connection = Connection(handle)
    connection.send(READY)
    while True:
        try:
            solve, group = connection.recv()
        except EOFError:
            return
        connection.send(attempt(solve, group, connection.send))


def _die_with_parent() -> None:
    """End this process when its parent ends, even if that was killed: standard input is a pipe
    that only the parent holds open.
    """
    while os.read(sys.stdin.fileno(), 1):
        continue
    os._exit(1)
