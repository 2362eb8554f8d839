r"""How initialization, rates and multipliers follow width and depth, by named rule.

Width is counted in units $n = N/$`BASE_WIDTH`, at which the rules agree, depth $L$ in layers:

| rule | block adds | product of keys and queries | rates |
|---|---|---|---|
| standard | $1$ | $1$, softmax $1/\sqrt{d}$ | all alike |
| depth | $1/L$ | the same | the same; SGD on untied layers $L$ |
| width | $1$ | $1/n$, softmax $\sqrt{d_0}/d$ | matrices within the stream and read-out: Adam $1/n$; SGD: read-ins $n$, read-out $1/n$ |
| width and depth | $1/L$ | as width | both factors |

with $d = N/$heads rows of a head, $d_0$ those at the base. Matrices start at variance one over their
inputs under every rule. The depth rule is that of the paper and of CompleteP (arXiv:2505.01618): a
block moves the stream by $1/L$ and Adam's rate does not know the depth. The width rule is maximal
update parametrization (arXiv:2203.03466).

Derived in docs/theory/transformers.md.
"""  # noqa: E501

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from leadline.simulation.attention import Architecture, Weights
from leadline.spec import Training, Transformer

BASE_WIDTH = 64
"""The width at which all rules agree."""


def architecture_of(model: Transformer) -> Architecture:
    """The multipliers of `model` by its rule."""
    by_depth, by_width = "depth" in model.scaling, "width" in model.scaling
    softmax, width = model.attention == "softmax", model.width / BASE_WIDTH
    score = 1 / math.sqrt(model.width / model.heads) if softmax else 1.0
    if by_width:
        score *= width**-0.5 if softmax else 1 / width
    return Architecture(
        depth=model.depth,
        softmax=softmax,
        separate=model.channels == "separate",
        score=score,
        residual=1 / model.depth if by_depth else 1.0,
    )


def rate_factors(model: Transformer, recipe: Training) -> dict[str, float]:
    """What the learning rate is multiplied by, for each field of `Weights` that learns."""
    width = model.width / BASE_WIDTH if "width" in model.scaling else 1.0
    plain = recipe.optimizer == "sgd"
    layers = float(model.depth) if plain and "depth" in model.scaling and not model.tied else 1.0
    entry, inside, out = (width, 1.0, 1 / width) if plain else (1.0, 1 / width, 1 / width)
    names = ["keys", "queries", "values"] + ["up", "down"] * (model.mlp > 0)
    factors = dict.fromkeys(names, layers * inside)
    if model.channels == "separate":
        factors["values"] = layers
    if model.trainable != "attention":
        factors["read_in"] = entry
    if model.trainable == "all":
        factors |= {"label_in": entry, "read_out": out}
    return factors


def initial_weights(model: Transformer, *, dim: int, seed: int) -> Weights:
    """The weights of `model` before training in float64, drawn from `seed`.

    Random read-ins have entries of variance 1/`dim` and, for the label, 1; the read-out is
    $w_y/|w_y|^2$, so that labels pass with gain one. Keys and queries of linear attention are
    smaller by the fourth root of the rows of a head, so that their products start of order one.
    """
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, _STREAM])))
    width, heads, layers = model.width, model.heads, 1 if model.tied else model.depth
    rows, hidden = width // heads, model.mlp * width
    separate, softmax = model.channels == "separate", model.attention == "softmax"

    def normal(*shape: int, variance: float) -> NDArray[np.float64]:
        return math.sqrt(variance) * rng.standard_normal(shape)

    up = normal(layers, hidden, width, variance=1 / width) if hidden else None
    if model.initial == "aligned":
        label = np.eye(width)[-1] * (model.start if model.trainable == "all" else 1.0)
        entry = 1.0 if model.trainable == "attention" else math.sqrt(2) * model.start
        # blind to the label, which has the last direction
        unit = np.diag([*[model.start] * (width - 1), 0.0]).reshape(heads, rows, width)
        value = model.start * (np.ones(()) if separate else np.outer(*[np.eye(width)[-1]] * 2))
        return _weights(
            read_in=entry * np.eye(width, dim),
            label_in=label,
            read_out=label,
            keys=np.tile(unit, (layers, 1, 1, 1)),
            queries=np.tile(unit, (layers, 1, 1, 1)),
            values=np.tile(value, (layers, heads) + (1,) * value.ndim),
            up=up,
            down=np.zeros((layers, width, hidden)) if hidden else None,
        )
    base = BASE_WIDTH / heads if "width" in model.scaling else rows
    variance = model.start**2 / width * (1.0 if softmax else base**-0.5)
    label = normal(width, variance=1.0)
    matrices = (layers, heads, rows, width)
    return _weights(
        read_in=normal(width, dim, variance=1 / dim),
        label_in=label,
        read_out=label / (label @ label),
        keys=normal(*matrices, variance=variance),
        queries=normal(*matrices, variance=variance),
        values=np.full((layers, heads), model.start)
        if separate
        else normal(layers, heads, width, width, variance=model.start**2 / (width * heads)),
        up=up,
        down=normal(layers, width, hidden, variance=1 / hidden) if hidden else None,
    )


_STREAM = int.from_bytes(b"weights")


def _weights(**leaves: NDArray[np.float64] | None) -> Weights:
    return Weights(**leaves)  # pyright: ignore[reportArgumentType] (arrays of the host)
