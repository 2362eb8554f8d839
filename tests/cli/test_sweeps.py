"""The commands on sweeps and stored runs."""

import json

import polars as pl
import pytest

SWEEP = """
from leadline.spec import *

def landscape():
    base = RunSpec(
        task=InContextRegression(spectrum=flat(8), covariance="isotropic", context=8),
        model=ReducedAttention(depth=1),
        recipe=GivenScale(gamma=0.5),
    )
    runs = grid(base, {"model.depth": [1, 2], "recipe.gamma": [0.25, 0.5, 0.75]})
    return Sweep(name="landscape", engine="theory", runs=runs)

def broken():
    return 1 / 0

def wrong():
    return 3
"""


@pytest.fixture(autouse=True)
def definition(tmp_path):
    (tmp_path / "mine.py").write_text(SWEEP)


def sweep(run, *more):
    return run("sweep", "mine.py:landscape", "--store", "runs", "--backend", "serial", *more)


def test_a_sweep_runs_once_and_its_runs_are_listed_and_exported(run, tmp_path):
    code, out, _ = run("sweep", "mine.py:landscape", "--store", "runs", "--dry-run")
    assert code == 0
    assert "6 runs, 0 stored" in out
    assert not (tmp_path / "runs").exists()
    code, out, _ = sweep(run)
    assert (code, "6 of 6 runs are stored" in out) == (0, True)
    code, out, _ = sweep(run)
    assert (code, "nothing to do" in out) == (0, True)
    code, out, _ = run("runs", "runs", "--where", "depth=2", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sorted(row["gamma"] for row in rows) == [0.25, 0.5, 0.75]
    # depth one, alpha = 1: loss = 1 - 2 gamma + 2 gamma^2
    code, out, _ = run("runs", "runs", "--where", "depth=1", "--export", "one.csv")
    table = pl.read_csv(tmp_path / "one.csv").sort("gamma")
    assert table["loss"].to_list() == pytest.approx([0.625, 0.5, 0.625], abs=1e-12)
    code, out, _ = run("runs", "runs")
    assert code == 0
    assert "6 of 6 runs" in out


def test_settings_change_every_run_and_shards_share_the_work(run):
    code, out, _ = sweep(run, "--set", "task.noise=0.5", "--shard", "0/2", "--json")
    record = json.loads(out)
    assert (code, record["wanted"], record["answered"]) == (0, 3, 3)
    sweep(run, "--set", "task.noise=0.5", "--shard", "1/2")
    _, out, _ = run("runs", "runs", "--json")
    assert [json.loads(line)["noise"] for line in out.splitlines()] == [0.5] * 6


def test_a_torn_part_is_named_and_the_exit_code_is_not_zero(run, tmp_path):
    sweep(run)
    part = next((tmp_path / "runs").glob("*.parquet"))
    (tmp_path / "runs" / "torn.parquet").write_bytes(part.read_bytes()[:100])
    code, out, err = run("runs", "runs")
    assert code == 1
    assert "torn.parquet" in err
    assert "6 of 6 runs" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sweep mine.py:landscap --store runs", "did you mean 'landscape'"),
        ("sweep mine.py:broken --store runs", "division by zero (line 14)"),
        ("sweep mine.py:wrong --store runs", "returned int"),
        ("sweep other.py:landscape --store runs", "no file other.py"),
        ("sweep bordelon --store runs", "did you mean 'bordelon2025'"),
        ("sweep bordelon2025 --store runs --scale huge", "scale: got 'huge'"),
        ("sweep mine.py:landscape --store mine.py", "a store is a folder"),
        ("sweep mine.py:landscape --store runs --set recipe.gama=1", "did you mean 'gamma'"),
        ("sweep mine.py:landscape --store runs --set recipe.gamma", "expected PATH=VALUE"),
        ("sweep mine.py:landscape --store runs --backend treads", "serial, process, ray"),
        ("sweep mine.py:landscape --store runs --workers 10000", "this machine has"),
        ("sweep mine.py:landscape --store runs --shard 2/2", "shard: got '2/2'"),
        ("runs nowhere", "there is no store here"),
        ("runs mine.py", "a store is a folder"),
    ],
)
def test_mistakes_are_one_line(run, arguments, message):
    code, out, err = run(*arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
