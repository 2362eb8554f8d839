r"""Layers and weights that learn apart (Figure 8): the tied optimum as a saddle, and the clock of
full linear attention.

`predict` answers layers that start equal; the flows of layers that do not, and of the factors of
full attention, come from `theory.layerwise` and are kept for the session.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Claim, judge, numerical
from leadline.curve import Floats
from leadline.papers.bordelon2025.rotated import BETA, DIM, NU, flow_run
from leadline.papers.bordelon2025.tables import (
    SOURCE,
    Tables,
    limit,
    local_slope,
    measure,
    points,
    sweeps_of,
    table,
    times,
)
from leadline.report.figures import GRAY, ORANGE, Figure, panels, shades
from leadline.spec import RunSpec, Sweep, replace, source_capacity
from leadline.theory import landscape
from leadline.theory.layerwise import attention_flow, balanced, pair_loss, untied_flow, untied_loss
from leadline.theory.polynomials import free_steps
from leadline.theory.spectra import Modes, power_law_modes

DEPTH = 4
"""Of the flow of single layers."""
DEPTHS = (2, 4, 8)
SPREAD = 0.05
PERTURBED = tuple(SPREAD * (-1) ** layer for layer in range(DEPTH))
"""The start of `GradientFlow(spread=...)`: layers by turns above and below zero."""
DISTINCT = tuple(SPREAD * (2 * layer / (DEPTH - 1) - 1) for layer in range(DEPTH))
LINES = times(-1, 5, per_decade=16)
ATTENTION_MODES = 512
"""Modes kept one by one for full attention; a relative error of 1e-6."""
ATTENTION_WINDOWS = ((1e4, 1e6), (1e6, 1e8))


def _run(depth: int, at: tuple[float, ...], *, tied: bool) -> RunSpec:
    return replace(flow_run(DIM, at, depth=depth), "model.tied", tied)


def sweeps() -> tuple[Sweep, ...]:
    """Figure 8: untied layers from a balanced start, where they follow the tied ones, and from a
    perturbed one.
    """
    dots = times(-1, 2, per_decade=2)
    start = replace(_run(DEPTH, times(-1, 3, per_decade=2), tied=False), "recipe.spread", SPREAD)
    theory = [_run(depth, times(-1, 4, per_decade=8), tied=False) for depth in DEPTHS]
    return sweeps_of(
        {
            "figure8/theory": [replace(r, "evaluation.measures", ("gamma",)) for r in theory],
            "figure8/simulation": [_run(depth, dots, tied=False) for depth in DEPTHS],
            "figure8-tied/simulation": [_run(DEPTH, dots, tied=True)],
            "figure8-perturbed/simulation": [replace(start, "evaluation.measures", ("scale",))],
        }
    )


def _modes() -> Modes:
    return power_law_modes(source_capacity(DIM, nu=NU, beta=BETA))


@cache
def _flow(start: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Scales (time, layer) and losses of layers that start at `start`, at the times `LINES`."""
    scales = untied_flow(_modes(), LINES, start=start)
    return scales, untied_loss(_modes(), scales)


def _tied_optimum(depth: int) -> float:
    best = landscape.best_scale(_modes(), depth=depth)
    return float(landscape.loss(_modes(), best, depth=depth))


def figure8(tables: Tables) -> Figure:
    """Untied layers: balanced, and leaving the tied optimum."""
    theory = points(table(tables, "figure8", "theory"), "depth")
    simulated = points(table(tables, "figure8", "simulation"), "depth")
    perturbed = table(tables, "figure8-perturbed", "simulation")
    (scales, losses), (_, apart) = _flow(PERTURBED), _flow(DISTINCT)
    with panels(3, height=3.1) as (canvas, axes):
        ax = axes[0]
        for depth, color in zip(DEPTHS, shades(len(DEPTHS)), strict=True):
            line, dots = (c.filter(pl.col("depth") == depth) for c in (theory, simulated))
            ax.plot(line["time"], line["loss"], color=color, label=f"L = {depth}")
            ax.plot(dots["time"], dots["loss"], "o", ms=3.2, color=color)
            ax.axhline(_tied_optimum(depth), color=GRAY, lw=0.8, zorder=0)
        ax.set(title="a  balanced start", xscale="log", yscale="log")
        ax.set(xlabel="time t (scalar flow)", ylabel="loss (mean squared error)")
        ax.legend()
        _panel_scales(axes[1], tables, scales)
        ax = axes[2]
        balanced_line = theory.filter(pl.col("depth") == DEPTH)
        dots = points(perturbed)
        ax.plot(balanced_line["time"], balanced_line["loss"], "--", color=GRAY, label="balanced")
        ax.plot(LINES, losses, color=shades(2)[0], label="start ±0.05 by turns")
        ax.plot(dots["time"], dots["loss"], "o", ms=3.2, color=shades(2)[0])
        ax.plot(LINES, apart, color=ORANGE, label="four distinct starts")
        free = free_steps(_modes(), depth=DEPTH).loss
        for level, label in ((_tied_optimum(DEPTH), "tied optimum"), (free, "untied optimum")):
            ax.axhline(level, color=GRAY, lw=0.8, zorder=0)
            ax.annotate(label, (0.1, level), va="bottom", fontsize=8, color=GRAY)
        ax.set(title=f"c  loss at depth {DEPTH}", xscale="log", yscale="log")
        ax.set(xlabel="time t (scalar flow)")
        ax.legend()
    lines = pl.DataFrame(
        {"time": LINES, "loss": losses} | {f"gamma_{i + 1}": scales[:, i] for i in range(DEPTH)}
    )
    return Figure(
        name="bordelon2025-figure8",
        caption=(
            f"Figure 8. One matrix Γ for each layer, rotated power laws, ν = 1.25, β = 0.8, {DIM} "
            "dimensions, infinite context. (a) From a balanced start untied layers (points: "
            "simulation of all matrices) follow the tied flow (lines) to the tied optimum (gray). "
            f"(b) Scales at depth {DEPTH}. Dashed: they stay together. Solid and points: started "
            "at +0.05 and -0.05 by turns, they reach the tied optimum, which is a saddle, and "
            "separate; on finitely many contexts equal layers part too. (c) The loss then falls "
            "below the tied optimum; four distinct starts reach the untied optimum, the "
            "Christoffel function."
        ),
        alternative=(
            "Left: losses level off at the tied optimum. Middle: scales that rise together and "
            "split near time 300. Right: the loss of perturbed starts falls below the tied level "
            "in steps."
        ),
        canvas=canvas,
        numbers=pl.concat(
            [
                theory.with_columns(panel=pl.lit("a")),
                simulated.with_columns(panel=pl.lit("a")),
                lines.with_columns(panel=pl.lit("bc"), engine=pl.lit("theory")),
                dots.with_columns(panel=pl.lit("c")),
            ],
            how="diagonal_relaxed",
        ),
    )


def _panel_scales(ax: Any, tables: Tables, scales: Floats) -> None:
    runs = table(tables, "figure8", "theory").filter(pl.col("depth") == DEPTH)
    perturbed = table(tables, "figure8-perturbed", "simulation")
    together = measure(runs, "gamma") / DEPTH
    seen = measure(perturbed, "scale") / DEPTH
    ax.plot(runs["curve_time"][0], together, "--", color=GRAY, label="balanced")
    for layer, color in enumerate(shades(2)):
        label = f"layers {layer + 1} and {layer + 3}"
        ax.plot(LINES, scales[:, layer] / DEPTH, color=color, label=label)
        for own in (seen[:, layer], seen[:, layer + 2]):
            ax.plot(perturbed["curve_time"][0], own, "o", ms=3.2, color=color)
    ax.set(title=f"b  scales at depth {DEPTH}", xscale="log", ylabel="$γ_l$ / L")
    ax.set(xlabel="time t (scalar flow)")
    ax.legend(loc="upper left")


@cache
def _attention() -> tuple[Floats, Floats, Floats]:
    """Times, scales and losses of full linear attention at infinite depth and dimension."""
    at = np.array([1e4, 1e6, 1e8])
    modes = power_law_modes(source_capacity(math.inf, nu=NU, beta=BETA), explicit=ATTENTION_MODES)
    gamma = attention_flow(modes, at, depth=math.inf, start=balanced(0.5))
    return at, gamma, landscape.loss(modes, gamma, depth=math.inf)


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Claims on untied layers and on full linear attention."""
    tied_optimum = _tied_optimum(DEPTH)
    saddle = Claim(
        name="untied-saddle",
        source=f"{SOURCE}, section 5.1",
        statement="At the tied optimum no change of single layers lowers the loss (depth 4). "
        "Moving two layers apart by ±0.1 lowers it: a strict saddle of the untied loss.",
        kind="order",
        published=1.0,
        corrected=-1.0,
        smallest_effect=1e-6,
    )
    together = Claim(
        name="untied-balanced",
        source=f"{SOURCE}, section 5.1",
        statement="From a balanced start untied layers follow the tied flow: loss over that of "
        "tied layers, simulated at depth 4, t = 10.",
        kind="number",
        published=1.0,
        smallest_effect=0.01,
    )
    escape = Claim(
        name="untied-escape",
        source="derived in docs/theory/untied.md",
        statement="From a perturbed start the loss of simulated untied layers falls below the "
        "tied optimum (depth 4, t = 1000, loss minus tied optimum).",
        kind="order",
        published=-1.0,
        smallest_effect=1e-3,
    )
    best = landscape.best_scale(_modes(), depth=DEPTH)
    moved = pair_loss(_modes(), best, depth=DEPTH, imbalance=0.1) - tied_optimum
    ends = [
        points(table(tables, name, "simulation").filter(pl.col("depth") == DEPTH))
        for name in ("figure8", "figure8-tied", "figure8-perturbed")
    ]
    untied, tied = (e.filter((pl.col("time") / 10 - 1).abs() < 1e-9) for e in ends[:2])
    ratio = untied["loss"][0] / tied["loss"][0]
    error = (untied["loss_error"][0] + tied["loss_error"][0]) / tied["loss"][0]
    last = ends[2].row(-1, named=True)
    return [
        judge(saddle, numerical(moved, 1e-12)),
        judge(together, numerical(ratio, error)),
        judge(escape, numerical(last["loss"] - tied_optimum, last["loss_error"])),
        *_attention_claims(),
    ]


def _attention_claims() -> list[dict[str, Any]]:
    clock = 1 / (5 * BETA + 2)
    weight = Claim(
        name="attention-weight-exponent",
        source=f"{SOURCE}, section 5.2 and appendix G.2",
        statement="Trained through its factors, γ = 2w⁵, full linear attention has "
        "w ~ t^5/(5β+2) (β = 0.8). That is the exponent of γ; w grows as t^1/(5β+2).",
        kind="number",
        published=5 * clock,
        corrected=clock,
        smallest_effect=0.02,
    )
    loss = Claim(
        name="attention-loss-exponent",
        source=f"{SOURCE}, section 5.2",
        statement="Its loss falls as t^-5β/(5β+2).",
        kind="number",
        published=5 * BETA * clock,
        smallest_effect=0.02,
    )
    at, gamma, losses = _attention()
    error = 1e-6 * losses
    weights = (gamma / 2) ** 0.2

    def found(values: Floats, errors: Floats) -> Any:
        before, last = (local_slope((at, values, errors), window) for window in ATTENTION_WINDOWS)
        return limit(last, before)

    # 1/w falls as w grows
    return [
        judge(weight, found(1 / weights, 1e-6 / weights)),
        judge(loss, found(losses, error)),
    ]
