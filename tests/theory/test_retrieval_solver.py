"""Runs of retrieval that theory answers, and those that it refuses."""

import json
import math
from pathlib import Path

import pytest

from leadline.errors import SolverError
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    LinearAttention,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    Spectrum,
    Training,
)
from leadline.theory.landscape import loss as scale_loss
from leadline.theory.predict import predict
from leadline.theory.retrieval import best_layer, layer_loss
from leadline.theory.spectra import power_law_modes

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "peng2026.json").read_text())


def run(model, recipe, *, dim=16, a=0.0, b=0.0, evaluation=None, **task):
    return RunSpec(
        task=Retrieval(
            spectrum=Spectrum(dim=dim, input_exponent=a, task_exponent=b),
            **{"context": 64, "targets": 2} | task,
        ),
        model=model,
        recipe=recipe,
        evaluation=evaluation or Evaluation(),
    )


def test_one_softmax_layer():
    best = best_layer(dim=16, context=64, targets=2)
    curve = predict(run(SoftmaxAttention(depth=1), BestScale()))
    assert curve.status == "ok"
    assert curve.loss[0] == pytest.approx(2.122405, abs=2e-6)
    assert curve.loss_error[0] < 1e-6
    assert curve.scalar("gamma") == pytest.approx(best.sharpness)
    assert curve.scalar("gain") == pytest.approx(best.gain)
    looped = predict(run(SoftmaxAttention(depth=8, layers="looped"), BestScale()))
    assert looped.loss == curve.loss
    given = predict(run(SoftmaxAttention(depth=1), GivenScale(gamma=2.0)))
    assert given.loss[0] > curve.loss[0]
    gain = given.scalar("gain")
    for moved in (0.99 * gain, 1.01 * gain):
        off = layer_loss(dim=16, context=64, targets=2, sharpness=2.0, gain=moved)
        assert off.loss > given.loss[0]


def test_task_exponents_only_scale_the_loss():
    row = next(r for r in REFERENCE if r["name"] == "a0_scaling_factor")
    plain = predict(run(SoftmaxAttention(depth=1), BestScale()))
    tilted = predict(run(SoftmaxAttention(depth=1), BestScale(), b=row["inputs"]["b"]))
    assert tilted.loss[0] / plain.loss[0] == pytest.approx(row["value"], rel=1e-12)


EASY = {"dim": 128, "a": 2.0, "b": 1.0, "context": math.inf, "targets": 1, "difficulty": "easy"}


@pytest.mark.parametrize(("tied", "name"), [(True, "constrained"), (False, "free")])
def test_linear_attention_on_the_easy_task(tied, name):
    rows = [
        row
        for row in REFERENCE
        if row["name"] == f"linear_easy_{name}" and row["inputs"]["ab"] == "(2, 1)"
    ]
    assert len(rows) >= 4
    for row in rows:
        model = LinearAttention(depth=row["inputs"]["L"], tied=tied)
        curve = predict(run(model, BestScale(), **EASY))
        assert curve.loss[0] == pytest.approx(row["value"], abs=row["tol"])
        assert curve.status == "ok"


def test_a_given_scale_on_the_easy_task():
    curve = predict(run(LinearAttention(depth=3), GivenScale(gamma=1.7), **EASY))
    modes = power_law_modes(Spectrum(dim=128, input_exponent=2, task_exponent=1))
    assert curve.loss[0] == pytest.approx(float(scale_loss(modes, 1.7, depth=3)))


SAMPLED = Evaluation(contexts=1500, queries=16)


def test_linear_attention_on_the_difficult_task():
    exact = predict(run(LinearAttention(depth=1), BestScale()))
    assert exact.status == "ok"
    assert exact.loss[0] == pytest.approx(5.479325, abs=1e-5)
    sampled = predict(run(LinearAttention(depth=4), BestScale(), evaluation=SAMPLED))
    row = next(
        r
        for r in REFERENCE
        if r["name"] == "linear_difficult_LS_S4"
        and r["inputs"] == {"kab": "(2, 0, 0)", "d": 16, "P": 64}
    )
    assert sampled.status == "sampled"
    allowed = 4 * math.hypot(sampled.loss_error[0], row["tol"] / 4)
    assert abs(sampled.loss[0] - row["value"]) < allowed
    tied = predict(run(LinearAttention(depth=4, tied=True), BestScale(), evaluation=SAMPLED))
    given = predict(run(LinearAttention(depth=4), GivenScale(gamma=0.1), evaluation=SAMPLED))
    assert sampled.loss[0] < tied.loss[0] + 1e-3 < given.loss[0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            run(
                SoftmaxAttention(depth=1),
                Training(steps=1, batch_size=1, queries=1, rate=0.1),
                evaluation=Evaluation(queries=4),
            ),
            "recipe: got Training",
        ),
        (run(SoftmaxAttention(depth=4), BestScale()), "model.depth: got 4 separate layers"),
        (run(SoftmaxAttention(depth=1), BestScale(), a=1.0), "input_exponent: got 1"),
        (run(SoftmaxAttention(depth=1), BestScale(), targets=64), "targets: got 64 of 64"),
        (run(SoftmaxAttention(depth=1), GivenScale(gamma=-1.0)), "recipe.gamma: got -1"),
        (
            run(SoftmaxAttention(depth=1, normalized=False), BestScale()),
            "model: got updates False and normalized False",
        ),
        (
            run(SoftmaxAttention(depth=1, width=4, start=0.0), BestScale()),
            "model.width: got 4, expected at least the dimension 16",
        ),
        (
            run(LinearAttention(depth=2), BestScale(), targets=1, difficulty="easy"),
            "task.context: got 64 for the easy task, expected infinity",
        ),
        (
            run(LinearAttention(depth=2), BestScale()),
            "evaluation.queries: got infinity; this floor is sampled",
        ),
        (
            run(
                LinearAttention(depth=2),
                BestScale(),
                evaluation=Evaluation(contexts=10, queries=4, relative_error=1e-3),
            ),
            "contexts: got 10, whose standard error",
        ),
    ],
)
def test_refusals_say_what_has_an_answer(spec, message):
    with pytest.raises(SolverError, match=message):
        predict(spec)
