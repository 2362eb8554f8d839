"""The fast forms of the reduced model against the literal one, and the conditions they need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leadline.errors import SpecError
from leadline.simulation import contexts, measure, models
from leadline.spec import Spectrum, flat, source_capacity


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def problem(seed, dim=7, context=5, queries=3, layers=1):
    rng = np.random.default_rng(seed)
    gamma = jnp.asarray(rng.normal(size=(layers, dim, dim)))
    inputs, labels = (
        jnp.asarray(rng.normal(size=(dim, context))),
        jnp.asarray(rng.normal(size=context)),
    )
    return gamma, inputs, labels, jnp.asarray(rng.normal(size=(dim, queries)))


@pytest.mark.parametrize("form", ["tokens", "covariance"])
@pytest.mark.parametrize(("depth", "layers"), [(1, 1), (4, 1), (4, 4)])
def test_fast_forms_equal_the_literal_form(form, depth, layers):
    gamma, inputs, labels, queries = problem(depth + layers, layers=layers)
    covariance = inputs @ inputs.T / 5 if form == "covariance" else None
    weights = models.weights(gamma, covariance, inputs, inputs @ labels / 5, depth=depth)
    literal = models.literal_predictions(gamma, inputs, labels, queries, depth=depth)
    np.testing.assert_allclose(queries.T @ weights, literal, rtol=0, atol=1e-11)


def test_gradients_of_the_forms_agree():
    gamma, inputs, labels, queries = problem(3, layers=3)

    def fast(matrices):
        weights = models.weights(matrices, None, inputs, inputs @ labels / 5, depth=3)
        return jnp.sum((queries.T @ weights) ** 2)

    def literal(matrices):
        return jnp.sum(models.literal_predictions(matrices, inputs, labels, queries, depth=3) ** 2)

    np.testing.assert_allclose(
        jax.grad(fast)(gamma), jax.grad(literal)(gamma), rtol=1e-9, atol=1e-9
    )


def test_literal_form_is_the_residual_series_of_the_definition():
    # f(x) = x^T Gamma / (L P) sum_l (I - S Gamma / L)^l X y, in plain NumPy
    gamma, inputs, labels, queries = (np.asarray(a) for a in problem(5))
    covariance, step = inputs @ inputs.T / 5, np.eye(7)
    total = np.zeros(7)
    for _ in range(6):
        total += step @ inputs @ labels / 5
        step = step @ (np.eye(7) - covariance @ gamma[0] / 6)
    expected = queries.T @ gamma[0] @ total / 6
    actual = models.literal_predictions(*problem(5), depth=6)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_exact_average_over_tasks_noise_and_queries(rotated, layers):
    """The loss of one context against a plain average over drawn tasks, noise and queries."""
    rng = np.random.default_rng(0)
    dim, context, depth, noise, draws = 5, 4, 3, 0.7, 400_000
    gamma = jnp.asarray(0.5 * rng.normal(size=(layers, dim, dim)))
    law = contexts.Law(
        jnp.asarray(np.arange(1.0, dim + 1) ** -0.5),
        jnp.asarray(rng.random(dim)),
        jnp.asarray(noise),
    )
    key = contexts.stream(3, "test")
    exact = measure.context_losses(
        gamma, key, law, depth=depth, rotated=rotated, context=context, contexts=1
    )
    drawn = contexts.draw(jax.random.fold_in(key, 0), law, rotated=rotated, context=context)
    basis = np.eye(dim) if drawn.basis is None else np.asarray(drawn.basis)
    tasks = basis @ (np.sqrt(np.asarray(law.tasks))[:, None] * rng.normal(size=(dim, draws)))
    queries = basis @ (np.sqrt(np.asarray(law.inputs))[:, None] * rng.normal(size=(dim, draws)))
    labels = np.asarray(drawn.inputs).T @ tasks + noise * rng.normal(size=(context, draws))
    moments = jnp.asarray(np.asarray(drawn.inputs) @ labels / context)
    weights = np.asarray(models.weights(gamma, None, drawn.inputs, moments, depth=depth))
    errors = np.sum(queries * (weights - tasks), axis=0) ** 2
    tolerance = 4 * errors.std() / np.sqrt(draws)
    assert abs(errors.mean() - float(exact[0])) < tolerance
    assert tolerance < 0.03 * float(exact[0])


def test_streams_are_named_and_stable():
    same = contexts.stream(5, "a", "b")
    assert jnp.array_equal(
        jax.random.key_data(same), jax.random.key_data(contexts.stream(5, "a", "b"))
    )
    others = [
        contexts.stream(5, "b", "a"),
        contexts.stream(6, "a", "b"),
        contexts.stream(5 + 2**32, "a", "b"),
    ]
    for other in others:
        assert not jnp.array_equal(jax.random.key_data(same), jax.random.key_data(other))


def test_first_contexts_do_not_depend_on_how_many_are_drawn():
    law = contexts.Law(jnp.ones(4), jnp.ones(4) / 4, jnp.asarray(0.0))
    gamma = jnp.eye(4)[None]
    settings = {"depth": 2, "rotated": True, "context": 6}
    few = measure.context_losses(gamma, contexts.stream(0), law, contexts=3, **settings)
    many = measure.context_losses(gamma, contexts.stream(0), law, contexts=5, **settings)
    np.testing.assert_array_equal(few, many[:3])


def test_haar_matrices_are_orthogonal_and_have_the_right_trace_moments():
    keys = jax.random.split(jax.random.key(0), 4000)
    matrices = jax.vmap(lambda key: contexts.haar(key, 3, jnp.dtype(jnp.float64)))(keys)
    product = jnp.einsum("nij,nik->njk", matrices, matrices)
    np.testing.assert_allclose(product, jnp.broadcast_to(jnp.eye(3), product.shape), atol=1e-12)
    # Diaconis and Shahshahani: E Tr O = 0, E (Tr O)^2 = 1 for the Haar measure
    trace = np.asarray(jnp.trace(matrices, axis1=1, axis2=2))
    assert abs(trace.mean()) < 4 / np.sqrt(4000)
    assert abs((trace**2).mean() - 1) < 4 * (trace**2).std() / np.sqrt(4000)


def test_drawn_inputs_have_the_covariance_of_the_law():
    law = contexts.Law(jnp.asarray([4.0, 1.0]), jnp.ones(2), jnp.asarray(0.0))
    drawn = contexts.draw(jax.random.key(1), law, rotated=True, context=200_000)
    expected = contexts.diagonal_in(drawn.basis, law.inputs)
    np.testing.assert_allclose(contexts.sample_covariance(drawn, law), expected, atol=0.05)
    endless = contexts.draw(jax.random.key(1), law, rotated=True, context=np.inf)
    np.testing.assert_allclose(contexts.sample_covariance(endless, law), expected, atol=1e-12)


def test_spectrum_values_follow_their_definition():
    inputs, tasks = contexts.spectrum_values(source_capacity(50, nu=1.25, beta=0.8))
    assert np.dot(inputs, tasks) == pytest.approx(1, rel=1e-14)
    assert inputs[3] == pytest.approx(4**-1.25, rel=1e-14)
    assert inputs[7] * tasks[7] / (inputs[0] * tasks[0]) == pytest.approx(8**-2.0, rel=1e-13)
    assert contexts.spectrum_values(flat(4)) == ([1.0] * 4, [0.25] * 4)
    with pytest.raises(SpecError, match="infinity cannot be sampled"):
        contexts.spectrum_values(Spectrum(dim=np.inf, input_exponent=1, task_exponent=1))
