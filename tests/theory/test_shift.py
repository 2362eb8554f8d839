"""Distribution shift against matrix powers and a forward pass token by token."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.linalg import expm

from leadline.errors import SolverError, SpecError
from leadline.ident import from_json, to_json
from leadline.spec import (
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Spectrum,
    Turn,
    source_capacity,
)
from leadline.theory import fixed, landscape, shift
from leadline.theory.predict import predict
from leadline.theory.spectra import power_law_modes

DIM = 6


def covariance(seed, spread=1.0):
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((DIM, DIM)))
    return basis * np.arange(1.0, DIM + 1) ** -spread @ basis.T


def skew(seed):
    gaussian = np.random.default_rng(seed).standard_normal((DIM, DIM))
    return gaussian - gaussian.T


def forward(gamma, inputs, labels, queries, depth):
    """Linear attention on a residual stream (x, y) of labeled tokens, minus signs between them, and
    query tokens, plus signs, whose label channel starts at zero.
    """
    context = inputs.shape[1]
    stream, answers = labels.copy(), np.zeros(queries.shape[1])
    for _ in range(depth):
        onto_labels = (inputs.T @ gamma @ inputs) @ stream
        answers = answers + (queries.T @ gamma @ inputs) @ stream / (depth * context)
        stream = stream - onto_labels / (depth * context)
    return answers


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_forward_pass_of_tokens(depth):
    gamma, sigma, omega = covariance(0), covariance(1), covariance(2, 0.5)
    # inputs whose empirical covariance is exactly sigma; queries and tasks that average exactly
    rotation, _ = np.linalg.qr(np.random.default_rng(5).standard_normal((DIM, DIM)))
    inputs = np.sqrt(DIM) * np.linalg.cholesky(sigma) @ rotation
    queries = np.linalg.cholesky(sigma)
    loss = 0.0
    for task in np.linalg.cholesky(omega).T:
        answers = forward(gamma, inputs, inputs.T @ task, queries, depth)
        loss += np.sum((answers - queries.T @ task) ** 2)
    modes = shift.shifted_modes(gamma, sigma, omega)
    assert landscape.loss(modes, 1.0, depth=depth) == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("depth", [1, 3, 12, math.inf])
def test_matrix_power(depth):
    gamma, sigma, omega = covariance(7), covariance(8), covariance(9)
    if math.isinf(depth):
        power = expm(-gamma @ sigma)
    else:
        power = np.linalg.matrix_power(np.eye(DIM) - gamma @ sigma / depth, depth)
    expected = np.trace(omega @ power.T @ sigma @ power)
    modes = shift.shifted_modes(gamma, sigma, omega)
    assert landscape.loss(modes, 1.0, depth=depth) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("angle", [0.01, 0.5])
def test_whitening_under_a_turn(angle):
    sigma, omega = np.diag(np.arange(1.0, DIM + 1) ** -1.5), covariance(2)
    shifted = shift.turned(sigma, skew(4), angle=angle)
    rotation = expm(-angle * skew(4))
    np.testing.assert_allclose(shifted, rotation @ sigma @ rotation.T, atol=1e-14)
    modes = shift.shifted_modes(np.linalg.inv(sigma), shifted, omega)
    residual = np.eye(DIM) - np.linalg.inv(sigma) @ shifted
    radius = np.abs(np.linalg.eigvals(residual)).max()
    assert shift.spectral_radius(modes) == pytest.approx(radius, rel=1e-10)
    losses = []
    for depth in (1, 2, 8, 32):
        power = np.linalg.matrix_power(residual, depth)
        losses.append(float(landscape.loss(modes, depth, depth=depth)))
        expected = np.trace(omega @ power.T @ shifted @ power)
        assert losses[-1] == pytest.approx(expected, rel=1e-8)
    # depth hurts only beyond radius one
    assert (radius > 1) == (angle == 0.5)
    assert (np.diff(losses) > 0).all() if radius > 1 else (np.diff(losses) < 0).all()


def test_no_shift_leaves_nothing():
    sigma = covariance(3)
    modes = shift.shifted_modes(np.linalg.inv(sigma), sigma, covariance(4))
    assert landscape.loss(modes, 1.0, depth=1) < 1e-28
    assert shift.spectral_radius(modes) < 1e-13


def test_refused_matrices():
    good = covariance(1)
    bad = skew(0)
    bad[1, 4] += 1
    with pytest.raises(SolverError, match=r"generator: .* entry \(1, 4\).* antisymmetric"):
        shift.turned(good, bad, angle=0.1)
    with pytest.raises(SolverError, match=r"generator: got shape \(2, 2\)"):
        shift.turned(good, np.zeros((2, 2)), angle=0.1)
    crooked = good.copy()
    crooked[0, 2] += 1e-3
    with pytest.raises(SolverError, match=r"scales: .* entry \(0, 2\).* symmetric"):
        shift.shifted_modes(crooked, good, good)
    with pytest.raises(SolverError, match="covariance: got the eigenvalue"):
        shift.shifted_modes(good, -good, good)


TIMES = (0.0, 10.0, 1e4)
SPECTRUM = source_capacity(12, nu=1.25, beta=0.8)
TASK = InContextRegression(spectrum=SPECTRUM, covariance="fixed", context=math.inf)


def run(shifted, *, recipe=None, covariance="fixed", depth=3):
    return RunSpec(
        task=dataclasses.replace(TASK, covariance=covariance),
        model=ReducedAttention(depth=depth),
        recipe=recipe or GradientFlow(times=TIMES),
        evaluation=Evaluation(task=shifted),
    )


@pytest.mark.parametrize("depth", [1, 3, math.inf])
def test_trained_scales_under_a_turn(depth):
    angle, seed = 0.3, 11
    curve = predict(run(dataclasses.replace(TASK, turn=Turn(angle=angle, seed=seed)), depth=depth))
    modes = power_law_modes(SPECTRUM)
    gaussian = np.random.default_rng(seed).standard_normal((12, 12))
    rotation = expm(-angle * (gaussian - gaussian.T) / np.sqrt(24))
    sigma = rotation @ np.diag(modes.eigenvalues) @ rotation.T
    omega = np.diag(modes.power / modes.eigenvalues)
    for scales, loss in zip(fixed.flow_scales(modes, TIMES, depth=depth), curve.loss, strict=True):
        if math.isinf(depth):
            power = expm(-np.diag(scales) @ sigma)
        else:
            power = np.linalg.matrix_power(np.eye(12) - np.diag(scales) @ sigma / depth, depth)
        assert loss == pytest.approx(np.trace(omega @ power.T @ sigma @ power), rel=1e-10)
    assert (curve.loss_error < 1e-10 * curve.loss).all()


def test_turn_by_nothing_is_no_shift():
    still = predict(run(dataclasses.replace(TASK, turn=Turn(angle=0.0))))
    np.testing.assert_allclose(still.loss, predict(run(None)).loss, rtol=1e-10)
    np.testing.assert_allclose(predict(run(TASK)).loss, predict(run(None)).loss, rtol=1e-12)


def test_trained_scales_on_other_spectra():
    other = Spectrum(dim=12, input_exponent=0.5, task_exponent=0.3)
    curve = predict(run(dataclasses.replace(TASK, spectrum=other)))
    k = np.arange(1.0, 13)
    scales = fixed.flow_scales(power_law_modes(SPECTRUM), TIMES, depth=3)
    expected = (1 - scales * k**-0.5 / 3) ** 6 @ k**-0.8
    np.testing.assert_allclose(curve.loss, expected, rtol=1e-12)


def test_a_turn_after_rotated_training():
    turned = dataclasses.replace(TASK, turn=Turn(angle=0.4, seed=2))
    curve = predict(run(turned, recipe=GivenScale(gamma=2.0), covariance="rotated"))
    sigma, omega = shift.turned_task(turned)
    power = np.linalg.matrix_power(np.eye(12) - 2.0 * sigma / 3, 3)
    assert curve.loss[0] == pytest.approx(np.trace(omega @ power.T @ sigma @ power), rel=1e-12)


def test_refused_shifts():
    with pytest.raises(SolverError, match=r"evaluation\.task\.covariance: got 'rotated'"):
        predict(run(dataclasses.replace(TASK, covariance="rotated")))
    with pytest.raises(SpecError, match=r"evaluation\.task\.spectrum\.dim: got 13"):
        run(dataclasses.replace(TASK, spectrum=source_capacity(13, nu=1.25, beta=0.8)))
    with pytest.raises(SpecError, match=r"task\.turn: only evaluation\.task"):
        dataclasses.replace(run(None), task=dataclasses.replace(TASK, turn=Turn(angle=0.1)))
    with pytest.raises(SpecError, match=r"task\.turn: got a turn of rotated covariance"):
        dataclasses.replace(TASK, covariance="rotated", turn=Turn(angle=0.1))


def test_identity_of_shifted_runs():
    assert "turn" not in to_json(run(None))
    spec = run(dataclasses.replace(TASK, turn=Turn(angle=0.25, seed=3)))
    assert from_json(to_json(spec)) == spec
