"""Copies of a specification with fields changed, by dotted path."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.errors import SpecError, nearest
from leadline.spec.fields import Spec
from leadline.spec.question import RunSpec


def replace(base: Any, path: str, value: object) -> Any:
    """A copy of `base` with the field at the dotted `path` set to `value`.

    **Raises:** `SpecError` for an unknown field, with the nearest name.
    """
    return _replace(base, {path: value})


def _replace(base: Any, changes: Mapping[str, object], prefix: str = "") -> Any:
    """A copy of `base` with the fields at the dotted paths of `changes` set together, so that only
    the result has to be possible.
    """
    known = [f.name for f in dataclasses.fields(base)] if isinstance(base, Spec) else []
    whole: dict[str, object] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if name not in known:
            raise SpecError(
                f"{prefix}{path}: no field {name!r} in {type(base).__name__}; it has "
                f"{', '.join(known) or 'none'}{nearest(path, dotted_paths(base))}"
            )
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            whole[name] = value
    for name, below in inner.items():
        own = whole.get(name, getattr(base, name))
        whole[name] = _replace(own, below, f"{prefix}{name}.")
    return dataclasses.replace(base, **whole)


def dotted_paths(base: object, prefix: str = "") -> list[str]:
    """Every dotted field path below `base`."""
    if not isinstance(base, Spec):
        return []
    paths: list[str] = []
    for f in dataclasses.fields(base):
        paths.append(prefix + f.name)
        paths.extend(dotted_paths(getattr(base, f.name), f"{prefix}{f.name}."))
    return paths


def grid(base: RunSpec, axes: Mapping[str, Sequence[object]]) -> tuple[RunSpec, ...]:
    """Every combination of the values of `axes`, a mapping from dotted paths to values, applied
    to `base` together. The last axis varies fastest.

    **Raises:** `SpecError` for an unknown path (with the nearest) or an impossible value.
    """
    return tuple(
        _replace(base, dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    )
