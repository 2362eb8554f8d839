"""Parameters and FLOPs of a shape, by named convention.

Laws and plans change with the convention (arXiv:2406.12907), so none is a default: whoever counts
says how.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from leadline.errors import SpecError, nearest


def _non_embedding(*, width: float, depth: float) -> float:
    return 12 * depth * width * width


def _with_tied_embedding(*, width: float, depth: float, vocabulary: float) -> float:
    return 12 * depth * width * width + vocabulary * width


def _with_untied_embedding(*, width: float, depth: float, vocabulary: float) -> float:
    return 12 * depth * width * width + 2 * vocabulary * width


def _six_params_tokens(*, params: float, tokens: float) -> float:
    return 6 * params * tokens


def _six_params_tokens_attention(
    *, params: float, tokens: float, width: float, depth: float, context: float
) -> float:
    return (6 * params + 12 * depth * width * context) * tokens


def _in_context_regression(*, steps: float, context: float, width: float, depth: float) -> float:
    return steps * context * context * width * width * depth


def _retrieval(*, steps: float, queries: float, context: float, dim: float, depth: float) -> float:
    return steps * queries * depth * (4 * context * dim + 12 * dim * dim)


def _sparse_features(*, steps: float, width: float) -> float:
    return steps * width


PARAMETERS: dict[str, Callable[..., float]] = {
    "non-embedding": _non_embedding,
    "tied embedding": _with_tied_embedding,
    "untied embedding": _with_untied_embedding,
}
"""Parameter counts of a decoder with MLP ratio 4 and no biases: 12 depth width^2, without
embeddings, with one vocabulary x width table, or with two."""

TRAINING_FLOPS: dict[str, Callable[..., float]] = {
    "6ND": _six_params_tokens,
    "6ND + attention": _six_params_tokens_attention,
    "t P^2 N^2 L": _in_context_regression,
    "t B K L (4 P d + 12 d^2)": _retrieval,
    "t D": _sparse_features,
}
"""FLOPs of a whole training: 6 params tokens (arXiv:2001.08361); the same plus 12 depth width
context a token for the attention scores (arXiv:2204.02311, appendix B); steps context^2 width^2
depth, the cost of in-context regression (arXiv:2510.01098, section 4), in units where one
multiplication of the reduced model counts one; 4 context dim + 12 dim^2 a step, query (contexts
times queries a context) and layer, what retrieval cannot do without (docs/retrieval.md); steps
width, the cost of sparse features at a fixed batch, width the number of tasks that the model has
features for (Lyu, Wang, Zhu, ICLR 2025)."""


def parameters(convention: str, **shape: float) -> float:
    """The parameter count of `shape` under a convention of `PARAMETERS`.

    **Raises:** `SpecError` for an unknown convention, or a missing, unknown or negative quantity.
    """
    return _apply("parameter", PARAMETERS, convention, shape)


def training_flops(convention: str, **shape: float) -> float:
    """The FLOPs of training at `shape` under a convention of `TRAINING_FLOPS`.

    **Raises:** `SpecError` for an unknown convention, or a missing, unknown or negative quantity.
    """
    return _apply("FLOP", TRAINING_FLOPS, convention, shape)


def _apply(
    what: str, table: dict[str, Callable[..., float]], convention: str, shape: dict[str, float]
) -> float:
    if convention not in table:
        raise SpecError(
            f"{what} convention: got {convention!r}, expected one of {', '.join(table)}"
            f"{nearest(convention, table)}"
        )
    needed = list(inspect.signature(table[convention]).parameters)
    if sorted(shape) != sorted(needed):
        raise SpecError(
            f"{what} convention {convention!r} takes {', '.join(needed)}; got "
            f"{', '.join(shape) or 'nothing'}"
        )
    for name, value in shape.items():
        if not value >= 0:
            raise SpecError(f"{name}: got {value}, expected a number >= 0")
    # floats reach infinity where powers and large integers would raise
    return table[convention](**{name: float(value) for name, value in shape.items()})
