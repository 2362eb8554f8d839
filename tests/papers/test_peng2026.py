"""Depth in retrieval: the claims that theory decides, on computed and on planted tables."""

import math

import numpy as np
import polars as pl
import pytest

from leadline.ensembles import decompose
from leadline.papers.peng2026 import claims, figures, floor, linear, sweeps
from leadline.papers.peng2026.tables import against_depth, span
from leadline.runs import from_curves
from leadline.theory.predict import predict
from leadline.theory.retrieval_bound import layer_grid
from leadline.theory.retrieval_models import built_law, construct_layers
from leadline.theory.sampled import sample_model


@pytest.fixture(scope="module")
def tables():
    """Everything that "demo" runs."""
    return {
        s.name: from_curves(s.runs, [predict(r) for r in s.runs], engine=s.engine).frame
        for s in sweeps.sweeps("demo")
        if s.engine == "theory"
    }


def verdicts(rows):
    return {row["name"]: row["verdict"] for row in rows}


def test_exponents_of_table_2(tables):
    """Exponents in the window, as docs/theory/retrieval.md has them; one loss by brute force."""
    expected = {
        (2, 0.5): (0.781, 1.12, 2.451),
        (2, 1): (1.011, 1.46, 3.019),
        (0.5, 2): (3.540, 4.42, 9.467),
        (1, 2): (2.002, 2.51, 5.307),
    }
    for (a, b), values in expected.items():
        found = linear.exponents(tables, a=a, b=b)
        ours = [found[kind][0] for kind in ("constrained", "outlier", "free")]
        np.testing.assert_allclose(ours, values, atol=0.005)
    k, power = np.arange(1.0, 129), np.arange(1, 5)
    root = k**-1.25  # of the weights at (2, 0.5)
    table = root[:, None] * k[:, None] ** (-2.0 * power)
    left = table @ np.linalg.lstsq(table, root, rcond=None)[0] - root
    depth, loss, _ = against_depth(tables, "easy", a=2, b=0.5, tied=False)
    assert loss[depth == 4][0] == pytest.approx(left @ left, rel=1e-6)
    found = verdicts(linear.table2_claims(tables))
    between = {n: v for n, v in found.items() if n.startswith("measured-between")}
    assert {n for n, v in between.items() if v != "reproduced"} == {
        "measured-between-references-(0.5,2)"
    }


def test_planted_exponent_is_found(tables):
    """Losses of equal layers that fall faster by a power one half."""
    name = "peng2026/easy/theory"
    depth = tables[name]["depth"].cast(pl.Float64)
    wrong = tables[name].with_columns(loss=pl.col("loss") * depth**-0.5)
    found = verdicts(linear.table2_claims(tables | {name: wrong}))
    assert found["measured-between-references-(2,0.5)"] == "not reproduced"


def test_floor_is_no_bound(tables):
    """The exact numbers of isotropic tokens."""
    (population, excess), *_ = linear.floors(tables).values()
    assert population.estimate == pytest.approx(59.3802, abs=1e-4)
    assert population.estimate + excess.estimate == pytest.approx(58.3665, abs=1e-4)
    found = verdicts(linear.table3_claims(tables))
    assert found == {
        "population-floor-top-2-(0,0)": "reproduced",
        "floor-is-a-bound-top-2-(0,0)": "corrected",
    }
    name = "peng2026/isotropic/theory"
    wrong = tables[name].with_columns(loss=pl.col("loss") + 2)
    found = verdicts(linear.table3_claims(tables | {name: wrong}))
    assert found["floor-is-a-bound-top-2-(0,0)"] == "reproduced"


def test_softmax_beside_linear_of_the_same_size(tables):
    rows = linear.table1_claims(tables, 1.99985)
    assert verdicts(rows)["softmax-against-linear-(0,0)"] == "corrected"
    for row in rows:
        assert 2.6 < row["measured_low"] < row["measured_high"] < 3.6


def test_dimensions_behind_the_rows():
    """The identity gives the dimension at which it is evaluated, and those of the paper."""
    for dim in (16, 128):
        k = np.arange(1.0, dim + 1)
        ratio = np.mean(1 / k) / np.mean(k**-0.25)
        assert floor.dimension(ratio, first=1.0, second=0.25) == pytest.approx(dim, abs=1e-9)
    rows = floor.identity_claims()
    assert {r["verdict"] for r in rows if r["name"].startswith("dimension")} == {"reproduced"}
    assert verdicts(rows)["linear-plateau-at-(0,0)"] == "not reproduced"


def test_error_matrix_of_constructed_layers():
    """Its mean is the loss of the model, and its parts those of sampled layers of that model."""
    grid, depth = layer_grid(dim=16, context=64, targets=16), 32
    model = built_law(grid, depth=depth, perturbation="antithetic")
    errors = floor.layer_errors(grid, model, depth=depth)
    assert errors.mean() == pytest.approx(model.loss, rel=1e-9)
    layers = construct_layers(model, dim=16, depth=depth, perturbation="antithetic", seed=1)
    found = sample_model(layers, gain=model.gain, context=64, targets=16, contexts=4000, seed=2)
    exact = decompose(errors)
    assert abs(found.loss - exact.loss) < 4 * found.loss_error + 0.02 * exact.loss
    # one draw of rotations and 4000 contexts leave a few percent of the disagreement
    assert found.decomposition.disagreement == pytest.approx(exact.disagreement, rel=0.1)
    shuffled = errors.copy()
    shuffled[np.arange(depth), np.arange(depth) ^ 1] = errors[0, 2]
    assert abs(shuffled.mean() - model.loss) > 1e-3 * model.loss


def test_span_keeps_the_first_as_estimate():
    found = span([2.0, 1.0, 3.0], method="range", margin=0.5)
    assert (found.estimate, found.low, found.high) == (2.0, 0.5, 3.5)


def test_figure_3(tables):
    drawn = figures.figure3(tables)
    modes = drawn.numbers.filter(pl.col("kind") == "mode, constrained", pl.col("depth") == 4)
    np.testing.assert_allclose(
        modes["loss"].to_numpy(), [0.0016, 0.028, 0.469, 0.833, 0.956, 0.989], rtol=0.03
    )
    assert drawn.svg().startswith("<svg")


def test_small_and_paper_ask_for_more():
    names = {scale: {s.name for s in sweeps.sweeps(scale)} for scale in ("demo", "small", "paper")}
    short = {"peng2026/depth-demo/simulation"}  # trainings cut short, of the demo alone
    assert names["demo"] - short < names["small"] == names["paper"]
    limits = [s for s in sweeps.sweeps("small") if s.name == "peng2026/limit/theory"]
    assert all(math.isinf(run.task.spectrum.dim) for run in limits[0].runs)


@pytest.mark.full
def test_all_claims_and_figures(tables):
    found = verdicts(claims.claims(tables))
    plateaus = {n: v for n, v in found.items() if n.startswith("plateau-is-the-bound")}
    assert len(plateaus) == 6
    assert {n for n, v in plateaus.items() if v != "reproduced"} == {
        "plateau-is-the-bound-top-2-(0,0.25)"
    }
    assert found["decomposition-is-an-identity"] == "reproduced"
    for drawn in figures.figures(tables):
        assert drawn.svg().startswith("<svg")
