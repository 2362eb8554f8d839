"""What is wrong with which rows of a table, before any law is fitted to it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import polars as pl

from leadline.errors import TableError
from leadline.laws.checkpoints import checkpoints
from leadline.laws.findings import SIZES, Finding, listed, numbers, present, row_numbers
from leadline.laws.levels import jump, loss_levels, quantum
from leadline.runs import UNITS, Runs

SAME_COST = 1.25
"""Largest honest spread of C/(6ND) within one convention of counting."""
DECADES = 2.5
"""A jump of this many decades between neighbors is a change of unit, not of size."""
ON_A_LINE = 0.1
"""Sine of the angle between two centered logarithms below which two sizes varied together."""


def inspect_runs(runs: Runs) -> tuple[Finding, ...]:
    """Everything suspicious about a table, errors first. A table of finished, tuned runs in raw
    counts and one unit of loss gives no warning.

    **Raises:** `TableError` without a column `loss` of numbers.
    """
    loss = runs.column("loss")
    if not loss.dtype.is_numeric():
        raise TableError(f"{runs.source}: column 'loss' holds {loss.dtype}, expected numbers")
    found = [finding for check in (_sizes, _constant, *CHECKS) for finding in check(runs)]
    wrong = {finding.code for finding in found if finding.severity == "error"}
    # what is certain need not be suspected too
    found = [f for f in found if f.severity == "error" or f.code not in wrong]
    order = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _sizes(runs: Runs) -> list[Finding]:
    """Whether any column is a size, against which a loss could be fitted."""
    if any(name in runs.frame.columns for name in SIZES):
        return []
    others = [name for name in runs.frame.columns if name not in ("row", "loss")]
    return [
        Finding(
            code="no-sizes",
            severity="warning",
            message=f"none of {', '.join(SIZES)} is among the columns ({', '.join(others[:20])}); "
            "name them with --map params=COLUMN, or columns= in Python",
        )
    ]


def _constant(runs: Runs) -> list[Finding]:
    """Whether the loss never changes."""
    loss = runs.frame["loss"]
    if len(loss) < 2 or loss.n_unique() > 1:
        return []
    return [
        Finding(
            code="constant-loss",
            severity="error",
            message=f"all {len(loss)} rows have the loss {loss[0]:g}: is this its column?",
        )
    ]


def best_over(runs: Runs, column: str) -> Runs:
    """These runs with only the least loss over `column` (a learning rate, say) kept at each setting
    of everything else; the others are listed as excluded with their reason. Settings are told
    apart by the sizes, and by the run's step where there is one.

    **Raises:** `TableError` for a missing column, or for one that says how large a run is.
    """
    runs.column(column)
    if column in SIZES or column in ("loss", "step"):
        raise TableError(
            f"{runs.source}: the least loss over {column!r} would compare runs of different size"
        )
    setting = [name for name in (*SIZES, "step") if name in runs.frame.columns]
    setting = [name for name in setting if name != "batch_size"]
    ranked = runs.frame.select(
        pl.col("loss").rank("ordinal").over(setting) if setting else pl.col("loss").rank("ordinal")
    ).to_series()
    return runs.exclude(
        ranked > 1, field=column, reason=f"not the least loss over {column} at this size"
    )


def _is_count(runs: Runs, name: str) -> bool:
    """Whether `name` counts parameters or tokens of a trained network: tables of the two engines
    count contexts, which may be few.
    """
    return name in present(runs, [name]) and "engine" not in runs.frame.columns


def _excluded_rows(runs: Runs) -> list[Finding]:
    """Lines that broke off, and headers that changed on the way."""
    found: list[Finding] = []
    torn = runs.excluded.filter(pl.col("field") == "row")
    if torn.height:
        rows = tuple(torn["row"].to_list())
        found.append(
            Finding(
                code="torn-line",
                severity="warning",
                message=f"{listed(rows)} break off and are left out; if the file came from a "
                "resumed or killed job, look for what it lost",
                rows=rows,
            )
        )
    names = {name.lower() for name in runs.frame.columns} | {"loss", "val_loss", "train_loss"}
    header = runs.excluded.filter(
        pl.col("value").str.to_lowercase().is_in(list(names)) & (pl.col("field") != "row")
    )
    if header.height:
        rows = tuple(header["row"].to_list())
        found.append(
            Finding(
                code="drifting-header",
                severity="warning",
                message=f"{listed(rows)} repeat a header: several files were joined; check that "
                "their columns are the same in the same order",
                rows=rows,
            )
        )
    return found


def _drifting_columns(runs: Runs) -> list[Finding]:
    """Two columns of which each row has exactly one: one quantity whose name changed."""
    frame, found = runs.frame, list[Finding]()
    partly = [
        name
        for name in frame.columns
        if frame[name].dtype.is_numeric() and 0 < frame[name].null_count() < frame.height
    ]
    for i, one in enumerate(partly):
        for other in partly[:i]:
            if (frame[one].is_null() != frame[other].is_null()).all():
                found.append(
                    Finding(
                        code="drifting-header",
                        severity="warning",
                        message=f"every row has either {other!r} or {one!r}, never both: the name "
                        "of one quantity seems to have changed; join the two before fitting",
                        rows=row_numbers(runs, frame[one].is_null()),
                    )
                )
    missing = runs.excluded.filter((pl.col("field") == "loss") & (pl.col("reason") == "missing"))
    if missing.height >= max(2, 0.05 * (missing.height + len(runs))):
        rows = tuple(missing["row"].to_list())
        found.append(
            Finding(
                code="drifting-header",
                severity="warning",
                message=f"{listed(rows)} have no loss; if their loss stands in another column, "
                "its name changed on the way",
                rows=rows,
            )
        )
    return found


def _duplicates(runs: Runs) -> list[Finding]:
    """Rows that repeat another in every quantity."""
    known = [name for name in runs.frame.columns if name in UNITS or name in ("run", "seed")]
    twice = ~runs.frame.select(pl.struct(known).is_first_distinct()).to_series()
    rows = row_numbers(runs, twice)
    if not rows or len(known) < 2:
        return []
    return [
        Finding(
            code="duplicated-rows",
            severity="warning",
            message=f"{listed(rows)} repeat earlier rows in {', '.join(known)}; intervals count "
            "identical rows once, other tools would make them too narrow",
            rows=rows,
        )
    ]


def _count_units(runs: Runs) -> list[Finding]:
    """Parameters and tokens in millions or billions, in the whole table or in a part."""
    found: list[Finding] = []
    for name, least in (("params", 1e4), ("tokens", 1e6)):
        if not _is_count(runs, name):
            continue
        values = numbers(runs, name)
        gap, side = jump(np.log10(values))
        if gap >= DECADES and min(side.sum(), (~side).sum()) >= 2:
            found.append(
                Finding(
                    code="mixed-units",
                    severity="error",
                    message=f"{name} jumps by 10^{gap:.1f} between two groups: "
                    f"{listed(row_numbers(runs, side))} "
                    "seem to be in another unit; give raw counts",
                    rows=row_numbers(runs, side),
                )
            )
        elif values.max() < least:
            found.append(
                Finding(
                    code="units",
                    severity="warning",
                    message=f"{name} goes up to {values.max():g}: this looks like millions or "
                    "billions; give raw counts, or coefficients and plans are in that unit",
                )
            )
    return found


def _cost(runs: Runs) -> list[Finding]:
    """C/(6ND): units, and what was counted."""
    names = ("params", "tokens", "flops")
    if not all(_is_count(runs, name) for name in names) or "from flops" in runs.units.get(
        "tokens", ""
    ):
        return []
    params, tokens, flops = (numbers(runs, name) for name in names)
    decades = np.log10(flops / (6 * params * tokens))
    middle = float(np.median(decades))
    off = np.abs(decades - middle) > DECADES
    if off.any():
        rows = row_numbers(runs, off)
        factor = float(np.median(decades[off])) - middle
        return [
            Finding(
                code="mixed-units",
                severity="error",
                message=f"C/(6ND) of {listed(rows)} is 10^{factor:+.1f} times that of the others: "
                "their parameters, tokens or FLOPs are in another unit",
                rows=rows,
            )
        ]
    if abs(middle) > DECADES:
        guess = {6: "millions", 9: "billions", 12: "trillions", 15: "millions and billions"}
        unit = next((text for d, text in guess.items() if abs(abs(middle) - d) < 1.0), "")
        return [
            Finding(
                code="units",
                severity="error",
                message=f"C/(6ND) is about 10^{middle:.1f}, not 1: parameters, tokens or FLOPs are "
                f"not raw counts{f' ({unit}?)' if unit else ''}",
            )
        ]
    low, high = 10 ** float(decades.min()), 10 ** float(decades.max())
    size = "width" if "width" in present(runs, ["width"]) else "params"
    trend = float(np.corrcoef(np.log(numbers(runs, size)), decades)[0, 1]) if high > low else 0.0
    if high / low > SAME_COST and abs(trend) > 0.7:
        return [
            Finding(
                code="parameter-count",
                severity="warning",
                message=f"C/(6ND) runs from {low:.3g} to {high:.3g} and "
                f"{'falls' if trend < 0 else 'rises'} "
                f"with {size}: parameters and FLOPs do not count the same (embeddings, the output "
                "layer, attention); state which parameters you count, since plans depend on it",
            )
        ]
    if high / low > 1.05 or abs(middle) > 0.02:
        return [
            Finding(
                code="cost-convention",
                severity="note",
                message=f"C/(6ND) runs from {low:.3g} to {high:.3g} (median {10**middle:.3g}): "
                "these "
                "FLOPs are not 6ND",
            )
        ]
    return []


def _together(runs: Runs) -> list[Finding]:
    """Sizes that were varied together."""
    names = [
        n for n in ("width", "depth", "params", "tokens", "context") if n in runs.frame.columns
    ]
    names = present(runs, names)
    logs = np.array([np.log(numbers(runs, name)) for name in names])
    found: list[Finding] = []
    for i in range(len(names)):
        for j in range(i):
            a, b = (logs[k] - logs[k].mean() for k in (i, j))
            cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
            if cosine > 0 and 1 - cosine**2 < ON_A_LINE**2:
                found.append(
                    Finding(
                        code="varied-together",
                        severity="warning",
                        message=f"{names[j]} and {names[i]} grow together in all runs (correlation "
                        f"{cosine:.4f} of their logarithms): these runs cannot tell their "
                        "exponents "
                        "apart; predict along the line, or add runs off it",
                    )
                )
    return found


def _rates(runs: Runs) -> list[Finding]:
    """Several rates at one size: which is best, and whether the grid ends there."""
    if "rate" not in present(runs, ["rate"]):
        return []
    setting = present(runs, (*(n for n in SIZES if n != "batch_size"), "step"))
    if not setting:
        return []
    groups = runs.frame.with_row_index("index").group_by(setting, maintain_order=True)
    several, edges = 0, list[int]()
    for _, group in groups:
        rates = group["rate"].unique()
        several += len(rates) > 1
        if len(rates) >= 3:
            best = group.sort("loss").row(0, named=True)
            if best["rate"] in (rates.min(), rates.max()):
                edges.append(best["index"])
    found: list[Finding] = []
    if several:
        found.append(
            Finding(
                code="several-rates",
                severity="warning",
                message=f"{several} sizes were trained at several rates: a law of the best loss "
                "needs "
                'best_over(runs, "rate")',
            )
        )
    if edges:
        mask = np.isin(np.arange(len(runs)), edges)
        found.append(
            Finding(
                code="edge-of-rates",
                severity="warning",
                message=f"the best of the rates is the largest or smallest tried in "
                f"{listed(row_numbers(runs, mask))}: the least loss lies beyond; widen the grid",
                rows=row_numbers(runs, mask),
            )
        )
    return found


def _budgets(runs: Runs) -> list[Finding]:
    """A design of fixed budgets: what its parabolas would do."""
    if not {"params", "tokens", "flops"} <= set(present(runs, ("params", "tokens", "flops"))):
        return []
    params, flops, loss = (numbers(runs, name) for name in ("params", "flops", "loss"))
    budget = np.round(np.log10(flops) / 0.01).astype(np.int64)
    sizes, group, counts = np.unique(budget, return_inverse=True, return_counts=True)
    levels = len(np.unique(params)) * len(np.unique(numbers(runs, "tokens")))
    if len(sizes) < 2 or counts[group].min() < 4 or levels <= 1.5 * len(runs):
        return []
    edge: list[int] = []
    for i in range(len(sizes)):
        inside = np.flatnonzero(group == i)
        x = np.log(params[inside])
        least = int(inside[np.argmin(loss[inside])])
        curvature, slope, _ = np.polyfit(x - x.mean(), loss[inside], 2)
        vertex = -slope / (2 * curvature) + x.mean() if curvature > 0 else math.inf
        if not x.min() <= vertex <= x.max():
            edge.append(least)
    found = [
        Finding(
            code="isoflop-parabola",
            severity="note",
            message=f"{len(sizes)} budgets with several sizes each: the vertex of a parabola "
            "through "
            "each is biased by 5 to 30% when the exponents differ (arXiv:2603.22339); fit the "
            "surface in params and tokens",
        )
    ]
    if edge:
        rows = row_numbers(runs, np.isin(np.arange(len(runs)), edge))
        found.append(
            Finding(
                code="edge-minimum",
                severity="warning",
                message=f"the least loss of {len(edge)} budgets lies at the edge of the sizes "
                "tried "
                f"({listed(rows)}): these budgets show no optimum inside the data",
                rows=rows,
            )
        )
    return found


def _loss_columns(runs: Runs) -> list[Finding]:
    """Further columns that are losses too."""
    others = [
        name
        for name in runs.frame.columns
        if name != "loss"
        and re.search(r"(^|[^a-z])(loss|nll|bpb)", name, re.IGNORECASE)
        and not name.startswith(("loss_error", "curve_"))
        and runs.frame[name].dtype.is_numeric()
    ]
    found: list[Finding] = []
    for name in others:
        ratio = np.log(numbers(runs, "loss") / np.abs(numbers(runs, name)))
        ratio = ratio[np.isfinite(ratio)]
        size = "" if not len(ratio) else f" (they differ by {100 * float(np.std(ratio)):.2g}% rms)"
        found.append(
            Finding(
                code="several-losses",
                severity="note",
                message=f"{name!r} is a loss too{size}: record which one is fitted, since a last "
                "step is noisier than a smoothed loss; their difference estimates that noise",
            )
        )
    return found


CHECKS: tuple[Callable[[Runs], list[Finding]], ...] = (
    _excluded_rows,
    _drifting_columns,
    _duplicates,
    _count_units,
    _cost,
    loss_levels,
    quantum,
    checkpoints,
    _together,
    _rates,
    _budgets,
    _loss_columns,
)
