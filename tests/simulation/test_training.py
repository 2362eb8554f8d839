"""Training of transformers: lanes, resumption, optimizers, exact statements, what is refused."""

import dataclasses
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from leadline.errors import SolverError, SpecError, StoreError
from leadline.ident import from_json, to_json
from leadline.simulation import lanes, training
from leadline.simulation.train import program_key, train
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    Transformer,
    flat,
    grid,
    replace,
    source_capacity,
)
from leadline.theory.predict import predict


def spec(*, dim=4, context=6, noise=0.3, evaluation=None, recipe=None, **model):
    """A small run whose lanes all tests share; other settings compile anew."""
    settings = {"steps": 12, "batch_size": 8, "queries": math.inf, "rate": 0.05}
    settings |= {"optimizer": "adamw", "schedule": "cosine", "warmup": 3, "weight_decay": 0.01}
    aligned = {"tied": True, "channels": "separate", "initial": "aligned"}
    aligned |= {"trainable": "attention"}
    return RunSpec(
        task=InContextRegression(
            spectrum=flat(dim), covariance="isotropic", context=context, noise=noise
        ),
        model=Transformer(**{"depth": 3, "width": dim + 1} | aligned | model),
        recipe=Training(**settings | (recipe or {})),
        evaluation=Evaluation(**{"contexts": 32, "record": (0, 5, 12)} | (evaluation or {})),
    )


def assert_same(first, second):
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b


# --- lanes and resumption ---------------------------------------------------------------------


def test_a_lane_is_a_single_run_bit_for_bit():
    axes = {"seed": range(3), "recipe.rate": [0.02, 0.05], "task.noise": [0.2, 0.5]}
    specs = grid(spec(), axes)
    together = train(specs)
    assert len(specs) > training.LANES
    for i in (0, 5, 11):
        assert_same(train([specs[i]])[0], together[i])
    assert len({curve.loss[-1] for curve in together}) == 12


def test_one_program_for_all_that_is_a_value_of_a_lane():
    base = spec()
    train([base])
    before = training._advance._cache_size()
    values = {
        "seed": 3, "recipe.rate": 0.5, "recipe.weight_decay": 0.1, "task.noise": 0.5,
        "evaluation.seed": 4, "model.start": 0.5,
    }  # fmt: skip
    for path, value in values.items():
        assert program_key(replace(base, path, value)) == program_key(base), path
        train([replace(base, path, value)])
    assert training._advance._cache_size() == before
    shapes = {
        "model.depth": 4, "model.width": 6, "task.context": 8, "recipe.steps": 13,
        "evaluation.contexts": 17, "recipe.schedule": "constant", "model.trainable": "all",
        "recipe.precision": "double", "task.noise": 0.0,
    }  # fmt: skip
    for path, value in shapes.items():
        assert program_key(replace(base, path, value)) != program_key(base), path


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "SEGMENT_SECONDS", 0.0)  # a checkpoint after every segment
    specs = grid(spec(), {"seed": range(training.LANES + 2)})
    whole, file = train(specs), tmp_path / "state"
    for stop in (1, 4, 3, 7):

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
    for a, b in zip(whole, train(specs, checkpoint=file), strict=True):
        assert_same(a, b)
    other = [replace(s, "recipe.rate", 0.07) if s.seed == 3 else s for s in specs]
    with pytest.raises(StoreError, match=r"number 4 has recipe.rate = 0.05, expected 0.07"):
        train(other, checkpoint=file)
    with pytest.raises(StoreError, match=r"recipe.weight_decay = 0.01, expected its default"):
        train(list(grid(replace(specs[0], "recipe.weight_decay", 0), {"seed": range(10)})),
              checkpoint=file)  # fmt: skip
    with pytest.raises(StoreError, match="10, expected 2"):
        train(specs[:2], checkpoint=file)


def test_an_exploding_lane_ends_as_diverged_and_leaves_the_others():
    good = spec()
    bad = replace(good, "recipe.rate", 1e18)
    alone = train([good])[0]
    curves = train([bad, good])
    assert [c.status for c in curves] == ["diverged", "ok"]
    assert_same(curves[1], alone)


DEVICES = """
import dataclasses, sys
sys.path.insert(0, sys.argv[1])
from test_training import spec
from leadline.simulation.train import train
import jax
print(len(jax.devices()), [c.loss[-1].hex() for c in train([spec()])])
"""


def in_process(code, **variables):
    arguments = [sys.executable, "-c", code, os.path.dirname(__file__)]
    return subprocess.run(
        arguments, capture_output=True, text=True, env=os.environ | variables, check=False
    )


@pytest.mark.full
def test_devices_share_the_lanes_and_change_no_number():
    flags = "--xla_force_host_platform_device_count=4"
    done = in_process(DEVICES, XLA_FLAGS=flags)
    assert done.stdout.split(" ", 1)[0] == "4", done.stderr
    value = float.fromhex(done.stdout.split("'")[1])
    assert value == pytest.approx(train([spec()])[0].loss[-1], rel=1e-6)


def test_a_device_that_is_not_there_is_named():
    done = in_process(DEVICES.replace("len(jax.devices()), ", ""), JAX_PLATFORMS="cuda")
    last = done.stderr.strip().splitlines()[-1]
    assert "SolverError: JAX_PLATFORMS: got 'cuda', a device that this machine" in last


# --- optimizers, against NumPy ----------------------------------------------------------------


def exact(**changes):
    """Infinite context and queries, isotropic: nothing is sampled."""
    recipe = {"batch_size": 1, "precision": "double"} | changes.pop("recipe", {})
    return spec(context=math.inf, noise=0.0, recipe=recipe, **changes)


def gradient(function, values):
    """Complex steps through analytic functions of flat arrays."""
    slope = np.zeros(values.size)
    for i in range(values.size):
        moved = values.astype(complex)
        moved[i] += 1e-30j
        slope[i] = function(moved).imag / 1e-30
    return slope


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        ("sgd", "cosine"),
        ("adamw", "constant"),
        pytest.param("adam", "constant", marks=pytest.mark.full),
        pytest.param("adamw", "cosine", marks=pytest.mark.full),
    ],
)
def test_optimizers_against_numpy(optimizer, schedule):
    dim, depth, steps, warmup, rate = 2, 3, 12, 3, 0.05
    decay = 0.2 if optimizer == "adamw" else 0.0
    recipe = {"optimizer": optimizer, "schedule": schedule, "rate": rate, "weight_decay": decay}
    run = exact(dim=dim, recipe=recipe, start=0.8, trainable="attention", tied=False)
    width, start = dim + 1, 0.8
    size = width * width

    def loss(flat_weights):
        """(1/D) ||prod_l (I - a_l [W_q^T W_k]_l / L)||^2 on the input directions."""
        residual = np.eye(dim)
        for layer in flat_weights.reshape(depth, -1):
            keys, queries, a = layer[:size].reshape(width, width), layer[size : 2 * size], layer[-1]
            gamma = a * queries.reshape(width, width).T @ keys
            residual = (np.eye(dim) - gamma[:dim, :dim] / depth) @ residual
        return (residual**2).sum() / dim

    # keys, queries of every layer: what they do on the label direction does not enter
    eye = start * np.eye(width).ravel()
    theta = np.tile(np.concatenate([eye, eye, [start]]), depth)
    first, second, losses = np.zeros_like(theta), np.zeros_like(theta), [loss(theta)]
    for step in range(steps):
        share = step / warmup if step < warmup else 1.0
        if schedule == "cosine" and step >= warmup:
            share = (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
        slope = gradient(loss, theta)
        direction = depth * slope  # untied layers under SGD
        if optimizer != "sgd":
            first = 0.9 * first + 0.1 * slope
            second = 0.999 * second + 0.001 * slope**2
            one, two = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
            direction = one / (np.sqrt(two) + 1e-8)
        theta = theta - rate * share * (direction + decay * theta)
        losses.append(loss(theta))
    curve = train([run])[0]
    np.testing.assert_allclose(curve.loss, np.array(losses)[[0, 5, 12]], rtol=1e-9)
    assert np.all(curve.loss_error == 0)
    assert losses[-1] < 0.8 * losses[0]


def test_curve_accounts_for_steps_time_and_flops():
    curve = train([spec()])[0]
    assert curve.step.tolist() == [0, 5, 12]
    shares = [0, 1 / 3, 2 / 3] + [(1 + math.cos(math.pi * i / 9)) / 2 for i in range(9)]
    np.testing.assert_allclose(curve.time, [0, 0.05 * sum(shares[:5]), 0.05 * sum(shares)])
    np.testing.assert_allclose(curve.flops, np.array([0, 5, 12]) * 6**2 * 5**2 * 3)


# --- exact statements -------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [pytest.param(True, marks=pytest.mark.full), False])
def test_full_attention_follows_its_flow(tied):
    """Small steps of gradient descent on W_x, W_k, W_q and a, from an aligned start on isotropic
    data, against w_v' = F gamma/w_v, w_k' = F gamma/(D w_k), w_x' = 2 F gamma/(D w_x) with
    gamma = w_v w_k w_q w_x^2; untied layers with rate L follow the tied flow.
    """
    dim, depth, rate, start = 4, 3, 0.002, 0.7
    record = (0, 100, 300)
    run = exact(
        dim=dim, start=start, trainable="attention and read-in", tied=tied, depth=depth,
        recipe={
            "optimizer": "sgd", "schedule": "constant", "warmup": 0, "weight_decay": 0.0,
            "rate": rate, "steps": 300,
        },
        evaluation={"record": record, "measures": ("scale",)},
    )  # fmt: skip
    curve = train([run])[0]

    def flow(share):
        def velocity(_, w):
            value, key, query, read = w
            gamma = value * key * query * read**2
            force = 2 * (1 - gamma / depth) ** (2 * depth - 1) * gamma
            return [force / value, share * force / key, share * force / query,
                    share * 2 * force / read]  # fmt: skip

        begin = [start, start, start, math.sqrt(2) * start]
        times = rate * np.array(record)
        found = solve_ivp(velocity, (0, times[-1]), begin, t_eval=times, rtol=1e-10, atol=1e-12)
        value, key, query, read = found.y
        return value * key * query * read**2

    np.testing.assert_allclose(curve.time, rate * np.array(record), rtol=1e-12)
    expected = flow(1 / dim)
    scales = curve.measures[0].values.mean(axis=-1)
    np.testing.assert_allclose(scales, expected, rtol=2e-3)  # steps of the flow: O(rate)
    assert np.abs(scales / flow(1.0) - 1)[1:].min() > 0.1  # a forgotten 1/D
    np.testing.assert_allclose(curve.loss, (1 - scales / depth) ** (2 * depth), rtol=1e-6)


TASKS = {
    "rotated": InContextRegression(
        spectrum=source_capacity(5, nu=1.2, beta=0.8), covariance="rotated", context=9, noise=0.4
    ),
    "fixed, all seen": InContextRegression(
        spectrum=source_capacity(5, nu=1.2, beta=0.8), covariance="fixed", context=math.inf
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_untrained_aligned_transformer_is_a_point_of_the_landscape(name):
    """On the same contexts: the loss is that of the reduced model with gamma = start^3."""
    measured = {"contexts": 24, "record": ()}
    run = spec(dim=5, start=1.125, recipe={"steps": 0, "warmup": 0}, evaluation=measured)
    run = replace(run, "task", TASKS[name])
    curve = train([run])[0]
    point = train(
        [
            RunSpec(
                task=TASKS[name],
                model=ReducedAttention(depth=3),
                recipe=GivenScale(gamma=1.125**3),
                evaluation=run.evaluation,
            )
        ]
    )[0]
    assert curve.loss[0] == pytest.approx(point.loss[0], rel=1e-12)
    assert curve.loss_error[0] == pytest.approx(point.loss_error[0], rel=1e-9, abs=1e-15)
    assert curve.scalar("gamma") == pytest.approx(1.125**3, rel=1e-12)


def test_free_channels_measure_the_same_loss_with_sampled_tasks():
    """Aligned weights satisfy the conditions of the reduction; a planted factor of two in the
    scale misses by more than ten standard errors.
    """
    settings = {"recipe": {"steps": 0, "warmup": 0}, "evaluation": {"contexts": 4096, "record": ()}}
    averaged = train([spec(start=1.1, **settings)])[0]
    sampled = train([spec(start=1.1, channels="free", **settings)])[0]
    error = math.hypot(averaged.loss_error[0], sampled.loss_error[0])
    assert abs(sampled.loss[0] - averaged.loss[0]) < 4 * error
    assert sampled.loss_error[0] > 1.3 * averaged.loss_error[0]
    other = train([spec(start=1.1 * 2 ** (1 / 3), **settings)])[0]
    assert abs(sampled.loss[0] - other.loss[0]) > 10 * error


# --- the number to reach ----------------------------------------------------------------------


def sampled_optimum(dim, context, depth, *, draws, seed=0):
    """min over gamma of the average of sum_x (1 - gamma x / L)^(2L) / D over sampled spectra, its
    standard error, by brute force.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((draws, dim, context))
    spectra = np.linalg.eigvalsh(x @ x.swapaxes(1, 2)) / context
    alpha = context / dim
    scales = np.linspace(0.6, 1.05, 91) * depth * alpha / (1 + alpha)
    losses = [((1 - g * spectra / depth) ** (2 * depth)).mean(axis=1) for g in scales]
    means = [loss.mean() for loss in losses]
    best = int(np.argmin(means))
    assert 0 < best < len(scales) - 1
    return means[best], losses[best].std() / math.sqrt(draws)


def learned(dim, context, depth, *, steps, rate, contexts):
    """The recipe: aligned start at gamma = 1, Adam, a cosine, 32 contexts a step."""
    run = spec(
        dim=dim, context=context, noise=0.0, depth=depth, trainable="attention",
        recipe={"steps": steps, "rate": rate, "batch_size": 32, "optimizer": "adam",
                "weight_decay": 0.0, "warmup": 0},
        evaluation={"record": (0, steps), "contexts": contexts},
    )  # fmt: skip
    return train([run])[0]


def assert_reached(curve, optimum, error):
    allowed = 0.08 if optimum < 0.02 else 0.03
    assert curve.status == "ok"
    assert abs(curve.loss[-1] / optimum - 1) < allowed
    # the statement has a meaning: both are known to a third of what is allowed, and the start is
    # farther away
    assert math.hypot(error, curve.loss_error[-1]) < allowed / 3 * optimum
    assert abs(curve.loss[0] / optimum - 1) > max(2 * abs(curve.loss[-1] / optimum - 1), 0.02)


def test_training_reaches_the_best_scale():
    optimum, error = sampled_optimum(12, 12, 4, draws=8000)
    assert_reached(learned(12, 12, 4, steps=200, rate=0.02, contexts=4096), optimum, error)


@pytest.mark.full
@pytest.mark.parametrize("depth", [1, 4, 16])
@pytest.mark.parametrize("ratio", [0.5, 1, 2])
def test_training_reaches_the_best_scale_in_32_dimensions(ratio, depth):
    optimum, error = sampled_optimum(32, int(32 * ratio), depth, draws=40_000)
    curve = learned(32, int(32 * ratio), depth, steps=1000, rate=0.002, contexts=8192)
    assert_reached(curve, optimum, error)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Transformer(depth=1, width=6, heads=4),
         "model.heads: got 4, which does not divide model.width = 6"),
        (lambda: Transformer(depth=1, width=4, scaling="mup"),
         "model.scaling: got 'mup', expected one of ('standard', 'depth', 'width', "),
        (lambda: Transformer(depth=1, width=4, mlp=2, channels="separate"), "model.mlp: got 2"),
        (lambda: Transformer(depth=math.inf, width=4), "model.depth: got inf"),
        (lambda: spec(context=0), "task.context: got 0, expected a whole number >= 1"),
        (lambda: spec(recipe={"queries": 0}), "recipe.queries: got 0, expected a whole number"),
        (lambda: spec(evaluation={"queries": 0}), "evaluation.queries: got 0"),
        (lambda: spec(attention="softmax"), "recipe.queries: got infinity; softmax attention"),
        (lambda: spec(attention="softmax", recipe={"queries": 4}), "evaluation.queries: got inf"),
        (lambda: spec(attention="softmax", context=math.inf), "task.context: got infinity"),
        (lambda: spec(width=4), "model.width: got 4 with initial 'aligned'"),
        (lambda: spec(recipe={"batch_size": math.inf}), "recipe.batch_size: got infinity"),
        (lambda: replace(spec(), "recipe", BestScale()), "recipe: got BestScale; a Transformer"),
        (lambda: replace(spec(), "recipe", GradientFlow(times=(1.0,))), "recipe: got GradientFlow"),
        (lambda: replace(spec(), "evaluation.relative_error", 0.1), "evaluation.relative_error"),
    ],
)  # fmt: skip
def test_impossible_transformers(make, text):
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_a_transformer_survives_its_json():
    run = spec(attention="softmax", heads=5, recipe={"queries": 4}, evaluation={"queries": 4})
    assert from_json(to_json(run)) == run


def test_measures_belong_to_a_model():
    with pytest.raises(SpecError, match=r"measures: got 'scal'.*did you mean 'scale'"):
        train([replace(spec(), "evaluation.measures", ("scal",))])
    soft = spec(attention="softmax", recipe={"queries": 4}, evaluation={"queries": 4})
    with pytest.raises(SpecError, match="got 'scale', expected some of movement"):
        train([replace(soft, "evaluation.measures", ("scale",))])


def test_theory_refuses_a_transformer():
    with pytest.raises(SolverError, match="theory answers its reduced form, ReducedAttention"):
        predict(spec())
