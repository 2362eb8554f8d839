"""Reading the tables of this paper's sweeps, and intervals of what is computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.ident import from_json
from leadline.papers.peng2026.published import (
    NAME,
    Row,
)
from leadline.spec import LinearAttention, Retrieval, RunSpec

Tables = Mapping[str, pl.DataFrame]
Z99 = 2.5758
"""Standard errors to each side of a sampled number's interval, level 99%."""


def has(tables: Tables, name: str, *, engine: str = "theory") -> bool:
    """Whether the sweep was run at this scale."""
    return f"{NAME}/{name}/{engine}" in tables


def rows(
    tables: Tables, name: str, *, engine: str = "theory"
) -> list[tuple[RunSpec, dict[str, Any]]]:
    """The runs of one sweep: what was asked, and the stored row."""
    frame = tables[f"{NAME}/{name}/{engine}"]
    return [(from_json(row["spec"]), row) for row in frame.iter_rows(named=True)]


def losses(tables: Tables, name: str) -> dict[Row, tuple[float, float]]:
    """Loss and its error by targets and exponents."""
    return {key(spec): (row["loss"], row["loss_error"]) for spec, row in rows(tables, name)}


def key(spec: RunSpec) -> Row:
    """Targets and exponents of a run."""
    assert isinstance(spec.task, Retrieval)
    spectrum = spec.task.spectrum
    return spec.task.targets, spectrum.input_exponent, spectrum.task_exponent


def against_depth(
    tables: Tables, name: str, *, a: float, b: float, tied: bool
) -> tuple[Floats, Floats, Floats]:
    """Depths, losses and their errors of linear attention of these exponents."""
    found: list[tuple[int, float, float]] = []
    for spec, row in rows(tables, name):
        assert isinstance(spec.model, LinearAttention)
        if key(spec)[1:] == (a, b) and spec.model.tied == tied:
            found.append((spec.model.depth, row["loss"], row["loss_error"]))
    depth, loss, error = np.array(sorted(found)).T
    return depth, loss, error


def span(values: Sequence[float], *, method: str, margin: float = 0.0) -> Interval:
    """The interval from the least to the largest of `values`, wider by `margin` to each side; the
    first is the estimate.
    """
    return Interval(
        estimate=values[0],
        low=min(values) - margin,
        high=max(values) + margin,
        level=1.0,
        method=method,
        unit="none",
    )


def sampled(value: float, error: float, *, method: str = "normal, contexts") -> Interval:
    """The interval of a sampled number of standard error `error`, level 99%."""
    return Interval(
        estimate=value,
        low=value - Z99 * error,
        high=value + Z99 * error,
        level=0.99,
        method=method,
        unit="context",
    )
