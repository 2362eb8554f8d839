r"""Figures 7 and 8: the laws under softmax attention, trained by gradient descent, and under AdamW.

Each run is trained with eight seeds. Laws are read off the finite problem of 64 types, so that a
slope is compared with that of theory in the same window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from leadline.claims import Claim, judge
from leadline.curve import Floats
from leadline.papers.intervals import student
from leadline.papers.lyu2025.sweeps import (
    ALPHA,
    DRAWN,
    LIMITED,
    SMALL_TASKS,
    SOURCE,
    START,
    flow,
    power_task,
)
from leadline.papers.lyu2025.tables import (
    Tables,
    half_times,
    measure,
    sequences,
    table,
)
from leadline.spec import Evaluation, PerTaskAttention, RunSpec, SparseFeatures, Training, replace
from leadline.theory.sparse_laws import fit_exponent
from leadline.theory.sparse_loss import size_loss

SEEDS = 8
BATCH = 64
SOFTMAX = PerTaskAttention(start=START.start, attention="softmax")
DESCENT = Training(steps=12_000, batch_size=BATCH, queries=1, rate=0.5)
ADAMW = Training(
    steps=3200, batch_size=BATCH, queries=1, rate=5e-4, optimizer="adamw", weight_decay=0.01
)
FULL = replace(replace(ADAMW, "steps", 400), "batch_size", math.inf)
CONTEXTS, CONTEXT_TASK = (128, 2048), 8
"""Contexts between which softmax attention is compared, and the task whose learning is timed."""
SHORTENED = 1000.0
"""Tokens of the first task where contexts shorten; the last has 82."""
FIRST = 4
"""Exponents of learning times are fitted from this task on."""
RARE = 9
"""The first task that is rarer than once a batch."""
RESOLUTION = 0.01
"""To which exponents are compared."""
LONG_CONTEXT = 1e4
"""Tokens of the sequences that are drawn once. The signs of a few short ones may favor the wrong
sign by more than the attention of an untrained model distinguishes."""
TASK = power_task("fixed", num_tasks=SMALL_TASKS)


def _seeds(
    task: SparseFeatures, model: PerTaskAttention, recipe: Training, points: int
) -> list[RunSpec]:
    grid = np.geomspace(1, recipe.steps, points).tolist()
    record = tuple(sorted({0} | {round(step) for step in grid}))
    run = RunSpec(
        task=task,
        model=model,
        recipe=recipe,
        evaluation=Evaluation(record=record, measures=("output", "counts")),
    )
    if points == 1:
        run = replace(run, "evaluation.record", (recipe.steps,))
    return [replace(run, "seed", seed) for seed in range(SEEDS)]


def trained_runs() -> dict[str, Sequence[RunSpec]]:
    """Softmax attention by stochastic gradient descent, linear attention by AdamW: learning times,
    model sizes, and numbers of sequences.
    """
    settled = replace(ADAMW, "schedule", "cosine")
    long = replace(TASK, "context", LONG_CONTEXT)
    named: dict[str, Sequence[RunSpec]] = {}
    for name, model, learn, fit in (
        ("softmax", SOFTMAX, DESCENT, DESCENT),
        ("adamw", START, settled, replace(replace(FULL, "schedule", "cosine"), "warmup", 20)),
    ):
        named[f"{name}/size/simulation"] = [
            run for d in LIMITED for run in _seeds(TASK, replace(model, "size", d), learn, 1)
        ]
        named[f"{name}/data/simulation"] = [
            run for n in DRAWN for run in _seeds(replace(long, "sequences", n), model, fit, 1)
        ]
    shorter = replace(DESCENT, "steps", 600)
    shortened = power_task("context", num_tasks=SMALL_TASKS, context=SHORTENED)
    many = replace(TASK, "sequences", max(DRAWN))
    times = np.geomspace(1, DESCENT.steps * DESCENT.rate, 120).tolist()
    return named | {
        "softmax/time/theory": [flow(TASK, SOFTMAX, times)],
        "softmax/time/simulation": _seeds(TASK, SOFTMAX, DESCENT, 120),
        "softmax/shortened/simulation": _seeds(shortened, SOFTMAX, DESCENT, 120),
        "softmax/contexts/simulation": [
            run
            for psi in CONTEXTS
            for run in _seeds(replace(TASK, "context", psi), SOFTMAX, shorter, 80)
        ],
        "adamw/time/simulation": _seeds(TASK, START, ADAMW, 120),
        "adamw/full/simulation": _seeds(many, START, FULL, 120),
    }


def seed_rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    """The runs of one sweep, one a seed."""
    return list(table(tables, name, "simulation").iter_rows(named=True))


def learning_times(tables: Tables, name: str) -> Floats:
    """When each task passes half its strength, NaN if it does not: (seed, task), in the summed
    rates of the steps.
    """
    ones = np.ones(SMALL_TASKS)
    return np.array([half_times(_after_start(row), ones) for row in seed_rows(tables, name)])


def _after_start(row: dict[str, Any]) -> dict[str, Any]:
    """`row` without its record at step zero, which has no logarithm."""
    output = measure(row, "output")[1:]
    kept = {"name": "output", "shape": list(output.shape), "values": output.ravel().tolist()}
    return row | {"measures": [kept], "curve_time": row["curve_time"][1:]}


def time_exponents(tables: Tables, name: str, *, first: int = FIRST) -> Floats:
    """The slope of the logarithm of the learning time against that of the rank, one a seed."""
    s = np.arange(1.0, SMALL_TASKS + 1)
    found: list[float] = []
    for times in learning_times(tables, name):
        kept = np.isfinite(times) & (s >= first)
        found.append(-fit_exponent(times[kept], s[kept]))
    return np.array(found)


def final_losses(tables: Tables, name: str, law: str) -> tuple[Floats, Floats]:
    """Model sizes or numbers of sequences, and the last loss: (value, seed)."""
    runs = table(tables, f"{name}/{law}", "simulation")
    x = sequences(runs) if law == "data" else runs["width"]
    values = np.unique(x.to_numpy())
    loss = [runs.filter(x == value).sort("seed")["loss"].to_numpy() for value in values]
    return values, np.array(loss)


def undrawn_losses(tables: Tables, name: str) -> Floats:
    """The loss if every type among the training sequences is learned and no other: (number of
    sequences, seed).
    """
    runs = table(tables, f"{name}/data", "simulation")
    share = np.arange(1.0, SMALL_TASKS + 1) ** -ALPHA
    share /= share.sum()
    missed: list[list[float]] = []
    for number in np.unique(sequences(runs).to_numpy()):
        rows = runs.filter(sequences(runs) == number).sort("seed").iter_rows(named=True)
        never = [measure(row, "counts") == 0 for row in rows]
        missed.append([(1 - START.start) ** 2 * float(share[gone].sum()) for gone in never])
    return np.array(missed)


def kept_law(tables: Tables, name: str, law: str) -> Floats:
    """The exponent of a law minus that of the finite problem in the same window, one a seed."""
    x, loss = final_losses(tables, name, law)
    slopes = -np.polyfit(np.log(x), np.log(loss), 1)[0]
    if law == "size":
        expected = 2 * size_loss(TASK, x, model=START)
        return slopes - fit_exponent(expected, x)
    expected = undrawn_losses(tables, name)
    return slopes + np.polyfit(np.log(x), np.log(expected), 1)[0]


def context_exponents(tables: Tables) -> Floats:
    """The power of the context in the learning time of one task of softmax attention, a seed."""
    times = learning_times(tables, "softmax/contexts")[:, CONTEXT_TASK - 1]
    short, long = times.reshape(len(CONTEXTS), SEEDS)
    return np.log(long / short) / math.log(CONTEXTS[1] / CONTEXTS[0])


def trained_claims(tables: Tables) -> list[dict[str, Any]]:
    """Which laws survive softmax attention and AdamW."""
    thread = f"{SOURCE}, figures 7 and 8 as described in its public discussion"
    words = {"softmax": "softmax attention under gradient descent", "adamw": "AdamW"}
    rows: list[dict[str, Any]] = []

    def judged(
        name: str,
        text: str,
        published: float,
        values: Floats,
        *,
        kind: Literal["number", "order", "identity"] = "number",
        smallest_effect: float = 0.05,
        source: str = thread,
    ) -> None:
        claim = Claim(
            name=name,
            source=source,
            statement=text,
            kind=kind,
            published=published,
            smallest_effect=smallest_effect,
        )
        rows.append(judge(claim, student(values, resolution=RESOLUTION)))

    for name, subject in words.items():
        for law, what in (("size", "model size"), ("data", "number of sequences")):
            judged(
                f"{name}-keeps-the-{law}-law",
                f"The law in the {what} is kept by {subject} (exponent minus that of the same "
                "finite problem, all that the model or the data has being learned).",
                0.0,
                kept_law(tables, name, law),
                kind="identity",
            )
    judged(
        "softmax-keeps-the-time-law",
        "Under softmax attention task s is learned at the time s^alpha, as under linear attention "
        "of constant context.",
        ALPHA,
        time_exponents(tables, "softmax/time"),
    )
    judged(
        "softmax-time-has-no-context",
        "The time at which softmax attention learns a task does not depend on the context (power "
        "of the context; linear attention: -1).",
        0.0,
        context_exponents(tables),
    )
    judged(
        "softmax-time-law-has-no-beta",
        "Contexts that shorten as s^-beta leave the time law of softmax attention alone: s^alpha "
        "(linear attention: s^(alpha + beta)).",
        ALPHA,
        time_exponents(tables, "softmax/shortened"),
    )
    adamw = ALPHA - time_exponents(tables, "adamw/time", first=RARE)
    full = ALPHA - time_exponents(tables, "adamw/full")
    for name, subject, measured in (
        ("minibatch", "on minibatches", adamw),
        ("full-batch", "on all the data", full),
    ):
        judged(
            f"adamw-{name}-changes-the-time-law",
            f"AdamW {subject} learns task s sooner than at the time s^alpha (alpha minus the "
            "exponent of the learning times).",
            1.0,
            measured,
            kind="order",
        )
    judged(
        "adamw-minibatch-times",
        "AdamW on minibatches learns tasks rarer than once a batch at the time s^(alpha/2), a "
        "heuristic.",
        ALPHA / 2,
        time_exponents(tables, "adamw/time", first=RARE),
        source="derived in docs/theory/sparse.md",
        smallest_effect=0.1,
    )
    judged(
        "adamw-full-batch-times",
        "AdamW on all the data learns all tasks at one time: s^0.",
        0.0,
        time_exponents(tables, "adamw/full"),
        source="derived in docs/theory/sparse.md",
    )
    return rows
