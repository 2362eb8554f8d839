"""What the commands on tables of runs share: reading one, fitting a law to it, saying its rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from leadline.errors import LeadlineError

if TYPE_CHECKING:
    from leadline.laws.families import Family
    from leadline.laws.findings import Finding
    from leadline.laws.fit import Fit
    from leadline.laws.objectives import Objective
    from leadline.runs import Runs


def read_table(file: str, mapping: list[str] | None, drop: int) -> Runs:
    """The runs of a file or of a bundled table, without the `drop` largest losses."""
    from leadline import data
    from leadline.errors import nearest
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
    close = nearest(file, data.SOURCES)
    if close and not bundled and not os.path.exists(file):
        raise LeadlineError(f"{file}: no such file, nor a bundled table of that name{close}")
    path = data.bundled(file) if bundled else Path(file)
    return drop_largest_losses(read_runs(path, columns=columns), drop)


def family_of(law: str, variables: str | None) -> Family:
    """The family called `law`, over the comma-separated `variables`."""
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


def objective_of(name: str, delta: float) -> Objective:
    """The objective called `name`."""
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


def fit_table(
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
    """The law that the options of a command describe, fitted to `runs`."""
    from leadline.laws.fit import fit as fit_law

    return fit_law(
        family_of(law, variables),
        runs,
        objective=objective_of(objective, delta),
        fixed=pairs("fixed", fixed) or None,
        shared=[[name.strip() for name in group.split(",")] for group in shared or []],
        seed=seed,
    )


def pairs(option: str, given: list[str] | None) -> dict[str, float]:
    """The numbers of NAME=VALUE pairs."""
    pairs: dict[str, float] = {}
    for pair in given or []:
        name, _, text = pair.partition("=")
        try:
            pairs[name.strip()] = float(text)
        except ValueError:
            raise LeadlineError(f"{option}: got {pair!r}, expected NAME=VALUE") from None
    return pairs


def print_findings(findings: Sequence[Finding]) -> None:
    """One line a finding."""
    for found in findings:
        typer.echo(f"{found.severity} {found.code}: {found.message}")


def row_record(result: Fit) -> dict[str, Any]:
    """How many rows a fit used, and those that it did not."""
    return {"rows_used": result.rows, "rows_excluded": result.runs.excluded.to_dicts()}


def told_of_table(runs: Runs) -> tuple[Finding, ...]:
    """What makes a fit of this table meaningless: errors, and counts in another unit."""
    from leadline.laws.doctor import inspect_runs

    grave = ("units", "mixed-units")
    return tuple(f for f in inspect_runs(runs) if f.severity == "error" or f.code in grave)


def print_rows(used: int, runs: Runs) -> None:
    """How many rows were used, and each that was not, with the reason."""
    excluded = runs.excluded
    typer.echo(f"{used} rows used, {excluded.height} excluded")
    for row in excluded.iter_rows(named=True):
        typer.echo(f"  row {row['row']}: {row['field']} {row['value']}: {row['reason']}")
