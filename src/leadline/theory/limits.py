r"""What is left at infinite depth and scale: the limits that width and context set.

With $\Gamma = \gamma I$, $L$ and $\gamma$ infinite inside the edge of stability, the residual
$(I-\gamma M/L)^L$ becomes a projection onto the kernel of $M$, and the loss a sum over modes at one
real $\kappa$, where the degrees of freedom $\operatorname{Tr}\Lambda(\kappa+\Lambda)^{-1}$ equal
the width or the context, whichever is smaller.

Derived in docs/theory/equivalents.md, "Infinite depth". Ref: arXiv:2510.01098, appendix G.
"""

from __future__ import annotations

import math

import numpy as np

from leadline.errors import SolverError
from leadline.spec import Spectrum
from leadline.theory.compression import Population
from leadline.theory.landscape import PowerLaw
from leadline.theory.spectra import power_law_modes
from leadline.theory.streams import Stream, pair_excess


def matching_kappa(modes: Population, freedom: float) -> float:
    r"""The $\kappa>0$ at which $\operatorname{Tr}\Lambda(\kappa+\Lambda)^{-1}$ is `freedom`.

    **Arguments:** `freedom` in $(0, D)$.
    """
    if not 0 < freedom < modes.dim:
        raise SolverError(
            f"degrees of freedom: got {freedom:g}, expected a number > 0 and < dim {modes.dim:g}"
        )
    low, high = 1e-300, float(modes.inputs.sum()) / freedom
    for _ in range(2000):
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            break
        terms = modes.inputs / (middle + modes.eigenvalues)
        low, high = (middle, high) if terms.sum() > freedom else (low, middle)
    return high


def context_limit(modes: Population, context: float) -> float:
    r"""$\mathcal L_P = \kappa^2\sum\frac{\omega\lambda}{(\kappa+\lambda)^2}\Big/
    \Big(1-\frac1P\sum\frac{\lambda^2}{(\kappa+\lambda)^2}\Big)$, the limit at full width; zero from
    $P = D$ on.
    """
    if context >= modes.dim:
        return 0.0
    kappa = matching_kappa(modes, context)
    shrunk = kappa / (kappa + modes.eigenvalues)
    # 1 - (1/P) sum lambda^2/(kappa+lambda)^2, from P = sum lambda/(kappa+lambda)
    gap = modes.inputs @ (shrunk / (kappa + modes.eigenvalues)) / context
    return float(modes.weights @ shrunk**2 / gap)


def width_limit(modes: Population, width: float) -> float:
    r"""$\mathcal L_N = \kappa\sum\frac{\omega\lambda}{\kappa+\lambda}$, the limit at infinite
    context; zero from $N = D$ on. (The paper squares the summand in one place.)
    """
    if width >= modes.dim:
        return 0.0
    kappa = matching_kappa(modes, width)
    return float(modes.weights @ (kappa / (kappa + modes.eigenvalues)))


def deep_limit(stream: Stream) -> float:
    r"""The loss of `stream` at infinite depth and scale, without label noise:
    $\mathcal L_N/(1-N/P)$ for $N<P$ and
    $\mathcal L_P + \frac{EP}{1-EP}\,\kappa_P\sum\frac{\omega\lambda}{\kappa_P+\lambda}$ for $P<N$,
    with $E$ the excess of `streams.pair_excess` at $d=d'=P$; for an orthogonal projection the
    factor is $\frac{P(D-N)}{(D-P)(N-P)}$.

    It diverges at $N = P < D$, so that the best scale there is finite at every depth.
    """
    modes, context, width = stream.modes, stream.context, stream.width
    if min(context, width) >= modes.dim:
        return 0.0
    if context == width:
        return math.inf
    if width < context:
        return width_limit(modes, width) / (1 - width / context)
    freedom = np.array([complex(context)])
    excess = context * float(np.real(pair_excess(stream, freedom, freedom) * np.ones(1))[0])
    return context_limit(modes, context) + excess / (1 - excess) * width_limit(modes, context)


def _exponents(spectrum: Spectrum, special: float, resource: str) -> tuple[float, float, float]:
    """nu, beta and the scale of omega lambda, where power laws hold."""
    a, b = spectrum.input_exponent, spectrum.task_exponent
    if a <= 1 or a + b <= 1:
        raise SolverError(
            f"task.spectrum: exponents {a:g} and {b:g} give no power law in {resource}; it needs "
            "input_exponent > 1 and a sum above 1"
        )
    beta = (a + b - 1) / a
    if math.isclose(beta, special, rel_tol=1e-9):
        raise SolverError(
            f"task.spectrum: beta is {special:g}, where the limit in {resource} has a logarithm "
            f"and no power law; expected beta != {special:g}"
        )
    return a, beta, float(power_law_modes(spectrum).power[0])


def _kappa_law(nu: float) -> float:
    r"""$C$ in $\kappa_n \to C n^{-\nu}$."""
    return (math.pi / nu / math.sin(math.pi / nu)) ** nu


def context_law(spectrum: Spectrum) -> PowerLaw:
    r"""The asymptote of $\mathcal L_P$ in infinite dimension, with
    $\omega_k\lambda_k = s\,k^{-\nu\beta-1}$ and $\kappa_P = [\pi/(\nu\sin(\pi/\nu)P)]^\nu$:
    $s\,\Gamma(\beta)\Gamma(2-\beta)\kappa_P^\beta$ for $\beta<2$,
    $\nu\kappa_P^2\operatorname{Tr}\Omega\Lambda^{-1}$ above. So the exponent is
    $\nu\min(\beta,2)$.

    **Raises:** `SolverError` for $\beta = 2$, where the law has a logarithm, and $\nu\le1$.
    """
    nu, beta, scale = _exponents(spectrum, 2.0, "context")
    if beta < 2:
        prefactor = scale * math.gamma(beta) * math.gamma(2 - beta)
    else:
        prefactor = nu * scale * _zeta(nu * (beta - 2) + 1)
    power = min(beta, 2.0)
    return PowerLaw(prefactor=prefactor * _kappa_law(nu) ** power, exponent=nu * power)


def width_law(spectrum: Spectrum) -> PowerLaw:
    r"""The asymptote of $\mathcal L_N$ in infinite dimension:
    $\frac s\nu\frac\pi{\sin\pi\beta}\kappa_N^\beta$ for $\beta<1$,
    $\kappa_N\operatorname{Tr}\Omega$ above. So the exponent is $\nu\min(\beta,1)$.

    **Raises:** `SolverError` for $\beta = 1$, where the law has a logarithm, and $\nu\le1$.
    """
    nu, beta, scale = _exponents(spectrum, 1.0, "width")
    if beta < 1:
        prefactor = scale / nu * math.pi / math.sin(math.pi * beta)
    else:
        prefactor = scale * _zeta(nu * (beta - 1) + 1)
    power = min(beta, 1.0)
    return PowerLaw(prefactor=prefactor * _kappa_law(nu) ** power, exponent=nu * power)


def _zeta(s: float) -> float:
    """The Riemann zeta function for s > 1, by its Euler-Maclaurin series after a thousand terms."""
    n = 1000.0
    head = float(np.sum(np.arange(1.0, n) ** -s))
    return head + n ** (1 - s) / (s - 1) + n**-s / 2 + s * n ** (-s - 1) / 12
