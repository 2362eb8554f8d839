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
    return substream(jax.random.fold_in(key, seed // 2**32), *names)


def substream(key: Key[Array, ""], *names: str) -> Key[Array, ""]:
    """The random key of the stream `names` below that of `key`."""
    for name in names:
        key = jax.random.fold_in(key, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))
    return key


def uniforms(key: Key[Array, ""], count: int) -> Float[Array, "count"]:
    """Independent float32 numbers, uniform between -1 and 1, which are not among them."""
    # JAX draws 64 bits at a time, and throws half away if asked for 32
    wide = jax.random.bits(key, ((count + 1) // 2,), jnp.uint64)
    bits = jax.lax.bitcast_convert_type(wide, jnp.uint32).reshape(-1)[:count]
    return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-22 - 1  # exact, never -1 or 1


def normals(
    key: Key[Array, ""], *, batch_size: int, shapes: dict[str, tuple[int, ...]]
) -> dict[str, Float[Array, "batch *shape"]]:
    """Independent float32 normals of each of the `shapes`, for every member of a batch, from one
    draw: compiling a draw takes longer than anything else in a step.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    uniform = uniforms(key, batch_size * sum(sizes))
    normal = (math.sqrt(2) * jax.lax.erf_inv(uniform)).reshape(batch_size, -1)
    ends = np.cumsum(sizes)[:-1].tolist()
    parts = zip(shapes.items(), jnp.split(normal, ends, axis=1), strict=True)
    return {name: part.reshape(batch_size, *shape) for (name, shape), part in parts}


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


def haar(gaussian: Float[Array, "*batch dim column"]) -> Float[Array, "*batch dim column"]:
    """Orthonormal columns, at most as many as there are dimensions, from the Haar measure, made of
    matrices of independent normals: QR with the signs fixed.
    """
    q, r = jnp.linalg.qr(gaussian)
    return q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]


def draw(key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float) -> Context:
    """One context of `context` labeled inputs from the stream `key`."""
    scaled, white = _drawn(key, law, rotated=rotated, context=context)
    tasks = haar(white) if rotated else None
    inputs = tasks if rotated else law.turn
    return Context(inputs, tasks, None if scaled is None else rotate(inputs, scaled))


def draw_unrotated(
    key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float
) -> Context:
    """The context that `draw` makes of the stream `key`, in the basis of its own tasks."""
    scaled, _ = _drawn(key, law, rotated=rotated, context=context)
    return Context(law.turn, None, None if scaled is None else rotate(law.turn, scaled))


def _drawn(
    key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float
) -> tuple[Float[Array, "dim context"] | None, Float[Array, "dim column"]]:
    """The inputs of a context in their eigenbasis, and normals to make a rotation of."""
    dim, dtype = law.inputs.shape[-1], law.inputs.dtype
    count = 0 if math.isinf(context) else int(context)
    white = jax.random.normal(key, (dim, count + dim * rotated), dtype)
    scaled = None if math.isinf(context) else jnp.sqrt(law.inputs)[:, None] * white[:, :count]
    return scaled, white[:, count:]


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
