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
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from leadline.errors import StoreError
from leadline.sweeps.engines import Answer, Group, Observe, Solve, attempt, lost
from leadline.sweeps.worker import READY

Answers = Generator[tuple[Group, Answer], None, None]
ObserveGroup = Callable[[Group, float], None]
"""Called with the share of a group that is done, by the backends that learn of it."""

ATTEMPTS = 3
"""How often a group is tried whose worker dies."""

ADDRESS_SECONDS = 20.0
"""How long a Ray cluster may take to answer."""

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


def serial(solve: Solve, groups: Iterator[Group], *, observe: ObserveGroup) -> Answers:
    """Answer the groups in this process, one after the other."""
    for group in groups:
        yield group, _on_one_thread(solve, group, partial(observe, group))


def _on_one_thread(solve: Solve, group: Group, observe: Observe) -> Answer:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return attempt(solve, group, observe)


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


def process(
    solve: Solve, groups: Iterator[Group], *, observe: ObserveGroup, workers: int
) -> Answers:
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
                if isinstance(message, float):
                    observe(task.group, message)
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


def ray(
    solve: Solve,
    groups: Iterator[Group],
    *,
    observe: ObserveGroup,
    workers: int,
    address: str | None,
    gpus: float,
) -> Answers:
    """Answer the groups as tasks of Ray, `workers` at a time, each with one core and `gpus` GPUs.

    **Arguments:** `address` is that of a cluster, whose machines have leadline installed; None
    uses the connection that this process has, or else starts Ray on this machine with `workers`
    cores. Ray tries a task again if its worker or its machine is lost, `ATTEMPTS` times in all.

    **Raises:** `StoreError` if Ray is not installed, or the address does not answer.
    """
    try:
        import ray as engine
        from ray.exceptions import RayError
    except ImportError as error:
        raise StoreError(
            f"backend 'ray': {error}; install leadline[ray] for more than one machine"
        ) from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    connect = not engine.is_initialized()
    if address is not None:
        _check_address(address)
        engine.init(address=address, ignore_reinit_error=True, **quiet)
    elif connect:
        engine.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    task = engine.remote(_ray_task).options(num_cpus=1, num_gpus=gpus, max_retries=ATTEMPTS - 1)
    pending: dict[Any, Group] = {}
    try:
        while True:
            while len(pending) < workers and (group := next(groups, None)) is not None:
                pending[task.remote(solve, group)] = group
            if not pending:
                return
            for done in engine.wait(list(pending), num_returns=1)[0]:
                group = pending.pop(done)
                try:
                    reply = engine.get(done)
                except RayError as error:
                    reply = lost(group, " ".join(f"{type(error).__name__}: {error}".split()))
                yield group, reply
    finally:
        for unfinished in pending:
            engine.cancel(unfinished, force=True)
        if connect:
            engine.shutdown()


def _ray_task(solve: Solve, group: Group) -> Answer:
    os.environ.update(THREADS)  # JAX reads them when it loads
    return _on_one_thread(solve, group, lambda _: None)


def _check_address(address: str) -> None:
    """Connect in a process of its own: Ray itself waits for ever for an address that is silent."""
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
    try:
        subprocess.run(  # noqa: S603, the arguments are fixed
            [sys.executable, "-c", code, address],
            capture_output=True,
            check=True,
            text=True,
            timeout=ADDRESS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise StoreError(
            f"ray_address: {address} does not answer within {ADDRESS_SECONDS:g} s"
        ) from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise StoreError(f"ray_address: cannot connect to {address}: {last[0]}") from None
