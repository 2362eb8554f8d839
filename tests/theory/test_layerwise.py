"""Untied layers and full attention against flows of every weight and the reference numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from leadline.errors import SolverError
from leadline.spec import source_capacity
from leadline.theory import landscape, layerwise, rotated
from leadline.theory.landscape import local_exponent
from leadline.theory.layerwise import AttentionScales, balanced
from leadline.theory.spectra import power_law_modes

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text())
SMALL = power_law_modes(source_capacity(12, nu=1.25, beta=0.8))
WIDE = power_law_modes(source_capacity(1000, nu=1.25, beta=0.8))


def integrate(velocity, start, times):
    solution = solve_ivp(
        lambda _, s: velocity(s), (0, times[-1]), start, "DOP853", times, rtol=1e-11, atol=1e-14
    )
    return solution.y.T


def untied_velocity(scales):
    """-L times the gradient of the loss, by central differences of the product."""
    depth, h = len(scales), 1e-6

    def loss(s):
        factors = 1 - np.multiply.outer(SMALL.eigenvalues, s / depth)
        return SMALL.weights @ np.prod(factors, axis=1) ** 2

    return np.array(
        [-depth * (loss(scales + h * e) - loss(scales - h * e)) / (2 * h) for e in np.eye(depth)]
    )


def test_untied_flow_of_every_layer():
    start, times = [0.02, -0.01, 0.02, 0.0], [1.0, 5.0]
    expected = integrate(untied_velocity, start, times)
    scales = layerwise.untied_flow(SMALL, times, start=start)
    np.testing.assert_allclose(scales, expected, rtol=1e-6)
    np.testing.assert_array_equal(scales[:, 0], scales[:, 2])


def test_equal_layers_follow_the_tied_flow():
    times = [0.5, 10.0, 1e4]
    untied = layerwise.untied_flow(SMALL, times, start=[0.0] * 6)
    tied, _ = rotated.flow_scale(SMALL, times, depth=6)
    np.testing.assert_allclose(untied, np.repeat(tied[:, None], 6, axis=1), rtol=1e-8)
    np.testing.assert_allclose(
        layerwise.untied_loss(SMALL, untied), landscape.loss(SMALL, tied, depth=6), rtol=1e-8
    )


def test_a_perturbed_start_escapes_below_the_tied_optimum():
    best = landscape.best_scale(SMALL, depth=4)
    tied = float(landscape.loss(SMALL, best, depth=4))
    times = [50.0, 1e5]
    scales = layerwise.untied_flow(SMALL, times, start=[1e-2, -1e-2, 0.0, 0.0])
    early, late = layerwise.untied_loss(SMALL, scales)
    assert early > 0.98 * tied
    assert late < 0.8 * tied
    assert np.ptp(scales[-1]) > 1


@pytest.mark.parametrize("depth", [2, 3, 8])
def test_pair_escape(depth):
    gamma = landscape.best_scale(SMALL, depth=depth)
    tied = float(landscape.loss(SMALL, gamma, depth=depth))
    shift = 1e-3
    scales = np.full(depth, gamma)
    scales[:2] += depth * shift * np.array([1, -1])
    pair = layerwise.pair_loss(SMALL, gamma, depth=depth, imbalance=shift)
    assert pair == pytest.approx(float(layerwise.untied_loss(SMALL, scales)), rel=1e-13)
    escape = layerwise.pair_escape(SMALL, gamma, depth=depth)
    assert escape < 0
    assert (pair - tied) / shift**2 == pytest.approx(escape, rel=1e-4)


def weights_velocity(modes, depth, growth):
    """The scalar flow of (w_v, w_k, w_q, w_x) with readout one."""

    def velocity(w):
        v, k, q, x = w
        gamma = v * k * q * x**2
        r = 1 - gamma * modes.eigenvalues / depth
        force = 2 * (modes.weights * modes.eigenvalues) @ r ** (2 * depth - 1)
        return force * gamma * growth / w

    return velocity


@pytest.mark.parametrize("dim", [1, 7])
def test_attention_flow_of_every_weight(dim):
    start = AttentionScales(value=0.6, key=0.5, query=0.45, read_in=0.7)
    growth = np.array([1.0, 1 / dim, 1 / dim, 2 / dim])
    times = [1.0, 20.0]
    w = integrate(weights_velocity(SMALL, 4, growth), [0.6, 0.5, 0.45, 0.7], times)
    expected = w[:, 0] * w[:, 1] * w[:, 2] * w[:, 3] ** 2
    gamma = layerwise.attention_flow(SMALL, times, depth=4, start=start, dim=dim)
    np.testing.assert_allclose(gamma, expected, rtol=1e-8)


def test_attention_flow_of_the_matrices():
    """Chain rule through Gamma = w_v W_x^T W_q^T W_k W_x with the averaged gradient, a multiple of
    the identity, at the scale of a multiple of the identity.
    """
    dim, depth, times = 3, 4, [2.0, 15.0]

    def velocity(flat):
        value, (k, q, x) = flat[0], flat[1:].reshape(3, dim, dim)
        gamma = value * x.T @ q.T @ k @ x
        np.testing.assert_allclose(gamma, gamma[0, 0] * np.eye(dim), atol=1e-9)
        g = landscape.slope(SMALL, gamma[0, 0], depth=depth) / dim * np.eye(dim)
        # d Tr(g^T Gamma), factor by factor
        down_k = value * q @ x @ g @ x.T
        down_q = value * k @ x @ g.T @ x.T
        down_x = value * (q.T @ k @ x @ g.T + k.T @ q @ x @ g)
        down_v = np.trace(g.T @ gamma) / value
        return -np.concatenate([[down_v], np.stack([down_k, down_q, down_x]).ravel()])

    identity = np.eye(dim).ravel()
    start = np.concatenate([[0.8], 0.6 * identity, 0.5 * identity, 0.9 * identity])
    flat = integrate(velocity, start, times)
    expected = [
        row[0] * np.trace(x.T @ q.T @ k @ x) / dim
        for row in flat
        for k, q, x in [row[1:].reshape(3, dim, dim)]
    ]
    scales = AttentionScales(value=0.8, key=0.6, query=0.5, read_in=0.9)
    gamma = layerwise.attention_flow(SMALL, times, depth=depth, start=scales, dim=dim)
    np.testing.assert_allclose(gamma, expected, rtol=1e-8)


def test_reference_w5():
    reference = REFERENCE["w5"]
    gamma = layerwise.attention_flow(
        WIDE, reference["t"], depth=reference["L"], start=balanced(reference["sigma0"])
    )
    np.testing.assert_allclose(gamma, reference["gamma"], rtol=1e-5)
    assert gamma[-1] == pytest.approx(reference["gamma"][-1], rel=1e-9)
    assert gamma[-1] == pytest.approx(landscape.best_scale(WIDE, depth=8), rel=1e-9)


@pytest.mark.parametrize("row", REFERENCE["rrs_inf"]["rows"][:2], ids=lambda r: str(r["nu"]))
def test_time_law_of_attention(row):
    spectrum = source_capacity(math.inf, nu=row["nu"], beta=row["beta"])
    modes, times = power_law_modes(spectrum), np.array([1e5, 1e6, 1e7])
    gamma = layerwise.attention_flow(modes, times, depth=math.inf, start=balanced(0.5))
    loss = landscape.loss(modes, gamma, depth=math.inf)
    law = layerwise.attention_time_law(spectrum)
    assert law.exponent == pytest.approx(row["w5_th"])
    np.testing.assert_allclose(local_exponent(loss, times), row["w5_th"], atol=1e-3)
    np.testing.assert_allclose(loss, law(times), rtol=1e-4)
    beta = row["beta"]
    np.testing.assert_allclose(local_exponent(1 / gamma, times), 5 / (5 * beta + 2), atol=1e-3)


def test_reference_blowup():
    reference = REFERENCE["blowup"]
    times = reference["t"][:16]
    flow = layerwise.readout_flow(WIDE, times, depth=8, start=reference["sigma0"])
    np.testing.assert_allclose(flow.readout, reference["wowy"][:16], rtol=1e-5)
    np.testing.assert_allclose(flow.gamma, reference["gamma"][:16], rtol=1e-5)
    np.testing.assert_allclose(flow.loss, reference["loss"][:16], rtol=1e-5)
    assert flow.readout[-1] == pytest.approx(reference["wowy"][-1], rel=1e-9)


@pytest.mark.parametrize(
    ("depth", "peak"), [(1, 0.843), (4, 1.193), (8, 1.209), (16, 1.228), (64, 1.242)]
)
def test_overshoot_of_the_readout(depth, peak):
    times = [*np.geomspace(15, 60, 3000).tolist(), 1e4]
    flow = layerwise.readout_flow(WIDE, times, depth=depth, start=0.3)
    assert flow.readout.max() == pytest.approx(peak, abs=6e-4)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_readout_flow_of_every_weight(depth):
    lam, weights = SMALL.eigenvalues, SMALL.weights

    def velocity(s):
        o, y, v, k, q, x = s
        gamma = v * k * q * x**2
        r = 1 - gamma * lam / depth
        error = 1 - o * y * (1 - r**depth)
        pull = 2 * weights @ (error * (1 - r**depth))
        force = 2 * o * y * (weights * lam) @ (error * r ** (depth - 1)) * gamma
        return np.array([y * pull, o * pull, force / v, force / k, force / q, 2 * force / x])

    times = [5.0, 60.0, 300.0]
    states = integrate(velocity, [0.5] * 5 + [0.5 * math.sqrt(2)], times)
    flow = layerwise.readout_flow(SMALL, times, depth=depth, start=0.5)
    np.testing.assert_allclose(flow.readout, states[:, 0] * states[:, 1], rtol=1e-7)
    gamma = states[:, 2] * states[:, 3] * states[:, 4] * states[:, 5] ** 2
    np.testing.assert_allclose(flow.gamma, gamma, rtol=1e-7)
    residual = (1 - np.multiply.outer(gamma, lam) / depth) ** depth
    error = 1 - (states[:, 0] * states[:, 1])[:, None] * (1 - residual)
    np.testing.assert_allclose(flow.loss, error**2 @ weights, rtol=1e-7)


def test_readout_flow_at_infinite_depth():
    deep, infinite = (
        layerwise.readout_flow(SMALL, [5.0, 60.0], depth=depth, start=0.5)
        for depth in (10**7, math.inf)
    )
    np.testing.assert_allclose(deep.gamma, infinite.gamma, rtol=1e-5)
    np.testing.assert_allclose(deep.loss, infinite.loss, rtol=1e-5)


def test_zero_never_moves():
    with pytest.raises(SolverError, match="zero never moves"):
        layerwise.attention_flow(SMALL, [1.0], depth=2, start=balanced(0.0))
    with pytest.raises(SolverError, match="start: got 0"):
        layerwise.readout_flow(SMALL, [1.0], depth=2, start=0.0)
