r"""Sparse feature regression simulated: gradient descent on sampled sequences, and the exact flow.

On a sequence of type $s$ the layer sees two coordinates, feature $s$ and the label. Its prediction
is $\hat\phi\,v_s^TH_sw_s$ with $H_s = \psi_suu^T + ee^T$, $u = (1,\Lambda_s)$, $e = (1,0)$,
whatever the signs of the tokens: squares of signs are one. So a batch enters through the number of
its sequences of each type alone, and blocks $v_s, w_s$ of two numbers train exactly as the matrices
of `sequences.literal_predictions` do.

The loss of a curve is the mean squared error over all types, no sampling left; the flow of that
loss without 1/2 has $\dot v_s = -2\kappa_sr_sH_sw_s$, $\kappa_s$ the share of type $s$ in the data.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import NDArray

from leadline.curve import Curve, Floats, Measure, trained
from leadline.errors import SolverError, SpecError, nearest
from leadline.simulation.blocks import kept_numbers, starting_blocks, token_matrices
from leadline.simulation.contexts import stream
from leadline.simulation.descent import Observer
from leadline.simulation.sequences import draw_types, numbers_of
from leadline.spec import GradientFlow, SparseRun, Training

MEASURES = {
    "output": "the prediction f_s of each task: (record, task)",
    "counts": "training sequences of each task: (task)",
}
MOST_TASKS = 2**16
TOLERANCE = 1e-10
INTEGRATION = 1e-7
"""Relative error of a loss that the tolerance may leave."""
Bools = NDArray[np.bool_]


def program_key(spec: SparseRun) -> Hashable:
    """What the program of `spec` depends on.

    **Raises:** `SolverError` for what only theory can answer, `SpecError` for tasks without a
    token, steps too large to be stable, and unknown measures.
    """
    task, recipe = spec.task, spec.recipe
    if task.num_tasks > MOST_TASKS:
        raise SolverError(
            f"task.num_tasks: got {task.num_tasks}, expected at most {MOST_TASKS} to simulate; "
            "theory answers any number"
        )
    for name in spec.evaluation.measures:
        if name not in MEASURES:
            raise SpecError(
                f"evaluation.measures: got {name!r}, expected some of {', '.join(MEASURES)}"
                f"{nearest(name, MEASURES)}"
            )
    numbers = kept_numbers(spec)
    short = np.flatnonzero(numbers.context < 1)
    if len(short):
        raise SpecError(
            f"task.context: from task {short[0] + 1} on there is less than one token; expected "
            f"model.size or task.num_tasks < {short[0] + 1}, or longer contexts"
        )
    model = spec.model
    shape = (task.num_tasks, min(model.size, task.num_tasks), model.constrained, model.shared_value)
    if isinstance(recipe, GradientFlow):
        return ("sparse flow", *shape)
    assert isinstance(recipe, Training)
    _check_rate(recipe.rate, spec)
    sequences = recipe.batch_size if math.isinf(task.sequences) else task.sequences
    return ("sparse", *shape, sequences, recipe.steps, recipe.batch_size, spec.evaluation.record)


def _check_rate(rate: float, spec: SparseRun) -> None:
    r"""Refuse steps above $2/a\Delta$ of the first tasks, the edge of stability at the solution."""
    numbers = kept_numbers(spec)
    mass = numbers.context * (1 + numbers.strength**2)
    if spec.model.constrained:
        mass = numbers.context * np.abs(numbers.strength)
    speed = numbers.probability * mass
    speed = speed * np.hypot(2 * numbers.strength, math.sqrt(spec.model.invariant))
    worst = int(np.argmax(speed))
    # the loss without 1/2 moves twice as fast
    largest = 1 / float(speed[worst])
    if rate > largest:
        raise SpecError(
            f"recipe.rate: got {rate:g}, above the edge of stability {largest:g} = 1/(a Delta) of "
            f"task {worst + 1}; expected less"
        )


class _Data(NamedTuple):
    """What a training sees."""

    probability: Float[Array, "every"]
    """Of all types, also those that the model lacks."""
    types: Int[Array, "sequence"] | None
    """Of the training sequences; None for unlimited data."""
    shares: Float[Array, "every"] | None
    """Of the types in every batch, where the batch is all the data."""
    matrices: Float[Array, "task 2 2"]
    strength: Float[Array, "task"]
    learns: Bool[Array, "2 2"]
    """Which coordinates of v and of w learn."""
    shared: Bool[Array, ""]
    """Whether the label coordinate of v is one number for all types."""


def _batch_loss(
    blocks: Float[Array, "2 task 2"], shares: Float[Array, "task"], data: _Data
) -> Float[Array, ""]:
    """Mean squared error on a batch in which types have the given shares."""
    output = jnp.einsum("si,sij,sj->s", blocks[0], data.matrices, blocks[1])
    return jnp.sum(shares * (output - data.strength) ** 2)


@partial(jax.jit, static_argnames=("batch_size",))
def _descend(
    blocks: Float[Array, "2 task 2"],
    data: _Data,
    key: Key[Array, ""],
    rate: Float[Array, ""],
    first: Int[Array, ""],
    last: Int[Array, ""],
    *,
    batch_size: int,
) -> Float[Array, "2 task 2"]:
    """Steps `first` to `last` - 1 of gradient descent."""
    count = len(data.probability)

    def step(number: Array, now: Array) -> Array:
        shares = data.shares
        if shares is None:
            own = jax.random.fold_in(key, number)
            if data.types is None:
                types = draw_types(own, data.probability, batch_size)
            else:
                types = data.types[jax.random.randint(own, (batch_size,), 0, len(data.types))]
            shares = jnp.bincount(types, length=count) / batch_size
        slope = jax.grad(_batch_loss)(now, shares[: now.shape[1]], data)
        together = jnp.where(data.shared, jnp.sum(slope[0, :, 1]), slope[0, :, 1])
        slope = slope.at[0, :, 1].set(together)
        return now - rate * slope * data.learns[:, None, :]

    return jax.lax.fori_loop(first, last, step, blocks)


def solve(specs: Sequence[SparseRun], *, observe: Observer | None) -> list[Curve]:
    """The curves of `specs`, one after the other.

    A `Training` with infinite batch uses the shares of the drawn sequences, or of all types if
    `task.sequences` is infinite, at every step.
    """
    with jax.enable_x64(True):
        curves: list[Curve] = []
        for number, spec in enumerate(specs, 1):
            curves.append(_flow(spec) if isinstance(spec.recipe, GradientFlow) else _train(spec))
            if observe is not None:
                observe(number, len(specs))
        return curves


def _drawn(spec: SparseRun) -> tuple[Array | None, Floats]:
    """The types of the training sequences, None for unlimited data; and the share of every type."""
    probability = numbers_of(spec.task).probability
    if math.isinf(spec.task.sequences):
        return None, probability
    count = int(spec.task.sequences)
    key = stream(spec.seed, "training", "sequences")
    types = draw_types(key, jnp.asarray(probability), count)
    return types, np.bincount(np.asarray(types), minlength=len(probability)) / count


def _learns(spec: SparseRun) -> Bools:
    """Which coordinates, feature and label, of v and of w learn."""
    constrained = [[False, True], [True, False]]
    return np.array(constrained if spec.model.constrained else [[True, True]] * 2)


def _train(spec: SparseRun) -> Curve:
    recipe, numbers, every = spec.recipe, kept_numbers(spec), numbers_of(spec.task)
    assert isinstance(recipe, Training)
    record = spec.evaluation.record or (recipe.steps,)
    types, shares = _drawn(spec)
    whole = math.isinf(recipe.batch_size)
    data = _Data(
        probability=jnp.asarray(every.probability),
        types=None if whole else types,
        shares=jnp.asarray(shares) if whole else None,
        matrices=jnp.asarray(token_matrices(numbers.context, numbers.strength)),
        strength=jnp.asarray(numbers.strength),
        learns=jnp.asarray(_learns(spec)),
        shared=jnp.asarray(spec.model.shared_value),
    )
    blocks = jnp.asarray(np.stack(starting_blocks(spec)))
    found = np.empty((len(record), *blocks.shape))
    done = 0
    for index, target in enumerate(record):
        blocks = _descend(
            blocks,
            data,
            stream(spec.seed, "training"),
            jnp.asarray(recipe.rate),
            jnp.asarray(done),
            jnp.asarray(target),
            batch_size=1 if whole else int(recipe.batch_size),
        )
        done = target
        found[index] = blocks
    step = np.asarray(record, np.int64)
    batch = spec.task.sequences if whole else recipe.batch_size
    tokens = batch * (float(every.probability @ every.context) + 1)
    return _curve(
        spec,
        step=step,
        time=step * np.float64(recipe.rate),
        blocks=found,
        shares=shares,
        tokens=tokens,
    )


def _flow(spec: SparseRun) -> Curve:
    recipe, numbers = spec.recipe, kept_numbers(spec)
    assert isinstance(recipe, GradientFlow)
    _, shares = _drawn(spec)
    times = np.array(recipe.times)
    start = np.stack(starting_blocks(spec))
    matrices = token_matrices(numbers.context, numbers.strength)
    if spec.model.shared_value:
        found = _integrate_together(spec, start, times, shares[: start.shape[1]])
        step = np.zeros(len(times), np.int64)
        return _curve(spec, step=step, time=times, blocks=found, shares=shares, tokens=0.0)
    found = np.empty((len(times), *start.shape))
    for s, (matrix, target) in enumerate(zip(matrices, numbers.strength.tolist(), strict=True)):
        found[:, :, s] = _integrate(
            start[:, s],
            times,
            matrix=matrix,
            share=float(shares[s]),
            target=target,
            learns=_learns(spec),
        )
    step = np.zeros(len(times), np.int64)
    return _curve(spec, step=step, time=times, blocks=found, shares=shares, tokens=0.0)


def _integrate(
    start: Floats, times: Floats, *, matrix: Floats, share: float, target: float, learns: Bools
) -> Floats:
    """The flow of one block of shape (2, 2) at `times`; NaN where integration stops early."""
    from scipy.integrate import solve_ivp

    if share == 0 or times[-1] == 0:
        return np.tile(start, (len(times), 1, 1))

    def velocity(_: float, state: Floats) -> Floats:
        value, query = state.reshape(2, 2)
        seen = matrix @ query
        wrong = 2 * share * (float(value @ seen) - target)
        return (-wrong * np.stack([seen, matrix @ value]) * learns).ravel()

    solution = solve_ivp(
        velocity,
        (0.0, float(times[-1])),
        start.ravel(),
        method="LSODA",
        t_eval=times,
        rtol=TOLERANCE,
        atol=TOLERANCE * float(np.abs(start).max()),
    )
    if not solution.success:
        return np.full((len(times), 2, 2), np.nan)
    return solution.y.T.reshape(-1, 2, 2)


def _integrate_together(spec: SparseRun, start: Floats, times: Floats, shares: Floats) -> Floats:
    """The flow of all blocks (2, task, 2) with one label coordinate of v, at `times`."""
    from scipy.integrate import solve_ivp

    numbers, learns = kept_numbers(spec), _learns(spec)
    matrices = token_matrices(numbers.context, numbers.strength)
    tasks = start.shape[1]

    def unpack(state: Floats) -> Floats:
        blocks = np.empty((2, tasks, 2))
        blocks[0, :, 0], blocks[0, :, 1] = state[:tasks], state[tasks]
        blocks[1] = state[tasks + 1 :].reshape(tasks, 2)
        return blocks

    def pack(blocks: Floats, label: float) -> Floats:
        return np.concatenate([blocks[0, :, 0], [label], blocks[1].ravel()])

    def velocity(_: float, state: Floats) -> Floats:
        blocks = unpack(state)
        seen = np.einsum("sij,ksj->ksi", matrices, blocks)
        wrong = 2 * shares * (np.sum(blocks[0] * seen[1], 1) - numbers.strength)
        moved = -wrong[None, :, None] * seen[::-1] * learns[:, None, :]
        return pack(moved, float(moved[0, :, 1].sum()))

    solution = solve_ivp(
        velocity,
        (0.0, float(times[-1])),
        pack(start, float(start[0, 0, 1])),
        method="LSODA",
        t_eval=times,
        rtol=1e-8,
        atol=1e-8 * float(np.abs(start).max()),
    )
    if not solution.success:
        return np.full((len(times), *start.shape), np.nan)
    return np.stack([unpack(state) for state in solution.y.T])


def _curve(
    spec: SparseRun,
    *,
    step: NDArray[np.int64],
    time: Floats,
    blocks: Floats,
    shares: Floats,
    tokens: float,
) -> Curve:
    """Losses over all types, of blocks (record, 2, task, 2); types that the model lacks stay as
    they start.
    """
    probability, context, strength = numbers_of(spec.task)
    new, kept = spec.evaluation.strength, blocks.shape[2]
    if new is not None and kept < len(strength):
        raise SpecError(
            f"model.size: got {spec.model.size} with evaluation.strength; expected all tasks"
        )
    seen = strength if new is None else np.full_like(strength, new)
    matrices = token_matrices(context[:kept], seen[:kept])
    output = np.tile(spec.model.start * strength, (len(blocks), 1))
    with np.errstate(over="ignore", invalid="ignore"):
        output[:, :kept] = np.einsum("rsi,sij,rsj->rs", blocks[:, 0], matrices, blocks[:, 1])
        loss = (output - seen) ** 2 @ probability
    available = {"output": output, "counts": shares * spec.task.sequences}
    return trained(
        spec,
        step=step,
        time=time,
        loss=loss,
        error=INTEGRATION * loss if isinstance(spec.recipe, GradientFlow) else np.zeros_like(loss),
        status="ok" if np.isfinite(loss).all() else "diverged",
        measures=tuple(Measure(name=n, values=available[n]) for n in spec.evaluation.measures),
        tokens_per_step=tokens,
    )
