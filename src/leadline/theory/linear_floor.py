r"""Linear attention on the difficult task of retrieval: what polynomials of a covariance miss.

The label wanted is $\beta\cdot t$ with $t$ the mean of the $k$ tokens most aligned with the query
$q$. Layers of linear attention predict $\beta\cdot p(S)q$ with a polynomial $p$, $p(0) = 0$, of the
covariance $S = XX^T/P$ of the context. With the features $S^rq$, $r\le L$, the least loss is

$$R = T - h^TG^+h,\qquad T = E\,t^T\Omega t,\quad h_r = E\,(S^rq)^T\Omega t,\quad
G_{rs} = E\,(S^rq)^T\Omega S^sq .$$

Features $\Sigma^rq$ of the population give the published floor. It is no bound: $S$ contains the
targets, so that a layer also retrieves $\frac1P\sum_ip^*_i(x_i\cdot q)\,x_i$ of them, the self
term.

For isotropic tokens both are exact at depth one; otherwise they are sampled.
Derived in docs/theory/retrieval.md; arXiv:2610.11063, appendix A.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.theory.retrieval_task import (
    check_retrieval,
    radial_moment,
    second_moments,
    target_energy,
    thresholds,
)

Features = Literal["population", "context"]
_RCOND = 1e-13


@dataclass(frozen=True, eq=False, kw_only=True)
class FloorMoments:
    r"""Moments of each sampled context, means over its queries, for features up to `depth` $L$.

    **Arguments:** `target` $t^T\Omega t$, shape (n,); `overlap` $h$ and `gram` $G$ of the
    features, shapes (n, L) and (n, L, L), first of the population, then of the context;
    `self_overlap` the part of the context's $h_1$ that the targets contribute themselves.
    """

    depth: int
    target: Floats
    overlap: tuple[Floats, Floats]
    gram: tuple[Floats, Floats]
    self_overlap: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearFloor:
    r"""A sampled floor: `loss` with its standard error `loss_error` over `contexts`, the
    `coefficients` $a_r$ of $p(S) = \sum_ra_rS^r$ that reach it.
    """

    loss: float
    loss_error: float
    coefficients: Floats
    contexts: int
    status: Literal["sampled"] = "sampled"


def isotropic_floor(*, dim: int, context: int, targets: int, features: Features) -> float:
    r"""The floor of one layer on isotropic tokens, $T - h^2/G$, exactly:

    $h = m\,E\mu$ and $G = d$ for the population, where more layers add nothing, and
    $$h = \tfrac mP\,E\{(d+1)\,\mu + d\,\mu\,[(k-1)\,\mu_2 + y^2 + (P-k-1)\,\bar\mu_2]\},\qquad
      G = d\,\Big(1+\frac{d+1}P\Big)$$
    for the context, with $\mu,\mu_2$ the first two moments of a score above the threshold $y$ and
    $\bar\mu_2$ the second of one below it. The term $d+1$ is the self term.

    **Raises:** `SolverError` for an impossible task.
    """
    energy = target_energy(dim=dim, context=context, targets=targets)
    m = radial_moment(dim)
    y = thresholds(dim=dim, context=context, targets=targets)
    if features == "population":
        return energy - (m * float(y.mass @ y.mean)) ** 2 / dim
    above, below = second_moments(y, dim=dim)
    squares = (targets - 1) * above + y.score**2 + (context - targets - 1) * below
    h = m / context * float(y.mass @ (y.mean * (dim + 1 + dim * squares)))
    return energy - h * h / (dim * (1 + (dim + 1) / context))


def sample_moments(
    *,
    inputs: Floats,
    tasks: Floats,
    context: int,
    targets: int,
    depth: int,
    contexts: int,
    queries: int,
    seed: int,
) -> FloorMoments:
    r"""Moments of `contexts` sampled contexts of `context` tokens with `queries` queries each.
    Tasks are integrated out.

    **Arguments:** `inputs` $\lambda_k$ and `tasks` $\omega_k$, shape (d,); the loss does not depend
    on the rotation of a context, which is left out.

    **Raises:** `SolverError` for an impossible task, or numbers of layers, contexts or queries
    below 1 (2 contexts).
    """
    _check_sample(depth=depth, contexts=contexts, queries=queries)
    overlap, gram = np.empty((2, contexts, depth)), np.empty((2, contexts, depth, depth))
    target, self_overlap = np.empty(contexts), np.empty(contexts)
    draws = _contexts(inputs, context, targets, contexts, queries, seed)
    for n, (tokens, query, chosen) in enumerate(draws):
        t = tokens[:, chosen].mean(axis=2)
        target[n] = np.mean(tasks @ t**2)
        for which, feature in enumerate((_population(inputs), _covariance(tokens))):
            powers = [query]
            for _ in range(depth):
                powers.append(feature(powers[-1]))
            table = np.stack(powers[1:])
            weighted = tasks[:, None] * table
            overlap[which, n] = np.einsum("rdq,dq->r", weighted, t) / queries
            gram[which, n] = np.einsum("rdq,sdq->rs", weighted, table) / queries
        selected = tokens[:, chosen]
        along = np.einsum("dqk,dq->qk", selected, query)
        size = np.einsum("dqk,d->qk", selected**2, tasks)
        self_overlap[n] = np.mean(along * size) / context
    return FloorMoments(
        depth=depth,
        target=target,
        overlap=(overlap[0], overlap[1]),
        gram=(gram[0], gram[1]),
        self_overlap=self_overlap,
    )


def linear_floor(
    moments: FloorMoments, *, features: Features, depth: int, precision: float | None = None
) -> LinearFloor:
    r"""The least loss of `depth` layers with any step sizes, $T - h^TG^+h$ of the pooled moments.

    At the minimum the loss moves with the moments but not with the coefficients, so that each
    context adds $T_c - 2a\cdot h_c + a^TG_ca$ to the mean, and the standard error is theirs.

    **Arguments:** `depth` at most that of the moments; `precision` the largest standard error
    wanted, relative to the loss.

    **Raises:** `SolverError` for a larger depth, or if the precision needs more contexts; the
    message says how many.
    """
    _check_depth(moments, depth)
    which = ("population", "context").index(features)
    h, gram = moments.overlap[which][:, :depth], moments.gram[which][:, :depth, :depth]
    coefficients = np.linalg.pinv(gram.mean(axis=0), rcond=_RCOND) @ h.mean(axis=0)
    return _floor(moments.target, h, gram, coefficients, precision)


def _check_depth(moments: FloorMoments, depth: int) -> None:
    if not 1 <= depth <= moments.depth:
        raise SolverError(
            f"depth: got {depth} layers, expected 1 to {moments.depth}, the depth of the moments"
        )


def equal_layers(step: float, *, depth: int) -> Floats:
    r"""The coefficients $a_r = -\binom Lr(-\kappa)^r$ of $p(\lambda) = 1-(1-\kappa\lambda)^L$,
    `depth` layers of one step $\kappa$.
    """
    return np.array([-math.comb(depth, r) * (-step) ** r for r in range(1, depth + 1)])


def tied_floor(
    moments: FloorMoments, *, features: Features, depth: int, precision: float | None = None
) -> LinearFloor:
    r"""The same for layers that share one step size, $p(\lambda) = 1-(1-\kappa\lambda)^L$.

    **Arguments** and **Raises:** as for `linear_floor`.
    """
    from scipy.optimize import minimize_scalar

    _check_depth(moments, depth)
    which = ("population", "context").index(features)
    h, gram = moments.overlap[which][:, :depth], moments.gram[which][:, :depth, :depth]
    mean_h, mean_gram = h.mean(axis=0), gram.mean(axis=0)

    def loss(log_step: float) -> float:
        a = equal_layers(math.exp(log_step), depth=depth)
        return float(a @ mean_gram @ a - 2 * a @ mean_h)

    # one layer's best step, shared by all, is too large; a thousandth of it is too small
    start = math.log(mean_h[0] / mean_gram[0, 0])
    steps = np.linspace(start - 7, start + 1, 81)
    best = float(steps[int(np.argmin([loss(step) for step in steps.tolist()]))])
    found = minimize_scalar(loss, bounds=(best - 0.1, best + 0.1), method="bounded")
    a = equal_layers(math.exp(found.x), depth=depth)
    return _floor(moments.target, h, gram, a, precision)


def evaluate_linear(
    coefficients: Floats,
    *,
    features: Features,
    inputs: Floats,
    tasks: Floats,
    context: int,
    targets: int,
    contexts: int,
    queries: int,
    seed: int,
    precision: float | None = None,
) -> LinearFloor:
    r"""The loss of given coefficients on fresh contexts, by the weights on the tokens:
    $|\Omega^{1/2}X(w-p^*)|^2$ with $w_i = \frac1Px_i\cdot\sum_ra_rS^{r-1}q$ for features of the
    context, and $|\Omega^{1/2}(\sum_ra_r\Sigma^rq - t)|^2$ for those of the population.

    An estimate of the floor that shares neither draws nor moments with `linear_floor`, and errs
    to the other side: the coefficients were not chosen on these contexts.

    **Arguments:** `precision` as for `linear_floor`.

    **Raises:** `SolverError` for an impossible task or sample, or if the precision needs more
    contexts.
    """
    _check_sample(depth=len(coefficients), contexts=contexts, queries=queries)
    losses = np.empty(contexts)
    draws = _contexts(inputs, context, targets, contexts, queries, seed)
    for n, (tokens, query, chosen) in enumerate(draws):
        wanted = np.zeros((context, queries))
        np.put_along_axis(wanted, chosen.T, 1 / targets, axis=0)
        if features == "population":
            scale = sum(a * inputs ** (r + 1) for r, a in enumerate(coefficients.tolist()))
            error = np.asarray(scale)[:, None] * query - tokens @ wanted
        else:
            state = np.zeros_like(query)
            for a in coefficients[::-1].tolist():  # Horner
                state = a * query + tokens @ (tokens.T @ state) / context
            error = tokens @ (tokens.T @ state / context - wanted)
        losses[n] = np.mean(tasks @ error**2)
    return _of_contexts(losses, coefficients, precision)


def _floor(
    target: Floats, h: Floats, gram: Floats, coefficients: Floats, precision: float | None
) -> LinearFloor:
    each = target - 2 * h @ coefficients + (gram @ coefficients) @ coefficients
    return _of_contexts(each, coefficients, precision)


def _of_contexts(each: Floats, coefficients: Floats, precision: float | None) -> LinearFloor:
    loss, error = float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each)))
    if precision is not None and error > precision * loss:
        needed = math.ceil(len(each) * (error / (precision * loss)) ** 2)
        raise SolverError(
            f"contexts: got {len(each)}, whose standard error {error:.2g} of the loss {loss:.4g} "
            f"exceeds the precision {precision:g}; expected about {needed}"
        )
    return LinearFloor(loss=loss, loss_error=error, coefficients=coefficients, contexts=len(each))


def _check_sample(*, depth: int, contexts: int, queries: int) -> None:
    for name, value, least in (
        ("depth", depth, 1),
        ("contexts", contexts, 2),
        ("queries", queries, 1),
    ):
        if value < least:
            raise SolverError(f"{name}: got {value}, expected at least {least}")


def _contexts(
    inputs: Floats, context: int, targets: int, contexts: int, queries: int, seed: int
) -> Iterator[tuple[Floats, Floats, NDArray[np.intp]]]:
    """Tokens (dim, context), queries (dim, query) and the targets (query, target) of contexts."""
    check_retrieval(dim=len(inputs), context=context, targets=targets)
    root = np.sqrt(inputs)
    for stream in np.random.SeedSequence(seed).spawn(contexts):
        rng = np.random.default_rng(stream)
        tokens = root[:, None] * rng.standard_normal((len(inputs), context))
        query = root[:, None] * rng.standard_normal((len(inputs), queries))
        scores = query.T @ (tokens / np.linalg.norm(tokens, axis=0))
        chosen = np.argpartition(scores, context - targets, axis=1)[:, context - targets :]
        yield tokens, query, chosen


def _population(inputs: Floats) -> Callable[[Floats], Floats]:
    return lambda v: inputs[:, None] * v


def _covariance(tokens: Floats) -> Callable[[Floats], Floats]:
    covariance = tokens @ tokens.T / tokens.shape[1]
    return lambda v: covariance @ v
