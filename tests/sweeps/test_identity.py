"""What a run's id depends on, and that numbers do not change without a new VERSION.

After a change of numbers on purpose, raise VERSION and record them: `python test_identity.py`.
"""

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leadline import spec as specs
from leadline.ident import VERSION, from_json, run_id, to_json
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    PerTaskAttention,
    ReducedAttention,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    SparseFeatures,
    Spectrum,
    Training,
    Transformer,
    fields,
    flat,
    source_capacity,
)

NUMBERS = Path(__file__).parents[1] / "reference" / "engine_digests.json"
ISOTROPIC = InContextRegression(spectrum=flat(16), covariance="isotropic", context=32, noise=0.2)
FIXED = InContextRegression(
    spectrum=source_capacity(12, nu=1.2, beta=1.0), covariance="fixed", context=math.inf
)
ROTATED = dataclasses.replace(FIXED, covariance="rotated")
FLOW = GradientFlow(times=(0.5, 4.0, 40.0))
SHALLOW, DEEP = ReducedAttention(depth=1), ReducedAttention(depth=4)
EVALUATION = Evaluation(contexts=16)
NARROW = ReducedAttention(depth=4, width=5, projection="orthogonal")
SPARSE = SparseFeatures(num_tasks=6, type_exponent=1.8, context=20.0)
RETRIEVAL = Retrieval(
    spectrum=Spectrum(dim=4, input_exponent=0, task_exponent=0), context=8, targets=2
)
FEW = Training(steps=3, batch_size=4, queries=8, rate=0.01, optimizer="adam")


def run(task, model, recipe, evaluation=EVALUATION):
    return RunSpec(task=task, model=model, recipe=recipe, evaluation=evaluation, seed=1)


PROBES = {
    "theory": {
        "isotropic given": run(ISOTROPIC, DEEP, GivenScale(gamma=2.0)),
        "isotropic best": run(ISOTROPIC, DEEP, BestScale()),
        "isotropic flow": run(ISOTROPIC, DEEP, FLOW),
        "isotropic descent": run(
            ISOTROPIC, SHALLOW, Training(steps=20, batch_size=16, queries=4, rate=0.5)
        ),
        "fixed flow": run(FIXED, DEEP, FLOW),
        "rotated flow": run(ROTATED, DEEP, FLOW),
        "narrow given": run(
            dataclasses.replace(ROTATED, context=20), NARROW, GivenScale(gamma=1.0)
        ),
        "sparse flow": run(SPARSE, PerTaskAttention(start=0.1), GradientFlow(times=(0.01, 0.1))),
        "retrieval best": run(
            RETRIEVAL, SoftmaxAttention(depth=1, matrix="scale"), BestScale(), Evaluation(queries=8)
        ),
    },
    "simulation": {
        "isotropic given": run(ISOTROPIC, DEEP, GivenScale(gamma=2.0)),
        "isotropic best": run(ISOTROPIC, DEEP, BestScale()),
        "isotropic training": run(
            ISOTROPIC,
            SHALLOW,
            Training(steps=3, batch_size=4, queries=math.inf, rate=0.5),
            Evaluation(contexts=8, record=(0, 3)),
        ),
        "narrow given": run(
            dataclasses.replace(ROTATED, context=20), NARROW, GivenScale(gamma=1.0)
        ),
        "sparse training": run(
            SPARSE,
            PerTaskAttention(start=0.1),
            Training(steps=3, batch_size=8, queries=1, rate=1e-3),
        ),
        "transformer training": run(
            ISOTROPIC,
            Transformer(depth=2, width=20, attention="softmax"),
            dataclasses.replace(FEW, precision="double"),
            Evaluation(contexts=8, queries=8),
        ),
        "retrieval training": run(
            RETRIEVAL, SoftmaxAttention(depth=2), FEW, Evaluation(contexts=8, queries=8)
        ),
    },
}
TOLERANCE = {"theory": 1e-9, "simulation": 1e-5}
"""What machines differ in: last digits of float64, and of a few steps in float32."""


def numbers(engine):
    if engine == "theory":
        from leadline.theory.predict import predict
    else:
        pytest.importorskip("jax")
        from leadline.simulation.train import train

        def predict(spec):
            return train([spec])[0]

    return {name: predict(spec).loss.tolist() for name, spec in PROBES[engine].items()}


@pytest.mark.parametrize("engine", ["theory", "simulation"])
def test_numbers_change_only_with_the_version(engine):
    recorded = json.loads(NUMBERS.read_text())[engine]
    found = numbers(engine)
    assert recorded["version"] == VERSION[engine], "record the numbers of this version"
    assert recorded["loss"].keys() == found.keys()
    for name, loss in found.items():
        np.testing.assert_allclose(
            loss,
            recorded["loss"][name],
            rtol=TOLERANCE[engine],
            atol=0,
            err_msg=f"{engine}, {name}: the numbers changed, so raise VERSION and record them",
        )


@pytest.mark.parametrize("engine", ["theory", "simulation"])
def test_the_digest_would_see_a_change(engine):
    recorded = json.loads(NUMBERS.read_text())[engine]["loss"]
    for name, loss in recorded.items():
        moved = np.array(loss) * (1 + 10 * TOLERANCE[engine])
        assert not np.allclose(moved, loss, rtol=TOLERANCE[engine], atol=0), name


def test_ids_are_equal_across_processes_and_hash_seeds():
    probes = [spec for group in PROBES.values() for spec in group.values()]
    code = (
        "import sys, json; from leadline.ident import from_json, run_id\n"
        "print(*[run_id(from_json(t), engine='theory') for t in json.load(sys.stdin)])"
    )
    expected = [run_id(spec, engine="theory") for spec in probes]
    for seed in ("0", "1", "4294967295"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps([to_json(spec) for spec in probes]),
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.split() == expected


def test_ids_of_the_first_version_have_not_changed():
    # the canonical JSON, written by hand
    text = (
        '{"evaluation":{"contexts":16,"kind":"Evaluation","measures":[],"queries":"inf",'
        '"record":[],"seed":0},"kind":"RunSpec","model":{"depth":4,"kind":"ReducedAttention",'
        '"power":2,"projection":"none","tied":true,"width":null},"recipe":{"kind":"BestScale"},'
        '"seed":1,"task":{"context":32,"covariance":"isotropic","kind":"InContextRegression",'
        '"noise":0.2,"query_noise":0.0,"spectrum":{"dim":16,"input_exponent":0.0,'
        '"kind":"Spectrum","task_exponent":0.0,"total":1.0}}}'
    )
    spec = PROBES["theory"]["isotropic best"]
    assert to_json(spec) == text
    assert from_json(text) == spec
    digest = hashlib.sha256(f"theory {VERSION['theory']} {text}".encode()).hexdigest()
    assert run_id(spec, engine="theory") == digest[:32]


def test_a_new_field_with_its_first_default_keeps_old_ids(monkeypatch):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Longer(specs.GivenScale):
        momentum: fields.NonNegative = dataclasses.field(default=0.0, metadata={"added": True})

    Longer.__name__ = "GivenScale"
    hints = {"gamma": fields.Real, "momentum": fields.NonNegative}
    hints_of = fields.field_hints
    monkeypatch.setattr(fields, "field_hints", lambda k: hints if k is Longer else hints_of(k))
    old = PROBES["theory"]["isotropic given"]
    new = dataclasses.replace(old, recipe=Longer(gamma=2.0))
    assert run_id(new, engine="theory") == run_id(old, engine="theory")
    other = dataclasses.replace(old, recipe=Longer(gamma=2.0, momentum=0.9))
    assert run_id(other, engine="theory") != run_id(old, engine="theory")


def test_the_version_is_part_of_the_id(monkeypatch):
    spec = PROBES["theory"]["isotropic best"]
    before = run_id(spec, engine="theory")
    assert run_id(spec, engine="simulation") != before
    monkeypatch.setitem(VERSION, "theory", VERSION["theory"] + 1)
    assert run_id(spec, engine="theory") != before


if __name__ == "__main__":
    record = {e: {"version": VERSION[e], "loss": numbers(e)} for e in ("theory", "simulation")}
    NUMBERS.write_text(json.dumps(record, indent=1) + "\n")
