"""Contexts drawn in few numbers have the law of contexts drawn directly."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from leadline.simulation import factors, models, streams
from leadline.simulation.contexts import Law
from leadline.simulation.factors import Columns, chis

BATCHES, BATCH = 160, 100


@pytest.fixture
def always_factored(monkeypatch):
    monkeypatch.setattr(factors, "CHI_COST", -100)


def far(one, other):
    """The largest distance of the means over batches, in standard errors."""
    error = np.sqrt((one.var(0, ddof=1) + other.var(0, ddof=1)) / len(one))
    return np.max(np.abs(one.mean(0) - other.mean(0)) / error)


def test_chi_variates_are_exact():
    """Kolmogorov-Smirnov at level 1e-4 for each; one degree of freedom more is far outside."""
    freedoms, count = [1, 2, 3, 7, 64, 1000], 20_000
    with jax.enable_x64(True):
        drawn = np.asarray(chis(jax.random.key(0), freedoms, batch_size=count))
        again = np.asarray(chis(jax.random.key(0), freedoms, batch_size=count))
    np.testing.assert_array_equal(drawn, again)
    limit = 2.2253 / math.sqrt(count)
    for column, freedom in zip(drawn.T, freedoms, strict=True):
        assert stats.kstest(column, stats.chi(freedom).cdf).statistic < limit
        if freedom < 100:
            assert stats.kstest(column, stats.chi(freedom + 1).cdf).statistic > 2 * limit
        square = column**2
        assert abs(square.mean() - freedom) < 4 * math.sqrt(2 * freedom / count)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(6)).max() < 5 / math.sqrt(count)


def test_the_cheaper_way_is_taken():
    assert not Columns(size=32, count=32).is_factored
    wide, deep = Columns(size=9, count=512), Columns(size=200, count=150)
    assert (wide.numbers, wide.drawn, wide.freedoms) == (36, 9, list(range(512, 503, -1)))
    assert deep.drawn == 150
    assert deep.freedoms == list(range(150, 0, -1))
    assert deep.numbers + len(deep.freedoms) < 200 * 150


def products(columns, seed):
    """S and its square of `count` matrices, flattened."""
    count = 16_000
    shapes = {"white": (columns.numbers,)}
    with jax.enable_x64(True):
        key = jax.random.key(seed)
        white = factors.normals(key, batch_size=count, shapes=shapes)["white"]
        chi = chis(jax.random.fold_in(key, 1), columns.freedoms, batch_size=count)
        matrix = np.asarray(columns.matrix(white, chi), np.float64)
    assert matrix.shape == (count, columns.size, columns.drawn)
    square = matrix @ matrix.swapaxes(1, 2)
    entries = square[:, *np.tril_indices(columns.size)]
    higher = (square @ square)[:, *np.tril_indices(columns.size)]
    cubed = np.trace(square @ square @ square, axis1=1, axis2=2)
    return np.concatenate([entries, entries**2, higher, cubed[:, None]], axis=1)


@pytest.mark.parametrize(("size", "count"), [(3, 7), (3, 3), (4, 2), (5, 1)])
def test_factors_have_the_moments_of_wishart_matrices(always_factored, size, count):
    """Moments to third order against products of normals, and the mean square in closed form."""
    columns = Columns(size=size, count=count)
    assert columns.drawn == min(size, count) == len(columns.freedoms)
    found = products(columns, 0)
    white = np.random.default_rng(1).normal(size=(len(found), size, count)) / math.sqrt(count)
    square = white @ white.swapaxes(1, 2)
    low = np.tril_indices(size)
    cubed = np.trace(square @ square @ square, axis1=1, axis2=2)
    entries, higher = square[:, *low], (square @ square)[:, *low]
    direct = np.concatenate([entries, entries**2, higher, cubed[:, None]], axis=1)
    assert far(found, direct) < 4.5  # the largest of up to 46
    diagonal = found[:, 2 * entries.shape[1]]
    error = diagonal.std(ddof=1) / math.sqrt(len(diagonal))
    assert abs(diagonal.mean() - (1 + (size + 1) / count)) < 4 * error


LAW = {"inputs": np.arange(1, 9.0) ** -0.9, "tasks": np.arange(1, 9.0) ** -0.4, "noise": 0.5}
CASES = {
    "isotropic": ("none", None, False, 12, 3),
    "rotated": ("none", None, True, 5, 3),
    "narrow": ("orthogonal", 3, True, 12, 2),
    "narrow, short context": ("gaussian", 3, True, 2, 12),
    "narrow, average query": ("gaussian", 3, True, 12, math.inf),
    "narrow, infinite context": ("orthogonal", 2, True, math.inf, 3),
    "narrow, no rotation": ("gaussian", 3, False, 6, math.inf),
    "not so narrow": ("gaussian", 5, True, 9, 4),
    "wider than the inputs": ("gaussian", 10, True, 9, math.inf),
}


def setting(case):
    projection, width, rotated, context, queries = CASES[case]
    law = Law(*(jnp.asarray(value, jnp.float64) for value in LAW.values()))
    read_in = width and streams.draw_read_in(
        jax.random.key(5), dim=8, width=width, projection=projection
    )
    size = width or 8
    # neither symmetric nor a multiple of the identity
    gamma = 0.8 * np.eye(size) + 0.25 * np.random.default_rng(3).normal(size=(2, size, size))
    return law, read_in, jnp.asarray(gamma), rotated, context, queries


def of_batches(one, gamma):
    """Loss, its square and its gradient, for each of many batches."""
    slopes = jax.jit(jax.vmap(jax.value_and_grad(one), in_axes=(None, 0)))
    loss, slope = slopes(gamma, jax.random.split(jax.random.key(11), BATCHES))
    return np.concatenate([loss[:, None], slope.reshape(BATCHES, -1)], axis=1)


def directly(law, read_in, gamma, rotated, context, queries):
    """Whole inputs and queries under whole rotations, fed through the layers token by token."""
    dim = law.inputs.size
    read_in = np.eye(dim) if read_in is None else read_in

    def one(gamma, key):
        keys = jax.random.split(key, 6)
        basis = jnp.eye(dim)
        if rotated:
            basis, r = jnp.linalg.qr(jax.random.normal(keys[0], (dim, dim)))
            basis = basis * jnp.sign(jnp.diag(r))
        root = basis * jnp.sqrt(law.inputs)
        task = basis @ (jnp.sqrt(law.tasks) * jax.random.normal(keys[1], (dim,)))
        if math.isinf(context):
            inputs = math.sqrt(dim) * root
            labels = inputs.T @ task
        else:
            inputs = root @ jax.random.normal(keys[2], (dim, context))
            labels = inputs.T @ task + law.noise * jax.random.normal(keys[3], (context,))
        if math.isinf(queries):  # independent directions of unit weight each
            asked, weight, noise = root, dim, 0.0
        else:
            asked, weight = root @ jax.random.normal(keys[4], (dim, queries)), 1
            noise = 0.7 * jax.random.normal(keys[5], (queries,))
        found = models.literal_predictions(
            gamma, read_in @ inputs, labels, read_in @ asked, depth=2
        )
        return weight * jnp.mean((found - asked.T @ task - noise) ** 2)

    def batch(gamma, key):
        return jnp.mean(jax.vmap(one, in_axes=(None, 0))(gamma, jax.random.split(key, BATCH)))

    return of_batches(batch, gamma)


def in_few_numbers(law, read_in, gamma, rotated, context, queries, mistake=lambda batch: batch):
    def batch(gamma, key):
        drawn = factors.draw_batch(
            key, law, jnp.asarray(0.7), read_in,
            rotated=rotated, context=context, queries=queries, batch_size=BATCH,
        )  # fmt: skip
        return factors.batch_loss(gamma, mistake(drawn), depth=2)

    return of_batches(batch, gamma)


QUICK = {"narrow, average query", "narrow, infinite context", "narrow, no rotation"}


@pytest.mark.parametrize(
    "case",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in CASES],
)
def test_loss_and_gradient_are_those_of_contexts_drawn_directly(always_factored, case):
    """Their means over 16,000 contexts, and the spread of the mean loss of a batch."""
    with jax.enable_x64(True):
        found, direct = in_few_numbers(*setting(case)), directly(*setting(case))
    assert far(found, direct) < 4.5  # the largest of up to 201
    spread = [np.log(values[:, 0].std(ddof=1)) for values in (found, direct)]
    kurtosis = max(stats.kurtosis(values[:, 0]) for values in (found, direct))
    error = math.sqrt((2 + max(kurtosis, 0)) / 4 / BATCHES) * math.sqrt(2)
    assert abs(spread[0] - spread[1]) < 4 * error


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            lambda batch: batch._replace(noise=12 * batch.noise), id="noise summed over 12 examples"
        ),
        pytest.param(
            lambda batch: batch._replace(task=batch.task.at[:, -1].set(0)),
            id="task inside the stream",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_mistake_in_the_law_would_be_seen(always_factored, mistake):
    with jax.enable_x64(True):
        case = setting("narrow, average query")
        assert far(in_few_numbers(*case, mistake=mistake), directly(*case)) > 10
