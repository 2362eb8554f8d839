"""Initialization, rates and multipliers against width and depth."""

import math

import numpy as np
import pytest

from leadline.simulation.scaling import BASE_WIDTH, architecture_of, initial_weights, rate_factors
from leadline.simulation.train import train
from leadline.spec import (
    Evaluation,
    InContextRegression,
    RunSpec,
    Training,
    Transformer,
    flat,
    grid,
    replace,
)

RULES = ("standard", "depth", "width", "width and depth")


def model(scaling, width=4 * BASE_WIDTH, depth=8, **changes):
    return Transformer(depth=depth, width=width, scaling=scaling, **changes)


def recipe(optimizer="adam", **changes):
    settings = {"steps": 4, "batch_size": 16, "queries": 4, "rate": 0.002}
    return Training(**settings | {"optimizer": optimizer} | changes)


def test_rules_agree_at_the_base():
    for attention in ("linear", "softmax"):
        for optimizer in ("sgd", "adam"):
            found = set()
            for rule in RULES:
                one = model(rule, width=BASE_WIDTH, depth=1, attention=attention, heads=2, mlp=2)
                weights = initial_weights(one, dim=3, seed=5)
                total = float(sum(abs(w).sum() for w in weights))
                factors = rate_factors(one, recipe(optimizer))
                found.add((architecture_of(one), tuple(factors.items()), total))
            assert len(found) == 1


@pytest.mark.parametrize(
    ("rule", "optimizer", "inside", "entry", "out"),
    [
        ("standard", "adam", 1, 1, 1), ("standard", "sgd", 1, 1, 1),
        ("depth", "adam", 1, 1, 1), ("depth", "sgd", 8, 1, 1),
        ("width", "adam", 1 / 4, 1, 1 / 4), ("width", "sgd", 1, 4, 1 / 4),
        ("width and depth", "adam", 1 / 4, 1, 1 / 4), ("width and depth", "sgd", 8, 4, 1 / 4),
    ],
)  # fmt: skip
def test_rates_at_four_times_the_base_width_and_eight_layers(rule, optimizer, inside, entry, out):
    one = model(rule, mlp=1)
    factors = rate_factors(one, recipe(optimizer))
    expected = dict.fromkeys(("keys", "queries", "values", "up", "down"), inside)
    assert factors == expected | {"read_in": entry, "label_in": entry, "read_out": out}
    tied = rate_factors(replace(one, "tied", True), recipe(optimizer))
    assert tied["keys"] == inside / (8 if optimizer == "sgd" and "depth" in rule else 1)
    assert architecture_of(one).residual == (1 / 8 if "depth" in rule else 1)
    assert architecture_of(one).score == (1 / 4 if "width" in rule else 1)
    soft = architecture_of(replace(replace(one, "attention", "softmax"), "heads", 2))
    plain = 1 / math.sqrt(2 * BASE_WIDTH)
    assert soft.score == pytest.approx(plain / 2 if "width" in rule else plain)


def test_what_learns():
    for trainable, more in (
        ("attention", set()),
        ("attention and read-in", {"read_in"}),
        ("all", {"read_in", "label_in", "read_out"}),
    ):
        found = rate_factors(model("depth", trainable=trainable), recipe())
        assert set(found) == {"keys", "queries", "values"} | more


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_random_weights_have_the_variances_of_the_rule(heads, attention):
    width, dim = 64, 16
    one = model("depth", width=width, heads=heads, attention=attention, mlp=2, start=0.5)
    w = initial_weights(one, dim=dim, seed=1)
    rows = 1 if attention == "softmax" else math.sqrt(width / heads)
    variances = {
        "read_in": 1 / dim, "keys": 0.25 / width / rows, "queries": 0.25 / width / rows,
        "values": 0.25 / width / heads, "up": 1 / width, "down": 1 / (2 * width),
    }  # fmt: skip
    for name, variance in variances.items():
        values = np.asarray(getattr(w, name))
        assert values.var() == pytest.approx(variance, rel=5 * math.sqrt(2 / values.size))
    assert w.read_out @ w.label_in == pytest.approx(1)
    other = initial_weights(one, dim=dim, seed=2)
    assert not np.allclose(w.keys, other.keys)


@pytest.mark.parametrize("heads", [1, 2])
def test_aligned_weights_satisfy_the_conditions_of_the_reduction(heads):
    one = Transformer(depth=2, width=6, heads=heads, initial="aligned", trainable="attention")
    w = initial_weights(one, dim=4, seed=0)
    assert w.read_out @ w.label_in == 1
    assert np.all(w.keys @ w.label_in == 0)
    assert np.all(w.queries @ w.label_in == 0)
    assert np.all(w.values @ w.read_in == 0)
    assert np.all(w.read_out @ w.read_in == 0)
    np.testing.assert_array_equal(w.values @ w.label_in, np.broadcast_to(w.label_in, (2, heads, 6)))


# --- in training ------------------------------------------------------------------------------


def run(scaling, width, depth, *, optimizer="adam", rate=0.002, **changes):
    settings = {"steps": 4, "batch_size": 16, "schedule": "constant"} | changes
    return RunSpec(
        task=InContextRegression(spectrum=flat(4), covariance="isotropic", context=8),
        model=Transformer(
            depth=depth, width=width, attention="softmax", heads=2, mlp=2, scaling=scaling
        ),
        recipe=recipe(optimizer, **settings | {"rate": rate, "queries": 8}),
        evaluation=Evaluation(contexts=16, queries=8, measures=("movement",)),
    )


def movement(scaling, width, depth, optimizer):
    """How far four steps move the stream after the last layer, mean over eight seeds."""
    rate = 0.002 if optimizer == "adam" else 0.0005
    runs = grid(run(scaling, width, depth, optimizer=optimizer, rate=rate), {"seed": range(8)})
    return np.mean([curve.measures[0].values[-1, -1] for curve in train(runs)])


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_coordinates_move_alike_over_eight_times_the_width_and_the_depth(optimizer):
    """The coordinate check: within 2.5 where the sizes differ by 8, which a rate that ignores the
    width does not pass. Few layers and narrow streams would add effects of
    their random start, which weighs 1/sqrt(L) in the stream and 1/sqrt(N) in the prediction.
    """
    for rule, sizes in (
        ("width and depth", ((32, 2), (256, 2))),
        ("width and depth", ((16, 8), (16, 64))),
        ("width", ((32, 2), (256, 2))),
        ("depth", ((16, 8), (16, 64))),
    ):
        small, large = (movement(rule, *size, optimizer) for size in sizes)
        assert 1 / 2.5 < large / small < 2.5, (rule, sizes, large / small)
    assert movement("standard", 256, 2, optimizer) / movement("standard", 32, 2, optimizer) > 2.5


def best_rate(width, depth, rates, scaling):
    """The minimum of a parabola through the mean logarithmic loss over eight seeds."""
    base = run(scaling, width, depth, steps=150, batch_size=32, schedule="cosine")
    base = replace(base, "evaluation", Evaluation(contexts=512, queries=8))
    runs = grid(base, {"seed": range(8), "recipe.rate": rates})
    loss = np.reshape([curve.loss[-1] for curve in train(runs)], (8, len(rates)))
    square, slope, _ = np.polyfit(np.log(rates), np.log(loss).mean(axis=0), 2)
    assert square > 0
    return math.exp(-slope / 2 / square)


@pytest.mark.full
def test_the_best_rate_stays_over_eight_times_the_width_and_the_depth():
    rates = [0.0009, 0.0015, 0.0024, 0.0038, 0.006]
    base = best_rate(16, 2, rates, "width and depth")
    for width, depth in ((128, 2), (16, 16)):
        assert 1 / 1.5 < best_rate(width, depth, rates, "width and depth") / base < 1.5
