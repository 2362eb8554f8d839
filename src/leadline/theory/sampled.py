r"""Retrieval by sampling: the moments of perturbed layers again, and the loss of models of given
layers.

Contexts are drawn as directions; lengths of tokens are integrated out. Differences to the best
single layer on the same contexts, whose loss is known exactly, take most of the noise away.

Derived in docs/theory/retrieval.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.ensembles import Decomposition
from leadline.errors import SolverError
from leadline.theory.retrieval import SoftmaxLayer, best_layer
from leadline.theory.retrieval_bound import least_weights
from leadline.theory.retrieval_task import check_retrieval, radial_moment

_BLOCK = 64


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledMoments:
    r"""Moments of kinds of layers in each sampled context, one query a context: `target` $|t|^2$,
    shape (n,); `overlap` $h$, shape (n, kind); `gram` $G$ between independent perturbations, shape
    (n, kind, kind); `single` the loss of the best single layer `best` on the context.
    """

    target: Floats
    overlap: Floats
    gram: Floats
    single: Floats
    best: SoftmaxLayer


@dataclass(frozen=True, kw_only=True)
class Sampled:
    r"""A sampled loss and its standard error over `contexts`."""

    loss: float
    loss_error: float
    contexts: int


@dataclass(frozen=True, kw_only=True)
class SampledModel:
    r"""The sampled loss of a model of given layers, its standard error over `contexts`, and the
    loss as what the layers share and what they do not.
    """

    loss: float
    loss_error: float
    contexts: int
    decomposition: Decomposition


def sample_kinds(
    *,
    dim: int,
    context: int,
    targets: int,
    sharpness: ArrayLike,
    noise: ArrayLike,
    contexts: int,
    pairs: int,
    seed: int,
) -> SampledMoments:
    r"""Moments of layers with effective queries $\tau\hat q+\rho u$, by drawing `pairs` of
    perturbations $\pm u$ in every context, shared by all kinds. Products of one pair with itself
    are left out of the Gram matrix, which is then that of independent perturbations.

    **Arguments:** `sharpness` $\tau$ and `noise` $\rho$ of the kinds; `contexts` $\ge4$, `pairs`
    $\ge2$.

    **Raises:** `SolverError` for an impossible task, or too few contexts or pairs.
    """
    _check_counts(contexts=contexts, pairs=pairs)
    best = best_layer(dim=dim, context=context, targets=targets)
    tau, rho = np.atleast_1d(np.asarray(sharpness, float)), np.atleast_1d(np.asarray(noise, float))
    radial = radial_moment(dim)
    target, single = np.empty((2, contexts))
    overlap, gram = np.empty((contexts, len(tau))), np.empty((contexts, len(tau), len(tau)))
    rng = np.random.default_rng(seed)
    draws = _contexts(rng, dim=dim, context=context, targets=targets, contexts=contexts)
    for n, (tokens, query, wanted) in enumerate(draws):
        u = rng.standard_normal((pairs, dim))
        u -= np.outer(u @ query, query)
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        scores, turned = tokens @ query, u @ tokens.T
        # (kind, sign, pair, token)
        signs = np.array([1.0, -1.0])[:, None, None] * turned
        logits = dim * (tau[:, None, None, None] * scores + rho[:, None, None, None] * signs)
        weight = _softmax(logits).mean(axis=1)
        each = _features(weight, tokens, radial)
        mean = each.mean(axis=1)
        diagonal = np.einsum("apf,bpf->ab", each, each) / pairs
        t = _features(wanted, tokens, radial)
        target[n] = t @ t
        overlap[n] = mean @ t
        gram[n] = (pairs * mean @ mean.T - diagonal) / (pairs - 1)
        alone = _features(_softmax(dim * best.sharpness * scores), tokens, radial)
        single[n] = np.sum((best.gain * alone - t) ** 2)
    return SampledMoments(target=target, overlap=overlap, gram=gram, single=single, best=best)


def sampled_loss(moments: SampledMoments, weight: Floats) -> Sampled:
    r"""The loss $T - 2h\cdot\nu+\nu^TG\nu$ of a mixture with these weights on the kinds, anchored
    at the exact loss of the best single layer: the sampled difference is added to it.
    """
    each = moments.target - 2 * moments.overlap @ weight + (moments.gram @ weight) @ weight
    difference = each - moments.single
    return Sampled(
        loss=moments.best.loss + float(difference.mean()),
        loss_error=_standard_error(difference),
        contexts=len(each),
    )


def sampled_bound(
    moments: SampledMoments, *, precision: float | None = None
) -> tuple[Sampled, Sampled]:
    r"""The least loss of the kinds, fitted on half of the contexts: on that half (too low, since
    the weights were chosen there) and on the other half (too high, since they were not).

    **Arguments:** `precision` the largest standard error wanted, relative to the loss.

    **Raises:** `SolverError` if the precision needs more contexts; the message says how many.
    """
    half = len(moments.target) // 2
    first, second = _part(moments, slice(half)), _part(moments, slice(half, None))
    gram = first.gram.mean(axis=0)
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    # sampling leaves small negative eigenvalues that the program would exploit
    floored = (vectors * np.maximum(values, 1e-7 * values[-1])) @ vectors.T
    weight = least_weights(floored, first.overlap.mean(axis=0))
    held_out = sampled_loss(second, weight)
    _check_precision(held_out.loss, held_out.loss_error, len(moments.target), precision)
    return sampled_loss(first, weight), held_out


def sample_model(
    matrices: Floats,
    *,
    gain: float,
    context: int,
    targets: int,
    contexts: int,
    seed: int,
    precision: float | None = None,
) -> SampledModel:
    r"""The loss of the model $\frac gL\sum_l\mathrm{softmax}(\hat X^TM_l\hat q)\cdot y$ on fresh
    contexts, one query each, anchored at the exact loss of the best single layer.

    **Arguments:** `matrices` $M_l$, shape (depth, dim, dim), for keys on the left and queries on
    the right, both of length $\sqrt d$; at least two layers; `precision` the largest standard error
    wanted, relative to the loss.

    **Raises:** `SolverError` for an impossible task or sample, or if the precision needs more
    contexts; the message says how many.
    """
    depth, dim = matrices.shape[:2]
    _check_counts(contexts=contexts, pairs=2)
    if depth < 2:
        raise SolverError(
            f"depth: got {depth} layers, expected at least 2 (one layer is retrieval.layer_loss)"
        )
    best = best_layer(dim=dim, context=context, targets=targets)
    radial = radial_moment(dim)
    whole, own, single = np.empty((3, contexts))
    rng = np.random.default_rng(seed)
    draws = _contexts(rng, dim=dim, context=context, targets=targets, contexts=contexts)
    for n, (tokens, query, wanted) in enumerate(draws):
        weight = _softmax(dim * (matrices @ query) @ tokens.T)
        error = _features(gain * weight - wanted, tokens, radial)
        own[n] = np.mean(np.sum(error**2, axis=1))
        whole[n] = np.sum(error.mean(axis=0) ** 2)
        alone = _softmax(dim * best.sharpness * tokens @ query)
        single[n] = np.sum(_features(best.gain * alone - wanted, tokens, radial) ** 2)
    loss = best.loss + float((whole - single).mean())
    error = _standard_error(whole - single)
    _check_precision(loss, error, contexts, precision)
    disagreement = float((own - whole).mean()) * depth / (depth - 1)
    total = loss + disagreement * (1 - 1 / depth)
    return SampledModel(
        loss=loss,
        loss_error=error,
        contexts=contexts,
        decomposition=Decomposition(depth=depth, own=total, shared=total - disagreement),
    )


def _contexts(
    rng: np.random.Generator, *, dim: int, context: int, targets: int, contexts: int
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Unit tokens (context, dim), a unit query and the weights wanted of the tokens."""
    check_retrieval(dim=dim, context=context, targets=targets)
    for start in range(0, contexts, _BLOCK):
        count = min(_BLOCK, contexts - start)
        draws = rng.standard_normal((count, context + 1, dim))
        draws /= np.linalg.norm(draws, axis=2, keepdims=True)
        for one in draws:
            tokens, query = one[:-1], one[-1]
            wanted = np.zeros(context)
            wanted[np.argpartition(tokens @ query, -targets)[-targets:]] = 1 / targets
            yield tokens, query, wanted


def _softmax(logits: Floats) -> Floats:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _features(weight: Floats, tokens: Floats, radial: float) -> Floats:
    r"""Vectors whose products are $E\,f\cdot f' = m\,F\cdot F' + (d-m)\,w\cdot w'$,
    $F = \sum_iw_i\hat x_i$: the lengths of the tokens integrated out.
    """
    dim = tokens.shape[1]
    return np.concatenate(
        [math.sqrt(radial) * weight @ tokens, math.sqrt(dim - radial) * weight], axis=-1
    )


def _part(moments: SampledMoments, part: slice) -> SampledMoments:
    return SampledMoments(
        target=moments.target[part],
        overlap=moments.overlap[part],
        gram=moments.gram[part],
        single=moments.single[part],
        best=moments.best,
    )


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _check_counts(*, contexts: int, pairs: int) -> None:
    for name, value, least in (("contexts", contexts, 4), ("pairs", pairs, 2)):
        if value < least:
            raise SolverError(f"{name}: got {value}, expected at least {least}")


def _check_precision(loss: float, error: float, contexts: int, precision: float | None) -> None:
    if precision is not None and error > precision * loss:
        needed = math.ceil(contexts * (error / (precision * loss)) ** 2)
        raise SolverError(
            f"contexts: got {contexts}, whose standard error {error:.2g} of the loss {loss:.4g} "
            f"exceeds the precision {precision:g}; expected about {needed}"
        )
