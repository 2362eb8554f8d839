"""Starts for any law: drawn in a box, with the linear parameters solved for."""

from __future__ import annotations

import numpy as np

from leadline.curve import Floats
from leadline.laws.solve import Task, predicted, prediction

DRAWS_PER_START = 32
"""Points drawn in the box for each start wanted."""
AT_A_TIME = 100


def draw_starts(
    task: Task, first: Floats, last: Floats, linear: list[int], *, count: int, seed: int
) -> tuple[Floats, float]:
    r"""Starts (lane, unknown), best first, and the smallest root mean square error.

    Points are a Latin hypercube over the box, logarithmic where it is wide and excludes 0. At each
    the linear unknowns follow from weighted least squares within their bounds (relative error
    where the objective sees logarithms). The best half of `count` is taken, and as many at random
    from the best tenth.

    **Arguments:** `first`, `last` (unknown) the box; `linear` the indices of linear unknowns.
    """
    rng = np.random.default_rng(seed)
    size, draws = len(first), DRAWS_PER_START * count
    grid = (np.argsort(rng.random((size, draws)), axis=1).T + rng.random((draws, size))) / draws
    wide = (first * last > 0) & (
        np.abs(last) + np.abs(first) > 8 * np.minimum(abs(last), abs(first))
    )
    safe = np.where(wide, first, 1.0)
    lanes = np.where(
        wide, safe * (np.where(wide, last, 1.0) / safe) ** grid, first + (last - first) * grid
    )
    parts = [
        solve_linear(task, lanes[i : i + AT_A_TIME], linear) for i in range(0, draws, AT_A_TIME)
    ]
    lanes = np.concatenate([part[0] for part in parts])
    error = np.concatenate([part[1] for part in parts])
    order = np.argsort(error, kind="stable")
    best, pool = np.split(order[: max(count, draws // 10)], [count // 2])
    chosen = np.concatenate([best, rng.permutation(pool)[: count - len(best)]])
    return lanes[chosen], float(np.sqrt(error[order[0]] / task.weight.sum()))


def solve_linear(task: Task, lanes: Floats, linear: list[int]) -> tuple[Floats, Floats]:
    """`lanes` with their linear unknowns solved for, and the weighted sum of squared errors
    (lane).
    """
    lanes = lanes.copy()
    target = task.loss[0]
    scale = target * task.noise if task.objective.residual == "log" else task.noise
    weight = np.sqrt(task.weight[0]) / scale
    with np.errstate(all="ignore"):
        if linear:
            lanes[:, linear] = 0.0
            rest, slope = prediction(task, lanes)
            basis = slope[:, :, linear] * weight[:, None]
            wanted = (target - rest) * weight
            bad = ~np.isfinite(basis).all(axis=(1, 2))
            basis[bad], wanted[bad] = 0.0, 0.0
            lanes[:, linear] = _bounded(basis, wanted, task.low[linear], task.high[linear])
        loss = predicted(task, lanes)
        error = (((loss - target) * weight) ** 2).sum(axis=1)
    return lanes, np.where(np.isfinite(error), error, np.inf)


def _bounded(basis: Floats, wanted: Floats, low: Floats, high: Floats) -> Floats:
    """Approximate least squares (lane, unknown) within bounds: solve, put what leaves on its bound,
    solve the others again. Coefficients at zero start a little above, where they have a gradient.
    """
    scale = np.linalg.norm(basis, axis=1)
    scale = np.where(scale > 0, scale, 1.0)
    basis = basis / scale[:, None, :]
    gram = basis.swapaxes(1, 2) @ basis
    right = (wanted[:, None, :] @ basis)[:, 0]
    least, most = low * scale, high * scale
    held = np.zeros(scale.shape, np.bool_)
    solution = np.zeros(scale.shape)
    one = np.eye(scale.shape[1])
    for _ in range(scale.shape[1] + 1):
        both = ~held[:, :, None] & ~held[:, None, :]
        matrix = np.where(both, gram, 0.0) + one * np.where(held, 1.0, 1e-13)[:, :, None]
        pushed = right - (gram @ np.where(held, solution, 0.0)[:, :, None])[:, :, 0]
        found = np.linalg.solve(matrix, np.where(held, solution, pushed)[:, :, None])[:, :, 0]
        solution = np.clip(found, least, most)
        leaves = (solution != found) & ~held
        if not leaves.any():
            break
        held |= leaves
    solution = solution / scale
    reach = np.where(np.isfinite(high), 0.999 * high, np.inf)
    return np.clip(solution, np.where(low == 0, 1e-3 * (high == np.inf), low), reach)
