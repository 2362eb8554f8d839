"""Options that several commands share, and JSON records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from leadline.errors import LeadlineError


def _level(value: float) -> float:
    if not 0 < value < 1:
        raise LeadlineError(f"level: got {value}, expected a number between 0 and 1")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON, one record a line.")]
FileArgument = Annotated[
    str, typer.Argument(help="csv, jsonl or parquet file, or the name of a bundled table.")
]
LawName = Annotated[
    str,
    typer.Option("--law", help="chinchilla, separable, power, kaplan, broken, turning or rotated."),
]
Variables = Annotated[
    str | None, typer.Option(help="Variables of the law, such as width,depth,tokens.")
]
Delta = Annotated[float, typer.Option(help="Width of the Huber loss of the residuals.")]
ObjectiveName = Annotated[
    str,
    typer.Option(
        "--objective", help="huber, least-squares, student-t or asymmetric; raw-... of raw losses."
    ),
]
Fixed = Annotated[
    list[str] | None,
    typer.Option("--fixed", help="NAME=VALUE: a parameter that stays."),
]
Shared = Annotated[
    list[str] | None,
    typer.Option("--shared", help="Exponents that are one, a_width,a_depth."),
]
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


def extent(name: str, text: str) -> int | float:
    """The whole number or infinity that `text` says."""
    try:
        return float(text) if text in ("inf", "infinity") else int(text)
    except ValueError:
        raise LeadlineError(f"{name}: got {text!r}, expected a whole number or inf") from None


def said(call: typer.Context) -> dict[str, str]:
    """The options that were given on the command line, and how each is written."""
    return {
        parameter.name or "": parameter.opts[0]
        for parameter in call.command.params
        if (source := call.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
    }


def plain(value: Any) -> Any:
    """`value` as JSON data: null for what is not a number, text for infinity."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in cast(dict[str, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in cast(list[Any], value)]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else ("inf" if value > 0 else "-inf")


def emit(record: dict[str, Any]) -> None:
    """Print one record as one line of JSON."""
    typer.echo(json.dumps(plain(record), allow_nan=False))
