r"""Models of softmax layers that come close to the bound on retrieval without any training.

A perturbed query $\tau\hat q+\rho u$ is made by the matrix $\tau I+\rho A$ with an antisymmetric
orthogonal $A$: $A\hat q$ is perpendicular to $\hat q$ and as long. Layers whose $A$ are turned
independently see independent perturbations; $\pm A$ see opposite ones, and matrices that
anticommute see perpendicular ones at every query.

Derived in docs/theory/retrieval.md.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory.retrieval_bound import (
    Mixture,
    Perturbation,
    block_size,
    mixture_of,
    penalized_weights,
    variance,
)
from leadline.theory.retrieval_gram import Ensembles

_FEW = 4


def built_law(grid: Ensembles, *, depth: int, perturbation: Perturbation) -> Mixture:
    r"""`retrieval_bound.depth_law` with whole numbers of layers: the expected loss of a model that
    `construct_layers` makes from the mixture, without any training.

    Layers come in blocks, one, a pair or a frame, of one kind each. Blocks are chosen one by one
    and then exchanged as long as that helps; with the fractions $x$ of the blocks the best gain
    leaves $T - (h\cdot x)^2/(x^TGx + V\cdot x/L)$.

    **Arguments:** `depth` a multiple of the block: 1, 2 or twice `retrieval_bound.frame_size`.

    **Raises:** `SolverError` for another depth, or an arrangement that the dimension does not have.
    """
    size = block_size(grid.dim, perturbation)
    if depth < 2 or depth % size:
        raise SolverError(
            f"depth: got {depth} layers, expected at least 2 and a multiple of {size}, the layers "
            f"of a block of {perturbation} perturbations"
        )
    blocks = depth // size
    penalty = variance(grid, perturbation) / depth
    relaxed = penalized_weights(grid, np.arange(len(penalty)), penalty)
    starts = [_rounded(relaxed / relaxed.sum(), blocks)]
    kinds = range(len(penalty)) if blocks <= _FEW else [int(np.argmax(relaxed))]
    starts += [np.bincount([kind], minlength=len(penalty)) for kind in kinds]
    filled = [_Blocks(grid, penalty, start, blocks) for start in starts]
    best = max(filled, key=lambda model: model.gained)
    fractions = best.counts / blocks
    weight = best.gained / float(grid.overlap @ fractions) * fractions
    return mixture_of(grid, weight, error=-math.inf, penalty=penalty)


def construct_layers(
    mixture: Mixture, *, dim: int, depth: int, perturbation: Perturbation, seed: int
) -> Floats:
    r"""Matrices $M_l = \tau_lI + \rho_lA_l$ of a model that comes close to the ensemble of
    `mixture`, shape (depth, dim, dim), with antisymmetric orthogonal $A_l$, which turn every query
    into a perpendicular direction: in turned copies $O^TJ_iO$, $O$ uniform, of anticommuting
    $J_i$, one for "independent", $\pm$ one for "antithetic" and $\pm$ a whole set for "frames".

    **Arguments:** `mixture` from `built_law` at this depth and perturbation, so that its weights
    are whole blocks; `depth` a multiple of `retrieval_bound.block_size`.

    **Raises:** `SolverError` for another depth, other weights, or an odd dimension.
    """
    if dim % 2:
        raise SolverError(
            f"dim: got {dim}, expected an even dimension: in odd ones no matrix turns every query "
            "into a perpendicular direction"
        )
    block = block_size(dim, perturbation)
    if depth < 1 or depth % block:
        raise SolverError(
            f"depth: got {depth} layers, expected a multiple of {block}, the layers of a block of "
            f"{perturbation} perturbations"
        )
    shares = mixture.weight / mixture.gain * (depth // block)
    counts = np.rint(shares).astype(np.int64)
    if np.abs(shares - counts).max() > 1e-6 or counts.sum() != depth // block:
        raise SolverError(
            f"mixture: got {', '.join(f'{x:.3g}' for x in shares.tolist())} blocks of its kinds at "
            f"depth {depth}, expected whole numbers, as those of built_law"
        )
    generators = anticommuting(dim)[: max(block // 2, 1)]
    rng = np.random.default_rng(seed)
    layers: list[Floats] = []
    for tau, rho, count in zip(
        mixture.sharpness.tolist(), mixture.noise.tolist(), counts.tolist(), strict=True
    ):
        for _ in range(count):
            turn, upper = np.linalg.qr(rng.standard_normal((dim, dim)))
            turn *= np.sign(np.diag(upper))
            turned = turn.T @ generators @ turn
            both = turned if block == 1 else np.concatenate([turned, -turned])
            layers.extend(tau * np.eye(dim) + rho * both)
    return np.stack(layers)


def anticommuting(dim: int) -> Floats:
    r"""Antisymmetric orthogonal matrices that anticommute, $J_iJ_j+J_jJ_i = -2\delta_{ij}I$, as
    many as the dimension has up to eight, shape (count, dim, dim).
    """
    rotate, swap, flip = (
        np.array(m, float) for m in ([[0, -1], [1, 0]], [[0, 1], [1, 0]], [[1, 0], [0, -1]])
    )
    one = np.eye(2)
    match min(dim & -dim, 16):
        case 1:
            small = np.zeros((0, dim, dim))
        case 2:
            small = rotate[None]
        case 4:
            small = np.stack([_kron(rotate, one), _kron(swap, rotate), _kron(flip, rotate)])
        case _:
            eight = np.stack(
                [
                    _kron(rotate, rotate, rotate),
                    _kron(one, swap, rotate),
                    _kron(one, flip, rotate),
                    _kron(swap, rotate, one),
                    _kron(flip, rotate, one),
                    _kron(rotate, one, swap),
                    _kron(rotate, one, flip),
                ]
            )
            small = eight
            if dim % 16 == 0:
                small = np.stack([*(_kron(swap, j) for j in eight), _kron(rotate, np.eye(8))])
    return np.stack([_kron(np.eye(dim // j.shape[0]), j) for j in small]) if len(small) else small


def _kron(*matrices: Floats) -> Floats:
    return functools.reduce(lambda a, b: np.asarray(np.kron(a, b), float), matrices)


class _Blocks:
    """Whole blocks of kinds of layers: filled up one by one, then exchanged as long as that helps.

    `gained` is what the model gains over the prediction zero, `counts` the blocks of each kind.
    """

    def __init__(
        self, grid: Ensembles, penalty: Floats, start: NDArray[np.int64], blocks: int
    ) -> None:
        self.grid = grid
        self.single = np.diag(grid.gram) + blocks * penalty
        self.counts = np.zeros(len(penalty), np.int64)
        self.overlap, self.square, self.product = 0.0, 0.0, np.zeros(len(penalty))
        for kind in np.repeat(np.arange(len(start)), start).tolist():
            self.move(kind, 1)
        for _ in range(blocks - int(start.sum())):
            self.move(int(np.argmax(self.gains())), 1)
        improved = True
        while improved:
            improved = False
            for kind in np.flatnonzero(self.counts).tolist():
                self.move(kind, -1)
                gains = self.gains()
                best = int(np.argmax(gains))
                if gains[best] > gains[kind] * (1 + 1e-12):
                    kind, improved = best, True
                self.move(kind, 1)
        self.gained = self.overlap**2 / self.square

    def gains(self) -> Floats:
        """What the present blocks and one more of each kind gain."""
        square = self.square + 2 * self.product + self.single
        return (self.overlap + self.grid.overlap) ** 2 / square

    def move(self, kind: int, sign: int) -> None:
        """Add a block of this kind, or take one away."""
        # taken away, it leaves the product that still counts it
        self.square += sign * float(2 * self.product[kind] + self.single[kind])
        self.square += (1 - sign) * float(self.grid.gram[kind, kind])
        self.product = self.product + sign * self.grid.gram[kind]
        self.overlap += sign * float(self.grid.overlap[kind])
        self.counts[kind] += sign


def _rounded(fractions: Floats, total: int) -> NDArray[np.int64]:
    """The whole numbers with sum `total` nearest to these fractions of it."""
    exact = fractions * total
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact)[: total - int(counts.sum())]] += 1
    return counts
