"""Residual polynomials against exact rational least squares, direct search and the reference."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from leadline.errors import SolverError
from leadline.spec import source_capacity
from leadline.theory import landscape
from leadline.theory.landscape import local_exponent
from leadline.theory.polynomials import cyclic_steps, free_steps
from leadline.theory.spectra import Modes, power_law_modes

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text())[
    "christoffel_untied_opt"
]


def modes_of(eigenvalues, weights):
    power = np.array(weights, float)
    return Modes(eigenvalues=np.array(eigenvalues, float), power=power, weights=power.copy())


def rational_minimum(eigenvalues, weights, degree):
    """Least sum w p(lam)^2 over p = 1 + c_1 lam + ... by normal equations in rationals."""
    lam = [Fraction(x) for x in eigenvalues]
    w = [Fraction(x) for x in weights]

    def moment(n):
        return sum(a * x**n for a, x in zip(w, lam, strict=True))

    moments = [moment(n) for n in range(2 * degree + 1)]
    rows = [
        [moments[i + j] for j in range(1, degree + 1)] + [-moments[i]] for i in range(1, degree + 1)
    ]
    for i in range(degree):
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for k in range(degree):
            if k != i:
                rows[k] = [x - rows[k][i] * y for x, y in zip(rows[k], rows[i], strict=True)]
    return float(moments[0] + sum(moments[i + 1] * rows[i][-1] for i in range(degree)))


@pytest.mark.parametrize("degree", [1, 2, 5, 9, 11])
def test_free_steps_to_relative_accuracy(degree):
    lam, weights = [1 - k / 16 for k in range(12)], [2.0**-k for k in range(12)]
    free = free_steps(modes_of(lam, weights), depth=degree)
    expected = rational_minimum(lam, weights, degree)
    assert free.loss == pytest.approx(expected, rel=1e-12)
    assert free.status == "converged"
    if degree == 11:
        assert expected < 1e-11


@pytest.mark.parametrize("degree", [1, 3, 6])
def test_scales_are_the_inverse_roots(degree):
    modes = power_law_modes(source_capacity(40, nu=1.0, beta=0.7))
    free = free_steps(modes, depth=degree)
    residual = np.prod(1 - np.multiply.outer(free.scales / degree, modes.eigenvalues), axis=0)
    assert modes.weights @ residual**2 == pytest.approx(free.loss, rel=1e-9)
    assert (np.diff(free.scales) > 0).all()


def test_as_many_layers_as_modes_leave_nothing():
    modes = modes_of([1.0, 0.5, 0.5, 0.1], [1.0, 1.0, 2.0, 1.0])
    free = free_steps(modes, depth=5)
    assert free.loss == 0
    np.testing.assert_allclose(free.scales, 5 / np.array([1.0, 0.5, 0.1, 0.1, 0.1]))
    assert cyclic_steps(modes, depth=6, distinct=3).loss == 0


@pytest.mark.parametrize("row", REFERENCE, ids=lambda r: str(r["nu"]))
def test_reference(row):
    modes = power_law_modes(source_capacity(math.inf, nu=row["nu"], beta=row["beta"]))
    for depth, loss in zip(row["L"], row["loss"], strict=True):
        if depth <= 128:
            tolerance = 1e-5 if depth <= 32 else 1e-3
            assert free_steps(modes, depth=depth).loss == pytest.approx(loss, rel=tolerance)


def test_free_exponent_exceeds_the_tied_one():
    modes = power_law_modes(source_capacity(math.inf, nu=1.25, beta=0.8))
    depths = [64, 128]
    losses = [free_steps(modes, depth=depth).loss for depth in depths]
    assert local_exponent(losses, depths)[0] == pytest.approx(0.8 * 3.25, abs=0.06)


def test_one_distinct_step_is_the_best_scale():
    modes = power_law_modes(source_capacity(50, nu=1.25, beta=0.8))
    for depth in (2, 16, 256):
        cyclic = cyclic_steps(modes, depth=depth, distinct=1)
        best = landscape.best_scale(modes, depth=depth)
        assert cyclic.scales[0] == pytest.approx(best, rel=1e-6)
        assert cyclic.loss == pytest.approx(
            float(landscape.loss(modes, best, depth=depth)), rel=1e-10
        )


@pytest.mark.parametrize(("depth", "distinct"), [(4, 2), (8, 2), (12, 3), (30, 3)])
def test_cyclic_steps_against_direct_search(depth, distinct):
    modes = power_law_modes(source_capacity(25, nu=1.0, beta=0.9))

    def objective(log_scales):
        factors = 1 - np.multiply.outer(np.exp(log_scales), modes.eigenvalues)
        return np.log(modes.weights @ np.prod(factors, axis=0) ** (2 * depth // distinct))

    start = np.log(np.linspace(1.1, 4.0, distinct))
    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 4000, "maxfev": 4000}
    found = minimize(objective, start, method="Nelder-Mead", options=options)
    cyclic = cyclic_steps(modes, depth=depth, distinct=distinct)
    assert cyclic.status == "converged"
    assert cyclic.loss == pytest.approx(math.exp(found.fun), rel=1e-8)
    np.testing.assert_allclose(cyclic.scales / depth, np.sort(np.exp(found.x)), rtol=1e-4)


def test_more_distinct_steps_leave_less():
    modes = power_law_modes(source_capacity(math.inf, nu=1.25, beta=0.8))
    found = [cyclic_steps(modes, depth=48, distinct=m) for m in (1, 2, 4, 8)]
    losses = [steps.loss for steps in found] + [free_steps(modes, depth=48).loss]
    assert (np.diff(losses) < 0).all()
    for steps in found:
        residual = np.prod(1 - np.multiply.outer(steps.scales / 48, modes.eigenvalues), axis=0)
        power = 96 // len(steps.scales)
        assert modes.weights @ np.abs(residual) ** power == pytest.approx(steps.loss, rel=1e-8)


def test_a_search_that_fails_says_so():
    # the least loss underflows: nothing is left to compare
    modes = power_law_modes(source_capacity(30, nu=1.25, beta=0.8))
    assert cyclic_steps(modes, depth=4096, distinct=16).status == "stalled"


def test_refusals():
    modes = modes_of([1.0, 0.5], [1.0, 1.0])
    with pytest.raises(SolverError, match="distinct: got 3, expected a divisor of the depth 8"):
        cyclic_steps(modes, depth=8, distinct=3)
    with pytest.raises(SolverError, match="got 5000 free step sizes"):
        free_steps(modes, depth=5000)
