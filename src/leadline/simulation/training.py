"""Training of transformers on fresh contexts, many runs at once.

Runs that share a program advance together as lanes, padded to a fixed count, as in `descent`: seed,
rate, weight decay, spectrum and noise are values of a lane, the rest is compiled. Lanes with equal
seeds see the same contexts, and all are measured on the contexts of `Evaluation.seed`. Where there
are several devices, each has a share of the lanes.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key
from numpy.typing import NDArray

from leadline.curve import Curve, Measure, trained
from leadline.errors import SolverError, SpecError, nearest
from leadline.simulation.attention import Weights, free, gammas, streams
from leadline.simulation.contexts import (
    Law,
    draw,
    haar,
    is_certain,
    law_of,
    normals,
    stream,
    substream,
)
from leadline.simulation.lanes import LANES, Observer, train_lanes
from leadline.simulation.measure import MEASURES as REDUCED_MEASURES
from leadline.simulation.measure import mean_and_error
from leadline.simulation.optimizers import Rule, rule_of, share_of_rate, summed_rates
from leadline.simulation.risk import Draw, Setting, reduced_of, risk, shapes
from leadline.simulation.scaling import architecture_of, initial_weights, rate_factors
from leadline.spec import InContextRegression, Training, TransformerRun

MEASURES = REDUCED_MEASURES | {
    "movement": "root mean square change of the stream of evaluation tokens since the start, after "
    "each layer: (record, depth)",
}
"""What `Evaluation.measures` may ask of a transformer, beside the loss: the first two of the
matrices `attention.gammas`, of linear attention without MLP blocks."""

PROBES = 16
"""Evaluation tokens that show the movement of the stream, and half as many labeled ones."""

Learned = dict[str, Array]
State = tuple[Learned, optax.OptState]


class _Lane(NamedTuple):
    """What differs between the lanes of one training program."""

    start: Weights
    key: Key[Array, ""]
    law: Law
    rate: Float[Array, ""]
    decay: Float[Array, ""]
    evaluation_key: Key[Array, ""]
    evaluation_law: Law


@dataclass(frozen=True, kw_only=True)
class _Program:
    """What the lanes share: static under compilation."""

    training: Setting
    evaluation: Setting
    batch_size: int
    contexts: int
    rule: Rule
    factors: tuple[tuple[str, float], ...]
    dtype: str


def program_key(spec: TransformerRun) -> Hashable:
    """What the compiled program of `spec` depends on.

    **Raises:** `SpecError` for a measure that the model does not have.
    """
    model, evaluation = spec.model, spec.evaluation
    known = MEASURES if model.linear else {"movement"}
    for name in evaluation.measures:
        if name not in known:
            raise SpecError(
                f"evaluation.measures: got {name!r}, expected some of {', '.join(known)}"
                f"{nearest(name, known)}"
            )
    alike = dataclasses.replace(model, start=1.0)
    return ("Transformer", alike, _program_of(spec), evaluation.record, evaluation.measures)


def _program_of(spec: TransformerRun) -> _Program:
    recipe, evaluation = spec.recipe, spec.evaluation
    assert isinstance(recipe, Training)
    evaluated = evaluation.task or spec.task
    setting = _setting(spec, evaluated, evaluation.queries)
    return _Program(
        training=_setting(spec, spec.task, recipe.queries),
        evaluation=setting,
        batch_size=int(recipe.batch_size),
        contexts=1 if _is_exact(evaluated, setting) else evaluation.contexts,
        rule=rule_of(recipe),
        factors=tuple(rate_factors(spec.model, recipe).items()),
        dtype="float32" if recipe.precision == "single" else "float64",
    )


def _setting(spec: TransformerRun, task: InContextRegression, queries: int | float) -> Setting:
    return Setting(
        architecture=architecture_of(spec.model),
        linear=spec.model.linear,
        dim=int(task.spectrum.dim),
        rotated=task.covariance == "rotated",
        context=task.context,
        queries=queries,
        noisy=task.noise > 0,
    )


def _is_exact(task: InContextRegression, setting: Setting) -> bool:
    """Whether the loss has nothing left to sample."""
    return is_certain(task) and setting.averaged and math.isinf(setting.queries)


def _optimizer(program: _Program) -> optax.GradientTransformation:
    return optax.identity() if program.rule.optimizer == "sgd" else optax.scale_by_adam()


def _cast(tree: Any, dtype: str) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def _batch_risk(
    learned: Learned, key: Key[Array, ""], start: Weights, law: Law, program: _Program
) -> Float[Array, ""]:
    """The loss on one batch of fresh contexts."""
    setting, dim = program.training, program.training.dim
    weights = start._replace(**learned)
    reduced = reduced_of(weights, setting)
    wanted = shapes(setting) | ({"basis": (dim, dim)} if setting.rotated else {})
    if not wanted:
        return risk(weights, reduced, _draw_of({}), law, setting)
    white = _cast(normals(key, batch_size=program.batch_size, shapes=wanted), program.dtype)
    if setting.rotated:
        white["basis"] = haar(white["basis"])
    deviation = jnp.sqrt(law.inputs)[:, None]

    def one(own: dict[str, Array]) -> Array:
        scaled = {name: deviation * own[name] for name in ("inputs", "queries") if name in own}
        return risk(weights, reduced, _draw_of(own | scaled), law, setting)

    return jnp.mean(jax.vmap(one)(white))


def _draw_of(found: dict[str, Array]) -> Draw:
    return Draw(**{name: found.get(name) for name in Draw._fields})


@partial(jax.jit, static_argnames=("program",), donate_argnums=(0,))
def _advance(
    state: State, lanes: _Lane, first: Int[Array, ""], last: Int[Array, ""], *, program: _Program
) -> State:
    """Steps `first` to `last` - 1, in every lane."""
    optimizer, share, factors = (
        _optimizer(program),
        share_of_rate(program.rule),
        dict(program.factors),
    )

    def lane_steps(state: State, lane: _Lane) -> State:
        start, law = _cast((lane.start, lane.law), program.dtype)
        decay = lane.decay.astype(program.dtype)

        def step(number: Array, state: State) -> State:
            learned, moments = state
            key = jax.random.fold_in(lane.key, number)
            slope = jax.grad(_batch_risk)(learned, key, start, law, program)
            update, moments = optimizer.update(slope, moments)
            direction = cast(Learned, update)
            size = (lane.rate * share(number)).astype(program.dtype)
            # the decay does not follow the factors: what it takes a step stays equal across sizes
            moved = {
                name: value - size * (factors[name] * direction[name] + decay * value)
                for name, value in learned.items()
            }
            return moved, moments

        return jax.lax.fori_loop(first, last, step, state)

    return jax.vmap(lane_steps)(state, lanes)


@partial(jax.jit, static_argnames=("program",))
def _evaluate(
    learned: Learned, lanes: _Lane, *, program: _Program
) -> Float[Array, "lane contexts"]:
    """The loss on every context of the evaluation, in float64."""
    setting = program.evaluation
    wanted = {name: shape for name, shape in shapes(setting).items() if name != "inputs"}

    def lane_losses(both: tuple[Learned, _Lane]) -> Array:
        learned, lane = both
        law = lane.evaluation_law
        weights = lane.start._replace(**_cast(learned, "float64"))
        reduced = reduced_of(weights, setting)

        def one(number: Array) -> Array:
            key = jax.random.fold_in(lane.evaluation_key, number)
            context = draw(key, law, rotated=setting.rotated, context=setting.context)
            basis, inputs = context.input_basis, context.inputs
            if inputs is not None and basis is not None:
                inputs = basis.T @ inputs
            more = normals(substream(key, "tokens"), batch_size=1, shapes=wanted) if wanted else {}
            found = {name: value[0].astype(jnp.float64) for name, value in more.items()}
            if "queries" in found:
                found["queries"] = jnp.sqrt(law.inputs)[:, None] * found["queries"]
            drawn = _draw_of(found)._replace(basis=basis, inputs=inputs)
            return risk(weights, reduced, drawn, law, setting)

        return jax.lax.map(one, jnp.arange(program.contexts), batch_size=16)

    return jax.lax.map(lane_losses, (learned, lanes))


@partial(jax.jit, static_argnames=("program",))
def _gammas(learned: Learned, lanes: _Lane, *, program: _Program) -> Float[Array, "lane layer dim"]:
    """The diagonals of the matrices of the reduced model."""

    def one(learned: Learned, lane: _Lane) -> Array:
        weights = lane.start._replace(**_cast(learned, "float64"))
        found = gammas(weights, architecture=program.evaluation.architecture)
        return jnp.diagonal(found, axis1=1, axis2=2)

    return jax.vmap(one)(learned, lanes)


@partial(jax.jit, static_argnames=("program",))
def _movement(learned: Learned, lanes: _Lane, *, program: _Program) -> Float[Array, "lane depth"]:
    """The root mean square change of the stream of `PROBES` evaluation tokens since the start."""
    setting = program.evaluation

    def one(learned: Learned, lane: _Lane) -> Array:
        wanted = {"inputs": (setting.dim, PROBES // 2), "queries": (setting.dim, PROBES)}
        key = substream(lane.evaluation_key, "movement")
        white = normals(key, batch_size=1, shapes=wanted | {"task": (setting.dim,)})
        law = lane.evaluation_law
        tokens = {k: jnp.sqrt(law.inputs)[:, None] * white[k][0].astype(float) for k in wanted}
        labels = tokens["inputs"].T @ (jnp.sqrt(law.tasks) * white["task"][0])

        def run(weights: Weights) -> Array:
            weights = free(weights) if setting.architecture.separate else weights
            form = partial(streams, architecture=setting.architecture)
            return form(weights, tokens["inputs"], labels, tokens["queries"])[1]

        now = run(lane.start._replace(**_cast(learned, "float64")))
        return jnp.sqrt(jnp.mean((now - run(lane.start)) ** 2, axis=(1, 2)))

    return jax.vmap(one)(learned, lanes)


def _lane_of(spec: TransformerRun) -> _Lane:
    recipe, evaluation, dim = spec.recipe, spec.evaluation, int(spec.task.spectrum.dim)
    assert isinstance(recipe, Training)
    return _Lane(
        start=initial_weights(spec.model, dim=dim, seed=spec.seed),
        key=stream(spec.seed, "training"),
        law=law_of(spec.task),
        rate=jnp.asarray(recipe.rate, jnp.float64),
        decay=jnp.asarray(recipe.weight_decay, jnp.float64),
        evaluation_key=stream(evaluation.seed, "evaluation", "contexts"),
        evaluation_law=law_of(evaluation.task or spec.task),
    )


@partial(jax.jit, static_argnames=("program",))
def _begin(lane: _Lane, *, program: _Program) -> State:
    """The state of a lane before its first step."""
    learned = {n: getattr(lane.start, n).astype(program.dtype) for n, _ in program.factors}
    return learned, _optimizer(program).init(learned)


def _sharding() -> jax.sharding.NamedSharding:
    """How lanes are shared among the devices: evenly."""
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError):  # JAX asserts where no platform is left
        wanted = os.environ.get("JAX_PLATFORMS")
        raise SolverError(
            f"JAX_PLATFORMS: got {wanted!r}, a device that this machine or this JAX does not have; "
            "name another, or leave it unset"
        ) from None
    count = max(n for n in range(1, LANES + 1) if LANES % n == 0 and n <= len(devices))
    mesh = jax.sharding.Mesh(np.array(devices[:count]), ("lane",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("lane"))


def learn(
    specs: Sequence[TransformerRun], *, checkpoint: Path | None, observe: Observer | None
) -> list[Curve]:
    """The curves of trainings that share one program, under `jax.enable_x64`."""
    sharding, program = _sharding(), _program_of(specs[0])

    def begin(spec: TransformerRun) -> tuple[State, _Lane]:
        lane = _lane_of(spec)
        return _begin(lane, program=program), lane

    def advance(state: State, lanes: _Lane, first: Array, last: Array) -> State:
        state, lanes = jax.device_put((state, lanes), sharding)
        return _advance(state, lanes, first, last, program=program)

    found = train_lanes(
        specs,
        record=_record_steps(specs[0]),
        begin=begin,
        advance=advance,
        measure=lambda state, lanes: _measured(specs[0], state[0], lanes, program),
        checkpoint=checkpoint,
        observe=observe,
    )
    everything = [{name: rows[i] for name, rows in found.items()} for i in range(len(specs))]
    return [_curve(spec, own, program) for spec, own in zip(specs, everything, strict=True)]


def _measured(
    spec: TransformerRun, learned: Learned, lanes: _Lane, program: _Program
) -> dict[str, Array]:
    found = {"losses": _evaluate(learned, lanes, program=program)}
    if spec.model.linear:
        found["diagonals"] = _gammas(learned, lanes, program=program)
    if "movement" in spec.evaluation.measures:
        found["movement"] = _movement(learned, lanes, program=program)
    return found


def _record_steps(spec: TransformerRun) -> tuple[int, ...]:
    assert isinstance(spec.recipe, Training)
    return spec.evaluation.record or (spec.recipe.steps,)


def _curve(spec: TransformerRun, found: dict[str, NDArray[np.float64]], program: _Program) -> Curve:
    assert isinstance(spec.recipe, Training)
    step = np.asarray(_record_steps(spec), np.int64)
    exact = _is_exact(spec.evaluation.task or spec.task, program.evaluation)
    mean, error = mean_and_error(found["losses"], certain=exact)
    values, scalars = dict(found), {}
    if spec.model.linear:
        values |= {"scale": found["diagonals"].mean(-1), "diagonal": found["diagonals"]}
        scalars["gamma"] = float(found["diagonals"][-1].mean())
    return trained(
        spec,
        step=step,
        time=summed_rates(spec.recipe, _record_steps(spec)),
        loss=mean,
        error=error,
        status="ok" if np.isfinite(mean).all() else "diverged",
        scalars=scalars,
        measures=tuple(Measure(name=n, values=values[n]) for n in spec.evaluation.measures),
    )
