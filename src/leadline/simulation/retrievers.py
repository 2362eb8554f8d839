r"""The models of retrieval in their fast form: what learns, the loss of a batch of contexts and its
gradient, and what every layer contributes.

The literal forms, token by token, are in `literal.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from leadline.simulation.contexts import haar, substream
from leadline.simulation.mixture import (
    Compared,
    attended,
    attention,
    mixed_rows,
    mixture_loss,
)
from leadline.simulation.tokens import Spectra, Tokens, seen, unit, unseen
from leadline.spec import LinearAttention, SoftmaxAttention, StreamAttention
from leadline.spec.question import RetrievalModel

Weights = dict[str, Array]
"""What learns, by name: "matrix", "scale" or "key" and "query" of the layers; "temperature",
"gain" and "mask" of softmax attention; "inputs", "labels", "value" and "output" of one stream."""


def starting_weights(
    model: RetrievalModel, key: Key[Array, ""], *, dim: int, dtype: str
) -> Weights:
    """The weights that `model` starts with, drawn from the stream `key`."""

    def normal(name: str, *shape: int) -> Array:
        # the same numbers in single and double precision
        return jax.random.normal(substream(key, name), shape, "float32").astype(dtype)

    depth, size = model.depth, dim
    if isinstance(model, StreamAttention):
        size = model.width
    elif _shares_matrix(model):
        depth = 1
    weights: Weights = {}
    if not isinstance(model, StreamAttention) and model.width is not None:
        entries = model.spread / math.sqrt(dim)
        weights["key"] = entries * normal("key", depth, model.width, dim)
        weights["query"] = entries * normal("query", depth, model.width, dim)
    elif not isinstance(model, StreamAttention) and model.matrix == "scale":
        weights["scale"] = model.start + model.spread * normal("scale", depth)
    else:
        noise = model.spread / math.sqrt(size) * normal("matrix", depth, size, size)
        weights["matrix"] = model.start * jnp.eye(size, dtype=dtype) + noise
    if isinstance(model, SoftmaxAttention):
        if model.layers == "tempered":
            weights["temperature"] = 1 + model.spread * normal("temperature", model.depth)
        gains = 1 if model.values == "shared" else model.depth
        signs = (-1.0) ** jnp.arange(gains)
        weights["gain"] = (1 + model.contrast * signs).astype(dtype)
        if model.updates:
            weights["mask"] = -jnp.ones((), dtype)
    if isinstance(model, StreamAttention):
        columns = haar(normal("inputs", max(size, dim + 1), max(size, dim + 1)))[:size, : dim + 1]
        weights["inputs"] = columns[:, :dim]
        weights["labels"] = model.label * unit(columns[:, dim])
        weights["value"] = jnp.eye(size, dtype=dtype)
        weights["output"] = weights["labels"] / model.label**2
    return weights


def _shares_matrix(model: LinearAttention | SoftmaxAttention) -> bool:
    if isinstance(model, LinearAttention):
        return model.tied
    return model.layers != "separate"


def layer_matrices(weights: Weights, *, dim: int) -> Float[Array, "layer dim dim"]:
    """The matrix of every layer, or the one that all share; temperatures are not included."""
    if "matrix" in weights:
        return weights["matrix"]
    if "scale" in weights:
        scale = weights["scale"]
        return scale[:, None, None] * jnp.eye(dim, dtype=scale.dtype)
    key, query = weights["key"], weights["query"]
    return jnp.swapaxes(key, -1, -2) @ query / math.sqrt(key.shape[-2])


def directions_of(
    weights: Weights, queries: Float[Array, "batch query dim"]
) -> Float[Array, "batch query layer dim"]:
    r"""$u_l = M_l\hat q$ of every layer that differs from the others."""
    if "scale" in weights:
        return queries[:, :, None] * weights["scale"][:, None]
    dim, count = queries.shape[-1], queries.shape[0] * queries.shape[1]
    if "key" in weights and count <= dim:
        key, query = weights["key"], weights["query"]
        compared = jnp.einsum("bkd,lnd->bkln", queries, query)
        found = jnp.einsum("bkln,lnd->bkld", compared, key) / math.sqrt(key.shape[-2])
    else:
        found = jnp.einsum("bkd,led->bkle", queries, layer_matrices(weights, dim=dim))
    if "temperature" in weights:
        found = found * weights["temperature"][:, None]
    return found


def hat(vectors: Float[Array, "*batch dim"], *, norm: float | None) -> Float[Array, "*batch dim"]:
    """`vectors` scaled to the given norm, None for their own."""
    return vectors if norm is None else norm * unit(vectors)


def _hat_norm(model: SoftmaxAttention | StreamAttention, dim: int) -> float | None:
    return math.sqrt(dim) if model.normalized else None


def batch_slope(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, model: RetrievalModel
) -> tuple[Float[Array, ""], Weights]:
    """`batch_loss` and its gradient."""
    if not _is_drawn_or_updated(model):
        return jax.value_and_grad(batch_loss)(weights, tokens, spectra, model=model)

    def one(sums: tuple[Array, Weights], context: Tokens) -> tuple[tuple[Array, Weights], None]:
        found = jax.value_and_grad(_context_loss)(weights, context, spectra, model=model)
        return jax.tree.map(jnp.add, sums, found), None

    # loss and gradient of one context after the other stay in the cache
    start = (jnp.zeros((), tokens.queries.dtype), jax.tree.map(jnp.zeros_like, weights))
    sums, _ = jax.lax.scan(one, start, tokens)
    return jax.tree.map(lambda total: total / tokens.queries.shape[0], sums)


def batch_loss(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, model: RetrievalModel
) -> Float[Array, ""]:
    """The mean squared error over the contexts and queries of `tokens`, task vectors integrated
    out where they are not drawn.
    """
    if isinstance(model, LinearAttention):
        wrong = _linear_answers(weights, tokens, spectra, depth=model.depth) - tokens.targets
        return jnp.mean(jnp.sum(spectra.tasks.astype(wrong.dtype) * wrong**2, -1))
    if _is_drawn_or_updated(model):
        return jnp.mean(
            jax.lax.map(lambda one: _context_loss(weights, one, spectra, model=model), tokens)
        )
    assert isinstance(model, SoftmaxAttention)
    return _mixture_loss(weights, tokens, spectra, model=model)


def _is_drawn_or_updated(model: RetrievalModel) -> bool:
    return isinstance(model, StreamAttention) or (
        isinstance(model, SoftmaxAttention) and model.updates
    )


def _context_loss(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, model: RetrievalModel
) -> Float[Array, ""]:
    if isinstance(model, StreamAttention):
        return jnp.mean(_stream_errors(weights, tokens, model=model)[0] ** 2)
    assert isinstance(model, SoftmaxAttention)
    assert tokens.inputs is not None
    mixed = _updated_mixture(weights, tokens, model=model)
    wrong = mixed @ tokens.inputs - tokens.targets
    return jnp.mean(jnp.sum(spectra.tasks.astype(wrong.dtype) * wrong**2, -1))


def _mixture_loss(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, model: SoftmaxAttention
) -> Float[Array, ""]:
    assert tokens.inputs is not None
    context, dim = tokens.inputs.shape[-2:]
    norm = _hat_norm(model, dim)
    basis = None if "scale" in weights else tokens.basis
    u = directions_of(weights, seen(hat(tokens.queries, norm=norm), basis))
    batch, count, layers, _ = u.shape
    rotated = None
    if basis is not None and context <= count * layers:
        rotated = seen(tokens.inputs, basis)
    elif basis is not None:
        u = unseen(u.reshape(batch, -1, dim), basis).reshape(u.shape)
    gains = jnp.broadcast_to(weights["gain"] / model.depth, (model.depth,))
    gains = gains.reshape(layers, -1).sum(1)  # looped layers are one
    assert tokens.norms is not None
    scales = None if norm is None else norm / tokens.norms
    longest = jnp.max(tokens.norms) if norm is None else jnp.asarray(norm, u.dtype)
    tasks = spectra.tasks.astype(u.dtype)
    compared = Compared(tokens.inputs, rotated, scales, longest, tokens.targets, tasks)
    return mixture_loss(u, gains, compared)


def _updated_mixture(
    weights: Weights, tokens: Tokens, *, model: SoftmaxAttention
) -> Float[Array, "query token"]:
    r"""The weights on the labels of one context whose labels attend too, from the last layer to
    the first: $c_L = g_Lp_L$, $c_l = g_lp_l + c_{l+1}(I + mA_l/L)$, $w = c_1/L$.
    """
    assert tokens.inputs is not None
    depth = model.depth
    keys, matrices, rows = _seen_rows(weights, tokens, model=model)
    gains = jnp.broadcast_to(weights["gain"], (depth,))[:, None, None]
    rows = gains * rows
    step = weights["mask"] / depth
    if model.layers == "looped":
        map_ = attention(keys @ matrices[0].T, keys)
        mixed, _ = jax.lax.scan(
            lambda above, row: (row + above + step * above @ map_, None),
            rows[-1],
            rows[:-1],
            reverse=True,
        )
    else:
        mixed = mixed_rows(rows, jnp.einsum("pd,led->lpe", keys, matrices[:-1]), keys, step)
    return mixed / depth


def _seen_rows(
    weights: Weights, tokens: Tokens, *, model: SoftmaxAttention
) -> tuple[
    Float[Array, "token dim"], Float[Array, "layer dim dim"], Float[Array, "layer query token"]
]:
    """The keys of one context, the matrix of every layer, and its attention rows."""
    assert tokens.inputs is not None
    dim = tokens.inputs.shape[-1]
    norm = _hat_norm(model, dim)
    keys = seen(hat(tokens.inputs, norm=norm), tokens.basis)
    queries = seen(hat(tokens.queries, norm=norm), tokens.basis)
    matrices = layer_matrices(weights, dim=dim)
    if "temperature" in weights:
        matrices = weights["temperature"][:, None, None] * matrices
    directions = jnp.einsum("kd,led->lke", queries, matrices)
    rows = attention(directions, keys)
    shape = (model.depth, *rows.shape[1:])
    matrices = jnp.broadcast_to(matrices, (model.depth, dim, dim))
    return keys, matrices, jnp.broadcast_to(rows, shape)


def _linear_answers(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, depth: int
) -> Float[Array, "batch query dim"]:
    r"""The vectors $f$ with $\hat y = f\cdot\beta$ of linear attention: $f = q - r$ with
    $r \leftarrow r - SK_l^Tr$, the last layer first, from $r = q$.
    """
    basis = None if "scale" in weights else tokens.basis
    asked = seen(tokens.queries, basis)
    apply = _covariance(tokens, spectra, basis, depth=depth)
    if "scale" in weights:
        layers = jnp.broadcast_to(weights["scale"], (depth,))

        def step(rest: Array, own: Array) -> Array:
            return rest - apply(own * rest)
    else:
        dim = asked.shape[-1]
        layers = jnp.broadcast_to(layer_matrices(weights, dim=dim), (depth, dim, dim))

        def step(rest: Array, own: Array) -> Array:
            return rest - apply(rest @ own)

    rest, _ = jax.lax.scan(lambda r, own: (step(r, own), None), asked, layers, reverse=True)
    return unseen(asked - rest, basis)


def _covariance(
    tokens: Tokens, spectra: Spectra, basis: Float[Array, "batch dim dim"] | None, *, depth: int
) -> Callable[[Array], Array]:
    """The map from rows to their products with $S$: through $S$ itself, or through the tokens where
    that costs fewer multiplications.
    """
    inputs = tokens.inputs
    if inputs is None:
        values = spectra.inputs.astype(tokens.queries.dtype)
        moment = jnp.diag(values)
        if basis is not None:
            moment = (basis * values) @ jnp.swapaxes(basis, -1, -2)
        return lambda rows: rows @ moment
    (context, dim), queries = inputs.shape[-2:], tokens.queries.shape[-2]
    rotated = basis is not None
    through_tokens = context * dim * (4 * depth * queries + rotated * dim)  # gradients included
    if through_tokens < dim**2 * (context + 2 * depth * queries + 2 * rotated * dim):
        own = seen(inputs, basis)
        return lambda rows: (rows @ jnp.swapaxes(own, -1, -2)) @ own / context
    moment = jnp.swapaxes(inputs, -1, -2) @ inputs / context
    if basis is not None:
        moment = basis @ moment @ jnp.swapaxes(basis, -1, -2)
    return lambda rows: rows @ moment


def _stream_errors(
    weights: Weights, tokens: Tokens, *, model: StreamAttention
) -> tuple[Float[Array, "query"], Float[Array, "query layer"], Float[Array, "layer query token"]]:
    r"""The error of the answers of one context to every query; $e_l = b + Ld_l - y^*$ of every
    layer, $b = W_oh_0$ and $d_l = W_o(h_l - h_{l-1})$; and the attention rows.
    """
    assert tokens.inputs is not None
    assert tokens.tasks is not None
    norm = _hat_norm(model, tokens.inputs.shape[-1])
    labels = tokens.inputs @ tokens.tasks
    embedded = seen(tokens.inputs, tokens.basis) @ weights["inputs"].T
    embedded = embedded + labels[:, None] * weights["labels"]
    keys = hat(embedded, norm=norm)
    values = embedded @ weights["value"].T / model.depth
    start = seen(tokens.queries, tokens.basis) @ weights["inputs"].T

    def layer(state: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
        directions = hat(state, norm=norm) @ matrix.T
        step = attended(directions, keys, values)
        return state + step, (step @ weights["output"], directions)

    end, (steps, directions) = jax.lax.scan(layer, start, weights["matrix"])
    wanted = tokens.targets @ tokens.tasks
    each = (start @ weights["output"] - wanted)[:, None] + model.depth * steps.T
    return end @ weights["output"] - wanted, each, attention(directions, keys)


def layer_errors(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, model: RetrievalModel
) -> tuple[Float[Array, "query layer column"], Float[Array, "layer query token"] | None]:
    r"""The error of every layer on one context as a vector over modes, scaled by
    $\sqrt{\omega_k}$, so that products of vectors are averages over tasks and the mean over layers
    is the error of the model; and the attention rows, None of linear attention. On one stream,
    where tasks are drawn, the error is one number.

    With layer $l$ alone $\hat y$ would be $L$ times its own step.
    """
    dtype = tokens.queries.dtype
    deviation = jnp.sqrt(spectra.tasks).astype(dtype)
    if isinstance(model, StreamAttention):
        _, each, rows = _stream_errors(weights, tokens, model=model)
        return each[..., None], rows
    if isinstance(model, LinearAttention):
        steps = _linear_steps(weights, tokens, spectra, depth=model.depth)
        return deviation * (steps - tokens.targets[:, None]), None
    keys, matrices, rows = _seen_rows(weights, tokens, model=model)
    assert tokens.inputs is not None
    gains = jnp.broadcast_to(weights["gain"], (model.depth,))
    found = jnp.einsum("lkp,pd->kld", rows, tokens.inputs)
    if model.updates:
        step = weights["mask"] / model.depth

        def layer(labels: Array, own: tuple[Array, Array]) -> tuple[Array, Array]:
            matrix, row = own
            moved = attention(keys @ matrix.T, keys) @ labels
            return labels + step * moved, row @ labels

        _, answers = jax.lax.scan(layer, tokens.inputs, (matrices, rows))
        found = jnp.swapaxes(answers, 0, 1)
    return deviation * (gains[:, None] * found - tokens.targets[:, None]), rows


def _linear_steps(
    weights: Weights, tokens: Tokens, spectra: Spectra, *, depth: int
) -> Float[Array, "query layer dim"]:
    r"""$L(R_{l-1} - R_l)^Tq$ of every layer of one context, with $R_l = (I - K_lS)R_{l-1}$."""
    dim = tokens.queries.shape[-1]
    asked = seen(tokens.queries, tokens.basis)
    eye = jnp.eye(dim, dtype=asked.dtype)
    moment = _covariance(tokens, spectra, tokens.basis, depth=depth)(eye)
    matrices = jnp.broadcast_to(layer_matrices(weights, dim=dim), (depth, dim, dim))

    def layer(rest: Array, own: Array) -> tuple[Array, Array]:
        step = own @ (moment @ rest)
        return rest - step, depth * asked @ step

    _, steps = jax.lax.scan(layer, eye, matrices)
    return unseen(jnp.swapaxes(steps, 0, 1), None if tokens.basis is None else tokens.basis)


def context_maps(
    weights: Weights, tokens: Tokens, *, model: SoftmaxAttention
) -> Float[Array, "layer token token"]:
    """The attention of the tokens of one context on each other, row i that of token i."""
    keys, matrices, _ = _seen_rows(weights, tokens, model=model)
    return attention(jnp.einsum("pd,led->lpe", keys, matrices), keys)
