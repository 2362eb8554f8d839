"""The figures of docs/papers/beyond-depth.md: width, tied layers, the floor, optimizers."""

from __future__ import annotations

import numpy as np
import polars as pl

from leadline.papers.peng2026.beyond import (
    LENGTHS,
    OPTIMIZER_DEPTH,
    SPLITS,
    WIDTHS,
)
from leadline.papers.peng2026.beyond_floor import anchored, temperatures
from leadline.papers.peng2026.beyond_floor_figure import (
    GREEN,
    PINK,
    depth_axis,
    floor,
    points,
    seed_means,
)
from leadline.papers.peng2026.beyond_law import fitted, shape_runs, single, trained
from leadline.papers.peng2026.floor import theory
from leadline.papers.peng2026.published import NAME, SOFTMAX_CONTEXT, SOFTMAX_DIM
from leadline.papers.peng2026.tables import Tables, has
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels, shades


def shapes(tables: Tables) -> Figure:
    """Width, depth and context together."""
    runs = shape_runs(tables)
    models = trained(tables, "beyond-shapes")
    fits = fitted(runs)
    with panels(3, height=3.2) as (canvas, axes):
        for width, color in zip(WIDTHS, shades(len(WIDTHS)), strict=True):
            own = models.filter(width=width, context=SOFTMAX_CONTEXT).sort("depth")
            axes[0].plot(own["depth"], own["loss"], "o", ms=4, color=color, label=f"N = {width}")
            fine = pl.DataFrame({"depth": np.geomspace(1, own["depth"].to_numpy().max(), 40)})
            fine = fine.with_columns(
                width=pl.lit(float(width)), context=pl.lit(float(SOFTMAX_CONTEXT))
            )
            for name, style in (("coupled", "-"), ("separable", ":")):
                axes[0].plot(fine["depth"], fits[name].law.loss(fine), style, color=color, lw=1.2)
        depth_axis(axes[0], title=f"a  {SOFTMAX_CONTEXT} tokens")
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_formatter("{x:g}")
        axes[0].yaxis.set_minor_formatter("{x:g}")
        axes[0].set_ylim(bottom=1.2)
        axes[0].legend(ncols=2, loc="lower left")
        for width, color in zip(WIDTHS, shades(len(WIDTHS)), strict=True):
            for depth, style in ((1, "o-"), (4, "s--")):
                own = models.filter(width=width, depth=depth).sort("context")
                if own.height > 1:
                    label = f"N = {width}, L = {depth}"
                    axes[1].plot(own["context"], own["loss"], style, ms=4, color=color, label=label)
        axes[1].set(
            xscale="log", yscale="log", xlabel="tokens P", ylabel="loss", title="b  context"
        )
        few_ticks(axes[1])
        axes[1].yaxis.set_major_formatter("{x:g}")
        axes[1].yaxis.set_minor_formatter("{x:g}")
        axes[1].legend(ncols=2)
        frames: list[pl.DataFrame] = []
        for (name, one), color in zip(fits.items(), (ORANGE, GRAY, BLUE), strict=True):
            error = np.log(runs.column("loss").to_numpy() / one.law.loss(runs.frame))
            size = runs.column("params").to_numpy()
            rms = float(np.sqrt(np.mean(error**2)))
            axes[2].plot(size, error, "o", ms=3.5, color=color, label=f"{name}: {rms:.1%}")
            frames.append(runs.frame.with_columns(law=pl.lit(name), residual=pl.Series(error)))
        axes[2].axhline(0, color="black", lw=0.8)
        axes[2].set(
            xscale="log",
            xlabel="parameters 2dNL",
            ylabel="log loss - log law",
            title="c  residuals",
        )
        axes[2].legend(title="root mean square", title_fontsize=8)
    return Figure(
        name=f"{NAME}-beyond-shapes",
        caption="Width N of the factors of M = W_k^T W_q, depth L and context P, top-2 in "
        f"{SOFTMAX_DIM} dimensions, one seed a shape. (a) Points: trained; solid and dotted: the "
        "coupled and the separable law fitted to all shapes. (b) The same losses against the "
        "context. (c) Residuals of three laws.",
        alternative="Loss falls steeply with width and slightly with depth; more tokens raise it "
        "at small widths and lower it at the full one. Residuals of all three laws are large and "
        "structured.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def ties(tables: Tables) -> Figure:
    """Layers that share a matrix, and untied ones of as many parameters."""
    models = trained(tables, "beyond-ties")
    one = models.filter(depth=1)
    lines = (
        (single(2), "best single layer", GRAY, "-"),
        (temperatures().loss, "best temperatures", ORANGE, "--"),
        (theory(2).bound.loss, "bound", "black", "-"),
    )
    frames: list[pl.DataFrame] = []
    with panels(2, height=3.3) as (canvas, axes):
        ax = axes[0]
        for height, label, color, style in lines:
            ax.axhline(height, color=color, ls=style, lw=1.2, label=label)
        for layers, color, mark in (
            ("looped", GRAY, "s"), ("tempered", ORANGE, "^"), ("separate", BLUE, "o"),
        ):  # fmt: skip
            own = pl.concat(
                [one, models.filter((pl.col("layers") == layers) & (pl.col("depth") > 1))]
            )
            own = own.with_columns(pl.Series("loss", anchored(tables, own, own_contexts=False)))
            means = seed_means(own, "depth")
            label = "untied" if layers == "separate" else layers
            points(ax, means, x="depth", fmt=f"{mark}-", color=color, label=label)
            frames.append(means.with_columns(layers=pl.lit(label)))
        depth_axis(ax, title="a  equal depth")
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 0.14))
        splits = seed_means(trained(tables, "beyond-splits"), "depth", "width")
        ax = axes[1]
        ax.axhline(single(2), color=GRAY, lw=1.2, label="one full layer, looped or not")
        ax.axhline(temperatures().loss, color=ORANGE, ls="--", lw=1.2, label="best temperatures")
        points(ax, splits, x="depth", fmt="o-", color=BLUE, label="untied, N L = 16")
        for depth, width in SPLITS:
            height = float(splits.filter(depth=depth, width=width)["loss"][0])
            ax.annotate(
                f"N = {width}", (depth, height), xytext=(-6, 5), textcoords="offset points",
                fontsize=8, ha="right",
            )  # fmt: skip
        ax.set_xlim(0.6, 12)
        depth_axis(ax, title="b  equal parameters")
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1))
        frames.append(splits.with_columns(layers=pl.lit("untied, equal parameters")))
    return Figure(
        name=f"{NAME}-beyond-ties",
        caption="Layers that share their matrix. (a) Looped (one M), tempered (one M, a "
        "temperature a layer) and untied layers of the recipe short, anchored on an untrained "
        "layer whose loss is known; lines are theory. (b) Untied layers whose factors shrink so "
        "that parameters stay those of one full layer, 2 d^2. Means over "
        f"{models['seed'].n_unique()} seeds with two standard errors.",
        alternative="Left, looped layers stay on the line of the single layer, tempered ones fall "
        "to that of the best temperatures and stay, untied ones fall on. Right, loss rises with "
        "depth at equal parameters.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def optimizers(tables: Tables) -> Figure:
    """Loss and disagreement of one depth by recipe."""
    models = trained(tables, "beyond-optimizers").with_columns(
        pl.Series(
            "loss", anchored(tables, trained(tables, "beyond-optimizers"), own_contexts=False)
        )
    )
    adam = (pl.col("optimizer") == "adam") & (pl.col("start") == 0.5)
    groups = {
        f"Adam, {LENGTHS[0]} steps": (adam & (pl.col("steps") == LENGTHS[0]), BLUE, "o"),
        f"Adam, {LENGTHS[1]} steps": (adam & (pl.col("steps") == LENGTHS[1]), ORANGE, "s"),
        "Adam, factored": (pl.col("start") == 0.0, GREEN, "^"),
        "Adam, lazy": (pl.col("start") == 0.9, PINK, "v"),
        "AdamW": (pl.col("optimizer") == "adamw", "black", "x"),
        "SGD": (pl.col("optimizer") == "sgd", GRAY, "+"),
    }
    with panels(2, height=3.3) as (canvas, axes):
        for label, (chosen, color, mark) in groups.items():
            own = models.filter(chosen)
            axes[0].plot(own["disagreement"], own["loss"], mark, ms=5, color=color, label=label)
        axes[0].axhline(single(2), color=GRAY, lw=1.2)
        axes[0].axhline(theory(2).bound.loss, color="black", lw=1.5)
        axes[0].set(
            xscale="log",
            xlabel="disagreement A - C",
            ylabel="loss",
            title="a  loss and disagreement",
        )
        few_ticks(axes[0])
        axes[0].set_ylim(top=2.2)
        axes[0].legend(fontsize=7, ncols=2, loc="upper left")
        for steps, color, mark in zip(LENGTHS, (BLUE, ORANGE), "os", strict=True):
            own = models.filter(adam & (pl.col("steps") == steps))
            path = own["rate"] * own["steps"]
            axes[1].plot(path, own["disagreement"], mark, ms=5, color=color, label=f"{steps} steps")
        axes[1].set(
            xscale="log",
            yscale="log",
            xlabel="rate x steps",
            ylabel="disagreement A - C",
            title="b  the path of Adam",
        )
        axes[1].yaxis.set_major_formatter("{x:g}")
        axes[1].yaxis.set_minor_formatter("{x:g}")
        axes[1].legend()
    return Figure(
        name=f"{NAME}-beyond-optimizers",
        caption=f"What sets the disagreement of {OPTIMIZER_DEPTH} layers (top-2). (a) Loss, "
        "anchored on an untrained layer, against A - C, one mark a run; lines: best single layer "
        "and bound. (b) A - C against the rate times the number of steps of Adam.",
        alternative="Left, losses differ at equal disagreement, and are worst where it is largest. "
        "Right, disagreement grows with the rate times the number of steps.",
        canvas=canvas,
        numbers=models,
    )


def figures(tables: Tables) -> tuple[Figure, ...]:
    """All figures of the page; none where its runs are missing, at scale "demo"."""
    if not has(tables, "beyond-signs", engine="simulation"):
        return ()
    return shapes(tables), ties(tables), floor(tables), optimizers(tables)
