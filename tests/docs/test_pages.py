"""Every code block of the tutorials runs and says what the page says; every link leads somewhere."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FENCE = re.compile(r"^```(\{[^}]*\}|\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page):
    """The fenced blocks of a page: language, marks, text and line."""
    text = page.read_text("utf-8")
    for found in FENCE.finditer(text):
        language, *marks = found[1].strip("{}").replace(".", " ").split()
        yield language, marks, found[2], text[: found.start()].count("\n") + 2


def run_python(text, where, namespace):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(text, where, "exec"), namespace)
    return said.getvalue()


def run_shell(text, where, folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-eu", "-c", text],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def same(expected, said):
    """Whether a line says the same: equal words, numbers to 1%, errors after ± to a factor 10."""
    ours, theirs = (re.split(r"[\s,;\[\]()]+", line.strip()) for line in (expected, said))
    if len(ours) != len(theirs):
        return False
    rough = False
    for one, other in zip(ours, theirs, strict=True):
        try:
            a, b = float(one.rstrip("%:")), float(other.rstrip("%:"))
        except ValueError:
            if one != other:
                return False
        else:
            if not (a == b or (0.1 < a / b < 10 if rough else abs(a / b - 1) < 0.01)):
                return False
        rough = one == "±"
    return True


def compare(expected, said, where):
    """Compare what was printed with the page, where a last line of ... stands for any further."""
    ours, theirs = expected.splitlines(), said.splitlines()
    if ours[-1] == "...":
        ours = ours[:-1]
        theirs = theirs[: len(ours)]
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert same(one, other), f"{where}, line {number + 1}: {one!r}, but it printed {other!r}"


def run_page(page, folder, *, full):
    namespace, said = {"__name__": "__main__"}, None
    ran = 0
    for language, marks, text, line in blocks(page):
        where = f"{page.name}:{line}"
        if language == "text":
            if said is not None:
                compare(text, said, where)
            said = None
        elif "full" in marks and not full:
            said = None
        else:
            assert language in ("python", "sh"), f"{where}: a {language!r} block would not be run"
            said = (
                run_python(text, where, namespace)
                if language == "python"
                else run_shell(text, where, folder)
            )
            ran += 1
    assert ran >= 3
    return namespace


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_run(page, folder):
    namespace = run_page(page, folder, full=False)
    if "plt" in namespace:
        namespace["plt"].close("all")


@pytest.mark.full
def test_the_tutorial_on_clusters_runs_on_ray(folder):
    run_page(ROOT / "docs" / "tutorials" / "cluster.md", folder, full=True)
    assert list((folder / "runs-ray").glob("part-*.parquet"))


def test_comparing_output_sees_mistakes():
    line = "loss 0.1399 ± 2e-15 (ok; gamma 8, edge 8)"
    assert same(line, "loss 0.13994 ± 4e-15 (ok; gamma 8, edge 8)")
    for wrong in (
        "loss 0.1499 ± 2e-15 (ok; gamma 8, edge 8)",
        "loss 0.1399 ± 2e-12 (ok; gamma 8, edge 8)",
        "loss 0.1399 ± 2e-15 (unstable; gamma 8, edge 8)",
        "loss 0.1399 ± 2e-15 (ok; gamma 8)",
    ):
        assert not same(line, wrong)
    with pytest.raises(ValueError):
        compare("a\nb\n", "a\n", "here")
    compare("a\n...\n", "a\nb\nc\n", "here")
