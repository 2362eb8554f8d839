r"""One task of sparse feature regression: gradient flow of $f = v^THw$ towards the strength
$\Lambda$, in closed form.

The residual of a task weighs $r\,Hw$ and $r\,Hv$, so $\eta = v + w$ decays and $\rho = v - w$ grows
along $H$. Whenever $H^2 = \mu H$ the squares $g = \eta^TH\eta$ and $h = \rho^TH\rho$ obey
$\dot g = -2arg$, $\dot h = 2arh$ with $a = \kappa\mu$ and $r = f - \Lambda$, $f = (g-h)/4$; their
product $c = gh$ stays, and each obeys a Riccati equation with the fixed points $\pm2\Lambda\pm
\Delta$, $\Delta = \sqrt{4\Lambda^2 + c}$. Here everything is written as sums of positive terms, so
that no start, sign or time costs digits.

Conventions of this module and its neighbors `sparse_types` and `sparse_laws` are the paper's: the
loss has the factor 1/2 and time is that of its flow. Curves (`sparse_solver`) follow
docs/theory/conventions.md. Derived in docs/theory/sparse.md. Ref: Lyu, Wang, Zhu (ICLR 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import SolverError


@dataclass(frozen=True, kw_only=True)
class Start:
    r"""The squares $g = \eta^TH\eta$ and $h = \rho^TH\rho$ at time zero, numbers or arrays, of the
    sign of $H$.
    """

    sum_square: ArrayLike
    difference_square: ArrayLike

    @property
    def output(self) -> Floats:
        """$f(0) = (g - h)/4$."""
        return (np.asarray(self.sum_square, float) - np.asarray(self.difference_square, float)) / 4


def start_at(output: ArrayLike, *, invariant: ArrayLike = 0.0) -> Start:
    r"""The start with $f(0)$ = `output` and $gh$ = `invariant` $\ge0$:
    $g = \sqrt{4f^2+c} + 2f$, $h = \sqrt{4f^2+c} - 2f$.
    """
    double = 2 * np.asarray(output, float)
    c = np.asarray(invariant, float)
    larger = np.abs(double) + np.hypot(double, np.sqrt(c))
    smaller = np.divide(c, larger, out=np.zeros(np.broadcast(c, larger).shape), where=larger > 0)
    rising = double >= 0
    return Start(
        sum_square=np.where(rising, larger, smaller),
        difference_square=np.where(rising, smaller, larger),
    )


@dataclass(frozen=True, kw_only=True)
class Solution:
    r"""$f$, the residual $r = f - \Lambda$ (which keeps its relative accuracy however small), $g$
    and $h$, arrays of one shape; and $\ln r/r_0$, which does not underflow.
    """

    output: Floats
    residual: Floats
    log_residual: Floats
    sum_square: Floats
    difference_square: Floats


def solution(time: ArrayLike, *, rate: ArrayLike, strength: ArrayLike, start: Start) -> Solution:
    r"""$f(t)$ for any start, exact whenever $H^2 = \mu H$; with the query token in $H$ it is the
    zeroth order in $1/\psi$ (`sparse_order` has the first).

    **Arguments**, broadcast together: `time` $t\ge0$, may be infinite; `rate` $a = \kappa\mu$, in
    the model $\frac{\#_s}N\psi_s(1+\Lambda_s^2)$, and in the constrained one
    $\frac{\#_s}N\psi_s\Lambda_s$, which is negative if $\Lambda$ is; `strength` $\Lambda$; `start`.

    With $E = e^{-a\Delta t}$ and $m = \Delta - 2\Lambda$,
    $$g = \frac{g_0(g_++mE)+c(1-E)}{g_0(1-E)+m+g_+E},\qquad
    r = \frac{\Delta E}2\,(g_0-g_+)\Big[\frac1{d_g}+\frac m{d_gg}\Big].$$

    **Raises:** `SolverError` if $g$ or $h$ has not the sign of the rate, or time is negative.
    """
    t, a, target, g0, h0 = np.broadcast_arrays(
        *(np.asarray(x, float) for x in (time, rate, strength)),
        np.asarray(start.sum_square, float),
        np.asarray(start.difference_square, float),
    )
    if np.any(t < 0):
        raise SolverError(f"time: got {t.min():g}, expected >= 0")
    # a negative H is the positive one with v reversed, which swaps the sum and the difference;
    # a negative strength is the positive one with f reversed
    inverted, reverse = a < 0, target < 0
    g0, h0 = np.where(inverted, -h0, g0), np.where(inverted, -g0, h0)
    if np.any((g0 < 0) | (h0 < 0)):
        raise SolverError(
            "start: the squares of the sum and of the difference need the sign of the rate"
        )
    g0, h0 = np.where(reverse, h0, g0), np.where(reverse, g0, h0)
    g, h, residual, logs = _riccati(t, np.abs(a), np.abs(target), g0, h0)
    sign = np.where(reverse, -1.0, 1.0)
    g, h = np.where(reverse, h, g), np.where(reverse, g, h)
    return Solution(
        output=(g - h) / 4,
        residual=sign * residual,
        log_residual=logs,
        sum_square=np.where(inverted, -h, g),
        difference_square=np.where(inverted, -g, h),
    )


def _riccati(
    t: Floats, a: Floats, target: Floats, g0: Floats, h0: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """g, h, the residual and the logarithm of its ratio to that at the start, all of `a`,
    `target`, `g0` and `h0` being at least zero.
    """
    # the product of g and h may underflow where its root does not
    root = np.sqrt(g0) * np.sqrt(h0)
    delta = np.hypot(2 * target, root)
    up = 2 * target + delta
    down = root * _ratio(root, up)
    with np.errstate(invalid="ignore", over="ignore"):
        exponent = np.where((t == 0) | (a * delta == 0), 0.0, a * delta * t)
        moved = np.where((t == 0) | (a == 0), 0.0, a * t / 2)
    left, done = np.exp(-exponent), -np.expm1(-exponent)
    slow = delta == 0  # strength and invariant both zero: a power of time
    with np.errstate(over="ignore", invalid="ignore"):
        bottom_g = np.where(slow, 1 + moved * g0, g0 * done + down + up * left)
        bottom_h = np.where(slow, 1 + moved * h0, h0 * done + up + down * left)
    top_g = np.where(slow, g0, g0 * (up + down * left) + root * root * done)
    top_h = np.where(slow, h0, h0 * (down + up * left) + root * root * done)
    g, h = _ratio(top_g, bottom_g), _ratio(top_h, bottom_h)
    # the difference g - h to the target where it keeps its digits; always where g(0) = 0
    plain, first = (g - h) / 4 - target, (g0 - h0) / 4 - target
    apart = slow | (g0 == 0) | (np.abs(plain) > target + np.minimum(g, h))
    scaled = delta / 2 * (g0 - up) * (_ratio(1.0, bottom_g) + _ratio(down, top_g))
    residual = np.where(apart, plain, scaled * left)
    near = (g0 > 0) & (np.abs(first) <= target)
    first = np.where(near, (g0 - up) * (1 + _ratio(down, g0)) / 4, first)
    with np.errstate(divide="ignore"):
        logs = np.log(np.abs(_ratio(np.where(apart, plain, scaled), first)))
    return g, h, residual, logs - np.where(apart, 0.0, exponent)


def _ratio(top: ArrayLike, bottom: Floats) -> Floats:
    """`top` over `bottom`, zero where `bottom` is zero or not a number (of a top that is zero)."""
    regular = (bottom != 0) & ~np.isnan(bottom)
    return np.divide(top, bottom, out=np.zeros(np.broadcast(top, bottom).shape), where=regular)


def half_time(*, rate: float, strength: float, output: float) -> float:
    r"""The time at which $f$ reaches $\Lambda/2$ from $f(0)$ = `output` of the same sign and
    aligned $v = w$: $\ln(\Lambda/f(0) - 1)/(2a\Lambda)$.
    """
    return float(np.log(strength / output - 1) / (2 * rate * strength))


def largest_rate(*, rate: float, strength: float, invariant: float = 0.0) -> float:
    r"""The largest stable step of gradient descent at the solution, in units of the flow's time:
    $2/(a\Delta)$, $\Delta = \sqrt{4\Lambda^2+c}$.
    """
    return 2 / (abs(rate) * float(np.hypot(2 * strength, np.sqrt(invariant))))


def adapted(
    new: ArrayLike,
    *,
    strength: float,
    context: float,
    value: ArrayLike,
    query: ArrayLike,
    time: ArrayLike = np.inf,
    rate: float = 1.0,
) -> Floats:
    r"""The output $\tilde f$ on sequences of an unseen strength $\tilde\Lambda$ = `new` after
    training on `strength` $\Lambda$ from $v_0$ = `value`, $w_0$ = `query`, both (feature, label).

    Only the component along $\hat u = (1,\Lambda)/\sqrt M$, $M = 1+\Lambda^2$, learns; the one
    along $\hat u_\perp = (\Lambda,-1)/\sqrt M$ stays. With
    $\eta_u = \hat u\cdot(v+w) = \pm\sqrt{g/\psi M}$ and $\rho_u = \pm\sqrt{h/\psi M}$, signs kept,
    $$\tilde f = \psi\,[A v_u + B v_\perp][A w_u + B w_\perp],\quad
    A = \frac{1+\Lambda\tilde\Lambda}{\sqrt M},\quad B = \frac{\Lambda-\tilde\Lambda}{\sqrt M}.$$

    Exact up to the query token in $H$, which adds $O(1/\psi)$. From a vanishing start it ends at
    `vanishing_start`, which the paper states in general.

    **Arguments:** `time` and `rate` as in `solution`; the default is the end of training.

    Ref: Lyu, Wang, Zhu (ICLR 2025), public discussion; corrected in docs/theory/sparse.md.
    """
    v, w = np.asarray(value, float), np.asarray(query, float)
    m = 1 + strength**2
    along, across = np.array([1, strength]) / np.sqrt(m), np.array([strength, -1]) / np.sqrt(m)
    eta, rho = along @ (v + w), along @ (v - w)
    solved = solution(
        time,
        rate=rate,
        strength=strength,
        start=Start(sum_square=context * m * eta**2, difference_square=context * m * rho**2),
    )
    return adapted_output(
        new,
        strength=strength,
        context=context,
        sum_along=np.sign(eta) * np.sqrt(solved.sum_square / (context * m)),
        difference_along=np.sign(rho) * np.sqrt(solved.difference_square / (context * m)),
        across=(across @ v, across @ w),
    )


def adapted_output(
    new: ArrayLike,
    *,
    strength: ArrayLike,
    context: ArrayLike,
    sum_along: ArrayLike,
    difference_along: ArrayLike,
    across: tuple[ArrayLike, ArrayLike],
) -> Floats:
    r"""The output $\psi\,[Av_u+Bv_\perp][Aw_u+Bw_\perp]$ of `adapted` for given $\eta_u$ =
    `sum_along`, $\rho_u$ = `difference_along` and $v_\perp, w_\perp$ = `across`, all broadcast.
    """
    seen, target = np.asarray(new, float), np.asarray(strength, float)
    eta, rho = np.asarray(sum_along, float), np.asarray(difference_along, float)
    root = np.sqrt(1 + target**2)
    a, b = (1 + target * seen) / root, (target - seen) / root
    v = a * (eta + rho) / 2 + b * np.asarray(across[0], float)
    w = a * (eta - rho) / 2 + b * np.asarray(across[1], float)
    return np.asarray(context, float) * v * w


def vanishing_start(new: ArrayLike, *, strength: ArrayLike) -> Floats:
    r"""The adapted output at convergence from a vanishing start,
    $\Lambda(1+\tilde\Lambda\Lambda)^2/(1+\Lambda^2)^2$.
    """
    seen, target = np.asarray(new, float), np.asarray(strength, float)
    return target * ((1 + seen * target) / (1 + target**2)) ** 2
