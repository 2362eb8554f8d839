"""One self-contained HTML page: sections of text, figures, tables and the ledger of claims."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from leadline.claims import Verdict
from leadline.errors import LeadlineError
from leadline.report.figures import Figure

STYLES: dict[Verdict, str] = {
    "reproduced": "reproduced",
    "corrected": "corrected",
    "not reproduced": "not",
    "not tested at this scale": "not-yet",
}
"""The style class of each verdict in the page."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A small table of text: `rows` are lists of cells under `columns`."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, paragraphs, figures, tables, the claims it decides, and the command behind it.

    `again`, with the name of a figure or claim after it, is the command that makes that one.
    """

    title: str
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    command: str = ""
    again: str = ""


def verdict_counts(claims: Sequence[Mapping[str, Any]]) -> dict[Verdict, int]:
    """How many of the claims have each verdict, those that none has left out."""
    found = Counter(claim["verdict"] for claim in claims)
    return {verdict: found[verdict] for verdict in STYLES if found[verdict]}


def _uri(kind: str, content: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.encode()).decode()}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _claim_rows(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for claim in claims:
        low, high = _number(claim["measured_low"]), _number(claim["measured_high"])
        signs = {True: "greater than 0", False: "less than 0"}
        order = claim["kind"] == "order"
        published, corrected = claim["published"], claim["corrected"]
        level = f"{claim['measured_level']:.0%}, " if claim["measured_level"] < 1 else ""
        rows.append(
            {
                "name": claim["name"],
                "statement": claim["statement"],
                "source": claim["source"],
                "published": signs[published > 0] if order else _number(published),
                "corrected": signs[corrected > 0] if order and corrected else _number(corrected),
                "measured": f"{_number(claim['measured_estimate'])} [{low}, {high}]",
                "method": f"{level}{claim['measured_method']}, unit: {claim['measured_unit']}",
                "verdict": claim["verdict"],
                "style": STYLES[claim["verdict"]],
            }
        )
    return rows


def render(sections: Sequence[Section], *, title: str, subtitle: str) -> str:
    """The page as HTML text. Everything is inside: it opens without a network."""
    source = files("leadline.report").joinpath("templates", "page.html.j2").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    shown = [
        {
            "id": f"s{i}",
            "title": section.title,
            "text": section.text,
            "command": section.command,
            "again": section.again,
            "figures": [
                {
                    "caption": f.caption,
                    "alternative": f.alternative,
                    "image": _uri("image/svg+xml", f.svg()),
                    "numbers": _uri("text/csv", f.numbers.write_csv()),
                    "name": f.name,
                    "width": round(100 * f.canvas.get_figwidth()),
                }
                for f in section.figures
            ],
            "tables": section.tables,
            "claims": _claim_rows(section.claims),
        }
        for i, section in enumerate(sections)
    ]
    counts = verdict_counts([claim for section in sections for claim in section.claims])
    filters = [(STYLES[verdict], verdict, count) for verdict, count in counts.items()]
    return environment.from_string(source).render(
        title=title, subtitle=subtitle, sections=shown, filters=filters
    )


def write_report(
    sections: Sequence[Section], path: Path, *, title: str, subtitle: str = ""
) -> Path:
    """Write the page to `path` (a temporary name first, then renamed) and return it.

    **Raises:** `LeadlineError` if the file cannot be written.
    """
    text = render(sections, title=title, subtitle=subtitle)
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, "utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise LeadlineError(f"{path}: cannot write the report ({error.strerror})") from None
    return path
