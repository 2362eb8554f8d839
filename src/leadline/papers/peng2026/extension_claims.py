"""Claims on the trained models of appendix C, and on percentiles of the selection error (D.2)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import polars as pl

from leadline.claims import Claim, Interval, judge
from leadline.papers.intervals import student
from leadline.papers.peng2026.extension_tables import (
    arrays,
    at,
    crossover,
    deepest,
    difference,
    inverse_depth,
    last_depths,
    log_ratio,
    models,
    percentile_gain,
    several,
    spread,
    uniform_part,
)
from leadline.papers.peng2026.floor import theory
from leadline.papers.peng2026.published import CONTEXT_MASK, SOFTMAX_CONTEXT, SOURCE
from leadline.papers.peng2026.tables import Tables, has

SETTLED = 0.1
"""Change between the two largest depths up to which a number counts as constant."""
VARIES = 0.25
"""Spread of m over depths, in units of its size, from which it varies substantially."""
NEAR_IDENTITY = 0.05
"""Attention of a token on others up to which the map is near the identity."""
BROAD = 0.5
"""Share of the tokens that a broad map attends to at least."""
UNEXPLAINED = 0.1
"""Share of a map's deviation from uniform attention that two numbers may leave open."""
AFTERWARDS = 0.1
"""Gain of all further layers, in units of that of the second, that counts as none."""
FEW = 20
"""Percentiles up to which the lowest ones reach."""
Sign = Literal[-1, 1]


def _order(name: str, where: str, statement: str, sign: Sign, effect: float) -> Claim:
    return Claim(
        name=name,
        source=f"{SOURCE}, {where}",
        statement=statement,
        kind="order",
        published=float(sign),
        smallest_effect=effect,
    )


def _depth_pays(frame: pl.DataFrame, name: str, where: str, model: str) -> dict[str, Any]:
    last = deepest(frame)
    claim = _order(
        f"{name}-depth-pays",
        where,
        f"{model}: depth lowers the loss (logarithm of L = {last} over L = 1, paired by seed).",
        -1,
        0.01,
    )
    return judge(claim, log_ratio((frame, last), (frame, 1)))


def _law_claim(frame: pl.DataFrame, name: str, where: str, model: str) -> dict[str, Any]:
    """Whether the decomposition implies an inverse-depth law at the depths that were trained."""
    h, last = last_depths(frame)
    claim = Claim(
        name=f"{name}-inverse-depth",
        source=f"{SOURCE}, {where}",
        statement=f"{model}: the loss falls as constant C_L and A_L - C_L would make it fall, "
        f"inversely with depth (gain from L = {h} to {last} over that with their values at "
        f"L = {h}).",
        kind="number",
        published=1.0,
        smallest_effect=0.5,
    )
    return judge(claim, student(inverse_depth(frame)))


def _constant_claims(
    frame: pl.DataFrame, name: str, where: str, model: str
) -> list[dict[str, Any]]:
    """Whether the two parts of the loss have settled."""
    h, last = last_depths(frame)
    result: list[dict[str, Any]] = []
    for column, symbol in (("shared", "C_L"), ("disagreement", "A_L - C_L")):
        pair = at(frame, column, last, h)
        change = np.abs(np.log(pair[:, 0] / pair[:, 1]))
        claim = _order(
            f"{name}-{column}-constant",
            where,
            f"{model}: {symbol} is nearly constant (change of its logarithm from L = {h} to "
            f"{last}, less the {SETTLED:g} allowed).",
            -1,
            0.1,
        )
        result.append(judge(claim, student(change - SETTLED)))
    return result


def _bound_claim(
    frame: pl.DataFrame, name: str, depth: int, targets: int, words: str
) -> dict[str, Any]:
    """Whether a model does better than any mixture of layers can that leave their inputs alone."""
    bound = theory(targets).bound.loss
    claim = _order(
        f"{name}-below-bound",
        "appendix C; the bound is derived in docs/theory/retrieval.md",
        f"{words}: {depth} layers have a lower loss than any mixture of layers of positive "
        f"gain that see query and labels as they came (loss less the bound {bound:.4f}).",
        -1,
        0.05 * bound,
    )
    return judge(claim, student(at(frame, "loss", depth)[:, 0] - bound))


def stream_claims(tables: Tables) -> list[dict[str, Any]]:
    """C.1: one stream for inputs and labels."""
    frame, where = models(tables, "stream"), "appendix C.1, figure 9"
    last, words = deepest(frame), "One stream"
    plain = models(tables, "percentiles")
    end = deepest(plain)
    gains = [-np.diff(at(*pair))[:, 0] for pair in ((frame, "loss", 1, 2), (plain, "loss", 1, end))]
    further = _order(
        "stream-more-depth-pays",
        where,
        f"{words}: depth beyond two layers lowers the loss (logarithm of L = {last} over L = 2).",
        -1,
        0.01,
    )
    refined = _order(
        "stream-second-layer",
        "appendix C.1; the comparison is ours",
        f"{words}: the second layer, which sees a query that the first has moved, gains more than "
        f"all {end} layers of the controlled model (gain in loss, less that of the other).",
        1,
        0.05,
    )
    return [
        _depth_pays(frame, "stream", where, words),
        judge(further, log_ratio((frame, last), (frame, 2))),
        judge(refined, difference(student(gains[0]), student(gains[1]))),
        _bound_claim(frame, "stream", last, 2, words),
        _law_claim(frame, "stream", where, words),
        *_constant_claims(frame, "stream", where, words),
    ]


def value_claims(tables: Tables) -> list[dict[str, Any]]:
    """C.2: a value for each layer, beside one value for all."""
    frame, where = models(tables, "values"), "appendix C.2, figure 10"
    plain, words = models(tables, "plain"), "Values by layer"
    last = deepest(frame)
    similar = Claim(
        name="values-similar-loss",
        source=f"{SOURCE}, {where}",
        statement=f"{words} change the loss of the controlled model little (logarithm of their "
        f"ratio at L = {last}, paired by seed).",
        kind="number",
        published=0.0,
        smallest_effect=0.02,
    )
    apart = Claim(
        name="values-similar-disagreement",
        source=f"{SOURCE}, {where}",
        statement=f"{words} change A_L - C_L of the controlled model little (logarithm of their "
        f"ratio at L = {last}, paired by seed).",
        kind="number",
        published=0.0,
        smallest_effect=0.2,
    )
    both = (frame, last), (plain, last)
    return [
        _depth_pays(frame, "values", where, words),
        judge(similar, log_ratio(*both)),
        judge(apart, log_ratio(*both, "disagreement")),
        _law_claim(frame, "values", where, words),
        *_constant_claims(frame, "values", where, words),
    ]


def sharp_claims(tables: Tables) -> list[dict[str, Any]]:
    """C.3: context updates on two targets."""
    frame, where = models(tables, "updates"), "appendix C.3, figures 11 and 12"
    plain, words = models(tables, "plain"), "Context updates, top-2"
    last = deepest(frame)
    mask = _order(
        "updates-mask-varies",
        where,
        f"{words}: the learned m varies substantially with depth (largest minus smallest of two "
        f"to {last} layers over its size, less {VARIES:g}).",
        1,
        0.1,
    )
    near = _order(
        "updates-near-identity",
        where,
        f"{words}: A_1 is nearly the identity (attention of a token on others at its largest over "
        f"depths, less the {NEAR_IDENTITY:g} allowed).",
        -1,
        0.02,
    )
    similar = Claim(
        name="updates-similar-loss",
        source=f"{SOURCE}, {where}",
        statement=f"{words} only reweight: the loss is that of the controlled model (logarithm of "
        f"their ratio at L = {last}, paired by seed).",
        kind="number",
        published=0.0,
        smallest_effect=0.02,
    )
    depths = [depth for depth in several(frame) if depth > 1]
    others = 1 - at(frame, "self_attention", *depths).min(1)
    return [
        _depth_pays(frame, "updates", where, words),
        judge(mask, student(spread(frame) - VARIES)),
        judge(near, student(others - NEAR_IDENTITY)),
        judge(similar, log_ratio((frame, last), (plain, last))),
        _law_claim(frame, "updates", where, words),
    ]


def broad_claims(tables: Tables) -> list[dict[str, Any]]:
    """C.3: context updates on sixteen targets."""
    frame, where = models(tables, "updates-broad"), "appendix C.3, figures 11 and 12"
    words, last = "Context updates, top-16", deepest(frame)
    losses = at(frame, "loss", 1, 2, last)
    second = _order(
        "broad-second-layer",
        where,
        f"{words}: two layers have a lower loss than one (logarithm of the ratio).",
        -1,
        0.05,
    )
    after = _order(
        "broad-then-nothing",
        where,
        f"{words}: further depth does not help (gain from L = 2 to {last} over that from 1 to 2, "
        f"less the {AFTERWARDS:g} allowed).",
        -1,
        0.1,
    )
    mask = Claim(
        name="broad-mask",
        source=f"{SOURCE}, {where}",
        statement=f"{words}: the learned m is {CONTEXT_MASK:g} (at L = 2).",
        kind="number",
        published=CONTEXT_MASK,
        smallest_effect=0.3,
    )
    stable = _order(
        "broad-mask-stable",
        where,
        f"{words}: the learned m does not depend on depth (largest minus smallest of two to {last} "
        f"layers over its size, less {VARIES:g}).",
        -1,
        0.1,
    )
    wide = _order(
        "broad-map",
        where,
        f"{words}: A_1 is broad (tokens that a token attends to at L = 2, as a share of "
        f"{SOFTMAX_CONTEXT}, less {BROAD:g}).",
        1,
        0.1,
    )
    two = _order(
        "broad-two-numbers",
        "appendix C.3",
        f"{words}: A_1 is rho I + (1 - rho) J, J uniform (share of its deviation from J that this "
        f"leaves at L = 2, less the {UNEXPLAINED:g} allowed).",
        -1,
        0.1,
    )
    share = at(frame, "effective_tokens", 2)[:, 0] / SOFTMAX_CONTEXT
    maps = arrays(tables, "updates-broad", "map")
    left = [uniform_part(values)[1] for (depth, _), values in maps.items() if depth == 2]
    gains = losses[:, :2] - losses[:, 1:]
    return [
        judge(second, log_ratio((frame, 2), (frame, 1))),
        _bound_claim(frame, "broad", 2, 16, words),
        judge(after, student(gains[:, 1] / gains[:, 0] - AFTERWARDS)),
        judge(mask, student(at(frame, "mask", 2)[:, 0])),
        judge(stable, student(spread(frame) - VARIES)),
        judge(wide, student(share - BROAD)),
        judge(two, student(np.array(left) - UNEXPLAINED)),
    ]


def looped_claim(tables: Tables) -> dict[str, Any]:
    """Context updates of one layer, repeated."""
    looped, single = models(tables, "looped"), models(tables, "updates")
    last = int(looped["depth"].to_numpy().max())
    claim = Claim(
        name="looped-gains-nothing",
        source=f"{SOURCE}, appendix C.3; the comparison is ours",
        statement="Context updates, top-2, with one matrix for all layers have the loss of a "
        f"single layer (logarithm of their ratio at L = {last}, paired by seed).",
        kind="number",
        published=0.0,
        smallest_effect=0.01,
    )
    return judge(claim, log_ratio((looped, last), (single, 1)))


def percentile_claims(tables: Tables) -> list[dict[str, Any]]:
    """D.2: which contexts gain from depth."""
    where = "appendix D.2, figure 13"
    last, gain = percentile_gain(tables)
    errors = at(models(tables, "percentiles"), "selection_error", 1, last)
    mean = _order(
        "percentiles-mean",
        where,
        f"Depth lowers the mean selection error (L = 1 less L = {last}).",
        1,
        0.005,
    )
    result = [judge(mean, student(errors[:, 0] - errors[:, 1]))]
    sides: tuple[tuple[int, Sign, str], ...] = (
        (2, -1, "A single layer is better"),
        (90, 1, "Depth is better"),
    )
    for q, sign, words in sides:
        claim = _order(
            f"percentiles-{q}",
            where,
            f"{words} at percentile {q} of the selection error (L = 1 less L = {last}).",
            sign,
            0.005,
        )
        result.append(judge(claim, student(gain[:, q - 1])))
    few = _order(
        "percentiles-crossover",
        where,
        f"A single layer is better at the lowest percentiles only (how many of 1 to 99 are lower "
        f"than those of L = {last}, less {FEW}).",
        -1,
        10.0,
    )
    found = crossover(tables)
    shifted = Interval(
        estimate=found.estimate - FEW,
        low=found.low - FEW,
        high=found.high - FEW,
        level=found.level,
        method=found.method,
        unit=found.unit,
    )
    return [*result, judge(few, shifted)]


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Every claim on the trained models of the appendices; none at scale demo."""
    if not has(tables, "stream", engine="simulation"):
        return []
    return [
        *stream_claims(tables),
        *value_claims(tables),
        *sharp_claims(tables),
        *broad_claims(tables),
        looped_claim(tables),
        *percentile_claims(tables),
    ]
