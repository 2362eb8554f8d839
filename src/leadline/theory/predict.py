"""Theory's answer to a run: choose the solver, refuse clearly what has none."""

from __future__ import annotations

import math

from leadline.curve import Curve
from leadline.errors import SolverError
from leadline.spec import (
    GradientFlow,
    RunSpec,
    is_regression,
    is_retrieval,
    is_sparse,
    is_transformer,
)


def predict(spec: RunSpec) -> Curve:
    r"""The loss of `spec` by theory: its expectation over contexts and tasks, without training.

    **Returns:** one point where nothing is trained, otherwise one point a recorded step or time.
    `loss_error` bounds the numerical error of the formula.

    **Raises:** `SolverError` if no solver answers `spec`; the message says what has one.
    """
    if isinstance(spec.recipe, GradientFlow) and spec.recipe.spread:
        raise SolverError(
            f"recipe.spread: got {spec.recipe.spread:g}; theory answers runs whose layers start "
            "equal, use layerwise.untied_flow or simulate it"
        )
    # a cold call imports one solver only
    if is_sparse(spec):
        from leadline.theory.sparse_solver import solve as solve_sparse

        return solve_sparse(spec)
    if is_transformer(spec):
        raise SolverError(
            "model: got Transformer, which is trained by simulation; theory answers its reduced "
            "form, ReducedAttention"
        )
    if is_retrieval(spec):
        from leadline.theory.retrieval_solver import solve as solve_retrieval

        return solve_retrieval(spec)
    assert is_regression(spec)
    match spec.task.covariance:
        case "isotropic":
            from leadline.theory.isotropic import solve
        case "fixed":
            from leadline.theory.fixed import solve
        case "rotated":
            if math.isinf(spec.task.context) and spec.model.width is None:
                from leadline.theory.rotated import solve
            else:
                from leadline.theory.finite import solve
    return solve(spec)
