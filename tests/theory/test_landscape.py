"""Sums over modes against direct sums, exact arithmetic and finite differences."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import zeta

from leadline.errors import SolverError
from leadline.spec import Spectrum, source_capacity
from leadline.theory import landscape
from leadline.theory.landscape import PowerLaw, local_exponent
from leadline.theory.spectra import Modes, power_law_modes

LAM, WEIGHTS = np.array([1.0, 0.5, 0.125]), np.array([0.5, 0.25, 0.125])
MODES = Modes(eigenvalues=LAM.copy(), power=WEIGHTS.copy(), weights=WEIGHTS.copy())


def exact(gamma, depth, *, power):
    """Sum of w (1 - gamma lam/L)^power in rational arithmetic."""
    return sum(
        Fraction(w) * (1 - Fraction(gamma) * Fraction(x) / depth) ** power
        for w, x in zip(WEIGHTS.tolist(), LAM.tolist(), strict=True)
    )


@pytest.mark.parametrize("depth", [1, 2, 7, 64])
@pytest.mark.parametrize("ratio", [-0.3, 0.0, 0.7, 1.0, 1.9, 2.0, 2.3])
def test_loss_is_exact_to_its_bound(depth, ratio):
    gamma = ratio * depth
    loss = float(landscape.loss(MODES, gamma, depth=depth))
    error = abs(Fraction(loss) - exact(gamma, depth, power=2 * depth))
    assert error <= landscape.rounding(MODES, gamma, depth=depth)


@pytest.mark.parametrize("depth", [1, 3, 40, math.inf])
def test_slope_is_the_derivative(depth):
    gammas = np.array([-0.5, 0.0, 0.8, 1.5, 2.6])
    high, low = (landscape.loss(MODES, gammas + h, depth=depth) for h in (1e-5, -1e-5))
    slope = landscape.slope(MODES, gammas, depth=depth)
    np.testing.assert_allclose(slope, (high - low) / 2e-5, rtol=1e-6, atol=1e-9)


def test_infinite_depth_is_the_limit():
    gammas = np.array([[0.0, 0.5], [3.0, 20.0]])
    deep = landscape.loss(MODES, gammas, depth=10**9)
    assert deep.shape == gammas.shape
    np.testing.assert_allclose(deep, landscape.loss(MODES, gammas, depth=math.inf), rtol=1e-6)
    expected = np.exp(-2 * np.multiply.outer(gammas, LAM)) @ WEIGHTS
    np.testing.assert_allclose(landscape.loss(MODES, gammas, depth=math.inf), expected, rtol=1e-14)


def test_overflow_is_infinite():
    assert math.isinf(landscape.loss(MODES, 2000.0, depth=400))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(depth=st.integers(1, 3000), scale=st.floats(0.01, 100.0))
def test_best_scale_is_stationary_and_scales(depth, scale):
    best = landscape.best_scale(MODES, depth=depth)
    assert depth <= best <= landscape.edge(MODES, depth=depth)
    loss = landscape.loss(MODES, best, depth=depth)
    around = landscape.loss(MODES, best * np.array([0.999, 1.001]), depth=depth)
    assert (around >= loss).all()
    rescaled = Modes(eigenvalues=scale * LAM, power=WEIGHTS.copy(), weights=WEIGHTS.copy())
    assert landscape.best_scale(rescaled, depth=depth) == pytest.approx(best / scale, rel=1e-10)


def test_best_scale_of_one_layer():
    expected = (WEIGHTS @ LAM) / (WEIGHTS @ LAM**2)
    assert landscape.best_scale(MODES, depth=1) == pytest.approx(expected, rel=1e-14)


def test_best_scale_beyond_the_edge():
    # with hardly any task in the top mode one layer overshoots it
    weights = np.array([1e-9, 1.0])
    modes = Modes(eigenvalues=np.array([1.0, 0.1]), power=weights.copy(), weights=weights)
    best = landscape.best_scale(modes, depth=1)
    assert best > landscape.edge(modes, depth=1)
    assert best == pytest.approx(10.0, rel=1e-5)


@pytest.mark.parametrize("depth", [10**5, 10**7, 10**12])
def test_best_scale_where_the_loss_underflows(depth):
    # two outer modes balance: the best residual is that of the interval, whatever the depth
    best = landscape.best_scale(MODES, depth=depth) / depth
    assert best == pytest.approx(2 / (1.0 + 0.125), rel=1e-4)
    assert landscape.loss(MODES, best * depth, depth=depth) == 0


def test_infinite_depth_has_no_best_scale():
    assert math.isinf(landscape.best_scale(MODES, depth=math.inf))


@pytest.mark.parametrize("depth", [4, 100])
def test_depth_exponent_is_the_derivative(depth):
    modes = power_law_modes(source_capacity(math.inf, nu=1.25, beta=0.8))
    depths = depth * np.array([0.995, 1.005])
    losses = [
        float(landscape.loss(modes, landscape.best_scale(modes, depth=d), depth=d)) for d in depths
    ]
    slope = local_exponent(losses, depths)[0]
    assert landscape.depth_exponent(modes, depth=depth) == pytest.approx(slope, rel=1e-4)


def test_power_law():
    law = PowerLaw(prefactor=3.0, exponent=0.5)
    np.testing.assert_allclose(law([4.0, 9.0]), [1.5, 1.0])
    np.testing.assert_allclose(local_exponent(law([1.0, 4.0, 9.0]), [1.0, 4.0, 9.0]), 0.5)


@pytest.mark.parametrize(("a", "b"), [(1.25, 0.75), (2.0, 0.0), (0.3, 0.71), (0.0, 1.4)])
def test_infinite_sums_are_zeta_functions(a, b):
    modes = power_law_modes(Spectrum(dim=math.inf, input_exponent=a, task_exponent=b))
    for n in (0, 1, 2, 7):
        value = modes.weights @ modes.eigenvalues**n
        assert value == pytest.approx(zeta(a + b + n * a), rel=1e-9)


@pytest.mark.parametrize("dim", [3, 2**14, 2**14 + 1, 200_000])
def test_finite_sums(dim):
    spectrum = source_capacity(dim, nu=1.25, beta=0.8)
    modes = power_law_modes(spectrum)
    k = np.arange(1.0, dim + 1)
    power = k**-2.0 / np.sum(k**-2.0)
    assert modes.total == pytest.approx(1.0, rel=1e-14)
    assert modes.power[0] == pytest.approx(power[0], rel=1e-11)
    for gamma in (1.0, 1e5, 1e7):
        expected = power @ np.exp(-2 * gamma * k**-1.25)
        assert landscape.loss(modes, gamma, depth=math.inf) == pytest.approx(expected, rel=1e-8)


def test_divergent_sum_is_refused():
    with pytest.raises(SolverError, match=r"input_exponent \+ task_exponent is 0\.9"):
        power_law_modes(Spectrum(dim=math.inf, input_exponent=0.5, task_exponent=0.4))
