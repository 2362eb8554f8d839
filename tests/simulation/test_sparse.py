"""Sparse features simulated: the model itself, the exact flow, minibatches."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leadline.errors import SolverError, SpecError
from leadline.simulation.blocks import starting_blocks, token_matrices
from leadline.simulation.contexts import stream
from leadline.simulation.sequences import (
    draw_sequences,
    draw_types,
    literal_predictions,
    numbers_of,
)
from leadline.simulation.train import program_key, train
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
from leadline.theory.sparse_order import Block, exact_output, first_order

FIVE = SparseFeatures(num_tasks=5, type_exponent=1.8, context=100)


def run(task=FIVE, recipe=None, model=None, **evaluation):
    return RunSpec(
        task=task,
        model=model or PerTaskAttention(),
        recipe=recipe or GradientFlow(times=(0.0, 0.01, 0.05, 0.2)),
        evaluation=Evaluation(**{"measures": ("output",)} | evaluation),
    )


def descent(rate, steps, batch_size=math.inf):
    return Training(steps=steps, batch_size=batch_size, queries=1, rate=rate)


def values(curve, name="output"):
    return next(m.values for m in curve.measures if m.name == name)


def test_blocks_train_as_the_matrices_on_sampled_tokens_do():
    """Autodiff through the attention layer on tokens with random signs, 60 steps."""
    task = SparseFeatures(
        num_tasks=3,
        type_exponent=1.2,
        context=(7, 5, 3),
        strength=(1.0, -0.6, 0.4),
        sequences=40,
    )
    rate, steps = 2e-3, 60
    spec = run(task, descent(rate, steps), PerTaskAttention(start=0.1, invariant=0.02))
    numbers = numbers_of(task)
    with jax.enable_x64(True):
        key = stream(spec.seed, "training", "sequences")
        types = draw_types(key, jnp.asarray(numbers.probability), 40)
        sequences = draw_sequences(jax.random.key(5), types, numbers)
        v, w = starting_blocks(spec)
        value, weight = np.zeros((3, 4)), np.zeros((4, 3))
        for s in range(3):
            value[s, [s, 3]], weight[[s, 3], s] = v[s], w[s]

        def loss(parameters):
            return jnp.mean((literal_predictions(*parameters, sequences) - sequences.targets) ** 2)

        now = (jnp.asarray(value), jnp.asarray(weight))
        slope = jax.jit(jax.grad(loss))
        for _ in range(steps):
            change = slope(now)
            now = (now[0] - rate * change[0], now[1] - rate * change[1])
        blocks = [(now[0][s, [s, 3]], now[1][jnp.array([s, 3]), s]) for s in range(3)]
        matrices = token_matrices(numbers.context, numbers.strength)
        literal = [float(a @ m @ b) for (a, b), m in zip(blocks, matrices, strict=True)]
    output = values(train([spec])[0])[-1]
    assert output == pytest.approx(literal, rel=1e-10)
    assert np.abs(output - numbers.strength).max() < np.abs(0.9 * numbers.strength).max()


@pytest.mark.parametrize(
    "model",
    [
        PerTaskAttention(),
        PerTaskAttention(start=0.0, invariant=0.3, size=3),
        PerTaskAttention(start=0.2, offset=1e-3),
    ],
)
def test_the_flow_is_the_exact_solution_with_the_query_token(model):
    task = SparseFeatures(num_tasks=4, type_exponent=1.5, context=60, strength=0.8)
    times = (0.0, 0.01, 0.03, 0.1, 0.4)
    output = values(train([run(task, GradientFlow(times=times), model)])[0])
    v, w = starting_blocks(run(task, model=model))
    probability = numbers_of(task).probability
    for s in range(4):
        if s >= model.size:
            assert np.all(output[:, s] == model.start * 0.8)
            continue
        exact, _ = exact_output(
            2 * np.array(times),
            matrix=60 * np.outer([1, 0.8], [1, 0.8]) + np.diag([1, 0]),
            rate=probability[s],
            strength=0.8,
            value=v[s],
            query=w[s],
        )
        assert output[:, s] == pytest.approx(exact, abs=1e-7)


def test_the_query_token_is_the_first_order_of_theory():
    """Simulation minus zeroth order is f1 / psi."""
    task = SparseFeatures(num_tasks=1, type_exponent=1.0, context=400, strength=0.7)
    times = (0.0, 1e-4, 1e-3, 2e-3, 4e-3)
    spec = run(task, GradientFlow(times=times), PerTaskAttention(start=0.05, offset=5e-3))
    difference = values(train([spec])[0])[:, 0] - values(predict(spec))[:, 0]
    (v,), (w,) = starting_blocks(spec)
    block = Block(value=tuple(20 * v), query=tuple(20 * w), rate=400, strength=0.7)
    first = first_order(2 * np.array(times), block=block) / 400
    assert np.abs(difference).max() > 1e-3
    assert difference == pytest.approx(first, abs=0.02 * np.abs(first).max())


@pytest.mark.parametrize("constrained", [False, True])
def test_long_contexts_agree_with_theory(constrained):
    """1/psi = 1e-6: the loss of both engines, negative strengths and unlearned tasks among them."""
    task = SparseFeatures(
        num_tasks=4, type_exponent=1.5, context=1e6, strength=(1.0, -0.8, 0.5, -0.3)
    )
    model = PerTaskAttention(start=0.05, invariant=1e-3, size=3, constrained=constrained)
    times = tuple(np.geomspace(1e-8, 1e-5, 7))
    spec = run(task, GradientFlow(times=times), model)
    simulated, theory = train([spec])[0], predict(spec)
    assert theory.loss.max() / theory.loss.min() > 3
    assert values(simulated) == pytest.approx(values(theory), abs=2e-5)
    assert simulated.loss == pytest.approx(theory.loss, rel=1e-4)


def test_unseen_strengths():
    """The constrained model adapts perfectly; the free one as theory says, offset included."""
    task = SparseFeatures(num_tasks=2, type_exponent=1.5, context=1e6, strength=0.5)
    late = GradientFlow(times=(1.0,))
    for model in (
        PerTaskAttention(start=1e-9, constrained=True),
        PerTaskAttention(start=1e-9),
        PerTaskAttention(start=0.05, offset=2e-4),
    ):
        spec = run(task, late, model, strength=1.5, measures=())
        ours, theory = train([spec])[0].loss[0], predict(spec).loss[0]
        assert ours == pytest.approx(theory, rel=1e-4, abs=1e-10)
        assert (theory < 1e-10) == model.constrained


@pytest.fixture(scope="module")
def sampled_descent():
    """Full-batch descent on 400 sampled sequences at two rates, beside the exact flow."""
    task, end, errors = replace(FIVE, "sequences", 400), 0.025, []
    for rate in (2e-5, 1e-5):
        steps = round(end / rate)
        record = tuple(range(0, steps + 1, steps // 25))
        spec = run(task, descent(rate, steps), record=record)
        times = tuple(rate * np.array(record))
        flow = run(task, GradientFlow(times=times))
        errors.append(np.abs(values(train([spec])[0]) - values(train([flow])[0])).max())
    return errors


def test_sampled_descent_is_the_flow_within_a_percent(sampled_descent):
    assert max(sampled_descent) < 0.01


def test_the_error_of_descent_is_proportional_to_the_rate(sampled_descent):
    assert sampled_descent[0] / sampled_descent[1] == pytest.approx(2, rel=0.02)


def test_a_shared_value_vector_couples_the_tasks():
    """Descent written out, the flow, and the conserved |V|^2 minus the sum of |w_s|^2."""
    task = SparseFeatures(num_tasks=3, type_exponent=1.8, context=20)
    model = PerTaskAttention(start=0.05, shared_value=True)
    rate, steps = 1e-5, 20_000
    flow = run(task, GradientFlow(times=(0.05, 0.2)), model)
    trained = run(task, descent(rate, steps), model, record=(steps // 4, steps))
    simulated, followed = values(train([flow])[0]), values(train([trained])[0])
    assert followed == pytest.approx(simulated, abs=2e-3)
    alone = values(train([replace(flow, "model.shared_value", False)])[0])
    assert np.abs(alone - simulated).max() > 0.02

    v, w = starting_blocks(flow)
    assert len(set(v[:, 1])) == 1
    matrices = token_matrices(*numbers_of(task)[1:])
    shares = numbers_of(task).probability
    first = v[0, 1] ** 2 + np.sum(v[:, 0] ** 2) - np.sum(w**2)
    for _ in range(steps):
        seen_v, seen_w = np.einsum("sij,ksj->ksi", matrices, np.stack([v, w]))
        wrong = 2 * shares * (np.sum(v * seen_w, 1) - 1)
        change = wrong[:, None] * seen_w
        change[:, 1] = change[:, 1].sum()
        v, w = v - rate * change, w - rate * wrong[:, None] * seen_v
    assert np.einsum("si,sij,sj->s", v, matrices, w) == pytest.approx(followed[-1], rel=1e-9)
    last = v[0, 1] ** 2 + np.sum(v[:, 0] ** 2) - np.sum(w**2)
    assert last == pytest.approx(first, abs=2e-3 * np.sum(w**2))


def test_theory_refuses_a_shared_value_vector():
    with pytest.raises(SolverError, match="couples the tasks"):
        predict(run(model=PerTaskAttention(shared_value=True)))


def test_counts_are_those_of_the_sequences():
    task = replace(FIVE, "sequences", 400)
    curve = train([run(task, measures=("counts",))])[0]
    counts = values(curve, "counts")
    assert counts.sum() == 400
    expected = 400 * numbers_of(task).probability
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))
    other = train([replace(run(task, measures=("counts",)), "seed", 1)])[0]
    assert not np.array_equal(values(other, "counts"), counts)


def test_minibatches_follow_the_flow_on_average():
    """Small steps on fresh batches of 64: the noise of f is of the order of its root rate."""
    rate, steps = 2e-6, 4000
    spec = run(FIVE, descent(rate, steps, 64), record=(0, steps // 2, steps))
    ours = train([spec])[0]
    flow = train([run(FIVE, GradientFlow(times=(0.0, rate * steps / 2, rate * steps)))])[0]
    assert values(ours)[:, 0] == pytest.approx(values(flow)[:, 0], abs=0.03)
    assert ours.tokens == pytest.approx([0, 64 * 101 * steps / 2, 64 * 101 * steps])
    assert ours.flops.tolist() == [0, 5 * steps / 2, 5 * steps]
    fixed = replace(FIVE, "sequences", 3)
    batches = train([run(fixed, descent(rate, 200, 2), measures=("output", "counts"))])[0]
    unseen = values(batches, "counts") == 0
    assert np.all(values(batches)[-1, unseen] == pytest.approx(values(flow)[0, unseen]))


def test_recording_does_not_change_a_training():
    spec = run(FIVE, descent(1e-5, 60, 8))
    often = replace(spec, "evaluation.record", (0, 7, 60))
    assert values(train([often])[0])[-1].tolist() == values(train([spec])[0])[-1].tolist()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"recipe": descent(1.0, 1)}, SpecError, "recipe.rate: got 1, above the edge of stability"),
        ({"task.num_tasks": 10**6}, SolverError, "task.num_tasks: got 1000000, expected at most"),
        (
            {"task.context_exponent": 3.0},
            SpecError,
            "task.context: from task 5 on there is less than one token",
        ),
        ({"evaluation.measures": ("outptu",)}, SpecError, "evaluation.measures: got 'outptu'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(change, error, text):
    spec = run()
    for path, value in change.items():
        spec = replace(spec, path, value)
    with pytest.raises(error) as caught:
        program_key(spec)
    assert str(caught.value).startswith(text)


def test_a_step_below_the_edge_is_allowed():
    p = numbers_of(FIVE).probability[0]
    edge = 1 / (p * 100 * 2 * 2)
    program_key(run(recipe=descent(0.99 * edge, 1)))
    with pytest.raises(SpecError, match="of task 1"):
        program_key(run(recipe=descent(1.01 * edge, 1)))
