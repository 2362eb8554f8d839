"""Fit a law to a table of runs: one robust objective, a global start, and what the fit is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.errors import FitError
from leadline.laws.design import Design, design
from leadline.laws.families import Law, Separable
from leadline.laws.newton import (
    ROUNDING,
    Bools,
    Minima,
    Problem,
    free_unknowns,
    homotopy,
    minimize,
    persist,
)
from leadline.laws.starts import SMALLEST, grid_starts, start_count
from leadline.runs import Runs

FitStatus = Literal["ok", "at bound", "ill-conditioned", "not converged"]

MAX_CONDITION = 1e6
"""Above this condition number of the sensitivities, the data do not tell the parameters apart."""
ROWS_INSIDE = 3
"""Rows inside delta that each parameter needs before the curvature there can be trusted."""
SAME_OPTIMUM = 1e-6
"""Two minima whose objectives differ by less than this share count as one."""


@dataclass(frozen=True, kw_only=True)
class Huber:
    r"""The sum over rows of $H_\delta(\log\hat L - \log L)$, with $H_\delta(r) = r^2/2$ for
    $|r| \le \delta$ and $\delta(|r| - \delta/2)$ beyond.

    **Arguments:** `delta` $> 0$; 1e-3 as in arXiv:2203.15556, appendix D.3.
    """

    delta: float = 1e-3

    def __post_init__(self) -> None:
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise FitError(f"delta: got {self.delta}, expected a finite number > 0")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted law and what it is worth.

    **Arguments:**
    - `law`; `objective`; `value` of the objective, a sum over rows.
    - `status`: the first that applies of "not converged", "at bound", "ill-conditioned", "ok".
    - `converged`: Newton's model promises no decrease beyond rounding, and no direction curves
      down; `at_bound`: the parameters at their bound (E in [0, smallest loss], coefficients and
      exponents >= 0); `covariance_accurate`: converged, inside the bounds, and with at least three
      rows a parameter inside delta.
    - `gradient_norm`: largest derivative of the objective by a centered parameter that may move,
      over the objective. `condition_number` of the sensitivities of the log prediction to the
      centered parameters, each scaled to length one.
    - `covariance` (parameter, parameter): sandwich, with rows of one run (or identical rows)
      summed before squaring; `residuals` (row): log prediction minus log loss.
    - `degrees_of_freedom`: rows minus parameters not at a bound; `excluded`: rows of the source
      left out.
    - `optima`: the distinct objective values at which converged starts ended, smallest first, and
      `starts_at_optimum`, the share of all starts that ended at the smallest.
    - `runs`: the rows that were used.
    """

    law: Law
    objective: Huber
    value: float
    status: FitStatus
    converged: bool
    at_bound: tuple[str, ...]
    covariance_accurate: bool
    gradient_norm: float
    condition_number: float
    covariance: Floats
    residuals: Floats
    degrees_of_freedom: int
    rows: int
    excluded: int
    optima: Floats
    starts_at_optimum: float
    runs: Runs

    @property
    def digest(self) -> str:
        """SHA-256 of the values that were used, independent of the order of rows."""
        return self.runs.digest((*self.law.family.variables, "loss"))

    @property
    def standard_errors(self) -> dict[str, float]:
        """Root of the diagonal of `covariance`, by parameter."""
        errors = np.sqrt(np.diag(self.covariance))
        return dict(zip(self.law.family.parameters, errors.tolist(), strict=True))


def fit(
    family: Separable,
    runs: Runs,
    *,
    objective: Huber | None = None,
    seed: int = 0,
    starts: Sequence[Mapping[str, float]] = (),
) -> Fit:
    r"""The law of `family` that minimizes `objective` over the rows of `runs`.

    Starts come from a grid over the exponents, with floor and coefficients solved for exactly;
    each is followed from a wide objective down to the wanted delta by damped Newton steps with
    exact derivatives, and the best end is taken. The computation works in centered
    logarithms and on sorted rows: neither the units nor the order of rows changes the answer.

    **Arguments:** `objective` defaults to `Huber(delta=1e-3)`; `seed` draws half of the starts from
    the better grid points; `starts` are further parameter sets to start from, beside the grid.
    Rows that lack the loss or a variable are left out and listed in `Fit.runs.excluded`.

    **Raises:** `TableError` for a missing column; `FitError` if the rows cannot determine the
    law: too few rows, a variable with fewer than three values, two variables on one line.

    Derived in docs/theory/fitting.md.
    """
    objective = objective or Huber()
    table, data = design(family, runs)
    first, spread = grid_starts(data.rows, count=start_count(len(family.variables)), seed=seed)
    lanes = np.concatenate([first, *(_lane(data, start) for start in starts)])
    weights = np.ones((1, len(table)))
    ends = minimize(data.rows, lanes, weights, homotopy(objective.delta, 3 * spread))
    # an end that has not converged and lies lower than those that have may be on its way to better
    known = ends.value[ends.sound].min(initial=np.inf)
    promising = np.flatnonzero(~ends.sound & (ends.value < known * (1 - SAME_OPTIMUM)))
    ends = persist(data.rows, ends, weights, objective.delta, promising)
    # sizes and losses near the ends of the floating-point range overflow the covariance to infinity
    with np.errstate(over="ignore", invalid="ignore"):
        return _assess(table, data, objective, ends)


def _lane(design: Design, start: Mapping[str, float]) -> Floats:
    """A raw parameter set as one lane, moved inside the bounds."""
    rows, count = design.rows, len(design.centers)
    vector = Law(family=design.family, parameters=start, units={}).vector
    vector[1 + count :] = np.clip(vector[1 + count :], 1e-3, rows.high[1 + count :])
    with np.errstate(over="ignore"):
        lane = design.to_lanes(vector[None])
    lane[0, 0] = np.clip(lane[0, 0], 0.0, 0.999 * rows.high[0])
    lane[0, 1 : 1 + count] = np.clip(lane[0, 1 : 1 + count], SMALLEST, 10.0)
    return lane


def _assess(table: Runs, data: Design, objective: Huber, ends: Minima) -> Fit:
    """The best of the ends, with everything that says whether to trust it."""
    family, rows = data.family, data.rows
    noise = len(table) * 0.5 * ROUNDING**2
    value = np.where(np.isfinite(ends.value), ends.value, np.inf)
    least = float(value.min())
    # of equally good ends, one that has converged
    chosen = int(np.lexsort([value, ~ends.sound, value > least * (1 + 1e-12) + noise])[0])
    lane, converged = ends.unknowns[chosen], bool(ends.sound[chosen])
    optima = np.sort(value[ends.sound])
    apart = np.diff(optima, prepend=-np.inf) > SAME_OPTIMUM * optima + noise

    held = (lane <= rows.low) | (lane >= rows.high)
    free = free_unknowns(rows, ends.unknowns[[chosen]], ends.gradient[[chosen]])[0]
    slope = np.where(free, ends.gradient[chosen], 0.0)
    sensitivity, residuals = _sensitivities(rows, lane)
    condition = np.linalg.cond(sensitivity[:, free] / np.linalg.norm(sensitivity[:, free], axis=0))
    inside = _inside(residuals, objective.delta)
    clipped = np.clip(residuals, -objective.delta, objective.delta)
    jacobian = data.jacobian(lane)
    in_order = np.empty(len(table))
    in_order[data.order] = residuals
    used = (*family.variables, "loss")
    return Fit(
        law=Law(
            family=family,
            parameters=dict(
                zip(family.parameters, data.to_parameters(lane[None])[0].tolist(), strict=True)
            ),
            units={k: v for k, v in table.units.items() if k in used},
        ),
        objective=objective,
        value=least,
        status="not converged"
        if not converged
        else "at bound"
        if held.any()
        else "ill-conditioned"
        if condition > MAX_CONDITION
        else "ok",
        converged=converged,
        at_bound=tuple(n for n, at in zip(family.parameters, held, strict=True) if at),
        covariance_accurate=converged
        and not held.any()
        and bool(inside.sum() >= ROWS_INSIDE * len(lane)),
        gradient_norm=float(np.abs(slope).max() / (least + noise)),
        condition_number=float(condition),
        covariance=jacobian
        @ _sandwich(sensitivity, clipped, inside, unit=data.unit, free=free)
        @ jacobian.T,
        residuals=in_order,
        degrees_of_freedom=len(table) - int(free.sum()),
        rows=len(table),
        excluded=table.excluded.height,
        optima=optima[apart],
        starts_at_optimum=float(np.mean(value <= least * (1 + SAME_OPTIMUM) + noise)),
        runs=table,
    )


def _sensitivities(rows: Problem, unknowns: Floats) -> tuple[Floats, Floats]:
    """Derivatives (row, unknown) of the log prediction by the centered unknowns, and the residuals
    (row).
    """
    count = len(rows.logs)
    coefficient, exponent = unknowns[1 : 1 + count, None], unknowns[1 + count :, None]
    powers = np.exp(-exponent * rows.logs)
    loss = unknowns[0] + (coefficient * powers).sum(axis=0)
    columns = np.concatenate(
        [np.ones((1, rows.target.size)), powers, -coefficient * rows.logs * powers]
    )
    return (columns / loss).T, np.log(loss) - rows.target


def _inside(residuals: Floats, delta: float) -> Floats:
    r"""For each row the probability of lying inside delta when its residual moves by a uniform
    kernel of the width that density estimation takes (1.06 sigma rows^(-1/5)).

    The curvature of a robust objective counts only rows inside delta. The bare count jumps as the
    law moves; smoothing estimates its expectation, as in quantile regression.
    """
    low, high = np.quantile(residuals, [0.25, 0.75])
    sigma = min(float(residuals.std()), float(high - low) / 1.349)
    width = 1.06 * sigma * len(residuals) ** -0.2 + 1e-300
    overlap = np.minimum(residuals + width, delta) - np.maximum(residuals - width, -delta)
    return np.clip(overlap, 0.0, None) / (2 * width)


def _sandwich(
    sensitivity: Floats,
    clipped: Floats,
    inside: Floats,
    *,
    unit: NDArray[np.int64],
    free: Bools,
) -> Floats:
    r"""Covariance of the centered unknowns, $H^{-1} (\sum_u s_u s_u^T) H^{-1}$, with $H$ the
    expected curvature and $s_u$ the summed gradient of the rows of unit u; held unknowns have
    variance 0.
    """
    rows, size = sensitivity.shape
    units = int(unit.max()) + 1
    scores = np.zeros((units, size))
    np.add.at(scores, unit, clipped[:, None] * sensitivity)
    small = units / max(units - 1, 1) * (rows - 1) / max(rows - int(free.sum()), 1)
    covariance = np.zeros((size, size))
    both = np.ix_(free, free)
    curvature = (sensitivity * inside[:, None]).T @ sensitivity
    try:
        spread = np.linalg.solve(curvature[both], scores[:, free].T)
        covariance[both] = small * spread @ spread.T
    except np.linalg.LinAlgError:
        covariance[both] = np.nan
    return covariance
