"""The bundled tables fitted by each protocol; every fit is made once a process."""

from __future__ import annotations

import dataclasses
from functools import cache

import polars as pl

from leadline.data import bundled
from leadline.laws import (
    CHINCHILLA,
    Fit,
    Huber,
    StudentT,
    drop_largest_losses,
    fit,
    profile,
    read_runs,
    separable,
)
from leadline.laws.identify import objective_value
from leadline.laws.objectives import AsymmetricAbsolute
from leadline.laws.profiles import Profile
from leadline.papers.runs.published import GEMSTONES_EXPONENTS, KYOTAKANO
from leadline.planning.tied import Shape, plan_shape
from leadline.runs import Runs

DRAWS = 1000
SHAPE_BUDGETS = (1e18, 1e19, 1e20, 1e21)
DROPPED = 5
"""Points that Besiroglu et al. leave out: the largest losses."""
LARGEST_BUDGET = 1e21
"""FLOPs above which ml-scalefit's example leaves points out."""
GEMSTONES_DELTA = {2: 1e-3, 4: 1e-4}
GEMSTONES_FAMILIES = {
    2: separable(["params", "tokens"]),
    4: separable(["width", "depth", "params", "tokens"]),
}


@cache
def epoch(dropped: int = DROPPED) -> Runs:
    """The points read off the Chinchilla figure, without the largest losses."""
    return drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), dropped)


@cache
def chinchilla(dropped: int = DROPPED) -> Fit:
    """Our fit of these points: log-Huber, delta 1e-3, summed."""
    return fit(CHINCHILLA, epoch(dropped))


@cache
def scalefit(residual: str) -> Fit:
    """The protocol of ml-scalefit's example: budgets below 1e21, Huber of raw losses in nats; with
    "log" the same points by ours.
    """
    runs = epoch()
    small = dataclasses.replace(runs, frame=runs.frame.filter(pl.col("flops") < LARGEST_BUDGET))
    return fit(CHINCHILLA, small, objective=Huber(residual="raw" if residual == "raw" else "log"))


@cache
def takano() -> tuple[Fit, float]:
    """The points of the package chinchilla by its own objective, and by how much the law of its
    README exceeds that optimum.
    """
    fitted = fit(
        CHINCHILLA,
        read_runs(bundled("chinchilla_kyotakano.csv")),
        objective=AsymmetricAbsolute(over=10.0),
    )
    return fitted, objective_value(KYOTAKANO, fitted) / fitted.value


@cache
def gemstones(terms: int) -> tuple[Fit, Fit]:
    """The Gemstones at the optimum, and at the published exponents with the best floor and
    coefficients.
    """
    runs = read_runs(bundled("gemstones_hot.jsonl"))
    family, objective = GEMSTONES_FAMILIES[terms], Huber(delta=GEMSTONES_DELTA[terms])
    free = fit(family, runs, objective=objective)
    held = fit(family, runs, objective=objective, fixed=GEMSTONES_EXPONENTS[terms])
    return free, held


@cache
def profiles() -> dict[str, Profile]:
    """The likelihood along floor and exponents of the Chinchilla law, under Student's t noise."""
    fitted = fit(CHINCHILLA, epoch(), objective=StudentT())
    return {name: profile(fitted, name) for name in ("E", "alpha", "beta")}


@cache
def shapes() -> tuple[Fit, tuple[Shape, ...]]:
    """The Gemstones in width, depth and tokens, and the best shapes for budgets around theirs."""
    runs = read_runs(bundled("gemstones_hot.jsonl"))
    fitted = fit(separable(["width", "depth", "tokens"]), runs, objective=Huber(delta=1e-3))
    return fitted, tuple(plan_shape(fitted, budget) for budget in SHAPE_BUDGETS)
