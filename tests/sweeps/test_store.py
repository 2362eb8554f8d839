import dataclasses
import json
import math
import os
import resource
import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import ident
from leadline.curve import Curve, Measure, point
from leadline.errors import StoreError
from leadline.ident import run_id
from leadline.runs import from_curves
from leadline.spec import (
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
    flat,
    grid,
)
from leadline.sweeps import store as stores
from leadline.sweeps.store import Store, agree, compact, load_runs, read_parts, write_part

REFERENCE = Path(__file__).parents[1] / "reference"
BASE = RunSpec(
    task=InContextRegression(spectrum=flat(16), covariance="isotropic", context=32),
    model=ReducedAttention(depth=2),
    recipe=GivenScale(gamma=0.5),
)
SPECS = grid(BASE, {"seed": range(6)})
SWEEP = Sweep(name="six", engine="theory", runs=SPECS)


def curve(loss):
    return Curve(
        step=np.array([0, 7]),
        time=np.array([0.0, math.nan]),
        tokens=np.array([0.0, 1e30]),
        flops=np.array([0.0, math.inf]),
        loss=np.array([1.0, loss]),
        loss_error=np.array([0.0, 1e-17]),
        status="sampled",
        scalars=(("gamma", loss / 3),),
        measures=(Measure(name="matrix", values=np.array([[1.0, -0.0], [math.nan, 1e-310]])),),
    )


def rows(specs, curves, *, host="here", schema_version=stores.SCHEMA_VERSION):
    table = from_curves(specs, curves, engine="theory").frame
    values = {"schema_version": schema_version, "sweep": "six", "written": "", "commit": None}
    values |= {"host": host, "device": "cpu", "packages": "{}", "seconds": 0.1}
    return table.with_columns(
        pl.lit(value, dtype=stores.PROVENANCE[name]).alias(name) for name, value in values.items()
    )


def filled(root, *, parts=3):
    store = Store(root)
    root.mkdir(exist_ok=True)
    for i in range(parts):
        specs = SPECS[i::parts]
        write_part(store, rows(specs, [curve(0.1 + s.seed) for s in specs]))
    return store


def equal(a, b):
    return json.dumps(a, default=str) == json.dumps(b, default=str)


def test_what_was_written_is_read_exactly(tmp_path):
    runs = load_runs(filled(tmp_path), sweep=SWEEP)
    expected = from_curves(SPECS, [curve(0.1 + s.seed) for s in SPECS], engine="theory")
    wanted = expected.frame.sort("run_id")
    for name in runs.frame.columns:
        assert equal(runs.frame[name].to_list(), wanted[name].to_list()), name
    left_out = set(wanted.columns) - set(runs.frame.columns)
    assert left_out == {"rate", "batch_size", "queries"}  # no row has them
    assert runs.units == {k: v for k, v in expected.units.items() if k not in left_out}
    assert runs.excluded.is_empty()


def test_the_table_does_not_depend_on_the_parts(tmp_path, table_bytes):
    tables = {table_bytes(filled(tmp_path / str(n), parts=n), SWEEP) for n in (1, 2, 3, 6)}
    assert len(tables) == 1


def test_the_table_of_a_sweep_does_not_depend_on_other_sweeps(tmp_path, table_bytes):
    store = filled(tmp_path)
    before = table_bytes(store, SWEEP)
    other = dataclasses.replace(BASE, recipe=GradientFlow(times=(1.0,)))
    write_part(store, rows([other], [point(0.5, error=0, scalars={"novel": 1.0})]))
    assert table_bytes(store, SWEEP) == before
    everything = load_runs(store).frame
    assert everything["novel"].null_count() == 6


def test_provenance_only_when_asked(tmp_path):
    store = filled(tmp_path)
    assert "host" not in load_runs(store).frame.columns
    assert load_runs(store, provenance=True).frame["host"].to_list() == ["here"] * 6


def test_runs_of_the_sweep_that_are_missing_are_listed(tmp_path):
    more = grid(BASE, {"seed": range(8)})
    runs = load_runs(filled(tmp_path), sweep=Sweep(name="more", engine="theory", runs=more))
    assert len(runs) == 6
    assert runs.excluded["reason"].to_list() == ["not stored"] * 2
    assert runs.excluded["value"].to_list() == [run_id(s, engine="theory") for s in more[6:]]


def test_merging_is_copying(tmp_path, table_bytes):
    whole, half, other = (tmp_path / n for n in ("whole", "half", "other"))
    expected = table_bytes(filled(whole), SWEEP)
    for root, specs in ((half, SPECS[:4]), (other, SPECS[2:])):
        root.mkdir()
        write_part(Store(root), rows(specs, [curve(0.1 + s.seed) for s in specs], host=root.name))
    for part in other.glob("*.parquet"):
        shutil.copy(part, half)
    assert table_bytes(Store(half), SWEEP) == expected  # two runs are in both


def test_duplicates_that_disagree_name_the_run_and_both_parts(tmp_path):
    store = filled(tmp_path)
    other = write_part(store, rows(SPECS[3:4], [curve(3.2)], host="elsewhere"))
    with pytest.raises(StoreError) as caught:
        load_runs(store)
    message = str(caught.value)
    assert run_id(SPECS[3], engine="theory") in message
    assert other.name in message
    assert "here" in message
    assert "elsewhere" in message


def test_duplicates_may_differ_in_the_last_digits(tmp_path):
    store = filled(tmp_path)
    write_part(store, rows(SPECS[3:4], [curve(3.1 * (1 + 1e-15))], host="elsewhere"))
    assert len(load_runs(store)) == 6


def test_agreement():
    assert agree([1.0, math.nan, {"a": [2.0]}], [1.0 + 1e-12, math.nan, {"a": [2.0]}])
    assert agree(None, None)
    assert not agree([1.0], [1.0 + 1e-6])
    assert not agree([1.0], [1.0, 2.0])
    assert not agree(1.0, None)
    assert not agree("ok", "diverged")


def test_many_small_parts_become_one(tmp_path, table_bytes, monkeypatch):
    store = filled(tmp_path, parts=6)
    expected = table_bytes(store, SWEEP)
    compact(store)
    assert len(read_parts(store).names) == 6
    monkeypatch.setattr(stores, "MANY_PARTS", 5)
    compact(store)
    assert len(read_parts(store).names) == 1
    assert table_bytes(store, SWEEP) == expected
    compact(store)
    assert table_bytes(store, SWEEP) == expected


def test_compaction_cut_short_loses_and_changes_nothing(tmp_path, table_bytes, monkeypatch):
    store = filled(tmp_path, parts=6)
    expected = table_bytes(store, SWEEP)
    monkeypatch.setattr(stores, "MANY_PARTS", 5)

    def crash(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", crash)
        with pytest.raises(KeyboardInterrupt):
            compact(store)
    assert len(read_parts(store).names) == 7
    assert table_bytes(store, SWEEP) == expected
    compact(store)
    assert len(read_parts(store).names) == 1
    assert table_bytes(store, SWEEP) == expected


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:100], lambda data: b"", lambda data: data[:-30] + b"\0" + data[-29:]],
)
def test_a_torn_part_is_named_and_skipped(tmp_path, damage):
    store = filled(tmp_path)
    name = read_parts(store).names[0]
    path = store.root / name
    path.write_bytes(damage(path.read_bytes()))
    runs = load_runs(store, sweep=SWEEP)
    assert len(runs) == 4
    torn = runs.excluded.row(0, named=True)
    assert (torn["field"], torn["value"]) == ("part", name)
    assert "torn" in torn["reason"]
    assert runs.excluded["field"].to_list() == ["part", "run_id", "run_id"]


def test_a_foreign_part_is_named_and_skipped(tmp_path):
    store = filled(tmp_path)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "mine.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    write_part(store, pl.DataFrame({"a": [1]}))
    write_part(store, pl.DataFrame({"schema_version": [1]}))
    runs = load_runs(store)
    assert len(runs) == 6
    assert len(runs.excluded) == 4
    assert all("foreign" in reason for reason in runs.excluded["reason"])


def test_a_newer_schema_is_refused(tmp_path):
    store = filled(tmp_path)
    newer = stores.SCHEMA_VERSION + 1
    part = write_part(store, rows(SPECS[:1], [curve(0.1)], schema_version=newer))
    with pytest.raises(StoreError, match=f"{part.name}.*schema {newer}.*newer leadline"):
        load_runs(store)


def test_the_first_schema_stays_readable():
    runs = load_runs(Store(REFERENCE / "store_v1"))
    assert runs.excluded.is_empty()
    assert runs.frame["depth"].to_list() == [2.0, math.inf]
    assert runs.frame["loss"].to_list() == [0.5, 0.25]
    assert runs.frame["curve_loss"].to_list() == [[1.0, 0.5], [0.25]]
    assert runs.frame["measures"].to_list()[0] == [
        {"name": "matrix", "shape": [1, 2], "values": [1.0, 2.0]}
    ]


def test_an_unknown_field_of_a_stored_spec_is_an_error(tmp_path):
    store = filled(tmp_path)
    table = rows(SPECS[:1], [curve(0.1)])
    text = table["spec"][0].replace('"depth":2', '"depht":2')
    name = ident.hashlib.sha256(f"theory {ident.VERSION['theory']} {text}".encode()).hexdigest()
    write_part(store, table.with_columns(spec=pl.lit(text), run_id=pl.lit(name[:32])))
    with pytest.raises(StoreError, match=r"no field 'depht'.*did you mean 'depth'"):
        load_runs(store)


def test_an_id_that_is_not_of_its_spec_is_an_error(tmp_path):
    store = filled(tmp_path)
    write_part(store, rows(SPECS[:1], [curve(0.1)]).with_columns(run_id=pl.lit("0" * 32)))
    with pytest.raises(StoreError, match=r"run 0000.*does not belong to its spec"):
        load_runs(store)


def test_a_store_that_is_a_file_or_absent(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="a store is a folder, this is a file"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match="there is no store here"):
        load_runs(Store(tmp_path / "absent"))


def test_an_empty_store_is_an_empty_table(tmp_path):
    runs = load_runs(Store(tmp_path))
    assert len(runs) == 0
    assert len(load_runs(Store(tmp_path), sweep=SWEEP).excluded) == 6


@contextmanager
def file_size_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_write_leaves_no_trace(tmp_path, table_bytes):
    store = filled(tmp_path)
    before, files = table_bytes(store, SWEEP), sorted(os.listdir(tmp_path))
    with file_size_limit(1000), pytest.raises(StoreError, match="what is stored is intact"):
        write_part(store, rows([BASE], [curve(0.3)]))
    assert sorted(os.listdir(tmp_path)) == files
    assert table_bytes(store, SWEEP) == before


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk(small_disk, table_bytes):
    store = filled(small_disk)
    before = table_bytes(store, SWEEP)
    ballast = small_disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    with pytest.raises(StoreError, match="No space left on device"):
        write_part(store, rows([dataclasses.replace(BASE, seed=9)], [curve(0.3)]))
    assert table_bytes(store, SWEEP) == before
    ballast.unlink()
    write_part(store, rows([dataclasses.replace(BASE, seed=9)], [curve(0.3)]))
    assert len(load_runs(store)) == 7


def test_duckdb_and_polars_read_the_parts(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    store = filled(tmp_path)
    other = dataclasses.replace(BASE, recipe=GradientFlow(times=(1.0,)))
    write_part(store, rows([other], [point(0.5, error=0, scalars={"novel": 1.0})]))
    query = f"""
        select depth, min(loss), max(curve_loss[2]), max(measures[1].values[1])
        from read_parquet('{store.root}/*.parquet', union_by_name=true) group by depth"""
    assert duckdb.sql(query).fetchall() == [(2.0, 0.1, 5.1, 1.0)]
    parts = [pl.read_parquet(part) for part in store.root.glob("*.parquet")]
    frame = pl.concat(parts, how="diagonal_relaxed")
    assert frame["loss"].min() == 0.1
    lazy = pl.scan_parquet(store.root / "*.parquet", extra_columns="ignore").select("loss")
    assert lazy.collect().height == 7


numbers = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-300, max_value=1e300)
extents = st.one_of(st.integers(1, 10**9), st.just(math.inf))
seeds = st.integers(0, 2**63 - 1)
spectra = st.builds(
    Spectrum,
    dim=extents,
    input_exponent=st.floats(0, 10),
    task_exponent=st.floats(-10, 10),
    total=st.none() | positive,
)
tasks = st.builds(
    InContextRegression,
    spectrum=spectra,
    covariance=st.sampled_from(["fixed", "rotated"]),
    context=extents,
    noise=st.floats(0, 1e300),
    query_noise=st.floats(0, 1e300),
)
models = st.builds(ReducedAttention, depth=extents, power=st.integers(1, 2), tied=st.booleans())
recipes = st.one_of(
    st.just(BestScale()),
    st.builds(GivenScale, gamma=numbers),
    st.builds(
        Training, steps=st.integers(0, 10**12), batch_size=extents, queries=extents, rate=positive
    ),
    st.lists(st.floats(0, 1e300), min_size=1, unique=True).map(
        lambda times: GradientFlow(times=tuple(sorted(t + 0.0 for t in times)))
    ),
)
evaluations = st.builds(
    Evaluation, contexts=st.integers(1, 10**9), queries=extents, seed=seeds, measures=st.just(())
)
specs = st.builds(
    RunSpec, task=tasks, model=models, recipe=recipes, evaluation=evaluations, seed=seeds
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(asked=st.lists(specs, min_size=1, max_size=8, unique=True))
def test_any_spec_comes_back_from_the_store(tmp_path_factory, asked):
    store = Store(tmp_path_factory.mktemp("store"))
    write_part(store, rows(asked, [point(0.5, error=0.0) for _ in asked]))
    runs = load_runs(store, sweep=Sweep(name="any", engine="theory", runs=tuple(asked)))
    assert runs.excluded.is_empty()
    assert {ident.from_json(text) for text in runs.frame["spec"]} == set(asked)
