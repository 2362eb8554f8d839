r"""Softmax attention in its fast form: mixtures of attention rows, and their gradients by hand.

With the keys absorbed, $u_l = M_l\hat q$, a layer compares as $z_i = \hat x_i\cdot u_l$, so that
one matrix product serves all layers and queries of a context. A cotangent $\bar p$ of an attention
row $p = \operatorname{softmax}(z)$ is one of the scores by

$$\bar z = p\odot(\bar p - \langle p, \bar p\rangle),$$

which needs the exponentials only once more. Where scores may be large, as they become where a
single token has to be found, the largest of a row is taken off before the exponentials.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

BLOCK = 2**16
"""Floats of the contexts that are treated together: with what is made of them, a core's cache."""
KEPT = 2**26
"""Exponentials of one context that are kept for the gradient."""

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
    count, total = compared.inputs.shape[-2], batch * queries
    size = block_size(batch, count * (queries * layers + dim))

    def block(
        sums: tuple[Array, Array], own: tuple[Array, Array, Array | None, Array | None, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        u, inputs, rotated, scales, targets = own
        tokens = inputs if rotated is None else rotated
        scores = jnp.einsum("bqd,bpd->bqp", u.reshape(size, -1, dim), tokens)
        # scales on the scores: scaled tokens are never written
        scale = jnp.ones((), u.dtype) if scales is None else scales[:, None]
        bound = _longest(u) * compared.longest
        powers = _powers(scores, scale, bound).reshape(size, queries, layers, count)
        shares = 1 / (powers @ jnp.ones(count, u.dtype))  # a product is faster than a sum
        weights = gains * shares
        mixed = jnp.einsum("bkl,bklp->bkp", weights, powers)
        wrong = jnp.einsum("bkp,bpd->bkd", mixed, inputs) - targets
        weighted = compared.tasks * wrong
        slope = 2 / total * jnp.einsum("bkd,bpd->bkp", weighted, inputs)
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
    return loss / total, moved.reshape(directions.shape), gain_slope


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
    return jnp.sqrt(jnp.max(jnp.sum(vectors**2, -1), initial=0.0))


def _powers(
    scores: Float[Array, "*batch row token"], scale: Array, bound: Float[Array, ""]
) -> Float[Array, "*batch row token"]:
    """The exponentials of scores times `scale`, up to `bound`, each row up to a factor."""
    # scores are scaled again where they are used, instead of written
    shift = jax.lax.cond(
        bound < SAFE,
        lambda s, _: jnp.zeros_like(s, shape=(*s.shape[:-1], 1)),
        lambda s, scale: (s * scale).max(-1, keepdims=True),
        scores,
        scale,
    )
    return jnp.exp(scores * scale - shift)


def block_size(count: int, size: int) -> int:
    """How many of `count` contexts, each of which needs `size` floats, fit a `BLOCK`: a divisor."""
    most = max(BLOCK // size, 1)
    return max(n for n in range(1, min(most, count) + 1) if count % n == 0)


def mixed_rows(
    rows: Float[Array, "layer query token"],
    directions: Float[Array, "below token dim"],
    keys: Float[Array, "token dim"],
    step: Float[Array, ""],
) -> Float[Array, "query token"]:
    """The attention `rows` of queries taken through the attention of tokens on tokens of the layers
    below: $c_L = r_L$, $c_l = r_l + c_{l+1}(I + sA_l)$ with the `step` $s$; $c_1$.

    Keys are data and have no gradient.
    """
    below, count = directions.shape[:2]
    if below * count**2 <= KEPT:
        return _mixed_rows(rows, directions, keys, step)

    @jax.checkpoint
    def layer(above: Array, own: tuple[Array, Array]) -> tuple[Array, None]:
        row, direction = own
        return _mixed_rows(jnp.stack([row, above]), direction[None], keys, step), None

    return jax.lax.scan(layer, rows[-1], (rows[:-1], directions), reverse=True)[0]


@jax.custom_vjp
def _mixed_rows(rows: Array, directions: Array, keys: Array, step: Array) -> Array:
    return _mixed_forward(rows, directions, keys, step)[0]


def _mixed_forward(
    rows: Array, directions: Array, keys: Array, step: Array
) -> tuple[Array, tuple[Array, ...]]:
    below, count, dim = directions.shape
    bound = _longest(directions) * _longest(keys)
    # one product for all layers
    powers = _powers(directions.reshape(-1, dim) @ keys.T, jnp.ones((), keys.dtype), bound)
    shares = (1 / (powers @ jnp.ones(count, keys.dtype))).reshape(below, count)
    powers = powers.reshape(below, count, count)

    def layer(above: Array, own: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        row, power, share = own
        return row + above + step * ((above * share) @ power), above

    mixed, above = jax.lax.scan(layer, rows[-1], (rows[:-1], powers, shares), reverse=True)
    return mixed, (above, powers, shares, keys, step)


def _mixed_backward(kept: tuple[Array, ...], bar: Array) -> tuple[Array, Array, None, Array]:
    above, powers, shares, keys, step = kept

    def layer(bar: Array, own: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        power, share = own
        back = (bar @ power.T) * share
        return bar + step * back, (bar, back)

    end, (bars, backs) = jax.lax.scan(layer, bar, (powers, shares))
    # the mean of a row's cotangent is the sum over queries of c * back
    means = jnp.sum(above * backs, 1)
    slope = jnp.einsum("lki,lkp->lip", step * above * shares[:, None], bars)
    score_slope = powers * (slope - (step * means * shares)[..., None])
    moved = score_slope.reshape(-1, len(keys)) @ keys
    moved = moved.reshape(*means.shape, keys.shape[1])
    return jnp.concatenate([bars, end[None]]), moved, None, means.sum()


_mixed_rows.defvjp(_mixed_forward, _mixed_backward)


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
