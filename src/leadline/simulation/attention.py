r"""The transformer on tokens, in its literal and its fast form.

Tokens are columns. A token starts as $W_xx + w_yy$, evaluation tokens with $y = 0$. Every layer
adds to labeled tokens minus, and to evaluation tokens plus, what they attend to among the labeled
tokens; nothing attends to evaluation tokens, so that they are read and never move the others.

Derived in docs/theory/transformers.md. Ref: arXiv:2510.01098, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Weights(NamedTuple):
    """The weights of a transformer. The layer axis has length one if all layers share them."""

    read_in: Float[Array, "width dim"]
    label_in: Float[Array, "width"]
    read_out: Float[Array, "width"]
    keys: Float[Array, "layer head row width"]
    queries: Float[Array, "layer head row width"]
    values: Float[Array, "layer head width width"] | Float[Array, "layer head"]
    r"""A matrix a head, or the number $a$ of $a\,w_yw_o^T$ where the channels are separate."""
    up: Float[Array, "layer hidden width"] | None
    down: Float[Array, "layer width hidden"] | None


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the weights do not say: static under compilation. `score` and `residual` multiply the
    products of keys and queries, and what a block adds to the stream.
    """

    depth: int
    softmax: bool
    separate: bool
    score: float
    residual: float


def literal_predictions(
    weights: Weights,
    inputs: Float[Array, "dim context"],
    labels: Float[Array, "context"],
    queries: Float[Array, "dim query"],
    *,
    architecture: Architecture,
) -> Float[Array, "query"]:
    """The predictions for `queries`, from all tokens against all tokens under the mask: the oracle
    of every other form.
    """
    context, count = labels.size, labels.size + queries.shape[1]
    tokens = weights.read_in @ jnp.concatenate([inputs, queries], axis=1)
    tokens = tokens.at[:, :context].add(jnp.outer(weights.label_in, labels))
    labeled = jnp.arange(count) < context
    mask = jnp.where(labeled[:, None], -1.0, 1.0) * labeled[None, :]  # (to, from)
    for layer in range(architecture.depth):
        own = layer % weights.keys.shape[0]
        seen, update = tokens, jnp.zeros_like(tokens)
        if architecture.separate:
            channel = weights.read_out @ tokens / (weights.read_out @ weights.label_in)
            seen = tokens - jnp.outer(weights.label_in, channel)
        for head in range(weights.keys.shape[1]):
            key, query = weights.keys[own, head] @ seen, weights.queries[own, head] @ seen
            score = architecture.score * (query.T @ key)
            if architecture.softmax:
                share = jax.nn.softmax(jnp.where(labeled[None, :], score, -jnp.inf), axis=1)
            else:
                share = score / context
            if architecture.separate:
                value = weights.values[own, head] * jnp.outer(
                    weights.label_in, weights.read_out @ tokens
                )
            else:
                value = weights.values[own, head] @ tokens
            update = update + value @ (mask * share).T
        tokens = tokens + architecture.residual * update
        if weights.up is not None and weights.down is not None:
            hidden = jax.nn.gelu(weights.up[own] @ tokens, approximate=False)
            tokens = tokens + architecture.residual * weights.down[own] @ hidden
    return weights.read_out @ tokens[:, context:]


def free(weights: Weights) -> Weights:
    r"""The weights of free channels that act as these of separate ones: keys and queries
    $W(I - w_yw_o^T/c)$ with $c = w_o\cdot w_y$, values $a\,w_yw_o^T$.
    """
    outer = jnp.outer(weights.label_in, weights.read_out)
    blind = jnp.eye(len(outer), dtype=outer.dtype) - outer / (weights.read_out @ weights.label_in)
    return weights._replace(
        keys=weights.keys @ blind,
        queries=weights.queries @ blind,
        values=weights.values[..., None, None] * outer,
    )


class _Layer(NamedTuple):
    keys: Float[Array, "head row width"]
    queries: Float[Array, "head row width"]
    values: Float[Array, "head width width"]
    up: Float[Array, "hidden width"] | None
    down: Float[Array, "width hidden"] | None


Streams = tuple[Float[Array, "width context"], Float[Array, "width query"]]
"""Labeled tokens and evaluation tokens."""


def streams(
    weights: Weights,
    inputs: Float[Array, "dim context"],
    labels: Float[Array, "context"],
    queries: Float[Array, "dim query"],
    *,
    architecture: Architecture,
) -> tuple[Streams, Float[Array, "depth width query"]]:
    r"""The tokens after the last layer, and the evaluation tokens after every layer: the fast form
    of free channels.

    Linear attention adds one matrix times every token, the mean of $v_\nu k_\nu^T$ times $W_q$,
    where that is cheaper than comparing all pairs; softmax has to compare.
    """
    width, context = weights.label_in.size, labels.size
    pairs = architecture.softmax or _pairs_are_cheaper(width, context, weights.keys.shape[1])
    attend = _attend_by_pairs if pairs else _attend_by_moment
    start = (
        weights.read_in @ inputs + jnp.outer(weights.label_in, labels),
        weights.read_in @ queries,
    )
    stack = _Layer(weights.keys, weights.queries, weights.values, weights.up, weights.down)
    tied = weights.keys.shape[0] == 1
    shared = jax.tree.map(lambda leaf: leaf[0], stack)

    def layer(tokens: Streams, stacked: _Layer | None) -> tuple[Streams, Array]:
        own = shared if stacked is None else stacked
        up, down = own.up, own.down
        tokens = attend(own, tokens, architecture)
        if up is not None and down is not None:
            tokens = jax.tree.map(
                lambda t: t + architecture.residual * down @ jax.nn.gelu(up @ t, approximate=False),
                tokens,
            )
        return tokens, tokens[1]

    return jax.lax.scan(layer, start, None if tied else stack, length=architecture.depth)


def predictions(
    weights: Weights,
    inputs: Float[Array, "dim context"],
    labels: Float[Array, "context"],
    queries: Float[Array, "dim query"],
    *,
    architecture: Architecture,
) -> Float[Array, "query"]:
    """The predictions of free channels for `queries`."""
    (_, asked), _ = streams(weights, inputs, labels, queries, architecture=architecture)
    return weights.read_out @ asked


def _pairs_are_cheaper(width: int, context: int, heads: int) -> bool:
    """Multiplications of a layer of linear attention for labeled tokens, by pairs and by moment."""
    project, pair = 2 * width**2 * context, (1 + heads) * width * context**2
    values = heads * width**2 * context
    return project + values + pair < project + 2 * width**3 + width**2 * context


def _attend_by_moment(own: _Layer, tokens: Streams, architecture: Architecture) -> Streams:
    labeled, asked = tokens
    moment = labeled @ jnp.swapaxes(own.keys @ labeled, -1, -2) / labeled.shape[1]
    matrix = jnp.einsum("hij,hjr,hrk->ik", own.values, moment, own.queries, optimize=True)
    matrix = architecture.residual * architecture.score * matrix
    return labeled - matrix @ labeled, asked + matrix @ asked


def _attend_by_pairs(own: _Layer, tokens: Streams, architecture: Architecture) -> Streams:
    labeled, asked = tokens
    key = architecture.score * (own.keys @ labeled)
    value = own.values @ labeled

    def update(to: Array) -> Array:
        score = jnp.swapaxes(key, -1, -2) @ (own.queries @ to)  # (head, from, to)
        share = jax.nn.softmax(score, axis=-2) if architecture.softmax else score / key.shape[-1]
        return architecture.residual * jnp.sum(value @ share, axis=0)

    return labeled - update(labeled), asked + update(asked)


class Reduced(NamedTuple):
    r"""A transformer of separate channels as a model on label numbers $s = w_o\cdot h$, which start
    as $cy + g\cdot x$: a layer adds $\mp$ the attention of every head, whose scores are
    $x_\mu^TG_hx_\nu$, times `gains`.
    """

    scores: Float[Array, "layer head dim dim"]
    r"""$G_h$ = `score` $\tilde W_x^TW_q^TW_k\tilde W_x$, $\tilde W_x = (I - w_yw_o^T/c)W_x$."""
    gains: Float[Array, "layer head"]
    r"""`residual` times $c\,a$."""
    label: Float[Array, ""]
    r"""$c = w_o\cdot w_y$."""
    offset: Float[Array, "dim"]
    r"""$g = W_x^Tw_o$."""


def reduce(weights: Weights, *, architecture: Architecture) -> Reduced:
    """The reduced form of a transformer of separate channels."""
    label, offset = weights.read_out @ weights.label_in, weights.read_out @ weights.read_in
    seen = weights.read_in - jnp.outer(weights.label_in, offset) / label
    scores = jnp.swapaxes(weights.queries @ seen, -1, -2) @ (weights.keys @ seen)
    gains = architecture.residual * label * weights.values
    return Reduced(architecture.score * scores, gains, label, offset)


def gammas(weights: Weights, *, architecture: Architecture) -> Float[Array, "layer dim dim"]:
    r"""The matrices $\Gamma_l$ of the reduced linear transformer with the same attention between
    input and label channel: $\Gamma = Lm\sum_h\frac{w_o\cdot W_vw_y}{w_o\cdot w_y}\,
    W_x^TW_q^TW_kW_x$, which is the whole model under the conditions of the reduction.
    """
    if architecture.separate:
        reduced = reduce(weights, architecture=architecture)
    else:
        values = weights.values @ weights.label_in @ weights.read_out
        label = weights.read_out @ weights.label_in
        scores = jnp.swapaxes(weights.queries @ weights.read_in, -1, -2) @ (
            weights.keys @ weights.read_in
        )
        gains = architecture.residual * values / label
        reduced = Reduced(architecture.score * scores, gains, label, weights.read_out)
    return architecture.depth * jnp.einsum("lh,lhij->lij", reduced.gains, reduced.scores)
