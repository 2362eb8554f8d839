"""Between the unknowns that a fit moves and the parameters of its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leadline.curve import Floats
from leadline.errors import FitError, nearest
from leadline.laws.design import Sample
from leadline.laws.families import Family


@dataclass(frozen=True, kw_only=True)
class Restriction:
    """What is set by hand: `fixed` values for raw counts, `shared` groups of parameters that are
    one number, and narrower `bounds` than those of the family.
    """

    fixed: Mapping[str, float]
    shared: tuple[tuple[str, ...], ...]
    bounds: Mapping[str, tuple[float, float]]

    @property
    def names(self) -> tuple[str, ...]:
        """Every parameter that is fixed or shared."""
        return (*self.fixed, *(name for group in self.shared for name in group))


def restriction(
    family: Family,
    *,
    fixed: Mapping[str, float] | None = None,
    shared: Sequence[Sequence[str]] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Restriction:
    """What is set by hand, checked.

    **Raises:** `FitError` for an unknown parameter, one that is set twice, a value that is not
    finite, or sharing or bounds of a coefficient whose unit differs from row to row of the table of
    units (only exponents, the floor and parameters of a custom law can have them).
    """
    found = Restriction(
        fixed=dict(fixed or {}),
        shared=tuple(tuple(group) for group in shared),
        bounds=dict(bounds or {}),
    )
    for name in (*found.names, *found.bounds):
        if name not in family.parameters:
            raise FitError(
                f"{name!r} is no parameter of {family.name}; it has "
                f"{', '.join(family.parameters)}{nearest(name, family.parameters)}"
            )
    for name in found.names:
        if found.names.count(name) > 1:
            raise FitError(f"{name} is set twice: fixed or shared once is enough")
    for name, value in found.fixed.items():
        if not np.isfinite(value):
            raise FitError(f"fixed {name}: got {value}, expected a finite number")
    for group in found.shared:
        if len(group) < 2:
            raise FitError(f"shared: got {group}, expected at least two parameters")
        if mixed := [name for name in group if name not in family.unit_free]:
            raise FitError(f"{mixed[0]} has a unit of its own and cannot be shared; exponents can")
    for name, (low, high) in found.bounds.items():
        if not low < high:
            raise FitError(f"bounds of {name}: got {low}, {high}; expected low < high")
        if name not in family.unit_free and name != "E":
            raise FitError(
                f"bounds of {name}: only the floor and exponents can be bounded; a coefficient "
                "depends on the unit"
            )
    return found


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """The map from unknowns (lane, unknown) to parameters (lane, parameter).

    Unknowns are the scaled parameters that are free, one for each shared group.

    **Arguments:** `family`; `centers` (variable) and `level` of the scaling; `place` (parameter,
    unknown) puts each unknown where it belongs; `fixed` (parameter) is not a number where free.
    """

    family: Family
    centers: Floats
    level: float
    place: Floats
    fixed: Floats

    def parameters(self, unknowns: Floats) -> tuple[Floats, Floats]:
        """The parameters for raw counts, and their derivatives (lane, parameter, unknown)."""
        free = [name in self.family.unit_free for name in self.family.parameters]
        known = ~np.isnan(self.fixed)
        scaled = unknowns @ self.place.T + np.where(known & free, self.fixed, 0.0)
        raw, chain = self.family.raw(scaled, self.centers, self.level)
        raw = np.where(known, self.fixed, raw)
        return raw, np.where(known[:, None], 0.0, chain) @ self.place

    def unknowns(self, parameters: Floats) -> Floats:
        """The unknowns of parameters for raw counts; shared ones are averaged."""
        scaled = self.family.scaled(parameters, self.centers, self.level)
        return scaled @ self.place / self.place.sum(axis=0)


def coordinates(
    family: Family, rows: Sample, given: Restriction, *, log_loss: bool
) -> tuple[Coordinates, Floats, Floats, Floats, Floats]:
    """The coordinates for these rows, the bounds (unknown), and the box (unknown) of starts."""
    if family.positive:
        logs = np.log(rows.points)
        centers = logs.mean(axis=1)
        logs = logs - centers[:, None]
        size = np.log(rows.loss).mean() if log_loss else np.log(np.abs(rows.loss).mean())
        level = float(np.exp(size))
    else:
        logs, centers, level = rows.points, np.zeros(len(rows.points)), 1.0
    names = family.parameters
    fixed = np.array([given.fixed.get(name, np.nan) for name in names])
    groups = [*given.shared, *((n,) for n in names if n not in given.names)]
    groups.sort(key=lambda group: min(names.index(n) for n in group))
    place = np.array([[float(n in group) for group in groups] for n in names])
    low, high = family.bounds(logs, float(rows.loss.min()) / level)
    first, last = family.search(logs)
    for name, (least, most) in given.bounds.items():
        i = names.index(name)
        unit = level if name == "E" and "E" not in family.unit_free else 1.0
        low[i], high[i] = max(low[i], least / unit), min(high[i], most / unit)
        first[i], last[i] = max(first[i], low[i]), min(last[i], high[i])
    for i, (name, value) in enumerate(zip(names, fixed, strict=True)):
        if name in family.unit_free and not np.isnan(value) and not low[i] <= value <= high[i]:
            raise FitError(f"fixed {name}: got {value}, outside its bounds {low[i]} to {high[i]}")
    inside = place > 0
    return (
        Coordinates(family=family, centers=centers, level=level, place=place, fixed=fixed),
        np.where(inside, low[:, None], -np.inf).max(axis=0),
        np.where(inside, high[:, None], np.inf).min(axis=0),
        np.where(inside, first[:, None], -np.inf).max(axis=0),
        np.where(inside, last[:, None], np.inf).min(axis=0),
    )
