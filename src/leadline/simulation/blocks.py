r"""One model of sparse features as blocks: the vectors $v_s$ and $w_s$ of each type on its two
coordinates, feature $s$ and the label.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.simulation.contexts import stream
from leadline.simulation.sequences import Numbers, draw_types, numbers_of
from leadline.spec import SparseRun

Bools = NDArray[np.bool_]


def kept_numbers(spec: SparseRun) -> Numbers:
    """The numbers of the types that the model has."""
    kept = int(min(spec.model.size, spec.task.num_tasks))
    probability, context, strength = numbers_of(spec.task)
    return Numbers(probability[:kept], context[:kept], strength[:kept])


def starting_blocks(spec: SparseRun) -> tuple[Floats, Floats]:
    r"""The vectors $v_s, w_s$ on (feature, label) with the start of `spec.model`: along
    $(1,\Lambda_s)$ of the sizes that give $f_s(0)$ and $gh$ without the query token, and `offset`
    perpendicular to it; of a constrained model $(0, v_c)$ and $(w_s, 0)$.
    """
    model, numbers = spec.model, kept_numbers(spec)
    target = numbers.strength
    output = 2 * model.start * target
    root = np.hypot(output, math.sqrt(model.invariant))
    sums, differences = root + output, root - output
    # the smaller of the two without cancellation
    product = model.invariant
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = np.where(output < 0, product / differences, sums)
        differences = np.where(output >= 0, product / sums, differences)
    sums, differences = np.nan_to_num(sums), np.nan_to_num(differences)
    if model.constrained:
        mass = numbers.context * np.abs(target)
        eta, rho = _roots(sums, mass), _roots(differences, mass)
        label, feature = (eta + rho) / 2, (eta - rho) / 2
        # a negative strength needs v w < 0 of the same squares
        label = label * np.sign(target)
        zero = np.zeros_like(label)
        return np.stack([zero, label], 1), np.stack([feature * np.ones_like(label), zero], 1)
    square = 1 + target**2
    along = np.stack([np.ones_like(target), target], 1) / np.sqrt(square)[:, None]
    across = np.stack([target, -np.ones_like(target)], 1) / np.sqrt(square)[:, None]
    eta, rho = (_roots(x, numbers.context * square)[:, None] for x in (sums, differences))
    moved = model.offset * across
    value, query = (eta + rho) / 2 * along + moved, (eta - rho) / 2 * along + moved
    if model.shared_value:
        value[:, 1] = value[0, 1]
    return value, query


def learning(spec: SparseRun) -> Bools:
    """Which coordinates, feature and label, of v and of w learn."""
    constrained = [[False, True], [True, False]]
    return np.array(constrained if spec.model.constrained else [[True, True]] * 2)


def training_types(spec: SparseRun) -> Int[Array, "sequence"] | None:
    """The types of the training sequences of `spec`, None for unlimited data."""
    if math.isinf(spec.task.sequences):
        return None
    probability = jnp.asarray(numbers_of(spec.task).probability)
    key = stream(spec.seed, "training", "sequences")
    return draw_types(key, probability, int(spec.task.sequences))


def training_shares(spec: SparseRun) -> Floats:
    """The share of every type in the training sequences, its probability for unlimited data."""
    types, probability = training_types(spec), numbers_of(spec.task).probability
    if types is None:
        return probability
    return np.bincount(np.asarray(types), minlength=len(probability)) / len(types)


def _roots(squares: Floats, mass: Floats) -> Floats:
    return np.sqrt(np.divide(squares, mass, out=np.zeros_like(squares), where=mass > 0))


def token_matrices(context: Floats, strength: Floats) -> Floats:
    """$H_s$ on (feature, label), shape (task, 2, 2), the query token included."""
    u = np.stack([np.ones_like(strength), strength], -1)
    return context[:, None, None] * u[:, :, None] * u[:, None, :] + np.diag([1.0, 0.0])
