"""Theory against simulation on the same finite spectra: fixed and rotated covariances, shifts,
untied layers.

Where every context has the same loss, the engines agree to 1e-6. A flow on n sampled contexts
learns a little of the sample: its loss is off by a multiple of 1/n, which two sizes remove; what is
left is below `ALLOWANCE` of the loss. Planted mistakes must miss by ten standard errors, or by ten
times the tolerance where nothing is sampled.
"""

import dataclasses
import math

import numpy as np
import pytest
from scipy.linalg import expm

from leadline.simulation.train import train
from leadline.spec import (
    BestScale,
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
from leadline.theory import landscape
from leadline.theory.layerwise import untied_flow, untied_loss
from leadline.theory.predict import predict
from leadline.theory.spectra import power_law_modes

EXACT = 1e-6
ALLOWANCE = 0.002
TIMES = (1.0, 10.0)
SEEDS = 4


def spec(covariance, recipe, *, depth=2, dim=16, contexts=2, shift=None, tied=True, noise=0.0):
    task = InContextRegression(
        spectrum=source_capacity(dim, nu=1.25, beta=0.8),
        covariance=covariance,
        context=math.inf,
        noise=noise,
    )
    return RunSpec(
        task=task,
        model=ReducedAttention(depth=depth, tied=tied),
        recipe=recipe,
        evaluation=Evaluation(contexts=contexts, task=shift and shift(task)),
    )


def turned(task, angle=0.15):
    return dataclasses.replace(task, turn=Turn(angle=angle, seed=3))


def steeper(task):
    return replace(replace(task, "spectrum.input_exponent", 1.5), "spectrum.task_exponent", 0.4)


def assert_exact(run):
    found, expected = train([run])[0], predict(run)
    assert found.status == expected.status == "ok"
    np.testing.assert_allclose(found.loss, expected.loss, rtol=EXACT, atol=0)
    assert np.all(found.loss_error < 1e-5 * found.loss)
    return found, expected


# --- fixed covariance ---------------------------------------------------------------------------

LATE = GradientFlow(times=(0.5, 5.0, 50.0, 2000.0))


@pytest.mark.parametrize(("depth", "tied"), [(1, True), (2, True), (4, True), (3, False)])
def test_fixed_flow(depth, tied):
    run = spec("fixed", LATE, depth=depth, tied=tied)
    found, expected = assert_exact(run)
    halved = replace(run, "recipe.times", tuple(t / 2 for t in LATE.times))
    mistaken = predict(halved).loss
    assert np.all(np.abs(mistaken - found.loss) > 10 * (EXACT * found.loss + found.loss_error))
    assert found.time.tolist() == expected.time.tolist()


def test_fixed_flow_from_a_start_and_with_noise_that_infinite_context_averages_out():
    recipe = GradientFlow(times=(3.0, 30.0), start=0.7)
    assert_exact(spec("fixed", recipe, depth=3, noise=0.5))


def test_fixed_flow_learns_the_scales_of_theory():
    run = spec("fixed", GradientFlow(times=(20.0, 400.0)), depth=2)
    found = train([replace(run, "evaluation.measures", ("diagonal",))])[0].measures[0].values
    expected = predict(replace(run, "evaluation.measures", ("scales",))).measures[0].values
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_fixed_flow_has_the_exponent_of_theory_and_not_the_printed_one():
    nu, beta, times = 1.25, 0.8, np.geomspace(20, 200, 8)

    def slope(curve):
        return -np.polyfit(np.log(times), np.log(curve.loss), 1)[0]

    run = spec("fixed", GradientFlow(times=tuple(times)), dim=32)
    found = slope(train([run])[0])
    assert found == pytest.approx(slope(predict(run)), abs=1e-6)
    limit = slope(predict(replace(run, "task.spectrum.dim", math.inf)))
    assert limit == pytest.approx(nu * beta / (nu * beta + 2 * nu + 1), abs=0.001)
    assert abs(limit - beta / (nu + nu * beta + 1)) > 0.02


def test_fixed_training_keeps_the_clock_of_the_matrix_flow():
    """Exact gradients in expectation at infinite context: small steps follow the flow."""
    run = spec("fixed", Training(steps=100, batch_size=64, queries=math.inf, rate=0.05), dim=4)
    losses = np.array([train([replace(run, "seed", s)])[0].loss[-1] for s in range(8)])
    error = losses.std(ddof=1) / math.sqrt(8)
    assert train([run])[0].time[-1] == pytest.approx(5.0)
    flow = replace(run, "recipe", GradientFlow(times=(1.25, 5.0)))
    slow, expected = predict(flow).loss
    assert error < 0.005 * expected
    # steps of 0.05 and their noise move the loss by under one percent
    assert abs(losses.mean() - expected) < 4 * error + 0.01 * expected
    assert abs(losses.mean() - slow) > 10 * error


# --- shifts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 4])
def test_fixed_flow_under_a_turn(depth):
    found, _ = assert_exact(spec("fixed", LATE, depth=depth, shift=turned))
    unshifted = predict(spec("fixed", LATE, depth=depth)).loss
    assert np.all(found.loss[1:] > 1.001 * unshifted[1:])


def test_fixed_flow_under_a_turn_in_the_other_sense_differs():
    run = spec("fixed", LATE, shift=turned)
    other = spec("fixed", LATE, shift=lambda task: turned(task, angle=-0.15))
    assert np.all(np.abs(train([run])[0].loss / predict(other).loss - 1) > 10 * EXACT)


def test_fixed_flow_under_another_spectrum():
    assert_exact(spec("fixed", LATE, depth=3, shift=steeper))


@pytest.mark.parametrize("recipe", [GivenScale(gamma=1.4), BestScale()])
@pytest.mark.parametrize(
    ("covariance", "shift"), [("fixed", turned), ("fixed", steeper), ("rotated", steeper)]
)
def test_scales_under_a_shift(covariance, shift, recipe):
    found, expected = assert_exact(spec(covariance, recipe, depth=4, shift=shift))
    assert found.scalar("gamma") == pytest.approx(expected.scalar("gamma"), rel=1e-4)


@pytest.mark.parametrize("angle", [0.02, 0.6])
def test_a_long_flow_whitens_and_a_turn_costs_what_the_whitened_inputs_say(angle):
    r"""At depth one the flow ends at $\Sigma^{-1}$; the loss there, from its definition."""
    run = spec("fixed", GradientFlow(times=(8000.0,)), depth=1, dim=4)
    run = replace(run, "evaluation.task", turned(run.task, angle))
    found = train([run])[0]
    gaussian = np.random.default_rng(3).standard_normal((4, 4))
    rotation = expm(-angle * (gaussian - gaussian.T) / math.sqrt(8))
    inputs = np.arange(1, 5) ** -1.25
    tasks = np.arange(1, 5) ** -2.0 / inputs / (np.arange(1, 5) ** -2.0).sum()
    shifted = rotation @ np.diag(inputs) @ rotation.T
    missing = np.eye(4) - np.diag(1 / inputs) @ shifted
    loss = np.trace(np.diag(tasks) @ missing.T @ shifted @ missing)
    assert found.loss[0] == pytest.approx(loss, rel=EXACT)


# --- rotated covariance -------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 8, 64, math.inf])
def test_rotated_landscape(depth):
    for gamma in (0.4, 1.5):
        assert_exact(spec("rotated", GivenScale(gamma=gamma), depth=depth))


@pytest.mark.parametrize("depth", [4, 64])
def test_rotated_best_scale_tends_to_twice_the_inverse_of_the_largest_eigenvalue(depth):
    found, expected = assert_exact(spec("rotated", BestScale(), depth=depth, dim=64))
    assert found.scalar("gamma") == pytest.approx(expected.scalar("gamma"), rel=1e-4)
    modes = power_law_modes(source_capacity(64, nu=1.25, beta=0.8))
    printed = float(landscape.loss(modes, depth / 1.0, depth=depth))
    assert printed > 1.2 * found.loss[0]


def test_a_scale_past_the_edge_is_unstable_in_both_engines():
    run = spec("rotated", GivenScale(gamma=4.1), depth=2, shift=steeper)
    assert train([run])[0].status == predict(run).status == "unstable"


def extrapolated(run, *, sizes=(256, 512)):
    """The mean loss over seeds and its standard error, extrapolated to infinitely many contexts."""
    losses = []
    for seed in range(SEEDS):
        own = replace(replace(run, "seed", seed), "evaluation.seed", seed)
        small, large = (train([replace(own, "evaluation.contexts", n)])[0].loss for n in sizes)
        losses.append(2 * large - small)
    return np.mean(losses, axis=0), np.std(losses, axis=0, ddof=1) / math.sqrt(SEEDS)


def assert_close(loss, error, expected):
    assert np.all(error < 0.005 * expected)
    assert np.all(np.abs(loss - expected) < 4 * error + ALLOWANCE * expected)


@pytest.mark.parametrize("depth", [1, 4])
def test_rotated_flow(depth):
    run = spec("rotated", GradientFlow(times=TIMES), depth=depth, dim=6)
    loss, error = extrapolated(run)
    assert_close(loss, error, predict(run).loss)
    for factor in (0.5, 2.0, 1 / 6):  # half or twice the clock, and that of the matrix
        other = predict(replace(run, "recipe.times", tuple(factor * t for t in TIMES))).loss
        assert abs(other - loss)[0] > 10 * error[0]


# --- untied layers ------------------------------------------------------------------------------


def test_untied_layers_that_start_equal_follow_the_tied_flow_until_they_escape():
    """The tied optimum is a saddle, off which the asymmetry of a small sample pushes the layers."""
    recipe = GradientFlow(times=(0.1, 1.0, 1000.0))
    run = spec("rotated", recipe, dim=4, contexts=32)
    tied, untied = (train([replace(run, "model.tied", t)])[0] for t in (True, False))
    np.testing.assert_allclose(untied.loss[:2], tied.loss[:2], rtol=1e-3)
    assert untied.loss[2] < 0.9 * tied.loss[2]


def test_untied_layers_that_start_apart():
    recipe = GradientFlow(times=TIMES, start=0.5, spread=0.8)
    run = spec("rotated", recipe, depth=2, dim=6, tied=False)
    modes = power_law_modes(run.task.spectrum)
    expected = untied_loss(modes, untied_flow(modes, TIMES, start=[1.3, -0.3]))
    loss, error = extrapolated(run)
    assert_close(loss, error, expected)
    together = predict(replace(run, "recipe.spread", 0.0)).loss
    assert np.all(np.abs(together - loss) > 10 * error)


def test_fixed_untied_layers_that_start_apart_in_one_dimension():
    """One mode: the products of both engines are the same ordinary differential equation."""
    recipe = GradientFlow(times=(0.2, 0.7), start=0.3, spread=0.5)
    run = spec("fixed", recipe, depth=3, dim=1, tied=False)
    run = replace(run, "evaluation.measures", ("scale",))
    modes = power_law_modes(run.task.spectrum)
    scales = untied_flow(modes, recipe.times, start=[0.8, -0.2, 0.8])
    found = train([run])[0]
    np.testing.assert_allclose(found.measures[0].values, scales, rtol=1e-6)
    np.testing.assert_allclose(found.loss, untied_loss(modes, scales), rtol=EXACT)
