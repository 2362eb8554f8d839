"""Rotated covariances (Figure 4): power laws in time and in depth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from leadline.claims import Claim, Interval, judge, numerical
from leadline.papers.bordelon2025.tables import (
    SOURCE,
    Tables,
    curve,
    difference,
    limit,
    local_slope,
    points,
    spec_column,
    sweeps_of,
    table,
    times,
)
from leadline.papers.intervals import LEVEL
from leadline.report.figures import (
    GRAY,
    ORANGE,
    Figure,
    lines_and_points,
    number,
    panels,
    shades,
)
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Sweep,
    grid,
    is_regression,
    replace,
    source_capacity,
)
from leadline.theory.rotated import time_law

NU, BETA = 1.25, 0.8
BETAS = (0.4, 0.8, 1.2, 1.6)
DIM = 16
LANDSCAPE_DIM = 128
LANDSCAPE_DEPTHS = (1, 4, 16, 64)
DEPTHS = (1, 2, 4, 8, 16, 32)
SIMULATED_DEPTH = 8
"""Of Figure 4a, where theory is at infinite depth."""
SIMULATED_DEPTHS = (1, 2, 4, 8)
EVALUATION = Evaluation(contexts=512)
"""Contexts on which the flow is simulated; it is off by the order of DIM over their number."""
SLOPE_CONTEXTS = (128, 256)
WINDOWS = ((1e4, 1e6), (1e6, 1e8))
SHORT_WINDOW = (1e0, 1e2)


def rotated_run(dim: float, *, depth: float, beta: float = BETA) -> RunSpec:
    """Power-law spectra in a fresh basis in every context, at the best scale."""
    return RunSpec(
        task=InContextRegression(
            spectrum=source_capacity(dim, nu=NU, beta=beta), covariance="rotated", context=math.inf
        ),
        model=ReducedAttention(depth=depth),
        recipe=BestScale(),
        evaluation=EVALUATION,
    )


def flow_run(dim: float, at: tuple[float, ...], *, depth: float, beta: float = BETA) -> RunSpec:
    """Gradient flow of the scale, recorded at the times `at`."""
    return replace(rotated_run(dim, depth=depth, beta=beta), "recipe", GradientFlow(times=at))


def sweeps() -> tuple[Sweep, ...]:
    """Figure 4: the loss against time by source exponent and by depth, and the landscape."""
    lines, short, dots = (
        times(-1, 8, per_decade=4),
        times(-1, 3, per_decade=4),
        times(-1, 3, per_decade=2),
    )
    by_beta = [flow_run(math.inf, lines, depth=math.inf, beta=beta) for beta in BETAS]
    by_depth = [flow_run(math.inf, lines, depth=depth) for depth in (*DEPTHS, math.inf)]
    named: dict[str, list[RunSpec]] = {
        "figure4a/theory": [
            *by_beta,
            *(flow_run(DIM, short, depth=SIMULATED_DEPTH, beta=beta) for beta in BETAS),
        ],
        "figure4b/theory": _landscape([i / 40 for i in range(1, 87)]),
        "figure4c/theory": [
            *by_depth,
            *(flow_run(DIM, short, depth=depth) for depth in SIMULATED_DEPTHS),
        ],
        "figure4a/simulation": [
            flow_run(DIM, dots, depth=SIMULATED_DEPTH, beta=beta) for beta in BETAS
        ],
        "figure4b/simulation": _landscape([(i + 0.5) / 6 for i in range(13)]),
        "figure4c/simulation": [flow_run(DIM, dots, depth=depth) for depth in SIMULATED_DEPTHS],
        "slope/simulation": [
            run
            for contexts in SLOPE_CONTEXTS
            for run in grid(
                replace(
                    flow_run(DIM, dots, depth=SIMULATED_DEPTH), "evaluation.contexts", contexts
                ),
                {"seed": range(8)},
            )
        ],
    }
    return sweeps_of(named)


def _landscape(scales: list[float]) -> list[RunSpec]:
    """Figure 4b at `scales`, which are gamma over depth."""
    return [
        replace(rotated_run(LANDSCAPE_DIM, depth=d), "recipe", GivenScale(gamma=d * scale))
        for d in LANDSCAPE_DEPTHS
        for scale in scales
    ]


def with_beta(runs: pl.DataFrame) -> pl.DataFrame:
    r"""`runs` with the column "beta", the source exponent."""

    def beta(spec: RunSpec) -> float:
        assert is_regression(spec)
        spectrum = spec.task.spectrum
        a, b = spectrum.input_exponent, spectrum.task_exponent
        return round((a + b - 1) / a, 9)

    return spec_column(runs, "beta", beta)


def _curves(
    ax: Any, theory: pl.DataFrame, simulated: pl.DataFrame, *, group: str, label: str
) -> None:
    """Loss against time: infinite dimension solid, the simulated one dotted, with points."""
    values = sorted(set(theory[group].to_list()))
    for value, color in zip(values, shades(len(values)), strict=True):
        own = theory.filter(pl.col(group) == value)
        solid, dotted = (own.filter(c) for c in (pl.col("dim").is_infinite(), pl.col("dim") == DIM))
        ax.plot(solid["time"], solid["loss"], color=color, label=f"{label} = {number(value)}")
        ax.plot(dotted["time"], dotted["loss"], ":", color=color, lw=1.2)
        dots = simulated.filter(pl.col(group) == value)
        ax.errorbar(
            dots["time"], dots["loss"], 2 * dots["loss_error"], fmt="o", ms=3.2, color=color, lw=1
        )
    ax.set(xscale="log", yscale="log", xlabel="time t (scalar flow)")
    ax.legend(loc="lower left")


def figure4(tables: Tables) -> Figure:
    """Training and landscape with rotated power-law covariances."""
    frames = {
        (panel, engine): table(tables, f"figure4{panel}", engine)
        for panel in "abc"
        for engine in ("theory", "simulation")
    }
    with panels(3, height=3.1) as (canvas, axes):
        curves = [
            points(with_beta(frames["a", engine]), "dim", "depth", "beta")
            for engine in ("theory", "simulation")
        ]
        _curves(axes[0], *curves, group="beta", label="β")
        tail = np.array([1e2, 1e8])
        for beta in BETAS:
            law = time_law(source_capacity(math.inf, nu=NU, beta=beta))
            axes[0].plot(tail, law(tail), "--", color=GRAY, lw=1)
        axes[0].set(title="a  source exponents, L = ∞", ylabel="loss (mean squared error)")
        axes[0].set(ylim=(1e-5, 1.4))
        _panel_landscape(axes[1], frames["b", "theory"], frames["b", "simulation"])
        trained = [
            points(frames["c", engine], "dim", "depth") for engine in ("theory", "simulation")
        ]
        best = table(tables, "depth", "theory").filter(pl.col("recipe") == "BestScale")
        for depth in DEPTHS:
            plateau = best.filter(pl.col("depth") == depth)["loss"][0]
            axes[2].plot([1e6, 1e8], [plateau, plateau], "--", color=GRAY, lw=1, zorder=3)
        _curves(axes[2], *trained, group="depth", label="L")
        axes[2].set(title="c  depth, β = 0.8")
    columns = ("engine", "dim", "depth", "gamma", "loss", "loss_error", "status")
    return Figure(
        name="bordelon2025-figure4",
        caption=(
            "Figure 4. Rotated power-law covariances, ν = 1.25, infinite context. (a) Loss under "
            "the flow of γ at infinite depth; dashed: the asymptote with its constant, slope "
            f"-β/(2+β). Dotted and points: depth {SIMULATED_DEPTH} in {DIM} dimensions, whose "
            f"flow ends in a plateau. (b) Landscape in γ, β = 0.8, {LANDSCAPE_DIM} dimensions: the "
            "minimum (stars) approaches the edge of stability γ = 2L/λ₁ (solid line), not L/λ₁ "
            "(dashed line). (c) Loss against time by depth, β = 0.8: one power law, until the "
            "plateau (dashed: the least loss of that depth), which falls as L^(-β). Points: "
            "simulation of the matrix Γ on sampled bases."
        ),
        alternative=(
            "Left: loss falls as a power of time, steeper for larger beta. Middle: loss against "
            "gamma over depth with minima moving toward two. Right: curves leave a common power "
            "law for plateaus that are lower for deeper models."
        ),
        canvas=canvas,
        numbers=pl.concat(
            [
                *(c.with_columns(panel=pl.lit("a")) for c in curves),
                *(
                    frames["b", e].select(columns).with_columns(panel=pl.lit("b"))
                    for e in ("theory", "simulation")
                ),
                *(c.with_columns(panel=pl.lit("c")) for c in trained),
            ],
            how="diagonal_relaxed",
        ),
    )


def _panel_landscape(ax: Any, theory: pl.DataFrame, simulated: pl.DataFrame) -> None:
    scale = (pl.col("gamma") / pl.col("depth")).alias("scale")
    lines = theory.with_columns(scale)
    lines_and_points(ax, lines, simulated.with_columns(scale), x="scale", group="depth", label="L")
    lowest = lines.sort("loss").group_by("depth", maintain_order=True).first()
    ax.plot(lowest["scale"], lowest["loss"], "*", color=ORANGE, ms=8, zorder=4)
    ax.axvline(2, color=GRAY, lw=1)
    ax.axvline(1, color=GRAY, lw=1, ls="--")
    ax.set(title="b  landscape, β = 0.8", yscale="log", ylim=(8e-4, 1.4), xlabel="γ / L")
    ax.legend(loc="lower left")


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Claims on the time law, and simulation against theory."""
    exponent = Claim(
        name="rrs-time-exponent",
        source=f"{SOURCE}, section 3.3",
        statement="With rotated power-law covariances (ν = 1.25, β = 0.8) and infinite depth the "
        "loss falls with time as t^-β/(2+β).",
        kind="number",
        published=BETA / (2 + BETA),
        smallest_effect=0.01,
    )
    constant = Claim(
        name="rrs-time-constant",
        source="derived in docs/theory/rotated.md",
        statement="Its asymptote is K (Kβ(β+2)t)^-β/(2+β), K = (s/ν)Γ(β)2^-β: loss over "
        "asymptote at t = 10^8.",
        kind="number",
        published=1.0,
        smallest_effect=0.02,
    )
    slope = Claim(
        name="rrs-local-slope",
        source="derived in docs/theory/rotated.md",
        statement=f"Simulated at depth {SIMULATED_DEPTH} in {DIM} dimensions the loss falls "
        "between t = 1 and 100 with theory's local exponent there (simulation minus theory).",
        kind="identity",
        published=0.0,
        smallest_effect=0.005,
    )
    runs = table(tables, "figure4c", "theory")
    found = curve(runs, dim=math.inf, depth=math.inf)
    before, last = (local_slope(found, window) for window in WINDOWS)
    at, loss, _ = found
    ratios = loss / time_law(source_capacity(math.inf, nu=NU, beta=BETA))(at)
    earlier = int(np.argmin(np.abs(np.log(at / WINDOWS[0][1]))))
    ours = local_slope(curve(runs, dim=DIM, depth=SIMULATED_DEPTH), SHORT_WINDOW)
    return [
        judge(exponent, limit(last, before)),
        judge(constant, limit(numerical(ratios[-1], 1e-9), numerical(ratios[earlier], 1e-9))),
        judge(slope, difference(_extrapolated_slope(tables), ours)),
    ]


def _extrapolated_slope(tables: Tables) -> Interval:
    """The simulated local exponent: each seed draws its training contexts, which a flow overfits by
    a share of one over their number, so the mean over seeds at n/2 and n is extrapolated.
    """
    runs = spec_column(
        table(tables, "slope", "simulation"), "contexts", lambda spec: spec.evaluation.contexts
    )
    means: list[float] = []
    errors: list[float] = []
    for contexts in SLOPE_CONTEXTS:
        slopes = [
            local_slope(curve(run), SHORT_WINDOW).estimate
            for run in runs.filter(pl.col("contexts") == contexts).iter_slices(1)
        ]
        means.append(float(np.mean(slopes)))
        errors.append(float(np.std(slopes, ddof=1)) / math.sqrt(len(slopes)))
    half, full = means
    estimate = 2 * full - half
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, 7))  # of eight seeds, the fewer degrees kept
    margin = quantile * math.hypot(2 * errors[1], errors[0])
    return Interval(
        estimate=estimate,
        low=estimate - margin,
        high=estimate + margin,
        level=LEVEL,
        method="Student t over seeds, extrapolated in the number of contexts",
        unit="seed",
    )
