r"""Softmax attention on sparse features as blocks of five numbers a type.

The tokens of a sequence of type $s$ are $\pm u$, $u = (1,\Lambda_s)$, and the query is $\pm e$,
$e = (1,0)$, so that attention sees three logits: $c$ of the $n_+$ tokens with the sign of the
query, $-c$ of the $n_-$ others, and $c_q$ of the query token itself. Relative to that sign,

$$f_s = \frac{(n_+e^c - n_-e^{-c})\,v\cdot u + e^{c_q}v_1}{n_+e^c + n_-e^{-c} + e^{c_q}},\qquad
c = (k\cdot u)\,q,\quad c_q = k_1q .$$

Key and query vectors of several dimensions that start along one direction stay there, which leaves
a key $k$ of two numbers and a query $q$ of one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from leadline.curve import Floats
from leadline.simulation.blocks import kept_numbers
from leadline.spec import SparseRun

NODES = 24
"""Counts for which the average over $n_+$ is taken: all of them in contexts of up to 23 tokens."""


class Blocks(NamedTuple):
    """The parameters of one model, on (feature, label) of each type."""

    value: Float[Array, "task 2"]
    key: Float[Array, "task 2"]
    query: Float[Array, "task"]


class Cases(NamedTuple):
    """Kinds of sequences and how often they occur."""

    types: Int[Array, "case"]
    same: Float[Array, "case"]
    """Tokens with the sign of the query, $n_+$."""
    weight: Float[Array, "case"]


def starting_blocks(spec: SparseRun) -> Blocks:
    r"""Value and key along $(1,\Lambda_s)$ and the query, all of one norm $b$, at
    $f_s(0) = b\sqrt M\tanh(b^2\sqrt M)$ = `model.start` times $\Lambda_s$, $M = 1+\Lambda_s^2$.
    """
    strength = kept_numbers(spec).strength
    root, target = np.sqrt(1 + strength**2), spec.model.start * np.abs(strength)
    low, high = np.zeros_like(target), 1 + 2 * target / root
    for _ in range(80):
        middle = (low + high) / 2
        above = middle * root * np.tanh(middle**2 * root) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    along = np.stack([np.ones_like(strength), strength], 1) / root[:, None] * high[:, None]
    sign = np.where(strength < 0, -1.0, 1.0)[:, None]
    return Blocks(jnp.asarray(sign * along), jnp.asarray(along), jnp.asarray(high))


def predictions(
    blocks: Blocks,
    types: Int[Array, "*case"],
    same: Float[Array, "*case"],
    *,
    context: Float[Array, "task"],
    strength: Float[Array, "task"],
) -> Float[Array, "*case"]:
    """$f_s$ of sequences of the given types and counts."""
    value, key, query = (part[types] for part in blocks)
    along = value[..., 0] + strength[types] * value[..., 1]
    logit = (key[..., 0] + strength[types] * key[..., 1]) * query
    own = key[..., 0] * query
    largest = jax.lax.stop_gradient(jnp.maximum(jnp.abs(logit), own))
    with_sign = same * jnp.exp(logit - largest)
    against = (context[types] - same) * jnp.exp(-logit - largest)
    itself = jnp.exp(own - largest)
    top = (with_sign - against) * along + itself * value[..., 0]
    return top / (with_sign + against + itself)


def count_nodes(context: float) -> tuple[Floats, Floats]:
    r"""`NODES` values of $n_+$ and weights for averages over its binomial law: all counts of a
    short context, and Gauss quadrature of a longer one, exact for polynomials of degree below
    2 `NODES`. The recurrence of Krawtchouk polynomials has $b_k^2 = k(\psi-k+1)/4$.
    """
    count = int(min(NODES, context + 1))
    k = np.arange(1.0, count)
    beside = np.sqrt(k * (context - k + 1)) / 2
    nodes, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    padding = np.zeros(NODES - count)
    nodes = np.clip(context / 2 + nodes, 0, context)
    return np.concatenate([nodes, padding]), np.concatenate([vectors[0] ** 2, padding])


def average_cases(context: Floats) -> tuple[Floats, Floats]:
    """The counts and weights of `count_nodes` for every type: (task, node) each."""
    rows = [count_nodes(length) for length in context.tolist()]
    return np.stack([n for n, _ in rows]), np.stack([w for _, w in rows])


def draw_same(
    key: Key[Array, ""], context: Float[Array, "sequence"], *, longest: int
) -> Float[Array, "sequence"]:
    """How many of the fair signs of contexts of up to `longest` tokens agree with the query."""
    words = -(-longest // 32)
    bits = jax.random.bits(key, (len(context), words), jnp.uint32)
    left = jnp.clip(context[:, None] - 32.0 * jnp.arange(words), 0, 32).astype(jnp.uint32)
    # a shift by 32 is not defined
    mask = jnp.where(left == 0, 0, jnp.uint32(0xFFFFFFFF) >> ((32 - left) % 32))
    return jax.lax.population_count(bits & mask.astype(jnp.uint32)).sum(1).astype(context.dtype)
