"""Simulation's answer to runs: what can be simulated, and what is answered together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import cast

import jax

from leadline.curve import Curve
from leadline.errors import SolverError, SpecError, nearest
from leadline.simulation import flow, landscape, retrieval, sparse, training
from leadline.simulation.descent import descend
from leadline.simulation.lanes import LANES, Observer
from leadline.simulation.measure import MEASURES
from leadline.spec import (
    BestScale,
    GivenScale,
    GradientFlow,
    InContextRegression,
    RegressionRun,
    RetrievalRun,
    RunSpec,
    SparseRun,
    Training,
    TransformerRun,
    is_regression,
    is_retrieval,
    is_sparse,
    is_transformer,
)

__all__ = ["LANES", "MEASURES", "Observer", "program_key", "train"]


def program_key(spec: RunSpec) -> Hashable:
    """What the compiled program of `spec` depends on. Specs with equal keys are answered together;
    seed, rate, spectrum, noise and the times of a flow are values of a run.

    **Raises:** `SolverError` for what only theory can answer.
    """
    if is_sparse(spec):
        return sparse.program_key(spec)
    if is_retrieval(spec):
        return retrieval.program_key(spec)
    if is_transformer(spec):
        return training.program_key(spec)
    assert is_regression(spec)
    task, model, recipe, evaluation = spec.task, spec.model, spec.recipe, spec.evaluation
    if not math.isinf(evaluation.queries):
        raise SolverError(
            f"evaluation.queries: got {evaluation.queries}; the reduced model is evaluated "
            "exactly over queries, leave it at infinity"
        )
    stream = (model.width, model.projection, model.power)
    if isinstance(recipe, GivenScale | BestScale):
        if evaluation.measures:
            raise SpecError(
                f"evaluation.measures: got {', '.join(evaluation.measures)}; a landscape has none, "
                "leave it empty"
            )
        if isinstance(recipe, BestScale) and not model.tied and model.depth > 1:
            raise SolverError(
                "model.tied: got False; simulation finds the best scale of tied layers, theory has "
                "that of untied ones"
            )
        quiet = dataclasses.replace(task, noise=0.0, query_noise=0.0)
        return (type(recipe).__name__, quiet, stream, evaluation)
    for name in evaluation.measures:
        if name not in MEASURES:
            raise SpecError(
                f"evaluation.measures: got {name!r}, expected some of {', '.join(MEASURES)}"
                f"{nearest(name, MEASURES)}"
            )
    if math.isinf(model.depth):
        raise SolverError(
            "model.depth: got infinity, which is answered by theory; simulation needs a finite one"
        )
    trained, evaluated = _shape(task), _shape(evaluation.task or task)
    layers = (task.spectrum.dim, *stream, model.depth, model.tied)
    common = (*layers, trained, evaluated, evaluation.contexts)
    if isinstance(recipe, GradientFlow):
        return ("GradientFlow", *common)
    if math.isinf(recipe.batch_size):
        raise SolverError(
            "recipe.batch_size: got infinity, which is answered by theory; simulation needs a "
            "finite one, or the recipe GradientFlow"
        )
    recipe_shape = (recipe.steps, recipe.batch_size, recipe.queries)
    return ("Training", *common, recipe_shape, evaluation.record, evaluation.measures)


def _shape(task: InContextRegression) -> Hashable:
    return (task.covariance, task.context, task.turn is None)


def train(
    specs: Sequence[RunSpec],
    *,
    checkpoint: Path | None = None,
    observe: Observer | None = None,
) -> list[Curve]:
    """Answer `specs`, which share one `program_key`, by simulation.

    **Arguments:** `checkpoint` names a file that holds the state of an unfinished training: it is
    resumed if it exists, and left for whoever has stored the answer to remove; `observe` is told
    of progress, in steps of a training and in times of a flow.

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
    if is_sparse(specs[0]):
        sparse_runs = cast(Sequence[SparseRun], specs)
        return sparse.solve(sparse_runs, checkpoint=checkpoint, observe=observe)
    if is_transformer(specs[0]):
        transformers = cast(Sequence[TransformerRun], specs)
        with jax.enable_x64(True):
            return training.learn(transformers, checkpoint=checkpoint, observe=observe)
    if is_retrieval(specs[0]):
        retrievals = cast(Sequence[RetrievalRun], specs)
        with jax.enable_x64(True):
            return retrieval.solve(retrievals, checkpoint=checkpoint, observe=observe)
    runs = cast(Sequence[RegressionRun], specs)
    with jax.enable_x64(True):
        match runs[0].recipe:
            case Training():
                return descend(runs, checkpoint=checkpoint, observe=observe)
            case GradientFlow():
                return flow.follow(runs, observe=observe)
            case _:
                return landscape.evaluate(runs)
