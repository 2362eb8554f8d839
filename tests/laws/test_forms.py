"""Families beyond a separable sum: gradients, units, planted laws, ties and restrictions."""

import numpy as np
import polars as pl
import pytest

from leadline.data import bundled
from leadline.errors import FitError
from leadline.laws import (
    CHINCHILLA,
    KAPLAN,
    Huber,
    LeastSquares,
    broken,
    critical_depth,
    custom,
    drop_largest_losses,
    fit,
    power_law,
    read_runs,
    rotated_covariance,
    separable,
    turning,
)
from leadline.runs import Runs, nothing_excluded

KAPLAN_PUBLISHED = [8.8e13, 5.4e13, 0.076, 0.095]
PLANTED = {
    "kaplan": (KAPLAN, KAPLAN_PUBLISHED),
    "broken": (broken("params"), [1.5, 40.0, 0.1, 0.3, 1e8, 0.3]),
    "power": (power_law("params"), [1.5, 400.0, 0.3]),
    "no floor": (power_law("params", floor=False), [40.0, 0.2]),
    "turning": (
        turning(["width", "depth"]),
        [1.0, 30.0, 2.0, 0.02, 0.6, 0.8, 1.5, 0.4],
    ),
    "rotated": (
        rotated_covariance(["width", "depth", "context"]),
        [0.1, 2.0, 1.0, 3.0, 1.3, 0.7],
    ),
}
SPANS = {
    "params": (1e6, 1e10),
    "tokens": (1e8, 1e12),
    "width": (64, 4096),
    "depth": (2, 64),
    "context": (16, 4096),
    "time": (10, 1e5),
}


def table(**columns) -> Runs:
    return Runs(
        frame=pl.DataFrame(columns), units={}, excluded=nothing_excluded(), source="test table"
    )


def grid(variables, points):
    axes = [np.geomspace(*SPANS[v], points) for v in variables]
    return np.array(np.meshgrid(*axes)).reshape(len(variables), -1)


def planted(name, *, points=None, noise=0.0, seed=0):
    family, truth = PLANTED[name]
    count = len(family.variables)
    at = grid(family.variables, points or {1: 40, 2: 8, 3: 6}[count])
    loss = family.value(at, np.array([truth]))[0]
    loss = loss * np.exp(noise * np.random.default_rng(seed).standard_normal(loss.size))
    return family, truth, table(loss=loss, **dict(zip(family.variables, at, strict=True)))


def test_values_are_the_published_formulas():
    n, d = 1e9, 2e10
    nc, dc, an, ad = KAPLAN_PUBLISHED
    wanted = ((nc / n) ** (an / ad) + dc / d) ** ad
    assert KAPLAN.value(np.array([[n], [d]]), np.array([KAPLAN_PUBLISHED]))[0, 0] == pytest.approx(
        wanted, rel=1e-12
    )
    e, b, c0, c1, brk, f = PLANTED["broken"][1]
    x = 3e8
    wanted = e + b * x**-c0 * (1 + (x / brk) ** (1 / f)) ** (-c1 * f)
    got = broken("params").value(np.array([[x]]), np.array([PLANTED["broken"][1]]))
    assert got[0, 0] == pytest.approx(wanted, rel=1e-12)
    e, cw, cd, ct, aw, a, p, q = PLANTED["turning"][1]
    wanted = e + cw * 512**-aw + cd * 20**-a + ct * 20**p * 512**-q
    got = turning(["width", "depth"]).value(
        np.array([[512.0], [20.0]]), np.array([PLANTED["turning"][1]])
    )
    assert got[0, 0] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("nu", "beta"), [(1.3, 0.7), (0.6, 1.5), (2.0, 2.5)])
def test_the_tied_exponents_are_those_of_the_theory(nu, beta):
    family = rotated_covariance()
    assert family.tied({"nu": nu, "beta": beta}) == pytest.approx(
        {
            "time": beta / (2 + beta),
            "width": nu * min(beta, 1),
            "depth": beta,
            "context": nu * min(beta, 2),
        }
    )


@pytest.mark.parametrize("name", PLANTED)
def test_gradients_are_the_differences_of_the_value(name):
    family, truth = PLANTED[name]
    at = grid(family.variables, 3)
    truth = np.array([truth, np.array(truth) * 1.1])
    got = family.gradient(at, truth)
    for i in range(truth.shape[1]):
        step = 1e-6 * truth[:, i]
        move = np.zeros_like(truth)
        move[:, i] = step
        wanted = (family.value(at, truth + move) - family.value(at, truth - move)) / (
            2 * step[:, None]
        )
        scale = np.abs(wanted).max() + 1e-300
        assert got[:, :, i] / scale == pytest.approx(wanted / scale, abs=1e-7)


@pytest.mark.parametrize("name", PLANTED)
def test_scaled_parameters_are_the_same_law_in_other_units(name):
    family, truth = PLANTED[name]
    at = grid(family.variables, 3)
    centers = np.log(at).mean(axis=1)
    raw = np.array([truth])
    scaled = family.scaled(raw, centers, 2.5)
    back, chain = family.raw(scaled, centers, 2.5)
    assert back == pytest.approx(raw, rel=1e-10)
    for i in range(raw.shape[1]):
        move = 1e-6 * (np.arange(raw.shape[1]) == i)
        difference = (
            family.raw(scaled + move, centers, 2.5)[0] - family.raw(scaled - move, centers, 2.5)[0]
        ) / 2e-6
        assert chain[0, :, i] == pytest.approx(difference[0], rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_laws_are_found_exactly(name):
    family, truth, runs = planted(name)
    got = fit(family, runs)
    assert got.converged
    assert got.law.vector == pytest.approx(truth, rel=2e-4)


@pytest.mark.parametrize("name", ["kaplan", "broken", "turning", "rotated"])
def test_standard_errors_hold_the_planted_law(name):
    family, truth, runs = planted(name, noise=0.001)
    got = fit(family, runs, objective=LeastSquares())
    errors = np.array(list(got.model_standard_errors.values()))
    # five standard errors, and five more for the curvature of strongly correlated parameters
    assert (np.abs(got.law.vector - truth) < 10 * errors).all()
    assert got.scale == pytest.approx(0.001, rel=0.5)


def test_units_do_not_change_a_coupled_law():
    family, _, runs = planted("kaplan", noise=0.002)
    one = fit(family, runs).law.parameters
    scaled = runs.frame.with_columns(pl.col("params") / 1e6, pl.col("tokens") / 1e9)
    two = fit(family, table(**scaled.to_dict(as_series=False))).law.parameters
    assert two["alpha_N"] == pytest.approx(one["alpha_N"], rel=1e-6)
    assert two["N_c"] * 1e6 == pytest.approx(one["N_c"], rel=1e-4)
    assert two["D_c"] * 1e9 == pytest.approx(one["D_c"], rel=1e-4)


def test_a_power_law_without_floor_is_a_line_in_logarithms():
    rng = np.random.default_rng(0)
    x = np.geomspace(1e6, 1e10, 30)
    loss = 40 * x**-0.2 * np.exp(0.02 * rng.standard_normal(30))
    got = fit(
        power_law("params", floor=False), table(params=x, loss=loss), objective=LeastSquares()
    )
    slope, intercept = np.polyfit(np.log(x), np.log(loss), 1)
    assert got.law.parameters["a"] == pytest.approx(-slope, rel=1e-8)
    assert got.law.parameters["c"] == pytest.approx(np.exp(intercept), rel=1e-7)


def test_the_loss_turns_at_the_critical_depth():
    family, truth = PLANTED["turning"]
    parameters = dict(zip(family.parameters, truth, strict=True))
    for width in (128.0, 1024.0):
        depths = np.geomspace(1, 1000, 20001)
        at = np.array([np.full_like(depths, width), depths])
        loss = family.value(at, np.array([truth]))[0]
        assert critical_depth(parameters, width) == pytest.approx(depths[loss.argmin()], rel=1e-3)
    # it grows as a power of the width
    ratio = critical_depth(parameters, 1024.0) / critical_depth(parameters, 128.0)
    assert ratio == pytest.approx(8 ** (0.4 / (0.8 + 1.5)), rel=1e-12)
    assert critical_depth(parameters | {"c_turn": 0.0}, 128.0) == np.inf


@pytest.fixture(scope="module")
def epoch() -> Runs:
    return drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), 5)


def test_the_general_minimizer_agrees_with_the_batched_one(epoch):
    # bounds that bind nothing send the fit through the general minimizer
    fast, general = fit(CHINCHILLA, epoch), fit(CHINCHILLA, epoch, bounds={"E": (0.0, 10.0)})
    assert general.value == pytest.approx(fast.value, rel=1e-10)
    assert general.law.vector == pytest.approx(fast.law.vector, rel=1e-4)
    for name, error in fast.standard_errors.items():
        assert general.standard_errors[name] == pytest.approx(error, rel=1e-3)


def test_fixed_shared_and_bounded_parameters(epoch):
    free = fit(CHINCHILLA, epoch)
    held = fit(CHINCHILLA, epoch, fixed={"alpha": 0.34})
    assert held.law.parameters["alpha"] == 0.34
    assert held.standard_errors["alpha"] == 0.0
    assert held.degrees_of_freedom == free.degrees_of_freedom + 1
    assert held.value > free.value
    same = fit(CHINCHILLA, epoch, fixed={"alpha": free.law.parameters["alpha"]})
    assert same.value == pytest.approx(free.value, rel=1e-9)
    assert same.law.vector == pytest.approx(free.law.vector, rel=1e-4)
    coefficient = fit(CHINCHILLA, epoch, fixed={"A": 400.0, "E": 1.8})
    assert coefficient.law.parameters["A"] == 400.0
    assert coefficient.law.parameters["E"] == pytest.approx(1.8, rel=1e-12)
    assert coefficient.converged
    one = fit(CHINCHILLA, epoch, shared=[("alpha", "beta")])
    assert one.law.parameters["alpha"] == one.law.parameters["beta"]
    assert one.standard_errors["alpha"] == pytest.approx(one.standard_errors["beta"])
    # a shared exponent is the best of those fixed to one value
    for off in (-0.003, 0.003):
        value = one.law.parameters["alpha"] + off
        assert fit(CHINCHILLA, epoch, fixed={"alpha": value, "beta": value}).value > one.value
    edge = fit(CHINCHILLA, epoch, bounds={"alpha": (0.0, 0.3)})
    assert edge.law.parameters["alpha"] == pytest.approx(0.3)
    assert edge.at_bound == ("alpha",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fixed": {"alhpa": 0.3}}, "did you mean 'alpha'"),
        ({"fixed": {"alpha": np.nan}}, "expected a finite number"),
        ({"shared": [("A", "B")]}, "A has a unit of its own"),
        ({"shared": [("alpha",)]}, "at least two"),
        ({"fixed": {"alpha": 0.3}, "shared": [("alpha", "beta")]}, "alpha is set twice"),
        ({"bounds": {"A": (0.0, 1.0)}}, "depends on the unit"),
        ({"bounds": {"E": (2.0, 1.0)}}, "low < high"),
        (
            {"fixed": {"E": 1.0, "A": 1.0, "B": 1.0, "alpha": 0.1, "beta": 0.1}},
            "nothing is left to fit",
        ),
    ],
)
def test_impossible_restrictions_are_refused(epoch, arguments, message):
    with pytest.raises(FitError, match=message):
        fit(CHINCHILLA, epoch, **arguments)


def test_a_custom_law_agrees_with_the_same_built_in_one(epoch):
    def function(at, p):
        return p["E"] + p["A"] * at["params"] ** -p["alpha"] + p["B"] * at["tokens"] ** -p["beta"]

    def gradient(at, p):
        one, two = at["params"] ** -p["alpha"], at["tokens"] ** -p["beta"]
        return {
            "E": np.ones_like(one),
            "A": one,
            "B": two,
            "alpha": -p["A"] * one * np.log(at["params"]),
            "beta": -p["B"] * two * np.log(at["tokens"]),
        }

    names, variables = ("E", "A", "B", "alpha", "beta"), ("params", "tokens")
    bounds = {"alpha": (0.05, 2.0), "beta": (0.05, 2.0)}
    wanted = fit(CHINCHILLA, epoch)
    for slope in (None, gradient):
        family = custom(
            function, names, variables, bounds=bounds, gradient=slope, linear=("E", "A", "B")
        )
        got = fit(family, epoch, objective=Huber(delta=1e-3))
        assert got.value == pytest.approx(wanted.value, rel=1e-8)
        assert got.law.vector == pytest.approx(wanted.law.vector, rel=1e-3)


def test_a_function_without_complex_numbers_gets_differences():
    x = np.linspace(0.1, 3, 20)
    family = custom(
        lambda at, p: float(p["a"]) * np.abs(np.asarray(at["x"], float)) ** float(p["b"]),
        ("a", "b"),
        ("x",),
    )
    got = fit(
        family,
        table(x=x, loss=2 * x**1.5),
        objective=LeastSquares(residual="raw"),
        starts=[{"a": 1.0, "b": 1.0}],
    )
    assert got.law.vector == pytest.approx([2.0, 1.5], rel=1e-6)


def test_a_custom_law_says_what_it_lacks():
    x = np.linspace(0.1, 3, 20)
    family = custom(lambda at, p: p["a"] * at["x"] ** p["b"], ("a", "b"), ("x",), linear=("a",))
    with pytest.raises(FitError, match="nowhere to search for b; give finite bounds or starts"):
        fit(family, table(x=x, loss=x))
    short = custom(lambda at, p: np.ones(3), ("a",), ("x",), bounds={"a": (0.0, 1.0)})
    with pytest.raises(FitError, match=r"returned shape \(3,\) for 20 rows"):
        fit(short, table(x=x, loss=x))
    # half of the dependence on b is lost to a complex step
    bent = custom(
        lambda at, p: np.abs(p["b"]) * at["x"] + p["b"] * 2, ("b",), ("x",), bounds={"b": (0.1, 9)}
    )
    with pytest.raises(FitError, match="the complex step of b disagrees with differences"):
        fit(bent, table(x=x, loss=3 * x + 6), objective=LeastSquares(residual="raw"))
    false = custom(
        lambda at, p: p["b"] * at["x"],
        ("b",),
        ("x",),
        bounds={"b": (0.1, 9.0)},
        gradient=lambda at, p: {"b": 1.1 * at["x"]},
    )
    with pytest.raises(FitError, match="the gradient given of b disagrees"):
        fit(false, table(x=x, loss=3 * x), objective=LeastSquares(residual="raw"))
    with pytest.raises(FitError, match="'c' is no parameter"):
        custom(lambda at, p: at["x"], ("a",), ("x",), linear=("c",))


def test_variables_without_a_theory_are_refused():
    with pytest.raises(FitError, match="'params' has no exponent in this theory"):
        rotated_covariance(["params", "width"])
    with pytest.raises(FitError, match="nu needs width or context"):
        rotated_covariance(["time", "depth"])
    with pytest.raises(FitError, match="needs depth and width"):
        turning(["width", "tokens"])


def test_a_true_tie_fits_as_well_as_free_exponents_and_a_false_one_does_not():
    family, _, runs = planted("rotated", noise=0.003)
    free = fit(separable(family.variables), runs, objective=LeastSquares())
    tied = fit(family, runs, objective=LeastSquares())
    # twice the gain in log-likelihood is chi-squared with one degree of freedom
    assert 0 <= free.rows * np.log(tied.value / free.value) < 8
    wrong = runs.frame.with_columns(
        loss=pl.col("loss") + 0.3 * (pl.col("context") ** -0.3 - pl.col("context") ** -0.91)
    )
    wrong_runs = table(**wrong.to_dict(as_series=False))
    free = fit(separable(family.variables), wrong_runs, objective=LeastSquares())
    tied = fit(family, wrong_runs, objective=LeastSquares())
    assert free.rows * np.log(tied.value / free.value) > 30
