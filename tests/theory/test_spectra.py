import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.errors import SolverError
from leadline.spec import Spectrum, flat, source_capacity
from leadline.theory.spectra import eigenvalues, marchenko_pastur


def narayana_moment(k, ratio):
    """E of x^k under the Marchenko-Pastur law: a sum over non-crossing partitions."""
    return sum(
        math.comb(k, j) * math.comb(k, j - 1) / k * ratio ** (j - k) for j in range(1, k + 1)
    )


def integrate(law, values, at_zero):
    return float(law.weights @ values + law.atom * at_zero)


def test_eigenvalues_of_a_power_law():
    lam, omega = eigenvalues(Spectrum(dim=4, input_exponent=2, task_exponent=-1))
    assert lam == pytest.approx([1, 1 / 4, 1 / 9, 1 / 16], rel=1e-15)
    assert omega == pytest.approx([1, 2, 3, 4], rel=1e-15)


def test_total_fixes_the_loss_at_zero():
    lam, omega = eigenvalues(source_capacity(500, nu=1.3, beta=0.7))
    assert omega @ lam == pytest.approx(1, rel=1e-14)
    assert (omega * lam)[9] / (omega * lam)[0] == pytest.approx(10 ** -(1.3 * 0.7 + 1), rel=1e-13)
    assert eigenvalues(flat(8))[1] == pytest.approx(np.full(8, 1 / 8), rel=1e-15)


def test_infinite_dimension_has_no_explicit_eigenvalues():
    with pytest.raises(SolverError, match=r"task\.spectrum\.dim: got infinity"):
        eigenvalues(source_capacity(math.inf, nu=1.3, beta=0.7))


@settings(derandomize=True, deadline=None)
@given(
    ratio=st.one_of(st.floats(0.02, 50), st.floats(0.999, 1.001)),
    nodes=st.integers(2, 30),
    data=st.data(),
)
def test_rule_is_exact_to_its_degree(ratio, nodes, data):
    k = data.draw(st.integers(1, min(2 * nodes - 2, 12)))
    law = marchenko_pastur(ratio, nodes=nodes)
    assert integrate(law, np.ones_like(law.nodes), 1) == pytest.approx(1, abs=1e-14)
    moment = integrate(law, law.nodes**k, 0)
    assert moment == pytest.approx(narayana_moment(k, ratio), rel=1e-13 * law.upper)


def test_rule_is_not_exact_beyond_its_degree():
    law = marchenko_pastur(1.0, nodes=2)
    assert abs(integrate(law, law.nodes**3, 0) - narayana_moment(3, 1.0)) > 0.1


@pytest.mark.parametrize("ratio", [0.3, 0.97, 1.0, 1.03, 4.0])
@pytest.mark.parametrize("z", [0.1, 1.0, 7.0])
def test_resolvent(ratio, z):
    """The Stieltjes transform solves a quadratic equation; the integrand has a pole at -z."""
    c = 1 / ratio
    half = z + 1 - c
    exact = 2 / (half + math.sqrt(half**2 + 4 * c * z))
    law = marchenko_pastur(ratio)
    assert integrate(law, 1 / (law.nodes + z), 1 / z) == pytest.approx(exact, rel=1e-13)


def test_edges_and_atom():
    law = marchenko_pastur(0.25)
    assert (law.lower, law.upper, law.atom) == (1, 9, 0.75)
    assert law.nodes.min() > 1
    assert law.nodes.max() < 9
    assert np.all(np.diff(law.nodes) < 0)
    assert marchenko_pastur(4.0).atom == pytest.approx(0, abs=1e-300)


def test_infinite_context_is_a_unit_mass_at_one():
    law = marchenko_pastur(math.inf)
    assert (law.nodes.tolist(), law.weights.tolist(), law.atom) == ([1], [1], 0)


def test_cached_arrays_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        marchenko_pastur(2.0).nodes[0] = 0


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan])
def test_ratio_must_be_positive(ratio):
    with pytest.raises(SolverError, match="ratio: got"):
        marchenko_pastur(ratio)
