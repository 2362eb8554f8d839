"""A progress bar with the time left, for whoever watches a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

PATIENCE = 2.0
"""Seconds before a bar appears."""


@contextmanager
def progress_bar(label: str, total: int) -> Generator[Callable[[float], None], None, None]:
    """**Yields** a function to call with the number of runs that are done, fractions included.
    Nothing is shown where standard error is not a terminal, or if all is done within `PATIENCE`
    seconds.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    task = bar.add_task(label, total=total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.update(task, completed=done)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
