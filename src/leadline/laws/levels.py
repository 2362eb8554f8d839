"""Losses that do not belong to the others: other units, diverged runs, and few digits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.laws.findings import SIZES, Finding, listed, numbers, present, row_numbers
from leadline.runs import Runs

OUTLIER = 10.0
"""Robust standard deviations beyond which a loss does not belong to the others."""
OUTLIER_LOSS = 0.05
"""And the least relative distance."""
LEVELS = 0.25
"""Least distance of two levels of log loss: nats and bits are 0.37 apart."""
SHARE_DISTINCT = 0.6
"""Share of distinct losses among the rows below which they were rounded or read off a scale."""
FEW_ROWS = 12
"""Rows below which the shape of the losses says nothing about single rows."""


def smooth_basis(runs: Runs) -> Floats | None:
    """An orthogonal basis (row, function) of the quadratics in the logarithms of the sizes, or None
    where the table has too few rows for them.
    """
    names = present(runs, ("params", "tokens", "width", "depth", "context"))
    if not names:
        names = present(runs, ("flops", "time", "step"))
    logs = np.array([np.log(numbers(runs, name)) for name in names])
    if not len(logs) or not len(present(runs, ["loss"])):
        return None
    logs = (logs - logs.mean(axis=1, keepdims=True)) / logs.std(axis=1, keepdims=True)
    pairs = [logs[i] * logs[j] for i in range(len(logs)) for j in range(i + 1)]
    basis = np.stack([np.ones(len(runs)), *logs, *pairs], axis=1)
    # quantities tied to one another (params = 12 depth width^2) span fewer directions
    left, sizes, _ = np.linalg.svd(basis, full_matrices=False)
    kept = left[:, sizes > 1e-8 * sizes[0]]
    return None if len(runs) < max(FEW_ROWS, 2 * kept.shape[1]) else kept


def smooth_residuals(target: Floats, basis: Floats) -> Floats:
    """`target` minus its robust fit by `basis` (Tukey's biweight). It follows no law: it only says
    which rows do not belong to the others.
    """
    weights = np.ones(len(target))
    residual = target
    for _ in range(40):
        root = np.sqrt(weights)
        solution = np.linalg.lstsq(basis * root[:, None], target * root, rcond=None)[0]
        residual = target - basis @ solution
        scale = 4.685 * spread(residual) + 1e-12
        weights = np.where(np.abs(residual) < scale, (1 - (residual / scale) ** 2) ** 2, 1e-6)
    return residual


def spread(values: Floats) -> float:
    """Robust standard deviation: the median distance from the median, over that of a normal."""
    return float(np.median(np.abs(values - np.median(values)))) * 1.4826


def jump(values: Floats) -> tuple[float, NDArray[np.bool_]]:
    """The widest gap between neighbors of `values`, and which lie on its smaller side."""
    order = np.sort(values)
    gaps = np.diff(order)
    at = int(np.argmax(gaps))
    upper = values > order[at]
    return float(gaps[at]), upper if upper.sum() <= (~upper).sum() else ~upper


def loss_levels(runs: Runs) -> list[Finding]:
    """Two levels of loss (nats and bits), or single rows far above the others."""
    basis = smooth_basis(runs)
    if basis is None:
        return []
    target = np.log(numbers(runs, "loss"))
    split = _two_levels(target, basis)
    if split is not None:
        gap, side = split
        rows = row_numbers(runs, side)
        return [
            Finding(
                code="loss-units",
                severity="error",
                message=f"the losses lie on two levels a factor {math.exp(gap):.2f} apart: "
                f"{listed(rows)} seem to be in another unit (nats, bits: 1.44, bits per byte: "
                "about 0.36) or from another data set",
                rows=rows,
            )
        ]
    residual = smooth_residuals(target, basis)
    width = max(spread(residual), 1e-12)
    # no smooth curve is exact at the smallest sizes: a diverged run is also worse than a smaller
    high = (residual > max(OUTLIER * width, OUTLIER_LOSS)) & _worse_than_smaller(runs)
    rows = row_numbers(runs, high)
    if not rows:
        return []
    return [
        Finding(
            code="diverged-runs",
            severity="warning",
            message=f"the loss of {listed(rows)} lies "
            f"{100 * math.expm1(float(residual[high].min())):.0f}% "
            "or more above that of similar runs and of smaller ones: diverged or untuned; exclude "
            "them with a reason, or take best_over a rate",
            rows=rows,
        )
    ]


def _worse_than_smaller(runs: Runs) -> NDArray[np.bool_]:
    """Rows whose loss exceeds that of a row that is no larger in any size."""
    names = present(runs, ("params", "tokens", "width", "depth", "context", "flops", "time"))
    sizes = np.array([numbers(runs, name) for name in names])
    loss = numbers(runs, "loss")
    no_larger = (sizes[:, None, :] <= sizes[:, :, None]).all(axis=0)
    return np.where(no_larger, loss[None, :], np.inf).min(axis=1) < loss * (1 - OUTLIER_LOSS)


def _two_levels(target: Floats, basis: Floats) -> tuple[float, NDArray[np.bool_]] | None:
    """The distance of two levels of log loss and the rows of the smaller, where every row lies
    close to one of two.

    The fit of the sizes and the division into levels take turns, from the division by the sign of
    the least-squares residual and from that by the widest gap between robust ones.
    """
    plain = target - basis @ (basis.T @ target)
    for upper in (plain > 0, jump(smooth_residuals(target, basis))[1]):
        side = upper
        residual = target
        for _ in range(30):
            both = np.column_stack([basis, side])
            solution = np.linalg.lstsq(both, target, rcond=None)[0]
            residual = target - basis @ solution[:-1]
            again = np.abs(residual - solution[-1]) < np.abs(residual)
            if (again == side).all():
                break
            side = again
        few = min(int(side.sum()), int((~side).sum()))
        if few < 3:
            continue
        inner = max(float(residual[side].std()), float(residual[~side].std()))
        distance = abs(float(np.median(residual[side]) - np.median(residual[~side])))
        gap = jump(residual)[0]
        if distance >= LEVELS and gap >= 0.5 * distance and inner <= 0.15 * distance:
            return distance, side if side.sum() <= (~side).sum() else ~side
    return None


def quantum(runs: Runs) -> list[Finding]:
    """Losses rounded, or read off a scale."""
    step = loss_quantum(runs)
    if step is None:
        return []
    distinct = runs.frame["loss"].n_unique()
    return [
        Finding(
            code="quantized-loss",
            severity="warning",
            message=f"only {distinct} distinct losses among {len(runs)} rows, about {step:.2g} "
            "apart: "
            "no interval of a loss narrower than that means anything",
        )
    ]


def loss_quantum(runs: Runs) -> float | None:
    """The typical step between neighboring losses of a table whose losses were rounded or read off
    a scale, so that few are distinct; None where they were not.
    """
    sizes = [name for name in (*SIZES, "run", "seed", "step") if name in runs.frame.columns]
    once = runs.frame.unique([*sizes, "loss"])
    distinct = once["loss"].unique().sort()
    if once.height < FEW_ROWS or len(distinct) >= SHARE_DISTINCT * once.height:
        return None
    if len(distinct) < 2:
        return None
    return float(np.median(np.diff(distinct.to_numpy())))
