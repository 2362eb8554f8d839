"""Bootstrap draws against scipy, and intervals against published and planted ones."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize as scipy_minimize

from leadline.data import bundled
from leadline.errors import FitError
from leadline.laws import (
    CHINCHILLA,
    Huber,
    bootstrap,
    drop_largest_losses,
    fit,
    intervals,
    read_runs,
    separable,
)
from leadline.runs import Runs, nothing_excluded

LAWS = json.loads((Path(__file__).parents[1] / "reference" / "laws.json").read_text())
DELTA = 1e-3


def table(**columns) -> Runs:
    frame = pl.DataFrame(columns).with_row_index("row", offset=1)
    return Runs(frame=frame, units={}, excluded=nothing_excluded(), source="test table")


@pytest.fixture(scope="module")
def chinchilla():
    return fit(CHINCHILLA, drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), 5))


@pytest.fixture(scope="module")
def draws(chinchilla):
    return bootstrap(chinchilla, draws=1000)


def drawn_weights(fitted, draws, seed=0):
    """How often each row of the sorted table is drawn, from the documented recipe."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(fitted.rows, np.full(fitted.rows, 1 / fitted.rows), size=draws)


def scipy_polish(columns, loss, weights, parameters):
    """scipy's optimum of one draw from `parameters`, in scaled variables and objective."""
    logs = np.log(columns)
    centers = logs.mean(axis=1, keepdims=True)
    logs = logs - centers
    start = np.array(parameters)
    start[1:3] *= np.exp(-start[3:] * centers[:, 0])

    def both(x):
        powers = np.exp(-x[3:, None] * logs)
        total = x[0] + x[1:3] @ powers
        residual = np.log(total) - np.log(loss)
        clipped = np.clip(residual, -DELTA, DELTA)
        value = (weights * clipped * (residual - clipped / 2)).sum()
        pull = weights * clipped / total
        slope = np.concatenate([[pull.sum()], powers @ pull, -x[1:3] * ((powers * logs) @ pull)])
        return 1e6 * value, 1e6 * slope

    found = scipy_minimize(
        both,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, loss.min())] + [(0, None)] * 4,
        options={"maxiter": 3000, "maxfun": 3000, "ftol": 1e-15, "gtol": 1e-9},
    )
    return found.fun / 1e6, both(start)[0] / 1e6


def test_draws_are_optima_that_scipy_cannot_improve(chinchilla, draws):
    frame = chinchilla.runs.frame.sort("params", "tokens", "loss")
    columns = frame.select("params", "tokens").to_numpy().T
    loss = frame["loss"].to_numpy()
    weights = drawn_weights(chinchilla, 1000)
    good = 0
    sample = range(0, 1000, 5)
    for i in sample:
        ours = draws.row(i, named=True)
        vector = [ours[name] for name in CHINCHILLA.parameters]
        polished, here = scipy_polish(columns, loss, weights[i], vector)
        assert here == pytest.approx(ours["objective"], rel=1e-9)
        fresh, _ = scipy_polish(columns, loss, weights[i], chinchilla.law.vector)
        good += here <= min(polished, fresh) * (1 + 1e-6)
    assert good / len(sample) >= 0.995


def test_intervals_of_the_chinchilla_law(chinchilla, draws):
    wanted = LAWS["chinchilla_epoch_drop5_log_huber"]["boot400_95"]
    got = intervals(chinchilla, draws)
    assert (draws["status"] == "ok").all()
    for name, interval in got.items():
        low, high = wanted[name]
        # the 2.5% quantile of 400 draws has a standard error near 6% of the interval
        assert interval.low == pytest.approx(low, abs=0.15 * (high - low))
        assert interval.high == pytest.approx(high, abs=0.15 * (high - low))
        assert interval.contains(chinchilla.law.parameters[name])
        assert interval.level == 0.95
        assert interval.unit == "run"
        assert interval.method == "percentile bootstrap, 1000 draws"


def test_the_sandwich_agrees_with_the_bootstrap(chinchilla, draws):
    for name, error in chinchilla.standard_errors.items():
        low, high = np.quantile(draws[name], [0.16, 0.84])
        assert error == pytest.approx((high - low) / 2, rel=0.5)


def test_level_orders_intervals(chinchilla, draws):
    wide, narrow = intervals(chinchilla, draws, level=0.99), intervals(chinchilla, draws, level=0.5)
    for name in CHINCHILLA.parameters:
        assert wide[name].low < narrow[name].low < narrow[name].high < wide[name].high


def test_draws_follow_from_the_seed_and_not_from_the_order_of_rows(chinchilla):
    one = bootstrap(chinchilla, draws=30, seed=1)
    assert one.equals(bootstrap(chinchilla, draws=30, seed=1))
    assert not one.equals(bootstrap(chinchilla, draws=30, seed=2))
    turned = Runs(
        frame=chinchilla.runs.frame.reverse(),
        units={},
        excluded=nothing_excluded(),
        source="reversed",
    )
    assert one.equals(bootstrap(fit(CHINCHILLA, turned), draws=30, seed=1))


def test_a_table_pasted_twice_has_the_same_draws(chinchilla):
    twice = pl.concat([chinchilla.runs.frame] * 2)
    pasted = fit(CHINCHILLA, Runs(frame=twice, units={}, excluded=nothing_excluded(), source="2x"))
    one, two = bootstrap(chinchilla, draws=40), bootstrap(pasted, draws=40)
    assert two["alpha"].to_numpy() == pytest.approx(one["alpha"].to_numpy(), rel=1e-4)
    assert two["objective"].to_numpy() == pytest.approx(2 * one["objective"].to_numpy(), rel=1e-9)
    rows = bootstrap(pasted, draws=200, unit="row")["alpha"].std()
    assert rows < 0.85 * bootstrap(chinchilla, draws=200)["alpha"].std()


def test_checkpoints_of_a_run_stay_together():
    rng = np.random.default_rng(5)
    runs = 25
    n = np.repeat(np.geomspace(1e7, 1e10, runs), 8)
    d = np.tile(np.geomspace(1e9, 1e11, 8), runs)
    shared = np.repeat(0.01 * rng.standard_normal(runs), 8)
    loss = (1.7 + 400 * n**-0.34 + 2000 * d**-0.37) * np.exp(shared)
    names = np.repeat([f"run {i}" for i in range(runs)], 8)
    fitted = fit(
        CHINCHILLA,
        table(params=n, tokens=d, loss=loss, run=names),
        objective=Huber(delta=0.1),
    )
    together = bootstrap(fitted, draws=200)
    apart = bootstrap(fitted, draws=200, unit="row")
    assert together["alpha"].std() > 2 * apart["alpha"].std()
    assert intervals(fitted, together)["alpha"].unit == "run"
    assert intervals(fitted, apart)["alpha"].unit == "row"


def test_intervals_cover_a_planted_law():
    truth = {"E": 1.7, "A": 400.0, "B": 2000.0, "alpha": 0.34, "beta": 0.37}
    grid = np.meshgrid(np.geomspace(1e7, 1e10, 9), np.geomspace(1e9, 1e12, 9))
    n, d = (x.ravel() for x in grid)
    clean = truth["E"] + truth["A"] * n ** -truth["alpha"] + truth["B"] * d ** -truth["beta"]
    hits = 0
    experiments = 60
    for seed in range(experiments):
        rng = np.random.default_rng(seed)
        loss = clean * np.exp(0.005 * rng.standard_t(4, clean.size))
        fitted = fit(CHINCHILLA, table(params=n, tokens=d, loss=loss))
        got = intervals(fitted, bootstrap(fitted, draws=100), level=0.9)
        hits += got["alpha"].contains(truth["alpha"])
    # at a true coverage of 0.9 the count has mean 54 and standard deviation 2.3; percentile
    # intervals of 100 draws cover a few percent less
    assert 45 <= hits <= 60


def test_draws_at_the_bound_are_marked_and_solved():
    runs = read_runs(bundled("gemstones_hot.jsonl"))
    fitted = fit(separable(["width", "depth", "tokens"]), runs)
    assert fitted.at_bound == ("E",)
    got = bootstrap(fitted, draws=40)
    assert set(got["status"]) == {"ok", "at bound"}
    assert (got.filter(pl.col("status") == "at bound")["E"] == 0).any()
    assert (got["E"] >= 0).all()


def test_impossible_requests_are_refused(chinchilla, draws):
    with pytest.raises(FitError, match="draws: got 0"):
        bootstrap(chinchilla, draws=0)
    with pytest.raises(FitError, match="unit: got 'token'"):
        bootstrap(chinchilla, draws=2, unit="token")
    with pytest.raises(FitError, match="level: got 95"):
        intervals(chinchilla, draws, level=95)
    with pytest.raises(FitError, match="5 of 5 converged; an interval needs 20"):
        intervals(chinchilla, draws.head(5))


def test_one_run_cannot_be_resampled():
    n, d = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4)))
    fitted = fit(
        CHINCHILLA,
        table(
            params=n, tokens=d, loss=1.7 + 400 * n**-0.34 + 2000 * d**-0.37, run=["only"] * n.size
        ),
    )
    with pytest.raises(FitError, match="the table is one run"):
        bootstrap(fitted, draws=10)
