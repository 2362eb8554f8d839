"""The exact flow of sparse features: each type by itself, or all together where they share a value
vector.
"""

from __future__ import annotations

import numpy as np

from leadline.curve import Floats
from leadline.simulation import softmax
from leadline.simulation.blocks import (
    Bools,
    kept_numbers,
    learning,
    starting_blocks,
    token_matrices,
    training_shares,
)
from leadline.spec import GradientFlow, SparseRun

TOLERANCE = 1e-10
TOGETHER = 1e-8
"""Tolerance where all types are integrated as one system."""


def follow(spec: SparseRun) -> tuple[Floats, Floats]:
    """The mean prediction and the mean squared error of every type that the model has, at the
    times of the flow: (time, task) each.
    """
    recipe, numbers = spec.recipe, kept_numbers(spec)
    assert isinstance(recipe, GradientFlow)
    times, shares = np.array(recipe.times), training_shares(spec)
    new = spec.evaluation.strength
    seen = np.full_like(numbers.strength, new) if new is not None else numbers.strength
    if spec.model.attention == "softmax":
        return _softmax_flow(spec, times, shares, seen)
    start = np.stack(starting_blocks(spec))
    matrices = token_matrices(numbers.context, numbers.strength)
    if spec.model.shared_value:
        found = _integrate_together(spec, start, times, shares[: start.shape[1]])
    else:
        found = np.empty((len(times), *start.shape))
        for s, (matrix, target) in enumerate(zip(matrices, numbers.strength.tolist(), strict=True)):
            found[:, :, s] = _integrate(
                start[:, s],
                times,
                matrix=matrix,
                share=float(shares[s]),
                target=target,
                learns=learning(spec),
            )
    evaluated = token_matrices(numbers.context, seen)
    with np.errstate(over="ignore", invalid="ignore"):
        output = np.einsum("rsi,sij,rsj->rs", found[:, 0], evaluated, found[:, 1])
        return output, (output - seen) ** 2


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

    numbers, learns = kept_numbers(spec), learning(spec)
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
        rtol=TOGETHER,
        atol=TOGETHER * float(np.abs(start).max()),
    )
    if not solution.success:
        return np.full((len(times), *start.shape), np.nan)
    return np.stack([unpack(state) for state in solution.y.T])


def _softmax_flow(
    spec: SparseRun, times: Floats, shares: Floats, seen: Floats
) -> tuple[Floats, Floats]:
    """The flow of softmax attention averaged over the signs of tokens, each type by itself."""
    numbers, start = kept_numbers(spec), softmax.starting_blocks(spec)
    output, square = (np.empty((len(times), len(seen))) for _ in range(2))
    for s, (context, strength) in enumerate(
        zip(numbers.context.tolist(), numbers.strength.tolist(), strict=True)
    ):
        same, weight = softmax.count_nodes(context)
        first = np.concatenate([start.value[s], start.key[s], [start.query[s]]])
        states = _integrate_softmax(
            first, times, share=float(shares[s]), counts=(same, context - same, weight), u=strength
        )
        for index, state in enumerate(states):
            found = _softmax_terms(state, float(seen[s]), same, context - same)[0]
            output[index, s] = weight @ found
            square[index, s] = weight @ (found - seen[s]) ** 2
    return output, square


def _softmax_terms(
    state: Floats, label: float, same: Floats, other: Floats
) -> tuple[Floats, Floats]:
    """The predictions for counts of tokens, and their slopes in the five parameters, (5, count)."""
    v1, v2, k1, k2, q = state.tolist()
    along, key = v1 + label * v2, k1 + label * k2
    largest = max(abs(key * q), k1 * q)
    plus = same * np.exp(key * q - largest)
    minus = other * np.exp(-key * q - largest)
    own = float(np.exp(k1 * q - largest))
    bottom = plus + minus + own
    output = ((plus - minus) * along + own * v1) / bottom
    tilt, itself = (plus - minus) / bottom, own / bottom
    by_logit = ((plus + minus) * along - output * (plus - minus)) / bottom
    by_own = itself * (v1 - output)
    return output, np.stack(
        [
            tilt + itself,
            label * tilt,
            q * (by_logit + by_own),
            q * label * by_logit,
            key * by_logit + k1 * by_own,
        ]
    )


def _integrate_softmax(
    start: Floats,
    times: Floats,
    *,
    share: float,
    counts: tuple[Floats, Floats, Floats],
    u: float,
) -> Floats:
    """The flow of the five parameters of one type of strength `u` at `times`."""
    from scipy.integrate import solve_ivp

    same, other, weight = counts
    if share == 0 or times[-1] == 0:
        return np.tile(start, (len(times), 1))

    def velocity(_: float, state: Floats) -> Floats:
        output, slopes = _softmax_terms(state, u, same, other)
        return -2 * share * (slopes @ (weight * (output - u)))

    solution = solve_ivp(
        velocity,
        (0.0, float(times[-1])),
        start,
        method="LSODA",
        t_eval=times,
        rtol=TOLERANCE,
        atol=TOLERANCE * float(np.abs(start).max()),
    )
    if not solution.success:
        return np.full((len(times), len(start)), np.nan)
    return solution.y.T
