r"""Layers and weights that learn apart, at infinite context and width (RRS).

Untied layers, $\Gamma^l = \gamma^l I$, have the loss $\sum_kw_k\prod_l(1-\gamma^l\lambda_k/L)^2$.
From equal layers their flow is the tied one, but the tied optimum is a saddle: a difference between
two layers lowers the loss. Full linear attention learns $\gamma = w_vw_kw_qw_x^2$ through its
factors, which changes the clock and not the landscape.

Derived in docs/theory/untied.md. Ref: arXiv:2510.01098, section 5 and appendix G, corrected.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.spec import Spectrum
from leadline.theory import landscape
from leadline.theory.flows import flow
from leadline.theory.landscape import PowerLaw, log_residual
from leadline.theory.rotated import scale_law
from leadline.theory.spectra import Modes

Times = Sequence[float] | Floats
TOLERANCE = 1e-12


def untied_loss(modes: Modes, scales: Floats) -> Floats:
    r"""$\sum_kw_k\prod_l(1-\gamma^l\lambda_k/L)^2$ of layers with the `scales` $\gamma^l$ in the
    last axis, whose length is the depth $L$. Returns an array of the other axes.
    """
    depth = scales.shape[-1]
    rows = scales.reshape(-1, depth)
    values = [
        modes.weights @ np.prod(1 - np.multiply.outer(modes.eigenvalues, row / depth), axis=1) ** 2
        for row in rows
    ]
    return np.array(values).reshape(scales.shape[:-1])


def untied_flow(modes: Modes, times: Times, *, start: Sequence[float]) -> Floats:
    r"""The scales $\gamma^l(t)$ of untied layers, shape (time, layer), under
    $\dot\gamma^l = -L\,\partial\mathcal L/\partial\gamma^l$ from `start`, one value a layer. The
    factor $L$ makes the flow from equal layers the tied flow.

    Layers that start equal stay equal, and are integrated as one, so that rounding cannot push
    them off the saddle.

    **Arguments:** `times`, increasing and $\ge0$; `start` in any order.

    **Raises:** `SolverError` if the integration stops early.
    """
    depth = len(start)
    counts = Counter(float(value) for value in start)
    groups = sorted(counts)
    sizes = np.array([counts[value] for value in groups])
    lam, moments = modes.eigenvalues, 2 * modes.weights * modes.eigenvalues

    def velocity(state: Floats) -> Floats:
        factors = 1 - np.multiply.outer(state / depth, lam)
        powers = factors ** sizes[:, None]
        others = np.array(
            [np.prod(np.delete(powers, i, axis=0), axis=0) for i in range(len(state))]
        )
        return ((others * powers) * (others * factors ** (sizes[:, None] - 1))) @ moments

    states, _ = flow(velocity, times, start=groups, tolerance=TOLERANCE)
    return states[:, [groups.index(float(value)) for value in start]]


def pair_loss(modes: Modes, gamma: float, *, depth: int, imbalance: float) -> float:
    r"""The loss when two of $L$ layers are moved apart: they have $\gamma^l/L = \gamma/L\pm d$, the
    others $\gamma/L$, $d$ = `imbalance`:
    $\sum_kw_k(r_k^2-d^2\lambda_k^2)^2r_k^{2L-4}$, $r_k = 1-\gamma\lambda_k/L$.

    **Arguments:** `depth` $L\ge2$.
    """
    r = 1 - gamma / depth * modes.eigenvalues
    pair = r**2 - (imbalance * modes.eigenvalues) ** 2
    return float(modes.weights @ (pair**2 * r ** (2 * depth - 4)))


def pair_escape(modes: Modes, gamma: float, *, depth: int) -> float:
    r"""The change of `pair_loss` to leading order, divided by $d^2$:
    $-2\sum_kw_k\lambda_k^2r_k^{2L-2} < 0$. The change is negative at every $\gamma$, also at the
    best: for $L\ge2$ the tied optimum is a strict saddle of the untied loss.

    **Arguments:** `depth` $L\ge2$.

    Ref: derived in docs/theory/untied.md.
    """
    r = 1 - gamma / depth * modes.eigenvalues
    return float(-2 * (modes.weights * modes.eigenvalues**2) @ r ** (2 * depth - 2))


@dataclass(frozen=True, kw_only=True)
class AttentionScales:
    r"""Scales of the weights of full linear attention, $\gamma = w_vw_kw_qw_x^2$ (values, keys,
    queries, read-in), all positive.
    """

    value: float
    key: float
    query: float
    read_in: float

    @property
    def gamma(self) -> float:
        r"""The scale $\gamma$ of the reduced model."""
        return self.value * self.key * self.query * self.read_in**2


def balanced(scale: float) -> AttentionScales:
    r"""The balanced start $w_v = w_k = w_q = w$, $w_x = \sqrt2w$, $w$ = `scale` $> 0$, with
    $\gamma = 2w^5$: the scalar flow keeps these ratios.
    """
    return AttentionScales(value=scale, key=scale, query=scale, read_in=math.sqrt(2) * scale)


def attention_flow(
    modes: Modes, times: Times, *, depth: float, start: AttentionScales, dim: int = 1
) -> Floats:
    r"""$\gamma(t)$ of full linear attention with $w_o = w_y$ fixed at one, trained by gradient flow
    on its factors: with $F = -d\mathcal L/d\gamma$,
    $$\dot w_v = \frac{F\gamma}{w_v},\quad \dot w_k = \frac{F\gamma}{Dw_k},\quad
    \dot w_q = \frac{F\gamma}{Dw_q},\quad \dot w_x = \frac{2F\gamma}{Dw_x}.$$
    $w_v$ scales a matrix of rank one, the others multiples of the identity in $D$ dimensions:
    squared Frobenius norms grow together, $w_v^2$, $Dw_k^2$, $Dw_q^2$ and $Dw_x^2/2$ by the same
    amount, which leaves one equation. With $D = 1$ and a `balanced` start it is
    $\dot w = 4w^4\sum_kw_k\lambda_k(1-2w^5\lambda_k/L)^{2L-1}$.

    **Arguments:** `times`, increasing and $\ge0$; `dim` $D$ of the matrix flow, 1 for the scalar
    flow.

    **Raises:** `SolverError` for a start that is not positive.

    Ref: arXiv:2510.01098, appendix G.2, which drops the factors 2 and, inside, $1/L$.
    """
    initial = np.array([start.value, start.key, start.query, start.read_in])
    if not (initial > 0).all():
        raise SolverError(f"start: got {start}, expected positive scales: zero never moves")
    growth = np.array([1.0, 1 / dim, 1 / dim, 2 / dim])
    powers = np.array([1, 1, 1, 2])

    def gamma_of(log_value: float) -> float:
        grown = math.exp(2 * log_value) - start.value**2
        return float(np.prod(np.sqrt(initial**2 + growth * grown) ** powers))

    def velocity(state: Floats) -> Floats:
        gamma = gamma_of(float(state[0]))
        force = -float(landscape.slope(modes, gamma, depth=depth))
        return np.array([force * gamma * math.exp(-2 * float(state[0]))])

    states, _ = flow(velocity, times, start=[math.log(start.value)], tolerance=TOLERANCE)
    return np.array([gamma_of(value) for value in states[:, 0].tolist()])


def attention_time_law(spectrum: Spectrum) -> PowerLaw:
    r"""The asymptote of the loss against time for full linear attention at infinite depth, balanced
    scalar flow: with $\gamma = 2w^5$ and $F\sim K\beta\gamma^{-\beta-1}$,
    $w\sim t^{1/(5\beta+2)}$, $\gamma\sim t^{5/(5\beta+2)}$ and
    $\mathcal L\sim t^{-5\beta/(5\beta+2)}$. Arguments as in `rotated.scale_law`.

    Ref: derived in docs/theory/untied.md; the paper prints $w\sim t^{5/(5\beta+2)}$.
    """
    law = scale_law(spectrum)
    beta = law.exponent
    # d(w^(5 beta + 2))/dt, from w' = F gamma / w
    rate = (5 * beta + 2) * law.prefactor * beta * 2**-beta
    exponent = 5 * beta / (5 * beta + 2)
    return PowerLaw(prefactor=law.prefactor * 2**-beta * rate**-exponent, exponent=exponent)


@dataclass(frozen=True, kw_only=True)
class ReadoutFlow:
    r"""The course of training with trained read-in and readout, one value a time: the product
    `readout` $w_ow_y$, the scale `gamma` and the `loss`.
    """

    readout: Floats
    gamma: Floats
    loss: Floats


def readout_flow(modes: Modes, times: Times, *, depth: float, start: float) -> ReadoutFlow:
    r"""Scalar flow of full linear attention with trained $w_o$ and $w_y$, all weights from `start`
    (and $w_x$ from $\sqrt2$ `start`), on the loss
    $$\mathcal L = \sum_kw_ke_k^2,\quad e_k = 1 - w_ow_y(1-r_k^L),\quad
    r_k = 1-\gamma\lambda_k/L.$$
    With $A = 2\sum w_ke_k(1-r_k^L)$ and $F = 2w_ow_y\sum w_k\lambda_ke_kr_k^{L-1}$:
    $\dot w_o = w_yA$, $\dot w_y = w_oA$ and $\dot w_v = F\gamma/w_v$, ... as in `attention_flow`.
    The symmetric start keeps $w_o = w_y$ and $w_v = w_k = w_q = w_x/\sqrt2$.

    The product $w_ow_y$ shoots above one just as $\gamma$ escapes from its start, and then falls to
    its optimum, which is above one at finite depth.

    **Arguments:** `times`, increasing and $\ge0$; `start` $> 0$.

    Ref: arXiv:2510.01098, section 5.2 and appendix G.2.
    """
    if not start > 0:
        raise SolverError(f"start: got {start}, expected a positive scale: zero never moves")
    lam = modes.eigenvalues

    def errors(readout: float, gamma: float) -> tuple[Floats, Floats, Floats]:
        logs = log_residual(lam, gamma, depth=depth)
        size = np.exp(logs)
        below = np.exp(logs * (1 - 1 / depth))
        fitted = -np.expm1(logs)
        if gamma * lam.max() > depth:
            flipped = gamma * lam > depth
            if depth % 2:
                fitted = np.where(flipped, 1 + size, fitted)
            else:
                below = np.where(flipped, -below, below)
        return 1 - readout * fitted, fitted, below

    def velocity(state: Floats) -> Floats:
        readout, squared = math.exp(2 * state[0]), math.exp(2 * state[1])
        gamma = 2 * squared**2.5
        error, fitted, below = errors(readout, gamma)
        force = 2 * readout * float((modes.weights * lam) @ (error * below))
        pull = 2 * float(modes.weights @ (error * fitted))
        return np.array([pull, force * gamma / squared])

    logs = [math.log(start), math.log(start)]
    states, _ = flow(velocity, times, start=logs, tolerance=TOLERANCE)
    readout, gamma = np.exp(2 * states[:, 0]), 2 * np.exp(5 * states[:, 1])
    loss = [modes.weights @ errors(p, g)[0] ** 2 for p, g in zip(readout, gamma, strict=True)]
    return ReadoutFlow(readout=readout, gamma=gamma, loss=np.array(loss))
