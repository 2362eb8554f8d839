"""Fixed covariance against the flow of full matrices, the definition and the reference slopes."""

import json
import math
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
    Spectrum,
    Training,
    source_capacity,
)
from leadline.theory import fixed
from leadline.theory.landscape import local_exponent
from leadline.theory.predict import predict
from leadline.theory.spectra import Modes, power_law_modes

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text())
LAM, OMEGA = np.array([1.0, 0.6, 0.3, 0.2]), np.array([0.5, 0.9, 0.2, 1.5])
MODES = Modes(eigenvalues=LAM.copy(), power=OMEGA * LAM, weights=OMEGA * LAM)


def matrix_loss(gamma, sigma, omega, depth):
    """Tr Omega M^T Sigma M with M = (I - Gamma Sigma/L)^L, for a stack of matrices."""
    power = np.linalg.matrix_power(np.eye(len(sigma)) - gamma @ sigma / depth, depth)
    return np.einsum("ij,...kj,kl,...li->...", omega, power, sigma, power)


def gradient(gamma, sigma, omega, depth):
    dim = len(sigma)
    units = np.eye(dim * dim).reshape(-1, dim, dim)
    return matrix_loss(gamma + 1e-30j * units, sigma, omega, depth).imag.reshape(dim, dim) / 1e-30


def matrix_flow(start, sigma, omega, depth, time, steps):
    gamma, h = start, time / steps

    def velocity(g):
        return -gradient(g, sigma, omega, depth)

    for _ in range(steps):
        a = velocity(gamma)
        b = velocity(gamma + h / 2 * a)
        c = velocity(gamma + h / 2 * b)
        gamma = gamma + h / 6 * (a + 2 * b + 2 * c + velocity(gamma + h * c))
    return gamma


@pytest.mark.parametrize(("depth", "start"), [(1, 0.0), (2, 0.0), (3, 0.0), (3, 0.7), (2, 2.6)])
def test_matrix_gradient_flow(depth, start):
    # start 2.6 at depth 2 begins with the first mode flipped
    basis, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((4, 4)))
    sigma, omega = basis * LAM @ basis.T, basis * OMEGA @ basis.T
    gamma = matrix_flow(start * np.eye(4), sigma, omega, depth, 6.0, 300)
    scales = fixed.flow_scales(MODES, [6.0], depth=depth, start=start)[0]
    np.testing.assert_allclose(basis.T @ gamma @ basis, np.diag(scales), atol=1e-9)
    loss = fixed.flow_loss(MODES, [6.0], depth=depth, start=start)[0]
    assert loss == pytest.approx(matrix_loss(gamma, sigma, omega, depth), rel=1e-9)


def test_printed_forms():
    t = np.array([0.0, 0.5, 20.0, 1e4])
    s = np.multiply.outer(t, OMEGA * LAM**3)
    power = OMEGA * LAM
    for depth in (2, 5, 64):
        expected = (1 + 4 * (1 - 1 / depth) * s) ** (-depth / (depth - 1)) @ power
        np.testing.assert_allclose(fixed.flow_loss(MODES, t, depth=depth), expected, rtol=1e-13)
    np.testing.assert_allclose(fixed.flow_loss(MODES, t, depth=1), np.exp(-4 * s) @ power)
    np.testing.assert_allclose(fixed.flow_loss(MODES, t, depth=math.inf), (1 / (1 + 4 * s)) @ power)
    np.testing.assert_allclose(
        fixed.flow_scales(MODES, t, depth=math.inf), np.log1p(4 * s) / (2 * LAM), atol=1e-14
    )


@pytest.mark.parametrize("start", [0.0, 1.3])
def test_large_depth_tends_to_infinite_depth(start):
    t = [0.0, 3.0, 1e3]
    for quantity in (fixed.flow_loss, fixed.flow_scales):
        deep = quantity(MODES, t, depth=10**8, start=start)
        np.testing.assert_allclose(deep, quantity(MODES, t, depth=math.inf, start=start), rtol=1e-6)


@pytest.mark.parametrize("row", REFERENCE["fs_exponents"], ids=lambda r: f"{r['nu']}-{r['L']}")
def test_reference_exponents(row):
    spectrum = source_capacity(math.inf, nu=row["nu"], beta=row["beta"])
    modes, depth = power_law_modes(spectrum), float(row["L"])
    times = np.geomspace(1e6, 1e10, 5)
    slopes = local_exponent(fixed.flow_loss(modes, times, depth=depth), times)
    assert np.abs(slopes - row["right"]).max() < 1e-4
    assert np.abs(slopes - row["wrong"]).min() > 4e-3
    law = fixed.time_law(spectrum, depth=depth)
    assert law.exponent == pytest.approx(row["right"], abs=1e-12)
    assert fixed.flow_loss(modes, [1e12], depth=depth)[0] == pytest.approx(law(1e12), rel=1e-6)


@pytest.mark.parametrize("depth", [1, 3, math.inf])
def test_local_exponent_is_the_derivative(depth):
    modes = power_law_modes(source_capacity(300, nu=1.25, beta=0.8))
    low, high = fixed.flow_loss(modes, [1e3 * 0.999, 1e3 * 1.001], depth=depth)
    slope = -math.log(high / low) / math.log(1.001 / 0.999)
    assert fixed.flow_exponent(modes, [1e3], depth=depth)[0] == pytest.approx(slope, rel=1e-6)


def test_time_law_needs_a_power_law():
    with pytest.raises(SolverError, match="input_exponent"):
        fixed.time_law(Spectrum(dim=10, input_exponent=0.0, task_exponent=2.0), depth=2)


def run(recipe, *, dim=40, depth=3, evaluation=None, context=math.inf, **model):
    task = InContextRegression(
        spectrum=source_capacity(dim, nu=1.25, beta=0.8), covariance="fixed", context=context
    )
    return RunSpec(
        task=task,
        model=ReducedAttention(depth=depth, **model),
        recipe=recipe,
        evaluation=evaluation or Evaluation(),
    )


def test_predicted_flow():
    times = (0.0, 10.0, 1e4)
    curve = predict(run(GradientFlow(times=times), evaluation=Evaluation(measures=("scales",))))
    k = np.arange(1.0, 41)
    lam, power = k**-1.25, k**-2.0
    power /= power.sum()
    s = 4 * (2 / 3) * np.multiply.outer(times, power * lam**2)
    expected = (1 + s) ** -1.5 @ power
    np.testing.assert_allclose(curve.loss, expected, rtol=1e-13)
    assert np.all(np.abs(curve.loss - expected) <= curve.loss_error + 1e-15)
    assert np.all(curve.loss_error < 1e-13)
    assert curve.status == "ok"
    np.testing.assert_array_equal(curve.time, times)
    np.testing.assert_allclose(
        curve.measures[0].values, 3 * (1 - (1 + s) ** -0.25) / lam, atol=1e-12
    )


@pytest.mark.parametrize("dim", [20_000, math.inf])
def test_error_of_the_tail_is_honest(dim):
    spec = run(GradientFlow(times=(1e3, 1e12)), dim=dim)
    finer = power_law_modes(spec.task.spectrum, explicit=2**17)
    curve = predict(spec)
    expected = fixed.flow_loss(finer, spec.recipe.times, depth=3)
    assert np.all(np.abs(curve.loss - expected) <= curve.loss_error)
    assert np.all(curve.loss_error < 1e-9 * curve.loss)


def test_scale_recipes_are_the_landscape():
    k = np.arange(1.0, 41)
    lam, power = k**-1.25, k**-2.0 / np.sum(k**-2.0)
    given = predict(run(GivenScale(gamma=2.0)))
    assert given.loss[0] == pytest.approx(power @ (1 - 2 * lam / 3) ** 6, rel=1e-13)
    best = predict(run(BestScale()))
    grid = np.linspace(0, 6, 4001)
    losses = (1 - np.multiply.outer(grid, lam) / 3) ** 6 @ power
    assert best.scalar("gamma") == pytest.approx(grid[np.argmin(losses)], abs=2e-3)
    assert losses.min() * (1 - 1e-6) < best.loss[0] <= losses.min()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 100}, "task.context: got 100, expected infinity"),
        ({"width": 8, "projection": "orthogonal"}, "model.width: got 8"),
        (
            {"recipe": Training(steps=3, batch_size=4, queries=4, rate=0.1)},
            "recipe: got Training",
        ),
        ({"evaluation": Evaluation(measures=("modes",))}, "records scales here"),
    ],
)
def test_refusals(changes, message):
    recipe = changes.pop("recipe", GradientFlow(times=(1.0,)))
    with pytest.raises(SolverError, match=message):
        predict(run(recipe, **changes))
