r"""Any law under any objective: batched damped Newton with bounds.

A lane is one minimization: one start, or one bootstrap draw. The residuals of a lane are
$z_j(u)$ with Jacobian $Z$; the objective $\sum_j w_j\rho(z_j)$ has the gradient $Z^T(w\rho')$ and
the Hessian $Z^T\mathrm{diag}(w\rho'')Z + \sum_j w_j\rho'_j\nabla^2 z_j$, whose last part comes from
central differences of $Z$. Separable laws under log-Huber have their own, faster minimizer
(`leadline.laws.newton`).

Derived in docs/theory/fitting.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.laws.coordinates import Coordinates
from leadline.laws.newton import FLAT, TOLERANCE, Bools, Minima
from leadline.laws.objectives import LeastSquares, Objective, StudentT

ROUNDING = 3e-16
"""Residuals below this, relative to the loss, are rounding."""
DIFFERENCE = 1e-5
"""Relative step of the differences that give second derivatives."""
LIMIT_OF_SCALE = 80.0
"""Largest absolute logarithm of a fitted noise scale."""
CACHED = 400_000
"""Lanes x unknowns x rows worked on at a time, so that the arrays stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class Pin:
    """Holds a quantity at a value, by one more residual (quantity - value) / width.

    **Arguments:** `quantity` of parameters for raw counts (lane, parameter) gives (lane) and its
    derivatives (lane, parameter).
    """

    quantity: Callable[[Floats], tuple[Floats, Floats]]
    value: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all lanes share, and for each lane (or for all) its losses and weights.

    **Arguments:** `points` (variable, row); `loss` and `weight` (lane or 1, row); `noise` (row);
    `low`, `high` (unknown) the bounds, those of the log scale last where the objective fits one.
    """

    coordinates: Coordinates
    objective: Objective
    points: Floats
    loss: Floats
    weight: Floats
    noise: Floats
    low: Floats
    high: Floats
    pin: Pin | None = None

    @property
    def scaled_noise(self) -> bool:
        """Whether the last unknown is the logarithm of the noise scale."""
        return isinstance(self.objective, StudentT)

    def of(self, lanes: NDArray[np.int64] | slice) -> Task:
        """The task of some of the lanes."""
        return replace(
            self,
            loss=self.loss if len(self.loss) == 1 else self.loss[lanes],
            weight=self.weight if len(self.weight) == 1 else self.weight[lanes],
        )


def predicted(task: Task, unknowns: Floats) -> Floats:
    """The loss (lane, row)."""
    coordinates = task.coordinates
    parameters, _ = coordinates.parameters(unknowns[:, : coordinates.place.shape[1]])
    return coordinates.family.value(task.points, parameters)


def prediction(task: Task, unknowns: Floats) -> tuple[Floats, Floats]:
    """The loss (lane, row) and its derivatives (lane, row, unknown)."""
    coordinates = task.coordinates
    parameters, chain = coordinates.parameters(unknowns[:, : coordinates.place.shape[1]])
    family = coordinates.family
    return (
        family.value(task.points, parameters),
        family.gradient(task.points, parameters) @ chain,
    )


def residuals(task: Task, unknowns: Floats) -> tuple[Floats, Floats]:
    """The residuals (lane, row) that the objective sees and their derivatives (lane, row, unknown).
    Not numbers where the law has no logarithm.
    """
    loss, slope = prediction(task, unknowns)
    if task.objective.residual == "log":
        z = (np.log(loss) - np.log(task.loss)) / task.noise
        slope = slope / (loss * task.noise)[:, :, None]
    else:
        z = (loss - task.loss) / task.noise
        slope = slope / task.noise[:, None]
    if task.scaled_noise:
        scale = np.exp(unknowns[:, -1])
        z = z / scale[:, None]
        slope = np.concatenate([slope / scale[:, None, None], -z[:, :, None]], axis=2)
    return z, slope


def derivatives(
    task: Task, unknowns: Floats, width: float, *, curved: bool
) -> tuple[Floats, Floats, Floats]:
    """The objective (lane), its gradient and its Hessian; without `curved` the Hessian leaves out
    the second derivatives of the residuals. The value is infinite where the law is undefined.
    """
    z, slope = residuals(task, unknowns)
    rho, pull, bend = task.objective.penalty(z, width)
    pull = task.weight * pull
    value = (task.weight * rho).sum(axis=1)
    gradient = (pull[:, None, :] @ slope)[:, 0]
    hessian = (slope * (task.weight * bend)[:, :, None]).swapaxes(1, 2) @ slope
    if task.scaled_noise:
        total = task.weight.sum(axis=1)
        value = value + total * unknowns[:, -1]
        gradient[:, -1] += total
    if curved:
        hessian = hessian + _second(task, unknowns, pull)
    if task.pin is not None:
        off, along = _pinned(task, unknowns)
        value = value + 0.5 * off**2
        gradient = gradient + off[:, None] * along
        hessian = hessian + along[:, :, None] * along[:, None, :]
    fine = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
    fine &= np.isfinite(hessian).all(axis=(1, 2))
    if not fine.all():
        value = np.where(fine, value, np.inf)
        gradient[~fine], hessian[~fine] = 0.0, 0.0
    return value, gradient, hessian


def _pinned(task: Task, unknowns: Floats) -> tuple[Floats, Floats]:
    """The residual of the pin (lane) and its derivatives (lane, unknown)."""
    assert task.pin is not None
    along = np.zeros_like(unknowns)
    parameters, chain = task.coordinates.parameters(unknowns[:, : task.coordinates.place.shape[1]])
    got, by = task.pin.quantity(parameters)
    along[:, : chain.shape[2]] = np.einsum("lp,lpu->lu", by, chain) / task.pin.width
    return (got - task.pin.value) / task.pin.width, along


def _second(task: Task, unknowns: Floats, pull: Floats) -> Floats:
    """The part of the Hessian from the second derivatives of the residuals."""
    size = unknowns.shape[1]
    result = np.empty((len(unknowns), size, size))
    for i in range(size):
        at = np.abs(unknowns[:, i])
        step = DIFFERENCE * np.where(at > 0, np.maximum(at, 1e-3 * at.max()), 1.0)
        move = np.zeros_like(unknowns)
        move[:, i] = step
        above = residuals(task, unknowns + move)[1]
        below = residuals(task, unknowns - move)[1]
        difference = (pull[:, None, :] @ (above - below))[:, 0]
        result[:, i] = difference / (2 * step[:, None])
    result = np.where(np.isfinite(result), result, 0.0)
    return 0.5 * (result + result.swapaxes(1, 2))


def free_unknowns(task: Task, unknowns: Floats, gradient: Floats, hessian: Floats) -> Bools:
    """Which unknowns may move: all but those at a bound that the objective pushes against and those
    without any effect.
    """
    held = (unknowns <= task.low) & (gradient > 0)
    held |= (unknowns >= task.high) & (gradient < 0)
    idle = (gradient == 0) & (np.abs(hessian).max(axis=2) == 0)
    return ~(held | idle)


def _step(gradient: Floats, hessian: Floats, free: Bools, damping: Floats) -> tuple[Floats, Floats]:
    """The damped step along the eigenvectors of the scaled Hessian, each curvature taken by its
    absolute value, and the curvature so taken: always downhill, away from saddles.
    """
    both = free[:, :, None] & free[:, None, :]
    diagonal = np.einsum("luu->lu", hessian)
    scale = np.sqrt(np.abs(np.where(free, diagonal, 1.0)))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = np.where(both, hessian / (scale[:, :, None] * scale[:, None, :]), 0.0)
    curvature, axes = np.linalg.eigh(scaled)
    curvature = np.maximum(np.abs(curvature), 1e-15) + damping[:, None]
    along = (axes.swapaxes(1, 2) @ (np.where(free, gradient, 0.0) / scale)[:, :, None])[:, :, 0]
    step = -(axes @ (along / curvature)[:, :, None])[:, :, 0] / scale
    return np.where(free, step, 0.0), scale


def bounded_step(
    task: Task, unknowns: Floats, gradient: Floats, hessian: Floats, damping: Floats
) -> tuple[Floats, Floats]:
    """The point after one damped step within the bounds, and the decrease that the model promises
    there. Unknowns that would leave go to their bound and the others are solved for again.
    """
    free = free_unknowns(task, unknowns, gradient, hessian)
    step, _ = _step(gradient, hessian, free, damping)
    target = np.clip(unknowns + step, task.low, task.high)
    out = (target != unknowns + step) & free
    if out.any():
        lanes = out.any(axis=1)
        move = np.where(out[lanes], target[lanes] - unknowns[lanes], 0.0)
        pushed = gradient[lanes] + (hessian[lanes] @ move[:, :, None])[:, :, 0]
        again, _ = _step(pushed, hessian[lanes], free[lanes] & ~out[lanes], damping[lanes])
        target[lanes] = np.clip(unknowns[lanes] + move + again, task.low, task.high)
    move = target - unknowns
    slope = (gradient * move).sum(axis=1)
    bent = ((hessian @ move[:, :, None])[:, :, 0] * move).sum(axis=1)
    return target, np.where(slope > 0, -np.inf, np.where(bent > 0, -slope - 0.5 * bent, -slope))


def descend(task: Task, unknowns: Floats, width: float, *, steps: int, tolerance: float) -> Minima:
    """At most `steps` damped steps in every lane at one `width` of the objective. A step is kept
    only where the objective does not rise. Lanes leave the batch as they converge.
    """
    curved = task.pin is not None or not isinstance(task.objective, LeastSquares)
    lanes = len(unknowns)
    value, gradient, hessian = derivatives(task, unknowns, width, curved=curved)
    damping, growth = np.full(lanes, 1e-3), np.full(lanes, 2.0)
    done = [unknowns.copy(), value.copy(), gradient.copy(), hessian.copy()]
    settled = np.zeros(lanes, np.bool_)
    lane = np.flatnonzero(np.isfinite(value))
    state = [part[lane] for part in (unknowns, value, gradient, hessian)]
    damping, growth, own = damping[lane], growth[lane], task.of(lane)
    noise = _noise(task, lanes)[lane]
    for step in range(steps + 1):
        if not len(lane):
            break
        at, value, gradient, hessian = state
        new, promise = bounded_step(own, at, gradient, hessian, damping)
        scale = np.abs(value) + (own.weight.sum(axis=1) if task.scaled_noise else 0.0)
        small = np.abs(promise) <= tolerance * scale + noise
        still = (np.abs(new - at) <= 4e-16 * np.abs(at)).all(axis=1)
        finish = (small & (damping < 1e-2)) | (still & (np.abs(promise) <= 1e-8 * scale + noise))
        stop = finish | (step == steps) | (damping > 1e30)
        if stop.any():
            for end, part in zip(done, state, strict=True):
                end[lane[stop]] = part[stop]
            settled[lane[stop]] = finish[stop]
            go = np.flatnonzero(~stop)
            lane, state, own = lane[go], [part[go] for part in state], own.of(go)
            if not len(lane):
                break
            damping, growth, noise = damping[go], growth[go], noise[go]
            new, promise = new[go], promise[go]
            at, value, gradient, hessian = state
        trial = (new, *derivatives(own, new, width, curved=False))
        lower = (trial[1] <= value + 1e-15 * np.abs(value)) & (promise > -np.inf)
        ratio = np.where(promise > 0, (value - trial[1]) / np.where(promise > 0, promise, 1.0), 0.0)
        if curved and lower.any():
            kept = np.flatnonzero(lower)
            trial[3][kept] = derivatives(own.of(kept), new[kept], width, curved=True)[2]
        state = [
            np.where(lower.reshape(-1, *[1] * (old.ndim - 1)), part, old)
            for part, old in zip(trial, state, strict=True)
        ]
        # Nielsen's rule: the damping follows how well the model predicted the decrease
        shrink = np.maximum(0.1, 1 - (2 * np.clip(ratio, 0, 1) - 1) ** 3)
        damping = np.where(lower, damping * shrink, np.maximum(damping, 1e-9) * growth)
        damping = np.where(damping < 1e-12, 0.0, damping)
        growth = np.where(lower, 2.0, 2 * growth)
    at, value, gradient, hessian = done
    if not curved:
        fine = np.flatnonzero(np.isfinite(value))
        part = task.of(fine)
        hessian[fine] = derivatives(part, at[fine], width, curved=True)[2]
    up = _curves_up(task, at, gradient, hessian)
    return Minima(unknowns=at, value=value, gradient=gradient, sound=settled & up)


def _noise(task: Task, lanes: int) -> Floats:
    """The objective (lane) of residuals that are rounding."""
    size = np.log(task.loss) if task.objective.residual == "log" else task.loss
    unit = 1.0 if task.objective.residual == "log" else float(np.abs(size).max())
    unit /= float(task.noise.min())
    return np.broadcast_to(task.weight.sum(axis=1), lanes) * (0.5 * (ROUNDING * unit) ** 2)


def _curves_up(task: Task, unknowns: Floats, gradient: Floats, hessian: Floats) -> Bools:
    """For each lane whether no direction that may move curves down."""
    free = free_unknowns(task, unknowns, gradient, hessian)
    scale = np.sqrt(np.abs(np.einsum("luu->lu", hessian)))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = hessian / (scale[:, :, None] * scale[:, None, :])
    scaled = np.where(free[:, :, None] & free[:, None, :], scaled, np.eye(free.shape[1]))
    return np.linalg.eigvalsh(scaled)[:, 0] > -1e4 * FLAT


def minimize(task: Task, unknowns: Floats, path: Sequence[float], *, steps: int = 100) -> Minima:
    """The minimum of each lane at the last width of `path`, each starting where the one before
    ended.
    """
    many = max(1, CACHED // (unknowns.shape[1] * task.points.shape[1]))
    parts: list[Minima] = []
    with np.errstate(all="ignore"):
        for first in range(0, len(unknowns), many):
            chunk = slice(first, first + many)
            at, part = unknowns[chunk], task.of(chunk)
            for width in path[:-1]:
                at = descend(part, at, width, steps=40, tolerance=1e-8).unknowns
            parts.append(descend(part, at, path[-1], steps=steps, tolerance=TOLERANCE))
    return Minima(
        unknowns=np.concatenate([p.unknowns for p in parts]),
        value=np.concatenate([p.value for p in parts]),
        gradient=np.concatenate([p.gradient for p in parts]),
        sound=np.concatenate([p.sound for p in parts]),
    )


def sharpen(task: Task, ends: Minima, width: float) -> Minima:
    """`ends` after a few full Newton or Gauss-Newton steps, each kept while the decrease promised
    falls. The objective cannot resolve such steps, its gradient can.
    """
    at, value, gradient = ends.unknowns, ends.value, ends.gradient
    undamped = np.zeros(len(at))
    left = np.full(len(at), np.inf)
    with np.errstate(all="ignore"):
        for round_ in range(12):
            moved = np.zeros(len(at), np.bool_)
            start = at
            for curved in (True, False):
                _, slope, hessian = derivatives(task, start, width, curved=curved)
                new, promise = bounded_step(task, start, slope, hessian, undamped)
                if round_ == 0 and curved:
                    left = np.abs(promise)
                trial = derivatives(task, new, width, curved=False)
                _, less = bounded_step(task, new, trial[1], trial[2], undamped)
                better = ends.sound & np.isfinite(trial[0]) & (np.abs(less) < 0.5 * left)
                at = np.where(better[:, None], new, at)
                value = np.where(better, trial[0], value)
                gradient = np.where(better[:, None], trial[1], gradient)
                left = np.where(better, np.abs(less), left)
                moved |= better
            if not moved.any():
                break
    return Minima(unknowns=at, value=value, gradient=gradient, sound=ends.sound)
