"""The record that both engines answer with."""

import math

import numpy as np
import pytest

from leadline.curve import Curve, Measure, point, trained
from leadline.spec import (
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    flat,
)


def run(recipe, *, context=4, depth=3, **model):
    task = InContextRegression(spectrum=flat(8), covariance="isotropic", context=context)
    return RunSpec(task=task, model=ReducedAttention(depth=depth, **model), recipe=recipe)


def curve(spec, steps, times=None):
    step = np.array(steps)
    n = len(steps)
    time = step * 0.5 if times is None else np.array(times)
    return trained(spec, step=step, time=time, loss=np.ones(n), error=np.zeros(n))


def test_a_point():
    one = point(0.25, error=1e-9, status="sampled", scalars={"gamma": 2.0})
    assert one.loss.tolist() == [0.25]
    assert one.loss_error.tolist() == [1e-9]
    assert one.step.tolist() == [0]
    assert one.tokens.tolist() == one.flops.tolist() == [0.0]
    assert np.isnan(one.time).all()
    assert one.status == "sampled"
    assert one.scalar("gamma") == 2.0
    with pytest.raises(KeyError):
        one.scalar("beta")
    assert point(1.0, error=0.0).scalars == ()


def test_what_a_training_spends():
    # a step sees 2 contexts of 4 labels and 3 queries; 4^2 8^2 3 = 3072
    spec = run(Training(steps=10, batch_size=2, queries=3, rate=0.5))
    found = curve(spec, [0, 1, 10])
    assert found.tokens.tolist() == [0, 14, 140]
    assert found.flops.tolist() == [0, 3072, 30720]
    assert found.time.tolist() == [0, 0.5, 5.0]


def test_a_narrow_stream_costs_its_width():
    recipe = Training(steps=10, batch_size=2, queries=3, rate=0.5)
    spec = run(recipe, width=2, projection="orthogonal")
    assert curve(spec, [10]).flops.tolist() == [10 * 16 * 4 * 3]


def test_infinite_batches_are_spent_after_the_start_only():
    spec = run(Training(steps=2, batch_size=4, queries=math.inf, rate=0.5))
    assert curve(spec, [0, 2]).tokens.tolist() == [0, math.inf]
    spec = run(Training(steps=2, batch_size=4, queries=1, rate=0.5), depth=math.inf)
    assert curve(spec, [0, 2]).flops.tolist() == [0, math.inf]


def test_a_flow_spends_time_and_no_tokens():
    spec = run(GradientFlow(times=(0, 2)))
    found = curve(spec, [0, 0], times=[0.0, 2.0])
    assert found.tokens.tolist() == [0, 0]
    assert found.flops.tolist() == [0, 2 * 3072]


@pytest.mark.parametrize("name", ["step", "time", "tokens", "flops", "loss", "loss_error"])
@pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
def test_arrays_of_another_shape_are_refused(name, shape):
    arrays = dict.fromkeys(("time", "tokens", "flops", "loss", "loss_error"), np.zeros(2))
    arrays |= {"step": np.zeros(2, np.int64), name: np.zeros(shape)}
    with pytest.raises(ValueError, match="curve arrays differ in shape"):
        Curve(**arrays, status="ok")


def test_measures_are_kept():
    measure = Measure(name="scale", values=np.eye(2))
    spec = run(GivenScale(gamma=1.0))
    zero = np.zeros(1)
    found = trained(
        spec, step=np.zeros(1, np.int64), time=zero, loss=zero, error=zero, measures=(measure,)
    )
    assert found.measures == (measure,)
