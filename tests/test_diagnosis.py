"""The diagnosis of layers against sums written out, and against layers made to measure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import diagnose
from leadline.errors import LeadlineWarning, SolverError, SpecError


def made(rng, *, layers=4, samples=4000, shared=0.5, own=1.0, target=0.0):
    """Layers whose errors are a shared part and independent parts, of these deviations."""
    common = shared * rng.standard_normal(samples)
    return target + common + own * rng.standard_normal((layers, samples)), np.full(samples, target)


def test_every_quantity_is_the_sum_of_its_definition():
    rng = np.random.default_rng(0)
    predictions, targets = rng.standard_normal((3, 20, 2)), rng.standard_normal((20, 2))
    found = diagnose(predictions, targets, draws=2)
    depth, samples = 3, 20
    matrix = np.zeros((depth, depth))
    for i in range(depth):
        for j in range(depth):
            for s in range(samples):
                for o in range(2):
                    one, two = predictions[i, s, o], predictions[j, s, o]
                    matrix[i, j] += (one - targets[s, o]) * (two - targets[s, o]) / samples
    np.testing.assert_allclose(found.errors, matrix, rtol=1e-12)
    loss = ((predictions.mean(0) - targets) ** 2).sum(1).mean()
    own = np.mean([matrix[i][i] for i in range(3)])
    shared = np.mean([matrix[i][j] for i in range(3) for j in range(3) if i != j])
    values = {name: i.estimate for name, i in found.intervals.items()}
    expected = {
        "loss": loss,
        "own": own,
        "shared": shared,
        "disagreement": own - shared,
        "correlation": shared / own,
    }
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, rel=1e-12)
    for layer in range(3):
        rest = np.delete(predictions, layer, axis=0).mean(0)
        without = ((rest - targets) ** 2).sum(1).mean()
        assert found.cost[layer].estimate == pytest.approx(without - loss, rel=1e-10)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 30), st.integers(0, 1000))
def test_the_identity_holds_and_running_read_outs_are_their_steps(depth, samples, seed):
    rng = np.random.default_rng(seed)
    running, targets = rng.standard_normal((depth + 1, samples)), rng.standard_normal(samples)
    found = diagnose(running, targets, kind="running", draws=2)
    last = np.mean((running[-1] - targets) ** 2)
    assert found.intervals["loss"].estimate == pytest.approx(last, rel=1e-9)
    assert found.decomposition.loss == pytest.approx(last, rel=1e-9)


def test_what_layers_share_is_found():
    predictions, targets = made(np.random.default_rng(1), layers=8, shared=0.5, own=2.0)
    found = diagnose(predictions, targets, level=0.999)
    assert found.intervals["shared"].contains(0.25)
    assert found.intervals["disagreement"].contains(4.0)
    assert found.intervals["loss"].contains(0.25 + 4 / 8)
    alike = diagnose(np.repeat(predictions[:1], 8, axis=0), targets)
    assert alike.intervals["disagreement"].estimate == pytest.approx(0, abs=1e-12)
    assert alike.intervals["correlation"].estimate == pytest.approx(1)


def test_a_layer_that_harms_is_cheap_to_drop():
    rng = np.random.default_rng(2)
    predictions, targets = made(rng, layers=5, own=0.5)
    predictions[3] += 4 * rng.standard_normal(predictions.shape[1])
    found = diagnose(predictions, targets)
    assert found.cost[3].high < 0
    assert all(found.cost[i].low > 0 for i in (0, 1, 2, 4))
    card = found.card()
    assert "better without layer: 4, each judged by itself" in card.notes
    assert [row[0] for row in card.rows[5:]] == [f"cost of dropping layer {i}" for i in range(1, 6)]


def test_intervals_cover_at_their_level():
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        predictions, targets = made(rng, samples=200)
        inside += diagnose(predictions, targets, draws=400).intervals["shared"].contains(0.25)
    # three standard errors of a binomial share; 956 of 1,000 other sets were covered
    assert abs(inside / 200 - 0.95) < 3 * np.sqrt(0.05 * 0.95 / 200)


def test_groups_are_resampled_together():
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(100), 40)
    common = 0.5 * rng.standard_normal(100)[groups]
    predictions = common + rng.standard_normal((4, 4000))
    alone = diagnose(predictions, np.zeros(4000)).intervals["shared"]
    together = diagnose(predictions, np.zeros(4000), groups=groups)
    # 100 draws of a square with variance 2 * 0.25^2, instead of 4000
    expected = 2 * 1.96 * np.sqrt(2 * 0.25**2 / 100)
    assert together.intervals["shared"].width == pytest.approx(expected, rel=0.25)
    assert alone.width < together.intervals["shared"].width / 2
    assert together.units == 100
    assert together.intervals["shared"].unit == "group"


def test_the_same_seed_gives_the_same_interval():
    predictions, targets = made(np.random.default_rng(5), samples=50)
    one, two, other = (diagnose(predictions, targets, seed=s) for s in (0, 0, 1))
    assert one.intervals == two.intervals
    assert one.intervals != other.intervals


def test_running_read_outs_taken_for_layers_are_told():
    rng = np.random.default_rng(6)
    running = np.vstack([np.zeros(20), rng.standard_normal((3, 20))])
    with pytest.warns(LeadlineWarning, match="running read-outs need kind='running'"):
        diagnose(running, np.zeros(20), draws=2)
    diagnose(running, np.zeros(20), draws=2, kind="running")
    diagnose(running[1:], np.zeros(20), draws=2)


def test_of_many_layers_those_at_either_end_are_shown():
    rng = np.random.default_rng(7)
    layers = rng.standard_normal((60, 50)) * np.linspace(0.1, 3, 60)[:, None]
    card = diagnose(layers, np.zeros(50), draws=10).card()
    shown = [int(row[0].split()[-1]) for row in card.rows[5:]]
    assert len(shown) == 40
    assert shown == sorted(shown)
    assert "20 layers between these are not shown" in card.notes


GOOD, TARGET = np.zeros((3, 5)), np.ones(5)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"predictions": np.zeros((3, 4))}, SolverError, r"predictions: got the shape \(3, 4\)"),
        ({"predictions": np.zeros(5)}, SolverError, "predictions: got the shape"),
        ({"predictions": np.zeros((1, 5))}, SolverError, "got 1 layers"),
        (
            {"predictions": np.zeros((2, 5)), "kind": "running"},
            SolverError,
            "got 1 layers",
        ),
        (
            {"predictions": np.where(np.arange(15).reshape(3, 5) == 7, np.nan, 0.0)},
            SolverError,
            r"predictions\[1, 2\]: got nan",
        ),
        ({"targets": np.array([0, np.inf, 0, 0, 0])}, SolverError, r"targets\[1\]: got inf"),
        ({"groups": [1, 1, 1, 1]}, SolverError, "groups: got the shape"),
        ({"groups": ["a"] * 5}, SolverError, "groups: got 1, expected at least 2"),
        ({"targets": np.zeros(5)}, SolverError, "every layer hits every target"),
        ({"kind": "both"}, SpecError, "kind: got 'both'"),
        ({"draws": 1}, SpecError, "draws: got 1"),
        ({"level": 1.0}, SpecError, "level: got 1.0"),
    ],
)
def test_mistakes_are_named(change, kind, message):
    given = {"predictions": GOOD, "targets": TARGET} | change
    with pytest.raises(kind, match=message) as error:
        diagnose(given.pop("predictions"), given.pop("targets"), **given)
    assert "\n" not in str(error.value)
