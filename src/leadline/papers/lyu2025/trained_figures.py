"""Figures 7 and 8, drawn from the trained runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from leadline.curve import Floats
from leadline.papers.lyu2025.sweeps import ALPHA, BETA, DRAWN, NAME, SMALL_TASKS, START
from leadline.papers.lyu2025.tables import Tables, column, table
from leadline.papers.lyu2025.trained import (
    ADAMW,
    BATCH,
    CONTEXT_TASK,
    SEEDS,
    TASK,
    final_losses,
    learning_times,
    seed_rows,
    undrawn_losses,
)
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels
from leadline.theory.sparse_loss import size_loss


def _mean_loss(tables: Tables, name: str) -> tuple[Floats, Floats, Floats]:
    """Steps, times and the mean loss over seeds."""
    rows = seed_rows(tables, name)
    mean = np.mean([column(row, "loss") for row in rows], axis=0)[1:]
    return column(rows[0], "step")[1:], column(rows[0], "time")[1:], mean


def _spread(
    ax: Any, x: Floats, values: Floats, color: str, label: str, *, hollow: bool = False
) -> None:
    """The median over seeds as points, all seeds as a band; what all of them learned."""
    with np.errstate(invalid="ignore"):
        kept = np.isfinite(values).all(axis=0)
    x, values = x[kept], values[:, kept]
    ax.fill_between(x, values.min(axis=0), values.max(axis=0), color=color, alpha=0.25, lw=0)
    size, face = (5.0, "none") if hollow else (2.8, color)
    ax.plot(x, np.median(values, axis=0), "o", ms=size, mfc=face, color=color, label=label)


def _law_panels(axes: Any, tables: Tables, name: str) -> list[pl.DataFrame]:
    frames: list[pl.DataFrame] = []
    exact: dict[str, Callable[[Floats], Floats]] = {
        "size": lambda x: 2 * size_loss(TASK, x, model=START),
        "data": lambda _: undrawn_losses(tables, name).mean(axis=1),
    }
    for ax, law, letter in zip(axes, ("size", "data"), "cd", strict=True):
        x, loss = final_losses(tables, name, law)
        for seed in range(SEEDS):
            label = "trained, 8 seeds" if seed == 0 else None
            ax.plot(x, loss[:, seed], "o", ms=3, color=BLUE, alpha=0.6, label=label)
        ax.plot(x, exact[law](x), color=GRAY, lw=1.2, label="what cannot be learned")
        ax.set(xscale="log", yscale="log", ylabel="last loss", ylim=(2e-3, 1))
        ax.set(xlabel="model size D" if law == "size" else "sequences N")
        ax.set_title(f"{letter}  loss against {law}")
        few_ticks(ax)
        ax.legend()
        frames.append(pl.DataFrame({"x": x, "loss": loss.mean(axis=1), "law": law}))
    return frames


def _times_frame(s: Floats, times: Floats, kind: str) -> pl.DataFrame:
    return pl.DataFrame({"x": s, "half_time": np.median(times, axis=0), "law": kind})


def figure7(tables: Tables) -> Figure:
    """Softmax attention under gradient descent."""
    s = np.arange(1.0, SMALL_TASKS + 1)
    with panels(4, height=3.1) as (canvas, axes):
        frames: list[pl.DataFrame] = []
        for name, color, style, label in (
            ("time", BLUE, "-", "contexts of 100"),
            ("shortened", ORANGE, "--", f"contexts 1000 s^-{BETA:g}"),
        ):
            _, times, loss = _mean_loss(tables, f"softmax/{name}")
            axes[0].plot(times, loss, style, color=color, label=label)
            learned = learning_times(tables, f"softmax/{name}")
            _spread(axes[1], s, learned, color, label, hollow=style == "--")
            frames.append(pl.DataFrame({"x": times, "loss": loss, "law": f"time, {name}"}))
            frames.append(_times_frame(s, learned, f"learning times, {name}"))
        _, times, loss = _mean_loss(tables, "softmax/time")
        exact = table(tables, "softmax/time", "theory").row(0, named=True)
        line, limit = column(exact, "time"), column(exact, "loss")
        axes[0].plot(line, limit, ":", color="black", lw=1.2, label="theory, long contexts")
        frames.append(pl.DataFrame({"x": line, "loss": limit, "law": "time, theory"}))
        shown = (times > 10) & (times < 1000)
        power = times[shown] ** (1 / ALPHA - 1)
        start = 1.6 * loss[shown][0] / power[0]
        axes[0].plot(times[shown], start * power, color=GRAY, lw=1.2, label="slope -(α-1)/α")
        middle = float(np.nanmedian(learning_times(tables, "softmax/time")[:, CONTEXT_TASK - 1]))
        for slope, style, label in (
            (ALPHA, "-", "slope α"),
            (ALPHA + BETA, ":", "slope α + β (linear attention)"),
        ):
            line = middle * (s / CONTEXT_TASK) ** slope
            axes[1].plot(s, line, style, color=GRAY, lw=1.2, label=label)
        axes[0].set(xlabel="time t (summed rates)", ylabel="loss (mean squared error)")
        axes[0].set(title="a  loss against time", ylim=(1e-3, 1.5))
        axes[1].set(xlabel="task s", ylabel="time of half the strength", title="b  learning times")
        for ax, place in zip(axes[:2], ("lower left", "lower right"), strict=True):
            ax.set(xscale="log", yscale="log")
            few_ticks(ax)
            ax.legend(loc=place)
        frames += _law_panels(axes[2:], tables, "softmax")
    return Figure(
        name=f"{NAME}-figure7",
        caption=f"Figure 7. Softmax attention on {SMALL_TASKS} types, gradient descent on batches "
        f"of {BATCH}, {SEEDS} seeds (bands: all of them). Dotted in (a): the solution for long "
        "contexts. (a, b) The time law is that of linear "
        "attention with contexts of one length, also where contexts shorten. (c, d) The laws in "
        "model size and data are those of what the model has and the data contain.",
        alternative="Four panels. Loss against time and learning times: two curves that coincide. "
        "Size and data: points on falling lines.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def figure8(tables: Tables) -> Figure:
    """AdamW."""
    s = np.arange(1.0, SMALL_TASKS + 1)
    share = s**-ALPHA / np.sum(s**-ALPHA)
    with panels(4, height=3.1) as (canvas, axes):
        frames: list[pl.DataFrame] = []
        for name, color, label in (
            ("time", BLUE, f"batches of {BATCH}"),
            ("full", ORANGE, f"all of {max(DRAWN)} sequences"),
        ):
            steps, _, loss = _mean_loss(tables, f"adamw/{name}")
            axes[0].plot(steps, loss, color=color, label=label)
            learned = learning_times(tables, f"adamw/{name}") / ADAMW.rate
            _spread(axes[1], s, learned, color, label)
            frames.append(pl.DataFrame({"x": steps, "loss": loss, "law": f"steps, {name}"}))
            frames.append(_times_frame(s, learned, f"learning steps, {name}"))
        first = float(np.nanmedian(learning_times(tables, "adamw/time")[:, 0])) / ADAMW.rate
        rare = np.sqrt(np.minimum(BATCH * share, 1.0))
        axes[1].plot(s, first / rare, color=GRAY, lw=1.2, label="heuristic, slope α/2")
        axes[1].plot(s, first * s**ALPHA, "--", color=GRAY, lw=1.2, label="slope α (descent)")
        axes[0].set(xlabel="steps", ylabel="loss (mean squared error)", ylim=(1e-4, 1.5))
        axes[0].set(title="a  loss against steps")
        axes[1].set(xlabel="task s", ylabel="steps to half the strength", title="b  learning times")
        axes[1].set(ylim=(5, 5000))
        for ax, place in zip(axes[:2], ("lower left", "lower right"), strict=True):
            ax.set(xscale="log", yscale="log")
            few_ticks(ax)
            ax.legend(loc=place)
        frames += _law_panels(axes[2:], tables, "adamw")
    return Figure(
        name=f"{NAME}-figure8",
        caption=f"Figure 8. Linear attention on {SMALL_TASKS} types under AdamW, {SEEDS} seeds "
        "(bands: all of them; types that all learn). (a, b) On all the data every type is learned "
        "at the same step and there is no law in time; on batches rare types wait, heuristically "
        "t_1 / sqrt(64 P_s) once they are rarer than one a batch. (c, d) The laws in model size "
        "and data stay.",
        alternative="Four panels. Loss against steps: one cliff, one slope. Learning steps: one "
        "flat, one rising. Size and data: points on falling lines.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )
