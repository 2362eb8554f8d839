"""Claims on depth from trained softmax attention: the exponent, the plateau, and what its layers
share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from leadline.claims import Claim, Interval, judge, numerical
from leadline.curve import Floats
from leadline.papers.intervals import student
from leadline.papers.peng2026.depth import RECIPES, REDUNDANT, Recipe
from leadline.papers.peng2026.depth_fits import (
    WINDOWS,
    Trained,
    by_seed,
    coupling,
    exponent_above,
    fit_depths,
    gap_exponent,
    of_row,
    read,
    seed_exponents,
    source_row,
    trained,
    with_contexts,
)
from leadline.papers.peng2026.floor import LAW_DEPTHS, decompositions, factor, theory
from leadline.papers.peng2026.published import (
    NONLINEAR,
    SHARED_GAPS,
    SOFTMAX_CONTEXT,
    SOFTMAX_DIM,
    SOURCE,
    TABLE4,
    Row,
)
from leadline.papers.peng2026.tables import Z99, Tables, has, key, rows, sampled
from leadline.theory.linear_easy import window_exponent
from leadline.theory.retrieval import best_layer

Found = Mapping[Recipe, dict[Row, list[Trained]]]
ISOTROPIC: Row = (2, 0, 0)
MODES_ROW: Row = (2, 1, 0)
"""Whose modes are compared: the widest spectrum of inputs."""
NEAR = 0.2
"""Difference of exponents that matters: the paper's own top-16 exponents, 0.79 to 0.88, are said to
deviate."""
COLLAPSED = 0.1
"""Spread of the modes' normalized losses that counts as one curve."""
FLAT = 0.1
"""Growth of the disagreement over the last doubling that counts as none."""
LUCK = 0.1
"""What is left of the contexts' error where losses on common contexts are compared, relative."""


def label(row: Row) -> str:
    """A row as names of claims and figures have it."""
    targets, a, b = row
    return f"top-{targets}-({a:g},{b:g})"


def _several(models: Sequence[Trained]) -> bool:
    return len({model.seed for model in models}) > 1


def deepest(models: Sequence[Trained]) -> list[Trained]:
    """The models of the largest depth."""
    depth = max(model.depth for model in models)
    return [model for model in models if model.depth == depth]


def bound(models: Sequence[Trained]) -> Interval:
    """Theory's bound at (0, 0) as the common contexts see it: times the ratio of the trained single
    layer to the exact one, which is the luck of those contexts. A tenth of their error is left.
    """
    exact = best_layer(dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=2).loss
    single = [model for model in models if model.depth == 1]
    ratio = float(np.mean([model.loss for model in single])) / exact
    value = theory(2).bound.loss * ratio
    error = single[0].loss_error / single[0].loss
    margin = value * LUCK * Z99 * error + theory(2).bound.loss_error
    return Interval(
        estimate=value,
        low=value - margin,
        high=value + margin,
        level=0.99,
        method="the bound on the common contexts, a tenth of their error",
        unit="context",
    )


def printed_plateau(row: Row, models: Sequence[Trained]) -> Interval:
    """The published plateau, wider by what the common contexts leave open."""
    value, digit = NONLINEAR[row]
    exact = Interval(
        estimate=value, low=value - digit, high=value + digit, level=0.99,
        method="published plateau, rounding", unit="context",
    )  # fmt: skip
    return with_contexts(exact, models)


def theory_slope(first: int, last: int) -> float:
    """The exponent of theory's law of depth above its bound, between these depths."""
    found = theory(2)
    losses = {1: best_layer(dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=2).loss}
    losses |= {depth: m.loss for depth, m in zip(LAW_DEPTHS, found.law, strict=True)}
    depths = [depth for depth in losses if first <= depth <= last]
    return window_exponent([losses[d] - found.bound.loss for d in depths], depths)


def exponent_claims(found: Found) -> list[dict[str, Any]]:
    """The exponent of the fitted law, by row, recipe and window."""
    result: list[dict[str, Any]] = []
    for recipe, by_row in found.items():
        # rows of table 1 with a = 0 < b have the exponent of (0, 0)
        wanted = [row for row in NONLINEAR if row in by_row]
        wanted += [row for row in TABLE4 if source_row(row) in by_row]
        for row in wanted:
            models = of_row(by_row, row)
            published = TABLE4[row][1] if row in TABLE4 else 1.0
            windows = WINDOWS if _several(models) else WINDOWS[:1]
            for first in windows:
                claim = Claim(
                    name=f"depth-exponent-{label(row)}-{recipe}-from-{first}",
                    source=f"{SOURCE}, {'table 4' if row in TABLE4 else 'figure 6'}",
                    statement="The loss falls with depth to a plateau as L^-alpha with alpha near "
                    f"{published:g} (published for L = 1 to 256); fitted here to L = "
                    f"{first} to {deepest(models)[0].depth}, recipe {recipe}.",
                    kind="number",
                    published=published,
                    smallest_effect=NEAR,
                )
                result.append(judge(claim, fit_depths(models, first=first).exponent))
    return result


def seed_claims(found: Found) -> list[dict[str, Any]]:
    """The exponents of single seeds at (0, 0)."""
    result: list[dict[str, Any]] = []
    for recipe, by_row in found.items():
        claim = Claim(
            name=f"depth-exponent-by-seed-{recipe}",
            source=f"{SOURCE}, figure 6",
            statement="The exponent at (0, 0) is near one in fits to single seeds, from L = 2, "
            f"recipe {recipe}.",
            kind="number",
            published=1.0,
            smallest_effect=NEAR,
        )
        result.append(judge(claim, seed_exponents(by_row[ISOTROPIC], first=2)))
    return result


def bound_claims(found: Found) -> list[dict[str, Any]]:
    """Exponents at (0, 0) with the plateau known: theory's bound."""
    result: list[dict[str, Any]] = []
    exponents: dict[Recipe, Interval] = {}
    for recipe, by_row in found.items():
        models = by_row[ISOTROPIC]
        last = deepest(models)[0].depth
        for first in WINDOWS:
            own = [model for model in models if model.depth >= first]
            measured = exponent_above(own, bound(models))
            if first == 2:
                exponents[recipe] = measured
            claim = Claim(
                name=f"depth-exponent-above-the-bound-{recipe}-from-{first}",
                source=f"{SOURCE}, figure 6; the bound is derived in docs/theory/retrieval.md",
                statement="The loss at (0, 0) falls to its plateau as 1/L; here above the least "
                f"loss of all ensembles, L = {first} to {last}, recipe {recipe}. Our value: "
                "theory's law of depth in the same window.",
                kind="number",
                published=1.0,
                corrected=theory_slope(first, last),
                smallest_effect=NEAR,
            )
            result.append(judge(claim, measured))
    claim = Claim(
        name="depth-exponent-independent-of-recipe",
        source=f"{SOURCE}, figure 6",
        statement="The exponent does not depend on how the models are trained: recipe factored "
        "minus short, above the bound, from L = 2.",
        kind="identity",
        published=0.0,
        smallest_effect=NEAR,
    )
    result.append(judge(claim, _difference(exponents["factored"], exponents["short"])))
    return result


def _difference(first: Interval, second: Interval) -> Interval:
    """`first` minus `second`, their margins in quadrature."""
    estimate = first.estimate - second.estimate
    low = math.hypot(first.estimate - first.low, second.high - second.estimate)
    high = math.hypot(first.high - first.estimate, second.estimate - second.low)
    return dataclasses.replace(
        first,
        estimate=estimate,
        low=estimate - low,
        high=estimate + high,
        method=f"margins in quadrature; {first.method}",
    )


def plateau_claims(found: Found) -> list[dict[str, Any]]:
    """The plateaus of tables 1 and 4."""
    result: list[dict[str, Any]] = []
    published = {row: value for row, (value, _) in NONLINEAR.items()}
    published |= {row: values[0] for row, values in TABLE4.items()}
    for recipe, by_row in found.items():
        for row, value in published.items():
            if recipe != "short" and row not in by_row:
                continue
            models = of_row(by_row, row)
            single = float(np.mean([model.loss for model in models if model.depth == 1]))
            claim = Claim(
                name=f"plateau-{label(row)}-{recipe}",
                source=f"{SOURCE}, tables 1 and 4",
                statement="The plateau of the law fitted to all depths, 1 to "
                f"{deepest(models)[0].depth} here and 1 to 256 there, recipe {recipe} (effect: the "
                "gain of all depth).",
                kind="number",
                published=value,
                smallest_effect=max(single - value, 1e-9),
            )
            plateau = with_contexts(fit_depths(models).plateau, models)
            result.append(judge(claim, plateau))
    return result


def gap_claims(found: Found) -> list[dict[str, Any]]:
    """Table 5 from trained layers, and how much of it is algebra."""
    result: list[dict[str, Any]] = []
    source = f"{SOURCE}, table 5"
    for row, (published, *_) in SHARED_GAPS.items():
        models = of_row(found["short"], row)
        claim = Claim(
            name=f"shared-gap-exponent-{label(row)}",
            source=source,
            statement="L_0 - C_L falls with depth as L^-alpha, L_0 the published plateau (fits to "
            "our depths do not bound it), recipe short.",
            kind="number",
            published=published,
            smallest_effect=NEAR,
        )
        result.append(judge(claim, gap_exponent(models, printed_plateau(row, models))))
    for recipe, by_row in found.items():
        models = by_row[ISOTROPIC]
        plateau = bound(models)
        claim = Claim(
            name=f"shared-gap-exponent-above-the-bound-{recipe}",
            source=source,
            statement="L_0 - C_L falls with depth as L^-alpha at (0, 0), with theory's bound as "
            f"L_0, recipe {recipe}.",
            kind="number",
            published=SHARED_GAPS[ISOTROPIC][0],
            smallest_effect=NEAR,
        )
        gap = gap_exponent(models, plateau)
        result.append(judge(claim, gap))
        claim = Claim(
            name=f"trained-gap-falls-as-the-loss-{recipe}",
            source=source,
            statement="L_0 - C_L falls with depth as the loss above the plateau does (difference "
            f"of the two exponents, from L = 2), recipe {recipe}.",
            kind="identity",
            published=0.0,
            smallest_effect=NEAR,
        )
        above = exponent_above([m for m in models if m.depth > 1], plateau)
        result.append(judge(claim, _difference(gap, above)))
        claim = Claim(
            name=f"trained-gap-is-the-disagreement-{recipe}",
            source=f"{source}; algebra in docs/theory/retrieval.md",
            statement="Most of L_0 - C_L is the disagreement of the layers over L at every depth, "
            f"whatever the loss does (least ratio, less one half), recipe {recipe}.",
            kind="order",
            published=1.0,
            smallest_effect=0.1,
        )
        ratios = [_ratio(own, plateau) for own in _by_depth(models) if own[0].depth > 1]
        worst = min(ratios, key=lambda ratio: ratio.low)
        result.append(judge(claim, _shifted(worst, -0.5)))
    return result


def _by_depth(models: Sequence[Trained]) -> list[list[Trained]]:
    depths = sorted({model.depth for model in models})
    return [[model for model in models if model.depth == depth] for depth in depths]


def _ratio(models: Sequence[Trained], plateau: Interval) -> Interval:
    """(L_0 - C_L) L / (A_L - C_L) = 1 - coupling."""
    own = coupling(models, plateau)
    return dataclasses.replace(own, estimate=1 - own.estimate, low=1 - own.high, high=1 - own.low)


def _shifted(found: Interval, by: float) -> Interval:
    return dataclasses.replace(
        found, estimate=found.estimate + by, low=found.low + by, high=found.high + by
    )


def layer_claims(found: Found) -> list[dict[str, Any]]:
    """Whether layers err independently about the plateau, and whether they go on to disagree."""
    result: list[dict[str, Any]] = []
    for recipe, by_row in found.items():
        models = by_row[ISOTROPIC]
        deep = deepest(models)
        depth = deep[0].depth
        claim = Claim(
            name=f"layers-err-independently-{recipe}",
            source=f"{SOURCE}, section 4.2; coupling in docs/theory/retrieval.md",
            statement="Layers are an ensemble whose errors beyond a common one are independent: "
            "C_L is the plateau and R - L_0 = (A - C)/L, a coupling of one; at (0, 0), L = "
            f"{depth}, recipe {recipe}, the bound as L_0. Our value: opposite pairs of theory.",
            kind="number",
            published=1.0,
            corrected=decompositions(2)[LAW_DEPTHS.index(depth)].coupling(
                floor=theory(2).bound.loss
            ),
            smallest_effect=0.3,
        )
        result.append(judge(claim, coupling(deep, bound(models))))
        claim = Claim(
            name=f"disagreement-has-converged-{recipe}",
            source=f"{SOURCE}, figure 6d",
            statement=f"A_L - C_L is constant in deep models: growth from L = {depth // 2} to "
            f"{depth} at (0, 0), recipe {recipe}.",
            kind="identity",
            published=0.0,
            smallest_effect=FLAT,
        )
        result.append(judge(claim, student(_growth(models, depth))))
    pairs = [disagreements(deepest(found[recipe][ISOTROPIC])) for recipe in RECIPES]
    claim = Claim(
        name="disagreement-independent-of-recipe",
        source=f"{SOURCE}, figure 6d",
        statement="A_L - C_L converges to a constant of the spectrum: relative difference between "
        "recipes factored and short at (0, 0), deepest models, paired by seed.",
        kind="identity",
        published=0.0,
        smallest_effect=FLAT,
    )
    result.append(judge(claim, student(pairs[1] / pairs[0] - 1)))
    return result


def disagreements(models: Sequence[Trained]) -> Floats:
    """A - C of models of several layers, in their order."""
    return np.array([model.parts.disagreement for model in models if model.parts is not None])


def _growth(models: Sequence[Trained], depth: int) -> Floats:
    """Relative growth of the disagreement over the last doubling of depth, by seed."""
    half = [model for model in models if model.depth == depth // 2]
    full = [model for model in models if model.depth == depth]
    by_seed([*half, *full])  # pairs only complete seeds
    return disagreements(full) / disagreements(half) - 1


def subset_claims(found: Found) -> list[dict[str, Any]]:
    """Subsets of the deepest model beside models trained at that depth, and the identity."""
    models = [model for models in found["short"].values() for model in models]
    wrong = [abs(m.parts.loss - m.loss) / m.loss for m in models if m.parts is not None]
    exact = Claim(
        name="decomposition-of-trained-layers",
        source=f"{SOURCE}, appendix B",
        statement="R = C + (A - C)/L on trained models, the error matrix of the layers against the "
        "loss measured without it (largest relative deviation).",
        kind="identity",
        published=0.0,
        smallest_effect=1e-3,
    )
    result = [judge(exact, numerical(max(wrong), 1e-5))]
    for row in found["short"]:
        own = found["short"][row]
        if not _several(own):
            continue
        deep = deepest(own)
        claim = Claim(
            name=f"trained-beats-subset-{label(row)}",
            source=f"{SOURCE}, section 4.2; subsets in docs/theory/retrieval.md",
            statement="Depth gains by averaging layers alike: a model of n layers loses as much as "
            f"n layers of the one of {deep[0].depth}, C + (A - C)/n. Smallest excess of the "
            "subset over the trained model, relative, n from 2.",
            kind="identity",
            published=0.0,
            smallest_effect=0.02,
        )
        by_size = [_excess(own, deep, n) for n in _sizes(own)]
        least = min(by_size, key=lambda values: float(values.mean()))
        result.append(judge(claim, student(least)))
    return result


def _sizes(models: Sequence[Trained]) -> list[int]:
    depths = sorted({model.depth for model in models})
    return [depth for depth in depths[:-1] if depth > 1]


def _excess(models: Sequence[Trained], deep: Sequence[Trained], size: int) -> Floats:
    """Loss of `size` layers of the deepest model over that of the model trained with as many,
    minus one, by seed.
    """
    alone = {model.seed: model.loss for model in models if model.depth == size}
    return np.array([m.parts.subset(size) / alone[m.seed] - 1 for m in deep if m.parts is not None])


def normalized_modes(models: Sequence[Trained]) -> tuple[list[int], Floats]:
    """What each mode has still to lose between the first depth and the last, as a share of that:
    depths, and the shares (depth, mode) of one seed.
    """
    ordered = sorted(models, key=lambda model: model.depth)
    losses = np.array([model.modes for model in ordered])
    return [m.depth for m in ordered], (losses - losses[-1]) / (losses[0] - losses[-1])


def mode_claims(found: Found) -> list[dict[str, Any]]:
    """Whether the modes of one spectrum fall together."""
    seeds = by_seed(found["short"][MODES_ROW])
    worst = [float(normalized_modes(own)[1].std(axis=1).max()) for own in seeds]
    claim = Claim(
        name="modes-fall-together",
        source=f"{SOURCE}, figure 7",
        statement="The reducible losses of single modes, each normalized to fall from one to zero, "
        f"are nearly one curve: standard deviation over modes at {label(MODES_ROW)}, largest over "
        f"depths, less {COLLAPSED:g}.",
        kind="order",
        published=-1.0,
        smallest_effect=COLLAPSED,
    )
    strongest = Claim(
        name="strongest-mode-gains",
        source=f"{SOURCE}, figure 7",
        statement="Depth improves strong and weak modes at similar rates: loss of the first mode "
        f"at {label(MODES_ROW)}, deepest model over single layer, less one.",
        kind="order",
        published=-1.0,
        smallest_effect=0.01,
    )
    ends = [sorted(own, key=lambda model: model.depth) for own in seeds]
    change = [float(own[-1].modes[0] / own[0].modes[0]) - 1 for own in ends]
    return [
        judge(claim, student(np.array(worst) - COLLAPSED)),
        judge(strongest, student(np.array(change))),
    ]


def redundancy_claims(tables: Tables, found: Found) -> list[dict[str, Any]]:
    """A row with isotropic inputs and b > 0, trained all the same."""
    result: list[dict[str, Any]] = []
    if not has(tables, "depth-identity", engine="simulation"):
        return result
    for spec, row in rows(tables, "depth-identity", engine="simulation"):
        own = read(row)
        targets, _, b = key(spec)
        other = next(
            m
            for m in of_row(found["short"], (targets, 0, 0))
            if (m.depth, m.seed) == (own.depth, own.seed)
        )
        ratio = own.loss / (factor(b) * other.loss)
        error = math.hypot(own.loss_error / own.loss, other.loss_error / other.loss)
        claim = Claim(
            name=f"redundant-{label(REDUNDANT)}-depth-{own.depth}",
            source=f"{SOURCE}, table 1; identity derived in docs/theory/retrieval.md",
            statement="On isotropic inputs R(0, b) = R(0, 0) mean_k k^-b: a trained model at b = "
            f"{b:g} over that, minus one, L = {own.depth}.",
            kind="identity",
            published=0.0,
            smallest_effect=0.02,
        )
        result.append(judge(claim, sampled(ratio - 1, ratio * error)))
    return result


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Claims on trained depths; none where the scale trains no model to the end."""
    found: Found = {recipe: trained(tables, recipe) for recipe in RECIPES}
    if not all(found.values()):
        return []
    parts: list[Callable[[Found], list[dict[str, Any]]]] = [
        exponent_claims,
        seed_claims,
        bound_claims,
        plateau_claims,
        gap_claims,
        layer_claims,
        subset_claims,
        mode_claims,
    ]
    judged = [row for part in parts for row in part(found)]
    return [*judged, *redundancy_claims(tables, found)]
