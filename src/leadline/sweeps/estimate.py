"""What a sweep will cost, before it runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from leadline.curve import unit_flops
from leadline.spec import RunSpec, Sweep, Training
from leadline.sweeps import backends
from leadline.sweeps.engines import Group, solve
from leadline.sweeps.groups import lanes, wanted_runs
from leadline.sweeps.store import Store, read_parts, stored_ids

SAMPLE = 8
"""Runs of a theory sweep that are measured."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The size of a sweep.

    **Arguments:** `runs` in this shard, `stored` of them already; `groups` to answer; `flops` of
    the missing trainings, by the convention of `Curve.flops`; `seconds` of wall time, measured on
    one group and scaled, None where there is nothing to do or that group failed; `error` of that
    group; `skipped` pairs torn or foreign parts of the store with the reason.
    """

    sweep: str
    runs: int
    stored: int
    groups: int
    flops: float
    seconds: float | None
    error: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = [f"{name}: skipped: {reason}" for name, reason in self.skipped]
        lines.append(
            f"{self.sweep}: {self.runs} runs, {self.stored} stored, {self.groups} groups to answer"
        )
        if self.flops:
            lines.append(f"{self.flops:.3g} FLOPs of training")
        if self.error is not None:
            lines.append(f"the measured group failed: {self.error}")
        if self.seconds is not None:
            lines.append(f"about {self.seconds / 60:.2g} minutes, measured on one group")
        return "\n".join(lines)


def estimate(
    sweep: Sweep, store: Store, *, workers: int = 1, shard: tuple[int, int] = (0, 1)
) -> Estimate:
    """Count what is missing from `store`, and answer one group of it to measure the time. Nothing
    is stored.

    The group measured is that of median FLOPs among the trainings; `SAMPLE` runs, evenly spaced,
    of a theory sweep.
    """
    parts = read_parts(store, columns=("run_id",))
    stored = stored_ids(parts)
    wanted = wanted_runs(sweep, shard=shard, stored=stored)
    todo = {name: spec for name, spec in wanted.items() if name not in stored}
    if sweep.engine == "theory":
        groups = [(spec,) for spec in todo.values()]
        measured = [spec for (spec,) in groups[:: -(-len(groups) // SAMPLE) or 1]]
        share = len(measured) / len(groups) if groups else 1.0
    else:
        groups = [tuple(group.values()) for group in lanes(todo)]
        costs = sorted((sum(map(flops, g)) or 1.0, i) for i, g in enumerate(groups))
        cost, middle = costs[len(costs) // 2] if costs else (1.0, 0)
        measured = list(groups[middle]) if groups else []
        share = cost / sum(c for c, _ in costs) if costs else 1.0
    seconds, error = _measure(sweep, measured) if measured else (None, None)
    return Estimate(
        sweep=sweep.name,
        runs=len(wanted),
        stored=len(wanted) - len(todo),
        groups=len(groups),
        flops=sum(map(flops, todo.values())),
        seconds=None if seconds is None else seconds / share / min(workers, len(groups)),
        error=error,
        skipped=parts.skipped,
    )


def flops(spec: RunSpec) -> float:
    """FLOPs of a training; 0 where nothing is trained step by step."""
    recipe = spec.recipe
    return recipe.steps * unit_flops(spec) if isinstance(recipe, Training) else 0.0


def _measure(sweep: Sweep, specs: list[RunSpec]) -> tuple[float | None, str | None]:
    group = Group(engine=sweep.engine, specs=tuple(specs))
    answers = backends.process(solve, iter([group]), observe=lambda *_: None, workers=1)
    with closing(answers):
        _, answer = next(answers)
    if answer.failures:
        return None, answer.failures[0].error
    return sum(answer.seconds), None
