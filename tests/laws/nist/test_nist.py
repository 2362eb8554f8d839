"""The 27 nonlinear problems of NIST's Statistical Reference Datasets, from both of their starts.

strd.json holds the data and the certified values (NIST/ITL StRD, public domain); the models are
written here from the formulas that NIST states. `LINEAR` names the parameters in which a model is
linear, counted from 0.
"""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from leadline.laws import LeastSquares, custom, fit
from leadline.runs import Runs, nothing_excluded

PROBLEMS = {
    p["name"]: p for p in json.loads((Path(__file__).parent / "strd.json").read_text())["problems"]
}
exp = np.exp


def gauss(x, b):
    return (
        b[0] * exp(-b[1] * x)
        + b[2] * exp(-((x - b[3]) ** 2) / b[4] ** 2)
        + b[5] * exp(-((x - b[6]) ** 2) / b[7] ** 2)
    )


def lanczos(x, b):
    return b[0] * exp(-b[1] * x) + b[2] * exp(-b[3] * x) + b[4] * exp(-b[5] * x)


def chwirut(x, b):
    return exp(-b[0] * x) / (b[1] + b[2] * x)


def cubic_ratio(x, b):
    return (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3) / (
        1 + b[4] * x + b[5] * x**2 + b[6] * x**3
    )


def enso(x, b):
    turn = 2 * np.pi * x
    return (
        b[0]
        + b[1] * np.cos(turn / 12)
        + b[2] * np.sin(turn / 12)
        + b[4] * np.cos(turn / b[3])
        + b[5] * np.sin(turn / b[3])
        + b[7] * np.cos(turn / b[6])
        + b[8] * np.sin(turn / b[6])
    )


MODELS = {
    "Bennett5": lambda x, b: b[0] * (b[1] + x) ** (-1 / b[2]),
    "BoxBOD": lambda x, b: b[0] * (1 - exp(-b[1] * x)),
    "Chwirut1": chwirut,
    "Chwirut2": chwirut,
    "DanWood": lambda x, b: b[0] * x ** b[1],
    "Eckerle4": lambda x, b: b[0] / b[1] * exp(-0.5 * ((x - b[2]) / b[1]) ** 2),
    "ENSO": enso,
    "Gauss1": gauss,
    "Gauss2": gauss,
    "Gauss3": gauss,
    "Hahn1": cubic_ratio,
    "Kirby2": lambda x, b: (b[0] + b[1] * x + b[2] * x**2) / (1 + b[3] * x + b[4] * x**2),
    "Lanczos1": lanczos,
    "Lanczos2": lanczos,
    "Lanczos3": lanczos,
    "MGH09": lambda x, b: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]),
    "MGH10": lambda x, b: b[0] * exp(b[1] / (x + b[2])),
    "MGH17": lambda x, b: b[0] + b[1] * exp(-x * b[3]) + b[2] * exp(-x * b[4]),
    "Misra1a": lambda x, b: b[0] * (1 - exp(-b[1] * x)),
    "Misra1b": lambda x, b: b[0] * (1 - (1 + b[1] * x / 2) ** -2),
    "Misra1c": lambda x, b: b[0] * (1 - (1 + 2 * b[1] * x) ** -0.5),
    "Misra1d": lambda x, b: b[0] * b[1] * x / (1 + b[1] * x),
    "Rat42": lambda x, b: b[0] / (1 + exp(b[1] - b[2] * x)),
    "Rat43": lambda x, b: b[0] / (1 + exp(b[1] - b[2] * x)) ** (1 / b[3]),
    "Roszman1": lambda x, b: b[0] - b[1] * x - np.arctan(b[2] / (x - b[3])) / np.pi,
    "Thurber": cubic_ratio,
}
LINEAR = {
    "Bennett5": (0,),
    "BoxBOD": (0,),
    "DanWood": (0,),
    "Eckerle4": (0,),
    "ENSO": (0, 1, 2, 4, 5, 7, 8),
    "Gauss1": (0, 2, 5),
    "Gauss2": (0, 2, 5),
    "Gauss3": (0, 2, 5),
    "Hahn1": (0, 1, 2, 3),
    "Kirby2": (0, 1, 2),
    "Lanczos1": (0, 2, 4),
    "Lanczos2": (0, 2, 4),
    "Lanczos3": (0, 2, 4),
    "MGH09": (0,),
    "MGH10": (0,),
    "MGH17": (0, 1, 2),
    "Misra1a": (0,),
    "Misra1b": (0,),
    "Misra1c": (0,),
    "Misra1d": (0,),
    "Nelson": (0, 1),
    "Rat42": (0,),
    "Rat43": (0,),
    "Roszman1": (0, 1),
    "Thurber": (0, 1, 2, 3),
}


def nelson(x1, x2, b):
    return b[0] - b[1] * x1 * exp(-b[2] * x2)


def pose(name):
    problem = PROBLEMS[name]
    names = [f"b{i + 1}" for i in range(len(problem["values"]))]
    columns = {f"x{i + 1}": x for i, x in enumerate(problem["x"])}
    loss = np.array(problem["y"])
    if name == "Nelson":
        # the model is one of log y
        loss = np.log(loss)

    def function(at, parameters):
        b = [parameters[n] for n in names]
        return nelson(at["x1"], at["x2"], b) if name == "Nelson" else MODELS[name](at["x1"], b)

    family = custom(
        function, names, list(columns), name=name, linear=[names[i] for i in LINEAR.get(name, ())]
    )
    frame = pl.DataFrame({"loss": loss, **columns})
    return family, Runs(frame=frame, units={}, excluded=nothing_excluded(), source=name)


def test_all_problems_are_here():
    assert len(PROBLEMS) == 27
    assert set(PROBLEMS) == {*MODELS, "Nelson"}


@pytest.mark.parametrize("start", ["start1", "start2"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_certified_values_and_standard_errors(name, start):
    problem = PROBLEMS[name]
    family, runs = pose(name)
    first = dict(zip(family.parameters, problem[start], strict=True))
    got = fit(family, runs, objective=LeastSquares(residual="raw"), starts=[first])
    assert got.status == "ok"
    assert got.law.vector == pytest.approx(problem["values"], rel=1e-6)
    errors = list(got.model_standard_errors.values())
    if name == "Lanczos1":
        # residuals of 8e-14 beside losses of 1 keep three digits in double precision, and so do
        # the standard errors, which are proportional to them; the parameters keep ten
        assert got.law.vector == pytest.approx(problem["values"], rel=1e-9)
        assert errors == pytest.approx(problem["errors"], rel=3e-3)
        assert 2 * got.value == pytest.approx(problem["rss"], rel=5e-3)
    else:
        assert errors == pytest.approx(problem["errors"], rel=1e-6)
        assert 2 * got.value == pytest.approx(problem["rss"], rel=1e-9)
        assert got.scale == pytest.approx(problem["sigma"], rel=1e-6)
