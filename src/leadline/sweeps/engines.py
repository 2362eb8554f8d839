"""One group of runs, answered by its engine. This is what every backend executes.

Nothing heavy is imported before a group is answered: a worker fixes its threads first.
"""

from __future__ import annotations

import json
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.ident import Engine
from leadline.spec import RunSpec

if TYPE_CHECKING:
    from leadline.curve import Curve

PACKAGES = ("leadline", "numpy", "scipy", "polars", "jax", "jaxlib")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that are answered together.

    **Arguments:** `checkpoint` is the file that keeps the state of an unfinished training.
    """

    engine: Engine
    specs: tuple[RunSpec, ...]
    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why the runs at the positions `members` of a group have no answer."""

    members: tuple[int, ...]
    error: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a group: a curve for each run that has one, in order, the seconds that each
    took, the failures, and the machine.
    """

    curves: tuple[Curve | None, ...]
    seconds: tuple[float, ...]
    failures: tuple[Failure, ...]
    host: str
    device: str
    packages: str


Observe = Callable[[float], None]
"""Called with the share of a group that is done, while it is being answered."""

Solve = Callable[[Group, Observe], Answer]


def solve(group: Group, observe: Observe) -> Answer:
    """Answer `group` by its engine. An exception becomes a `Failure`: of one run in theory, whose
    runs do not depend on each other, of the whole group in simulation.
    """
    if group.engine == "theory":
        from leadline.theory.predict import predict

        return answer(group, [((i,), lambda s=s: [predict(s)]) for i, s in enumerate(group.specs)])
    from leadline.simulation.train import train

    def together() -> list[Curve]:
        return train(
            group.specs,
            checkpoint=_checkpoint(group),
            observe=lambda done, steps: observe(done / max(steps, 1)),
        )

    return answer(group, [(tuple(range(len(group.specs))), together)])


def answer(
    group: Group, calls: Iterable[tuple[tuple[int, ...], Callable[[], list[Curve]]]]
) -> Answer:
    """Make `calls`, each of which answers some positions of `group`."""
    curves: list[Curve | None] = [None] * len(group.specs)
    seconds = [0.0] * len(group.specs)
    failures: list[Failure] = []
    for members, call in calls:
        started = time.perf_counter()
        try:
            found = call()
        except Exception as error:
            failures.append(_failure(members, error))
        else:
            for position, curve in zip(members, found, strict=True):
                curves[position] = curve
        share = (time.perf_counter() - started) / len(members)
        for position in members:
            seconds[position] = share
    return Answer(
        curves=tuple(curves),
        seconds=tuple(seconds),
        failures=tuple(failures),
        host=platform.node(),
        device=_device(group.engine),
        packages=_packages(),
    )


def attempt(solve: Solve, group: Group, observe: Observe) -> Answer:
    """`solve(group, observe)`, an exception outside its engine included in the answer."""
    try:
        return solve(group, observe)
    except Exception as error:
        return _unanswered(group, _failure(tuple(range(len(group.specs))), error))


def lost(group: Group, reason: str) -> Answer:
    """The answer for a group whose worker cannot answer any more."""
    everything = tuple(range(len(group.specs)))
    return _unanswered(group, Failure(members=everything, error=reason, traceback=reason))


def _unanswered(group: Group, failure: Failure) -> Answer:
    count = len(group.specs)
    return Answer(
        curves=(None,) * count,
        seconds=(0.0,) * count,
        failures=(failure,),
        host=platform.node(),
        device="",
        packages="",
    )


def _failure(members: tuple[int, ...], error: Exception) -> Failure:
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return Failure(
        members=members, error=line, traceback="".join(traceback.format_exception(error))
    )


def _checkpoint(group: Group) -> Path | None:
    """The checkpoint, if its folder is there: a worker on another machine may not share it."""
    path = group.checkpoint
    return path if path is not None and os.access(path.parent, os.W_OK) else None


@cache
def _device(engine: Engine) -> str:
    if engine == "theory":
        return f"{platform.machine()} cpu"
    import jax

    device = jax.devices()[0]
    return f"{device.device_kind} {device.platform}"


@cache
def _packages() -> str:
    """Versions of Python and of what the numbers depend on, as JSON."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return json.dumps(versions)
