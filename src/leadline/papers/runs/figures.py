"""Published laws beside ours, over the runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.laws import Fit, bootstrap, intervals
from leadline.papers.runs import fits
from leadline.papers.runs.published import BESIROGLU_95, KYOTAKANO, LAWS
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels
from leadline.report.fits import isolated, profile_figure, shape_figure, term

GREEN, PURPLE = "#009e73", "#cc79a7"
COLORS = {
    "Hoffmann, as printed": ORANGE,
    "Hoffmann, from the source": PURPLE,
    "Besiroglu": GREEN,
}
STYLES = {"Hoffmann, as printed": "--", "Hoffmann, from the source": "-.", "Besiroglu": ":"}
NAMES = {"params": "parameters N", "tokens": "tokens D", "width": "width", "depth": "depth"}


def _grid(values: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    x = values.to_numpy()
    return np.geomspace(x.min(), x.max(), 60)


def reduced_chinchilla() -> Figure:
    """The loss with one term isolated, with the same term of the published laws."""
    fitted = fits.chinchilla()
    numbers: list[pl.DataFrame] = []
    with panels(2, columns=2, height=3.6) as (canvas, axes):
        for name, ax in zip(("params", "tokens"), axes, strict=True):
            x, left = isolated(fitted, name)
            above = left > 0
            ax.scatter(x[above], left[above], s=9, color=GRAY, alpha=0.5, lw=0, label="runs")
            grid = _grid(fitted.runs.frame[name])
            ax.plot(grid, term(fitted.law, name, grid), color=BLUE, label="ours")
            for who, law in LAWS.items():
                line = term(law, name, grid)
                ax.plot(grid, line, STYLES[who], color=COLORS[who], label=who, lw=1.3)
            other = "B/D^β" if name == "params" else "A/N^α"
            ax.set(xscale="log", yscale="log", xlabel=NAMES[name])
            ax.set(ylabel=f"loss - E - {other} (nats)")
            numbers.append(pl.DataFrame({"variable": [name] * len(x), "size": x, "reduced": left}))
        axes[0].legend()
    hidden = sum(int((n["reduced"] <= 0).sum()) for n in numbers)
    return Figure(
        name="runs-chinchilla-terms",
        caption=(
            "The Chinchilla points (240 read off the figure; five largest losses left out) with "
            "floor and the other term of our law taken off, against each resource. Solid: our "
            "term. The printed and the full-digit parameters of Hoffmann et al. have a lower "
            "floor and "
            "make up for it with a larger, flatter token term; Besiroglu et al. agree with ours. "
            f" {hidden} points at or below zero are not shown."
        ),
        alternative=(
            "Two log-log panels of reduced loss against parameters and tokens; points follow our "
            "straight lines and scatter where the term is small. Hoffmann's token term is flatter."
        ),
        canvas=canvas,
        numbers=pl.concat(numbers),
    )


def reduced_gemstones() -> Figure:
    """The four terms of the Gemstones, each isolated, at the optimum and as published."""
    free, held = fits.gemstones(4)
    numbers: list[pl.DataFrame] = []
    with panels(4, height=3.0) as (canvas, axes):
        for name, ax in zip(free.law.family.variables, axes, strict=True):
            x, left = isolated(free, name)
            ax.scatter(x, left, s=9, color=GRAY, alpha=0.4, lw=0, label="checkpoints")
            grid = _grid(free.runs.frame[name])
            ax.plot(grid, term(free.law, name, grid), color=BLUE, label="optimum")
            line = term(held.law, name, grid)
            ax.plot(grid, line, "--", color=ORANGE, label="published exponents")
            ax.set(xscale="log", yscale="log", xlabel=NAMES[name])
            if name in ("width", "depth"):
                few_ticks(ax)
            numbers.append(pl.DataFrame({"variable": [name] * len(x), "size": x, "reduced": left}))
        for ax in axes[::2]:
            ax.set_ylabel("loss - all other terms (nats)")
        axes[0].legend()
    return Figure(
        name="runs-gemstones-terms",
        caption=(
            "Gemstones, 22 models with 10 checkpoints each: the loss less the floor and all other "
            "terms of the four-term law (log-Huber, delta 1e-4). Solid: the optimum. Dashed: the "
            "published exponents with their best floor and coefficients, whose objective is 0.4% "
            f"higher and whose floor is {held.law.parameters['E']:.2f} instead of "
            f"{free.law.parameters['E']:.2f} nats: terms trade with the floor and with one another."
        ),
        alternative=(
            "Four log-log panels of reduced loss against width, depth, parameters and tokens. Both "
            "laws fit the same points with terms of different size."
        ),
        canvas=canvas,
        numbers=pl.concat(numbers),
    )


def _estimates() -> dict[str, dict[str, Interval | float | tuple[float, tuple[float, float]]]]:
    """For each source the value of E, alpha and beta, with its interval where there is one."""

    def ours(fitted: Fit) -> dict[str, Interval]:
        return intervals(fitted, bootstrap(fitted, draws=fits.DRAWS))

    takano, _ = fits.takano()
    found: dict[str, dict[str, Interval | float | tuple[float, tuple[float, float]]]] = {
        "Hoffmann, as printed": dict(LAWS["Hoffmann, as printed"].parameters),
        "Hoffmann, from the source": dict(LAWS["Hoffmann, from the source"].parameters),
        "Besiroglu, 240 points": {
            name: (LAWS["Besiroglu"].parameters[name], band) for name, band in BESIROGLU_95.items()
        },
        "ours, 240 points": dict(ours(fits.chinchilla())),
        "ours, all 245": dict(ours(fits.chinchilla(0))),
        "ml-scalefit's protocol, 217": dict(ours(fits.scalefit("raw"))),
        "ours, the same 217": dict(ours(fits.scalefit("log"))),
        "Takano's README, 234 points": dict(KYOTAKANO.parameters),
        "its objective, ours": dict(takano.law.parameters),
    }
    return found


def compared() -> Figure:
    """Estimates and intervals of the floor and the exponents, side by side."""
    found = _estimates()
    rows: list[dict[str, object]] = []
    with panels(3, height=3.4) as (canvas, axes):
        canvas.set_size_inches(10.5, 3.4)
        for name, ax in zip(("E", "alpha", "beta"), axes, strict=True):
            for i, (who, values) in enumerate(found.items()):
                value = values[name]
                low = high = float("nan")
                if isinstance(value, Interval):
                    center, low, high = value.estimate, value.low, value.high
                elif isinstance(value, tuple):
                    center, (low, high) = value
                else:
                    center = value
                color = BLUE if "ours" in who else ORANGE
                ax.plot([low, high], [-i, -i], color=color, lw=2)
                ax.plot([center], [-i], "o", color=color, ms=4)
                rows.append(
                    {"source": who, "parameter": name, "value": center, "low": low, "high": high}
                )
            ax.set_yticks([-i for i in range(len(found))], list(found) if name == "E" else [])
            ax.set_xlabel(
                {"E": "floor E (nats)", "alpha": "α (params)", "beta": "β (tokens)"}[name]
            )
    return Figure(
        name="runs-intervals",
        caption=(
            "Floor and exponents of parameters and tokens by source. Bars: 95% intervals "
            "(percentiles of 1,000 bootstraps over runs; Besiroglu's of 4,000). Five points of 245 "
            "move β by more than half of its interval; raw or log losses hardly matter. "
            "Hoffmann's floor and β lie outside. Takano's table has the points with at least one "
            "token a parameter, and its asymmetric objective follows their lower envelope."
        ),
        alternative=(
            "Three columns of points with horizontal bars; Hoffmann's floor and beta lie left of "
            "all intervals for the same points."
        ),
        canvas=canvas,
        numbers=pl.DataFrame(rows),
    )


def figures(tables: Mapping[str, pl.DataFrame]) -> tuple[Figure, ...]:
    """Every figure. The tables are bundled: `tables` is empty."""
    del tables
    chinchilla = profile_figure(
        fits.profiles(),
        name="runs-chinchilla-profiles",
        text="The Chinchilla points under Student's t noise (4 degrees of freedom) of log losses.",
    )
    gemstones = shape_figure(*fits.shapes(), name="runs-gemstones-shapes")
    return reduced_chinchilla(), chinchilla, reduced_gemstones(), gemstones, compared()
