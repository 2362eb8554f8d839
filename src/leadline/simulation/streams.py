r"""Streams of finite width: the read-in $A$ that a model sees the inputs through, drawn.

A stream of width $N$ holds $Ax$ in place of $x$; its layers have matrices $\Gamma$ of size
$N\times N$ and act on the inputs as $A^T\Gamma A$. A model keeps its read-in: a training draws one
from the seed of the run, and the contexts turn under it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from leadline.simulation.contexts import haar, stream
from leadline.spec import ReducedAttention, RegressionRun


def draw_read_in(
    key: Key[Array, ""], *, dim: int, width: int, projection: str
) -> Float[Array, "width dim"]:
    r"""A read-in from the stream `key`: "orthogonal" has $AA^T = I$ and is Haar, "gaussian" has
    independent entries of variance $1/N$.
    """
    white = jax.random.normal(key, (dim, width))
    return haar(white).T if projection == "orthogonal" else white.T / math.sqrt(width)


def read_in_of(spec: RegressionRun) -> Float[Array, "width dim"] | None:
    """The read-in of the model that `spec` trains; None at full width."""
    if spec.model.width is None:
        return None
    return draw_read_in(
        stream(spec.seed, "read-in"),
        dim=int(spec.task.spectrum.dim),
        width=spec.model.width,
        projection=spec.model.projection,
    )


def is_squared(model: ReducedAttention) -> bool:
    r"""Whether the reduced form of `model` is $\Gamma\propto AA^T$, not $\Gamma\propto I$. With
    orthogonal rows the two are one.
    """
    return model.projection == "gaussian" and model.power == 2


def reduced_form(spec: RegressionRun) -> Float[Array, "stream stream"]:
    r"""The matrix of which the reduced form of a model is a multiple."""
    read_in = read_in_of(spec)
    if read_in is None:
        return jnp.eye(int(spec.task.spectrum.dim))
    return read_in @ read_in.T if is_squared(spec.model) else jnp.eye(read_in.shape[0])
