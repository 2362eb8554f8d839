"""Profile intervals against iminuit's MINOS, exact linear theory, and their own definition."""

import numpy as np
import polars as pl
import pytest
from iminuit import Minuit
from scipy.stats import t as student

from leadline.data import bundled
from leadline.errors import FitError
from leadline.laws import (
    CHINCHILLA,
    AsymmetricAbsolute,
    Huber,
    LeastSquares,
    StudentT,
    custom,
    drop_largest_losses,
    fit,
    power_law,
    profile,
    read_runs,
)
from leadline.planning.optimum import plan
from leadline.runs import Runs, nothing_excluded


def table(**columns) -> Runs:
    return Runs(
        frame=pl.DataFrame(columns), units={}, excluded=nothing_excluded(), source="test table"
    )


@pytest.fixture(scope="module")
def epoch() -> Runs:
    return drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), 5)


@pytest.fixture(scope="module")
def gaussian(epoch):
    return fit(CHINCHILLA, epoch, objective=LeastSquares())


@pytest.fixture(scope="module")
def heavy(epoch):
    return fit(CHINCHILLA, epoch, objective=StudentT())


def minos(fitted, names):
    """MINOS intervals of E, alpha and beta, in centered logarithms so that it converges."""
    frame = fitted.runs.frame
    logs = np.log(frame.select("params", "tokens").to_numpy().T)
    logs -= logs.mean(axis=1, keepdims=True)
    loss = frame["loss"].to_numpy()
    df = fitted.degrees_of_freedom
    variance = 2 * fitted.value / df if isinstance(fitted.objective, LeastSquares) else None

    def cost(e, a, b, alpha, beta, log_scale=0.0):
        predicted = e + a * np.exp(-alpha * logs[0]) + b * np.exp(-beta * logs[1])
        if np.any(predicted <= 0):
            return 1e10
        off = np.log(predicted / loss)
        if variance is not None:
            return (off**2).sum() / variance
        scale = np.exp(log_scale)
        return -2 * student.logpdf(off, fitted.objective.dof, scale=scale).sum()

    start = {"e": 1.85, "a": 0.4, "b": 0.4, "alpha": 0.35, "beta": 0.38}
    start["log_scale"] = np.log(fitted.scale)
    found = Minuit(cost, **start)
    found.fixed["log_scale"] = variance is not None
    found.errordef = float(student.ppf(0.975, df) ** 2)
    found.strategy, found.tol = 2, 1e-4
    found.migrad()
    found.hesse()
    found.minos(*names)
    assert found.valid
    return {
        n: (found.values[n] + found.merrors[n].lower, found.values[n] + found.merrors[n].upper)
        for n in names
    }


@pytest.mark.parametrize("name", ["gaussian", "heavy"])
def test_profiles_are_those_of_minos(name, request):
    fitted = request.getfixturevalue(name)
    wanted = minos(fitted, ("e", "alpha", "beta"))
    for theirs, ours in {"e": "E", "alpha": "alpha", "beta": "beta"}.items():
        got = profile(fitted, ours)
        assert all(got.success)
        assert (got.low, got.high) == pytest.approx(wanted[theirs], rel=2e-4)
        assert got.estimate == fitted.law.parameters[ours]
        assert got.level == 0.95


@pytest.mark.parametrize("name", ["gaussian", "heavy"])
def test_the_ends_have_the_deviance_of_the_level(name, request):
    fitted = request.getfixturevalue(name)
    got = profile(fitted, "B", level=0.9)
    threshold = student.ppf(0.95, fitted.degrees_of_freedom) ** 2
    deviance = dict(zip(got.values, got.deviance, strict=True))
    for end in (got.low, got.high):
        assert deviance[end] == pytest.approx(threshold, rel=1e-4)
        held = fit(CHINCHILLA, fitted.runs, objective=fitted.objective, fixed={"B": end})
        ratio = (
            fitted.degrees_of_freedom * (held.value / fitted.value - 1)
            if name == "gaussian"
            else 2 * (held.value - fitted.value)
        )
        assert ratio == pytest.approx(threshold, rel=1e-3)


def test_a_linear_law_has_the_intervals_of_linear_regression():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 10, 15)
    y = 2 + 0.5 * x + 0.3 * rng.standard_normal(15)
    line = custom(lambda at, p: p["a"] + p["b"] * at["x"], ("a", "b"), ("x",), linear=("a", "b"))
    got = fit(line, table(x=x, loss=y), objective=LeastSquares(residual="raw"))
    basis = np.stack([np.ones(15), x], axis=1)
    covariance = np.linalg.inv(basis.T @ basis) * (2 * got.value / 13)
    quantile = student.ppf(0.975, 13)
    for i, name in enumerate(("a", "b")):
        half = quantile * np.sqrt(covariance[i, i])
        interval = profile(got, name)
        assert interval.low == pytest.approx(got.law.parameters[name] - half, rel=1e-4)
        assert interval.high == pytest.approx(got.law.parameters[name] + half, rel=1e-4)
    at = profile(got, lambda law: float(law.loss({"x": 4.0})))
    row = np.array([1.0, 4.0])
    half = quantile * np.sqrt(row @ covariance @ row)
    assert (at.low, at.high) == pytest.approx((at.estimate - half, at.estimate + half), rel=1e-4)


@pytest.mark.parametrize("name", ["gaussian", "heavy"])
def test_a_parameter_and_the_same_quantity_have_one_profile(name, request):
    fitted = request.getfixturevalue(name)
    one = profile(fitted, "alpha")
    two = profile(fitted, lambda law: law.parameters["alpha"])
    assert all(two.success)
    assert (two.low, two.high) == pytest.approx((one.low, one.high), rel=1e-5)


def test_derived_quantities(gaussian):
    size = profile(gaussian, lambda law: plan(law, 1e24).sizes["params"])
    assert size.low < plan(gaussian, 1e24).sizes["params"] < size.high
    assert all(size.success)
    point = {"params": 1e12, "tokens": 1e13}
    loss = profile(gaussian, lambda law: float(law.loss(point)))
    slope = gaussian.law.gradient(point)
    error = np.sqrt(slope @ gaussian.model_covariance @ slope)
    # far outside the data the likelihood is bent, but not by much
    assert loss.width == pytest.approx(2 * 1.97 * error, rel=0.1)
    assert profile(gaussian, lambda law: float(law.loss(point)), level=0.5).width < loss.width


def test_a_floor_near_zero_ends_at_its_bound():
    rng = np.random.default_rng(4)
    n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 6), np.geomspace(1e9, 1e12, 6)))
    loss = (0.02 + 20 * n**-0.15 + 3000 * d**-0.4) * np.exp(0.02 * rng.standard_normal(36))
    got = fit(CHINCHILLA, table(params=n, tokens=d, loss=loss), objective=LeastSquares())
    interval = profile(got, "E")
    assert interval.low == 0.0
    assert "ends at the bound 0" in interval.method
    assert 0.02 < interval.high < 1.0


def test_an_exponent_beside_a_floor_at_its_bound_is_followed_to_its_end():
    """With the floor held at zero the standard error of the exponent is 1e-4 of how far it can go;
    the end is where the deviance of a fit with that exponent says.
    """
    loss = [2.06757, 2.06252, 2.05447, 2.04332, 2.03132, 2.02040]
    runs = table(depth=[2.0, 4, 8, 16, 32, 64], loss=loss)
    family, objective = power_law("depth"), LeastSquares()
    fitted = fit(family, runs, objective=objective)
    assert fitted.at_bound == ("E",)
    found = profile(fitted, "a", level=0.99)
    assert found.high > 0.3
    assert found.high - found.estimate > 60 * fitted.model_standard_errors["a"]
    held = fit(family, runs, objective=objective, fixed={"a": found.high})
    free = fitted.degrees_of_freedom
    deviance = free * (held.value / fitted.value - 1)
    assert deviance == pytest.approx(student.ppf(0.995, free) ** 2, rel=1e-3)


def test_profiles_cover_a_planted_law():
    n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 6), np.geomspace(1e9, 1e12, 6)))
    clean = 1.7 + 400 * n**-0.34 + 2000 * d**-0.37
    hits = 0
    for seed in range(60):
        loss = clean * np.exp(0.01 * np.random.default_rng(seed).standard_normal(n.size))
        got = fit(CHINCHILLA, table(params=n, tokens=d, loss=loss), objective=LeastSquares())
        hits += profile(got, "alpha", level=0.9).contains(0.34)
    # a true coverage of 0.9 gives 54 with standard deviation 2.3
    assert 47 <= hits <= 60


def test_known_noise_sets_the_width(epoch):
    one, two = (
        profile(
            fit(
                CHINCHILLA,
                Runs(
                    frame=epoch.frame.with_columns(sigma=pl.lit(sigma)),
                    units={},
                    excluded=nothing_excluded(),
                    source="known",
                ),
                objective=LeastSquares(),
                noise="sigma",
            ),
            "alpha",
        )
        for sigma in (0.001, 0.002)
    )
    assert two.width == pytest.approx(2 * one.width, rel=1e-2)
    assert "known scale" in one.method


@pytest.mark.parametrize("objective", [Huber(), AsymmetricAbsolute()], ids=str)
def test_a_robust_objective_has_no_profile(epoch, objective):
    with pytest.raises(FitError, match="sandwich standard errors or the bootstrap"):
        profile(fit(CHINCHILLA, epoch, objective=objective), "E")


def test_profiles_that_would_mean_nothing_are_refused(epoch, gaussian):
    with pytest.raises(FitError, match="did you mean 'alpha'"):
        profile(gaussian, "alhpa")
    with pytest.raises(FitError, match="level: got 95"):
        profile(gaussian, "alpha", level=95)
    with pytest.raises(FitError, match="alpha is fixed"):
        profile(fit(CHINCHILLA, epoch, objective=LeastSquares(), fixed={"alpha": 0.3}), "alpha")
    twice = Runs(
        frame=pl.concat([epoch.frame, epoch.frame]),
        units={},
        excluded=nothing_excluded(),
        source="twice",
    )
    with pytest.raises(FitError, match="480 rows come from 240 runs or are identical"):
        profile(fit(CHINCHILLA, twice, objective=LeastSquares()), "E")
