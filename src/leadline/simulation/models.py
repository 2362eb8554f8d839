r"""The reduced linear transformer in its forms.

All forms take the layers' matrices `gamma` stacked along the first axis, of length one if the
layers share a matrix, and the depth $L$. They compute the weight vector $w$ with
$f(x_*) = w\cdot x_*$:

$$u_0 = XY/P,\qquad w \mathrel{+}= \Gamma_l u_l/L,\qquad u_{l+1} = u_l - \hat\Sigma\Gamma_l u_l/L.$$
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def literal_predictions(
    gamma: Float[Array, "layer dim dim"],
    inputs: Float[Array, "dim context"],
    labels: Float[Array, "context"],
    queries: Float[Array, "dim query"],
    *,
    depth: int,
) -> Float[Array, "query"]:
    """The predictions token by token, as the attention layers form them: the oracle of the other
    forms. Labeled tokens receive their sum with sign -1, query tokens with +1.
    """
    scale = 1 / (depth * inputs.shape[1])
    predictions = jnp.zeros(queries.shape[1], labels.dtype)
    for layer in range(depth):
        matrix = gamma[layer % gamma.shape[0]]
        predictions = predictions + scale * (queries.T @ matrix @ inputs) @ labels
        labels = labels - scale * (inputs.T @ matrix @ inputs) @ labels
    return predictions


def _layers(
    gamma: Float[Array, "layer dim dim"], depth: int
) -> Float[Array, "depth dim dim"] | None:
    return None if gamma.shape[0] == 1 else jnp.broadcast_to(gamma, (depth, *gamma.shape[1:]))


def weights(
    gamma: Float[Array, "layer dim dim"],
    covariance: Float[Array, "dim dim"] | None,
    inputs: Float[Array, "dim context"] | None,
    moment: Float[Array, "dim *column"],
    *,
    depth: int,
) -> Float[Array, "dim *column"]:
    r"""The weight vector $w$ for the moment $u_0 = XY/P$, or one vector for each column of
    `moment`. The layers apply $\hat\Sigma$ as `covariance` if given, else through the `inputs`.
    """

    def apply(vector: Float[Array, "dim *column"]) -> Float[Array, "dim *column"]:
        if covariance is not None:
            return covariance @ vector
        assert inputs is not None
        return inputs @ (inputs.T @ vector) / inputs.shape[1]

    def layer(
        state: tuple[Array, Array], own: Float[Array, "dim dim"] | None
    ) -> tuple[tuple[Array, Array], None]:
        weight, residual = state
        step = (gamma[0] if own is None else own) @ residual / depth
        return (weight + step, residual - apply(step)), None

    start = (jnp.zeros_like(moment), moment)
    (weight, _), _ = jax.lax.scan(layer, start, _layers(gamma, depth), length=depth)
    return weight


def tokens_are_cheaper(*, dim: int, context: int | float, depth: int) -> bool:
    r"""Whether applying $\hat\Sigma$ through the inputs costs fewer multiplications than forming
    it: $2LPD$ against $D^2P + LD^2$.
    """
    return 2 * depth * context * dim < dim**2 * context + depth * dim**2
