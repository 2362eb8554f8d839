"""Starts for a fit, by variable projection on a grid of exponents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.laws.families import FLATTEST, STEEPEST
from leadline.laws.newton import Problem

GRID_POINTS = (48, 20, 11, 8)
"""Exponents a variable on the grid, by the number of variables."""
MAX_GRID = 5000
"""Grid points tried; of a larger grid as many are drawn at random."""
SMALLEST = 1e-3
"""Smallest coefficient of a start: one of exactly zero leaves its exponent without a gradient."""


def start_count(variables: int) -> int:
    """How many starts a fit takes: more variables have more local optima."""
    return 8 if variables <= 2 else 48 if variables == 3 else 96


def grid_starts(rows: Problem, *, count: int, seed: int) -> tuple[Floats, float]:
    r"""Starts (lane, unknown) by variable projection: for every combination of exponents on a grid
    the best floor and coefficients follow from linear least squares on the relative error,
    $\sum_j (f_j / L_j - 1)^2$. Also returns the smallest root mean square of that error.

    The inner products of all single-variable columns are formed once; a grid point only picks
    its own, so that its cost does not depend on the number of rows. The first half of `count` are
    the grid points with the smallest sums; the others are drawn with `seed` from the best tenth of
    the grid, for variety.
    """
    variables = len(rows.logs)
    points = GRID_POINTS[min(variables, len(GRID_POINTS)) - 1]
    grid = np.geomspace(FLATTEST, STEEPEST, points) / np.ptp(rows.logs, axis=1)[:, None]
    powers = np.exp(-grid[:, :, None] * rows.logs[:, None, :]).reshape(-1, rows.target.size)
    columns = np.concatenate([np.ones((1, rows.target.size)), powers]) / np.exp(rows.target)

    rng = np.random.default_rng(seed)
    if points**variables <= MAX_GRID:
        picks = np.indices([points] * variables).reshape(variables, -1).T
    else:
        picks = rng.integers(points, size=(MAX_GRID, variables))
    column = np.concatenate(
        [np.zeros((len(picks), 1), np.int64), 1 + picks + points * np.arange(variables)], axis=1
    )
    linear, error = _nonnegative(columns @ columns.T, columns.sum(axis=1), column)
    error += rows.target.size

    order = np.argsort(error, kind="stable")
    best, pool = np.split(order[: max(count, len(order) // 10)], [count // 2])
    chosen = np.concatenate([best, rng.permutation(pool)[: count - len(best)]])
    starts = np.concatenate([linear, grid[np.arange(variables), picks]], axis=1)[chosen]
    starts[:, 1 : 1 + variables] = np.maximum(starts[:, 1 : 1 + variables], SMALLEST)
    starts[:, 0] = np.clip(starts[:, 0], rows.low[0], 0.999 * rows.high[0])
    return starts, float(np.sqrt(max(error[order[0]], 0.0) / rows.target.size))


def _nonnegative(gram: Floats, right: Floats, column: NDArray[np.int64]) -> tuple[Floats, Floats]:
    r"""Approximate minima of $z^T G z - 2 z^T h$ over $z \ge 0$, each for its own choice of
    columns (choice, unknown): solve, drop what is negative, solve again. Also returns the values.
    """
    matrix = gram[column[:, :, None], column[:, None, :]]
    target = right[column]
    diagonal = np.einsum("lii->li", matrix)
    used = np.ones(column.shape, np.bool_)
    solution = np.zeros(column.shape)
    for _ in range(column.shape[1]):
        part = np.where(used[:, :, None] & used[:, None, :], matrix, 0.0)
        np.einsum("lii->li", part)[...] += np.where(used, 1e-12 * diagonal, 1.0)
        solution = np.linalg.solve(part, np.where(used, target, 0.0)[:, :, None])[..., 0]
        if not (solution < 0).any():
            break
        used &= solution >= 0
    solution = np.maximum(solution, 0.0)
    product = np.einsum("luv,lv->lu", matrix, solution) - 2 * target
    return solution, np.einsum("lu,lu->l", solution, product)
