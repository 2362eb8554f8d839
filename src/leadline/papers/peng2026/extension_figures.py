"""Figures 9 to 13: the models of appendix C, and percentiles of the selection error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from leadline.papers.peng2026.extension_tables import anchored, arrays, models, percentile_gain
from leadline.papers.peng2026.extensions import (
    LONG_STEPS,
    PERCENTILE_CONTEXTS,
    PERCENTILE_QUERIES,
    STEPS,
    STREAM_WIDTH,
)
from leadline.papers.peng2026.published import (
    CONTEXT_MASK,
    NAME,
    SOFTMAX_CONTEXT,
    SOFTMAX_DIM,
)
from leadline.papers.peng2026.tables import Tables, has
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels

COLUMNS = ("loss", "shared", "disagreement", "mask")
SETTING = f"top-2 retrieval at (0, 0), {SOFTMAX_DIM} dimensions, {SOFTMAX_CONTEXT} tokens"
BARS = (
    "Points: means over seeds with two standard errors, losses relative to what a single layer has "
    "on the evaluation contexts of the seed; a single seed has no bar."
)


def seed_means(frame: pl.DataFrame) -> pl.DataFrame:
    """Means over seeds and their standard errors by depth; a single seed has none."""
    return (
        frame.group_by("depth")
        .agg(
            pl.len().alias("seeds"),
            *(pl.col(c).cast(pl.Float64).mean() for c in COLUMNS),
            *(
                (pl.col(c).cast(pl.Float64).std() / pl.len().sqrt()).alias(f"{c}_error")
                for c in COLUMNS
            ),
        )
        .sort("depth")
    )


def _points(ax: Any, means: pl.DataFrame, column: str, color: str, marker: str, **more: Any):
    own = means.drop_nulls(column)
    error = own[f"{column}_error"].fill_null(0.0).fill_nan(0.0).to_numpy()
    ax.errorbar(
        own["depth"], own[column], 2 * error,
        fmt=marker, ms=4, lw=1, capsize=2, color=color, **more,
    )  # fmt: skip


def _depth_axis(ax: Any, depths: Sequence[int]) -> None:
    ax.set(xscale="log", xlabel="layers L")
    if len(depths) <= 6:
        ax.set_xticks(depths, [str(depth) for depth in depths])
        ax.minorticks_off()
    else:
        few_ticks(ax)


def _parts(
    tables: Tables, name: str, *, label: str, beside: Sequence[tuple[str, str, str]], words: str
) -> Figure:
    """Loss, C_L and A_L - C_L against depth of the sweep `name`, with the sweeps `beside` it: name,
    label, and the marker.
    """
    titles = {"loss": "a  loss", "shared": "b  $C_L$", "disagreement": "c  $A_L - C_L$"}
    shown = [(name, label, "o-", BLUE), *((n, text, mark, GRAY) for n, text, mark in beside)]
    numbers: list[pl.DataFrame] = []
    with panels(3, height=3.0) as (canvas, axes):
        for sweep, text, marker, color in shown:
            frame = models(tables, sweep)
            single = models(tables, "values") if sweep == "plain" else frame
            means = seed_means(anchored(frame, single))
            numbers.append(means.with_columns(model=pl.lit(text)))
            for ax, column in zip(axes, titles, strict=True):
                if means[column].drop_nulls().len():
                    _points(ax, means, column, color, marker, label=text)
        for ax, (column, title) in zip(axes, titles.items(), strict=True):
            shown_at = pl.concat([n.drop_nulls(column)["depth"] for n in numbers])
            _depth_axis(ax, sorted(set(shown_at.to_list())))
            ax.set_title(title)
        axes[0].legend()
    return Figure(
        name=f"{NAME}-{'figure9' if name == 'stream' else 'figure10'}",
        caption=f"{words} {BARS}",
        alternative="Three panels against depth: loss, the part that layers share, and what they "
        "disagree on.",
        canvas=canvas,
        numbers=pl.concat(numbers, how="diagonal_relaxed"),
    )


def figure9(tables: Tables) -> Figure:
    """One stream."""
    return _parts(
        tables,
        "stream",
        label="one stream",
        beside=[("percentiles", "controlled model", "D")],
        words=f"Figure 9. One stream of width {STREAM_WIDTH} for inputs and labels, {SETTING}, "
        f"{STEPS:,} steps; gray: the controlled model.",
    )


def figure10(tables: Tables) -> Figure:
    """Values by layer."""
    return _parts(
        tables,
        "values",
        label="a value for each layer",
        beside=[("plain", "one value", "D")],
        words=f"Figure 10. A value for each layer, {SETTING}, {STEPS:,} steps; gray: the "
        "controlled model, with one value for all.",
    )


def figure11(tables: Tables) -> Figure:
    """Context updates."""
    found = {n: models(tables, n) for n in ("updates", "updates-broad")}
    sharp, broad = (seed_means(anchored(own, own)) for own in found.values())
    long = seed_means(anchored(models(tables, "updates-long"), found["updates-broad"]))
    numbers = [
        sharp.with_columns(model=pl.lit("top-2")),
        broad.with_columns(model=pl.lit("top-16")),
        long.with_columns(model=pl.lit("top-16, longer")),
    ]
    with panels(4, height=2.8) as (canvas, axes):
        for i, (means, words) in enumerate(((sharp, "top-2"), (broad, "top-16"))):
            deep = means.filter(pl.col("depth") > 1)
            _points(axes[i], means, "loss", BLUE, "o-", label=f"{STEPS:,} steps")
            _points(axes[2 + i], deep, "mask", BLUE, "o-", label=f"{STEPS:,} steps")
            axes[i].set(title=f"{'ab'[i]}  {words}", ylabel="loss")
            axes[2 + i].set(title=f"{'cd'[i]}  {words}", ylabel="learned m")
        for ax, column in ((axes[1], "loss"), (axes[3], "mask")):
            _points(ax, long, column, ORANGE, "s", label=f"{LONG_STEPS:,} steps")
        axes[3].axhline(CONTEXT_MASK, color=GRAY, ls=":", label="published")
        for i, ax in enumerate(axes):
            _depth_axis(ax, [depth for depth in sharp["depth"].to_list() if i < 2 or depth > 1])
        for ax in axes[2:]:
            low, high = ax.get_ylim()
            ax.set_ylim(low - 0.1, high + 0.1)
        axes[1].legend()
        axes[3].legend()
    return Figure(
        name=f"{NAME}-figure11",
        caption=f"Figure 11. Context updates with the learned scalar m, {SETTING.split(' at ')[0]} "
        "and top-16 at (0, 0). (a, b) Loss, at L = 1 that of the controlled model; (c, d) m, which "
        f"one layer does not use. {BARS} Orange: one longer training.",
        alternative="Four panels against depth: losses above, the learned m below, top-2 left and "
        "top-16 right.",
        canvas=canvas,
        numbers=pl.concat(numbers, how="diagonal_relaxed"),
    )


def figure12(tables: Tables) -> Figure:
    """The attention of the tokens on each other, in the first of two layers."""
    depth, seed = 2, 0
    frames: list[pl.DataFrame] = []
    with panels(2, height=3.1) as (canvas, axes):
        for ax, name, words in zip(
            axes, ("updates", "updates-broad"), ("a  top-2", "b  top-16"), strict=True
        ):
            attention = arrays(tables, name, "map")[depth, seed]
            top = float(attention.max())
            image = ax.imshow(attention, cmap="viridis", vmin=0, vmax=top, rasterized=True)
            canvas.colorbar(image, ax=ax, label="attention", shrink=0.85)
            ax.set(title=words, xlabel="token attended to", ylabel="token that attends")
            ax.grid(visible=False)
            row, column = np.indices(attention.shape)
            values = {"row": row.ravel(), "column": column.ravel(), "attention": attention.ravel()}
            frames.append(pl.DataFrame(values).with_columns(model=pl.lit(words[3:])))
    return Figure(
        name=f"{NAME}-figure12",
        caption=f"Figure 12. The context attention A_1 of two layers with context updates, one "
        f"context of {SOFTMAX_CONTEXT} tokens at (0, 0), seed {seed}. Each panel has a color scale "
        "of its own.",
        alternative="Two square maps. Left, a bright diagonal on a dark ground; right, a weaker "
        "diagonal and a mottled ground.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def figure13(tables: Tables) -> Figure:
    """Percentiles of the selection error, one layer and many."""
    last, gain = percentile_gain(tables)
    found = arrays(tables, "percentiles", "selection")
    q = np.arange(1, 100)
    numbers: dict[str, Any] = {"percentile": q}
    with panels(2, height=3.0) as (canvas, axes):
        for depth, color in ((1, ORANGE), (last, BLUE)):
            own = np.mean([values for (d, _), values in found.items() if d == depth], axis=0)
            axes[0].plot(q, own, color=color, label=f"L = {depth}")
            numbers[f"error_{depth}"] = own
        mean, error = gain.mean(0), gain.std(0, ddof=1) / math.sqrt(len(gain))
        axes[1].plot(q, mean, color=BLUE)
        axes[1].fill_between(q, mean - 2 * error, mean + 2 * error, color=BLUE, alpha=0.25, lw=0)
        axes[1].axhline(0, color=GRAY, lw=1)
        axes[0].set(title="a", xlabel="percentile q", ylabel="selection error $Q_L(q)$")
        axes[1].set(title="b", xlabel="percentile q", ylabel=f"$Q_1(q) - Q_{{{last}}}(q)$")
        axes[0].legend()
    return Figure(
        name=f"{NAME}-figure13",
        caption="Figure 13. Percentiles of the selection error |mean p - p*|² of the controlled "
        f"model, {SETTING}: {PERCENTILE_CONTEXTS:,} contexts of {PERCENTILE_QUERIES} queries for "
        f"each of {len(gain)} seeds. (b) Their difference, positive where depth is better; the "
        "band is two standard errors over seeds.",
        alternative="Left, two rising curves, the deep one higher at the left end and lower "
        "elsewhere. Right, their difference starts below zero and rises above it.",
        canvas=canvas,
        numbers=pl.DataFrame(numbers | {"gain": mean, "gain_error": error}),
    )


def figures(tables: Tables) -> list[Figure]:
    """Figures 9 to 13; none at scale demo."""
    if not has(tables, "stream", engine="simulation"):
        return []
    return [draw(tables) for draw in (figure9, figure10, figure11, figure12, figure13)]
