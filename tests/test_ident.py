"""The canonical JSON of a specification, the way back, and what a run's id depends on."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leadline.errors import SpecError
from leadline.ident import from_json, run_id, to_json, to_plain
from leadline.spec import (
    MAX_SEED,
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Spec,
    Spectrum,
    Sweep,
    Training,
    Transformer,
    Turn,
    dotted_paths,
    flat,
    grid,
    replace,
    source_capacity,
)

quick = settings(derandomize=True, deadline=None, max_examples=60)
finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
not_negative = st.floats(min_value=0, allow_infinity=False)
whole = st.integers(1, 10**18)
extents = whole | st.just(math.inf)
seeds = st.integers(0, MAX_SEED)
turns = st.builds(Turn, angle=finite, seed=seeds)


def increasing(values):
    return st.lists(values, unique=True, max_size=4).map(lambda v: tuple(sorted(v)))


@st.composite
def tasks(draw, dim, *, turned=False):
    covariance = draw(st.sampled_from(["isotropic", "fixed", "rotated"]))
    spectrum = Spectrum(dim=dim, input_exponent=0, task_exponent=0, total=1)
    if covariance != "isotropic":
        spectrum = Spectrum(
            dim=dim,
            input_exponent=draw(not_negative),
            task_exponent=draw(finite),
            total=draw(st.none() | positive),
        )
    can_turn = turned and covariance == "fixed" and math.isfinite(dim)
    return InContextRegression(
        spectrum=spectrum,
        covariance=covariance,
        context=draw(extents),
        noise=draw(not_negative),
        query_noise=draw(not_negative),
        turn=draw(st.none() | turns) if can_turn else None,
    )


@st.composite
def models(draw, dim):
    projection = draw(st.sampled_from(["none", "orthogonal", "gaussian"]))
    widest = min(dim, 10**18) if projection == "orthogonal" else 10**18
    return ReducedAttention(
        depth=draw(extents),
        width=None if projection == "none" else draw(st.integers(1, widest)),
        projection=projection,
        power=draw(st.sampled_from([1, 2])),
        tied=draw(st.booleans()),
    )


recipes = st.one_of(
    st.builds(
        Training, steps=st.integers(0, 10**12), batch_size=extents, queries=extents, rate=positive
    ),
    st.builds(GradientFlow, times=increasing(not_negative).filter(len), start=finite),
    st.builds(GivenScale, gamma=finite),
    st.builds(BestScale),
)
names = st.sampled_from(["scale", "inf", "-inf", 'a "quoted" name', "γ"])


@st.composite
def run_specs(draw):
    dim = draw(extents)
    recipe = draw(recipes)
    last = recipe.steps if isinstance(recipe, Training) else 10**12
    return RunSpec(
        task=draw(tasks(dim)),
        model=draw(models(dim)),
        recipe=recipe,
        evaluation=Evaluation(
            contexts=draw(whole),
            queries=draw(extents),
            seed=draw(seeds),
            record=draw(increasing(st.integers(0, last))),
            measures=tuple(draw(st.lists(names, max_size=2))),
            task=draw(st.none() | tasks(dim, turned=True)),
        ),
        seed=draw(seeds),
    )


@given(spec=run_specs())
@quick
def test_json_and_back_is_the_same_run(spec):
    text = to_json(spec)
    again = from_json(text)
    assert again == spec
    assert to_json(again) == text
    assert run_id(again, engine="theory") == run_id(spec, engine="theory")
    assert re.fullmatch(r"[0-9a-f]{32}", run_id(spec, engine="theory"))


@given(spec=run_specs())
@quick
def test_the_json_is_strict_and_canonical(spec):
    def refuse(constant):
        raise AssertionError(constant)

    text = to_json(spec)
    plain = json.loads(text, parse_constant=refuse)
    assert json.dumps(plain, sort_keys=True, separators=(",", ":")) == text


@given(one=run_specs(), two=run_specs())
@quick
def test_different_runs_have_different_ids(one, two):
    assume(one != two)
    assert run_id(one, engine="theory") != run_id(two, engine="theory")


@given(specs=st.lists(run_specs(), min_size=1, max_size=3), name=names)
@settings(derandomize=True, deadline=None, max_examples=20)
def test_sweeps_and_parts_come_back(specs, name):
    sweep = Sweep(name=name, engine="simulation", runs=tuple(specs))
    assert from_json(to_json(sweep)) == sweep
    for part in (specs[0].task, specs[0].recipe, specs[0].task.spectrum, specs[0].evaluation):
        assert from_json(to_json(part)) == part


BASE = RunSpec(
    task=InContextRegression(
        spectrum=source_capacity(8, nu=1.5, beta=2.0), covariance="fixed", context=16
    ),
    model=ReducedAttention(depth=2, width=4, projection="orthogonal", tied=False),
    recipe=BestScale(),
    evaluation=Evaluation(
        record=(0, 10),
        measures=("scale",),
        task=InContextRegression(
            spectrum=flat(8), covariance="fixed", context=16, turn=Turn(angle=0.5)
        ),
    ),
)
RECIPES = [
    Training(steps=10, batch_size=4, queries=8, rate=0.5),
    GradientFlow(times=(2, 3)),
    GivenScale(gamma=1.0),
    BestScale(),
]


def another(value):
    """A different value of the same kind."""
    if isinstance(value, str):
        return {"fixed": "rotated", "orthogonal": "gaussian"}[value]
    if isinstance(value, tuple):
        return value[1:]
    if isinstance(value, bool):
        return not value
    if value == math.inf or value is None:
        return 7
    return 1 if value == 2 else value + 1


TOGETHER = {
    "task.spectrum.dim": {"evaluation.task.spectrum.dim": [9]},
    "evaluation.task.covariance": {"evaluation.task.turn": [None]},
}
"""What must change with a field."""


ELSEWHERE = (
    "task.turn",
    "evaluation.task.spectrum.dim",
    "evaluation.strength",
    "evaluation.relative_error",
    *(f"recipe.{name}" for name in ("optimizer", "weight_decay", "schedule", "warmup")),
    "recipe.precision",
)
"""Fields that another kind of run has, or that go together with one above."""


def variants(spec):
    """For every field of a run the run with another value there."""
    for path in dotted_paths(spec):
        value = spec
        for name in path.split("."):
            value = getattr(value, name)
        if isinstance(value, Spec) or path in ELSEWHERE:
            continue  # a part counts by its fields
        yield path, grid(spec, {path: [another(value)]} | TOGETHER.get(path, {}))[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_every_field_is_part_of_the_id(recipe):
    base = replace(BASE, "recipe", recipe)
    ids = {run_id(base, engine="theory"): "base"}
    for path, other in variants(base):
        before = ids.setdefault(run_id(other, engine="theory"), path)
        assert before == path, (before, path)
    assert len(ids) > 25


def test_the_kind_of_recipe_is_part_of_the_id():
    ids = {run_id(replace(BASE, "recipe", recipe), engine="theory") for recipe in RECIPES}
    assert len(ids) == len(RECIPES)


def test_equal_numbers_of_other_types_have_one_id():
    def one(number, real):
        return RunSpec(
            task=InContextRegression(
                spectrum=flat(number(8)), covariance="isotropic", context=number(4), noise=real(1)
            ),
            model=ReducedAttention(depth=number(2)),
            recipe=Training(steps=number(3), batch_size=number(2), queries=number(1), rate=real(2)),
            evaluation=Evaluation(record=[number(0), number(3)]),
            seed=number(5),
        )

    kinds = [(int, int), (int, float), (float, float), (np.int64, np.float64), (np.int8, np.int32)]
    assert len({run_id(one(*kind), engine="theory") for kind in kinds}) == 1


def test_unknown_engine():
    with pytest.raises(SpecError, match=r"^engine: got 'theori', expected one of \('theory', "):
        run_id(BASE, engine="theori")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Anything(Spec):
    """A specification that checks nothing."""

    value: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "value.value[1]: NaN cannot be part of a run's identity"),
        (np.ones(2), "value.value[1]: ndarray cannot be part"),
        (len, "value.value[1]: builtin_function_or_method cannot be part"),
        ([1], "value.value[1]: list cannot be part"),
        ({"a": 1}, "value.value[1]: dict cannot be part"),
        (np.float32(1), "value.value[1]: float32 cannot be part"),
        (b"x", "value.value[1]: bytes cannot be part"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_has_no_identity_is_refused_with_its_place(value, text):
    with pytest.raises(SpecError) as caught:
        to_plain(Anything(value=Anything(value=(0, value))))
    assert str(caught.value).startswith(text)


def edited(**changes):
    """The JSON of a run, with values at dotted places replaced, or removed where None."""
    plain = json.loads(to_json(BASE))
    for path, value in changes.items():
        *above, last = path.split("__")
        place = plain
        for name in above:
            place = place[name]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a specification in JSON: "),
        ("{", "not a specification in JSON: "),
        ("[" * 600 + "]" * 600, "not a specification in JSON: "),
        ("[" * 10**5, "not a specification in JSON: "),
        ("{}", "specification: unknown kind None, expected one of "),
        (edited(kind="RunSpek"), "specification: unknown kind 'RunSpek', expected one of "),
        (edited(kind=3), "specification: unknown kind 3, expected one of "),
        (edited(model__kind="ReducedAttn"), "model: unknown kind 'ReducedAttn', expected one of "),
        (edited(sed=1), "specification: RunSpec has no field 'sed'; it has task, model, "),
        (edited(model__dept=1), "model: ReducedAttention has no field 'dept'; it has depth, "),
        (edited(task__spectrum__dimm=1), "task.spectrum: Spectrum has no field 'dimm'; it has "),
        (edited(model=None), "specification: RunSpec lacks the field 'model'"),
        (edited(task__context=None), "task: InContextRegression lacks the field 'context'"),
        (edited(task__context=0), "task.context: got 0, expected a whole number"),
        (edited(task__context="4"), "task.context: got str '4', expected a whole number"),
        (edited(task__context=math.nan), "task.context: got nan, expected a whole number"),
        (edited(task__noise="inf"), "task.noise: got inf, expected a finite number"),
        (edited(task=[1]), "task: got tuple (1,), expected InContextRegression"),
        (edited(task=json.loads(to_json(flat(8)))), "task: got Spectrum Spectrum("),
        (edited(evaluation__record=5), "evaluation.record: got int 5, expected a tuple"),
    ],
)
def test_json_that_is_no_specification(text, message):
    with pytest.raises(SpecError) as caught:
        from_json(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_nearest_name_is_offered():
    for text, close in [
        (edited(kind="RunSpek"), "'RunSpec'"),
        (edited(sed=1), "'seed'"),
        (edited(task__noize=1), "'noise'"),
    ]:
        with pytest.raises(SpecError, match=rf"\(did you mean {close}\?\)$"):
            from_json(text)


def test_fields_with_defaults_may_be_left_out():
    plain = json.loads(to_json(BASE))
    for name in ("evaluation", "seed"):
        del plain[name]
    assert from_json(json.dumps(plain)) == replace(BASE, "evaluation", Evaluation())


def test_every_field_of_an_optimizer_is_part_of_the_id():
    task = InContextRegression(spectrum=flat(8), covariance="isotropic", context=4)
    recipe = Training(
        steps=10, batch_size=4, queries=8, rate=0.5, optimizer="adamw", weight_decay=0.1
    )
    base = RunSpec(
        task=task,
        model=Transformer(depth=2, width=12),
        recipe=recipe,
        evaluation=Evaluation(queries=8),
    )
    changes = {
        "recipe.weight_decay": 0.2,
        "recipe.schedule": "cosine",
        "recipe.warmup": 3,
        "recipe.precision": "double",
        "model.depth": 3,
        "model.width": 24,
        "model.heads": 2,
        "model.attention": "softmax",
        "model.mlp": 2,
        "model.tied": True,
        "model.trainable": "attention",
        "model.channels": "separate",
        "model.scaling": "standard",
        "model.initial": "aligned",
        "model.start": 0.5,
    }
    ids = {run_id(base, engine="simulation")}
    for path, value in changes.items():
        ids.add(run_id(replace(base, path, value), engine="simulation"))
    plain = replace(base, "recipe", Training(steps=10, batch_size=4, queries=8, rate=0.5))
    ids |= {run_id(plain, engine="simulation")}
    ids |= {run_id(replace(plain, "recipe.optimizer", "adam"), engine="simulation")}
    assert len(ids) == len(changes) + 3
