import dataclasses
import io
import sys

from leadline.sweeps import progress
from leadline.sweeps.engines import Group, solve
from leadline.sweeps.runner import _Ledger
from leadline.sweeps.store import Store


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_nothing_is_shown_where_nobody_watches(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.progress_bar("sweep", 3) as show:
        show(1.0)
    assert sys.stderr.getvalue() == ""


def test_a_short_sweep_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.progress_bar("sweep", 3) as show:
        show(1.0)
    assert sys.stderr.getvalue().strip() == ""


def test_a_long_sweep_shows_the_share_and_the_time_left(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    with progress.progress_bar("sweep", 4) as show:
        while "0/4" not in sys.stderr.getvalue():
            show(0.0)
        show(3.0)
    assert "sweep" in sys.stderr.getvalue()
    assert "left" in sys.stderr.getvalue()
    assert "3/4" in sys.stderr.getvalue()


def test_unfinished_groups_count_by_their_share(tmp_path, sweeps):
    quick = sweeps("quick")
    seen = []
    ledger = _Ledger(sweep=quick, store=Store(tmp_path), show=seen.append)
    first, second = (Group(engine="theory", specs=quick.runs[i : i + 4]) for i in (0, 4))
    ledger.observe(first, 0.25)
    ledger.observe(second, 0.5)
    ledger.add(first, dataclasses.replace(solve(first, seen.append), seconds=(0.0,) * 4))
    assert seen == [1.0, 3.0, 6.0]
