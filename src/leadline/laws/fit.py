"""Fit a law to a table of runs: an objective, a global start, and what the fit is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from leadline.curve import Floats
from leadline.display import Card, Shown, short
from leadline.errors import FitError
from leadline.laws import newton, solve
from leadline.laws.coordinates import Restriction, coordinates, restriction
from leadline.laws.covariance import curvature
from leadline.laws.design import Design, Sample, sample, separable_design
from leadline.laws.families import Family, Law, Separable
from leadline.laws.forms import Custom
from leadline.laws.newton import Minima
from leadline.laws.objectives import Huber, LeastSquares, Objective, has_noise_model
from leadline.laws.search import draw_starts, solve_linear
from leadline.laws.solve import LIMIT_OF_SCALE, ROUNDING, Task
from leadline.laws.starts import SMALLEST, grid_starts, start_count
from leadline.runs import Runs

FitStatus = Literal["ok", "at bound", "ill-conditioned", "not converged"]

MAX_CONDITION = 1e6
"""Above this condition number of the sensitivities, the data do not tell the parameters apart."""
SAME_OPTIMUM = 1e-6
"""Two minima whose objectives differ by less than this share count as one."""
STARTS = 24
"""Starts of a law without a minimizer of its own."""
MORE = 4
"""Starts that get more steps where they have not converged and lie lowest."""
AROUND = 1e3
"""Parameters without finite bounds are searched within this factor of the start given."""


@dataclass(frozen=True, kw_only=True)
class Fit(Shown):
    """A fitted law and what it is worth.

    **Arguments:**
    - `law`; `objective`; `value` of the objective, a sum over rows.
    - `status`: the first that applies of "not converged", "at bound", "ill-conditioned", "ok".
    - `converged`: Newton's model promises no decrease beyond rounding, and no direction curves
      down; `at_bound`: the parameters at their bound (those of the family, such as E in
      [0, smallest loss] and coefficients and exponents >= 0, or those set by hand);
      `covariance_accurate`: converged, inside the bounds, and, for a robust objective, with at
      least three rows a parameter where its curvature lies.
    - `gradient_norm`: largest derivative of the objective by a centered parameter that may move,
      over the objective. `condition_number` of the sensitivities of the residuals to the centered
      parameters, each scaled to length one.
    - `covariance` (parameter, parameter): sandwich, with rows of one run (or identical rows)
      summed before squaring; `model_covariance`: that of the objective's noise model, s^2 (J^T
      J)^-1 for least squares, the inverse curvature for Student's t, None for a robust objective;
      `scale` s of that noise, in the unit of the residual.
    - `residuals` (row): log prediction minus log loss, or prediction minus loss where the objective
      is raw.
    - `degrees_of_freedom`: rows minus parameters that moved; `excluded`: rows of the source left
      out.
    - `optima`: the distinct objective values at which converged starts ended, smallest first, and
      `starts_at_optimum`, the share of all starts that ended at the smallest.
    - `restriction`: what was fixed, shared or bounded by hand; `weights`, `noise`: the columns of
      both, or None.
    - `runs`: the rows that were used.
    """

    law: Law
    objective: Objective
    value: float
    status: FitStatus
    converged: bool
    at_bound: tuple[str, ...]
    covariance_accurate: bool
    gradient_norm: float
    condition_number: float
    covariance: Floats
    model_covariance: Floats | None
    scale: float | None
    residuals: Floats
    degrees_of_freedom: int
    rows: int
    excluded: int
    optima: Floats
    starts_at_optimum: float
    restriction: Restriction
    weights: str | None
    noise: str | None
    runs: Runs

    def card(self) -> Card:
        """The law, its parameters and their errors, and whether to trust them."""
        errors = self.standard_errors
        rows = [
            (name, f"{value:.6g}", f"{errors[name]:.3g}")
            for name, value in self.law.parameters.items()
        ]
        bounds = f", {', '.join(self.at_bound)} at a bound" if self.at_bound else ""
        accurate = "" if self.covariance_accurate else "; standard errors are rough"
        return Card(
            title=self.law.equation,
            columns=("parameter", "estimate", "standard error (sandwich)"),
            rows=rows,
            notes=(
                f"{self.rows} rows used, {self.excluded} excluded",
                f"objective {short(self.value)} ({self.objective})",
                f"status {self.status}{bounds}{accurate}",
            ),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that the fit used."""
        extra = [name for name in (self.weights, self.noise) if name is not None]
        return (*self.law.family.variables, "loss", *extra)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The smallest and largest value of each variable in the data."""
        columns = {name: self.runs.column(name) for name in self.law.family.variables}
        return {
            k: (float(c.to_numpy().min()), float(c.to_numpy().max())) for k, c in columns.items()
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the values that were used, independent of the order of rows."""
        return self.runs.digest(self.columns)

    @property
    def standard_errors(self) -> dict[str, float]:
        """Root of the diagonal of `covariance`, by parameter."""
        return self._errors(self.covariance)

    @property
    def model_standard_errors(self) -> dict[str, float]:
        """Root of the diagonal of `model_covariance`, by parameter.

        **Raises:** `FitError` for a robust objective, which has no noise model.
        """
        if self.model_covariance is None:
            raise FitError(
                f"{self.objective} is no noise model; take `standard_errors` (sandwich) or the "
                "bootstrap"
            )
        return self._errors(self.model_covariance)

    def _errors(self, covariance: Floats) -> dict[str, float]:
        errors = np.sqrt(np.diag(covariance))
        return dict(zip(self.law.family.parameters, errors.tolist(), strict=True))


def fit(
    family: Family,
    runs: Runs,
    *,
    objective: Objective | None = None,
    weights: str | None = None,
    noise: str | None = None,
    fixed: Mapping[str, float] | None = None,
    shared: Sequence[Sequence[str]] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
    seed: int = 0,
    starts: Sequence[Mapping[str, float]] = (),
) -> Fit:
    r"""The law of `family` that minimizes `objective` over the rows of `runs`.

    Starts cover the shape of the law, with floor and coefficients solved for; each is followed from
    a wide objective down to the wanted one by damped Newton steps with exact first derivatives, and
    the best end is taken. The computation works in centered logarithms and on sorted rows: neither
    the units nor the order of rows changes the answer.

    **Arguments:**
    - `objective` defaults to `Huber(delta=1e-3)`.
    - `weights`, `noise` name columns: the weight of each row's term, and the known standard
      deviation of its residual, which divides it.
    - `fixed` values of parameters (raw counts), such as {"alpha": 0.34}; `shared` groups of
      exponents that are one number, such as [("a_width", "a_depth")]; `bounds` (low, high) of
      exponents and floor, within those of the family.
    - `seed` draws half of the starts; `starts` are further parameter sets to start from. A
      parameter without finite bounds is searched within a factor 1,000 of them.

    Rows that lack the loss or a variable are left out and listed in `Fit.runs.excluded`.

    **Raises:** `TableError` for a missing column; `FitError` if the rows cannot determine the
    law: too few rows, a variable with fewer than three values, two variables on one line.

    Derived in docs/theory/fitting.md.
    """
    objective = objective or Huber()
    given = restriction(family, fixed=fixed, shared=shared, bounds=bounds)
    problem = pose(family, runs, objective, given, weights=weights, noise=noise)
    own = [family_start(family, start, given) for start in starts]
    with np.errstate(all="ignore"):
        ends, width = (
            _general(problem, own, seed)
            if problem.design is None
            else _separable(problem.design, problem.task, own, seed)
        )
        # sizes and losses near the ends of the floating-point range overflow the covariance
        return _assess(problem, ends, width, given, weights=weights, noise=noise)


@dataclass(frozen=True, kw_only=True)
class Posed:
    """A problem ready to solve: the `table` and its `rows`, the `task`, the `box` (unknown) of
    starts, and the `design` of the batched minimizer of separable laws where that can solve it.
    """

    table: Runs
    rows: Sample
    task: Task
    box: tuple[Floats, Floats]
    design: Design | None


def pose(
    family: Family,
    runs: Runs,
    objective: Objective,
    given: Restriction,
    *,
    weights: str | None,
    noise: str | None,
) -> Posed:
    """The problem of fitting `family` to `runs` under these restrictions."""
    free = len(family.parameters) - len(given.names) + len(given.shared)
    if free < 1:
        raise FitError(f"every parameter of {family.name} is fixed; nothing is left to fit")
    table, rows = sample(
        family,
        runs,
        residual=objective.residual,
        weights=weights,
        noise=noise,
        set_by_hand=given.names,
        free=free,
    )
    log_loss = bool((rows.loss > 0).all())
    frame, low, high, first, last = coordinates(family, rows, given, log_loss=log_loss)
    task = Task(
        coordinates=frame,
        objective=objective,
        points=rows.points,
        loss=rows.loss[None],
        weight=rows.weight[None],
        noise=rows.noise,
        low=low,
        high=high,
    )
    if task.scaled_noise:
        task = replace(
            task, low=np.append(low, -LIMIT_OF_SCALE), high=np.append(high, LIMIT_OF_SCALE)
        )
    data: Design | None = None
    if (
        isinstance(family, Separable)
        and family.floor
        and noise is None
        and not (given.names or given.bounds)
        and isinstance(objective, (Huber, LeastSquares))
        and objective.residual == "log"
    ):
        data = separable_design(family, rows)
        # the bounds to the last digit, so that both agree on what lies on them
        task = replace(task, low=data.rows.low, high=data.rows.high)
    return Posed(table=table, rows=rows, task=task, box=(first, last), design=data)


def family_start(family: Family, start: Mapping[str, float], given: Restriction) -> Floats:
    """A parameter set to start from; fixed parameters may be left out."""
    return Law(family=family, parameters=dict(start) | dict(given.fixed), units={}).vector


def _separable(data: Design, task: Task, own: Sequence[Floats], seed: int) -> tuple[Minima, float]:
    """The ends of all starts by the batched minimizer, and the final delta."""
    rows, count = data.rows, len(data.centers)
    first, spread = grid_starts(rows, count=start_count(count), seed=seed)
    lanes = [first]
    for vector in own:
        vector[1 + count :] = np.clip(vector[1 + count :], 1e-3, rows.high[1 + count :])
        lane = data.to_lanes(vector[None])
        lane[0, 0] = np.clip(lane[0, 0], 0.0, 0.999 * rows.high[0])
        lane[0, 1 : 1 + count] = np.clip(lane[0, 1 : 1 + count], SMALLEST, 10.0)
        lanes.append(lane)
    path = task.objective.path(spread)
    ends = newton.minimize(rows, np.concatenate(lanes), task.weight, path)
    return newton.persist(rows, ends, task.weight, path[-1], _promising(ends)), path[-1]


def _general(problem: Posed, own: Sequence[Floats], seed: int) -> tuple[Minima, float]:
    """The ends of all starts by the general minimizer, and the final width."""
    task, family = problem.task, problem.task.coordinates.family
    size = task.coordinates.place.shape[1]
    linear = [
        i
        for i in range(size)
        if all(
            family.parameters[j] in family.linear
            for j in np.flatnonzero(task.coordinates.place[:, i])
        )
    ]
    first, last = (x.copy() for x in problem.box)
    first[linear] = last[linear] = 0.0
    loose = ~(np.isfinite(first) & np.isfinite(last))
    if loose.any() and not own:
        names = np.array(family.parameters)[task.coordinates.place[:, loose].any(axis=1)]
        raise FitError(
            f"{family.name}: nowhere to search for {', '.join(names)}; give finite bounds or starts"
        )
    # a user's function is called for one lane at a time
    count = STARTS if family.positive else STARTS // 3
    lanes: list[Floats] = []
    spreads: list[float] = []
    for vector in own:
        lane = task.coordinates.unknowns(vector[None])
        lane = np.clip(lane, task.low[:size], task.high[:size])
        solved, error = solve_linear(task, lane, linear)
        lanes += [lane, solved] if linear and np.isfinite(error[0]) else [lane]
        spreads.append(float(np.sqrt(error[0] / task.weight.sum())))
        if loose.any():
            ends_of = np.sort([lane[0] / AROUND, lane[0] * AROUND], axis=0)
            ends_of = np.where(lane[0] == 0, [[-1.0], [1.0]], ends_of)
            near = np.where(loose, ends_of[0], first), np.where(loose, ends_of[1], last)
            lanes.append(draw_starts(task, *near, linear, count=count, seed=seed)[0])
    if not loose.any():
        drawn, spread = draw_starts(task, first, last, linear, count=count, seed=seed)
        lanes.append(drawn)
        spreads.append(spread)
    spread = min(spreads)
    at = np.concatenate(lanes)
    if task.scaled_noise:
        plain = replace(task, objective=LeastSquares(residual=task.objective.residual))
        z, _ = solve.residuals(plain, at)
        middle = np.nanmedian(np.abs(z), axis=1)
        at = np.append(at, np.log(1.5 * np.where(middle > 0, middle, 1e-30))[:, None], axis=1)
    path = task.objective.path(spread if np.isfinite(spread) and spread > 0 else 1e-300)
    ends = solve.minimize(task, at, path)
    again = _promising(ends)
    if len(again):
        again = again[np.argsort(ends.value[again], kind="stable")[:MORE]]
        more = solve.minimize(task, ends.unknowns[again], path[-1:], steps=1000)
        ends = newton.replace_lanes(ends, again, more)
    if not np.isfinite(ends.value).any():
        raise FitError(f"{family.name}: the law is undefined at every start")
    return ends, path[-1]


def _promising(ends: Minima) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Ends that have not converged and lie lower than those that have: they may be on their way to
    something better.
    """
    known = ends.value[ends.sound].min(initial=np.inf)
    lower = ends.value < known * (1 - np.sign(known) * SAME_OPTIMUM)
    return np.flatnonzero(~ends.sound & lower & np.isfinite(ends.value))


def _assess(
    problem: Posed,
    ends: Minima,
    width: float,
    given: Restriction,
    *,
    weights: str | None,
    noise: str | None,
) -> Fit:
    """The best of the ends, with everything that says whether to trust it."""
    task, table, rows = problem.task, problem.table, problem.rows
    family, objective = task.coordinates.family, task.objective
    unit = 1.0 if objective.residual == "log" else float(np.abs(rows.loss).max())
    tiny = ROUNDING if problem.design is None else newton.ROUNDING
    floor = float(rows.weight.sum()) * 0.5 * (tiny * unit) ** 2
    value = np.where(np.isfinite(ends.value), ends.value, np.inf)
    least = float(value.min())
    size = abs(least) + (len(table) if task.scaled_noise else 0)
    # of equally good ends, one that has converged, and of those the first: a start that was given
    first = value if problem.design is not None else np.arange(len(value))
    tie = size * 1e-12 + floor + (4 * np.sqrt(size * floor) if problem.design is None else 0.0)
    chosen = np.array([np.lexsort([first, ~ends.sound, value > least + tie])[0]])
    best = newton.take(ends, chosen)
    if problem.design is None and has_noise_model(objective):
        best = solve.sharpen(task, best, width)
    at, slope, converged = best.unknowns[0], best.gradient[0], bool(best.sound[0])
    optima = np.sort(value[ends.sound])
    apart = np.diff(optima, prepend=-np.inf) > SAME_OPTIMUM * size + floor

    if isinstance(family, Custom):
        family.check_gradient(
            rows.points,
            task.coordinates.parameters(at[None, : task.coordinates.place.shape[1]])[0][0],
        )
    if not family.positive:
        # parameters in a unit of their own are taken in that of their sensitivity
        _, by = solve.residuals(task, at[None])
        slope = slope * np.sqrt(len(table)) / np.maximum(np.linalg.norm(by[0], axis=0), 1e-300)
    if problem.design is None:
        _, _, hessian = solve.derivatives(task, at[None], width, curved=False)
        free = solve.free_unknowns(task, at[None], slope[None], hessian)[0]
    else:
        free = newton.free_unknowns(problem.design.rows, at[None], slope[None])[0]
    held = (at <= task.low) | (at >= task.high)
    place = task.coordinates.place
    found = curvature(task, at, width, free, rows.unit, known_noise=noise is not None)
    count = place.shape[1]
    vector, chain = task.coordinates.parameters(at[None, :count])
    jacobian = chain[0]
    names = [n for n, row in zip(family.parameters, place, strict=True) if (row @ held[:count])]
    if held[count:].any():
        names.append("scale")
    loss = solve.predicted(task, at[None])
    residual = (
        np.log(loss[0]) - np.log(rows.loss) if objective.residual == "log" else loss[0] - rows.loss
    )
    in_order = np.empty(len(table))
    in_order[rows.order] = residual
    used = (*family.variables, "loss")

    def raw(covariance: Floats) -> Floats:
        return jacobian @ covariance[:count, :count] @ jacobian.T

    return Fit(
        law=Law(
            family=family,
            parameters=dict(zip(family.parameters, vector[0].tolist(), strict=True)),
            units={k: v for k, v in table.units.items() if k in used},
        ),
        objective=objective,
        value=least,
        status="not converged"
        if not converged
        else "at bound"
        if names
        else "ill-conditioned"
        if found.condition > MAX_CONDITION
        else "ok",
        converged=converged,
        at_bound=tuple(names),
        covariance_accurate=converged and not names and found.enough,
        # where the residuals are rounding, so is their gradient
        gradient_norm=float(np.abs(np.where(free, slope, 0.0)).max() / (size + floor))
        if least > floor or task.scaled_noise
        else 0.0,
        condition_number=found.condition,
        covariance=raw(found.sandwich),
        model_covariance=None if found.model is None else raw(found.model),
        scale=found.scale,
        residuals=in_order,
        degrees_of_freedom=len(table) - int(free[:count].sum()),
        rows=len(table),
        excluded=table.excluded.height,
        optima=optima[apart],
        starts_at_optimum=float(np.mean(value <= least + SAME_OPTIMUM * size + floor)),
        restriction=given,
        weights=weights,
        noise=noise,
        runs=table,
    )
