"""The paper's figures, as far as they are known, drawn from the tables of its sweeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from leadline.papers.lyu2025.approximate import figure5, figure6
from leadline.papers.lyu2025.claims import LAWS, order_errors, shared_times
from leadline.papers.lyu2025.sweeps import (
    ALPHA,
    CASES,
    LONG,
    NAME,
    NEW,
    RATES,
    SEEN,
    SEQUENCES,
    SMALL_TASKS,
    START,
    power_task,
)
from leadline.papers.lyu2025.tables import (
    Tables,
    column,
    has,
    law_curve,
    measure,
    sequences,
    table,
)
from leadline.papers.lyu2025.trained_figures import figure7, figure8
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels, shades
from leadline.theory.sparse import solution, start_at, vanishing_start

AXES = {
    "time": "time t (flow)",
    "size": "model size D",
    "data": "sequences N",
    "compute": "compute tD",
}


STYLES = {"fixed": "-", "context": "--", "strength": "-", "both": "--"}
"""Dashed where contexts shorten."""


def _frame(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns)


def figure1(tables: Tables) -> Figure:
    """Solutions of five tasks, and the orders of the expansion."""
    runs = table(tables, "solution", "simulation")
    row = runs.filter(pl.col("rate") == RATES[-1]).row(0, named=True)
    times, output = column(row, "time"), measure(row, "output")
    shares = measure(row, "counts") / SEQUENCES
    errors = order_errors(tables)
    frames: list[pl.DataFrame] = []
    with panels(2, height=3.1) as (canvas, axes):
        fine = np.linspace(0, times[-1], 20 * (len(times) - 1) + 1)
        for s, color in enumerate(shades(output.shape[1])):
            closed = solution(
                2 * fine, rate=200 * shares[s], strength=1.0, start=start_at(START.start)
            ).output
            line = closed[::20]
            axes[0].plot(fine, closed, color=color, label=f"task {s + 1}")
            axes[0].plot(times[::2], output[::2, s], "o", ms=3.2, color=color)
            frames.append(
                _frame(x=times, simulation=output[:, s], theory=line).with_columns(
                    quantity=pl.lit(f"f_{s + 1}")
                )
            )
        axes[0].set(title="a  solutions", xlabel="time t (flow)", ylabel="prediction $f_s$")
        axes[0].legend()
        inverse = 1 / errors["context"].to_numpy()
        for name, marker, power in (("zeroth", "o", 1), ("first", "s", 2)):
            values = errors[name].to_numpy()
            color = BLUE if name == "zeroth" else ORANGE
            axes[1].plot(inverse, values, marker, ms=4, color=color, label=f"{name} order")
            axes[1].plot(inverse, values[-1] * (inverse / inverse[-1]) ** power, color=GRAY, lw=1)
            frames.append(_frame(x=inverse, simulation=values).with_columns(quantity=pl.lit(name)))
        axes[1].set(title="b  error of theory", xlabel="1/ψ", ylabel="largest error of f")
        axes[1].set(xscale="log", yscale="log")
        axes[1].legend()
    return Figure(
        name=f"{NAME}-figure1",
        caption=(
            "Figure 1. (a) Five tasks learned one after the other. Points: gradient descent on "
            f"{SEQUENCES} sampled sequences of 100 tokens, rate {RATES[-1]:g}; lines: the closed "
            "form with the counts of those sequences. (b) Largest distance of the exact flow of "
            "one task from the zeroth and the first order, against the inverse context; gray: "
            "slopes one and two."
        ),
        alternative="Left: five rising sigmoids, points on lines. Right: two straight lines on "
        "log axes, one twice as steep as the other.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def _law_panel(ax: Any, tables: Tables, law: str, cases: tuple[str, ...]) -> list[pl.DataFrame]:
    frames: list[pl.DataFrame] = []
    colors = shades(4)
    for case in cases:
        color = colors[list(CASES).index(case)]
        x, loss, _ = law_curve(tables, case, law)
        exponent = LAWS[law](power_task(case), model=START).exponent
        label = f"{case}: slope -{exponent:.3g}"
        ax.plot(x, loss, STYLES[case], color=color, label=label)
        late = x >= np.exp(np.log(x).mean())
        ax.plot(x[late], 1.25 * loss[-1] * (x[late] / x[-1]) ** -exponent, color=GRAY, lw=1)
        frames.append(_frame(x=x, loss=loss).with_columns(law=pl.lit(law), case=pl.lit(case)))
    ax.set(xscale="log", yscale="log", xlabel=AXES[law], title=f"loss against {law}")
    if len(cases) > 1:  # room for the legend below the lines
        low, high = ax.get_ylim()
        ax.set_ylim(low * (low / high) ** 0.4, high)
    ax.legend(loc="lower left" if len(cases) > 1 else "best")
    return frames


def _curves_of_sizes(ax: Any, tables: Tables, case: str) -> None:
    runs = table(tables, f"{case}/compute", "theory").sort("width")
    for row in list(runs.iter_rows(named=True))[::6]:
        ax.plot(row["width"] * column(row, "time"), column(row, "loss"), color="#cccccc", lw=0.8)


def laws_figure(tables: Tables, *, number: int, cases: tuple[str, ...], text: str) -> Figure:
    """Loss against time, size, data and compute for some of the cases."""
    frames: list[pl.DataFrame] = []
    with panels(4) as (canvas, axes):
        for ax, law in zip(axes, LAWS, strict=True):
            if law == "compute" and len(cases) == 1:
                _curves_of_sizes(ax, tables, cases[0])
            frames += _law_panel(ax, tables, law, cases)
        for ax in axes[::2]:
            ax.set_ylabel("loss (mean squared error)")
    return Figure(
        name=f"{NAME}-figure{number}",
        caption=f"Figure {number}. {text} Lines: zeroth order, summed over infinitely many tasks; "
        "gray: the power of the limit.",
        alternative="Four panels of straight falling lines on log axes: time, size, data, compute.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def figure2(tables: Tables) -> Figure:
    """The laws of fixed contexts and strengths."""
    return laws_figure(
        tables,
        number=2,
        cases=("fixed",),
        text="Fixed context and strength, types of exponent 1.8. The envelope over model sizes "
        "(light gray) is the compute law.",
    )


def figure3(tables: Tables) -> Figure:
    """Contexts that shorten with the rank of the task."""
    frames: list[pl.DataFrame] = []
    with panels(1) as (canvas, axes):
        canvas.set_size_inches(5.2, 3.6)
        ax = axes[0]
        for case, color, factor in (("fixed", BLUE, 100.0 / LONG), ("context", ORANGE, 1.0)):
            x, loss, _ = law_curve(tables, case, "time")
            exponent = LAWS["time"](power_task(case), model=START).exponent
            label = f"{case}: slope -{exponent:.3g}"
            ax.plot(x * factor, loss, STYLES[case], color=color, label=label)
            frames.append(_frame(x=x * factor, loss=loss).with_columns(case=pl.lit(case)))
        ax.set(xscale="log", yscale="log", xlabel=AXES["time"], ylabel="loss (mean squared error)")
        ax.legend()
    return Figure(
        name=f"{NAME}-figure3",
        caption="Figure 3. Contexts that shorten as s^-0.6 (dashed) against contexts as long as "
        "the first (solid), both of 1e9 tokens at the first task: late tasks are learned later.",
        alternative="Two falling lines on log axes; the solid one is steeper.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def figure4(tables: Tables) -> Figure:
    """Strengths that fall with the rank of the task."""
    return laws_figure(
        tables,
        number=4,
        cases=("fixed", "strength", "context", "both"),
        text="Strengths that fall as s^-0.4 improve all four laws; contexts that shorten as s^-0.6 "
        "(of 1e9 tokens at the first task) make those in time and compute worse.",
    )


def simulated_figure(tables: Tables) -> Figure:
    """Simulation of finitely many tasks beside theory of the same number."""
    frames: list[pl.DataFrame] = []
    with panels(3, height=3.0) as (canvas, axes):
        cases = [case for case in CASES if has(tables, f"{case}/small", "theory")]
        for case, color in zip(cases, shades(4), strict=False):
            marker = "s" if STYLES[case] == "--" else "o"
            for engine, style in (("theory", STYLES[case]), ("simulation", marker)):
                runs = table(tables, f"{case}/small", engine)
                drawn = runs.with_columns(sequences=sequences(runs))
                whole = drawn.filter(pl.col("sequences").is_infinite())
                curve = whole.filter(pl.col("width") == SMALL_TASKS).row(0, named=True)
                limited = whole.filter(pl.col("width") < SMALL_TASKS).sort("width")
                data = (
                    drawn.filter(pl.col("sequences").is_finite())
                    .group_by("sequences")
                    .agg(pl.col("loss").mean())
                    .sort("sequences")
                )
                pairs = (
                    ("time", column(curve, "time"), column(curve, "loss")),
                    ("size", limited["width"].to_numpy(), limited["loss"].to_numpy()),
                    ("data", data["sequences"].to_numpy(), data["loss"].to_numpy()),
                )
                for ax, (law, x, y) in zip(axes, pairs, strict=True):
                    label = case if engine == "theory" else None
                    face = "none" if style == "s" else color
                    size = 5.5 if style == "s" else 3.2
                    ax.plot(x, y, style, ms=size, mfc=face, color=color, label=label)
                    frames.append(
                        _frame(x=x, loss=y).with_columns(
                            case=pl.lit(case), law=pl.lit(law), engine=pl.lit(engine)
                        )
                    )
        for ax, law in zip(axes, ("time", "size", "data"), strict=True):
            ax.set(xscale="log", yscale="log", xlabel=AXES[law], title=f"loss against {law}")
            few_ticks(ax)
        axes[0].set_ylabel("loss (mean squared error)")
        axes[0].legend(loc="lower left")
    return Figure(
        name=f"{NAME}-simulated",
        caption=f"Simulation of {SMALL_TASKS} tasks (points; the flow with the query token, data "
        "averaged over four draws) beside theory of the same tasks (lines; data averaged over all "
        "draws). Dashed lines and squares: contexts that shorten, which change the time law only.",
        alternative="Three panels of points on falling lines.",
        canvas=canvas,
        numbers=pl.concat(frames, how="vertical_relaxed"),
    )


def figure9(tables: Tables) -> Figure:
    """Unseen strengths."""
    runs = {e: table(tables, "adaptation", e) for e in ("theory", "simulation")}
    outputs = {
        e: np.array([measure(r, "output")[0, 0] for r in t.iter_rows(named=True)]).reshape(3, -1)
        for e, t in runs.items()
    }
    names = ("vanishing start", "general start", "constrained")
    frames: list[pl.DataFrame] = []
    with panels(1) as (canvas, axes):
        canvas.set_size_inches(5.2, 3.6)
        ax = axes[0]
        for i, (name, color) in enumerate(zip(names, shades(3), strict=True)):
            ax.plot(NEW, outputs["theory"][i], color=color, label=name)
            ax.plot(NEW, outputs["simulation"][i], "o", ms=4, color=color)
            frames.append(
                _frame(
                    strength=NEW, theory=outputs["theory"][i], simulation=outputs["simulation"][i]
                ).with_columns(start=pl.lit(name))
            )
        published = vanishing_start(NEW, strength=SEEN)
        ax.plot(NEW, published, ":", lw=2.5, color=ORANGE, zorder=4, label="published formula")
        ax.set(xlabel="strength of the new sequences", ylabel="prediction f")
        ax.legend()
    return Figure(
        name=f"{NAME}-figure9",
        caption=f"Figure 9. A task learned at strength {SEEN:g} and shown at others. The published "
        "formula holds from a vanishing start; a start that is not small is remembered. The "
        "constrained model follows every strength exactly.",
        alternative="Three curves against strength; the constrained one is the diagonal.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def figure10(tables: Tables) -> Figure:
    """Learning times with a shared value vector."""
    frames: list[pl.DataFrame] = []
    with panels(1) as (canvas, axes):
        canvas.set_size_inches(5.2, 3.6)
        ax = axes[0]
        for (case, s, times), color in zip(shared_times(tables), (BLUE, ORANGE), strict=True):
            slope = ALPHA + 2 * CASES[case][1] - 0.5
            label = f"{case}: heuristic slope {slope:g}"
            ax.plot(s, times, "o", ms=3, color=color, label=label)
            late = s >= 20
            ax.plot(s[late], 1.6 * times[-1] * (s[late] / s[-1]) ** slope, color=GRAY, lw=1.2)
            frames.append(_frame(task=s, half_time=times).with_columns(case=pl.lit(case)))
        ax.set(xscale="log", yscale="log", xlabel="task s", ylabel="time of half the strength")
        ax.legend()
    return Figure(
        name=f"{NAME}-figure10",
        caption="Figure 10. One label coordinate of the value vector for all tasks: simulated "
        "times at which tasks reach half their strength; gray, moved up: the heuristic "
        "s^(α + 2γ - 1/2).",
        alternative="Two rising bands of points on log axes with lines through their ends.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def figures(tables: Tables) -> tuple[Figure, ...]:
    """Every figure whose sweeps are in `tables`."""
    drawn = [figure1(tables), figure2(tables)]
    if has(tables, "both/time", "theory"):
        drawn += [figure3(tables), figure4(tables)]
    drawn.append(simulated_figure(tables))
    small = has(tables, "shared", "simulation")
    if small:
        drawn += [figure5(tables), figure6(tables), figure7(tables), figure8(tables)]
    drawn.append(figure9(tables))
    if small:
        drawn.append(figure10(tables))
    return tuple(drawn)
