"""Sweeps: reading a large store, overhead of a run, lanes against one process each."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from leadline.spec import (
    Evaluation,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Sweep,
    Training,
    flat,
    grid,
)
from leadline.sweeps import runner
from leadline.sweeps.groups import wanted_runs
from leadline.sweeps.store import Store, load_runs, read_parts, stored_ids
from leadline.theory.predict import predict

POINT = RunSpec(
    task=InContextRegression(spectrum=flat(16), covariance="isotropic", context=32),
    model=ReducedAttention(depth=2),
    recipe=GivenScale(gamma=0.5),
)
SMALL_TRAINING = dataclasses.replace(
    POINT,
    recipe=Training(steps=200, batch_size=8, queries=math.inf, rate=0.1),
    evaluation=Evaluation(contexts=8, record=tuple(range(0, 201, 10))),
)


def cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def timed(call: Callable[[], object], *, repeat: int = 3) -> tuple[float, float]:
    """Median wall and CPU seconds."""
    times: list[tuple[float, float]] = []
    for _ in range(repeat):
        wall, used = time.perf_counter(), cpu()
        call()
        times.append((time.perf_counter() - wall, cpu() - used))
    return tuple(sorted(column)[repeat // 2] for column in zip(*times, strict=True))  # type: ignore[return-value]


def show(what: str, wall: float, used: float, **more: object) -> None:
    print(json.dumps({"what": what, "wall_s": round(wall, 4), "cpu_s": round(used, 4), **more}))


def large_store(root: Path, *, runs: int, points: int) -> tuple[Sweep, Store]:
    """A store of `runs` runs with `points` points a curve, in parts as a sweep leaves them."""
    import numpy as np

    specs = grid(POINT, {"seed": range(runs)})
    sweep, store = Sweep(name="large", engine="theory", runs=specs), Store(root)
    curve = predict(POINT)
    long = {
        f.name: np.resize(getattr(curve, f.name), points)
        for f in dataclasses.fields(curve)
        if f.name in ("step", "time", "tokens", "flops", "loss", "loss_error")
    }
    curve = dataclasses.replace(curve, **long)
    from leadline.sweeps.engines import Answer, Group

    ledger = runner._Ledger(sweep=sweep, store=store)
    root.mkdir()
    for first in range(0, runs, runs // 50):
        group = Group(engine="theory", specs=specs[first : first + runs // 50])
        count = len(group.specs)
        made = Answer(
            curves=(curve,) * count,
            seconds=(1.0,) * count,
            failures=(),
            host="host",
            device="cpu",
            packages="{}",
        )
        ledger.add(group, made)
        ledger.write()
    return sweep, store


def reading(folder: Path) -> None:
    sweep, store = large_store(folder / "large", runs=10_000, points=20)
    parts = len(read_parts(store).names)

    def todo() -> None:
        stored = stored_ids(read_parts(store, columns=("run_id",)))
        assert wanted_runs(sweep, shard=(0, 1), stored=stored).keys() == stored

    show("todo of 10,000 stored runs", *timed(todo), parts=parts, must_s=1.0)
    show("load 10,000 stored runs", *timed(lambda: load_runs(store, sweep=sweep)), must_s=1.0)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sweeps; from pathlib import Path\n"
        "from leadline.sweeps.runner import run_sweep; from leadline.sweeps.store import Store\n"
        "specs = sweeps.grid(sweeps.POINT, {'seed': range(10000)})\n"
        "sweep = sweeps.Sweep(name='large', engine='theory', runs=specs)\n"
        "assert 'nothing to do' in str(run_sweep(sweep, Store(sys.argv[2])))"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(store.root)]
    again = timed(lambda: subprocess.run(command, check=True))
    show("second call of 10,000 runs, process start included", *again)


def overhead(folder: Path) -> None:
    """Runs that take no time: what is left is the overhead."""
    count = 5_000
    sweep = Sweep(name="points", engine="theory", runs=grid(POINT, {"seed": range(count)}))
    bare = timed(lambda: [predict(spec) for spec in sweep.runs], repeat=1)
    show("predict alone, a run", *(t / count for t in bare))
    places = [("serial", 1), ("process", 1), ("process", min(2, runner.cores()))]
    try:
        import ray  # noqa: F401
    except ImportError:
        print("ray is not installed", file=sys.stderr)
    else:
        places.append(("ray", min(2, runner.cores())))
    for backend, workers in places:
        store = Store(folder / f"{backend}{workers}")
        wall, used = time.perf_counter(), cpu()
        runner.run_sweep(sweep, store, backend=backend, workers=workers)
        wall, used = time.perf_counter() - wall - bare[0], cpu() - used - bare[1]
        show(f"overhead of {backend}, {workers} workers, a run", wall / count, used / count)
    # a fresh sweep of one run: the fixed cost of a backend
    one = dataclasses.replace(sweep, runs=sweep.runs[:1])
    for backend, workers in places:
        store = Store(folder / f"one-{backend}{workers}")
        cost = timed(
            lambda b=backend, w=workers, s=store: runner.run_sweep(one, s, backend=b, workers=w),
            repeat=1,
        )
        show(f"fixed cost of {backend}, {workers} workers", *cost)


def lanes(folder: Path) -> None:
    """64 small trainings as lanes of one worker, and as one process each (extrapolated from 4)."""
    runs = grid(SMALL_TRAINING, {"seed": range(64)})
    sweep = Sweep(name="small", engine="simulation", runs=runs)
    together = timed(
        lambda: runner.run_sweep(sweep, Store(folder / "lanes"), backend="process"), repeat=1
    )
    alone = dataclasses.replace(sweep, name="alone")
    measured = 4
    wall, used = time.perf_counter(), cpu()
    for i in range(measured):
        single = dataclasses.replace(alone, runs=runs[i : i + 1])
        runner.run_sweep(single, Store(folder / f"alone{i}"), backend="process")
    wall, used = time.perf_counter() - wall, cpu() - used
    wall, used = (t / measured * len(runs) for t in (wall, used))
    show(
        "64 small trainings as lanes",
        *together,
        one_process_each_cpu_s=round(used, 1),
        one_process_each_wall_s=round(wall, 1),
        ratio=round(used / together[1], 1),
    )


if __name__ == "__main__":
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # every process compiles for itself
    with tempfile.TemporaryDirectory() as scratch:
        reading(Path(scratch))
        overhead(Path(scratch))
        lanes(Path(scratch))
