"""Figures 4 and 5 and the measured columns of tables 2 and 3, from our own training."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.ticker import FuncFormatter, NullFormatter

from leadline.curve import Floats
from leadline.papers.peng2026.exact import POWERS
from leadline.papers.peng2026.linear import exponents
from leadline.papers.peng2026.linear_trained import (
    DIFFICULT_DEPTHS,
    NOISE,
    SOFTMAX_DEPTHS,
    SOFTMAX_RECORD,
    SOFTMAX_SPECTRA,
    SOFTMAX_STEPS,
    STARTS,
    Easy,
    chosen,
    lengths,
)
from leadline.papers.peng2026.linear_trained_claims import (
    easy_exponents,
    least_contexts,
    masses,
    noise_excess,
    plateau,
    seed_exponents,
    softmax_losses,
    trained_contexts,
)
from leadline.papers.peng2026.published import (
    LINEAR,
    LINEAR_CONTEXT,
    LINEAR_DIM,
    NAME,
    SOFTMAX_CONTEXT,
    SOFTMAX_DIM,
    TABLE2,
    TABLE3,
    Row,
)
from leadline.papers.peng2026.tables import Tables, has
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, panels, shades
from leadline.spec import Spectrum
from leadline.theory.retrieval_task import task_factor


def _mean_error(values: Floats) -> tuple[Floats, Floats]:
    """Mean over seeds, the first axis, and two standard errors."""
    return values.mean(axis=0), 2 * values.std(axis=0, ddof=1) / np.sqrt(len(values))


def easy_points(
    ax: Any, losses: dict[Easy, Floats], spectrum: tuple[float, float], *, color: Any
) -> tuple[pl.DataFrame, float]:
    """Losses of the longest training against depth as points with two standard errors; returns
    them and the mean of their exponents.
    """
    a, b = spectrum
    own = losses[a, b, lengths(losses)[-1], STARTS[0]]
    mean, error = _mean_error(own)
    ax.errorbar(POWERS, mean, error, fmt="o", ms=3.2, lw=1, capsize=2, color=color)
    depth = [float(n) for n in POWERS]
    points = pl.DataFrame({"depth": depth, "loss": mean, "error": error}).with_columns(
        a=pl.lit(float(a)), b=pl.lit(float(b)), kind=pl.lit("trained")
    )
    return points, float(seed_exponents(own).mean())


def table2(tables: Tables) -> Figure:
    """Depth exponents on the easy task, trained beside the references."""
    every = easy_exponents(tables)
    short, *_, long = lengths(every)
    seeds = len(every[2, 1, long, STARTS[0]])
    lines: list[dict[str, Any]] = []
    for at, ((a, b), (_, alpha, _)) in enumerate(TABLE2.items()):
        known = exponents(tables, a=a, b=b)
        named = {kind: (few, 0.0) for kind, (few, _) in known.items()}
        found = {
            "trained, short": every[a, b, short, STARTS[0]],
            "trained, long": every[a, b, long, STARTS[0]],
        }
        for kind, values in found.items():
            mean, error = _mean_error(values)
            named[kind] = float(mean), float(error)
        named["published"] = alpha, 0.0
        lines += [
            {"at": at, "a": float(a), "b": float(b), "kind": kind, "exponent": x, "error": e}
            for kind, (x, e) in named.items()
        ]
    table = pl.DataFrame(lines)
    marks = {
        "constrained": ("_", GRAY, 0.0),
        "outlier": ("s", GRAY, 0.0),
        "free": ("^", GRAY, 0.0),
        "trained, short": ("o", shades(3)[2], -0.14),
        "trained, long": ("o", BLUE, 0.14),
        "published": ("D", ORANGE, 0.0),
    }
    names = {"constrained": "equal layers", "outlier": "one outlier layer", "free": "free layers"}
    with panels(1) as (canvas, axes):
        canvas.set_size_inches(6.8, 3.6)
        ax = axes[0]
        for kind, (mark, color, shift) in marks.items():
            own = table.filter(pl.col("kind") == kind)
            ax.errorbar(
                own["at"] + shift, own["exponent"], own["error"] if mark == "o" else None,
                fmt=mark, color=color, capsize=2,
                ms=14 if mark == "_" else 5, mfc="none" if mark in "s^" else color,
                label=names.get(kind, kind), lw=1,
            )  # fmt: skip
        ax.set(yscale="log", ylabel="depth exponent, L = 1 to 16", xlabel="(a, b)")
        ax.set_xticks(range(len(TABLE2)), [f"({a:g}, {b:g})" for a, b in TABLE2])
        ax.set_yticks([1, 2, 5, 10])
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.legend(ncols=2, loc="upper left")
        ax.set_ylim(0.6, 22)
    return Figure(
        name=f"{NAME}-table2",
        caption=f"Table 2. Fitted depth exponents of linear attention on the easy task, d = "
        f"{LINEAR_DIM}. Gray: the optimum of equal layers, of equal layers but one, and of free "
        f"layers. Circles: trained scales, mean over {seeds} seeds with two standard errors, after "
        f"{short} steps (green) and {long} (blue). Diamonds: published.",
        alternative="Exponents of seven spectra on a log axis: trained and published ones lie "
        "between the marks of equal and of free layers.",
        canvas=canvas,
        numbers=table.drop("at"),
    )


def _plateau_panel(ax: Any, tables: Tables, cases: list[Row], *, varied: str) -> list[pl.DataFrame]:
    """Loss against depth of the rows in which the exponent `varied` varies."""
    frames: list[pl.DataFrame] = []
    for row, color in zip(cases, shades(len(cases)), strict=True):
        found = [plateau(tables, row, depth) for depth in DIFFICULT_DEPTHS]
        targets, a, b = row
        factor = task_factor(Spectrum(dim=LINEAR_DIM, input_exponent=0, task_exponent=b))
        own, scale = ((targets, 0, 0), factor) if a == 0 else (row, 1.0)
        floor = scale * float(least_contexts(own, DIFFICULT_DEPTHS[-1], population=True).mean())
        loss = [one.estimate for one in found]
        half = [one.width / 2 for one in found]
        label = f"{varied} = {row['ab'.index(varied) + 1]:g}"
        ax.errorbar(
            DIFFICULT_DEPTHS, loss, half, fmt="o-", ms=3.5, lw=1.2, color=color, label=label
        )
        ax.axhline(floor, color=color, ls=":", lw=1.2)
        ax.plot(5.2, LINEAR[row][0], "D", ms=4.5, color=ORANGE)
        frames.append(
            pl.DataFrame({"depth": DIFFICULT_DEPTHS, "loss": loss, "half": half}).with_columns(
                targets=pl.lit(targets),
                a=pl.lit(float(a)),
                b=pl.lit(float(b)),
                floor=pl.lit(floor),
                published=pl.lit(LINEAR[row][0]),
            )
        )
    ax.set(xscale="log", yscale="log", xlabel="layers L", ylabel="loss", xlim=(0.9, 6.2))
    ax.set_xticks(DIFFICULT_DEPTHS, [str(depth) for depth in DIFFICULT_DEPTHS])
    ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    ax.minorticks_off()
    ax.set_ylim(0.9, 90)
    ax.legend(loc="lower left", ncols=2)
    return frames


def _table3_panel(ax: Any, tables: Tables) -> pl.DataFrame:
    """Trained, published and predicted loss of every row of table 3 over the least loss."""
    lines: list[dict[str, Any]] = []
    deep = DIFFICULT_DEPTHS[-1]
    for at, (row, (_, _, published)) in enumerate(TABLE3.items()):
        least = float(least_contexts(row, deep).mean())
        base = {"at": at, "targets": row[0], "a": float(row[1]), "b": float(row[2])}
        found = {
            "floor": float(least_contexts(row, deep, population=True).mean()) / least,
            "trained": float(trained_contexts(tables, row, deep).mean()) / least,
            "published": published / least,
        }
        if row in NOISE:
            over = float(trained_contexts(tables, row, 1).mean()) / least
            for (rate, schedule), excess in noise_excess(tables, row).items():
                if schedule == "constant":
                    found[f"full matrix, rate {rate:g}"] = over * (1 + float(excess.mean()))
        lines += [base | {"kind": kind, "ratio": ratio} for kind, ratio in found.items()]
    table = pl.DataFrame(lines)
    marks = {
        "floor": ("_", GRAY, "floor of the population"),
        "published": ("D", ORANGE, "published"),
        "trained": ("o", BLUE, f"trained scales, L = {deep}"),
        "full matrix": ("x", "black", "full matrix, constant rates"),
    }
    for kind, (mark, color, label) in marks.items():
        own = table.filter(pl.col("kind").str.starts_with(kind))
        size = 14 if mark == "_" else 5
        ax.plot(own["at"], own["ratio"], mark, color=color, ms=size, label=label, ls="none")
    ax.axhline(1, color=GRAY, lw=1)
    ax.set_xticks(
        range(len(TABLE3)), [f"{k}: ({a:g},{b:g})" for k, a, b in TABLE3], rotation=50, ha="right"
    )
    ax.set(ylabel="loss / least loss in the context", ylim=(0.99, 1.13))
    ax.legend(loc="upper left")
    return table.drop("at")


def figure5(tables: Tables) -> Figure:
    """Linear attention on the difficult task."""
    with panels(3, height=3.5) as (canvas, axes):
        frames = _plateau_panel(axes[0], tables, [r for r in LINEAR if r[1] == 0], varied="b")
        frames += _plateau_panel(axes[1], tables, [r for r in LINEAR if r[2] == 0], varied="a")
        frames.append(_table3_panel(axes[2], tables))
        axes[0].set_title("a  a = 0, b varies")
        axes[1].set_title("b  b = 0, a varies")
        axes[2].set_title("c  rows of table 3, k: (a, b)")
    seeds = len(chosen(tables, "linear-difficult", (2, 0, 0), 1))
    return Figure(
        name=f"{NAME}-figure5",
        caption=f"Figure 5 and table 3. Linear attention on the difficult task, d = {LINEAR_DIM}, "
        f"{LINEAR_CONTEXT} tokens. (a, b) Loss of trained scales, top-2, {seeds} seeds, with 99% "
        "intervals; the curves of (a) are one experiment times a factor. Dotted: floor of the "
        "population; diamonds: published plateaus. (c) Losses over the least loss that the tokens "
        "of a context allow, on common contexts.",
        alternative="Left and middle: losses flat from one or two layers on, diamonds beside them. "
        "Right: trained losses lie on the least loss or just above, most published ones and the "
        "floor higher.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def figure4(tables: Tables) -> Figure:
    """Softmax attention on the easy task."""
    frames: list[pl.DataFrame] = []
    with panels(3, height=3.2) as (canvas, axes):
        for a, color in zip(SOFTMAX_SPECTRA, shades(len(SOFTMAX_SPECTRA)), strict=True):
            share = np.array([softmax_losses(tables, a, n) for n in SOFTMAX_DEPTHS]).T
            mean, error = _mean_error(share)
            axes[0].errorbar(
                SOFTMAX_DEPTHS, mean, error, fmt="o-", ms=3.5, color=color, lw=1.2, capsize=2,
                label=f"a = {a:g}",
            )  # fmt: skip
            mass, spread = _mean_error(masses(tables, a, 1))
            axes[2].errorbar(
                np.maximum(SOFTMAX_RECORD, 3), mass, spread, fmt="o-", ms=3.5, color=color, lw=1.2,
                capsize=2, label=f"a = {a:g}",
            )  # fmt: skip
            frames.append(
                pl.DataFrame({"depth": SOFTMAX_DEPTHS, "share": mean, "error": error}).with_columns(
                    a=pl.lit(a), panel=pl.lit("a")
                )
            )
            frames.append(
                pl.DataFrame({"step": SOFTMAX_RECORD, "mass": mass, "error": spread}).with_columns(
                    a=pl.lit(a), panel=pl.lit("c")
                )
            )
        share = np.array([softmax_losses(tables, 0.0, n) for n in SOFTMAX_DEPTHS]).T
        for b, color in zip((0, 0.25, 0.5, 1), shades(4), strict=True):
            spectrum = Spectrum(dim=SOFTMAX_DIM, input_exponent=0, task_exponent=b)
            loss = share.mean(axis=0) * SOFTMAX_DIM * task_factor(spectrum)
            axes[1].plot(
                SOFTMAX_DEPTHS, loss, "o-", ms=3.5, lw=1.2, color=color, label=f"b = {b:g}"
            )
            frames.append(
                pl.DataFrame({"depth": SOFTMAX_DEPTHS, "loss": loss}).with_columns(
                    a=pl.lit(0.0), b=pl.lit(float(b)), panel=pl.lit("b")
                )
            )
        for ax in axes[:2]:
            ax.set(xscale="log", yscale="log", xlabel="layers L")
            ax.set_xticks(SOFTMAX_DEPTHS, [str(depth) for depth in SOFTMAX_DEPTHS])
            ax.xaxis.minorticks_off()
            low, high = ax.get_ylim()
            ax.set_ylim(low / 8, high * 2)
            ax.legend(loc="lower left", ncols=2)
        axes[0].set(title="a  b = 0, a varies", ylabel="loss / that of answering 0")
        axes[1].set(title="b  a = 0, b varies", ylabel="loss")
        axes[2].set(xscale="log", xlabel="step", ylabel="attention on the match")
        axes[2].set(title="c  one layer, b = 0", ylim=(0, 1.05))
        axes[2].set_xticks([3, 10, 100, 1000], ["0", "10", "100", "1000"])
        axes[2].minorticks_off()
        axes[2].axhline(1, color=GRAY, lw=1, ls=":")
        axes[2].legend(loc="lower right")
    seeds = len(masses(tables, 0.0, 1))
    return Figure(
        name=f"{NAME}-figure4",
        caption=f"Figure 4. Softmax attention on the easy task, {SOFTMAX_DIM} dimensions, "
        f"{SOFTMAX_CONTEXT} tokens, {SOFTMAX_STEPS} steps: mean over {seeds} seeds with two "
        "standard errors. (a) Loss over that of answering zero. (b) Loss; all b are one experiment "
        "times a factor. (c) Attention on the matching token during training.",
        alternative="Losses of less than a thousandth of the start that do not depend on depth; "
        "right, curves of attention that rise to one.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def figures(tables: Tables) -> tuple[Figure, ...]:
    """All figures of this part, none where nothing was trained."""
    if not has(tables, "linear-easy", engine="simulation"):
        return ()
    return table2(tables), figure4(tables), figure5(tables)
