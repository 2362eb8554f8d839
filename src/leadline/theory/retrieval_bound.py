r"""What depth can buy in retrieval: the least loss of every ensemble of softmax layers.

The mean of $L$ layers with non-negative gains and any matrices $M_l$, on isotropic normalized
tokens, loses at least

$$R_\infty = \min_{\nu\ge0}\ T - 2h\cdot\nu + \nu^TG\nu ,$$

a convex quadratic program over measures $\nu$ on perturbed queries $v = \tau\hat q + \rho u$, $u$
uniform: averaging a model over rotations cannot raise its loss, and afterwards $M_l\hat q$ has that
law. The bound is reached as $L\to\infty$. At finite depth the layers' disagreement is paid for,
$R_L = \min_\nu\,[R(\nu) + V(\nu)/L]$, with a variance $V$ that depends on how the layers'
perturbations are arranged.

Derived in docs/theory/retrieval.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.ensembles import Decomposition
from leadline.errors import SolverError
from leadline.theory.retrieval import MAX_LOGIT, best_layer
from leadline.theory.retrieval_gram import Ensembles, ensembles

Perturbation = Literal["independent", "antithetic", "frames"]

NORMS, TILTS, WIDEST = 15, 27, 1.4
LARGEST_FRAME = 8
_FLOOR = 1e-13


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixture:
    r"""A mixture of kinds of softmax layers and what it loses.

    **Arguments:** `sharpness` $\tau$, `noise` $\rho$ and `weight` of each kind; the weights sum to
    `gain` $g$, and a fraction `weight`$/g$ of the layers is of that kind. `loss` is $R$; `own` is
    $A$, the mean loss of one layer of gain $g$; `loss_error` is how much a coarser grid of kinds
    would add.
    """

    loss: float
    loss_error: float
    own: float
    gain: float
    sharpness: Floats
    noise: Floats
    weight: Floats

    def independent(self, depth: int) -> float:
        r"""The expected loss of `depth` layers drawn independently from an infinite ensemble,
        $R + (A - R)/L$.

        **Raises:** `SolverError` unless $L\ge1$.
        """
        _check_depth(depth, 1)
        return self.loss + (self.own - self.loss) / depth


def _check_depth(depth: int, least: int) -> None:
    if depth < least:
        raise SolverError(
            f"depth: got {depth} layers, expected at least {least}"
            + (" (one layer is retrieval.best_layer)" if least == 2 else "")
        )


def layer_grid(*, dim: int, context: int, targets: int, resolution: float = 1.0) -> Ensembles:
    r"""The moments of all kinds of layers from which `ensemble_bound` and `depth_law` choose: 15
    lengths of the effective query from half to 12 times that of the best single layer (or the
    longest that the quadrature resolves), 27 angles from the query up to 1.4, denser near it. Both
    numbers are odd, so that every second value is a coarser grid with the same ends.

    **Raises:** `SolverError` for an impossible task.
    """
    sharpness = best_layer(dim=dim, context=context, targets=targets).sharpness
    widest = min(12.0, MAX_LOGIT / (dim * sharpness))
    norms = sharpness * np.geomspace(0.5, widest, NORMS)
    angles = WIDEST * (np.arange(TILTS) / (TILTS - 1)) ** 1.2
    return ensembles(
        dim=dim,
        context=context,
        targets=targets,
        norms=norms.tolist(),
        angles=angles.tolist(),
        resolution=resolution,
    )


def ensemble_bound(grid: Ensembles) -> Mixture:
    r"""The least loss $R_\infty$ of any ensemble of layers with non-negative gains, and a mixture
    that reaches it.

    The weights are not unique in practice: mixtures that differ in them by tens of percent lose
    the same to $10^{-4}$.

    **Arguments:** `grid` from `layer_grid`, or any grid of `ensembles`.
    """
    weight = least_weights(grid.gram, grid.overlap)
    coarse = _coarser(grid)
    fewer = least_weights(grid.gram[np.ix_(coarse, coarse)], grid.overlap[coarse])
    return mixture_of(grid, weight, error=_loss(grid, _spread(grid, coarse, fewer)))


def dual_bound(grid: Ensembles) -> float:
    r"""A lower bound on the loss of every mixture of the kinds in `grid`, whether or not the
    program was solved well: any $w$ with $Gw\ge h$ gives $T - w^TGw$, and the weights found become
    such a $w$ when multiplied by $\max_\theta h/(G\nu)$.

    **Raises:** `SolverError` if the weights found do not overlap with every kind.
    """
    weight = least_weights(grid.gram, grid.overlap)
    potential = grid.gram @ weight
    if not (potential > 0).all():
        raise SolverError("grid: got kinds of layers without overlap with the best mixture")
    scale = max(1.0, float(np.max(grid.overlap / potential)))
    return grid.energy - scale**2 * float(weight @ potential)


def best_temperatures(
    *, dim: int, context: int, targets: int, sharpness: Sequence[float] | None = None
) -> Mixture:
    r"""The least loss of a mixture of temperatures, layers with $M_l = \tau_lI$ and one gain.

    **Arguments:** `sharpness` the $\tau$ to choose from, by default 33 from 0.4 to 8 times
    that of the best single layer, which is always among them.

    **Raises:** `SolverError` for an impossible task, or logits beyond the quadrature.
    """
    best = best_layer(dim=dim, context=context, targets=targets).sharpness
    chosen = best * np.geomspace(0.4, 8, 33) if sharpness is None else np.asarray(sharpness)
    norms = np.unique(np.append(chosen, best))
    grid = ensembles(dim=dim, context=context, targets=targets, norms=norms.tolist(), angles=[0.0])
    weight = least_weights(grid.gram, grid.overlap)
    coarse = np.flatnonzero((np.arange(len(norms)) % 2 == 0) | (norms == best))
    fewer = least_weights(grid.gram[np.ix_(coarse, coarse)], grid.overlap[coarse])
    return mixture_of(grid, weight, error=_loss(grid, _spread(grid, coarse, fewer)))


def signed_temperatures(
    *, dim: int, context: int, targets: int, sharpness: Sequence[float]
) -> Mixture:
    r"""The least loss of layers $M_l = \tau_lI$ whose gains may have both signs, $T - h^TG^+h$.

    Such models are outside of the bound, which needs positive gains, and may fall below it; they
    live on differences of large terms, as far as floats resolve them.

    **Arguments:** `sharpness` the $\tau$ in use, one layer each.

    **Raises:** `SolverError` for an impossible task, or logits beyond the quadrature.
    """
    grid = ensembles(dim=dim, context=context, targets=targets, norms=list(sharpness), angles=[0.0])
    weight = np.linalg.pinv(grid.gram, rcond=1e-9, hermitian=True) @ grid.overlap
    loss = _loss(grid, weight)
    size = len(weight)
    # layers f_l = L w_l p_l, of which the model is the mean
    own = grid.energy - 2 * float(grid.overlap @ weight) + size * float(grid.own @ weight**2)
    return Mixture(
        loss=loss,
        loss_error=1e-7 * (grid.energy + float(np.abs(weight).sum()) ** 2 * float(grid.own.max())),
        own=own,
        gain=float(weight.sum()),
        sharpness=grid.sharpness,
        noise=grid.noise,
        weight=weight,
    )


def depth_law(grid: Ensembles, *, depth: int, perturbation: Perturbation) -> Mixture:
    r"""The loss $R_L = \min_\nu\,[R(\nu) + \frac gL\int V\,d\nu]$ of `depth` layers with one gain
    $g$ whose numbers of each kind are fixed and whose perturbations are arranged in one of three
    ways:

    - "independent": $V = E|f|^2 - G$;
    - "antithetic": pairs $\pm u$, $V = E|f|^2 + G_- - 2G$;
    - "frames": groups $\pm u_1,\dots,\pm u_m$ orthogonal to each other and to the query,
      $V = E|f|^2 + G_- + (2m-2)G_\perp - 2mG$, with the largest $m\le8$ for which matrices do so
      at every query, one less than the Radon-Hurwitz number of the dimension.

    Numbers of layers are taken as real: optimistic for a few layers, where whole numbers matter.

    **Arguments:** `grid` from `layer_grid`; `depth` $L\ge2$.

    **Raises:** `SolverError` for fewer layers, or an arrangement that the dimension does not have.
    """
    _check_depth(depth, 2)
    penalty = variance(grid, perturbation) / depth
    weight = penalized_weights(grid, np.arange(len(penalty)), penalty)
    coarse = _coarser(grid)
    fewer = _spread(grid, coarse, penalized_weights(grid, coarse, penalty))
    error = _loss(grid, fewer) + float(fewer.sum() * penalty @ fewer)
    return mixture_of(grid, weight, error=error, penalty=penalty)


def block_size(dim: int, perturbation: Perturbation) -> int:
    """The layers of one block: 1, a pair, or a frame with its opposites.

    **Raises:** `SolverError` for pairs or frames in odd dimensions.
    """
    if perturbation == "independent":
        return 1
    if frame_size(dim) == 0:
        raise SolverError(
            f"perturbation: got {perturbation!r} in dim {dim}, expected 'independent': in odd "
            "dimensions no matrix turns every query into a perpendicular direction"
        )
    return 2 if perturbation == "antithetic" else 2 * min(frame_size(dim), LARGEST_FRAME)


def decomposition(mixture: Mixture, *, depth: int) -> Decomposition:
    r"""$A$ and $C$ of `depth` layers that lose `mixture.loss`, from $R = C + (A-C)/L$.

    **Raises:** `SolverError` for fewer than two layers.
    """
    _check_depth(depth, 2)
    disagreement = depth * (mixture.own - mixture.loss) / (depth - 1)
    return Decomposition(depth=depth, own=mixture.own, shared=mixture.own - disagreement)


def frame_size(dim: int) -> int:
    r"""How many antisymmetric orthogonal matrices of size `dim` anticommute at most: one less than
    the Radon-Hurwitz number, 0 in odd dimensions. They turn every query into that many directions
    perpendicular to it and to each other.
    """
    twos = (dim & -dim).bit_length() - 1
    return 8 * (twos // 4) + 2 ** (twos % 4) - 1


def variance(grid: Ensembles, perturbation: Perturbation) -> Floats:
    """The variance $V$ of every kind, see `depth_law`."""
    size, same = block_size(grid.dim, perturbation), np.diag(grid.gram)
    if size == 1:
        return np.where(grid.noise == 0, 0.0, grid.own - same)
    spread = grid.own + grid.opposite + (size - 2) * grid.perpendicular - size * same
    return np.where(grid.noise == 0, 0.0, spread)


def _coarser(grid: Ensembles) -> NDArray[np.intp]:
    """Every second length and every second angle."""
    index = np.arange(len(grid.overlap)).reshape(-1, grid.angles)
    return index[::2, ::2].ravel()


def _spread(grid: Ensembles, index: NDArray[np.intp], weight: Floats) -> Floats:
    """The weights of the kinds `index` as weights of all kinds."""
    weights = np.zeros(len(grid.overlap))
    weights[index] = weight
    return weights


def _loss(grid: Ensembles, weight: Floats) -> float:
    return grid.energy - 2 * float(grid.overlap @ weight) + float(weight @ grid.gram @ weight)


def least_weights(gram: Floats, overlap: Floats) -> Floats:
    r"""The weights $\nu\ge0$ of least $\nu^TG\nu - 2h\cdot\nu$, by non-negative least squares.

    **Arguments:** `gram` $G$ positive semidefinite up to rounding, shape (n, n); `overlap` $h$.
    """
    return _nonnegative(np.linalg.eigh(gram), overlap, total=None)


def _nonnegative(eigen: tuple[Floats, Floats], overlap: Floats, *, total: float | None) -> Floats:
    """Least weights from the eigenvalues and vectors of the Gram matrix, with sum `total`."""
    from scipy.optimize import nnls

    values, vectors = eigen
    root = np.sqrt(np.maximum(values, _FLOOR * values[-1]))
    rows, right = root[:, None] * vectors.T, (vectors.T @ overlap) / root
    if total is not None:  # a heavy row instead of a constraint
        heavy = 1e3 * float(root[-1])
        rows = np.vstack([rows, np.full(len(overlap), heavy)])
        right = np.append(right, heavy * total)
    return np.asarray(nnls(rows, right)[0], float)


def penalized_weights(grid: Ensembles, index: NDArray[np.intp], penalty: Floats) -> Floats:
    """The weights of the kinds `index` of least loss plus gain times `penalty`: at a given gain a
    quadratic program.
    """
    from scipy.optimize import minimize_scalar

    gram, overlap = grid.gram[np.ix_(index, index)], grid.overlap[index]
    eigen = np.linalg.eigh(gram)

    def weights(gain: float) -> Floats:
        return _nonnegative(eigen, overlap - gain / 2 * penalty[index], total=gain)

    def loss(gain: float) -> float:
        weight = weights(gain)
        return float(weight @ gram @ weight + (gain * penalty[index] - 2 * overlap) @ weight)

    free = float(_nonnegative(eigen, overlap, total=None).sum())
    found = minimize_scalar(
        loss, bounds=(0.6 * free, 1.6 * free), method="bounded", options={"xatol": 1e-4}
    )
    return weights(float(found.x))


def mixture_of(
    grid: Ensembles, weight: Floats, *, error: float, penalty: Floats | None = None
) -> Mixture:
    """The mixture of these weights; `error` is the loss on the coarser grid."""
    gain, kept = float(weight.sum()), weight > 0
    loss = _loss(grid, weight) + (0.0 if penalty is None else gain * float(penalty @ weight))
    own = grid.energy - 2 * float(grid.overlap @ weight) + gain * float(grid.own @ weight)
    return Mixture(
        loss=loss,
        loss_error=max(error - loss, 1e-7 * grid.energy),
        own=own,
        gain=gain,
        sharpness=grid.sharpness[kept],
        noise=grid.noise[kept],
        weight=weight[kept],
    )
