"""Commands on papers: reproduce one, and the demo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from leadline.cli.options import Json, PaperName, Store, Workers, emit
from leadline.errors import LeadlineError


def _crew(workers: int | None) -> int:
    from leadline.sweeps.runner import cores

    return min(2, cores()) if workers is None else workers


def _check_page(path: Path) -> None:
    """Find out before the work, not after it, that a page cannot be written."""
    why = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = str(error.strerror)
    if why or not os.access(path.parent, os.W_OK):
        raise LeadlineError(f"{path}: cannot write the report ({why or 'no permission'})")


def reproduce(
    paper: PaperName,
    scale: Annotated[str, typer.Option(help="demo, small or paper.")] = "small",
    store: Store = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with the figures here.")] = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Run the theory and simulation of a paper and judge its claims."""
    from leadline import papers

    study = papers.study(paper)
    if report is not None:
        _check_page(report)
    tables = papers.answer(
        study, store=store, scale=scale, backend="process", workers=_crew(workers)
    )
    for claim in study.claims(tables):
        if as_json:
            emit(claim)
        else:
            typer.echo(
                f"{claim['verdict']:<25} {claim['name']}: published {claim['published']:.5g}, "
                f"measured {claim['measured_estimate']:.5g} "
                f"[{claim['measured_low']:.5g}, {claim['measured_high']:.5g}]"
            )
    if report is not None:
        from leadline.report.page import write_report

        command = f"leadline reproduce {paper} --scale {scale}"
        made = papers.section(study, tables, command=command)
        write_report([made], report, title=study.title)
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

    _check_page(report)
    path = run_demo(report, say=typer.echo, store=store, workers=_crew(workers))
    typer.echo(f"report: {path.resolve()}")
