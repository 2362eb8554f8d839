"""Commands on tables of runs: laws fitted to them, and plans."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from leadline.errors import LeadlineError

if TYPE_CHECKING:
    from leadline.laws.families import Family
    from leadline.laws.findings import Finding
    from leadline.laws.fit import Fit
    from leadline.laws.objectives import Objective
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


def _family(law: str, variables: str | None) -> Family:
    from leadline.errors import nearest
    from leadline.laws import families, forms

    names = [name.strip() for name in variables.split(",")] if variables else []
    alone = {"chinchilla": families.CHINCHILLA, "kaplan": forms.KAPLAN}
    if law in alone:
        if names:
            raise LeadlineError(
                f"variables: the {law} law is in params,tokens; use --law separable"
            )
        return alone[law]
    many = {
        "separable": families.separable,
        "turning": forms.turning,
        "rotated": forms.rotated_covariance,
    }
    single = {"power": families.power_law, "broken": forms.broken}
    if law not in many and law not in single:
        known = (*alone, *many, *single)
        raise LeadlineError(
            f"law: got {law!r}, expected one of {', '.join(known)}{nearest(law, known)}"
        )
    if not names:
        raise LeadlineError(f"variables: --law {law} needs --variables, such as params,tokens")
    if law in many:
        return many[law](names)
    if len(names) > 1:
        raise LeadlineError(f"variables: the {law} law has one variable, got {', '.join(names)}")
    return single[law](names[0])


def _objective(name: str, delta: float) -> Objective:
    from leadline.errors import nearest
    from leadline.laws.objectives import AsymmetricAbsolute, Huber, LeastSquares, StudentT

    known = {
        "huber": lambda: Huber(delta=delta),
        "raw-huber": lambda: Huber(delta=delta, residual="raw"),
        "least-squares": lambda: LeastSquares(),
        "raw-least-squares": lambda: LeastSquares(residual="raw"),
        "student-t": lambda: StudentT(),
        "raw-student-t": lambda: StudentT(residual="raw"),
        "asymmetric": lambda: AsymmetricAbsolute(),
    }
    if name not in known:
        raise LeadlineError(
            f"objective: got {name!r}, expected one of {', '.join(known)}{nearest(name, known)}"
        )
    return known[name]()


def _fit(
    runs: Runs,
    law: str,
    variables: str | None,
    delta: float,
    seed: int,
    *,
    objective: str = "huber",
    fixed: list[str] | None = None,
    shared: list[str] | None = None,
) -> Fit:
    from leadline.laws.fit import fit as fit_law

    return fit_law(
        _family(law, variables),
        runs,
        objective=_objective(objective, delta),
        fixed=_pairs("fixed", fixed) or None,
        shared=[[name.strip() for name in group.split(",")] for group in shared or []],
        seed=seed,
    )


def _pairs(option: str, given: list[str] | None) -> dict[str, float]:
    pairs: dict[str, float] = {}
    for pair in given or []:
        name, _, text = pair.partition("=")
        try:
            pairs[name.strip()] = float(text)
        except ValueError:
            raise LeadlineError(f"{option}: got {pair!r}, expected NAME=VALUE") from None
    return pairs


def _print_findings(findings: Sequence[Finding]) -> None:
    for found in findings:
        typer.echo(f"{found.severity} {found.code}: {found.message}")


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

    runs = _table(file, columns, drop_largest_losses)
    result = _fit(
        runs, law, variables, delta, seed, objective=objective, fixed=fixed, shared=shared
    )
    intervals: dict[str, Interval] = {}
    if profile:
        free = [n for n in result.law.parameters if n not in result.restriction.fixed]
        intervals = {name: profile_of(result, name, level=level) for name in free}
    elif draws and result.converged:
        table = bootstrap(result, draws=draws, seed=seed)
        intervals = dict(intervals_of(result, table, level=level))
    findings = explain(result)
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
    typer.echo(f"objective {result.value:.8g} ({result.objective}); status {result.status}")
    _print_findings(findings)
    _print_rows(result)


def inspect(
    file: FileArgument,
    drop_largest_losses: Drop = 0,
    columns: Map = None,
    as_json: Json = False,
) -> None:
    """What is wrong with which rows of a table, before any law is fitted."""
    from dataclasses import asdict

    from leadline.laws.doctor import inspect_runs

    runs = _table(file, columns, drop_largest_losses)
    findings = inspect_runs(runs)
    if as_json:
        for found in findings:
            emit({"record": "finding"} | asdict(found))
        return
    _print_findings(findings)
    excluded = runs.excluded.height
    typer.echo(f"{len(runs)} rows, {excluded} excluded, {len(findings)} findings")


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
        sizes = _pairs("at", text.split(","))
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

    families = [_family(name, variables) for name, _, variables in (x.partition(":") for x in laws)]
    table = compare_laws(
        families,
        _table(file, columns, drop_largest_losses),
        holdout=holdout,
        by=by,
        groups=groups,
        objective=_objective(objective, delta),
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
    objective: ObjectiveName = "huber",
    delta: Delta = 1e-3,
    fixed: Fixed = None,
    shared: Shared = None,
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

    stays = _pairs("given", given)
    runs = _table(file, columns, drop_largest_losses)
    result = _fit(
        runs, law, variables, delta, seed, objective=objective, fixed=fixed, shared=shared
    )
    table = bootstrap(result, draws=draws, seed=seed) if draws else None
    if stays or {"width", "depth"} & set(result.law.family.variables):
        plans = [
            plan_shape(
                result,
                flops,
                cost=cost,
                parameters=parameters,
                given=stays,
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
