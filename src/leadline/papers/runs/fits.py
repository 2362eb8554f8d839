"""The bundled tables fitted by each protocol; every fit is made once a process."""

from __future__ import annotations

import dataclasses
from functools import cache

import polars as pl

from leadline.curve import Floats
from leadline.data import bundled
from leadline.laws import (
    CHINCHILLA,
    Fit,
    Huber,
    Law,
    drop_largest_losses,
    fit,
    read_runs,
    separable,
)
from leadline.laws.identify import objective_value
from leadline.laws.objectives import AsymmetricAbsolute
from leadline.papers.runs.published import GEMSTONES_EXPONENTS, KYOTAKANO
from leadline.runs import Runs

DRAWS = 1000
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


def isolated(fitted: Fit, name: str) -> tuple[Floats, Floats]:
    """A variable, and the loss less the floor and every other term of the law: its term alone."""
    law, frame = fitted.law, fitted.runs.frame
    x = frame[name].to_numpy()
    return x, frame["loss"].to_numpy() - law.loss(frame) + term(law, name, x)


def term(law: Law, name: str, x: Floats) -> Floats:
    """The term of one variable of a separable law, at values `x` of it."""
    i, count = law.family.variables.index(name), len(law.family.variables)
    coefficient, exponent = (
        law.parameters[law.family.parameters[k]] for k in (1 + i, 1 + count + i)
    )
    return coefficient * x**-exponent
