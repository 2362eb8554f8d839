r"""Beyond $H^2 = \mu H$: the exact flow of one task for any symmetric $H$, and what the query token
changes to first order in $1/\psi$.

With $R(t) = \int_0^t\kappa r$ the flow of $f = v^THw$ is one-dimensional,
$\eta = e^{-RH}\eta_0$, $\rho = e^{RH}\rho_0$, so that $\dot R = \kappa(F(R)-\Lambda)$. The query
adds $\epsilon\,ee^T$, $e = (1, 0)$, $\epsilon = 1/\psi$, to $H/\psi = uu^T$, $u = (1,\Lambda)$;
expanding $F = F_0 + \epsilon F_1$ at fixed $\hat v = \sqrt\psi v$, $\hat w = \sqrt\psi w$ and
$k = \kappa\psi$ gives the first order.

Derived in docs/theory/sparse.md. Ref: Lyu, Wang, Zhu (ICLR 2025), appendix G (not available, so
that agreement with it is untested).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory.flows import scalar_flow
from leadline.theory.sparse import Start, solution

PANEL = 16
PANEL_LENGTH = 2.0
"""In units of the relaxation time: the nearest poles are at distance pi from the axis."""
MEMORY = 45.0
"""After this many relaxation times a disturbance is forgotten to double precision."""


def token_matrix(context: float, strength: float, *, query: bool = True) -> Floats:
    r"""$H = \psi(uu^T + \epsilon\,ee^T)$ on (feature, label), $u = (1,\Lambda)$, $e = (1, 0)$,
    $\epsilon = 1/\psi$, or 0 without the `query`.
    """
    u = np.array([1.0, strength])
    return context * np.outer(u, u) + np.diag([1.0 if query else 0.0, 0.0])


def exact_output(
    times: Sequence[float] | Floats,
    *,
    matrix: ArrayLike,
    rate: float,
    strength: float,
    value: ArrayLike,
    query: ArrayLike,
) -> tuple[Floats, Floats]:
    r"""$f(t)$ of $\dot v = -\kappa rHw$, $\dot w = -\kappa rHv$, $f = v^THw$, $r = f-\Lambda$, for
    any symmetric $H$, from its one-dimensional form
    $$F(R) = \tfrac14\sum_im_i\big[(q_i\cdot\eta_0)^2e^{-2m_iR} - (q_i\cdot\rho_0)^2e^{2m_iR}\big],
    \qquad H = \sum_im_iq_iq_i^T.$$

    **Arguments:** `times`, increasing; `matrix` $H$ of shape (n, n); `rate` $\kappa$; `strength`
    $\Lambda$; `value` $v_0$ and `query` $w_0$ of length n.

    **Returns** $f$ at `times` and an estimate of its error.
    """
    h = np.asarray(matrix, float)
    if h.ndim != 2 or not np.array_equal(h, h.T):
        raise SolverError(f"matrix: got shape {h.shape}, expected a symmetric matrix")
    masses, axes = np.linalg.eigh(h)
    v, w = np.asarray(value, float), np.asarray(query, float)
    eta, rho = (axes.T @ (v + w)) ** 2, (axes.T @ (v - w)) ** 2

    def output(turned: float) -> float:
        falling, rising = np.exp(-2 * masses * turned), np.exp(2 * masses * turned)
        return float(masses @ (eta * falling - rho * rising)) / 4

    def steepness(turned: float) -> float:
        falling, rising = np.exp(-2 * masses * turned), np.exp(2 * masses * turned)
        return float(masses**2 @ (eta * falling + rho * rising)) / 2

    turned, error = scalar_flow(lambda r: -rate * (output(r) - strength), times, tolerance=1e-13)
    return (
        np.array([output(r) for r in turned.tolist()]),
        np.array([e * steepness(r) for r, e in zip(turned.tolist(), error.tolist(), strict=True)]),
    )


@dataclass(frozen=True, kw_only=True)
class Block:
    r"""A start of one task, rescaled: $\hat v_0 = \sqrt\psi v_0$, $\hat w_0$, both (feature,
    label); `rate` $k = \kappa\psi$, `strength` $\Lambda$.
    """

    value: tuple[float, float]
    query: tuple[float, float]
    rate: float
    strength: float

    @property
    def mass(self) -> float:
        r"""$M = 1+\Lambda^2$."""
        return 1 + self.strength**2

    @property
    def projections(self) -> tuple[float, float, float, float]:
        r"""$e_u, e_\perp$ of $\hat v_0+\hat w_0$ and $r_u, r_\perp$ of $\hat v_0-\hat w_0$ along
        $(1,\Lambda)/\sqrt M$ and $(\Lambda,-1)/\sqrt M$.
        """
        frame = np.array([[1, self.strength], [self.strength, -1]]) / math.sqrt(self.mass)
        v, w = np.array(self.value), np.array(self.query)
        return (*(frame @ (v + w)).tolist(), *(frame @ (v - w)).tolist())

    @property
    def start(self) -> Start:
        """The squares at time zero."""
        e_u, _, r_u, _ = self.projections
        return Start(sum_square=self.mass * e_u**2, difference_square=self.mass * r_u**2)

    def zeroth(self, times: ArrayLike) -> tuple[Floats, Floats, Floats]:
        r"""$f_0$, $\ln(r_0/r_0(0))$ and $R_0 = \ln(g_0/g)/2M$ at `times`.

        **Raises:** `SolverError` if $g_0 = 0$: the expansion is around a solution that learns.
        """
        if self.projections[0] == 0:
            raise SolverError("value, query: their sum has no component along (1, strength)")
        solved = solution(
            times, rate=self.rate * self.mass, strength=self.strength, start=self.start
        )
        g0 = float(np.asarray(self.start.sum_square))
        turned = np.log(g0 / solved.sum_square) / (2 * self.mass)
        return solved.output, solved.log_residual, turned

    def forcing(self, turned: Floats) -> Floats:
        r"""$F_1(R) = \frac1{4M}\big[(1-2MR)xe_u^2 + 2\Lambda xe_ue_\perp + \Lambda^2e_\perp^2 -
        (1+2MR)yr_u^2 - 2\Lambda yr_ur_\perp - \Lambda^2r_\perp^2\big]$, $x = 1/y = e^{-2MR}$.
        """
        m, target = self.mass, self.strength
        e_u, e_p, r_u, r_p = self.projections
        x, y = np.exp(-2 * m * turned), np.exp(2 * m * turned)
        even = (1 - 2 * m * turned) * x * e_u**2 + 2 * target * x * e_u * e_p + (target * e_p) ** 2
        odd = (1 + 2 * m * turned) * y * r_u**2 + 2 * target * y * r_u * r_p + (target * r_p) ** 2
        return (even - odd) / (4 * m)

    def steepness(self, turned: Floats) -> Floats:
        """$F_0'(R)$."""
        m = self.mass
        e_u, _, r_u, _ = self.projections
        x, y = np.exp(-2 * m * turned), np.exp(2 * m * turned)
        return -(m**2) / 2 * (e_u**2 * x + r_u**2 * y)


def first_order(times: Sequence[float] | Floats, *, block: Block) -> Floats:
    r"""The coefficient $f_1(t)$ of $1/\psi$ in $f = f_0 + f_1/\psi + O(\psi^{-2})$, by quadrature:
    $$f_1 = F_0'(R_0)R_1 + F_1(R_0),\qquad R_1(t) = r_0(t)\int_0^t\frac{kF_1(R_0(s))}{r_0(s)}ds.$$

    The ratio of residuals decays at the rate $a\Delta$, so that only the last few relaxation times
    count; Gauss-Legendre panels cover them. Uniform in time at a fixed task, $f_1(\infty) = 0$; not
    uniform over tasks whose $\psi_s$ is not large.
    """
    g, h = (float(np.asarray(x)) for x in (block.start.sum_square, block.start.difference_square))
    speed = abs(block.rate) * block.mass * math.hypot(2 * block.strength, math.sqrt(g * h))
    speed = max(speed, abs(block.rate) * block.mass * (g + h) / 2)
    nodes, weights = np.polynomial.legendre.leggauss(PANEL)
    _, logs, turned = block.zeroth(times)
    moved: list[float] = []
    for time, log_now in zip(np.asarray(times, float).tolist(), logs.tolist(), strict=True):
        span = min(time, MEMORY / speed)
        panels = max(1, math.ceil(span * speed / PANEL_LENGTH))
        half = span / panels / 2
        centers = time - span + half * (2 * np.arange(panels) + 1)
        at = (centers[:, None] + half * nodes).ravel()
        _, log_then, turned_then = block.zeroth(at)
        factors = np.exp(log_now - log_then) * block.forcing(turned_then)
        moved.append(block.rate * half * float(factors.reshape(panels, PANEL).sum(0) @ weights))
    return block.steepness(turned) * np.array(moved) + block.forcing(turned)


def first_order_aligned(times: ArrayLike, *, block: Block) -> Floats:
    r"""`first_order` in elementary functions, for $v_0 = w_0$: with $P(z) = \ln|z/(z-\Lambda)|/
    \Lambda^2 - 1/(\Lambda(z-\Lambda))$, $r = f_0-\Lambda$ and $f_i$, $r_i$ at time zero,
    $$R_1 = \frac{ktr-R_0}{M^2} + \Big(\frac1{2M^3}+\frac{\Lambda e_\perp}{e_uM^3}\Big)
    \Big(1-\frac r{r_i}\Big) - \frac{r\Lambda^2e_\perp^2}{8M^2}[P(f_0)-P(f_i)].$$

    **Raises:** `SolverError` unless $v_0 = w_0$ and $\Lambda\ne0$.
    """
    e_u, e_p, r_u, r_p = block.projections
    if r_u or r_p or not block.strength:
        raise SolverError("value, query: the elementary form needs v = w and a strength != 0")
    t, k, m, target = np.asarray(times, float), block.rate, block.mass, block.strength
    f, logs, turned = block.zeroth(t)
    initial = float(block.start.output)
    start = initial - target
    r = start * np.exp(logs)
    # r P(f) stays finite where r underflows
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.where(r == 0, 0.0, r * (np.log(np.abs(f)) - logs - math.log(abs(start))))
    own = own / target**2 - 1 / target
    before = r * (math.log(abs(initial / start)) / target**2 - 1 / (target * start))
    moved = (
        (k * t * r - turned) / m**2
        + (1 / (2 * m**3) + target * e_p / (e_u * m**3)) * (1 - r / start)
        - (target * e_p) ** 2 / (8 * m**2) * (own - before)
    )
    return (
        -2 * m * f * moved
        + (f - 2 * m * f * turned) / m**2
        + 2 * target * e_p * f / (m**2 * e_u)
        + (target * e_p) ** 2 / (4 * m)
    )
