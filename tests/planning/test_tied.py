"""Shapes whose sizes hang together, against closed forms, brute force and SciPy."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from leadline.errors import PlanError
from leadline.laws.families import Law, separable
from leadline.planning.optimum import power_law_optimum
from leadline.planning.tied import plan_shape


def law(variables=("width", "depth", "tokens"), **values):
    base = {"E": 1.5, "c_width": 12.0, "c_depth": 3.0, "c_tokens": 4e4, "c_params": 300.0}
    base |= {"a_width": 0.4, "a_depth": 0.6, "a_tokens": 0.5, "a_params": 0.3}
    family = separable(variables)
    parameters = {name: values.get(name, base[name]) for name in family.parameters}
    return Law(family=family, parameters=parameters, units={})


def test_a_product_cost_has_the_closed_optimum():
    """6 N D with N = 12 depth width^2 is the product 72 width^2 depth tokens."""
    shape = plan_shape(law(), 1e21)
    best = power_law_optimum([12.0, 3.0, 4e4], [0.4, 0.6, 0.5], [2, 1, 1], 1e21 / 72)
    for name, expected in zip(("width", "depth", "tokens"), best.resources, strict=True):
        assert shape.sizes[name] == pytest.approx(expected, rel=1e-6)
    params = 12 * shape.sizes["depth"] * shape.sizes["width"] ** 2
    assert shape.sizes["params"] == pytest.approx(params, rel=1e-14)
    assert shape.loss == pytest.approx(1.5 + best.loss, rel=1e-12)
    assert shape.slope < 1e-10


@pytest.mark.parametrize("cost", ["6ND", "6ND + attention"])
def test_tied_parameters_and_a_sum_as_cost_against_scipy(cost):
    """width, depth, params and tokens in one law, params = 12 depth width^2 + 50,000 width."""
    bound = law(("width", "depth", "params", "tokens"))
    fixed = {"vocabulary": 5e4, "context": 4096.0}
    shape = plan_shape(bound, 3e20, cost=cost, parameters="tied embedding", given=fixed)

    def loss(logs):
        width, depth = np.exp(logs)
        params = 12 * depth * width**2 + 5e4 * width
        a_token = 6 * params + (12 * depth * width * 4096 if "attention" in cost else 0)
        tokens = 3e20 / a_token
        return 12 * width**-0.4 + 3 * depth**-0.6 + 300 * params**-0.3 + 4e4 * tokens**-0.5

    best = min(
        (
            minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-15})
            for start in ([5.0, 1.0], [8.0, 4.0])
        ),
        key=lambda found: found.fun,
    )
    assert shape.loss - 1.5 == pytest.approx(best.fun, rel=1e-12)
    np.testing.assert_allclose(
        [shape.sizes["width"], shape.sizes["depth"]], np.exp(best.x), rtol=1e-5
    )
    spent = 6 * shape.sizes["params"] * shape.sizes["tokens"]
    if "attention" in cost:
        spent += 12 * shape.sizes["depth"] * shape.sizes["width"] * 4096 * shape.sizes["tokens"]
    assert spent == pytest.approx(3e20, rel=1e-12)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    exponents=st.lists(st.floats(0.1, 1.5), min_size=3, max_size=3),
    budget=st.floats(16, 26),
    direction=st.floats(0, 2 * math.pi),
)
def test_no_neighbor_is_better(exponents, budget, direction):
    names = ("a_width", "a_depth", "a_tokens")
    bound = law(**dict(zip(names, exponents, strict=True)))
    shape = plan_shape(bound, 10**budget, cost="6ND + attention", given={"context": 1024.0})
    for size in (0.01, 0.3):
        width = shape.sizes["width"] * math.exp(size * math.cos(direction))
        depth = shape.sizes["depth"] * math.exp(size * math.sin(direction))
        tokens = 10**budget / (72 * depth * width**2 + 12 * depth * width * 1024)
        there = float(bound.loss({"width": width, "depth": depth, "tokens": tokens}))
        assert there >= shape.loss * (1 - 1e-12)


def test_given_sizes_stay_and_draws_give_intervals():
    bound = law()
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"draw": range(200), "unit": ["run"] * 200}
        | {
            name: value * np.exp(0.02 * rng.normal(size=200))
            for name, value in bound.parameters.items()
        }
        | {"status": ["ok"] * 200}
    )
    shape = plan_shape(bound, 1e21, given={"depth": 24.0}, draws=frame)
    assert shape.sizes["depth"] == 24.0
    assert set(shape.intervals) == {"width", "params", "tokens", "loss"}
    for row in (0, 17):
        drawn = law(**{name: frame[name][row] for name in bound.parameters})
        width = plan_shape(drawn, 1e21, given={"depth": 24.0}).sizes["width"]
        interval = shape.intervals["width"]
        assert interval.low * 0.8 < width < interval.high * 1.2
    assert shape.intervals["width"].contains(shape.sizes["width"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0.0}, "budget: got 0.0"),
        ({"budget": math.nan}, "budget: got nan"),
        ({"cost": "6N"}, "did you mean '6ND'"),
        ({"cost": "t P^2 N^2 L"}, "does not count tokens"),
        ({"cost": "6ND + attention"}, "needs context"),
        ({"parameters": "tied embedding"}, "needs vocabulary"),
        ({"parameters": "embedding"}, "parameters: got 'embedding'"),
        ({"given": {"width": -1.0}}, "given width: got -1.0"),
        ({"law": law(("width", "tokens"))}, "does not have depth"),
        ({"law": law(c_width=0.0)}, "no optimum"),
        ({"law": law(("width", "depth"))}, "no optimum at a finite"),
    ],
)
def test_mistakes(arguments, message):
    asked = {"law": law(), "budget": 1e20} | arguments
    with pytest.raises(PlanError, match=message.replace("+", r"\+").replace("^", r"\^")):
        plan_shape(asked.pop("law"), asked.pop("budget"), **asked)
