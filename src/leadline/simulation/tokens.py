r"""Contexts of retrieval tasks: labeled tokens, queries, and what the queries have to find.

Tokens are kept in the eigenbasis of their covariance; only what attention compares is rotated. Task
vectors never need to be drawn where the prediction is $w\cdot y$ with weights $w$ on the tokens:
its error, averaged over $\beta$, is

$$E(w\cdot y - p^*\cdot y)^2 = \|\Omega^{1/2}(X w - t)\|^2,\qquad t = Xp^*,$$

and the square of component $k$ is the loss of mode $k$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from leadline.simulation.contexts import haar, normals, spectrum_values
from leadline.spec import Retrieval


class Spectra(NamedTuple):
    """Eigenvalues of the covariances of inputs and of tasks."""

    inputs: Float[Array, "dim"]
    tasks: Float[Array, "dim"]


class Tokens(NamedTuple):
    """Contexts, in the eigenbasis of each; every field may lack its first axis, for one context."""

    inputs: Float[Array, "batch token dim"] | None
    """None stands for infinitely many."""
    norms: Float[Array, "batch token"] | None
    """Of the inputs."""
    queries: Float[Array, "batch query dim"]
    targets: Float[Array, "batch query dim"]
    """The mean $t$ of the tokens to find."""
    basis: Float[Array, "batch dim dim"] | None
    """The rotation $O$; None is the identity."""
    tasks: Float[Array, "batch dim"] | None
    r"""$\beta$; None where it is integrated out."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the contexts of a program share: static under compilation.

    **Arguments:** `rotated` says whether contexts have bases of their own; `drawn_tasks` whether
    task vectors are drawn.
    """

    dim: int
    context: int | float
    queries: int
    targets: int
    difficulty: Literal["difficult", "easy"]
    rotated: bool
    drawn_tasks: bool


def shape_of(task: Retrieval, *, queries: int, rotated: bool, drawn_tasks: bool) -> Shape:
    """The shape of contexts of `task`, rotated unless that changes nothing."""
    spectrum = task.spectrum
    isotropic = spectrum.input_exponent == 0 and spectrum.task_exponent == 0
    return Shape(
        dim=int(spectrum.dim),
        context=task.context,
        queries=queries,
        targets=task.targets,
        difficulty=task.difficulty,
        rotated=rotated and not isotropic,
        drawn_tasks=drawn_tasks,
    )


def spectra_of(task: Retrieval) -> Spectra:
    """The eigenvalues of `task` as arrays."""
    inputs, tasks = spectrum_values(task.spectrum)
    return Spectra(jnp.asarray(inputs, jnp.float64), jnp.asarray(tasks, jnp.float64))


def most_similar(scores: Float[Array, "*batch token"], count: int) -> Float[Array, "*batch token"]:
    """The weights $p^*$: equal on the `count` largest scores, zero on all others. Equal floats
    count as one.
    """

    # repeated maxima: a hundred times faster on a CPU than sorting, or top_k
    def lower(_: int, threshold: Array) -> Array:
        below = jnp.where(scores < threshold, scores, -jnp.inf)
        return below.max(-1, keepdims=True)

    start = jnp.full((*scores.shape[:-1], 1), jnp.inf, scores.dtype)
    chosen = scores >= jax.lax.fori_loop(0, count, lower, start)
    return chosen / chosen.sum(-1, keepdims=True).astype(scores.dtype)


def selection(tokens: Tokens, shape: Shape) -> Float[Array, "*batch query token"]:
    """The weights $p^*$ on the tokens that a query has to find."""
    inputs, queries = tokens.inputs, tokens.queries
    assert inputs is not None
    assert tokens.norms is not None
    if shape.difficulty == "easy":
        return jnp.broadcast_to(
            jnp.eye(shape.queries, inputs.shape[-2], dtype=inputs.dtype),
            (*queries.shape[:-1], inputs.shape[-2]),
        )
    # the norm of a query does not rank
    cosines = queries @ jnp.swapaxes(inputs, -1, -2) / tokens.norms[..., None, :]
    return most_similar(cosines, shape.targets)


def unit(vectors: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """`vectors` scaled to norm one."""
    return vectors * jax.lax.rsqrt(jnp.sum(vectors**2, -1, keepdims=True))


def draw_tokens(
    key: Key[Array, ""], spectra: Spectra, shape: Shape, *, batch_size: int, dtype: str
) -> Tokens:
    """`batch_size` contexts from the stream `key`. The queries of an easy context are its first
    tokens, which is as good as any others.
    """
    dim, queries = shape.dim, shape.queries
    shapes: dict[str, tuple[int, ...]] = {}
    finite = not math.isinf(shape.context)
    if finite:
        shapes["inputs"] = (int(shape.context), dim)
    if shape.difficulty == "difficult" or not finite:
        shapes["queries"] = (queries, dim)
    if shape.rotated:
        shapes["basis"] = (dim, dim)
    if shape.drawn_tasks:
        shapes["tasks"] = (dim,)
    white = normals(key, batch_size=batch_size, shapes=shapes)
    white = {name: values.astype(dtype) for name, values in white.items()}
    deviation, spread = (jnp.sqrt(values).astype(dtype) for values in spectra)
    inputs = deviation * white["inputs"] if finite else None
    if "queries" in white:
        asked = deviation * white["queries"]
    else:
        assert inputs is not None
        asked = inputs[:, :queries]
    basis = haar(white["basis"]) if shape.rotated else None
    tasks = spread * white["tasks"] if shape.drawn_tasks else None
    norms = None if inputs is None else jnp.sqrt(jnp.sum(inputs**2, -1))
    tokens = Tokens(inputs, norms, asked, asked, basis, tasks)
    if shape.difficulty == "easy":
        return tokens
    assert inputs is not None
    return tokens._replace(targets=selection(tokens, shape) @ inputs)


def seen(
    vectors: Float[Array, "*batch row dim"], basis: Float[Array, "*batch dim dim"] | None
) -> Float[Array, "*batch row dim"]:
    """Rows given in the eigenbasis of their context, as attention sees them."""
    return vectors if basis is None else vectors @ jnp.swapaxes(basis, -1, -2)


def unseen(
    vectors: Float[Array, "*batch row dim"], basis: Float[Array, "*batch dim dim"] | None
) -> Float[Array, "*batch row dim"]:
    """The inverse of `seen`."""
    return vectors if basis is None else vectors @ basis
