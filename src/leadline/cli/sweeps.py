"""Commands on sweeps and on the store of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leadline.cli.options import Json, emit
from leadline.errors import LeadlineError

if TYPE_CHECKING:
    from leadline.spec import Sweep

StorePath = Annotated[Path, typer.Option(help="Folder that keeps the runs.")]


def _sweeps(target: str, scale: str) -> list[Sweep]:
    """The sweep of FILE.py:function, or those of a paper, one for each engine."""
    from leadline.sweeps.definition import load_sweep

    if ":" in target or target.endswith(".py"):
        return [load_sweep(target)]
    from leadline.papers import merged_sweeps, study

    return merged_sweeps(study(target), scale)


def sweep(
    target: Annotated[str, typer.Argument(help="FILE.py:function, or the name of a paper.")],
    store: StorePath,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="PATH=VALUE for every run, recipe.rate=0.01.")
    ] = None,
    scale: Annotated[str, typer.Option(help="Scale of a paper: demo, small or paper.")] = "small",
    backend: Annotated[str, typer.Option(help="serial, process or ray.")] = "process",
    workers: Annotated[int, typer.Option(help="Groups of runs answered at the same time.")] = 1,
    shard: Annotated[str, typer.Option(help="i/n: only the i-th of n parts, from 0.")] = "0/1",
    ray_address: Annotated[str | None, typer.Option(help="Address of a Ray cluster.")] = None,
    ray_gpus: Annotated[float, typer.Option(help="GPUs that each group reserves on Ray.")] = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count and measure, store nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Answer the runs of a sweep that the store lacks."""
    from leadline.sweeps.definition import override, parse_shard
    from leadline.sweeps.estimate import estimate
    from leadline.sweeps.runner import run_sweep
    from leadline.sweeps.store import Store

    place, part = Store(store), parse_shard(shard)
    code = 0
    for chosen in _sweeps(target, scale):
        changed = override(chosen, settings or [])
        if dry_run:
            expected = estimate(changed, place, workers=workers, shard=part)
            record: dict[str, Any] = {"record": "estimate", "sweep": expected.sweep}
            for name in ("runs", "stored", "groups", "flops", "seconds", "error"):
                record[name] = getattr(expected, name)
            emit(record) if as_json else typer.echo(str(expected))
            code = max(code, 1 if expected.error or expected.skipped else 0)
            continue
        summary = run_sweep(
            changed,
            place,
            backend=backend,  # type: ignore[arg-type]  # checked by run_sweep
            workers=workers,
            shard=part,
            ray_address=ray_address,
            ray_gpus=ray_gpus,
        )
        if as_json:
            record = {"record": "sweep", "sweep": summary.sweep, "store": str(store)}
            for name in ("wanted", "stored", "answered", "failed", "errors", "skipped", "notes"):
                record[name] = getattr(summary, name)
            emit(record | {"seconds": summary.seconds, "exit_code": summary.exit_code})
        else:
            typer.echo(str(summary), err=bool(summary.exit_code))
        code = max(code, summary.exit_code)
    if code:
        raise typer.Exit(code)


def runs(
    store: Annotated[Path, typer.Argument(help="Folder that keeps the runs.")],
    where: Annotated[
        list[str] | None, typer.Option(help='Only these runs: "depth=4", "loss<0.1".')
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the runs as csv, jsonl or parquet, by the suffix.")
    ] = None,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="Also where and when each run was made.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Rows shown.")] = 40,
    as_json: Json = False,
) -> None:
    """List, filter and export stored runs."""
    import polars as pl

    from leadline.sweeps import listing
    from leadline.sweeps.store import Store, load_runs

    if limit < 1:
        raise LeadlineError(f"limit: got {limit}, expected at least 1")
    stored = load_runs(Store(store), provenance=provenance)
    chosen = listing.select(stored, where or [])
    if export is not None:
        for note in listing.export(chosen, export):
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"{len(chosen)} runs written to {export}", err=as_json)
    elif as_json:
        lists = [n for n, kind in chosen.frame.schema.items() if kind.is_nested()]
        for row in chosen.frame.drop(lists).iter_rows(named=True):
            emit({"record": "run"} | row)
    else:
        shown = listing.overview(chosen) if len(chosen) else chosen.frame
        with pl.Config(tbl_rows=limit, tbl_cols=-1, tbl_hide_dataframe_shape=True):
            typer.echo(str(shown.head(limit)))
        typer.echo(f"{len(chosen)} of {len(stored)} runs in {store}")
    for row in stored.excluded.iter_rows(named=True):
        typer.echo(f"{row['field']} {row['value']}: skipped: {row['reason']}", err=True)
    if stored.excluded.height:
        raise typer.Exit(1)
