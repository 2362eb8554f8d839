r"""Contexts in the eigenbasis of what the layers see, where untrained layers cost next to nothing.

Layers $\Gamma = \gamma I$ see a context as $M = B\hat\Sigma$: $B = I$ at full width, $B = A^TA$ (or
its square) in a stream with the read-in $A$. The contexts are taken in the basis of their tasks;
nothing depends on how a context is turned, and what is turned against it is the read-in.

**All modes seen** ($B = I$, no fewer inputs than dimensions): with
$\hat\Sigma = U\operatorname{diag}(s)U^T$, $r_a = 1 - \gamma s_a/L$ and
$K_{ab} = (U^T\Omega U)_{ab}(U^T\Sigma U)_{ab}$ the loss is

$$\sum_{ab} r_a^L K_{ab} r_b^L
  + \frac{\sigma^2}{P}\sum_a\frac{(1 - r_a^L)^2}{s_a}(U^T\Sigma U)_{aa},$$

a positive sum that keeps its digits however small it is.

**Some modes seen**: with $\hat\Sigma = RR^T$, $R^TBR = V\operatorname{diag}(s)V^T$, $Y = BRV$,
$Z = RV$ and $q_a = (1 - r_a^L)/s_a$,

$$(I - \gamma M/L)^L = I - Y\operatorname{diag}(q)Z^T,$$

and likewise with $B = CC^T$, $C^T\hat\Sigma C = V\operatorname{diag}(s)V^T$, $Y = CV$,
$Z = \hat\Sigma CV$: the smaller of the two decompositions is taken. The loss is a quadratic form in
$q$, with an absolute accuracy of $10^{-15}$ of $\operatorname{Tr}\Omega\Sigma$.

Derived in docs/theory/equivalents.md, "Simulation".
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from leadline.simulation.contexts import (
    Context,
    Law,
    diagonal_in,
    draw_unrotated,
    rotate,
    sample_covariance,
    substream,
)
from leadline.simulation.streams import draw_read_in, is_squared
from leadline.spec import ReducedAttention


class Lanes(NamedTuple):
    """The values that differ between the points of one landscape."""

    gamma: Float[Array, "lane"]
    depth: Float[Array, "lane"]
    noise: Float[Array, "lane"]


class AllModes(NamedTuple):
    """Contexts of which all modes are seen; every field may carry a leading axis of contexts."""

    eigenvalues: Float[Array, "*contexts dim"]
    bias: Float[Array, "*contexts dim dim"]
    """The kernel $K$."""
    variance: Float[Array, "*contexts dim"]
    r"""$(U^T\Sigma U)_{aa}/P$; zero for infinitely many inputs."""

    def losses(self, lanes: Lanes) -> Float[Array, "lane"]:
        """The loss of every lane on one context."""
        values = self.eigenvalues
        power = _power(values, lanes)
        bias = jnp.sum((power @ self.bias) * power, axis=1)
        safe = jnp.where(values > 0, values, 1.0)
        variance = jnp.where(values > 0, (1 - power) ** 2 / safe, 0.0) @ self.variance
        return bias + lanes.noise**2 * variance


class SomeModes(NamedTuple):
    """Contexts of which some modes are seen; every field may carry a leading axis of contexts."""

    eigenvalues: Float[Array, "*contexts mode"]
    start: Float[Array, "*contexts"]
    r"""$\operatorname{Tr}\Omega\Sigma$."""
    overlap: Float[Array, "*contexts mode"]
    r"""$(Z^T\Omega\Sigma Y)_{aa}$."""
    bias: Float[Array, "*contexts mode mode"]
    r"""$(Y^T\Sigma Y)_{ab}(Z^T\Omega Z)_{ab}$."""
    variance: Float[Array, "*contexts mode"]
    r"""What label noise adds to the loss is $\sigma^2q^2$ times it."""

    def losses(self, lanes: Lanes) -> Float[Array, "lane"]:
        """The loss of every lane on one context."""
        solve = _solved(self.eigenvalues, lanes)
        bias = self.start + jnp.sum((solve @ self.bias - 2 * self.overlap) * solve, axis=1)
        return bias + lanes.noise**2 * (solve**2 @ self.variance)


Modes = AllModes | SomeModes


def _power(values: Float[Array, "mode"], lanes: Lanes) -> Float[Array, "lane mode"]:
    """$r^L$; the depth is a whole number held as a float, and a negative $r$ keeps its sign."""
    finite = jnp.isfinite(lanes.depth)[:, None]
    depth = jnp.where(finite, lanes.depth[:, None], 1.0)
    gamma = lanes.gamma[:, None]
    base = 1 - gamma * values / depth
    sign = jnp.where((base < 0) & (jnp.mod(depth, 2) == 1), -1.0, 1.0)
    return jnp.where(finite, sign * jnp.abs(base) ** depth, jnp.exp(-gamma * values))


def _solved(values: Float[Array, "mode"], lanes: Lanes) -> Float[Array, "lane mode"]:
    r"""$q = (1 - r^L)/s$, which is $\gamma$ at $s = 0$ and keeps its digits near there."""
    finite, gamma = jnp.isfinite(lanes.depth)[:, None], lanes.gamma[:, None]
    depth = jnp.where(finite, lanes.depth[:, None], 1.0)
    step = gamma * values / depth
    small = jnp.abs(step) < 0.5
    logs = jnp.where(finite, depth * jnp.log1p(-jnp.where(small, step, 0.0)), -gamma * values)
    fitted = jnp.where(small | ~finite, -jnp.expm1(logs), 1 - _power(values, lanes))
    return jnp.where(values > 0, fitted / jnp.where(values > 0, values, 1.0), gamma)


def decompose(
    key: Key[Array, ""],
    law: Law,
    model: ReducedAttention,
    *,
    rotated: bool,
    context: int | float,
    contexts: int,
) -> Modes:
    """Draw `contexts` contexts of the stream `key` and diagonalize them as `model` sees them. A
    narrower stream gets a read-in for each, on which the inputs do not depend.
    """
    return _decompose(
        key,
        law,
        rotated=rotated,
        context=context,
        contexts=contexts,
        width=model.width,
        projection=model.projection,
        squared=is_squared(model),
    )


@partial(
    jax.jit, static_argnames=("rotated", "context", "contexts", "width", "projection", "squared")
)
def _decompose(
    key: Key[Array, ""],
    law: Law,
    *,
    rotated: bool,
    context: int | float,
    contexts: int,
    width: int | None,
    projection: str,
    squared: bool,
) -> Modes:
    dim = law.inputs.shape[-1]

    def one(number: Array) -> Modes:
        own = jax.random.fold_in(key, number)
        drawn = draw_unrotated(own, law, rotated=rotated, context=context)
        if width is None:
            return all_modes(drawn, law) if context >= dim else some_modes(drawn, law, None)
        # drawn for each context, a read-in turns against it as the context would have
        read_in = draw_read_in(
            substream(own, "read-in"), dim=dim, width=width, projection=projection
        )
        return some_modes(drawn, law, read_in, squared=squared)

    return jax.lax.map(one, jnp.arange(contexts))


def all_modes(drawn: Context, law: Law) -> AllModes:
    """One context, given in the basis of its tasks, at full width."""
    values, vectors = jnp.linalg.eigh(sample_covariance(drawn, law))
    inputs = vectors.T @ diagonal_in(drawn.input_basis, law.inputs) @ vectors
    tasks = vectors.T @ (law.tasks[:, None] * vectors)
    scale = 0.0 if drawn.inputs is None else 1 / drawn.inputs.shape[1]
    return AllModes(jnp.maximum(values, 0.0), inputs * tasks, scale * jnp.diagonal(inputs))


def some_modes(
    drawn: Context,
    law: Law,
    read_in: Float[Array, "width dim"] | None,
    *,
    squared: bool = False,
) -> SomeModes:
    r"""One context, given in the basis of its tasks, through `read_in` (None at full width), with
    $B = A^TA$, or $B = (A^TA)^2$ if `squared`.
    """

    def weighted(vectors: Array) -> Array:
        r"""$\Sigma$ times vectors."""
        basis = drawn.input_basis
        own = vectors if basis is None else basis.T @ vectors
        return rotate(basis, law.inputs[:, None] * own)

    if drawn.inputs is None:
        root, scale = rotate(drawn.input_basis, jnp.diag(jnp.sqrt(law.inputs))), 0.0
    else:
        scale = 1 / drawn.inputs.shape[1]
        root = drawn.inputs * math.sqrt(scale)
    if read_in is not None and read_in.shape[0] < min(root.shape):
        frame = read_in.T @ jnp.linalg.cholesky(read_in @ read_in.T) if squared else read_in.T
        seen = root.T @ frame
        values, vectors = jnp.linalg.eigh(seen.T @ seen)
        left, right = frame @ vectors, root @ (seen @ vectors)
        variance = scale * jnp.maximum(values, 0.0)
    else:
        seen = root
        if read_in is not None:
            for _ in range(2 if squared else 1):
                seen = read_in.T @ (read_in @ seen)
        values, vectors = jnp.linalg.eigh(root.T @ seen)
        left, right = seen @ vectors, root @ vectors
        variance = jnp.full_like(values, scale)
    moved = weighted(left)
    inputs = left.T @ moved
    return SomeModes(
        jnp.maximum(values, 0.0),
        jnp.sum(law.tasks * jnp.diagonal(weighted(jnp.eye(law.inputs.shape[-1])))),
        jnp.sum(right * (law.tasks[:, None] * moved), axis=0),
        inputs * (right.T @ (law.tasks[:, None] * right)),
        variance * jnp.diagonal(inputs),
    )
