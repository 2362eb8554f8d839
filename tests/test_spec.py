"""What a specification refuses, how it names it, and the grids made from one."""

import dataclasses
import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.errors import SpecError
from leadline.spec import (
    MAX_SEED,
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Spectrum,
    Sweep,
    Training,
    Turn,
    dotted_paths,
    flat,
    grid,
    replace,
    source_capacity,
)

POWER = source_capacity(8, nu=1.5, beta=2.0)


def isotropic(**changes):
    return InContextRegression(
        **{"spectrum": flat(8), "covariance": "isotropic", "context": 4} | changes
    )


def fixed(**changes):
    return InContextRegression(
        **{"spectrum": POWER, "covariance": "fixed", "context": math.inf} | changes
    )


def training(**changes):
    return Training(**{"steps": 10, "batch_size": 2, "queries": 3, "rate": 0.5} | changes)


def run(**changes):
    parts = {"task": isotropic(), "model": ReducedAttention(depth=2), "recipe": BestScale()}
    return RunSpec(**parts | changes)


def message(make, *arguments, **fields):
    with pytest.raises(SpecError) as caught:
        make(*arguments, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


NUMBERS = [
    (lambda **f: Spectrum(input_exponent=1, task_exponent=1, **f), "dim", "task.spectrum.dim"),
    (
        lambda **f: Spectrum(dim=2, task_exponent=1, **f),
        "input_exponent",
        "task.spectrum.input_exponent",
    ),
    (isotropic, "context", "task.context"),
    (isotropic, "noise", "task.noise"),
    (isotropic, "query_noise", "task.query_noise"),
    (ReducedAttention, "depth", "model.depth"),
    (training, "steps", "recipe.steps"),
    (training, "batch_size", "recipe.batch_size"),
    (training, "queries", "recipe.queries"),
    (training, "rate", "recipe.rate"),
    (GivenScale, "gamma", "recipe.gamma"),
    (lambda **f: GradientFlow(times=(1,), **f), "start", "recipe.start"),
    (Evaluation, "contexts", "evaluation.contexts"),
    (Evaluation, "queries", "evaluation.queries"),
    (Evaluation, "seed", "evaluation.seed"),
    (Turn, "angle", "task.turn.angle"),
    (run, "seed", "seed"),
]
INFINITE = {"dim", "context", "depth", "batch_size", "queries"}


@pytest.mark.parametrize(("make", "field", "path"), NUMBERS, ids=[n[2] for n in NUMBERS])
@pytest.mark.parametrize(
    "value",
    [math.nan, -math.inf, True, "3", None, np.ones(3), np.array(2.0), len, 1j, [1], 10**400],
    ids=lambda v: type(v).__name__,
)
def test_what_is_not_a_number_is_refused_with_the_dotted_field(make, field, path, value):
    text = message(make, **{field: value})
    assert text.startswith(f"{path}: got ")
    assert "expected a" in text
    assert len(text) < 200


@pytest.mark.parametrize(("make", "field", "path"), NUMBERS, ids=[n[2] for n in NUMBERS])
def test_infinity_is_allowed_where_it_has_a_meaning_only(make, field, path):
    if field in INFINITE:
        assert getattr(make(**{field: math.inf}), field) == math.inf
    else:
        assert message(make, **{field: math.inf}).startswith(f"{path}: got inf")


@pytest.mark.parametrize(
    ("make", "field", "value", "text"),
    [
        (isotropic, "context", 0, "task.context: got 0, expected a whole number >= 1 or infinity"),
        (isotropic, "context", 1.5, "task.context: got 1.5, expected a whole number"),
        (ReducedAttention, "depth", 0, "model.depth: got 0, expected a whole number >= 1"),
        (isotropic, "noise", -0.1, "task.noise: got -0.1, expected a finite number >= 0"),
        (training, "rate", 0, "recipe.rate: got 0, expected a finite number > 0"),
        (training, "steps", -1, "recipe.steps: got -1, expected a whole number >= 0"),
        (run, "seed", -1, "seed: got -1, expected a whole number >= 0"),
        (run, "seed", MAX_SEED + 1, "seed: got 9223372036854775808, expected"),
        (
            isotropic,
            "covariance",
            "isotropi",
            "task.covariance: got 'isotropi', expected one of ('isotropic', 'fixed', 'rotated') "
            "(did you mean 'isotropic'?)",
        ),
        (isotropic, "covariance", 3, "task.covariance: got 3, expected one of"),
        (isotropic, "spectrum", 8, "task.spectrum: got int 8, expected Spectrum"),
        (run, "task", flat(3), "task: got Spectrum"),
        (run, "recipe", flat(3), "recipe: got Spectrum"),
        (run, "model", "deep", "model: got str 'deep', expected ReducedAttention"),
        (lambda **f: ReducedAttention(depth=1, **f), "tied", 1, "model.tied: got int 1, expected"),
        (lambda **f: ReducedAttention(depth=1, **f), "power", 3, "model.power: got 3, expected"),
        (Evaluation, "record", 3, "evaluation.record: got int 3, expected a tuple"),
        (Evaluation, "record", (1, 2.5), "evaluation.record[1]: got 2.5, expected a whole"),
        (Evaluation, "record", np.array([1]), "evaluation.record: got ndarray"),
        (Evaluation, "measures", "scale", "evaluation.measures: got str 'scale', expected a tuple"),
        (Evaluation, "measures", (1,), "evaluation.measures[0]: got int 1, expected str"),
        (GradientFlow, "times", "12", "recipe.times: got str '12', expected a tuple"),
    ],
)
def test_impossible_values(make, field, value, text):
    assert message(make, **{field: value}).startswith(text)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: isotropic(spectrum=POWER), "task.spectrum: an isotropic task needs"),
        (lambda: ReducedAttention(depth=1, width=4), "model.projection: got 'none' with width 4"),
        (
            lambda: ReducedAttention(depth=1, projection="gaussian"),
            "model.projection: got 'gaussian' with width None",
        ),
        (
            lambda: run(model=ReducedAttention(depth=1, width=9, projection="orthogonal")),
            "model.width: 9 exceeds task.spectrum.dim 8",
        ),
        (lambda: GradientFlow(times=()), "recipe.times: expected at least one time"),
        (lambda: GradientFlow(times=(1, 1)), "recipe.times: expected at least one time, in incr"),
        (lambda: Evaluation(record=(3, 2)), "evaluation.record: expected steps in increasing"),
        (
            lambda: run(recipe=training(steps=4), evaluation=Evaluation(record=(0, 5))),
            "evaluation.record: step 5 is after the last step 4",
        ),
        (lambda: isotropic(turn=Turn(angle=1)), "task.turn: got a turn of isotropic covariance"),
        (
            lambda: fixed(spectrum=source_capacity(math.inf, nu=1, beta=1), turn=Turn(angle=1)),
            "task.turn: got a turn of fixed covariance in dimension inf",
        ),
        (lambda: run(task=fixed(turn=Turn(angle=1))), "task.turn: only evaluation.task may have"),
        (
            lambda: run(evaluation=Evaluation(task=isotropic(spectrum=flat(9)))),
            "evaluation.task.spectrum.dim: got 9, expected the 8",
        ),
        (lambda: Sweep(name="s", engine="theory", runs=()), "sweep.runs: the sweep 's' has no"),
        (
            lambda: Sweep(name="s", engine="theori", runs=(run(),)),
            "sweep.engine: got 'theori', expected one of ('theory', 'simulation') (did you mean",
        ),
        (lambda: Sweep(name="s", engine="theory", runs=(run(), 3)), "sweep.runs[1]: got int 3"),
        (lambda: source_capacity(8, nu=0, beta=1), "task.spectrum.nu: got 0, expected"),
        (lambda: source_capacity(8, nu=1, beta=math.nan), "task.spectrum.beta: got nan, expected"),
    ],
)
def test_fields_that_contradict_each_other(make, text):
    assert message(make).startswith(text)


def test_equal_numbers_take_one_form():
    for value in (3, 3.0, np.int64(3), np.int8(3), np.float32(3), Fraction(3)):
        context = isotropic(context=value).context
        assert (type(context), context) == (int, 3)
    for value in (2, 2.0, np.int64(2), np.float64(2), Fraction(2)):
        gamma = GivenScale(gamma=value).gamma
        assert (type(gamma), gamma) == (float, 2.0)
    assert math.copysign(1, GivenScale(gamma=-0.0).gamma) == 1
    assert Evaluation(record=[0, np.int64(2)]).record == (0, 2)
    assert Evaluation(record=range(3)).record == (0, 1, 2)


def test_large_whole_numbers_stay_exact():
    assert run(seed=MAX_SEED).seed == 2**63 - 1
    assert isotropic(context=2**53 + 1).context == 2**53 + 1
    assert run(seed=np.int64(MAX_SEED)).seed == MAX_SEED


def test_specifications_are_values():
    assert run() == run()
    assert len({run(), run(), run(seed=1)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        run().seed = 3
    with pytest.raises(TypeError):
        ReducedAttention(3)


def test_flat_spectrum_has_loss_one():
    assert flat(8) == Spectrum(dim=8, input_exponent=0, task_exponent=0, total=1)


@given(nu=st.floats(0.1, 5), beta=st.floats(0.1, 5), k=st.integers(2, 1000))
@settings(derandomize=True, deadline=None)
def test_source_and_capacity_conditions(nu, beta, k):
    spectrum = source_capacity(math.inf, nu=nu, beta=beta)
    a, b = spectrum.input_exponent, spectrum.task_exponent
    assert k**-a == pytest.approx(k**-nu)
    assert k ** -(a + b) == pytest.approx(k ** (-nu * beta - 1), rel=1e-9)
    assert (a + b - 1) / a == pytest.approx(beta, rel=1e-9)
    assert spectrum.total == 1


def test_grid_varies_the_last_axis_fastest():
    specs = grid(run(), {"model.depth": [1, 2], "task.noise": (0.0, 0.5), "seed": range(2)})
    found = [(s.model.depth, s.task.noise, s.seed) for s in specs]
    assert found == list(itertools.product([1, 2], [0.0, 0.5], [0, 1]))
    assert specs[0].task.spectrum == run().task.spectrum
    assert grid(run(), {}) == (run(),)
    assert grid(run(), {"seed": np.arange(2)}) == grid(run(), {"seed": [0, 1]})


@given(
    depths=st.lists(st.integers(1, 9), max_size=3),
    noises=st.lists(st.floats(0, 2), max_size=3),
    dims=st.lists(st.integers(1, 9), max_size=2),
)
@settings(derandomize=True, deadline=None)
def test_grid_is_the_product_of_replacements(depths, noises, dims):
    axes = {"model.depth": depths, "task.noise": noises, "task.spectrum.dim": dims}
    expected = []
    for values in itertools.product(*axes.values()):
        spec = run()
        for path, value in zip(axes, values, strict=True):
            spec = replace(spec, path, value)
        expected.append(spec)
    assert grid(run(), axes) == tuple(expected)


def test_axes_that_are_possible_only_together():
    specs = grid(run(), {"model.width": [2, 4], "model.projection": ["gaussian", "orthogonal"]})
    assert [(s.model.width, s.model.projection) for s in specs] == [
        (2, "gaussian"),
        (2, "orthogonal"),
        (4, "gaussian"),
        (4, "orthogonal"),
    ]
    # a whole part and a field below it, in either order
    axes = {"recipe": [training(), training(rate=2.0)], "recipe.steps": [3]}
    expected = (training(steps=3), training(steps=3, rate=2.0))
    assert tuple(s.recipe for s in grid(run(), axes)) == expected
    assert grid(run(), dict(reversed(axes.items()))) == grid(run(), axes)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("model.dept", "model.dept: no field 'dept' in ReducedAttention; it has depth, width, "),
        ("modl.depth", "modl.depth: no field 'modl' in RunSpec; it has task, model, "),
        ("task.spectrum.dimm", "task.spectrum.dimm: no field 'dimm' in Spectrum; it has dim, "),
        ("seed.more", "seed.more: no field 'more' in int; it has none"),
        ("", ": no field '' in RunSpec"),
        ("model.", "model.: no field '' in ReducedAttention"),
    ],
)
def test_unknown_paths(path, text):
    for change in (lambda: grid(run(), {path: [1]}), lambda: replace(run(), path, 1)):
        assert message(change).startswith(text)


def test_the_nearest_path_is_offered():
    assert "(did you mean 'depth'?)" in message(replace, run(), "model.dept", 1)
    assert "(did you mean 'model.depth'?)" in message(replace, run(), "modl.depth", 1)


def test_a_grid_refuses_impossible_values_with_their_field():
    assert message(grid, run(), {"model.depth": [1, 0]}).startswith("model.depth: got 0, expected")


def test_dotted_paths_name_every_field():
    paths = dotted_paths(run())
    assert {"seed", "task", "task.spectrum.dim", "model.depth", "evaluation.queries"} <= set(paths)
    for path in paths:
        value = run()
        for name in path.split("."):
            value = getattr(value, name)
        assert replace(run(), path, value) == run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_decay": 0.1}, "recipe.weight_decay: got 0.1 with optimizer 'sgd'"),
        ({"warmup": 11}, "recipe.warmup: got 11 with recipe.steps = 10"),
        ({"optimizer": "adm"}, "recipe.optimizer: got 'adm', expected one of"),
    ],
)
def test_training_names_what_cannot_be(changes, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        Training(steps=10, batch_size=2, queries=1, rate=0.1, **changes)
