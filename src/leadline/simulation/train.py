"""Training: one compiled program for each `program_key`, many lanes.

Lanes run together under `vmap`. They are padded to a fixed count, so that the numbers of a run
depend on its spec alone and not on what else was asked.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from leadline.curve import Curve, Measure, Status, point, trained
from leadline.errors import SolverError, SpecError, nearest
from leadline.ident import run_id
from leadline.simulation import checkpoint as _checkpoint
from leadline.simulation import landscape
from leadline.simulation.contexts import Law, draw, law_of, sample_covariance, stream, turn
from leadline.simulation.measure import context_losses
from leadline.simulation.models import tokens_are_cheaper, weights
from leadline.spec import BestScale, GivenScale, GradientFlow, RunSpec, Training

Observer = Callable[[int, int], None]
"""Called with the steps done and the steps in all, summed over lanes."""

LANES = 8
"""Runs that one call of a training program advances together."""

MEASURES = {
    "scale": "mean diagonal of each layer's matrix: (record, layer)",
    "diagonal": "diagonal of each layer's matrix: (record, layer, dim)",
}
"""What `Evaluation.measures` may ask of a training, beside the loss."""

SEGMENT_SECONDS = 2.0
"""Time between two reports of progress, and between two checkpoints."""


def program_key(spec: RunSpec) -> Hashable:
    """What the compiled program of `spec` depends on. Specs with equal keys train together; seed,
    rate, spectrum and noise are values of a lane.

    **Raises:** `SolverError` for what only theory can answer.
    """
    task, model, recipe, evaluation = spec.task, spec.model, spec.recipe, spec.evaluation
    if model.width is not None:
        raise SolverError("model.width: simulation of a narrower stream is not available")
    if not math.isinf(evaluation.queries):
        raise SolverError(
            f"evaluation.queries: got {evaluation.queries}; the reduced model is evaluated "
            "exactly over queries, leave it at infinity"
        )
    common = (task.covariance, task.context, evaluation.contexts)
    if isinstance(recipe, GivenScale | BestScale):
        quiet = dataclasses.replace(task, noise=0.0, query_noise=0.0)
        return (type(recipe).__name__, quiet, evaluation)
    if isinstance(recipe, GradientFlow):
        raise SolverError("recipe: GradientFlow is answered by theory; simulation takes Training")
    if math.isinf(recipe.batch_size) or math.isinf(model.depth):
        raise SolverError(
            "recipe.batch_size and model.depth: infinity is answered by theory; simulation needs "
            "finite values"
        )
    for name in evaluation.measures:
        if name not in MEASURES:
            raise SpecError(
                f"evaluation.measures: got {name!r}, expected some of {', '.join(MEASURES)}"
                f"{nearest(name, MEASURES)}"
            )
    recipe_shape = (recipe.steps, recipe.batch_size, recipe.queries)
    model_shape = (model.depth, model.tied)
    record = (evaluation.record, evaluation.measures)
    return ("Training", *common, task.spectrum.dim, model_shape, recipe_shape, record)


def train(
    specs: Sequence[RunSpec],
    *,
    checkpoint: Path | None = None,
    observe: Observer | None = None,
) -> list[Curve]:
    """Answer `specs`, which share one `program_key`, by simulation.

    **Arguments:** `checkpoint` names a file that holds the state of an unfinished training: it is
    resumed if it exists, and removed at the end; `observe` is told of progress.

    **Returns** one `Curve` a spec, in order. The loss is averaged exactly over queries, task
    vectors and label noise, and over `evaluation.contexts` sampled contexts; `loss_error` is its
    standard error over contexts.

    **Raises:** `SolverError` where only theory has an answer, or for specs of several programs.
    """
    keys = {program_key(spec) for spec in specs}
    if len(keys) > 1:
        raise SolverError(f"train: got specs of {len(keys)} programs; call it once for each")
    if not specs:
        return []
    with jax.enable_x64(True):
        if isinstance(specs[0].recipe, Training):
            return _train(specs, checkpoint=checkpoint, observe=observe)
        return _landscape(specs)


def _landscape(specs: Sequence[RunSpec]) -> list[Curve]:
    task, evaluation = specs[0].task, specs[0].evaluation

    def contexts(name: str) -> landscape.Modes:
        return landscape.decompose(
            stream(evaluation.seed, "evaluation", name),
            law_of(task, dtype=jnp.dtype(jnp.float64)),
            rotated=task.covariance == "rotated",
            context=task.context,
            contexts=evaluation.contexts,
        )

    lanes = landscape.Lanes(
        jnp.asarray([getattr(s.recipe, "gamma", 0.0) for s in specs]),
        jnp.asarray([float(s.model.depth) for s in specs]),
        jnp.asarray([s.task.noise for s in specs]),
    )
    if isinstance(specs[0].recipe, BestScale):
        # The minimum over the contexts that measure the loss would lie too low.
        lanes = lanes._replace(gamma=landscape.best_scales(contexts("scale"), lanes))
    modes = contexts("contexts")
    losses = landscape.lane_losses(modes, lanes)
    gammas = np.asarray(lanes.gamma)
    edge = 2 / float(jnp.max(modes.eigenvalues))
    curves: list[Curve] = []
    for spec, gamma, values in zip(specs, gammas, losses, strict=True):
        mean, error = _mean_and_error(values)
        stable = math.isinf(spec.model.depth) or gamma / spec.model.depth <= edge
        status: Status = "diverged" if not np.isfinite(mean) else "ok" if stable else "unstable"
        scalars = {"gamma": float(gamma)}
        curves.append(point(float(mean), error=float(error), status=status, scalars=scalars))
    return curves


def _mean_and_error(values: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Mean over the last axis, and its standard error."""
    count = values.shape[-1]
    if count == 1:
        return values.mean(-1), np.full(values.shape[:-1], np.nan)
    return values.mean(-1), values.std(-1, ddof=1) / math.sqrt(count)


class _Lane(NamedTuple):
    """What differs between the lanes of one training program."""

    key: Key[Array, ""]
    evaluation_key: Key[Array, ""]
    law: Law
    query_noise: Float[Array, ""]
    rate: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Program:
    """What the lanes share: static under compilation."""

    depth: int
    layers: int
    dim: int
    rotated: bool
    context: int | float
    batch_size: int
    queries: int | float
    contexts: int


def _batch_loss(
    gamma: Float[Array, "layer dim dim"], key: Key[Array, ""], lane: _Lane, program: _Program
) -> Float[Array, ""]:
    """Mean squared error on one batch of fresh contexts."""
    law = Law(*(value.astype(gamma.dtype) for value in lane.law))
    context, dim = program.context, program.dim
    by_tokens = not math.isinf(context) and tokens_are_cheaper(
        dim=dim, context=context, depth=program.depth
    )

    def one(key: Key[Array, ""]) -> Array:
        context_key, task_key, noise_key, query_key = jax.random.split(key, 4)
        drawn = draw(context_key, law, rotated=program.rotated, context=context)
        white = jax.random.normal(task_key, (dim,), gamma.dtype)
        task = turn(drawn.basis, jnp.sqrt(law.tasks) * white)
        covariance = None if by_tokens else sample_covariance(drawn, law)
        if drawn.inputs is None:
            assert covariance is not None
            moment = covariance @ task
        else:
            noise = jax.random.normal(noise_key, (drawn.inputs.shape[1],), gamma.dtype)
            labels = drawn.inputs.T @ task + law.noise * noise
            moment = drawn.inputs @ labels / drawn.inputs.shape[1]
        wrong = weights(gamma, covariance, drawn.inputs, moment, depth=program.depth) - task
        if math.isinf(program.queries):
            inside = wrong if drawn.basis is None else drawn.basis.T @ wrong
            return jnp.sum(law.inputs * inside**2)
        key_inputs, key_noise = jax.random.split(query_key)
        count = int(program.queries)
        white = jax.random.normal(key_inputs, (dim, count), gamma.dtype)
        queries = turn(drawn.basis, jnp.sqrt(law.inputs)[:, None] * white)
        noise = jax.random.normal(key_noise, (count,), gamma.dtype)
        return jnp.mean((queries.T @ wrong - lane.query_noise.astype(gamma.dtype) * noise) ** 2)

    return jnp.mean(jax.vmap(one)(jax.random.split(key, program.batch_size)))


@partial(jax.jit, static_argnames=("program",), donate_argnums=(0,))
def _advance(
    gamma: Float[Array, "lane layer dim dim"],
    lanes: _Lane,
    first: Int[Array, ""],
    last: Int[Array, ""],
    *,
    program: _Program,
) -> Float[Array, "lane layer dim dim"]:
    """Steps `first` to `last` - 1 of stochastic gradient descent, in every lane."""

    def lane_steps(own: Array, lane: _Lane) -> Array:
        def step(number: Array, own: Array) -> Array:
            slope = jax.grad(_batch_loss)(own, jax.random.fold_in(lane.key, number), lane, program)
            return own - lane.rate.astype(own.dtype) * program.layers * slope

        return jax.lax.fori_loop(first, last, step, own)

    return jax.vmap(lane_steps)(gamma, lanes)


@partial(jax.jit, static_argnames=("program",))
def _evaluate(
    gamma: Float[Array, "lane layer dim dim"], lanes: _Lane, *, program: _Program
) -> Float[Array, "lane contexts"]:
    def lane_losses(own: Array, lane: _Lane) -> Array:
        return context_losses(
            own.astype(lane.law.inputs.dtype),
            lane.evaluation_key,
            lane.law,
            depth=program.depth,
            rotated=program.rotated,
            context=program.context,
            contexts=program.contexts,
        )

    return jax.lax.map(lambda both: lane_losses(*both), (gamma, lanes))


def _lane_of(spec: RunSpec) -> _Lane:
    assert isinstance(spec.recipe, Training)
    dtype = jnp.dtype(jnp.float64)
    return _Lane(
        key=stream(spec.seed, "training"),
        evaluation_key=stream(spec.evaluation.seed, "evaluation", "contexts"),
        law=law_of(spec.task, dtype=dtype),
        query_noise=jnp.asarray(spec.task.query_noise, dtype),
        rate=jnp.asarray(spec.recipe.rate, dtype),
    )


def _program_of(spec: RunSpec) -> _Program:
    assert isinstance(spec.recipe, Training)
    depth = int(spec.model.depth)
    return _Program(
        depth=depth,
        layers=1 if spec.model.tied else depth,
        dim=int(spec.task.spectrum.dim),
        rotated=spec.task.covariance == "rotated",
        context=spec.task.context,
        batch_size=int(spec.recipe.batch_size),
        queries=spec.recipe.queries,
        contexts=spec.evaluation.contexts,
    )


def _record_steps(spec: RunSpec) -> tuple[int, ...]:
    assert isinstance(spec.recipe, Training)
    return spec.evaluation.record or (spec.recipe.steps,)


def _train(
    specs: Sequence[RunSpec], *, checkpoint: Path | None, observe: Observer | None
) -> list[Curve]:
    ids = [run_id(spec, engine="simulation") for spec in specs]
    program, record = _program_of(specs[0]), _record_steps(specs[0])
    total = record[-1] * len(specs)
    resumed = _checkpoint.load(checkpoint, runs=ids) if checkpoint and checkpoint.exists() else None
    losses = np.full((len(specs), len(record), program.contexts), np.nan)
    diagonals = np.full((len(specs), len(record), program.layers, program.dim), np.nan)
    begin, step, gamma = 0, 0, None
    if resumed:
        losses, diagonals = resumed["losses"], resumed["diagonals"]
        begin, step = int(resumed["begin"]), int(resumed["step"])
        gamma = jnp.asarray(resumed["gamma"])

    def save(begin: int, step: int, gamma: Array) -> None:
        if checkpoint is not None:
            state = {"losses": losses, "diagonals": diagonals, "gamma": np.asarray(gamma)}
            position = {"begin": np.asarray(begin), "step": np.asarray(step)}
            _checkpoint.save(checkpoint, state | position, runs=ids)

    while begin < len(specs):
        chunk = specs[begin : begin + LANES]
        padded = [*chunk, *[chunk[-1]] * (LANES - len(chunk))]
        lanes = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(_lane_of, padded))
        rows = slice(begin, begin + len(chunk))
        if gamma is None:
            gamma = jnp.zeros((LANES, program.layers, program.dim, program.dim), jnp.float32)
            save(begin, step, gamma)
        length = 1
        for index, target in enumerate(record):
            if target < step:
                continue
            while step < target:
                last = min(step + length, target)
                started = time.monotonic()
                gamma = _advance(
                    gamma, lanes, jnp.asarray(step), jnp.asarray(last), program=program
                )
                gamma.block_until_ready()
                step = last
                if time.monotonic() - started < SEGMENT_SECONDS / 2:
                    length *= 2
                elif step < target:
                    save(begin, step, gamma)
                if observe is not None:
                    observe(begin * record[-1] + step * len(chunk), total)
            losses[rows, index] = np.asarray(_evaluate(gamma, lanes, program=program))[: len(chunk)]
            diagonal = np.diagonal(np.asarray(gamma), axis1=-2, axis2=-1)
            diagonals[rows, index] = diagonal[: len(chunk)]
        begin, step, gamma = begin + LANES, 0, None
        if begin < len(specs):
            save(
                begin, 0, jnp.zeros((LANES, program.layers, program.dim, program.dim), jnp.float32)
            )
    curves = [_curve(*row) for row in zip(specs, losses, diagonals, strict=True)]
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return curves


def _curve(spec: RunSpec, losses: np.ndarray[Any, Any], diagonals: np.ndarray[Any, Any]) -> Curve:
    assert isinstance(spec.recipe, Training)
    step = np.asarray(_record_steps(spec), np.int64)
    mean, error = _mean_and_error(losses)
    values = {"scale": diagonals.mean(axis=-1), "diagonal": diagonals}
    return trained(
        spec,
        step=step,
        time=step * np.float64(spec.recipe.rate / spec.task.spectrum.dim),
        loss=mean,
        error=error,
        status="ok" if np.isfinite(mean).all() else "diverged",
        scalars={"gamma": float(diagonals[-1].mean())},
        measures=tuple(Measure(name=n, values=values[n]) for n in spec.evaluation.measures),
    )
