"""The command line: argument parsing only. Each command imports what it needs when it runs."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from leadline.errors import LeadlineError

if TYPE_CHECKING:
    from leadline.curve import Curve
    from leadline.laws.fit import Fit
    from leadline.runs import Runs
    from leadline.spec import RunSpec

app = typer.Typer(
    name="leadline",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure what depth, width, context and time buy a transformer.",
)

EXTRAS = {"jax": "simulation", "matplotlib": "report", "jinja2": "report"}
"""The extra that installs each package which is not always there."""


def _level(value: float) -> float:
    if not 0 < value < 1:
        raise LeadlineError(f"level: got {value}, expected a number between 0 and 1")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON, one record a line.")]
FileArgument = Annotated[
    str, typer.Argument(help="csv, jsonl or parquet file, or the name of a bundled table.")
]
LawName = Annotated[str, typer.Option("--law", help="chinchilla or separable.")]
Variables = Annotated[
    str | None, typer.Option(help="Variables of a separable law, such as width,depth,tokens.")
]
Delta = Annotated[float, typer.Option(help="Width of the Huber loss of log residuals.")]
Drop = Annotated[
    int, typer.Option(min=0, help="Leave out the largest losses, this many, and ties.")
]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", help="NAME=COLUMN: which column is loss, params, tokens, ..."),
]
Draws = Annotated[int, typer.Option(min=0, help="Bootstrap draws for the intervals; 0 for none.")]
Level = Annotated[float, typer.Option(callback=_level, help="Level of the intervals.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the starts and of the draws.")]
SpecFile = Annotated[
    Path | None, typer.Option("--spec", help="A run specification in JSON, instead of the options.")
]
Covariance = Annotated[str, typer.Option(help="isotropic, fixed or rotated.")]
Number = Annotated[str, typer.Option(help="A whole number, or inf.")]
Noise = Annotated[float, typer.Option(help="Standard deviation of the label noise in context.")]
Nu = Annotated[float | None, typer.Option(help="Input exponent of a power-law spectrum.")]
Beta = Annotated[float | None, typer.Option(help="Source exponent of a power-law spectrum.")]
Store = Annotated[Path | None, typer.Option(help="Folder that keeps the runs.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes that run at the same time.", show_default="2")
]
PaperName = Annotated[str, typer.Argument(help="Name of the paper, such as bordelon2025.")]


def _extent(name: str, text: str) -> int | float:
    try:
        return float(text) if text in ("inf", "infinity") else int(text)
    except ValueError:
        raise LeadlineError(f"{name}: got {text!r}, expected a whole number or inf") from None


def _read_spec(call: typer.Context, path: Path, *, beside: tuple[str, ...]) -> RunSpec:
    """The run that a file specifies; only the options `beside` may add to it."""
    from leadline.errors import SpecError
    from leadline.ident import from_json
    from leadline.spec import RunSpec

    for parameter in call.command.params:
        name = parameter.name or ""
        source = call.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in beside:
            raise LeadlineError(f"{parameter.opts[0]}: the file {path} says this; leave it out")
    try:
        spec = from_json(path.read_text("utf-8"))
    except OSError as error:
        raise LeadlineError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, SpecError) as error:
        raise LeadlineError(f"{path}: {error}") from None
    if not isinstance(spec, RunSpec):
        raise LeadlineError(f"{path}: holds a {type(spec).__name__}, expected a RunSpec")
    return spec


def _run_spec(
    *,
    covariance: str,
    dim: str,
    context: str,
    depth: str,
    noise: float,
    nu: float | None,
    beta: float | None,
) -> RunSpec:
    """The run of the options, with the best scale as its recipe."""
    from leadline.spec import (
        BestScale,
        InContextRegression,
        ReducedAttention,
        RunSpec,
        check_value,
        field_hints,
        flat,
        source_capacity,
    )

    check_value("covariance", covariance, field_hints(InContextRegression)["covariance"])
    size = _extent("dim", dim)
    if (nu is None) != (beta is None):
        raise LeadlineError("nu, beta: a power-law spectrum needs both --nu and --beta")
    if nu is not None and beta is not None:
        if covariance == "isotropic":
            raise LeadlineError(
                "nu, beta: an isotropic spectrum is flat; use --covariance fixed or rotated"
            )
        spectrum = source_capacity(size, nu=nu, beta=beta)
    elif covariance != "isotropic":
        raise LeadlineError(f"covariance: {covariance!r} needs a spectrum: give --nu and --beta")
    else:
        spectrum = flat(int(size)) if size != float("inf") else _no_flat()
    return RunSpec(
        task=InContextRegression(
            spectrum=spectrum,
            covariance=covariance,  # type: ignore[arg-type]  # checked by the spec
            context=_extent("context", context),
            noise=noise,
        ),
        model=ReducedAttention(depth=_extent("depth", depth)),
        recipe=BestScale(),
    )


def _no_flat() -> NoReturn:
    raise LeadlineError("dim: an isotropic task needs a finite dim; context over dim is its ratio")


def _print_curves(specs: list[RunSpec], curves: list[Curve], engine: Any, *, as_json: bool) -> None:
    from leadline.ident import run_id

    for spec, curve in zip(specs, curves, strict=True):
        columns = ("step", "time", "tokens", "flops", "loss", "loss_error")
        points = zip(*(getattr(curve, c).tolist() for c in columns), strict=True)
        if as_json:
            identity = {"record": "run", "run_id": run_id(spec, engine=engine), "engine": engine}
            values = {c: getattr(curve, c).tolist() for c in columns}
            _emit(identity | {"status": curve.status, "scalars": dict(curve.scalars)} | values)
            continue
        scalars = ", ".join(f"{k} {v:.6g}" for k, v in curve.scalars)
        for step, time, _, _, loss, error in points:
            steps = f"step {step:g}, " if engine == "simulation" or step else ""
            where = "" if time != time else f"{steps}time {time:.6g}: "
            typer.echo(f"{where}loss {loss:.8g} ± {error:.1g} ({curve.status}; {scalars})")


def _plain(value: Any) -> Any:
    """`value` as JSON data: null for what is not a number, text for infinity."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_plain(v) for v in cast(list[Any], value)]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else ("inf" if value > 0 else "-inf")


def _emit(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(_plain(record), allow_nan=False))


@app.command()
def predict(
    call: typer.Context,
    spec: SpecFile = None,
    covariance: Covariance = "isotropic",
    dim: Number = "1000",
    context: Number = "1000",
    depth: Number = "1",
    noise: Noise = 0.0,
    nu: Nu = None,
    beta: Beta = None,
    gamma: Annotated[float | None, typer.Option(help="Loss at this scale.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Least loss over the scale.")] = False,
    landscape: Annotated[
        int | None,
        typer.Option(min=1, help="Loss at this many scales up to the edge of stability."),
    ] = None,
    times: Annotated[
        str | None, typer.Option(help="Gradient flow at these times, such as 1,10,100.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Loss of in-context regression by theory."""
    from leadline import spec as specs
    from leadline.theory.predict import predict as solve

    if spec is not None:
        run = _read_spec(
            call, spec, beside=("spec", "gamma", "best", "landscape", "times", "as_json")
        )
    else:
        run = _run_spec(
            covariance=covariance,
            dim=dim,
            context=context,
            depth=depth,
            noise=noise,
            nu=nu,
            beta=beta,
        )
    if sum([gamma is not None, best, landscape is not None, times is not None]) > 1:
        raise LeadlineError("choose one of --gamma, --best, --landscape and --times")
    recipes: list[specs.Recipe] = [run.recipe]
    if gamma is not None:
        recipes = [specs.GivenScale(gamma=gamma)]
    elif best:
        recipes = [specs.BestScale()]
    elif times is not None:
        recipes = [specs.GradientFlow(times=tuple(_floats("times", times)))]
    elif landscape is not None:
        edge = solve(specs.replace(run, "recipe", specs.GivenScale(gamma=0.0))).scalar("edge")
        if math.isinf(edge):
            raise LeadlineError("landscape: infinite depth has no edge of stability; give --gamma")
        recipes = [specs.GivenScale(gamma=edge * i / landscape) for i in range(1, landscape + 1)]
    runs = [specs.replace(run, "recipe", recipe) for recipe in recipes]
    _print_curves(runs, [solve(r) for r in runs], "theory", as_json=as_json)


def _floats(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise LeadlineError(f"{name}: got {text!r}, expected numbers such as 1,10,100") from None


@app.command()
def train(
    call: typer.Context,
    spec: SpecFile = None,
    covariance: Covariance = "isotropic",
    dim: Number = "64",
    context: Number = "64",
    depth: Number = "1",
    noise: Noise = 0.0,
    nu: Nu = None,
    beta: Beta = None,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent.")] = 100,
    batch_size: Annotated[int, typer.Option(help="Contexts a step.")] = 64,
    queries: Annotated[str, typer.Option(help="Query tokens a context, or inf.")] = "inf",
    rate: Annotated[
        float | None, typer.Option(help="Learning rate; default 0.05 dim (0.05 time a step).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs with seeds 0, 1, ...")] = 1,
    records: Annotated[int, typer.Option(min=1, help="Points recorded after the start.")] = 10,
    contexts: Annotated[int, typer.Option(help="Contexts that measure the loss.")] = 64,
    as_json: Json = False,
) -> None:
    """Train the reduced transformer by simulation."""
    from leadline import spec as specs
    from leadline.simulation.train import train as simulate
    from leadline.sweeps.progress import progress_bar

    if spec is not None:
        run = _read_spec(call, spec, beside=("spec", "seeds", "as_json"))
    else:
        run = _run_spec(
            covariance=covariance,
            dim=dim,
            context=context,
            depth=depth,
            noise=noise,
            nu=nu,
            beta=beta,
        )
    if spec is None:
        recipe = specs.Training(
            steps=steps,
            batch_size=batch_size,
            queries=_extent("queries", queries),
            rate=0.05 * run.task.spectrum.dim if rate is None else rate,
        )
        points = {round(steps * i / records) for i in range(records + 1)}
        run = specs.replace(run, "recipe", recipe)
        measured = specs.Evaluation(contexts=contexts, record=tuple(sorted(points)))
        run = specs.replace(run, "evaluation", measured)
    runs = list(specs.grid(run, {"seed": range(run.seed, run.seed + seeds)}))
    total = run.recipe.steps * seeds if isinstance(run.recipe, specs.Training) else seeds
    done = 0
    with progress_bar("training", total) as advance:

        def observe(now: int, _: int) -> None:
            nonlocal done
            advance(now - done)
            done = now

        curves = simulate(runs, observe=observe)
    _print_curves(runs, curves, "simulation", as_json=as_json)


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


def _rows(result: Fit) -> dict[str, Any]:
    """How many rows a fit used, and those that it did not."""
    return {"rows_used": result.rows, "rows_excluded": result.runs.excluded.to_dicts()}


def _print_rows(result: Fit) -> None:
    excluded = result.runs.excluded
    typer.echo(f"{result.rows} rows used, {excluded.height} excluded")
    for row in excluded.iter_rows(named=True):
        typer.echo(f"  row {row['row']}: {row['field']} {row['value']}: {row['reason']}")


@app.command()
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
        _emit(
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


@app.command()
def plan(
    file: FileArgument,
    budget: Annotated[list[float], typer.Option(help="FLOPs; may be given several times.")],
    law: LawName = "chinchilla",
    variables: Variables = None,
    cost: Annotated[str, typer.Option(help="Convention that counts FLOPs.")] = "6ND",
    delta: Delta = 1e-3,
    drop_largest_losses: Drop = 0,
    columns: Map = None,
    draws: Draws = 1000,
    level: Level = 0.95,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Best sizes for a budget, from a law fitted to a table of runs."""
    from dataclasses import asdict

    from leadline.laws.intervals import bootstrap
    from leadline.planning.optimum import plan as make_plan

    runs = _table(file, columns, drop_largest_losses)
    result = _fit(runs, law, variables, delta, seed)
    table = bootstrap(result, draws=draws, seed=seed) if draws else None
    plans = [make_plan(result, flops, cost=cost, draws=table, level=level) for flops in budget]
    for made in plans:
        if as_json:
            _emit(
                {
                    "record": "plan",
                    "budget": made.budget,
                    "cost": cost,
                    "sizes": dict(made.sizes),
                    "loss": made.loss,
                    "floor": made.floor,
                    "shares": dict(made.shares),
                    "growth": dict(made.growth),
                    "intervals": {k: asdict(v) for k, v in made.intervals.items()},
                    "reach": dict(made.reach),
                    "notes": list(made.notes),
                    "status": result.status,
                }
                | _rows(result)
            )
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


@app.command()
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
    if scale not in papers.SCALES:
        raise LeadlineError(f"scale: got {scale!r}, expected one of {', '.join(papers.SCALES)}")
    if report is not None:
        _check_page(report)
    tables = papers.answer(
        study, store=store, scale=scale, backend="process", workers=_crew(workers)
    )
    for claim in study.claims(tables):
        if as_json:
            _emit(claim)
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


@app.command()
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


def main() -> None:
    """Run the command line; an error of the user's is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except LeadlineError as error:
        code = _refuse(str(error))
    except typer.TyperException as error:
        code = _refuse(error.format_message())
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        code = _refuse(f"{error.name} is not installed; pip install leadline[{extra}]")
    except KeyboardInterrupt as error:
        typer.echo(str(error) or "stopped", err=True)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(message: str) -> int:
    typer.echo("error: " + " ".join(message.split()), err=True)
    return 2
