"""The command that plans: the best sizes for a budget, from a fitted law or from exact theory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from leadline.cli.options import (
    Beta,
    Delta,
    Draws,
    Drop,
    Fixed,
    Json,
    LawName,
    Level,
    Map,
    Noise,
    Nu,
    Number,
    ObjectiveName,
    Seed,
    Shared,
    Variables,
    emit,
    extent,
    said,
)
from leadline.cli.tables import (
    fit_table,
    pairs,
    print_findings,
    print_rows,
    read_table,
    row_record,
    told_of_table,
)
from leadline.errors import LeadlineError

EXACT = ("exact", "budget", "cost", "nu", "beta", "dim", "noise", "as_json")
"""What may be said beside --exact."""
OF_THEORY = ("nu", "beta", "dim", "noise")


def plan(
    call: typer.Context,
    budget: Annotated[list[float], typer.Option(help="FLOPs; may be given several times.")],
    file: Annotated[
        str | None,
        typer.Argument(help="csv, jsonl or parquet file, or the name of a bundled table."),
    ] = None,
    law: LawName = "chinchilla",
    variables: Variables = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="Convention that counts FLOPs.", show_default="6ND; with --exact t P^2 N^2 L"
        ),
    ] = None,
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
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="From the exact theory of rotated covariances instead of a table."
        ),
    ] = False,
    nu: Nu = None,
    beta: Beta = None,
    dim: Number = "inf",
    noise: Noise = 0.0,
    as_json: Json = False,
) -> None:
    """Best sizes for a budget, from a law fitted to a table of runs, or from exact theory.

    A law in width or depth gives the best shape, whose parameters follow from width and depth.
    With --exact: the time, width, depth and context of least loss in in-context regression.
    """
    told = said(call)
    if exact:
        for name, option in told.items():
            if name not in EXACT:
                raise LeadlineError(
                    f"{option}: --exact plans from theory, not from a table; leave it out"
                )
        _plan_exactly(budget, cost or "t P^2 N^2 L", nu, beta, dim, noise, as_json=as_json)
        return
    for name, option in told.items():
        if name in OF_THEORY:
            raise LeadlineError(f"{option}: belongs to --exact; add it, or leave this out")
    if file is None:
        raise LeadlineError("file: missing; give a table of runs, or --exact for exact theory")
    from dataclasses import asdict

    from leadline.laws.intervals import bootstrap
    from leadline.planning.optimum import plan as make_plan
    from leadline.planning.tied import plan_shape

    stays = pairs("given", given)
    runs = read_table(file, columns, drop_largest_losses)
    result = fit_table(
        runs, law, variables, delta, seed, objective=objective, fixed=fixed, shared=shared
    )
    counting = cost or "6ND"
    table = bootstrap(result, draws=draws, seed=seed) if draws else None
    if stays or {"width", "depth"} & set(result.law.family.variables):
        plans = [
            plan_shape(
                result,
                flops,
                cost=counting,
                parameters=parameters,
                given=stays,
                draws=table,
                level=level,
            )
            for flops in budget
        ]
    else:
        plans = [
            make_plan(result, flops, cost=counting, draws=table, level=level) for flops in budget
        ]
    for made in plans:
        if as_json:
            record = asdict(made) | {"record": "plan", "status": result.status}
            del record["law"]
            told = [asdict(found) for found in told_of_table(runs)]
            emit(record | {"findings": told} | row_record(result))
            continue
        parts: list[str] = []
        for name, value in {**made.sizes, "loss": made.loss}.items():
            i = made.intervals.get(name)
            spread = "" if i is None else f" [{i.low:.4g}, {i.high:.4g}]"
            parts.append(f"{name} {value:.4g}{spread}")
        typer.echo(f"{made.budget:.3g} FLOPs: " + ", ".join(parts))
        _print_notes(made.notes)
    if not as_json:
        print_findings(told_of_table(runs))
        print_rows(result.rows, result.runs)


def _plan_exactly(
    budgets: list[float],
    cost: str,
    nu: float | None,
    beta: float | None,
    dim: str,
    noise: float,
    *,
    as_json: bool,
) -> None:
    """The shape of least loss at each budget, beside what the sum of four laws would advise."""
    import math
    from dataclasses import asdict

    from leadline.planning.exact import best_shape
    from leadline.spec import InContextRegression, source_capacity

    if nu is None or beta is None:
        raise LeadlineError("nu, beta: --exact needs both, the exponents of the spectrum")
    task = InContextRegression(
        spectrum=source_capacity(extent("dim", dim), nu=nu, beta=beta),
        covariance="rotated",
        context=math.inf,
        noise=noise,
    )
    for amount in budgets:
        made = best_shape(task, amount, cost=cost)
        if as_json:
            record: dict[str, Any] = {"record": "plan"} | asdict(made)
            if made.additive is not None:
                best = made.additive
                record["additive"] = {
                    name: getattr(best, name).tolist()
                    for name in ("resources", "loss", "shares", "growth", "decay")
                }
            emit(record)
            continue
        typer.echo(
            f"{made.budget:.3g} ({made.cost}): {_sizes(made.sizes)}: loss {made.loss:.5g} ± "
            f"{made.loss_error:.1g}, gamma {made.gamma:.4g}, {made.gamma_over_edge:.3g} of the edge"
        )
        if made.additive is not None:
            ratio = made.additive_loss / made.loss - 1
            typer.echo(
                f"  a sum of four laws advises {_sizes(made.additive_sizes)}: loss "
                f"{made.additive_loss:.5g}, {ratio:.2%} more"
            )
        typer.echo("  alone: " + ", ".join(f"{k} {v:.4g}" for k, v in made.alone.items()))
        _print_notes(made.notes)


def _sizes(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in sizes.items())


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        typer.echo(f"  note: {note}")
