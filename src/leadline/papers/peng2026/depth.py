"""Softmax attention on the difficult task, trained at many depths: what is run.

All models are evaluated on the same contexts, so that differences between depths are known much
better than the losses; seeds differ in weights and in the contexts that train them. Rows with
isotropic inputs are one training: R(0, b) = R(0, 0) mean_k k^-b for every model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leadline.papers.peng2026.published import NAME, SOFTMAX_CONTEXT, SOFTMAX_DIM, Row
from leadline.spec import (
    Evaluation,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    Spectrum,
    Sweep,
    Training,
)

Recipe = Literal["short", "factored"]
RECIPES: tuple[Recipe, ...] = ("short", "factored")

SEEDED: tuple[Row, ...] = ((2, 0, 0), (2, 1, 0), (2, 0.5, 0.5))
"""Trained with several seeds at scale small."""
SINGLE: tuple[Row, ...] = (
    (2, 0.25, 0),
    (2, 0.5, 0),
    (2, 0.25, 0.25),
    (2, 0.25, 0.5),
    (16, 0, 0),
    (16, 0.25, 0.25),
    (16, 0.25, 0.5),
)
"""Trained with one seed at scale small."""
REDUNDANT: Row = (2, 0, 1)
REDUNDANT_DEPTHS = (1, 4)
"""A row that the identity makes a multiple of (0, 0), trained all the same, at a few depths."""
EVALUATION = Evaluation(contexts=6400, queries=16, measures=("layer_errors", "modes"))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What a scale trains: `depths` and `seeds` of `rows` by a recipe."""

    recipe: Recipe
    rows: tuple[Row, ...]
    depths: tuple[int, ...]
    seeds: int


TO_64 = (1, 2, 4, 8, 16, 32, 64)
FEWER = (1, 2, 4, 8, 16, 64)
TO_256 = (*TO_64, 128, 256)
GRIDS: dict[str, tuple[Grid, ...]] = {
    "small": (
        Grid(recipe="short", rows=SEEDED, depths=TO_64, seeds=3),
        Grid(recipe="short", rows=SINGLE, depths=FEWER, seeds=1),
        Grid(recipe="factored", rows=SEEDED[:1], depths=TO_64, seeds=3),
    ),
    "paper": tuple(
        Grid(recipe=recipe, rows=(*SEEDED, *SINGLE), depths=TO_256, seeds=5) for recipe in RECIPES
    ),
}
DEMO_DEPTHS, DEMO_STEPS, DEMO_CONTEXTS = (1, 4, 16), 300, 1600
"""Of the demo, whose models are not trained to the end."""


def training(recipe: Recipe) -> Training:
    """The recipe of this name in docs/retrieval.md."""
    factored = recipe == "factored"
    return Training(
        steps=3000 if factored else 1500,
        batch_size=32,
        queries=32,
        rate=0.01 if factored else 0.02,
        optimizer="adam",
        warmup=100,
        schedule="cosine",
    )


def model(recipe: Recipe, *, targets: int, depth: int) -> SoftmaxAttention:
    """Layers of their own matrices, or of factors; broad targets start at half the scale."""
    if recipe == "factored":
        return SoftmaxAttention(depth=depth, width=SOFTMAX_DIM, start=0, spread=1)
    scale = 1.0 if targets == 2 else 0.5
    return SoftmaxAttention(depth=depth, start=0.5 * scale, spread=0.3 * scale)


def depth_run(row: Row, depth: int, *, recipe: Recipe = "short", seed: int = 0) -> RunSpec:
    """One training."""
    targets, a, b = row
    return RunSpec(
        task=Retrieval(
            spectrum=Spectrum(dim=SOFTMAX_DIM, input_exponent=a, task_exponent=b),
            context=SOFTMAX_CONTEXT,
            targets=targets,
        ),
        model=model(recipe, targets=targets, depth=depth),
        recipe=training(recipe),
        evaluation=EVALUATION,
        seed=seed,
    )


def demo_run(depth: int) -> RunSpec:
    """A training cut short, for the demo."""
    whole = depth_run((2, 0, 0), depth)
    assert isinstance(whole.recipe, Training)
    recipe = dataclasses.replace(whole.recipe, steps=DEMO_STEPS)
    evaluation = dataclasses.replace(EVALUATION, contexts=DEMO_CONTEXTS, measures=())
    return dataclasses.replace(whole, recipe=recipe, evaluation=evaluation)


def _runs(grids: Sequence[Grid], recipe: Recipe) -> list[RunSpec]:
    # depth by depth: one program serves all runs of a depth
    return [
        depth_run(row, depth, recipe=recipe, seed=seed)
        for grid in grids
        if grid.recipe == recipe
        for depth in grid.depths
        for row in grid.rows
        for seed in range(grid.seeds)
    ]


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """Trainings by recipe, and those that the identity makes superfluous; at scale demo three
    trainings cut short.
    """
    if scale == "demo":
        runs = {"depth-demo": [demo_run(depth) for depth in DEMO_DEPTHS]}
    else:
        runs = {f"depth-{recipe}": _runs(GRIDS[scale], recipe) for recipe in RECIPES}
        runs["depth-identity"] = [depth_run(REDUNDANT, depth) for depth in REDUNDANT_DEPTHS]
    return tuple(
        Sweep(name=f"{NAME}/{name}/simulation", engine="simulation", runs=tuple(own))
        for name, own in runs.items()
    )
