"""The best shape from exact theory: against exhaustive search, and where four terms do not add."""

import itertools
import math

import numpy as np
import pytest

from leadline.errors import PlanError
from leadline.planning.exact import additivity, best_shape
from leadline.spec import (
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    flat,
    source_capacity,
)
from leadline.theory.predict import predict

COST = "t P^2 N^2 L"


def task(dim, *, nu=1.25, beta=0.8, noise=0.0, context=math.inf, covariance="rotated"):
    spectrum = source_capacity(dim, nu=nu, beta=beta)
    if covariance == "isotropic":
        spectrum = flat(dim)
    return InContextRegression(
        spectrum=spectrum, covariance=covariance, context=context, noise=noise
    )


def loss_of(wanted, width, depth, context, time):
    """The loss of one shape through `predict`, in the bare clock of an orthogonal projection."""
    ratio = wanted.spectrum.dim / width
    spec = RunSpec(
        task=InContextRegression(
            spectrum=wanted.spectrum, covariance="rotated", context=context, noise=wanted.noise
        ),
        model=ReducedAttention(depth=depth, width=width, projection="orthogonal"),
        recipe=GradientFlow(times=(time * ratio**2,)),
    )
    return predict(spec).loss[0]


def test_the_shape_spends_the_budget_and_no_neighbor_is_better():
    wanted, budget = task(4000, noise=0.2), 1e5
    found = best_shape(wanted, budget, cost=COST)
    width, depth, context = (found.sizes[name] for name in ("width", "depth", "context"))
    steps = found.sizes["steps"]
    assert steps * width**2 * depth * context**2 == pytest.approx(budget)
    assert {type(n) for n in (width, depth, context)} == {int}
    assert found.loss == pytest.approx(loss_of(wanted, width, depth, context, steps), rel=1e-8)
    assert 0 < found.loss_error < 1e-7 * found.loss
    assert 0 < found.gamma_over_edge < 1
    for a, b, c in itertools.product((-1, 0, 1), repeat=3):
        n, p = round(width * 1.25**a), context + c
        shape = n, max(1, depth + b), p
        time = budget / (shape[0] ** 2 * shape[1] * shape[2] ** 2)
        assert loss_of(wanted, *shape, time) > found.loss * (1 - 2e-5)
    assert any("noise" in note for note in found.notes)


def test_additive_law_overstates_and_asks_for_too_much_depth():
    found = best_shape(task(10**7), 1e9, cost=COST)
    assert found.additive is not None
    # the parts hide one another: together they leave little more than half of their sum
    assert found.loss < 0.6 * sum(found.alone.values())
    assert found.loss > max(found.alone.values())
    assert found.loss < found.additive_loss < 1.2 * found.loss
    assert found.sizes["depth"] < found.additive_sizes["depth"]
    assert found.sizes["steps"] > found.additive_sizes["steps"]
    np.testing.assert_allclose(
        found.additive.growth, np.array([2.8, 0.8, 1.0, 0.8]) / (3 + 0.8 + 4 / 1.25)
    )
    # dimension no longer matters
    endless = best_shape(task(math.inf), 1e9, cost=COST)
    assert endless.loss == pytest.approx(found.loss, rel=0.02)


def test_near_equal_width_and_context():
    joint = additivity(task(200), width=100, depth=64, context=100)
    assert joint.loss == pytest.approx(0.0397, abs=1e-4)
    assert joint.alone["width"] == pytest.approx(0.0206, abs=1e-4)
    assert joint.alone["context"] == pytest.approx(0.0098, abs=1e-4)
    assert joint.loss > 1.1 * sum(joint.alone.values())
    assert joint.deep_limit == math.inf
    deep = additivity(task(200), width=100, depth=1024, context=100)
    assert deep.gamma_over_edge < 0.2
    apart = additivity(task(200), width=100, depth=64, context=30)
    assert apart.deep_limit < 2 * sum(apart.alone.values())


def test_logarithms_are_named():
    found = best_shape(task(10**6, beta=1.0), 1e5, cost=COST)
    assert found.additive is None
    assert found.additive_sizes == {}
    assert math.isnan(found.additive_loss)
    assert "logarithm" in found.notes[0]


def test_needed_dimension():
    with pytest.raises(PlanError, match=r"dim: got 50; .* expected dim >= (\d+)") as refusal:
        best_shape(task(50), 1e6, cost=COST)
    needed = int(str(refusal.value).split("dim >= ")[1].split(",")[0])
    found = best_shape(task(2 * needed), 1e6, cost=COST)
    assert needed / 2 < 4 * found.sizes["width"] < 2 * needed


@pytest.mark.parametrize(
    ("wanted", "budget", "cost", "message"),
    [
        (task(10**6), 0.5, COST, "budget: got 0.5, expected a finite number >= 1"),
        (task(10**6), math.nan, COST, "budget: got nan"),
        (task(10**6), math.inf, COST, "budget: got inf"),
        (task(10**6), 1e6, "6ND", "cost '6ND' counts params, tokens; exact theory has"),
        (task(10**6), 1e6, "t P^2 N^2", "cost: 't P\\^2 N\\^2' is no product .*expected one of"),
        (task(10**6, context=64), 1e6, COST, "task.context: got 64, expected infinity"),
        (task(100, covariance="isotropic"), 1e6, COST, "covariance: got 'isotropic'"),
    ],
)
def test_refusals(wanted, budget, cost, message):
    with pytest.raises(PlanError, match=message):
        best_shape(wanted, budget, cost=cost)


def test_smallest_budget():
    found = best_shape(task(10**6), 1.0, cost=COST)
    assert dict(found.sizes) == {"steps": 1.0, "width": 1, "depth": 1, "context": 1}
