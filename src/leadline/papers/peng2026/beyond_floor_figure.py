"""The figure of the bound on retrieval: trained, untrained and signed models, and other tasks."""

from __future__ import annotations

from typing import Any

import polars as pl

from leadline.papers.peng2026.beyond import CONTRAST, SIGNED_DEPTHS
from leadline.papers.peng2026.beyond_floor import anchored, bound_map
from leadline.papers.peng2026.beyond_law import single, trained
from leadline.papers.peng2026.floor import LAW_DEPTHS, factor, theory
from leadline.papers.peng2026.published import NAME, NONLINEAR, SOFTMAX_CONTEXT, SOFTMAX_DIM
from leadline.papers.peng2026.tables import Tables
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels
from leadline.theory.retrieval_models import built_law

FRAME_DEPTHS = (16, 32, 64, 128, 256)
GREEN, PINK = "#009e73", "#cc79a7"


def depth_axis(ax: Any, *, title: str, ylabel: str = "loss") -> None:
    """A logarithmic axis of depths."""
    ax.set(xscale="log", xlabel="layers L", ylabel=ylabel, title=title)
    few_ticks(ax)


def seed_means(models: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Mean over seeds of the loss at each value of `keys`, with its standard error."""
    error = pl.col("loss").std() / pl.len().sqrt()
    return models.group_by(*keys).agg(pl.col("loss").mean(), error.alias("seed_error")).sort(*keys)


def points(ax: Any, models: pl.DataFrame, *, x: str, **style: Any) -> None:
    """Means with two standard errors over seeds."""
    bars = 2 * models["seed_error"].fill_null(0.0)
    ax.errorbar(models[x], models["loss"], bars, **{"fmt": "o", "ms": 3.5, "capsize": 2} | style)


def _floor_panel(ax: Any, tables: Tables, targets: int) -> list[pl.DataFrame]:
    found = theory(targets)
    ax.axhline(single(targets), color=GRAY, lw=1.2, label="best single layer")
    ax.axhline(found.bound.loss, color="black", lw=1.5, label="bound, gains >= 0")
    pairs = [m.loss for m in found.built]
    ax.plot(LAW_DEPTHS, pairs, ":", color=GREEN, label="untrained, pairs")
    whole = [built_law(found.grid, depth=n, perturbation="frames").loss for n in FRAME_DEPTHS]
    ax.plot(FRAME_DEPTHS, whole, "--", color=GREEN, label="untrained, frames")
    published = [
        loss / factor(b) for (k, a, b), (loss, _) in NONLINEAR.items() if k == targets and not a
    ]
    ax.plot([350] * len(published), published, "D", ms=4, color=ORANGE, label="published plateaus")
    frames = [
        pl.DataFrame({"depth": LAW_DEPTHS, "loss": pairs}).with_columns(kind=pl.lit("pairs")),
        pl.DataFrame({"depth": FRAME_DEPTHS, "loss": whole}).with_columns(kind=pl.lit("frames")),
    ]
    styles = (("short", "o", BLUE), ("factored", "^", BLUE))
    for recipe, mark, color in styles:
        own = trained(tables, f"depth-{recipe}").filter(pl.col("isotropic"), targets=targets)
        if own.height:
            own = own.with_columns(pl.Series("loss", anchored(tables, own, own_contexts=False)))
            means = seed_means(own, "depth")
            points(
                ax, means, x="depth", fmt=f"{mark}-", lw=1, color=color, label=f"trained, {recipe}"
            )
            frames.append(means.with_columns(kind=pl.lit(f"trained, {recipe}")))
    signed = trained(tables, "beyond-signs").filter(targets=targets, contrast=CONTRAST)
    signed = signed.with_columns(pl.Series("loss", anchored(tables, signed, own_contexts=True)))
    for matrix, mark in (("full", "*"), ("scale", "P")):
        means = seed_means(signed.filter(matrix=matrix), "depth")
        if means.height:
            words = "both signs" if matrix == "full" else "both signs, temperatures"
            points(ax, means, x="depth", fmt=mark, ms=8, color=PINK, label=f"trained, {words}")
            frames.append(means.with_columns(kind=pl.lit(f"trained, {words}")))
    depth_axis(ax, title=f"{'a' if targets == 2 else 'b'}  top-{targets}")
    return [frame.with_columns(targets=pl.lit(targets)) for frame in frames]


def floor(tables: Tables) -> Figure:
    """The bound, what is trained and what is written down, and what depth is worth elsewhere."""
    with panels(3, height=3.6) as (canvas, axes):
        frames = [
            f
            for ax, k in zip(axes, SIGNED_DEPTHS, strict=False)
            for f in _floor_panel(ax, tables, k)
        ]
        axes[0].legend(loc="upper right", fontsize=6.5, frameon=True, framealpha=0.9)
        found = bound_map()
        words = {"dim": "dimension d", "context": "tokens P", "targets": "targets k"}
        for (name, label), color, mark in zip(
            words.items(), (BLUE, ORANGE, GREEN), "os^", strict=True
        ):
            own = found.filter(varied=name)
            axes[2].plot(own["value"], own["ratio"], f"{mark}-", ms=4, color=color, label=label)
        axes[2].axhline(1, color="black", lw=0.8)
        axes[2].set(
            xscale="log",
            xlabel="value of the number that varies",
            ylabel="$R_1/R_\\infty$",
            title="c  what all depth is worth",
        )
        few_ticks(axes[2])
        axes[2].legend()
        frames.append(found.with_columns(kind=pl.lit("map")))
    return Figure(
        name=f"{NAME}-beyond-floor",
        caption="The bound on layers with gains of one sign, without a fitted parameter. (a, b) "
        "Trained models, anchored on an untrained layer (two standard errors over seeds), beside "
        "models written down from theory; pink: gains that start with both signs, which the bound "
        "does not cover (cross: two temperatures). (c) Loss of the best single layer over the "
        f"bound as one number of the task varies about d = {SOFTMAX_DIM}, P = {SOFTMAX_CONTEXT}, "
        "k = 2.",
        alternative="Two panels of loss against depth, trained models above the line of the bound, "
        "the deepest ones of both signs below it. Right, the ratio grows with the dimension and "
        "the number of targets and hardly depends on the context.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )
