r"""The loss of untrained layers on sampled contexts: $\Gamma = \gamma I$, or $\gamma AA^T$ where a
stream with the read-in $A$ has that as its reduced form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from leadline.curve import Curve, Status, point
from leadline.simulation.contexts import is_certain, law_of, stream
from leadline.simulation.measure import mean_and_error
from leadline.simulation.modes import Lanes, Modes, decompose
from leadline.spec import BestScale, GivenScale, InContextRegression, RegressionRun

CHUNK = 32
"""Lanes that one compiled call evaluates; more are split, fewer are padded."""


def lane_losses(modes: Modes, lanes: Lanes) -> NDArray[np.float64]:
    """The loss of every lane on every context: an array (lane, contexts)."""
    count = len(lanes.gamma)
    padding = -count % CHUNK
    chunks = jax.tree.map(
        lambda values: jnp.pad(values, (0, padding), mode="edge").reshape(-1, CHUNK), lanes
    )
    losses = [_chunk_losses(modes, Lanes(*chunk)) for chunk in zip(*chunks, strict=True)]
    return np.concatenate(losses)[:count]


@jax.jit
def _chunk_losses(modes: Modes, lanes: Lanes) -> Float[Array, "lane contexts"]:
    return jax.lax.map(lambda context: context.losses(lanes), modes).T


def best_scales(modes: Modes, lanes: Lanes) -> Float[Array, "lane"]:
    r"""The $\gamma$ of least mean loss for each lane's depth and noise, to 1e-5 of the range
    searched, where the loss is flat to 1e-9.

    The range ends at twice the edge of stability of the median context (at 50 over the mean
    eigenvalue in infinite depth): rare contexts past their edge are part of the mean.
    """
    depth = np.asarray(lanes.depth)
    top = float(jnp.median(modes.eigenvalues.max(axis=1)))
    high = np.where(np.isfinite(depth), 4 * depth / top, 50 / float(modes.eigenvalues.mean()))
    low = np.zeros_like(high)
    # The loss is unimodal without noise; with noise a coarse scan first picks the basin.
    for _ in range(7):
        grid = low + (high - low) * np.linspace(0, 1, 17)[:, None]
        flat = Lanes(
            jnp.asarray(grid.ravel()), jnp.tile(lanes.depth, 17), jnp.tile(lanes.noise, 17)
        )
        losses = lane_losses(modes, flat).mean(axis=1).reshape(grid.shape)
        best = np.argmin(losses, axis=0)
        columns = np.arange(grid.shape[1])
        low = grid[np.maximum(best - 1, 0), columns]
        high = grid[np.minimum(best + 1, 16), columns]
    return jnp.asarray((low + high) / 2)


def evaluate(specs: Sequence[RegressionRun]) -> list[Curve]:
    r"""The points of one landscape, of runs that share a program: the same contexts, evaluated at
    every scale, depth and noise level.

    The best scale is that of the task trained on, chosen on contexts that do not measure the loss:
    on those the minimum would lie too low. A narrower stream is averaged over its read-ins, one a
    context. Status "unstable": beyond the edge of stability $2L/s$, $s$ the largest eigenvalue in
    any context of the task trained on.
    """
    task, model, evaluation = specs[0].task, specs[0].model, specs[0].evaluation
    evaluated = evaluation.task or task

    def certain(of: InContextRegression) -> bool:
        return is_certain(of) and model.width is None

    def contexts(name: str, of: InContextRegression) -> Modes:
        return decompose(
            stream(evaluation.seed, "evaluation", name),
            law_of(of),
            model,
            rotated=of.covariance == "rotated",
            context=of.context,
            contexts=1 if certain(of) else evaluation.contexts,
        )

    lanes = Lanes(
        jnp.asarray([s.recipe.gamma if isinstance(s.recipe, GivenScale) else 0.0 for s in specs]),
        jnp.asarray([float(s.model.depth) for s in specs]),
        jnp.asarray([s.task.noise for s in specs]),
    )
    modes = contexts("contexts", evaluated)
    chooses = isinstance(specs[0].recipe, BestScale)
    own = contexts("scale", task) if chooses or evaluation.task is not None else modes
    if chooses:
        lanes = lanes._replace(gamma=best_scales(own, lanes))
    edge = 2 / float(jnp.max((modes if evaluation.task is None else own).eigenvalues))
    if evaluation.task is not None:
        lanes = lanes._replace(noise=jnp.full(len(specs), evaluation.task.noise))
    losses = lane_losses(modes, lanes)
    mean, error = mean_and_error(losses, certain=certain(evaluated))
    curves: list[Curve] = []
    for i, gamma in enumerate(np.asarray(lanes.gamma).tolist()):
        depth = specs[i].model.depth
        stable = math.isinf(depth) or gamma / depth <= edge
        status: Status = "diverged" if not np.isfinite(mean[i]) else "ok" if stable else "unstable"
        curves.append(
            point(float(mean[i]), error=float(error[i]), status=status, scalars={"gamma": gamma})
        )
    return curves
