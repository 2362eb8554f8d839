"""The bundled tables fitted by each protocol; every fit is made once a process."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import polars as pl

from leadline.data import bundled
from leadline.laws import CHINCHILLA, Fit, Huber, drop_largest_losses, fit, read_runs, separable
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
    """The runs of the package chinchilla by its own objective, and by how much the law of its
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
def published_gemstones_optimum() -> Fit:
    """Where the descent from the published four exponents ends when each of them may move by a
    tenth only: a local optimum.
    """
    _, held = gemstones(4)
    near = {name: (0.9 * a, 1.1 * a) for name, a in GEMSTONES_EXPONENTS[4].items()}
    return fit(
        GEMSTONES_FAMILIES[4],
        held.runs,
        objective=held.objective,
        bounds=near,
        starts=[dict(held.law.parameters)],
    )


def isolated(fitted: Fit, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A variable, and the loss less the floor and every other term of the law: its term alone."""
    law, frame = fitted.law, fitted.runs.frame
    x = frame[name].to_numpy()
    i = law.family.variables.index(name)
    family = law.family
    coefficient, exponent = (
        family.parameters[1 + i],
        family.parameters[1 + len(family.variables) + i],
    )
    term = law.parameters[coefficient] * x ** -law.parameters[exponent]
    return x, frame["loss"].to_numpy() - law.loss(frame) + term
