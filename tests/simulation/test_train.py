"""Training and sampled landscapes: lanes, resumption, refusals, exact statements beside them."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from leadline.errors import SolverError, SpecError, StoreError
from leadline.simulation import checkpoint, descent, lanes
from leadline.simulation.train import LANES, program_key, train
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    flat,
    grid,
    replace,
    source_capacity,
)

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text())


def isotropic(dim=16, context=16, depth=2, noise=0.0, **evaluation):
    return RunSpec(
        task=InContextRegression(
            spectrum=flat(dim), covariance="isotropic", context=context, noise=noise
        ),
        model=ReducedAttention(depth=depth),
        recipe=GivenScale(gamma=1.0),
        evaluation=Evaluation(**{"contexts": 16} | evaluation),
    )


def training(steps=12, **settings):
    base = isotropic(record=(0, 5, steps) if steps > 5 else (0, steps))
    recipe = {"steps": steps, "batch_size": 16, "queries": 8, "rate": 0.8} | settings
    return replace(base, "recipe", Training(**recipe))


def assert_same(first, second):
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
        elif field.name == "measures":
            for one, other in zip(a, b, strict=True):
                np.testing.assert_array_equal(one.values, other.values)
        else:
            assert a == b


# --- lanes and resumption ---------------------------------------------------------------------


def test_a_lane_is_a_single_run_bit_for_bit():
    specs = grid(
        training(), {"seed": range(3), "recipe.rate": [0.4, 0.8], "task.noise": [0.0, 0.5]}
    )
    together = train(specs)  # more than one call's worth of lanes
    assert len(specs) > LANES
    for i in (0, 5, 11):
        assert_same(train([specs[i]])[0], together[i])


def test_landscape_points_do_not_depend_on_each_other():
    specs = grid(
        isotropic(), {"recipe.gamma": [0.3, 0.9], "model.depth": [1, 4], "task.noise": [0, 1]}
    )
    together = train(specs)
    for i in (0, 3, 6):
        assert_same(train([specs[i]])[0], together[i])


def test_seeds_and_rates_matter():
    curves = train(grid(training(), {"seed": [0, 1], "recipe.rate": [0.4, 0.8]}))
    assert len({curve.loss[-1] for curve in curves}) == 4
    assert len({curve.loss[0] for curve in curves}) == 1  # all start at zero, on common contexts


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "SEGMENT_SECONDS", 0.0)  # a checkpoint after every segment
    specs = grid(training(), {"seed": range(LANES + 2)})
    whole = train(specs)
    file = tmp_path / "state"
    for stop in (1, 4, 3, 7, 2):

        class Stop(Exception):
            pass

        calls = iter(range(10**6))

        def observe(done, total, stop=stop, calls=calls, stopped=Stop):
            assert 0 < done <= total == 12 * len(specs)
            if next(calls) == stop:
                raise stopped

        with pytest.raises(Stop):
            train(specs, checkpoint=file, observe=observe)
        assert file.exists()
    for _ in ("to the end", "from the last state, should the answer be lost"):
        resumed = train(specs, checkpoint=file)
        assert file.exists()
        for a, b in zip(whole, resumed, strict=True):
            assert_same(a, b)


def test_a_checkpoint_of_other_runs_or_a_damaged_one_is_refused(tmp_path):
    file = tmp_path / "state"
    checkpoint.save(file, {"x": np.zeros(2)}, runs=["a"])
    with pytest.raises(StoreError, match="other runs"):
        train([training()], checkpoint=file)
    train([training()], checkpoint=file.with_name("own"))
    with pytest.raises(StoreError, match=r"recipe\.rate = 0\.8, expected 0\.4"):
        train([training(rate=0.4)], checkpoint=file.with_name("own"))
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(StoreError, match="not a checkpoint"):
        train([training()], checkpoint=file)


def test_an_exploding_lane_ends_as_diverged_and_leaves_the_others(monkeypatch):
    good, bad = training(), training(rate=1e9)
    alone = train([good])[0]
    curves = train([bad, good])
    assert [c.status for c in curves] == ["diverged", "ok"]
    assert_same(curves[1], alone)


# --- accounting and refusals ------------------------------------------------------------------


def test_curve_accounts_for_steps_time_tokens_and_flops():
    curve = train([training()])[0]
    assert curve.step.tolist() == [0, 5, 12]
    np.testing.assert_allclose(curve.time, np.array([0, 5, 12]) * 0.8 / 16)
    np.testing.assert_allclose(curve.tokens, np.array([0, 5, 12]) * 16 * (16 + 8))
    np.testing.assert_allclose(curve.flops, np.array([0, 5, 12]) * 16**2 * 16**2 * 2)
    assert curve.loss[0] == pytest.approx(1.0, abs=1e-12)  # Gamma = 0 predicts zero


def test_one_program_a_shape():
    base = training()
    values = {"seed": 3, "recipe.rate": 0.5, "task.noise": 0.5, "evaluation.seed": 4}
    for path, value in values.items():
        assert program_key(replace(base, path, value)) == program_key(base), path
    shapes = {"model.depth": 3, "task.context": 8, "recipe.steps": 13, "evaluation.contexts": 17}
    for path, value in shapes.items():
        assert program_key(replace(base, path, value)) != program_key(base), path


def test_compiles_once_a_program():
    train([training(steps=12)])
    before = descent._advance._cache_size()
    train(list(grid(training(steps=12), {"seed": [7, 8], "task.noise": [0.1, 0.2]})))
    assert descent._advance._cache_size() == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(replace(isotropic(), "recipe", BestScale()), "model.tied", False), "model.tied"),
        (training(batch_size=math.inf), "batch_size"),
        (replace(training(), "model.depth", math.inf), "model.depth"),
        (replace(isotropic(), "evaluation.queries", 4), "evaluation.queries"),
    ],
)
def test_what_only_theory_answers_is_refused(spec, message):
    with pytest.raises(SolverError, match=message):
        train([spec])


def test_unknown_measures_name_the_nearest():
    with pytest.raises(SpecError, match="did you mean 'scale'"):
        train([replace(training(), "evaluation.measures", ("scal",))])
    with pytest.raises(SpecError, match="landscape has none"):
        train([replace(isotropic(), "evaluation.measures", ("scale",))])


def test_specs_of_two_programs_are_refused():
    with pytest.raises(SolverError, match="2 programs"):
        train([training(), isotropic()])


# --- against exact statements -----------------------------------------------------------------


def test_the_first_step_of_untied_layers_is_that_of_tied_ones():
    """All layers share one gradient at zero, and the rate of untied layers is L times larger; later
    the noise of the gradients takes them apart.
    """
    tied = replace(training(steps=1), "evaluation.measures", ("diagonal",))
    a, b = train([tied])[0], train([replace(tied, "model.tied", False)])[0]
    assert b.measures[0].values.shape == (2, 2, 16)
    for layer in range(2):
        one = b.measures[0].values[1, layer]
        np.testing.assert_allclose(one, a.measures[0].values[1, 0], rtol=1e-5)
    np.testing.assert_allclose(a.loss, b.loss, rtol=1e-5)


def test_rotated_infinite_context_is_the_spectral_sum():
    spectrum = source_capacity(24, nu=1.25, beta=0.8)
    task = InContextRegression(spectrum=spectrum, covariance="rotated", context=math.inf)
    base = replace(replace(isotropic(), "task", task), "evaluation.contexts", 3)
    ranks = np.arange(1.0, 25)
    weights = ranks**-2.0 / (ranks**-2.0).sum()  # omega lambda ~ k^-(nu beta + 1)
    for spec in grid(base, {"model.depth": [1, 5, math.inf], "recipe.gamma": [0.5, 1.5]}):
        curve, gamma, depth = train([spec])[0], spec.recipe.gamma, spec.model.depth
        residual = (
            np.exp(-gamma * ranks**-1.25)
            if math.isinf(depth)
            else (1 - gamma * ranks**-1.25 / depth) ** depth
        )
        assert curve.loss[0] == pytest.approx((weights * residual**2).sum(), rel=1e-10)
        assert curve.loss_error[0] < 1e-12


def test_first_step_has_the_prefactor_two():
    """d gamma / dt = -dLoss/dgamma = 2 at gamma = 0; a factor of two misses by far."""
    one = isotropic(dim=32, context=32, depth=4, record=(1,))
    recipe = Training(steps=1, batch_size=64, queries=math.inf, rate=0.32)
    specs = grid(replace(one, "recipe", recipe), {"seed": range(16)})
    slopes = np.array([c.scalar("gamma") / c.time[-1] for c in train(specs)])
    error = slopes.std(ddof=1) / 4
    assert abs(slopes.mean() - 2) < 4 * error
    assert abs(slopes.mean() - 1) > 10 * error
    assert abs(slopes.mean() - 4) > 10 * error


def marchenko_pastur_loss(gamma, depth, ratio, noise):
    """The infinite-dimensional loss by brute-force trapezoids in the square root of the edge."""
    low, high = (1 - ratio**-0.5) ** 2, (1 + ratio**-0.5) ** 2
    angle = np.linspace(0, np.pi, 200_001)[1:-1]
    x = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
    density = ratio * np.sqrt((x - low) * (high - x)) / (2 * np.pi * x)
    weight = density * (high - low) / 2 * np.sin(angle) * (angle[1] - angle[0])
    power = (1 - gamma * x / depth) ** depth
    loss = power**2 + noise**2 / (ratio * x) * (1 - power) ** 2
    return (weight * loss).sum() + max(1 - ratio, 0)


@pytest.mark.parametrize(
    ("ratio", "depth", "gamma", "noise"),
    [
        (0.5, 1, 0.4, 0.0), (0.5, 4, 1.0, 0.5), (1.0, 8, 3.0, 0.0), (1.0, 8, 3.0, 0.5),
        (2.0, 1, 0.6, 0.0), (2.0, 16, 6.0, 0.3), (4.0, 2, 1.2, 1.0),
    ],
)  # fmt: skip
def test_landscape_extrapolates_to_the_infinite_dimension(ratio, depth, gamma, noise):
    """Two sizes, extrapolated in 1/D; the curvature of 1/D at these sizes is below 0.5%."""
    small, large = (
        train(
            [
                replace(
                    isotropic(dim, int(ratio * dim), depth, noise, contexts=contexts),
                    "recipe.gamma",
                    gamma,
                )
            ]
        )[0]
        for dim, contexts in ((32, 800), (64, 400))
    )
    estimate = 2 * large.loss[0] - small.loss[0]
    error = math.hypot(2 * large.loss_error[0], small.loss_error[0])
    expected = marchenko_pastur_loss(gamma, depth, ratio, noise)
    assert large.loss_error[0] < 0.005 * large.loss[0]
    assert abs(estimate - expected) < 4 * error + 0.005 * expected
    wrong = marchenko_pastur_loss(2 * gamma if depth > 1 else gamma / 2, depth, ratio, noise)
    assert abs(estimate - wrong) > 10 * error


@pytest.mark.parametrize(
    "row",
    [r for r in REFERENCE["sgd"] if r["D"] == 32],
    ids=lambda r: f"alpha={r['alpha']},sigma={r['sigma']}",
)
def test_shallow_sgd_against_the_recursion(row):
    """Finite size shifts the recursion by at most 15/D (the reference's own simulation shows it);
    the paper's start C(0) = 1 misses by more than ten standard errors.
    """
    dim = row["D"]
    base = isotropic(dim, int(row["alpha"] * dim), 1, row["sigma"], contexts=64, record=range(21))
    base = replace(base, "task.query_noise", row["sigma"] * row["noisy_test"])
    recipe = Training(
        steps=20,
        batch_size=int(row["tau"] * dim),
        queries=int(row["kappa"] * dim),
        rate=row["eta"] * dim / 2,
    )
    base = replace(base, "recipe", recipe)
    seeds = [replace(replace(base, "seed", s), "evaluation.seed", s) for s in range(16)]
    curves = train(seeds)
    losses = np.array([c.loss for c in curves])
    error = losses.std(axis=0, ddof=1) / 4
    assert np.all(np.abs(losses.mean(axis=0) - row["L_th"]) < 4 * error + 15 / dim)
    s, a, b = 1 + (1 + row["sigma"] ** 2) / row["alpha"], row["a"], row["b"]
    floor = (1 + row["sigma"] ** 2) / (row["alpha"] + 1 + row["sigma"] ** 2)
    # The stored simulation, independent code at the same size, took the loss s C + floor. The loss
    # on contexts has E S^2 = (s + 1/P) I in place of s I: it is higher by ||Gamma||^2 / (D P).
    gamma, context = np.array([c.scalar("gamma") for c in curves]), base.task.context
    square = (losses[:, 20] - 1 + 2 * gamma) / (s + 1 / context)  # ||Gamma||^2 / D
    stored = losses[:, 20] - square / context
    spread = math.hypot(stored.std(ddof=1) / 4, row["se20"])
    assert abs(stored.mean() - row["L_sim"][20]) < 4 * spread
    paper = s * (a + b) + floor  # one step from C(0) = 1
    assert abs(losses.mean(axis=0)[1] - paper) > 10 * error[1]


def test_best_scale_measures_on_contexts_that_did_not_choose():
    spec = replace(isotropic(dim=24, context=24, depth=8, contexts=64), "recipe", BestScale())
    best = train([spec])[0]
    again = train([replace(spec, "recipe", GivenScale(gamma=best.scalar("gamma")))])[0]
    assert best.loss[0] == again.loss[0]
    scales = best.scalar("gamma") * np.linspace(0.5, 1.2, 29)
    nearby = train([replace(spec, "recipe", GivenScale(gamma=g)) for g in scales])
    lowest = min(c.loss[0] for c in nearby)
    assert lowest <= best.loss[0] < lowest + 4 * best.loss_error[0]
