r"""Training on sparse features, in blocks: gradient descent, Adam or AdamW on sampled sequences or
on their average, many runs at once as lanes.

Linear attention sees a batch through the number of its sequences of each type alone, squares of
signs being one. Softmax attention also sees how many signs agree with the query's: a batch is a
list of cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import NDArray

from leadline.simulation import blocks as _linear
from leadline.simulation import softmax
from leadline.simulation.contexts import stream
from leadline.simulation.lanes import Observer, train_lanes
from leadline.simulation.optimizers import Rule, descended, optimizer_of, rule_of
from leadline.simulation.sequences import draw_types, numbers_of
from leadline.spec import SparseRun, Training


@dataclass(frozen=True, kw_only=True)
class _Program:
    """What the lanes share: static under compilation."""

    rule: Rule
    attention: Literal["linear", "softmax"]
    batch_size: int
    """Zero where every step sees all the data."""
    fixed: bool
    """Whether the training sequences are drawn once."""
    longest: int
    """Tokens of the longest context; zero where no batch needs it."""


class _Lane(NamedTuple):
    """What differs between lanes."""

    key: Key[Array, ""]
    rate: Float[Array, ""]
    weight_decay: Float[Array, ""]
    probability: Float[Array, "every"]
    """Of all types, also those that the model lacks."""
    shares: Float[Array, "every"]
    """Of the types in all the data."""
    cases: softmax.Cases
    """All the data of softmax attention; types alone of linear attention."""
    context: Float[Array, "task"]
    strength: Float[Array, "task"]
    matrices: Float[Array, "task 2 2"]
    seen: Float[Array, "task"]
    """Strengths of the evaluation, and the matrices that belong to them."""
    seen_matrices: Float[Array, "task 2 2"]
    learns: Bool[Array, "2 2"]
    """Which coordinates of v and of w learn."""
    shared: Bool[Array, ""]
    """Whether the label coordinate of v is one number for all types."""
    average: tuple[Float[Array, "task node"], Float[Array, "task node"]]
    """Counts and weights of the average over signs; of softmax attention alone."""


def _outputs(
    blocks: Float[Array, "2 task 2"], matrices: Float[Array, "task 2 2"]
) -> Float[Array, "task"]:
    return jnp.einsum("si,sij,sj->s", blocks[0], matrices, blocks[1])


def _linear_loss(blocks: Array, shares: Float[Array, "task"], lane: _Lane) -> Float[Array, ""]:
    """Mean squared error on a batch in which types have the given shares."""
    return jnp.sum(shares * (_outputs(blocks, lane.matrices) - lane.strength) ** 2)


def _softmax_loss(blocks: softmax.Blocks, cases: softmax.Cases, lane: _Lane) -> Float[Array, ""]:
    output = softmax.predictions(
        blocks, cases.types, cases.same, context=lane.context, strength=lane.strength
    )
    return jnp.sum(cases.weight * (output - lane.strength[cases.types]) ** 2)


def _shares(key: Key[Array, ""], lane: _Lane, program: _Program) -> Float[Array, "every"]:
    """Shares of the types in one batch."""
    size, types = program.batch_size, lane.cases.types
    if not size:
        return lane.shares
    if program.fixed:
        drawn = types[jax.random.randint(key, (size,), 0, len(types))]
    else:
        drawn = draw_types(key, lane.probability, size)
    return jnp.bincount(drawn, length=len(lane.probability)) / size


def _cases(key: Key[Array, ""], lane: _Lane, program: _Program) -> softmax.Cases:
    """One batch; sequences of types that the model lacks weigh nothing."""
    size = program.batch_size
    if not size:
        return lane.cases
    if program.fixed:
        drawn = jax.random.randint(key, (size,), 0, len(lane.cases.types))
        types, same, weight = (part[drawn] for part in lane.cases)
        return softmax.Cases(types, same, weight * len(lane.cases.types) / size)
    first, second = jax.random.split(key)
    types = draw_types(first, lane.probability, size)
    return _case_list(types, second, lane.context, longest=program.longest)


def _case_list(
    types: Int[Array, "sequence"],
    key: Key[Array, ""],
    context: Float[Array, "task"],
    *,
    longest: int,
) -> softmax.Cases:
    """Sequences of the given types with fresh signs; the model has the types with a `context`."""
    known = types < len(context)
    types = jnp.where(known, types, 0)
    same = softmax.draw_same(key, context[types], longest=longest)
    return softmax.Cases(types, same, known / len(types))


@partial(jax.jit, static_argnames=("program",))
def _advance(
    state: Any, lanes: _Lane, first: Int[Array, ""], last: Int[Array, ""], *, program: _Program
) -> Any:
    """Steps `first` to `last` - 1, in every lane."""

    def slope_of(parameters: Any, key: Array, lane: _Lane) -> Any:
        if program.attention == "softmax":
            return jax.grad(_softmax_loss)(parameters, _cases(key, lane, program), lane)
        shares = _shares(key, lane, program)[: parameters.shape[1]]
        slope = jax.grad(_linear_loss)(parameters, shares, lane)
        label = slope[0, :, 1]
        slope = slope.at[0, :, 1].set(jnp.where(lane.shared, jnp.sum(label), label))
        return slope * lane.learns[:, None, :]

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


@partial(jax.jit, static_argnames=("program",))
def _measure(state: Any, lanes: _Lane, *, program: _Program) -> dict[str, Array]:
    """The mean prediction and the mean squared error of every type, no sampling left."""

    def one(parameters: Any, lane: _Lane) -> dict[str, Array]:
        if program.attention == "linear":
            output = _outputs(parameters, lane.seen_matrices)
            return {"output": output, "square": (output - lane.seen) ** 2}
        same, weight = lane.average
        types = jnp.broadcast_to(jnp.arange(len(same))[:, None], same.shape)
        output = softmax.predictions(
            parameters, types, same, context=lane.context, strength=lane.seen
        )
        wrong = (output - lane.seen[:, None]) ** 2
        return {"output": jnp.sum(weight * output, 1), "square": jnp.sum(weight * wrong, 1)}

    return jax.vmap(one)(state[0], lanes)


def _program_of(spec: SparseRun) -> _Program:
    recipe = spec.recipe
    assert isinstance(recipe, Training)
    whole, fixed = math.isinf(recipe.batch_size), math.isfinite(spec.task.sequences)
    draws_signs = spec.model.attention == "softmax" and not (whole and not fixed)
    return _Program(
        rule=rule_of(recipe),
        attention=spec.model.attention,
        batch_size=0 if whole else int(recipe.batch_size),
        fixed=fixed,
        longest=int(numbers_of(spec.task).context.max()) if draws_signs else 0,
    )


def program_shape(spec: SparseRun) -> tuple[Any, ...]:
    """What the compiled program depends on beside the number of types and of recorded steps."""
    program, recipe = _program_of(spec), spec.recipe
    assert isinstance(recipe, Training)
    data = spec.task.sequences if program.fixed else math.inf
    return (program, data, spec.evaluation.record)


def _lane_of(spec: SparseRun, program: _Program) -> tuple[Any, _Lane]:
    recipe, every, kept = spec.recipe, numbers_of(spec.task), _linear.kept_numbers(spec)
    assert isinstance(recipe, Training)
    types, new = _linear.training_types(spec), spec.evaluation.strength
    none = jnp.zeros(0)
    average = (none, none)
    cases = softmax.Cases(jnp.zeros(0, jnp.int32) if types is None else types, none, none)
    context = jnp.asarray(kept.context)
    seen = kept.strength if new is None else np.full_like(kept.strength, new)
    if program.attention == "softmax":
        parameters: Any = softmax.starting_blocks(spec)
        same, weight = softmax.average_cases(kept.context)
        average = (jnp.asarray(same), jnp.asarray(weight))
        if types is not None:
            key = stream(spec.seed, "training", "signs")
            cases = _case_list(types, key, context, longest=program.longest)
        elif not program.batch_size:
            index = np.repeat(np.arange(len(same)), same.shape[1])
            share = (kept.probability[:, None] * weight).ravel()
            cases = softmax.Cases(*map(jnp.asarray, (index, same.ravel(), share)))
    else:
        parameters = jnp.asarray(np.stack(_linear.starting_blocks(spec)))
    lane = _Lane(
        key=stream(spec.seed, "training"),
        rate=jnp.asarray(recipe.rate),
        weight_decay=jnp.asarray(recipe.weight_decay),
        probability=jnp.asarray(every.probability),
        shares=jnp.asarray(_linear.training_shares(spec)),
        cases=cases,
        context=context,
        strength=jnp.asarray(kept.strength),
        matrices=jnp.asarray(_linear.token_matrices(kept.context, kept.strength)),
        seen=jnp.asarray(seen),
        seen_matrices=jnp.asarray(_linear.token_matrices(kept.context, seen)),
        learns=jnp.asarray(_linear.learning(spec)),
        shared=jnp.asarray(spec.model.shared_value),
        average=average,
    )
    optimizer = optimizer_of(program.rule, rate=lane.rate, weight_decay=lane.weight_decay)
    return (parameters, optimizer.init(parameters)), lane


def descend(
    specs: Sequence[SparseRun], *, checkpoint: Path | None, observe: Observer | None
) -> dict[str, NDArray[Any]]:
    """The mean "output" and the mean "square" of the error of every type that the model has, of
    trainings that share one program: (run, record, task).
    """
    program, recipe = _program_of(specs[0]), specs[0].recipe
    assert isinstance(recipe, Training)
    return train_lanes(
        specs,
        record=specs[0].evaluation.record or (recipe.steps,),
        begin=partial(_lane_of, program=program),
        advance=partial(_advance, program=program),
        measure=partial(_measure, program=program),
        checkpoint=checkpoint,
        observe=observe,
    )
