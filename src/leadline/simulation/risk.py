r"""The squared error of a transformer on one context, with whatever can be averaged exactly.

- Separate channels are linear in the labels, so that task vectors and label noise are averaged:
  with linear attention the loss is that of the reduced model, a quadratic form of the covariance of
  the context; with softmax attention the $D$ coordinates of the task vector pass the layers as $D$
  columns of labels.
- Free channels see a sampled task vector. With linear attention and no MLP the prediction is still
  linear in the evaluation token, $f = p\cdot x_*$, and the $P$ labeled tokens enter through their
  second moment alone: at most $D + 1$ tokens with the same moment take their place.
- The noise of the labels of evaluation tokens adds a constant and is left out.

All forms work in the eigenbasis of the input covariance, which the read-in is rotated to.

Derived in docs/theory/transformers.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from leadline.simulation.attention import Architecture, Reduced, Weights, predictions, reduce
from leadline.simulation.contexts import Law


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the contexts of a program share: static under compilation. `linear` says whether
    predictions are linear in the evaluation token, `noisy` whether labels in context have noise.
    """

    architecture: Architecture
    linear: bool
    dim: int
    rotated: bool
    context: int | float
    queries: int | float
    noisy: bool

    @property
    def averaged(self) -> bool:
        """Whether task vectors and label noise are averaged exactly."""
        return self.architecture.separate


class Draw(NamedTuple):
    """One context in the eigenbasis of its inputs; what is not needed is None."""

    basis: Float[Array, "dim dim"] | None
    """Orthonormal eigenvectors as columns; None is the identity."""
    inputs: Float[Array, "dim context"] | None
    """Labeled inputs as columns; None stands for infinitely many."""
    queries: Float[Array, "dim query"] | None
    """Evaluation tokens as columns; None averages over them exactly."""
    task: Float[Array, "dim"] | None
    r"""$\beta/\sqrt{\omega}$, standard normal, in the basis of the tasks."""
    noise: Float[Array, "context"] | None
    """Label noise, standard normal."""


def shapes(setting: Setting) -> dict[str, tuple[int, ...]]:
    """The standard normals that a context needs beside its basis, by field of `Draw`."""
    found: dict[str, tuple[int, ...]] = {}
    dim, sampled = setting.dim, not setting.averaged
    if not math.isinf(setting.context):
        found["inputs"] = (dim, int(setting.context))
        if sampled and setting.noisy:
            found["noise"] = (int(setting.context),)
    if not math.isinf(setting.queries):
        found["queries"] = (dim, int(setting.queries))
    if sampled:
        found["task"] = (dim,)
    return found


def risk(
    weights: Weights, reduced: Reduced | None, draw: Draw, law: Law, setting: Setting
) -> Float[Array, ""]:
    """The mean squared error on one context, averaged as the module says.

    **Arguments:** `reduced` is `reduced_of(weights, setting)`, which all contexts share; the
    `turn` of the law is the basis of the inputs in that of the tasks.
    """
    if reduced is None:
        basis = draw.basis
        read_in = weights.read_in if basis is None else weights.read_in @ basis
        return _sampled(weights._replace(read_in=read_in), draw, law, setting)
    if draw.basis is not None:
        scores = draw.basis.T @ reduced.scores @ draw.basis
        reduced = reduced._replace(scores=scores, offset=reduced.offset @ draw.basis)
    form = _columns if setting.architecture.softmax else _quadratic
    return form(reduced, draw, law, setting)


def reduced_of(weights: Weights, setting: Setting) -> Reduced | None:
    """The reduced form, where the channels are separate."""
    architecture = setting.architecture
    return reduce(weights, architecture=architecture) if architecture.separate else None


def _quadratic(reduced: Reduced, draw: Draw, law: Law, setting: Setting) -> Array:
    """The loss of separate channels under linear attention, over all tasks and label noise."""
    matrices = jnp.einsum("lh,lhij->lij", reduced.gains, reduced.scores)
    inputs = draw.inputs
    covariance = jnp.diag(law.inputs) if inputs is None else inputs @ inputs.T / inputs.shape[1]
    residual, solve = _residual(matrices, covariance, setting)
    label, offset = reduced.label, reduced.offset
    eye = jnp.eye(setting.dim, dtype=residual.dtype)
    missing = (1 - label) * eye + label * residual
    by_task = missing if law.turn is None else missing @ law.turn.T
    loss = _square(by_task, draw, law) @ law.tasks
    loss = loss + _square(2 * offset - residual @ offset, draw, law)
    if solve is not None and inputs is not None:
        # Tr S T C T^T, with T C = I - residual
        seen = eye - residual
        if draw.queries is None:
            spread = law.inputs @ jnp.sum(seen * solve, axis=1)
        else:
            spread = jnp.sum((draw.queries.T @ seen) * (draw.queries.T @ solve))
            spread = spread / draw.queries.shape[1]
        loss = loss + (label * law.noise) ** 2 / inputs.shape[1] * spread
    return loss


def _square(vectors: Float[Array, "dim *column"], draw: Draw, law: Law) -> Float[Array, "*column"]:
    """The mean square of $x_*$ times each column, over the evaluation tokens."""
    if draw.queries is None:
        return law.inputs @ vectors**2
    return jnp.mean((draw.queries.T @ vectors) ** 2, axis=0)


def _residual(
    matrices: Float[Array, "layer dim dim"], covariance: Float[Array, "dim dim"], setting: Setting
) -> tuple[Float[Array, "dim dim"], Float[Array, "dim dim"] | None]:
    r"""$R = \prod_l(I - B_lC)$ of the layers' `matrices` $B_l$, the last layer on the left, and
    where labels are noisy the $T$ with $R = I - TC$. Layers that share a matrix are doubled.
    """
    depth = setting.architecture.depth
    eye = jnp.eye(setting.dim, dtype=covariance.dtype)
    steps = eye - matrices @ covariance
    if matrices.shape[0] > 1:
        if not setting.noisy:
            residual, _ = jax.lax.scan(lambda r, s: (s @ r, None), steps[0], steps[1:])
            return residual, None
        (residual, solve), _ = jax.lax.scan(
            lambda state, own: ((own[0] @ state[0], own[0] @ state[1] + own[1]), None),
            (steps[0], matrices[0]),
            (steps[1:], matrices[1:]),
        )
        return residual, solve
    if not setting.noisy:
        return jnp.linalg.matrix_power(steps[0], depth), None
    residual, solve = steps[0], matrices[0]
    for digit in bin(depth)[3:]:
        residual, solve = residual @ residual, solve + residual @ solve
        if digit == "1":
            residual, solve = steps[0] @ residual, steps[0] @ solve + matrices[0]
    return residual, solve


def _columns(reduced: Reduced, draw: Draw, law: Law, setting: Setting) -> Array:
    """The loss of separate channels under softmax attention, over all tasks and label noise: each
    coordinate of the task vector, and each noise, is a column of labels.
    """
    inputs, queries = draw.inputs, draw.queries
    assert inputs is not None
    assert queries is not None
    context, dim = inputs.shape[1], setting.dim
    scales = jnp.sqrt(law.tasks)
    tasks = inputs.T if law.turn is None else inputs.T @ law.turn.T
    wanted = (queries.T if law.turn is None else queries.T @ law.turn.T) * scales
    parts = [reduced.label * tasks * scales, (inputs.T @ reduced.offset)[:, None]]
    if setting.noisy:
        parts.append(reduced.label * law.noise * jnp.eye(context, dtype=inputs.dtype))
    labels = jnp.concatenate(parts, axis=1)
    asked = jnp.zeros((queries.shape[1], labels.shape[1]), inputs.dtype)
    asked = asked.at[:, dim].set(queries.T @ reduced.offset)
    tokens = jnp.concatenate([inputs, queries], axis=1)

    def attention(scores: Array, gains: Array) -> Array:
        share = jax.nn.softmax(tokens.T @ (scores @ inputs), axis=-1)
        return jnp.tensordot(gains, share, 1)  # (to, from)

    def step(state: tuple[Array, Array], share: Array) -> tuple[tuple[Array, Array], None]:
        labels, asked = state
        return (labels - share[:context] @ labels, asked + share[context:] @ labels), None

    depth = setting.architecture.depth
    if reduced.gains.shape[0] == 1:
        share = attention(reduced.scores[0], reduced.gains[0])
        (_, asked), _ = jax.lax.scan(
            lambda state, _: step(state, share), (labels, asked), None, length=depth
        )
    else:
        (_, asked), _ = jax.lax.scan(
            lambda state, own: step(state, attention(*own)),
            (labels, asked),
            (reduced.scores, reduced.gains),
        )
    error = asked.at[:, :dim].add(-wanted)
    return jnp.mean(jnp.sum(error**2, axis=1))


def _sampled(weights: Weights, draw: Draw, law: Law, setting: Setting) -> Array:
    """The loss of free channels for the sampled task."""
    assert draw.task is not None
    task = jnp.sqrt(law.tasks) * draw.task
    task = task if law.turn is None else law.turn.T @ task
    if setting.linear:
        inputs, labels = _labeled(task, draw, law, setting)
        eye = jnp.eye(setting.dim, dtype=task.dtype)
        found = predictions(weights, inputs, labels, eye, architecture=setting.architecture)
        return _square(found - task, draw, law)
    assert draw.inputs is not None
    assert draw.queries is not None
    labels = draw.inputs.T @ task
    labels = labels if draw.noise is None else labels + law.noise * draw.noise
    found = predictions(
        weights, draw.inputs, labels, draw.queries, architecture=setting.architecture
    )
    return jnp.mean((found - draw.queries.T @ task) ** 2)


def _labeled(
    task: Float[Array, "dim"], draw: Draw, law: Law, setting: Setting
) -> tuple[Float[Array, "dim token"], Float[Array, "token"]]:
    """Labeled tokens with the second moment of all: the tokens themselves where they are few (the
    factorization would be ill-conditioned), else one token a row of the Cholesky factor of the
    moment of the inputs, and one without input that holds the rest of the noise.
    """
    dim, deviation = setting.dim, jnp.sqrt(law.inputs)
    inputs, noise = draw.inputs, draw.noise
    if inputs is not None and inputs.shape[1] < 2 * dim:
        labels = inputs.T @ task
        return inputs, labels if noise is None else labels + law.noise * noise
    if inputs is None:
        factor, along, rest = jnp.eye(dim, dtype=task.dtype), jnp.zeros(dim), jnp.ones(())
    else:
        white, count = inputs / deviation[:, None], inputs.shape[1]
        factor = jnp.linalg.cholesky(white @ white.T / count)
        along, rest = jnp.zeros(dim), jnp.ones(())
        if noise is not None:
            solve = jax.scipy.linalg.solve_triangular
            along = solve(factor, white @ noise / count, lower=True)
            rest = jnp.mean(noise**2) - along @ along
    tokens = deviation[:, None] * factor
    labels = tokens.T @ task
    if setting.noisy:
        tokens = jnp.concatenate([tokens, jnp.zeros((dim, 1), tokens.dtype)], axis=1)
        labels = labels + law.noise * along.astype(task.dtype)
        last = law.noise * jnp.sqrt(jnp.maximum(rest.astype(task.dtype), 0))
        labels = jnp.append(labels, last)
    size = math.sqrt(tokens.shape[1])
    return size * tokens, size * labels
