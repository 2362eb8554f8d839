"""Claims on trained linear attention, and on the easy task of either attention."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leadline.claims import Claim, Interval, judge
from leadline.curve import Floats
from leadline.papers.intervals import student
from leadline.papers.peng2026.exact import POWERS
from leadline.papers.peng2026.linear import exponents
from leadline.papers.peng2026.linear_trained import (
    DIFFICULT_DEPTHS,
    EASY_SPECTRUM,
    NOISE,
    SOFTMAX_SPECTRA,
    SOFTMAX_STEPS,
    STARTS,
    Easy,
    chosen,
    context_losses,
    easy_losses,
    lengths,
    measured,
    moments,
)
from leadline.papers.peng2026.published import (
    LINEAR,
    LINEAR_CONTEXT,
    LINEAR_DIM,
    SOFTMAX_DIM,
    SOURCE,
    TABLE2,
    TABLE3,
    Row,
)
from leadline.papers.peng2026.tables import Z99, Tables, has
from leadline.spec import RunSpec, Spectrum, Training
from leadline.theory.linear_easy import tied_steps, window_exponent
from leadline.theory.linear_floor import isotropic_floor, linear_floor
from leadline.theory.retrieval_task import task_factor
from leadline.theory.spectra import eigenvalues, power_law_modes

EXPONENT = 0.01
"""Differences of exponents below it are not read."""
MASS = 0.95
"""Attention on the matching token that counts as nearly all."""
SOLVED = 0.01
"""Share of the loss of answering zero that counts as none."""


def seed_exponents(losses: Floats, depths: tuple[int, ...] = POWERS) -> Floats:
    """The fitted depth exponent of every seed."""
    return np.array([window_exponent(own.tolist(), depths) for own in losses])


def easy_exponents(tables: Tables, name: str = "linear-easy") -> dict[Easy, Floats]:
    """The fitted depth exponents of trained scales by seed, for every setting of a sweep."""
    return {setting: seed_exponents(own) for setting, own in easy_losses(tables, name).items()}


def table2_trained_claims(tables: Tables) -> list[dict[str, Any]]:
    """The measured exponents of table 2, from our own training."""
    result: list[dict[str, Any]] = []
    every = easy_exponents(tables)
    short, *_, long = lengths(every)
    for (a, b), (_, alpha, _) in TABLE2.items():
        name, source = f"({a:g},{b:g})", f"{SOURCE}, table 2"
        found = every[a, b, long, STARTS[0]]
        known = {kind: few for kind, (few, _) in exponents(tables, a=a, b=b).items()}
        gaps = np.minimum(found - known["constrained"], known["free"] - found)
        claim = Claim(
            name=f"trained-exponent-{name}",
            source=source,
            statement="The depth exponent of trained linear attention on the easy task, L = 1 to "
            "16.",
            kind="number",
            published=alpha,
            smallest_effect=0.25 * alpha,
        )
        result.append(judge(claim, student(found)))
        claim = Claim(
            name=f"trained-between-references-{name}",
            source=source,
            statement="It lies between the exponents of equal and of free layers (in the same "
            "window; least distance from the two).",
            kind="order",
            published=1.0,
            smallest_effect=0.1,
        )
        result.append(judge(claim, student(gaps)))
        claim = Claim(
            name=f"trained-one-outlier-{name}",
            source=f"{source}; the explanation is derived in docs/theory/retrieval.md",
            statement="It is that of the optimum in which all layers but one are equal "
            "(difference).",
            kind="identity",
            published=0.0,
            smallest_effect=0.25 * alpha,
        )
        result.append(judge(claim, student(found - known["outlier"], resolution=EXPONENT)))
        claim = Claim(
            name=f"trained-long-enough-{name}",
            source=f"{SOURCE}, section 2.2",
            statement="Models are trained until they have converged: the exponent after the "
            "longest training is that after the shortest (difference, seed by seed).",
            kind="identity",
            published=0.0,
            smallest_effect=0.25 * alpha,
        )
        change = found - every[a, b, short, STARTS[0]]
        result.append(judge(claim, student(change, resolution=EXPONENT)))
    return result


def start_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether the exponent depends on where training starts."""
    a, b = EASY_SPECTRUM
    usual, starts = (easy_exponents(tables, name) for name in ("linear-easy", "linear-easy-start"))
    short = lengths(usual)[0]
    result: list[dict[str, Any]] = []
    for begin in STARTS[1:]:
        claim = Claim(
            name=f"start-{begin[0]:g}-{begin[1]:g}-({a:g},{b:g})",
            source=f"{SOURCE}, table 2",
            statement=f"The exponent does not depend on the start: scales of mean {begin[0]:g} and "
            f"deviation {begin[1]:g} against {STARTS[0][0]:g} and {STARTS[0][1]:g}, "
            f"{short} steps (difference, seed by seed).",
            kind="identity",
            published=0.0,
            smallest_effect=0.25,
        )
        change = starts[a, b, short, begin] - usual[a, b, short, STARTS[0]]
        result.append(judge(claim, student(change, resolution=EXPONENT)))
    return result


def full_losses(tables: Tables, a: float, b: float) -> tuple[tuple[int, ...], Floats]:
    """Depths, and final losses of full matrices on the easy task by seed and depth."""
    own = chosen(tables, "linear-easy-full", (1, a, b))
    depths = tuple(sorted({int(row["depth"]) for _, row in own}))
    found = [[row["loss"] for _, row in own if row["depth"] == depth] for depth in depths]
    return depths, np.array(found).T


def full_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether full matrices do on the easy task what scales do."""
    a, b = EASY_SPECTRUM
    depths, losses = full_losses(tables, a, b)
    modes = power_law_modes(Spectrum(dim=LINEAR_DIM, input_exponent=a, task_exponent=b))
    tied = [tied_steps(modes, depth=depth).loss for depth in depths]
    found = seed_exponents(losses, depths)
    found_scales = easy_losses(tables)
    scales = found_scales[a, b, lengths(found_scales)[0], STARTS[0]]
    alike = seed_exponents(scales[:, [POWERS.index(depth) for depth in depths]], depths)
    spread = float(alike.std(ddof=1) / math.sqrt(len(alike)))
    ladder = f"L = {', '.join(map(str, depths))}"
    same = Claim(
        name=f"full-matrices-as-scales-({a:g},{b:g})",
        source=f"{SOURCE}, section 2.2",
        statement="Layers that learn every entry have the depth exponent of layers that learn a "
        f"scale ({ladder}; difference to the shortest training of scales).",
        kind="identity",
        published=0.0,
        smallest_effect=0.25,
    )
    apart = Claim(
        name=f"full-matrices-part-({a:g},{b:g})",
        source=f"{SOURCE}, table 2",
        statement="Full matrices, which start with nearly equal mean diagonals, break the symmetry "
        f"of the layers: their exponent exceeds that of equal layers ({ladder}; difference).",
        kind="order",
        published=1.0,
        smallest_effect=0.1,
    )
    against = student(found - alike.mean())
    return [
        judge(same, _wider(against, Z99 * spread, "Student's t over seeds of both")),
        judge(apart, student(found - window_exponent(tied, depths))),
    ]


def _wider(found: Interval, margin: float, method: str) -> Interval:
    """`found` with another margin added in quadrature."""
    half = math.hypot(found.width / 2, margin)
    return dataclasses.replace(
        found, low=found.estimate - half, high=found.estimate + half, method=method
    )


def trained_contexts(tables: Tables, row: Row, depth: int) -> Floats:
    """Losses of trained scales on the difficult task, by seed and by context of `moments`."""
    own = chosen(tables, "linear-difficult", row, depth)
    return np.array([context_losses(row, measured(found, "scale")[-1]) for _, found in own])


def least_contexts(row: Row, depth: int, *, population: bool = False) -> Floats:
    """The least loss of linear attention on each of those contexts, with features of the context
    or of the population.
    """
    own, features = moments(row), "population" if population else "context"
    a = linear_floor(own, features=features, depth=depth).coefficients
    which = 0 if population else 1
    h, gram = own.overlap[which][:, :depth], own.gram[which][:, :depth, :depth]
    return own.target - 2 * h @ a + (gram @ a) @ a


def over_contexts(values: ArrayLike) -> Interval:
    """The interval of a mean over seeds and contexts, both of which are sampled; shape (seed,
    context).
    """
    found = np.asarray(values, float)
    each = found.mean(axis=0)
    error = float(each.std(ddof=1)) / math.sqrt(len(each))
    method = "Student's t over seeds and normal over contexts, in quadrature"
    return _wider(student(found.mean(axis=1)), Z99 * error, method)


def plateau(tables: Tables, row: Row, depth: int = DIFFICULT_DEPTHS[-1]) -> Interval:
    """The loss of trained scales at `depth`. With isotropic inputs the luck of the contexts is
    known, for the least loss of one layer is exact; and rows with a = 0 are (0, 0) times a factor.
    """
    targets, a, b = row
    if a > 0:
        return over_contexts(trained_contexts(tables, row, depth))
    own = (targets, 0, 0)
    above = over_contexts(trained_contexts(tables, own, depth) - least_contexts(own, 1))
    exact = isotropic_floor(
        dim=LINEAR_DIM, context=LINEAR_CONTEXT, targets=targets, features="context"
    )
    factor = task_factor(Spectrum(dim=LINEAR_DIM, input_exponent=0, task_exponent=b))
    return dataclasses.replace(
        above, **{k: factor * (exact + getattr(above, k)) for k in ("estimate", "low", "high")}
    )


def difficult_claims(tables: Tables) -> list[dict[str, Any]]:
    """Trained plateaus beside the published ones, the floor, and the least loss."""
    result: list[dict[str, Any]] = []
    published = {row: ("table 3", loss) for row, (*_, loss) in TABLE3.items()}
    published |= {
        row: ("table 1", loss) for row, (loss, _) in LINEAR.items() if row not in published
    }
    deep, before = DIFFICULT_DEPTHS[-1], DIFFICULT_DEPTHS[-2]
    for row, (place, loss) in published.items():
        targets, a, b = row
        name, source = f"top-{targets}-({a:g},{b:g})", f"{SOURCE}, {place}"
        claim = Claim(
            name=f"trained-linear-plateau-{name}",
            source=source,
            statement=f"The plateau of trained linear attention (ours: scales, L = {deep}).",
            kind="number",
            published=loss,
            smallest_effect=0.05 * loss,
        )
        result.append(judge(claim, plateau(tables, row)))
        if a == 0 and b > 0:
            continue  # one experiment with (0, 0)
        trained = trained_contexts(tables, row, deep)
        if row in TABLE3:
            floor = least_contexts(row, deep, population=True)
            claim = Claim(
                name=f"trained-above-floor-{name}",
                source=source,
                statement="The plateau lies above the floor of the population, which is said to be "
                "irreducible (trained loss over floor on common contexts, minus one).",
                kind="order",
                published=1.0,
                corrected=-1.0,
                smallest_effect=0.02,
            )
            result.append(
                judge(claim, over_contexts(trained / floor.mean() - floor / floor.mean()))
            )
        least = least_contexts(row, deep)
        claim = Claim(
            name=f"trained-at-least-loss-{name}",
            source=f"{source}; the least loss is derived in docs/theory/retrieval.md",
            statement="Trained scales reach the least loss of their depth on the tokens of a "
            "context (ratio on common contexts, minus one).",
            kind="identity",
            published=0.0,
            smallest_effect=0.01,
        )
        excess = over_contexts((trained - least) / least.mean())
        result.append(judge(claim, excess))
        gain = trained_contexts(tables, row, before) - trained
        claim = Claim(
            name=f"linear-plateau-after-two-{name}",
            source=f"{SOURCE}, section 4.1",
            statement="The plateau is reached within two layers: two more gain less than 2% "
            "(0.02 minus the gain, on common contexts).",
            kind="order",
            published=1.0,
            smallest_effect=0.02,
        )
        result.append(judge(claim, over_contexts(0.02 - gain / trained.mean())))
    return result


def _recipe(spec: RunSpec) -> tuple[float, str]:
    assert isinstance(spec.recipe, Training)
    return spec.recipe.rate, spec.recipe.schedule


def noise_excess(tables: Tables, row: Row) -> dict[tuple[float, str], Floats]:
    """The loss of one full matrix over that of one trained scale on the same contexts, minus one,
    by seed for every rate and schedule.
    """
    own = chosen(tables, "linear-difficult-full", row)
    scale = {spec.seed: found["loss"] for spec, found in chosen(tables, "linear-difficult", row, 1)}
    return {
        recipe: np.array(
            [found["loss"] / scale[spec.seed] - 1 for spec, found in own if _recipe(spec) == recipe]
        )
        for recipe in dict.fromkeys(_recipe(spec) for spec, _ in own)
    }


def noise_claims(tables: Tables) -> list[dict[str, Any]]:
    """Whether the noise of training lifts plateaus above the least loss."""
    result: list[dict[str, Any]] = []
    for row in NOISE:
        targets, a, b = row
        found = noise_excess(tables, row)
        rate = max(rate for rate, schedule in found if schedule == "constant")
        claim = Claim(
            name=f"noise-raises-plateau-top-{targets}-({a:g},{b:g})",
            source=f"{SOURCE}, table 3; the explanation of its excess is ours",
            statement="The noise of training raises the plateau of a full matrix: its excess over "
            f"the best scale at a constant rate ({rate:g}) minus that after the rate has fallen to "
            "zero.",
            kind="order",
            published=1.0,
            smallest_effect=0.005,
        )
        result.append(judge(claim, student(found[rate, "constant"] - found[rate, "cosine"])))
    return result


def softmax_losses(tables: Tables, a: float, depth: int) -> Floats:
    """Final losses of softmax attention on the easy task over that of answering zero, by seed."""
    inputs, tasks = eigenvalues(Spectrum(dim=SOFTMAX_DIM, input_exponent=a, task_exponent=0))
    own = chosen(tables, "softmax-easy", (1, a, 0), depth)
    return np.array([row["loss"] for _, row in own]) / float(inputs @ tasks)


def masses(tables: Tables, a: float, depth: int, name: str = "softmax-easy") -> Floats:
    """Attention on the matching token, mean over layers: by seed and record."""
    own = chosen(tables, name, (1, a, 0), depth)
    return np.array([measured(row, "mass").mean(axis=1) for _, row in own])


def softmax_claims(tables: Tables) -> list[dict[str, Any]]:
    """Softmax attention on the easy task."""
    result: list[dict[str, Any]] = []
    for a in SOFTMAX_SPECTRA:
        where = "every (0,b)" if a == 0 else f"({a:g},0)"
        source = f"{SOURCE}, figure 4"
        one, four = (softmax_losses(tables, a, depth) for depth in (1, 4))
        claim = Claim(
            name=f"one-layer-solves-{where}",
            source=source,
            statement="One layer of softmax attention solves the easy task: its loss is below "
            f"{SOLVED:.0%} of that of answering zero ({SOLVED:g} minus its share).",
            kind="order",
            published=1.0,
            smallest_effect=SOLVED,
        )
        result.append(judge(claim, student(SOLVED - one)))
        claim = Claim(
            name=f"attention-mass-{where}",
            source=source,
            statement="Attention on the matching token approaches one "
            f"(mass after {SOFTMAX_STEPS} steps, minus {MASS:g}).",
            kind="order",
            published=1.0,
            smallest_effect=0.05,
        )
        result.append(judge(claim, student(masses(tables, a, 1)[:, -1] - MASS)))
        claim = Claim(
            name=f"no-gain-from-depth-{where}",
            source=source,
            statement="More layers do not improve the easy task: loss of one layer over that of "
            "four, minus one.",
            kind="number",
            published=0.0,
            smallest_effect=0.1,
        )
        result.append(judge(claim, student(one / four - 1)))
    longer = masses(tables, 0.0, 1, "softmax-easy-long")[:, -1] - masses(tables, 0.0, 1)[:, -1]
    claim = Claim(
        name="mass-still-grows",
        source=f"{SOURCE}, section 3.2",
        statement="The approach is slow: four times longer training still moves attention to the "
        "matching token (difference of mass at (0, 0)).",
        kind="order",
        published=1.0,
        smallest_effect=0.02,
    )
    return [*result, judge(claim, student(longer))]


def claims(tables: Tables) -> list[dict[str, Any]]:
    """All claims of this part, none where nothing was trained."""
    if not has(tables, "linear-easy", engine="simulation"):
        return []
    return [
        *table2_trained_claims(tables),
        *start_claims(tables),
        *full_claims(tables),
        *difficult_claims(tables),
        *noise_claims(tables),
        *softmax_claims(tables),
    ]
