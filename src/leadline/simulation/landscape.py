r"""The loss of untrained layers $\Gamma = \gamma I$ on sampled contexts.

With $\Gamma = \gamma I$ everything is a function of $\hat\Sigma = U\operatorname{diag}(s)U^T$.
Let $r_a = 1 - \gamma s_a/L$ and $K_{ab} = (U^T\Omega U)_{ab}(U^T\Sigma U)_{ab}$. A context then
costs one eigendecomposition, and every scale, depth and noise level is the quadratic form

$$\sum_{ab} r_a^L K_{ab} r_b^L
  + \frac{\sigma^2}{P}\sum_a\frac{(1 - r_a^L)^2}{s_a}(U^T\Sigma U)_{aa}.$$
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from leadline.simulation.contexts import Law, diagonal_in, draw, sample_covariance


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
        inputs = vectors.T @ diagonal_in(drawn.basis, law.inputs) @ vectors
        tasks = vectors.T @ diagonal_in(drawn.basis, law.tasks) @ vectors
        scale = 0.0 if math.isinf(context) else 1 / context
        return Modes(jnp.maximum(values, 0.0), inputs * tasks, scale * jnp.diagonal(inputs))

    return jax.lax.map(one, jnp.arange(contexts))


def _power(base: Array, depth: Array) -> Array:
    """`base ** depth` for a whole `depth` held as a float, keeping the sign of a negative base."""
    sign = jnp.where((base < 0) & (jnp.mod(depth, 2) == 1), -1.0, 1.0)
    return sign * jnp.abs(base) ** depth


@jax.jit
def lane_losses(modes: Modes, lanes: Lanes) -> Float[Array, "lane contexts"]:
    """The loss of every lane on every context."""

    def lane(values: Lanes) -> Array:
        gamma, depth, noise = values
        finite = jnp.isfinite(depth)
        layers = jnp.where(finite, depth, 1.0)
        power = jnp.where(
            finite,
            _power(1 - gamma * modes.eigenvalues / layers, layers),
            jnp.exp(-gamma * modes.eigenvalues),
        )
        bias = jnp.einsum("ca,cab,cb->c", power, modes.bias, power)
        safe = jnp.where(modes.eigenvalues > 0, modes.eigenvalues, 1.0)
        variance = jnp.where(modes.eigenvalues > 0, (1 - power) ** 2 / safe, 0.0)
        return bias + noise**2 * jnp.sum(variance * modes.variance, axis=1)

    return jax.lax.map(lane, lanes)


def best_scales(modes: Modes, lanes: Lanes) -> Float[Array, "lane"]:
    r"""The $\gamma$ of least mean loss for each lane's depth and noise, up to the scale where the
    largest sampled eigenvalue reaches $\gamma s = 2L$ (or 50 over the mean eigenvalue in infinite
    depth), to a relative tolerance of 1e-8.
    """
    depth = np.asarray(lanes.depth)
    largest, mean = float(jnp.max(modes.eigenvalues)), float(jnp.mean(modes.eigenvalues))
    high = np.where(np.isfinite(depth), 2 * depth / largest, 50 / mean)
    low = np.zeros_like(high)
    # The loss is unimodal without noise; with noise a coarse scan first picks the basin.
    for _ in range(12):
        grid = low + (high - low) * np.linspace(0, 1, 17)[:, None]
        flat = Lanes(
            jnp.asarray(grid.ravel()), jnp.tile(lanes.depth, 17), jnp.tile(lanes.noise, 17)
        )
        losses = np.asarray(lane_losses(modes, flat).mean(axis=1)).reshape(grid.shape)
        best = np.argmin(losses, axis=0)
        columns = np.arange(grid.shape[1])
        low = grid[np.maximum(best - 1, 0), columns]
        high = grid[np.minimum(best + 1, 16), columns]
    return jnp.asarray((low + high) / 2)
