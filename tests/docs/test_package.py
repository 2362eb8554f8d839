"""What is shipped: a wheel that works on its own, and a citation."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_its_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    ours = {
        str(path.relative_to(source))
        for path in (source / "leadline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"leadline/py.typed", "leadline/report/templates/page.html.j2"} <= ours
    assert ours == {name for name in names if name.startswith("leadline/")}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_works_without_the_repository(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    code = (
        "import sys, leadline, leadline.cli\n"
        f"assert leadline.__file__.startswith({str(tmp_path)!r})\n"
        "sys.argv = ['leadline', 'fit', 'chinchilla_epoch.csv', '--draws', '0']\n"
        "leadline.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "unpacked")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "245 rows used, 0 excluded" in done.stdout


def test_the_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert len(citation["references"]) == 3
    for entry in citation["references"]:
        assert all("family-names" in author for author in entry["authors"])
