r"""What is measured: the loss of given layers on a context, task vectors, label noise and queries
integrated out, and what a curve records beside it.

The reduced model is linear in the labels: $w = T u_0$ with a matrix $T$ that depends on the
context alone, $T = A^TT_sA$ with the $T_s$ of the stream where a read-in $A$ narrows it. The
average over queries, tasks and noise is then

$$\operatorname{Tr}\Omega(I - T\hat\Sigma)^T\Sigma(I - T\hat\Sigma)
  + \frac{\sigma^2}{P}\operatorname{Tr} T^T\Sigma T\hat\Sigma,$$

so only the contexts are left to sample.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import NDArray

from leadline.curve import Floats, Measure, model_width
from leadline.simulation.contexts import (
    Law,
    diagonal_in,
    draw,
    is_certain,
    law_of,
    sample_covariance,
)
from leadline.spec import InContextRegression, RegressionRun

MEASURES = {
    "scale": "mean diagonal of each layer's matrix: (record, layer)",
    "diagonal": "diagonal of each layer's matrix: (record, layer, width)",
}
"""What `Evaluation.measures` may ask of a training or a flow, beside the loss."""


class Sample(NamedTuple):
    """What the loss of a context depends on; every field may carry a leading context axis."""

    covariance: Float[Array, "*contexts dim dim"]
    r"""$\hat\Sigma$."""
    inputs: Float[Array, "*contexts dim dim"]
    r"""$\Sigma$."""
    tasks: Float[Array, "*contexts dim dim"]
    r"""$\Omega$."""
    variance: Float[Array, "*contexts"]
    r"""$\sigma^2/P$."""


def sample(key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float) -> Sample:
    """One context from the stream `key`."""
    drawn = draw(key, law, rotated=rotated, context=context)
    return Sample(
        sample_covariance(drawn, law),
        diagonal_in(drawn.input_basis, law.inputs),
        diagonal_in(drawn.task_basis, law.tasks),
        law.noise**2 * (0.0 if math.isinf(context) else 1 / context),
    )


def draw_samples(key: Key[Array, ""], task: InContextRegression, count: int) -> Sample:
    """`count` contexts of `task` from the stream `key`, or one where all are the same."""
    return _draw_samples(
        key,
        law_of(task),
        rotated=task.covariance == "rotated",
        context=task.context,
        contexts=1 if is_certain(task) else count,
    )


@partial(jax.jit, static_argnames=("rotated", "context", "contexts"))
def _draw_samples(
    key: Key[Array, ""], law: Law, *, rotated: bool, context: int | float, contexts: int
) -> Sample:
    def one(number: Array) -> Sample:
        return sample(jax.random.fold_in(key, number), law, rotated=rotated, context=context)

    return jax.lax.map(one, jnp.arange(contexts))


def sample_loss(
    gamma: Float[Array, "layer width width"],
    sample: Sample,
    read_in: Float[Array, "width dim"] | None,
    *,
    depth: int,
) -> Float[Array, ""]:
    r"""The loss of layers `gamma`, of which there are one or `depth`, on one context, from
    $T_{l+1} = (I - \Gamma_l\hat\Sigma/L)\,T_l + \Gamma_l/L$, $T_0 = 0$, in the stream of `read_in`
    (None at full width).
    """
    seen = sample.covariance if read_in is None else read_in @ sample.covariance @ read_in.T
    matrices = gamma / depth
    steps = jnp.eye(gamma.shape[-1], dtype=gamma.dtype) - matrices @ seen

    def layer(solve: Array, own: tuple[Array, Array] | None) -> tuple[Array, None]:
        step, matrix = (steps[0], matrices[0]) if own is None else own
        return step @ solve + matrix, None

    layers = None if gamma.shape[0] == 1 else (steps[1:], matrices[1:])
    solve, _ = jax.lax.scan(layer, matrices[0], layers, length=depth - 1)
    solve = solve if read_in is None else read_in.T @ solve @ read_in
    solved = solve @ sample.covariance
    missing = jnp.eye(solved.shape[-1], dtype=gamma.dtype) - solved
    bias = jnp.sum((missing @ sample.tasks) * (sample.inputs @ missing))
    return bias + sample.variance * jnp.sum(solved * (sample.inputs @ solve))


def context_losses(
    gamma: Float[Array, "layer width width"],
    key: Key[Array, ""],
    law: Law,
    read_in: Float[Array, "width dim"] | None = None,
    *,
    depth: int,
    rotated: bool,
    context: int | float,
    contexts: int,
) -> Float[Array, "contexts"]:
    """The loss of layers `gamma` on each of `contexts` contexts of the stream `key`."""

    def one(number: Array) -> Array:
        drawn = sample(jax.random.fold_in(key, number), law, rotated=rotated, context=context)
        return sample_loss(gamma, drawn, read_in, depth=depth)

    return jax.lax.map(one, jnp.arange(contexts))


def mean_and_error(losses: NDArray[np.float64], *, certain: bool) -> tuple[Floats, Floats]:
    """Mean over the contexts on the last axis, and its standard error: NaN of a single one,
    unless its loss is `certain`.
    """
    mean, count = losses.mean(-1), losses.shape[-1]
    if certain:
        return mean, np.zeros_like(mean)
    if count == 1:
        return mean, np.full_like(mean, np.nan)
    with np.errstate(over="ignore"):  # one context far past its edge: the error is infinite
        return mean, losses.std(-1, ddof=1) / math.sqrt(count)


def recorded(spec: RegressionRun, diagonals: Floats) -> tuple[Measure, ...]:
    """The measures that `spec` asks for, of the diagonals of its layers (record, layer, dim)."""
    values = {"scale": diagonals.mean(axis=-1), "diagonal": diagonals}
    return tuple(Measure(name=n, values=values[n]) for n in spec.evaluation.measures)


def clock_rate(spec: RegressionRun) -> int | float:
    r"""The $n$ with $\dot\Gamma = -n\,\partial\,$Loss$/\partial\Gamma$ on the clock of curves: the
    width of the stream, which is the dimension where it is full, since $\Gamma$ stays a multiple of
    the identity on average (not quite with a Gaussian read-in); one for fixed covariance.
    """
    return 1 if spec.task.covariance == "fixed" else model_width(spec)
