r"""Theory's answers to runs of retrieval whose layers are multiples of the identity.

`GivenScale` and `BestScale` stand for $M_l = \gamma I$ (softmax attention, at the gain of least
loss) and $B_l = \gamma I$ (linear attention). What each question has: one softmax layer on
isotropic inputs, exactly; linear attention on the easy task with infinitely many tokens, exactly,
with one scale or one a layer; linear attention on the difficult task, exactly for one layer on
isotropic inputs and otherwise by sampling.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from leadline.curve import Curve, Measure, point
from leadline.errors import SolverError
from leadline.spec import (
    BestScale,
    GivenScale,
    LinearAttention,
    RetrievalRun,
    SoftmaxAttention,
)
from leadline.theory import landscape
from leadline.theory.linear_easy import tied_steps
from leadline.theory.linear_floor import (
    equal_layers,
    evaluate_linear,
    isotropic_floor,
    linear_floor,
    sample_moments,
    tied_floor,
)
from leadline.theory.polynomials import free_steps
from leadline.theory.retrieval import best_gain, best_layer
from leadline.theory.retrieval_task import task_factor
from leadline.theory.spectra import eigenvalues, power_law_modes


def solve(spec: RetrievalRun) -> Curve:
    """The loss of a retrieval run that is not trained, one point.

    **Raises:** `SolverError` if theory has no answer; the message says what has one.
    """
    if not isinstance(spec.recipe, GivenScale | BestScale):
        raise SolverError(
            f"recipe: got {type(spec.recipe).__name__} for retrieval, which simulation answers; "
            "theory has GivenScale and BestScale"
        )
    if spec.evaluation.measures:
        raise SolverError(
            f"evaluation.measures: got {', '.join(spec.evaluation.measures)}; theory of retrieval "
            "has none"
        )
    if isinstance(spec.model, SoftmaxAttention):
        return _softmax(spec, spec.model)
    if isinstance(spec.model, LinearAttention):
        _check_linear(spec, spec.model)
        easy = spec.task.difficulty == "easy"
        return _easy(spec, spec.model) if easy else _difficult(spec, spec.model)
    raise SolverError(
        f"model: got {type(spec.model).__name__}, which simulation answers; theory has "
        "LinearAttention and SoftmaxAttention"
    )


def _softmax(spec: RetrievalRun, model: SoftmaxAttention) -> Curve:
    task = spec.task
    if task.difficulty == "easy":
        raise SolverError(
            "task.difficulty: got 'easy' for SoftmaxAttention, which one layer solves in the limit "
            "of infinite sharpness; theory has 'difficult'"
        )
    if math.isinf(task.spectrum.dim):
        raise SolverError(
            "task.spectrum.dim: got infinity, expected a whole number (the limit of many "
            "dimensions is leadline.theory.retrieval_limit)"
        )
    if model.updates or not model.normalized:
        raise SolverError(
            f"model: got updates {model.updates} and normalized {model.normalized}; theory has "
            "layers without updates on normalized tokens"
        )
    if model.depth > 1 and model.layers != "looped":
        raise SolverError(
            f"model.depth: got {model.depth} {model.layers} layers; theory has one layer, or "
            "looped ones, which are one; what different layers reach is in "
            "leadline.theory.retrieval_bound"
        )
    if model.width is not None and model.width < task.spectrum.dim:
        raise SolverError(
            f"model.width: got {model.width}, expected at least the dimension "
            f"{task.spectrum.dim}: narrower factors make no multiple of the identity"
        )
    factor = task_factor(task.spectrum)
    shape = {
        "dim": int(task.spectrum.dim),
        "context": int(task.context),
        "targets": task.targets,
    }
    if isinstance(spec.recipe, GivenScale):
        if spec.recipe.gamma <= 0:
            raise SolverError(f"recipe.gamma: got {spec.recipe.gamma:g}, expected a sharpness > 0")
        layer = best_gain(**shape, sharpness=spec.recipe.gamma)
    else:
        layer = best_layer(**shape)
    return point(
        factor * layer.loss,
        error=factor * layer.loss_error,
        scalars={"gamma": layer.sharpness, "gain": layer.gain},
    )


def _check_linear(spec: RetrievalRun, model: LinearAttention) -> None:
    if model.width is not None and model.width < spec.task.spectrum.dim:
        raise SolverError(
            f"model.width: got {model.width}, expected at least the dimension "
            f"{spec.task.spectrum.dim}: narrower factors make no multiple of the identity"
        )


def _easy(spec: RetrievalRun, model: LinearAttention) -> Curve:
    if not math.isinf(spec.task.context):
        raise SolverError(
            f"task.context: got {spec.task.context} for the easy task, expected infinity: with "
            "fewer tokens the query's own label reaches it"
        )
    modes, depth = power_law_modes(spec.task.spectrum), model.depth
    if isinstance(spec.recipe, BestScale) and not model.tied and depth > 1:
        steps = free_steps(modes, depth=depth)
        curve = point(steps.loss, error=1e-10 * steps.loss)
        return dataclasses.replace(curve, measures=(Measure(name="scales", values=steps.scales),))
    if isinstance(spec.recipe, GivenScale):
        gamma = spec.recipe.gamma
    else:
        gamma = float(tied_steps(modes, depth=depth).scales[0])
    loss = float(landscape.loss(modes, gamma, depth=depth))
    error = float(landscape.rounding(modes, gamma, depth=depth))
    return point(loss, error=error, scalars={"gamma": gamma})


def _difficult(spec: RetrievalRun, model: LinearAttention) -> Curve:
    task, depth = spec.task, model.depth
    best = isinstance(spec.recipe, BestScale)
    if best and depth == 1 and task.spectrum.input_exponent == 0:
        loss = task_factor(task.spectrum) * isotropic_floor(
            dim=int(task.spectrum.dim),
            context=int(task.context),
            targets=task.targets,
            features="context",
        )
        return point(loss, error=1e-9 * loss)
    evaluation = spec.evaluation
    if math.isinf(evaluation.queries):
        raise SolverError(
            "evaluation.queries: got infinity; this floor is sampled, expected a whole number"
        )
    inputs, tasks = eigenvalues(task.spectrum)
    sample: dict[str, Any] = {
        "inputs": inputs,
        "tasks": tasks,
        "context": int(task.context),
        "targets": task.targets,
        "contexts": evaluation.contexts,
        "queries": int(evaluation.queries),
    }
    if isinstance(spec.recipe, GivenScale):
        coefficients = equal_layers(spec.recipe.gamma / depth, depth=depth)
    else:
        # chosen on other contexts than those that measure the loss
        moments = sample_moments(**sample, depth=depth, seed=2 * evaluation.seed)
        floor = tied_floor if model.tied else linear_floor
        coefficients = floor(moments, features="context", depth=depth).coefficients
    found = evaluate_linear(
        coefficients,
        features="context",
        **sample,
        precision=evaluation.relative_error,
        seed=2 * evaluation.seed + 1,
    )
    curve = point(found.loss, error=found.loss_error, status="sampled")
    return dataclasses.replace(curve, measures=(Measure(name="coefficients", values=coefficients),))
