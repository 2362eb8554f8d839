"""Sweeps, and a process that runs one of them: started, killed and started again by the tests.

`python coordinator.py NAME STORE BACKEND WORKERS [WRITE]` dies between the writing and the
renaming of the part with that number.
"""

import math
import os
import signal
import sys

from leadline.spec import (
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Sweep,
    Training,
    flat,
    grid,
)

BASE = RunSpec(
    task=InContextRegression(spectrum=flat(16), covariance="isotropic", context=32),
    model=ReducedAttention(depth=2),
    recipe=GivenScale(gamma=0.5),
)


def theory() -> Sweep:
    """Runs of some 20 milliseconds each."""
    flow = GradientFlow(times=tuple(float(t) for t in range(1, 12)))
    axes = {
        "recipe": [flow],
        "model.depth": range(1, 9),
        "task.noise": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
    }
    return Sweep(name="theory", engine="theory", runs=grid(BASE, axes))


def quick() -> Sweep:
    """Runs that take no time."""
    axes = {"recipe.gamma": [0.01 * i for i in range(60)]}
    return Sweep(name="quick", engine="theory", runs=grid(BASE, axes))


def training() -> Sweep:
    """One program, two groups, a few seconds each: long enough for checkpoints."""
    recipe = Training(steps=4000, batch_size=8, queries=math.inf, rate=0.1)
    evaluation = Evaluation(contexts=8, record=(0, 2000, 4000), measures=("scale",))
    base = RunSpec(task=BASE.task, model=BASE.model, recipe=recipe, evaluation=evaluation)
    return Sweep(name="training", engine="simulation", runs=grid(base, {"seed": range(12)}))


SWEEPS = {"theory": theory, "quick": quick, "training": training}


def die_at_write(number: int) -> None:
    """Kill this process before the renaming of the `number`-th part, counted from 0."""
    rename, parts = os.replace, iter(range(number))

    def fatal(source, target) -> None:
        if str(target).endswith(".parquet") and next(parts, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.replace = fatal


if __name__ == "__main__":
    # a shell that runs tests in the background has its children ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from leadline.errors import LeadlineError
    from leadline.sweeps import runner
    from leadline.sweeps.store import Store

    name, root, backend, workers, *write = sys.argv[1:]
    runner.WRITE_SECONDS = 0.1  # many parts in little time
    if write:
        die_at_write(int(write[0]))
    try:
        summary = runner.run_sweep(
            SWEEPS[name](), Store(root), backend=backend, workers=int(workers)
        )
    except runner.SweepInterrupted as stop:
        print(stop.summary)
        sys.exit(stop.summary.exit_code)
    except LeadlineError as error:
        sys.exit(str(error))
    print(summary)
    sys.exit(summary.exit_code)
