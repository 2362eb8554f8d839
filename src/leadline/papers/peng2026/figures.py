"""Figure 3 of the paper, and the bound on softmax attention beside the published plateaus."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from leadline.papers.peng2026 import (
    beyond_figures,
    depth_figures,
    extension_figures,
    linear_trained_figures,
)
from leadline.papers.peng2026.floor import LAW_DEPTHS, factor, theory
from leadline.papers.peng2026.linear import exponents
from leadline.papers.peng2026.linear_trained import easy_losses
from leadline.papers.peng2026.published import (
    LINEAR_DIM,
    NAME,
    NONLINEAR,
    SOFTMAX_CONTEXT,
    SOFTMAX_DIM,
    TABLE2,
)
from leadline.papers.peng2026.tables import Tables, against_depth, has, key, losses, rows
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels, shades
from leadline.spec import LinearAttention
from leadline.theory.linear_easy import mode_residuals
from leadline.theory.polynomials import StepSizes
from leadline.theory.retrieval_bound import best_temperatures

MODES = (1, 2, 4, 8, 16, 32)
MODE_SPECTRUM = (2.0, 1.0)
THRESHOLD = 0.02


def _loss_panel(ax: Any, tables: Tables, varied: str) -> list[pl.DataFrame]:
    """Losses against depth of the spectra in which the exponent `varied` varies, the other is 2."""
    at = "ab".index(varied)
    cases = [case for case in TABLE2 if case[1 - at] == 2]
    if varied == "a":
        cases = sorted(case for case in cases if case[0] != 2)
    frames: list[pl.DataFrame] = []
    trained = easy_losses(tables) if has(tables, "linear-easy", engine="simulation") else None
    for (a, b), color in zip(cases, shades(len(cases)), strict=True):
        found = exponents(tables, a=a, b=b)
        fits = ", ".join(f"{found[kind][0]:.2f}" for kind in ("constrained", "free"))
        if trained:
            points, mean = linear_trained_figures.easy_points(ax, trained, (a, b), color=color)
            frames.append(points)
            fits += f", {mean:.2f}"
        for tied, style, kind in ((True, "-", "constrained"), (False, "--", "free")):
            depth, loss, _ = against_depth(tables, "easy", a=a, b=b, tied=tied)
            label = f"{varied} = {(a, b)[at]:g}: {fits}" if tied else None
            ax.plot(depth, loss, style, color=color, label=label)
            frames.append(
                pl.DataFrame({"depth": depth, "loss": loss}).with_columns(
                    a=pl.lit(float(a)), b=pl.lit(float(b)), kind=pl.lit(kind)
                )
            )
    ax.set(xscale="log", yscale="log", xlabel="layers L", ylabel="loss")
    few_ticks(ax)
    ax.legend(title="fitted exponents, L = 1 to 16", title_fontsize=8, loc="lower left")
    return frames


def _modes_panel(ax: Any, tables: Tables) -> pl.DataFrame:
    """The loss of single modes over that of the prediction zero, layers of one scale."""
    index = np.array(MODES, float)
    depths: list[int] = []
    left: list[Any] = []
    for spec, row in rows(tables, "easy"):
        assert isinstance(spec.model, LinearAttention)
        if key(spec)[1:] == MODE_SPECTRUM and spec.model.tied:
            depth, gamma = spec.model.depth, row["best_gamma"]
            steps = StepSizes(
                scales=np.full(depth, gamma), loss=row["loss"], gap=0.0, status="converged"
            )
            depths.append(depth)
            left.append(mode_residuals(index ** -MODE_SPECTRUM[0], steps))
    table = np.maximum(np.array(left), 1e-8)
    for k, color, values in zip(MODES, shades(len(MODES)), table.T, strict=True):
        ax.plot(depths, values, "o-", ms=2.5, color=color, label=f"k = {k}")
    ax.axhline(THRESHOLD, color=GRAY, lw=1, ls=":")
    ax.set(xscale="log", yscale="log", xlabel="layers L", ylabel="loss of a mode / at the start")
    ax.set(title="c  modes at a = 2, b = 1, constrained", ylim=(1e-6, 1.5))
    few_ticks(ax)
    ax.legend(loc="lower left")
    long = {"depth": np.repeat(np.array(depths, float), len(MODES)), "loss": table.ravel()}
    modes = pl.DataFrame(long | {"mode": np.tile(index, len(depths))})
    return modes.with_columns(kind=pl.lit("mode, constrained"))


def figure3(tables: Tables) -> Figure:
    """Linear attention on the easy task."""
    with panels(3, height=3.3) as (canvas, axes):
        frames = _loss_panel(axes[0], tables, "b") + _loss_panel(axes[1], tables, "a")
        trained = has(tables, "linear-easy", engine="simulation")
        axes[0].set_title("a  a = 2, b varies")
        axes[1].set_title("b  b = 2, a varies")
        frames.append(_modes_panel(axes[2], tables))
    return Figure(
        name=f"{NAME}-figure3",
        caption=f"Figure 3. Linear attention on the easy task, exactly, d = {LINEAR_DIM} and "
        "infinitely many tokens. (a, b) Least loss against depth with one scale for all layers "
        "(solid, the first exponent) and with free scales (dashed, the second). "
        + ("Points: trained scales, mean over seeds (the third exponent). " if trained else "")
        + f"(c) Loss of single modes with one scale; dotted: {THRESHOLD:.0%}.",
        alternative="Three panels on log axes. Losses fall with depth, dashed lines faster than "
        "solid ones and bending down. Modes fall one after the other, the top ones first.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def _floor_panel(ax: Any, tables: Tables, targets: int) -> pl.DataFrame:
    """Theory at (0, 0) as lines, published plateaus divided by mean_k k^-b as points."""
    found = theory(targets)
    temperatures = best_temperatures(dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=targets).loss
    single = next(
        row["loss"] / factor(key(spec)[2])
        for spec, row in rows(tables, "softmax")
        if key(spec)[0] == targets
    )
    depth = np.array(LAW_DEPTHS, float)
    law = np.array([m.loss for m in found.law])
    built = np.array([m.loss for m in found.built])
    ax.axhline(single, color=GRAY, lw=1.2, label="best single layer $R_1$")
    ax.axhline(temperatures, color=ORANGE, ls="--", lw=1.2, label="best temperatures")
    ax.plot(depth, law, color=BLUE, label="law of depth $R_L$")
    ax.plot(depth, built, "o", ms=3.5, mfc="none", color=BLUE, label="whole layers, untrained")
    ax.axhline(found.bound.loss, color="black", lw=1.5, label="bound $R_\\infty$")
    names, values = [], []
    for (k, a, b), (plateau, _) in NONLINEAR.items():
        if k == targets and a == 0:
            names.append(f"published, b = {b:g}")
            values.append(plateau / factor(b))
    at = 330 * 1.35 ** np.arange(len(values))
    ax.plot(at, values, "D", ms=4.5, color=ORANGE, label="published plateaus")
    ax.set(xscale="log", xlabel="layers L", ylabel="loss at (0, 0)")
    ax.set_title(f"top-{targets}: bound {found.bound.loss:.4f}")
    span = single - found.bound.loss
    ax.set_ylim(found.bound.loss - 0.1 * span, single + 0.1 * span)
    few_ticks(ax)
    kinds = ["single", "temperatures", "bound", *names]
    numbers = [single, temperatures, found.bound.loss, *values]
    return pl.concat(
        [
            pl.DataFrame({"kind": kinds, "loss": [float(x) for x in numbers]}),
            pl.DataFrame({"depth": depth, "loss": law}).with_columns(kind=pl.lit("law")),
            pl.DataFrame({"depth": depth, "loss": built}).with_columns(kind=pl.lit("built")),
        ],
        how="diagonal_relaxed",
    ).with_columns(targets=pl.lit(targets))


def floor(tables: Tables) -> Figure:
    """The bound of all ensembles of layers beside the published plateaus."""
    present = sorted({k for k, *_ in losses(tables, "softmax")})
    with panels(len(present), height=3.4) as (canvas, axes):
        frames = [_floor_panel(ax, tables, k) for ax, k in zip(axes, present, strict=True)]
        axes[-1].legend(loc="lower left", bbox_to_anchor=(0.0, 0.09))
    return Figure(
        name=f"{NAME}-floor",
        caption="Softmax attention on top-k retrieval, 16 dimensions and 64 tokens, theory without "
        "a fitted parameter: the best single layer, mixtures of temperatures, the law of depth "
        "with opposite pairs of perturbed layers, and the least loss of every ensemble. Diamonds: "
        "the plateaus fitted in the paper, divided by mean_k k^-b (one for each b; their place on "
        "the axis means nothing).",
        alternative="Two panels. A curve falls from the line of the single layer toward the line "
        "of the bound; diamonds lie on the bound or just above it.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def figures(tables: Tables) -> tuple[Figure, ...]:
    """Every figure that the scale of `tables` can draw."""
    return (
        figure3(tables),
        floor(tables),
        *depth_figures.figures(tables),
        *linear_trained_figures.figures(tables),
        *extension_figures.figures(tables),
        *beyond_figures.figures(tables),
    )
