"""The part of a report on a law fitted to a table of runs, and on the plans it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.laws.fit import Fit
from leadline.planning.optimum import Plan
from leadline.report.figures import (
    BLUE,
    ORANGE,
    Figure,
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
            *([plan_figure(plans, name=f"{name}-plan")] if plans else []),
        ],
        command=command,
    )
