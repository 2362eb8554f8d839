"""Hold-outs, information criteria and likelihood ratios on planted laws."""

import math

import numpy as np
import polars as pl
import pytest

from leadline.data import bundled
from leadline.errors import FitError
from leadline.laws import CHINCHILLA, Huber, drop_largest_losses, fit, read_runs, separable
from leadline.laws.compare import LEAST_SQUARES, compare, likelihood_ratio, nested
from leadline.laws.forms import rotated_covariance, turning
from leadline.runs import Runs, nothing_excluded

PARAMS, TOKENS, BOTH = separable(["params"]), separable(["tokens"]), separable(["params", "tokens"])


def table(**columns) -> Runs:
    frame = pl.DataFrame(columns).with_row_index("row", offset=1)
    return Runs(frame=frame, units={}, excluded=nothing_excluded(), source="test table")


def planted(seed=0, *, rows=60, noise=0.01, tokens=2000.0, floor=1.7, bend=0.0) -> Runs:
    rng = np.random.default_rng(seed)
    n, d = 10 ** rng.uniform(7, 10, rows), 10 ** rng.uniform(9, 12, rows)
    loss = (floor + 400 * n**-0.34 + tokens * d**-0.37) * np.exp(noise * rng.standard_normal(rows))
    loss = loss + bend * np.maximum(np.log10(n * d) - 19.5, 0) ** 2
    return table(params=n, tokens=d, flops=6 * n * d, loss=loss)


def value(frame: pl.DataFrame, family: str, measure: str, column: str = "value"):
    return frame.filter((pl.col("family") == family) & (pl.col("measure") == measure))[
        column
    ].item()


def test_the_true_law_wins_everywhere():
    got = compare([BOTH, PARAMS, TOKENS], planted(), holdout=0.25, draws=19)
    names = ["separable (params, tokens)", "separable (params)", "separable (tokens)"]
    errors = [value(got, name, "held-out error") for name in names]
    assert errors[0] < 0.02 < min(errors[1:])
    assert value(got, names[0], "AIC") == 0.0
    assert min(value(got, name, "AIC") for name in names[1:]) > 100
    for name in names[1:]:
        assert value(got, names[0], f"p of likelihood ratio over {name}") == pytest.approx(1 / 20)
    assert set(got.columns) >= {"level", "method", "unit"}


def test_the_held_out_rows_are_the_largest_and_the_law_never_saw_them():
    runs = planted()
    largest = runs.frame.sort("flops")[-15:]
    got = compare([BOTH], runs, holdout=0.25)
    small = Runs(
        frame=runs.frame.filter(pl.col("flops") < largest["flops"].min()),
        units={},
        excluded=nothing_excluded(),
        source="small",
    )
    law = fit(BOTH, small).law
    error = np.log(largest["loss"].to_numpy()) - np.log(law.loss(largest))
    assert value(got, "separable", "held-out error") == pytest.approx(np.sqrt((error**2).mean()))
    assert value(got, "separable", "held-out bias") == pytest.approx(error.mean())
    assert "the 15 largest by flops from the 45 others" in got["method"][0]


@pytest.mark.parametrize(
    ("holdout", "by", "how"),
    [(15, None, "15 largest by flops"), (15, "params", "15 largest by params")],
)
def test_a_number_of_rows_by_any_column(holdout, by, how):
    got = compare([BOTH], planted(), holdout=holdout, by=by)
    assert how in got["method"][0]


def test_without_flops_sizes_are_ordered_by_their_product():
    runs = planted()
    bare = Runs(frame=runs.frame.drop("flops"), units={}, excluded=runs.excluded, source="bare")
    one, two = compare([BOTH], runs, holdout=10), compare([BOTH], bare, holdout=10)
    assert one["value"].to_list() == two["value"].to_list()
    assert "params x tokens" in two["method"][0]


def test_coverage_holds_where_the_law_does_and_fails_where_it_bends():
    straight, bent = [], []
    for seed in range(12):
        for runs, shares in ((planted(seed), straight), (planted(seed, bend=0.1), bent)):
            got = compare([BOTH], runs, holdout=0.25, objective=LEAST_SQUARES)
            shares.append(value(got, "separable", "held-out coverage"))
    # 180 rows in 12 tables; rows of a table share the error of their law
    assert np.mean(straight) > 0.88
    assert np.mean(bent) < 0.8


def test_the_interval_of_a_coverage_is_binomial():
    got = compare([BOTH], planted(), holdout=15)
    share = value(got, "separable", "held-out coverage")
    low = value(got, "separable", "held-out coverage", "low")
    high = value(got, "separable", "held-out coverage", "high")
    hits = round(share * 15)

    def at_least(p, k):
        return sum(math.comb(15, i) * p**i * (1 - p) ** (15 - i) for i in range(k, 16))

    assert low == 0.0 if hits == 0 else at_least(low, hits) == pytest.approx(0.025, rel=1e-6)
    assert high == 1.0 if hits == 15 else 1 - at_least(high, hits + 1) == pytest.approx(0.025)


def test_leave_one_group_out_predicts_each_group_from_the_others():
    runs = planted(rows=40)
    group = np.repeat(np.arange(8), 5)
    grouped = Runs(
        frame=runs.frame.with_columns(sweep=pl.Series(group)),
        units={},
        excluded=nothing_excluded(),
        source="grouped",
    )
    got = compare([BOTH], grouped, holdout=0.2, groups="sweep")
    squares = 0.0
    for g in range(8):
        rest = grouped.frame.filter(pl.col("sweep") != g)
        out = grouped.frame.filter(pl.col("sweep") == g)
        law = fit(BOTH, Runs(frame=rest, units={}, excluded=nothing_excluded(), source="rest")).law
        squares += ((np.log(out["loss"].to_numpy()) - np.log(law.loss(out))) ** 2).sum()
    assert value(got, "separable", "left-out error") == pytest.approx(np.sqrt(squares / 40))
    assert value(got, "separable", "left-out error", "unit") == "sweep"


def test_aic_is_that_of_its_definition():
    runs = planted(tokens=600.0, noise=0.005)
    got = compare([BOTH, PARAMS], runs, holdout=0.2, draws=9)
    wanted = []
    for family in (BOTH, PARAMS):
        fitted = fit(family, runs, objective=LEAST_SQUARES)
        residual = np.log(fitted.law.loss(runs.frame)) - np.log(runs.frame["loss"].to_numpy())
        count = len(family.parameters) + 1
        assert fitted.at_bound == ()
        correction = 2 * count * (count + 1) / (60 - count - 1)
        wanted.append(60 * np.log((residual**2).mean()) + 2 * count + correction)
    gap = value(got, "separable (params)", "AIC") - value(got, "separable (params, tokens)", "AIC")
    assert gap == pytest.approx(wanted[1] - wanted[0], rel=1e-6)


def test_rows_of_one_run_have_no_aic():
    runs = planted()
    named = Runs(
        frame=runs.frame.with_columns(run=pl.Series(np.repeat(np.arange(20), 3)).cast(pl.String)),
        units={},
        excluded=nothing_excluded(),
        source="runs",
    )
    got = compare([BOTH], named, holdout=0.25)
    assert value(got, "separable", "AIC") is None
    assert "not independent" in value(got, "separable", "AIC", "method")
    assert set(got.filter(pl.col("measure").str.starts_with("held-out"))["unit"]) == {"run"}


def test_a_likelihood_ratio_finds_a_term_and_seldom_one_that_is_not_there():
    runs = planted(tokens=600.0, noise=0.02)
    small, large = (fit(f, runs, objective=LEAST_SQUARES) for f in (PARAMS, BOTH))
    ratio, p = likelihood_ratio(small, large, draws=39)
    assert ratio == pytest.approx(60 * np.log(small.value / large.value))
    assert p == 1 / 40
    found = 0
    for seed in range(20):
        nothing = planted(seed, tokens=0.0, rows=30)
        fits = [fit(f, nothing, objective=LEAST_SQUARES) for f in (PARAMS, BOTH)]
        found += likelihood_ratio(*fits, draws=19, seed=seed)[1] <= 0.1
    # at 10% the count has mean 2 and standard deviation 1.3
    assert found <= 6


def test_a_likelihood_ratio_over_one_law_tied_by_theory():
    rng = np.random.default_rng(0)
    width, depth = 2 ** rng.uniform(6, 12, 60), 2 ** rng.uniform(1, 7, 60)
    names = ("width", "depth")
    tied, free = rotated_covariance(names), separable(names)
    assert nested(tied, free)
    # nu = 0.8, beta = 0.7: width 0.56, depth 0.7
    loss = 0.1 + 3 * width**-0.56 + depth**-0.7
    loss = loss * np.exp(0.01 * rng.standard_normal(60))
    runs = table(width=width, depth=depth, loss=loss)
    fits = [fit(f, runs, objective=LEAST_SQUARES) for f in (tied, free)]
    # two exponents from two numbers: nothing is tied
    assert likelihood_ratio(*fits, draws=9)[0] == pytest.approx(0.0, abs=1e-6)


def test_which_families_are_nested():
    assert nested(PARAMS, BOTH)
    assert not nested(BOTH, PARAMS)
    assert not nested(PARAMS, TOKENS)
    assert not nested(BOTH, BOTH)
    assert nested(separable(["params"], floor=False), PARAMS)
    assert not nested(PARAMS, separable(["params"], floor=False))
    assert nested(separable(["width", "depth"]), turning(["width", "depth"]))


def test_the_largest_chinchilla_runs_are_not_covered():
    runs = drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), 5)
    got = compare([CHINCHILLA], runs, holdout=0.2)
    assert value(got, "chinchilla", "held-out error") < 0.02
    assert value(got, "chinchilla", "held-out coverage", "high") < 0.95


def test_impossible_requests_are_refused():
    runs = planted()
    with pytest.raises(FitError, match="families: got none"):
        compare([], runs, holdout=0.2)
    with pytest.raises(FitError, match="occurs twice"):
        compare([BOTH, BOTH], runs, holdout=0.2)
    with pytest.raises(FitError, match="holdout: got 60"):
        compare([BOTH], runs, holdout=60)
    with pytest.raises(FitError, match=r"holdout: got 0\.001"):
        compare([BOTH], runs, holdout=0.001)
    with pytest.raises(FitError, match="level: got 95"):
        compare([BOTH], runs, holdout=0.2, level=95)
    pair = runs.frame.with_columns(half=pl.col("row") > 30)
    halves = Runs(frame=pair, units={}, excluded=nothing_excluded(), source="halves")
    with pytest.raises(FitError, match="half has 2 values, expected at least 3"):
        compare([BOTH], halves, holdout=0.2, groups="half")
    robust = fit(BOTH, runs, objective=Huber())
    with pytest.raises(FitError, match="LEAST_SQUARES"):
        likelihood_ratio(robust, robust)
    few = fit(PARAMS, planted(rows=7), objective=LEAST_SQUARES)
    with pytest.raises(FitError, match="7 rows; the test needs at least 8"):
        likelihood_ratio(few, few)
