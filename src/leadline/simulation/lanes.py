"""Many runs of one program as lanes: padded to a fixed count, so that a run's numbers depend on its
spec alone; recorded, reported and saved on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from leadline.simulation import checkpoint as _checkpoint
from leadline.spec import RunSpec

Observer = Callable[[int, int], None]
"""Called with the steps done and the steps in all, summed over lanes."""

LANES = 8
"""Runs that one call of a training program advances together."""

SEGMENT_SECONDS = 2.0
"""Time between two reports of progress, and between two checkpoints."""

Run = TypeVar("Run", bound=RunSpec)
State = TypeVar("State")
Lane = TypeVar("Lane")


def stacked(rows: Sequence[Any]) -> Any:
    """Values of one structure, stacked along a new first axis."""
    return jax.tree.map(_stack, *rows)


def _stack(*leaves: Any) -> Array:
    """By NumPy, where JAX would compile every shape; keys it does not know."""
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves]))


def train_lanes(
    specs: Sequence[Run],
    *,
    record: tuple[int, ...],
    begin: Callable[[Run], tuple[State, Lane]],
    advance: Callable[[State, Lane, Array, Array], State],
    measure: Callable[[State, Lane], Mapping[str, Array]],
    checkpoint: Path | None,
    observe: Observer | None,
    count: int = LANES,
) -> dict[str, NDArray[Any]]:
    """Train `specs` and measure them at the steps `record`.

    **Arguments:** `begin` gives the state that a run starts with and what else is its own, both
    trees of arrays; `advance` takes all lanes, stacked, from one step to another, the same
    whether in one call or in several; `measure` looks at them. A `checkpoint` that exists is
    resumed. `count` is the number of lanes.

    **Returns** what `measure` found, each array with the axes (run, record, ...).
    """
    ids = [_checkpoint.identity(spec) for spec in specs]
    resumed = _checkpoint.load(checkpoint, runs=ids) if checkpoint and checkpoint.exists() else None
    first = int(resumed["first"]) if resumed else 0
    total = record[-1] * len(specs)
    found: dict[str, NDArray[Any]] = {}
    for begun in range(first, len(specs), count):
        chunk = specs[begun : begun + count]
        padded = [*chunk, *[chunk[-1]] * (count - len(chunk))]
        state, lanes = (stacked(part) for part in zip(*map(begin, padded), strict=True))
        structure, step = jax.tree.structure(state), 0
        if not found:
            shapes = jax.eval_shape(measure, state, lanes)
            found = {
                name: np.full((len(specs), len(record), *shape.shape[1:]), np.nan)
                for name, shape in shapes.items()
            }
        if resumed:
            step, leaves = int(resumed["step"]), range(structure.num_leaves)
            state = jax.tree.unflatten(structure, [jnp.asarray(resumed[f"{i}"]) for i in leaves])
            found = {name: resumed[f"found {name}"] for name in found}
            resumed = None
        else:
            _save(checkpoint, ids, begun, step, state, found)
        length = 1
        for index, target in enumerate(record):
            if target < step:
                continue
            while step < target:
                last, started = min(step + length, target), time.monotonic()
                state = advance(state, lanes, jnp.asarray(step), jnp.asarray(last))
                jax.block_until_ready(state)
                step = last
                if time.monotonic() - started < SEGMENT_SECONDS / 2:
                    length *= 2
                elif step < target:
                    _save(checkpoint, ids, begun, step, state, found)
                if observe is not None:
                    observe(begun * record[-1] + step * len(chunk), total)
            for name, values in measure(state, lanes).items():
                found[name][begun : begun + len(chunk), index] = np.asarray(values)[: len(chunk)]
    return found


def _save(
    path: Path | None,
    ids: Sequence[str],
    first: int,
    step: int,
    state: object,
    found: Mapping[str, NDArray[Any]],
) -> None:
    """Save the lanes that start with run number `first`, at `step`, and all that was found."""
    if path is None:
        return
    position = {"first": np.asarray(first), "step": np.asarray(step)}
    leaves = {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    known = {f"found {name}": values for name, values in found.items()}
    _checkpoint.save(path, position | leaves | known, runs=ids)
