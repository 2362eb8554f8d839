import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leadline.errors import SolverError
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    flat,
    replace,
)
from leadline.theory.predict import predict

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text(encoding="utf-8")
)


def isotropic(
    recipe, *, dim=32, context=32, depth=4, noise=0.0, query_noise=0.0, record=(), **model
):
    return RunSpec(
        task=InContextRegression(
            spectrum=flat(dim),
            covariance="isotropic",
            context=context,
            noise=noise,
            query_noise=query_noise,
        ),
        model=ReducedAttention(depth=depth, **model),
        recipe=recipe,
        evaluation=Evaluation(record=record),
    )


def exact_gradient(steps, rate):
    return Training(steps=steps, batch_size=math.inf, queries=math.inf, rate=rate)


def test_given_scale_is_one_point_without_cost():
    curve = predict(isotropic(GivenScale(gamma=0.3), depth=1, context=16))
    assert curve.loss == pytest.approx([0.67], abs=1e-14)
    assert 0 < curve.loss_error[0] < 1e-13
    assert curve.status == "ok"
    assert curve.scalar("gamma") == 0.3
    assert (curve.step, curve.tokens, curve.flops) == ([0], [0], [0])
    assert np.isnan(curve.time[0])


@pytest.mark.parametrize(
    ("gamma", "status"),
    [(-1.0, "ok"), (1.99, "ok"), (2.0, "ok"), (2.01, "unstable"), (1e300, "diverged")],
)
def test_status_at_the_edge_of_stability(gamma, status):
    """At ratio one the edge is gamma = depth / 2."""
    assert predict(isotropic(GivenScale(gamma=gamma))).status == status


@pytest.mark.parametrize(("depth", "loss"), [(1, 0.5), (2, 0.375), (3, 0.3125), (math.inf, 0.0)])
def test_best_scale_at_ratio_one_lies_on_the_edge(depth, loss):
    curve = predict(isotropic(BestScale(), depth=depth))
    assert curve.loss[0] == pytest.approx(loss, abs=1e-15)
    assert curve.scalar("gamma") == depth / 2
    assert curve.status == "ok"


def test_best_scale_with_noise():
    curve = predict(isotropic(BestScale(), depth=1, context=64, noise=0.5))
    assert curve.loss[0] == pytest.approx(1.25 / 3.25, abs=1e-14)
    assert curve.scalar("gamma") == pytest.approx(2 / 3.25, rel=1e-10)


def test_flow_at_depth_one_is_exponential():
    times = (0.0, 0.01, 0.3, 2.0, 1e10)
    curve = predict(isotropic(GradientFlow(times=times), depth=1, context=64, noise=0.5))
    s = 1 + 1.25 / 2
    exact = 1 - 1 / s + np.exp(-4 * s * np.array(times)) / s
    assert np.all(np.abs(curve.loss - exact) <= curve.loss_error)
    assert curve.loss_error.max() < 1e-8
    assert np.array_equal(curve.time, times)
    assert curve.scalar("gamma") == pytest.approx(1 / s, abs=1e-12)


@pytest.mark.parametrize("depth", [2, 5, 64, math.inf])
def test_flow_with_infinite_context_is_a_power(depth):
    """One mode: r^(2 - 2L) = 1 + 4 (1 - 1/L) t."""
    times = np.concatenate([[0.0], np.logspace(-2, 10, 13)])
    spec = isotropic(GradientFlow(times=tuple(times)), depth=depth, context=math.inf)
    curve = predict(spec)
    share = 1 - 1 / depth
    exact = (1 + 4 * share * times) ** (-1 / share)
    assert np.all(np.abs(curve.loss - exact) <= curve.loss_error)
    assert curve.loss_error.max() < 1e-8
    assert curve.flops.tolist() == [0] + 13 * [math.inf]


@pytest.mark.parametrize("noise", [0.0, 0.7])
@pytest.mark.parametrize("depth", [3, math.inf])
def test_flow_falls_to_the_best_scale(noise, depth):
    times = (0.0, 0.1, 1.0, 10.0, 1e3, 1e10)
    curve = predict(isotropic(GradientFlow(times=times), depth=depth, context=16, noise=noise))
    best = predict(isotropic(BestScale(), depth=depth, context=16, noise=noise))
    assert curve.loss[0] == pytest.approx(1, abs=1e-14)
    assert np.all(np.diff(curve.loss) <= 1e-14)
    assert curve.loss[-1] == pytest.approx(best.loss[0], abs=1e-8)
    assert curve.flops.tolist() == [t and t * 16**2 * 32**2 * depth for t in times]
    assert curve.tokens.tolist() == [0] * 6


def test_flow_from_beyond_the_edge_comes_back():
    curve = predict(isotropic(GradientFlow(times=(0.0, 100.0), start=3.0), noise=0.5))
    best = predict(isotropic(BestScale(), noise=0.5))
    assert curve.status == "unstable"
    assert curve.loss[-1] == pytest.approx(best.loss[0], abs=1e-12)


def test_exact_gradients_reference():
    for row in REFERENCE["training"]["iso"]:
        dim = row["D"]
        curve = predict(
            isotropic(
                exact_gradient(60, row["eta"] * dim),
                dim=dim,
                context=int(row["alpha"] * dim),
                depth=row["L"],
                noise=row["sigma"],
                record=(0, 5, 20, 60),
            )
        )
        assert curve.loss == pytest.approx([loss for loss, _ in row["th"]], abs=1e-8)
        assert curve.scalar("gamma") == pytest.approx(row["th"][-1][1], abs=1e-6)
        assert curve.time == pytest.approx(np.array([0, 5, 20, 60]) * row["eta"])
        assert curve.step.tolist() == [0, 5, 20, 60]
        assert curve.tokens.tolist() == [0, math.inf, math.inf, math.inf]


@pytest.mark.parametrize("index", [0, 4, 8])
def test_shallow_training_reference(index):
    """The rate multiplies the gradient: half the dimension times the paper's rate."""
    row = REFERENCE["sgd"][index]
    dim = row["D"]
    recipe = Training(
        steps=row["T"],
        batch_size=int(row["tau"] * dim),
        queries=int(row["kappa"] * dim),
        rate=row["eta"] * dim / 2,
    )
    context, steps = int(row["alpha"] * dim), range(row["T"] + 1)
    curve = predict(
        isotropic(
            recipe,
            dim=dim,
            context=context,
            depth=1,
            noise=row["sigma"],
            query_noise=row["sigma"] * row["noisy_test"],
            record=tuple(steps),
        )
    )
    assert curve.loss == pytest.approx(row["L_th"], abs=1e-12)
    assert curve.time == pytest.approx(np.array(steps) * row["eta"] / 2)
    per_step = recipe.batch_size * (context + recipe.queries)
    assert curve.tokens.tolist() == [per_step * t for t in steps]
    assert curve.flops.tolist() == [t * context**2 * dim**2 for t in steps]


def test_training_records_the_last_step_unless_asked():
    curve = predict(isotropic(exact_gradient(7, 0.1)))
    assert curve.step.tolist() == [7]
    zero = predict(isotropic(exact_gradient(0, 0.1)))
    assert zero.loss == pytest.approx([1], abs=1e-14)
    assert zero.scalar("gamma") == 0


def test_flow_is_the_limit_of_small_steps():
    """The distance falls in proportion to the rate."""
    flow = predict(isotropic(GradientFlow(times=(1.0,)), noise=0.3)).loss[0]
    gaps = [
        predict(isotropic(exact_gradient(n, 32 / n), noise=0.3)).loss[0] - flow
        for n in (100, 200, 400)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.03)
    assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.03)


def test_too_large_a_rate_at_depth_one():
    recipe = Training(steps=100, batch_size=32, queries=32, rate=1.0)
    limit = predict(isotropic(recipe, depth=1)).scalar("largest_rate")
    assert limit == pytest.approx(32 / (2 * 3), rel=1e-12)
    for factor, steps, status in (
        (0.99, 100, "ok"),
        (1.01, 100, "unstable"),
        (10, 500, "diverged"),
    ):
        recipe = Training(steps=steps, batch_size=32, queries=32, rate=factor * limit)
        assert predict(isotropic(recipe, depth=1)).status == status


def test_too_large_a_rate_at_depth():
    assert predict(isotropic(exact_gradient(50, 10 * 32.0))).status == "diverged"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (isotropic(BestScale(), dim=math.inf), "task.spectrum.dim: got infinity"),
        (isotropic(BestScale(), width=8, projection="orthogonal"), "model.width: got 8"),
        (isotropic(BestScale(), tied=False), "model.tied: got False"),
        (
            isotropic(Training(steps=1, batch_size=4, queries=math.inf, rate=1.0)),
            "recipe.batch_size, recipe.queries: got 4, inf at model.depth 4",
        ),
        (
            isotropic(GradientFlow(times=(1.0,), start=1e60)),
            "gradient flow: the velocity overflows",
        ),
    ],
)
def test_refusals_name_the_field(spec, message):
    with pytest.raises(SolverError) as caught:
        predict(spec)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("evaluation.measures", ("layer errors",), "evaluation.measures: got layer errors"),
        ("evaluation.task", isotropic(BestScale(), noise=1.0).task, "evaluation.task: isotropic"),
    ],
)
def test_evaluations_without_a_solver_are_refused(path, value, message):
    with pytest.raises(SolverError, match=message):
        predict(replace(isotropic(BestScale()), path, value))


def test_a_landscape_point_imports_no_scipy():
    code = """
import sys
from leadline.spec import *
from leadline.theory.predict import predict
task = InContextRegression(spectrum=flat(8), covariance="isotropic", context=8)
predict(RunSpec(task=task, model=ReducedAttention(depth=2), recipe=GivenScale(gamma=1.0)))
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"scipy", "jax", "polars", "ray"}, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
