r"""The losses of trained depths, and the law $R_L = L_0 + cL^{-\alpha}$ fitted to them by least
squares of $\log R$ within windows of depth, with profile intervals.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.ensembles import Decomposition, decompose
from leadline.errors import FitError
from leadline.laws.families import power_law
from leadline.laws.fit import Fit, fit
from leadline.laws.objectives import LeastSquares
from leadline.laws.profiles import profile
from leadline.papers.intervals import LEVEL, student
from leadline.papers.peng2026.depth import Recipe
from leadline.papers.peng2026.floor import factor
from leadline.papers.peng2026.published import Row
from leadline.papers.peng2026.tables import Z99, Tables, has, key, rows
from leadline.runs import Runs, nothing_excluded

WINDOWS = (1, 2, 4, 8, 16)
"""Least depths of the windows in which laws are fitted."""
LAW = power_law("depth")
GAP = power_law("depth", floor=False)
STEPS_OF_PLATEAU = 5
"""Plateaus within their interval at which what depends on them is computed again."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """One trained model on the common contexts: its loss and standard error, the loss of each mode,
    and what its layers share, None for a single layer.
    """

    depth: int
    seed: int
    loss: float
    loss_error: float
    modes: Floats
    parts: Decomposition | None


def trained(tables: Tables, recipe: Recipe) -> dict[Row, list[Trained]]:
    """The models trained by `recipe`, by row, in order of depth and seed; nothing where the scale
    trains none.
    """
    found: dict[Row, list[Trained]] = {}
    name = f"depth-{recipe}"
    if not has(tables, name, engine="simulation"):
        return found
    for spec, row in rows(tables, name, engine="simulation"):
        found.setdefault(key(spec), []).append(read(row))
    for models in found.values():
        models.sort(key=lambda model: (model.depth, model.seed))
    return found


def read(row: Mapping[str, Any]) -> Trained:
    """One stored row."""
    stored = {
        m["name"]: np.array(m["values"], float).reshape(m["shape"])[-1] for m in row["measures"]
    }
    depth = int(row["depth"])
    return Trained(
        depth=depth,
        seed=row["seed"],
        loss=row["loss"],
        loss_error=row["loss_error"],
        modes=stored["modes"],
        parts=decompose(stored["layer_errors"]) if depth > 1 else None,
    )


def source_row(row: Row) -> Row:
    """The row that is trained for `row`: (0, 0) for all with isotropic inputs."""
    targets, a, b = row
    return (targets, a, 0.0 if a == 0 else b)


def of_row(found: dict[Row, list[Trained]], row: Row) -> list[Trained]:
    """The models of `row`; on isotropic inputs those of (0, 0), times R(0, b) / R(0, 0).

    **Raises:** `FitError` if none was trained.
    """
    targets, a, b = row
    own = source_row(row)
    if own not in found:
        raise FitError(f"top-{targets} ({a:g}, {b:g}): no model was trained at this scale")
    return [scaled(model, factor(b)) for model in found[own]] if a == 0 and b else found[own]


def scaled(model: Trained, by: float) -> Trained:
    """The model with all its losses multiplied."""
    parts = model.parts
    if parts is not None:
        parts = dataclasses.replace(parts, own=by * parts.own, shared=by * parts.shared)
    return dataclasses.replace(
        model,
        loss=by * model.loss,
        loss_error=by * model.loss_error,
        modes=by * model.modes,
        parts=parts,
    )


def described(models: Sequence[Trained]) -> str:
    """How many models at which depths, and where seeds are missing."""
    return _described(tuple((model.depth, model.loss) for model in models))


Points = tuple[tuple[int, float], ...]
"""Depth and loss, or another value, of each model."""


def _described(points: Points) -> str:
    count = Counter(depth for depth, _ in sorted(points))
    most = max(count.values())
    text = f"{len(points)} models, L = {', '.join(map(str, count))}, "
    text += f"{most} seed{'s' if most > 1 else ''}"
    short = [f"{n} at L = {depth}" for depth, n in count.items() if n < most]
    return text + (f", only {', '.join(short)}" if short else "")


@dataclass(frozen=True, eq=False, kw_only=True)
class DepthFit:
    """A fitted law: its `exponent`, `plateau` and `coefficient`, with the intervals of the first
    two, and R^2 of the logarithms.
    """

    exponent: Interval
    plateau: Interval
    coefficient: float
    r_squared: float


def fit_depths(models: Sequence[Trained], *, first: int = 1, level: float = LEVEL) -> DepthFit:
    r"""$R = L_0 + cL^{-\alpha}$ fitted to models of at least `first` layers: $L_0$, $c$ and
    $\alpha$ shared by all seeds, one residual of $\log R$ a model.

    An interval whose side reaches the bound of its parameter, or infinity, says so in its method:
    there the data know no end.

    **Raises:** `FitError` if the window has fewer depths than the law has parameters, or no more
    models than that.
    """
    points = tuple((model.depth, model.loss) for model in models if model.depth >= first)
    depths = sorted({depth for depth, _ in points})
    wanted = len(LAW.parameters)
    if len(depths) < wanted or len(points) <= wanted:
        raise FitError(
            f"window L >= {first}: got {len(points)} models at {len(depths)} depths "
            f"({', '.join(map(str, depths)) or 'none'}); L0 + c L^-alpha has {wanted} parameters, "
            f"expected at least {wanted} depths and {wanted + 1} models"
        )
    return _fitted(points, level)


@lru_cache(maxsize=256)
def _fitted(points: Points, level: float) -> DepthFit:
    found = fit(LAW, _runs(points), objective=LeastSquares())
    logs = np.log([loss for _, loss in points])
    return DepthFit(
        exponent=_profile(found, "a", points, level),
        plateau=_profile(found, "E", points, level),
        coefficient=found.law.parameters["c"],
        r_squared=1 - float(np.sum(found.residuals**2) / np.sum((logs - logs.mean()) ** 2)),
    )


def _runs(points: Points) -> Runs:
    depths, values = zip(*points, strict=True)
    return Runs(
        frame=pl.DataFrame({"depth": [float(depth) for depth in depths], "loss": values}),
        units={"depth": "layers", "loss": "mean squared error"},
        excluded=nothing_excluded(),
        source="trained depths",
    )


def _profile(found: Fit, name: str, points: Points, level: float) -> Interval:
    """The profile of a parameter as a plain interval; infinite where it cannot be had."""
    try:
        own = profile(found, name, level=level)
        low, high, method = own.low, own.high, own.method
    except FitError as error:
        low, high, method = -math.inf, math.inf, str(error)
    return Interval(
        estimate=found.law.parameters[name],
        low=low,
        high=high,
        level=level,
        method=f"{method}; {_described(points)}",
        unit="model",
    )


def seed_exponents(models: Sequence[Trained], *, first: int = 1) -> Interval:
    """The mean over seeds of the exponent fitted to each seed alone.

    **Raises:** `FitError` if there are fewer than two seeds, or one of them lacks a depth.
    """
    seeds = by_seed([model for model in models if model.depth >= first])
    found = [fit_depths(own, first=first).exponent.estimate for own in seeds]
    return student(found)


def by_seed(models: Sequence[Trained]) -> list[list[Trained]]:
    """The models of each seed.

    **Raises:** `FitError` if there are fewer than two seeds, or one of them lacks a depth.
    """
    seeds = sorted({model.seed for model in models})
    if len(seeds) < 2:
        raise FitError(f"seeds: got {len(seeds)}, an interval over seeds needs at least 2")
    depths = sorted({model.depth for model in models})
    grouped = [[model for model in models if model.seed == seed] for seed in seeds]
    for seed, own in zip(seeds, grouped, strict=True):
        missing = set(depths) - {model.depth for model in own}
        if missing:
            raise FitError(
                f"seed {seed}: lacks L = {', '.join(map(str, sorted(missing)))}, which other "
                "seeds have"
            )
    return grouped


def with_contexts(plateau: Interval, models: Sequence[Trained]) -> Interval:
    """The interval of a plateau, wider by what the common contexts leave open: their error moves
    all losses by one factor, so that no fit sees it. The two margins of an end add in quadrature.
    """
    factor_error = Z99 * float(np.mean([model.loss_error / model.loss for model in models]))
    value = plateau.estimate
    return dataclasses.replace(
        plateau,
        low=value - math.hypot(value - plateau.low, factor_error * plateau.low),
        high=value + math.hypot(plateau.high - value, factor_error * plateau.high),
        method=f"{plateau.method}; and the common contexts, normal, in quadrature",
    )


def exponent_above(
    models: Sequence[Trained], plateau: Interval, *, level: float = LEVEL
) -> Interval:
    r"""The exponent of $R_L - L_0\sim L^{-\alpha}$ with a known `plateau`; as `gap_exponent`."""
    return _joined(models, [model.loss for model in models], 1.0, plateau, level)


def gap_exponent(models: Sequence[Trained], plateau: Interval, *, level: float = LEVEL) -> Interval:
    r"""The exponent of $L_0 - C_L\sim L^{-\alpha}$ over models of two layers or more, by least
    squares of the logarithm. The interval joins the profiles at plateaus from one end of `plateau`
    to the other, and is open where a difference is not positive.
    """
    deep = [model for model in models if model.parts is not None]
    shared = [model.parts.shared for model in deep if model.parts is not None]
    return _joined(deep, shared, -1.0, plateau, level)


def _joined(
    models: Sequence[Trained],
    values: Sequence[float],
    sign: float,
    plateau: Interval,
    level: float,
) -> Interval:
    """The exponent of `sign` (value - plateau), profiles joined over the plateau's interval."""

    def at(floor: float) -> tuple[float, float, float]:
        points = tuple(
            (model.depth, sign * (value - floor))
            for model, value in zip(models, values, strict=True)
        )
        if min(value for _, value in points) <= 0:
            return math.nan, -math.inf, math.inf
        own = _profile(fit(GAP, _runs(points), objective=LeastSquares()), "a", points, level)
        return own.estimate, own.low, own.high

    estimate, *_ = at(plateau.estimate)
    ends = [at(float(floor)) for floor in np.linspace(plateau.low, plateau.high, STEPS_OF_PLATEAU)]
    low, high = min(end[1] for end in ends), max(end[2] for end in ends)
    open_end = "" if math.isfinite(low) else "; a difference is not positive at one end"
    return Interval(
        estimate=estimate,
        low=low,
        high=high,
        level=level,
        method=f"profiles joined over the interval of L0{open_end}; {described(models)}",
        unit="model",
    )


def coupling(models: Sequence[Trained], plateau: Interval) -> Interval:
    r"""$(R_L - L_0)L/(A_L - C_L)$, averaged over `models` of one depth: 1 if the layers' errors are
    independent about the plateau. The interval is that of the plateau, and two standard errors over
    seeds where there are several.
    """
    parts = [model.parts for model in models if model.parts is not None]

    def at(floor: float) -> float:
        return float(np.mean([own.coupling(floor=floor) for own in parts]))

    each = [own.coupling(floor=plateau.estimate) for own in parts]
    seeds = 2 * float(np.std(each, ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    return Interval(
        estimate=at(plateau.estimate),
        low=at(plateau.high) - seeds,
        high=at(plateau.low) + seeds,
        level=plateau.level,
        method="over the interval of L0"
        + (f", and two standard errors over {len(each)} seeds" if seeds else ", one seed"),
        unit=plateau.unit,
    )
