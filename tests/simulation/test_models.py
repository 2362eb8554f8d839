"""The fast forms of the reduced model against the literal one, and the conditions they need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leadline.errors import SpecError
from leadline.simulation import contexts, descent, measure, models
from leadline.spec import (
    Evaluation,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Spectrum,
    Training,
    flat,
    source_capacity,
)


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
    basis = np.eye(dim) if drawn.task_basis is None else np.asarray(drawn.task_basis)
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
    matrices = contexts.haar(jax.random.normal(jax.random.key(0), (4000, 3, 3)))
    product = jnp.einsum("nij,nik->njk", matrices, matrices)
    np.testing.assert_allclose(product, jnp.broadcast_to(jnp.eye(3), product.shape), atol=1e-12)
    # Diaconis and Shahshahani: E Tr O = 0, E (Tr O)^2 = 1 for the Haar measure
    trace = np.asarray(jnp.trace(matrices, axis1=1, axis2=2))
    assert abs(trace.mean()) < 4 / np.sqrt(4000)
    assert abs((trace**2).mean() - 1) < 4 * (trace**2).std() / np.sqrt(4000)


def test_drawn_inputs_have_the_covariance_of_the_law():
    law = contexts.Law(jnp.asarray([4.0, 1.0]), jnp.ones(2), jnp.asarray(0.0))
    drawn = contexts.draw(jax.random.key(1), law, rotated=True, context=200_000)
    expected = contexts.diagonal_in(drawn.input_basis, law.inputs)
    np.testing.assert_allclose(contexts.sample_covariance(drawn, law), expected, atol=0.05)
    endless = contexts.draw(jax.random.key(1), law, rotated=True, context=np.inf)
    expected = contexts.diagonal_in(endless.input_basis, law.inputs)
    np.testing.assert_allclose(contexts.sample_covariance(endless, law), expected, atol=1e-12)


def test_spectrum_values_follow_their_definition():
    inputs, tasks = contexts.spectrum_values(source_capacity(50, nu=1.25, beta=0.8))
    assert np.dot(inputs, tasks) == pytest.approx(1, rel=1e-14)
    assert inputs[3] == pytest.approx(4**-1.25, rel=1e-14)
    assert inputs[7] * tasks[7] / (inputs[0] * tasks[0]) == pytest.approx(8**-2.0, rel=1e-13)
    assert contexts.spectrum_values(flat(4)) == ([1.0] * 4, [0.25] * 4)
    with pytest.raises(SpecError, match="infinity cannot be sampled"):
        contexts.spectrum_values(Spectrum(dim=np.inf, input_exponent=1, task_exponent=1))


@pytest.mark.parametrize(
    ("covariance", "queries", "context"),
    [("fixed", 3, 6), ("rotated", 3, 6), ("rotated", np.inf, np.inf)],
)
def test_the_batch_that_trains_has_the_loss_that_is_measured(covariance, queries, context):
    """Its mean over many batches, and the noise of the queries on top; layers that do not commute
    with the covariances.
    """
    spec = RunSpec(
        task=InContextRegression(
            spectrum=source_capacity(4, nu=1.0, beta=0.8),
            covariance=covariance,
            context=context,
            noise=0.4,
            query_noise=0.3,
        ),
        model=ReducedAttention(depth=2, tied=False),
        recipe=Training(steps=1, batch_size=4000, queries=queries, rate=1.0),
        evaluation=Evaluation(contexts=4000),
    )
    rng = np.random.default_rng(2)
    gamma = jnp.asarray(0.5 * np.eye(4) + 0.2 * rng.normal(size=(2, 4, 4)))
    lane, program = descent._lane_of(spec), descent._program_of(spec)
    batch = jax.jit(descent._batch_loss, static_argnums=3)
    keys = jax.random.split(jax.random.key(1), 16)
    losses = np.array([batch(gamma.astype(jnp.float32), key, lane, program) for key in keys])
    exact = np.asarray(
        descent._evaluate(gamma[None], jax.tree.map(lambda x: x[None], lane), program=program)
    )
    error = np.hypot(losses.std(ddof=1) / 4, exact.std() / np.sqrt(exact.size))
    expected = exact.mean() + (0.3**2 if queries == 3 else 0.0)
    assert error < 0.02 * expected
    assert abs(losses.mean() - expected) < 4 * error


def test_normals_of_a_step():
    shapes = {"a": (3, 5), "b": (), "c": (2,)}
    drawn = contexts.normals(jax.random.key(0), batch_size=20_001, shapes=shapes)
    assert {name: values.shape[1:] for name, values in drawn.items()} == shapes
    flat = np.concatenate(
        [np.asarray(v, np.float64).reshape(20_001, -1) for v in drawn.values()], 1
    )
    root = np.sqrt(flat.size)
    assert abs(flat.mean()) < 4 / root
    assert abs((flat**2).mean() - 1) < 4 * np.sqrt(2) / root
    assert abs((flat**4).mean() - 3) < 4 * np.sqrt(96) / root
    assert np.abs(np.cov(flat.T) - np.eye(18)).max() < 5 / np.sqrt(20_001)
    # neighbors in the stream share a draw of 64 bits
    assert abs((flat.ravel()[::2] * flat.ravel()[1::2]).mean()) < 4 / np.sqrt(flat.size / 2)


def test_no_bits_give_an_infinite_normal(monkeypatch):
    for bits in (0, 2**64 - 1):

        def full(key, shape, dtype, value=bits):
            return jnp.full(shape, value, dtype)

        monkeypatch.setattr(jax.random, "bits", full)
        drawn = contexts.normals(jax.random.key(0), batch_size=1, shapes={"a": (2,)})["a"]
        assert np.all(np.isfinite(drawn))
        assert np.all(np.abs(drawn) > 5)
