"""What a specification of retrieval refuses, and its identity."""

import dataclasses
import math

import pytest

from leadline.errors import SpecError
from leadline.ident import from_json, run_id, to_json
from leadline.spec import (
    BestScale,
    Evaluation,
    GradientFlow,
    InContextRegression,
    LinearAttention,
    PerTaskAttention,
    ReducedAttention,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    SparseFeatures,
    Spectrum,
    StreamAttention,
    Training,
    flat,
    grid,
    is_regression,
    is_retrieval,
    is_sparse,
)

SPECTRUM = Spectrum(dim=16, input_exponent=0.0, task_exponent=0.0)
TASK = Retrieval(spectrum=SPECTRUM, context=64, targets=2)
EASY = Retrieval(spectrum=SPECTRUM, context=math.inf, targets=1, difficulty="easy")
RECIPE = Training(
    steps=1500,
    batch_size=32,
    queries=32,
    rate=0.02,
    optimizer="adam",
    schedule="cosine",
    warmup=100,
)
RUN = RunSpec(task=TASK, model=SoftmaxAttention(depth=4), recipe=RECIPE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: dataclasses.replace(TASK, targets=65),
            "task.targets: got 65 of task.context = 64",
        ),
        (lambda: dataclasses.replace(TASK, targets=0), "task.targets: got 0, expected"),
        (lambda: dataclasses.replace(TASK, context=math.inf), "task.context: got infinity"),
        (lambda: dataclasses.replace(TASK, context=0), "task.context: got 0, expected"),
        (
            lambda: dataclasses.replace(TASK, spectrum=dataclasses.replace(SPECTRUM, dim=1)),
            "task.spectrum.dim: got 1; on a line",
        ),
        (lambda: dataclasses.replace(EASY, targets=2), "task.targets: got 2 for the easy task"),
        (lambda: dataclasses.replace(TASK, difficulty="hard"), "task.difficulty: got 'hard'"),
        (lambda: SoftmaxAttention(depth=0), "model.depth: got 0, expected"),
        (lambda: LinearAttention(depth=0), "model.depth: got 0, expected"),
        (lambda: StreamAttention(depth=0, width=4), "model.depth: got 0, expected"),
        (lambda: StreamAttention(depth=1, width=0), "model.width: got 0, expected"),
        (lambda: SoftmaxAttention(depth=1, width=4), "model.start: got 0.5 with width 4"),
        (
            lambda: SoftmaxAttention(depth=1, width=4, start=0.0, spread=0.0),
            "model.spread: got 0 with width 4",
        ),
        (
            lambda: LinearAttention(depth=1, width=4, matrix="scale"),
            "model.width: got 4 with matrix 'scale'",
        ),
        (
            lambda: SoftmaxAttention(depth=2, contrast=2.0),
            "model.contrast: got 2 with values 'shared' and depth 2",
        ),
        (
            lambda: SoftmaxAttention(depth=1, values="separate", contrast=2.0),
            "model.contrast: got 2 with values 'separate' and depth 1",
        ),
        (
            lambda: SoftmaxAttention(depth=2, values="separate", contrast=-1.0),
            "model.contrast: got -1",
        ),
        (
            lambda: SoftmaxAttention(depth=2, layers="tempered", matrix="scale"),
            "model.matrix: got 'scale' for tempered layers",
        ),
        (
            lambda: dataclasses.replace(RUN, task=EASY),
            "task.context: got infinity for SoftmaxAttention",
        ),
        (
            lambda: dataclasses.replace(RUN, recipe=GradientFlow(times=(1.0,))),
            "recipe: got GradientFlow; SoftmaxAttention learns retrieval by Training",
        ),
        (
            lambda: dataclasses.replace(RUN, evaluation=Evaluation(strength=1.0)),
            "evaluation.strength: retrieval is evaluated on its own task",
        ),
        (
            lambda: dataclasses.replace(RUN, evaluation=Evaluation(record=(1501,))),
            "evaluation.record: step 1501",
        ),
        (
            lambda: dataclasses.replace(RUN, model=ReducedAttention(depth=2)),
            "Retrieval with LinearAttention, SoftmaxAttention or StreamAttention",
        ),
        (lambda: Evaluation(relative_error=0.0), "evaluation.relative_error: got 0"),
    ],
)
def test_refusals_name_the_field(make, message):
    with pytest.raises(SpecError) as refused:
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


REGRESSION = RunSpec(
    task=InContextRegression(spectrum=flat(4), covariance="isotropic", context=8),
    model=ReducedAttention(depth=2),
    recipe=BestScale(),
)
SPARSE = RunSpec(
    task=SparseFeatures(num_tasks=3, type_exponent=1.5, context=10),
    model=PerTaskAttention(),
    recipe=Training(steps=1, batch_size=2, queries=1, rate=0.1),
)


@pytest.mark.parametrize("other", [REGRESSION, SPARSE], ids=["regression", "sparse"])
def test_what_only_retrieval_has(other):
    with pytest.raises(SpecError, match="only retrieval has one"):
        dataclasses.replace(other, evaluation=Evaluation(relative_error=0.01))
    double = Training(steps=1, batch_size=2, queries=1, rate=0.1, precision="double")
    with pytest.raises(SpecError, match=r"recipe.precision: got 'double'"):
        dataclasses.replace(other, recipe=double)


def test_kinds_of_runs():
    assert is_retrieval(RUN)
    assert not is_regression(RUN)
    assert not is_sparse(RUN)
    assert not is_retrieval(REGRESSION)
    infinite = dataclasses.replace(RUN, task=EASY, model=LinearAttention(depth=2))
    assert is_retrieval(infinite)


def test_ids_survive_json_and_tell_models_apart():
    models = (
        SoftmaxAttention(depth=4),
        SoftmaxAttention(depth=4, updates=True),
        SoftmaxAttention(depth=4, width=16, start=0.0, spread=1.0),
        LinearAttention(depth=4),
        StreamAttention(depth=4, width=24),
    )
    runs = grid(RUN, {"model": models, "recipe.precision": ["single", "double"]})
    for spec in runs:
        assert from_json(to_json(spec)) == spec
    assert len({run_id(spec, engine="simulation") for spec in runs}) == 10


def test_contrast_came_later_and_leaves_older_ids():
    model = SoftmaxAttention(depth=4, values="separate")
    signed = dataclasses.replace(model, contrast=2.0)
    old, new = (dataclasses.replace(RUN, model=m) for m in (model, signed))
    assert "contrast" not in to_json(old)
    assert from_json(to_json(new)).model.contrast == 2
    assert run_id(old, engine="simulation") != run_id(new, engine="simulation")
