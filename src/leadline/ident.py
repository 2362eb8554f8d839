"""The canonical JSON of a spec, the way back, and the run id hashed from it.

The id of a run depends on what changes its numbers, the spec and the engine's `VERSION`, and on
nothing else: it is equal across processes, machines and hash seeds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from leadline import spec as _spec
from leadline.errors import SpecError, nearest
from leadline.spec import Spec

Engine = Literal["theory", "simulation"]

VERSION: dict[Engine, int] = {"theory": 1, "simulation": 1}
"""The version of each engine's numbers. A change that moves any stored number raises it."""

_KINDS: dict[str, type[Spec]] = {
    kind.__name__: kind
    for kind in vars(_spec).values()
    if isinstance(kind, type) and issubclass(kind, Spec)
    if kind is not Spec and _spec.RunSpec not in kind.__bases__
}


def to_plain(value: object, path: str = "") -> Any:
    """`value` as JSON data. Infinity becomes the string "inf"; a field that was added after the
    first release and holds its first default is left out (`metadata={"added": True}`).

    **Raises:** `SpecError` with the dotted path for NaN, arrays, callables and the like.
    """
    if isinstance(value, Spec):
        plain: dict[str, Any] = {"kind": type(value).__name__}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if f.metadata.get("added") and item == f.default:
                continue
            plain[f.name] = to_plain(item, f"{path}.{f.name}" if path else f.name)
        return plain
    if isinstance(value, tuple):
        items = typing.cast(tuple[object, ...], value)
        return [to_plain(v, f"{path}[{i}]") for i, v in enumerate(items)]
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise SpecError(f"{path}: NaN cannot be part of a run's identity")
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    raise SpecError(f"{path}: {type(value).__name__} cannot be part of a run's identity")


def to_json(spec: Spec) -> str:
    """The canonical JSON text of a spec: sorted keys, no spaces, shortest exact numbers."""
    return json.dumps(to_plain(spec), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> Any:
    """The spec whose JSON this is; the inverse of `to_json`.

    **Raises:** `SpecError` for text that is not JSON, an unknown kind, or an unknown or missing
    field, with the dotted path and the nearest name.
    """
    try:
        return from_plain(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not a specification in JSON: {error}") from None


def from_plain(plain: object, path: str = "") -> Any:
    """The spec, number, string or tuple that `to_plain` wrote as `plain`."""
    if isinstance(plain, list):
        items = typing.cast(list[object], plain)
        return tuple(from_plain(v, f"{path}[{i}]") for i, v in enumerate(items))
    if not isinstance(plain, Mapping):
        return plain
    data = dict(typing.cast(Mapping[str, object], plain))
    name = data.pop("kind", None)
    where = path or "specification"
    if not isinstance(name, str) or name not in _KINDS:
        close = nearest(str(name), _KINDS)
        raise SpecError(
            f"{where}: unknown kind {name!r}, expected one of {', '.join(_KINDS)}{close}"
        )
    kind = _KINDS[name]
    hints = _spec.field_hints(kind)
    for key in data:
        if key not in hints:
            raise SpecError(
                f"{where}: {name} has no field {key!r}; it has {', '.join(hints)}"
                f"{nearest(key, hints)}"
            )
    for f in dataclasses.fields(kind):
        if f.name not in data and f.default is dataclasses.MISSING:
            raise SpecError(f"{where}: {name} lacks the field {f.name!r}")
    values: dict[str, Any] = {}
    for key, raw in data.items():
        inner = from_plain(raw, f"{path}.{key}" if path else key)
        values[key] = _numbers(inner, hints[key])
    return kind(**values)


def _numbers(value: object, hint: Any) -> object:
    """Undo the writing of infinities where `hint` asks for a number."""
    origin = typing.get_origin(hint)
    if origin is Annotated and value in ("inf", "-inf"):
        return float(typing.cast(str, value))
    if origin is tuple and isinstance(value, tuple):
        return tuple(_numbers(v, typing.get_args(hint)[0]) for v in value)
    return value


def run_id(spec: _spec.RunSpec, *, engine: Engine) -> str:
    """The identity of a run: 32 hexadecimal digits of the SHA-256 of the engine, its `VERSION`
    and the canonical JSON of `spec`.
    """
    if engine not in VERSION:
        raise SpecError(f"engine: got {engine!r}, expected one of {tuple(VERSION)}")
    text = f"{engine} {VERSION[engine]} {to_json(spec)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
