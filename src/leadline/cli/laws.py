"""Commands on tables of runs: what is wrong with them, and laws fitted to them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from leadline.cli.options import (
    Delta,
    Draws,
    Drop,
    FileArgument,
    Fixed,
    Json,
    LawName,
    Level,
    Map,
    ObjectiveName,
    Seed,
    Shared,
    Variables,
    emit,
)
from leadline.cli.tables import (
    family_of,
    fit_table,
    objective_of,
    pairs,
    print_findings,
    print_rows,
    read_table,
    row_record,
    told_of_table,
)
from leadline.errors import LeadlineError


def fit(
    file: FileArgument,
    law: LawName = "chinchilla",
    variables: Variables = None,
    objective: ObjectiveName = "huber",
    delta: Delta = 1e-3,
    fixed: Fixed = None,
    shared: Shared = None,
    drop_largest_losses: Drop = 0,
    columns: Map = None,
    draws: Draws = 1000,
    profile: Annotated[
        bool, typer.Option("--profile", help="Intervals from the profile likelihood.")
    ] = False,
    level: Level = 0.95,
    save: Annotated[
        Path | None, typer.Option(help="Write the law here, complete and lossless.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fit a law to a table of runs, with intervals and what to know about it."""
    from dataclasses import asdict

    from leadline.claims import Interval
    from leadline.laws.artifact import save_law
    from leadline.laws.identify import explain
    from leadline.laws.intervals import bootstrap
    from leadline.laws.intervals import intervals as intervals_of
    from leadline.laws.profiles import profile as profile_of

    runs = read_table(file, columns, drop_largest_losses)
    result = fit_table(
        runs, law, variables, delta, seed, objective=objective, fixed=fixed, shared=shared
    )
    intervals: dict[str, Interval] = {}
    if profile:
        free = [n for n in result.law.parameters if n not in result.restriction.fixed]
        intervals = {name: profile_of(result, name, level=level) for name in free}
    elif draws and result.converged:
        table = bootstrap(result, draws=draws, seed=seed)
        intervals = dict(intervals_of(result, table, level=level))
    findings = (*told_of_table(runs), *explain(result))
    if save is not None:
        try:
            save_law(result, save, intervals=intervals)
        except OSError as error:
            raise LeadlineError(f"{save}: cannot write the law ({error.strerror})") from None
    if as_json:
        kept = [f.name for f in fields(Interval)]
        emit(
            {
                "record": "fit",
                "law": law,
                "variables": list(result.law.family.variables),
                "parameters": dict(result.law.parameters),
                "objective": result.value,
                "objective_name": objective,
                "delta": delta if "huber" in objective else None,
                "status": result.status,
                "converged": result.converged,
                "at_bound": list(result.at_bound),
                "gradient_norm": result.gradient_norm,
                "condition_number": result.condition_number,
                "degrees_of_freedom": result.degrees_of_freedom,
                "standard_errors": result.standard_errors,
                "intervals": {
                    name: {key: getattr(i, key) for key in kept} for name, i in intervals.items()
                },
                "findings": [asdict(found) for found in findings],
                "units": dict(result.law.units),
                "digest": result.digest,
            }
            | row_record(result)
        )
        return
    typer.echo(result.law.equation)
    errors = result.standard_errors
    for name, value in result.law.parameters.items():
        i = intervals.get(name)
        spread = "" if i is None else f"  [{i.low:.6g}, {i.high:.6g}]"
        typer.echo(f"  {name:<10} {value:<12.6g}{spread}  sandwich ± {errors[name]:.3g}")
    for i in list(intervals.values())[:1]:
        typer.echo(f"  {i.level:.0%} intervals: {i.method}, unit: {i.unit}")
    typer.echo(f"objective {result.value:.8g} ({result.objective}); status {result.status}")
    print_findings(findings)
    print_rows(result.rows, result.runs)


def inspect(
    file: FileArgument,
    drop_largest_losses: Drop = 0,
    columns: Map = None,
    as_json: Json = False,
) -> None:
    """What is wrong with which rows of a table, before any law is fitted."""
    from dataclasses import asdict

    from leadline.laws.doctor import inspect_runs

    runs = read_table(file, columns, drop_largest_losses)
    findings = inspect_runs(runs)
    if as_json:
        for found in findings:
            emit({"record": "finding"} | asdict(found))
        for row in runs.excluded.iter_rows(named=True):
            emit({"record": "excluded"} | row)
        return
    for name, unit, least, most, missing in runs.card().rows:
        gap = f", {missing} missing" if missing else ""
        typer.echo(f"  {name:<12} {least:>10} to {most:<10} {unit}{gap}")
    print_findings(findings)
    typer.echo(f"findings: {len(findings)}")
    print_rows(len(runs), runs)


def forecast(
    law: Annotated[Path, typer.Argument(help="A law.json that fit --save wrote.")],
    at: Annotated[
        list[str], typer.Option(help="Sizes, params=7e10,tokens=1.4e12; may be given again.")
    ],
    level: Level = 0.95,
    as_json: Json = False,
) -> None:
    """Loss at sizes of your choice, from a saved law alone."""
    from leadline.laws.artifact import load_law
    from leadline.laws.forecast import forecast as forecast_of

    saved = load_law(law)
    for text in at:
        sizes = pairs("at", text.split(","))
        row = forecast_of(saved, {k: [v] for k, v in sizes.items()}, level=level).row(0, named=True)
        if as_json:
            emit({"record": "forecast"} | row)
            continue
        typer.echo(
            f"{text}: loss {row['loss']:.5g}, law [{row['low']:.5g}, {row['high']:.5g}], one more "
            f"run [{row['run_low']:.5g}, {row['run_high']:.5g}] ({row['level']:.0%}, "
            f"{row['method']}, unit: {row['unit']}; {row['reach']:.3g} times outside the data)"
        )


def compare(
    file: FileArgument,
    laws: Annotated[
        list[str],
        typer.Option("--law", help="NAME or NAME:VARIABLES, separable:width,depth."),
    ],
    holdout: Annotated[float, typer.Option(help="Share or number of largest runs held out.")] = 0.2,
    by: Annotated[str | None, typer.Option(help="Column that says which runs are largest.")] = None,
    groups: Annotated[str | None, typer.Option(help="Column whose values are left out.")] = None,
    objective: ObjectiveName = "huber",
    delta: Delta = 1e-3,
    drop_largest_losses: Drop = 0,
    columns: Map = None,
    draws: Annotated[int, typer.Option(min=1, help="Tables for each likelihood ratio.")] = 99,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How well laws predict runs larger than those they were fitted to."""
    from leadline.laws.compare import compare as compare_laws

    families = [
        family_of(name, variables) for name, _, variables in (x.partition(":") for x in laws)
    ]
    table = compare_laws(
        families,
        read_table(file, columns, drop_largest_losses),
        holdout=holdout,
        by=by,
        groups=groups,
        objective=objective_of(objective, delta),
        level=level,
        draws=draws,
        seed=seed,
    )
    for row in table.iter_rows(named=True):
        if as_json:
            emit({"record": "comparison"} | row)
            continue
        value = "not given" if row["value"] is None else f"{row['value']:.5g}"
        spread = "" if row["low"] is None else f" [{row['low']:.5g}, {row['high']:.5g}]"
        typer.echo(f"{row['family']:<30} {row['measure']:<18} {value}{spread}  {row['method']}")
