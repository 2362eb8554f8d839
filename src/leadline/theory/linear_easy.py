r"""Linear attention on the easy task of retrieval: the query is one of very many tokens.

With infinitely many tokens the labels of a context reach the query through the covariance only.
$L$ layers with steps $\kappa_l$ leave $r(\lambda)=\prod_l(1-\kappa_l\lambda)$ of a mode, and the
loss is $\sum_k\lambda_k\omega_k\,r(\lambda_k)^2$: the residual polynomials of
`leadline.theory.polynomials`, whatever the query is.

Three regimes differ in how many of the layers are distinct: all equal ("tied",
`landscape.best_scale`), some equal ("outlier", `polynomials.outlier_steps`, or cycles) and all free
(`polynomials.free_steps`).

Ref: arXiv:2610.11063, appendices A.1, A.2 and A.4; docs/theory/retrieval.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory import landscape
from leadline.theory.polynomials import StepSizes
from leadline.theory.spectra import Modes


def tied_steps(modes: Modes, *, depth: int) -> StepSizes:
    r"""The least loss of `depth` layers that share one step size.

    **Raises:** `SolverError` unless $L\ge1$.
    """
    if depth < 1:
        raise SolverError(f"depth: got {depth} layers, expected at least 1")
    best = landscape.best_scale(modes, depth=depth)
    return StepSizes(
        scales=np.full(depth, best),
        loss=float(landscape.loss(modes, best, depth=depth)),
        gap=0.0,
        status="converged",
    )


def mode_residuals(eigenvalues: Floats, steps: StepSizes) -> Floats:
    r"""What these layers leave of the loss of each mode, $r(\lambda_k)^2 =
    \prod_l(1-\gamma_l\lambda_k/L)^2$, of the shape of `eigenvalues`. The scales of a free
    optimum of more than about ten layers are too brittle for double precision, see
    docs/theory/untied.md.
    """
    factors = 1 - np.multiply.outer(steps.scales / len(steps.scales), eigenvalues)
    return np.square(np.prod(factors, axis=0))


def mode_depths(eigenvalues: Floats, *, step: float) -> Floats:
    r"""The depth $\ell_k$ over which the loss of a mode falls by the factor $e$ in layers of one
    fixed step $\kappa$: $r(\lambda_k)^2 = e^{-L/\ell_k}$, $\ell_k = -1/(2\ln|1-\kappa\lambda_k|)$.

    The loss $\sum_kw_ke^{-L/\ell_k}$ is a sum of exponentials with $\ell_k\approx
    k^a/(2\kappa)$ and $w_k = k^{-a-b}$, hence a power law $L^{-(a+b-1)/a}$ as long as $L$ lies
    between $\ell_1$ and $\ell_d$, and exponential beyond.

    **Arguments:** `step` $0<\kappa<2/\lambda_1$.

    **Raises:** `SolverError` for a step beyond the edge of stability.
    """
    edge = 2 / float(eigenvalues.max())
    if not 0 < step < edge:
        raise SolverError(
            f"step: got {step:g}, expected a step in (0, {edge:g}): beyond it the top mode grows"
        )
    with np.errstate(divide="ignore"):
        return -0.5 / np.log(np.abs(1 - step * eigenvalues))


def window_exponent(losses: Sequence[float], depths: Sequence[float]) -> float:
    r"""The exponent $\alpha$ of $cL^{-\alpha}$ fitted to the losses by least squares in
    logarithms.

    **Arguments:** `losses` > 0 at the `depths` > 0, at least two of them distinct.

    **Raises:** `SolverError` for fewer depths, or a loss that is not positive.
    """
    y, x = np.asarray(losses, float), np.asarray(depths, float)
    if y.shape != x.shape or len(np.unique(x)) < 2:
        raise SolverError(
            f"depths: got {list(depths)} for {len(y)} losses, expected one depth a loss and at "
            "least two different ones"
        )
    if not ((y > 0).all() and (x > 0).all()):
        raise SolverError("losses: got a loss or a depth that is not positive, which has no log")
    return -float(np.polyfit(np.log(x), np.log(y), 1)[0])
