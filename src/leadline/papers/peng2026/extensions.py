"""Appendix C and D.2, trained: one stream, values by layer, context updates, and percentiles of the
selection error. What is run, at (a, b) = (0, 0).

Every seed has weights, training contexts and evaluation contexts of its own: seeds are independent,
and runs of one seed are compared on common contexts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from leadline.papers.peng2026.depth import training as controlled_training
from leadline.papers.peng2026.published import NAME, SOFTMAX_CONTEXT, SOFTMAX_DIM
from leadline.spec import (
    Evaluation,
    Retrieval,
    RunSpec,
    SoftmaxAttention,
    Spectrum,
    StreamAttention,
    Sweep,
    Training,
)

Kind = Literal["plain", "stream", "values", "updates", "updates-broad", "looped"]
DEPTHS = {"small": (1, 2, 4, 8, 16), "paper": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
SEEDS = {"small": 3, "paper": 5}
ONCE: Mapping[Kind, tuple[int, ...]] = {
    "stream": (4, 16),
    "values": (2, 4),
    "updates": (4, 8),
    "updates-broad": (4, 16),
}
"""Depths that no claim needs, trained with one seed at scale small."""
PLAIN_DEPTHS = (8, 16)
"""Of the controlled model, beside the deepest of the others."""
LOOPED_DEPTHS = (4,)
PERCENTILE_DEPTHS = {"small": (1, 64), "paper": (1, 256)}
PERCENTILE_CONTEXTS, PERCENTILE_QUERIES = 10_240, 4
LONG_DEPTH, LONG_STEPS = 8, 4500
"""A longer training of context updates on broad targets: how far the others are from converged."""
STREAM_WIDTH, STREAM_LABEL = 24, 0.5
"""Width, and the norm of the label's direction at the start: at 0.1 the second layer takes longer
to be found (loss 2.05 instead of 1.93 after as many steps)."""
CONTEXTS, QUERIES = 5000, 16
STEPS = 1500
MAPS = ("layer_errors", "self_attention", "effective_tokens", "map")
MEASURES: Mapping[Kind, tuple[str, ...]] = {
    "updates": MAPS,
    "updates-broad": MAPS,
    "looped": ("self_attention",),
}


def training(steps: int = STEPS) -> Training:
    """The recipe "short" of docs/retrieval.md, or a longer one."""
    return dataclasses.replace(controlled_training("short"), steps=steps)


def model(kind: Kind, depth: int) -> SoftmaxAttention | StreamAttention:
    """The model of appendix C; broad targets start at half the scale."""
    match kind:
        case "stream":
            return StreamAttention(depth=depth, width=STREAM_WIDTH, label=STREAM_LABEL)
        case "values":
            return SoftmaxAttention(depth=depth, values="separate")
        case "updates":
            return SoftmaxAttention(depth=depth, updates=True)
        case "updates-broad":
            return SoftmaxAttention(depth=depth, updates=True, start=0.25, spread=0.15)
        case "looped":
            return SoftmaxAttention(depth=depth, updates=True, layers="looped")
        case "plain":
            return SoftmaxAttention(depth=depth)


def extension_run(kind: Kind, depth: int, *, seed: int = 0, steps: int = STEPS) -> RunSpec:
    """One training."""
    return RunSpec(
        task=Retrieval(
            spectrum=Spectrum(dim=SOFTMAX_DIM, input_exponent=0, task_exponent=0),
            context=SOFTMAX_CONTEXT,
            targets=16 if kind == "updates-broad" else 2,
        ),
        model=model(kind, depth),
        recipe=training(steps),
        evaluation=Evaluation(
            contexts=CONTEXTS,
            queries=QUERIES,
            seed=seed,
            measures=MEASURES.get(kind, ("layer_errors",)),
        ),
        seed=seed,
    )


def percentile_run(depth: int, *, seed: int = 0) -> RunSpec:
    """The controlled model on as many fresh contexts as in appendix D.2."""
    run = extension_run("plain", depth, seed=seed)
    evaluation = Evaluation(
        contexts=PERCENTILE_CONTEXTS,
        queries=PERCENTILE_QUERIES,
        seed=seed,
        measures=("selection",),
    )
    return RunSpec(
        task=run.task, model=run.model, recipe=run.recipe, evaluation=evaluation, seed=seed
    )


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """Every training of the appendix; nothing at scale demo."""
    if scale == "demo":
        return ()
    count = SEEDS[scale]

    def seeded(kind: Kind, depths: Sequence[int]) -> list[RunSpec]:
        # depth by depth: one program serves all runs of a depth
        once = ONCE.get(kind, ()) if scale == "small" else ()
        return [
            extension_run(kind, depth, seed=seed)
            for depth in depths
            for seed in range(1 if depth in once else count)
        ]

    depths = DEPTHS[scale]
    plain = PLAIN_DEPTHS if scale == "small" else depths
    runs: dict[str, list[RunSpec]] = {
        "percentiles": [
            percentile_run(depth, seed=seed)
            for depth in PERCENTILE_DEPTHS[scale]
            for seed in range(count)
        ],
        "plain": seeded("plain", plain),
        "values": seeded("values", depths),
        "updates": seeded("updates", depths),
        "updates-broad": seeded("updates-broad", depths),
        "looped": seeded("looped", LOOPED_DEPTHS),
        "stream": seeded("stream", depths),
        "updates-long": [extension_run("updates-broad", LONG_DEPTH, steps=LONG_STEPS)],
    }
    return tuple(
        Sweep(name=f"{NAME}/{name}/simulation", engine="simulation", runs=tuple(own))
        for name, own in runs.items()
    )
