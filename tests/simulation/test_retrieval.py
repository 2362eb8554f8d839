"""Retrieval simulated: fast forms against literal ones, measures, training, refusals."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from leadline.ensembles import decompose
from leadline.errors import LeadlineWarning, SolverError, SpecError
from leadline.runs import from_curves
from leadline.simulation import lanes, mixture, retrieval
from leadline.simulation.contexts import stream
from leadline.simulation.literal import literal_loss
from leadline.simulation.retrievers import (
    batch_loss,
    batch_slope,
    directions_of,
    layer_errors,
    layer_matrices,
    starting_weights,
)
from leadline.simulation.selection import MEASURES
from leadline.simulation.tokens import draw_tokens, most_similar, selection, shape_of, spectra_of
from leadline.simulation.train import program_key, train
from leadline.spec import (
    BestScale,
    Evaluation,
    LinearAttention,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    Spectrum,
    StreamAttention,
    Training,
    replace,
)

ISOTROPIC = Spectrum(dim=5, input_exponent=0.0, task_exponent=0.0)
POWER = Spectrum(dim=5, input_exponent=1.0, task_exponent=0.5)


def task(spectrum=POWER, context=9, targets=2, **settings):
    return Retrieval(spectrum=spectrum, context=context, targets=targets, **settings)


def run(model=None, own=None, recipe=None, **evaluation):
    settings = {"steps": 6, "batch_size": 4, "queries": 3, "rate": 0.02, "optimizer": "adam"}
    return RunSpec(
        task=own or task(),
        model=model or SoftmaxAttention(depth=2),
        recipe=Training(**settings | (recipe or {})),
        evaluation=Evaluation(**{"contexts": 8, "queries": 3} | evaluation),
    )


_drawn = jax.jit(draw_tokens, static_argnames=("shape", "batch_size", "dtype"))


def drawn(own, model, batch=2, queries=3, seed=1):
    """Contexts in double precision, and weights away from their start."""
    sampled = isinstance(model, StreamAttention)
    shape = shape_of(own, queries=queries, rotated=True, drawn_tasks=sampled)
    spectra = spectra_of(own)
    tokens = _drawn(stream(seed, "t"), spectra, shape, batch_size=batch, dtype="float64")
    weights = starting_weights(model, stream(seed, "w"), dim=shape.dim, dtype="float64")
    weights = jax.tree.map(lambda leaf: 1.1 * leaf + 0.05, weights)
    return weights, tokens, spectra, shape


def measured(curve, name):
    return next(m.values for m in curve.measures if m.name == name)


# --- fast form = literal form -----------------------------------------------------------------

MODELS = {
    "softmax": (SoftmaxAttention(depth=3), task()),
    "softmax, isotropic": (SoftmaxAttention(depth=3), task(ISOTROPIC)),
    "one layer, rotated directions": (SoftmaxAttention(depth=1), task(targets=3)),
    "scales": (SoftmaxAttention(depth=3, matrix="scale"), task()),
    "few factors": (SoftmaxAttention(depth=3, width=2, start=0.0, spread=1.5), task()),
    "many factors": (SoftmaxAttention(depth=3, width=9, start=0.0, spread=1.5), task()),
    "temperatures": (SoftmaxAttention(depth=3, layers="tempered"), task()),
    "looped": (SoftmaxAttention(depth=3, layers="looped"), task()),
    "looped, own gains": (SoftmaxAttention(depth=3, layers="looped", values="separate"), task()),
    "own gains, own norms": (
        SoftmaxAttention(depth=3, values="separate", normalized=False),
        task(),
    ),
    "updates": (SoftmaxAttention(depth=3, updates=True), task()),
    "updates, one layer": (SoftmaxAttention(depth=1, updates=True), task()),
    "updates, own gains, temperatures": (
        SoftmaxAttention(depth=3, updates=True, values="separate", layers="tempered"),
        task(ISOTROPIC),
    ),
    "updates, looped": (SoftmaxAttention(depth=3, updates=True, layers="looped"), task()),
    "updates, scales": (SoftmaxAttention(depth=3, updates=True, matrix="scale"), task()),
    "easy": (SoftmaxAttention(depth=2), task(targets=1, difficulty="easy")),
    "linear through tokens": (LinearAttention(depth=1, start=0.3, spread=0.4), task(context=2)),
    "linear through the covariance": (LinearAttention(depth=3, start=0.3), task(context=30)),
    "linear, tied, isotropic inputs": (
        LinearAttention(depth=3, start=0.3, tied=True),
        task(dataclasses.replace(POWER, input_exponent=0.0)),
    ),
    "linear scales, easy": (
        LinearAttention(depth=3, matrix="scale", start=0.3),
        task(targets=1, difficulty="easy"),
    ),
    "linear factors": (LinearAttention(depth=3, width=2, spread=1.0), task()),
    "stream": (StreamAttention(depth=2, width=8), task(context=5)),
    "narrow stream": (StreamAttention(depth=2, width=3, normalized=False, start=0.1), task()),
}


DEFAULT = {
    "softmax",
    "one layer, rotated directions",
    "few factors",
    "updates, own gains, temperatures",
    "linear through tokens",
    "linear through the covariance",
    "stream",
}


@pytest.mark.parametrize(
    "name", [n if n in DEFAULT else pytest.param(n, marks=pytest.mark.full) for n in MODELS]
)
def test_fast_forms_are_literal_ones(name):
    model, own = MODELS[name]
    with jax.enable_x64(True):
        queries = 1 if name in ("one layer, rotated directions", "linear through tokens") else 3
        weights, tokens, spectra, _ = drawn(own, model, queries=queries)
        literal, slope = jax.jit(
            jax.value_and_grad(lambda w: literal_loss(w, tokens, spectra, model=model))
        )(weights)

        def others(w):
            errors = jax.vmap(lambda one: layer_errors(w, one, spectra, model=model)[0])(tokens)
            whole = jnp.mean(jnp.sum(jnp.mean(errors, 2) ** 2, -1))
            return batch_loss(w, tokens, spectra, model=model), whole

        fast, fast_slope = jax.jit(lambda w: batch_slope(w, tokens, spectra, model=model))(weights)
        plain, whole = jax.jit(others)(weights)
        assert fast == pytest.approx(float(literal), rel=1e-11)
        assert plain == pytest.approx(float(literal), rel=1e-11)
        assert whole == pytest.approx(float(literal), rel=1e-11)
        assert slope.keys() == fast_slope.keys()
        for key in slope:
            scale = float(jnp.abs(slope[key]).max()) + 1e-12
            np.testing.assert_allclose(fast_slope[key], slope[key], rtol=0, atol=1e-9 * scale)


def test_paths_of_one_form_agree(monkeypatch):
    """Blocks of contexts, absorbed factors, kept and recomputed exponentials."""
    with jax.enable_x64(True):
        model = SoftmaxAttention(depth=3, width=4, start=0.0, spread=1.5)
        weights, tokens, spectra, _ = drawn(task(), model, batch=6, queries=4)

        def slope(w):
            return batch_slope(w, tokens, spectra, model=model)

        whole = jax.jit(slope)(weights)
        monkeypatch.setattr(mixture, "BLOCK", 200)
        assert mixture.block_size(6, 4 * 3 * 9) == 1
        parts = jax.jit(lambda w: slope(w))(weights)  # another function, compiled again
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), whole, parts)
        few = directions_of(weights, tokens.queries[:1, :2])
        formed = jnp.einsum("bkd,led->bkle", tokens.queries[:1, :2], layer_matrices(weights, dim=5))
        np.testing.assert_allclose(few, formed, rtol=1e-12)
        updated = SoftmaxAttention(depth=4, updates=True)
        weights, tokens, spectra, _ = drawn(task(), updated)
        kept = jax.jit(lambda w: batch_slope(w, tokens, spectra, model=updated))(weights)
        monkeypatch.setattr(mixture, "KEPT", 100)
        again = jax.jit(lambda w: batch_slope(w, tokens, spectra, model=updated))(weights)
        for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(a).max())


def test_blocks_divide_the_batch():
    assert mixture.block_size(32, 1) == 32
    assert mixture.block_size(30, mixture.BLOCK // 7) == 6
    assert mixture.block_size(7, mixture.BLOCK * 3) == 1


def test_large_scores_do_not_overflow():
    """Scores far above 80, where exponentials overflow single precision."""
    own = task(targets=1, difficulty="easy")
    model = SoftmaxAttention(depth=2, start=400.0, spread=0.0)
    shape = shape_of(own, queries=3, rotated=True, drawn_tasks=False)
    with jax.enable_x64(True):
        spectra = spectra_of(own)
        tokens = _drawn(stream(0, "t"), spectra, shape, batch_size=2, dtype="float32")
        weights = starting_weights(model, stream(0, "w"), dim=5, dtype="float32")
        loss, slope = jax.jit(lambda w: batch_slope(w, tokens, spectra, model=model))(weights)
        assert 0 <= loss < 1e-6
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


# --- contexts ---------------------------------------------------------------------------------


def test_most_similar_tokens():
    scores = np.random.default_rng(0).standard_normal((3, 4, 11)).astype(np.float32)
    for count in (1, 2, 5, 11):
        found = np.asarray(most_similar(jnp.asarray(scores), count))
        order = np.argsort(-scores, -1)[..., :count]
        expected = np.zeros_like(scores)
        np.put_along_axis(expected, order, 1 / count, -1)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_targets_are_the_most_aligned_tokens():
    """Cosines ignore the norms of tokens, which inner products would not."""
    own = task(context=12, targets=3)
    with jax.enable_x64(True):
        _, tokens, _, shape = drawn(own, SoftmaxAttention(depth=1), batch=3)
        chosen = selection(tokens, shape)
    parts = (np.asarray(part) for part in (tokens.inputs, tokens.queries, tokens.targets, chosen))
    for x, q, t, p in zip(*parts, strict=True):
        for query, target, weights in zip(q, t, p, strict=True):
            order = np.argsort(-(x @ query) / np.linalg.norm(x, axis=1))[:3]
            np.testing.assert_allclose(target, x[order].mean(0), rtol=1e-12)
            assert set(np.flatnonzero(weights)) == set(order.tolist())


def test_contexts_are_drawn_with_their_spectra_and_rotations():
    own = task(context=4000)
    with jax.enable_x64(True):
        _, tokens, _, _ = drawn(own, SoftmaxAttention(depth=1), batch=3)
    variances = np.asarray(tokens.inputs).var(axis=(0, 1))
    np.testing.assert_allclose(variances, np.arange(1.0, 6) ** -1, rtol=6 * (2 / 12000) ** 0.5)
    products = np.einsum("bij,bkj->bik", tokens.basis, tokens.basis)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(5), (3, 5, 5)), atol=1e-12)
    isotropic = shape_of(task(ISOTROPIC), queries=1, rotated=True, drawn_tasks=False)
    assert not isotropic.rotated


def test_queries_of_an_easy_context_are_its_tokens():
    with jax.enable_x64(True):
        _, tokens, _, shape = drawn(task(targets=1, difficulty="easy"), SoftmaxAttention(depth=1))
        chosen = selection(tokens, shape)
    np.testing.assert_array_equal(tokens.queries, tokens.inputs[:, :3])
    np.testing.assert_array_equal(np.asarray(chosen) @ np.asarray(tokens.inputs), tokens.targets)


# --- measures ---------------------------------------------------------------------------------

EVERY = ("modes", "layer_errors", "scale", "mass", "selection", "self_attention")


def test_measures_against_loops_over_tokens():
    """Context updates written out in NumPy, token by token, on the contexts of an evaluation."""
    model = SoftmaxAttention(depth=3, updates=True, values="separate")
    spec = run(
        model, recipe={"steps": 0, "precision": "double"}, measures=tuple(MEASURES), contexts=3
    )
    curve = train([spec])[0]
    program = retrieval._program_of(spec)
    with jax.enable_x64(True):
        (weights, _), lane = retrieval._begin(spec, steps=program.steps)
        contexts = [
            _drawn(
                jax.random.fold_in(lane.evaluation_key, i),
                lane.spectra,
                program.shape,
                batch_size=1,
                dtype="float64",
            )
            for i in range(3)
        ]
    matrices, omega = np.asarray(weights["matrix"]), np.arange(1.0, 6) ** -0.5
    errors, masses, apart, own, entropies, maps = [], [], [], [], [], []
    for context in contexts:
        x, o = np.asarray(context.inputs[0]), np.asarray(context.basis[0])
        hats = [math.sqrt(5) * o @ row / np.linalg.norm(row) for row in x]
        a = np.empty((3, 9, 9))
        for layer in range(3):
            for i in range(9):
                z = np.array([hats[j] @ matrices[layer] @ hats[i] for j in range(9)])
                a[layer, i] = np.exp(z) / np.exp(z).sum()
        own.append([[a[layer, i, i] for i in range(9)] for layer in range(3)])
        entropies.append([[np.exp(-(row * np.log(row)).sum()) for row in m] for m in a])
        maps.append(a[0])
        for q in np.asarray(context.queries[0]):
            hat = math.sqrt(5) * o @ q / np.linalg.norm(q)
            best = np.argsort(-(x @ q) / np.linalg.norm(x, axis=1))[:2]
            star = np.zeros(9)
            star[best] = 0.5
            labels, rows, each = np.eye(9), [], []
            for layer in range(3):
                z = np.array([h @ matrices[layer] @ hat for h in hats])
                p = np.exp(z) / np.exp(z).sum()
                rows.append(p)
                # g = 1, m = -1 at the start
                each.append((p @ labels - star) @ x * np.sqrt(omega))
                labels = labels - a[layer] @ labels / 3
            errors.append(each)
            masses.append([p[best].sum() for p in rows])
            apart.append(((np.mean(rows, 0) - star) ** 2).sum())
    errors = np.array(errors)
    np.testing.assert_allclose(
        measured(curve, "layer_errors")[0], np.einsum("nld,nmd->lm", errors, errors) / 9, rtol=1e-9
    )
    np.testing.assert_allclose(
        measured(curve, "modes")[0], (errors.mean(1) ** 2).mean(0), rtol=1e-9
    )
    np.testing.assert_allclose(measured(curve, "mass")[0], np.mean(masses, 0), rtol=1e-9)
    np.testing.assert_allclose(
        measured(curve, "self_attention")[0], np.mean(own, (0, 2)), rtol=1e-9
    )
    np.testing.assert_allclose(
        measured(curve, "effective_tokens")[0], np.mean(entropies, (0, 2)), rtol=1e-9
    )
    np.testing.assert_allclose(measured(curve, "map")[0], maps[0], rtol=1e-9)
    np.testing.assert_allclose(
        measured(curve, "selection")[0], np.percentile(apart, np.arange(1, 100)), rtol=1e-9
    )
    assert curve.scalar("selection_error") == pytest.approx(np.mean(apart), rel=1e-9)
    losses = (errors.mean(1) ** 2).sum(-1).reshape(3, 3).mean(1)
    assert curve.loss[0] == pytest.approx(losses.mean(), rel=1e-9)
    assert curve.loss_error[0] == pytest.approx(losses.std(ddof=1) / math.sqrt(3), rel=1e-9)
    np.testing.assert_allclose(
        measured(curve, "scale")[0], [np.diag(m).mean() for m in matrices], rtol=1e-9
    )


def test_linear_attention_of_infinitely_many_tokens():
    r"""Equal scales: the loss of mode k is $\lambda_k\omega_k(1 - \kappa\lambda_k)^{2L}$."""
    own = Retrieval(spectrum=POWER, context=math.inf, targets=1, difficulty="easy")
    model = LinearAttention(depth=3, matrix="scale", tied=True, start=0.4, spread=0.0)
    spec = run(model, own, recipe={"steps": 0}, measures=("modes",), contexts=20_000, queries=4)
    curve = train([spec])[0]
    rank = np.arange(1.0, 6)
    expected = rank**-1.5 * (1 - 0.4 / rank) ** 6
    # the square of a normal has relative deviation sqrt(2)
    error = math.sqrt(2 / 80_000)
    np.testing.assert_allclose(measured(curve, "modes")[0], expected, rtol=4 * error)
    assert curve.loss[0] == pytest.approx(expected.sum(), abs=4 * curve.loss_error[0])
    wrong = (rank**-1.5 * (1 - 0.4 / rank) ** 4).sum()
    assert abs(curve.loss[0] - wrong) > 10 * curve.loss_error[0]
    rotated = dataclasses.replace(model, matrix="full")
    full = train([dataclasses.replace(spec, model=rotated)])[0]
    assert full.loss[0] == pytest.approx(curve.loss[0], abs=4 * curve.loss_error[0])


def test_isotropic_inputs_see_the_trace_of_the_tasks():
    """For a = 0 the loss is that at b = 0 times the mean of omega, whatever the predictor."""
    model = SoftmaxAttention(depth=3, spread=1.0)
    losses, errors = [], []
    for exponent in (0.0, 1.0):
        own = task(Spectrum(dim=5, input_exponent=0.0, task_exponent=exponent))
        curve = train([run(model, own, recipe={"steps": 0}, contexts=20_000, queries=4)])[0]
        losses.append(curve.loss[0])
        errors.append(curve.loss_error[0] / curve.loss[0])
    factor = (np.arange(1.0, 6) ** -1).mean()
    assert max(errors) < 0.005
    assert abs(losses[1] / losses[0] / factor - 1) < 4 * math.hypot(*errors)


# --- training ---------------------------------------------------------------------------------


def assert_same(first, second):
    for field in dataclasses.fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if field.name == "measures":
            for one, other in zip(a, b, strict=True):
                np.testing.assert_array_equal(one.values, other.values)
        else:
            np.testing.assert_array_equal(a, b)


def test_a_run_does_not_depend_on_its_company():
    specs = [replace(run(measures=("scale",)), "seed", seed) for seed in (0, 1)]
    together = train(specs)
    assert together[0].loss[-1] != together[1].loss[-1]
    assert_same(train([specs[1]])[0], together[1])


def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "SEGMENT_SECONDS", 0.0)  # a checkpoint after every segment
    base = run(measures=("layer_errors",), record=(0, 3, 6))
    specs = [replace(base, "seed", seed) for seed in (0, 1)]
    whole, file = train(specs), tmp_path / "state"

    class Stop(Exception):
        pass

    for stop in (1, 3, 2):
        calls = iter(range(100))

        def observe(done, total, calls=calls, stop=stop):
            assert 0 < done <= total == 12
            if next(calls) == stop:
                raise Stop

        with pytest.raises(Stop):
            train(specs, checkpoint=file, observe=observe)
    for a, b in zip(whole, train(specs, checkpoint=file), strict=True):
        assert_same(a, b)


def test_a_diverged_run_says_so():
    bad = run(recipe={"rate": 1e30})
    good = replace(bad, "recipe.rate", 0.02)
    curves = train([bad, good])
    assert [c.status for c in curves] == ["diverged", "ok"]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(SoftmaxAttention(depth=2), id="softmax"),
        pytest.param(LinearAttention(depth=2), id="linear"),
        pytest.param(
            SoftmaxAttention(depth=2, updates=True, layers="tempered"),
            id="updates",
            marks=pytest.mark.full,
        ),
        pytest.param(StreamAttention(depth=2, width=8), id="stream", marks=pytest.mark.full),
    ],
)
def test_training_lowers_the_loss_and_layers_share_it(model):
    linear = isinstance(model, LinearAttention)
    spec = run(
        model,
        recipe={"steps": 60, "batch_size": 16, "queries": 8, "schedule": "cosine", "warmup": 10},
        contexts=1000,
        queries=8,
        record=(0, 60),
        measures=("layer_errors", "modes") if linear else ("layer_errors",),
    )
    curve = train([spec])[0]
    start, end = curve.loss
    assert start - end > 4 * math.hypot(*curve.loss_error)
    for loss, errors in zip(curve.loss, measured(curve, "layer_errors"), strict=True):
        assert errors.mean() == pytest.approx(loss, rel=1e-5)
        assert decompose(errors).loss == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(errors, errors.T, rtol=1e-5)
    if linear:
        np.testing.assert_allclose(measured(curve, "modes").sum(-1), curve.loss, rtol=1e-5)
    assert curve.tokens.tolist() == [0, 60 * 16 * (9 + 8)]
    assert curve.flops[1] == pytest.approx(60 * 16 * 8 * 2 * (4 * 9 * 5 + 12 * 25))
    frame = from_curves([spec], [curve], engine="simulation").frame
    assert frame["context"].item() == 9
    assert frame["width"].item() == (8 if isinstance(model, StreamAttention) else 5)


def test_double_and_single_precision_see_the_same_contexts():
    single = run(record=(0, 6))
    double = replace(single, "recipe.precision", "double")
    a, b = train([single])[0], train([double])[0]
    assert a.loss[0] != b.loss[0]
    assert a.loss[0] == pytest.approx(b.loss[0], rel=1e-5)
    assert a.loss[1] == pytest.approx(b.loss[1], rel=1e-3)  # Adam divides small gradients by small


def test_layers_that_start_equal_never_separate():
    spec = run(SoftmaxAttention(depth=2, spread=0.0), measures=("scale",))
    with pytest.warns(LeadlineWarning, match=r"model.spread: got 0: the 2 layers start equal"):
        equal = train([spec])[0]
    one = train([replace(spec, "model.depth", 1)])[0]
    scales = measured(equal, "scale")[-1]
    np.testing.assert_allclose(scales, scales[0], rtol=1e-5)
    assert equal.loss[-1] == pytest.approx(one.loss[-1], rel=1e-4)


def test_gains_of_both_signs():
    """Alternately 1 + c and 1 - c, all else alike, in one program; they separate equal layers."""
    plain = SoftmaxAttention(depth=4, values="separate", spread=0.0)
    signed = dataclasses.replace(plain, contrast=2.0)
    key = stream(0, "w")
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            one = starting_weights(plain, key, dim=5, dtype=dtype)
            two = starting_weights(signed, key, dim=5, dtype=dtype)
            np.testing.assert_array_equal(one.pop("gain"), np.ones(4))
            np.testing.assert_array_equal(two.pop("gain"), [3.0, -1.0, 3.0, -1.0])
            jax.tree.map(np.testing.assert_array_equal, one, two)
    assert program_key(run(plain)) == program_key(run(signed))
    scales = measured(train([run(signed, measures=("scale",))])[0], "scale")[-1]
    np.testing.assert_allclose(scales[0], scales[2], rtol=1e-5)
    assert abs(scales[0] - scales[1]) > 0.01


def test_compiles_once_a_program():
    base = run()
    train([base])
    before = retrieval._advance._cache_size()
    steeper = Spectrum(dim=5, input_exponent=1.5, task_exponent=0.25)
    others = {"seed": 4, "recipe.rate": 0.3, "model.start": 0.7, "task.spectrum": steeper}
    for path, value in others.items():
        changed = replace(base, path, value)
        assert program_key(changed) == program_key(base), path
        train([changed])
    assert retrieval._advance._cache_size() == before
    for path, value in {"model.depth": 3, "task.context": 8, "task.targets": 3}.items():
        assert program_key(replace(base, path, value)) != program_key(base), path


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (replace(run(), "recipe", BestScale()), SolverError, "recipe: got BestScale"),
        (run(queries=math.inf), SolverError, "evaluation.queries: got infinity"),
        (run(recipe={"queries": math.inf}), SolverError, "recipe.queries: got infinity"),
        (run(recipe={"batch_size": math.inf}), SolverError, "recipe.batch_size: got infinity"),
        (run(contexts=1), SpecError, "evaluation.contexts: got 1; .* at least 2"),
        (run(measures=("mode",)), SpecError, "did you mean 'modes'"),
        (
            run(LinearAttention(depth=2), measures=("mass",)),
            SpecError,
            "'mass'; linear attention has no",
        ),
        (
            run(StreamAttention(depth=2, width=4), measures=("modes",)),
            SpecError,
            "'modes'; task vectors of one stream",
        ),
        (
            run(own=task(targets=1, difficulty="easy"), queries=10),
            SpecError,
            "evaluation.queries: got 10 for an easy task of task.context = 9",
        ),
        (
            run(own=task(dataclasses.replace(ISOTROPIC, dim=math.inf))),
            SolverError,
            "task.spectrum.dim: got infinity",
        ),
    ],
)
def test_refusals(spec, error, message):
    with pytest.raises(error, match=message):
        train([spec])


def test_too_few_contexts_for_the_error_asked_for():
    loose = run(relative_error=10.0)
    assert train([loose])[0].loss[-1] == train([run()])[0].loss[-1]
    with pytest.raises(SpecError, match=r"evaluation.contexts: got 8, .* takes about") as refused:
        train([run(relative_error=0.01)])
    needed = int(str(refused.value).split()[-1])
    start = train([run(recipe={"steps": 0})])[0]
    relative = start.loss_error[0] / start.loss[0]
    assert needed == pytest.approx(8 * (relative / 0.01) ** 2, abs=1.5)
