"""Commands on in-context regression: theory and simulation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from leadline.cli.options import (
    Beta,
    Covariance,
    Json,
    Noise,
    Nu,
    Number,
    SpecFile,
    emit,
    extent,
    said,
)
from leadline.errors import LeadlineError

if TYPE_CHECKING:
    from leadline.curve import Curve
    from leadline.spec import RunSpec


def _read_spec(call: typer.Context, path: Path, *, beside: tuple[str, ...]) -> RunSpec:
    """The run that a file specifies; only the options `beside` may add to it."""
    from leadline.errors import SpecError
    from leadline.ident import from_json
    from leadline.spec import RunSpec

    for name, option in said(call).items():
        if name not in beside:
            raise LeadlineError(f"{option}: the file {path} says this; leave it out")
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
    size = extent("dim", dim)
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
            context=extent("context", context),
            noise=noise,
        ),
        model=ReducedAttention(depth=extent("depth", depth)),
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
            emit(identity | {"status": curve.status, "scalars": dict(curve.scalars)} | values)
            continue
        scalars = ", ".join(f"{k} {v:.6g}" for k, v in curve.scalars)
        who = f"seed {spec.seed}, " if len(specs) > 1 and engine == "simulation" else ""
        for i, (step, time, _, _, loss, error) in enumerate(points):
            steps = f"{who}step {step:g}, " if engine == "simulation" or step else ""
            where = "" if time != time else f"{steps}time {time:.6g}: "
            # scalars are those of the last point
            told = f"; {scalars}" if scalars and i == len(curve.loss) - 1 else ""
            typer.echo(f"{where}loss {loss:.8g} ± {error:.1g} ({curve.status}{told})")


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
        assert specs.is_regression(run)
        recipe = specs.Training(
            steps=steps,
            batch_size=batch_size,
            queries=extent("queries", queries),
            rate=0.05 * run.task.spectrum.dim if rate is None else rate,
        )
        points = {round(steps * i / records) for i in range(records + 1)}
        run = specs.replace(run, "recipe", recipe)
        measured = specs.Evaluation(contexts=contexts, record=tuple(sorted(points)))
        run = specs.replace(run, "evaluation", measured)
    runs = list(specs.grid(run, {"seed": range(run.seed, run.seed + seeds)}))
    total = run.recipe.steps * seeds if isinstance(run.recipe, specs.Training) else seeds
    with progress_bar("training", total) as show:
        curves = simulate(runs, observe=lambda now, _: show(now))
    _print_curves(runs, curves, "simulation", as_json=as_json)
