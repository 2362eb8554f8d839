r"""Gradient flow of the whole matrix, or of one matrix a layer, on a fixed set of contexts.

The loss is averaged exactly over task vectors, noise and queries, and over the contexts drawn, so
that it is a smooth function of $\Gamma$, and the flow

$$\dot\Gamma_l = -n\,L_u\,\frac{\partial\mathcal L}{\partial\Gamma_l}$$

an ordinary differential equation, with $n$ from `clock_rate` and $L_u = L$ for untied layers.
Layers start as multiples of the reduced form: of the identity, or of $AA^T$ where a stream with the
read-in $A$ has that. The flow is integrated by the pair of orders 5 and 4 of Dormand and Prince,
explicit and adaptive.

A gradient costs about $6(L + 2)D^3$ multiplications a context, a step six gradients. Where the
flow is stiff, the number of steps grows as a third of the time times the largest curvature $\rho$
(in units of the clock, about one where the trace of the loss is one). At depth two and more a fixed
covariance is not stiff, since all curvatures fall as one over the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from leadline.curve import Curve, trained
from leadline.simulation.contexts import is_certain, stream
from leadline.simulation.lanes import Observer
from leadline.simulation.measure import (
    Sample,
    clock_rate,
    draw_samples,
    mean_and_error,
    recorded,
    sample_loss,
)
from leadline.simulation.streams import read_in_of, reduced_form
from leadline.spec import GradientFlow, RegressionRun

TOLERANCE = 1e-8
"""Of one step, in every entry: relative, and absolute at scale one."""

FIRST_STEP = 1e-4
"""The step tried first, from where it may grow fivefold a step."""

MAX_STEPS = 100_000
"""Steps of one flow, those of too large an error included."""

# Dormand and Prince (1980), J. Comput. Appl. Math. 6, 19. The last row gives the new state.
STAGES = np.array(
    [
        [0, 0, 0, 0, 0, 0, 0],
        [1 / 5, 0, 0, 0, 0, 0, 0],
        [3 / 40, 9 / 40, 0, 0, 0, 0, 0],
        [44 / 45, -56 / 15, 32 / 9, 0, 0, 0, 0],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729, 0, 0, 0],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656, 0, 0],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0],
    ]
)
FOURTH_ORDER = np.array(
    [5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40]
)


class State(NamedTuple):
    """Where an integration stands."""

    gamma: Float[Array, "layer width width"]
    velocity: Float[Array, "layer width width"]
    time: Float[Array, ""]
    step: Float[Array, ""]
    """The next step to try."""
    tries: Int[Array, ""]
    error: Float[Array, ""]
    """What the errors of all steps may have changed the training loss by."""


def _mean_loss(gamma: Array, samples: Sample, read_in: Array | None, depth: int) -> Array:
    return jnp.mean(
        jax.vmap(lambda sample: sample_loss(gamma, sample, read_in, depth=depth))(samples)
    )


def _velocity(
    gamma: Array, samples: Sample, read_in: Array | None, rate: Array, depth: int
) -> Array:
    return -rate * jax.grad(_mean_loss)(gamma, samples, read_in, depth)


@partial(jax.jit, static_argnames=("depth",))
def advance(
    state: State,
    samples: Sample,
    read_in: Float[Array, "width dim"] | None,
    rate: Float[Array, ""],
    end: Float[Array, ""],
    *,
    depth: int,
) -> State:
    """Integrate `state` to the time `end`, or as far as `MAX_STEPS` lead."""
    stages, errors = jnp.asarray(STAGES), jnp.asarray(STAGES[-1] - FOURTH_ORDER)

    def attempt(now: State) -> State:
        left = end - now.time
        step = jnp.minimum(now.step, left)

        def stage(number: Array, slopes: Array) -> Array:
            moved = now.gamma + step * jnp.tensordot(stages[number], slopes, axes=1)
            return slopes.at[number].set(_velocity(moved, samples, read_in, rate, depth))

        slopes = jnp.zeros((7, *now.gamma.shape), now.gamma.dtype).at[0].set(now.velocity)
        # the first velocity is known from the step before, if there was one
        slopes = jax.lax.fori_loop(jnp.minimum(now.tries, 1), 7, stage, slopes)
        moved = now.gamma + step * jnp.tensordot(stages[-1], slopes, axes=1)
        error = step * jnp.tensordot(errors, slopes, axes=1)
        size = jnp.max(jnp.abs(error) / (1 + jnp.abs(now.gamma))) / TOLERANCE
        accepted = size <= 1  # false where it is not a number
        factor = jnp.where(size > 0, 0.9 * size**-0.2, jnp.where(size == 0, 5.0, 0.2))
        proposed = step * jnp.clip(factor, 0.2, 5.0)
        shortened = accepted & (step < now.step)
        done = State(
            moved,
            slopes[-1],
            jnp.where(step == left, end, now.time + step),
            now.step,
            now.tries,
            now.error + jnp.abs(jnp.sum(error * slopes[0])) / rate,
        )
        kept = now._replace(velocity=slopes[0])
        after = jax.tree.map(partial(jnp.where, accepted), done, kept)
        return after._replace(
            step=jnp.where(shortened, jnp.maximum(proposed, now.step), proposed),
            tries=now.tries + 1,
        )

    return jax.lax.while_loop(
        lambda now: (now.time < end) & (now.tries < MAX_STEPS), attempt, state
    )


@partial(jax.jit, static_argnames=("depth",))
def _losses(
    gamma: Array, samples: Sample, read_in: Array | None, *, depth: int
) -> Float[Array, "contexts"]:
    return jax.lax.map(lambda sample: sample_loss(gamma, sample, read_in, depth=depth), samples)


def follow(specs: Sequence[RegressionRun], *, observe: Observer | None) -> list[Curve]:
    r"""The curves of gradient flows that share one program.

    Each trains on as many contexts as its evaluation has, on one where all are the same. The loss
    of what it learned differs by $O(1/n)$ from that of infinitely many contexts, for $n$ of them.

    **Returns** curves with the scalars "gamma", the mean diagonal of all layers, and "steps".
    `loss_error` is the standard error over the contexts of the evaluation, and what integration
    may add to it. Times that `MAX_STEPS` do not reach have the loss NaN, and status "diverged".
    """
    total = sum(len(spec.recipe.times) for spec in specs if isinstance(spec.recipe, GradientFlow))
    done = itertools.count(1)

    def reached() -> None:
        if observe is not None:
            observe(next(done), total)

    return [_solve(spec, reached=reached) for spec in specs]


def _solve(spec: RegressionRun, *, reached: Callable[[], None]) -> Curve:
    recipe, task, depth = spec.recipe, spec.task, int(spec.model.depth)
    assert isinstance(recipe, GradientFlow)
    evaluated = spec.evaluation.task or task
    count = spec.evaluation.contexts
    samples = draw_samples(stream(spec.seed, "training", "contexts"), task, count)
    seen = draw_samples(stream(spec.evaluation.seed, "evaluation", "contexts"), evaluated, count)
    layers = 1 if spec.model.tied else depth
    starts = recipe.start + recipe.spread * (-1.0) ** np.arange(layers)
    read_in, form = read_in_of(spec), reduced_form(spec)
    gamma = jnp.asarray(starts[:, None, None] * np.asarray(form))
    rate = jnp.asarray(float(clock_rate(spec) * layers))
    zero = jnp.zeros(())
    state = State(
        gamma, jnp.zeros_like(gamma), zero, zero + FIRST_STEP, jnp.asarray(0, jnp.int64), zero
    )
    losses = np.full((len(recipe.times), len(seen.variance)), np.nan)
    diagonals = np.full((len(recipe.times), *gamma.shape[:2]), np.nan)
    errors = np.full(len(recipe.times), np.nan)
    for index, time in enumerate(recipe.times):
        state = advance(state, samples, read_in, rate, jnp.asarray(time), depth=depth)
        if float(state.time) == time:
            losses[index] = _losses(state.gamma, seen, read_in, depth=depth)
            diagonals[index] = jnp.diagonal(state.gamma, axis1=-2, axis2=-1)
            errors[index] = state.error
        reached()
    mean, sampling_error = mean_and_error(losses, certain=is_certain(evaluated))
    return trained(
        spec,
        step=np.zeros(len(recipe.times), np.int64),
        time=np.array(recipe.times),
        loss=mean,
        error=sampling_error + errors,
        status="ok" if np.isfinite(mean).all() else "diverged",
        scalars={"gamma": float(diagonals[-1].mean()), "steps": float(state.tries)},
        measures=recorded(spec, diagonals),
    )
