"""Retrieval runs: training on fresh contexts, task vectors integrated out, and measurement on
common ones.

Runs follow one another instead of sharing a call as lanes: the arithmetic of a step is large beside
its overhead, so that lanes would save compilation only, and one program compiles once anyway.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from leadline.curve import Curve, Measure, trained
from leadline.errors import LeadlineWarning, SolverError, SpecError, nearest
from leadline.simulation.contexts import stream
from leadline.simulation.lanes import Observer, train_lanes
from leadline.simulation.measure import mean_and_error
from leadline.simulation.optimizers import Rule, descended, optimizer_of, rule_of, summed_rates
from leadline.simulation.retrievers import Weights, batch_slope, starting_weights
from leadline.simulation.selection import MEASURES, evaluate, unmeasurable
from leadline.simulation.tokens import Shape, Spectra, draw_tokens, shape_of, spectra_of
from leadline.spec import (
    LinearAttention,
    RetrievalRun,
    SoftmaxAttention,
    StreamAttention,
    Training,
)
from leadline.spec.question import RetrievalModel

State = tuple[Weights, Any]
"""Weights, and the state of the optimizer."""


class _Lane(NamedTuple):
    """What differs between the runs of one program."""

    key: Key[Array, ""]
    spectra: Spectra
    rate: Float[Array, ""]
    weight_decay: Float[Array, ""]
    evaluation_key: Key[Array, ""]


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """What the steps of runs share: static under compilation."""

    model: RetrievalModel
    shape: Shape
    batch_size: int
    rule: Rule
    dtype: str


@dataclass(frozen=True, kw_only=True)
class _Program:
    """What runs share: how they train, and what is measured."""

    steps: _Steps
    record: tuple[int, ...]
    shape: Shape
    contexts: int
    measures: tuple[str, ...]


def program_key(spec: RetrievalRun) -> Hashable:
    """What the program of `spec` depends on.

    **Raises:** `SolverError` for what cannot be simulated, `SpecError` for unknown measures and for
    evaluations without an error of their own.
    """
    recipe, evaluation = spec.recipe, spec.evaluation
    if not isinstance(recipe, Training):
        raise SolverError(
            f"recipe: got {type(recipe).__name__}, which theory answers; simulation needs Training"
        )
    for name, count in (
        ("task.spectrum.dim", spec.task.spectrum.dim),
        ("recipe.batch_size", recipe.batch_size),
        ("recipe.queries", recipe.queries),
        ("evaluation.queries", evaluation.queries),
    ):
        if math.isinf(count):
            raise SolverError(f"{name}: got infinity; contexts are drawn, expected a whole number")
    if spec.task.difficulty == "easy":
        for name, count in (("recipe", recipe.queries), ("evaluation", evaluation.queries)):
            if count > spec.task.context:
                raise SpecError(
                    f"{name}.queries: got {count} for an easy task of task.context = "
                    f"{spec.task.context} tokens, which are its queries; expected at most as many"
                )
    if evaluation.contexts < 2:
        raise SpecError(
            f"evaluation.contexts: got {evaluation.contexts}; the standard error is over contexts, "
            "expected at least 2"
        )
    missing = unmeasurable(spec.model)
    for name in evaluation.measures:
        if name not in MEASURES:
            raise SpecError(
                f"evaluation.measures: got {name!r}, expected some of {', '.join(MEASURES)}"
                f"{nearest(name, MEASURES)}"
            )
        if name in missing:
            raise SpecError(f"evaluation.measures: got {name!r}; {missing[name]}")
    return _program_of(spec)


def _program_of(spec: RetrievalRun) -> _Program:
    recipe, evaluation, model = spec.recipe, spec.evaluation, spec.model
    assert isinstance(recipe, Training)
    scale = not isinstance(model, StreamAttention) and model.matrix == "scale"
    layout = {"rotated": not scale, "drawn_tasks": isinstance(model, StreamAttention)}
    steps = _Steps(
        model=_shape_of(model),
        shape=shape_of(spec.task, queries=int(recipe.queries), **layout),
        batch_size=int(recipe.batch_size),
        rule=rule_of(recipe),
        dtype="float32" if recipe.precision == "single" else "float64",
    )
    return _Program(
        steps=steps,
        record=evaluation.record or (recipe.steps,),
        shape=shape_of(spec.task, queries=int(evaluation.queries), **layout),
        contexts=evaluation.contexts,
        measures=evaluation.measures,
    )


def _shape_of(model: RetrievalModel) -> RetrievalModel:
    """`model` without the numbers of its start, which are not compiled."""
    quiet = dataclasses.replace(model, start=0.0, spread=1.0)
    if isinstance(quiet, StreamAttention):
        return dataclasses.replace(quiet, label=1.0)
    return (
        dataclasses.replace(quiet, contrast=0.0) if isinstance(quiet, SoftmaxAttention) else quiet
    )


def solve(
    specs: Sequence[RetrievalRun], *, checkpoint: Path | None, observe: Observer | None
) -> list[Curve]:
    """The curves of runs that share one program."""
    program = _program_of(specs[0])
    for spec in specs:
        _warn_of_equal_layers(spec)
        _check_contexts(spec, program)
    # the threads of LAPACK spin for longer than a small rotation takes to factor
    with threadpool_limits(limits=1, user_api="blas"):
        found = train_lanes(
            specs,
            record=program.record,
            begin=partial(_begin, steps=program.steps),
            advance=partial(_advance, steps=program.steps),
            measure=partial(_measure, program=program),
            checkpoint=checkpoint,
            observe=observe,
            count=1,
        )
    return [
        _curve(spec, program, {name: values[i] for name, values in found.items()})
        for i, spec in enumerate(specs)
    ]


def _begin(spec: RetrievalRun, *, steps: _Steps) -> tuple[State, _Lane]:
    recipe = spec.recipe
    assert isinstance(recipe, Training)
    weights = starting_weights(
        spec.model, stream(spec.seed, "weights"), dim=steps.shape.dim, dtype=steps.dtype
    )
    lane = _Lane(
        key=stream(spec.seed, "training"),
        spectra=spectra_of(spec.task),
        rate=jnp.asarray(recipe.rate, steps.dtype),
        weight_decay=jnp.asarray(recipe.weight_decay, steps.dtype),
        evaluation_key=stream(spec.evaluation.seed, "evaluation", "contexts"),
    )
    return (weights, _optimizer(lane, steps).init(weights)), lane


def _optimizer(lane: _Lane, steps: _Steps) -> optax.GradientTransformation:
    return optimizer_of(steps.rule, rate=lane.rate, weight_decay=lane.weight_decay)


def _only(tree: Any) -> Any:
    """The values of the one lane there is."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


@partial(jax.jit, static_argnames=("steps",), donate_argnums=(0,))
def _advance(
    state: State, lanes: _Lane, first: Int[Array, ""], last: Int[Array, ""], *, steps: _Steps
) -> State:
    """Steps `first` to `last` - 1 of training."""
    lane: _Lane = _only(lanes)

    def slope(weights: Weights, key: Array) -> Weights:
        tokens = draw_tokens(
            key, lane.spectra, steps.shape, batch_size=steps.batch_size, dtype=steps.dtype
        )
        return batch_slope(weights, tokens, lane.spectra, model=steps.model)[1]

    end = descended(
        _only(state),
        slope,
        optimizer=_optimizer(lane, steps),
        key=lane.key,
        first=first,
        last=last,
    )
    return jax.tree.map(lambda leaf: leaf[None], end)


def _measure(state: State, lanes: _Lane, *, program: _Program) -> dict[str, Array]:
    lane: _Lane = _only(lanes)
    found = evaluate(
        _only(state[0]),
        lane.evaluation_key,
        lane.spectra,
        model=program.steps.model,
        shape=program.shape,
        contexts=program.contexts,
        measures=program.measures,
    )
    return {name: values[None] for name, values in found.items()}


def _curve(spec: RetrievalRun, program: _Program, found: dict[str, NDArray[Any]]) -> Curve:
    recipe = spec.recipe
    assert isinstance(recipe, Training)
    mean, error = mean_and_error(found["loss"], certain=False)
    return trained(
        spec,
        step=np.asarray(program.record, np.int64),
        time=summed_rates(recipe, program.record),
        loss=mean,
        error=error,
        status="ok" if np.isfinite(mean).all() else "diverged",
        scalars={
            name: float(found[name][-1])
            for name in ("gain", "mask", "selection_error")
            if name in found
        },
        measures=tuple(Measure(name=n, values=found[n]) for n in program.measures),
    )


def _warn_of_equal_layers(spec: RetrievalRun) -> None:
    model = spec.model
    if model.depth == 1 or model.spread:
        return
    if isinstance(model, LinearAttention):
        equal = not model.tied and model.matrix == "scale"
    else:
        equal = (
            isinstance(model, SoftmaxAttention)
            and model.layers != "looped"
            and not model.updates
            and not model.contrast
        )
    if equal:
        warnings.warn(
            f"model.spread: got 0: the {model.depth} layers start equal, have equal gradients and "
            "never separate; the loss is that of one layer, or of tied ones",
            LeadlineWarning,
            stacklevel=4,
        )


def _check_contexts(spec: RetrievalRun, program: _Program) -> None:
    """Refuse an evaluation whose contexts are too few for the relative error that is asked of it,
    judged by the loss before training.
    """
    asked, contexts = spec.evaluation.relative_error, program.contexts
    if asked is None:
        return
    state, lane = jax.tree.map(lambda leaf: leaf[None], _begin(spec, steps=program.steps))
    losses = np.asarray(_measure(state, lane, program=program)["loss"], np.float64)
    mean, error = mean_and_error(losses[0], certain=False)
    relative = float(error / mean)
    if relative > asked:
        needed = math.ceil(contexts * (relative / asked) ** 2)
        raise SpecError(
            f"evaluation.contexts: got {contexts}, which leave a relative standard error of "
            f"{relative:.2g} before training; evaluation.relative_error = {asked:g} takes about "
            f"{needed}"
        )
