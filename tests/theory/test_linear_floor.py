"""Floors of linear attention on the difficult task: exact, sampled twice, and the reference."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from leadline.errors import SolverError
from leadline.theory.linear_floor import (
    evaluate_linear,
    isotropic_floor,
    linear_floor,
    sample_moments,
    tied_floor,
)

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "peng2026.json").read_text())
NAMES = {
    "floorSigma4": ("population", 4),
    "LS_S1": ("context", 1),
    "LS_S2": ("context", 2),
    "LS_S4": ("context", 4),
}
SMALL = {"context": 64, "contexts": 800, "queries": 32}
LARGE = {"context": 1024, "contexts": 60, "queries": 32}


def spectra(dim, a, b):
    k = np.arange(1.0, dim + 1)
    return {"inputs": k**-a, "tasks": k**-b}


def rows_of(dim):
    tasks = {}
    for row in REFERENCE:
        name = row["name"].removeprefix("linear_difficult_")
        if name in NAMES and row["inputs"]["d"] == dim:
            tasks.setdefault(row["inputs"]["kab"], {})[name] = row["value"], row["tol"]
    return tasks


def task_of(kab):
    k, a, b = kab.strip("()").split(",")
    return int(k), float(a), float(b)


def check(kab, dim, sample):
    k, a, b = task_of(kab)
    moments = sample_moments(**spectra(dim, a, b), targets=k, depth=4, seed=1, **sample)
    for name, (features, depth) in NAMES.items():
        value, tolerance = rows_of(dim)[kab][name]
        found = linear_floor(moments, features=features, depth=depth)
        assert found.status == "sampled"
        # the reference's tolerance is four standard errors
        allowed = 4 * math.hypot(found.loss_error, tolerance / 4)
        assert abs(found.loss - value) < allowed
    return moments


@pytest.mark.parametrize("kab", ["(2, 0, 0)", "(2, 1, 0.25)", "(16, 0.5, 0.5)"])
def test_reference(kab):
    check(kab, 16, SMALL)


@pytest.mark.full
@pytest.mark.parametrize("kab", list(rows_of(16)))
def test_whole_reference(kab):
    check(kab, 16, SMALL | {"contexts": 3000})


@pytest.mark.full
@pytest.mark.parametrize("kab", list(rows_of(128)))
def test_whole_reference_in_128_dimensions(kab):
    check(kab, 128, LARGE | {"contexts": 100})


@pytest.mark.parametrize(("dim", "context", "key"), [(16, 64, 16), (128, 1024, 128)])
def test_isotropic_floors_are_exact(dim, context, key):
    for name, features in (("floorSigma4", "population"), ("LS_S1", "context")):
        value, tolerance = rows_of(key)["(2, 0, 0)"][name]
        found = isotropic_floor(dim=dim, context=context, targets=2, features=features)
        assert abs(found - value) < tolerance


def test_exact_and_sampled_isotropic_floors():
    moments = sample_moments(
        **spectra(6, 0, 0), context=10, targets=3, depth=1, contexts=6000, queries=8, seed=3
    )
    for features in ("population", "context"):
        exact = isotropic_floor(dim=6, context=10, targets=3, features=features)
        found = linear_floor(moments, features=features, depth=1)
        assert found.loss_error < 0.01 * exact
        assert abs(found.loss - exact) < 4 * found.loss_error
    other = isotropic_floor(dim=6, context=10, targets=3, features="population")
    assert abs(found.loss - other) > 10 * found.loss_error


def test_the_self_term():
    """Of isotropic tokens it is (d + 1)/P of a mean score, and it lowers the floor."""
    dim, context = 16, 64
    moments = sample_moments(**spectra(dim, 0, 0), targets=2, depth=1, seed=2, **SMALL)
    population, own = (h.mean() for h in moments.overlap)
    error = moments.self_overlap.std(ddof=1) / math.sqrt(len(moments.self_overlap))
    expected = (dim + 1) / context * population
    assert abs(moments.self_overlap.mean() - expected) < 4 * error + 0.02 * expected
    assert own - moments.self_overlap.mean() < population
    floors = [
        isotropic_floor(dim=dim, context=context, targets=2, features=f)
        for f in ("population", "context")
    ]
    assert floors[1] < 0.92 * floors[0]


@pytest.mark.parametrize("features", ["population", "context"])
def test_two_estimates_agree(features):
    """Moments of some contexts, and weights on the tokens of others."""
    task = spectra(16, 1, 0.25) | {"targets": 2}
    moments = sample_moments(**task, depth=3, seed=1, **SMALL)
    found = linear_floor(moments, features=features, depth=3)
    held_out = evaluate_linear(found.coefficients, features=features, **task, seed=2, **SMALL)
    error = math.hypot(found.loss_error, held_out.loss_error)
    assert abs(found.loss - held_out.loss) < 4 * error
    wrong = evaluate_linear(2 * found.coefficients, features=features, **task, seed=2, **SMALL)
    assert abs(found.loss - wrong.loss) > 10 * error


def test_more_layers_and_more_freedom_never_lose():
    moments = sample_moments(**spectra(16, 1, 0.25), targets=2, depth=4, seed=1, **SMALL)
    free = [linear_floor(moments, features="context", depth=d).loss for d in (1, 2, 3, 4)]
    tied = [tied_floor(moments, features="context", depth=d).loss for d in (1, 2, 3, 4)]
    assert (np.diff(free) < 0).all()
    assert tied[0] == pytest.approx(free[0], rel=1e-8)
    assert all(t > f for t, f in zip(tied[1:], free[1:], strict=True))


def test_tied_layers_by_direct_search():
    moments = sample_moments(**spectra(16, 1, 1), targets=2, depth=3, seed=4, **SMALL)
    h, gram = moments.overlap[1].mean(axis=0), moments.gram[1].mean(axis=0)
    steps = np.geomspace(0.01, 3, 20_000)
    a = np.stack([3 * steps, -3 * steps**2, steps**3], axis=1)
    losses = moments.target.mean() - 2 * a @ h + np.einsum("ni,ij,nj->n", a, gram, a)
    found = tied_floor(moments, features="context", depth=3)
    assert found.loss == pytest.approx(losses.min(), rel=1e-7)


def test_precision_is_kept_or_refused():
    moments = sample_moments(**spectra(16, 0, 0), targets=2, depth=1, seed=1, **SMALL)
    reached = linear_floor(moments, features="context", depth=1)
    share = reached.loss_error / reached.loss
    linear_floor(moments, features="context", depth=1, precision=1.01 * share)
    with pytest.raises(SolverError, match=r"contexts: got 800, .* expected about 3\d{3}"):
        linear_floor(moments, features="context", depth=1, precision=share / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": 64}, "targets: got 64 of 64 tokens"),
        ({"targets": 0}, "targets: got 0"),
        ({"depth": 0}, "depth: got 0"),
        ({"contexts": 1}, "contexts: got 1"),
        ({"queries": 0}, "queries: got 0"),
    ],
)
def test_impossible_samples(change, message):
    sample = {"targets": 2, "depth": 1, "seed": 0} | SMALL | change
    with pytest.raises(SolverError, match=message):
        sample_moments(**spectra(16, 0, 0), **sample)


def test_depth_beyond_the_moments():
    moments = sample_moments(
        **spectra(5, 0, 0), context=8, targets=2, depth=2, contexts=4, queries=2, seed=0
    )
    with pytest.raises(SolverError, match="depth: got 3 layers, expected 1 to 2"):
        linear_floor(moments, features="context", depth=3)
    with pytest.raises(SolverError, match="depth: got 0 layers"):
        tied_floor(moments, features="context", depth=0)
