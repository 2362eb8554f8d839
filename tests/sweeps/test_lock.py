import json
import os
import platform
import subprocess
import sys
import time

import pytest

from leadline.errors import StoreError
from leadline.sweeps import lock
from leadline.sweeps.lock import locked


def write_owner(path, *, host=None, process):
    owner = {"host": host or platform.node(), "process": str(process), "since": "yesterday"}
    path.write_text(json.dumps(owner))


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_released_lock_is_free(tmp_path):
    for _ in range(2):
        with locked(tmp_path / "store") as note:
            assert note is None
            owner = json.loads((tmp_path / "store" / "lock").read_text())
            assert owner["host"] == platform.node()
            assert owner["process"] == str(os.getpid())
        assert (tmp_path / "store" / "lock").read_text() == ""


def test_a_second_owner_is_refused_by_name(tmp_path):
    with locked(tmp_path):
        with pytest.raises(StoreError) as caught, locked(tmp_path):
            pass
        assert f"process {os.getpid()} on host {platform.node()}" in str(caught.value)
    with locked(tmp_path) as note:
        assert note is None


def test_the_lock_is_released_when_the_owner_raises(tmp_path):
    with pytest.raises(RuntimeError), locked(tmp_path):
        raise RuntimeError
    with locked(tmp_path) as note:
        assert note is None


def test_the_lock_of_a_dead_process_is_taken_over_with_a_note(tmp_path):
    process = dead_process()
    write_owner(tmp_path / "lock", process=process)
    with locked(tmp_path) as note:
        assert note is not None
        assert f"process {process} on {platform.node()}" in note


def test_another_host_counts_as_alive_until_it_is_silent(tmp_path):
    write_owner(tmp_path / "lock", host="far-away", process=1)
    with pytest.raises(StoreError, match="process 1 on host far-away, since yesterday"):
        locked(tmp_path).__enter__()
    past = time.time() - lock.EXPIRY - 1
    os.utime(tmp_path / "lock", (past, past))
    with locked(tmp_path) as note:
        assert "far-away" in note


def test_the_owner_shows_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.01)
    with locked(tmp_path):
        path = tmp_path / "lock"
        os.utime(path, (0, 0))
        while path.stat().st_mtime == 0:
            time.sleep(0.005)


def test_a_lock_file_cut_short_names_nobody(tmp_path):
    (tmp_path / "lock").write_text('{"host": "x"')
    with locked(tmp_path) as note:
        assert note is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that not even root can write")
def test_a_store_that_cannot_be_written(tmp_path):
    with pytest.raises(StoreError, match="/sys/store: cannot write to this store: "):
        locked(tmp_path.__class__("/sys/store")).__enter__()
