"""Intervals contain the truth as often as they say, on planted tables."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from leadline.laws import Huber, bootstrap, fit, intervals, separable
from leadline.laws.intervals import jackknife
from leadline.laws.objectives import LeastSquares
from leadline.runs import Runs, nothing_excluded
from leadline.spec import source_capacity
from leadline.theory.rotated import depth_law


def load():
    path = Path(__file__).parents[2] / "benchmarks" / "calibration.py"
    spec = importlib.util.spec_from_file_location("calibration", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibration"] = module
    spec.loader.exec_module(module)
    return module


calibration = load()
Cell = calibration.Cell


def error(share: float, tables: int) -> float:
    """Standard error of a share of `tables`."""
    return math.sqrt(share * (1 - share) / tables)


def assert_covers(row, *, low: float, high: float) -> None:
    """The shares are those of a method that covers `low` to `high`."""
    for name, share in row["coverage"].items():
        assert share >= low - 3 * error(low, row["claimed"]), (name, share)
        assert share <= high + 3 * error(high, row["claimed"]), (name, share)


SMALL = [
    (Cell(runs=20), ["bootstrap"]),
    (Cell(runs=12, checkpoints=8), ["bootstrap"]),
    (Cell(law="one", runs=40), ["bootstrap"]),
    (Cell(runs=240), ["sandwich", "bootstrap", "percentile"]),
    (Cell(law="one", runs=8, profiled=("a_params",)), ["profile", "bootstrap"]),
]


@pytest.mark.parametrize(("cell", "claiming"), SMALL)
def test_intervals_cover_where_they_claim_to(cell, claiming):
    rows = calibration.coverage(cell, 40 if cell.profiled else 100, draws=60)
    assert [name for name, row in rows.items() if row["claimed"]] == claiming
    for name in claiming:
        # 60 draws make percentiles a little too narrow
        assert_covers(rows[name], low=0.93 if name != "percentile" else 0.9, high=0.98)


def test_the_methods_that_do_not_claim_to_hold_with_few_runs_do_not():
    rows = calibration.coverage(Cell(runs=8, checkpoints=8), 80, draws=40)
    assert rows["sandwich"]["claimed"] == 0
    # 80% against 95%: five standard errors
    assert rows["sandwich"]["coverage_of_all"]["alpha"] < 0.95 - 3 * error(0.95, 80)
    assert rows["percentile"]["claimed"] == 0
    assert rows["percentile"]["coverage_of_all"]["beta"] < 0.95 - 2 * error(0.95, 80)
    assert_covers(rows["bootstrap"], low=0.93, high=0.98)


def test_an_objective_that_hardly_sees_the_rows_claims_nothing():
    rows = calibration.coverage(Cell(runs=30, objective="huber 1e-3"), 5, draws=60)
    assert all(row["claimed"] == 0 for row in rows.values())


@pytest.mark.full
@pytest.mark.parametrize("cell", calibration.GRID, ids=str)
def test_the_full_grid(cell):
    for method, row in calibration.coverage(cell, 1000).items():
        if row["claimed"]:
            # below 30 runs the jackknife says that it errs on the wide side
            high = 0.98 if method == "bootstrap" and cell.runs < 30 else 0.97
            assert_covers(row, low=0.93, high=high)


def table(**columns) -> Runs:
    frame = pl.DataFrame(columns).with_row_index("row", offset=1)
    return Runs(frame=frame, units={}, excluded=nothing_excluded(), source="test table")


def test_the_jackknife_of_a_mean_is_students_interval():
    # with its exponent and coefficient fixed, the law is a floor: the mean of the loss
    rng = np.random.default_rng(0)
    x = np.geomspace(4, 90, 14)
    loss = 2.0 + 0.05 * rng.standard_normal(14) + 3 * x**-0.5
    fitted = fit(
        separable(["params"]),
        table(params=x, loss=loss),
        objective=LeastSquares(residual="raw"),
        fixed={"c_params": 3.0, "a_params": 0.5},
    )
    got = jackknife(fitted)["E"]
    rest = loss - 3 * x**-0.5
    margin = 2.1603686564627926 * rest.std(ddof=1) / math.sqrt(14)  # t of 13 at 97.5%
    assert got.low == pytest.approx(rest.mean() - margin, rel=1e-6)
    assert got.high == pytest.approx(rest.mean() + margin, rel=1e-6)
    assert got.method == "jackknife over 14 runs, Student t, on the wide side"


def test_few_runs_fall_back_and_say_so():
    fitted = fit(
        calibration.CHINCHILLA, calibration.table(Cell(runs=40), 0), objective=LeastSquares()
    )
    few = intervals(fitted, bootstrap(fitted, draws=30))
    assert few["alpha"].method == "jackknife over 40 runs, Student t"
    fitted = fit(
        calibration.CHINCHILLA, calibration.table(Cell(runs=240), 0), objective=LeastSquares()
    )
    many = intervals(fitted, bootstrap(fitted, draws=30))
    assert many["alpha"].method == "percentile bootstrap, 30 draws"


@pytest.mark.parametrize("beta", [0.6, 1.0, 1.75])
def test_the_exponent_of_theory_lies_in_the_interval(beta):
    law = depth_law(source_capacity(math.inf, nu=1.5, beta=beta))
    assert law.exponent == pytest.approx(beta)
    hits = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        depth = np.geomspace(64, 4096, 24)
        noise = np.exp(0.01 * rng.standard_normal(24))
        runs = table(depth=depth, loss=law.prefactor * depth**-law.exponent * noise)
        fitted = fit(separable(["depth"], floor=False), runs, objective=LeastSquares())
        hits += intervals(fitted, bootstrap(fitted, draws=30))["a_depth"].contains(beta)
    # at 95% the count has mean 28.5 and standard deviation 1.2
    assert hits >= 25


def test_the_depth_law_itself_has_the_exponent_of_theory():
    """Least losses at finite depth, from the solver, approach the power law of theory."""
    from leadline.spec import BestScale, Evaluation, InContextRegression, ReducedAttention, RunSpec
    from leadline.theory.predict import predict

    beta = 1.25
    depths = [256, 512, 1024, 2048, 4096, 8192]
    losses = [
        predict(
            RunSpec(
                task=InContextRegression(
                    spectrum=source_capacity(math.inf, nu=1.5, beta=beta),
                    covariance="rotated",
                    context=math.inf,
                    noise=0.0,
                ),
                model=ReducedAttention(depth=depth),
                recipe=BestScale(),
                evaluation=Evaluation(contexts=1),
            )
        ).loss[-1]
        for depth in depths
    ]
    runs = table(depth=[float(d) for d in depths], loss=losses)
    fitted = fit(separable(["depth"], floor=False), runs, objective=Huber(delta=1.0))
    # the best scale falls short of the edge by O(log L / L): the local exponent is off by as much
    slope = -np.polyfit(np.log(depths), np.log(losses), 1)[0]
    assert fitted.law.parameters["a_depth"] == pytest.approx(slope, rel=1e-6)
    assert fitted.law.parameters["a_depth"] == pytest.approx(beta, rel=0.05)
