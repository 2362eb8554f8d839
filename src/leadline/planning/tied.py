r"""The best shape for a budget where the sizes hang together: parameters follow from width and
depth, and the cost may be a sum.

With $u$ the logarithms of the free sizes, a separable law is a sum of exponentials of linear
functions, or of powers of such sums where parameters or cost are polynomials in the sizes with
positive coefficients. Its logarithm is convex along each term, and the tokens that the budget
leaves are eliminated, so damped Newton steps from any start find the one minimum; all draws of a
bootstrap move together.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from leadline.claims import Interval
from leadline.costs import PARAMETERS, TRAINING_FLOPS
from leadline.curve import Floats
from leadline.errors import PlanError, nearest
from leadline.laws.families import Law, Separable
from leadline.laws.fit import Fit
from leadline.laws.intervals import converged, percentile_interval

STEP = 1e-3
"""Step of the central differences, in logarithms: their error is 1e-6 of the curvature."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The best width, depth, parameters and tokens for a budget, within a law.

    **Arguments:** `sizes` has width, depth, params and tokens, and what was given; `loss` there;
    `slope`, the largest derivative of the reducible loss by the logarithm of a free size, over the
    reducible loss: zero at an exact optimum; `intervals` of sizes and loss, empty without draws;
    `notes`, what to know before spending the budget.
    """

    law: Law
    budget: float
    cost: str
    parameters: str
    sizes: Mapping[str, float]
    loss: float
    slope: float
    intervals: Mapping[str, Interval]
    notes: tuple[str, ...]


def plan_shape(
    law: Law | Fit,
    budget: float,
    *,
    cost: str = "6ND",
    parameters: str = "non-embedding",
    given: Mapping[str, float] | None = None,
    draws: pl.DataFrame | None = None,
    level: float = 0.95,
) -> Shape:
    """The width, depth and tokens that reach the least loss of `law` at `budget`, the parameters
    being those of that width and depth.

    **Arguments:** `law` is separable in some of width, depth, params and tokens, or the fit that
    made it; `budget` in FLOPs; `cost` names a convention of `costs.TRAINING_FLOPS` in params,
    tokens, width, depth and context; `parameters` one of `costs.PARAMETERS`; `given` has the fixed
    sizes that they need, such as vocabulary and context; `draws` of `bootstrap` give intervals.

    **Raises:** `PlanError` for an impossible budget, an unknown or unfit convention, a missing
    size, a law that another variable enters or that leaves width or depth undetermined, or that
    has no optimum at any finite shape.
    """
    known = law.law if isinstance(law, Fit) else law
    family = known.family
    if not isinstance(family, Separable):
        raise PlanError(f"the law is {family.name}; a shape needs a separable law")
    fixed = dict(given or {})
    problem = _Problem.of(known, budget, cost=cost, parameters=parameters, fixed=fixed)
    if isinstance(law, Fit) and not law.converged:
        raise PlanError("the fit has not converged; a plan from it would mean nothing")
    terms = np.array([[known.parameters[n] for n in (*family.coefficients, *family.exponents)]])
    if not np.all(terms > 0):
        raise PlanError("this law has a coefficient or exponent of 0: it has no optimum")
    place, slope = problem.minimize(terms)
    if not slope[0] < 1e-6:
        raise PlanError(
            "this law has no optimum at a finite width and depth under this cost; fix one of them"
        )
    sizes = {k: float(v[0]) for k, v in problem.sizes(place).items()}
    floor = known.parameters["E"]
    loss = floor + float(problem.reducible(place, terms)[0])
    notes: list[str] = []
    intervals: dict[str, Interval] = {}
    if draws is not None:
        kept = converged(draws)
        drawn = kept.select(*family.coefficients, *family.exponents).to_numpy()
        places, slopes = problem.minimize(drawn, start=place)
        usable = (drawn > 0).all(axis=1) & (slopes < 1e-6)
        if not usable.all():
            notes.append(
                f"{(~usable).sum()} of {kept.height} draws have no optimum; "
                "intervals leave them out"
            )
        if usable.any():
            spread = {k: v[usable] for k, v in problem.sizes(places).items() if k not in fixed}
            reducible = problem.reducible(places, drawn)
            spread["loss"] = (kept["E"].to_numpy() + reducible)[usable]
            centers = sizes | {"loss": loss}
            intervals = {
                name: percentile_interval(v, estimate=centers[name], draws=draws, level=level)
                for name, v in spread.items()
            }
    if isinstance(law, Fit):
        notes += [f"{name} is at its bound" for name in law.at_bound]
        for name in family.variables:
            column = law.runs.column(name).to_numpy()
            factor = max(sizes[name] / column.max(), column.min() / sizes[name])
            if factor > 1:
                notes.append(f"{name}: {sizes[name]:.3g} is {factor:.3g} times outside the data")
    else:
        notes.append("a bare law: the range of its data and the state of its fit are unknown")
    return Shape(
        law=known,
        budget=budget,
        cost=cost,
        parameters=parameters,
        sizes=sizes,
        loss=loss,
        slope=float(slope[0]),
        intervals=intervals,
        notes=tuple(notes),
    )


def losses_at_budget(shape: Shape, width: ArrayLike, depth: ArrayLike) -> Floats:
    """The loss of every `width` and `depth` (which broadcast) that spends the budget of `shape`
    under its law and conventions.
    """
    wide, deep = np.broadcast_arrays(np.asarray(width, float), np.asarray(depth, float))
    chosen = ("width", "depth", "params", "tokens")
    fixed = {name: size for name, size in shape.sizes.items() if name not in chosen}
    problem = _Problem.of(
        shape.law, shape.budget, cost=shape.cost, parameters=shape.parameters, fixed=fixed
    )
    family, values = shape.law.family, shape.law.parameters
    assert isinstance(family, Separable)
    terms = np.array([[values[n] for n in (*family.coefficients, *family.exponents)]])
    place = np.log(np.stack([wide.ravel(), deep.ravel()], axis=1))
    return values["E"] + problem.reducible(place, terms).reshape(wide.shape)


@dataclass(frozen=True, kw_only=True)
class _Problem:
    law: Law
    budget: float
    cost: str
    parameters: str
    fixed: Mapping[str, float]

    @staticmethod
    def of(
        law: Law, budget: float, *, cost: str, parameters: str, fixed: Mapping[str, float]
    ) -> _Problem:
        """The problem, checked."""
        if not (math.isfinite(budget) and budget > 0):
            raise PlanError(f"budget: got {budget}, expected a finite number of FLOPs > 0")
        for what, name, table in (
            ("cost", cost, TRAINING_FLOPS),
            ("parameters", parameters, PARAMETERS),
        ):
            if name not in table:
                known = ", ".join(table)
                raise PlanError(
                    f"{what}: got {name!r}, expected one of {known}{nearest(name, table)}"
                )
            needed = set(inspect.signature(table[name]).parameters)
            free = {"width", "depth", "params", "tokens"}
            if what == "cost" and "tokens" not in needed:
                raise PlanError(f"cost: {name!r} does not count tokens")
            absent = sorted(needed - free - set(fixed))
            if absent:
                raise PlanError(f"{what} {name!r} needs {', '.join(absent)}: name it in given")
        for name, value in fixed.items():
            if not (math.isfinite(value) and value > 0):
                raise PlanError(f"given {name}: got {value}, expected a finite number > 0")
        variables = set(law.family.variables)
        other = sorted(variables - {"width", "depth", "params", "tokens"} - set(fixed))
        if other:
            raise PlanError(f"the law has {', '.join(other)}, which this plan cannot choose")
        for name in ("width", "depth"):
            if name not in variables and name not in fixed:
                raise PlanError(
                    f"the law does not have {name}, so nothing determines it: name it in given"
                )
        return _Problem(law=law, budget=budget, cost=cost, parameters=parameters, fixed=fixed)

    @property
    def free(self) -> list[str]:
        return [name for name in ("width", "depth") if name not in self.fixed]

    def sizes(self, place: Floats) -> dict[str, Floats]:
        """All sizes at the logarithms `place` (lane, free) of the free ones."""
        sizes: dict[str, Floats] = {
            name: np.full(len(place), float(value)) for name, value in self.fixed.items()
        }
        with np.errstate(over="ignore"):
            sizes |= {name: np.exp(place[:, i]) for i, name in enumerate(self.free)}
            sizes["params"] = self._count(PARAMETERS[self.parameters], sizes)
            one = sizes | {"tokens": np.ones(len(place))}
            sizes["tokens"] = self.budget / self._count(TRAINING_FLOPS[self.cost], one)
        return sizes

    @staticmethod
    def _count(convention: object, sizes: Mapping[str, Floats]) -> Floats:
        assert callable(convention)
        names = inspect.signature(convention).parameters
        return np.asarray(convention(**{name: sizes[name] for name in names}), np.float64)

    def reducible(self, place: Floats, terms: Floats) -> Floats:
        """The loss above the floor (lane) under `terms` (lane, coefficients then exponents)."""
        sizes, count = self.sizes(place), len(self.law.family.variables)
        with np.errstate(over="ignore", divide="ignore"):
            logs = np.stack([np.log(sizes[name]) for name in self.law.family.variables], axis=1)
            return (terms[:, :count] * np.exp(-terms[:, count:] * logs)).sum(axis=1)

    def minimize(self, terms: Floats, *, start: Floats | None = None) -> tuple[Floats, Floats]:
        """The logarithms of the best free sizes (lane, free), and the relative slope there (lane).

        Newton steps on the logarithm of the reducible loss, at most one e-fold each, halved until
        they descend.
        """
        lanes, size = len(terms), len(self.free)
        if start is None:
            typical = {"width": math.log(1000.0), "depth": math.log(20.0)}
            start = np.array([[typical[name] for name in self.free]])
        place = np.repeat(start, lanes, axis=0) if len(start) == 1 else start.copy()
        unit = STEP * np.eye(size)

        def value(at: Floats) -> Floats:
            with np.errstate(divide="ignore"):
                return np.log(self.reducible(at, terms))

        slope = np.zeros(lanes)
        for _ in range(60):
            here = value(place)
            ahead = [value(place + h) for h in unit]
            behind = [value(place - h) for h in unit]
            gradient = np.stack(
                [(a - b) / (2 * STEP) for a, b in zip(ahead, behind, strict=True)], 1
            )
            slope = np.abs(gradient).max(axis=1, initial=0.0)
            if size == 0 or np.all(slope < 1e-10):
                break
            hessian = np.empty((lanes, size, size))
            for i in range(size):
                for j in range(i, size):
                    both = (
                        value(place + unit[i] + unit[j])
                        - value(place + unit[i] - unit[j])
                        - value(place - unit[i] + unit[j])
                        + value(place - unit[i] - unit[j])
                    ) / (4 * STEP**2)
                    hessian[:, i, j] = hessian[:, j, i] = both
            values, vectors = np.linalg.eigh(hessian)
            turned = np.einsum("lij,li->lj", vectors, gradient)
            step = -np.einsum("lij,lj->li", vectors, turned / np.maximum(np.abs(values), 1e-6))
            step /= np.maximum(np.abs(step).max(axis=1, keepdims=True), 1.0)
            for _ in range(30):
                rises = value(place + step) > here + 1e-15
                if not rises.any():
                    break
                step[rises] /= 2
            place = place + step
        return place, slope
