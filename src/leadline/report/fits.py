"""The part of a report on a law fitted to a table of runs, and on the plans it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.laws.families import Law
from leadline.laws.fit import Fit
from leadline.laws.profiles import Profile
from leadline.planning.optimum import Plan
from leadline.planning.tied import Shape, losses_at_budget
from leadline.report.figures import (
    BLUE,
    GRAY,
    ORANGE,
    Figure,
    few_ticks,
    interval_line,
    observed_against_predicted,
    panels,
    residuals,
)
from leadline.report.page import Section, Table


def _cell(interval: Interval) -> str:
    return f"{interval.estimate:.4g} [{interval.low:.4g}, {interval.high:.4g}]"


def _level(intervals: Mapping[str, Interval]) -> str:
    one = next(iter(intervals.values()))
    return f"{one.level:.0%} intervals: {one.method}, unit: {one.unit}"


def fit_table(fit: Fit, intervals: Mapping[str, Interval]) -> Table:
    """Parameters with their intervals and sandwich standard errors."""
    errors = fit.standard_errors
    rows = [
        [
            name,
            f"{fit.law.parameters[name]:.6g}",
            f"{i.low:.5g} to {i.high:.5g}",
            f"{errors[name]:.3g}",
        ]
        for name, i in intervals.items()
    ]
    caption = (
        f"{fit.rows} rows used, {fit.excluded} excluded; objective {fit.value:.6g} ("
        f"{fit.objective}); status {fit.status}. {_level(intervals)}."
    )
    columns = ["parameter", "estimate", "interval", "standard error (sandwich)"]
    return Table(caption=caption, columns=columns, rows=rows)


def fit_figure(fit: Fit, *, name: str) -> Figure:
    """Observed against predicted loss, and residuals against each variable of the law."""
    frame, variables = fit.runs.frame, fit.law.family.variables
    predicted = fit.law.loss(frame)
    unit = fit.law.units.get("loss", "loss")
    with panels(1 + len(variables)) as (canvas, axes):
        observed_against_predicted(axes[0], frame["loss"], predicted, unit=unit)
        for ax, variable in zip(axes[1:], variables, strict=True):
            residuals(ax, frame[variable], -fit.residuals, name=variable)
    return Figure(
        name=name,
        caption=(
            "Left: every run's loss against the law's prediction, with the line of equality. "
            "Right: residuals, log observed minus log predicted, against each variable. A pattern "
            "here is what the law does not know."
        ),
        alternative="Scatter of observed against predicted loss, and residuals against each size.",
        canvas=canvas,
        numbers=frame.select("row", *variables, "loss").with_columns(
            predicted=pl.Series(predicted), residual=pl.Series(-fit.residuals)
        ),
    )


def isolated(fit: Fit, name: str) -> tuple[Floats, Floats]:
    """A variable of a separable law, and the loss less the floor and every other term: its term
    alone.
    """
    law, frame = fit.law, fit.runs.frame
    x = frame[name].to_numpy()
    return x, frame["loss"].to_numpy() - law.loss(frame) + term(law, name, x)


def term(law: Law, name: str, x: Floats) -> Floats:
    """The term of one variable of a separable law, at values `x` of it."""
    i, count = law.family.variables.index(name), len(law.family.variables)
    coefficient, exponent = (
        law.parameters[law.family.parameters[k]] for k in (1 + i, 1 + count + i)
    )
    return coefficient * x**-exponent


def terms_figure(fit: Fit, *, name: str) -> Figure:
    """The reduced loss against each resource: the loss of every run less all other terms of a
    separable law with a floor.
    """
    variables = fit.law.family.variables
    unit = fit.law.units.get("loss", "loss")
    frames: list[pl.DataFrame] = []
    with panels(len(variables)) as (canvas, axes):
        for ax, variable in zip(axes, variables, strict=True):
            x, left = isolated(fit, variable)
            above = left > 0
            ax.scatter(x[above], left[above], s=9, color=GRAY, alpha=0.5, lw=0)
            grid = np.geomspace(x.min(), x.max(), 60)
            ax.plot(grid, term(fit.law, variable, grid), color=BLUE)
            ax.set(xscale="log", yscale="log", xlabel=variable, ylabel=f"loss - the rest ({unit})")
            few_ticks(ax)
            named = {"variable": [variable] * len(x), "size": x, "reduced": left}
            frames.append(pl.DataFrame(named))
    numbers = pl.concat(frames)
    hidden = numbers.filter(pl.col("reduced") <= 0).height
    return Figure(
        name=name,
        caption=(
            "Reduced loss: every run's loss with the floor and all other terms taken off, against "
            f"each size. Line: the law's own term. {hidden} points at or below zero are not shown; "
            "where they scatter, the term is too small to be seen in these runs."
        ),
        alternative="Points along a falling straight line on log axes, one panel for each size.",
        canvas=canvas,
        numbers=numbers,
    )


def profile_figure(profiles: Mapping[str, Profile], *, name: str, text: str) -> Figure:
    """The deviance along each quantity, every other parameter fitted again, and the interval."""
    frames: list[pl.DataFrame] = []
    with panels(len(profiles)) as (canvas, axes):
        for ax, (quantity, own) in zip(axes, profiles.items(), strict=True):
            values, deviance = np.array(own.values), np.array(own.deviance)
            # an open side ends where it was searched; the signed root is nearly a straight line
            low = own.low if np.isfinite(own.low) else values.min()
            high = own.high if np.isfinite(own.high) else values.max()
            root = np.sign(values - own.estimate) * np.sqrt(np.maximum(deviance, 0.0))
            fine = np.linspace(values.min(), values.max(), 200)
            ax.plot(fine, np.interp(fine, values, root) ** 2, color=BLUE)
            ax.plot(values, deviance, "o", ms=3, color=BLUE)
            ax.axvspan(low, high, color=BLUE, alpha=0.12, lw=0)
            ax.axvline(own.estimate, color=GRAY, lw=1)
            ax.set(xlabel=quantity, ylabel="deviance")
            points = {"value": values, "deviance": deviance}
            frames.append(pl.DataFrame({"quantity": [quantity] * len(values)} | points))
    one = next(iter(profiles.values()))
    return Figure(
        name=name,
        caption=(
            f"{text} Deviance of the best law that has the value on the axis, over that of the "
            f"best law of all; shaded: the {one.level:.0%} interval. A flat or lopsided curve is a "
            "parameter that the runs do not hold."
        ),
        alternative="Curves with one minimum each and a shaded interval around it.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def shape_figure(fit: Fit, shapes: Sequence[Shape], *, name: str) -> Figure:
    """Iso-loss contours over width and depth of models that all spend the budget of the middle one
    of `shapes`, and the best shapes along their budgets.
    """
    middle = shapes[len(shapes) // 2]
    runs = fit.runs.frame
    sizes = {key: [s.sizes[key] for s in shapes] for key in ("width", "depth")}
    width, depth = (
        np.geomspace(
            min(runs[key].to_numpy().min(), *sizes[key]) / 1.3,
            max(runs[key].to_numpy().max(), *sizes[key]) * 1.3,
            160,
        )
        for key in ("width", "depth")
    )
    loss = losses_at_budget(middle, width[None, :], depth[:, None])
    unit = fit.law.units.get("loss", "loss")
    with panels(1, height=4.2) as (canvas, axes):
        canvas.set_size_inches(5.6, 4.2)
        ax = axes[0]
        levels = middle.loss + np.geomspace(0.01, 1.0, 9) * (np.quantile(loss, 0.9) - middle.loss)
        lines = ax.contour(width, depth, loss, levels=levels, cmap="viridis", linewidths=1)
        ax.clabel(lines, fmt="%.3f", fontsize=7)
        seen = runs.select("width", "depth").unique(maintain_order=True)
        ax.plot(seen["width"], seen["depth"], "s", ms=3, color=GRAY, alpha=0.7, label="runs")
        ax.plot(sizes["width"], sizes["depth"], "o-", ms=4, color=ORANGE, label="best shape")
        for shape in (shapes[0], middle, shapes[-1]):
            place = (shape.sizes["width"], shape.sizes["depth"])
            said = {"xytext": (5, -9), "textcoords": "offset points", "fontsize": 7}
            ax.annotate(f"{shape.budget:.0e}", place, **said)
        ax.set(xscale="log", yscale="log", xlabel="width", ylabel="depth (layers)")
        few_ticks(ax)
        ax.legend(loc="upper left")
    return Figure(
        name=name,
        caption=(
            f"Loss ({unit}) of every width and depth that spends {middle.budget:.1e} FLOPs "
            f"({middle.cost}), by the law; lines of equal loss. Line with points: the best shape "
            f"from {shapes[0].budget:.0e} to {shapes[-1].budget:.0e} FLOPs. Squares: the shapes "
            "that the law was fitted to."
        ),
        alternative="Nested lines of equal loss around the best shape, and a line of best shapes.",
        canvas=canvas,
        numbers=pl.DataFrame(
            {
                "width": np.broadcast_to(width[None, :], loss.shape).ravel(),
                "depth": np.broadcast_to(depth[:, None], loss.shape).ravel(),
                "loss": loss.ravel(),
            }
        ),
    )


def plan_table(plans: Sequence[Plan]) -> Table:
    """Best sizes and loss for each budget, with intervals."""
    first = plans[0]
    names = list(first.sizes)
    rows = [
        [
            f"{p.budget:.3g}",
            *(_cell(p.intervals[n]) for n in names),
            _cell(p.intervals["loss"]),
            "; ".join(p.notes) or "within the data",
        ]
        for p in plans
    ]
    return Table(
        caption=f"Compute-optimal sizes under {first.cost}. {_level(first.intervals)}; they hold "
        "within the law.",
        columns=["FLOPs", *names, "loss", "notes"],
        rows=rows,
    )


def plan_figure(plans: Sequence[Plan], *, name: str) -> Figure:
    """Best sizes and loss against the budget."""
    budgets = [p.budget for p in plans]
    names = list(plans[0].sizes)
    data: dict[str, Sequence[float]] = {"flops": budgets}
    with panels(2, columns=2) as (canvas, axes):
        for ax, group in ((axes[0], names), (axes[1], ["loss"])):
            for key, color in zip(group, (BLUE, ORANGE, "#009e73", "#cc79a7"), strict=False):
                got = [p.intervals[key] for p in plans]
                columns = {s: [getattr(i, s) for i in got] for s in ("estimate", "low", "high")}
                interval_line(ax, budgets, **columns, label=key, color=color)
                data |= {f"{key}_{s}": v for s, v in columns.items()}
            ax.set(xlabel="budget (FLOPs)")
        axes[0].set(ylabel="best size (raw counts)")
        axes[0].legend()
        axes[1].set(ylabel=f"loss ({plans[0].law.units.get('loss', 'unit of the data')})")
        low, high = axes[1].get_ylim()
        ticks = np.round(np.linspace(low, high, 6)[1:-1], 2)
        axes[1].set_yticks(ticks, [f"{t:g}" for t in ticks])
        axes[1].minorticks_off()
    return Figure(
        name=name,
        caption=(
            "Best sizes (left) and the loss they reach (right) against the budget. Bands: "
            f"{_level(plans[0].intervals)}."
        ),
        alternative="Best parameters and tokens rise as straight lines; the loss falls to a floor.",
        canvas=canvas,
        numbers=pl.DataFrame(data),
    )


def fit_section(
    title: str,
    fit: Fit,
    intervals: Mapping[str, Interval],
    plans: Sequence[Plan] = (),
    *,
    name: str,
    text: Sequence[str] = (),
    command: str = "",
) -> Section:
    """Everything about one fit, and the plans it gives."""
    return Section(
        title=title,
        text=[*text, fit.law.equation],
        tables=[fit_table(fit, intervals), *([plan_table(plans)] if plans else [])],
        figures=[
            fit_figure(fit, name=f"{name}-fit"),
            terms_figure(fit, name=f"{name}-terms"),
            *([plan_figure(plans, name=f"{name}-plan")] if plans else []),
        ],
        command=command,
    )
