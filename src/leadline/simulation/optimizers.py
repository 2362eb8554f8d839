r"""The optimizers of trainings, by optax: plain gradient descent, Adam and AdamW, each at a rate
that follows a schedule.

What differs between the lanes of a program, the rate and the weight decay, may be traced; the rest
is a `Rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Int, Key

from leadline.curve import Floats
from leadline.spec import Training

Parameters = TypeVar("Parameters")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the lanes of a program share of their recipes: static under compilation."""

    optimizer: Literal["sgd", "adam", "adamw"]
    schedule: Literal["constant", "cosine"]
    steps: int
    warmup: int


def rule_of(recipe: Training) -> Rule:
    """The rule of `recipe`."""
    return Rule(
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        steps=recipe.steps,
        warmup=recipe.warmup,
    )


def share_of_rate(rule: Rule) -> optax.Schedule:
    """The share of the full rate at step number n = 0, 1, ...: n over `warmup`, then one, or half
    a period of a cosine that ends in zero at `steps`.
    """
    constant = optax.constant_schedule(1.0)
    later = constant
    if rule.schedule == "cosine":
        later = optax.cosine_decay_schedule(1.0, max(rule.steps - rule.warmup, 1))
    if not rule.warmup:
        return later
    rising = optax.linear_schedule(0.0, 1.0, rule.warmup)
    return optax.join_schedules([rising, later], [rule.warmup])


def optimizer_of(
    rule: Rule, *, rate: ArrayLike, weight_decay: ArrayLike
) -> optax.GradientTransformation:
    """The transformation of gradients into updates."""
    share = share_of_rate(rule)
    step = optax.scale_by_learning_rate(lambda count: rate * share(count))
    if rule.optimizer == "sgd":
        return optax.chain(step)
    decay = optax.add_decayed_weights(weight_decay)  # pyright: ignore[reportArgumentType] (traced)
    return optax.chain(optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8), decay, step)


def descended(
    state: tuple[Parameters, Any],
    slope: Callable[[Parameters, Key[Array, ""]], Parameters],
    *,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    first: Int[Array, ""],
    last: Int[Array, ""],
) -> tuple[Parameters, Any]:
    """Parameters and the state of their `optimizer` after the steps `first` to `last` - 1, along
    the `slope` on the batch that belongs to a key.
    """

    def step(number: Array, now: tuple[Parameters, Any]) -> tuple[Parameters, Any]:
        parameters, moments = now
        found: Any = slope(parameters, jax.random.fold_in(key, number))
        change, moments = optimizer.update(found, moments, cast(Any, parameters))
        return cast(Parameters, optax.apply_updates(cast(Any, parameters), change)), moments

    return jax.lax.fori_loop(first, last, step, state)


def summed_rates(recipe: Training, record: tuple[int, ...]) -> Floats:
    """The rates of all steps before each of `record`, summed: the time of a gradient flow that
    plain descent follows.
    """
    if recipe.schedule == "constant" and not recipe.warmup:
        return np.asarray(record) * np.float64(recipe.rate)
    shares = jax.vmap(share_of_rate(rule_of(recipe)))(jnp.arange(recipe.steps))
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(shares, np.float64))])
    return recipe.rate * sums[np.asarray(record)]
