"""Softmax attention on sparse features in the limit of long contexts."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from leadline.errors import SolverError
from leadline.spec import (
    Evaluation,
    GradientFlow,
    PerTaskAttention,
    RunSpec,
    SparseFeatures,
    replace,
)
from leadline.theory.predict import predict
from leadline.theory.sparse_laws import compute_law, data_law, front_exponent, size_law, time_law
from leadline.theory.sparse_loss import time_loss
from leadline.theory.sparse_softmax import equal_norms, softmax_output

SOFT = PerTaskAttention(attention="softmax", start=0.05)
TASK = SparseFeatures(num_tasks=3, type_exponent=1.8, context=50, strength=(1.0, -0.7, 0.4))


def run(task=TASK, model=SOFT, times=(0.0, 3.0, 30.0), **evaluation):
    return RunSpec(
        task=task,
        model=model,
        recipe=GradientFlow(times=times),
        evaluation=Evaluation(**evaluation),
    )


@pytest.mark.parametrize("strength", [1.0, -0.6, 2.5])
def test_one_task_against_the_flow_of_its_vectors(strength):
    """v' = -k r tanh(c) u and so on, from the definition; half of the tokens agree."""
    u, rate = np.array([1.0, strength]), 0.3
    norm = equal_norms(0.03 * strength, strength=strength)
    along = norm * u / np.linalg.norm(u)
    times = np.array([0.0, 4.0, 9.0, 15.0, 40.0])

    def velocity(_, state):
        v, k, q = state[:2], state[2:4], state[4]
        c = k @ u * q
        wrong = rate * (v @ u * math.tanh(c) - strength)
        by_logit = wrong * (v @ u) / math.cosh(c) ** 2
        return -np.concatenate([wrong * math.tanh(c) * u, by_logit * q * u, [by_logit * (k @ u)]])

    start = np.concatenate([math.copysign(1, strength) * along, along, [norm]])
    state = solve_ivp(
        velocity, (0, 40), start, t_eval=times, method="DOP853", rtol=1e-12, atol=1e-13
    ).y
    exact = (u @ state[:2]) * np.tanh((u @ state[2:4]) * state[4])
    ours = softmax_output(times, rate=rate, strength=strength, output=0.03 * strength)
    assert exact[0] == pytest.approx(0.03 * strength, rel=1e-12)
    assert 0.05 < np.abs(exact[2] / strength) < 1
    assert ours == pytest.approx(exact, abs=1e-9)


def test_the_time_is_that_of_the_share():
    times = np.array([0.5, 20.0, 3.0])
    slow = softmax_output(4 * times, rate=0.1, strength=1.0, output=0.01)
    assert slow == pytest.approx(softmax_output(times, rate=0.4, strength=1.0, output=0.01))
    assert softmax_output([0.0], rate=1.0, strength=1.0, output=0.01).tolist() == [0.01]
    with pytest.raises(SolverError, match=r"output: got -0\.1 with strength 1"):
        softmax_output(1.0, rate=1.0, strength=1.0, output=-0.1)


def test_predict_knows_no_context():
    spec = run(measures=("output",))
    curve = predict(spec)
    longer = predict(replace(spec, "task.context", 5000))
    assert curve.loss.tolist() == longer.loss.tolist()
    output = curve.measures[0].values
    assert output[0] == pytest.approx(0.05 * np.array(TASK.strength))
    p = np.arange(1.0, 4) ** -1.8
    assert curve.loss == pytest.approx((output - TASK.strength) ** 2 @ (p / p.sum()))
    share = (p / p.sum())[1]
    second = softmax_output(2 * np.array([3.0]), rate=share, strength=-0.7, output=-0.035)
    assert output[1, 1] == pytest.approx(second[0], abs=1e-9)
    small = predict(replace(spec, "model.size", 1))
    assert small.measures[0].values[:, 1:] == pytest.approx(output[[0, 0, 0], 1:])


def test_the_simulated_flow_is_the_limit_of_long_contexts():
    """The distance is a power of the inverse context, of order one."""
    pytest.importorskip("jax")
    from leadline.simulation.train import train

    apart = []
    for context in (200.0, 800.0, 3200.0):
        spec = run(replace(TASK, "context", context), measures=("output",))
        found = [c.measures[0].values for c in (predict(spec), train([spec])[0])]
        apart.append(np.abs(found[0] - found[1]).max())
    assert apart[-1] < 1e-3
    assert -np.diff(np.log(apart)) / math.log(4) == pytest.approx([1, 1], abs=0.05)


def test_laws_of_softmax_attention():
    infinite = SparseFeatures(num_tasks=math.inf, type_exponent=1.8, context=100)
    shorter = replace(infinite, "context_exponent", 0.6)
    assert front_exponent(infinite, model=SOFT) == 1.8
    assert front_exponent(shorter, model=SOFT) == 1.8
    linear = replace(SOFT, "attention", "linear")
    assert front_exponent(shorter, model=linear) == pytest.approx(2.4)
    for law in (size_law, data_law):
        assert law(infinite, model=SOFT) == law(infinite, model=linear)
    for law in (time_law, compute_law):
        with pytest.raises(SolverError, match=r"model\.attention: got 'softmax'"):
            law(infinite, model=SOFT)
    with pytest.raises(SolverError, match=r"model\.attention: got 'softmax'"):
        time_loss(infinite, 1.0, model=SOFT)
    with pytest.raises(SolverError, match=r"task\.strength_exponent: got 0\.4"):
        front_exponent(replace(infinite, "strength_exponent", 0.4), model=SOFT)


def test_the_time_exponent_is_that_of_the_sum():
    """A slope of the loss of 4,096 tasks, in a window far from both ends."""
    task = SparseFeatures(num_tasks=4096, type_exponent=1.8, context=10)
    times = np.geomspace(100, 2500, 12) ** 1.8 / 60
    loss = predict(run(task, times=tuple(times))).loss
    assert np.polyfit(np.log(times), np.log(loss), 1)[0] == pytest.approx(-0.8 / 1.8, abs=0.03)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"task.sequences": 10}, "task.sequences: got 10 with softmax attention"),
        ({"evaluation.strength": 0.5}, "evaluation.strength: got 0.5 with softmax attention"),
        ({"task": replace(TASK, "feature_noise", 0.1)}, "task.feature_noise: got 0.1; the closed"),
        ({"task": replace(TASK, "feature_decay", 3.0)}, "task.feature_decay: got 3; the closed"),
        (
            {"task": SparseFeatures(num_tasks=5000, type_exponent=1.5, context=9)},
            "task.num_tasks: got 5000, expected at most 4096",
        ),
    ],
)
def test_what_theory_refuses(change, text):
    spec = run(model=PerTaskAttention()) if "task" in change else run()
    if "num_tasks" in text:
        spec = run()
    for path, value in change.items():
        spec = replace(spec, path, value)
    with pytest.raises(SolverError) as caught:
        predict(spec)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
