"""law.json: a fitted law with its protocol, complete and lossless."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.errors import FitError, nearest
from leadline.laws.coordinates import Restriction
from leadline.laws.families import Family, Law, Separable
from leadline.laws.fit import Fit, FitStatus
from leadline.laws.forms import Broken, Coupled, Custom, RotatedCovariance, Turning
from leadline.laws.objectives import OBJECTIVES, Objective

SCHEMA = 1
"""The version of the format. A reader refuses a newer one."""
FAMILIES: dict[str, type[Family]] = {
    kind.__name__: kind for kind in (Separable, Coupled, Broken, Turning, RotatedCovariance)
}
"""The families that a file can name."""


@dataclass(frozen=True, kw_only=True)
class SavedFit:
    """What a law.json holds: a `Fit` without its rows.

    **Arguments:** as in `Fit`; and `digest` of the data, `source` and the `exclusions` (row, field,
    value, reason) of the table, `ranges` (smallest, largest) of each variable, `intervals` by name
    where some were saved, and `versions` of the software.
    """

    law: Law
    objective: Objective
    value: float
    status: FitStatus
    converged: bool
    at_bound: tuple[str, ...]
    covariance_accurate: bool
    gradient_norm: float
    condition_number: float
    covariance: Floats
    model_covariance: Floats | None
    scale: float | None
    residuals: Floats
    degrees_of_freedom: int
    rows: int
    excluded: int
    restriction: Restriction
    weights: str | None
    noise: str | None
    digest: str
    source: str
    exclusions: tuple[Mapping[str, Any], ...]
    ranges: Mapping[str, tuple[float, float]]
    intervals: Mapping[str, Interval]
    versions: Mapping[str, str]


PLAIN = (
    "value",
    "status",
    "converged",
    "at_bound",
    "covariance_accurate",
    "gradient_norm",
    "condition_number",
    "scale",
    "degrees_of_freedom",
    "rows",
    "excluded",
    "weights",
    "noise",
    "digest",
)
"""Fields that JSON holds as they are."""


def save_law(
    fit: Fit, path: str | Path, *, intervals: Mapping[str, Interval] | None = None
) -> Path:
    """Write `fit` to a law.json: the law for raw counts with every digit, units, objective with its
    delta and kind of residual, what was fixed or excluded, the hash of the data, covariance,
    residuals, ranges and versions; and `intervals`, if given. The file is written whole or not at
    all. A custom law is stored without its function.

    **Returns** the path.

    Numbers printed elsewhere are for people: the Chinchilla law rounded to its published digits
    has a four times larger objective.
    """
    where = Path(path)
    family = fit.law.family
    data: dict[str, Any] = {
        "format": "leadline law",
        "schema": SCHEMA,
        "family": _family_data(family),
        "parameters": dict(fit.law.parameters),
        "units": dict(fit.law.units),
        "objective": _objective_data(fit.objective),
        "restriction": asdict(fit.restriction),
        **{name: getattr(fit, name) for name in PLAIN},
        "covariance": fit.covariance.tolist(),
        "model_covariance": None if fit.model_covariance is None else fit.model_covariance.tolist(),
        "residuals": fit.residuals.tolist(),
        "source": fit.runs.source,
        "exclusions": fit.runs.excluded.to_dicts(),
        "ranges": fit.ranges,
        "intervals": {name: asdict(value) for name, value in (intervals or {}).items()},
        "versions": {
            "leadline": version("leadline"),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    text = json.dumps(_encode(data), indent=1, allow_nan=False)
    part = where.with_name(where.name + ".part")
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, where)
    return where


def load_law(path: str | Path, *, family: Family | None = None) -> SavedFit:
    """The fit that `save_law` wrote.

    **Arguments:** `family` supplies a custom law, whose function no file holds: it must have the
    name, variables and parameters of the one that was saved.

    **Raises:** `FitError`, on one line: no such file, not JSON, not a law, an unknown or newer
    schema, an unknown family or objective, a missing or unknown field, or a custom law without
    `family`.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FitError(f"{path}: no such file") from None
    except (ValueError, OSError) as error:
        raise FitError(f"{path}: not a law in JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict) or data.get("format") != "leadline law":
        raise FitError(f"{path}: not a law written by leadline")
    plain = cast(dict[str, Any], _decode(data))
    schema = plain.pop("schema", None)
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        told = "a newer leadline wrote it" if newer else "unknown"
        raise FitError(f"{path}: schema {schema!r} ({told}); this version reads {SCHEMA}")
    plain.pop("format")
    try:
        law = Law(
            family=_family(path, plain.pop("family"), family),
            parameters=plain.pop("parameters"),
            units=plain.pop("units"),
        )
        given = plain.pop("restriction")
        model = plain.pop("model_covariance")
        values: dict[str, Any] = {
            "law": law,
            "objective": _objective(path, plain.pop("objective")),
            "restriction": Restriction(
                fixed=given["fixed"],
                shared=tuple(tuple(g) for g in given["shared"]),
                bounds={k: (low, high) for k, (low, high) in given["bounds"].items()},
            ),
            "covariance": np.array(plain.pop("covariance"), np.float64),
            "model_covariance": None if model is None else np.array(model, np.float64),
            "residuals": np.array(plain.pop("residuals"), np.float64),
            "at_bound": tuple(plain.pop("at_bound")),
            "exclusions": tuple(plain.pop("exclusions")),
            "ranges": {k: (low, high) for k, (low, high) in plain.pop("ranges").items()},
            "intervals": {k: Interval(**v) for k, v in plain.pop("intervals").items()},
        }
    except KeyError as error:
        raise FitError(f"{path}: lacks {error.args[0]!r}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise FitError(f"{path}: damaged ({error})") from None
    wanted = {f.name for f in fields(SavedFit)} - set(values)
    if missing := sorted(wanted - set(plain)):
        raise FitError(f"{path}: lacks {missing[0]!r}")
    if unknown := sorted(set(plain) - wanted):
        raise FitError(f"{path}: unknown field {unknown[0]!r}{nearest(unknown[0], wanted)}")
    return SavedFit(**values, **plain)


def _family_data(family: Family) -> dict[str, Any]:
    if isinstance(family, Custom):
        return {
            "kind": "Custom",
            "name": family.name,
            "variables": family.variables,
            "parameters": family.parameters,
        }
    return {"kind": type(family).__name__} | asdict(family)


def _family(path: str | Path, data: dict[str, Any], given: Family | None) -> Family:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    kind = values.pop("kind")
    if kind == "Custom":
        if given is None:
            raise FitError(f"{path}: {values['name']!r} is a custom law; give it as family=")
        for name in ("name", "variables", "parameters"):
            if getattr(given, name) != values[name]:
                raise FitError(
                    f"{path}: the custom law has {name} {values[name]}, the one given "
                    f"{getattr(given, name)}"
                )
        return given
    if kind not in FAMILIES:
        raise FitError(
            f"{path}: unknown family {kind!r}, expected one of {', '.join(FAMILIES)}"
            f"{nearest(str(kind), FAMILIES)}"
        )
    return FAMILIES[kind](**values)


def _objective_data(objective: Objective) -> dict[str, Any]:
    name = next(key for key, kind in OBJECTIVES.items() if isinstance(objective, kind))
    return {"name": name} | asdict(objective)


def _objective(path: str | Path, data: dict[str, Any]) -> Objective:
    values = dict(data)
    name = values.pop("name")
    if name not in OBJECTIVES:
        raise FitError(
            f"{path}: unknown objective {name!r}, expected one of {', '.join(OBJECTIVES)}"
        )
    return OBJECTIVES[name](**values)


def _encode(value: Any) -> Any:
    """Plain data in which numbers that JSON lacks are {"number": text}."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": repr(value)}
    if isinstance(value, Mapping):
        return {k: _encode(v) for k, v in cast(Mapping[str, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [_encode(v) for v in cast("list[Any]", value)]
    return value


def _decode(value: Any) -> Any:
    """The inverse of `_encode`."""
    if isinstance(value, dict):
        known = cast(dict[str, Any], value)
        if set(known) == {"number"}:
            return float(known["number"])
        return {k: _decode(v) for k, v in known.items()}
    if isinstance(value, list):
        return [_decode(v) for v in cast("list[Any]", value)]
    return value
