"""Bundled tables exist, are described, and read without a fault."""

import pytest

from leadline.data import SOURCES, bundled
from leadline.errors import TableError
from leadline.laws import read_runs


@pytest.mark.parametrize("name", SOURCES)
def test_every_bundled_table_reads_without_exclusions(name):
    runs = read_runs(bundled(name), strict=True)
    assert len(runs) == SOURCES[name].rows
    assert {"params", "tokens", "loss"} <= set(runs.frame.columns)


@pytest.mark.parametrize("name", SOURCES)
def test_every_bundled_table_is_described(name):
    readme = bundled(name).with_name("README.md").read_text()
    assert name in readme
    assert SOURCES[name].license in readme


def test_every_table_in_the_folder_is_listed():
    folder = bundled("chinchilla_epoch.csv").parent
    tables = {p.name for p in folder.iterdir() if p.suffix in (".csv", ".jsonl", ".parquet")}
    assert tables == set(SOURCES)


def test_an_unknown_name_comes_with_the_nearest():
    with pytest.raises(TableError, match=r"did you mean 'chinchilla_epoch\.csv'"):
        bundled("chinchila_epoch")
