"""Spectra as arrays: eigenvalues of a power law, its modes in any dimension, and the
Marchenko-Pastur law as a quadrature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leadline.errors import SolverError
from leadline.spec import Spectrum

Floats = NDArray[np.float64]

EXPLICIT = 2**14
_PANEL = 16
_NEGLIGIBLE = 39.0  # e^-39 = 1e-17
_LARGEST_LOG = 690.0  # e^-690 is a normal number


def eigenvalues(spectrum: Spectrum) -> tuple[Floats, Floats]:
    r"""The eigenvalues $\lambda_k$ of the inputs and $\omega_k$ of the tasks, arrays of length
    `dim`, largest $\lambda$ first.

    **Raises:** `SolverError` if `dim` is infinite.
    """
    if math.isinf(spectrum.dim):
        raise SolverError(
            "task.spectrum.dim: got infinity, expected a finite dim for explicit eigenvalues"
        )
    k = np.arange(1, int(spectrum.dim) + 1, dtype=np.float64)
    lam = k**-spectrum.input_exponent
    omega = k**-spectrum.task_exponent
    if spectrum.total is not None:
        omega *= spectrum.total / np.sum(omega * lam)
    return lam, omega


@dataclass(frozen=True, kw_only=True)
class MarchenkoPastur:
    r"""A rule $\int f\,d\mu \approx$ `weights` $\cdot f($`nodes`$) +$ `atom` $f(0)$ for the
    Marchenko-Pastur law; the weights and the atom sum to one.
    """

    nodes: Floats
    weights: Floats
    atom: float
    lower: float
    upper: float


@lru_cache(maxsize=64)
def marchenko_pastur(ratio: float, *, nodes: int = 2000) -> MarchenkoPastur:
    r"""The spectral law of $XX^T/P$ for a $D\times P$ standard Gaussian matrix,
    $\alpha = P/D$ = `ratio`, as a quadrature.

    The density $\alpha\sqrt{(b-x)(x-a)}/(2\pi x)$ on $[a, b] = (1\mp\alpha^{-1/2})^2$ is
    integrated in the angle $t$, $x = \frac{a+b}2 + \frac{b-a}2\cos t$, by the midpoint rule. Its
    only error below trigonometric degree $2m$ is that of the pole at $x = 0$, which is known in
    closed form and joins the atom $(1-\alpha)_+$:
    $$w_0 = (1-\alpha)_+ - |1-\alpha|\,\frac{q^m}{1+q^m},\qquad q = \min(\alpha, 1/\alpha).$$
    So the rule is exact for every polynomial of degree $2m - 2$, at every ratio.

    **Arguments:** `ratio` is positive; infinity gives the unit mass at one. `nodes` is $m\ge 1$.

    **Returns:** read-only arrays, nodes in decreasing order.

    Ref: derived in docs/theory/isotropic.md.
    """
    if not ratio > 0:
        raise SolverError(f"ratio: got {ratio}, expected context / dim > 0")
    if math.isinf(ratio):
        x, w, atom, lower, upper = np.ones(1), np.ones(1), 0.0, 1.0, 1.0
    else:
        lower, upper = (1 - ratio**-0.5) ** 2, (1 + ratio**-0.5) ** 2
        half = (np.arange(nodes) + 0.5) * (np.pi / (2 * nodes))
        # a cos^2 + b sin^2 with no cancellation near the lower end
        x = upper * np.cos(half) ** 2 + lower * np.sin(half) ** 2
        w = (2 / nodes) * np.sin(2 * half) ** 2 / x
        pole = math.exp(-nodes * abs(math.log(ratio)))
        atom = max(1 - ratio, 0.0) - abs(1 - ratio) * pole / (1 + pole)
    x.flags.writeable = w.flags.writeable = False
    return MarchenkoPastur(nodes=x, weights=w, atom=atom, lower=lower, upper=upper)


@dataclass(frozen=True, eq=False, kw_only=True)
class Modes:
    r"""Modes of inputs and tasks in a common basis, arrays of one length.

    **Arguments:**
    - `eigenvalues`: $\lambda_k$ of the inputs, positive.
    - `power`: $\omega_k\lambda_k$, the loss in one mode while nothing is predicted.
    - `weights`: `power` times the number of modes for which the node stands, so that
      $\sum_k \omega_k\lambda_k f(\lambda_k)$ is `weights @ f(eigenvalues)`.
    """

    eigenvalues: Floats
    power: Floats
    weights: Floats

    def __post_init__(self) -> None:
        for array in (self.eigenvalues, self.power, self.weights):
            array.setflags(write=False)

    @property
    def total(self) -> float:
        r"""$\sum_k\omega_k\lambda_k$, the loss of the prediction zero."""
        return float(self.weights.sum())


@lru_cache(maxsize=64)
def power_law_modes(spectrum: Spectrum, *, explicit: int = EXPLICIT) -> Modes:
    r"""The modes of `spectrum`: $\lambda_k = k^{-a}$, $\omega_k = s k^{-b}$.

    **Arguments:** `explicit` is the number of modes kept one by one; the others enter through
    the tail integral from `explicit` + 1/2 to `dim` + 1/2.

    **Raises:** `SolverError` if the loss of the prediction zero diverges:
    $a + b \le 1$ in infinite dimension.

    The integral starts half a mode after the last explicit one, $K$, so that it replaces the sum
    with an error of relative order $K^{-2}$. It is taken by Gauss-Legendre panels in $\ln k$, on
    whose scale every summand of the theory is smooth.

    Ref: derived in docs/theory/rotated.md, "Infinite dimension".
    """
    a, b = spectrum.input_exponent, spectrum.task_exponent
    decay = a + b - 1
    if math.isinf(spectrum.dim) and decay <= 0:
        raise SolverError(
            f"task.spectrum: input_exponent + task_exponent is {a + b:g}; infinite dimension "
            "needs more than 1, or the sum of omega_k lambda_k diverges"
        )
    head = np.arange(1.0, min(spectrum.dim, explicit) + 1)
    logs, counts = np.log(head), np.zeros(len(head))
    rest = 0.0
    if spectrum.dim > explicit:
        tail, log_counts, rest = _tail(explicit + 0.5, spectrum.dim + 0.5, a, b)
        logs, counts = np.concatenate([logs, tail]), np.concatenate([counts, log_counts])
    eigenvalues = np.exp(-a * logs)
    power = np.exp(-(a + b) * logs)
    weights = np.exp(counts - (a + b) * logs)
    if rest:
        weights[-1] += rest
    if spectrum.total is not None:
        scale = spectrum.total / weights.sum()
        power, weights = power * scale, weights * scale
    return Modes(eigenvalues=eigenvalues, power=power, weights=weights)


def _tail(start: float, stop: float, a: float, b: float) -> tuple[Floats, Floats, float]:
    """Nodes ln k and logarithms of their counts for the integral over k from `start` to `stop`;
    and what lies beyond the last node's panel, where the inputs no longer matter.
    """
    decay, steepest = a + b - 1, 1 + abs(b) + 3 * a
    length = math.log(stop) - math.log(start)
    longest = _LARGEST_LOG / steepest - math.log(start)
    if decay > 0:
        longest = min(longest, _NEGLIGIBLE / decay)
    cut = length > longest
    length = min(length, longest)
    # summands such as 1/(1 + c k^-p), p <= a + b + 2a, have poles at a distance pi/p from the axis
    panels = math.ceil(length * steepest / 5)
    nodes, weights = np.polynomial.legendre.leggauss(_PANEL)
    half = length / panels / 2
    centers = math.log(start) + half * (2 * np.arange(panels) + 1)
    logs = (centers[:, None] + half * nodes).ravel()
    log_counts = (np.log(half * weights) + logs.reshape(panels, _PANEL)).ravel()
    rest = math.exp(-decay * (math.log(start) + length)) / decay if cut and decay > 0 else 0.0
    return logs, log_counts, rest
