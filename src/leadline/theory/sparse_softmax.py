r"""Softmax attention on sparse features, one task, in the limit of long contexts.

Half of the tokens $\pm u$ have the sign of the query, and attention reads $f = p\tanh c$ with
$p = v\cdot u$, $c = (k\cdot u)\,q$: the number of tokens has dropped out. From value, key and
query of equal norm the flow keeps $k\cdot u = \sqrt M q$, $M = 1+\Lambda^2$, and then

$$\dot c = -2\sqrt M\,\kappa\,r\,p\,c\,\mathrm{sech}^2c,\qquad
p^2 = p_0^2 + \tfrac12\sqrt M\,[\mathrm{Shi}(2c) - \mathrm{Shi}(2c_0)],\qquad r = f - \Lambda.$$

Derived in docs/theory/sparse.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import SolverError

ACCURACY = 1e-9
"""Of an output, in units of the strength."""


def equal_norms(output: float, *, strength: float) -> float:
    r"""The norm $b$ of value, key and query at which $f = b\sqrt M\tanh(b^2\sqrt M)$ is `output`,
    which has the sign of `strength`.
    """
    from scipy.optimize import brentq

    root, target = math.sqrt(1 + strength**2), abs(output)
    high = 1 + 2 * target / root
    return float(
        brentq(lambda b: b * root * math.tanh(b * b * root) - target, 0.0, high, xtol=1e-15)
    )


def softmax_output(time: ArrayLike, *, rate: float, strength: float, output: float) -> Floats:
    r"""$f(t)$ from $f(0)$ = `output`, in the time of the loss with the factor 1/2.

    **Arguments:** `time` $\ge0$, one axis in any order; `rate` $\kappa$ is the share of the task in
    the data; `strength` $\Lambda\ne0$; `output` has its sign.

    **Raises:** `SolverError` where the output starts at zero or on the other side, which never
    learns.
    """
    from scipy.integrate import solve_ivp
    from scipy.special import shichi

    if not output * strength > 0:
        raise SolverError(
            f"output: got {output:g} with strength {strength:g}; softmax attention learns from a "
            "start of the same sign"
        )
    t = np.asarray(time, float)
    target, root = abs(strength), math.sqrt(1 + strength**2)
    norm = equal_norms(output, strength=strength)
    first, start = norm * root, norm * norm * root
    before = float(shichi(2 * start)[0])

    def along(c: Floats) -> Floats:
        return np.sqrt(first**2 + root / 2 * (shichi(2 * c)[0] - before))

    def velocity(_: float, log: Floats) -> Floats:
        c = np.exp(log)
        p = along(c)
        return 2 * root * (target - p * np.tanh(c)) * p / np.cosh(c) ** 2

    at, places = np.unique(rate * t, return_inverse=True)
    if at[-1] == 0:
        return np.full(t.shape, output)
    solved = solve_ivp(
        velocity,
        (0.0, float(at[-1])),
        [math.log(start)],
        method="LSODA",
        t_eval=at,
        rtol=1e-11,
        atol=1e-12,
    )
    c = np.exp(solved.y[0])
    return math.copysign(1.0, strength) * (along(c) * np.tanh(c))[places].reshape(t.shape)
