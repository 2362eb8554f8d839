"""Commands on papers: reproduce one, and the demo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leadline.cli.options import Json, Store, Workers, emit
from leadline.errors import LeadlineError, nearest

if TYPE_CHECKING:
    from leadline.report.page import Section


def _crew(workers: int | None) -> int:
    from leadline.sweeps.runner import cores

    return min(2, cores()) if workers is None else workers


def _check_writable(folder: Path, target: Path, what: str) -> None:
    """Find out before the work, not after it, that `target` in `folder` cannot be written."""
    why = "it is a folder" if folder != target and target.is_dir() else ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = str(error.strerror)
    if why or not os.access(folder, os.W_OK):
        raise LeadlineError(f"{target}: cannot write the {what} ({why or 'no permission'})")


def _check_names(only: list[str], sections: list[Section]) -> None:
    """Refuse a name that no claim and no figure bears."""
    known = [str(claim["name"]) for section in sections for claim in section.claims]
    known += [figure.name for section in sections for figure in section.figures]
    for name in only:
        if name not in known:
            raise LeadlineError(
                f"only: got {name!r}, expected the name of a claim, or with --figures or --report "
                f"of a figure{nearest(name, known)}"
            )


def _only(section: Section, names: list[str]) -> Section:
    """The figures and claims of `section` that `names` lists."""
    return replace(
        section,
        figures=[figure for figure in section.figures if figure.name in names],
        claims=[claim for claim in section.claims if claim["name"] in names],
    )


def _judgement(claim: Mapping[str, Any], name: str) -> str:
    published = f"{claim['published']:.5g}"
    if claim["kind"] == "order":
        published = "more than 0" if claim["published"] > 0 else "less than 0"
    elif claim["verdict"] == "corrected":
        published += f", ours {claim['corrected']:.5g}"
    return (
        f"{claim['verdict']:<25} {name}: published {published}, "
        f"measured {claim['measured_estimate']:.5g} "
        f"[{claim['measured_low']:.5g}, {claim['measured_high']:.5g}]"
    )


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="Name of the paper, such as bordelon2025.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All papers, in one ledger.")] = False,
    scale: Annotated[str, typer.Option(help="demo, small or paper.")] = "small",
    store: Store = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with the figures here.")] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Write each figure as svg, pdf and png, its numbers as csv, here."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this claim or figure; may be given again.")
    ] = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Run the theory and simulation of a paper and judge its claims."""
    if (paper is None) != everything:
        raise LeadlineError("paper: give the name of one paper, or --all")
    from leadline import papers
    from leadline.report.page import Section, verdict_counts, write_report

    if report is not None:
        _check_writable(report.parent, report, "report")
    if figures is not None:
        _check_writable(figures, figures, "figures")
    sections: list[Section] = []
    for name in papers.PAPERS if paper is None else [paper]:
        study = papers.study(name)
        tables = papers.answer(
            study, store=store, scale=scale, backend="process", workers=_crew(workers)
        )
        if report is None and figures is None:
            sections.append(Section(title=study.title, claims=study.claims(tables)))
        else:
            command = f"leadline reproduce {name} --scale {scale}"
            sections.append(papers.section(study, tables, command=command))
        for claim in sections[-1].claims:
            if only and claim["name"] not in only:
                continue
            if as_json:
                emit({**claim, "paper": name})
            else:
                prefix = f"{name}/" if everything else ""
                typer.echo(_judgement(claim, prefix + claim["name"]))
    if only:
        _check_names(only, sections)
        sections = [_only(section, only) for section in sections]
    if not as_json:
        counts = verdict_counts([claim for section in sections for claim in section.claims])
        listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        typer.echo(f"claims: {listed or 'none'}")
    if figures is not None:
        drawn = [path for section in sections for f in section.figures for path in f.save(figures)]
        typer.echo(f"figures: {len(drawn)} files in {figures}", err=as_json)
    if report is not None:
        title = "leadline: the claims of all papers" if everything else sections[0].title
        write_report(sections, report, title=title)
        typer.echo(f"report: {report}", err=as_json)


def demo(
    report: Annotated[Path, typer.Option(help="Where to write the page.")] = Path(
        "out/report.html"
    ),
    store: Annotated[Path, typer.Option(help="Folder that keeps the runs.")] = Path("out/runs"),
    workers: Workers = None,
) -> None:
    """Fit two published tables, reproduce a figure, and write one report."""
    from leadline.demo import run_demo

    _check_writable(report.parent, report, "report")
    path = run_demo(report, say=typer.echo, store=store, workers=_crew(workers))
    typer.echo(f"report: {path.resolve()}")
