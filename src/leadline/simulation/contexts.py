"""Contexts drawn from a task, in named random streams.

A stream is derived from a seed and a path of names, so that adding a consumer changes no other
stream, and context number i of a stream is the same however many are drawn.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from leadline.errors import SpecError
from leadline.spec import InContextRegression, Spectrum, Turn


class Law(NamedTuple):
    """The numbers that a context is drawn with; every field may carry a leading lane axis."""

    inputs: Float[Array, "*lane dim"]
    """Eigenvalues of the input covariance."""
    tasks: Float[Array, "*lane dim"]
    """Eigenvalues of the task covariance."""
    noise: Float[Array, "*lane"]
    """Standard deviation of the label noise in context."""
    turn: Float[Array, "*lane dim dim"] | None = None
    """Orthogonal basis of the input covariance in every context; None is that of the tasks."""


class Context(NamedTuple):
    """The inputs of one context and the bases they were drawn in."""

    input_basis: Float[Array, "dim dim"] | None
    """Orthogonal basis of the input covariance; None is the identity."""
    task_basis: Float[Array, "dim dim"] | None
    inputs: Float[Array, "dim context"] | None
    """Labeled inputs as columns; None stands for infinitely many."""


def stream(seed: int, *names: str) -> Key[Array, ""]:
    """The random key of the stream `names` below `seed`."""
    key = jax.random.key(seed % 2**32)
    key = jax.random.fold_in(key, seed // 2**32)
    for name in names:
        key = jax.random.fold_in(key, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))
    return key


def spectrum_values(spectrum: Spectrum) -> tuple[list[float], list[float]]:
    r"""The eigenvalues $\lambda_k$ of the inputs and $\omega_k$ of the tasks.

    **Raises:** `SpecError` in infinite dimension, which can only be solved, not sampled.
    """
    if math.isinf(spectrum.dim):
        raise SpecError(
            "task.spectrum.dim: infinity cannot be sampled; give a finite dim, or use theory"
        )
    ranks = range(1, int(spectrum.dim) + 1)
    inputs = [k**-spectrum.input_exponent for k in ranks]
    tasks = [k**-spectrum.task_exponent for k in ranks]
    if spectrum.total is not None:
        scale = spectrum.total / math.fsum(a * b for a, b in zip(inputs, tasks, strict=True))
        tasks = [scale * b for b in tasks]
    return inputs, tasks


def turn_matrix(turn: Turn, dim: int) -> Float[Array, "dim dim"]:
    r"""The rotation $e^{-\theta S}$ of the inputs that `turn` describes in `dim` dimensions."""
    from scipy.linalg import expm  # jax's takes seconds to compile

    gaussian = np.random.default_rng(turn.seed).standard_normal((dim, dim))
    generator = (gaussian - gaussian.T) / math.sqrt(2 * dim)
    return jnp.asarray(expm(-turn.angle * generator))


def law_of(task: InContextRegression) -> Law:
    """The numbers of `task` as arrays."""
    inputs, tasks = spectrum_values(task.spectrum)
    turn = None if task.turn is None else turn_matrix(task.turn, len(inputs))
    return Law(
        jnp.asarray(inputs, jnp.float64),
        jnp.asarray(tasks, jnp.float64),
        jnp.asarray(task.noise, jnp.float64),
        turn,
    )


def is_certain(task: InContextRegression) -> bool:
    """Whether every context of `task` is the same: one covariance, seen through infinitely many
    inputs.
    """
    return math.isinf(task.context) and task.covariance != "rotated"


def haar(gaussian: Float[Array, "*batch dim dim"]) -> Float[Array, "*batch dim dim"]:
    """Orthogonal matrices from the Haar measure, made of matrices of independent normals: QR with
    the signs fixed.
    """
    q, r = jnp.linalg.qr(gaussian)
    return q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def draw(key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float) -> Context:
    """One context of `context` labeled inputs from the stream `key`."""
    dim, dtype = law.inputs.shape[-1], law.inputs.dtype
    count = 0 if math.isinf(context) else int(context)
    white = jax.random.normal(key, (dim, count + dim * rotated), dtype)
    tasks = haar(white[:, count:]) if rotated else None
    inputs = tasks if rotated else law.turn
    if math.isinf(context):
        return Context(inputs, tasks, None)
    scaled = jnp.sqrt(law.inputs)[:, None] * white[:, :count]
    return Context(inputs, tasks, rotate(inputs, scaled))


def rotate(
    basis: Float[Array, "dim dim"] | None, vectors: Float[Array, "dim *count"]
) -> Float[Array, "dim *count"]:
    """`vectors` given in the eigenbasis, in the basis of the context."""
    return vectors if basis is None else basis @ vectors


def diagonal_in(
    basis: Float[Array, "dim dim"] | None, values: Float[Array, "dim"]
) -> Float[Array, "dim dim"]:
    """The symmetric matrix with eigenvalues `values` in `basis`."""
    return jnp.diag(values) if basis is None else (basis * values) @ basis.T


def sample_covariance(context: Context, law: Law) -> Float[Array, "dim dim"]:
    r"""$\hat\Sigma = XX^T/P$, or $\Sigma$ itself for infinitely many inputs."""
    if context.inputs is None:
        return diagonal_in(context.input_basis, law.inputs)
    return context.inputs @ context.inputs.T / context.inputs.shape[1]
