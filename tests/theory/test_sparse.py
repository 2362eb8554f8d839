"""One task: closed form, adaptation, any symmetric H, first order in the inverse context."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from leadline.errors import SolverError
from leadline.theory.sparse import (
    Start,
    adapted,
    half_time,
    largest_rate,
    solution,
    start_at,
    vanishing_start,
)
from leadline.theory.sparse_order import (
    Block,
    exact_output,
    first_order,
    first_order_aligned,
    token_matrix,
)

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "lyu2025.json").read_text(encoding="utf-8")
)


def squares(g, h):
    return Start(sum_square=g, difference_square=h)


def brute_flow(matrix, kappa, target, v0, w0, times):
    """The flow from its definition, in the vectors."""
    n = len(v0)

    def velocity(_, state):
        v, w = state[:n], state[n:]
        wrong = kappa * (v @ matrix @ w - target)
        return -wrong * np.concatenate([matrix @ w, matrix @ v])

    done = solve_ivp(
        velocity,
        (0, times[-1]),
        np.concatenate([v0, w0]),
        t_eval=times,
        method="DOP853",
        rtol=1e-12,
        atol=1e-13,
    )
    return np.einsum("it,ij,jt->t", done.y[:n], matrix, done.y[n:]), done.y


@pytest.mark.parametrize("row", REFERENCE["closed_form"])
def test_closed_form_reference(row):
    solved = solution(
        row["t"], rate=row["a"], strength=row["Lambda"], start=squares(row["g0"], row["h0"])
    )
    assert solved.output == pytest.approx(row["f0"], rel=1e-10)
    assert solved.residual == pytest.approx(row["f0"] - row["Lambda"], rel=1e-9)
    assert solved.sum_square * solved.difference_square == pytest.approx(row["g0"] * row["h0"])


@pytest.mark.parametrize("row", REFERENCE["logistic"])
def test_logistic_reference(row):
    start = start_at(row["f_init"])
    solved = solution(row["t"], rate=row["a"], strength=row["Lambda"], start=start)
    assert solved.output == pytest.approx(row["f"], rel=1e-10)
    half = half_time(rate=row["a"], strength=row["Lambda"], output=row["f_init"])
    assert half == pytest.approx(row["t_half"], rel=1e-10)
    at_half = solution(half, rate=row["a"], strength=row["Lambda"], start=start)
    assert at_half.output == pytest.approx(row["Lambda"] / 2, rel=1e-12)


@given(
    g=st.floats(0, 5),
    h=st.floats(0, 5),
    target=st.floats(-2, 2),
    rate=st.floats(0.1, 3),
    time=st.floats(0.01, 2),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_the_solution_obeys_its_differential_equation(g, h, target, rate, time):
    """f' = a (Lambda - f) sqrt(4 f^2 + c), by a centered difference."""
    step = 1e-4 * time
    at = np.array([time - step, time, time + step])
    solved = solution(at, rate=rate, strength=target, start=squares(g, h))
    slope = (solved.output[2] - solved.output[0]) / (2 * step)
    f = solved.output[1]
    assert slope == pytest.approx(
        rate * (target - f) * math.sqrt(4 * f * f + g * h), abs=1e-5 * (1 + rate) ** 3
    )
    assert np.allclose(solved.residual, solved.output - target, rtol=0, atol=1e-13)


def test_a_negative_matrix_and_a_negative_strength():
    """H = psi Lambda below zero, in the vectors themselves."""
    psi, target, kappa, v, w = 7.0, -0.6, 0.3, 0.3, -0.1
    times = np.linspace(0.05, 3, 8)
    exact, _ = brute_flow(np.array([[psi * target]]), kappa, target, [v], [w], times)
    start = squares(psi * target * (v + w) ** 2, psi * target * (v - w) ** 2)
    solved = solution(times, rate=kappa * psi * target, strength=target, start=start)
    assert np.allclose(solved.output, exact, atol=1e-9)
    assert np.all(solved.sum_square <= 0)


@pytest.mark.parametrize("target", [-1.0, 1.0])
@pytest.mark.parametrize("start", [(1e-200, 1e-200), (1e-300, 0.0), (3.0, 1e-300)])
def test_extreme_starts_lose_no_digits(target, start):
    g, h = start if target > 0 else start[::-1]
    late = solution([0.0, 1e5, math.inf], rate=1.0, strength=target, start=squares(g, h))
    assert late.output[0] == (g - h) / 4
    assert np.allclose(late.output[1:], target, rtol=1e-15)
    assert np.all(np.abs(late.residual[1:]) < 1e-300)


def test_residuals_below_the_smallest_number_keep_their_logarithm():
    solved = solution([1.0, 500.0, 5000.0], rate=1.0, strength=1.0, start=start_at(0.01))
    first, rest = solved.log_residual[0], solved.log_residual[1:]
    # late decay at the rate a Delta = 2
    assert np.diff(rest) == pytest.approx(-2 * 4500, rel=1e-12)
    assert first == pytest.approx(math.log(0.99 / (0.01 * math.e**2 + 0.99) / 0.99), rel=1e-12)


def test_the_saddle_never_learns():
    saddle = solution([0.0, 1.0, math.inf], rate=1.0, strength=1.0, start=squares(0.0, 2.0))
    assert np.all(saddle.output <= 0)
    assert saddle.output[0] == -0.5
    assert saddle.output[-1] == 0
    assert np.all(np.diff(saddle.output) > 0)


def test_strength_zero_decays_as_a_power():
    t = np.array([0.0, 1.0, 10.0, math.inf])
    for output in (0.3, -0.3):
        solved = solution(t, rate=2.0, strength=0.0, start=start_at(output))
        assert np.allclose(solved.output, output / (1 + 4 * abs(output) * t), rtol=1e-14)


def test_lazy_training_forgets_the_strength():
    """c >> 4 Lambda^2: the residual decays at the rate a sqrt(c)."""
    t = np.linspace(0, 3, 7)
    solved = solution(t, rate=1.0, strength=1e-3, start=start_at(0.0, invariant=4.0))
    assert solved.residual == pytest.approx(-1e-3 * np.exp(-2 * t), rel=2e-3)


@given(output=st.floats(-3, 3), invariant=st.floats(0, 9))
@settings(derandomize=True, deadline=None)
def test_a_start_has_the_output_and_the_invariant_asked_for(output, invariant):
    start = start_at(output, invariant=invariant)
    assert start.output == pytest.approx(output, abs=1e-12)
    product = np.asarray(start.sum_square) * np.asarray(start.difference_square)
    assert product == pytest.approx(invariant, rel=1e-12, abs=1e-300)


def test_largest_rate_is_the_edge_of_gradient_descent():
    """Steps of the vectors themselves, just below and just above."""
    target, psi = 0.7, 3.0
    matrix = psi * np.outer([1, target], [1, target])
    edge = largest_rate(rate=psi * (1 + target**2), strength=target)
    for factor, stable in ((0.98, True), (1.02, False)):
        v = w = np.array([1.0, target]) * math.sqrt(target / psi) / (1 + target**2) * 1.001
        for _ in range(2000):
            wrong = v @ matrix @ w - target
            v, w = v - factor * edge * wrong * matrix @ w, w - factor * edge * wrong * matrix @ v
        assert (abs(v @ matrix @ w - target) < 1e-6) == stable


def test_bad_starts_are_refused():
    with pytest.raises(SolverError, match="sign of the rate"):
        solution(1.0, rate=1.0, strength=1.0, start=squares(-1.0, 0.0))
    with pytest.raises(SolverError, match="time: got -1"):
        solution(-1.0, rate=1.0, strength=1.0, start=squares(1.0, 0.0))


@pytest.mark.parametrize("row", REFERENCE["icl"]["formula"])
def test_adaptation_reference(row):
    assert vanishing_start(row["Lt"], strength=row["Lambda"]) == pytest.approx(row["f"], rel=1e-12)


def test_adaptation_from_any_start_against_the_flow():
    psi, target, kappa = 40.0, 0.8, 0.25
    v0, w0 = np.array([0.05, -0.11]), np.array([0.02, 0.07])
    matrix = token_matrix(psi, target, query=False)
    times = np.array([0.05, 0.3, 4.0])
    _, state = brute_flow(matrix, kappa, target, v0, w0, times)
    for new in (-0.5, 0.25, 2.0):
        seen = token_matrix(psi, new, query=False)
        exact = np.einsum("it,ij,jt->t", state[:2], seen, state[2:])
        ours = adapted(
            new,
            strength=target,
            context=psi,
            value=v0,
            query=w0,
            time=times,
            rate=kappa * psi * (1 + target**2),
        )
        assert np.allclose(ours, exact, rtol=1e-8)
        assert ours[-1] != pytest.approx(vanishing_start(new, strength=target), rel=0.05)


@pytest.mark.parametrize("row", REFERENCE["end_to_end"])
def test_end_to_end_reference(row):
    root = math.sqrt(row["psi"])
    block = Block(
        value=tuple(root * x for x in row["v0"]),
        query=tuple(root * x for x in row["w0"]),
        rate=row["kappa"] * row["psi"],
        strength=row["Lambda"],
    )
    times = [row["t"]]
    assert block.rate * block.mass == pytest.approx(row["a"], rel=1e-10)
    assert block.start.sum_square == pytest.approx(row["g0"], rel=1e-10)
    assert block.start.difference_square == pytest.approx(row["h0"], rel=1e-10)
    assert block.zeroth(times)[0] == pytest.approx([row["f0"]], rel=1e-10)
    assert first_order(times, block=block) == pytest.approx([row["f1"]], rel=1e-8)
    exact, error = exact_output(
        times,
        matrix=token_matrix(row["psi"], row["Lambda"]),
        rate=row["kappa"],
        strength=row["Lambda"],
        value=row["v0"],
        query=row["w0"],
    )
    assert exact == pytest.approx([row["f_exact_by_R"]], rel=1e-9)
    assert abs(exact[0] - row["f_exact_by_R"]) <= error[0]


def reference_block():
    row = REFERENCE["first_order"]
    return Block(
        value=tuple(row["vhat0"]),
        query=tuple(row["what0"]),
        rate=row["k_kappa_psi"],
        strength=row["Lambda"],
    )


def exact_at(psi, times):
    block = reference_block()
    return exact_output(
        times,
        matrix=token_matrix(psi, block.strength),
        rate=block.rate / psi,
        strength=block.strength,
        value=np.array(block.value) / math.sqrt(psi),
        query=np.array(block.query) / math.sqrt(psi),
    )[0]


def test_orders_in_the_inverse_context():
    row, block = REFERENCE["first_order"], reference_block()
    assert block.zeroth([row["t"]])[0] == pytest.approx([row["f0"]], rel=1e-10)
    assert first_order([row["t"]], block=block) == pytest.approx([row["f1"]], rel=1e-9)
    assert exact_at(40, [row["t"]]) == pytest.approx([row["exact_f_psi40_at_t"]], rel=1e-9)
    times = np.linspace(0.7 / 200, 0.7, 200)
    zeroth, first = block.zeroth(times)[0], first_order(times, block=block)
    errors = []
    for psi, of_zeroth, of_first in row["table"]:
        exact = exact_at(psi, times)
        errors.append([abs(exact - zeroth).max(), abs(exact - zeroth - first / psi).max()])
        assert errors[-1] == pytest.approx([of_zeroth, of_first], rel=0.01)
    logs = np.log([psi for psi, *_ in row["table"]])
    slopes = np.polyfit(logs, np.log(errors), 1)[0]
    assert slopes == pytest.approx([row["order_f0"], row["order_f0f1"]], abs=0.005)


def test_the_elementary_first_order():
    row = REFERENCE["first_order_aligned_elementary"]
    block = Block(
        value=tuple(row["vhat0"]),
        query=tuple(row["vhat0"]),
        rate=row["k"],
        strength=row["Lambda"],
    )
    assert block.zeroth([row["t"]])[0] == pytest.approx([row["f0"]], rel=1e-10)
    assert first_order_aligned([row["t"]], block=block) == pytest.approx([row["f1"]], rel=1e-10)
    times = np.array([0.0, 0.01, 0.1, 0.5, 2.0, 50.0])
    by_quadrature = first_order(times, block=block)
    assert np.allclose(first_order_aligned(times, block=block), by_quadrature, atol=1e-11)
    assert abs(by_quadrature[-1]) < 1e-11  # uniform in time
    with pytest.raises(SolverError, match="needs v = w"):
        first_order_aligned(times, block=reference_block())


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_idempotent_matrices_of_any_rank_are_solved_exactly(rank):
    rng = np.random.default_rng(rank)
    frame = np.linalg.qr(rng.standard_normal((8, rank)))[0]
    mu, kappa, target = 2.5, 0.7, 0.9
    matrix = mu * frame @ frame.T
    v0, w0 = rng.standard_normal(8) * 0.2, rng.standard_normal(8) * 0.2
    times = np.array([0.2, 1.0, 4.0])
    exact, _ = brute_flow(matrix, kappa, target, v0, w0, times)
    start = squares((v0 + w0) @ matrix @ (v0 + w0), (v0 - w0) @ matrix @ (v0 - w0))
    assert np.allclose(
        solution(times, rate=kappa * mu, strength=target, start=start).output, exact, rtol=1e-9
    )


def test_any_symmetric_matrix_reduces_to_one_dimension():
    rng = np.random.default_rng(5)
    matrix = rng.standard_normal((4, 4))
    matrix = matrix + matrix.T
    v0, w0 = rng.standard_normal(4) * 0.3, rng.standard_normal(4) * 0.3
    times = np.array([0.05, 0.4, 3.0])
    exact, _ = brute_flow(matrix, 0.6, 0.5, v0, w0, times)
    ours, error = exact_output(times, matrix=matrix, rate=0.6, strength=0.5, value=v0, query=w0)
    assert np.allclose(ours, exact, atol=1e-9)
    assert error.max() < 1e-6
    with pytest.raises(SolverError, match="expected a symmetric matrix"):
        exact_output(times, matrix=matrix + np.eye(4, k=1), rate=1, strength=1, value=v0, query=w0)
