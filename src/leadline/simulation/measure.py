r"""Measurements of a model on a fixed set of contexts, task vectors, label noise and queries
integrated out.

The reduced model is linear in the labels: $w = T u_0$ with a matrix $T$ that depends on the
context alone. The average over queries, tasks and noise is then

$$\operatorname{Tr}\Omega(I - T\hat\Sigma)^T\Sigma(I - T\hat\Sigma)
  + \frac{\sigma^2}{P}\operatorname{Tr} T^T\Sigma T\hat\Sigma,$$

so only the contexts are left to sample.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from leadline.simulation.contexts import Law, diagonal_in, draw, sample_covariance
from leadline.simulation.models import weights


def context_losses(
    gamma: Float[Array, "layer dim dim"],
    key: Key[Array, ""],
    law: Law,
    *,
    depth: int,
    rotated: bool,
    context: int | float,
    contexts: int,
) -> Float[Array, "contexts"]:
    """The loss of layers `gamma` on each of `contexts` contexts of the stream `key`."""

    def one(number: Array) -> Array:
        drawn = draw(jax.random.fold_in(key, number), law, rotated=rotated, context=context)
        covariance = sample_covariance(drawn, law)
        input_covariance = diagonal_in(drawn.basis, law.inputs)
        solve = weights(gamma, covariance, None, jnp.eye(covariance.shape[0]), depth=depth)
        solved = solve @ covariance
        missing = jnp.eye(covariance.shape[0]) - solved
        tasks = diagonal_in(drawn.basis, law.tasks)
        bias = jnp.sum((missing @ tasks) * (input_covariance @ missing))
        if math.isinf(context):
            return bias
        return bias + law.noise**2 / context * jnp.sum(solved * (input_covariance @ solve))

    return jax.lax.map(one, jnp.arange(contexts))
