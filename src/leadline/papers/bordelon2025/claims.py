r"""What the paper states on isotropic contexts, and what its sweeps measure.

Simulations at the sizes D/4, D/2 and D are extrapolated to infinite dimension by
$(8\mathcal L(D) - 6\mathcal L(D/2) + \mathcal L(D/4))/3$, which removes the terms of order 1/D and
1/D^2.
"""

from __future__ import annotations

import math
from typing import Any

import polars as pl
from scipy import stats

from leadline.claims import Claim, Interval, judge, numerical
from leadline.ident import from_json
from leadline.papers.bordelon2025 import (
    depth_law,
    fixed,
    rotated,
    shape_claims,
    transformer_claims,
    untied,
)
from leadline.papers.bordelon2025.figures import mean_curves
from leadline.papers.bordelon2025.sweeps import SGD_RATE
from leadline.papers.bordelon2025.tables import SOURCE, Tables, has, table
from leadline.papers.intervals import LEVEL, student
from leadline.theory.isotropic import closed_optimum
from leadline.theory.spectra import eigenvalues

NORMAL = float(stats.norm.ppf((1 + LEVEL) / 2))


def _extrapolated(sizes: list[tuple[float, float]], unit: str) -> Interval:
    """The limit from (mean, standard error) at D/4, D/2 and D."""
    factors = (1 / 3, -2.0, 8 / 3)
    estimate = sum(f * mean for f, (mean, _) in zip(factors, sizes, strict=True))
    margin = NORMAL * math.hypot(*(f * e for f, (_, e) in zip(factors, sizes, strict=True)))
    return Interval(
        estimate=estimate,
        low=estimate - margin,
        high=estimate + margin,
        level=LEVEL,
        method="normal, extrapolated in 1/D from three sizes",
        unit=unit,
    )


def _sized(tables: Tables, *, depth: int, ratio: int) -> Interval:
    """The least loss at P = `ratio` D, extrapolated to infinite dimension."""
    runs = table(tables, "sized", "simulation").filter(
        (pl.col("depth") == depth) & (pl.col("context") == ratio * pl.col("dim"))
    )
    return _extrapolated(runs.sort("dim").select("loss", "loss_error").rows(), "context")


def _best(tables: Tables, **values: float) -> dict[str, Any]:
    runs = table(tables, "final", "theory")
    for name, value in values.items():
        runs = runs.filter(pl.col(name) == value)
    return runs.filter(pl.col("context") == pl.col("dim")).row(0, named=True)


def final_loss_claims(tables: Tables) -> list[dict[str, Any]]:
    """Claims on the least loss and the best scale."""
    shallow = Claim(
        name="iso-shallow-loss",
        source=f"{SOURCE}, section 3.1",
        statement="At depth one the least loss at P = D is (1 + P/D)^-2 = 1/4. That is the "
        "distance of Γ from the identity; the loss is 1/(1 + P/D) = 1/2.",
        kind="number",
        published=0.25,
        corrected=0.5,
        smallest_effect=0.05,
    )
    optimum = Claim(
        name="iso-closed-optimum",
        source="derived in docs/theory/isotropic.md",
        statement="At depth 4 and P = 4D the least loss is 229/15625 = 0.01466: with α = P/D one "
        "minus the sum over l < L of Cat(l) α^(l+1)/(1+α)^(2l+1), at every depth.",
        kind="number",
        published=1 - (4 / 5 + 16 / 5**3 + 2 * 64 / 5**5 + 5 * 256 / 5**7),
        smallest_effect=2e-3,
    )
    depth = Claim(
        name="iso-depth-pays",
        source=f"{SOURCE}, abstract and section 3.1",
        statement="With isotropic covariates depth lowers the least loss when context is limited "
        "(P = 4D, depth 4 against 1).",
        kind="order",
        published=-1.0,
        smallest_effect=0.01,
    )
    rich = Claim(
        name="iso-depth-useless-at-long-context",
        source=f"{SOURCE}, abstract",
        statement="With isotropic covariates one layer suffices at infinite context: its least "
        "loss tends to zero.",
        kind="number",
        published=0.0,
        smallest_effect=1e-3,
    )
    noise = Claim(
        name="iso-noise-lowers-gamma",
        source=f"{SOURCE}, figure 2c",
        statement="Label noise lowers the best γ (depth 16, P = D, σ = 0.5 against 0).",
        kind="order",
        published=-1.0,
        smallest_effect=0.1,
    )
    one = _sized(tables, depth=1, ratio=1)
    rich_one, rich_four = (_sized(tables, depth=depth, ratio=4) for depth in (1, 4))
    margin = math.hypot(rich_one.width, rich_four.width) / 2
    gain = rich_four.estimate - rich_one.estimate
    gained = Interval(
        estimate=gain,
        low=gain - margin,
        high=gain + margin,
        level=LEVEL,
        method=one.method,
        unit=one.unit,
    )
    quiet = _best(tables, depth=16, noise=0.0)["best_gamma"]
    loud = _best(tables, depth=16, noise=0.5)["best_gamma"]
    return [
        judge(shallow, one),
        judge(optimum, rich_four),
        judge(depth, gained),
        judge(rich, numerical(closed_optimum(depth=1, ratio=1e12)[1], 1e-11)),
        judge(noise, numerical(loud - quiet, 1e-6 * quiet)),
    ]


def flow_claims(tables: Tables) -> list[dict[str, Any]]:
    """The prefactor of the gradient flow on the loss, for each covariance."""
    rows: list[dict[str, Any]] = []
    for covariance, result in (("isotropic", 1), ("fixed", 4), ("rotated", 6)):
        suffix = "" if covariance == "isotropic" else f"-{covariance}"
        if not has(tables, f"first-step{suffix}", "simulation"):
            continue
        claim = Claim(
            name=f"flow-prefactor{suffix}",
            source=f"{SOURCE}, Result {result}",
            statement=f"With {covariance} covariance the flow on the loss has prefactor 1: the "
            "first step moves the diagonal of Γ by 1 Σωλ² (times the rate). With the loss as the "
            "mean squared error the prefactor is 2, as in the paper's own appendices.",
            kind="number",
            published=1.0,
            corrected=2.0,
            smallest_effect=0.3,
        )
        runs = table(tables, f"first-step{suffix}", "simulation")
        spectrum = from_json(runs["spec"][0]).task.spectrum
        inputs, tasks = eigenvalues(spectrum)
        moved = runs["best_gamma"] * spectrum.dim / runs["rate"]
        rows.append(judge(claim, student(moved / float(tasks @ inputs**2))))
    return rows


def recursion_claims(tables: Tables) -> list[dict[str, Any]]:
    """The recursion of shallow SGD: its start and its rates, five and sixty steps in."""
    curves = mean_curves(table(tables, "recursion", "simulation"), ("dim",))

    def measured(step: int) -> Interval:
        at = curves.filter(pl.col("curve_step") == step).sort("dim")
        return _extrapolated(at.select("loss", "loss_error").rows(), "seed")

    s = 2.0
    a = (1 - SGD_RATE * s) ** 2 + 2 * SGD_RATE**2 * s**2
    b = 2 * SGD_RATE**2

    def loss(step: int, start: float) -> float:
        return s * (a**step * start + b * (1 - a**step) / (1 - a)) + 1 - 1 / s

    start = Claim(
        name="sgd-start",
        source=f"{SOURCE}, Result 10",
        statement="The distance C(t) of shallow SGD starts at C(0) = 1, which makes the loss "
        "after 5 steps (α = κ = τ = 1, η = 0.1) that of the published column. From Γ = 0 it starts "
        "at 1/s².",
        kind="number",
        published=loss(5, 1.0),
        corrected=loss(5, 1 / s**2),
        smallest_effect=0.1,
    )
    rates = Claim(
        name="sgd-rates",
        source=f"{SOURCE}, Result 10",
        statement="The contraction a and the injection b of shallow SGD set the loss after 60 "
        "steps (α = κ = τ = 1, η = 0.1).",
        kind="number",
        published=loss(60, 1 / s**2),
        smallest_effect=0.02,
    )
    return [judge(start, measured(5)), judge(rates, measured(60))]


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Every claim whose sweeps are in `tables`."""
    rows = [*final_loss_claims(tables), *flow_claims(tables)]
    if has(tables, "recursion", "simulation"):
        rows += recursion_claims(tables)
    if has(tables, "figure3b", "theory"):
        rows += [*fixed.claims(tables), *rotated.claims(tables)]
        rows += [*depth_law.claims(tables), *untied.claims(tables), *shape_claims.claims(tables)]
    if has(tables, "figure1", "simulation"):
        rows += transformer_claims.claims(tables)
    return rows
