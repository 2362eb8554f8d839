"""The table of runs: what is excluded is listed, and the digest knows the data and nothing else."""

import hashlib
import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.curve import Measure, point, trained
from leadline.errors import TableError
from leadline.ident import VERSION, from_json, run_id
from leadline.runs import (
    EXCLUDED_SCHEMA,
    Runs,
    curve_row,
    engine_units,
    from_curves,
    nothing_excluded,
)
from leadline.spec import (
    BestScale,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    flat,
)


def table(**columns):
    frame = pl.DataFrame(columns).with_row_index("row", offset=1)
    return Runs(frame=frame, units={}, excluded=nothing_excluded(), source="a table")


THREE = {"params": [1e7, 2e7, 3e7], "loss": [3.0, 2.5, 2.0]}


def test_excluded_rows_are_listed():
    runs = table(**THREE)
    once = runs.exclude(pl.Series([True, False, False]), field="loss", reason="too large")
    assert len(once) == 2
    assert once.frame["row"].to_list() == [2, 3]
    assert once.excluded.schema == EXCLUDED_SCHEMA
    twice = once.exclude(once.frame["params"] > 2.5e7, field="params", reason="not asked for")
    assert twice.excluded.rows() == [
        (1, "loss", "3.0", "too large"),
        (3, "params", "30000000.0", "not asked for"),
    ]
    assert len(twice) + twice.excluded.height == len(runs)
    assert len(runs) == 3  # a value: the first table is as it was
    assert twice.source == "a table"


@given(gone=st.lists(st.booleans(), min_size=3, max_size=3))
@settings(derandomize=True, deadline=None)
def test_no_row_is_lost(gone):
    after = table(**THREE).exclude(pl.Series(gone), field="loss", reason="test")
    assert sorted(after.frame["row"].to_list() + after.excluded["row"].to_list()) == [1, 2, 3]
    assert after.excluded.height == sum(gone)


def test_columns_by_name():
    runs = table(**THREE)
    assert runs.column("loss").to_list() == THREE["loss"]
    with pytest.raises(TableError) as caught:
        runs.column("los")
    assert str(caught.value) == (
        "a table: no column 'los'; it has row, params, loss (did you mean 'loss'?)"
    )


@given(order=st.permutations(range(6)))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_the_digest_does_not_know_the_order_of_rows(order):
    columns = {"params": [1.0, 2.0, 2.0, 4.0, 5.0, 5.0], "loss": [0.1, 0.2, 0.2, 0.3, 0.4, 0.5]}
    moved = {name: [values[i] for i in order] for name, values in columns.items()}
    assert table(**moved).digest(["params", "loss"]) == table(**columns).digest(["params", "loss"])


def test_the_digest_knows_every_value():
    runs = table(**THREE)
    digest = runs.digest(["params", "loss"])
    assert len(digest) == 64
    assert runs.digest(["params", "loss"]) == digest
    for name, values in THREE.items():
        for i, value in enumerate(values):
            moved = [*values[:i], math.nextafter(value, math.inf), *values[i + 1 :]]
            assert table(**THREE | {name: moved}).digest(["params", "loss"]) != digest
    swapped = {"params": THREE["params"], "loss": THREE["loss"][::-1]}
    assert table(**swapped).digest(["params", "loss"]) != digest
    twice = {name: [*values, values[0]] for name, values in THREE.items()}
    assert table(**twice).digest(["params", "loss"]) != digest
    assert runs.digest(["params"]) != digest
    # other columns do not enter
    assert table(**THREE, note=["a", "b", "c"]).digest(["params", "loss"]) == digest


def run(recipe, *, context=4, noise=0.5, seed=7):
    task = InContextRegression(
        spectrum=flat(8), covariance="isotropic", context=context, noise=noise
    )
    return RunSpec(task=task, model=ReducedAttention(depth=3), recipe=recipe, seed=seed)


TRAINED = run(Training(steps=10, batch_size=2, queries=math.inf, rate=0.5))
GIVEN = run(GivenScale(gamma=1.5), context=math.inf)
BEST = run(BestScale(), noise=0.0)


def curves():
    steps = np.array([0, 10])
    scale = Measure(name="scale", values=np.arange(6.0).reshape(2, 3))
    return [
        trained(
            TRAINED,
            step=steps,
            time=steps * 0.0625,
            loss=np.array([1.0, 0.5]),
            error=np.array([0.0, 0.01]),
            status="unstable",
            scalars={"gamma": 0.75},
            measures=(scale,),
        ),
        point(0.25, error=1e-12, scalars={"gamma": 1.5, "edge": 4.0}),
        point(0.125, error=1e-13, status="sampled", scalars={"gamma": math.inf}),
    ]


def test_curves_become_rows():
    runs = from_curves([TRAINED, GIVEN, BEST], curves(), engine="theory")
    frame = runs.frame
    assert len(runs) == 3
    assert runs.excluded.is_empty()
    assert runs.source == "theory engine"
    expected = {
        "run_id": [run_id(s, engine="theory") for s in (TRAINED, GIVEN, BEST)],
        "engine": ["theory"] * 3,
        "version": [VERSION["theory"]] * 3,
        "status": ["unstable", "ok", "sampled"],
        "dim": [8.0] * 3,
        "context": [4.0, math.inf, 4.0],
        "noise": [0.5, 0.5, 0.0],
        "depth": [3.0] * 3,
        "width": [8.0] * 3,
        "recipe": ["Training", "GivenScale", "BestScale"],
        "seed": [7, 7, 7],
        "batch_size": [2.0, None, None],
        "queries": [math.inf, None, None],
        "rate": [0.5, None, None],
        "gamma": [None, 1.5, None],
        "best_gamma": [0.75, 1.5, math.inf],
        "edge": [None, 4.0, None],
        "step": [10, 0, 0],
        "tokens": [math.inf, 0.0, 0.0],
        "flops": [10 * 16 * 64 * 3.0, 0.0, 0.0],
        "loss": [0.5, 0.25, 0.125],
        "loss_error": [0.01, 1e-12, 1e-13],
        "curve_step": [[0, 10], [0], [0]],
        "curve_loss": [[1.0, 0.5], [0.25], [0.125]],
        "curve_loss_error": [[0.0, 0.01], [1e-12], [1e-13]],
    }
    for name, values in expected.items():
        assert frame[name].to_list() == values, name
    assert frame["time"][0] == 0.625
    assert math.isnan(frame["time"][1])
    assert frame["measures"].to_list() == [
        [{"name": "scale", "shape": [2, 3], "values": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}],
        [],
        [],
    ]
    assert [from_json(text) for text in frame["spec"]] == [TRAINED, GIVEN, BEST]
    assert set(frame.columns) == {*expected, "time", "measures", "spec"} | {
        f"curve_{name}" for name in ("time", "tokens", "flops")
    }


def test_the_types_of_columns_do_not_depend_on_the_runs():
    alone = from_curves([BEST], curves()[2:], engine="simulation").frame
    for name, kind in {
        "curve_step": pl.List(pl.Int64),
        "curve_loss": pl.List(pl.Float64),
        "seed": pl.Int64,
        "dim": pl.Float64,
        "loss": pl.Float64,
    }.items():
        assert alone.schema[name] == kind, name
    both = from_curves([TRAINED, BEST], [curves()[0], curves()[2]], engine="simulation").frame
    assert both.schema["measures"] == alone.schema["measures"]


def test_the_id_is_the_hash_of_the_row():
    row = curve_row(GIVEN, curves()[1], engine="simulation")
    text = f"simulation {row['version']} {row['spec']}"
    assert row["run_id"] == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert json.loads(row["spec"])["kind"] == "RunSpec"


def test_as_many_curves_as_specs():
    with pytest.raises(ValueError):
        from_curves([TRAINED, GIVEN], curves(), engine="theory")


def test_units_are_those_of_the_columns():
    assert engine_units(["width", "loss", "other"]) == {
        "width": "residual stream dimension",
        "loss": "mean squared error",
    }
    assert engine_units(["other"]) == {}
    units = from_curves([GIVEN], curves()[1:2], engine="theory").units
    assert units["time"] == "scalar-flow time"
    assert units["loss"] == "mean squared error"
