r"""An average of layers and its error: what the layers share, and what averaging removes.

A model that predicts the mean of its $L$ layers has the error $\frac1L\sum_le_l$. With the matrix
$E\,e_le_m$, its mean square is an identity of two numbers,

$$R = C + \frac{A - C}L,\qquad A = \frac1L\sum_lE\,e_l^2,\qquad
C = \frac1{L(L-1)}\sum_{l\ne m}E\,e_le_m ,$$

true of any numbers whatever. It becomes a statement about depth only with a second fact,
such as how $A$ and $C$ change with depth, or what other layers would give.

Ref: arXiv:2610.11063, appendix B; docs/theory/retrieval.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.errors import SolverError


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    r"""The loss of `depth` layers as `shared` $C$ and `own` $A$: $R = C + (A - C)/L$."""

    depth: int
    own: float
    shared: float

    @property
    def disagreement(self) -> float:
        r"""$A - C$, half the mean square difference of two layers' predictions."""
        return self.own - self.shared

    @property
    def loss(self) -> float:
        r"""$R = C + (A - C)/L$."""
        return self.shared + self.disagreement / self.depth

    def subset(self, size: int) -> float:
        r"""The expected loss of `size` $n$ of the layers, chosen without replacement,
        $C + (A - C)/n$.

        **Raises:** `SolverError` unless $1\le n\le L$.
        """
        if not 1 <= size <= self.depth:
            raise SolverError(
                f"size: got a subset of {size} layers, expected 1 to the depth {self.depth}"
            )
        return self.shared + self.disagreement / size

    def independent(self, size: int) -> float:
        r"""The expected loss of `size` $n\ge1$ layers drawn independently from these, with
        replacement: $R + (A - R)/n$. They never do better than the $L$ layers together, $R$.

        **Raises:** `SolverError` unless $n\ge1$.
        """
        if size < 1:
            raise SolverError(f"size: got {size} layers, expected at least 1")
        return self.loss + (self.own - self.loss) / size

    def coupling(self, *, floor: float) -> float:
        r"""The loss above `floor` in units of that of independent layers,
        $(R - R_\infty)\,L/(A - C)$, with the floor $R_\infty$ of infinitely many: 1 if the errors
        of the layers are independent about the floor ($C = R_\infty$), less if they are
        anticorrelated ($C < R_\infty$).
        """
        return (self.loss - floor) * self.depth / self.disagreement


def decompose(errors: ArrayLike) -> Decomposition:
    r"""The decomposition of a layer error matrix.

    **Arguments:** `errors` $E\,e_le_m$, symmetric of shape $(L, L)$, $L\ge2$, where $e_l$ is the
    error that layer $l$ would make alone, so that the model's error is their mean.

    **Raises:** `SolverError` for another shape, one layer, or a matrix that is not symmetric.
    """
    matrix = np.asarray(errors, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise SolverError(
            f"errors: got an array of shape {matrix.shape}, expected a square matrix of layers"
        )
    depth = len(matrix)
    if depth < 2:
        raise SolverError(
            f"errors: got a matrix of {depth} layers, expected at least 2 that can agree or not"
        )
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-9 * float(np.abs(matrix).max())):
        raise SolverError("errors: got a matrix that is not symmetric, expected E e_l e_m")
    own = float(np.trace(matrix)) / depth
    shared = (float(matrix.sum()) - own * depth) / (depth * (depth - 1))
    return Decomposition(depth=depth, own=own, shared=shared)
