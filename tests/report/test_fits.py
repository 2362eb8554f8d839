"""What a report draws of a fitted law."""

import numpy as np
import polars as pl
import pytest

from leadline import CHINCHILLA, LeastSquares, fit, profile, read_runs, separable
from leadline.planning.tied import losses_at_budget, plan_shape
from leadline.report.fits import isolated, profile_figure, shape_figure, term, terms_figure


@pytest.fixture(scope="module")
def law(tmp_path_factory):
    """A law of known terms without noise, over parameters and tokens."""
    params, tokens = np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 1e11, 5))
    loss = 1.7 + 400 * params**-0.34 + 410 * tokens**-0.28
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    columns = {"params": params.ravel(), "tokens": tokens.ravel(), "loss": loss.ravel()}
    pl.DataFrame(columns).write_csv(path)
    return fit(CHINCHILLA, read_runs(path))


def test_a_term_alone_is_the_loss_less_the_rest(law):
    x, left = isolated(law, "tokens")
    np.testing.assert_allclose(left, 410 * x**-0.28, rtol=1e-4)
    np.testing.assert_allclose(term(law.law, "params", x), 400 * x**-0.34, rtol=1e-3)


def test_reduced_losses_are_drawn_against_each_size(law):
    figure = terms_figure(law, name="terms")
    assert [ax.get_xlabel() for ax in figure.canvas.axes] == ["params", "tokens"]
    assert "0 points at or below zero" in figure.caption
    numbers = figure.numbers.filter(pl.col("variable") == "params")
    np.testing.assert_allclose(numbers["reduced"], 400 * numbers["size"] ** -0.34, rtol=1e-4)


@pytest.fixture(scope="module")
def shaped(tmp_path_factory):
    """A noisy law of width, depth and tokens."""
    rng = np.random.default_rng(0)
    axes = (np.geomspace(256, 2048, 4), np.geomspace(4, 64, 4), np.geomspace(1e9, 1e11, 4))
    width, depth, tokens = (x.ravel() for x in np.meshgrid(*axes))
    loss = 1.5 + 20 * width**-0.5 + 0.5 * depth**-0.7 + 300 * tokens**-0.3
    loss *= np.exp(0.003 * rng.standard_normal(len(loss)))
    path = tmp_path_factory.mktemp("table") / "shapes.csv"
    columns = {"width": width, "depth": depth, "tokens": tokens, "loss": loss}
    pl.DataFrame(columns).write_csv(path)
    return fit(separable(["width", "depth", "tokens"]), read_runs(path), objective=LeastSquares())


def test_a_profile_is_drawn_with_its_interval(shaped):
    own = profile(shaped, "E")
    figure = profile_figure({"E": own}, name="profile", text="A law.")
    assert "95%" in figure.caption
    assert set(figure.numbers["quantity"]) == {"E"}
    lowest = figure.numbers.sort("deviance")["value"][0]
    assert lowest == pytest.approx(own.estimate)
    inside = figure.numbers.filter(pl.col("value").is_between(own.low, own.high, closed="none"))
    outside = figure.numbers.filter(~pl.col("value").is_between(own.low, own.high))
    assert inside["deviance"].max() < outside["deviance"].min()


def test_losses_at_a_budget_are_least_at_the_planned_shape(shaped):
    shape = plan_shape(shaped, 1e20)
    width, depth = shape.sizes["width"], shape.sizes["depth"]
    here = losses_at_budget(shape, width, depth)
    assert here == pytest.approx(shape.loss, rel=1e-12)
    around = losses_at_budget(
        shape, width * np.array([0.9, 1.1])[:, None], depth * np.array([0.9, 1, 1.1])
    )
    assert around.shape == (2, 3)
    assert (around > here).all()
    # by hand: 12 depth width^2 parameters, and the tokens that 6ND leaves
    p = shaped.law.parameters
    tokens = 1e20 / (6 * 12 * 8 * 512**2)
    by_hand = p["E"] + sum(
        p[c] * x ** -p[a]
        for c, a, x in zip(
            shaped.law.family.coefficients,
            shaped.law.family.exponents,
            (512, 8, tokens),
            strict=True,
        )
    )
    assert losses_at_budget(shape, 512, 8) == pytest.approx(by_hand, rel=1e-9)


def test_shapes_are_drawn_over_their_iso_loss_lines(shaped):
    shapes = [plan_shape(shaped, budget) for budget in (1e19, 1e20, 1e21)]
    figure = shape_figure(shaped, shapes, name="shapes")
    assert "1.0e+20 FLOPs" in figure.caption
    best = figure.numbers.sort("loss")[0]
    assert best["width"].item() == pytest.approx(shapes[1].sizes["width"], rel=0.1)
    assert figure.numbers["loss"].min() >= shapes[1].loss
