"""Streams of finite width: read-ins, the landscape, training and flow against the definition."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm
from threadpoolctl import threadpool_limits

from leadline.errors import SpecError
from leadline.simulation import (
    contexts,
    descent,
    factors,
    landscape,
    lanes,
    measure,
    models,
    modes,
    streams,
)
from leadline.simulation.train import LANES, program_key, train
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Spectrum,
    Training,
    Turn,
    flat,
    grid,
    replace,
    source_capacity,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with threadpool_limits(limits=1):
        yield


def spec(
    projection="orthogonal", width=3, *, dim=5, context=4, covariance="rotated", depth=2, **changes
):
    """Changes by dotted path, with `__` for the dot."""
    run = RunSpec(
        task=InContextRegression(
            spectrum=source_capacity(dim, nu=0.9, beta=1.0), covariance=covariance, context=context
        ),
        model=ReducedAttention(depth=depth, width=width, projection=projection, power=1),
        recipe=GivenScale(gamma=1.3),
        evaluation=Evaluation(contexts=3),
        seed=4,
    )
    for path, value in changes.items():
        run = replace(run, path.replace("__", "."), value)
    return run


def training(*args, record=(0, 3, 6), **changes):
    recipe = Training(steps=6, batch_size=4, queries=3, rate=0.4)
    return spec(*args, recipe=recipe, evaluation__record=record, **changes)


# --- read-ins -----------------------------------------------------------------------------------


def test_orthogonal_read_ins_have_orthonormal_rows_in_random_directions():
    with jax.enable_x64(True):
        drawn = np.array(
            [
                streams.draw_read_in(jax.random.key(i), dim=5, width=2, projection="orthogonal")
                for i in range(400)
            ]
        )
    np.testing.assert_allclose(
        drawn @ drawn.swapaxes(1, 2), np.broadcast_to(np.eye(2), (400, 2, 2)), atol=1e-12
    )
    # E A^T A = (N/D) I; an entry of A^T A varies by less than one half
    assert (
        np.abs((drawn.swapaxes(1, 2) @ drawn).mean(axis=0) - 0.4 * np.eye(5)).max() < 4 * 0.5 / 20
    )


def test_gaussian_read_ins_have_variance_one_over_width():
    drawn = np.asarray(
        streams.draw_read_in(jax.random.key(1), dim=40, width=500, projection="gaussian")
    )
    assert drawn.shape == (500, 40)
    assert abs((500 * drawn**2).mean() - 1) < 4 * math.sqrt(2 / drawn.size)
    assert abs((500**2 * drawn**4).mean() - 3) < 4 * math.sqrt(96 / drawn.size)


def test_a_model_keeps_its_read_in_and_seeds_have_their_own():
    one = np.asarray(streams.read_in_of(training()))
    np.testing.assert_array_equal(one, streams.read_in_of(training(recipe__rate=2.0)))
    assert np.abs(one - streams.read_in_of(training(seed=5))).max() > 0.1
    assert streams.read_in_of(spec("none", None)) is None


# --- the landscape against powers of M ----------------------------------------------------------

SHAPES = [
    ("none", None, 1, 3, True),
    ("none", None, 1, 8, False),
    ("orthogonal", 3, 1, 4, True),
    ("orthogonal", 4, 1, 3, False),
    ("orthogonal", 3, 1, math.inf, False),
    ("orthogonal", 5, 1, 8, False),
    ("gaussian", 3, 1, 4, False),
    ("gaussian", 9, 1, math.inf, True),
    ("gaussian", 3, 2, 4, True),
    ("gaussian", 9, 2, 3, False),
]
POINTS = [(1, 0.7), (3, 2.0), (6, 1e-7), (40, 30.0), (5, -0.4), (math.inf, 2.5)]
NOISE = 0.8


def defined(drawn, law, read_in, power, depth, gamma):
    """The loss of one context from powers of the D x D matrix, and the directions of the noise."""
    inputs_law, tasks_law = np.asarray(law.inputs), np.asarray(law.tasks)
    dim = inputs_law.size
    basis = np.eye(dim) if drawn.input_basis is None else np.asarray(drawn.input_basis)
    covariance = basis @ np.diag(inputs_law) @ basis.T
    seen = covariance
    if drawn.inputs is not None:
        inputs = np.asarray(drawn.inputs)
        seen = inputs @ inputs.T / inputs.shape[1]
    b = np.eye(dim) if read_in is None else np.linalg.matrix_power(read_in.T @ read_in, power)
    if math.isinf(depth):
        # the exponential and its integral, as blocks of one exponential
        blocks = np.block([[-b @ seen, np.eye(dim)], [np.zeros((dim, 2 * dim))]])
        residual, solve = np.hsplit(expm(gamma * blocks)[:dim], 2)
    else:
        step = np.eye(dim) - gamma / depth * b @ seen
        residual = np.linalg.matrix_power(step, depth)
        solve = gamma / depth * sum(np.linalg.matrix_power(step, i) for i in range(depth))
    loss = np.trace(np.diag(tasks_law) @ residual.T @ covariance @ residual)
    if drawn.inputs is not None:
        moved = solve @ b @ inputs / inputs.shape[1]
        loss += NOISE**2 * np.trace(moved.T @ covariance @ moved)
    return loss


@pytest.mark.parametrize(("projection", "width", "power", "context", "turned"), SHAPES)
def test_landscape_is_that_of_the_definition(projection, width, power, context, turned):
    turn = Turn(angle=0.7, seed=2) if turned else None
    task = dataclasses.replace(spec(context=context).task, covariance="fixed", turn=turn)
    with jax.enable_x64(True):
        law = contexts.law_of(task)
        depth, gamma = (jnp.asarray(column, jnp.float64) for column in zip(*POINTS))
        lanes = modes.Lanes(gamma, depth, jnp.full(len(POINTS), NOISE))

        @jax.jit
        def sampled(key):
            drawn = contexts.draw_unrotated(key, law, rotated=False, context=context)
            if width is None and context >= 5:
                return drawn, None, modes.all_modes(drawn, law).losses(lanes)
            read_in = None
            if width is not None:
                read_in = streams.draw_read_in(key, dim=5, width=width, projection=projection)
            found = modes.some_modes(drawn, law, read_in, squared=power == 2)
            return drawn, read_in, found.losses(lanes)

        drawn, read_in, losses = sampled(contexts.stream(3, "test"))
    read_in = None if read_in is None else np.asarray(read_in)
    expected = [defined(drawn, law, read_in, power, *point) for point in POINTS]
    np.testing.assert_allclose(losses, expected, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("context", [4, 9, math.inf])
def test_turning_a_context_does_not_change_its_landscape(context):
    """Rotated contexts, evaluated in their own basis, against layers on the turned ones."""
    run = spec("none", None, context=context, task__noise=0.6)
    with jax.enable_x64(True):
        losses = measure.context_losses(
            1.3 * jnp.eye(5)[None],
            contexts.stream(0, "evaluation", "contexts"),
            contexts.law_of(run.task),
            depth=2,
            rotated=True,
            context=context,
            contexts=3,
        )
    assert train([run])[0].loss[0] == pytest.approx(np.asarray(losses).mean(), rel=1e-12)


def test_models_of_all_widths_see_the_same_inputs():
    """At full width the projection is a rotation, which changes nothing."""
    full = train([spec("none", None)])[0]
    same = train([spec("orthogonal", 5)])[0]
    np.testing.assert_allclose(same.loss, full.loss, rtol=1e-12)
    np.testing.assert_allclose(same.loss_error, full.loss_error, rtol=1e-9)


def test_isotropic_inputs_through_an_orthogonal_projection():
    """N of D directions are learned, each as (1 - g)^2L; the others not at all."""
    run = spec(width=2, context=math.inf)
    run = replace(run, "task", dataclasses.replace(run.task, spectrum=flat(5)))
    run = replace(run, "task.covariance", "isotropic")
    curve = train([run])[0]
    assert curve.loss[0] == pytest.approx(0.6 + 0.4 * (1 - 0.65) ** 4, rel=1e-12)
    best = train([replace(run, "recipe", BestScale())])[0]
    assert best.scalar("gamma") == pytest.approx(2.0, abs=1e-2)
    assert best.loss[0] == pytest.approx(0.6, abs=1e-7)


def test_best_scale_minimizes_the_landscape_of_the_stream():
    run = spec(dim=12, width=6, context=10, depth=4, evaluation__contexts=64, task__noise=0.3)
    best = train([replace(run, "recipe", BestScale())])[0]
    scales = best.scalar("gamma") * np.linspace(0.5, 1.3, 17)
    nearby = train([replace(run, "recipe.gamma", g) for g in scales])
    lowest = min(c.loss[0] for c in nearby)
    assert lowest <= best.loss[0] < lowest + 4 * best.loss_error[0]


def test_an_evaluation_on_another_task_draws_it_through_the_same_stream():
    other = replace(replace(spec().task, "spectrum.input_exponent", 1.5), "noise", 0.4)
    shifted = train([spec(evaluation__task=other)])[0]
    own = train([spec(task=other)])[0]
    assert shifted.loss[0] == own.loss[0]


# --- training and flow against the literal form -------------------------------------------------


def literal_losses(gamma, read_in, sample, inputs, noise, depth):
    """The loss on one context, token by token: the model is linear in the labels, and every
    combination of one task and one query is fed through the literal form.
    """
    inputs, read_in = np.asarray(inputs), np.asarray(read_in)
    tokens, queries = jnp.asarray(read_in @ inputs), jnp.asarray(read_in)

    def answers(labels):
        return np.asarray(
            models.literal_predictions(gamma, tokens, jnp.asarray(labels), queries, depth=depth)
        )

    missing = np.eye(inputs.shape[0]) - np.stack([answers(row) for row in inputs], axis=1)
    noisy = np.stack([answers(row) for row in np.eye(inputs.shape[1])], axis=1)
    covariance, tasks = np.asarray(sample.inputs), np.asarray(sample.tasks)
    return np.trace(tasks @ missing.T @ covariance @ missing) + noise**2 * np.trace(
        noisy.T @ covariance @ noisy
    )


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(
    ("projection", "width"), [("orthogonal", 2), ("gaussian", 2), ("gaussian", 7)]
)
def test_loss_of_layers_in_a_stream_is_that_of_the_literal_form(projection, width, layers):
    rng = np.random.default_rng(width + layers)
    with jax.enable_x64(True):
        task = dataclasses.replace(spec().task, noise=NOISE)
        law, key = contexts.law_of(task), jax.random.key(9)
        gamma = jnp.asarray(0.6 * rng.normal(size=(layers, width, width)))
        read_in = streams.draw_read_in(key, dim=5, width=width, projection=projection)
        drawn = contexts.draw(key, law, rotated=True, context=4)
        sample = measure.sample(key, law, rotated=True, context=4)
        found = measure.sample_loss(gamma, sample, read_in, depth=3)
        expected = literal_losses(gamma, read_in, sample, drawn.inputs, NOISE, 3)
    assert float(found) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("projection", "context"), [("orthogonal", 30), ("gaussian", 2), ("gaussian", math.inf)]
)
def test_the_batch_that_trains_a_stream_is_that_of_the_literal_form(projection, context):
    """Value and gradient on the examples that stand for a context, the covariance formed and not;
    that they have its law is shown in test_factors.py.
    """
    run = training(projection, 3, context=context, task__noise=0.5, task__query_noise=0.2)
    with jax.enable_x64(True):
        lane, program = descent._lane_of(run), descent._program_of(run)
        key, rng = jax.random.key(3), np.random.default_rng(0)
        gamma = jnp.asarray(0.5 * rng.normal(size=(1, 3, 3)))
        drawn = factors.draw_batch(
            key, lane.law, lane.query_noise, lane.read_in,
            rotated=True, context=context, queries=3, batch_size=4,
        )  # fmt: skip

        def literal(gamma):
            total = 0.0
            for i in range(4):
                read, task, queries = drawn.read[i], drawn.task[i], drawn.queries[i]
                inputs = jnp.eye(5) if drawn.inputs is None else drawn.inputs[i]
                labels = task @ inputs + (0.0 if drawn.noise is None else drawn.noise[i])
                root = math.sqrt(inputs.shape[1])
                found = models.literal_predictions(
                    gamma, root * read @ inputs, root * labels, read @ queries[:-1], depth=2
                )
                total += jnp.sum((found - task @ queries[:-1] + queries[-1]) ** 2) / 4
            return total

        found = jax.value_and_grad(descent._batch_loss)(gamma, key, lane, program)
        expected = jax.value_and_grad(literal)(gamma)
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "recipe",
    [
        Training(steps=6, batch_size=8, queries=3, rate=0.4),
        GradientFlow(times=(0.5, 4.0), start=0.2),
    ],
)
def test_a_full_stream_is_the_full_model_in_another_basis(recipe):
    """On the contexts of the same seed, with N = D."""
    full = train([spec("none", None, recipe=recipe, evaluation__contexts=8)])[0]
    turned = train([spec("orthogonal", 5, recipe=recipe, evaluation__contexts=8)])[0]
    np.testing.assert_allclose(turned.loss, full.loss, rtol=1e-4)
    assert turned.scalar("gamma") == pytest.approx(full.scalar("gamma"), rel=1e-4)
    np.testing.assert_array_equal(turned.time, full.time)


def test_a_flow_starts_from_the_reduced_form():
    """A multiple of I for power 1, of AA^T for power 2."""
    run = spec("gaussian", 3, model__power=2, recipe=GradientFlow(times=(0.0,), start=1.3))
    with jax.enable_x64(True):
        read_in = np.asarray(streams.read_in_of(run))
        np.testing.assert_allclose(streams.reduced_form(run), read_in @ read_in.T)
        for other in (replace(run, "model.power", 1), spec("orthogonal", 3, model__power=2)):
            np.testing.assert_array_equal(streams.reduced_form(other), np.eye(3))
        losses = measure.context_losses(
            jnp.asarray(1.3 * np.linalg.matrix_power(read_in.T @ read_in, 2))[None],
            contexts.stream(0, "evaluation", "contexts"),
            contexts.law_of(run.task),
            depth=2,
            rotated=True,
            context=4,
            contexts=3,
        )
    assert train([run])[0].loss[0] == pytest.approx(np.asarray(losses).mean(), rel=1e-10)


def test_a_stream_of_a_fixed_covariance_is_certain_only_with_its_read_in():
    flow = spec(covariance="fixed", context=math.inf, recipe=GradientFlow(times=(3.0,)))
    assert train([flow])[0].loss_error[0] < 1e-6
    assert train([spec(covariance="fixed", context=math.inf)])[0].loss_error[0] > 1e-3


@pytest.mark.full
def test_flow_of_a_stream_is_the_scalar_flow_of_its_landscape():
    r"""By symmetry $\Gamma = \gamma I_N$ on average, N times slower than the matrix; on n contexts
    up to a multiple of 1/n, which two sizes remove. The scalar flow by Euler's method in time.
    """
    times, seeds, sizes = (0.5, 4.0), 4, (256, 512)
    base = spec(dim=6, width=3, context=8, recipe=GradientFlow(times=times))
    estimates = []
    for seed in range(seeds):
        own = replace(replace(base, "seed", seed), "evaluation.seed", seed)
        small, large = (train([replace(own, "evaluation.contexts", n)])[0].loss for n in sizes)
        estimates.append(2 * large - small)
    loss, error = np.mean(estimates, 0), np.std(estimates, 0, ddof=1) / math.sqrt(seeds)
    grid_ = np.linspace(0, 6, 192)
    with jax.enable_x64(True):
        found = modes.decompose(
            contexts.stream(77, "many"),
            contexts.law_of(base.task),
            base.model,
            rotated=True,
            context=8,
            contexts=20_000,
        )
        lanes = modes.Lanes(jnp.asarray(grid_), jnp.full(192, 2.0), jnp.zeros(192))
        table = landscape.lane_losses(found, lanes).mean(axis=1)
    slope = np.gradient(table, grid_)

    def at(time, steps=4000):
        gamma = 0.0
        for _ in range(steps):
            gamma -= time / steps * np.interp(gamma, grid_, slope)
        return np.interp(gamma, grid_, table)

    assert np.all(error < 0.005 * loss)
    assert np.all(np.abs(loss - [at(t) for t in times]) < 4 * error + 0.005 * loss)
    for factor in (0.5, 2.0):  # the clock of the dimension, for one
        assert abs(loss[0] - at(factor * times[0])) > 10 * error[0]


# --- lanes, programs, records -------------------------------------------------------------------


def test_lanes_of_narrow_trainings_are_single_runs_bit_for_bit():
    specs = grid(training(), {"seed": range(5), "task.noise": [0.0, 0.5]})
    assert len(specs) > LANES
    together = train(specs)
    assert len({curve.loss[-1] for curve in together}) == 10
    for i in (0, 9):
        alone = train([specs[i]])[0]
        np.testing.assert_array_equal(alone.loss, together[i].loss)
        assert alone.scalars == together[i].scalars


def test_a_resumed_narrow_training_is_the_uninterrupted_one(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "SEGMENT_SECONDS", 0.0)
    specs, file = [training()], tmp_path / "state"
    whole = train(specs)[0]

    class Stop(Exception):
        pass

    def observe(done, total):
        if done > 2:
            raise Stop

    with pytest.raises(Stop):
        train(specs, checkpoint=file, observe=observe)
    resumed = train(specs, checkpoint=file)[0]
    np.testing.assert_array_equal(resumed.loss, whole.loss)


def test_clock_and_records_are_those_of_the_stream():
    run = training("gaussian", 7, evaluation__measures=("diagonal", "scale"))
    curve = train([run])[0]
    np.testing.assert_allclose(curve.time, np.array([0, 3, 6]) * 0.4 / 7)
    assert curve.measures[0].values.shape == (3, 1, 7)
    np.testing.assert_allclose(curve.flops, np.array([0, 3, 6]) * 4**2 * 7**2 * 2)
    assert curve.loss[0] == pytest.approx(1.0, abs=1e-12)


def test_shapes_of_a_stream_have_programs_of_their_own():
    for base in (spec("gaussian"), training("gaussian")):
        for path, value in {"width": 4, "projection": "orthogonal", "power": 2}.items():
            assert program_key(replace(base, f"model.{path}", value)) != program_key(base)
    assert program_key(spec(seed=9)) == program_key(spec(model__depth=7, task__noise=0.2))


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__width": 6}, "model.width: 6 exceeds task.spectrum.dim 5: an orthogonal"),
        ({"model__width": 0}, "model.width: got 0, expected a whole number >= 1"),
        ({"model__width": 2.5}, "model.width: got 2.5, expected a whole number >= 1"),
        ({"model__power": 3}, "model.power: got 3, expected a whole number >= 1 and <= 2"),
        ({"task__context": 0}, "task.context: got 0, expected a whole number >= 1 or infinity"),
        ({"task__spectrum__total": 0.0}, "task.spectrum.total: got 0.0, expected a finite number"),
        ({"task__spectrum__input_exponent": -1.0}, "task.spectrum.input_exponent: got -1.0"),
        ({"task__noise": -1.0}, "task.noise: got -1.0, expected a finite number >= 0"),
    ],
)
def test_bad_streams_are_refused_in_one_line(changes, message):
    with pytest.raises(SpecError) as caught:
        spec(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_infinite_dimension_is_not_sampled():
    endless = Spectrum(dim=math.inf, input_exponent=1.5, task_exponent=0.5)
    with pytest.raises(SpecError, match="infinity cannot be sampled"):
        train([spec(task__spectrum=endless)])
