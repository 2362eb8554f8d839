"""What is read off the trained models of appendices C and D.2, by seed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.ensembles import decompose
from leadline.errors import FitError
from leadline.papers.intervals import student
from leadline.papers.peng2026.tables import Tables, rows


def arrays(tables: Tables, name: str, measure: str) -> dict[tuple[int, int], Floats]:
    """What `measure` recorded, by depth and seed."""
    found: dict[tuple[int, int], Floats] = {}
    for spec, row in rows(tables, name, engine="simulation"):
        stored = next(m for m in row["measures"] if m["name"] == measure)
        found[int(row["depth"]), spec.seed] = _array(stored)
    return found


def models(tables: Tables, name: str) -> pl.DataFrame:
    """The models of one sweep: depth, seed, loss and its error; A_L and C_L from two layers on; the
    scalar m; and of the first layer a token's attention on itself, and the tokens it attends to.
    """
    long: list[dict[str, float | None]] = []
    for spec, row in rows(tables, name, engine="simulation"):
        depth = int(row["depth"])
        stored = {m["name"]: _array(m) for m in row["measures"]}
        parts = (
            decompose(stored["layer_errors"]) if depth > 1 and "layer_errors" in stored else None
        )
        first = {
            key: float(stored[key][0]) if key in stored else None
            for key in ("self_attention", "effective_tokens")
        }
        long.append(
            {
                "depth": depth,
                "seed": spec.seed,
                "loss": row["loss"],
                "loss_error": row["loss_error"],
                "shared": parts.shared if parts else None,
                "disagreement": parts.disagreement if parts else None,
                "mask": row.get("mask"),
                "selection_error": row.get("selection_error"),
            }
            | first
        )
    return pl.DataFrame(long, infer_schema_length=None).sort("depth", "seed")


def _array(stored: dict[str, Any]) -> Floats:
    """What a measure found at the end of training."""
    return np.array(stored["values"], float).reshape(stored["shape"])[-1]


def at(frame: pl.DataFrame, column: str, *depths: int) -> Floats:
    """`column` at `depths`, shape (seed, depth), of the seeds that have all of them.

    **Raises:** `FitError` if that leaves fewer than two seeds.
    """
    own = frame.filter(pl.col("depth").is_in(depths)).select("seed", "depth", column).drop_nulls()
    wide = own.pivot("depth", index="seed", values=column).drop_nulls().sort("seed")
    if wide.height < 2 or wide.width < 1 + len(depths):
        raise FitError(
            f"seeds: got {wide.height if wide.width > len(depths) else 0} with L = "
            f"{', '.join(map(str, depths))}, an interval over seeds needs at least 2"
        )
    return wide.select(map(str, depths)).to_numpy()


def anchored(frame: pl.DataFrame, single: pl.DataFrame) -> pl.DataFrame:
    """`frame` with losses divided by what the evaluation contexts of a seed do to the loss of a
    single layer, one of `single` of the same seed, which hardly differs otherwise: so that depths
    trained with one seed and with several can be compared.
    """
    own = single.filter(pl.col("depth") == 1).select(
        "seed", (pl.col("loss").mean() / pl.col("loss")).alias("factor")
    )
    moved = frame.join(own, on="seed").sort("depth", "seed")
    columns = ("loss", "shared", "disagreement")
    return moved.with_columns(pl.col(c).cast(pl.Float64) * pl.col("factor") for c in columns)


def several(frame: pl.DataFrame) -> list[int]:
    """The depths that were trained with more than one seed.

    **Raises:** `FitError` if there are fewer than two, which no claim can do with.
    """
    counted = frame.group_by("depth").agg(pl.col("seed").n_unique()).sort("depth")
    found = counted.filter(pl.col("seed") > 1)["depth"].to_list()
    if len(found) < 2:
        raise FitError(
            f"seeds: got {len(found)} depths with more than one seed, expected at least 2"
        )
    return [int(depth) for depth in found]


def deepest(frame: pl.DataFrame) -> int:
    """The largest depth that was trained with more than one seed."""
    return several(frame)[-1]


def log_ratio(
    first: tuple[pl.DataFrame, int], second: tuple[pl.DataFrame, int], column: str = "loss"
) -> Interval:
    """The logarithm of `column` of the models of one depth over that of others, paired by seed.

    **Raises:** `FitError` if fewer than two seeds have both.
    """
    parts = [
        frame.filter(pl.col("depth") == depth).select("seed", column).drop_nulls()
        for frame, depth in (first, second)
    ]
    both = parts[0].join(parts[1], on="seed", suffix="_second").sort("seed")
    if both.height < 2:
        raise FitError(
            f"seeds: got {both.height} with both L = {first[1]} and {second[1]}, an interval over "
            "seeds needs at least 2"
        )
    return student(np.log(both[column].to_numpy() / both[f"{column}_second"].to_numpy()))


def difference(first: Interval, second: Interval) -> Interval:
    """One number less another that was found independently: half widths add in quadrature."""
    estimate = first.estimate - second.estimate
    margin = math.hypot(first.width, second.width) / 2
    return dataclasses.replace(
        first,
        estimate=estimate,
        low=estimate - margin,
        high=estimate + margin,
        method=f"{first.method}, for each of two; half widths in quadrature",
    )


def last_depths(frame: pl.DataFrame) -> tuple[int, int]:
    """The two largest depths that were trained with more than one seed."""
    depths = several(frame)
    return depths[-2], depths[-1]


def inverse_depth(frame: pl.DataFrame) -> Floats:
    r"""By seed: the gain between the two largest depths $h$ and $L$, over what it would be if $C_L$
    and $A_L - C_L$ stayed as they were, $(A_h - C_h)(1/h - 1/L)$.
    """
    h, last = last_depths(frame)
    losses = at(frame, "loss", h, last)
    apart = at(frame, "disagreement", h, last)[:, 0]
    return (losses[:, 0] - losses[:, 1]) / (apart * (1 / h - 1 / last))


def spread(frame: pl.DataFrame) -> Floats:
    """By seed: largest minus smallest m of the depths from two on, over its mean size."""
    masks = at(frame, "mask", *(depth for depth in several(frame) if depth > 1))
    return np.ptp(masks, axis=1) / np.abs(masks.mean(1))


def uniform_part(attention: Floats) -> tuple[float, float]:
    r"""The $\rho$ of least squares in $A\approx\rho I + (1-\rho)J$, $J_{ij} = 1/P$, and the share
    of $\|A - J\|^2$ that it leaves.
    """
    size = len(attention)
    own, identity = attention - 1 / size, np.eye(size) - 1 / size
    rho = float(np.sum(own * identity) / np.sum(identity**2))
    return rho, 1 - rho**2 * float(np.sum(identity**2) / np.sum(own**2))


def percentile_gain(tables: Tables) -> tuple[int, Floats]:
    r"""The deepest depth, and by seed $\Delta Q(q) = Q_1(q) - Q_L(q)$, shape (seed, percentile)."""
    found = arrays(tables, "percentiles", "selection")
    last = max(depth for depth, _ in found)
    seeds = sorted(seed for depth, seed in found if depth == last and (1, seed) in found)
    return last, np.array([found[1, seed] - found[last, seed] for seed in seeds])


def crossover(tables: Tables) -> Interval:
    """How many of the percentiles 1 to 99 are lower for the single layer."""
    _, gain = percentile_gain(tables)
    return student((gain < 0).sum(1), resolution=1.0)
