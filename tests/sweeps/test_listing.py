import dataclasses
import json
import math

import polars as pl
import pytest

from leadline.curve import point
from leadline.errors import StoreError, TableError
from leadline.runs import from_curves
from leadline.spec import ReducedAttention, replace
from leadline.sweeps.estimate import estimate, flops
from leadline.sweeps.listing import export, overview, select
from leadline.sweeps.runner import run_sweep
from leadline.sweeps.store import Store


@pytest.fixture
def runs(sweeps):
    spec = sweeps("quick").runs[0]
    specs = [replace(spec, "model.depth", depth) for depth in (1, 2, 4, math.inf)]
    return from_curves(specs, [point(1 / s.model.depth, error=0.0) for s in specs], engine="theory")


@pytest.mark.parametrize(
    ("conditions", "depths"),
    [
        ([], [1, 2, 4, math.inf]),
        (["depth=2"], [2]),
        (["depth!=2"], [1, 4, math.inf]),
        (["depth=inf"], [math.inf]),
        (["depth > 1", "loss>=0.25"], [2, 4]),
        (["loss<0.5"], [4, math.inf]),
        (["loss<=0.5"], [2, 4, math.inf]),
        (["status=ok", "engine=theory"], [1, 2, 4, math.inf]),
        (["status!=ok"], []),
    ],
)
def test_select(runs, conditions, depths):
    assert select(runs, conditions).frame["depth"].to_list() == depths


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("dept=2", "did you mean 'depth'?"),
        ("depth", "expected COLUMN=VALUE"),
        ("depth=deep", "depth is a number, got 'deep'"),
        ("curve_loss=1", "curve_loss is a list"),
    ],
)
def test_bad_conditions(runs, condition, message):
    with pytest.raises(TableError) as caught:
        select(runs, [condition])
    assert message in str(caught.value)


def test_the_overview_shows_what_differs(runs):
    table = overview(runs)
    assert table.columns == ["run_id", "engine", "status", "depth", "loss", "loss_error"]
    assert table["run_id"].str.len_chars().to_list() == [8] * 4


def test_export_parquet_is_exact(runs, tmp_path):
    assert export(runs, tmp_path / "a.parquet") == ()
    assert pl.read_parquet(tmp_path / "a.parquet").equals(runs.frame)


def test_export_csv_has_no_lists(runs, tmp_path):
    (note,) = export(runs, tmp_path / "a.csv")
    assert "curve_loss" in note
    table = pl.read_csv(tmp_path / "a.csv")
    assert table["depth"].to_list() == [1, 2, 4, math.inf]
    assert table["loss"].to_list() == [1, 0.5, 0.25, 0]


def test_export_jsonl_says_what_it_cannot_hold(runs, tmp_path):
    (note,) = export(runs, tmp_path / "a.jsonl")
    assert note == "jsonl has no infinity or NaN: null in depth, time, curve_time"
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["depth"] for line in lines] == [1, 2, 4, None]
    assert lines[1]["curve_loss"] == [0.5]


def test_bad_exports(runs, tmp_path):
    with pytest.raises(TableError, match=r"suffix '\.xlsx'"):
        export(runs, tmp_path / "a.xlsx")
    with pytest.raises(StoreError, match="cannot write"):
        export(runs, tmp_path / "absent" / "a.csv")


def test_an_estimate_counts_and_stores_nothing(sweeps, tmp_path):
    quick = sweeps("quick")
    store = Store(tmp_path / "store")
    before = estimate(quick, store)
    assert (before.runs, before.stored, before.groups, before.flops) == (60, 0, 60, 0)
    assert before.seconds > 0
    assert not store.root.exists()
    run_sweep(dataclasses.replace(quick, runs=quick.runs[:20]), store, backend="serial")
    assert estimate(quick, store).stored == 20
    run_sweep(quick, store, backend="serial")
    after = estimate(quick, store)
    assert (after.stored, after.groups, after.seconds) == (60, 0, None)
    assert "60 runs, 60 stored, 0 groups" in str(after)


def test_flops_of_a_training(sweeps):
    # steps * context^2 * width^2 * depth
    spec = sweeps("training").runs[0]
    assert flops(spec) == 4000 * 32**2 * 16**2 * 2
    narrow = ReducedAttention(depth=3, width=8, projection="orthogonal")
    assert flops(dataclasses.replace(spec, model=narrow)) == 4000 * 32**2 * 8**2 * 3


def test_an_estimate_of_a_sweep_that_fails_says_so(sweeps, tmp_path):
    training = sweeps("training")
    theory = dataclasses.replace(training, engine="theory", runs=training.runs[:2])
    found = estimate(theory, Store(tmp_path / "store"))
    assert found.seconds is None
    assert "SolverError" in found.error
    assert found.flops == 2 * 4000 * 32**2 * 16**2 * 2
