"""The closed optimum against the reference, brute force and published exponents."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.data import bundled
from leadline.errors import FitError, PlanError
from leadline.laws import (
    CHINCHILLA,
    Law,
    bootstrap,
    drop_largest_losses,
    fit,
    read_runs,
    separable,
)
from leadline.planning import plan, power_law_optimum
from leadline.runs import Runs, nothing_excluded

REFERENCE = Path(__file__).parents[1] / "reference"
HOFFMANN = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}
LAW = Law(family=CHINCHILLA, parameters=HOFFMANN, units={})


@pytest.fixture(scope="module")
def fitted():
    return fit(CHINCHILLA, drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), 5))


@pytest.fixture(scope="module")
def draws(fitted):
    return bootstrap(fitted, draws=400)


def test_the_four_resources_of_the_reference():
    wanted = json.loads((REFERENCE / "bordelon2025.json").read_text())["opt"]
    nu, beta = wanted["nu"], wanted["beta"]
    exponents = [beta / (2 + beta), nu * beta, beta, nu * beta]
    got = power_law_optimum(wanted["c"], exponents, [1, 2, 1, 2], wanted["C"])
    assert got.resources == pytest.approx(np.array(wanted["R"]), rel=1e-12)
    s = 3 + beta + 4 / nu
    growth = [(2 + beta) / s, 1 / (nu * (3 + beta) + 4), 1 / s, 1 / (nu * (3 + beta) + 4)]
    assert got.growth == pytest.approx(growth, rel=1e-12)
    assert got.decay == pytest.approx(beta / s, rel=1e-12)


positive = st.floats(0.05, 3.0)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0.01, 100), positive, positive), min_size=2, max_size=4),
    st.floats(0.1, 1e6),
)
def test_no_neighbor_on_the_budget_is_better(terms, budget):
    c, b, a = (np.array(x) for x in zip(*terms, strict=True))
    got = power_law_optimum(c, b, a, budget)
    logs = np.log(got.resources)
    assert logs @ a == pytest.approx(np.log(budget), abs=1e-8)
    assert (c * got.resources**-b).sum() == pytest.approx(got.loss, rel=1e-9)
    assert got.shares == pytest.approx(c * got.resources**-b / got.loss, rel=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(30):
        move = rng.standard_normal(len(terms)) * 0.3
        move -= a * (move @ a) / (a @ a)
        assert (c * np.exp(-b * (logs + move))).sum() >= got.loss * (1 - 1e-12)


def test_growth_and_decay_are_the_slopes_in_the_budget():
    c, b, a = [2.0, 5.0, 1.0], [0.3, 0.5, 1.2], [1.0, 2.0, 1.0]
    budgets = np.array([1e9, 1e10])
    got = power_law_optimum(c, b, a, budgets)
    assert np.log10(got.resources[1] / got.resources[0]) == pytest.approx(got.growth, rel=1e-12)
    assert np.log10(got.loss[0] / got.loss[1]) == pytest.approx(got.decay, rel=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("where", range(4))
def test_values_that_are_not_positive_are_refused(bad, where):
    arguments = [[1.0, 2.0], [0.3, 0.4], [1.0, 1.0], 100.0]
    arguments[where] = bad if where == 3 else [1.0, bad]
    names = ["coefficients", "exponents", "cost_exponents", "budget"]
    with pytest.raises(PlanError, match=f"^{names[where]}: got"):
        power_law_optimum(*arguments)


def test_a_plan_is_the_best_of_all_splits_of_its_budget():
    budget = 5.76e23
    got = plan(LAW, budget)
    params = np.geomspace(1e9, 1e12, 300_001)
    losses = 1.69 + 406.4 * params**-0.34 + 410.7 * (budget / 6 / params) ** -0.28
    assert got.sizes["params"] == pytest.approx(params[losses.argmin()], rel=1e-4)
    assert got.loss == pytest.approx(losses.min(), rel=1e-10)
    assert 6 * got.sizes["params"] * got.sizes["tokens"] == pytest.approx(budget, rel=1e-12)
    assert got.growth["params"] == pytest.approx(0.28 / (0.34 + 0.28), rel=1e-12)
    assert got.decay == pytest.approx(0.34 * 0.28 / (0.34 + 0.28), rel=1e-12)
    assert sum(got.shares.values()) == pytest.approx(1.0)
    assert got.floor == 1.69
    assert got.reach == {}
    assert "bare law" in got.notes[0]


def test_the_growth_of_the_epoch_fit_and_its_interval(fitted, draws):
    wanted = json.loads((REFERENCE / "laws.json").read_text())["chinchilla_epoch_drop5_log_huber"]
    low, high = wanted["boot400_95"]["a"]
    got = plan(fitted, 5.76e23, draws=draws)
    p = fitted.law.parameters
    growth = got.intervals["params growth"]
    assert growth.estimate == pytest.approx(p["beta"] / (p["alpha"] + p["beta"]), rel=1e-12)
    assert growth.low == pytest.approx(low, abs=0.15 * (high - low))
    assert growth.high == pytest.approx(high, abs=0.15 * (high - low))
    assert got.intervals["params"].contains(got.sizes["params"])
    assert got.intervals["tokens"].contains(got.sizes["tokens"])
    assert got.intervals["loss"].contains(got.loss)
    assert got.intervals["loss"].level == 0.95


def test_a_plan_beyond_the_data_says_how_far(fitted):
    inside, beyond = plan(fitted, 1e20), plan(fitted, 1e26)
    assert set(inside.reach.values()) == {1.0}
    assert inside.notes == ()
    largest = fitted.runs.frame["params"].max()
    assert beyond.reach["params"] == pytest.approx(beyond.sizes["params"] / largest)
    assert any("outside the data" in note for note in beyond.notes)
    smallest = fitted.runs.frame["params"].min()
    below = plan(fitted, 1e14)
    assert below.reach["params"] == pytest.approx(smallest / below.sizes["params"])


def test_draws_whose_term_vanished_are_left_out_and_noted(fitted, draws):
    spoiled = draws.with_columns(B=pl.when(pl.col("draw") < 3).then(0.0).otherwise(pl.col("B")))
    got = plan(fitted, 1e22, draws=spoiled)
    assert any(note.startswith("3 of 400 draws have no optimum") for note in got.notes)
    assert got.intervals["params"].method.endswith("397 draws, 3 left out")


@pytest.mark.parametrize("budget", [0.0, -1e20, np.nan, np.inf])
def test_a_budget_must_be_positive(budget):
    with pytest.raises(PlanError, match="budget: got"):
        plan(LAW, budget)


@pytest.mark.parametrize("name", ["A", "B", "alpha", "beta"])
@pytest.mark.parametrize("value", [0.0, -0.1])
def test_a_law_without_optimum_is_refused(name, value):
    law = Law(family=CHINCHILLA, parameters=HOFFMANN | {name: value}, units={})
    with pytest.raises(PlanError, match=f"{name} is .*no optimum"):
        plan(law, 1e22)


def test_a_cost_that_does_not_fit_is_refused():
    with pytest.raises(PlanError, match=r"'6DN' is unknown.*did you mean '6ND'"):
        plan(LAW, 1e22, cost="6DN")
    with pytest.raises(PlanError, match="is no product of powers"):
        plan(LAW, 1e22, cost="6ND + attention")
    with pytest.raises(PlanError, match="counts steps, width, depth, context; the law has params"):
        plan(LAW, 1e22, cost="t P^2 N^2 L")


def test_a_law_in_shape_is_planned_under_the_cost_of_in_context_regression():
    family = separable(["depth", "width", "context", "steps"])
    values = [0.0, 0.9, 1.3, 0.5, 0.7, 0.8, 1.0, 1.0, 2 / 7]
    law = Law(family=family, parameters=dict(zip(family.parameters, values, strict=True)), units={})
    got = plan(law, 1e9, cost="t P^2 N^2 L").sizes
    cost = got["steps"] * got["context"] ** 2 * got["width"] ** 2 * got["depth"]
    assert cost == pytest.approx(1e9, rel=1e-12)
    reference = json.loads((REFERENCE / "bordelon2025.json").read_text())["opt"]["R"][1]
    named = dict(zip(("steps", "width", "depth", "context"), reference, strict=True))
    assert got == pytest.approx(named, rel=1e-9)


def test_a_fit_at_its_floor_is_planned_with_a_note():
    n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 6), np.geomspace(1e9, 1e12, 6)))
    frame = pl.DataFrame({"params": n, "tokens": d, "loss": -0.3 + 20 * n**-0.1 + 30 * d**-0.1})
    runs = Runs(frame=frame, units={}, excluded=nothing_excluded(), source="test")
    got = plan(fit(CHINCHILLA, runs), 1e20)
    assert "E is at its bound" in got.notes


def test_too_few_draws_are_refused(fitted, draws):
    with pytest.raises(FitError, match="an interval needs 20"):
        plan(fitted, 1e22, draws=draws.head(4))


def test_a_law_without_a_closed_optimum_is_refused():
    from leadline.laws import KAPLAN

    parameters = {"N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": 0.076, "alpha_D": 0.095}
    law = Law(family=KAPLAN, parameters=parameters, units={})
    with pytest.raises(PlanError, match="the law kaplan has no optimum in closed form"):
        plan(law, 1e21)
