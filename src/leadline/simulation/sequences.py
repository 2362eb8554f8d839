r"""Sampled sequences of sparse features, and the attention layer on their tokens, as the paper
writes it: the oracle of the block form that trains.

A sequence of type $s$ holds the tokens $(\phi_i; y_i)$, $\phi_i = \sigma_ie_s$ with a random sign,
$y_i = \Lambda_s\sigma_i$, and the query token $(\hat\phi; 0)$. The prediction is
$V\Phi\Phi^TW\hat\phi$ with the query among the columns of $\Phi$.
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
    """Sequences of one length, padded with zero tokens."""

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
    strength, context = jnp.asarray(numbers.strength), jnp.asarray(numbers.context)
    signs = jax.random.rademacher(key, (len(types), longest + 1), strength.dtype)
    signs = signs.at[:, :longest].multiply(jnp.arange(longest) < context[types][:, None])
    labels = strength[types][:, None] * signs
    features = jax.nn.one_hot(types, len(strength), dtype=signs.dtype)[:, :, None]
    tokens = jnp.concatenate(
        [features * signs[:, None, :], labels.at[:, longest].set(0.0)[:, None, :]], axis=1
    )
    return Sequences(types, tokens, labels[:, longest])


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
