"""The bound on retrieval beside trained, untrained and signed models, anchored on layers whose loss
is known exactly.

Against theory a trained loss is anchored: the untrained layer of `beyond.reference_run` says how
lucky the contexts are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import polars as pl

from leadline.claims import Claim, Interval, judge
from leadline.curve import Floats
from leadline.papers.intervals import student
from leadline.papers.peng2026.beyond import CONTRAST, SIGNED_DEPTHS, TEMPERATURES
from leadline.papers.peng2026.beyond_law import by_seed, single, trained
from leadline.papers.peng2026.floor import theory
from leadline.papers.peng2026.published import SOFTMAX_CONTEXT, SOFTMAX_DIM
from leadline.papers.peng2026.tables import Z99, Tables
from leadline.theory.retrieval import best_layer, layer_loss
from leadline.theory.retrieval_bound import (
    Mixture,
    best_temperatures,
    ensemble_bound,
    layer_grid,
    signed_temperatures,
)
from leadline.theory.retrieval_models import built_law

PAGE = "docs/papers/beyond-depth.md"
BUILT_DEPTH = 64
MAP = {
    "dim": (4, 8, 16, 32),
    "context": (32, 64, 128, 256),
    "targets": (2, 4, 8, 16, 32),
}
"""The tasks of the map of the bound: one number varies about 16 dimensions, 64 tokens, top-2."""
ANCHOR_ERROR = 0.0012
"""Standard error over 6,400 contexts of 16 queries of the difference between the ensemble that
reaches the top-2 bound and the untrained reference layer, sampled."""
COARSE = 0.6
"""Resolution of the quadrature behind the map: ratios to 2e-4 in a quarter of the time."""


@cache
def reference_loss(targets: int) -> float:
    """The exact loss of the untrained reference layer, gain one."""
    return layer_loss(
        dim=SOFTMAX_DIM,
        context=SOFTMAX_CONTEXT,
        targets=targets,
        sharpness=TEMPERATURES[targets],
        gain=1.0,
    ).loss


@cache
def temperatures() -> Mixture:
    """The best mixture of temperatures on the top-2 task."""
    return best_temperatures(dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=2)


@cache
def signed_pair() -> float:
    """The least loss of two temperatures with gains of both signs on the top-16 task."""
    ratios = np.geomspace(0.8, 1.25, 10)
    pairs = [(TEMPERATURES[16] * 1.75 * r, TEMPERATURES[16] * 1.85 * r) for r in ratios]
    return min(
        signed_temperatures(
            dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=16, sharpness=pair
        ).loss
        for pair in pairs
    )


@cache
def frames() -> float:
    """The loss of the untrained model of whole frames of perturbed layers, top-2."""
    return built_law(theory(2).grid, depth=BUILT_DEPTH, perturbation="frames").loss


def anchored(tables: Tables, models: pl.DataFrame, *, own_contexts: bool) -> Floats:
    """The losses that `models` of one kind would have without the luck of their contexts: their
    difference from the reference layer on the same contexts, plus its exact loss. With
    `own_contexts` the contexts are those of each seed, else those of seed 0.
    """
    targets = int(models["targets"][0])
    reference = by_seed(trained(tables, "beyond-reference"), targets=targets)["loss"].to_numpy()
    at = models["seed"].to_numpy() if own_contexts else np.zeros(models.height, int)
    return models["loss"].to_numpy() - reference[at] + reference_loss(targets)


@cache
def bound_map() -> pl.DataFrame:
    """What depth is worth, R_1 over the bound, as one number of the task varies."""
    found: list[dict[str, Any]] = []
    base = {"dim": SOFTMAX_DIM, "context": SOFTMAX_CONTEXT, "targets": 2}
    done: dict[tuple[int, ...], float] = {}
    for name, values in MAP.items():
        for value in values:
            task = base | {name: value}
            key = tuple(task.values())
            if key not in done:
                bound = ensemble_bound(layer_grid(**task, resolution=COARSE)).loss
                done[key] = best_layer(**task).loss / bound
            found.append({"varied": name, "value": value, "ratio": done[key]})
    return pl.DataFrame(found)


def page_claim(
    name: str,
    statement: str,
    published: float,
    effect: float,
    kind: Literal["number", "order", "identity"],
) -> Claim:
    """A claim of our own."""
    return Claim(
        name=f"beyond-{name}",
        source=PAGE,
        statement=statement,
        kind=kind,
        published=published,
        smallest_effect=effect,
    )


def on_common_contexts(losses: Floats) -> Interval:
    """The interval of the mean anchored top-2 loss of seeds on common contexts, whose luck seeds
    cannot show: no narrower than what the anchor leaves of it.
    """
    return student(losses, resolution=Z99 * ANCHOR_ERROR)


def floor_claims(tables: Tables) -> list[dict[str, Any]]:
    """Trained and untrained models against the bound of all ensembles of positive gains."""
    found: list[dict[str, Any]] = []
    gain = single(2) - theory(2).bound.loss
    for recipe in ("short", "factored"):
        models = trained(tables, f"depth-{recipe}").filter(
            pl.col("isotropic"), targets=2, depth=BUILT_DEPTH
        )
        losses = anchored(tables, models.sort("seed"), own_contexts=False)
        above = page_claim(
            f"trained-above-the-bound-{recipe}",
            f"{BUILT_DEPTH} trained layers with one gain (recipe {recipe!r}) stay above the bound "
            "(loss minus bound, anchored).",
            1.0,
            gain / 4,
            "order",
        )
        untrained = page_claim(
            f"untrained-beats-trained-{recipe}",
            f"{BUILT_DEPTH} layers written down from theory, frames of perturbed layers, lose less "
            f"than as many trained ones (recipe {recipe!r}; difference, anchored).",
            -1.0,
            gain / 4,
            "order",
        )
        found.append(judge(above, on_common_contexts(losses - theory(2).bound.loss)))
        found.append(judge(untrained, on_common_contexts(frames() - losses)))
    return found


def sign_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether gains of both signs go where no ensemble of positive gains can."""
    models = trained(tables, "beyond-signs")
    found: list[dict[str, Any]] = []
    for targets, depths in SIGNED_DEPTHS.items():
        own = by_seed(models, targets=targets, depth=depths[-1], matrix="full", contrast=CONTRAST)
        bound = theory(targets).bound
        claim = page_claim(
            f"signed-below-the-bound-top-{targets}",
            f"{depths[-1]} trained layers whose gains start with both signs fall below the bound "
            f"of positive gains, top-{targets} (loss minus bound, anchored).",
            -1.0,
            (single(targets) - bound.loss) / 4,
            "order",
        )
        losses = anchored(tables, own, own_contexts=True)
        found.append(judge(claim, student(losses - bound.loss, resolution=bound.loss_error)))
    pair = by_seed(models, targets=16, matrix="scale")
    losses = anchored(tables, pair, own_contexts=True)
    bound = theory(16).bound.loss
    statement = (
        "Two trained temperatures with gains of both signs reach the least loss of two "
        "temperatures, top-16 (anchored; effect: what they lie below the bound)."
    )
    claim = page_claim("signed-pair", statement, signed_pair(), bound - signed_pair(), "number")
    return [*found, judge(claim, student(losses))]
