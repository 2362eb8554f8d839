"""The paper's figures, drawn from the tables of its sweeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from leadline.papers.bordelon2025 import (
    depth_law,
    fixed,
    rotated,
    shapes,
    transformer_figures,
    untied,
)
from leadline.papers.bordelon2025.sweeps import RATIOS, SGD_AXES
from leadline.papers.bordelon2025.tables import Tables, has, table
from leadline.report.figures import GRAY, ORANGE, Figure, lines_and_points, number, panels, shades

NUMBERS = ("depth", "context", "dim", "noise", "loss", "loss_error", "status")


def _dim(tables: Tables, name: str) -> int:
    """The dimension of a simulation."""
    return int(table(tables, name, "simulation")["dim"][0])


def _numbers(tables: Tables, names: tuple[str, ...], columns: tuple[str, ...]) -> pl.DataFrame:
    frames = [
        table(tables, name, engine).select("engine", *columns)
        for name in names
        for engine in ("theory", "simulation")
    ]
    return pl.concat(frames, how="vertical_relaxed")


def figure2(tables: Tables) -> Figure:
    """The landscape of the loss over gamma."""
    titles = {
        "a": "a  context P = D/2",
        "b": "b  context P = 2D",
        "c": "c  depth 16, P = D, label noise",
    }
    with panels(3, height=3.1) as (canvas, axes):
        for (panel, title), ax in zip(titles.items(), axes, strict=True):
            scaled = [
                table(tables, f"figure2{panel}", engine).with_columns(
                    (pl.col("gamma") / pl.col("depth")).alias("scale")
                )
                for engine in ("theory", "simulation")
            ]
            group, label = ("noise", "σ") if panel == "c" else ("depth", "L")
            lines_and_points(ax, *scaled, x="scale", group=group, label=label)
            lowest = scaled[0].sort("loss").group_by(group, maintain_order=True).first()
            ax.plot(lowest["scale"], lowest["loss"], "*", color=ORANGE, ms=8, zorder=4)
            ax.set(title=title, xlabel="γ / L", ylim=(0, 1.3 if panel == "c" else 1.05))
        axes[0].set_ylabel("loss (mean squared error)")
    return Figure(
        name="bordelon2025-figure2",
        caption=(
            "Figure 2. Loss of isotropic in-context regression over the scale γ of Γ = γI. Lines: "
            "theory in infinite dimension (Marchenko-Pastur quadrature). Points: 64 sampled "
            f"contexts in {_dim(tables, 'figure2a')} dimensions, with two standard errors. Depth "
            "lowers the minimum and leaves its place γ/L where it is (stars); label noise moves "
            "the best γ down. The axis ends at the edge of stability, where the deepest models "
            "begin to diverge."
        ),
        alternative=(
            "Three panels of loss against gamma over depth. Curves fall from one to a minimum and "
            "rise steeply past the edge; deeper curves have lower minima at the same place."
        ),
        canvas=canvas,
        numbers=_numbers(tables, ("figure2a", "figure2b", "figure2c"), (*NUMBERS, "gamma")),
    )


def final_loss(tables: Tables) -> Figure:
    """The least loss against context, with the closed optimum at every depth."""
    theory = table(tables, "final", "theory").filter(pl.col("noise") == 0)
    points = table(tables, "final", "simulation")
    ratio = (pl.col("context") / pl.col("dim")).alias("ratio")
    finite = theory.filter(pl.col("depth").is_finite()).with_columns(ratio)
    limit = theory.filter(pl.col("depth").is_infinite()).with_columns(ratio).sort("ratio")
    with panels(1) as (canvas, axes):
        canvas.set_size_inches(6.0, 3.8)
        ax = axes[0]
        lines_and_points(
            ax, finite, points.with_columns(ratio), x="ratio", group="depth", label="L"
        )
        below = limit.filter(pl.col("loss") > 0)
        ax.plot(below["ratio"], below["loss"], "--", color=GRAY, label="L = ∞: 1 - P/D")
        ax.set(xscale="log", yscale="log", ylim=(3e-5, 1.4))
        ax.set(xlabel="context ratio P/D", ylabel="least loss over γ")
        ax.set_xticks(RATIOS, [number(r) for r in RATIOS])
        ax.minorticks_off()
        ax.legend()
    return Figure(
        name="bordelon2025-final-loss",
        caption=(
            "Least loss over γ against context. Lines: the closed optimum at every depth, "
            f"γ* = Lα/(1+α) with α = P/D. Points: 64 sampled contexts in {_dim(tables, 'final')} "
            "dimensions, at the best γ of 64 others. Depth pays only while the context is limited: "
            "near P = D the loss falls as (πL)^(-1/2), above as a power of the ratio."
        ),
        alternative="Loss against context ratio on log axes; deeper models lie lower everywhere.",
        canvas=canvas,
        numbers=_numbers(tables, ("final",), (*NUMBERS, "best_gamma")),
    )


def mean_curves(runs: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Mean loss curves over seeds with the standard error of that mean, one row a recorded step."""
    long = runs.select(*keys, "seed", pl.col("curve_step"), pl.col("curve_loss"))
    long = long.explode("curve_step", "curve_loss")
    return (
        long.group_by(*keys, "curve_step")
        .agg(
            pl.col("curve_loss").mean().alias("loss"),
            (pl.col("curve_loss").std() / pl.len().sqrt()).alias("loss_error"),
        )
        .sort(*keys, "curve_step")
    )


def figure7(tables: Tables) -> Figure:
    """Loss curves of shallow stochastic gradient descent."""
    columns = {"tau": "batch_size", "alpha": "context", "kappa": "queries"}
    symbols = {"tau": "τ", "alpha": "α", "kappa": "κ"}
    titles = {
        "tau": "a  batch, α = κ = 1",
        "alpha": "b  context, τ = κ = 1",
        "kappa": "c  queries, α = τ = 1",
    }
    numbers: list[pl.DataFrame] = []
    with panels(3, height=3.1) as (canvas, axes):
        for panel, axis, ax in zip("abc", SGD_AXES, axes, strict=True):
            curves: list[Any] = []
            for engine in ("theory", "simulation"):
                runs = table(tables, f"figure7{panel}", engine).with_columns(
                    (pl.col(columns[axis]) / pl.col("dim")).alias("ratio")
                )
                curves.append(mean_curves(runs, ("ratio",)))
                numbers.append(curves[-1].with_columns(engine=pl.lit(engine), axis=pl.lit(axis)))
            for value, color in zip(SGD_AXES[axis], shades(len(SGD_AXES[axis])), strict=True):
                line, dots = (c.filter((pl.col("ratio") - value).abs() < 0.02) for c in curves)
                ax.plot(
                    line["curve_step"],
                    line["loss"],
                    color=color,
                    label=f"{symbols[axis]} = {value:g}",
                )
                ax.errorbar(
                    dots["curve_step"],
                    dots["loss"],
                    2 * dots["loss_error"],
                    fmt="o",
                    ms=3,
                    color=color,
                    capsize=2,
                    lw=1,
                )
            ax.set(title=titles[axis], xlabel="step t", yscale="log")
            ticks = np.array([0.3, 0.4, 0.5, 0.6, 0.8, 1.0])
            ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
            ax.minorticks_off()
            ax.legend()
        axes[0].set_ylabel("loss (mean squared error)")
    return Figure(
        name="bordelon2025-figure7",
        caption=(
            "Figure 7. Stochastic gradient descent on the full matrix at depth one, rate "
            "η = 0.1. Lines: the recursion C(t+1) = a C(t) + b, D → ∞. Points: mean over "
            f"{table(tables, 'figure7a', 'simulation')['seed'].n_unique()} seeds in "
            f"{_dim(tables, 'figure7a')} dimensions, with two standard errors; they lie above the "
            "lines by O(1/D). Batch, context and queries enter as τ = B/D, α = P/D, κ = K/D."
        ),
        alternative=(
            "Three panels of loss against steps; larger batch, context or queries end lower."
        ),
        canvas=canvas,
        numbers=pl.concat(numbers, how="vertical_relaxed"),
    )


def figures(tables: Tables) -> tuple[Figure, ...]:
    """Every figure whose sweeps are in `tables`, in the paper's order."""
    drawn = [figure2(tables), final_loss(tables)]
    if has(tables, "figure3b", "theory"):
        drawn += [fixed.figure3(tables), rotated.figure4(tables), depth_law.figure(tables)]
    if has(tables, "figure5a", "theory"):
        drawn.append(shapes.figure5(tables))
    if has(tables, "figure7a", "theory"):
        drawn.append(figure7(tables))
    if has(tables, "figure8", "theory"):
        drawn.append(untied.figure8(tables))
    if has(tables, "figure1", "simulation"):
        drawn += transformer_figures.figures(tables)
    return tuple(drawn)
