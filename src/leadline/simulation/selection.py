r"""What is measured on retrieval models: loss by mode, the error matrix of the layers, and where
attention goes.

With the error $e_l$ of layer $l$ alone, the error matrix $E_{lm} = E\,e_le_m$ has the mean $R_L$
over all pairs, $A_L$ over its diagonal and $C_L$ off it; the mean over a block is the loss of a
subset of the layers.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from leadline.simulation.retrievers import (
    Weights,
    context_maps,
    layer_errors,
    layer_matrices,
)
from leadline.simulation.tokens import Shape, Spectra, Tokens, draw_tokens, selection
from leadline.spec import LinearAttention, SoftmaxAttention, StreamAttention
from leadline.spec.question import RetrievalModel

MEASURES = {
    "modes": "loss of each mode: (record, dim)",
    "layer_errors": "mean product of the errors of two layers: (record, layer, layer)",
    "scale": "mean diagonal of the matrix of each layer, before temperatures: (record, layer)",
    "mass": "attention of each layer on the tokens to find: (record, layer)",
    "selection": "percentiles 1 to 99 of |mean p - p*|^2 over queries: (record, 99)",
    "self_attention": "attention of a token on itself, by layer: (record, layer)",
    "effective_tokens": "exponential of the entropy of a token's attention, by layer: "
    "(record, layer)",
    "map": "attention of the tokens of the first context on each other in the first layer: "
    "(record, token, token)",
}
"""What `Evaluation.measures` may ask of a training on retrieval, beside the loss."""

_ROWS = {"mass", "selection"}
_MAPS = {"self_attention", "effective_tokens", "map"}


def unmeasurable(model: RetrievalModel) -> dict[str, str]:
    """The measures that `model` does not have, and why."""
    if isinstance(model, LinearAttention):
        return dict.fromkeys(_ROWS | _MAPS, "linear attention has no attention rows that sum to 1")
    if isinstance(model, StreamAttention):
        return {
            "modes": "task vectors of one stream are drawn, not integrated out"
        } | dict.fromkeys(_MAPS, "the tokens of one stream do not attend")
    return {}


@partial(jax.jit, static_argnames=("model", "shape", "contexts", "measures"))
def evaluate(
    weights: Weights,
    key: Key[Array, ""],
    spectra: Spectra,
    *,
    model: RetrievalModel,
    shape: Shape,
    contexts: int,
    measures: tuple[str, ...],
) -> dict[str, Array]:
    """What `measures` ask of `weights` on contexts 0 to `contexts` - 1 of the stream `key`; "loss"
    of every context; and gain, mask and mean selection error where the model has them.
    """
    dtype = str(next(iter(weights.values())).dtype)

    def context(number: Array) -> Tokens:
        own = jax.random.fold_in(key, number)
        drawn = draw_tokens(own, spectra, shape, batch_size=1, dtype=dtype)
        return jax.tree.map(lambda leaf: leaf[0], drawn)

    def one(number: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        tokens = context(number)
        errors, rows = layer_errors(weights, tokens, spectra, model=model)
        modes = jnp.mean(jnp.mean(errors, 1) ** 2, 0)
        means, each = {"modes": modes}, {"loss": jnp.sum(modes)}
        if "layer_errors" in measures:
            flat = jnp.swapaxes(errors, 0, 1).reshape(errors.shape[1], -1)
            means["layer_errors"] = flat @ flat.T / shape.queries
        if rows is not None:
            wanted = selection(tokens, shape)
            each["selection"] = jnp.sum((jnp.mean(rows, 0) - wanted) ** 2, -1)
            means["mass"] = jnp.mean(jnp.sum(rows * (wanted > 0), -1), -1)
        if "self_attention" in measures or "effective_tokens" in measures:
            assert isinstance(model, SoftmaxAttention)
            maps = context_maps(weights, tokens, model=model)
            entropy = -jnp.sum(jax.scipy.special.xlogy(maps, maps), -1)
            means["self_attention"] = jnp.mean(jnp.diagonal(maps, axis1=-2, axis2=-1), -1)
            means["effective_tokens"] = jnp.mean(jnp.exp(entropy), -1)
        return means, each

    def add(sums: dict[str, Array], number: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        means, each = one(number)
        return jax.tree.map(jnp.add, sums, means), each

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.float64), jax.eval_shape(one, jnp.asarray(0))[0]
    )
    sums, each = jax.lax.scan(add, zeros, jnp.arange(contexts))
    found = {name: total / contexts for name, total in sums.items() if name in measures}
    found["loss"] = each["loss"]
    if "selection" in each:
        found["selection_error"] = jnp.mean(each["selection"])
        if "selection" in measures:
            found["selection"] = jnp.percentile(each["selection"], jnp.arange(1, 100))
    if "map" in measures:
        assert isinstance(model, SoftmaxAttention)
        found["map"] = context_maps(weights, context(jnp.asarray(0)), model=model)[0]
    if "scale" in measures:
        matrices = layer_matrices(weights, dim=shape.dim)
        found["scale"] = jnp.mean(jnp.diagonal(matrices, axis1=-2, axis2=-1), -1)
    for name in ("gain", "mask"):
        if name in weights:
            found[name] = jnp.mean(weights[name])
    return found
