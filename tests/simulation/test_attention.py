"""The transformer on tokens: literal and fast form, full and reduced model, averaged losses."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from leadline.simulation import attention, models, risk
from leadline.simulation.attention import Architecture, Weights
from leadline.simulation.contexts import Law

DIM, WIDTH, CONTEXT, QUERIES = 3, 6, 5, 4


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def architecture(depth=3, *, softmax=False, separate=False, score=0.7, residual=0.3):
    return Architecture(
        depth=depth, softmax=softmax, separate=separate, score=score, residual=residual
    )


def weights(seed=0, *, layers=3, heads=2, mlp=0, separate=False, dim=DIM, width=WIDTH):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape) / math.sqrt(shape[-1]))

    label = normal(width)
    return Weights(
        read_in=normal(width, dim),
        label_in=label,
        read_out=label / (label @ label) + 0.3 * normal(width),
        keys=normal(layers, heads, width // heads, width),
        queries=normal(layers, heads, width // heads, width),
        values=normal(layers, heads) if separate else normal(layers, heads, width, width),
        up=normal(layers, mlp * width, width) if mlp else None,
        down=normal(layers, width, mlp * width) if mlp else None,
    )


def data(seed=1, *, context=CONTEXT, dim=DIM):
    rng = np.random.default_rng(seed)
    shapes = ((dim, context), (context,), (dim, QUERIES))
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


def by_hand(w, inputs, labels, queries, arch):
    """One token after the other, from the formulas of the docstrings, in NumPy."""
    w = jax.tree.map(np.asarray, w)
    inputs, labels, queries = (np.asarray(v) for v in (inputs, labels, queries))
    stream = [w.read_in @ x + w.label_in * y for x, y in zip(inputs.T, labels)]
    stream += [w.read_in @ x for x in queries.T]
    count, context = len(stream), len(labels)
    for layer in range(arch.depth):
        own, moved = layer % len(w.keys), []
        for to in range(count):
            update = np.zeros_like(stream[0])
            for head in range(w.keys.shape[1]):
                seen = list(stream)
                if arch.separate:
                    c = w.read_out @ w.label_in
                    seen = [h - w.label_in * (w.read_out @ h) / c for h in stream]
                asks = w.queries[own, head] @ seen[to]
                scores = np.array(
                    [arch.score * (w.keys[own, head] @ seen[i]) @ asks for i in range(context)]
                )
                soft = np.exp(scores) / np.exp(scores).sum()
                shares = soft if arch.softmax else scores / context
                for i in range(context):
                    if arch.separate:
                        value = w.values[own, head] * w.label_in * (w.read_out @ stream[i])
                    else:
                        value = w.values[own, head] @ stream[i]
                    update += (-1 if to < context else 1) * shares[i] * value
            moved.append(stream[to] + arch.residual * update)
        if w.up is not None:
            for i, h in enumerate(moved):
                hidden = w.up[own] @ h
                gelu = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
                moved[i] = h + arch.residual * w.down[own] @ gelu
        stream = moved
    return np.array([w.read_out @ h for h in stream[context:]])


KINDS = [
    {"softmax": softmax, "separate": separate, "layers": layers, "heads": heads, "mlp": mlp}
    for softmax, separate, mlp, layers, heads in (
        (False, False, 0, 3, 2),
        (False, False, 2, 1, 1),
        (False, True, 0, 3, 2),
        (True, False, 2, 3, 2),
        (True, False, 0, 1, 1),
        (True, True, 0, 1, 2),
    )
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: name(k))
def test_literal_form_is_the_formula_token_by_token(kind):
    arch = architecture(softmax=kind["softmax"], separate=kind["separate"])
    own = weights(**{k: v for k, v in kind.items() if k != "softmax"})
    found = attention.literal_predictions(own, *data(), architecture=arch)
    np.testing.assert_allclose(found, by_hand(own, *data(), arch), rtol=0, atol=1e-12)


def name(kind):
    return ",".join(f"{key}={value}" for key, value in kind.items())


@pytest.mark.parametrize(
    ("kind", "context"),
    [(kind, 2) for kind in KINDS] + [(kind, 40) for kind in KINDS if not kind["softmax"]],
    ids=lambda value: name(value) if isinstance(value, dict) else str(value),
)
def test_fast_form_is_the_literal_one(kind, context):
    """Values to 1e-11 and gradients to 1e-9, in every weight, by pairs and by moment."""
    arch = architecture(softmax=kind["softmax"], separate=kind["separate"])
    own = weights(**{k: v for k, v in kind.items() if k != "softmax"})
    tokens = data(context=context)

    def literal(w):
        found = attention.literal_predictions(w, *tokens, architecture=arch)
        return jnp.sum(found**2), found

    def fast(w):
        w = attention.free(w) if arch.separate else w
        found = attention.predictions(w, *tokens, architecture=arch)
        return jnp.sum(found**2), found

    (_, one), slope = jax.jit(jax.value_and_grad(fast, has_aux=True))(own)
    (_, other), literal_slope = jax.jit(jax.value_and_grad(literal, has_aux=True))(own)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(literal_slope), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)
        assert np.abs(a).max() > 1e-6


def test_both_forms_of_linear_attention_are_in_use():
    assert attention._pairs_are_cheaper(WIDTH, 2, 2)
    assert not attention._pairs_are_cheaper(WIDTH, 40, 2)


# --- conditions of the reduction --------------------------------------------------------------


def reducible(seed, *, layers, heads=1):
    """Weights that are not symmetric and satisfy the conditions: w_o w_y = 1, W_k w_y = W_q w_y =
    0, W_v W_x = 0, w_o W_x = 0 and W_v w_y = a w_y.
    """
    rng = np.random.default_rng(seed)
    own = weights(seed, layers=layers, heads=heads, dim=DIM, width=WIDTH)
    label = np.asarray(own.label_in)
    out = rng.standard_normal(WIDTH)
    read_in = np.asarray(own.read_in)
    out = out - read_in @ np.linalg.lstsq(read_in, out, rcond=None)[0]
    out = out / (out @ label)
    blind = np.eye(WIDTH) - np.outer(label, out)
    values = rng.standard_normal((layers, heads))[..., None, None] * np.outer(label, out)
    return own._replace(
        read_out=jnp.asarray(out),
        keys=own.keys @ blind,
        queries=own.queries @ blind,
        values=jnp.asarray(values),
    )


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("heads", [1, 3])
def test_full_model_is_the_reduced_one_under_its_conditions(layers, heads):
    depth, own = 4, reducible(3, layers=layers, heads=heads)
    arch = architecture(depth, score=1.0, residual=1 / depth)
    inputs, labels, queries = data(4)
    w = jax.tree.map(np.asarray, own)
    gamma = np.zeros((layers, DIM, DIM))
    for layer in range(layers):
        for head in range(heads):
            a = w.read_out @ w.values[layer, head] @ w.label_in
            q, k = w.queries[layer, head] @ w.read_in, w.keys[layer, head] @ w.read_in
            gamma[layer] += a * q.T @ k
    assert np.abs(gamma - gamma.swapaxes(1, 2)).max() > 0.1
    expected = models.literal_predictions(jnp.asarray(gamma), inputs, labels, queries, depth=depth)
    found = attention.literal_predictions(own, inputs, labels, queries, architecture=arch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(attention.gammas(own, architecture=arch), gamma, atol=1e-13)
    transposed = models.literal_predictions(
        jnp.asarray(gamma.swapaxes(1, 2)), inputs, labels, queries, depth=depth
    )
    assert np.abs(transposed - expected).max() > 1e-3


@pytest.mark.parametrize("broken", ["keys", "values", "read_in"])
def test_each_condition_is_needed(broken):
    depth, own = 4, reducible(3, layers=1)
    own = own._replace(
        **{broken: getattr(own, broken) + 0.3 * getattr(weights(8, layers=1, heads=1), broken)}
    )
    arch = architecture(depth, score=1.0, residual=1 / depth)
    inputs, labels, queries = data(4)
    gamma = attention.gammas(own, architecture=arch)
    expected = models.literal_predictions(gamma, inputs, labels, queries, depth=depth)
    found = attention.literal_predictions(own, inputs, labels, queries, architecture=arch)
    assert np.abs(found - expected).max() > 1e-3


def test_a_read_out_of_gain_c_multiplies_the_prediction():
    """With W_v w_y = a w_y kept, f is multiplied by c = w_o w_y."""
    depth, own = 4, reducible(3, layers=1)
    arch = architecture(depth, score=1.0, residual=1 / depth)
    tokens = data(4)
    one = attention.literal_predictions(own, *tokens, architecture=arch)
    two = attention.literal_predictions(
        own._replace(read_out=2 * own.read_out), *tokens, architecture=arch
    )
    np.testing.assert_allclose(two, 2 * one, atol=1e-13)


# --- the loss of a context --------------------------------------------------------------------

LAW = Law(np.array([1.0, 0.6, 0.3]), np.array([0.2, 0.5, 0.9]), np.array(0.4), None)


def setting(**changes):
    base = risk.Setting(
        architecture=architecture(3, separate=True),
        linear=True,
        dim=DIM,
        rotated=False,
        context=CONTEXT,
        queries=math.inf,
        noisy=True,
    )
    return dataclasses.replace(base, **changes)


def context_of(seed=5, *, context=CONTEXT, turned=False):
    rng = np.random.default_rng(seed)
    scale = np.sqrt(np.asarray(LAW.inputs))[:, None]
    basis = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0] if turned else None
    return risk.Draw(
        basis=None if basis is None else jnp.asarray(basis),
        inputs=jnp.asarray(scale * rng.standard_normal((DIM, context))),
        queries=jnp.asarray(scale * rng.standard_normal((DIM, QUERIES))),
        task=None,
        noise=None,
    )


def linear_map(own, draw, arch, *, law=LAW):
    """f = f_0 + T y of the literal form, in NumPy: its offset and its matrix over the labels."""
    basis = np.eye(DIM) if draw.basis is None else np.asarray(draw.basis)
    inputs, queries = jnp.asarray(basis @ draw.inputs), jnp.asarray(basis @ draw.queries)
    count = inputs.shape[1]

    def literal(labels):
        found = attention.literal_predictions(own, inputs, labels, queries, architecture=arch)
        return np.asarray(found)

    zero = literal(jnp.zeros(count))
    matrix = np.stack([literal(row) - zero for row in jnp.eye(count)], axis=1)
    return zero, matrix, inputs, queries


@pytest.mark.parametrize(
    ("softmax", "layers", "turned"),
    [(False, 1, True), (False, 3, False), (True, 1, False), (True, 3, True)],
)
def test_tasks_and_noise_are_averaged_exactly(softmax, layers, turned):
    """Var over y = X^T beta + sigma eps of the literal predictions, from their linear map."""
    own = weights(7, layers=layers, heads=2, separate=True)
    arch, draw = architecture(3, softmax=softmax, separate=True), context_of(turned=turned)
    zero, matrix, _, _ = linear_map(own, draw, arch)
    tasks, inputs, queries = (np.asarray(v) for v in (LAW.tasks, draw.inputs, draw.queries))
    wrong = matrix @ inputs.T - queries.T
    expected = np.mean(zero**2 + wrong**2 @ tasks + 0.4**2 * (matrix**2).sum(1))
    own_setting = setting(architecture=arch, linear=not softmax, queries=QUERIES)
    reduced = risk.reduced_of(own, own_setting)
    found = risk.risk(own, reduced, draw, LAW, own_setting)
    assert found == pytest.approx(expected, rel=1e-11)
    quiet = dataclasses.replace(own_setting, noisy=False)
    silent = np.mean(zero**2 + wrong**2 @ tasks)
    assert risk.risk(own, reduced, draw, LAW, quiet) == pytest.approx(silent, rel=1e-11)


def test_a_turn_of_the_inputs_moves_them_against_the_tasks():
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((DIM, DIM)))[0]
    law = LAW._replace(turn=jnp.asarray(turn))
    own, draw = weights(7, separate=True), context_of()._replace(basis=jnp.asarray(turn))
    zero, matrix, inputs, queries = linear_map(own, draw, architecture(3, separate=True))
    wrong = matrix @ np.asarray(inputs).T - np.asarray(queries).T
    expected = np.mean(zero**2 + wrong**2 @ np.asarray(LAW.tasks) + 0.4**2 * (matrix**2).sum(1))
    for softmax in (False, True):
        arch = architecture(3, separate=True, softmax=softmax)
        if softmax:
            zero, matrix, inputs, queries = linear_map(own, draw, arch)
            wrong = matrix @ np.asarray(inputs).T - np.asarray(queries).T
            noise = 0.4**2 * (matrix**2).sum(1)
            expected = np.mean(zero**2 + wrong**2 @ np.asarray(LAW.tasks) + noise)
        own_setting = setting(architecture=arch, linear=not softmax, queries=QUERIES)
        found = risk.risk(own, risk.reduced_of(own, own_setting), draw, law, own_setting)
        assert found == pytest.approx(expected, rel=1e-11)


def test_infinitely_many_queries_are_the_limit_of_many():
    own, exact = weights(7, separate=True), setting()
    many = setting(queries=200_000)
    rng = np.random.default_rng(3)
    queries = np.sqrt(np.asarray(LAW.inputs))[:, None] * rng.standard_normal((DIM, 200_000))
    draw = context_of()._replace(queries=None)
    reduced = risk.reduced_of(own, exact)
    expected = float(risk.risk(own, reduced, draw, LAW, exact))
    sampled = risk.risk(own, reduced, draw._replace(queries=jnp.asarray(queries)), LAW, many)
    # a mean of 200,000 squares with excess kurtosis below 12
    assert sampled == pytest.approx(expected, rel=4 * math.sqrt(14 / 200_000))
    assert sampled != expected


@pytest.mark.parametrize("context", [4, 40])
@pytest.mark.parametrize("noisy", [False, True])
def test_free_linear_attention_needs_the_moment_of_the_tokens_alone(context, noisy):
    """Few tokens stand for many: the loss is that of the literal form on all of them."""
    rng = np.random.default_rng(6)
    own, arch = weights(9), architecture(3)
    draw = context_of(context=context, turned=True)
    draw = draw._replace(
        task=jnp.asarray(rng.standard_normal(DIM)),
        noise=jnp.asarray(rng.standard_normal(context)) if noisy else None,
    )
    task = np.sqrt(np.asarray(LAW.tasks)) * np.asarray(draw.task)
    labels = draw.inputs.T @ task + (0.4 * np.asarray(draw.noise) if noisy else 0.0)
    basis = draw.basis
    found = attention.literal_predictions(
        own, basis @ draw.inputs, labels, basis @ draw.queries, architecture=arch
    )
    expected = np.mean((np.asarray(found) - np.asarray(draw.queries.T @ task)) ** 2)
    own_setting = setting(architecture=arch, context=context, queries=QUERIES, noisy=noisy)
    got = risk.risk(own, None, draw, LAW, own_setting)
    assert got == pytest.approx(expected, rel=1e-10)
    tokens, _ = risk._labeled(jnp.asarray(task), draw, LAW, own_setting)
    assert tokens.shape[1] == (4 if context == 4 else DIM + noisy)


@pytest.mark.parametrize("separate", [False, True])
def test_infinite_context_is_the_limit_of_a_long_one(separate):
    own = weights(9, separate=separate, mlp=0)
    arch = architecture(3, separate=separate)
    own_setting = setting(architecture=arch, context=math.inf, noisy=not separate)
    task = None if separate else jnp.array([0.5, -1.0, 0.7])
    draw = risk.Draw(basis=None, inputs=None, queries=None, task=task, noise=None)
    reduced = risk.reduced_of(own, own_setting)
    exact = float(risk.risk(own, reduced, draw, LAW, own_setting))
    # a context whose moment is exactly the expected one, noise included
    root = np.diag(np.sqrt(np.asarray(LAW.inputs)))
    inputs = math.sqrt(2 * DIM) * np.concatenate([root, -root], axis=1) / math.sqrt(2)
    noise = jnp.ones(2 * DIM)
    finite = dataclasses.replace(own_setting, context=2 * DIM)
    if separate:
        finite = dataclasses.replace(finite, noisy=False)
    full = draw._replace(inputs=jnp.asarray(inputs), noise=None if separate else noise)
    assert risk.risk(own, reduced, full, LAW, finite) == pytest.approx(exact, rel=1e-11)


def test_softmax_and_mlp_see_sampled_tokens():
    rng = np.random.default_rng(6)
    own = weights(9, mlp=2)
    arch, draw = architecture(3, softmax=True), context_of()
    draw = draw._replace(
        task=jnp.asarray(rng.standard_normal(DIM)), noise=jnp.asarray(rng.standard_normal(CONTEXT))
    )
    task = np.sqrt(np.asarray(LAW.tasks)) * np.asarray(draw.task)
    labels = draw.inputs.T @ task + 0.4 * np.asarray(draw.noise)
    found = by_hand(own, draw.inputs, labels, draw.queries, arch)
    expected = np.mean((found - np.asarray(draw.queries.T @ task)) ** 2)
    own_setting = setting(architecture=arch, linear=False, queries=QUERIES)
    assert risk.risk(own, None, draw, LAW, own_setting) == pytest.approx(expected, rel=1e-11)
