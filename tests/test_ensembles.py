"""The decomposition of a layer error matrix against enumeration of layers."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.ensembles import Decomposition, decompose
from leadline.errors import SolverError


def errors_of(depth, seed):
    samples = np.random.default_rng(seed).standard_normal((20, depth))
    samples[:, 0] *= 3
    return samples.T @ samples / 20


@given(st.integers(2, 6), st.integers(0, 1000))
def test_loss_is_the_mean_of_the_matrix(depth, seed):
    matrix = errors_of(depth, seed)
    parts = decompose(matrix)
    assert parts.loss == pytest.approx(matrix.mean(), rel=1e-12)
    assert parts.own == pytest.approx(np.mean(np.diag(matrix)), rel=1e-12)
    assert parts.disagreement == pytest.approx(
        np.mean([(matrix[i, i] + matrix[j, j] - 2 * matrix[i, j]) / 2 for i, j in pairs(depth)]),
        rel=1e-9,
    )


def pairs(depth):
    return list(itertools.combinations(range(depth), 2))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_subsets_by_enumeration(size):
    matrix = errors_of(5, 1)
    every = itertools.combinations(range(5), size)
    expected = np.mean([matrix[np.ix_(chosen, chosen)].mean() for chosen in every])
    assert decompose(matrix).subset(size) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_independent_layers_by_enumeration(size):
    matrix = errors_of(4, 2)
    every = itertools.product(range(4), repeat=size)
    expected = np.mean([matrix[np.ix_(chosen, chosen)].mean() for chosen in every])
    assert decompose(matrix).independent(size) == pytest.approx(expected, rel=1e-12)


def test_coupling_tells_independent_from_opposed_layers():
    floor = 2.0
    independent = Decomposition(depth=8, own=7.0, shared=floor)
    assert independent.coupling(floor=floor) == pytest.approx(1)
    opposed = Decomposition(depth=8, own=7.0, shared=1.6)
    assert opposed.coupling(floor=floor) < 0.5


@pytest.mark.parametrize(
    ("errors", "field"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones((1, 1)), "at least 2"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
    ],
)
def test_impossible_matrices(errors, field):
    with pytest.raises(SolverError, match=field):
        decompose(errors)


def test_impossible_sizes():
    parts = decompose(errors_of(3, 0))
    with pytest.raises(SolverError, match="size: got a subset of 4 layers"):
        parts.subset(4)
    with pytest.raises(SolverError, match="size: got 0 layers"):
        parts.independent(0)
