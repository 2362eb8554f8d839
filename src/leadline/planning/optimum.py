"""The best split of a budget under a sum of power laws, in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from leadline.claims import Interval
from leadline.costs import TRAINING_FLOPS
from leadline.curve import Floats
from leadline.display import Card, Shown, short
from leadline.errors import PlanError, nearest
from leadline.laws.families import Family, Law, Separable
from leadline.laws.fit import Fit
from leadline.laws.intervals import converged, percentile_interval

MONOMIAL_COSTS: dict[str, tuple[float, dict[str, float]]] = {
    "6ND": (6.0, {"params": 1.0, "tokens": 1.0}),
    "t P^2 N^2 L": (1.0, {"steps": 1.0, "width": 2.0, "depth": 1.0, "context": 2.0}),
}
"""The conventions of `leadline.costs.TRAINING_FLOPS` that are a product of powers: the prefactor
and the power of each quantity."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    r"""The minimum of $\sum_i c_i R_i^{-b_i}$ under $\prod_i R_i^{a_i} = C$.

    **Arguments:** `resources` (..., term) are the $R_i$; `loss` (...) the least sum; `shares`
    (term) the part of the loss that each term keeps, the same at every budget; `growth` (term)
    the exponents in $R_i \propto C^{g_i}$; `decay` the exponent in loss $\propto C^{-d}$.
    """

    resources: Floats
    loss: Floats
    shares: Floats
    growth: Floats
    decay: Floats


def power_law_optimum(
    coefficients: ArrayLike, exponents: ArrayLike, cost_exponents: ArrayLike, budget: ArrayLike
) -> Optimum:
    r"""The sizes $R_i$ that minimize $\sum_i c_i R_i^{-b_i}$ at the cost $\prod_i R_i^{a_i} = C$.

    With $S = \sum_i a_i / b_i$ and
    $\mu = [\prod_i (c_i b_i / a_i)^{a_i/b_i} / C]^{1/S}$ the optimum is
    $R_i = (c_i b_i / (a_i \mu))^{1/b_i} \propto C^{1/(b_i S)}$ and the least loss
    $\mu S \propto C^{-1/S}$; term i keeps the share $(a_i/b_i)/S$.

    **Arguments:** `coefficients`, `exponents`, `cost_exponents` (..., term), all positive, which
    broadcast against each other; `budget` (...) positive, in the unit of the product.

    **Raises:** `PlanError` for a value that is not positive and finite.

    Ref: arXiv:2510.01098, section 4; derived in docs/theory/fitting.md.
    """
    c = _positive("coefficients", coefficients)
    b = _positive("exponents", exponents)
    a = _positive("cost_exponents", cost_exponents)
    total = _positive("budget", budget)
    slope = a / b
    s = slope.sum(axis=-1)
    weight = np.log(c * b / a)
    log_mu = ((slope * weight).sum(axis=-1) - np.log(total)) / s
    resources = np.exp((weight - log_mu[..., None]) / b)
    return Optimum(
        resources=resources,
        loss=np.exp(log_mu) * s,
        shares=slope / s[..., None],
        growth=1 / (b * s[..., None]),
        decay=1 / s,
    )


@dataclass(frozen=True, kw_only=True)
class Plan(Shown):
    r"""The best sizes for a budget, within a law.

    **Arguments:**
    - `budget` in FLOPs under the convention `cost`; `sizes` the best value of each variable.
    - `loss` there, and its `floor` E; `shares` of the reducible loss that each term keeps.
    - `growth`: the exponents in size $\propto$ budget$^g$; `decay` of the reducible loss.
    - `intervals`, empty without draws: of each size ("params"), growth ("params growth"), and
      "loss". They hold within the law; they do not know whether the law does.
    - `reach`: for each variable the best size over the largest in the data (over the smallest where
      it lies below), 1 within them; empty for a bare law.
    - `notes`: what to know before spending the budget.
    """

    law: Law
    budget: float
    cost: str
    sizes: Mapping[str, float]
    loss: float
    floor: float
    shares: Mapping[str, float]
    growth: Mapping[str, float]
    decay: float
    intervals: Mapping[str, Interval]
    reach: Mapping[str, float]
    notes: tuple[str, ...]

    def card(self) -> Card:
        """The best sizes, how they grow, the loss they give, and what to know before spending."""

        def cells(name: str, value: float) -> list[str]:
            found = self.intervals.get(name)
            return [short(value), f"{short(found.low)} to {short(found.high)}" if found else ""]

        rows = [
            [name, *cells(name, size), short(self.growth[name]), f"{self.shares[name]:.0%}"]
            for name, size in self.sizes.items()
        ]
        rows.append(["loss", *cells("loss", self.loss), "", ""])
        told = [
            f"{i.level:.0%} intervals: {i.method}, unit: {i.unit}; they hold within the law"
            for i in list(self.intervals.values())[:1]
        ]
        return Card(
            title=f"best sizes for {short(self.budget)} FLOPs ({self.cost})",
            columns=("quantity", "best", "interval", "growth", "share"),
            rows=rows,
            notes=[
                f"floor {short(self.floor)}; sizes grow like budget^growth, each keeps its share "
                "of the reducible loss",
                *told,
                *self.notes,
            ],
        )


def plan(
    law: Law | Fit,
    budget: float,
    *,
    cost: str = "6ND",
    draws: pl.DataFrame | None = None,
    level: float = 0.95,
) -> Plan:
    """The sizes that reach the least loss of `law` at `budget`.

    **Arguments:** `law`, or the fit that made it, whose status and data range then count;
    `budget` in FLOPs, > 0; `cost` names a convention of `MONOMIAL_COSTS` over exactly the law's
    variables; `draws` of `bootstrap` give intervals at `level`.

    **Raises:** `PlanError` for a budget that is not positive, a convention that does not fit the
    law, a fit that has not converged, or a law with a coefficient or exponent that is not positive:
    such a law has no optimum. `FitError` if too few draws converged.
    """
    fitted = law if isinstance(law, Fit) else None
    known = law.law if isinstance(law, Fit) else law
    family = _separable(known.family)
    prefactor, powers = _cost(cost, family.variables)
    if fitted is not None and not fitted.converged:
        raise PlanError("the fit has not converged; a plan from it would mean nothing")
    for name in (*family.coefficients, *family.exponents):
        if known.parameters[name] <= 0:
            raise PlanError(
                f"{name} is {known.parameters[name]:g}: this law has no optimum; a plan needs "
                "every coefficient and exponent > 0"
            )
    if not (math.isfinite(budget) and budget > 0):
        raise PlanError(f"budget: got {budget}, expected a finite number of FLOPs > 0")
    best = power_law_optimum(
        [known.parameters[name] for name in family.coefficients],
        [known.parameters[name] for name in family.exponents],
        powers,
        budget / prefactor,
    )
    sizes = _named(family.variables, best.resources)
    floor = known.parameters.get("E", 0.0)
    loss = floor + float(best.loss)
    growth = _named(family.variables, best.growth)
    notes: list[str] = []
    spread: dict[str, Interval] = {}
    if draws is not None:
        spread, notes = _spread(
            known, powers, budget / prefactor, draws, level, sizes | {"loss": loss}, growth
        )
    reach = {} if fitted is None else {name: _reach(fitted, name, sizes[name]) for name in sizes}
    if fitted is None:
        notes.append("a bare law: the range of its data and the state of its fit are unknown")
    else:
        notes += [
            f"{name}: {sizes[name]:.3g} lies a factor {factor:.3g} outside the data"
            for name, factor in reach.items()
            if factor > 1
        ]
        notes += [f"{name} is at its bound" for name in fitted.at_bound]
        if fitted.status == "ill-conditioned":
            notes.append("the data hardly tell the parameters apart (ill-conditioned)")
    return Plan(
        law=known,
        budget=budget,
        cost=cost,
        sizes=sizes,
        loss=loss,
        floor=floor,
        shares=_named(family.variables, best.shares),
        growth=growth,
        decay=float(best.decay),
        intervals=spread,
        reach=reach,
        notes=tuple(notes),
    )


def _separable(family: Family) -> Separable:
    """`family`, if the closed optimum holds for it."""
    if not isinstance(family, Separable):
        raise PlanError(
            f"the law {family.name} has no optimum in closed form; a plan needs a separable law"
        )
    return family


def _cost(cost: str, variables: tuple[str, ...]) -> tuple[float, list[float]]:
    """Prefactor and the power of each of `variables` under a cost convention."""
    if cost not in MONOMIAL_COSTS:
        known = "is no product of powers" if cost in TRAINING_FLOPS else "is unknown"
        raise PlanError(
            f"cost: {cost!r} {known}; expected one of {', '.join(MONOMIAL_COSTS)}"
            f"{nearest(cost, MONOMIAL_COSTS)}"
        )
    prefactor, powers = MONOMIAL_COSTS[cost]
    if sorted(powers) != sorted(variables):
        raise PlanError(
            f"cost {cost!r} counts {', '.join(powers)}; the law has {', '.join(variables)}"
        )
    return prefactor, [powers[name] for name in variables]


def _spread(
    law: Law,
    powers: list[float],
    budget: float,
    draws: pl.DataFrame,
    level: float,
    estimates: Mapping[str, float],
    growth: Mapping[str, float],
) -> tuple[dict[str, Interval], list[str]]:
    """The intervals of sizes, loss and growth from bootstrap draws, and what they leave out."""
    family = _separable(law.family)
    kept = converged(draws)
    terms = kept.select(*family.coefficients, *family.exponents).to_numpy()
    valid = (terms > 0).all(axis=1)
    count = len(family.variables)
    notes: list[str] = []
    if not valid.all():
        notes.append(
            f"{(~valid).sum()} of {kept.height} draws have no optimum (a term vanished); intervals "
            "leave them out"
        )
    if not valid.any():
        return {}, notes
    best = power_law_optimum(terms[valid, :count], terms[valid, count:], powers, budget)
    values = {name: best.resources[:, i] for i, name in enumerate(family.variables)}
    floors = kept["E"].to_numpy()[valid] if family.floor else 0.0
    values["loss"] = floors + best.loss
    values |= {f"{name} growth": best.growth[:, i] for i, name in enumerate(family.variables)}
    centers = dict(estimates) | {f"{name} growth": g for name, g in growth.items()}
    found = {
        name: percentile_interval(v, estimate=centers[name], draws=draws, level=level)
        for name, v in values.items()
    }
    return found, notes


def _reach(fit: Fit, name: str, size: float) -> float:
    """How many times `size` lies beyond the data of the fit; 1 within."""
    column = fit.runs.column(name).to_numpy()
    with np.errstate(over="ignore", divide="ignore"):
        return float(max(1.0, np.float64(size) / column.max(), column.min() / np.float64(size)))


def _named(names: tuple[str, ...], values: Floats) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def _positive(name: str, value: ArrayLike) -> Floats:
    array = np.asarray(value, np.float64)
    if not np.all((array > 0) & np.isfinite(array)):
        worst = array[~((array > 0) & np.isfinite(array))].flat[0]
        raise PlanError(f"{name}: got {worst:g}, expected finite numbers > 0")
    return array
