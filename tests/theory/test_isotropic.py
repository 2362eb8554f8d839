import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.errors import SolverError
from leadline.theory.isotropic import (
    best_scale,
    closed_optimum,
    descent,
    edge,
    landscape,
    landscape_error,
    slope,
)

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text(encoding="utf-8")
)
quick = settings(derandomize=True, deadline=None, max_examples=40)
depths = st.integers(1, 10)
fractions = st.fractions(Fraction(1, 20), 20, max_denominator=64)


def exact_landscape(gamma, depth, ratio, noise):
    """Loss and slope in rational arithmetic, from the moments of the Marchenko-Pastur law."""

    def moment(k):
        ways = [math.comb(k, j) * math.comb(k, j - 1) // k for j in range(1, k + 1)]
        return sum((n * ratio ** (j + 1 - k) for j, n in enumerate(ways)), Fraction(k == 0))

    def power(n):
        return [math.comb(n, k) * Fraction(-1, depth) ** k for k in range(n + 1)]

    first, second = power(depth), power(2 * depth)
    # coefficients of (gamma x)^k in r^2L, and in (1 - r^L)^2 = 1 - 2 r^L + r^2L
    fitted = [c - 2 * (first[k] if k <= depth else 0) for k, c in enumerate(second)]
    fitted[0] += 1
    assert fitted[:2] == [0, 0]
    loss = sum(c * gamma**k * moment(k) for k, c in enumerate(second))
    loss += sum(
        noise**2 / ratio * c * gamma**k * moment(k - 1) for k, c in enumerate(fitted) if k > 1
    )
    steepness = sum(c * k * gamma ** (k - 1) * moment(k) for k, c in enumerate(second) if k)
    steepness += sum(
        noise**2 / ratio * c * k * gamma ** (k - 1) * moment(k - 1)
        for k, c in enumerate(fitted)
        if k > 1
    )
    return loss, steepness


def catalan_optimum(depth, ratio):
    term, total = ratio / (1 + ratio), Fraction(0)
    for index in range(depth):
        total += term
        term *= ratio / (1 + ratio) ** 2 * Fraction(2 * (2 * index + 1), index + 2)
    return 1 - total


@quick
@given(
    share=st.fractions(-1, 2, max_denominator=32),
    depth=depths,
    ratio=fractions,
    noise=st.fractions(0, 3, max_denominator=16),
)
def test_landscape_and_slope_against_rational_arithmetic(share, depth, ratio, noise):
    """On both sides of the edge; the stated error bounds the true one."""
    gamma = share * Fraction(edge(depth=depth, ratio=float(ratio))).limit_denominator(1000)
    at = {"depth": depth, "ratio": float(ratio), "noise": float(noise)}
    loss, steepness = exact_landscape(gamma, depth, Fraction(float(ratio)), noise)
    found, error = landscape(float(gamma), **at), landscape_error(float(gamma), **at)
    assert abs(found - float(loss)) <= error
    assert error <= 1e-12 * max(1, float(loss)) * (1 + depth * float(share) ** 2)
    scale = max(1, abs(float(steepness)), float(loss) * depth)
    assert abs(slope(float(gamma), **at) - float(steepness)) <= 1e-12 * scale


@pytest.mark.parametrize("row", REFERENCE["iso_rows"], ids=lambda r: f"{r['alpha']}-{r['L']}")
def test_reference_rows(row):
    loss = landscape(row["gamma"], depth=row["L"], ratio=row["alpha"], noise=row["sigma"])
    assert loss == pytest.approx(row["theory"], abs=1e-10)
    assert loss == pytest.approx(row["sim"], abs=4 * row["se"])


def test_reference_optima():
    for row in REFERENCE["iso_closed"]:
        gamma, loss = closed_optimum(depth=row["L"], ratio=row["alpha"])
        assert gamma / row["L"] == pytest.approx(row["gamma_star_over_L"], abs=1e-12)
        assert loss == pytest.approx(row["loss_star"], abs=1e-12)


@pytest.mark.parametrize("ratio", [0.125, 0.9375, 1, 1.0625, 1.5, 4, 64])
@pytest.mark.parametrize("depth", [1, 2, 9, 100, 300])
def test_closed_optimum_is_the_catalan_sum(depth, ratio):
    """To relative accuracy, however small the loss."""
    gamma, loss = closed_optimum(depth=depth, ratio=float(ratio))
    exact = float(catalan_optimum(depth, Fraction(ratio)))
    assert loss == pytest.approx(exact, rel=1e-12)
    assert abs(loss - exact) <= landscape_error(gamma, depth=depth, ratio=float(ratio))
    assert abs(slope(gamma, depth=depth, ratio=float(ratio))) < 1e-13


@pytest.mark.parametrize("depth", [10**3, 10**5, 10**7])
def test_balanced_context_falls_as_the_root_of_depth(depth):
    """binom(2L, L)/4^L at ratio one, here by Stirling's series."""
    series = math.exp(-1 / (8 * depth) + 1 / (192 * depth**3)) / math.sqrt(math.pi * depth)
    assert closed_optimum(depth=depth, ratio=1.0)[1] == pytest.approx(series, rel=1e-11)


def test_too_deep_to_resolve_is_an_error():
    with pytest.raises(SolverError, match=r"depth 1e\+12, .*quadrature nodes"):
        closed_optimum(depth=10**12, ratio=1.0)
    with pytest.raises(SolverError, match=r"gamma 1e\+12"):
        landscape(1e12, depth=math.inf, ratio=1.0)


@quick
@given(
    gamma=st.floats(-3, 3),
    ratio=st.floats(0.05, 20),
    noise=st.floats(0, 3),
)
def test_depth_one_is_a_parabola(gamma, ratio, noise):
    s = 1 + (1 + noise**2) / ratio
    at = {"depth": 1, "ratio": ratio, "noise": noise}
    scale = 1 + s * gamma**2
    assert landscape(gamma, **at) == pytest.approx(1 - 2 * gamma + s * gamma**2, abs=1e-13 * scale)
    assert slope(gamma, **at) == pytest.approx(2 * (s * gamma - 1), abs=1e-13 * scale)
    assert best_scale(**at) == pytest.approx(1 / s, rel=1e-10)


@quick
@given(depth=depths, ratio=st.floats(0.05, 20), more=st.floats(1.01, 3))
def test_depth_and_context_lower_the_optimum(depth, ratio, more):
    _, loss = closed_optimum(depth=depth, ratio=ratio)
    assert closed_optimum(depth=depth + 1, ratio=ratio)[1] < loss
    assert closed_optimum(depth=depth, ratio=more * ratio)[1] < loss
    assert loss > max(1 - ratio, 0)


@quick
@given(depth=st.one_of(depths, st.just(math.inf)), ratio=fractions, noise=st.floats(0, 2))
def test_no_layer_does_anything_at_gamma_zero(depth, ratio, noise):
    at = {"depth": depth, "ratio": float(ratio), "noise": noise}
    assert landscape(0.0, **at) == pytest.approx(1, abs=1e-14)
    assert slope(0.0, **at) == pytest.approx(-2, abs=1e-13)


def test_infinite_depth_is_the_limit_of_depth():
    at = {"ratio": 0.7, "noise": 0.4}
    limit = landscape(2.5, depth=math.inf, **at)
    gaps = [float(landscape(2.5, depth=n, **at) - limit) for n in (10**3, 10**4, 10**5)]
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.01)
    assert gaps[1] / gaps[2] == pytest.approx(10, rel=0.01)
    assert closed_optimum(depth=math.inf, ratio=0.7) == (math.inf, pytest.approx(0.3))
    assert landscape(1e9, depth=math.inf, ratio=0.7) == pytest.approx(0.3, abs=1e-14)


def test_infinite_context_is_gradient_descent_on_one_mode():
    gamma = np.array([-1.0, 0.5, 3.0, 5.0])
    loss = landscape(gamma, depth=3, ratio=math.inf, noise=2.0)
    assert loss == pytest.approx((1 - gamma / 3) ** 6, rel=1e-14)
    assert best_scale(depth=3, ratio=math.inf, noise=2.0) == 3


def test_shapes_and_overflow():
    gamma = np.linspace(0, 2, 6).reshape(2, 3)
    assert landscape(gamma, depth=2, ratio=1.0).shape == (2, 3)
    assert landscape(gamma, depth=2, ratio=1.0)[1, 2] == landscape(2.0, depth=2, ratio=1.0)
    assert landscape(1e9, depth=100, ratio=1.0) == math.inf
    assert landscape_error(1e9, depth=100, ratio=1.0) == math.inf


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("depth", [2, 7, 300, math.inf])
@pytest.mark.parametrize("noise", [0.02, 0.5, 5.0])
def test_best_scale_is_below_a_dense_scan(ratio, depth, noise):
    at = {"depth": depth, "ratio": ratio, "noise": noise}
    best = best_scale(**at)
    least = float(landscape(best, **at))
    high = min(edge(depth=depth, ratio=ratio), 5 * best)
    scan = landscape(np.linspace(0, high, 1000), **at)
    assert least <= scan.min() + 1e-14
    assert (
        0 < best < min(edge(depth=depth, ratio=ratio), closed_optimum(depth=depth, ratio=ratio)[0])
    )
    assert abs(slope(best, **at)) < 1e-10
    if math.isinf(depth):
        assert best < ratio / noise**2


def residual_stream_losses(gamma, *, dim, context, depth, noise, contexts, queries, seed):
    """The model from its definition: labeled tokens carry residuals, query tokens predictions."""
    rng = np.random.default_rng(seed)
    losses = []
    for _ in range(contexts):
        task = rng.standard_normal(dim) / math.sqrt(dim)
        inputs = rng.standard_normal((context, dim))
        held_out = rng.standard_normal((queries, dim))
        labels = inputs @ task + noise * rng.standard_normal(context)
        predictions = np.zeros(queries)
        for _ in range(depth):
            update = gamma / (depth * context) * inputs.T @ labels
            predictions, labels = predictions + held_out @ update, labels - inputs @ update
        losses.append(np.mean((predictions - held_out @ task) ** 2))
    return np.mean(losses), np.std(losses) / math.sqrt(contexts)


@pytest.mark.parametrize(
    ("gamma", "context", "depth", "noise"),
    [
        (0.5, 64, 1, 0.0),
        (0.4, 64, 1, 1.0),
        (1.2, 64, 3, 0.6),
        (3.0, 128, 5, 0.3),
        (1.0, 24, 4, 0.5),
    ],
)
def test_landscape_against_the_residual_stream(gamma, context, depth, noise):
    """Finite dimension shifts the loss by at most 0.3 / dim here."""
    mean, error = residual_stream_losses(
        gamma, dim=64, context=context, depth=depth, noise=noise, contexts=400, queries=64, seed=1
    )
    at = {"depth": depth, "ratio": context / 64, "noise": noise}
    allowed = 4 * error + 0.5 / 64
    assert abs(landscape(gamma, **at) - mean) < allowed
    # a prefactor of two, and a forgotten residual connection, would be seen
    assert abs(landscape(2 * gamma, **at) - mean) > 2 * allowed + 10 * error
    assert abs(landscape(gamma, depth=1, ratio=context / 64) - mean) > 10 * error or depth == 1


def test_descent_reference():
    """Euler steps from 1e-9 there, from zero here; the sampled runs agree within 6%."""
    for row in REFERENCE["training"]["iso"]:
        path = descent(
            60, step_size=row["eta"], depth=row["L"], ratio=row["alpha"], noise=row["sigma"]
        )[[0, 5, 20, 60]]
        assert path == pytest.approx([g for _, g in row["th"]], abs=1e-6)
        assert path == pytest.approx([g for _, g, _ in row["sgd"]], rel=0.06)


def test_descent_settles_or_overflows():
    path = descent(10**5, step_size=0.05, depth=4, ratio=2.0, noise=0.5)
    assert path[-1] == pytest.approx(best_scale(depth=4, ratio=2.0, noise=0.5), rel=1e-10)
    assert np.all(np.diff(path) >= -1e-15)
    assert not np.isfinite(descent(50, step_size=30.0, depth=4, ratio=2.0)[-1])
