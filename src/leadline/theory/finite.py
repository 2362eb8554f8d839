r"""In-context regression with rotated covariances (RRS) at finite context, finite width, or both.

The loss is the two-point equivalent of `leadline.theory.equivalents`: an average over rotations,
contexts and projections that is exact as $D$, $N$, $P$ grow together. Real systems are off by
$O(1/D)$, which `Curve.loss_error` does not contain.

With an orthogonal projection the matrix flow in $N$ dimensions stays at $\gamma I_N$, $N$ times
slower than the scalar clock. With a Gaussian one $\Gamma\propto I$ (power 1) or
$\Gamma\propto AA^T$ (power 2) is an ansatz, which training does not keep.

Derived in docs/theory/equivalents.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from leadline.curve import Curve, Floats, Status, point, trained
from leadline.errors import SolverError
from leadline.spec import (
    BestScale,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RegressionRun,
)
from leadline.theory.compression import compressed
from leadline.theory.equivalents import TOLERANCE, landscape, landscape_error
from leadline.theory.flows import scalar_flow
from leadline.theory.limits import deep_limit
from leadline.theory.rotated import recorded
from leadline.theory.streams import Stream, edge
from leadline.theory.tabulated import Tabulated

DEEPEST = 1e8
"""The largest scale, in inverse edges, that is searched at infinite depth."""


def stream_of(task: InContextRegression, model: ReducedAttention) -> Stream:
    """The stream that `model` makes of the contexts of `task`."""
    return Stream(
        modes=compressed(task.spectrum),
        context=float(task.context),
        width=math.inf if model.width is None else float(model.width),
        projection=model.projection,
        power=model.power,
    )


def best_scale(stream: Stream, *, depth: float, noise: float = 0.0) -> float:
    r"""The $\gamma$ of least loss, to a relative $10^{-10}$ or the rounding of the slope.

    The loss need not be convex: eighty scales up to twice the edge of stability are compared, and
    the root of the slope beside the best is bracketed. At infinite depth the answer is infinite
    where nothing stops the descent early; where a little noise puts the optimum beyond $10^8$
    inverse edges, it is that.
    """
    end = edge(stream)
    low = _first_step(stream, end, depth, noise) / 10
    if math.isinf(depth):
        scan = np.geomspace(low, DEEPEST / end, 100)
    else:
        stable = 2 * depth / end
        near = np.geomspace(0.5, 0.02 / depth, 24)
        below = np.geomspace(min(low, stable / 10), stable / 2, 40)
        scan = np.concatenate([below, stable * (1 - near[1:]), [stable], stable * (1 + near[::-2])])
    values, _ = landscape(stream, scan, depth=depth, noise=noise, tolerance=1e-6)
    best = int(np.nanargmin(values))
    if math.isinf(depth) and noise == 0 and deep_limit(stream) <= values[best] * (1 + 1e-6):
        return math.inf
    if best in (0, scan.size - 1):
        return float(scan[best])
    return _root(stream, float(scan[best - 1]), float(scan[best + 1]), depth=depth, noise=noise)


def _first_step(stream: Stream, end: float, depth: float, noise: float) -> float:
    """The minimum of the parabola that the loss is near zero."""
    at = np.array([0.0, 1e-4 / end])
    _, slope = landscape(stream, at, depth=depth, noise=noise, tolerance=1e-6)
    return float(-slope[0] * at[1] / (slope[1] - slope[0]))


def _root(stream: Stream, low: float, high: float, *, depth: float, noise: float) -> float:
    """The root of the slope in a bracket: sections of sixteen at once, then secants."""
    while high - low > 1e-10 * high:
        scan = np.linspace(low, high, 17)
        _, slope = landscape(stream, scan, depth=depth, noise=noise)
        rising = np.flatnonzero(slope[1:] > 0)
        if rising.size == 0:
            return high
        i = int(rising[0]) + 1
        low, high = float(scan[i - 1]), float(scan[i])
        fall, rise = -float(slope[i - 1]), float(slope[i])
        if fall <= 0:
            return low
        if high - low < 1e-4 * high:
            # the slope is straight by now
            guess, width = low + (high - low) * fall / (fall + rise), (high - low) * 1e-3
            low, high = max(low, guess - width), min(high, guess + width)
    return (low + high) / 2


def flow_scale(
    stream: Stream,
    times: Sequence[float] | Floats,
    *,
    depth: float,
    noise: float = 0.0,
    start: float = 0.0,
    tolerance: float = TOLERANCE,
) -> tuple[Floats, Floats]:
    r"""$\gamma(t)$ of the scalar flow $\dot\gamma = -d\mathcal L/d\gamma$ from `start` at `times`,
    increasing and $\ge0$, and an estimate of its error; `tolerance` is that of the slope.
    """
    slope = Tabulated(
        lambda gamma: landscape(stream, gamma, depth=depth, noise=noise, tolerance=tolerance)[1],
        scale=1 / edge(stream),
        tolerance=tolerance,
    )
    gamma, error = scalar_flow(slope, times, start=start, tolerance=tolerance / 100)
    # a slope that is off by a part of itself runs on a clock that is off by that part
    return gamma, error + 2 * slope.error * np.abs(gamma - start)


def solve(spec: RegressionRun) -> Curve:
    r"""The answer to `spec` for rotated covariance at finite context or width.

    `GradientFlow` is the scalar flow, and records $\gamma(t)$ as the measure "gamma"; untied
    layers, which start equal, stay equal. The scalar "edge" is the edge of stability
    $\gamma = 2L/e$, $e$ the largest eigenvalue of $M$; beyond it the status is "unstable".

    **Raises:** `SolverError` for another task to evaluate, the best scales of untied layers,
    `Training`, and what `streams.Stream` or `compression.compressed` refuses.
    """
    if spec.evaluation.task is not None:
        raise SolverError(
            "evaluation.task: got a shift at finite context or width, where theory evaluates the "
            "task trained on only, expected none; simulate it with train"
        )
    stream = stream_of(spec.task, spec.model)
    depth, noise = spec.model.depth, spec.task.noise
    stable = 2 * depth / edge(stream)
    match spec.recipe:
        case GivenScale(gamma=gamma):
            return _point(spec, stream, gamma, stable)
        case BestScale():
            if not spec.model.tied and depth > 1:
                raise SolverError(
                    "model.tied: got False at finite context or width, where the best scales of "
                    "untied layers are not known, expected True"
                )
            gamma = best_scale(stream, depth=depth, noise=noise)
            return _point(spec, stream, gamma, stable)
        case GradientFlow():
            return _flow(spec, spec.recipe, stream, stable)
        case _:
            raise SolverError(
                f"recipe: got {type(spec.recipe).__name__}, expected GivenScale, BestScale or "
                "GradientFlow for theory of rotated covariance; simulate it with train"
            )


def _point(spec: RegressionRun, stream: Stream, gamma: float, stable: float) -> Curve:
    depth, noise = spec.model.depth, spec.task.noise
    if math.isinf(gamma):
        loss = deep_limit(stream)
        error = 1e-12 * loss
    else:
        loss = float(landscape(stream, gamma, depth=depth, noise=noise)[0])
        error = float(landscape_error(stream, gamma, depth=depth, noise=noise))
    status = _status(gamma, np.array([loss]), stable)
    curve = point(loss, error=error, status=status, scalars={"gamma": gamma, "edge": stable})
    return dataclasses.replace(curve, measures=recorded(spec))


def _flow(spec: RegressionRun, recipe: GradientFlow, stream: Stream, stable: float) -> Curve:
    depth, noise = spec.model.depth, spec.task.noise
    gamma, gamma_error = flow_scale(
        stream, recipe.times, depth=depth, noise=noise, start=recipe.start
    )
    loss, steepness = landscape(stream, gamma, depth=depth, noise=noise)
    error = landscape_error(stream, gamma, depth=depth, noise=noise)
    return trained(
        spec,
        step=np.zeros(gamma.size, np.int64),
        time=np.asarray(recipe.times),
        loss=loss,
        error=error + 2 * np.abs(steepness) * gamma_error,
        status=_status(float(gamma.max()), loss, stable),
        scalars={"gamma": float(gamma[-1]), "edge": stable},
        measures=recorded(spec, gamma=gamma),
    )


def _status(gamma: float, loss: Floats, stable: float) -> Status:
    if not np.isfinite(loss).all():
        return "diverged"
    return "unstable" if gamma > stable else "ok"
