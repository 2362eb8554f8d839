"""What the paper does not ask of depth in retrieval: the runs of docs/papers/beyond-depth.md.

Top-2 of 64 isotropic tokens in 16 dimensions unless said otherwise. All models of one task are
evaluated on common contexts; models with signed gains on other contexts for every seed, so that
what seeds scatter includes the luck of the contexts.
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline.papers.peng2026.depth import depth_run, training
from leadline.papers.peng2026.published import NAME, SOFTMAX_CONTEXT, Row
from leadline.spec import RunSpec, SoftmaxAttention, Sweep, Training, replace

ISOTROPIC: Row = (2, 0, 0)
BROAD: Row = (16, 0, 0)
ROWS = {2: ISOTROPIC, 16: BROAD}
SEEDS = {"small": 3, "paper": 5}
TEMPERATURES = {2: 0.9046, 16: 0.2453}
"""Of the untrained layer behind which the luck of contexts is hidden: the best single layers."""

WIDTHS, SHAPE_DEPTHS = (2, 4, 8, 16), (1, 2, 4, 16)
"""Of the laws of shape at 64 tokens: factored layers, one seed."""
OTHER_CONTEXTS, OTHER_WIDTHS, OTHER_DEPTHS = (32, 128), (2, 4, 16), (1, 4)
"""Of the same at fewer and more tokens."""

TIE_DEPTHS = (4, 16)
SPLITS = ((1, 16), (2, 8), (4, 4), (8, 2))
"""Depth and width of untied layers with the parameters of one full layer, 2 d^2."""

CONTRAST = 8.0
"""Signed gains start alternately at 1 + 8 and 1 - 8."""
SIGNED_DEPTHS = {2: (16, 64), 16: (16,)}

RATES, LENGTHS = (0.005, 0.02, 0.05), (1500, 6000)
OPTIMIZER_DEPTH = 16
DECAYS = (0.01, 0.1)
SGD_RATES = (0.1, 0.3)
"""The largest that trains: at 1 the gain, whose curvature does not fall with depth, diverges."""
LAZY_START, LAZY_SPREAD = 0.9, 0.6
LAZY_RATE = 0.001


def shape_run(width: int, depth: int, context: int) -> RunSpec:
    """Factored layers of any width, depth and context."""
    return replace(
        replace(depth_run(ISOTROPIC, depth, recipe="factored"), "model.width", width),
        "task.context",
        context,
    )


def split_run(depth: int, width: int, *, seed: int) -> RunSpec:
    """Factored untied layers of this depth and width."""
    run = depth_run(ISOTROPIC, depth, recipe="factored", seed=seed)
    return replace(run, "model.width", width)


def tied_run(depth: int, layers: str, *, seed: int) -> RunSpec:
    """The recipe "short" with layers "separate", "tempered" or "looped"."""
    return replace(depth_run(ISOTROPIC, depth, seed=seed), "model.layers", layers)


def signed_run(row: Row, depth: int, *, contrast: float, seed: int) -> RunSpec:
    """The recipe "short" with a gain a layer that starts with both signs, or with one (contrast
    0); the reference is one layer, without any contrast. Every seed has contexts of its own.
    """
    run = depth_run(row, depth, seed=seed)
    if depth > 1:
        run = replace(replace(run, "model.values", "separate"), "model.contrast", contrast)
    return replace(run, "evaluation.seed", seed)


def reference_run(targets: int, *, seed: int) -> RunSpec:
    """An untrained layer of the best temperature and gain one on the contexts of `signed_run`. Its
    loss is known exactly, so that the luck of the contexts is taken from trained losses.
    """
    run = depth_run(ROWS[targets], 1, seed=seed)
    best = SoftmaxAttention(depth=1, start=TEMPERATURES[targets], spread=0)
    still = Training(steps=0, batch_size=1, queries=1, rate=1)
    run = replace(replace(run, "model", best), "recipe", still)
    return replace(replace(run, "evaluation.measures", ()), "evaluation.seed", seed)


def two_scales_run(*, seed: int) -> RunSpec:
    """Two temperatures with gains of both signs on the broad task."""
    run = signed_run(BROAD, 2, contrast=CONTRAST, seed=seed)
    return replace(run, "model.matrix", "scale")


def optimizer_run(recipe: Training, *, seed: int, lazy: bool = False) -> RunSpec:
    """Layers of the recipe "short" at one depth, trained by another recipe."""
    run = replace(depth_run(ISOTROPIC, OPTIMIZER_DEPTH, seed=seed), "recipe", recipe)
    if lazy:
        run = replace(replace(run, "model.start", LAZY_START), "model.spread", LAZY_SPREAD)
    return run


def _shape_runs() -> list[RunSpec]:
    shapes = [(n, depth, SOFTMAX_CONTEXT) for depth in SHAPE_DEPTHS for n in WIDTHS]
    shapes += [(n, d, c) for c in OTHER_CONTEXTS for d in OTHER_DEPTHS for n in OTHER_WIDTHS]
    return [shape_run(*shape) for shape in shapes]


def _recipe(**changes: float | str) -> Training:
    found = training("short")
    for name, value in changes.items():
        found = replace(found, name, value)
    return found


def _optimizer_runs(seeds: Sequence[int]) -> list[RunSpec]:
    runs = [optimizer_run(_recipe(rate=rate), seed=seed) for rate in RATES for seed in seeds]
    runs += [optimizer_run(_recipe(rate=rate, steps=LENGTHS[1]), seed=0) for rate in RATES]
    runs += [depth_run(ISOTROPIC, OPTIMIZER_DEPTH, recipe="factored", seed=n) for n in seeds]
    runs.append(optimizer_run(_recipe(rate=LAZY_RATE), seed=0, lazy=True))
    runs += [
        optimizer_run(_recipe(optimizer="adamw", weight_decay=decay), seed=0) for decay in DECAYS
    ]
    runs += [optimizer_run(_recipe(optimizer="sgd", rate=rate), seed=0) for rate in SGD_RATES]
    return runs


def _signed_runs(seeds: Sequence[int]) -> list[RunSpec]:
    runs = [signed_run(row, 1, contrast=0, seed=n) for row in ROWS.values() for n in seeds]
    runs += [
        signed_run(ROWS[k], depth, contrast=CONTRAST, seed=n)
        for k, depths in SIGNED_DEPTHS.items()
        for depth in depths
        for n in seeds
    ]
    return [*runs, *(two_scales_run(seed=n) for n in seeds)]


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """Everything at "small" and "paper", nothing at "demo"."""
    if scale not in SEEDS:
        return ()
    seeds = range(SEEDS[scale])
    runs: dict[str, list[RunSpec]] = {
        "shapes": _shape_runs(),
        "splits": [split_run(depth, width, seed=n) for depth, width in SPLITS for n in seeds],
        "ties": [
            *(depth_run(ISOTROPIC, 1, seed=n) for n in seeds),
            *(
                tied_run(depth, layers, seed=n)
                for layers in ("looped", "tempered", "separate")
                for depth in TIE_DEPTHS
                for n in seeds
            ),
        ],
        "reference": [reference_run(k, seed=n) for k in ROWS for n in seeds],
        "signs": _signed_runs(seeds),
        "optimizers": _optimizer_runs(seeds),
    }
    return tuple(
        Sweep(name=f"{NAME}/beyond-{name}/simulation", engine="simulation", runs=tuple(own))
        for name, own in runs.items()
    )
