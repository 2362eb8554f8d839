r"""In-context regression with isotropic inputs and tasks (ISO), in the limit of large dimension.

With $\Gamma = \gamma I$ the loss is an integral over the Marchenko-Pastur law $\rho$ of
$\hat\Sigma = XX^T/P$ at $\alpha = P/D$, $r = 1 - \gamma x/L$:

$$\mathcal L(\gamma) = \int\rho\,\Big[r^{2L} + \frac{\sigma^2}{\alpha x}(1-r^L)^2\Big],\qquad
\mathcal L'(\gamma) = \int\rho\,\Big[-2x r^{2L-1} + \frac{2\sigma^2}\alpha(1-r^L)r^{L-1}\Big].$$

Both are polynomials in $x$ of degree at most $2L$ ($r^L\to e^{-\gamma x}$ at infinite depth), which
the rule of `spectra.marchenko_pastur` integrates without error once it has $L + 1$ nodes. Finite
dimension changes the loss by $O(1/D)$, which `Curve.loss_error` does not contain.

Derived in docs/theory/isotropic.md. Ref: arXiv:2510.01098, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leadline.curve import Curve, Floats, Status, point, trained
from leadline.errors import SolverError
from leadline.spec import BestScale, GivenScale, GradientFlow, RegressionRun, Training
from leadline.theory.flows import scalar_flow
from leadline.theory.landscape import log_residual
from leadline.theory.shallow import ShallowTraining
from leadline.theory.spectra import marchenko_pastur

EPS = float(np.finfo(np.float64).eps)
MAX_NODES = 2**18
VANISHED = 746.0  # e^-746 is zero, so that a larger gamma changes nothing


def landscape(
    gamma: ArrayLike, *, depth: float, ratio: float, noise: float = 0.0, nodes: int | None = None
) -> Floats:
    r"""The loss $\mathcal L(\gamma)$ of $\Gamma = \gamma I$, label noise of the queries excluded.

    **Arguments:** `gamma`, any shape; `depth` $L\ge1$ or infinity; `ratio` $\alpha = P/D > 0$, or
    infinity for infinite context; `noise` $\sigma$ of the labels in context; `nodes` of the
    quadrature, None for enough to reach rounding error.

    **Returns:** an array of the shape of `gamma`; infinite where it overflows.

    Ref: arXiv:2510.01098, Result 1.
    """
    return _integrals(gamma, depth=depth, ratio=ratio, noise=noise, nodes=nodes)[0]


def slope(
    gamma: ArrayLike, *, depth: float, ratio: float, noise: float = 0.0, nodes: int | None = None
) -> Floats:
    r"""The derivative $d\mathcal L/d\gamma$; arguments as in `landscape`."""
    return _integrals(gamma, depth=depth, ratio=ratio, noise=noise, nodes=nodes)[1]


def landscape_error(gamma: ArrayLike, *, depth: float, ratio: float, noise: float = 0.0) -> Floats:
    r"""A bound on the numerical error of `landscape` at its own number of nodes: what doubling
    them changes, and what rounding every $\gamma x$ can change.
    """
    nodes = _nodes(np.max(np.abs(gamma)), depth=depth, ratio=ratio)
    value, _, moved = _integrals(gamma, depth=depth, ratio=ratio, noise=noise, nodes=nodes)
    doubled = landscape(gamma, depth=depth, ratio=ratio, noise=noise, nodes=2 * nodes)
    with np.errstate(invalid="ignore"):
        error = np.abs(doubled - value) + 8 * EPS * (1 + value + np.abs(gamma) * moved)
    return np.where(np.isfinite(error), error, np.inf)


def _nodes(gamma: float, *, depth: float, ratio: float) -> int:
    # Exact from depth + 1 nodes on. Below that the integrand is a bell exp(-c t^2) in the angle,
    # which the midpoint rule resolves to rounding from 6.1 sqrt(c) nodes on. Inside the edge of
    # stability c is at most the depth; at infinite depth it is 2 gamma / sqrt(ratio).
    if math.isinf(ratio):
        return 1
    if not math.isinf(depth):
        resolved = min(depth + 1, 64 + 8 * math.sqrt(depth))
    else:
        lower = marchenko_pastur(ratio, nodes=1).lower
        reached = min(abs(gamma), VANISHED / (2 * lower)) if lower else abs(gamma)
        # in powers of two, so that a flow through many gammas meets few rules
        resolved = 2 ** math.ceil(math.log2(64 + 9 * math.sqrt(2 * reached / math.sqrt(ratio))))
    if resolved > MAX_NODES:
        raise SolverError(
            f"isotropic landscape: depth {depth:g}, gamma {gamma:g} and ratio {ratio:g} need "
            f"{resolved:.2g} quadrature nodes, expected at most {MAX_NODES}"
        )
    return int(resolved)


def _integrals(
    gamma: ArrayLike, *, depth: float, ratio: float, noise: float, nodes: int | None
) -> tuple[Floats, Floats, Floats]:
    """The loss, its slope, and the sum of the sizes of the terms of the slope."""
    gammas = np.asarray(gamma, np.float64)
    if nodes is None:
        nodes = _nodes(float(np.max(np.abs(gammas))), depth=depth, ratio=ratio)
    law = marchenko_pastur(ratio, nodes=nodes)
    x, weights = law.nodes, law.weights
    variance = noise**2 / ratio
    results = np.empty((3, gammas.size))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for i, g in enumerate(gammas.ravel().tolist()):
            # -1e4 stands for log 0: its exponential vanishes, and no 0 * inf arises at depth one
            logs = np.maximum(log_residual(x, g, depth=depth), -1e4)
            full, less = np.exp(logs), np.exp(logs * (1 - 1 / depth))  # |r|^L and |r|^(L-1)
            fitted = -np.expm1(logs)  # 1 - r^L
            if g * law.upper > depth:
                flipped = g * x > depth
                if depth % 2:
                    full[flipped] *= -1
                    fitted[flipped] = 1 - full[flipped]
                else:
                    less[flipped] *= -1
            fall = 2 * x * full * less
            loss, steepness, moved = full**2, -fall, np.abs(fall)
            if variance:  # zero times an overflow is no number
                rise = 2 * variance * fitted * less
                loss += variance / x * fitted**2
                steepness += rise
                moved += np.abs(rise)
            results[:, i] = law.atom + weights @ loss, weights @ steepness, weights @ moved
    return tuple(results.reshape(3, *gammas.shape))


def edge(*, depth: float, ratio: float) -> float:
    r"""The edge of stability $\gamma = 2L/b$, $b = (1+\alpha^{-1/2})^2$: beyond it the largest
    eigenvalue of $\hat\Sigma$ makes the error grow with every layer.
    """
    return 2 * depth / marchenko_pastur(ratio, nodes=1).upper


def closed_optimum(*, depth: float, ratio: float) -> tuple[float, float]:
    r"""The $\gamma$ of least loss without label noise, and that loss, at every depth:
    $$\gamma_* = \frac{L\alpha}{1+\alpha},\qquad
    \mathcal L_* = 1 - \sum_{l<L} C_l\frac{\alpha^{l+1}}{(1+\alpha)^{2l+1}}
    = (1-\alpha)_+ + \int\rho\,r_*^{2L},$$
    $C_l$ the Catalan numbers: $x\rho(x)$ is a semicircle symmetric about $1 + 1/\alpha$, where
    $r_*$ vanishes. The integral sums the tail $l\ge L$ of the series; its terms are positive, so
    no digits are lost however small the loss.

    **Returns:** $(\gamma_*, \mathcal L_*)$; $(\infty, (1-\alpha)_+)$ at infinite depth.

    Ref: derived in docs/theory/isotropic.md; the paper states depth one only, with
    $(1+\alpha)^{-2}$ for $1/(1+\alpha)$.
    """
    if math.isinf(depth):
        return math.inf, max(1 - ratio, 0.0)
    gamma = depth / (1 + 1 / ratio)
    return gamma, float(landscape(gamma, depth=depth, ratio=ratio))


def best_scale(*, depth: float, ratio: float, noise: float = 0.0) -> float:
    r"""The $\gamma$ of least loss up to the edge of stability, to a relative $10^{-12}$ or to the
    rounding of the slope.

    Without noise it is that of `closed_optimum`. With noise the loss need not be convex: the
    landscape is scanned at 300 points, and the slope's root beside the lowest is bisected. At
    infinite depth the slope is positive from $\gamma = \alpha/\sigma^2$ on, and from
    $\ln(1 + b\alpha/\sigma^2)/a$ on, which bounds the search: noise stops the descent early.
    """
    if noise == 0 or math.isinf(ratio):
        return closed_optimum(depth=depth, ratio=ratio)[0]
    law = marchenko_pastur(ratio, nodes=1)
    high = edge(depth=depth, ratio=ratio)
    if math.isinf(depth):
        high = ratio / noise**2
        if law.lower > 0:
            high = min(high, math.log1p(law.upper * high) / law.lower)
    low = 0.1 / (2 + (2 + noise**2) / ratio)  # a tenth of the first Newton step or less
    scan = np.geomspace(low, high, 300)
    values = landscape(scan, depth=depth, ratio=ratio, noise=noise)
    i = int(np.argmin(values))
    low, high = float(scan[max(i - 1, 0)]), float(scan[min(i + 1, 299)])
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        rising = slope(middle, depth=depth, ratio=ratio, noise=noise) > 0
        low, high = (low, middle) if rising else (middle, high)
    return (low + high) / 2


def descent(
    steps: int, *, step_size: float, depth: float, ratio: float, noise: float = 0.0
) -> Floats:
    r"""$\gamma$ after 0, ..., `steps` steps $\gamma\leftarrow\gamma -$ `step_size`
    $\mathcal L'(\gamma)$ from zero: gradient descent on $\Gamma$ with exact gradients, whose rate
    is $D$ times the step size, since $\partial\mathcal L/\partial\Gamma = \mathcal L'(\gamma) I/D$.
    """
    gammas = np.zeros(steps + 1)
    for t in range(steps):
        fall = slope(gammas[t], depth=depth, ratio=ratio, noise=noise)
        gammas[t + 1] = gammas[t] - step_size * fall
        if gammas[t + 1] == gammas[t] or not math.isfinite(gammas[t + 1]):
            gammas[t + 1 :] = gammas[t + 1]
            break
    return gammas


def solve(spec: RegressionRun) -> Curve:
    r"""The answer to an isotropic run.

    `GivenScale` and `BestScale` read the landscape, `GradientFlow` integrates its flow,
    `Training` follows gradient descent: with any batch at depth one, in expectation, and with exact
    gradients (`batch_size` and `queries` infinite) at any depth.

    **Returns:** a curve with the scalar "gamma", the mean diagonal of $\Gamma$; training at depth
    one adds "largest_rate", the rate from which on it is unstable.

    **Raises:** `SolverError` for a narrower stream, untied layers, an infinite dimension, another
    task to evaluate, named measures, or deep training with noisy gradients.
    """
    task, model, recipe = spec.task, spec.model, spec.recipe
    if math.isinf(task.spectrum.dim):
        raise SolverError(
            "task.spectrum.dim: got infinity; the isotropic loss depends on context / dim, "
            "expected a finite dim"
        )
    if model.width is not None:
        raise SolverError(
            f"model.width: got {model.width}; isotropic theory has the full width only, expected "
            "None (a flat spectrum with covariance 'rotated' is the same task at any width)"
        )
    if spec.evaluation.task is not None:
        raise SolverError(
            "evaluation.task: isotropic theory evaluates the task trained on only; covariance "
            "'rotated' at infinite context has shifts"
        )
    if not model.tied:
        raise SolverError("model.tied: got False; isotropic theory has tied layers only")
    if spec.evaluation.measures:
        raise SolverError(
            f"evaluation.measures: got {', '.join(spec.evaluation.measures)}; isotropic theory "
            "records no measures"
        )
    ratio = task.context / task.spectrum.dim
    match recipe:
        case GivenScale(gamma=gamma):
            return _landscape_point(spec, gamma, ratio)
        case BestScale():
            best = best_scale(depth=model.depth, ratio=ratio, noise=task.noise)
            return _landscape_point(spec, best, ratio)
        case GradientFlow():
            return _solve_flow(spec, recipe, ratio)
        case Training():
            if model.depth == 1:
                return _solve_shallow(spec, recipe, ratio)
            return _solve_descent(spec, recipe, ratio)


def _landscape_point(spec: RegressionRun, gamma: float, ratio: float) -> Curve:
    depth, noise = spec.model.depth, spec.task.noise
    if math.isinf(gamma):
        loss, error = closed_optimum(depth=depth, ratio=ratio)[1], EPS
    else:
        loss = float(landscape(gamma, depth=depth, ratio=ratio, noise=noise))
        error = float(landscape_error(gamma, depth=depth, ratio=ratio, noise=noise))
    status = _status([gamma], [loss], depth=depth, ratio=ratio)
    scalars = {"gamma": gamma, "edge": edge(depth=depth, ratio=ratio)}
    return point(loss, error=error, status=status, scalars=scalars)


def _solve_flow(spec: RegressionRun, recipe: GradientFlow, ratio: float) -> Curve:
    depth, noise = spec.model.depth, spec.task.noise
    gamma, gamma_error = scalar_flow(
        lambda g: float(slope(g, depth=depth, ratio=ratio, noise=noise)),
        recipe.times,
        start=recipe.start,
    )
    loss, steepness, _ = _integrals(gamma, depth=depth, ratio=ratio, noise=noise, nodes=None)
    error = landscape_error(gamma, depth=depth, ratio=ratio, noise=noise)
    return trained(
        spec,
        step=np.zeros(gamma.size, np.int64),
        time=np.asarray(recipe.times),
        loss=loss,
        error=error + 2 * np.abs(steepness) * gamma_error,
        status=_status(gamma, loss, depth=depth, ratio=ratio),
        scalars={"gamma": float(gamma[-1]), "edge": edge(depth=depth, ratio=ratio)},
    )


def _recorded(spec: RegressionRun, recipe: Training) -> NDArray[np.int64]:
    return np.array(spec.evaluation.record or (recipe.steps,), np.int64)


def _solve_descent(spec: RegressionRun, recipe: Training, ratio: float) -> Curve:
    depth, noise, dim = spec.model.depth, spec.task.noise, spec.task.spectrum.dim
    if not (math.isinf(recipe.batch_size) and math.isinf(recipe.queries)):
        raise SolverError(
            f"recipe.batch_size, recipe.queries: got {recipe.batch_size}, {recipe.queries} at "
            f"model.depth {depth}; theory trains deeper models with both infinite "
            "(exact gradients) only, the simulation with any"
        )
    step = _recorded(spec, recipe)
    step_size = recipe.rate / dim
    path = descent(int(step[-1]), step_size=step_size, depth=depth, ratio=ratio, noise=noise)
    gamma = path[step]
    loss = landscape(gamma, depth=depth, ratio=ratio, noise=noise)
    return trained(
        spec,
        step=step,
        time=np.multiply(step, step_size, dtype=np.float64),
        loss=loss,
        error=landscape_error(gamma, depth=depth, ratio=ratio, noise=noise),
        status=_status(path, loss, depth=depth, ratio=ratio),
        scalars={"gamma": float(gamma[-1]), "edge": edge(depth=depth, ratio=ratio)},
    )


def _solve_shallow(spec: RegressionRun, recipe: Training, ratio: float) -> Curve:
    task, dim = spec.task, spec.task.spectrum.dim
    training = ShallowTraining(
        ratio=ratio,
        batch_ratio=recipe.batch_size / dim,
        query_ratio=recipe.queries / dim,
        step_size=recipe.rate / dim,
        noise=task.noise,
        query_noise=task.query_noise,
    )
    step = _recorded(spec, recipe)
    loss = training.loss(step)
    stable = "ok" if training.gap > 0 else "unstable"
    return trained(
        spec,
        step=step,
        time=np.multiply(step, training.step_size, dtype=np.float64),
        loss=loss,
        error=training.rounding(step),
        status=stable if np.all(np.isfinite(loss)) else "diverged",
        scalars={
            "gamma": float(training.gamma(step[-1])),
            "largest_rate": training.largest_step * dim,
        },
    )


def _status(
    gamma: Sequence[float] | Floats, loss: Sequence[float] | Floats, *, depth: float, ratio: float
) -> Status:
    if not np.all(np.isfinite(loss)):
        return "diverged"
    # at ratio one the best scale lies on the edge itself
    past = np.max(gamma) > edge(depth=depth, ratio=ratio) * (1 + 1e-12)
    return "unstable" if past else "ok"
