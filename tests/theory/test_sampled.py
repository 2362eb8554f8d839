"""Sampled perturbed layers and whole models against the exact theory."""

import math

import numpy as np
import pytest

from leadline.ensembles import decompose
from leadline.errors import SolverError
from leadline.theory.retrieval import layer_loss
from leadline.theory.retrieval_bound import ensemble_bound, frame_size
from leadline.theory.retrieval_gram import ensembles
from leadline.theory.retrieval_models import anticommuting, built_law, construct_layers
from leadline.theory.sampled import sample_kinds, sample_model, sampled_bound, sampled_loss

TASK = {"dim": 8, "context": 32, "targets": 2}


@pytest.fixture(scope="module")
def grid():
    return ensembles(**TASK, norms=[0.9, 1.6, 2.8, 5.0], angles=[0.0, 0.15, 0.3, 0.45, 0.6])


@pytest.fixture(scope="module")
def moments(grid):
    return sample_kinds(
        **TASK, sharpness=grid.sharpness, noise=grid.noise, contexts=4000, pairs=6, seed=0
    )


def test_moments_against_the_quadrature(grid, moments):
    def misses(drawn, exact):
        error = drawn.std(axis=0, ddof=1) / math.sqrt(len(drawn))
        return np.abs(drawn.mean(axis=0) - exact) / error

    assert misses(moments.target, grid.energy) < 4
    # 20 and 210 correlated numbers: one more standard error
    assert misses(moments.overlap, grid.overlap).max() < 5
    assert misses(moments.gram, grid.gram).max() < 5
    # the products of one perturbation with itself are told apart
    hot = int(np.argmax(grid.noise))
    assert misses(moments.gram[:, hot, hot], grid.own[hot]) > 10


def test_losses_of_mixtures(grid, moments):
    rng = np.random.default_rng(1)
    for _ in range(5):
        weight = rng.dirichlet(np.ones(len(grid.overlap))) * 1.1
        exact = grid.energy - 2 * grid.overlap @ weight + weight @ grid.gram @ weight
        found = sampled_loss(moments, weight)
        assert found.loss_error < 0.02 * found.loss
        assert abs(found.loss - exact) < 4 * found.loss_error
        assert abs(sampled_loss(moments, 1.5 * weight).loss - exact) > 10 * found.loss_error


def test_bound_from_two_halves(grid, moments):
    exact = ensemble_bound(grid).loss
    fitted, held_out = sampled_bound(moments)
    assert fitted.contexts == held_out.contexts == 2000
    assert fitted.loss < exact + 4 * fitted.loss_error
    assert abs(held_out.loss - exact) < 4 * held_out.loss_error + 0.005 * exact


@pytest.mark.full
def test_bound_of_the_published_task():
    """Eleven kinds near the optimum; the exact bound is 1.9998."""
    tau = np.array([0.6, 0.9, 0.9, 1.2, 1.2, 2.0, 3.0, 4.0, 6.0, 8.0, 8.0])
    ratio = np.array([0.0, 0.0, 0.62, 0.4, 0.62, 0.38, 0.3, 0.26, 0.15, 0.0, 0.1])
    task = {"dim": 16, "context": 64, "targets": 2}
    moments = sample_kinds(
        **task, sharpness=tau, noise=tau * ratio, contexts=30_000, pairs=8, seed=11
    )
    fitted, held_out = sampled_bound(moments, precision=0.0025)
    assert held_out.loss_error < 0.005
    assert abs(held_out.loss - 1.9998) < 4 * held_out.loss_error + 0.002
    assert fitted.loss < 1.9998 + 4 * fitted.loss_error + 0.002


def test_precision_is_kept_or_refused(moments):
    _, held_out = sampled_bound(moments)
    reached = held_out.loss_error / held_out.loss
    sampled_bound(moments, precision=1.01 * reached)
    with pytest.raises(SolverError, match=r"contexts: got 4000, .* expected about 1\d{4}"):
        sampled_bound(moments, precision=reached / 2)


@pytest.mark.parametrize(
    ("perturbation", "depth"), [("independent", 5), ("antithetic", 8), ("frames", 28)]
)
def test_models_lose_what_theory_says(grid, perturbation, depth):
    built = built_law(grid, depth=depth, perturbation=perturbation)
    layers = construct_layers(built, dim=8, depth=depth, perturbation=perturbation, seed=4)
    assert layers.shape == (depth, 8, 8)
    drawn = sample_model(layers, gain=built.gain, context=32, targets=2, contexts=4000, seed=5)
    assert drawn.loss_error < 0.005 * drawn.loss
    assert abs(drawn.loss - built.loss) < 4 * drawn.loss_error
    parts = drawn.decomposition
    assert parts.loss == pytest.approx(drawn.loss, rel=1e-12)
    assert parts.own == pytest.approx(built.own, rel=0.05)


def test_a_wrong_model_is_told_apart(grid):
    built = built_law(grid, depth=8, perturbation="antithetic")
    layers = construct_layers(built, dim=8, depth=8, perturbation="antithetic", seed=4)
    drawn = sample_model(2 * layers, gain=built.gain, context=32, targets=2, contexts=2000, seed=5)
    assert abs(drawn.loss - built.loss) > 10 * drawn.loss_error


def test_no_matrices_pass_below_the_bound(grid):
    """Models of any matrices, here those of a good model moved at random."""
    bound, rng = ensemble_bound(grid), np.random.default_rng(6)
    built = built_law(grid, depth=32, perturbation="antithetic")
    layers = construct_layers(built, dim=8, depth=32, perturbation="antithetic", seed=4)
    for scale in (0.0, 0.1, 0.3):
        moved = layers + scale * rng.standard_normal(layers.shape)
        drawn = sample_model(moved, gain=built.gain, context=32, targets=2, contexts=1500, seed=2)
        assert drawn.loss > bound.loss - 4 * drawn.loss_error
        assert drawn.loss_error < 0.02 * bound.loss


def test_equal_layers_are_one_layer():
    layers = np.stack([1.2 * np.eye(8)] * 3)
    drawn = sample_model(layers, gain=1.0, context=32, targets=2, contexts=2000, seed=1)
    exact = layer_loss(**TASK, sharpness=1.2, gain=1.0)
    assert abs(drawn.loss - exact.loss) < 4 * drawn.loss_error
    assert drawn.decomposition.disagreement == pytest.approx(0, abs=1e-9)


def test_decomposition_is_that_of_the_error_matrix():
    """Error by error, on other contexts: each side has a standard error of about 0.7%."""
    layers = np.random.default_rng(0).standard_normal((3, 4, 4)) + 2 * np.eye(4)
    drawn = sample_model(layers, gain=1.0, context=6, targets=2, contexts=20_000, seed=3)
    rng, matrix = np.random.default_rng(8), np.zeros((3, 3))
    for _ in range(20_000):
        x, q = rng.standard_normal((6, 4)), rng.standard_normal(4)
        unit, q = x / np.linalg.norm(x, axis=1, keepdims=True), q / np.linalg.norm(q)
        p = np.exp(4 * (layers @ q) @ unit.T)
        p /= p.sum(axis=1, keepdims=True)
        p[:, np.argsort(unit @ q)[-2:]] -= 0.5
        matrix += (p @ x) @ (p @ x).T / 20_000
    expected = decompose(matrix)
    assert drawn.decomposition.own == pytest.approx(expected.own, rel=0.04)
    assert drawn.decomposition.disagreement == pytest.approx(expected.disagreement, rel=0.04)


@pytest.mark.parametrize("dim", [2, 4, 6, 8, 16, 24, 32])
def test_anticommuting_matrices(dim):
    matrices = anticommuting(dim)
    assert len(matrices) == min(frame_size(dim), 8)
    for i, first in enumerate(matrices):
        np.testing.assert_array_equal(first, -first.T)
        for j, second in enumerate(matrices):
            expected = -2.0 * (i == j) * np.eye(dim)
            np.testing.assert_array_equal(first @ second + second @ first, expected)


def test_impossible_models(grid):
    built = built_law(grid, depth=8, perturbation="antithetic")
    with pytest.raises(SolverError, match="depth: got 7 layers, expected a multiple of 2"):
        construct_layers(built, dim=8, depth=7, perturbation="antithetic", seed=0)
    with pytest.raises(SolverError, match="dim: got 5, expected an even dimension"):
        construct_layers(built, dim=5, depth=8, perturbation="antithetic", seed=0)
    with pytest.raises(SolverError, match=r"mixture: got .* expected whole numbers"):
        construct_layers(ensemble_bound(grid), dim=8, depth=8, perturbation="antithetic", seed=0)
    one = np.eye(8)[None]
    with pytest.raises(SolverError, match="depth: got 1 layers, expected at least 2"):
        sample_model(one, gain=1.0, context=32, targets=2, contexts=100, seed=0)
    with pytest.raises(SolverError, match="contexts: got 2, expected at least 4"):
        sample_model(one, gain=1.0, context=32, targets=2, contexts=2, seed=0)
    with pytest.raises(SolverError, match="pairs: got 1, expected at least 2"):
        sample_kinds(**TASK, sharpness=1.0, noise=0.1, contexts=10, pairs=1, seed=0)
    with pytest.raises(SolverError, match="contexts: got 100, whose standard error"):
        sample_model(
            np.stack([np.eye(8), 2 * np.eye(8)]),
            gain=1.0,
            context=32,
            targets=2,
            contexts=100,
            seed=0,
            precision=1e-4,
        )
