"""Which runs a call answers, and which of them are answered together."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from leadline.errors import LeadlineError, SpecError
from leadline.ident import run_id
from leadline.spec import GradientFlow, RunSpec, Sweep, Training

POINTS = 256
"""Points of one landscape that are answered together, on the same contexts."""


def wanted_runs(
    sweep: Sweep, *, shard: tuple[int, int], stored: Collection[str] = ()
) -> dict[str, RunSpec]:
    """The runs of one shard (i, n) of `sweep` by id, each once.

    Shards are disjoint, cover the sweep, and keep together the trainings that run as lanes of one
    program. If all of the sweep is among `stored`, so is every shard, and the sweep is returned
    undivided.

    **Raises:** `SpecError` unless 0 <= i < n.
    """
    index, count = shard
    if not 0 <= index < count:
        raise SpecError(f"shard: got {index} of {count}, expected 0 <= index < count")
    wanted = {run_id(spec, engine=sweep.engine): spec for spec in sweep.runs}
    if count == 1 or all(name in stored for name in wanted):
        return wanted
    if sweep.engine == "theory":
        return dict(list(wanted.items())[index::count])
    return {name: spec for group in lanes(wanted)[index::count] for name, spec in group.items()}


def lanes(runs: Mapping[str, RunSpec]) -> list[dict[str, RunSpec]]:
    """Simulated runs in groups that share a program, trainings and flows at most as many as it has
    lanes.

    **Raises:** `SpecError` if JAX is not installed.
    """
    try:
        from leadline.simulation.train import LANES, program_key
    except ImportError as error:
        raise SpecError(
            f"sweep.engine: simulation needs JAX ({error}); install leadline[simulation]"
        ) from None
    programs: dict[Hashable, list[str]] = {}
    for name, spec in runs.items():
        try:
            key = program_key(spec)
        except LeadlineError as error:  # the engine refuses it again, and that is recorded
            key = str(error)
        programs.setdefault(key, []).append(name)
    groups: list[dict[str, RunSpec]] = []
    for names in programs.values():
        size = LANES if isinstance(runs[names[0]].recipe, Training | GradientFlow) else POINTS
        groups += [
            {name: runs[name] for name in names[first : first + size]}
            for first in range(0, len(names), size)
        ]
    return groups
