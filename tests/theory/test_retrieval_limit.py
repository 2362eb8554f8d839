"""Limits of many dimensions against the reference, drawn Poisson points and large dimensions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from leadline.errors import SolverError
from leadline.theory.retrieval import best_layer
from leadline.theory.retrieval_limit import (
    alignment,
    ensemble_limit,
    perturbed,
    softmax_limit,
    target_mass,
)

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "retrieval-floor.json").read_text()
)
RHO_1 = REFERENCE["PD_limit_rho1(k) [rho1,beta,g,m_k]"]
RHO_INF = REFERENCE["PD_limit_rho_inf(k)"]
BY_ALIGNMENT = REFERENCE["PPP_k2_vs_s2 (softmax betas<=10)"]


@pytest.mark.parametrize("targets", list(RHO_1))
def test_one_layer(targets):
    rho, beta, gain, _ = RHO_1[targets]
    limit = softmax_limit(targets=int(targets))
    assert limit.loss == pytest.approx(rho, abs=2e-6)
    # the reference found beta and gain on a grid, at a flat minimum
    assert limit.beta == pytest.approx(beta, rel=5e-3)
    assert limit.gain == pytest.approx(gain, rel=5e-3)


@pytest.mark.parametrize("targets", list(RHO_INF))
def test_ensembles(targets):
    limit = ensemble_limit(targets=int(targets))
    assert limit.loss == pytest.approx(RHO_INF[targets], abs=5e-5)


@pytest.mark.parametrize("s2", list(BY_ALIGNMENT))
def test_one_layer_at_finite_alignment(s2):
    limit, row = softmax_limit(targets=2, alignment=float(s2)), BY_ALIGNMENT[s2]
    # at the sharpness of the reference the loss agrees; ours is the minimum
    share = float(s2)
    m = (1 - share) * target_mass(2, 1 / row["beta1"]) + share
    own = (1 - share) * (1 - 1 / row["beta1"]) + share
    assert (1 - share) / 2 + share - m * m / own == pytest.approx(row["R1"], abs=1e-8)
    assert row["R1"] - 2e-6 < limit.loss < row["R1"] + 1e-9
    # the reference mixes softmaxes of finite sharpness, a little worse than the largest score
    assert row["Rinf"] - 3e-4 < ensemble_limit(targets=2, alignment=share).loss < row["Rinf"]


def drawn_winners(rng, *, targets, noise, draws):
    """How often the point of largest e + r n is one of the k largest of a Poisson process, and how
    often the winners of two perturbations agree.
    """
    found = np.empty((draws, 2))
    for n in range(draws):
        e = -np.log(np.cumsum(rng.exponential(size=4000)))
        first, second = (np.argmax(e + r * rng.standard_normal(4000)) for r in noise)
        found[n] = first < targets, first == second
    return found


def test_perturbed_points_against_drawn_ones():
    noise, targets = (1.4, 0.8), 4
    found = drawn_winners(np.random.default_rng(2), targets=targets, noise=noise, draws=8000)
    error = found.std(axis=0, ddof=1) / math.sqrt(len(found))
    grid, overlap, gram = perturbed(targets, noise=noise)
    assert grid.tolist() == list(noise)
    assert abs(found[:, 0].mean() / targets - overlap[0]) < 4 * error[0] / targets
    assert abs(found[:, 1].mean() - gram[0, 1]) < 4 * error[1]
    # exchanged scales are told apart
    assert abs(found[:, 0].mean() / targets - overlap[1]) > 10 * error[0] / targets


def test_mass_of_drawn_weights():
    """Weights Gamma_i^-beta of a Poisson process with sorted points Gamma_i."""
    rng, beta, targets = np.random.default_rng(1), 2.5, 3
    points = np.cumsum(rng.exponential(size=(4000, 5000)), axis=1)
    weight = points**-beta
    share = weight[:, :targets].sum(axis=1) / weight.sum(axis=1) / targets
    error = share.std(ddof=1) / math.sqrt(len(share))
    assert abs(share.mean() - target_mass(targets, 1 / beta)) < 4 * error
    assert abs(share.mean() - target_mass(targets, 1 / (1.2 * beta))) > 10 * error


def test_limits_are_ordered():
    for targets in (2, 4, 8, 16, 64):
        assert ensemble_limit(targets=targets).loss < softmax_limit(targets=targets).loss
    previous = math.inf
    for share in (0.0, 0.2, 0.5, 0.8):
        loss = ensemble_limit(targets=16, alignment=share).loss
        assert loss < previous
        previous = loss
    one = softmax_limit(targets=1)
    assert (one.loss, one.gain) == (0.0, 1.0)
    assert ensemble_limit(targets=1).loss == pytest.approx(0, abs=1e-9)


def test_only_the_direction_of_the_query_for_broad_targets():
    limit = softmax_limit(targets=16, alignment=0.3)
    assert limit.beta == pytest.approx(1, abs=0.01)
    assert 0.99 * 0.7 / 16 < limit.loss <= 0.7 / 16


@pytest.mark.full
def test_large_dimensions_approach_the_limit():
    """At k = 2 the loss lies about 0.28/ln P below the limit."""
    for context in (1024, 2**20):
        share = alignment(dim=1024, context=context)
        ratio = best_layer(dim=1024, context=context, targets=2).loss / 1024
        limit = softmax_limit(targets=2, alignment=share).loss
        assert ratio / limit - 1 == pytest.approx(-0.28 / math.log(context), abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_limit(targets=0), "targets: got 0"),
        (lambda: ensemble_limit(targets=2, alignment=1.0), "alignment: got 1.0"),
        (lambda: alignment(dim=1, context=4), "dim: got 1"),
        (lambda: alignment(dim=16, context=1), "context: got 1"),
    ],
)
def test_impossible_limits(call, message):
    with pytest.raises(SolverError, match=message):
        call()
