"""Our own claims beyond the paper: width, tied layers, the floor and signed gains, optimizers.

Losses of different models are compared on common contexts, seed by seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Interval, judge
from leadline.papers.intervals import student
from leadline.papers.peng2026.beyond import (
    RATES,
    SPLITS,
    TIE_DEPTHS,
)
from leadline.papers.peng2026.beyond_floor import (
    anchored,
    floor_claims,
    on_common_contexts,
    page_claim,
    sign_claims,
    temperatures,
)
from leadline.papers.peng2026.beyond_law import (
    by_seed,
    laws,
    left_out,
    shape_runs,
    single,
    trained,
)
from leadline.papers.peng2026.floor import theory
from leadline.papers.peng2026.tables import Tables, has

SEVERAL = 2.0
"""The least ratio of two numbers that are called several-fold different."""
SATURATED = 0.1
"""The share of the gain of temperatures to which the claim is read that no more of it comes."""
ALIKE = 0.25
"""The largest share of the gain of all depth by which losses differ that are called nearly the
same."""


def width_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether depth stands in for width, and which law of both holds."""
    found: list[dict[str, Any]] = []
    models = trained(tables, "beyond-splits")
    (one, full), *narrow = SPLITS
    wide = by_seed(models, depth=one, width=full)["loss"].to_numpy()
    for depth, width in narrow:
        claim = page_claim(
            f"wide-beats-deep-{depth}x{width}",
            f"With the parameters of one full layer, {depth} untied layers of width {width} lose "
            "more than that layer (difference over its loss).",
            1.0,
            0.02,
            "order",
        )
        own = by_seed(models, depth=depth, width=width)["loss"].to_numpy()
        found.append(judge(claim, student(own / wide - 1)))
    runs = shape_runs(tables)
    separable, coupled = (left_out(runs, laws()[name]) for name in ("separable", "coupled"))
    claim = page_claim(
        "shape-is-coupled",
        "Width, depth and context do not add up: a coupled law with as many parameters predicts "
        "shapes left out better than a separable one (mean difference of absolute log errors).",
        -1.0,
        0.01,
        "order",
    )
    return [*found, judge(claim, student(np.abs(coupled) - np.abs(separable), unit="shape"))]


def tie_claims(tables: Tables) -> list[dict[str, Any]]:
    """What layers that share their matrix gain."""
    models = trained(tables, "beyond-ties")
    first, last = TIE_DEPTHS
    one = by_seed(models, depth=1)["loss"].to_numpy()
    looped, tempered, untied = (
        by_seed(models, depth=last, layers=layers)["loss"].to_numpy()
        for layers in ("looped", "tempered", "separate")
    )
    early = by_seed(models, depth=first, layers="tempered")["loss"].to_numpy()
    gap = single(2) - temperatures().loss
    exact = anchored(tables, by_seed(models, depth=last, layers="tempered"), own_contexts=False)
    same = page_claim(
        "looped-is-one-layer",
        f"{last} looped layers lose what one layer loses (relative difference).",
        0.0,
        1e-3,
        "identity",
    )
    mixture = page_claim(
        "tempered-is-the-temperature-mixture",
        f"{last} layers that share a matrix up to a temperature reach the best mixture of "
        "temperatures, without a fitted parameter (loss, anchored on an untrained layer; effect: "
        "half of what temperatures gain).",
        temperatures().loss,
        gap / 2,
        "number",
    )
    saturated = page_claim(
        "tempered-saturates",
        f"A temperature a layer has given what it gives at {first} layers (loss there minus that "
        f"at {last}, over the gain of temperatures).",
        0.0,
        0.25,
        "identity",
    )
    found = [
        judge(same, student(looped / one - 1, resolution=1e-5)),
        judge(mixture, on_common_contexts(exact)),
        judge(saturated, student((early - tempered) / gap, resolution=SATURATED)),
    ]
    factored = by_seed(trained(tables, "beyond-optimizers"), start=0.0)["loss"].to_numpy()
    for recipe, own in (("short", untied), ("factored", factored)):
        better = page_claim(
            f"untied-beats-tempered-{recipe}",
            f"{last} untied layers (recipe {recipe!r}) lose less than {last} tempered ones "
            "(difference).",
            -1.0,
            gap / 4,
            "order",
        )
        found.append(judge(better, student(own - tempered)))
    return found


def optimizer_claims(tables: Tables) -> list[dict[str, Any]]:
    """What the disagreement of layers depends on."""
    models = trained(tables, "beyond-optimizers").filter(optimizer="adam")
    short = pl.col("steps") == models["steps"].min()
    recipes = [by_seed(models.filter(short), rate=rate, start=0.5) for rate in RATES]
    recipes.append(by_seed(models, start=0.0))
    losses = np.stack([own["loss"].to_numpy() for own in recipes])
    apart = np.stack([own["disagreement"].to_numpy() for own in recipes])
    gain = single(2) - theory(2).bound.loss
    several = page_claim(
        "disagreement-varies",
        "Recipes leave the layers of one depth with several-fold different A - C (binary logarithm "
        "of the largest over the least of four recipes, minus one).",
        1.0,
        0.5,
        "order",
    )
    alike = page_claim(
        "loss-hardly-varies",
        "The same recipes end at nearly the same loss (spread over the gain of all depth, minus "
        f"{ALIKE:g}).",
        -1.0,
        ALIKE,
        "order",
    )
    order = page_claim(
        "disagreement-follows-the-path",
        "A - C grows with the length of the path, rate times steps, whichever of the two makes it "
        "longer (exponent in the rate minus exponent in the steps, Adam).",
        0.0,
        0.5,
        "identity",
    )
    return [
        judge(several, student(np.log(apart.max(0) / apart.min(0)) / np.log(SEVERAL) - 1)),
        judge(alike, student(np.ptp(losses, axis=0) / gain - ALIKE)),
        judge(order, path_exponents(models.filter(start=0.5, seed=0))[2]),
    ]


def path_exponents(models: pl.DataFrame) -> tuple[Interval, Interval, Interval]:
    """The exponents of A - C in the rate and in the number of steps, and their difference: least
    squares in the logarithms, Student's intervals over the runs, level 99%.
    """
    from scipy import stats

    logs = np.log(models.select("rate", "steps", "disagreement").to_numpy())
    design = np.column_stack([np.ones(len(logs)), logs[:, :2]])
    found, *_ = np.linalg.lstsq(design, logs[:, 2])
    free = len(logs) - 3
    variance = float(np.sum((logs[:, 2] - design @ found) ** 2)) / free
    covariance = variance * np.linalg.inv(design.T @ design)
    width = float(stats.t.ppf(0.995, free))

    def interval(direction: list[float]) -> Interval:
        along = np.array(direction)
        value, margin = float(along @ found), width * float(np.sqrt(along @ covariance @ along))
        return Interval(
            estimate=value,
            low=value - margin,
            high=value + margin,
            level=0.99,
            method=f"least squares in logarithms, Student's t with {free} degrees of freedom",
            unit="run",
        )

    return interval([0, 1, 0]), interval([0, 0, 1]), interval([0, 1, -1])


def claims(tables: Tables) -> list[dict[str, Any]]:
    """All claims of the page; none where its runs are missing, at scale "demo"."""
    if not has(tables, "beyond-signs", engine="simulation"):
        return []
    return [
        *width_claims(tables),
        *tie_claims(tables),
        *floor_claims(tables),
        *sign_claims(tables),
        *optimizer_claims(tables),
    ]
