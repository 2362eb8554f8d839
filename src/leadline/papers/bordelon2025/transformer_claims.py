"""Claims on trained transformers, and on the read-out of full attention, with computed verdicts."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import minimize_scalar

from leadline.claims import Claim, Interval, judge, numerical
from leadline.curve import Floats
from leadline.ident import from_json
from leadline.papers.bordelon2025.rotated import BETA, NU
from leadline.papers.bordelon2025.tables import (
    SOURCE,
    Tables,
    curve,
    difference,
    limit,
    local_slope,
    table,
)
from leadline.papers.bordelon2025.transformers import (
    DEPTHS,
    DIM,
    RATIOS,
    SLOPE_DEPTH,
    SOFTMAX_DEPTHS,
    UNTIED_DEPTH,
    finite_optimum,
    step_losses,
    theory_curve,
    tied_optimum,
)
from leadline.papers.intervals import LEVEL, student
from leadline.spec import source_capacity
from leadline.theory.layerwise import ReadoutFlow, readout_flow
from leadline.theory.spectra import Modes, power_law_modes

SMALL_LOSS = 0.02
"""Below it the final loss is an average over heavy tails."""
TOLERANCE, SMALL_TOLERANCE = 0.03, 0.08
"""Relative differences of final losses from the optimum that count as equal."""
TOGETHER = 0.01
"""Relative difference of losses of tied and untied layers that counts as none."""
SLOPE_WINDOW = (10.0, 100.0)
READOUT_DEPTH = 8


def beyond(found: Interval, allowed: float) -> Interval:
    """The size of what was found over what is `allowed`, minus one: negative within it."""
    size, margin = abs(found.estimate), found.width / 2
    return dataclasses.replace(
        found,
        estimate=size / allowed - 1,
        low=max(size - margin, 0.0) / allowed - 1,
        high=(size + margin) / allowed - 1,
    )


def _final(runs: pl.DataFrame, **values: float) -> Floats:
    """Final losses of one setting, in the order of the seeds."""
    own = runs.filter(*(pl.col(k) == v for k, v in values.items())).sort("seed")
    return own["loss"].to_numpy()


def excess(tables: Tables, ratio: float, depth: int, *, level: float) -> Interval:
    """The trained loss over the best of `depth` gradient steps, minus one. Both are compared with a
    fixed step size, the trained one on the same contexts, the best one on the same spectra, so
    that rare contexts weigh on neither.
    """
    context = round(ratio * DIM)
    trained, fixed = (
        _final(table(tables, name, "simulation"), context=context, depth=depth)
        for name in ("figure1", "figure1-reference")
    )
    own = table(tables, "figure1-reference", "simulation")
    own = own.filter((pl.col("context") == context) & (pl.col("depth") == depth))
    step = float(own["gamma"][0]) / depth
    best, _, _ = finite_optimum(DIM, context, depth)
    expected = float(step_losses(DIM, context, depth, step=step).mean())
    return student((trained / fixed) * (expected / best) - 1, level=level)


def final_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether trained linear transformers end at the optimum of gradient descent; deep ones apart,
    whose loss a few contexts past their edge of stability decide.
    """
    *shallow, deep = DEPTHS
    return [
        _final_claim(tables, "trained-best-step", tuple(shallow)),
        _final_claim(tables, "trained-best-step-deep", (deep,)),
    ]


def _final_claim(tables: Tables, name: str, depths: tuple[int, ...]) -> dict[str, Any]:
    settings = [(ratio, depth) for depth in depths for ratio in RATIOS]
    claim = Claim(
        name=name,
        source=f"{SOURCE}, figure 1",
        statement="Trained linear transformers are L steps of gradient descent with the best step "
        f"size: final loss within {TOLERANCE:.0%} of that optimum in {DIM} dimensions "
        f"({SMALL_TOLERANCE:.0%} where it is below {SMALL_LOSS:g}), L = "
        f"{', '.join(map(str, depths))}, P/D from {RATIOS[0]:g} to {RATIOS[-1]:g}. Largest "
        "difference over what is allowed, minus one.",
        kind="order",
        published=-1.0,
        smallest_effect=0.5,
    )
    level = 1 - (1 - LEVEL) / len(settings)
    found: list[Interval] = []
    for ratio, depth in settings:
        best, _, _ = finite_optimum(DIM, round(ratio * DIM), depth)
        allowed = SMALL_TOLERANCE if best < SMALL_LOSS else TOLERANCE
        found.append(beyond(excess(tables, ratio, depth, level=level), allowed))
    worst = Interval(
        estimate=max(own.estimate for own in found),
        low=max(own.low for own in found),
        high=max(own.high for own in found),
        level=LEVEL,
        method=f"largest of {len(settings)} Student t over seeds, Bonferroni",
        unit="seed",
    )
    return judge(claim, worst)


def _slopes(runs: pl.DataFrame) -> Interval:
    """The simulated local exponent in `SLOPE_WINDOW`, over seeds."""
    curves = [curve(run) for run in runs.iter_slices(1)]
    # without the point at time zero
    slopes = [local_slope((t[1:], loss[1:], e[1:]), SLOPE_WINDOW) for t, loss, e in curves]
    return student(np.array([slope.estimate for slope in slopes]))


def slope_claim(tables: Tables) -> dict[str, Any]:
    """The time law of full attention in simulation, its steps extrapolated to a flow."""
    claim = Claim(
        name="attention-local-slope",
        source="derived in docs/theory/untied.md",
        statement="Trained through W_x, W_q, W_k, W_v from a balanced start (rotated power law, "
        f"β = 1.25, depth {SLOPE_DEPTH}), the loss falls between t = {SLOPE_WINDOW[0]:g} and "
        f"{SLOPE_WINDOW[1]:g} with the local exponent of the flow of γ = w_v w_k w_q w_x² there "
        "(simulation minus theory).",
        kind="identity",
        published=0.0,
        smallest_effect=0.02,
    )
    fine = table(tables, "figure6-slope", "simulation")
    coarse = table(tables, "figure6b", "simulation").filter(pl.col("depth") == SLOPE_DEPTH)
    found = dataclasses.replace(
        limit(_slopes(fine), _slopes(coarse)),
        level=LEVEL,
        method="Student t over seeds, give or take twice what halving the rate changed",
        unit="seed",
    )
    _, loss = theory_curve(from_json(fine["spec"][0]).task, SLOPE_DEPTH, SLOPE_WINDOW)
    at = np.array(SLOPE_WINDOW)
    expected = local_slope((at, loss, 1e-9 * loss), SLOPE_WINDOW)
    return judge(claim, dataclasses.replace(difference(found, expected), level=LEVEL))


def untied_claims(tables: Tables) -> list[dict[str, Any]]:
    """Trained untied layers: with the tied ones, and then apart."""
    together = Claim(
        name="trained-untied-balanced",
        source=f"{SOURCE}, section 5.1",
        statement="From a balanced start untied layers of trained linear attention follow tied "
        f"ones: their losses at t = 10 (depth {UNTIED_DEPTH}) differ by less than "
        f"{TOGETHER:.0%}. Difference over what is allowed, minus one.",
        kind="order",
        published=-1.0,
        smallest_effect=0.5,
    )
    escape = Claim(
        name="trained-untied-escape",
        source="derived in docs/theory/untied.md",
        statement="The tied optimum is a saddle: by the noise of their gradients alone untied "
        "layers of trained linear attention leave it for a lower loss (last loss minus tied "
        "optimum).",
        kind="order",
        published=-1.0,
        smallest_effect=1e-3,
    )
    untied = table(tables, "figure8-trained", "simulation").sort("seed")
    tied = table(tables, "figure6b", "simulation").filter(pl.col("depth") == UNTIED_DEPTH)
    both = [_losses_at(runs, 10.0) for runs in (untied, tied.sort("seed"))]
    optimum = tied_optimum(from_json(untied["spec"][0]).task, UNTIED_DEPTH)
    return [
        judge(together, beyond(student(both[0] / both[1] - 1), TOGETHER)),
        judge(escape, student(_final(untied) - optimum)),
    ]


def _losses_at(runs: pl.DataFrame, time: float) -> Floats:
    """The loss of each run at the recorded time next to `time`."""
    found: list[float] = []
    for row in runs.iter_rows(named=True):
        nearest = int(np.argmin(np.abs(np.array(row["curve_time"]) - time)))
        found.append(row["curve_loss"][nearest])
    return np.array(found)


def depth_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether depth lowers the loss of softmax attention, alone and with MLP blocks."""
    rows: list[dict[str, Any]] = []
    for name, figure, words in (
        ("softmax-depth-pays", "6c", "softmax attention"),
        ("softmax-mlp-depth-pays", "9", "softmax attention with MLP blocks"),
    ):
        runs = table(tables, f"figure{figure}", "simulation")
        shallow, deep = (_final(runs, depth=d) for d in (SOFTMAX_DEPTHS[0], SOFTMAX_DEPTHS[-1]))
        claim = Claim(
            name=name,
            source=f"{SOURCE}, figure {figure}",
            statement=f"Depth lowers the final loss of {words} trained by Adam (isotropic, "
            f"P = 4D): logarithm of depth {SOFTMAX_DEPTHS[-1]} over depth {SOFTMAX_DEPTHS[0]}, "
            "paired by seed.",
            kind="order",
            published=-1.0,
            smallest_effect=0.05,
        )
        rows.append(judge(claim, student(np.log(deep / shallow))))
    return rows


@cache
def _readout() -> tuple[Modes, ReadoutFlow]:
    """The flow with trained read-in and read-out, from a scale of 0.3 in 1,000 dimensions."""
    modes = power_law_modes(source_capacity(1000, nu=NU, beta=BETA))
    times = np.concatenate([np.linspace(1, 60, 600), np.geomspace(61, 1e4, 100)])
    return modes, readout_flow(modes, times, depth=READOUT_DEPTH, start=0.3)


def readout_claims() -> list[dict[str, Any]]:
    r"""The product $w_ow_y$ in theory: it shoots above one, comes back, and ends at its optimum."""
    setting = f"(depth {READOUT_DEPTH}, β = 0.8, ν = 1.25, all weights from 0.3)"
    overshoot = Claim(
        name="attention-readout-overshoot",
        source=f"{SOURCE}, section 5.2 and appendix G.2",
        statement="With trained read-in and read-out w_o w_y shoots above its final value as γ "
        f"escapes, and recovers {setting}: largest value minus last.",
        kind="order",
        published=1.0,
        smallest_effect=1e-3,
    )
    peak = Claim(
        name="attention-readout-peak",
        source="derived in docs/theory/untied.md",
        statement=f"The largest value of w_o w_y is 1.209 {setting}.",
        kind="number",
        published=1.209,
        smallest_effect=0.005,
    )
    end = Claim(
        name="attention-readout-limit",
        source="derived in docs/theory/untied.md",
        statement="In the end w_o w_y is above one: the flow ends where least squares over w_o w_y "
        f"and γ has its minimum {setting}.",
        kind="number",
        published=_best_readout(),
        smallest_effect=1e-4,
    )
    _, flow = _readout()
    largest, last = float(flow.readout.max()), float(flow.readout[-1])
    # the largest of a smooth curve at this spacing, and the tolerance of the flow
    top = numerical(largest, 1e-3)
    return [
        judge(overshoot, numerical(largest - last, 1e-3)),
        judge(peak, top),
        judge(end, numerical(last, 1e-6)),
    ]


def _best_readout() -> float:
    """The product w_o w_y of least loss: least squares for every gamma."""
    modes, _ = _readout()

    def fitted(step: float) -> tuple[float, float]:
        seen = 1 - (1 - step * modes.eigenvalues) ** READOUT_DEPTH
        cross = float(modes.weights @ seen)
        best = cross / float(modes.weights @ seen**2)
        return best, modes.total - best * cross

    found = minimize_scalar(
        lambda step: fitted(step)[1], bounds=(0.5, 2.5), method="bounded", options={"xatol": 1e-10}
    )
    return fitted(float(found.x))[0]


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Claims on trained transformers."""
    return [
        *final_claims(tables),
        slope_claim(tables),
        *untied_claims(tables),
        *readout_claims(),
        *depth_claims(tables),
    ]
