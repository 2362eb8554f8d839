"""Claims on finite width, depth and context, and on the best split of compute."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import optimize, stats

from leadline.claims import Claim, Interval, judge, numerical
from leadline.ident import run_id
from leadline.papers.bordelon2025.shapes import (
    BALANCE,
    BETA,
    CROWDED,
    FRONTIER,
    NU,
    SLOPE_CONTEXTS,
    SLOPE_DEPTH,
    SLOPE_DIM,
    SLOPE_SCALE,
    SLOPE_SIZES,
    STEEP,
    STEEPEST,
    balance_run,
    compared,
    frontier_run,
    rotated_task,
    wider,
)
from leadline.papers.bordelon2025.tables import (
    SOURCE,
    Tables,
    difference,
    limit,
    local_slope,
    table,
)
from leadline.papers.intervals import LEVEL
from leadline.planning.exact import alone
from leadline.spec import source_capacity
from leadline.theory import landscape as sums
from leadline.theory.compression import compressed
from leadline.theory.limits import context_limit, width_limit
from leadline.theory.spectra import power_law_modes

SIZES = (1e6, 1e8, 1e10)
"""Widths and contexts between which the exponents in infinite dimension are read."""
DEPTH_ERROR = 0.03
"""Relative, of a best depth read between two: what steps of a tenth leave on power laws."""
SETTING = "rotated power-law covariances (ν = 1.25)"


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Every claim on shapes."""
    return [
        *_exponent_claims(),
        *_slope_claims(tables),
        *_sum_claims(tables),
        *_balance_claims(tables),
        *_compute_claims(tables),
    ]


def _exponent_claims() -> list[dict[str, Any]]:
    """What width and context alone leave, in infinite dimension."""
    rows: list[dict[str, Any]] = []
    for name, resource, beta, most, loss in (
        ("width-exponent", "width", BETA, 1.0, width_limit),
        ("width-exponent-steep", "width", STEEP, 1.0, width_limit),
        ("context-exponent", "context", BETA, 2.0, context_limit),
        ("context-exponent-steep", "context", STEEPEST, 2.0, context_limit),
    ):
        modes = compressed(source_capacity(math.inf, nu=NU, beta=beta))
        losses = np.array([loss(modes, size) for size in SIZES])
        found = (np.array(SIZES), losses, 1e-9 * losses)
        before, last = (local_slope(found, window) for window in itertools.pairwise(SIZES))
        saturates = beta > most
        claim = Claim(
            name=name,
            source=f"{SOURCE}, Result 8",
            statement=f"With {SETTING} and β = {beta:g} the loss that {resource} alone leaves "
            f"falls with exponent νβ = {NU * beta:g}."
            + (
                f" The exponent is ν min(β, {most:g}) = {NU * most:g}: it saturates."
                if saturates
                else ""
            ),
            kind="number",
            published=NU * beta,
            corrected=NU * most if saturates else None,
            smallest_effect=0.02,
        )
        rows.append(judge(claim, limit(last, before)))
    return rows


def _slope_claims(tables: Tables) -> list[dict[str, Any]]:
    """Simulated slopes at finite size against theory's slopes there."""
    rows: list[dict[str, Any]] = []
    for resource in ("width", "context"):
        theory, simulated = (
            table(tables, f"{resource}-slope", engine).sort(resource)
            for engine in ("theory", "simulation")
        )
        claim = Claim(
            name=f"{resource}-local-slope",
            source="derived in docs/theory/equivalents.md",
            statement=f"Simulated in {SLOPE_DIM} dimensions ({SETTING}, β = {BETA:g}, "
            f"γ/L = {SLOPE_SCALE:g}, L = {SLOPE_DEPTH}) the loss falls with {resource} between "
            f"{SLOPE_SIZES[0]} and {SLOPE_SIZES[-1]} with theory's local exponent there "
            "(simulation minus theory).",
            kind="identity",
            published=0.0,
            smallest_effect=0.1,
        )
        measured = _fitted_slope(simulated, resource)
        # only the loss of simulation has errors
        ours = _fitted_slope(theory, resource).estimate
        rows.append(judge(claim, difference(measured, numerical(ours, 0))))
    return rows


def _fitted_slope(runs: pl.DataFrame, size: str) -> Interval:
    r"""$-d\ln\mathcal L/d\ln x$ over all sizes x by least squares. The interval holds the standard
    errors of the losses, whose contexts are independent, and a part 1/x of each loss, by which a
    stream or context of x may be off theory.
    """
    sizes = runs[size].to_numpy()
    x, y = np.log(sizes), np.log(runs["loss"].to_numpy())
    weight = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    error = float(np.sqrt((weight**2 * (runs["loss_error"] / runs["loss"]).to_numpy() ** 2).sum()))
    margin = float(stats.t.ppf((1 + LEVEL) / 2, SLOPE_CONTEXTS - 1)) * error
    margin += float((np.abs(weight) / sizes).sum())
    slope = -float(weight @ y)
    return Interval(
        estimate=slope,
        low=slope - margin,
        high=slope + margin,
        level=LEVEL,
        method="slope of log loss: Student t over contexts, plus 1/size of each loss",
        unit="context",
    )


def _sum_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether the losses that time, width, depth and context leave add up."""
    budget = max(FRONTIER[BETA])
    best, _ = _frontier(tables, BETA, budget)
    whole = Claim(
        name="losses-add",
        source=f"{SOURCE}, Result 8",
        statement="At the best split of compute the loss is the sum of what time, width, depth and "
        f"context each leave when the others are infinite ({SETTING}, β = {BETA:g}, "
        f"C = {budget:.0e}): loss over sum.",
        kind="number",
        published=1.0,
        smallest_effect=0.05,
    )
    width, depth, context = FRONTIER[BETA][budget]
    sizes = {
        "steps": budget / (width**2 * depth * context**2),
        "width": width,
        "depth": depth,
        "context": context,
    }
    task = rotated_task(math.inf)
    ratio = best / sum(alone(task.spectrum, sizes).values())
    dim, size, depth = CROWDED
    crowded = Claim(
        name="losses-add-near-n-equals-p",
        source=f"{SOURCE}, Result 8",
        statement="The loss of a deep model is the sum of what width and context each leave: with "
        f"N = P = {size} in {dim} dimensions, L = {depth}, at the best scale, loss minus sum. Deep "
        "models of equal width and context diverge, as in double descent, and only stopping early "
        "keeps the loss finite.",
        kind="number",
        published=0.0,
        smallest_effect=0.002,
    )
    run = table(tables, "crowded", "theory").row(0, named=True)
    modes = compressed(rotated_task(dim).spectrum)
    excess = run["loss"] - width_limit(modes, size) - context_limit(modes, size)
    return [
        judge(whole, numerical(ratio, 1e-4)),
        judge(crowded, numerical(excess, 1e-6)),
    ]


def _frontier(tables: Tables, beta: float, budget: float) -> tuple[float, float]:
    """The loss of the best shape at `budget`, and how much its best neighbor gains on it, as a
    part of the loss.
    """
    runs = table(tables, "frontier", "theory")
    losses: dict[str, float] = dict(zip(runs["run_id"], runs["loss"], strict=True))
    own, *others = (
        losses[run_id(frontier_run(shape, budget=budget, beta=beta), engine="theory")]
        for shape in compared(beta, budget)
    )
    return own, max([0.0, *(1 - other / own for other in others)])


def _slope_of(values: Sequence[tuple[float, float, float]]) -> Interval:
    r"""The limit of $d\ln y/d\ln x$ from three points (x, y, relative error of y)."""
    pairs: list[Interval] = []
    for (x, y, e), (x2, y2, e2) in itertools.pairwise(values):
        length = math.log(x2 / x)
        slope, margin = math.log(y2 / y) / length, (e + e2) / length
        pairs.append(numerical(slope, margin))
    before, last = pairs
    return limit(last, before)


def _compute_claims(tables: Tables) -> list[dict[str, Any]]:
    """How the least loss falls with compute: the exact theory, and the sum of four laws."""
    rows: list[dict[str, Any]] = []
    for beta in FRONTIER:
        published = beta / (3 + beta + 4 / NU)
        ours = 1 / (
            (2 + beta) / beta + 2 / (NU * min(beta, 1)) + 1 / beta + 2 / (NU * min(beta, 2))
        )
        steep = beta > 1
        claim = Claim(
            name="compute-exponent" + ("-steep" if steep else ""),
            source=f"{SOURCE}, section 4",
            statement="With time, width, depth and context at their best split of C = t P² N² L "
            f"the loss falls as C^-β/(3+β+4/ν) ({SETTING}, β = {beta:g})."
            + (f" For β > 1 width falls as N^-ν, and the exponent is {ours:.4g}." if steep else ""),
            kind="number",
            published=published,
            corrected=ours if steep else None,
            smallest_effect=0.022 if steep else 0.025,
        )
        found = [(budget, *_frontier(tables, beta, budget)) for budget in sorted(FRONTIER[beta])]
        slope = _slope_of([(budget, 1 / loss, gain) for budget, loss, gain in found])
        rows.append(judge(claim, slope))
    return rows


def _balance_claims(tables: Tables) -> list[dict[str, Any]]:
    """How depth grows with width where N²L is best spent: the limit from the losses that width and
    depth leave alone, and the exact joint loss in a window that it reaches.
    """
    rows: list[dict[str, Any]] = []
    exact: list[float] = []
    few, many = BALANCE[BETA]
    for beta, spans in BALANCE.items():
        steep = beta > 1
        claim = Claim(
            name="depth-width-shape" + ("-steep" if steep else ""),
            source=f"{SOURCE}, section 4",
            statement="Where width and depth share their cost N²L best, depth grows as L ∝ N^ν "
            f"({SETTING}, β = {beta:g}; the sum of their exact losses, N to 1e7)."
            + (" For β > 1 as N^(ν/β), since width then falls as N^-ν." if steep else ""),
            kind="number",
            published=NU,
            corrected=NU / beta if steep else None,
            smallest_effect=0.1,
        )
        added = [(n, _added_depth(n, beta), 1e-3) for n in (1e5, 1e6, 1e7)]
        rows.append(judge(claim, _slope_of(added)))
        depths = [_balanced_depth(tables, n, spans[n], beta) for n in (few, many)]
        exact.append(math.log(depths[1] / depths[0]) / math.log(many / few))
    slower = Claim(
        name="depth-width-exact",
        source=f"{SOURCE}, section 4",
        statement=f"Depth grows with width as N^ν at β = {BETA:g} and at β = {STEEP:g}: difference "
        "of the exponents. In the exact joint loss, best spent, it grows slower at the larger β "
        f"(N from {few} to {many}; limit ν - ν/β).",
        kind="number",
        published=0.0,
        corrected=NU - NU / STEEP,
        smallest_effect=0.1,
    )
    margin = 4 * DEPTH_ERROR / math.log(many / few)  # four depths
    rows.append(judge(slower, numerical(exact[0] - exact[1], margin)))
    return rows


def _added_depth(width: float, beta: float) -> float:
    r"""The depth of least $\mathcal L_N + \mathcal L_L$ at the cost $N^2L$ of that width."""
    spectrum = source_capacity(math.inf, nu=NU, beta=beta)
    modes, points = power_law_modes(spectrum), compressed(spectrum)

    def by_depth(log_depth: float) -> float:
        depth = math.exp(log_depth)
        return float(sums.loss(modes, sums.best_scale(modes, depth=depth), depth=depth))

    step = 0.1
    slope_of_width = (
        width_limit(points, width) - width_limit(points, width * math.exp(step))
    ) / step

    def gap(log_depth: float) -> float:
        slope = (by_depth(log_depth) - by_depth(log_depth + step)) / step
        return slope_of_width / 2 - slope

    return math.exp(optimize.brentq(gap, math.log(2), math.log(1e8), xtol=1e-3))


def _balanced_depth(tables: Tables, width: int, span: tuple[int, int], beta: float) -> float:
    r"""The depth at which $\frac12\partial\ln\mathcal L/\partial\ln N =
    \partial\ln\mathcal L/\partial\ln L$, between the two depths of `span`.
    """
    runs = table(tables, "balance", "theory")
    known: dict[str, float] = dict(zip(runs["run_id"], runs["loss"], strict=True))

    def loss(n: int, depth: int) -> float:
        return known[run_id(balance_run(n, depth, beta=beta), engine="theory")]

    def gap(depth: int) -> float:
        wide, deep = wider(width), wider(depth)
        by_width = math.log(loss(width, depth) / loss(wide, depth)) / math.log(wide / width)
        by_depth = math.log(loss(width, depth) / loss(width, deep)) / math.log(deep / depth)
        return by_width / 2 - by_depth

    low, high = span
    first, second = gap(low), gap(high)
    share = first / (first - second)
    return low * (high / low) ** share
