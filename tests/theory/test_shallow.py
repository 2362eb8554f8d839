import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.theory.isotropic import descent, landscape
from leadline.theory.shallow import ShallowTraining

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text(encoding="utf-8")
)["sgd"]
ratios = st.fractions(Fraction(1, 20), 20, max_denominator=64)
noises = st.fractions(0, 2, max_denominator=8)


def shallow(**changes):
    return ShallowTraining(
        **{"ratio": 1.0, "batch_ratio": 1.0, "query_ratio": 1.0, "step_size": 0.05, **changes}
    )


@pytest.mark.parametrize("index", range(len(REFERENCE)))
def test_shallow_training_reference(index):
    row = REFERENCE[index]
    training = shallow(
        ratio=row["alpha"],
        batch_ratio=row["tau"],
        query_ratio=row["kappa"],
        step_size=row["eta"] / 2,
        noise=row["sigma"],
        query_noise=row["sigma"] * row["noisy_test"],
    )
    steps = np.arange(row["T"] + 1)
    assert 1 - training.gap == pytest.approx(row["a"], abs=1e-12)
    assert training.injection == pytest.approx(row["b"], abs=1e-12)
    assert training.distance(steps) == pytest.approx(row["C_th"], abs=1e-12)
    assert training.loss(steps) == pytest.approx(row["L_th"], abs=1e-12)
    assert training.loss(steps) == pytest.approx(row["L_sim"], abs=15 / row["D"])


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    ratio=ratios,
    batch=ratios,
    query=ratios,
    noise=noises,
    query_noise=noises,
    share=st.fractions(Fraction(1, 1000), Fraction(3, 2), max_denominator=1000),
)
def test_shallow_training_against_the_recursion(ratio, batch, query, noise, query_noise, share):
    """In rational arithmetic, below and above the largest step; the rounding bound holds."""
    rounded = [Fraction(float(v)) for v in (ratio, batch, query)]
    ratio, batch, query = rounded
    s = 1 + (1 + noise**2) / ratio
    step_size = Fraction(float(share / (s * (1 + (1 + 1 / query) / batch))))
    eta = 2 * step_size
    a = (1 - eta * s) ** 2 + eta**2 / batch * (1 + 1 / query) * s**2
    b = eta**2 / batch * ((1 + 1 / query) * (1 + noise**2) / ratio + s * query_noise**2 / query)
    training = ShallowTraining(
        ratio=float(ratio),
        batch_ratio=float(batch),
        query_ratio=float(query),
        step_size=float(step_size),
        noise=float(noise),
        query_noise=float(query_noise),
    )
    assert training.largest_step == pytest.approx(float(step_size / share), rel=1e-12)
    distance = 1 / s**2
    for step in range(40):
        exact = float(s * distance + 1 - 1 / s)
        assert abs(training.loss(step) - exact) <= training.rounding(step)
        distance = a * distance + b
        distance = distance.limit_denominator(10**40)


def test_shallow_training_with_exact_gradients_is_descent():
    exact = shallow(ratio=2.0, batch_ratio=math.inf, query_ratio=math.inf, noise=0.5)
    path = descent(30, step_size=0.05, depth=1, ratio=2.0, noise=0.5)
    assert exact.gamma(np.arange(31)) == pytest.approx(path, abs=1e-14)
    losses = landscape(path, depth=1, ratio=2.0, noise=0.5)
    assert exact.loss(np.arange(31)) == pytest.approx(losses, abs=1e-14)


def test_one_perfect_step():
    """eta s = 1 with exact gradients: a = 0."""
    perfect = shallow(ratio=1.0, batch_ratio=math.inf, query_ratio=math.inf, step_size=0.25)
    assert perfect.loss([0, 1, 2]) == pytest.approx([1, 0.5, 0.5], abs=1e-15)


def test_largest_step_separates_decay_from_growth():
    limit = shallow().largest_step
    below, above = shallow(step_size=0.99 * limit), shallow(step_size=1.01 * limit)
    assert below.gap > 0 > above.gap
    assert below.loss(10**4) == pytest.approx(below.loss(10**5), rel=1e-12)
    assert above.loss(10**4) > 1e10


def simulate_shallow(*, dim, context, batch, queries, eta, noise, query_noise, steps, seed):
    """Gradient descent on the n x n matrix from the gradient of the batch loss itself."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((dim, dim))

    def draw(count):
        tasks = rng.standard_normal((count, dim, 1)) / math.sqrt(dim)
        inputs = rng.standard_normal((count, context, dim))
        labels = inputs @ tasks + noise * rng.standard_normal((count, context, 1))
        return tasks, inputs, inputs.transpose(0, 2, 1) @ labels / context

    for _ in range(steps):
        tasks, _, evidence = draw(batch)
        held_out = rng.standard_normal((batch, queries, dim))
        targets = held_out @ tasks + query_noise * rng.standard_normal((batch, queries, 1))
        residual = held_out @ (matrix @ evidence) - targets
        pull = held_out.transpose(0, 2, 1) @ residual
        gradient = 2 / (batch * queries) * np.einsum("bi,bj->ij", pull[..., 0], evidence[..., 0])
        matrix -= eta * dim / 2 * gradient
    tasks, _, evidence = draw(4 * dim)
    return np.mean(np.sum((matrix @ evidence - tasks) ** 2, axis=(1, 2)))


@pytest.mark.parametrize(("noise", "query_noise"), [(0.0, 0.0), (0.5, 0.0), (0.5, 1.0)])
def test_shallow_training_against_simulation(noise, query_noise):
    """Finite dimension raises the loss by a relative 3 to 5 / dim here."""
    dim, steps, seeds, eta = 64, 25, 8, 0.1
    setup = {"dim": dim, "context": 96, "batch": 48, "queries": 32, "eta": eta}
    losses = [
        simulate_shallow(**setup, noise=noise, query_noise=query_noise, steps=steps, seed=seed)
        for seed in range(seeds)
    ]
    mean, error = np.mean(losses), np.std(losses) / math.sqrt(seeds)
    setup = {"ratio": 1.5, "batch_ratio": 0.75, "query_ratio": 0.5, "step_size": eta / 2}
    theory = ShallowTraining(**setup, noise=noise, query_noise=query_noise).loss(steps)
    assert theory == pytest.approx(mean, abs=4 * error + 5 / dim * mean)
    # without the noise of the queries' labels, or of their inputs, theory would be seen to fail
    if query_noise:
        assert ShallowTraining(**setup, noise=noise).loss(steps) < mean - 10 * error
    setup["query_ratio"] = math.inf
    assert ShallowTraining(**setup, noise=noise).loss(steps) < mean - 10 * error
