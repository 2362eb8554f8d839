r"""Training where features of every kind are present: the other features of a token are Gaussian
noise of one size, or have the variances $k^{-\tau}$ of a source and capacity condition.

Blocks no longer separate. What trains is the layer itself, $\hat f = v_s^TCW\hat\phi$ with
$C = \Phi\Phi^T$ of every sequence, a value vector of all coordinates for each type and one matrix
$W$; it starts as the blocks do, zero elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import NDArray

from leadline.simulation.blocks import starting_blocks, training_types
from leadline.simulation.contexts import stream
from leadline.simulation.lanes import Observer, train_lanes
from leadline.simulation.optimizers import Rule, descended, optimizer_of, rule_of
from leadline.simulation.sequences import draw_tokens, draw_types, numbers_of, other_deviations
from leadline.spec import SparseRun, Training


@dataclass(frozen=True, kw_only=True)
class _Program:
    """What the lanes share: static under compilation."""

    rule: Rule
    batch_size: int
    """Zero where every step sees all the data."""
    fixed: bool
    longest: int


class _Parameters(NamedTuple):
    value: Float[Array, "task coordinate"]
    weight: Float[Array, "coordinate task"]


class _Moments(NamedTuple):
    """What the layer sees of sequences."""

    types: Int[Array, "sequence"]
    matrices: Float[Array, "sequence coordinate coordinate"]
    queries: Float[Array, "sequence task"]
    targets: Float[Array, "sequence"]


class _Lane(NamedTuple):
    """What differs between lanes."""

    key: Key[Array, ""]
    rate: Float[Array, ""]
    weight_decay: Float[Array, ""]
    probability: Float[Array, "task"]
    context: Float[Array, "task"]
    strength: Float[Array, "task"]
    others: Float[Array, "task task"]
    data: _Moments
    """All the data; of fresh sequences none."""
    evaluation: tuple[_Moments, _Moments]
    """As many sequences of every type, in their order; and the same with all other features
    reversed, so that what is odd in them averages out.
    """


@partial(jax.jit, static_argnames=("longest",))
def _moments(
    key: Key[Array, ""], types: Int[Array, "sequence"], *tables: Array, longest: int
) -> _Moments:
    sequences = draw_tokens(key, types, *tables, longest=longest)
    tokens = sequences.tokens
    matrices = jnp.einsum("nct,ndt->ncd", tokens, tokens)
    return _Moments(types, matrices, tokens[:, :-1, -1], sequences.targets)


def _predictions(parameters: _Parameters, batch: _Moments) -> Float[Array, "sequence"]:
    kinds = jax.nn.one_hot(batch.types, len(parameters.value), dtype=batch.queries.dtype)
    asked = batch.queries @ parameters.weight.T
    return jnp.einsum("nc,ncd,nd->n", kinds @ parameters.value, batch.matrices, asked)


def _loss(parameters: _Parameters, batch: _Moments) -> Float[Array, ""]:
    return jnp.mean((_predictions(parameters, batch) - batch.targets) ** 2)


def _batch(key: Key[Array, ""], lane: _Lane, program: _Program) -> _Moments:
    size = program.batch_size
    if not size:
        return lane.data
    first, second = jax.random.split(key)
    if program.fixed:
        drawn = jax.random.randint(first, (size,), 0, len(lane.data.types))
        return _Moments(*(part[drawn] for part in lane.data))
    types = draw_types(first, lane.probability, size)
    tables = (lane.context, lane.strength, lane.others)
    return _moments(second, types, *tables, longest=program.longest)


@partial(jax.jit, static_argnames=("program",))
def _advance(
    state: Any, lanes: _Lane, first: Int[Array, ""], last: Int[Array, ""], *, program: _Program
) -> Any:
    """Steps `first` to `last` - 1, in every lane."""

    def slope_of(parameters: _Parameters, key: Array, lane: _Lane) -> _Parameters:
        return jax.grad(_loss)(parameters, _batch(key, lane, program))

    def lane_steps(state: Any, lane: _Lane) -> Any:
        return descended(
            state,
            partial(slope_of, lane=lane),
            optimizer=optimizer_of(program.rule, rate=lane.rate, weight_decay=lane.weight_decay),
            key=lane.key,
            first=first,
            last=last,
        )

    return jax.vmap(lane_steps)(state, lanes)


@jax.jit
def _measure(state: Any, lanes: _Lane) -> dict[str, Array]:
    """Means over the sequences of every type: of the prediction times the sign of the query's own
    feature, of the squared error, and the variance of that mean.
    """

    def one(parameters: _Parameters, lane: _Lane) -> dict[str, Array]:
        outputs: list[Array] = []
        squares: list[Array] = []
        for batch in lane.evaluation:
            predicted = _predictions(parameters, batch)
            own = jnp.take_along_axis(batch.queries, batch.types[:, None], axis=1)[:, 0]
            outputs.append(predicted * own)
            squares.append((predicted - batch.targets) ** 2)
        output, square = (
            jnp.mean(jnp.stack(both), axis=0).reshape(len(lane.strength), -1)
            for both in (outputs, squares)
        )
        spread = jnp.var(square, axis=1) / max(square.shape[1] - 1, 1)
        return {"output": output.mean(1), "square": square.mean(1), "variance": spread}

    return jax.vmap(one)(state[0], lanes)


def _program_of(spec: SparseRun) -> _Program:
    recipe = spec.recipe
    assert isinstance(recipe, Training)
    return _Program(
        rule=rule_of(recipe),
        batch_size=0 if math.isinf(recipe.batch_size) else int(recipe.batch_size),
        fixed=math.isfinite(spec.task.sequences),
        longest=int(numbers_of(spec.task).context.max()),
    )


def program_shape(spec: SparseRun) -> tuple[Any, ...]:
    """What the compiled program depends on beside the number of types and of recorded steps."""
    evaluation = spec.evaluation
    return (_program_of(spec), spec.task.sequences, evaluation.record, evaluation.contexts)


def _lane_of(spec: SparseRun, program: _Program) -> tuple[Any, _Lane]:
    recipe, numbers, evaluation = spec.recipe, numbers_of(spec.task), spec.evaluation
    assert isinstance(recipe, Training)
    count, types = len(numbers.strength), training_types(spec)
    context, strength = jnp.asarray(numbers.context), jnp.asarray(numbers.strength)
    others = jnp.asarray(other_deviations(spec.task))
    new = evaluation.strength
    seen = strength if new is None else jnp.full_like(strength, new)
    draw = partial(_moments, longest=program.longest)
    shown = partial(
        draw,
        stream(evaluation.seed, "evaluation", "tokens"),
        jnp.repeat(jnp.arange(count), evaluation.contexts),
        context,
        seen,
    )
    lane = _Lane(
        key=stream(spec.seed, "training"),
        rate=jnp.asarray(recipe.rate),
        weight_decay=jnp.asarray(recipe.weight_decay),
        probability=jnp.asarray(numbers.probability),
        context=context,
        strength=strength,
        others=others,
        data=draw(
            stream(spec.seed, "training", "tokens"),
            jnp.zeros(0, jnp.int32) if types is None else types,
            context,
            strength,
            others,
        ),
        evaluation=(shown(others), shown(-others)),
    )
    v, w = starting_blocks(spec)
    own = np.arange(count)
    value, weight = np.zeros((count, count + 1)), np.zeros((count + 1, count))
    value[own, own], value[:, -1] = v[:, 0], v[:, 1]
    weight[own, own], weight[-1] = w[:, 0], w[:, 1]
    parameters = _Parameters(jnp.asarray(value), jnp.asarray(weight))
    optimizer = optimizer_of(program.rule, rate=lane.rate, weight_decay=lane.weight_decay)
    return (parameters, optimizer.init(parameters)), lane


def descend(
    specs: Sequence[SparseRun], *, checkpoint: Path | None, observe: Observer | None
) -> dict[str, NDArray[Any]]:
    """The mean "output", the mean "square" of the error of every type and the "variance" of the
    latter, of trainings that share one program: (run, record, task).
    """
    program, recipe = _program_of(specs[0]), specs[0].recipe
    assert isinstance(recipe, Training)
    return train_lanes(
        specs,
        record=specs[0].evaluation.record or (recipe.steps,),
        begin=partial(_lane_of, program=program),
        advance=partial(_advance, program=program),
        measure=_measure,
        checkpoint=checkpoint,
        observe=observe,
    )
