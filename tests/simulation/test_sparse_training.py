"""Training on sparse features: optimizers, lanes, checkpoints, softmax, features of every kind."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import binom

from leadline.errors import SolverError, SpecError, StoreError
from leadline.simulation import checkpoint, lanes, softmax
from leadline.simulation.blocks import starting_blocks, token_matrices, training_shares
from leadline.simulation.contexts import stream
from leadline.simulation.optimizers import optimizer_of, rule_of, share_of_rate, summed_rates
from leadline.simulation.sequences import (
    draw_sequences,
    draw_tokens,
    draw_types,
    literal_predictions,
    literal_softmax_predictions,
    numbers_of,
    other_deviations,
)
from leadline.simulation.train import LANES, program_key, train
from leadline.spec import (
    Evaluation,
    GradientFlow,
    PerTaskAttention,
    RunSpec,
    SparseFeatures,
    Training,
    replace,
)
from leadline.theory.predict import predict

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "lyu2025.json").read_text(encoding="utf-8")
)
FIVE = SparseFeatures(num_tasks=5, type_exponent=1.8, context=100)
SOFT = PerTaskAttention(attention="softmax", start=0.05)
ADAMW = Training(
    steps=30, batch_size=16, queries=1, rate=1e-2, optimizer="adamw", weight_decay=0.1, warmup=5
)


def run(task=FIVE, recipe=ADAMW, model=None, seed=0, **evaluation):
    return RunSpec(
        task=task,
        model=model or PerTaskAttention(start=0.05),
        recipe=recipe,
        evaluation=Evaluation(**{"measures": ("output",)} | evaluation),
        seed=seed,
    )


def descent(rate, steps, batch_size=math.inf):
    return Training(steps=steps, batch_size=batch_size, queries=1, rate=rate)


drawn_tokens = jax.jit(draw_tokens, static_argnames=("longest",))
"""One compilation instead of one an operation."""


def values(curve, name="output"):
    return next(m.values for m in curve.measures if m.name == name)


# optimizers


def schedule_by_hand(step, *, steps, warmup, cosine):
    if step < warmup:
        return step / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2 if cosine else 1.0


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_schedules(schedule, warmup):
    recipe = replace(replace(ADAMW, "schedule", schedule), "warmup", warmup)
    share = share_of_rate(rule_of(recipe))
    by_hand = [
        schedule_by_hand(n, steps=30, warmup=warmup, cosine=schedule == "cosine") for n in range(30)
    ]
    assert [float(share(n)) for n in range(30)] == pytest.approx(by_hand, abs=1e-6)
    sums = summed_rates(recipe, (0, 7, 30))
    expected = [0.0, sum(by_hand[:7]) * 1e-2, sum(by_hand) * 1e-2]
    assert sums == pytest.approx(expected, rel=1e-6)


def test_adamw_step_by_step():
    """The update rule in NumPy, on the average over all types, along a cosine after a warmup."""
    recipe = replace(replace(ADAMW, "schedule", "cosine"), "batch_size", math.inf)
    spec = run(recipe=recipe, record=(10, 30))
    numbers = numbers_of(FIVE)
    matrices = token_matrices(numbers.context, numbers.strength)
    now = np.stack(starting_blocks(spec))
    first, second = np.zeros_like(now), np.zeros_like(now)
    for step in range(30):
        seen = np.einsum("sij,ksj->ksi", matrices, now)
        wrong = np.sum(now[0] * seen[1], axis=1) - numbers.strength
        slope = 2 * (numbers.probability * wrong)[None, :, None] * seen[::-1]
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        up = first / (1 - 0.9 ** (step + 1))
        down = np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8
        rate = 1e-2 * schedule_by_hand(step, steps=30, warmup=5, cosine=True)
        now = now - rate * (up / down + 0.1 * now)
    output = np.einsum("si,sij,sj->s", now[0], matrices, now[1])
    curve = train([spec])[0]
    assert values(curve)[-1] == pytest.approx(output, rel=1e-5)
    assert curve.time[-1] == pytest.approx(summed_rates(recipe, (30,))[0])


def test_descent_with_a_schedule_is_descent_at_those_rates():
    recipe = replace(descent(1e-4, 12), "schedule", "cosine")
    curve = train([run(recipe=recipe)])[0]
    numbers = numbers_of(FIVE)
    matrices = token_matrices(numbers.context, numbers.strength)
    now = np.stack(starting_blocks(run()))
    for step in range(12):
        seen = np.einsum("sij,ksj->ksi", matrices, now)
        wrong = np.sum(now[0] * seen[1], axis=1) - numbers.strength
        rate = 1e-4 * schedule_by_hand(step, steps=12, warmup=0, cosine=True)
        now = now - 2 * rate * (numbers.probability * wrong)[None, :, None] * seen[::-1]
    output = np.einsum("si,sij,sj->s", now[0], matrices, now[1])
    assert values(curve)[-1] == pytest.approx(output, rel=1e-6)


def test_theory_and_other_models_refuse_other_optimizers():
    with pytest.raises(SolverError, match="recipe: got Training on sparse features"):
        predict(run())
    key = program_key(run())
    assert key != program_key(run(recipe=replace(ADAMW, "schedule", "cosine")))
    assert key == program_key(run(recipe=replace(ADAMW, "rate", 0.5), seed=3))
    assert key == program_key(run(recipe=replace(ADAMW, "weight_decay", 0.0)))


# lanes and checkpoints


def mixed():
    """More runs of one program than it has lanes: seeds, rates, decays, contexts, strengths."""
    specs = [run(seed=i, record=(0, 11, 30)) for i in range(LANES + 1)]
    specs[1] = replace(specs[1], "recipe.rate", 3e-3)
    specs[2] = replace(specs[2], "recipe.weight_decay", 0.0)
    specs[3] = replace(specs[3], "task.context", (100, 90, 80, 70, 60))
    specs[4] = replace(specs[4], "task.strength", (1.0, -1.0, 0.5, 0.4, 0.3))
    specs[5] = replace(specs[5], "model.shared_value", True)
    specs[6] = replace(replace(specs[6], "model.constrained", True), "model.invariant", 1e-3)
    return specs


def soft():
    return [run(model=SOFT, seed=i, record=(5, 30)) for i in range(2)]


def dense():
    task = SparseFeatures(num_tasks=3, type_exponent=1.2, context=6, sequences=20)
    specs = [run(task, seed=i, record=(0, 30), contexts=4) for i in range(2)]
    return [
        replace(specs[0], "task.feature_noise", 0.3),
        replace(specs[1], "task.feature_decay", 2.0),
    ]


@pytest.mark.parametrize("make", [mixed, soft, dense])
def test_lanes_are_single_runs(make):
    specs = make()
    assert len({program_key(spec) for spec in specs}) == 1
    together = train(specs)
    for spec, curve in list(zip(specs, together, strict=True))[:: max(1, len(specs) - 4)]:
        alone = train([spec])[0]
        assert curve.loss.tolist() == alone.loss.tolist()
        assert values(curve).tolist() == values(alone).tolist()
    assert len({tuple(curve.loss) for curve in together}) == len(specs)


class Stop(Exception):
    """Raised by an observer in the middle of a training."""


@pytest.mark.parametrize("make", [mixed, soft, dense])
def test_a_resumed_training_is_the_uninterrupted_one(make, tmp_path, monkeypatch):
    # every call of the program is followed by a checkpoint
    monkeypatch.setattr(lanes, "SEGMENT_SECONDS", 0.0)
    specs, path = make(), tmp_path / "state.npz"
    whole = train(specs)
    steps = sorted({step for curve in whole for step in curve.step.tolist()})
    total = steps[-1] * len(specs)
    for stop_at in (total // 3, total - 1):
        seen = []

        def stop(done, _, stop_at=stop_at, seen=seen):
            seen.append(done)
            if done >= stop_at:
                raise Stop

        with pytest.raises(Stop):
            train(specs, checkpoint=path, observe=stop)
        stored = checkpoint.load(path, runs=[checkpoint.identity(spec) for spec in specs])
        assert int(stored["step"]) + int(stored["first"]) > 0
    seen = []
    resumed = train(specs, checkpoint=path, observe=lambda done, _: seen.append(done))
    assert seen[0] > total // 3
    assert seen[-1] == total
    for ours, other in zip(resumed, whole, strict=True):
        assert ours.loss.tolist() == other.loss.tolist()
        assert values(ours).tolist() == values(other).tolist()
    with pytest.raises(StoreError, match="other runs"):
        train([replace(specs[0], "seed", 77)], checkpoint=path)


# softmax


def test_softmax_blocks_are_attention_on_tokens():
    """Predictions and all gradients, key and query along one direction of several dimensions."""
    task = SparseFeatures(
        num_tasks=3, type_exponent=1.2, context=(7, 40, 3), strength=(1.0, -0.6, 0.4)
    )
    numbers = numbers_of(task)
    head, rng = 4, np.random.default_rng(4)
    direction = rng.standard_normal(head)
    direction /= np.linalg.norm(direction)
    with jax.enable_x64(True):
        types = draw_types(jax.random.key(1), jnp.asarray(numbers.probability), 50)
        sequences = draw_sequences(jax.random.key(2), types, numbers)
        own = jnp.take_along_axis(sequences.tokens[:, :3], types[:, None, None], axis=1)[:, 0]
        sign = own[:, -1]
        same = jnp.sum(own[:, :-1] == sign[:, None], axis=1).astype(float)
        blocks = softmax.Blocks(*(jnp.asarray(rng.normal(size=s)) for s in ((3, 2), (3, 2), 3)))

        def reduced(blocks):
            output = softmax.predictions(
                blocks,
                types,
                same,
                context=jnp.asarray(numbers.context),
                strength=jnp.asarray(numbers.strength),
            )
            return jnp.mean((output - jnp.asarray(numbers.strength)[types]) ** 2), output

        def literal(parts):
            output = literal_softmax_predictions(*parts, sequences)
            return jnp.mean((output - sequences.targets) ** 2), output

        value, key, query = np.zeros((3, 4)), np.zeros((3, head, 4)), np.zeros((head, 3))
        for s in range(3):
            value[s, [s, 3]] = blocks.value[s]
            key[s, :, s] = blocks.key[s, 0] * direction
            key[s, :, 3] = blocks.key[s, 1] * direction
            query[:, s] = blocks.query[s] * direction
        whole = tuple(map(jnp.asarray, (value, key, query)))
        assert sign * reduced(blocks)[1] == pytest.approx(np.asarray(literal(whole)[1]), rel=1e-12)
        fast = jax.jit(jax.grad(lambda b: reduced(b)[0]))(blocks)
        slow = jax.jit(jax.grad(lambda b: literal(b)[0]))(whole)
    for s in range(3):
        assert slow[0][s, jnp.array([s, 3])] == pytest.approx(np.asarray(fast.value[s]), rel=1e-9)
        moved = np.asarray(slow[1][s][:, jnp.array([s, 3])])
        assert moved == pytest.approx(np.outer(direction, fast.key[s]), rel=1e-9, abs=1e-15)
        assert slow[2][:, s] == pytest.approx(direction * float(fast.query[s]), rel=1e-9)


@pytest.mark.parametrize("context", [1, 5, 23, 24, 90, 4000])
def test_averages_over_signs(context):
    same, weight = softmax.count_nodes(float(context))
    k = np.arange(context + 1)
    for function in (np.ones_like, lambda n: 1 / (1 + n / context), lambda n: np.exp(-n / context)):
        exact = np.sum(binom.pmf(k, context, 0.5) * function(k * 1.0))
        assert weight @ function(same) == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("context", [1, 31, 32, 33, 64, 90])
def test_drawn_signs_are_fair(context):
    drawn = softmax.draw_same(jax.random.key(3), jnp.full(4000, float(context)), longest=90)
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) <= context
    assert abs(float(drawn.mean()) - context / 2) < 4 * math.sqrt(context / 4 / 4000)
    assert float(drawn.var()) == pytest.approx(context / 4, rel=4 * math.sqrt(2 / 4000))


def test_softmax_starts_where_asked():
    task = SparseFeatures(num_tasks=2, type_exponent=1.5, context=10**6, strength=(1.0, -0.3))
    spec = run(task, GradientFlow(times=(0.0,)), SOFT)
    assert values(train([spec])[0])[0] == pytest.approx([0.05, -0.015], rel=1e-4)
    blocks = softmax.starting_blocks(spec)
    norms = [np.linalg.norm(blocks.value, axis=1), np.linalg.norm(blocks.key, axis=1)]
    assert norms[0] == pytest.approx(np.asarray(blocks.query), rel=1e-6)
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)


def test_softmax_descent_is_the_flow_at_small_rates():
    """Autodiff with lanes against slopes by hand; the error is proportional to the rate."""
    task = SparseFeatures(num_tasks=2, type_exponent=1.0, context=(30, 6), strength=(1.0, -0.7))
    end = 12.0
    flow = values(train([run(task, GradientFlow(times=(end,)), SOFT)])[0])[-1]
    assert np.abs(flow).min() > 0.3
    errors = [
        np.abs(values(train([run(task, descent(end / n, n), SOFT)])[0])[-1] - flow).max()
        for n in (300, 600)
    ]
    assert errors[1] < 0.01
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


def test_softmax_batches_average_to_the_flow():
    rate, steps = 2e-3, 4000
    ours = train([run(recipe=descent(rate, steps, 64), model=SOFT, seed=i) for i in range(LANES)])
    found = np.array([values(curve)[-1, 0] for curve in ours])
    flow = values(train([run(recipe=GradientFlow(times=(rate * steps,)), model=SOFT)])[0])[-1, 0]
    error = found.std(ddof=1) / math.sqrt(LANES)
    assert error < 0.005 * flow
    assert abs(found.mean() - flow) < 4 * error + 5 * rate
    # a context of a fifth would be seen
    wrong = replace(run(recipe=GradientFlow(times=(rate * steps,)), model=SOFT), "task.context", 4)
    assert abs(found.mean() - values(train([wrong])[0])[-1, 0]) > 10 * error


def test_types_without_a_sequence_or_beyond_the_size_stay():
    task = replace(FIVE, "sequences", 3)
    curve = train([run(task, descent(0.1, 300), SOFT, measures=("output", "counts"))])[0]
    unseen = values(curve, "counts") == 0
    assert 0 < unseen.sum() < 5
    start = values(train([run(recipe=GradientFlow(times=(0.0,)), model=SOFT)])[0])[0]
    assert values(curve)[-1, unseen] == pytest.approx(start[unseen], rel=1e-12)
    assert np.all(values(curve)[-1, ~unseen] > 0.1)
    small = train([run(recipe=descent(0.1, 50, 8), model=replace(SOFT, "size", 2))])[0]
    assert values(small)[-1, 2:].tolist() == [0.05] * 3


# features of every kind


def test_other_features_have_the_variances_asked_for():
    task = replace(FIVE, "num_tasks", 3)
    tau = other_deviations(replace(task, "feature_decay", 2.0))
    cyclic = np.array([[0, 1 / 2, 1 / 3], [1 / 3, 0, 1 / 2], [1 / 2, 1 / 3, 0]])
    assert tau == pytest.approx(cyclic)
    noise = other_deviations(replace(task, "feature_noise", 0.2))
    assert noise == pytest.approx(0.2 * (1 - np.eye(3)))
    assert not other_deviations(task).any()
    types = jnp.repeat(jnp.arange(3), 400)
    with jax.enable_x64(True):
        drawn = drawn_tokens(
            jax.random.key(0),
            types,
            jnp.array([5.0, 4.0, 3.0]),
            jnp.array([1.0, -0.5, 2.0]),
            jnp.asarray(tau),
            longest=5,
        )
    tokens = np.asarray(drawn.tokens).reshape(3, 400, 4, 6)
    for s, length in enumerate((5, 4, 3)):
        assert not tokens[s, :, :, length:5].any()
        kept = tokens[s][:, :, [*range(length), 5]]
        spread = kept[:, :3].var(axis=(0, 2))
        assert spread == pytest.approx((cyclic + np.eye(3))[s] ** 2, rel=0.15)
        labels = [1.0, -0.5, 2.0][s] * kept[:, :3].sum(1)
        assert kept[:, 3, :-1] == pytest.approx(labels[:, :-1], rel=1e-12)
        assert not kept[:, 3, -1].any()
        assert np.asarray(drawn.targets).reshape(3, 400)[s] == pytest.approx(labels[:, -1])


def small_dense(recipe, **task):
    base = {"num_tasks": 3, "type_exponent": 1.2, "context": (7, 5, 3), "sequences": 40}
    strength = {"strength": (1.0, -0.6, 0.4)}
    return run(
        SparseFeatures(**base | strength | task),
        recipe,
        PerTaskAttention(start=0.1),
        contexts=8,
        record=(0, recipe.steps),
    )


def test_dense_training_is_autodiff_on_tokens():
    spec = small_dense(descent(2e-3, 40), feature_noise=0.3)
    numbers = numbers_of(spec.task)
    with jax.enable_x64(True):
        tables = (numbers.context, numbers.strength, other_deviations(spec.task))
        types = draw_types(stream(0, "training", "sequences"), jnp.asarray(numbers.probability), 40)
        key = stream(0, "training", "tokens")
        sequences = drawn_tokens(key, types, *map(jnp.asarray, tables), longest=7)
        v, w = starting_blocks(spec)
        value, weight = np.zeros((3, 4)), np.zeros((4, 3))
        for s in range(3):
            value[s, [s, 3]], weight[[s, 3], s] = v[s], w[s]

        predictions = jax.jit(literal_predictions)

        def loss(parameters, sequences):
            return jnp.mean((predictions(*parameters, sequences) - sequences.targets) ** 2)

        now = (jnp.asarray(value), jnp.asarray(weight))
        slope = jax.jit(jax.grad(loss))
        for _ in range(40):
            now = jax.tree.map(lambda a, b: a - 2e-3 * b, now, slope(now, sequences))
        shown = jnp.repeat(jnp.arange(3), 8)
        key = stream(0, "evaluation", "tokens")
        losses = []
        for side in (1, -1):
            others = side * jnp.asarray(tables[2])
            seen = drawn_tokens(key, shown, *map(jnp.asarray, tables[:2]), others, longest=7)
            wrong = (predictions(*now, seen) - seen.targets) ** 2
            losses.append(np.asarray(wrong).reshape(3, 8))
    mean = np.mean(losses, axis=0)
    curve = train([spec])[0]
    assert curve.loss[-1] == pytest.approx(numbers.probability @ mean.mean(1), rel=1e-10)
    error = numbers.probability**2 @ (mean.var(1, ddof=1) / 8)
    assert curve.loss_error[-1] == pytest.approx(math.sqrt(error), rel=1e-10)


@pytest.mark.parametrize(
    "almost", [{"feature_noise": 1e-9}, {"feature_decay": 60.0}], ids=["noise", "decay"]
)
def test_almost_sparse_is_sparse(almost):
    recipe = descent(2e-3, 60)
    exact, ours = (train([small_dense(recipe, **task)])[0] for task in ({}, almost))
    assert values(ours) == pytest.approx(values(exact), rel=1e-6)
    assert ours.loss == pytest.approx(exact.loss, rel=1e-6)
    assert exact.loss[-1] < 0.9 * exact.loss[0]


def test_decay_leads_to_the_sparse_problem():
    """The distance falls with tau, about as the variance of the second feature."""
    exact = train([small_dense(descent(2e-3, 60))])[0].loss
    apart = [
        np.abs(train([small_dense(descent(2e-3, 60), feature_decay=tau)])[0].loss - exact).max()
        for tau in (2.0, 4.0, 8.0, 16.0)
    ]
    assert np.all(np.diff(np.log(apart)) < -0.5)
    assert apart[-1] < 0.02 * apart[0]


def test_fresh_dense_sequences_differ_from_step_to_step():
    spec = small_dense(descent(1e-3, 50, 4), feature_noise=0.2, sequences=math.inf)
    a, b = (train([replace(spec, "seed", seed)])[0].loss[-1] for seed in (0, 1))
    assert a != b
    assert a < train([spec])[0].loss[0]
    assert np.allclose(training_shares(spec), numbers_of(spec.task).probability)


# refusals


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: run(task=replace(FIVE, "feature_noise", 0.1), model=SOFT),
            SpecError,
            "model.attention: got softmax beside features of every kind",
        ),
        (
            lambda: run(replace(FIVE, "feature_decay", 2.0), model=PerTaskAttention(size=3)),
            SpecError,
            "model.size: got 3 beside features of every kind",
        ),
        (
            lambda: replace(replace(FIVE, "feature_decay", 2.0), "feature_noise", 0.1),
            SpecError,
            "task.feature_noise: got 0.1 beside task.feature_decay 2",
        ),
        (
            lambda: PerTaskAttention(attention="softmax", offset=0.1),
            SpecError,
            "model.offset: got 0.1 with attention 'softmax'",
        ),
        (
            lambda: PerTaskAttention(attention="softmax", start=0.0),
            SpecError,
            "model.start: got 0 with invariant 0",
        ),
        (
            lambda: program_key(run(replace(FIVE, "feature_noise", 0.1), descent(1e-4, 1))),
            SolverError,
            "task.sequences: got infinity with recipe.batch_size infinity",
        ),
        (
            lambda: program_key(run(replace(FIVE, "feature_noise", 0.1), GradientFlow(times=(1,)))),
            SolverError,
            "recipe: got GradientFlow with features of every kind",
        ),
        (
            lambda: program_key(
                run(replace(FIVE, "sequences", 9), GradientFlow(times=(1,)), model=SOFT)
            ),
            SolverError,
            "task.sequences: got 9 for the flow of softmax attention",
        ),
        (
            lambda: program_key(run(model=PerTaskAttention(size=3), strength=0.5)),
            SpecError,
            "model.size: got 3 with evaluation.strength",
        ),
    ],
)
def test_impossible_runs_are_refused(make, error, text):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


# a shared value vector, against the reference


SHARED = [
    ("shared_a1.8_g0", 1.8, 0.0),
    pytest.param("shared_a1.8_g0.4", 1.8, 0.4, marks=pytest.mark.full),
    pytest.param("shared_a2.5_g0", 2.5, 0.0, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("key", "alpha", "gamma"), SHARED)
def test_half_times_with_a_shared_value_vector(key, alpha, gamma):
    """The slope above task 20, from a small start."""
    task = SparseFeatures(num_tasks=72, type_exponent=alpha, context=100, strength_exponent=gamma)
    s = np.arange(1.0, 73)
    last = 0.1 * 72 ** (alpha + 2 * gamma)
    times = np.geomspace(1e-4 * last, last, 200)
    model = PerTaskAttention(start=1e-4, shared_value=True)
    output = values(train([run(task, GradientFlow(times=tuple(times)), model)])[0]) * s**gamma
    assert np.all(output[-1] > 0.5)
    half = np.exp([np.interp(0.5, f, np.log(times)) for f in output.T])
    slope = np.polyfit(np.log(s[19:]), np.log(half[19:]), 1)[0]
    assert slope == pytest.approx(REFERENCE["shared_V"][key]["thalf"], abs=0.1)
    # far from that of a vector for each task
    assert alpha + 2 * gamma - slope > 0.3


@pytest.mark.parametrize(("optimizer", "decay"), [("adamw", 0.1), ("adam", 0.0)])
def test_the_optimizers_are_those_of_optax(optimizer, decay):
    with jax.enable_x64(True):
        theirs = optax.adamw(1e-2, b1=0.9, b2=0.999, eps=1e-8, weight_decay=decay)
        recipe = replace(replace(ADAMW, "weight_decay", 0.0), "optimizer", optimizer)
        rule = rule_of(replace(recipe, "warmup", 0))
        ours = optimizer_of(rule, rate=jnp.asarray(1e-2), weight_decay=decay)
        at, states = jnp.array([1.0, -2.0]), [theirs.init(jnp.ones(2)), ours.init(jnp.ones(2))]
        for slope in (jnp.array([0.3, -1e-3]), jnp.array([-0.1, 2.0])):
            moved = []
            for i, optimize in enumerate((theirs, ours)):
                change, states[i] = optimize.update(slope, states[i], at)
                moved.append(np.asarray(change))
            assert moved[0] == pytest.approx(moved[1], rel=1e-12)
