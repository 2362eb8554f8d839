r"""What a learned $\Gamma$ is worth on other covariances than it was trained on, at infinite
context and width: the loss under a distribution shift, as a sum over modes.

Derived in docs/theory/fixed.md. Ref: arXiv:2510.01098, section 3.2.
"""

from __future__ import annotations

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.spec import InContextRegression, RegressionRun
from leadline.theory.spectra import Modes, eigenvalues, power_law_modes

LARGEST_MATRIX = 4096


def evaluated_modes(spec: RegressionRun) -> Modes:
    r"""The modes on which `spec` is evaluated where $\Gamma$ is a multiple of the identity: those
    of `evaluation.task` if there is one, else of `task`.
    """
    task = spec.evaluation.task or spec.task
    if task.turn is None:
        return power_law_modes(task.spectrum)
    covariance, tasks = turned_task(task)
    return shifted_modes(np.eye(len(covariance)), covariance, tasks)


def turned_task(task: InContextRegression) -> tuple[Floats, Floats]:
    r"""The matrices $\Sigma'$ and $\Omega'$ of a task with a turn, in the basis of its tasks.

    **Raises:** `SolverError` if they have more than 4096 rows.
    """
    assert task.turn is not None
    if task.spectrum.dim > LARGEST_MATRIX:
        raise SolverError(
            f"evaluation.task.spectrum.dim: got {task.spectrum.dim}, expected at most "
            f"{LARGEST_MATRIX} with a turn, which takes dense matrices"
        )
    lam, omega = eigenvalues(task.spectrum)
    dim = len(lam)
    gaussian = np.random.default_rng(task.turn.seed).standard_normal((dim, dim))
    generator = (gaussian - gaussian.T) / np.sqrt(2 * dim)
    return turned(np.diag(lam), generator, angle=task.turn.angle), np.diag(omega)


def _symmetric(name: str, matrix: Floats) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise SolverError(f"{name}: got shape {matrix.shape}, expected a square matrix")
    _mirrored(name, matrix, matrix.T, "symmetric")


def _mirrored(name: str, matrix: Floats, mirror: Floats, kind: str) -> None:
    gap = np.abs(matrix - mirror)
    i, j = (int(n) for n in np.unravel_index(np.argmax(gap), gap.shape))
    if not gap[i, j] <= 1e-12 * np.abs(matrix).max():
        raise SolverError(
            f"{name}: got {matrix[i, j]:g} in entry ({i}, {j}) and {matrix[j, i]:g} in "
            f"({j}, {i}), expected a matrix that is {kind}"
        )


def turned(covariance: Floats, generator: Floats, *, angle: float) -> Floats:
    r"""$\Sigma' = e^{-\theta S}\,\Sigma\,e^{\theta S}$, $\theta$ = `angle`.

    **Arguments:** `covariance` $\Sigma$, symmetric; `generator` $S$, antisymmetric, of any size.

    **Raises:** `SolverError` naming the entry where $S$ is not antisymmetric.
    """
    _symmetric("covariance", covariance)
    if generator.shape != covariance.shape:
        raise SolverError(f"generator: got shape {generator.shape}, expected {covariance.shape}")
    _mirrored("generator", generator, -generator.T, "antisymmetric")

    from scipy.linalg import expm

    rotation = expm(angle * generator)
    shifted = rotation.T @ covariance @ rotation
    return (shifted + shifted.T) / 2


def shifted_modes(scales: Floats, covariance: Floats, task_covariance: Floats) -> Modes:
    r"""The modes of the loss of $\Gamma$ on inputs $\Sigma'$ and tasks $\Omega'$, commuting with it
    or not:
    $$\mathcal L = \mathrm{Tr}\,\Omega'[(I-\Gamma\Sigma'/L)^L]^T\Sigma'(I-\Gamma\Sigma'/L)^L
    = \sum_i w_i(1 - a_i/L)^{2L}.$$
    With $\Sigma' = CC^T$, $C^T(I-\Gamma CC^T)^L = (I-C^T\Gamma C)^LC^T$, and $C^T\Gamma C$ is
    symmetric: $a_i$ are its eigenvalues and $w_i = u_i^TC^T\Omega'Cu_i$ in its eigenvectors. One
    decomposition serves every depth, with positive terms only.

    **Arguments:** `scales` $\Gamma$, `covariance` $\Sigma'$ (positive semidefinite) and
    `task_covariance` $\Omega'$, symmetric matrices of one shape.

    **Returns:** modes for `landscape.loss(modes, 1.0, depth=L)`. For the whitening solution
    $\Gamma = L\Sigma^{-1}$ pass $\Sigma^{-1}$, take `gamma` $= L$, and read off
    `spectral_radius`.

    Ref: derived in docs/theory/fixed.md.
    """
    for name, matrix in (
        ("scales", scales), ("covariance", covariance), ("task_covariance", task_covariance)
    ):  # fmt: skip
        _symmetric(name, matrix)
        if matrix.shape != covariance.shape:
            raise SolverError(f"{name}: got shape {matrix.shape}, expected {covariance.shape}")
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-12 * values[-1]:
        raise SolverError(f"covariance: got the eigenvalue {values[0]:g}, expected none below zero")
    root = vectors * np.sqrt(np.maximum(values, 0))
    a, u = np.linalg.eigh(root.T @ scales @ root)
    seen = root @ u
    weights = np.einsum("ij,ij->j", seen, task_covariance @ seen)
    return Modes(eigenvalues=a, power=weights, weights=weights.copy())


def spectral_radius(modes: Modes) -> float:
    r"""The spectral radius of $I - \Sigma^{-1}\Sigma'$, for the modes of $\Gamma = \Sigma^{-1}$.

    Above one, depth makes the loss of the whitening solution grow geometrically under the shift;
    below one, depth reduces it, as gradient descent with a good preconditioner.
    """
    return float(np.abs(1 - modes.eigenvalues).max())
