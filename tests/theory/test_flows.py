import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.errors import SolverError
from leadline.theory.flows import flow, scalar_flow

DECADES = np.logspace(-3, 10, 14)


@pytest.mark.parametrize(
    ("slope", "exact"),
    [
        (lambda g: -math.exp(-g), lambda t: np.log1p(t)),
        (lambda g: 2 * (3 * g - 1), lambda t: -np.expm1(-6 * t) / 3),
        (lambda g: -2 * (1 - g / 4) ** 7, lambda t: 4 - 4 * (1 + 3 * t) ** (-1 / 6)),
    ],
    ids=["logarithm", "exponential", "power"],
)
def test_known_solutions_over_thirteen_decades(slope, exact):
    gamma, error = scalar_flow(slope, DECADES)
    assert gamma == pytest.approx(exact(DECADES), abs=1e-9)
    assert np.all(np.abs(gamma - exact(DECADES)) <= 2 * error + 1e-12)
    assert np.all(error < 1e-7)


@settings(derandomize=True, deadline=None, max_examples=20)
@given(rate=st.floats(0.1, 10), start=st.floats(-3, 3))
def test_scaling_the_slope_scales_time(rate, start):
    times = np.array([0.3, 2.0, 30.0])
    plain, error = scalar_flow(lambda g: g**3 - 1, times, start=start)
    scaled, other = scalar_flow(lambda g: rate * (g**3 - 1), times / rate, start=start)
    assert np.all(np.abs(plain - scaled) <= 2 * (error + other) + 1e-11)


def test_looser_tolerance_has_larger_error_and_says_so():
    tight, small = scalar_flow(lambda g: -math.exp(-g), DECADES)
    loose, large = scalar_flow(lambda g: -math.exp(-g), DECADES, tolerance=1e-7)
    exact = np.log1p(DECADES)
    assert np.abs(loose - exact).max() > 100 * np.abs(tight - exact).max()
    assert large.max() > 100 * small.max()
    assert np.abs(loose - exact).max() < large.max()


def test_times_may_begin_and_end_at_zero():
    gamma, _ = scalar_flow(lambda g: g - 1, [0.0, 1.0], start=0.25)
    assert gamma[0] == 0.25
    gamma, error = scalar_flow(lambda g: g - 1, [0.0], start=0.25)
    assert (gamma.tolist(), error.tolist()) == ([0.25], [0])


def test_vector_flow_of_two_stiff_modes():
    rates = np.array([1e4, 1e-2])
    times = np.array([1e-4, 1.0, 100.0])
    states, error = flow(lambda s: -rates * s, times, start=[1.0, 2.0])
    exact = np.array([1.0, 2.0]) * np.exp(-np.outer(times, rates))
    assert states.shape == error.shape == (3, 2)
    assert states == pytest.approx(exact, abs=1e-9)


def test_overflow_is_an_error():
    with pytest.raises(SolverError, match="overflows at time 0"):
        scalar_flow(lambda g: math.inf, [1.0])


def test_blow_up_in_finite_time_is_an_error():
    with pytest.raises(SolverError, match="overflows at time 2"):
        scalar_flow(lambda g: -(g * g), [2.0], start=1.0)


def test_endless_integration_is_an_error():
    """From 1e30 the first steps are 1e-200 long."""
    with pytest.raises(SolverError, match="50000 evaluations"):
        scalar_flow(lambda g: g**7, [1.0], start=1e30)
