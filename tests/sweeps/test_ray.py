import socket
import threading
import time

import pytest

from leadline.errors import SpecError, StoreError
from leadline.sweeps import backends
from leadline.sweeps.runner import run_sweep
from leadline.sweeps.store import Store, read_parts

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


@pytest.mark.parametrize("name", ["quick", "training"])
def test_ray_changes_no_number(tmp_path, sweeps, table_bytes, name):
    sweep = sweeps(name)
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    run_sweep(sweep, here, backend="process")
    summary = run_sweep(sweep, there, backend="ray")
    assert (summary.answered, summary.exit_code) == (len(sweep.runs), 0)
    assert table_bytes(there, sweep) == table_bytes(here, sweep)
    assert not ray.is_initialized()


def test_a_sweep_survives_the_loss_of_a_node(tmp_path, sweeps, table_bytes):
    from ray.cluster_utils import Cluster

    theory = sweeps("theory")
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    run_sweep(theory, here, backend="serial")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        lost = []

        def lose():
            while not list(there.root.glob("*.parquet")):
                time.sleep(0.01)
            cluster.remove_node(node, allow_graceful=False)
            lost.append(read_parts(there).frame.height)

        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        summary = run_sweep(theory, there, backend="ray", workers=2, ray_address=cluster.address)
        thread.join()
    finally:
        cluster.shutdown()
    assert lost[0] < 64
    assert (summary.answered, summary.failed) == (64, 0)
    assert table_bytes(there, theory) == table_bytes(here, theory)


def test_an_address_that_does_not_answer(tmp_path, sweeps, monkeypatch):
    monkeypatch.setattr(backends, "ADDRESS_SECONDS", 4.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = "{}:{}".format(*silent.getsockname())
        with pytest.raises(StoreError, match=f"ray_address: {address} does not answer within 4 s"):
            run_sweep(sweeps("quick"), Store(tmp_path), backend="ray", ray_address=address)
    assert not ray.is_initialized()
    assert read_parts(Store(tmp_path)).frame.is_empty()


def test_ray_on_this_machine_has_no_more_workers_than_cores(tmp_path, sweeps):
    with pytest.raises(SpecError, match="this machine has"):
        run_sweep(sweeps("quick"), Store(tmp_path), backend="ray", workers=10**6)
