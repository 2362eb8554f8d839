r"""A spectrum of any length as a few hundred nodes, exact to rounding.

The deterministic equivalents of random matrices need sums over modes such as
$\sum_k\lambda_k/(\kappa+\lambda_k)$ at many complex $\kappa$. The first modes are kept one by one.
The others are cut into blocks of equal length in $\ln k$, over which every summand is smooth, and
each block is summed by the Gauss rule of its own counting measure: nodes and weights from the
recurrence of the discrete Chebyshev (Gram) polynomials, exact for polynomials in $k$ of twice the
number of nodes. A thousand modes become 150 nodes, a billion 550.

Derived in docs/theory/equivalents.md, "Compressed spectra".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.spec import Spectrum


@dataclass(frozen=True, eq=False, kw_only=True)
class Population:
    r"""Modes with multiplicities, arrays of one length; $c_k$ is the number of modes that node $k$
    stands for.

    **Arguments:** `eigenvalues` $\lambda_k$; `inputs` $c_k\lambda_k$; `weights`
    $c_k\omega_k\lambda_k$; `dim` $D = \sum c_k$, possibly infinite.
    """

    eigenvalues: Floats
    inputs: Floats
    weights: Floats
    dim: float

    def __post_init__(self) -> None:
        for array in (self.eigenvalues, self.inputs, self.weights):
            array.setflags(write=False)

    @property
    def top(self) -> float:
        r"""The largest eigenvalue $\lambda_1$."""
        return float(self.eigenvalues.max())

    @property
    def total(self) -> float:
        r"""$\operatorname{Tr}\Omega\Lambda$, the loss of the prediction zero."""
        return float(self.weights.sum())


def population(
    eigenvalues: ArrayLike, task_eigenvalues: ArrayLike, *, copies: int = 1
) -> Population:
    r"""The population of an explicit spectrum: $\lambda_k$ of the inputs and $\omega_k$ of the
    tasks in a common basis, each mode `copies` times, $\omega_k$ shared among the copies.

    **Raises:** `SolverError` unless every $\lambda_k$ is positive and every $\omega_k\ge0$.
    """
    inputs = np.asarray(eigenvalues, np.float64)
    tasks = np.asarray(task_eigenvalues, np.float64)
    if inputs.ndim != 1 or inputs.shape != tasks.shape or inputs.size == 0:
        raise SolverError(
            f"spectrum: got shapes {inputs.shape} and {tasks.shape}, expected two equal lengths"
        )
    for name, values, sign, valid in (
        ("eigenvalues", inputs, ">", inputs > 0),
        ("task_eigenvalues", tasks, ">=", tasks >= 0),
    ):
        valid &= np.isfinite(values)
        if not valid.all():
            raise SolverError(
                f"{name}: got {values[~valid][0]:g}, expected finite numbers {sign} 0"
            )
    return Population(
        eigenvalues=inputs.copy(),
        inputs=copies * inputs,
        weights=inputs * tasks,
        dim=float(copies * inputs.size),
    )


@lru_cache(maxsize=64)
def compressed(spectrum: Spectrum, *, digits: float = 15.5) -> Population:
    r"""The population of a power law.

    **Arguments:** `digits` asked of every sum over the modes.

    **Raises:** `SolverError` in infinite dimension if $\operatorname{Tr}\Lambda$ or
    $\operatorname{Tr}\Omega\Lambda$ diverges: $a\le1$ or $a+b\le1$.
    """
    a, b, dim = spectrum.input_exponent, spectrum.task_exponent, spectrum.dim
    slowest = min(a - 1, a + b - 1)
    if math.isinf(dim) and slowest <= 0:
        raise SolverError(
            f"task.spectrum: exponents {a:g} and {b:g}; infinite dimension at finite context or "
            "width needs input_exponent > 1 and a sum above 1, or traces diverge"
        )
    nodes = max(4, math.ceil(digits))
    # a rule of n nodes gains 2n ln(rho) e-folds; rho belongs to the nearest pole, which lies off
    # the axis of ln k by the phase of -kappa, at least half a radian on our contours, over a
    reach = math.sinh(digits * math.log(10) / (2 * nodes))
    length = 1.0 / max(a, 0.5) / reach
    head = min(dim, math.ceil(2 * nodes / math.expm1(length)))
    logs = [np.log(np.arange(1.0, head + 1))]
    counts = [np.zeros(int(head))]
    end, last = head, dim
    if math.isinf(dim):
        # eigenvalues below 10^-2digits act through their trace alone
        last = math.exp(digits * math.log(10) * min(1 / slowest, 2 / a))
    while end < last:
        size = min(math.ceil(end * math.expm1(length)), dim - end)
        at, count = _gram_rule(size, min(nodes, int(size)))
        logs.append(np.log(end + 0.5 + at))
        counts.append(np.log(count))
        end += size
    log_k, log_count = np.concatenate(logs), np.concatenate(counts)
    eigenvalues = np.exp(-a * log_k)
    inputs = np.exp(log_count - a * log_k)
    weights = np.exp(log_count - (a + b) * log_k)
    if math.isinf(dim):
        # what lies beyond has no eigenvalue to speak of, but a trace
        beyond = math.log(end + 0.5)
        eigenvalues = np.append(eigenvalues, math.exp(-a * beyond))
        inputs = np.append(inputs, math.exp((1 - a) * beyond) / (a - 1))
        weights = np.append(weights, math.exp((1 - a - b) * beyond) / (a + b - 1))
    if spectrum.total is not None:
        weights *= spectrum.total / weights.sum()
    return Population(eigenvalues=eigenvalues, inputs=inputs, weights=weights, dim=float(dim))


def _gram_rule(size: float, nodes: int) -> tuple[Floats, Floats]:
    """The Gauss rule of `nodes` points for the sum over 1/2, 3/2, ..., `size` - 1/2."""
    n = np.arange(1.0, nodes)
    off = np.sqrt((n / size) ** 2 * (1 - (n / size) ** 2) / (4 * (4 * (n / size) ** 2 - size**-2)))
    values, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return size * (0.5 + values), size * vectors[0] ** 2
