import dataclasses
import functools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from leadline.sweeps.runner import run_sweep
from leadline.sweeps.store import Store, read_parts


def finish(child):
    output, _ = child.communicate(timeout=100)
    assert child.returncode == 0, output
    return output


def kill_at_random(child, rng, longest):
    """Kill the process at a random moment; False if it had ended."""
    time.sleep(rng.uniform(0.05, longest))
    child.kill()
    child.communicate()
    return child.returncode == -signal.SIGKILL


def assert_once(store, sweep):
    """No run is lost and none is in two parts."""
    ids = read_parts(store).frame["run_id"]
    assert ids.n_unique() == len(ids) == len(sweep.runs)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, coordinate, sweeps, table_bytes):
    @functools.cache
    def run(name):
        store = Store(tmp_path_factory.mktemp(name) / "store")
        finish(coordinate(name, store))
        return table_bytes(store, sweeps(name))

    return run


def survive(name, kills, longest, *, tmp_path, coordinate, sweeps, table_bytes, expected):
    """Kill sweeps at random moments until `kills` died, each until its table is complete."""
    rng, died, rounds = random.Random(kills), 0, 0
    while died < kills:
        store = Store(tmp_path / f"store-{rounds}")
        while died < kills and kill_at_random(coordinate(name, store), rng, longest):
            died += 1
        finish(coordinate(name, store))
        assert table_bytes(store, sweeps(name)) == expected
        assert_once(store, sweeps(name))
        assert not list(store.root.glob(".*.tmp"))
        rounds += 1


def test_a_theory_sweep_survives_kills(tmp_path, coordinate, sweeps, table_bytes, undisturbed):
    survive(
        "theory",
        15,
        2.0,
        tmp_path=tmp_path,
        coordinate=coordinate,
        sweeps=sweeps,
        table_bytes=table_bytes,
        expected=undisturbed("theory"),
    )


def test_a_training_sweep_survives_kills(tmp_path, coordinate, sweeps, table_bytes, undisturbed):
    pytest.importorskip("jax")
    survive(
        "training",
        5,
        6.0,
        tmp_path=tmp_path,
        coordinate=coordinate,
        sweeps=sweeps,
        table_bytes=table_bytes,
        expected=undisturbed("training"),
    )


def test_lanes_and_backends_change_no_number(tmp_path, sweeps, table_bytes, undisturbed):
    pytest.importorskip("jax")
    training, store = sweeps("training"), Store(tmp_path / "store")
    for runs in (training.runs[9:], training.runs[2:5], training.runs):
        run_sweep(dataclasses.replace(training, runs=runs), store, backend="serial")
    assert table_bytes(store, training) == undisturbed("training")


def test_a_sweep_survives_death_between_write_and_rename(
    tmp_path, coordinate, sweeps, table_bytes, undisturbed
):
    store = Store(tmp_path / "store")
    for write in (0, 1, 2, 0, 1):
        child = coordinate("theory", store, write=write)
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        assert len(list(store.root.glob(".*.tmp"))) == 1
    finish(coordinate("theory", store))
    assert table_bytes(store, sweeps("theory")) == undisturbed("theory")
    assert_once(store, sweeps("theory"))
    assert not list(store.root.glob(".*.tmp"))


def children(process):
    """The ids of the child processes."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == process and fields[0] != "Z":
            pids.append(int(stat.parent.name))
    return pids


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
def test_workers_end_with_their_coordinator(tmp_path, coordinate):
    child = coordinate("theory", Store(tmp_path / "store"))
    (worker,) = wait_until(lambda: children(child.pid))
    child.kill()
    child.communicate()
    wait_until(lambda: not Path(f"/proc/{worker}").exists())


@needs_proc
def test_a_killed_worker_does_not_end_the_sweep(
    tmp_path, coordinate, sweeps, table_bytes, undisturbed
):
    store = Store(tmp_path / "store")
    child = coordinate("theory", store)
    wait_until(lambda: list(store.root.glob("*.parquet")))
    for worker in children(child.pid):
        os.kill(worker, signal.SIGKILL)
    finish(child)
    assert table_bytes(store, sweeps("theory")) == undisturbed("theory")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_keeps_what_was_answered(tmp_path, coordinate, sweeps, number):
    store = Store(tmp_path / "store")
    child = coordinate("theory", store)
    wait_until(lambda: list(store.root.glob("*.parquet")))
    child.send_signal(number)
    output, _ = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "the same command goes on from here" in output
    stored = read_parts(store).frame.height
    assert f"{stored} of 64 runs are stored" in output
    assert 0 < stored < 64
    assert (store.root / "lock").read_bytes() == b""
    assert "64 of 64" in finish(coordinate("theory", store))
    assert_once(store, sweeps("theory"))
