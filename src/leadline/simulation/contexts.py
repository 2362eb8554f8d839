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
from jaxtyping import Array, Float, Key

from leadline.errors import SpecError
from leadline.spec import Spectrum, Task


class Law(NamedTuple):
    """The numbers that a context is drawn with; every field may carry a leading lane axis."""

    inputs: Float[Array, "*lane dim"]
    """Eigenvalues of the input covariance."""
    tasks: Float[Array, "*lane dim"]
    """Eigenvalues of the task covariance."""
    noise: Float[Array, "*lane"]
    """Standard deviation of the label noise in context."""


class Context(NamedTuple):
    """The inputs of one context and the basis they were drawn in."""

    basis: Float[Array, "dim dim"] | None
    """Orthogonal basis of both covariances; None is the identity."""
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


def law_of(task: Task, *, dtype: jnp.dtype) -> Law:
    """The numbers of `task` as arrays."""
    inputs, tasks = spectrum_values(task.spectrum)
    return Law(
        jnp.asarray(inputs, dtype), jnp.asarray(tasks, dtype), jnp.asarray(task.noise, dtype)
    )


def haar(key: Key[Array, ""], dim: int, dtype: jnp.dtype) -> Float[Array, "dim dim"]:
    """An orthogonal matrix from the Haar measure: QR of a Gaussian matrix, signs fixed."""
    q, r = jnp.linalg.qr(jax.random.normal(key, (dim, dim), dtype))
    return q * jnp.sign(jnp.diagonal(r))


def draw(key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float) -> Context:
    """One context of `context` labeled inputs from the stream `key`."""
    basis_key, input_key = jax.random.split(key)
    dim, dtype = law.inputs.shape[-1], law.inputs.dtype
    basis = haar(basis_key, dim, dtype) if rotated else None
    if math.isinf(context):
        return Context(basis, None)
    white = jax.random.normal(input_key, (dim, int(context)), dtype)
    return Context(basis, turn(basis, jnp.sqrt(law.inputs)[:, None] * white))


def turn(
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
        return diagonal_in(context.basis, law.inputs)
    return context.inputs @ context.inputs.T / context.inputs.shape[1]
