"""Gradient flow of the matrix, against an integration of the loss written out in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from leadline.errors import SolverError, SpecError
from leadline.simulation import contexts, flow
from leadline.simulation.train import program_key, train
from leadline.spec import (
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    Turn,
    replace,
    source_capacity,
)


def spec(covariance="fixed", *, dim=3, context=4, depth=2, tied=True, noise=0.6, **recipe):
    return RunSpec(
        task=InContextRegression(
            spectrum=source_capacity(dim, nu=0.8, beta=1.0),
            covariance=covariance,
            context=context,
            noise=noise,
        ),
        model=ReducedAttention(depth=depth, tied=tied),
        recipe=GradientFlow(**{"times": (0.4, 2.0)} | recipe),
        evaluation=Evaluation(contexts=3, measures=("scale", "diagonal")),
        seed=5,
    )


def drawn(run, *names, seed):
    """Sample, input and task covariances of the contexts of a stream, as NumPy arrays."""
    with jax.enable_x64(True):
        law = contexts.law_of(run.task)
        key = contexts.stream(seed, *names)
        rotated = run.task.covariance == "rotated"
        found = [
            contexts.draw(
                jax.random.fold_in(key, i), law, rotated=rotated, context=run.task.context
            )
            for i in range(run.evaluation.contexts)
        ]
        return [
            [
                np.asarray(contexts.sample_covariance(c, law)),
                np.asarray(contexts.diagonal_in(c.input_basis, law.inputs)),
                np.asarray(contexts.diagonal_in(c.task_basis, law.tasks)),
            ]
            for c in found
        ]


def loss_of(layers, sampled, run):
    """The mean over contexts, from the residual series."""
    depth, losses = run.model.depth, []
    for seen, inputs, tasks in sampled:
        weights, residual = 0, np.eye(len(seen))  # of u_0
        for layer in range(depth):
            matrix = layers[layer % len(layers)] / depth
            weights = weights + matrix @ residual
            residual = residual - seen @ matrix @ residual
        missing = np.eye(len(seen)) - weights @ seen
        bias = np.trace(tasks @ missing.T @ inputs @ missing)
        variance = run.task.noise**2 / run.task.context
        losses.append(bias + variance * np.trace(weights.T @ inputs @ weights @ seen))
    return np.mean(losses)


@pytest.mark.parametrize(
    ("covariance", "tied", "spread"),
    [("fixed", True, 0.0), ("rotated", False, 0.3), ("rotated", True, 0.0)],
)
def test_flow_is_that_of_the_loss_on_the_drawn_contexts(covariance, tied, spread):
    run = spec(covariance, tied=tied, start=0.2, spread=spread)
    sampled = drawn(run, "training", "contexts", seed=5)
    layers, dim = (1 if tied else 2), 3
    rate = layers * (1 if covariance == "fixed" else dim)
    nudges = 1e-5 * np.eye(layers * dim * dim)

    def velocity(_, state):
        slopes = [
            loss_of((state + n).reshape(layers, dim, dim), sampled, run)
            - loss_of((state - n).reshape(layers, dim, dim), sampled, run)
            for n in nudges
        ]
        return -rate * np.array(slopes) / 2e-5

    scales = [0.2] if tied else [0.5, -0.1]
    start = np.array([s * np.eye(dim) for s in scales]).ravel()
    solution = solve_ivp(
        velocity, (0, 2), start, t_eval=run.recipe.times, rtol=1e-7, atol=1e-8
    ).y.T.reshape(2, layers, dim, dim)
    curve = train([run])[0]
    scale, diagonal = (m.values for m in curve.measures)
    np.testing.assert_allclose(
        diagonal, np.diagonal(solution, axis1=-2, axis2=-1), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(scale, diagonal.mean(axis=-1))
    seen = drawn(run, "evaluation", "contexts", seed=0)
    np.testing.assert_allclose(curve.loss, [loss_of(g, seen, run) for g in solution], rtol=1e-5)
    assert curve.status == "ok"
    assert np.all(curve.loss_error > 0)


def test_times_do_not_depend_on_what_was_recorded_before():
    whole = train([spec(times=(2.0,))])[0]
    parts = train([spec(times=(0.0, 0.3, 1.1, 2.0))])[0]
    assert parts.loss[-1] == pytest.approx(whole.loss[0], rel=1e-7)
    assert np.all(np.diff(parts.measures[0].values[:, 0]) > 0)
    assert parts.measures[0].values[0, 0] == 0


def test_runs_that_share_a_program_do_not_change_each_other():
    specs = [spec(times=(t,), noise=n) for t, n in ((1.0, 0.0), (2.0, 0.5))]
    assert program_key(specs[0]) == program_key(specs[1])
    seen = []
    together = train(specs, observe=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    for one, run in zip(together, specs, strict=True):
        assert one.loss[0] == train([run])[0].loss[0]


def test_a_flow_that_runs_out_of_steps_says_so(monkeypatch):
    # a stiff shallow flow; a shape that no other test compiles
    monkeypatch.setattr(flow, "MAX_STEPS", 60)
    run = spec(dim=5, context=math.inf, depth=1, noise=0.0, times=(1.0, 1e4))
    curve = train([run])[0]
    assert curve.status == "diverged"
    assert np.isfinite(curve.loss[0])
    assert np.isnan(curve.loss[1])
    assert np.isnan(curve.loss_error[1])
    assert curve.scalar("steps") == 60


def test_a_start_that_explodes_ends_as_diverged():
    run = spec(dim=2, context=math.inf, depth=4, noise=0.0, start=1e80, times=(1.0,))
    curve = train([run])[0]
    assert curve.status == "diverged"
    assert np.isnan(curve.loss[0])


def test_the_integration_error_covers_the_distance_to_the_exponential():
    """One mode at depth one: 1 - gamma = exp(-2 t)."""
    run = spec(dim=1, context=math.inf, depth=1, noise=0.0, times=(0.5, 2.0))
    curve = train([replace(run, "evaluation.contexts", 1)])[0]
    exact = np.exp(-4 * np.array([0.5, 2.0]))
    assert np.all(np.abs(curve.loss - exact) <= curve.loss_error)
    assert np.all(curve.loss_error < 1e-6)


def test_a_turn_is_the_matrix_of_its_definition():
    turn = Turn(angle=0.4, seed=9)
    gaussian = np.random.default_rng(9).standard_normal((5, 5))
    expected = expm(-0.4 * (gaussian - gaussian.T) / math.sqrt(10))
    with jax.enable_x64(True):
        found = np.asarray(contexts.turn_matrix(turn, 5))
        law = contexts.Law(jnp.arange(1.0, 6), jnp.ones(5), jnp.asarray(0.0), jnp.asarray(found))
        context = contexts.draw(jax.random.key(0), law, rotated=False, context=400_000)
        sampled = np.asarray(contexts.sample_covariance(context, law))
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert context.task_basis is None
    np.testing.assert_allclose(
        sampled, expected @ np.diag(np.arange(1.0, 6)) @ expected.T, atol=0.06
    )


@pytest.mark.parametrize(
    "recipe", [GivenScale(gamma=1.1), Training(steps=3, batch_size=4, queries=2, rate=0.3)]
)
def test_the_shifted_loss_is_that_of_the_other_task(recipe):
    run = replace(replace(spec(context=6), "evaluation.measures", ()), "recipe", recipe)
    other = replace(replace(run.task, "context", 3), "noise", 0.1)
    shifted = train([replace(run, "evaluation.task", other)])[0]
    if isinstance(recipe, GivenScale):
        assert shifted.loss[0] == train([replace(run, "task", other)])[0].loss[0]
    else:
        measured = replace(run, "evaluation.measures", ("scale",))
        moved = train([replace(measured, "evaluation.task", other)])[0]
        np.testing.assert_array_equal(
            moved.measures[0].values, train([measured])[0].measures[0].values
        )
    assert shifted.loss[0] != train([run])[0].loss[0]


def test_refusals():
    with pytest.raises(SpecError, match=r"recipe.spread: got 0.5 for tied layers"):
        spec(spread=0.5)
    with pytest.raises(SolverError, match="depth"):
        train([spec(depth=math.inf)])
