r"""Sampled sequences of sparse features, and the attention layer on their tokens, as the paper
writes it: the oracle of the block form that trains.

A sequence of type $s$ holds the tokens $(\phi_i; y_i)$, $\phi_i = \sigma_ie_s$ with a random sign,
$y_i = \Lambda_s\sigma_i$, and the query token $(\hat\phi; 0)$. The prediction is
$V\Phi\Phi^TW\hat\phi$ with the query among the columns of $\Phi$, or
$V\Phi\,\mathrm{softmax}(\Phi^TW_K^TW_Q\hat\phi)$.

Where features of every kind are present, the others are Gaussian, and the label is $\Lambda_s$
times the sum of all.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from leadline.curve import Floats
from leadline.spec import SparseFeatures


class Numbers(NamedTuple):
    """The numbers of a sparse task as arrays, one entry a type."""

    probability: Floats
    context: Floats
    """Whole numbers of tokens."""
    strength: Floats


def numbers_of(task: SparseFeatures) -> Numbers:
    """The probabilities, contexts (their whole part) and strengths of `task`, which has finitely
    many types.
    """
    s = np.arange(1.0, task.num_tasks + 1)
    probability = s**-task.type_exponent
    context = np.asarray(task.context, float) * s**-task.context_exponent
    return Numbers(
        probability / probability.sum(),
        np.floor(context * (1 + 1e-12)),  # 1000 s^-1 at s = 1000 is one token
        np.asarray(task.strength, float) * s**-task.strength_exponent,
    )


class Sequences(NamedTuple):
    """Sequences of one length, padded with tokens that are zero."""

    types: Int[Array, "sequence"]
    tokens: Float[Array, "sequence coordinate token"]
    """Columns (feature, label), the query last, its label zero."""
    targets: Float[Array, "sequence"]


def draw_types(
    key: Key[Array, ""], probability: Float[Array, "task"], count: int
) -> Int[Array, "sequence"]:
    """The types of `count` sequences, counted from zero."""
    edges = jnp.cumsum(probability)
    uniform = jax.random.uniform(key, (count,), probability.dtype)
    return jnp.minimum(jnp.searchsorted(edges, uniform, side="right"), len(edges) - 1)


def draw_sequences(
    key: Key[Array, ""], types: Int[Array, "sequence"], numbers: Numbers
) -> Sequences:
    """Sequences of the given types, as long as the longest context."""
    longest = int(numbers.context.max())
    tables = (jnp.asarray(numbers.context), jnp.asarray(numbers.strength), None)
    return draw_tokens(key, types, *tables, longest=longest)


def other_deviations(task: SparseFeatures) -> Floats:
    """The standard deviation of every feature but the own one in sequences of every type, (type,
    feature); the own one, a sign, counts zero.
    """
    count = int(task.num_tasks)
    places = (np.arange(count)[None, :] - np.arange(count)[:, None]) % count
    if task.feature_noise:
        return np.where(places > 0, task.feature_noise, 0.0)
    return np.where(places > 0, (1.0 + places) ** (-task.feature_decay / 2), 0.0)


def draw_tokens(
    key: Key[Array, ""],
    types: Int[Array, "sequence"],
    context: Float[Array, "task"],
    strength: Float[Array, "task"],
    others: Float[Array, "task task"] | None,
    *,
    longest: int,
) -> Sequences:
    """Sequences of the given types, of `longest` tokens and the query, in which the features have
    the standard deviations `others` beside the own one, None for zero. Draws do not depend on
    their values.
    """
    first, second = jax.random.split(key)
    shape = (len(types), len(strength), longest + 1)
    signs = jax.random.rademacher(first, (len(types), longest + 1), strength.dtype)
    own = jax.nn.one_hot(types, len(strength), dtype=signs.dtype)[:, :, None]
    features = own * signs[:, None, :]
    if others is not None:
        features += others[types][:, :, None] * jax.random.normal(second, shape, strength.dtype)
    present = (jnp.arange(longest) < context[types][:, None]).astype(strength.dtype)
    features = features.at[:, :, :longest].multiply(present[:, None, :])
    labels = strength[types][:, None] * features.sum(1)
    shown = labels.at[:, longest].set(0.0)[:, None, :]
    return Sequences(types, jnp.concatenate([features, shown], axis=1), labels[:, longest])


def literal_predictions(
    value: Float[Array, "task coordinate"],
    weight: Float[Array, "coordinate task"],
    sequences: Sequences,
) -> Float[Array, "sequence"]:
    r"""$v_s\Phi\Phi^TW\hat\phi$ of every sequence, with the value vector of its type."""
    tokens = sequences.tokens
    query = tokens[:, :-1, -1]
    keys = jnp.einsum("ct,nt->nc", weight, query)
    scores = jnp.einsum("nct,nc->nt", tokens, keys)
    values = jnp.einsum("nc,nct->nt", value[sequences.types], tokens)
    return jnp.einsum("nt,nt->n", values, scores)


def literal_softmax_predictions(
    value: Float[Array, "task coordinate"],
    key: Float[Array, "task head coordinate"],
    query: Float[Array, "head task"],
    sequences: Sequences,
) -> Float[Array, "sequence"]:
    r"""$v_s\Phi\,\mathrm{softmax}(\Phi^TW_K^TW_Q\hat\phi)$ of every sequence, with the value vector
    and the key matrix of its type; tokens that pad a sequence are masked.
    """
    tokens = sequences.tokens
    asked = jnp.einsum("ht,nt->nh", query, tokens[:, :-1, -1])
    keys = jnp.einsum("nhc,nct->nht", key[sequences.types], tokens)
    scores = jnp.einsum("nht,nh->nt", keys, asked)
    scores = jnp.where(jnp.any(tokens != 0, axis=1), scores, -jnp.inf)
    values = jnp.einsum("nc,nct->nt", value[sequences.types], tokens)
    return jnp.einsum("nt,nt->n", values, jax.nn.softmax(scores, axis=1))
