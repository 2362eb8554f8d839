"""Fields that are checked once, when a specification is made."""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from leadline.errors import SpecError, nearest

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class Bounds:
    """The values that a numeric field may take: `low <= value <= high`, or `low < value` if
    `open_low`. Integer fields must be whole. Infinity is allowed only where it has a meaning.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    infinite: bool = False

    def describe(self, whole: bool) -> str:
        """The allowed values in words."""
        noun = "a whole number" if whole else "a finite number"
        sign = ">" if self.open_low else ">="
        low = "" if self.low == -math.inf else f" {sign} {self.low:g}"
        high = "" if self.high == math.inf else f" and <= {self.high:g}"
        return noun + low + high + (" or infinity" if self.infinite else "")


Count = Annotated[int, Bounds(low=1)]
Extent = Annotated[int | float, Bounds(low=1, infinite=True)]
"""A whole number of at least one, or infinity."""
Seed = Annotated[int, Bounds(low=0, high=MAX_SEED)]
Real = Annotated[float, Bounds()]
NonNegative = Annotated[float, Bounds(low=0)]
Positive = Annotated[float, Bounds(low=0, open_low=True)]


def _number(path: str, value: object, whole: bool, bounds: Bounds) -> int | float:
    wanted = bounds.describe(whole)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        kind = type(value).__name__
        raise SpecError(f"{path}: got {kind} {_short(value)}, expected {wanted}")
    try:
        number = float(value)
    except OverflowError:
        raise SpecError(f"{path}: got {_short(value)}, expected {wanted}") from None
    exact = operator.index(value) if isinstance(value, numbers.Integral) else number
    inside = bounds.low < exact if bounds.open_low else bounds.low <= exact
    if math.isnan(number) or not (inside and exact <= bounds.high):
        raise SpecError(f"{path}: got {value}, expected {wanted}")
    if math.isinf(number):
        if not bounds.infinite:
            raise SpecError(f"{path}: got {value}, expected {wanted}")
        return number
    if not whole:
        return number + 0.0  # -0.0 and 0.0 are one value
    if number != math.floor(number):
        raise SpecError(f"{path}: got {value}, expected {wanted}")
    return operator.index(value) if isinstance(value, numbers.Integral) else int(number)


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


def check_value(path: str, value: object, hint: Any) -> Any:
    """`value` in the form that the annotation `hint` asks for, or `SpecError` naming `path`."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        base, bounds = typing.get_args(hint)[:2]
        options = typing.get_args(base) or (base,)
        if type(None) in options and value is None:
            return None
        return _number(path, value, int in options, bounds)
    if origin is Literal:
        options = typing.get_args(hint)
        if not isinstance(value, str) or value not in options:
            close = nearest(value, options) if isinstance(value, str) else ""
            raise SpecError(f"{path}: got {_short(value)}, expected one of {options}{close}")
        return value
    if origin is tuple:
        return _sequence(path, value, typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        if value is None and type(None) in members:
            return None
        tuples = [m for m in members if typing.get_origin(m) is tuple]
        if tuples and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
            return check_value(path, value, tuples[0])
        annotated = [m for m in members if typing.get_origin(m) is Annotated]
        if annotated:
            return check_value(path, value, annotated[0])
        if isinstance(value, members):
            return value
        names = ", ".join("none" if m is type(None) else m.__name__ for m in members)
        raise SpecError(f"{path}: got {type(value).__name__} {_short(value)}, expected {names}")
    if not isinstance(value, hint):
        raise SpecError(
            f"{path}: got {type(value).__name__} {_short(value)}, expected {hint.__name__}"
        )
    return value


def _sequence(path: str, value: object, item: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        kind = type(value).__name__
        raise SpecError(f"{path}: got {kind} {_short(value)}, expected a tuple")
    values = typing.cast(Sequence[object], value)
    return tuple(check_value(f"{path}[{i}]", v, item) for i, v in enumerate(values))


@cache
def field_hints(kind: type[Spec]) -> dict[str, Any]:
    """The annotation of every field of a spec class, bounds included."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Base of all specifications: every field is checked against its annotation when made."""

    role: ClassVar[str] = ""
    """The dotted place of this value in a `RunSpec`, for error messages."""

    def __post_init__(self) -> None:
        for name, hint in field_hints(type(self)).items():
            path = f"{self.role}.{name}" if self.role else name
            object.__setattr__(self, name, check_value(path, getattr(self, name), hint))
