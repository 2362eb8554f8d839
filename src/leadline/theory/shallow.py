r"""Stochastic gradient descent on one layer of attention with isotropic tasks, in the limit of
large dimension: the mean squared distance to the optimum obeys a scalar recursion.

Derived in docs/theory/isotropic.md. Ref: arXiv:2510.01098, Result 10.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class ShallowTraining:
    r"""Stochastic gradient descent on $\Gamma$ at depth one, from zero, fresh contexts each step.

    The distance $C(t) = \frac1D\|\Gamma - I/s\|_F^2$ to the optimum follows
    $C(t+1) = a\,C(t) + b$ from $C(0) = 1/s^2$, and the loss is $s\,C(t) + 1 - 1/s$. With
    $\eta$ twice the step size,
    $$s = 1 + \frac{1+\sigma^2}\alpha,\quad v = \frac{\eta^2}\tau\Big(1+\frac1\kappa\Big),\quad
    a = (1-\eta s)^2 + v s^2,\quad
    b = v\,\frac{1+\sigma^2}\alpha + \frac{\eta^2}\tau\frac{s\sigma_q^2}\kappa .$$

    **Arguments:** `ratio` $\alpha = P/D$, `query_ratio` $\kappa = K/D$, `batch_ratio`
    $\tau = B/D$, each positive or infinite; `noise` $\sigma$ and `query_noise` $\sigma_q$;
    `step_size`, the rate over $D$, the scalar-flow time of one step.

    Ref: arXiv:2510.01098, Result 10 (its $a$ and $b$; $C(0)$ and the loss corrected); derived in
    docs/theory/isotropic.md.
    """

    ratio: float
    batch_ratio: float
    query_ratio: float
    step_size: float
    noise: float = 0.0
    query_noise: float = 0.0

    @property
    def curvature(self) -> float:
        """$s$, half the second derivative of the loss."""
        return 1 + (1 + self.noise**2) / self.ratio

    @property
    def _spread(self) -> float:
        return 4 * self.step_size**2 / self.batch_ratio * (1 + 1 / self.query_ratio)

    @property
    def gap(self) -> float:
        """$1 - a$, negative when unstable."""
        move = 2 * self.step_size * self.curvature
        return move * (2 - move) - self._spread * self.curvature**2

    @property
    def injection(self) -> float:
        """$b$, what the noise of the gradient adds to $C$ in one step."""
        from_queries = 4 * self.step_size**2 / self.batch_ratio / self.query_ratio
        return (
            self._spread * (1 + self.noise**2) / self.ratio
            + from_queries * self.curvature * self.query_noise**2
        )

    @property
    def largest_step(self) -> float:
        r"""The step size from which on training is unstable, $a\ge1$."""
        return 1 / (self.curvature * (1 + (1 + 1 / self.query_ratio) / self.batch_ratio))

    def distance(self, step: ArrayLike) -> Floats:
        r"""$C(t) = a^t/s^2 + b\,(1-a^t)/(1-a)$ after `step` steps."""
        t = np.asarray(step, np.float64)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            logs = np.where(t > 0, t * np.log1p(-self.gap), 0.0)
            summed = -np.expm1(logs) / self.gap if self.gap else t
            return np.exp(logs) / self.curvature**2 + self.injection * summed

    def loss(self, step: ArrayLike) -> Floats:
        """The loss after `step` steps, label noise of the queries excluded."""
        return self.curvature * self.distance(step) + 1 - 1 / self.curvature

    def gamma(self, step: ArrayLike) -> Floats:
        r"""The mean $(1 - (1-\eta s)^t)/s$ of the diagonal of $\Gamma$."""
        with np.errstate(over="ignore"):
            left = (1 - 2 * self.step_size * self.curvature) ** np.asarray(step, np.float64)
            return (1 - left) / self.curvature

    def rounding(self, step: ArrayLike) -> Floats:
        """A bound on the rounding error of `loss`."""
        memory = np.asarray(step, np.float64)
        if self.gap > 0:
            memory = np.minimum(memory, 1 / self.gap)
        lost = 1 + 2 * self.step_size * self.curvature * memory
        with np.errstate(over="ignore"):
            return 8 * EPS * lost * (1 + self.loss(step))
