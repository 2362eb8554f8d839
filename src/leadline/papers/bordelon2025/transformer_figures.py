"""Drawing of trained transformers: Figures 1, 6 and 9, and the trained twin of Figure 8."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from leadline.curve import Floats
from leadline.ident import from_json
from leadline.papers.bordelon2025.tables import Tables, table
from leadline.papers.bordelon2025.transformers import (
    BATCH,
    CURVE_DEPTHS,
    DEPTHS,
    DIM,
    FLOW_BATCH,
    RATE,
    RATIOS,
    START,
    STEPS,
    UNTIED_DEPTH,
    finite_optimum,
    modes_of,
    theory_curve,
    tied_optimum,
)
from leadline.report.figures import GRAY, Figure, number, panels, shades
from leadline.theory.isotropic import closed_optimum
from leadline.theory.polynomials import free_steps

FINE_RATIOS = tuple(2 ** (i / 2) for i in range(-4, 3))
"""Context ratios of the lines of Figure 1c."""


def seed_means(runs: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Mean loss curves over seeds with the standard error of that mean, one row a recorded step."""
    wanted = ("step", "time", "loss")
    long = runs.select(*keys, "seed", *(pl.col(f"curve_{c}").alias(c) for c in wanted))
    return (
        long.explode(*wanted)
        .group_by(*keys, "step")
        .agg(
            pl.col("time").first(),
            pl.col("loss").mean(),
            (pl.col("loss").std() / pl.len().sqrt()).alias("loss_error"),
        )
        .sort(*keys, "step")
    )


def mean_scales(runs: pl.DataFrame) -> Floats:
    r"""The scales $\gamma_l$ of one setting, averaged over seeds: (record, layer)."""
    found: list[Floats] = []
    for measures in runs["measures"].to_list():
        scale = next(m for m in measures if m["name"] == "scale")
        found.append(np.array(scale["values"]).reshape(scale["shape"]))
    return np.mean(found, axis=0)


def _seeds(runs: pl.DataFrame) -> int:
    return runs["seed"].n_unique()


def _dots(ax: Any, curve: pl.DataFrame, color: Any, *, x: str, line: str = "none", **more: Any):
    """Means with two standard errors, without the point at zero, where a log axis has no room."""
    own = curve.filter(pl.col(x) > 0)
    ax.errorbar(
        own[x], own["loss"], 2 * own["loss_error"],
        fmt="o", ms=3.2, color=color, capsize=2, lw=1, ls=line, **more,
    )  # fmt: skip


def _plain_losses(ax: Any) -> None:
    """Losses of one or two decades as plain numbers."""
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _curves_by_step(ax: Any, curves: pl.DataFrame, *, group: str, label: str) -> None:
    """Loss curves of simulation alone, joined."""
    values = sorted(set(curves[group].to_list()))
    for value, color in zip(values, shades(len(values)), strict=True):
        own = curves.filter(pl.col(group) == value)
        _dots(ax, own, color, x="step", line="-", label=f"{label} = {number(value)}")
    ax.set(xscale="log", yscale="log", xlabel="step")
    _plain_losses(ax)
    ax.legend(ncols=2, frameon=True, framealpha=0.85, edgecolor="none")


def figure1(tables: Tables) -> Figure:
    """Trained linear transformers on isotropic contexts."""
    runs = table(tables, "figure1", "simulation").with_columns(
        (pl.col("context") / pl.col("dim")).alias("ratio")
    )
    curves = seed_means(runs, "ratio", "depth")
    deep, square = curves.filter(pl.col("depth") == 16), curves.filter(pl.col("ratio") == 1)
    final = curves.filter(pl.col("step") == pl.col("step").max())
    with panels(3, height=3.1) as (canvas, axes):
        _curves_by_step(axes[0], deep, group="ratio", label="α")
        _curves_by_step(axes[1], square, group="depth", label="L")
        levels = [(axes[0], ratio, 16, i, len(RATIOS)) for i, ratio in enumerate(RATIOS)]
        levels += [(axes[1], 1.0, d, i, len(CURVE_DEPTHS)) for i, d in enumerate(CURVE_DEPTHS)]
        for ax, ratio, depth, i, count in levels:
            best, *_ = finite_optimum(DIM, round(ratio * DIM), depth)
            ax.axhline(best, color=shades(count)[i], lw=1, ls="--", zorder=0)
        axes[0].set(title="a  L = 16, context α = P/D", ylabel="loss (mean squared error)")
        axes[1].set(title="b  α = 1, depth", ylim=(None, 0.9))
        lines = _panel_final(axes[2], final)
    return Figure(
        name="bordelon2025-figure1",
        caption=(
            "Figure 1. Trained linear transformers (tied layers, read-in and read-out fixed) on "
            f"isotropic contexts in {DIM} dimensions: Adam at rate {RATE:g} along a cosine, "
            f"{STEPS} steps of {BATCH} contexts, from an aligned start at half of the step size "
            f"γ/L that is best in infinite dimension. Points: means over {_seeds(runs)} seeds with "
            "two standard errors. Dashed (a, b) and solid (c): L gradient steps with the best step "
            "size, averaged over sampled spectra of that dimension. Dotted: the closed optimum in "
            "infinite dimension."
        ),
        alternative=(
            "Two panels of loss against training step that end on dashed levels; right, final loss "
            "against context ratio, falling faster for deeper models, points on lines."
        ),
        canvas=canvas,
        numbers=pl.concat(
            [curves.with_columns(engine=pl.lit("simulation")), lines], how="diagonal_relaxed"
        ),
    )


def _panel_final(ax: Any, final: pl.DataFrame) -> pl.DataFrame:
    """Final loss against context ratio; returns the lines."""
    rows: list[dict[str, Any]] = []
    fine = np.geomspace(RATIOS[0], RATIOS[-1], 60)
    for depth, color in zip(DEPTHS, shades(len(DEPTHS)), strict=True):
        ratios = [round(ratio * DIM) / DIM for ratio in FINE_RATIOS]
        best = [finite_optimum(DIM, round(ratio * DIM), depth) for ratio in ratios]
        ax.plot(ratios, [loss for loss, *_ in best], color=color, label=f"L = {depth}")
        infinite = [closed_optimum(depth=depth, ratio=float(ratio))[1] for ratio in fine]
        ax.plot(fine, infinite, ":", color=color, lw=1.2)
        _dots(ax, final.filter(pl.col("depth") == depth), color, x="ratio")
        rows += [
            {"ratio": ratio, "depth": float(depth), "loss": loss, "loss_error": error}
            for ratio, (loss, error, _) in zip(ratios, best, strict=True)
        ]
    ax.set(xscale="log", yscale="log", xlabel="context ratio α = P/D", title="c  final loss")
    ax.set_xticks(RATIOS, [number(r) for r in RATIOS])
    ax.minorticks_off()
    ax.legend(loc="lower left")
    return pl.DataFrame(rows).with_columns(engine=pl.lit("theory"))


def _panel_flow(ax: Any, runs: pl.DataFrame) -> pl.DataFrame:
    """Loss against time of full attention by depth, simulation over theory; returns both."""
    curves = seed_means(runs, "depth")
    depths = [int(depth) for depth in sorted(set(curves["depth"].to_list()))]
    at = tuple(np.geomspace(0.3, float(curves["time"].to_numpy().max()), 80).tolist())
    task = from_json(runs["spec"][0]).task
    frames = [curves.with_columns(engine=pl.lit("simulation"))]
    for depth, color in zip(depths, shades(len(depths)), strict=True):
        _, loss = theory_curve(task, depth, at)
        ax.plot(at, loss, color=color, label=f"L = {depth}")
        _dots(ax, curves.filter(pl.col("depth") == depth), color, x="time")
        line = pl.DataFrame({"time": at, "loss": loss})
        frames.append(line.with_columns(engine=pl.lit("theory"), depth=pl.lit(float(depth))))
    ax.set(xscale="log", yscale="log", xlabel="time t")
    ax.set_xlim(0.3)
    _plain_losses(ax)
    ax.legend(loc="lower left")
    return pl.concat(frames, how="diagonal_relaxed")


def _where_diverged(curves: pl.DataFrame) -> str:
    """What the caption says of depths whose points end before their lines."""
    lost = curves.filter(pl.col("loss").is_nan())
    if lost.is_empty():
        return ""
    depths = ", ".join(number(depth) for depth in sorted(set(lost["depth"].to_list())))
    return (
        f" Points in (a) at L = {depths} end before t = {lost['time'].to_numpy().min():.3g}, where "
        "the first seed meets a context so far past its edge of stability that plain descent "
        "diverges."
    )


def figure6(tables: Tables) -> Figure:
    """Full attention: every factor trained, and softmax."""
    panels_of = {panel: table(tables, f"figure6{panel}", "simulation") for panel in "abc"}
    dim, softmax_dim = (int(panels_of[panel]["dim"][0]) for panel in "ac")
    softmax = seed_means(panels_of["c"], "depth")
    with panels(3, height=3.1) as (canvas, axes):
        numbers = [
            _panel_flow(ax, panels_of[panel]).with_columns(panel=pl.lit(panel))
            for panel, ax in zip("ab", axes[:2], strict=True)
        ]
        _curves_by_step(axes[2], softmax, group="depth", label="L")
        axes[0].set(title="a  isotropic, α = 1", ylabel="loss (mean squared error)")
        axes[1].set(title="b  rotated power law, β = 1.25")
        axes[2].set(title="c  softmax attention, Adam")
    numbers.append(softmax.with_columns(panel=pl.lit("c"), engine=pl.lit("simulation")))
    return Figure(
        name="bordelon2025-figure6",
        caption=(
            f"Figure 6. All of W_x, W_q, W_k, W_v trained. (a, b) Tied linear attention in {dim} "
            f"dimensions from a balanced start, w = {START:g}, by plain gradient descent in small "
            f"steps of {FLOW_BATCH} contexts, against the flow of its factors with γ = w_v w_k w_q "
            "w_x² (lines; in (a) on sampled spectra of that dimension). (b) ν = 1.25, infinite "
            f"context. (c) Softmax attention, {softmax_dim} dimensions, P = 4D, untied layers. "
            f"Points: means over {_seeds(panels_of['a'])} seeds with two standard errors. One "
            "layer falls first and stops first; deeper models end lower."
            + _where_diverged(numbers[0])
        ),
        alternative=(
            "Three panels of loss against time: a plateau, a fast fall, and levels that are lower "
            "for deeper models; points lie on the lines."
        ),
        canvas=canvas,
        numbers=pl.concat(numbers, how="diagonal_relaxed"),
    )


def figure8_trained(tables: Tables) -> Figure:
    """Untied layers of trained linear attention, and how they part."""
    runs = table(tables, "figure8-trained", "simulation")
    curves = seed_means(runs, "depth")
    tied = seed_means(table(tables, "figure6b", "simulation"), "depth")
    tied = tied.filter(pl.col("depth") == UNTIED_DEPTH)
    task = from_json(runs["spec"][0]).task
    scales = mean_scales(runs) / UNTIED_DEPTH
    at = tuple(np.geomspace(0.3, float(curves["time"].to_numpy().max()), 80).tolist())
    gamma, loss = theory_curve(task, UNTIED_DEPTH, at)
    levels = {
        "tied optimum": tied_optimum(task, UNTIED_DEPTH),
        "untied optimum": free_steps(modes_of(task), depth=UNTIED_DEPTH).loss,
    }
    with panels(2, height=3.1) as (canvas, axes):
        ax = axes[0]
        ax.plot(at, loss, "--", color=GRAY, label="theory, balanced")
        _dots(ax, tied, shades(2)[1], x="time", label="tied")
        _dots(ax, curves, shades(2)[0], x="time", label="untied")
        for name, level in levels.items():
            ax.axhline(level, color=GRAY, lw=0.8, zorder=0)
            ax.annotate(name, (0.35, level), va="bottom", fontsize=8, color=GRAY)
        ax.set(title=f"a  loss at depth {UNTIED_DEPTH}", xscale="log", yscale="log")
        ax.set(xlabel="time t", ylabel="loss (mean squared error)")
        ax.legend()
        ax = axes[1]
        ax.plot(at, gamma / UNTIED_DEPTH, "--", color=GRAY, label="theory, balanced")
        seen = np.array(runs["curve_time"][0].to_list())
        for layer, color in enumerate(shades(UNTIED_DEPTH)):
            ax.plot(seen[1:], scales[1:, layer], "o-", ms=3.2, lw=1, color=color,
                    label=f"layer {layer + 1}")  # fmt: skip
        ax.set(title="b  scales of the layers", xscale="log", xlabel="time t", ylabel="$γ_l$ / L")
        ax.legend(loc="upper left")
    parts = pl.DataFrame({f"gamma_{i + 1}": scales[:, i] for i in range(UNTIED_DEPTH)})
    return Figure(
        name="bordelon2025-figure8-trained",
        caption=(
            "Figure 8, trained. Linear attention with W_x, W_q, W_k, W_v trained layer by layer "
            f"(rotated power law, β = 1.25, {task.spectrum.dim} dimensions, depth {UNTIED_DEPTH}) "
            "from a balanced start. (a) Untied layers (W_x is common to them) follow tied ones and "
            "the balanced flow to the tied optimum, a saddle, and leave it for lower losses. (b) "
            "Scales of the layers. Noise of the gradients makes their matrices differ from "
            "multiples of the identity, so that their order matters, and they part in the same "
            f"order in every seed. Scales and losses are means over {_seeds(runs)} seeds."
        ),
        alternative=(
            "Left: losses fall onto the level of the tied optimum and, late, below it. Right: four "
            "scales rise together and separate at late times."
        ),
        canvas=canvas,
        numbers=pl.concat(
            [
                pl.concat([curves, parts], how="horizontal").with_columns(
                    engine=pl.lit("simulation")
                ),
                pl.DataFrame({"time": at, "loss": loss, "gamma": gamma}).with_columns(
                    engine=pl.lit("theory")
                ),
            ],
            how="diagonal_relaxed",
        ),
    )


def figure9(tables: Tables) -> Figure:
    """Softmax attention with MLP blocks."""
    runs = table(tables, "figure9", "simulation")
    curves = seed_means(runs, "depth")
    dim = int(runs["dim"][0])
    with panels(1) as (canvas, axes):
        canvas.set_size_inches(5.2, 3.6)
        _curves_by_step(axes[0], curves, group="depth", label="L")
        axes[0].set(ylabel="loss (mean squared error)", ylim=(None, 1.3))
    return Figure(
        name="bordelon2025-figure9",
        caption=(
            "Figure 9. Softmax attention with MLP blocks of twice the width, all weights trained "
            f"from a random start: isotropic contexts in {dim} dimensions, P = 4D, width 2D, Adam "
            f"along a cosine. Means over {_seeds(runs)} seeds with two standard errors. Deeper "
            "models learn in fewer steps and end lower."
        ),
        alternative="Loss against step on log axes; deeper models lie lower.",
        canvas=canvas,
        numbers=curves.with_columns(engine=pl.lit("simulation")),
    )


def figures(tables: Tables) -> list[Figure]:
    """Every figure of trained transformers."""
    return [figure1(tables), figure6(tables), figure8_trained(tables), figure9(tables)]
