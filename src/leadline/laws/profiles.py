r"""Profile likelihood: how far a quantity can move before the best fit that has it becomes too
unlikely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.errors import FitError, LeadlineError, nearest
from leadline.laws import solve
from leadline.laws.families import Law
from leadline.laws.fit import Fit, Posed, pose
from leadline.laws.intervals import fitted_unknowns, posed_again
from leadline.laws.objectives import LeastSquares, StudentT, has_noise_model
from leadline.laws.solve import Pin, Task

PINNED = 1e-3
"""Width of the pin that holds a derived quantity, in standard errors."""
CLOSE = 1e-5
"""An end is found when the root of the deviance is this close to its threshold."""
FARTHEST = 60.0
"""Standard errors beyond which a side without a bound counts as open. Toward a bound the walk goes
on: where another parameter is held at its own, the standard error is far too small."""
LOWER = 1e-6
"""Deviance below zero that shows that the fit was not at its optimum."""

Quantity = Callable[[Law], float]


@dataclass(frozen=True, kw_only=True)
class Profile(Interval):
    """A profile interval: besides the interval, at which `values` of the quantity the law was
    refitted, the `deviance` there, and whether each refit converged (`success`).
    """

    values: tuple[float, ...]
    deviance: tuple[float, ...]
    success: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class _Refit:
    """The best law that has a given value of the quantity: that value, its deviance, whether the
    refit converged, and the parameters.
    """

    value: float
    deviance: float
    success: bool
    parameters: Floats
    scale: float | None


def profile(fit: Fit, quantity: str | Quantity, *, level: float = 0.95) -> Profile:
    r"""The interval of a parameter or of any quantity of the law, from the profile likelihood.

    For each value of the quantity the law is fitted again among those that have it. With $Q$ the
    objective and $\hat Q$ its minimum, the deviance is $\nu(Q/\hat Q - 1)$ for least squares with
    fitted scale, $\nu$ the degrees of freedom, and $2(Q - \hat Q)$ where the noise is known or
    Student's t. The interval ends where its root reaches the quantile of Student's t with $\nu$
    degrees of freedom (of the normal where the noise is known). Unlike a standard error it follows
    the curved shape of the likelihood.

    **Arguments:** `fit` by `LeastSquares` or `StudentT`; `quantity` a parameter, or a function of
    the law, such as the loss at a size or the best size for a budget; `level` within (0, 1).

    **Returns** the interval with the points at which it was computed. An end at a bound of the
    parameter, or none within 60 standard errors of one without a bound (infinite), is told in
    `method`.

    **Raises:** `FitError` for a robust objective, which has no likelihood (take the sandwich or the
    bootstrap); a fit that has not converged; rows that are not independent (several rows of one
    run, or identical rows: take the bootstrap over runs); an unknown, fixed or idle parameter; or
    a refit below the fit itself.
    """
    problem = _check(fit, level)
    walk = _Walk(fit=fit, problem=problem, quantity=quantity)
    from scipy.special import ndtri, stdtrit

    tail = (1 + level) / 2
    known = fit.noise is not None and isinstance(fit.objective, LeastSquares)
    quantile = ndtri(tail) if known else stdtrit(fit.degrees_of_freedom, tail)
    threshold = float(quantile)
    low, low_note = walk.end(-1.0, threshold)
    high, high_note = walk.end(1.0, threshold)
    points = sorted(walk.points, key=lambda point: point.value)
    method = f"profile likelihood, {_noise_name(fit)}"
    method += "".join(f"; {note}" for note in (low_note, high_note) if note)
    failed = sum(not point.success for point in points)
    if failed:
        method += f"; {failed} of {len(points)} refits did not converge"
    return Profile(
        estimate=walk.estimate,
        low=low,
        high=high,
        level=level,
        method=method,
        unit="row",
        values=tuple(p.value for p in points),
        deviance=tuple(p.deviance for p in points),
        success=tuple(p.success for p in points),
    )


def _check(fit: Fit, level: float) -> Posed:
    if not 0 < level < 1:
        raise FitError(f"level: got {level}, expected a number within (0, 1)")
    if not has_noise_model(fit.objective):
        raise FitError(
            f"a profile needs a noise model; the {fit.objective} has none: take its sandwich "
            "standard errors or the bootstrap, or fit by LeastSquares or StudentT"
        )
    if not fit.converged:
        raise FitError("profile: this fit has not converged; its profile would mean nothing")
    problem = posed_again(fit)
    units = int(problem.rows.unit.max()) + 1
    if units < fit.rows:
        raise FitError(
            f"profile: {fit.rows} rows come from {units} runs or are identical, so they are not "
            "independent; take the bootstrap over runs"
        )
    return problem


def _noise_name(fit: Fit) -> str:
    if isinstance(fit.objective, StudentT):
        return f"Student's t with {fit.objective.dof:g} degrees of freedom and fitted scale"
    kind = "known" if fit.noise is not None else "fitted"
    return f"Gaussian {fit.objective.residual} residuals with {kind} scale"


class _Walk:
    """Refits along one quantity, each started at the nearest one before."""

    def __init__(self, *, fit: Fit, problem: Posed, quantity: str | Quantity) -> None:
        self.fit, self.problem, self.quantity = fit, problem, quantity
        vector = fit.law.vector
        assert fit.model_covariance is not None
        family = fit.law.family
        if isinstance(quantity, str):
            if quantity not in family.parameters:
                raise FitError(
                    f"{quantity!r} is no parameter of {family.name}; it has "
                    f"{', '.join(family.parameters)}{nearest(quantity, family.parameters)}"
                )
            if quantity in fit.restriction.fixed:
                raise FitError(f"{quantity} is fixed; there is nothing to profile")
            index = family.parameters.index(quantity)
            self.estimate = float(vector[index])
            slope = np.eye(len(vector))[index]
            # a coefficient spans decades
            self.by_factor = quantity in family.linear and quantity != "E" and self.estimate > 0
            self.by_factor &= family.positive
        else:
            value, slope = self._measure(vector[None])
            self.estimate, slope = float(value[0]), slope[0]
            if not math.isfinite(self.estimate):
                raise FitError("profile: the quantity is undefined at the fitted law")
            self.by_factor = False
        variance = float(slope @ fit.model_covariance @ slope)
        self.error = math.sqrt(variance) if variance > 0 else 0.0
        if self.error == 0.0:
            # at a bound the fit gives no width: take a tenth of the largest loss or of the value
            self.error = 0.1 * (abs(self.estimate) or float(problem.rows.loss.max()) * 0.1)
        self.limits = self._limits()
        self.points = [
            _Refit(
                value=self.estimate,
                deviance=0.0,
                success=True,
                parameters=vector,
                scale=fit.scale,
            )
        ]

    def end(self, side: float, threshold: float) -> tuple[float, str]:
        """Where the root of the deviance reaches `threshold` on one side, and what to tell."""
        limit = self.limits[0] if side < 0 else self.limits[1]
        inside, outside = 0.0, math.inf
        found = {0.0: 0.0}
        reach = threshold
        for _ in range(60):
            value = self._at(side * reach)
            bounded = side * (value - limit) >= 0
            point = self._refit(limit if bounded else value)
            root = math.sqrt(max(point.deviance, 0.0)) if point.success else math.inf
            if bounded and root <= threshold:
                return limit, f"ends at the bound {limit:g}"
            found[reach] = root
            if abs(root - threshold) <= CLOSE * threshold:
                return point.value, ""
            if root < threshold:
                inside = max(inside, reach)
            else:
                outside = min(outside, reach)
            if math.isfinite(outside) and outside - inside <= 1e-9 * outside:
                break
            if math.isinf(outside):
                reach = max(1.2, min(3.0, threshold / max(root, 1e-9))) * reach
                if reach > FARTHEST and (self.by_factor or math.isinf(limit)):
                    return side * math.inf, f"open {'below' if side < 0 else 'above'}"
                continue
            # the root is nearly linear: secant within the bracket, halving where that stalls
            one, two = found[inside], found[outside]
            share = (threshold - one) / (two - one) if math.isfinite(two) else 0.5
            reach = inside + (outside - inside) * min(max(share, 1e-3), 1 - 1e-3)
        value = self._at(side * inside)
        return value, f"{'lower' if side < 0 else 'upper'} end not found exactly"

    def _at(self, errors: float) -> float:
        """The value this many standard errors away."""
        if self.by_factor:
            return self.estimate * math.exp(errors * self.error / self.estimate)
        return self.estimate + errors * self.error

    def _limits(self) -> tuple[float, float]:
        if not isinstance(self.quantity, str):
            return -math.inf, math.inf
        frame = self.problem.task.coordinates
        index = frame.family.parameters.index(self.quantity)
        unknown = int(np.argmax(frame.place[index]))
        low, high = self.problem.task.low[unknown], self.problem.task.high[unknown]
        if self.quantity in frame.family.unit_free:
            return float(low), float(high)
        if self.quantity == "E":
            return float(low * frame.level), float(high * frame.level)
        return (0.0 if self.fit.law.family.positive else -math.inf), math.inf

    def _refit(self, value: float) -> _Refit:
        near = min(self.points, key=lambda p: (not p.success, abs(p.value - value)))
        start = replace(
            self.fit,
            law=replace(
                self.fit.law,
                parameters=dict(
                    zip(self.fit.law.family.parameters, near.parameters.tolist(), strict=True)
                ),
            ),
            scale=near.scale,
        )
        task = self._held(value) if isinstance(self.quantity, str) else self._pinned(value)
        lanes = fitted_unknowns(start, task)
        ends = solve.minimize(task, lanes, [math.inf], steps=400)
        bare = replace(task, pin=None)
        with np.errstate(all="ignore"):
            objective = float(solve.derivatives(bare, ends.unknowns, math.inf, curved=False)[0][0])
            parameters, _ = task.coordinates.parameters(
                ends.unknowns[:, : task.coordinates.place.shape[1]]
            )
        got = value
        if not isinstance(self.quantity, str):
            got = float(self._measure(parameters)[0][0])
        deviance = self._deviance(objective)
        if ends.sound[0] and deviance < -LOWER:
            raise FitError(
                "profile: a refit lies below the fit, which was not at its optimum; fit again with "
                f"starts=[{_numbers(start.law.family.parameters, parameters[0])}]"
            )
        reached = isinstance(self.quantity, str) or abs(got - value) <= 0.1 * self.error
        point = _Refit(
            value=got,
            deviance=deviance,
            success=bool(ends.sound[0] and reached and math.isfinite(deviance)),
            parameters=parameters[0],
            scale=float(np.exp(ends.unknowns[0, -1])) if task.scaled_noise else None,
        )
        self.points.append(point)
        return point

    def _deviance(self, objective: float) -> float:
        fit = self.fit
        if isinstance(fit.objective, LeastSquares) and fit.noise is None:
            return fit.degrees_of_freedom * (objective / fit.value - 1)
        return 2 * (objective - fit.value)

    def _held(self, value: float) -> Task:
        """The task with the parameter, and those shared with it, fixed."""
        fit, name = self.fit, str(self.quantity)
        group = next((g for g in fit.restriction.shared if name in g), (name,))
        given = replace(
            fit.restriction,
            fixed=dict(fit.restriction.fixed) | dict.fromkeys(group, value),
            shared=tuple(g for g in fit.restriction.shared if name not in g),
            bounds={k: v for k, v in fit.restriction.bounds.items() if k not in group},
        )
        problem = pose(
            fit.law.family, fit.runs, fit.objective, given, weights=fit.weights, noise=fit.noise
        )
        return problem.task

    def _pinned(self, value: float) -> Task:
        # as stiff against the objective in units of its noise, whatever that is
        unit = (self.fit.scale or 1.0) if isinstance(self.fit.objective, LeastSquares) else 1.0
        pin = Pin(quantity=self._measure, value=value, width=PINNED * self.error / unit)
        return replace(self.problem.task, pin=pin)

    def _measure(self, parameters: Floats) -> tuple[Floats, Floats]:
        """The quantity of parameters (lane, parameter) and its derivatives."""
        names, units = self.fit.law.family.parameters, self.fit.law.units
        quantity = self.quantity
        assert not isinstance(quantity, str)

        def one(vector: Floats) -> float:
            try:
                law = Law(
                    family=self.fit.law.family,
                    parameters=dict(zip(names, vector.tolist(), strict=True)),
                    units=units,
                )
                return float(quantity(law))
            except LeadlineError:
                return math.nan

        slopes = np.empty(parameters.shape)
        for lane, vector in enumerate(parameters):
            for i, at in enumerate(vector):
                step = 1e-5 * abs(at) or 1e-9
                move = step * (np.arange(len(vector)) == i)
                slopes[lane, i] = (one(vector + move) - one(vector - move)) / (2 * step)
        return np.array([one(vector) for vector in parameters]), slopes


def _numbers(names: tuple[str, ...], values: Floats) -> str:
    pairs = [f"{n!r}: {v!r}" for n, v in zip(names, values.tolist(), strict=True)]
    return "{" + ", ".join(pairs) + "}"
