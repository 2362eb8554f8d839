r"""What the layers of any network share: the decomposition of its error, from the predictions of
its layers on samples, with intervals over samples.

With $e_l$ the error that layer $l$ would make alone, so that the network's error is
$\frac1L\sum_le_l$, the loss is $R = C + (A - C)/L$ (`leadline.ensembles`). That is an identity; the
facts are how large the shared part $C$ is, and what the network loses without one of its layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.display import Card, Shown, short
from leadline.ensembles import Decomposition, decompose
from leadline.errors import LeadlineWarning, SolverError, SpecError

Kind = Literal["alone", "running"]

NAMES = ("loss", "own", "shared", "disagreement", "correlation")
SHOWN_LAYERS = 40
MOST_COUNTS = 10**7
"""Counts of the bootstrap in memory at once."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Shown):
    r"""What the layers of a network share.

    **Arguments:**
    - `errors` $E\,e_le_m$ (layer, layer) and its `decomposition`.
    - `intervals` of "loss" $R$, "own" $A$, "shared" $C$, "disagreement" $A - C$, and "correlation"
      $C/A$.
    - `cost` of each layer: by how much the loss would rise if the mean of the others answered; an
      interval each. Below zero the network is better without it.
    - `samples`, and the number of `units` that were resampled, if they are groups of samples.
    """

    errors: Floats
    decomposition: Decomposition
    intervals: Mapping[str, Interval]
    cost: tuple[Interval, ...]
    samples: int
    units: int

    def card(self) -> Card:
        """The decomposition, and what each layer is worth; of a deep network the layers that matter
        most to either side.
        """
        rows = [[name, *_cells(i)] for name, i in self.intervals.items()]
        order = sorted(range(len(self.cost)), key=lambda layer: self.cost[layer].estimate)
        half = SHOWN_LAYERS // 2
        shown = sorted(order if len(order) <= 2 * half else order[:half] + order[-half:])
        rows += [[f"cost of dropping layer {i + 1}", *_cells(self.cost[i])] for i in shown]
        one = self.intervals["loss"]
        harmful = [str(i + 1) for i, own in enumerate(self.cost) if own.high < 0]
        left = len(order) - len(shown)
        return Card(
            title=f"{self.decomposition.depth} layers on {self.samples} samples",
            columns=("quantity", "estimate", "interval"),
            rows=rows,
            notes=[
                "loss = shared + disagreement / layers, of any network: an identity",
                f"better without layer: {', '.join(harmful) or 'none'}, each judged by itself",
                *([f"{left} layers between these are not shown"] if left else []),
                f"{one.level:.0%} intervals: {one.method}, unit: {one.unit} ({self.units})",
            ],
        )


def diagnose(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    kind: Kind = "alone",
    groups: ArrayLike | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Diagnosis:
    r"""Decompose the squared error of a network into what its layers share and what each adds.

    **Arguments:**
    - `predictions` (layer, sample) or (layer, sample, output). `kind` "alone": what layer $l$
      would answer by itself, the network answering their mean. "running": the read-out after
      $0, 1, \dots, L$ layers of a residual network, whose layer $l$ alone would answer $f_0 +
      L(f_l - f_{l-1})$.
    - `targets` (sample) or (sample, output). Losses are squared errors, summed over outputs and
      averaged over samples.
    - `groups` (sample): samples of one group are not independent, such as the queries of one
      context or the tokens of one text; they are resampled together.
    - `draws` of the bootstrap, `level` of its percentile intervals, and its `seed`.

    **Raises:** `SolverError` for shapes that do not fit together, one layer, fewer than two
    samples or groups, or a value that is not finite, with its place; `SpecError` for an unknown
    kind, or `draws` or `level` out of range.

    Ref: arXiv:2610.11063, appendix B; docs/theory/retrieval.md.
    """
    _check_settings(kind, draws, level)
    found, wanted = _arrays(predictions, targets)
    if kind == "alone" and np.ptp(found[0]) == 0 and np.ptp(found) > 0:
        warnings.warn(
            "predictions[0]: one and the same number for every sample, as a read-out before the "
            "first layer; running read-outs need kind='running'",
            LeadlineWarning,
            stacklevel=2,
        )
    if kind == "running":
        depth = len(found) - 1
        found = found[:1] + depth * np.diff(found, axis=0)
    if len(found) < 2:
        raise SolverError(f"predictions: got {len(found)} layers, expected at least 2")
    errors = found - wanted
    if not errors.any():
        raise SolverError("predictions: every layer hits every target; no error to decompose")
    depth, samples = errors.shape[:2]
    group, units = _groups(groups, samples)
    whole = errors.mean(axis=0)
    loss, own = _squared(whole), _squared(errors).mean(axis=0)
    others = _squared((depth * whole - errors) / (depth - 1))
    # every statistic is made of means over samples: sum them by group once
    rows = np.array([np.ones(samples), loss, own, *others])
    sums = np.array([np.bincount(group, values, units) for values in rows], np.float64)
    center, drawn = _statistics(sums.sum(axis=1)), _statistics(_resampled(sums, draws, seed))
    intervals = [
        Interval(
            estimate=float(value),
            low=float(low),
            high=float(high),
            level=level,
            method=f"percentile bootstrap, {draws} draws",
            unit="sample" if groups is None else "group",
        )
        for value, low, high in zip(
            center, *np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=1), strict=True
        )
    ]
    matrix = np.einsum("lso,mso->lm", errors, errors) / samples
    return Diagnosis(
        errors=matrix,
        decomposition=decompose(matrix),
        intervals=dict(zip(NAMES, intervals, strict=False)),
        cost=tuple(intervals[len(NAMES) :]),
        samples=samples,
        units=units,
    )


def _statistics(sums: Floats) -> Floats:
    """The named quantities and the cost of each layer from sums (samples, loss, own, loss without
    each layer).
    """
    loss, own, *others = sums[1:] / sums[0]
    depth = len(others)
    shared = (depth * loss - own) / (depth - 1)
    # a draw may hold samples without error only
    correlation = np.divide(shared, own, out=np.zeros_like(own), where=own > 0)
    return np.array([loss, own, shared, own - shared, correlation, *(np.array(others) - loss)])


def _resampled(sums: Floats, draws: int, seed: int) -> Floats:
    """The sums (quantity, draw) over units drawn with replacement."""
    rng, units = np.random.default_rng(seed), sums.shape[1]
    found = np.empty((len(sums), draws))
    size = max(1, MOST_COUNTS // units)
    for first in range(0, draws, size):
        part = slice(first, min(first + size, draws))
        counts = rng.multinomial(units, np.full(units, 1 / units), size=part.stop - first)
        found[:, part] = sums @ counts.T
    return found


def _squared(errors: Floats) -> Floats:
    """Squared errors, summed over the last axis, the outputs."""
    return np.einsum("...o,...o->...", errors, errors)


def _cells(interval: Interval) -> list[str]:
    return [short(interval.estimate), f"{short(interval.low)} to {short(interval.high)}"]


def _check_settings(kind: str, draws: int, level: float) -> None:
    if kind not in ("alone", "running"):
        raise SpecError(f"kind: got {kind!r}, expected 'alone' or 'running'")
    if draws < 2:
        raise SpecError(f"draws: got {draws}, expected at least 2")
    if not 0 < level < 1:
        raise SpecError(f"level: got {level}, expected a number within (0, 1)")


def _arrays(predictions: ArrayLike, targets: ArrayLike) -> tuple[Floats, Floats]:
    """Predictions (layer, sample, output) and targets (sample, output), checked."""
    found, wanted = np.asarray(predictions, np.float64), np.asarray(targets, np.float64)
    if found.ndim not in (2, 3) or found.shape[1:] != wanted.shape:
        raise SolverError(
            f"predictions: got the shape {found.shape} beside targets {wanted.shape}; expected "
            "(layer, sample) beside (sample), or (layer, sample, output) beside (sample, output)"
        )
    for name, array in (("predictions", found), ("targets", wanted)):
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            at = ", ".join(map(str, bad[0].tolist()))
            raise SolverError(
                f"{name}[{at}]: got {array[tuple(bad[0])]}, expected finite numbers "
                f"({len(bad)} are not)"
            )
    if found.ndim == 2:
        return found[..., None], wanted[..., None]
    return found, wanted


def _groups(groups: ArrayLike | None, samples: int) -> tuple[NDArray[np.int64], int]:
    """The number of each sample's group, and how many there are."""
    labels: NDArray[Any] = np.arange(samples) if groups is None else np.asarray(groups)
    if labels.shape != (samples,):
        raise SolverError(
            f"groups: got the shape {labels.shape}, expected ({samples},), one label a sample"
        )
    names, number = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        what = "samples" if groups is None else "groups"
        raise SolverError(f"{what}: got {len(names)}, expected at least 2 to resample")
    return number.astype(np.int64), len(names)
