"""Theory against simulation on isotropic contexts.

The infinite-dimensional law differs from D dimensions by at most `ALLOWANCE`/D, relative to the
loss (its exact value at depth one is gamma^2/P). Planted mistakes must miss by more than ten
standard errors.
"""

import math

import numpy as np
import pytest

from leadline.simulation.train import train
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    flat,
    grid,
    replace,
)
from leadline.theory.predict import predict

DIM = 128
ALLOWANCE = 3.0


def spec(ratio, depth, noise, *, contexts, recipe, dim=DIM):
    return RunSpec(
        task=InContextRegression(
            spectrum=flat(dim), covariance="isotropic", context=int(ratio * dim), noise=noise
        ),
        model=ReducedAttention(depth=depth),
        recipe=recipe,
        evaluation=Evaluation(contexts=contexts),
    )


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_landscape(ratio):
    contexts = 240 if ratio == 2 else 48
    base = spec(ratio, 1, 0.0, contexts=contexts, recipe=GivenScale(gamma=0.1))
    edge = 2 / (1 + ratio**-0.5) ** 2
    specs = [
        replace(
            replace(replace(base, "model.depth", depth), "task.noise", noise),
            "recipe",
            GivenScale(gamma=depth * edge * share),
        )
        for depth in (1, 4, 16)
        for noise in (0.0, 0.5)
        for share in (0.2, 0.5, 0.8)
    ]
    for run, curve in zip(specs, train(specs), strict=True):
        expected, error = predict(run).loss[0], curve.loss_error[0]
        assert error < 0.005 * curve.loss[0], run
        allowed = 4 * error + ALLOWANCE / DIM * expected
        assert abs(curve.loss[0] - expected) < allowed, run
        gamma = run.recipe.gamma
        if run.task.noise and gamma == depth_edge(run, edge) * 0.8:
            wrong = predict(replace(run, "task.noise", 2 * run.task.noise)).loss[0]
            assert abs(curve.loss[0] - wrong) > 10 * error, run
        if gamma == depth_edge(run, edge) * 0.2:
            wrong = predict(replace(run, "recipe", GivenScale(gamma=2 * gamma))).loss[0]
            assert abs(curve.loss[0] - wrong) > 10 * error, run


def depth_edge(run, edge):
    return run.model.depth * edge


def test_published_minimum_at_depth_one_is_that_of_another_quantity():
    run = spec(1.0, 1, 0.0, contexts=64, recipe=BestScale())
    curve = train([run])[0]
    error = curve.loss_error[0]
    assert error < 0.005 * curve.loss[0]
    assert abs(curve.loss[0] - predict(run).loss[0]) < 4 * error + ALLOWANCE / DIM * 0.5
    assert abs(curve.loss[0] - (1 + 1.0) ** -2) > 10 * error


def test_gradient_descent_follows_the_flow_and_not_one_at_half_or_double_speed():
    """Small steps with many contexts, against theory's exact-gradient descent at the same rate and
    at twice and half of it.
    """
    dim, steps = 48, 20
    recipe = Training(steps=steps, batch_size=512, queries=math.inf, rate=0.02 * dim)
    run = spec(1.0, 4, 0.0, contexts=256, recipe=recipe, dim=dim)
    losses = np.array([c.loss[-1] for c in train(grid(run, {"seed": range(4)}))])
    curve = train([run])[0]
    error = math.hypot(curve.loss_error[-1], losses.std(ddof=1) / 2)
    exact = Training(steps=steps, batch_size=math.inf, queries=math.inf, rate=0.02 * dim)
    expected = predict(replace(run, "recipe", exact)).loss[-1]
    assert error < 0.005 * expected
    assert abs(losses.mean() - expected) < 4 * error + ALLOWANCE / dim * expected
    for factor in (0.5, 2.0):
        planted = predict(replace(run, "recipe", replace(exact, "rate", 0.02 * dim * factor)))
        assert abs(losses.mean() - planted.loss[-1]) > 10 * error
