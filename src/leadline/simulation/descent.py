"""Stochastic gradient descent on fresh contexts, many runs at once.

Runs that share a program advance together as lanes under `vmap`. They are padded to a fixed count,
so that the numbers of a run depend on its spec alone and not on what else was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from leadline.curve import Curve, model_width, trained
from leadline.simulation.contexts import Law, is_certain, law_of, stream
from leadline.simulation.factors import batch_loss, draw_batch
from leadline.simulation.lanes import Observer, train_lanes
from leadline.simulation.measure import clock_rate, context_losses, mean_and_error, recorded
from leadline.simulation.streams import read_in_of
from leadline.spec import RegressionRun, Training


class _Lane(NamedTuple):
    """What differs between the lanes of one training program."""

    key: Key[Array, ""]
    law: Law
    query_noise: Float[Array, ""]
    rate: Float[Array, ""]
    read_in: Float[Array, "width dim"] | None
    evaluation_key: Key[Array, ""]
    evaluation_law: Law


@dataclass(frozen=True, kw_only=True)
class _Contexts:
    """What the contexts of all lanes share: static under compilation."""

    rotated: bool
    context: int | float


@dataclass(frozen=True, kw_only=True)
class _Program:
    """What the lanes share: static under compilation."""

    depth: int
    layers: int
    dim: int
    width: int
    training: _Contexts
    batch_size: int
    queries: int | float
    evaluation: _Contexts
    contexts: int


def _batch_loss(
    gamma: Float[Array, "layer width width"], key: Key[Array, ""], lane: _Lane, program: _Program
) -> Float[Array, ""]:
    """Mean squared error on one batch of fresh contexts."""
    batch = draw_batch(
        key,
        jax.tree.map(lambda value: value.astype(gamma.dtype), lane.law),
        lane.query_noise.astype(gamma.dtype),
        None if lane.read_in is None else lane.read_in.astype(gamma.dtype),
        rotated=program.training.rotated,
        context=program.training.context,
        queries=program.queries,
        batch_size=program.batch_size,
    )
    return batch_loss(gamma, batch, depth=program.depth)


@partial(jax.jit, static_argnames=("program",), donate_argnums=(0,))
def _advance(
    gamma: Float[Array, "lane layer width width"],
    lanes: _Lane,
    first: Int[Array, ""],
    last: Int[Array, ""],
    *,
    program: _Program,
) -> Float[Array, "lane layer width width"]:
    """Steps `first` to `last` - 1 of stochastic gradient descent, in every lane."""

    def lane_steps(own: Array, lane: _Lane) -> Array:
        def step(number: Array, own: Array) -> Array:
            slope = jax.grad(_batch_loss)(own, jax.random.fold_in(lane.key, number), lane, program)
            return own - lane.rate.astype(own.dtype) * program.layers * slope

        return jax.lax.fori_loop(first, last, step, own)

    return jax.vmap(lane_steps)(gamma, lanes)


@partial(jax.jit, static_argnames=("program",))
def _evaluate(
    gamma: Float[Array, "lane layer width width"], lanes: _Lane, *, program: _Program
) -> Float[Array, "lane contexts"]:
    def lane_losses(own: Array, lane: _Lane) -> Array:
        return context_losses(
            own.astype(lane.law.inputs.dtype),
            lane.evaluation_key,
            lane.evaluation_law,
            lane.read_in,
            depth=program.depth,
            rotated=program.evaluation.rotated,
            context=program.evaluation.context,
            contexts=program.contexts,
        )

    return jax.lax.map(lambda both: lane_losses(*both), (gamma, lanes))


def _lane_of(spec: RegressionRun) -> _Lane:
    assert isinstance(spec.recipe, Training)
    return _Lane(
        key=stream(spec.seed, "training"),
        law=law_of(spec.task),
        query_noise=jnp.asarray(spec.task.query_noise, jnp.float64),
        rate=jnp.asarray(spec.recipe.rate, jnp.float64),
        read_in=read_in_of(spec),
        evaluation_key=stream(spec.evaluation.seed, "evaluation", "contexts"),
        evaluation_law=law_of(spec.evaluation.task or spec.task),
    )


def _program_of(spec: RegressionRun) -> _Program:
    assert isinstance(spec.recipe, Training)
    depth = int(spec.model.depth)
    evaluated = spec.evaluation.task or spec.task
    return _Program(
        depth=depth,
        layers=1 if spec.model.tied else depth,
        dim=int(spec.task.spectrum.dim),
        width=int(model_width(spec)),
        training=_Contexts(rotated=spec.task.covariance == "rotated", context=spec.task.context),
        batch_size=int(spec.recipe.batch_size),
        queries=spec.recipe.queries,
        evaluation=_Contexts(rotated=evaluated.covariance == "rotated", context=evaluated.context),
        contexts=1 if is_certain(evaluated) else spec.evaluation.contexts,
    )


def _record_steps(spec: RegressionRun) -> tuple[int, ...]:
    assert isinstance(spec.recipe, Training)
    return spec.evaluation.record or (spec.recipe.steps,)


def descend(
    specs: Sequence[RegressionRun], *, checkpoint: Path | None, observe: Observer | None
) -> list[Curve]:
    """The curves of trainings that share one program."""
    program = _program_of(specs[0])
    start = jnp.zeros((program.layers, program.width, program.width), jnp.float32)
    found = train_lanes(
        specs,
        record=_record_steps(specs[0]),
        begin=lambda spec: (start, _lane_of(spec)),
        advance=partial(_advance, program=program),
        measure=lambda gamma, lanes: {
            "losses": _evaluate(gamma, lanes, program=program),
            "diagonals": jnp.diagonal(gamma, axis1=-2, axis2=-1),
        },
        checkpoint=checkpoint,
        observe=observe,
    )
    return [_curve(*row) for row in zip(specs, found["losses"], found["diagonals"], strict=True)]


def _curve(
    spec: RegressionRun, losses: np.ndarray[Any, Any], diagonals: np.ndarray[Any, Any]
) -> Curve:
    assert isinstance(spec.recipe, Training)
    step = np.asarray(_record_steps(spec), np.int64)
    mean, error = mean_and_error(losses, certain=is_certain(spec.evaluation.task or spec.task))
    return trained(
        spec,
        step=step,
        time=step * np.float64(spec.recipe.rate / clock_rate(spec)),
        loss=mean,
        error=error,
        status="ok" if np.isfinite(mean).all() else "diverged",
        scalars={"gamma": float(diagonals[-1].mean())},
        measures=recorded(spec, diagonals),
    )
