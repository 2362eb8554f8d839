"""Where groups are answered: in this process, in processes of this machine, on a Ray cluster.

One contract: a backend takes a function, an iterator of groups that it draws from as it has room,
and yields every group with its answer, in any order. All pin the number of threads, because the
last digits of linear algebra depend on it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import typing
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from leadline.errors import StoreError
from leadline.sweeps.engines import Answer, Group, Solve, attempt, lost
from leadline.sweeps.worker import READY

Answers = Generator[tuple[Group, Answer], None, None]

ATTEMPTS = 3
"""How often a group is tried whose worker dies."""

THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NPROC": "1",
}
"""One thread a worker, for each library that asks the environment. XLA's numbers do not depend on
its threads (but on some of its flags: those are the user's)."""


def pinned_environment() -> dict[str, str]:
    """The environment of this process with the threads of a worker, which may share its device."""
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | dict(os.environ) | THREADS


def serial(solve: Solve, groups: Iterator[Group]) -> Answers:
    """Answer the groups in this process, one after the other."""
    from threadpoolctl import threadpool_limits

    for group in groups:
        with threadpool_limits(1):
            reply = attempt(solve, group)
        yield group, reply


@dataclass(kw_only=True, eq=False)
class _Task:
    """A group, and how many workers died of it."""

    group: Group
    deaths: int = 0


@dataclass(kw_only=True, eq=False)
class _Worker:
    """A child process, and the task that it has in hand."""

    process: subprocess.Popen[bytes]
    connection: Connection
    task: _Task
    started: bool = False

    def give(self, solve: Solve, task: _Task) -> None:
        self.task = task
        with suppress(OSError):  # it died: its connection says so at the next reading
            self.connection.send((solve, task.group))

    def dismiss(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def cause_of_death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.dismiss()
        code = self.process.returncode
        return f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"


def process(solve: Solve, groups: Iterator[Group], *, workers: int) -> Answers:
    """Answer the groups in `workers` child processes.

    A child starts from a fresh interpreter, with its threads fixed before NumPy or JAX load, and
    ends when this process ends. The group of a child that dies is tried again, `ATTEMPTS` times
    in all; then its answer is that the worker died.

    **Raises:** `StoreError` if children cannot be started.
    """
    again: list[_Task] = []
    crew: dict[Connection, _Worker] = {}
    failed_starts = 0

    def take() -> _Task | None:
        if again:
            return again.pop()
        group = next(groups, None)
        return None if group is None else _Task(group=group)

    try:
        while True:
            while len(crew) < workers and (task := take()) is not None:
                worker = _start(task)
                crew[worker.connection] = worker
                worker.give(solve, task)
            if not crew:
                return
            for connection in wait(list(crew)):
                worker = crew[typing.cast(Connection, connection)]
                task = worker.task
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    del crew[worker.connection]
                    how = worker.cause_of_death()
                    failed_starts += not worker.started
                    if failed_starts == ATTEMPTS:
                        raise StoreError(f"workers: a worker cannot start: {how}") from None
                    task.deaths += 1
                    if task.deaths < ATTEMPTS:
                        again.append(task)
                    else:
                        yield (
                            task.group,
                            lost(task.group, f"the worker died {ATTEMPTS} times: {how}"),
                        )
                    continue
                if message == READY:
                    worker.started, failed_starts = True, 0
                    continue
                following = take()
                if following is None:
                    del crew[worker.connection]
                    worker.dismiss()
                else:
                    worker.give(solve, following)
                yield task.group, message
    finally:
        for worker in crew.values():
            worker.dismiss()


def _start(task: _Task) -> _Worker:
    ours, theirs = Pipe()
    home = str(Path(__file__).parents[2])
    code = (
        f"import sys; sys.path.append({home!r}); "
        f"from leadline.sweeps.worker import main; main({theirs.fileno()})"
    )
    child = subprocess.Popen(  # noqa: S603, the arguments are fixed
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        env=pinned_environment(),
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # Ctrl-C is for the coordinator
    )
    theirs.close()
    return _Worker(process=child, connection=ours, task=task)
