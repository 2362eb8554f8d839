"""Several rows of one run: checkpoints, mixes of them with final losses, resumed runs."""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

from leadline.laws.findings import Finding, listed, numbers, present, row_numbers
from leadline.laws.levels import smooth_basis, smooth_residuals, spread
from leadline.runs import Runs


def checkpoints(runs: Runs) -> list[Finding]:
    """Several rows of one run."""
    frame, found = runs.frame, list[Finding]()
    clock = next((name for name in ("step", "tokens") if name in frame.columns), None)
    if "run" not in frame.columns:
        shape = [n for n in ("params", "width", "depth", "seed", "rate") if n in frame.columns]
        if "step" in present(runs, ["step"]) and shape:
            steps = frame.group_by(shape).agg(pl.col("step").n_unique())["step"]
            if steps.max() and float(np.median(steps.to_numpy())) >= 3:
                found.append(
                    Finding(
                        code="unnamed-runs",
                        severity="warning",
                        message="rows of the same shape at several steps look like checkpoints, "
                        "and "
                        "no column names their runs: intervals that resample rows are too narrow; "
                        "add a column run",
                    )
                )
        return found
    counts = frame.group_by("run").len()
    several = counts.filter(pl.col("len") > 1)
    if not several.height or clock is None:
        return found
    found.append(
        Finding(
            code="checkpoints",
            severity="note",
            message=f"{len(runs)} rows are checkpoints of {counts.height} runs; the rows of a run "
            "share its deviation, so intervals resample runs",
        )
    )
    single = counts.height - several.height
    if single and single + several.height >= 3:
        mixed = frame["run"].is_in(several["run"].implode())
        found.append(
            Finding(
                code="mixed-checkpoints",
                severity="warning",
                message=f"{several.height} runs have several checkpoints and {single} only one: "
                "a checkpoint before the rate has decayed is not the final loss of a shorter run; "
                "fit one kind",
                rows=row_numbers(runs, mixed),
            )
        )
    return found + _unfinished(runs) + _resumed(runs, clock)


def _unfinished(runs: Runs) -> list[Finding]:
    """Checkpoints of a schedule that ends later, used as final losses."""
    frame = runs.frame
    text = [name for name in frame.columns if re.search(r"schedul", name, re.IGNORECASE)]
    cosine = np.zeros(len(runs), np.bool_)
    for name in text:
        if frame[name].dtype == pl.String:
            cosine |= frame[name].str.contains("(?i)cos|linear").fill_null(value=False).to_numpy()
    last = frame.select(pl.col("tokens" if "tokens" in frame.columns else "step")).to_series()
    ends = frame.select(pl.col(last.name).max().over("run")).to_series()
    rows = row_numbers(runs, cosine & (last < ends).to_numpy())
    if rows:
        return [
            Finding(
                code="cosine-checkpoints",
                severity="warning",
                message=f"{listed(rows)} are checkpoints inside a decaying schedule: their loss is "
                "above that of a run that ends there; keep the last row of each run",
                rows=rows,
            )
        ]
    return _late_drop(runs, (last == ends).to_numpy())


def _late_drop(runs: Runs, final: NDArray[np.bool_]) -> list[Finding]:
    """Last rows of runs that lie below where the checkpoints of other runs pass the same size."""
    basis = smooth_basis(runs)
    if basis is None or not present(runs, ["tokens"]):
        return []
    residual = smooth_residuals(np.log(numbers(runs, "loss")), basis)
    tokens = numbers(runs, "tokens")
    # where runs end and others go on, the two kinds can be told apart
    shared = (tokens >= tokens[final].min()) & (tokens <= tokens[~final].max())
    ends, passes = residual[final & shared], residual[~final & shared]
    if min(len(ends), len(passes)) < 4:
        return []
    drop = float(np.median(passes) - np.median(ends))
    error = math.hypot(spread(ends) / len(ends) ** 0.5, spread(passes) / len(passes) ** 0.5)
    if drop < 0.005 or drop < 5 * 1.25 * error:
        return []
    return [
        Finding(
            code="cosine-checkpoints",
            severity="warning",
            message=f"the last row of a run lies {100 * drop:.1f}% below what other runs pass at "
            "the "
            "same size: earlier rows look like checkpoints inside a decaying schedule; keep the "
            "last row of each run",
            rows=row_numbers(runs, ~final),
        )
    ]


def _resumed(runs: Runs, clock: str) -> list[Finding]:
    """Steps that a run reached twice."""
    key = pl.struct("run", clock)
    twice = runs.frame.select(key.is_duplicated() & ~key.is_first_distinct()).to_series()
    same = runs.frame.select(pl.struct("run", clock, "loss").is_duplicated()).to_series()
    rates = "rate" in runs.frame.columns or "seed" in runs.frame.columns
    rows = row_numbers(runs, twice & ~same)
    if not rows or rates:
        return []
    return [
        Finding(
            code="resumed-run",
            severity="warning",
            message=f"{listed(rows)} reach a {clock} that their run had reached before, with "
            "another "
            "loss: the run was resumed; keep the later of the two",
            rows=rows,
        )
    ]
