"""The page: all of it inside, safe text, figures with words, written in one piece."""

import base64
import os
import re
from html.parser import HTMLParser

import polars as pl
import pytest

from leadline.claims import Claim, Interval, judge
from leadline.errors import LeadlineError
from leadline.report.figures import Figure, number, panels
from leadline.report.page import (
    STYLES,
    Section,
    Table,
    render,
    verdict_counts,
    write_report,
)

HOSTILE = "<script>alert('x')</script> & \"quoted\" <img src=https://example.org/x>"


class Page(HTMLParser):
    """Every tag with its attributes, and the text between tags."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(html)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def figure(**changes):
    with panels(2) as (canvas, axes):
        axes[0].plot([1, 2], [3, 4], label="a line")
        axes[1].errorbar([1, 2], [3, 4], [0.1, 0.2])
    fields = {
        "name": "two-panels",
        "caption": "Two panels.",
        "alternative": "A rising line and two points.",
        "canvas": canvas,
        "numbers": pl.DataFrame({"x": [1, 2], "y": [3.5, 4.5], "note": ["ü", "a,b"]}),
    }
    return Figure(**fields | changes)


def row(*, kind="number", published=1.0, corrected=None, low=0.9, high=1.1, **changes):
    claim = {
        "name": "a-claim",
        "source": "a paper",
        "statement": "A statement.",
        "kind": kind,
        "published": published,
        "corrected": corrected,
        "smallest_effect": 0.3,
    }
    measured = Interval(
        estimate=(low + high) / 2, low=low, high=high, level=0.95, method="normal", unit="run"
    )
    return judge(Claim(**claim | changes), measured)


ROWS = [
    row(),
    row(corrected=2.0, low=1.9, high=2.1),
    row(low=4.0, high=4.1),
    row(low=0.0, high=3.0),
    row(kind="order", published=-1.0, corrected=1.0, low=0.5, high=0.6),
    row(published=2.0, corrected=0.0, low=-0.01, high=0.01),
]


def page(*sections, title="A title", subtitle=""):
    return Page(render(sections, title=title, subtitle=subtitle))


@pytest.fixture(scope="module")
def full():
    section = Section(
        title="Everything",
        text=["One paragraph.", "Another."],
        figures=[figure(), figure(name="again")],
        tables=[Table(caption="A table", columns=["a", "b"], rows=[["1", "2"], ["3", "4"]])],
        claims=ROWS,
        command="leadline demo",
    )
    return render([section], title="A title", subtitle="A subtitle")


def svg_of(image):
    assert image["src"].startswith("data:image/svg+xml;base64,")
    return base64.b64decode(image["src"].split(",", 1)[1]).decode()


def test_nothing_is_loaded_from_elsewhere(full):
    parsed = Page(full)
    for tag, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            where = attributes.get(name)
            assert where is None or where.startswith(("data:", "#")), (tag, name, where)
        assert "url(" not in attributes.get("style", "")
    assert not parsed.all("script")
    assert not parsed.all("link")
    assert not parsed.all("iframe")
    style = full[full.index("<style>") : full.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    for image in parsed.all("img"):
        svg = svg_of(image)
        targets = re.findall(r"(?:href|src)\s*=\s*[\"']([^\"']*)", svg)
        assert all(target.startswith("#") for target in targets), targets
        assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", svg))
        assert "<script" not in svg
        assert "@import" not in svg


def test_every_figure_has_words_and_numbers(full):
    parsed = Page(full)
    images = parsed.all("img")
    assert [image["alt"] for image in images] == ["A rising line and two points."] * 2
    assert parsed.text.count("Two panels.") == 2
    assert len(parsed.all("figcaption")) == 2
    links = [a for a in parsed.all("a") if "download" in a]
    assert [a["download"] for a in links] == ["two-panels.csv", "again.csv"]
    csv = base64.b64decode(links[0]["href"].removeprefix("data:text/csv;base64,"))
    assert pl.read_csv(csv).equals(figure().numbers)


def test_it_is_a_page_in_a_language_for_light_and_dark(full):
    assert full.startswith("<!doctype html>")
    parsed = Page(full)
    assert parsed.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in parsed.all("meta")
    assert {"name": "color-scheme", "content": "light dark"} in parsed.all("meta")
    assert any(m.get("name") == "viewport" for m in parsed.all("meta"))
    assert "@media screen and (prefers-color-scheme: dark)" in full
    # every color of the light scheme has a dark one
    light, dark = (
        set(re.findall(r"(--\w+):", block)) for block in re.findall(r":root {(.*?)}", full, re.S)
    )
    assert light == dark
    used = set(re.findall(r"var\((--\w+)\)", full))
    assert used <= light | {"--width"}


def test_sections_are_listed_and_anchored():
    parsed = page(Section(title="One"), Section(title="Two"))
    assert not page(Section(title="Alone")).all("nav")
    ids = [attributes["id"] for attributes in parsed.all("section")]
    assert len(set(ids)) == 2
    assert [a["href"] for a in parsed.all("a")] == [f"#{i}" for i in ids]
    assert parsed.all("nav")[0]["aria-label"]


@pytest.mark.parametrize(
    "section",
    [
        Section(title=HOSTILE),
        Section(title="", text=[HOSTILE]),
        Section(title="", command=HOSTILE),
        Section(title="", tables=[Table(caption=HOSTILE, columns=[HOSTILE], rows=[[HOSTILE]])]),
        Section(
            title="",
            claims=[row(name=HOSTILE, source=HOSTILE, statement=HOSTILE)],
        ),
        Section(title="", figures=[figure(name=HOSTILE, caption=HOSTILE, alternative=HOSTILE)]),
    ],
    ids=["title", "text", "command", "table", "claims", "figure"],
)
def test_text_stays_text(section):
    parsed = page(section)
    assert not parsed.all("script")
    assert all("example.org" not in image["src"] for image in parsed.all("img"))
    seen = [parsed.text, *(i["alt"] for i in parsed.all("img"))]
    assert any(HOSTILE in text for text in seen)


def test_title_and_subtitle_stay_text():
    parsed = page(title=HOSTILE, subtitle=HOSTILE)
    assert not parsed.all("script")
    assert not parsed.all("img")
    assert parsed.text.count(HOSTILE) == 3  # in the head too


def test_the_ledger():
    html = render([Section(title="", claims=ROWS)], title="", subtitle="")
    parsed = Page(html)
    spans = [a["class"].split() for a in parsed.all("span")]
    expected = ["reproduced", "corrected", "not", "not-yet", "corrected", "corrected"]
    verdicts = [["verdict", style] for style in expected]
    assert [classes for classes in spans if "verdict" in classes] == verdicts
    for style in STYLES.values():
        assert f".{style} {{ color:" in html
    cells = re.findall(r'<td data-label="(\w+)">(.*?)</td>', html, re.S)
    published = [text for name, text in cells if name == "published"]
    ours = [text for name, text in cells if name == "ours"]
    assert published == ["1", "1", "1", "1", "less than 0", "2"]
    assert ours == ["–", "2", "–", "–", "greater than 0", "0"]
    assert "1.5 [0, 3]" in parsed.text
    assert "95%, normal, unit: run" in parsed.text


def test_claims_are_filtered_by_verdict():
    html = render([Section(title="", claims=ROWS)], title="", subtitle="")
    parsed = Page(html)
    boxes = parsed.all("input")
    rows = [a["data-verdict"] for a in parsed.all("tr") if "data-verdict" in a]
    assert rows == ["reproduced", "corrected", "not", "not-yet", "corrected", "corrected"]
    assert [box["id"] for box in boxes] == [f"show-{style}" for style in dict.fromkeys(rows)]
    assert all("checked" in box for box in boxes)
    for style in STYLES.values():  # each box hides the rows of its verdict, and no others
        rule = f'body:has(#show-{style}:not(:checked)) tr[data-verdict="{style}"]'
        assert html.count(rule + " { display: none; }") == 1
    for verdict, count in verdict_counts(ROWS).items():
        assert f"{verdict} ({count})" in parsed.text
    assert not page(Section(title="No claims")).all("input")


def test_commands_make_one_item_again():
    section = Section(
        title="", figures=[figure()], claims=ROWS[:1], again="leadline reproduce a & b --only"
    )
    text = page(section).text
    assert "leadline reproduce a & b --only two-panels --figures figures" in text
    assert "leadline reproduce a & b --only NAME" in text


def test_equal_results_make_equal_pages():
    first, second = (
        render([Section(title="", figures=[figure()], claims=ROWS)], title="", subtitle="")
        for _ in range(2)
    )
    assert first == second


def test_the_report_is_written_where_asked(tmp_path):
    path = tmp_path / "new" / "folder" / "report.html"
    assert write_report([Section(title="Über γ")], path, title="t") == path
    assert path.read_text("utf-8") == render([Section(title="Über γ")], title="t", subtitle="")
    assert os.listdir(path.parent) == ["report.html"]


@pytest.mark.parametrize("moment", ["write", "rename"])
def test_a_failure_leaves_the_old_report(tmp_path, monkeypatch, moment):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    if moment == "rename":
        monkeypatch.setattr(os, "replace", fail)
    else:
        monkeypatch.setattr(type(path), "write_text", fail)
    with pytest.raises(LeadlineError) as caught:
        write_report([Section(title="new")], path, title="t")
    assert str(caught.value) == (f"{path}: cannot write the report (No space left on device)")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_folder_is_no_place_for_a_report(tmp_path):
    with pytest.raises(LeadlineError, match=r"cannot write the report \(Is a directory\)$"):
        write_report([], tmp_path / ".." / tmp_path.name, title="t")
    (tmp_path / "file").write_text("")
    with pytest.raises(LeadlineError, match="cannot write the report"):
        write_report([], tmp_path / "file" / "report.html", title="t")
    assert os.listdir(tmp_path) == ["file"]


def test_a_figure_is_saved_in_every_format(tmp_path):
    paths = figure().save(tmp_path / "a" / "b")
    assert [path.name for path in paths] == [
        f"two-panels.{k}" for k in ("svg", "pdf", "png", "csv")
    ]
    starts = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG", "csv": b"x,y,note\n"}
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix[1:]])
    assert paths[0].read_text("utf-8") == figure().svg()
    assert pl.read_csv(paths[3]).equals(figure().numbers)
    again = figure().save(tmp_path)
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in paths]
    (tmp_path / "file").write_text("")
    with pytest.raises(LeadlineError, match="file: cannot write the figure two-panels"):
        figure().save(tmp_path / "file")


def test_numbers_in_legends():
    assert [number(v) for v in (1.0, 0.25, float("inf"))] == ["1", "0.25", "∞"]


@pytest.mark.parametrize("count", range(1, 8))
def test_panels(count):
    with panels(count) as (canvas, axes):
        assert len(axes) == count
        grid = axes[0].get_gridspec()
        assert (grid.nrows - 1) * grid.ncols < count <= grid.nrows * grid.ncols
    assert sum(ax.get_visible() for ax in canvas.axes) == count
