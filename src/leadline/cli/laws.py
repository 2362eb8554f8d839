"""Commands on tables of runs: laws fitted to them, and plans."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leadline.cli.options import (
    Delta,
    Draws,
    Drop,
    FileArgument,
    Json,
    LawName,
    Level,
    Map,
    Seed,
    Variables,
    emit,
)
from leadline.errors import LeadlineError

if TYPE_CHECKING:
    from leadline.laws.fit import Fit
    from leadline.runs import Runs


def _table(file: str, mapping: list[str] | None, drop: int) -> Runs:
    from leadline import data
    from leadline.laws.read import drop_largest_losses, read_runs

    columns: dict[str, str] = {}
    for pair in mapping or []:
        ours, equals, theirs = pair.partition("=")
        if not equals:
            raise LeadlineError(f"map: got {pair!r}, expected NAME=COLUMN, such as loss=final_loss")
        if ours.strip() in columns:
            raise LeadlineError(f"map: {ours.strip()} is given twice")
        columns[ours.strip()] = theirs.strip()
    bundled = file in data.SOURCES and not os.path.exists(file)
    path = data.bundled(file) if bundled else Path(file)
    return drop_largest_losses(read_runs(path, columns=columns), drop)


def _fit(runs: Runs, law: str, variables: str | None, delta: float, seed: int) -> Fit:
    from leadline.errors import nearest
    from leadline.laws.families import CHINCHILLA, separable
    from leadline.laws.fit import Huber
    from leadline.laws.fit import fit as fit_law

    if law not in ("chinchilla", "separable"):
        known = ("chinchilla", "separable")
        raise LeadlineError(
            f"law: got {law!r}, expected chinchilla or separable{nearest(law, known)}"
        )
    if law == "chinchilla":
        if variables is not None:
            raise LeadlineError(
                "variables: the chinchilla law is in params,tokens; use --law separable"
            )
        family = CHINCHILLA
    elif variables is None:
        raise LeadlineError("variables: --law separable needs --variables, such as params,tokens")
    else:
        family = separable([name.strip() for name in variables.split(",")])
    return fit_law(family, runs, objective=Huber(delta=delta), seed=seed)


def _sizes(given: list[str] | None) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for pair in given or []:
        name, _, text = pair.partition("=")
        try:
            sizes[name.strip()] = float(text)
        except ValueError:
            raise LeadlineError(f"given: got {pair!r}, expected NAME=VALUE, depth=24") from None
    return sizes


def _rows(result: Fit) -> dict[str, Any]:
    """How many rows a fit used, and those that it did not."""
    return {"rows_used": result.rows, "rows_excluded": result.runs.excluded.to_dicts()}


def _print_rows(result: Fit) -> None:
    excluded = result.runs.excluded
    typer.echo(f"{result.rows} rows used, {excluded.height} excluded")
    for row in excluded.iter_rows(named=True):
        typer.echo(f"  row {row['row']}: {row['field']} {row['value']}: {row['reason']}")


def fit(
    file: FileArgument,
    law: LawName = "chinchilla",
    variables: Variables = None,
    delta: Delta = 1e-3,
    drop_largest_losses: Drop = 0,
    columns: Map = None,
    draws: Draws = 1000,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit a law to a table of runs, with intervals."""
    from dataclasses import asdict

    from leadline.laws.intervals import bootstrap
    from leadline.laws.intervals import intervals as intervals_of

    runs = _table(file, columns, drop_largest_losses)
    result = _fit(runs, law, variables, delta, seed)
    intervals = {}
    if draws and result.converged:
        table = bootstrap(result, draws=draws, seed=seed)
        intervals = intervals_of(result, table, level=level)
    if as_json:
        emit(
            {
                "record": "fit",
                "law": law,
                "variables": list(result.law.family.variables),
                "parameters": dict(result.law.parameters),
                "objective": result.value,
                "objective_name": "sum of Huber(log prediction - log loss)",
                "delta": delta,
                "status": result.status,
                "converged": result.converged,
                "at_bound": list(result.at_bound),
                "gradient_norm": result.gradient_norm,
                "condition_number": result.condition_number,
                "degrees_of_freedom": result.degrees_of_freedom,
                "standard_errors": result.standard_errors,
                "intervals": {k: asdict(v) for k, v in intervals.items()},
                "units": dict(result.law.units),
                "digest": result.digest,
            }
            | _rows(result)
        )
        return
    from leadline.report.text import equation

    typer.echo(equation(result))
    errors = result.standard_errors
    for name, value in result.law.parameters.items():
        i = intervals.get(name)
        spread = "" if i is None else f"  [{i.low:.6g}, {i.high:.6g}]"
        typer.echo(f"  {name:<10} {value:<12.6g}{spread}  sandwich ± {errors[name]:.3g}")
    for i in list(intervals.values())[:1]:
        typer.echo(f"  {i.level:.0%} intervals: {i.method}, unit: {i.unit}")
    typer.echo(
        f"objective {result.value:.8g} (sum of log-Huber, delta {delta:g}); status {result.status}"
    )
    _print_rows(result)


def plan(
    file: FileArgument,
    budget: Annotated[list[float], typer.Option(help="FLOPs; may be given several times.")],
    law: LawName = "chinchilla",
    variables: Variables = None,
    cost: Annotated[str, typer.Option(help="Convention that counts FLOPs.")] = "6ND",
    parameters: Annotated[
        str, typer.Option(help="Convention that counts parameters, for a law in width or depth.")
    ] = "non-embedding",
    given: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: a size that stays, such as depth=24 or context=4096."),
    ] = None,
    delta: Delta = 1e-3,
    drop_largest_losses: Drop = 0,
    columns: Map = None,
    draws: Draws = 1000,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Best sizes for a budget, from a law fitted to a table of runs.

    A law in width or depth gives the best shape, whose parameters follow from width and depth.
    """
    from dataclasses import asdict

    from leadline.laws.intervals import bootstrap
    from leadline.planning.optimum import plan as make_plan
    from leadline.planning.tied import plan_shape

    fixed = _sizes(given)

    runs = _table(file, columns, drop_largest_losses)
    result = _fit(runs, law, variables, delta, seed)
    table = bootstrap(result, draws=draws, seed=seed) if draws else None
    if fixed or {"width", "depth"} & set(result.law.family.variables):
        plans = [
            plan_shape(
                result,
                flops,
                cost=cost,
                parameters=parameters,
                given=fixed,
                draws=table,
                level=level,
            )
            for flops in budget
        ]
    else:
        plans = [make_plan(result, flops, cost=cost, draws=table, level=level) for flops in budget]
    for made in plans:
        if as_json:
            record = asdict(made) | {"record": "plan", "status": result.status} | _rows(result)
            del record["law"]
            emit(record)
            continue
        parts: list[str] = []
        for name, value in {**made.sizes, "loss": made.loss}.items():
            i = made.intervals.get(name)
            spread = "" if i is None else f" [{i.low:.4g}, {i.high:.4g}]"
            parts.append(f"{name} {value:.4g}{spread}")
        typer.echo(f"{made.budget:.3g} FLOPs: " + ", ".join(parts))
        for note in made.notes:
            typer.echo(f"  note: {note}")
    if not as_json:
        _print_rows(result)
