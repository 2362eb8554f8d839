r"""How a stream of finite width sees the inputs: $B$, and what it does to a resolvent.

$M = OBO^T\hat\Sigma$ with $B$ the identity (full width), a rank-$N$ orthogonal projection, or
$W^p$ with $W = A^TA$, $A$ an $N\times D$ Gaussian matrix with entries of variance $1/N$ and
$p\in\{1,2\}$. Everything that the theory needs of $B$ are two functions of the degrees of freedom
$d = \operatorname{Tr}\Lambda(\kappa+\Lambda)^{-1}$.

Derived in docs/theory/equivalents.md, "The stream".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from leadline.errors import SolverError
from leadline.theory.compression import Population
from leadline.theory.contour import Complex

BLOCK = 2**18
"""Complex numbers held at once by a sum over modes."""
FAR = 4.0
"""Where the continuation starts, in edges of the spectrum."""
STRIDE = 3.0
"""By how much it comes closer in a stage."""
ON_THE_WAY, CONVERGED = 0.1, 1e-9
"""The last relative step of Newton's method, whose error is about its square."""
MAX_NEWTON = 40


@dataclass(frozen=True, eq=False, kw_only=True)
class Stream:
    r"""A spectrum seen through `context` examples by a stream of some width.

    **Arguments:** `modes`, the spectrum; `context` $P$, at least one, possibly infinite; `width`
    $N$, at least one, infinite where nothing is projected; `projection` and `power` as in
    `spec.ReducedAttention`. Neither has to be whole.

    **Raises:** `SolverError` for a width or context below one, an orthogonal projection to more
    dimensions than there are, and in infinite dimension a $B$ without a mean.
    """

    modes: Population
    context: float = math.inf
    width: float = math.inf
    projection: Literal["none", "orthogonal", "gaussian"] = "none"
    power: int = 1

    def __post_init__(self) -> None:
        for name, value in (("context", self.context), ("width", self.width)):
            if not value >= 1:
                raise SolverError(f"{name}: got {value}, expected a number >= 1")
        if math.isinf(self.width) != (self.projection == "none"):
            raise SolverError(
                f"projection: got {self.projection!r} with width {self.width}; a finite width has "
                "a projection, an infinite one none"
            )
        if self.projection == "orthogonal" and self.width > self.modes.dim:
            raise SolverError(
                f"width: got {self.width:g} above the dim {self.modes.dim:g}; an orthogonal "
                "projection needs width <= dim"
            )
        if math.isinf(self.modes.dim) and (
            self.projection == "orthogonal" or (self.projection == "gaussian" and self.power == 2)
        ):
            raise SolverError(
                f"task.spectrum.dim: got infinity with the projection {self.projection!r}, power "
                f"{self.power}; its scale depends on dim / width, expected a finite dim (any size)"
            )

    @property
    def ratio(self) -> float:
        r"""$D/N$."""
        return self.modes.dim / self.width

    @property
    def mean(self) -> float:
        r"""$\frac1D\operatorname{Tr}B$."""
        if self.projection == "orthogonal":
            return 1 / self.ratio
        return 1 + self.ratio if self.projection == "gaussian" and self.power == 2 else 1.0


def response(stream: Stream, freedom: Complex) -> tuple[Complex, Complex]:
    r"""$\Psi$, by which $B$ scales the resolvent, and $d\Psi/dd$:
    $s(\kappa) = \kappa\,(1-d/P)\,\Psi(d)$.

    With $u = d/N$ and $c = D/N$: 1 at full width; $(1-u)/(c-u)$ for an orthogonal projection;
    $1-u$ and $(1-u)(1+c-2u)^2/(1+c-u)$ for a Gaussian one of power 1 and 2.
    """
    if stream.projection == "none":
        return np.ones_like(freedom), np.zeros_like(freedom)
    u, c = freedom / stream.width, stream.ratio
    if stream.projection == "orthogonal":
        psi = (1 - u) / (c - u)
        slope = -(c - 1) / (c - u) ** 2
    elif stream.power == 1:
        psi, slope = 1 - u, np.full_like(u, -1.0)
    else:
        a = 1 + c
        psi = (1 - u) * (a - 2 * u) ** 2 / (a - u)
        slope = psi * (1 / (a - u) - 1 / (1 - u) - 4 / (a - 2 * u))
    return psi, slope / stream.width


def pair_excess(stream: Stream, freedom: Complex, other: Complex) -> Complex | float:
    r"""What the fluctuations of $B$ add to a pair of resolvents: the variance of $B$ over $D$ and
    its squared mean far from the spectrum, zero at full width.

    With $u, v$ the degrees of freedom over $N$, $a = 1+D/N$, $\sigma=u+v$, $\pi=uv$, it is $1/N$
    times $(c-1)/(c-1+(1-u)(1-v))$ for an orthogonal projection, 1 for a Gaussian one and
    $$\frac{a^2(a+3) - 4a(a+1)\sigma + 4a\sigma^2 + 4\pi(1-\sigma)}
    {a^3 - a^2\sigma - 3a^2\pi + 4a\sigma\pi - 4\pi^2}$$ for its square.
    """
    if stream.projection == "none":
        return 0.0
    if stream.projection == "gaussian" and stream.power == 1:
        return 1 / stream.width
    u, v, c = freedom / stream.width, other / stream.width, stream.ratio
    if stream.projection == "orthogonal":
        return (c - 1) / (c - 1 + (1 - u) * (1 - v)) / stream.width
    a, total, product = 1 + c, u + v, u * v
    top = a**2 * (a + 3) - 4 * a * (a + 1) * total + 4 * a * total**2 + 4 * product * (1 - total)
    bottom = a**3 - a**2 * total - 3 * a**2 * product + 4 * a * total * product - 4 * product**2
    return top / bottom / stream.width


def degrees_of_freedom(modes: Population, kappa: Complex) -> tuple[Complex, Complex]:
    r"""$d = \operatorname{Tr}\Lambda(\kappa+\Lambda)^{-1}$ and $dd/d\kappa$, for `kappa` of any
    shape.
    """
    flat = kappa.ravel()
    rows = max(1, BLOCK // modes.eigenvalues.size)
    freedom, slope = np.empty_like(flat), np.empty_like(flat)
    for first in range(0, flat.size, rows):
        part = slice(first, first + rows)
        inverse = 1 / (flat[part, None] + modes.eigenvalues)
        freedom[part] = inverse @ modes.inputs
        slope[part] = -np.square(inverse, out=inverse) @ modes.inputs
    return freedom.reshape(kappa.shape), slope.reshape(kappa.shape)


def laplace_variable(stream: Stream, kappa: Complex) -> tuple[Complex, Complex]:
    r"""$s(\kappa) = \kappa\,(1-d/P)\,\Psi(d)$ and $ds/d\kappa$."""
    freedom, slope = degrees_of_freedom(stream.modes, kappa)
    psi, psi_slope = response(stream, freedom)
    left = 1 - freedom / stream.context
    s = kappa * left * psi
    return s, left * psi + kappa * slope * (left * psi_slope - psi / stream.context)


@lru_cache(maxsize=64)
def edge(stream: Stream) -> float:
    r"""The right edge of the spectrum of $M$, the least $-s(\kappa)$ over $\kappa<-\lambda_1$,
    where the branch of the resolvent ends. $\lambda_1$ if $M=\Lambda$.

    Depth $L$ is stable up to $\gamma = 2L$ over it.
    """
    top = stream.modes.top
    if math.isinf(stream.context) and stream.projection == "none":
        return top
    low, high = -33.0, 6.0
    while True:
        u = np.linspace(low, high, 200)
        kappa = np.asarray(-top * (1 + np.exp(u)), np.complex128)
        values = -laplace_variable(stream, kappa)[0].real
        best = int(np.argmin(values))
        if best == u.size - 1 and high < 60:
            high += 6.0
            continue
        if high - low < 1e-6:
            return float(values[best])
        low, high = u[max(best - 1, 0)], u[min(best + 1, u.size - 1)]


def subordinate(stream: Stream, s: Complex, *, end: float) -> Complex:
    r"""$\kappa(s)$ for `s` in the upper half plane (any shape): Newton's method, followed from
    infinity, where $\kappa\simeq s/\operatorname{mean}B$, along the ray to each `s`, which stays
    clear of the spectrum; `end` is the edge of $M$.

    **Raises:** `SolverError` where it does not converge.
    """
    far = np.maximum(1.0, FAR * end / np.abs(s))
    stages = math.ceil(math.log(float(far.max())) / math.log(STRIDE))
    path = far ** (-1 / max(stages, 1))
    psi, psi_slope = response(stream, np.zeros(1, np.complex128))
    shift = stream.modes.inputs.sum() * (psi_slope / psi - 1 / stream.context)
    kappa = s * far / psi - shift
    for stage in range(stages + 1):
        last = stage == stages
        target = s if last else s * far * path**stage
        size = math.inf
        for _ in range(MAX_NEWTON):
            value, slope = laplace_variable(stream, kappa)
            move = (target - value) / slope
            kappa = kappa + move
            size = float(np.max(np.abs(move / kappa)))
            if size < (CONVERGED if last else ON_THE_WAY):
                break
        if not size < CONVERGED and last:
            raise SolverError(
                f"resolvent: Newton's method moved by {size:.1e} after {MAX_NEWTON} steps at "
                f"context {stream.context:g}, width {stream.width:g}, expected below {CONVERGED:g}"
            )
    return kappa
