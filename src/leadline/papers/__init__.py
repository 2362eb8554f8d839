"""The papers: for each its sweeps, its figures, and its claims with computed verdicts.

`reproduce` runs what a store lacks and judges every claim from the stored table; figures and
reports are drawn from the same table.
"""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from leadline.errors import LeadlineWarning, SpecError, StoreError, nearest
from leadline.ident import run_id
from leadline.report.figures import Figure
from leadline.report.page import Section
from leadline.spec import RunSpec, Sweep
from leadline.sweeps.runner import Backend, run_sweep
from leadline.sweeps.store import Store, load_runs

SCALES = ("demo", "small", "paper")
Tables = Mapping[str, pl.DataFrame]
"""The stored runs of each sweep, by the name of the sweep."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One paper: what to run, what to draw, what to judge."""

    name: str
    title: str
    sweeps: Callable[[str], tuple[Sweep, ...]]
    figures: Callable[[Tables], tuple[Figure, ...]]
    claims: Callable[[Tables], list[dict[str, Any]]]


def study(paper: str) -> Study:
    """The study called `paper`.

    **Raises:** `SpecError` for an unknown paper, with the nearest name.
    """
    if paper not in PAPERS:
        raise SpecError(
            f"paper: got {paper!r}, expected one of {', '.join(PAPERS)}{nearest(paper, PAPERS)}"
        )
    return PAPERS[paper]()


def _study(name: str, title: str) -> Study:
    """The study in the folder of this name, imported when it is asked for."""
    sweeps, figures, claims = (
        import_module(f"leadline.papers.{name}.{part}") for part in ("sweeps", "figures", "claims")
    )
    return Study(
        name=name,
        title=title,
        sweeps=sweeps.sweeps,
        figures=figures.figures,
        claims=claims.claims,
    )


TITLES = {
    "bordelon2025": "Theory of scaling laws for in-context regression (arXiv:2510.01098)",
    "lyu2025": "A solvable attention for neural scaling laws (ICLR 2025)",
    "peng2026": "Depth in in-context retrieval (arXiv:2610.11063)",
    "runs": "Published fits of real runs, fitted again",
}
PAPERS: Mapping[str, Callable[[], Study]] = MappingProxyType(
    {name: partial(_study, name, title) for name, title in TITLES.items()}
)


def merged_sweeps(paper: Study, scale: str) -> list[Sweep]:
    """All runs of `paper` at `scale`, as one sweep for each engine.

    **Raises:** `SpecError` for an unknown scale.
    """
    if scale not in SCALES:
        raise SpecError(f"scale: got {scale!r}, expected one of {', '.join(SCALES)}")
    merged: list[Sweep] = []
    for engine in ("theory", "simulation"):
        runs: dict[RunSpec, None] = {}
        for sweep in paper.sweeps(scale):
            runs |= dict.fromkeys(sweep.runs if sweep.engine == engine else ())
        if runs:
            merged.append(Sweep(name=f"{paper.name}/{engine}", engine=engine, runs=tuple(runs)))
    return merged


def answer(
    paper: Study,
    *,
    store: Path | None,
    scale: str,
    backend: Backend = "serial",
    workers: int = 1,
) -> dict[str, pl.DataFrame]:
    """The tables of every sweep of `paper` at `scale`: runs what `store` lacks, reads the rest.
    Without a store the runs are kept in a temporary folder and forgotten. Warns of what else should
    be known of the store, such as runs of another version of an engine, which are not used.

    **Raises:** `SpecError` for an unknown scale; `StoreError` if a run failed, with its cause.
    """
    sweeps = merged_sweeps(paper, scale)
    folder: AbstractContextManager[str | Path] = (
        tempfile.TemporaryDirectory(prefix="leadline-") if store is None else nullcontext(store)
    )
    with folder as root:
        place = Store(root)
        for sweep in sweeps:
            summary = run_sweep(sweep, place, backend=backend, workers=workers)
            if summary.exit_code:
                raise StoreError(" ".join(str(summary).split("\n")))
            for note in summary.notes:
                warnings.warn(note, LeadlineWarning, stacklevel=2)
        return {s.name: _in_order(load_runs(place, sweep=s).frame, s) for s in paper.sweeps(scale)}


def _in_order(frame: pl.DataFrame, sweep: Sweep) -> pl.DataFrame:
    """The stored runs of `sweep`, which come sorted by id, in the order of the sweep."""
    ids = [run_id(spec, engine=sweep.engine) for spec in sweep.runs]
    order = pl.DataFrame({"run_id": list(dict.fromkeys(ids))})
    return order.join(frame, on="run_id", how="left", maintain_order="left").select(frame.columns)


def reproduce(
    paper: str,
    *,
    store: Path | None = None,
    scale: str = "small",
    backend: Backend = "serial",
    workers: int = 1,
) -> pl.DataFrame:
    """The ledger of `paper`: one row a claim, with the published value, ours, the measured
    interval and the computed verdict.

    **Arguments:** `store` is a folder where runs are kept and found again; `scale` is "demo",
    "small" (minutes on two cores) or "paper"; `backend` and `workers` as in `run_sweep`.
    """
    chosen = study(paper)
    tables = answer(chosen, store=store, scale=scale, backend=backend, workers=workers)
    return pl.DataFrame(chosen.claims(tables), infer_schema_length=None)


def _place(figure: Figure) -> float:
    """The number of a figure in its paper; ours come after all of these."""
    found = re.search(r"-figure(\d+)", figure.name)
    return float(found[1]) if found else math.inf


def section(paper: Study, tables: Tables, *, command: str) -> Section:
    """The part of a report on `paper`, drawn and judged from its tables by `command`."""
    return Section(
        title=paper.title,
        figures=sorted(paper.figures(tables), key=_place),
        claims=paper.claims(tables),
        command=command,
        again=f"{command} --only",
    )
