r"""Softmax attention in its fast form: mixtures of attention rows, and their gradients by hand.

With the keys absorbed, $u_l = M_l\hat q$, a layer compares as $z_i = \hat x_i\cdot u_l$, so that
one matrix product serves all layers and queries of a context. A cotangent $\bar p$ of an attention
row $p = \operatorname{softmax}(z)$ is one of the scores by

$$\bar z = p\odot(\bar p - \langle p, \bar p\rangle),$$

which needs the exponentials only once more. Where scores may be large, as they become where a
single token has to be found, the largest of a row is taken off before the exponentials.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

BLOCK = 2**17
"""Floats of the contexts that are treated together: about what a core's cache holds."""


SAFE = 80.0
"""Scores whose exponentials, and sums of them, are floats of single precision."""


class Compared(NamedTuple):
    """What attention rows are mixed over, and what the mixture is measured against."""

    inputs: Float[Array, "batch token dim"]
    rotated: Float[Array, "batch token dim"] | None
    """The inputs in the frame of the directions; None where it is their own."""
    scales: Float[Array, "batch token"] | None
    """What the inputs are multiplied by before they are compared; None is one."""
    longest: Float[Array, ""]
    """The largest norm that they then have."""
    targets: Float[Array, "batch query dim"]
    tasks: Float[Array, "dim"]
    r"""Eigenvalues of $\Omega$."""


def attention(
    directions: Float[Array, "*batch row dim"], keys: Float[Array, "*batch token dim"]
) -> Float[Array, "*batch row token"]:
    """The attention rows of the `directions` $u$."""
    return jax.nn.softmax(directions @ jnp.swapaxes(keys, -1, -2), axis=-1)


@jax.custom_vjp
def mixture_loss(
    directions: Float[Array, "batch query layer dim"],
    gains: Float[Array, "layer"],
    compared: Compared,
) -> Float[Array, ""]:
    r"""The mean over contexts and queries of $\|\Omega^{1/2}(\sum_lc_lXp_l - t)\|^2$ with the
    `gains` $c_l$ and the attention rows $p_l$ of the `directions` on the scaled tokens.
    """
    return _mixture_gradients(directions, gains, compared)[0]


def _mixture_gradients(
    directions: Float[Array, "batch query layer dim"],
    gains: Float[Array, "layer"],
    compared: Compared,
) -> tuple[Float[Array, ""], Float[Array, "batch query layer dim"], Float[Array, "layer"]]:
    """The loss and its gradients, from one pass over blocks of contexts."""
    batch, queries, layers, dim = directions.shape
    count = compared.inputs.shape[-2]
    size = block_size(batch, count * (queries * layers + dim))

    def block(
        sums: tuple[Array, Array], own: tuple[Array, Array, Array | None, Array | None, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        u, inputs, rotated, scales, targets = own
        tokens = inputs if rotated is None else rotated
        scores = jnp.einsum("bqd,bpd->bqp", u.reshape(size, -1, dim), tokens)
        # scales on the scores: scaled tokens are never written
        scale = jnp.ones((), u.dtype) if scales is None else scales[:, None]
        scores = scores * scale
        bound = _longest(u) * compared.longest
        powers = _powers(scores, bound).reshape(size, queries, layers, count)
        shares = 1 / (powers @ jnp.ones(count, u.dtype))  # a product is faster than a sum
        weights = gains * shares
        mixed = jnp.einsum("bkl,bklp->bkp", weights, powers)
        wrong = jnp.einsum("bkp,bpd->bkd", mixed, inputs) - targets
        weighted = compared.tasks * wrong
        slope = 2 * jnp.einsum("bkd,bpd->bkp", weighted, inputs)
        means = jnp.einsum("bklp,bkp->bkl", powers, slope) * shares
        score_slope = powers * ((slope[:, :, None] - means[..., None]) * weights[..., None])
        score_slope = score_slope.reshape(size, -1, count) * scale
        moved = jnp.einsum("bqp,bpd->bqd", score_slope, tokens)
        loss, gain_slope = sums
        found = (loss + jnp.sum(weighted * wrong), gain_slope + means.sum((0, 1)))
        return found, moved.reshape(u.shape)

    blocks = jax.tree.map(
        lambda a: a.reshape(batch // size, size, *a.shape[1:]),
        (directions, compared.inputs, compared.rotated, compared.scales, compared.targets),
    )
    start = (jnp.zeros((), gains.dtype), jnp.zeros_like(gains))
    (loss, gain_slope), moved = jax.lax.scan(block, start, blocks)
    total = batch * queries
    return loss / total, moved.reshape(directions.shape) / total, gain_slope / total


def _mixture_forward(
    directions: Float[Array, "batch query layer dim"],
    gains: Float[Array, "layer"],
    compared: Compared,
) -> tuple[Array, tuple[Array, Array]]:
    loss, *slopes = _mixture_gradients(directions, gains, compared)
    return loss, (slopes[0], slopes[1])


def _mixture_backward(slopes: tuple[Array, Array], bar: Array) -> tuple[Array, Array, None]:
    return bar * slopes[0], bar * slopes[1], None


mixture_loss.defvjp(_mixture_forward, _mixture_backward)


def _longest(vectors: Float[Array, "*batch dim"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.max(jnp.sum(vectors**2, -1)))


def _powers(
    scores: Float[Array, "*batch row token"], bound: Float[Array, ""]
) -> Float[Array, "*batch row token"]:
    """The exponentials of scores up to `bound`, each row up to a factor."""
    shift = jax.lax.cond(
        bound < SAFE,
        lambda s: jnp.zeros_like(s, shape=(*s.shape[:-1], 1)),
        lambda s: s.max(-1, keepdims=True),
        scores,
    )
    return jnp.exp(scores - shift)


def block_size(count: int, size: int) -> int:
    """How many of `count` contexts, each of which needs `size` floats, fit a `BLOCK`: a divisor."""
    most = max(BLOCK // size, 1)
    return max(n for n in range(1, min(most, count) + 1) if count % n == 0)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def mixed_rows(
    weights: Float[Array, "query token"],
    directions: Float[Array, "token dim"],
    keys: Float[Array, "token dim"],
    keep: bool,
) -> Float[Array, "query token"]:
    """`weights` times the attention of tokens on tokens, $cA$. For the gradient the exponentials
    are kept or made again, as `keep` says. Keys are data and have no gradient.
    """
    return _mixed_forward(weights, directions, keys, keep)[0]


def _token_powers(
    directions: Array, keys: Array
) -> tuple[Float[Array, "token token"], Float[Array, "token"]]:
    """The exponentials of the scores of tokens, and one over the sum of each row."""
    powers = _powers(directions @ keys.T, _longest(directions) * _longest(keys))
    return powers, 1 / (powers @ jnp.ones(keys.shape[0], keys.dtype))


def _mixed_forward(
    weights: Array, directions: Array, keys: Array, keep: bool
) -> tuple[Array, tuple[tuple[Array, Array] | None, Array, Array, Array]]:
    powers, shares = _token_powers(directions, keys)
    kept = (powers, shares) if keep else None
    return (weights * shares) @ powers, (kept, weights, directions, keys)


def _mixed_backward(
    keep: bool, kept: tuple[tuple[Array, Array] | None, Array, Array, Array], bar: Array
) -> tuple[Array, Array, None]:
    found, weights, directions, keys = kept
    powers, shares = _token_powers(directions, keys) if found is None else found
    back = (bar @ powers.T) * shares
    # the mean of a row's cotangent is the sum over queries of weights * back
    means = jnp.sum(weights * back, 0)
    score_slope = powers * ((weights * shares).T @ bar - (means * shares)[:, None])
    return back, score_slope @ keys, None


mixed_rows.defvjp(_mixed_forward, _mixed_backward)


@jax.custom_vjp
def attended(
    directions: Float[Array, "row dim"],
    keys: Float[Array, "token dim"],
    values: Float[Array, "token column"],
) -> Float[Array, "row column"]:
    """The `values` that the rows attend to, $Av$, all three arguments with gradients."""
    return attention(directions, keys) @ values


def _attended_forward(
    directions: Array, keys: Array, values: Array
) -> tuple[Array, tuple[Array, ...]]:
    rows = attention(directions, keys)
    out = rows @ values
    return out, (rows, directions, keys, values, out)


def _attended_backward(kept: tuple[Array, ...], bar: Array) -> tuple[Array, Array, Array]:
    rows, directions, keys, values, out = kept
    means = jnp.sum(bar * out, -1, keepdims=True)
    score_slope = rows * (bar @ values.T - means)
    return score_slope @ keys, score_slope.T @ directions, rows.T @ bar


attended.defvjp(_attended_forward, _attended_backward)
