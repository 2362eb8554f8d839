r"""The loss of untrained layers $\Gamma = \gamma I$ on sampled contexts.

With $\Gamma = \gamma I$ everything is a function of $\hat\Sigma = U\operatorname{diag}(s)U^T$.
Let $r_a = 1 - \gamma s_a/L$ and $K_{ab} = (U^T\Omega U)_{ab}(U^T\Sigma U)_{ab}$. A context then
costs one eigendecomposition, and every scale, depth and noise level is the quadratic form

$$\sum_{ab} r_a^L K_{ab} r_b^L
  + \frac{\sigma^2}{P}\sum_a\frac{(1 - r_a^L)^2}{s_a}(U^T\Sigma U)_{aa}.$$
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import NDArray

from leadline.curve import Curve, Status, point
from leadline.simulation.contexts import (
    Law,
    diagonal_in,
    draw,
    is_certain,
    law_of,
    sample_covariance,
    stream,
)
from leadline.simulation.measure import mean_and_error
from leadline.spec import BestScale, GivenScale, InContextRegression, RegressionRun

CHUNK = 32
"""Lanes that one compiled call evaluates; more are split, fewer are padded."""


class Lanes(NamedTuple):
    """The values that differ between the points of one landscape."""

    gamma: Float[Array, "lane"]
    depth: Float[Array, "lane"]
    noise: Float[Array, "lane"]


class Modes(NamedTuple):
    """The sampled contexts in the eigenbasis of their sample covariance."""

    eigenvalues: Float[Array, "contexts dim"]
    bias: Float[Array, "contexts dim dim"]
    """The kernel $K$."""
    variance: Float[Array, "contexts dim"]
    r"""$(U^T\Sigma U)_{aa}/P$; zero for infinitely many inputs."""


@partial(jax.jit, static_argnames=("rotated", "context", "contexts"))
def decompose(
    key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float, contexts: int
) -> Modes:
    """Draw `contexts` contexts of the stream `key` and diagonalize them."""

    def one(number: Array) -> Modes:
        drawn = draw(jax.random.fold_in(key, number), law, rotated=rotated, context=context)
        values, vectors = jnp.linalg.eigh(sample_covariance(drawn, law))
        inputs = vectors.T @ diagonal_in(drawn.input_basis, law.inputs) @ vectors
        tasks = vectors.T @ diagonal_in(drawn.task_basis, law.tasks) @ vectors
        scale = 0.0 if math.isinf(context) else 1 / context
        return Modes(jnp.maximum(values, 0.0), inputs * tasks, scale * jnp.diagonal(inputs))

    return jax.lax.map(one, jnp.arange(contexts))


def _power(base: Array, depth: Array) -> Array:
    """`base ** depth` for a whole `depth` held as a float, keeping the sign of a negative base."""
    sign = jnp.where((base < 0) & (jnp.mod(depth, 2) == 1), -1.0, 1.0)
    return sign * jnp.abs(base) ** depth


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
    finite = jnp.isfinite(lanes.depth)[:, None]
    layers = jnp.where(finite, lanes.depth[:, None], 1.0)
    gamma = lanes.gamma[:, None]

    def one(context: Modes) -> Array:
        values = context.eigenvalues
        power = jnp.where(
            finite, _power(1 - gamma * values / layers, layers), jnp.exp(-gamma * values)
        )
        bias = jnp.sum((power @ context.bias) * power, axis=1)
        safe = jnp.where(values > 0, values, 1.0)
        variance = jnp.where(values > 0, (1 - power) ** 2 / safe, 0.0) @ context.variance
        return bias + lanes.noise**2 * variance

    return jax.lax.map(one, modes).T


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
    on those the minimum would lie too low. Status "unstable": beyond the edge of stability
    $2L/s$, $s$ the largest eigenvalue in any context of the task trained on.
    """
    task, evaluation = specs[0].task, specs[0].evaluation
    evaluated = evaluation.task or task

    def contexts(name: str, of: InContextRegression) -> Modes:
        return decompose(
            stream(evaluation.seed, "evaluation", name),
            law_of(of),
            rotated=of.covariance == "rotated",
            context=of.context,
            contexts=1 if is_certain(of) else evaluation.contexts,
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
    mean, error = mean_and_error(losses, certain=is_certain(evaluated))
    curves: list[Curve] = []
    for i, gamma in enumerate(np.asarray(lanes.gamma).tolist()):
        depth = specs[i].model.depth
        stable = math.isinf(depth) or gamma / depth <= edge
        status: Status = "diverged" if not np.isfinite(mean[i]) else "ok" if stable else "unstable"
        curves.append(
            point(float(mean[i]), error=float(error[i]), status=status, scalars={"gamma": gamma})
        )
    return curves
