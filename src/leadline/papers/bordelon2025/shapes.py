"""Finite width, depth and context (Figure 5): the runs, and the figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import polars as pl

from leadline.papers.bordelon2025.tables import Tables, points, sweeps_of, table
from leadline.report.figures import GRAY, Figure, number, panels, shades
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Sweep,
    replace,
    source_capacity,
)

NU, BETA = 1.25, 0.8
STEEP, STEEPEST = 1.6, 2.5
"""Source exponents beyond those where width, and context, change their law."""
DIM, CONTEXT = 32, 128
WIDTHS = (4, 8, 16, 32)
DEPTHS = (1, 2, 4, 8)
NARROW = 8
JOINT = ((2, 1), (4, 2), (8, 5), (16, 12))
r"""Width and depth, $L\propto N^\nu$."""
LONGEST = 100.0
"""Of the time of the normalized stream."""
FLOW_CONTEXTS = 256
SLOPE_DIM, SLOPE_DEPTH = 256, 64
SLOPE_SCALE = 0.4
r"""$\gamma/L$ of the normalized stream, far enough below the edge near two that the scatter of the
largest eigenvalue between contexts does not reach it."""
SLOPE_SIZES = (32, 64, 128)
SLOPE_CONTEXTS = 256
CROWDED = (200, 100, 64)
"""Dimension, width = context, and depth where the joint limit diverges."""
BALANCE: Mapping[float, Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        BETA: {300: (20, 30), 3000: (280, 420)},
        STEEP: {300: (8, 12), 3000: (40, 60)},
    }
)
"""By source exponent and width: depths between which a fixed product N²L is best spent."""
FRONTIER: Mapping[float, Mapping[float, tuple[int, int, int]]] = MappingProxyType(
    {
        BETA: {1e9: (89, 3, 34), 1e15: (529, 15, 161), 1e21: (2992, 87, 798)},
        STEEP: {1e9: (106, 3, 30), 1e15: (910, 9, 137), 1e21: (7310, 39, 443)},
    }
)
"""By source exponent and budget: the width, depth and context that `planning.exact.best_shape`
finds. The claims compare each but the largest with its neighbors of the same cost."""


def rotated_task(
    dim: float, *, context: float = math.inf, beta: float = BETA
) -> InContextRegression:
    """Power-law spectra in a fresh basis in every context."""
    return InContextRegression(
        spectrum=source_capacity(dim, nu=NU, beta=beta), covariance="rotated", context=context
    )


def stream_run(
    dim: float, *, width: int, depth: int, context: float, recipe: Any, beta: float = BETA
) -> RunSpec:
    """A narrow stream: an orthogonal projection, or in infinite dimension the Gaussian stream that
    it becomes when normalized.
    """
    endless = math.isinf(dim)
    return RunSpec(
        task=rotated_task(dim, context=context, beta=beta),
        model=ReducedAttention(
            depth=depth,
            width=width,
            projection="gaussian" if endless else "orthogonal",
            power=1 if endless else 2,
        ),
        recipe=recipe,
    )


def _followed(width: int, depth: int, *, per_decade: int) -> RunSpec:
    """The flow of a shape, recorded over three decades of time."""
    unit = LONGEST * (DIM / width) ** 2
    at = tuple(unit * 10 ** (i / per_decade - 3) for i in range(3 * per_decade + 1))
    run = stream_run(DIM, width=width, depth=depth, context=CONTEXT, recipe=GradientFlow(times=at))
    return replace(run, "evaluation.contexts", FLOW_CONTEXTS)


def frontier_run(shape: tuple[int, int, int], *, budget: float, beta: float) -> RunSpec:
    """A shape (width, depth, context), trained for the time that `budget` leaves."""
    width, depth, context = shape
    time = budget / (width**2 * depth * context**2)
    return stream_run(
        math.inf,
        width=width,
        depth=depth,
        context=context,
        recipe=GradientFlow(times=(time,)),
        beta=beta,
    )


def compared(beta: float, budget: float) -> list[tuple[int, int, int]]:
    """The best shape at `budget`, and, unless that is the largest, those with one size a tenth
    larger or smaller, by one at least.
    """
    shape = FRONTIER[beta][budget]
    found = [shape]
    if budget == max(FRONTIER[beta]):
        return found
    for axis in range(3):
        for sign in (1, -1):
            sizes = list(shape)
            sizes[axis] += sign * max(1, round(sizes[axis] / 10))
            found.append((sizes[0], sizes[1], sizes[2]))
    return found


def wider(size: int) -> int:
    """A width or depth a tenth above `size`, by one at least."""
    return max(size + 1, round(1.1 * size))


def balance_run(width: int, depth: int, *, beta: float) -> RunSpec:
    """Width and depth as the only limits, at the best scale."""
    return stream_run(
        math.inf, width=width, depth=depth, context=math.inf, recipe=BestScale(), beta=beta
    )


def sweeps() -> tuple[Sweep, ...]:
    """Figure 5, slopes at finite size, a crowded shape, and the best splits of compute."""
    shapes = {
        "a": [(width, 1) for width in WIDTHS],
        "b": [(NARROW, depth) for depth in DEPTHS],
        "c": list(JOINT),
    }
    named: dict[str, list[RunSpec]] = {}
    for panel, own in shapes.items():
        named[f"figure5{panel}/theory"] = [_followed(*shape, per_decade=8) for shape in own]
        named[f"figure5{panel}/simulation"] = [_followed(*shape, per_decade=2) for shape in own]
    scale = SLOPE_SCALE * SLOPE_DEPTH
    widths = [
        stream_run(
            SLOPE_DIM,
            width=n,
            depth=SLOPE_DEPTH,
            context=math.inf,
            recipe=GivenScale(gamma=scale * SLOPE_DIM / n),
        )
        for n in SLOPE_SIZES
    ]
    contexts = [
        RunSpec(
            task=rotated_task(SLOPE_DIM, context=n),
            model=ReducedAttention(depth=SLOPE_DEPTH),
            recipe=GivenScale(gamma=scale),
        )
        for n in SLOPE_SIZES
    ]
    sampled = Evaluation(contexts=SLOPE_CONTEXTS)
    for name, runs in (("width-slope", widths), ("context-slope", contexts)):
        named[f"{name}/theory"] = runs
        named[f"{name}/simulation"] = [replace(run, "evaluation", sampled) for run in runs]
    dim, size, depth = CROWDED
    named["crowded/theory"] = [
        stream_run(dim, width=size, depth=depth, context=size, recipe=BestScale())
    ]
    named["balance/theory"] = [
        balance_run(n, d, beta=beta)
        for beta, by_width in BALANCE.items()
        for width, (low, high) in by_width.items()
        for n in (width, wider(width))
        for d in (low, wider(low), high, wider(high))
    ]
    named["frontier/theory"] = [
        frontier_run(shape, budget=budget, beta=beta)
        for beta, by_budget in FRONTIER.items()
        for budget in by_budget
        for shape in compared(beta, budget)
    ]
    return sweeps_of(named)


def with_compute(curves: pl.DataFrame) -> pl.DataFrame:
    """Long `curves` with the column "compute", t P² N² L, the time of the normalized stream."""
    shape = pl.col("width") ** 2 * pl.col("depth") * pl.col("context") ** 2
    normalized = pl.col("time") * (pl.col("width") / pl.col("dim")) ** 2
    return curves.with_columns((normalized * shape).alias("compute"))


def figure5(tables: Tables) -> Figure:
    """Loss against compute: more width, more depth, and both together."""
    keys = ("dim", "width", "depth", "context")
    frames = {
        (panel, engine): with_compute(points(table(tables, f"figure5{panel}", engine), *keys))
        for panel in "abc"
        for engine in ("theory", "simulation")
    }
    titles = {
        "a": "a  one layer, more width",
        "b": f"b  width N = {NARROW}, more depth",
        "c": "c  both, L ∝ N^ν",
    }
    with panels(3, height=3.1) as (canvas, axes):
        for (panel, title), ax in zip(titles.items(), axes, strict=True):
            theory, dots = frames[panel, "theory"], frames[panel, "simulation"]
            shapes = (
                theory.select("width", "depth").unique(maintain_order=True).sort(pl.all()).rows()
            )
            for (width, depth), color in zip(shapes, shades(len(shapes)), strict=True):
                own = (pl.col("width") == width) & (pl.col("depth") == depth)
                label = {
                    "a": f"N = {number(width)}",
                    "b": f"L = {number(depth)}",
                    "c": f"N = {number(width)}, L = {number(depth)}",
                }[panel]
                line, some = theory.filter(own), dots.filter(own)
                ax.plot(line["compute"], line["loss"], color=color, label=label)
                ax.errorbar(
                    some["compute"],
                    some["loss"],
                    2 * some["loss_error"],
                    fmt="o",
                    ms=3.2,
                    color=color,
                    lw=1,
                )
            if panel == "c":
                frontier = theory.sort("compute")
                ax.plot(
                    frontier["compute"],
                    frontier["loss"].cum_min(),
                    "--",
                    color=GRAY,
                    lw=1,
                    label="least so far",
                )
            ax.set(title=title, xscale="log", yscale="log", xlabel="compute  t P² N² L")
            ax.legend(loc="lower left")
        low = min(float(f["loss"].min()) for f in frames.values())  # type: ignore[arg-type]
        for ax in axes:
            ax.set(ylim=(0.6 * low, 1.15))
        axes[0].set_ylabel("loss (mean squared error)")
    return Figure(
        name="bordelon2025-figure5",
        caption=(
            f"Figure 5. Rotated power-law covariances, ν = {NU:g}, β = {BETA:g}, {DIM} dimensions, "
            f"contexts of {CONTEXT} examples. Lines: theory (two-point deterministic equivalent) "
            "along the flow of γ; points: the flow of the N × N matrix on "
            f"{FLOW_CONTEXTS} sampled contexts, two standard errors; so few dimensions leave it up "
            "to a tenth above theory. (a) One layer: width stops paying where depth and context "
            f"are left (N = {DIM} is the full stream). (b) Width {NARROW}: depth stops paying at "
            "the plateau of width. (c) Depth grown with width as N^ν: every larger shape goes on "
            "where the smaller one ends; dashed, the least loss of any shape at that compute."
        ),
        alternative=(
            "Left and middle: curves of growing width or depth end in a common plateau. Right: "
            "curves of growing shapes each reach lower plateaus and share a falling envelope."
        ),
        canvas=canvas,
        numbers=pl.concat(
            [f.with_columns(panel=pl.lit(panel)) for (panel, _), f in frames.items()],
            how="diagonal_relaxed",
        ),
    )
