"""Figures as functions of an axis and a table.

Every function draws on the `ax` it is given from the columns it names, and computes nothing but
positions. Colors come from one color-blind safe map.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from leadline.errors import LeadlineError

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "leadline",
    "svg.fonttype": "path",
}
BLUE, ORANGE, GRAY = "#0072b2", "#d55e00", "#555555"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawn figure with what a reader needs beside it: a caption that says the settings and
    what to see, a text in place of the picture, and the numbers behind it.
    """

    name: str
    caption: str
    alternative: str
    canvas: Canvas
    numbers: pl.DataFrame

    def svg(self) -> str:
        """The figure as SVG text, the same for the same numbers."""
        with mpl.rc_context(STYLE):
            buffer = io.StringIO()
            self.canvas.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        return text[text.index("<svg") :]

    def save(self, folder: Path) -> list[Path]:
        """Write the figure as svg, pdf and png (200 dots an inch) and its numbers as csv into
        `folder`, each named after the figure, and return the paths.

        **Raises:** `LeadlineError` if a file cannot be written.
        """
        paths = [folder / f"{self.name}.{kind}" for kind in ("svg", "pdf", "png", "csv")]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths[0].write_text(self.svg(), "utf-8")
            with mpl.rc_context(STYLE):
                self.canvas.savefig(paths[1], metadata={"CreationDate": None})
                self.canvas.savefig(paths[2], dpi=200)
            self.numbers.write_csv(paths[3])
        except OSError as error:
            raise LeadlineError(
                f"{folder}: cannot write the figure {self.name} ({error.strerror})"
            ) from None
        return paths


@contextmanager
def panels(count: int, *, columns: int = 3, height: float = 2.9) -> Generator[tuple[Canvas, Any]]:
    """A canvas with `count` axes in rows of `columns`, in the house style."""
    columns = 2 if count == 4 else min(columns, count)
    rows = -(-count // columns)
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(3.4 * columns, height * rows))
        axes = canvas.subplots(rows, columns, squeeze=False).ravel()
        for unused in axes[count:]:
            unused.set_visible(False)
        yield canvas, axes[:count]


def shades(count: int) -> list[Any]:
    """`count` ordered colors, dark to light, that print and color-blind readers can tell apart."""
    return list(mpl.colormaps["viridis"](np.linspace(0.0, 0.85, max(count, 1))))


def number(value: float) -> str:
    """A number as a legend shows it."""
    return "∞" if np.isinf(value) else f"{value:g}"


def few_ticks(ax: Axes) -> None:
    """Labels on a logarithmic x axis that do not run into each other: below two decades 1, 2, 5,
    of long numbers 1, 3.
    """
    low, high = ax.get_xlim()
    if high / low < 100:
        subs = (1.0, 2.0, 5.0) if high < 1e5 else (1.0, 3.0)
        ax.xaxis.set_major_locator(LogLocator(subs=subs))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def lines_and_points(
    ax: Axes,
    theory: pl.DataFrame,
    simulation: pl.DataFrame,
    *,
    x: str,
    group: str,
    label: str,
    y: str = "loss",
    error: str = "loss_error",
    legend: bool = True,
) -> None:
    """Theory as lines over simulation as points with error bars of two standard errors, one color
    for each value of the column `group`.
    """
    groups = sorted(set(theory[group].to_list()) | set(simulation[group].to_list()))
    for value, color in zip(groups, shades(len(groups)), strict=True):
        line = theory.filter(pl.col(group) == value).sort(x)
        dots = simulation.filter(pl.col(group) == value).sort(x)
        ax.plot(line[x], line[y], color=color, label=f"{label} = {number(value)}")
        if dots.height:
            ax.errorbar(
                dots[x], dots[y], 2 * dots[error], fmt="o", ms=3.2, color=color, capsize=2, lw=1
            )
    if legend:
        ax.legend()


def observed_against_predicted(
    ax: Axes, observed: ArrayLike, predicted: ArrayLike, *, unit: str
) -> None:
    """Each run's loss against the law's prediction, with the line of equality."""
    observed, predicted = np.asarray(observed), np.asarray(predicted)
    ax.scatter(predicted, observed, s=9, color=BLUE, alpha=0.6, lw=0)
    ends = [
        min(observed.min(), predicted.min()) * 0.99,
        max(observed.max(), predicted.max()) * 1.01,
    ]
    ax.plot(ends, ends, color=GRAY, lw=1)
    ax.set(xlabel=f"predicted loss ({unit})", ylabel=f"observed loss ({unit})")


def residuals(ax: Axes, sizes: ArrayLike, relative: ArrayLike, *, name: str) -> None:
    """Each run's relative residual, log observed - log predicted in percent, against one size."""
    ax.axhline(0, color=GRAY, lw=1)
    ax.scatter(np.asarray(sizes), 100 * np.asarray(relative), s=9, color=BLUE, alpha=0.6, lw=0)
    ax.set(xscale="log", xlabel=name, ylabel="residual of log loss (%)")
    few_ticks(ax)


def interval_line(
    ax: Axes,
    x: Sequence[float],
    estimate: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    *,
    label: str,
    color: str,
) -> None:
    """A line with its interval as a band, on logarithmic axes."""
    ax.fill_between(x, low, high, color=color, alpha=0.25, lw=0)
    ax.plot(x, estimate, color=color, label=label, marker="o", ms=3)
    ax.set(xscale="log", yscale="log")
