"""Run a sweep: wanted - stored = todo; group, answer, record, repeat."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Literal

import polars as pl

from leadline.errors import SpecError, StoreError
from leadline.ident import VERSION, run_id
from leadline.runs import from_curves
from leadline.spec import RunSpec, Sweep
from leadline.sweeps import backends
from leadline.sweeps.engines import Answer, Group, solve
from leadline.sweeps.groups import lanes, wanted_runs
from leadline.sweeps.lock import locked
from leadline.sweeps.progress import progress_bar
from leadline.sweeps.provenance import commit
from leadline.sweeps.store import (
    PROVENANCE,
    SCHEMA_VERSION,
    Parts,
    Store,
    clear_failures,
    compact,
    now,
    part_names,
    read_parts,
    record_failure,
    remove_leftovers,
    stored_ids,
    write_part,
)

Backend = Literal["serial", "process", "ray"]

CHUNK_SECONDS = 0.5
"""Cheap runs are grouped so that a group takes about this long."""

CHUNK_RUNS = 512

NAMED = ("run_id", "engine", "version")
"""What is read of stored rows to know which runs there are."""

WRITE_SECONDS = 0.5
WRITE_SHARE = 0.01
"""Answers are written once they are worth this many seconds of work, or this share of all the
work so far: what a crash can lose, against the number of parts."""


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """What a sweep did.

    **Arguments:** `wanted` runs in this shard, `stored` of them before; `answered` and `failed`
    now; `errors` the distinct causes; `skipped` pairs torn or foreign parts with the reason;
    `notes` what else should be known; `seconds` of wall time.
    """

    sweep: str
    store: Store
    wanted: int
    stored: int
    answered: int = 0
    failed: int = 0
    errors: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 if every run is stored and every part is sound, 130 if interrupted, else 1."""
        if self.interrupted:
            return 130
        return 1 if self.failed or self.skipped else 0

    def __str__(self) -> str:
        total = (
            f"{self.stored + self.answered} of {self.wanted} runs are stored in {self.store.root}"
        )
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"{self.store.root / name}: skipped: {reason}" for name, reason in self.skipped]
        if self.stored == self.wanted:
            return "\n".join([*lines, f"{self.sweep}: nothing to do: {total}"])
        lines.append(f"{self.sweep}: {self.answered} runs in {self.seconds:.1f} s; {total}")
        if self.failed:
            lines += [
                f"{self.failed} runs failed: {_first(self.errors)}",
                f"tracebacks are in {self.store.failed}; the same command tries them again",
            ]
        if self.interrupted:
            lines.append("stopped before the end; the same command goes on from here")
        return "\n".join(lines)


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C or a request to terminate ended a sweep; every finished answer is stored."""

    def __init__(self, summary: SweepSummary) -> None:
        super().__init__(str(summary))
        self.summary = summary


def run_sweep(
    sweep: Sweep,
    store: Store,
    *,
    backend: Backend = "process",
    workers: int = 1,
    shard: tuple[int, int] = (0, 1),
    ray_address: str | None = None,
    ray_gpus: float = 0.0,
) -> SweepSummary:
    """Answer the runs of `sweep` that `store` lacks, and add them to it.

    **Arguments:** `backend` and the number of `workers` say where; they change no number.
    `shard=(i, n)` takes the i-th of n parts of the sweep, i counted from 0. `ray_address` is that
    of a cluster, None starts Ray on this machine; `ray_gpus` are reserved for each group.

    **Returns** a `SweepSummary`. A run whose engine raises is recorded in `store.failed` and the
    others go on; the next call tries it again.

    **Raises:** `SpecError` for impossible arguments; `StoreError` if the store cannot be read or
    written, or another coordinator is at work; `SweepInterrupted` after Ctrl-C.
    """
    started = time.monotonic()
    run = _choose(backend, workers=workers, ray_address=ray_address, ray_gpus=ray_gpus)
    parts = read_parts(store, columns=NAMED)
    stored = stored_ids(parts)
    wanted = wanted_runs(sweep, shard=shard, stored=stored)
    todo = {name: spec for name, spec in wanted.items() if name not in stored}
    if not todo:
        return SweepSummary(
            sweep=sweep.name,
            store=store,
            wanted=len(wanted),
            stored=len(wanted),
            skipped=parts.skipped,
            notes=_other_versions(parts, sweep),
            seconds=time.monotonic() - started,
        )
    with locked(store.root) as note:
        if part_names(store) != parts.names:
            parts = read_parts(store, columns=NAMED)
            stored = stored_ids(parts)
            todo = {name: spec for name, spec in todo.items() if name not in stored}
        remove_leftovers(store)
        clear_failures(store, stored | todo.keys())
        ledger = _Ledger(sweep=sweep, store=store)
        groups = _groups(sweep, store, todo, ledger, workers)
        interrupted = False
        try:
            with (
                _stoppable(),
                progress_bar(sweep.name, len(todo)) as ledger.show,
                closing(run(solve, groups, observe=ledger.observe)) as answers,
            ):
                for group, answer in answers:
                    ledger.add(group, answer)
            ledger.write()
        except KeyboardInterrupt:
            interrupted = True
            with suppress(KeyboardInterrupt):
                ledger.write()
        notes = [*([note] if note else []), *_other_versions(parts, sweep)]
        try:
            compact(store)
        except StoreError as error:
            notes.append(f"the parts were not merged: {error}")
    summary = SweepSummary(
        sweep=sweep.name,
        store=store,
        wanted=len(wanted),
        stored=len(wanted) - len(todo),
        answered=ledger.answered,
        failed=ledger.failed,
        errors=tuple(ledger.errors),
        skipped=parts.skipped,
        notes=tuple(notes),
        seconds=time.monotonic() - started,
        interrupted=interrupted,
    )
    if interrupted:
        raise SweepInterrupted(summary)
    return summary


def _other_versions(parts: Parts, sweep: Sweep) -> tuple[str, ...]:
    """What to tell of stored runs whose numbers another version of the engine made. They have ids
    of their own, so that no table of this version holds them.
    """
    if not parts.frame.height:
        return ()
    present = VERSION[sweep.engine]
    other = parts.frame.filter((pl.col("engine") == sweep.engine) & (pl.col("version") != present))
    if not other.height:
        return ()
    found = ", ".join(map(str, sorted(set(other["version"].to_list()))))
    return (
        f"{other['run_id'].n_unique()} stored runs are of version {found} of the {sweep.engine} "
        f"engine, this is version {present}: they are not used",
    )


Run = Callable[..., backends.Answers]


def _choose(backend: str, *, workers: int, ray_address: str | None, ray_gpus: float) -> Run:
    if workers < 1:
        raise SpecError(f"workers: got {workers}, expected at least 1")
    if backend != "ray" and (ray_address is not None or ray_gpus):
        raise SpecError(f"ray_address, ray_gpus: they need the backend 'ray', got {backend!r}")
    if ray_address is None and workers > (available := cores()):
        raise SpecError(f"workers: got {workers}, this machine has {available} cores")
    match backend:
        case "serial":
            if workers > 1:
                raise SpecError(f"workers: got {workers}, the serial backend has one")
            return backends.serial
        case "process":
            return partial(backends.process, workers=workers)
        case "ray":
            return partial(backends.ray, workers=workers, address=ray_address, gpus=ray_gpus)
        case _:
            raise SpecError(f"backend: got {backend!r}, expected one of serial, process, ray")


def cores() -> int:
    """How many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def _groups(
    sweep: Sweep, store: Store, todo: Mapping[str, RunSpec], ledger: _Ledger, workers: int
) -> Iterator[Group]:
    """What to answer together, decided as late as possible."""
    if sweep.engine == "simulation":
        store.checkpoints.mkdir(exist_ok=True)
        for group in lanes(todo):
            members = hashlib.sha256("".join(group).encode()).hexdigest()[:32]
            path = store.checkpoints / f"{members}.npz"
            yield Group(engine="simulation", specs=tuple(group.values()), checkpoint=path)
        return
    specs = list(todo.values())
    first = 0
    while first < len(specs):
        fair = math.ceil((len(specs) - first) / (2 * workers))
        size = max(1, min(ledger.pace, fair, CHUNK_RUNS))
        yield Group(engine="theory", specs=tuple(specs[first : first + size]))
        first += size


@dataclass(kw_only=True)
class _Ledger:
    """The only writer: collects answers and writes them as parts."""

    sweep: Sweep
    store: Store
    show: Callable[[float], None] = lambda _: None
    """Called with the number of runs that are done, fractions included."""

    answered: int = 0
    failed: int = 0
    errors: dict[str, None] = field(default_factory=dict)
    pace: int = 1
    """How many runs, as cheap as the last ones, fill a group."""

    _pending: list[tuple[Group, Answer]] = field(default_factory=list)
    _unwritten: float = 0.0
    _work: float = 0.0
    _finished: int = 0
    _shares: dict[int, float] = field(default_factory=dict)

    def observe(self, group: Group, share: float) -> None:
        self._shares[id(group)] = share * len(group.specs)
        self.show(self._finished + sum(self._shares.values()))

    def add(self, group: Group, answer: Answer) -> None:
        self._shares.pop(id(group), None)
        self._finished += len(group.specs)
        self.show(self._finished + sum(self._shares.values()))
        work = sum(answer.seconds)
        self.pace = int(CHUNK_SECONDS / max(work / len(group.specs), 1e-6))
        self._pending.append((group, answer))
        self._work += work
        self._unwritten += work
        if self._unwritten >= max(WRITE_SECONDS, WRITE_SHARE * self._work):
            self.write()

    def write(self) -> None:
        """Write what is pending; an interruption waits until that is done."""
        with _shielded():
            specs, curves, provenance = [], [], []
            origin = (SCHEMA_VERSION, self.sweep.name, now(), commit())
            for group, answer in self._pending:
                place = (answer.host, answer.device, answer.packages)
                for spec, curve, seconds in zip(
                    group.specs, answer.curves, answer.seconds, strict=True
                ):
                    if curve is not None:
                        specs.append(spec)
                        curves.append(curve)
                        provenance.append((*origin, *place, seconds))
            if specs:
                table = from_curves(specs, curves, engine=self.sweep.engine).frame
                origins = pl.DataFrame(provenance, schema=PROVENANCE, orient="row")
                write_part(self.store, pl.concat([table, origins], how="horizontal"))
            self.answered += len(specs)
            for group, answer in self._pending:
                self._record_failures(group, answer)
                if group.checkpoint is not None and not answer.failures:
                    group.checkpoint.unlink(missing_ok=True)
            self._pending.clear()
            self._unwritten = 0.0

    def _record_failures(self, group: Group, answer: Answer) -> None:
        for failure in answer.failures:
            ids = [run_id(group.specs[i], engine=group.engine) for i in failure.members]
            record_failure(
                self.store,
                sweep=self.sweep,
                runs=ids,
                error=failure.error,
                traceback=failure.traceback,
                host=answer.host,
            )
            self.failed += len(ids)
            self.errors[failure.error] = None


@contextmanager
def _stoppable() -> Generator[None, None, None]:
    """A request to terminate, as schedulers send it before a kill, acts like Ctrl-C."""
    with _handling(signal.SIGTERM, handler=signal.default_int_handler):
        yield


@contextmanager
def _shielded() -> Generator[None, None, None]:
    """Ctrl-C and requests to terminate wait until the block is done."""
    waiting: list[int] = []
    with _handling(signal.SIGTERM, signal.SIGINT, handler=lambda number, _: waiting.append(number)):
        yield
    if waiting:
        raise KeyboardInterrupt


@contextmanager
def _handling(
    *numbers: signal.Signals, handler: Callable[[int, FrameType | None], Any]
) -> Generator[None, None, None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


def _first(errors: Sequence[str], *, most: int = 3) -> str:
    rest = f"; and {len(errors) - most} other errors" if len(errors) > most else ""
    return "; ".join(errors[:most]) + rest
