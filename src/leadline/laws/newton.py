r"""Many robust fits at once: batched damped Newton with bounds and a homotopy in delta.

A lane is one minimization: one start, or one bootstrap draw. All lanes share the rows and differ
in start and row weights. In centered logarithms $l_{ij} = \log x_{ij} - \overline{\log x_i}$ the
law reads $f_j = e + \sum_i b_i e^{-a_i l_{ij}}$ in units of the typical loss, so every unknown is
of order one whatever the units; a lane's vector is $(e, b_1, \dots, b_k, a_1, \dots, a_k)$.

Derived in docs/theory/fitting.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.laws.families import MAX_STEEPNESS

Bools = NDArray[np.bool_]

TOLERANCE = 1e-13
"""A lane has converged when the decrease that Newton's quadratic model still promises is below
this share of its objective."""
PASSING = 1e-8
"""The same on the way down in delta."""
ROUNDING = 1e-13
"""Residuals below this are rounding: an objective below half its square a row counts as zero."""
CACHED = 80_000
"""Lanes x unknowns x rows worked on at a time, so that the arrays stay in the cache."""
FLAT = 1e-10
"""Curvature, relative to that of single unknowns, that rounding cannot tell from zero."""
GOOD = 0.75
"""Share of the promised decrease above which a step counts as good."""
MORE_STEPS = 1000
"""Steps of a second attempt."""
STRAIGHT_STEPS = 12
"""Steps after which a lane that has not converged is taken to be in a curved valley."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The rows that all lanes share.

    **Arguments:** `logs` (variable, row) centered logarithms; `target` (row) logarithm of the loss;
    `low`, `high` (unknown) the bounds.
    """

    logs: Floats
    target: Floats
    low: Floats
    high: Floats


def problem(logs: Floats, target: Floats) -> Problem:
    """The rows with their bounds: floor within [0, smallest loss], coefficients and exponents not
    negative, exponents below `MAX_STEEPNESS` over the largest centered logarithm.
    """
    count = len(logs)
    steepest = MAX_STEEPNESS / np.abs(logs).max(axis=1)
    high = np.concatenate([[np.exp(target.min())], np.full(count, np.inf), steepest])
    return Problem(logs=logs, target=target, low=np.zeros(1 + 2 * count), high=high)


@dataclass(frozen=True, kw_only=True)
class Minima:
    """Where the lanes ended: `unknowns` (lane, unknown), `value` (lane) of the objective and its
    `gradient`; `sound` (lane) says that Newton's model promises no further decrease and that no
    direction curves down.
    """

    unknowns: Floats
    value: Floats
    gradient: Floats
    sound: Bools


def derivatives(
    rows: Problem, unknowns: Floats, weights: Floats, delta: float
) -> tuple[Floats, Floats, Floats]:
    r"""$\sum_j w_j\,H_\delta(\log f_j - y_j)$ with its gradient and Hessian, for every lane.

    **Arguments:** `unknowns` (lane, unknown); `weights` (lane or 1, row); `delta` of the Huber
    function $H_\delta$. Returns arrays (lane), (lane, unknown), (lane, unknown, unknown).
    """
    lanes, size = unknowns.shape
    logs, count = rows.logs, len(rows.logs)
    coefficient, exponent = unknowns[:, 1 : 1 + count], unknowns[:, 1 + count :]
    basis = np.empty((lanes, size, rows.target.size))
    basis[:, 0] = 1.0
    powers, slopes = basis[:, 1 : 1 + count], basis[:, 1 + count :]
    np.multiply(-exponent[:, :, None], logs, out=powers)
    np.exp(powers, out=powers)
    np.multiply(powers, logs, out=slopes)
    loss = (unknowns[:, None, : 1 + count] @ basis[:, : 1 + count])[:, 0]
    residual = np.log(loss) - rows.target
    clipped = within(residual, -delta, delta)
    pull = weights * clipped
    value = (pull * (residual - 0.5 * clipped)).sum(axis=1)
    force = pull / loss
    curvature = (weights * (residual == clipped) - pull) / (loss * loss)

    moments = (basis @ force[:, :, None])[:, :, 0]
    second = ((slopes * logs) @ force[:, :, None])[:, :, 0]
    gram = (basis * curvature[:, None, :]) @ basis.swapaxes(1, 2)
    chain = np.ones((lanes, size))
    np.negative(coefficient, out=chain[:, 1 + count :])
    hessian = gram * (chain[:, :, None] * chain[:, None, :])
    # the entries (coefficient, own exponent), (own exponent, coefficient) and (exponent, exponent)
    flat, start = hessian.reshape(lanes, -1), 1 + count
    flat[:, size + start : start * size : size + 1] -= moments[:, start:]
    flat[:, start * size + 1 :: size + 1] -= moments[:, start:]
    flat[:, start * size + start :: size + 1] += coefficient * second
    return value, chain * moments, hessian


def within(values: Floats, low: Floats | float, high: Floats | float) -> Floats:
    """`values` moved into the bounds; `np.clip` takes longer than the arithmetic around it."""
    return np.minimum(np.maximum(values, low), high)


def _diagonals(matrices: Floats) -> Floats:
    """A view of the diagonals (lane, unknown) of contiguous matrices."""
    return matrices.reshape(len(matrices), -1)[:, :: matrices.shape[1] + 1]


def free_unknowns(rows: Problem, unknowns: Floats, gradient: Floats) -> Bools:
    """Which unknowns may move: all but those at a bound that the objective pushes against. A term
    without a coefficient has no exponent, and one without an exponent leaves its part of the floor
    to the floor, where that may move.
    """
    held_low = (unknowns <= rows.low) & (gradient > 0)
    held_high = (unknowns >= rows.high) & (gradient < 0)
    free = ~(held_low | held_high)
    start = 1 + len(rows.logs)
    free[:, start:] &= unknowns[:, 1:start] > 0
    free[:, 1:start] &= ~(held_low[:, start:] & free[:, :1])
    return free


def curves_up(rows: Problem, unknowns: Floats, gradient: Floats, hessian: Floats) -> Bools:
    """For each lane whether no direction of the unknowns that may move curves down."""
    free = free_unknowns(rows, unknowns, gradient)
    scale = np.sqrt(np.abs(_diagonals(hessian)))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = hessian / (scale[:, :, None] * scale[:, None, :])
    scaled = np.where(free[:, :, None] & free[:, None, :], scaled, np.eye(free.shape[1]))
    return np.linalg.eigvalsh(scaled)[:, 0] > -FLAT


def newton_step(gradient: Floats, hessian: Floats, free: Bools, damping: Floats) -> Floats:
    """The damped Newton step (lane, unknown) of the free unknowns."""
    slope = gradient * free
    matrix = hessian * (free[:, :, None] & free[:, None, :])
    diagonal = _diagonals(matrix)
    # held unknowns get a unit row, the others never a zero one
    diagonal += (damping[:, None] + 1e-15) * np.abs(diagonal) + np.where(free, 1e-300, 1.0)
    return np.negative(np.linalg.solve(matrix, slope[:, :, None])[:, :, 0])


def bounded_step(
    rows: Problem,
    unknowns: Floats,
    value: Floats,
    gradient: Floats,
    hessian: Floats,
    damping: Floats,
) -> tuple[Floats, Floats]:
    """The point after one damped Newton step within the bounds, and the decrease that the quadratic
    model promises there; minus infinity where the step is no descent.

    Where the step would leave the bounds, the unknowns that leave go to their bound and the others
    are solved for again, given that. Where nothing else is left to gain, an unknown at its bound
    that the gradient calls inside and the step sends out marks a direction that curves down: no
    descent, until damping turns the step.
    """
    free = free_unknowns(rows, unknowns, gradient)
    wanted = unknowns + newton_step(gradient, hessian, free, damping)
    target = within(wanted, rows.low, rows.high)
    out = (target != wanted) & free
    blocked = np.zeros(len(unknowns), np.bool_)
    if out.any():
        gain = gradient**2 > TOLERANCE * value[:, None] * np.abs(_diagonals(hessian))
        blocked = (out & gain & (target == unknowns)).any(axis=1)
        lanes = out.any(axis=1)
        move = np.where(out[lanes], target[lanes] - unknowns[lanes], 0.0)
        pushed = gradient[lanes] + np.einsum("luv,lv->lu", hessian[lanes], move)
        again = newton_step(pushed, hessian[lanes], free[lanes] & ~out[lanes], damping[lanes])
        target[lanes] = within(unknowns[lanes] + move + again, rows.low, rows.high)
    move = target - unknowns
    slope = (gradient * move).sum(axis=1)
    bent = ((hessian @ move[:, :, None])[:, :, 0] * move).sum(axis=1)
    promise = -slope - 0.5 * bent
    stuck = blocked & (promise <= PASSING * value)
    return target, np.where(stuck | (slope > 0), -np.inf, promise)


def bend(
    rows: Problem,
    unknowns: Floats,
    gradient: Floats,
    hessian: Floats,
    damping: Floats,
    weights: Floats,
    delta: float,
    target: Floats,
) -> Floats:
    """The point `target` of a step, corrected to second order along a curved valley; not where the
    correction is more than a quarter of the step, because the expansion then does not hold.

    Along the step the residuals change by their second derivative too. The correction is the Newton
    step that cancels half of it (geodesic acceleration, arXiv:1201.5885).
    """
    count = len(rows.logs)
    coefficient, exponent = unknowns[:, 1 : 1 + count], unknowns[:, 1 + count :]
    move = target - unknowns
    change, tilt = move[:, 1 : 1 + count], move[:, 1 + count :]
    powers = np.exp(-exponent[:, :, None] * rows.logs)
    slopes = powers * rows.logs
    loss = unknowns[:, :1] + np.einsum("lv,lvr->lr", coefficient, powers)
    first = (
        move[:, :1]
        + np.einsum("lv,lvr->lr", change, powers)
        - np.einsum("lv,lvr->lr", coefficient * tilt, slopes)
    )
    second = np.einsum("lv,lvr->lr", coefficient * tilt**2, slopes * rows.logs) - 2 * np.einsum(
        "lv,lvr->lr", change * tilt, slopes
    )
    inside = np.abs(np.log(loss) - rows.target) < delta
    pull = weights * inside * (second / loss - (first / loss) ** 2) / loss
    slope = np.concatenate(
        [
            pull.sum(axis=1, keepdims=True),
            np.einsum("lr,lvr->lv", pull, powers),
            -coefficient * np.einsum("lr,lvr->lv", pull, slopes),
        ],
        axis=1,
    )
    free = free_unknowns(rows, unknowns, gradient) & (target > rows.low) & (target < rows.high)
    correction = 0.5 * newton_step(slope, hessian, free, damping)
    metric = np.abs(_diagonals(hessian))
    length, whole = ((metric * x * x).sum(axis=1) for x in (correction, move))
    corrected = np.where((16 * length <= whole)[:, None], target + correction, target)
    return within(corrected, rows.low, rows.high)


def descend(
    rows: Problem,
    unknowns: Floats,
    weights: Floats,
    delta: float,
    *,
    steps: int,
    tolerance: float,
) -> Minima:
    """At most `steps` damped Newton steps in every lane at one `delta`.

    A step is kept only where the objective does not rise; the damping falls after a good step and
    rises after a bad one. After a dozen steps they bend along the valley. Lanes leave the batch as
    they converge.
    """
    state: list[Floats] = [
        unknowns,
        *derivatives(rows, unknowns, weights, delta),
        np.full(len(unknowns), 1e-3),
    ]
    noise = np.broadcast_to(weights.sum(axis=1), len(unknowns)) * (0.5 * ROUNDING**2)
    shared = len(weights) < len(unknowns)
    done = [np.empty_like(part) for part in state]
    converged = np.zeros(len(unknowns), np.bool_)
    lane = np.arange(len(unknowns))
    for step in range(steps + 1):
        at, value, gradient, hessian, damping = state
        new, promise = bounded_step(rows, *state)
        if step >= STRAIGHT_STEPS:
            new = bend(rows, at, gradient, hessian, damping, weights, delta, new)
        settled = (np.abs(promise) <= tolerance * value + noise) & (damping < 1e-2)
        stop = settled | (step == steps)
        if stop.any():
            for end, part in zip(done, state, strict=True):
                end[lane[stop]] = part[stop]
            converged[lane[stop]] = settled[stop]
            if stop.all():
                break
            go = ~stop
            lane, state = lane[go], [part[go] for part in state]
            noise, new, promise = noise[go], new[go], promise[go]
            weights = weights if shared else weights[go]
            at, value, gradient, hessian, damping = state
        trial = (new, *derivatives(rows, new, weights, delta))
        lower = (trial[1] <= value * (1 + 1e-15)) & (promise > -np.inf)
        good = lower & (promise > 0) & (value - trial[1] >= GOOD * promise)
        relaxed = np.where(damping < 1e-10, 0.0, damping / 10)
        raised = np.maximum(5 * damping, 1e-9)
        state = [
            part if lower.all() else np.where(lower.reshape(-1, *[1] * (old.ndim - 1)), part, old)
            for part, old in zip(trial, state[:-1], strict=True)
        ]
        state.append(np.where(good, relaxed, np.where(lower, damping, raised)))
    at, value, gradient, hessian, _ = done
    sound = converged & curves_up(rows, at, gradient, hessian)
    return Minima(unknowns=at, value=value, gradient=gradient, sound=sound)


def minimize(
    rows: Problem, unknowns: Floats, weights: Floats, deltas: Sequence[float], *, steps: int = 100
) -> Minima:
    """The minimum of each lane at the last of `deltas`, each delta starting where the one before
    ended.

    At a large delta the objective is close to least squares and its valley wide; following the
    minimum down in delta arrives in a good basin of the narrow one. Lanes with the same weights
    that meet on the way have the same future and continue as one.
    """
    lane = np.arange(len(unknowns))
    with np.errstate(all="ignore"):
        for delta in deltas[:-1]:
            at = _in_chunks(rows, unknowns, weights, delta, steps=60, tolerance=PASSING).unknowns
            if len(weights) == 1 and len(at) > 1:
                at, same = _merge(at)
                lane = same[lane]
            unknowns = at
        end = _in_chunks(rows, unknowns, weights, deltas[-1], steps=steps, tolerance=TOLERANCE)
    return take(end, lane)


def persist(
    rows: Problem, ends: Minima, weights: Floats, delta: float, lanes: NDArray[np.int64]
) -> Minima:
    """`ends` with these `lanes` given a second attempt of many steps at the last delta."""
    if not len(lanes):
        return ends
    own = weights if len(weights) == 1 else weights[lanes]
    return replace_lanes(
        ends, lanes, minimize(rows, ends.unknowns[lanes], own, [delta], steps=MORE_STEPS)
    )


def take(minima: Minima, lanes: NDArray[np.int64]) -> Minima:
    """The minima of the lanes with these indices."""
    return Minima(**{f.name: getattr(minima, f.name)[lanes] for f in fields(Minima)})


def replace_lanes(minima: Minima, lanes: NDArray[np.int64], other: Minima) -> Minima:
    """`minima` with the lanes of these indices taken from `other`, in its order."""
    values: dict[str, Any] = {}
    for f in fields(Minima):
        values[f.name] = getattr(minima, f.name).copy()
        values[f.name][lanes] = getattr(other, f.name)
    return Minima(**values)


def _in_chunks(
    rows: Problem, unknowns: Floats, weights: Floats, delta: float, *, steps: int, tolerance: float
) -> Minima:
    """`descend` over few lanes at a time, so that their arrays stay in the cache."""
    many = max(1, CACHED // (unknowns.shape[1] * rows.target.size))
    parts = [
        descend(
            rows,
            unknowns[first : first + many],
            weights if len(weights) == 1 else weights[first : first + many],
            delta,
            steps=steps,
            tolerance=tolerance,
        )
        for first in range(0, len(unknowns), many)
    ]
    return Minima(
        **{f.name: np.concatenate([getattr(x, f.name) for x in parts]) for f in fields(Minima)}
    )


def _merge(unknowns: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """The distinct lanes, to three digits, and for each lane the index of its representative."""
    _, first, same = np.unique(
        np.round(unknowns, 3), axis=0, return_index=True, return_inverse=True
    )
    return unknowns[first], same.ravel()
