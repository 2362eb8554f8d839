import dataclasses
import importlib
import os
import sys

import pytest

from leadline.errors import StoreError
from leadline.sweeps import backends
from leadline.sweeps.engines import Group, attempt, solve

FAULTS = """
import os, signal, sys, threading
from leadline.sweeps.engines import solve

def killed(group, observe):
    if group.specs[0].seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(group, observe)

def killed_once(group, observe):
    try:
        open("killed", "x").close()
    except FileExistsError:
        return solve(group, observe)
    os.kill(os.getpid(), signal.SIGKILL)

def slow(group, observe):
    observe(0.25)
    observe(0.75)
    return solve(group, observe)

def raises(group, observe):
    raise ValueError("no such luck")

def threads(group, observe):
    import dataclasses, threadpoolctl, numpy
    assert "numpy" in sys.modules
    count = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
    answer = solve(group, observe)
    return dataclasses.replace(answer, device=f"{count} {os.environ['NPROC']}")
"""


def ignore(*_):
    """Nobody watches."""


@pytest.fixture
def faults(tmp_path, monkeypatch):
    """Functions that only worker processes can survive, or not."""
    (tmp_path / "faults.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("faults")
    del sys.modules["faults"]


@pytest.fixture
def groups(sweeps):
    spec = sweeps("quick").runs[0]
    return [
        Group(engine="theory", specs=(dataclasses.replace(spec, seed=seed),)) for seed in range(4)
    ]


def by_seed(answers):
    return {group.specs[0].seed: answer for group, answer in answers}


def test_every_group_is_answered(groups):
    for backend in (
        backends.serial(solve, iter(groups), observe=ignore),
        backends.process(solve, iter(groups), observe=ignore, workers=1),
    ):
        answers = by_seed(backend)
        assert sorted(answers) == [0, 1, 2, 3]
        assert all(not a.failures and a.curves[0] is not None for a in answers.values())


def test_a_group_that_kills_its_workers_fails_alone(groups, faults):
    answers = by_seed(backends.process(faults.killed, iter(groups), observe=ignore, workers=1))
    (failure,) = answers.pop(2).failures
    assert "the worker died 3 times: signal 9" in failure.error
    assert sorted(answers) == [0, 1, 3]
    assert all(not a.failures for a in answers.values())


def test_a_group_whose_worker_was_killed_is_tried_again(groups, faults):
    answers = by_seed(backends.process(faults.killed_once, iter(groups), observe=ignore, workers=1))
    assert sorted(answers) == [0, 1, 2, 3]
    assert all(not a.failures for a in answers.values())


def test_an_exception_outside_the_engine_is_a_failure(groups, faults):
    for backend in (
        backends.serial(faults.raises, iter(groups[:1]), observe=ignore),
        backends.process(faults.raises, iter(groups[:1]), observe=ignore, workers=1),
    ):
        ((_, answer),) = backend
        assert answer.curves == (None,)
        assert answer.failures[0].error == "ValueError: no such luck"
        assert "Traceback" in answer.failures[0].traceback


def test_workers_that_cannot_start_end_the_sweep(groups, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StoreError, match="a worker cannot start: exit code 1"):
        list(backends.process(solve, iter(groups), observe=ignore, workers=1))


def test_a_worker_has_one_thread(groups, faults, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    ((_, answer),) = backends.process(faults.threads, iter(groups[:1]), observe=ignore, workers=1)
    assert answer.device == "1 1"


def test_the_serial_backend_has_one_thread(groups):
    import threadpoolctl

    counts = []

    def count(group, observe):
        counts.extend(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
        return solve(group, observe)

    with threadpoolctl.threadpool_limits(2):
        list(backends.serial(count, iter(groups[:1]), observe=ignore))
    assert set(counts) == {1}


def test_stopping_early_ends_the_workers(groups):
    answers = backends.process(solve, iter(groups), observe=ignore, workers=1)
    next(answers)
    answers.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_answer_of_one_run_of_a_theory_group_may_fail_alone(groups, sweeps):
    from leadline.spec import Training

    good = groups[0].specs[0]
    bad = dataclasses.replace(
        good,
        model=dataclasses.replace(good.model, depth=4),
        recipe=Training(steps=3, batch_size=4, queries=4, rate=0.1),
    )
    answer = attempt(solve, Group(engine="theory", specs=(good, bad, good)), ignore)
    assert [curve is None for curve in answer.curves] == [False, True, False]
    assert [failure.members for failure in answer.failures] == [(1,)]


@pytest.mark.parametrize("name", ["serial", "process"])
def test_the_share_of_a_group_that_is_done_is_reported(groups, faults, name):
    seen = []
    options = {"workers": 1} if name == "process" else {}
    backend = getattr(backends, name)
    list(
        backend(
            faults.slow,
            iter(groups[:2]),
            observe=lambda group, share: seen.append((group.specs[0].seed, share)),
            **options,
        )
    )
    assert seen == [(0, 0.25), (0, 0.75), (1, 0.25), (1, 0.75)]
