"""Linear attention on the easy task against the reference and 80-digit recursions."""

import json
import math
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from leadline.errors import SolverError
from leadline.spec import Spectrum
from leadline.theory.linear_easy import (
    mode_depths,
    mode_residuals,
    tied_steps,
    window_exponent,
)
from leadline.theory.polynomials import cyclic_steps, free_steps, outlier_steps
from leadline.theory.spectra import power_law_modes

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "peng2026.json").read_text())
SPECTRA = [(2, 0.5), (2, 1), (2, 1.5), (2, 2), (0.5, 2), (1, 2), (1.5, 2)]
DEPTHS = [1, 2, 4, 8, 16]


def modes_of(a, b, dim=128):
    return power_law_modes(Spectrum(dim=dim, input_exponent=a, task_exponent=b))


def named(name):
    return [row for row in REFERENCE if row["name"] == name]


def spectrum_of(row):
    a, b = row["inputs"]["ab"].strip("()").split(",")
    return modes_of(float(a), float(b), row["inputs"]["d"])


@pytest.mark.parametrize(
    ("name", "steps"),
    [("constrained", tied_steps), ("free", free_steps)],
    ids=["constrained", "free"],
)
def test_losses(name, steps):
    rows = named(f"linear_easy_{name}")
    assert len(rows) > 20
    for row in rows:
        found = steps(spectrum_of(row), depth=row["inputs"]["L"]).loss
        assert found == pytest.approx(row["value"], abs=row["tol"])


def exponents(steps):
    return [
        window_exponent([steps(modes_of(a, b), depth).loss for depth in DEPTHS], DEPTHS)
        for a, b in SPECTRA
    ]


def test_exponents_of_tied_layers():
    expected = named("constrained_exponents")[0]["value"]
    found = exponents(lambda modes, depth: tied_steps(modes, depth=depth))
    np.testing.assert_allclose(found, expected, atol=0.003)


def test_exponents_with_one_outlier():
    expected = named("two_group_exponents_one_outlier")[0]["value"]
    found = exponents(
        lambda modes, depth: outlier_steps(modes, depth=depth, outliers=min(1, depth - 1))
    )
    np.testing.assert_allclose(found, expected, atol=0.02)


def recursion(modes, number):
    """Losses of free step sizes at depths 1, 2, ... by Stieltjes' recursion in `number`."""
    lam, w = [number(x) for x in modes.eigenvalues], [number(x) for x in modes.weights]
    low, p, low_0, p_0 = [number(0)] * len(w), [number(1)] * len(w), number(0), number(1)
    norm, before = sum(w), None
    total, losses = 1 / norm, []
    for _ in range(max(DEPTHS)):
        moment = sum(a * x * y * y for a, x, y in zip(w, lam, p, strict=True)) / norm
        ratio = norm / before if before else number(0)
        low, p = p, [(x - moment) * y - ratio * z for x, y, z in zip(lam, p, low, strict=True)]
        low_0, p_0 = p_0, -moment * p_0 - ratio * low_0
        before, norm = norm, sum(a * y * y for a, y in zip(w, p, strict=True))
        total += p_0 * p_0 / norm
        losses.append(float(1 / total))
    return losses


def test_exponents_of_free_layers():
    """The reference took depth 16 from a recursion in double precision, which loses it for every
    spectrum but the flattest, in a way that depends on the order of the operations.
    """
    expected = named("free_exponents")[0]["value"]
    found = exponents(lambda modes, depth: free_steps(modes, depth=depth))
    for (a, b), value, reference in zip(SPECTRA, found, expected, strict=True):
        modes = modes_of(a, b)
        rounded = recursion(modes, float)
        at = window_exponent([rounded[depth - 1] for depth in DEPTHS], DEPTHS)
        assert at == pytest.approx(reference, abs=0.06)
        if a >= 1:
            assert reference < value - 0.15
        else:
            assert reference == pytest.approx(value, abs=0.005)
        with localcontext() as context:
            context.prec = 80
            exact = recursion(modes, Decimal)
        for depth in DEPTHS:
            loss = free_steps(modes, depth=depth).loss
            assert loss == pytest.approx(exact[depth - 1], rel=1e-10)
        assert value == pytest.approx(
            window_exponent([exact[depth - 1] for depth in DEPTHS], DEPTHS), abs=1e-9
        )


def test_layers_between_tied_and_free():
    modes = modes_of(2, 1)
    losses = [outlier_steps(modes, depth=8, outliers=m).loss for m in (0, 1, 2, 4, 7)]
    assert losses[0] == pytest.approx(tied_steps(modes, depth=8).loss, rel=1e-9)
    assert (np.diff(losses) < 0).all()
    assert losses[-1] == pytest.approx(free_steps(modes, depth=8).loss, rel=1e-6)
    half = cyclic_steps(modes, depth=8, distinct=2).loss
    assert losses[1] < half < losses[0]


@pytest.mark.parametrize(("a", "b"), [(2, 1), (0.5, 2)])
def test_one_outlier_by_direct_search(a, b):
    modes, depth = modes_of(a, b), 6
    lam, w = modes.eigenvalues, modes.weights

    def loss(x):
        common, outlier = np.exp(x)
        return math.log(w @ ((1 - common * lam) ** (2 * depth - 2) * (1 - outlier * lam) ** 2))

    best = min(
        minimize(loss, np.log(start), method="Nelder-Mead", options={"fatol": 1e-13}).fun
        for start in [(0.5, 1.0), (1.5, 0.5), (5.0, 1.0), (1.2, 4.0), (3.0, 1.0), (7.0, 1.0)]
    )
    found = outlier_steps(modes, depth=depth)
    assert math.log(found.loss) == pytest.approx(best, abs=1e-4)
    assert math.log(found.loss) < best + 1e-9
    assert w @ mode_residuals(lam, found) == pytest.approx(found.loss, rel=1e-9)


def test_modes_are_learned_one_after_the_other():
    modes = modes_of(2, 1)
    chosen = modes.eigenvalues[[0, 1, 3, 7, 15, 31]]
    shallow = mode_residuals(chosen, tied_steps(modes, depth=4))
    deep = mode_residuals(chosen, tied_steps(modes, depth=16))
    np.testing.assert_allclose(shallow, [0.0016, 0.028, 0.469, 0.833, 0.956, 0.989], atol=6e-4)
    np.testing.assert_allclose(deep[2:], [0.024, 0.411, 0.803, 0.947], atol=6e-4)
    assert deep[1] < 2e-8


def test_the_loss_is_a_sum_of_exponentials():
    modes, step = modes_of(1.5, 1, dim=2000), 0.7
    depth_of = mode_depths(modes.eigenvalues, step=step)
    for depth in (1, 5, 40):
        direct = modes.weights @ (1 - step * modes.eigenvalues) ** (2 * depth)
        assert modes.weights @ np.exp(-depth / depth_of) == pytest.approx(direct, rel=1e-10)
    depths = [50, 70, 100, 140, 200]
    losses = [float(modes.weights @ np.exp(-depth / depth_of)) for depth in depths]
    assert window_exponent(losses, depths) == pytest.approx((1.5 + 1 - 1) / 1.5, abs=0.02)


def test_window_exponent_of_a_power_law():
    depths = [1, 3, 10]
    assert window_exponent([5 * d**-1.7 for d in depths], depths) == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tied_steps(modes_of(1, 1), depth=0), "depth: got 0"),
        (lambda: outlier_steps(modes_of(1, 1), depth=3, outliers=3), "outliers: got 3 of 3"),
        (lambda: mode_depths(np.ones(2), step=2.0), "step: got 2"),
        (lambda: window_exponent([1.0], [1]), "depths: got"),
        (lambda: window_exponent([1.0, 0.0], [1, 2]), "losses: got a loss"),
    ],
)
def test_impossible_questions(call, message):
    with pytest.raises(SolverError, match=message):
        call()
