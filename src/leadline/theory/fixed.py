r"""In-context regression with one fixed covariance (FS), at infinite context and width.

Training sees the same $\Sigma$ in every context, so $\Gamma$ can learn its inverse, one mode at a
time: the matrix flow $\dot\Gamma = -\partial\mathcal L/\partial\Gamma$ from $\gamma_0 I$ stays
diagonal in the common basis and

$$\dot\gamma_k = 2\omega_k\lambda_k^2\,r_k^{2L-1},\qquad r_k = 1 - \gamma_k\lambda_k/L,$$

has a closed solution at every depth. Time is that of the matrix flow (gradient descent with rate
$\eta$ advances it by $\eta$ a step), not the scalar clock of the isotropic and rotated tasks. What
was learned is specific to $\Sigma$; `shift.shifted_modes` says what it is worth for another one.

Derived in docs/theory/fixed.md. Ref: arXiv:2510.01098, section 3.2 and appendix D, whose exponent
of the time law is corrected.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from leadline.curve import Curve, Floats, trained
from leadline.errors import SolverError
from leadline.spec import GradientFlow, InContextRegression, RegressionRun, Spectrum
from leadline.theory import landscape
from leadline.theory.landscape import EPS, PowerLaw
from leadline.theory.rotated import check_infinite, recorded, solve_scale
from leadline.theory.shift import shifted_modes, turned_task
from leadline.theory.spectra import EXPLICIT, Modes, power_law_modes

Times = Sequence[float] | Floats

LARGEST_DIAGONAL = 2**20


def _log_energy(modes: Modes, time: float, *, depth: float, start: float) -> Floats:
    r"""$\ln r_k^{2L}$ after `time`: with $c = 1 - 1/L$ the flow makes $r_k^{-2Lc}$ grow linearly
    at the rate $4c\,\omega_k\lambda_k^3$, and $\ln r_k^{2L}$ fall at four times that at $L = 1$.
    """
    initial = 2 * landscape.log_residual(modes.eigenvalues, start, depth=depth)
    rates = 4 * modes.power * modes.eigenvalues**2
    c = 1 - 1 / depth
    if c == 0:
        return initial - rates * time
    with np.errstate(over="ignore", divide="ignore"):
        return initial - np.log1p(c * rates * time * np.exp(c * initial)) / c


def flow_loss(modes: Modes, times: Times, *, depth: float, start: float = 0.0) -> Floats:
    r"""The loss under the matrix flow from $\Gamma$ = `start` $I$; from zero
    $$\mathcal L(t) = \sum_k\omega_k\lambda_k\,
    [1 + 4(1-1/L)\,\omega_k\lambda_k^3\,t]^{-L/(L-1)},$$
    with the limits $\sum\omega\lambda\,e^{-4\omega\lambda^3t}$ at $L = 1$ and
    $\sum\omega\lambda/(1 + 4\omega\lambda^3t)$ at $L = \infty$.

    **Arguments:** `times` $\ge 0$; `depth` $L\ge 1$ or infinity. Returns one loss a time.

    Ref: derived in docs/theory/fixed.md.
    """
    return np.array(
        [modes.weights @ np.exp(_log_energy(modes, t, depth=depth, start=start)) for t in times]
    )


def flow_exponent(modes: Modes, times: Times, *, depth: float) -> Floats:
    r"""The local exponent $-d\ln\mathcal L/d\ln t$ of the flow from zero, one value a time;
    exact, from $\dot{\mathcal L} = -4\sum_k\omega_k^2\lambda_k^4\,r_k^{4L-2}$.
    """
    exponents: list[float] = []
    for t in times:
        logs = _log_energy(modes, t, depth=depth, start=0.0)
        energies = modes.weights * np.exp(logs)
        rates = 4 * modes.power * modes.eigenvalues**2 * np.exp((1 - 1 / depth) * logs)
        exponents.append(t * float(energies @ rates) / float(energies.sum()))
    return np.array(exponents)


def flow_scales(modes: Modes, times: Times, *, depth: float, start: float = 0.0) -> Floats:
    r"""The eigenvalues $\gamma_k(t) = L(1 - r_k)/\lambda_k$ of $\Gamma$, shape (time, mode);
    $\gamma_k = \gamma_0 + \ln(1 + 4\omega_k\lambda_k^3e^{-2\gamma_0\lambda_k}t)/(2\lambda_k)$ at
    infinite depth.
    """
    rows: list[Floats] = []
    flipped = start * modes.eigenvalues > depth
    for t in times:
        logs = _log_energy(modes, t, depth=depth, start=start) / 2
        if math.isinf(depth):
            rows.append(-logs / modes.eigenvalues)
        else:
            kept = -np.expm1(logs / depth)  # 1 - |r|
            rows.append(depth * np.where(flipped, 2 - kept, kept) / modes.eigenvalues)
    return np.array(rows)


def time_law(spectrum: Spectrum, *, depth: float) -> PowerLaw:
    r"""The asymptote of the loss against time in infinite dimension,
    $$\mathcal L\sim C\,t^{-e},\quad e = \frac{a+b-1}{3a+b} =
    \frac{\nu\beta}{\nu\beta+2\nu+1},\quad
    C = \frac{s}{p}(4s)^{-e}\int_0^\infty y^{e-1}[1+(1-\tfrac1L)y]^{-L/(L-1)}dy,$$
    $\omega_k\lambda_k^3 = s\,k^{-p}$: every depth has the same exponent.

    **Arguments:** `spectrum` with $a + b > 1$; its `dim` enters only through the scale $s$.

    **Raises:** `SolverError` if $a + b\le 1$ or $a = 0$.

    Ref: derived in docs/theory/fixed.md; the paper prints $\beta/(\nu+\nu\beta+1)$.
    """
    a, b = spectrum.input_exponent, spectrum.task_exponent
    if a <= 0 or a + b <= 1:
        raise SolverError(
            f"task.spectrum: input_exponent {a:g} and sum of exponents {a + b:g} give no power "
            "law in time; it needs input_exponent > 0 and a sum above 1"
        )
    steepness = 3 * a + b
    exponent = (a + b - 1) / steepness
    scale = float(power_law_modes(spectrum).power[0])
    c = 1 - 1 / depth
    if c == 0:
        integral = math.gamma(exponent)
    else:
        logs = math.lgamma(exponent) + math.lgamma(1 / c - exponent) - math.lgamma(1 / c)
        integral = math.exp(logs - exponent * math.log(c))
    return PowerLaw(
        prefactor=scale / steepness * (4 * scale) ** -exponent * integral, exponent=exponent
    )


def solve(spec: RegressionRun) -> Curve:
    r"""The answer to `spec` for fixed covariance at infinite context and full width.

    `GivenScale` and `BestScale` ask about $\Gamma = \gamma I$, whose loss is that of the rotated
    task; untied layers may each have their scale. `GradientFlow` follows the whole matrix from
    `start` times the identity, on the clock of this module; untied layers, which start equal, stay
    equal. The measure "scales" is $\gamma_k$, shape (time, mode), in dimension up to 16384.

    **Raises:** `SolverError` outside infinite context and full width, and for `Training`.
    """
    if not isinstance(spec.recipe, GradientFlow):
        return solve_scale(spec)
    check_infinite(spec)
    depth, start = spec.model.depth, spec.recipe.start
    times = np.array(spec.recipe.times)
    modes = power_law_modes(spec.task.spectrum)
    if spec.evaluation.task is None:
        loss = flow_loss(modes, times, depth=depth, start=start)
        coarse = power_law_modes(spec.task.spectrum, explicit=EXPLICIT // 2)
        error = np.abs(loss - flow_loss(coarse, times, depth=depth, start=start))
        error += _rounding(modes, times, depth=depth, start=start)
    else:
        loss, error = _shifted_flow(spec, spec.evaluation.task, times)
    available: dict[str, Floats] = {}
    if spec.task.spectrum.dim <= EXPLICIT:
        available["scales"] = flow_scales(modes, times, depth=depth, start=start)
    finite = bool(np.isfinite(loss).all())
    return trained(
        spec,
        step=np.zeros(len(times), np.int64),
        time=times,
        loss=loss,
        error=error,
        status="ok" if finite else "diverged",
        measures=recorded(spec, **available),
    )


def _rounding(modes: Modes, times: Times, *, depth: float, start: float) -> Floats:
    errors: list[float] = []
    for t in times:
        logs = _log_energy(modes, t, depth=depth, start=start)
        kept = logs > -700
        errors.append(float((modes.weights * np.exp(logs))[kept] @ (8 - 4 * logs[kept])))
    return EPS * np.array(errors)


def _shifted_flow(
    spec: RegressionRun, shifted: InContextRegression, times: Floats
) -> tuple[Floats, Floats]:
    """The loss of the trained scales on another task, and its error."""
    assert isinstance(spec.recipe, GradientFlow)
    depth, dim = spec.model.depth, spec.task.spectrum.dim
    if shifted.covariance == "rotated":
        raise SolverError(
            "evaluation.task.covariance: got 'rotated' after training on fixed covariance, which "
            "has no closed form; evaluate on fixed or isotropic covariance, or simulate it"
        )
    if dim > LARGEST_DIAGONAL:
        raise SolverError(
            f"task.spectrum.dim: got {dim}, expected at most {LARGEST_DIAGONAL} under a shift"
        )
    modes = power_law_modes(spec.task.spectrum, explicit=int(dim))
    scales = flow_scales(modes, times, depth=depth, start=spec.recipe.start)
    if shifted.turn is None:
        target = power_law_modes(shifted.spectrum, explicit=int(dim))
        seen = [dataclasses.replace(target, eigenvalues=row * target.eigenvalues) for row in scales]
    else:
        matrices = turned_task(shifted)
        seen = [shifted_modes(np.diag(row), *matrices) for row in scales]
    loss = [float(landscape.loss(m, 1.0, depth=depth)) for m in seen]
    # an eigenvalue of a dense matrix is off by a rounding of the largest one
    spread = 1 if shifted.turn is None else math.sqrt(dim)
    error = [spread * float(landscape.rounding(m, 1.0, depth=depth)) for m in seen]
    return np.array(loss), np.array(error)
