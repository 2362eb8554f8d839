import dataclasses
import json
import os
import resource
import threading
import time

import pytest

from leadline.errors import SpecError, StoreError
from leadline.ident import run_id
from leadline.spec import Sweep, Training, grid
from leadline.sweeps import runner
from leadline.sweeps.groups import wanted_runs
from leadline.sweeps.runner import run_sweep
from leadline.sweeps.store import Store, failures, load_runs, read_parts


@pytest.fixture
def quick(sweeps):
    return sweeps("quick")


@pytest.fixture
def mixed(quick):
    """A sweep of which every third run has no solver."""
    refused = Training(steps=10, batch_size=16, queries=8, rate=0.05)
    deep = dataclasses.replace(quick.runs[0].model, depth=4)
    runs = [
        dataclasses.replace(r, model=deep, recipe=refused, seed=i) if i % 3 == 0 else r
        for i, r in enumerate(quick.runs)
    ]
    return Sweep(name="mixed", engine="theory", runs=tuple(runs))


def test_every_run_is_answered_once(tmp_path, quick):
    store = Store(tmp_path / "store")
    summary = run_sweep(quick, store, backend="serial")
    assert (summary.wanted, summary.stored, summary.answered) == (60, 0, 60)
    assert summary.exit_code == 0
    frame = load_runs(store, sweep=quick, provenance=True).frame
    assert set(frame["run_id"]) == {run_id(s, engine="theory") for s in quick.runs}
    assert set(frame["sweep"]) == {"quick"}
    assert json.loads(frame["packages"][0]).keys() >= {"python", "numpy"}
    assert (frame["seconds"] > 0).all()
    assert frame["host"].null_count() == frame["device"].null_count() == 0


def test_a_second_call_has_nothing_to_do_and_takes_no_lock(tmp_path, quick):
    store = Store(tmp_path)
    run_sweep(quick, store, backend="serial")
    (tmp_path / "lock").unlink()
    before = read_parts(store).names
    summary = run_sweep(quick, store)
    assert "nothing to do" in str(summary)
    assert (summary.stored, summary.answered, summary.exit_code) == (60, 0, 0)
    assert read_parts(store).names == before
    assert not (tmp_path / "lock").exists()


def test_only_what_is_missing_is_answered(tmp_path, quick):
    store = Store(tmp_path)
    part = dataclasses.replace(quick, name="part", runs=quick.runs[10:30])
    run_sweep(part, store, backend="serial")
    summary = run_sweep(quick, store, backend="serial")
    assert (summary.stored, summary.answered) == (20, 40)


def test_equal_runs_are_answered_once(tmp_path, quick):
    twice = dataclasses.replace(quick, runs=quick.runs + quick.runs)
    assert run_sweep(twice, Store(tmp_path), backend="serial").answered == 60


def test_backends_and_workers_change_no_number(tmp_path, quick, table_bytes):
    tables = set()
    for name, workers in (("serial", 1), ("process", 1), ("process", min(2, runner.cores()))):
        store = Store(tmp_path / f"{name}{workers}")
        run_sweep(quick, store, backend=name, workers=workers)
        tables.add(table_bytes(store, quick))
    assert len(tables) == 1


def test_shards_merge_by_copying(tmp_path, quick, table_bytes):
    whole, merged = Store(tmp_path / "whole"), tmp_path / "merged"
    run_sweep(quick, whole, backend="serial")
    merged.mkdir()
    for i in range(3):
        shard = Store(tmp_path / f"shard{i}")
        summary = run_sweep(quick, shard, backend="serial", shard=(i, 3))
        assert (summary.wanted, summary.answered, summary.exit_code) == (20, 20, 0)
        again = run_sweep(quick, shard, backend="serial", shard=(i, 3))
        assert "nothing to do" in str(again)
        for part in shard.root.glob("*.parquet"):
            part.rename(merged / part.name)
    assert table_bytes(Store(merged), quick) == table_bytes(whole, quick)
    assert "nothing to do" in str(run_sweep(quick, Store(merged), shard=(1, 3)))


def test_shards_of_a_training_sweep_keep_lanes_together(sweeps):
    pytest.importorskip("jax")
    training = sweeps("training")
    first, second = (wanted_runs(training, shard=(i, 2)) for i in range(2))
    assert [len(first), len(second)] == [8, 4]
    assert list(first) + list(second) == list(wanted_runs(training, shard=(0, 1)))


def test_a_failing_run_is_recorded_and_the_others_go_on(tmp_path, mixed):
    store = Store(tmp_path)
    summary = run_sweep(mixed, store, backend="serial")
    assert (summary.answered, summary.failed, summary.exit_code) == (40, 20, 1)
    assert "the same command tries them again" in str(summary)
    assert len(load_runs(store)) == 40
    records = failures(store)
    assert sorted(i for r in records.values() for i in r["runs"]) == sorted(
        run_id(spec, engine="theory") for spec in mixed.runs[::3]
    )
    for path, record in records.items():
        assert path.name == f"{record['runs'][0]}.json"
        assert "Traceback" in record["traceback"]
        assert "SolverError" in record["error"]
        assert len(record["error"].splitlines()) == 1


def test_a_failed_run_is_tried_again_and_forgotten_once_answered(
    tmp_path, mixed, monkeypatch, table_bytes
):
    from leadline.theory import predict

    store = Store(tmp_path)
    run_sweep(mixed, store, backend="serial")
    again = run_sweep(mixed, store, backend="serial")
    assert (again.stored, again.answered, again.failed) == (40, 0, 20)
    assert len(failures(store)) > 0
    answer = predict.predict(mixed.runs[1])
    monkeypatch.setattr(predict, "predict", lambda spec: answer)
    mended = run_sweep(mixed, store, backend="serial")
    assert (mended.answered, mended.failed, mended.exit_code) == (20, 0, 0)
    assert failures(store) == {}


def test_a_torn_part_makes_the_exit_status_nonzero(tmp_path, quick):
    store = Store(tmp_path)
    run_sweep(quick, store, backend="serial")
    (name,) = read_parts(store).names
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    summary = run_sweep(quick, store, backend="serial")
    assert summary.answered == 60
    assert summary.exit_code == 1
    assert f"{path}: skipped: torn" in str(summary)
    path.unlink()
    assert run_sweep(quick, store).exit_code == 0


def test_a_full_disk_stops_the_sweep_and_it_goes_on_with_space(
    tmp_path, sweeps, monkeypatch, table_bytes
):
    theory = sweeps("theory")
    short = dataclasses.replace(theory, runs=theory.runs[:12])
    monkeypatch.setattr(runner, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(runner, "WRITE_SHARE", 0.0)
    store, whole = Store(tmp_path / "store"), Store(tmp_path / "whole")
    run_sweep(dataclasses.replace(short, runs=short.runs[:1]), store, backend="serial")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot write part-.*what is stored is intact"):
            run_sweep(short, store, backend="serial")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(store.root.glob(".*.tmp"))
    stored = read_parts(store).frame.height
    assert stored >= 1
    assert run_sweep(short, store, backend="serial").answered == 12 - stored
    run_sweep(short, whole, backend="serial")
    assert table_bytes(store, short) == table_bytes(whole, short)


def test_a_second_coordinator_is_refused(tmp_path, coordinate, quick):
    store = Store(tmp_path)
    child = coordinate("theory", store)
    while not (tmp_path / "lock").exists() or not (tmp_path / "lock").read_text():
        time.sleep(0.01)
    with pytest.raises(StoreError, match=f"another sweep.*process {child.pid} on host"):
        run_sweep(quick, store)
    child.kill()
    child.communicate()
    summary = run_sweep(quick, store, backend="serial")
    assert f"took over the lock of process {child.pid}" in str(summary)


def test_leftovers_of_a_write_cut_short_are_removed(tmp_path, quick):
    (tmp_path / ".part-0.parquet.tmp").write_text("half")
    run_sweep(quick, Store(tmp_path), backend="serial")
    assert not (tmp_path / ".part-0.parquet.tmp").exists()


def test_a_sweep_may_run_outside_the_main_thread(tmp_path, quick):
    summaries = []
    thread = threading.Thread(
        target=lambda: summaries.append(run_sweep(quick, Store(tmp_path), backend="serial"))
    )
    thread.start()
    thread.join()
    assert summaries[0].answered == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers: got 0, expected at least 1"),
        ({"workers": 10**6}, "workers: got 1000000, this machine has"),
        ({"workers": 2, "backend": "serial"}, "workers: got 2, the serial backend has one"),
        ({"backend": "procces"}, "backend: got 'procces', expected one of serial, process, ray"),
        ({"shard": (2, 2)}, "shard: got 2 of 2, expected 0 <= index < count"),
        ({"shard": (-1, 2)}, "shard: got -1 of 2"),
        ({"ray_address": "host:1"}, "they need the backend 'ray', got 'process'"),
    ],
)
def test_impossible_arguments(tmp_path, quick, arguments, message):
    with pytest.raises(SpecError) as caught:
        run_sweep(quick, Store(tmp_path / "store"), **arguments)
    assert message in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_sweep_into_a_folder_that_cannot_be_written(quick):
    if not os.path.isdir("/sys"):
        pytest.skip("needs a folder that not even root can write")
    with pytest.raises(StoreError, match="cannot write to this store"):
        run_sweep(quick, Store("/sys/store"), backend="serial")


def test_parts_stay_few(tmp_path, monkeypatch, sweeps, table_bytes):
    quick = sweeps("quick")
    monkeypatch.setattr(runner, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(runner, "WRITE_SHARE", 0.0)
    monkeypatch.setattr(runner, "CHUNK_SECONDS", 0.0)
    many = grid(quick.runs[0], {"seed": range(70)})
    sweep = Sweep(name="many", engine="theory", runs=many)
    run_sweep(sweep, Store(tmp_path / "many"), backend="serial")
    assert len(read_parts(Store(tmp_path / "many")).names) == 1
    assert len(load_runs(Store(tmp_path / "many"), sweep=sweep)) == 70


def test_grouping_changes_no_point_of_a_simulated_landscape(tmp_path, quick, table_bytes):
    pytest.importorskip("jax")
    points = dataclasses.replace(quick, engine="simulation", runs=quick.runs[:20])
    whole, pieces = Store(tmp_path / "whole"), Store(tmp_path / "pieces")
    run_sweep(points, whole, backend="serial")
    for runs in (points.runs[7:8], points.runs[::3], points.runs):
        run_sweep(dataclasses.replace(points, runs=runs), pieces, backend="serial")
    assert table_bytes(whole, points) == table_bytes(pieces, points)
