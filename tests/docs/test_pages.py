"""The code blocks of the tutorials run and print what the page says; links lead somewhere."""

import contextlib
import importlib.util
import io
import os
import re
import string
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


def transcripts(page):
    """The commands of a page's console blocks, each with what it says."""
    for language, _, text, _ in blocks(page):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, said = part.partition("\n")
                yield command, said


QUICK, SLOW = [], []
for command, said in transcripts(ROOT / "README.md"):
    (SLOW if "--exact" in command else QUICK).append((command, said))


@pytest.mark.parametrize(("command", "said"), QUICK, ids=[command for command, _ in QUICK])
def test_the_readme_tells_the_truth(command, said, folder):
    compare(said, run_shell(command, command, folder), command)


@pytest.mark.full
@pytest.mark.parametrize(("command", "said"), SLOW, ids=[command for command, _ in SLOW])
def test_the_readme_tells_the_truth_slowly(command, said, folder):
    compare(said, run_shell(command, command, folder), command)


def test_the_readme_has_transcripts():
    assert (len(QUICK), len(SLOW)) == (4, 1)


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


LINK = re.compile(r"(?<!\\)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def anchors(page):
    """The anchors of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page):
    """The links of a page within the repository that lead nowhere."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = []
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(link)
    return found


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "LOG.md", *PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page):
    assert broken(page) == []


def test_broken_links_are_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n[a](page.md#a-title) [b](lost.md) [c](#lost) ![d](lost.svg)\n[e](https://e.org)"
    )
    assert broken(page) == ["lost.md", "#lost", "lost.svg"]


def test_every_public_name_has_its_place_in_the_api():
    import leadline

    listed = []
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        listed += re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)
    assert sorted(path.rpartition(".")[2] for path in listed) == sorted(
        set(leadline.__all__) - {"__version__"}
    )
    for path in listed:
        home, _, name = path.rpartition(".")
        assert getattr(__import__(home, fromlist=[name]), name) is getattr(leadline, name)


def test_formulas_become_mathml():
    spec = importlib.util.spec_from_file_location("mathml", ROOT / "docs" / "mathml.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.on_page_content(
        r'<p>a <span class="arithmatex">\(\mathbb E\,x &lt; \mathcal L\)</span></p>'
        r'<div class="arithmatex">\[\boxed{\frac12}\]</div>'
    )
    assert "arithmatex" not in made
    assert '<mi mathvariant="normal">𝔼</mi>' in made
    assert '<mi mathvariant="normal">ℒ</mi>' in made
    assert 'display="inline"' in made
    assert 'display="block"' in made
    assert '<mrow class="boxed">' in made
    assert 'alttext="\\mathbb E\\,x &lt; \\mathcal L"' in made
    for alphabet in ("mathbb", "mathcal", "mathbf"):  # no letter of any alphabet is left to it
        for letter in string.ascii_uppercase:
            variants = re.findall(
                'mathvariant="([^"]*)"', module.mathml(rf"\{alphabet} {letter}", block=False)
            )
            assert variants in ([], ["normal"])


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        html = page.read_text("utf-8")
        sources = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"([^\"]*)\"", html)
        assert [s for s in sources if s.startswith(("http:", "https:", "//"))] == []
        assert 'class="arithmatex"' not in html  # every formula became MathML
    theory = (tmp_path / "site" / "theory" / "isotropic.html").read_text("utf-8")
    assert theory.count("<math ") > 50
    assert "<msup>" in theory
