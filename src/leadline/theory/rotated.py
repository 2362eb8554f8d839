r"""In-context regression with rotated covariances (RRS), at infinite context and width.

Every context turns the inputs and the tasks into a new basis, so $\Gamma$ can only be a multiple of
the identity, and the layers run gradient descent with one step size. Label noise in context
vanishes with infinite context: $XX^T/P\to\Sigma$ and $X\epsilon/P\to 0$.

Derived in docs/theory/rotated.md. Ref: arXiv:2510.01098, section 4 and appendix F.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from leadline.curve import Curve, Floats, Measure, Status, point, trained
from leadline.errors import SolverError
from leadline.spec import BestScale, GivenScale, GradientFlow, RegressionRun, Spectrum
from leadline.theory import landscape
from leadline.theory.flows import scalar_flow
from leadline.theory.landscape import PowerLaw
from leadline.theory.polynomials import free_steps
from leadline.theory.shift import evaluated_modes
from leadline.theory.spectra import EXPLICIT, Modes, power_law_modes


def scale_law(spectrum: Spectrum) -> PowerLaw:
    r"""The asymptote of the loss against the scale at infinite depth,
    $\mathcal L(\gamma)\sim K\gamma^{-\beta}$, $K = \frac{s}{\nu}\Gamma(\beta)2^{-\beta}$, where
    $\omega_k\lambda_k = s\,k^{-\nu\beta-1}$ and $\lambda_k = k^{-\nu}$.

    **Arguments:** `spectrum` with $\nu = a > 0$, $\beta = (a+b-1)/a > 0$; its `dim` enters only
    through the scale $s$.

    **Raises:** `SolverError` without a power law: $a = 0$ or $a + b\le 1$.

    Ref: derived in docs/theory/rotated.md.
    """
    a, b = spectrum.input_exponent, spectrum.task_exponent
    if a <= 0 or a + b <= 1:
        raise SolverError(
            f"task.spectrum: input_exponent {a:g} and sum of exponents {a + b:g} give no power "
            "law; it needs input_exponent > 0 and a sum above 1"
        )
    beta = (a + b - 1) / a
    scale = float(power_law_modes(spectrum).power[0])
    return PowerLaw(prefactor=scale / a * math.gamma(beta) * 2**-beta, exponent=beta)


def time_law(spectrum: Spectrum) -> PowerLaw:
    r"""The asymptote of the loss against time under the scalar flow at infinite depth: from
    $\dot\gamma = K\beta\gamma^{-\beta-1}$, $\gamma = (K\beta(\beta+2)t)^{1/(\beta+2)}$ and
    $\mathcal L\sim K\,(K\beta(\beta+2)\,t)^{-\beta/(2+\beta)}$. Arguments as in `scale_law`.
    """
    law = scale_law(spectrum)
    beta = law.exponent
    exponent = beta / (2 + beta)
    rate = law.prefactor * beta * (beta + 2)
    return PowerLaw(prefactor=law.prefactor * rate**-exponent, exponent=exponent)


def depth_law(spectrum: Spectrum) -> PowerLaw:
    r"""The asymptote of the least loss against depth: the best scale tends to the edge of
    stability, $\gamma_*\to 2L/\lambda_1$ (short of it by $O(\ln L/L)$), hence
    $\mathcal L_*\sim K(2L/\lambda_1)^{-\beta} = \frac{s}{\nu}\Gamma(\beta)(4L/\lambda_1)^{-\beta}$.
    Arguments as in `scale_law`; $\lambda_1 = 1$.

    Ref: derived in docs/theory/rotated.md; arXiv:2510.01098, appendix F.2, takes
    $\gamma_* = L/\lambda_1$, which is $2^\beta$ larger.
    """
    law = scale_law(spectrum)
    return PowerLaw(prefactor=law.prefactor * 2**-law.exponent, exponent=law.exponent)


def flow_scale(
    modes: Modes, times: Sequence[float] | Floats, *, depth: float, start: float = 0.0
) -> tuple[Floats, Floats]:
    r"""$\gamma(t)$ of the scalar flow $\dot\gamma = -d\mathcal L/d\gamma$ from `start`, and an
    estimate of its error. The matrix flow is `dim` times slower.

    **Arguments:** `times`, increasing and $\ge 0$; `depth` $L\ge 1$ or infinity.
    """
    return scalar_flow(
        lambda gamma: float(landscape.slope(modes, gamma, depth=depth)), times, start=start
    )


def flow_exponent(modes: Modes, times: Sequence[float] | Floats, *, depth: float) -> Floats:
    r"""The local exponent $-d\ln\mathcal L/d\ln t = t\,\mathcal L'(\gamma)^2/\mathcal L$ of the
    flow from zero, one value a time.
    """
    gamma, _ = flow_scale(modes, times, depth=depth)
    steepness = landscape.slope(modes, gamma, depth=depth)
    return np.asarray(times) * steepness**2 / landscape.loss(modes, gamma, depth=depth)


def check_infinite(spec: RegressionRun) -> None:
    """Refuse what the theory of infinite context and width does not answer.

    **Raises:** `SolverError` for finite context, a narrower stream, or `Training`.
    """
    found = ""
    if not math.isinf(spec.task.context):
        found = f"task.context: got {spec.task.context}, expected infinity"
    elif spec.model.width is not None:
        found = f"model.width: got {spec.model.width}, expected none (full width)"
    elif not isinstance(spec.recipe, GivenScale | BestScale | GradientFlow):
        found = (
            f"recipe: got {type(spec.recipe).__name__}, expected GivenScale, BestScale or "
            "GradientFlow"
        )
    if found:
        raise SolverError(
            f"{found} for theory of {spec.task.covariance} covariance; simulate it with train"
        )


def recorded(spec: RegressionRun, **available: Floats) -> tuple[Measure, ...]:
    """The arrays that `evaluation.measures` names, of those available.

    **Raises:** `SolverError` for another name.
    """
    for name in spec.evaluation.measures:
        if name not in available:
            raise SolverError(
                f"evaluation.measures: got {name!r}; theory of {spec.task.covariance} covariance "
                f"records {', '.join(available) or 'nothing'} here"
            )
    return tuple(Measure(name=name, values=available[name]) for name in spec.evaluation.measures)


def solve(spec: RegressionRun) -> Curve:
    r"""The answer to `spec` for rotated covariance at infinite context and full width.

    `GradientFlow` is the scalar flow, and records $\gamma(t)$ as the measure "gamma"; untied
    layers, which start equal, stay equal: trained at $L$ times the rate they follow the tied flow.
    Otherwise as `solve_scale`.

    **Raises:** `SolverError` outside infinite context and full width, and for `Training`.
    """
    if not isinstance(spec.recipe, GradientFlow):
        return solve_scale(spec)
    check_infinite(spec)
    depth, times = spec.model.depth, np.array(spec.recipe.times)
    modes = power_law_modes(spec.task.spectrum)
    gamma, gamma_error = flow_scale(modes, times, depth=depth, start=spec.recipe.start)
    loss, error = _losses(spec, gamma)
    seen = evaluated_modes(spec)
    error += 2 * gamma_error * np.abs(landscape.slope(seen, gamma, depth=depth))
    return trained(
        spec,
        step=np.zeros(len(times), np.int64),
        time=times,
        loss=loss,
        error=error,
        status=_status(spec, modes, float(gamma.max()), loss),
        scalars={"gamma": float(gamma[-1]), "edge": landscape.edge(modes, depth=depth)},
        measures=recorded(spec, gamma=gamma),
    )


def solve_scale(spec: RegressionRun) -> Curve:
    r"""The answer to `GivenScale` and `BestScale` for fixed and rotated covariance alike: where
    $\Gamma = \gamma I$ the basis does not matter.

    The best scale is that of the task trained on, whatever is evaluated. Untied layers have a scale
    each; their best ones, measure "scales", are $L$ over the roots of the best residual polynomial.
    At infinite depth the best scale is infinite and nothing is left.
    Status "unstable": beyond the edge $\gamma = 2L/\lambda_1$ of the task trained on.

    **Raises:** `SolverError` outside infinite context and full width.
    """
    check_infinite(spec)
    depth = spec.model.depth
    modes = power_law_modes(spec.task.spectrum)
    edge = landscape.edge(modes, depth=depth)
    if isinstance(spec.recipe, BestScale):
        if not spec.model.tied and not math.isinf(depth):
            return _best_untied(spec, int(depth))
        gamma = landscape.best_scale(modes, depth=depth)
    else:
        assert isinstance(spec.recipe, GivenScale)
        gamma = spec.recipe.gamma
    if math.isinf(gamma):
        curve = point(0.0, error=0.0, scalars={"gamma": gamma, "edge": edge})
        return dataclasses.replace(curve, measures=recorded(spec))
    loss, error = _losses(spec, np.array([gamma]))
    curve = point(
        float(loss[0]),
        error=float(error[0]),
        status=_status(spec, modes, gamma, loss),
        scalars={"gamma": gamma, "edge": edge},
    )
    return dataclasses.replace(curve, measures=recorded(spec))


def _best_untied(spec: RegressionRun, depth: int) -> Curve:
    free = free_steps(power_law_modes(spec.task.spectrum), depth=depth)
    if spec.evaluation.task is not None:
        raise SolverError(
            "evaluation.task: the best untied scales are known on the task trained on only; "
            "double precision does not resolve what their product leaves of other modes"
        )
    coarse = free_steps(power_law_modes(spec.task.spectrum, explicit=EXPLICIT // 2), depth=depth)
    curve = point(free.loss, error=abs(free.loss - coarse.loss) + 1e-12 * free.loss)
    return dataclasses.replace(curve, measures=recorded(spec, scales=free.scales))


def _losses(spec: RegressionRun, gamma: Floats) -> tuple[Floats, Floats]:
    """The loss at every scale, and its error: of rounding, and of the sum over the tail, which
    halving the explicit modes makes four times as large.
    """
    depth, modes = spec.model.depth, evaluated_modes(spec)
    loss = landscape.loss(modes, gamma, depth=depth)
    error = landscape.rounding(modes, gamma, depth=depth)
    task = spec.evaluation.task or spec.task
    if task.turn is None:
        coarse = power_law_modes(task.spectrum, explicit=EXPLICIT // 2)
        with np.errstate(invalid="ignore"):
            error = error + np.abs(loss - landscape.loss(coarse, gamma, depth=depth))
    return loss, np.where(np.isfinite(loss), error, np.inf)


def _status(spec: RegressionRun, modes: Modes, gamma: float, loss: Floats) -> Status:
    if not np.isfinite(loss).all():
        return "diverged"
    return "unstable" if gamma > landscape.edge(modes, depth=spec.model.depth) else "ok"
