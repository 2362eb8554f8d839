"""The equivalent at finite width and context: reference numbers, Monte Carlo of the definition,
finite differences, and its own limits.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.errors import SolverError, SpecError
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    GradientFlow,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Spectrum,
    Training,
    source_capacity,
)
from leadline.theory import finite, limits, rotated
from leadline.theory import landscape as sums
from leadline.theory.compression import compressed, population
from leadline.theory.contour import contours
from leadline.theory.equivalents import landscape, landscape_error
from leadline.theory.landscape import local_exponent
from leadline.theory.predict import predict
from leadline.theory.spectra import power_law_modes
from leadline.theory.streams import Stream, edge, laplace_variable, subordinate
from leadline.theory.tabulated import Tabulated

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text())
KINDS = {"I": "none", "proj": "orthogonal", "gauss": "gaussian"}
INF = math.inf


def stream(row, *, kind=None, **changes):
    values = {"D": 200, "nu": 1.25, "beta": 0.8, "P": None, "N": None} | row | changes
    kind = kind or values.get("kind") or ("proj" if values["N"] else "I")
    return Stream(
        modes=compressed(source_capacity(values["D"], nu=values["nu"], beta=values["beta"])),
        context=values["P"] or INF,
        width=values["N"] or INF,
        projection=KINDS.get(kind, kind),
        power=values.get("power") or 1,
    )


def run(recipe, *, depth=8, dim=200, context=100, noise=0.0, evaluation=None, tied=True, **model):
    task = InContextRegression(
        spectrum=source_capacity(dim, nu=1.25, beta=0.8),
        covariance="rotated",
        context=context,
        noise=noise,
    )
    return RunSpec(
        task=task,
        model=ReducedAttention(depth=depth, tied=tied, **model),
        recipe=recipe,
        evaluation=evaluation or Evaluation(),
    )


@pytest.mark.parametrize("row", REFERENCE["de_precise"], ids=lambda r: f"{r['N']}-{r['P']}")
def test_precise_reference(row):
    system, depth, gamma = stream(row), row["L"], row["L"] * row["gamma_over_L"]
    loss, slope = landscape(system, gamma, depth=depth)
    noisy, noisy_slope = landscape(system, gamma, depth=depth, noise=2.0)
    assert loss == pytest.approx(row["loss"], rel=1e-8)
    assert slope == pytest.approx(row["dloss_dgamma"], rel=1e-7)
    assert (noisy - loss) / 4 == pytest.approx(row["noise_var_over_sigma2"], abs=1e-10)
    assert edge(system) == pytest.approx(row["edge"], abs=1e-12)
    h = 1e-3 * gamma
    near, _ = landscape(system, gamma + h * np.array([-2, -1, 1, 2]), depth=depth, noise=2.0)
    assert noisy_slope == pytest.approx(near @ np.array([1, -8, 8, -1]) / (12 * h), rel=1e-7)


@pytest.mark.parametrize("row", REFERENCE["rrs_finite"], ids=lambda r: f"{r['kind']}-{r['L']}")
def test_finite_reference(row):
    loss, _ = landscape(stream(row), row["L"] * row["gamma_over_L"], depth=row["L"])
    assert loss == pytest.approx(row["theory"], rel=1e-7)
    assert abs(row["mc"] - loss) < 4 * row["se"] + 0.025 * loss


def test_repeated_eigenvalues():
    k = np.arange(1, 51.0)
    lam, power = k**-1.25, k**-2.0 / np.sum(k**-2.0)
    for row in REFERENCE["rrs_finite_size_scaling"]:
        modes = population(lam, power / lam, copies=row["m"])
        assert modes.dim == row["D"]
        system = Stream(
            modes=modes,
            context=row["P"] or INF,
            width=row["N"] or INF,
            projection=KINDS[row["kind"]],
            power=row["power"],
        )
        loss, _ = landscape(system, row["L"] * row["gamma_over_L"], depth=row["L"])
        assert loss == pytest.approx(row["theory"], rel=1e-8)
        if row["kind"] != "I" or row["m"] > 1:
            assert abs(row["mc"] / loss - 1) < 0.1 / row["m"]


def test_noise_and_curves():
    for row in REFERENCE["rrs_noise"]:
        system, gamma = stream(row), row["g"] * row["L"]
        clean, _ = landscape(system, gamma, depth=row["L"])
        noisy, _ = landscape(system, gamma, depth=row["L"], noise=1.0)
        assert noisy - clean == pytest.approx(row["theory"], abs=1e-10)
        assert abs(row["mc"] - (noisy - clean)) < 4 * row["se"]
    for row in REFERENCE["rrs_curves"]:
        gammas = np.array(row["g"]) * row["L"]
        loss, _ = landscape(stream(row), gammas, depth=row["L"])
        np.testing.assert_allclose(loss, row["theory"], rtol=1e-7)


def test_minima():
    rows = REFERENCE["rrs_min_over_gamma"]
    for row in rows[:-1]:
        system = stream(row)
        gamma = row["g_edge"] / edge(system) * row["L"]
        assert landscape(system, gamma, depth=row["L"])[0] == pytest.approx(row["loss"], rel=1e-7)
    for n, depth, at_edge, loss, width_alone, context_alone in rows[-1]["joint"]:
        system = stream({"D": 10_000, "N": n, "P": n})
        gamma = at_edge / edge(system) * depth
        assert landscape(system, gamma, depth=depth)[0] == pytest.approx(loss, rel=1e-4)
        assert limits.width_limit(system.modes, n) == pytest.approx(width_alone, rel=1e-4)
        assert limits.context_limit(system.modes, n) == pytest.approx(context_alone, rel=1e-4)


def test_limits():
    for row in REFERENCE["rrs_limits"]:
        modes = compressed(source_capacity(row["D"], nu=row["nu"], beta=row["beta"]))
        assert limits.context_limit(modes, row["n"]) == pytest.approx(row["P_th"], rel=1e-10)
        assert limits.width_limit(modes, row["n"]) == pytest.approx(row["N_th"], rel=1e-10)
        assert abs(row["P_th"] - row["P_mc"][0]) < 4 * row["P_mc"][1]
    for row in REFERENCE["rrs_limNP"]:
        limit = limits.deep_limit(stream(row, kind="proj"))
        assert limit == pytest.approx(row["theory"], rel=1e-10)
        assert limit == pytest.approx(row["mc"], rel=0.06)


@pytest.mark.parametrize(
    ("kind", "power", "width", "context"),
    [
        ("none", 1, None, 60),
        ("orthogonal", 1, 50, None),
        ("orthogonal", 1, 100, 60),
        ("orthogonal", 1, 50, 60),
        ("gaussian", 1, 100, 60),
        ("gaussian", 1, 300, 60),
        ("gaussian", 2, 100, 60),
        ("gaussian", 2, 50, 60),
    ],
)
def test_limit_is_that_of_the_integral(kind, power, width, context):
    system = stream({"N": width, "P": context, "power": power}, kind=kind)
    loss, _ = landscape(system, 1e7 / edge(system), depth=INF)
    assert limits.deep_limit(system) == pytest.approx(loss, rel=1e-9)


def test_slopes_of_the_limits():
    for row in REFERENCE["rrs_PN_slopes"]:
        modes = compressed(source_capacity(10**8, nu=row["nu"], beta=row["beta"]))
        context = [limits.context_limit(modes, n) for n in row["P"]]
        width = [limits.width_limit(modes, n) for n in row["P"]]
        np.testing.assert_allclose(context, row["LP"], rtol=1e-4)
        np.testing.assert_allclose(width, row["LN"], rtol=1e-4)
        np.testing.assert_allclose(local_exponent(context, row["P"]), row["Pslopes"], atol=1e-4)
        np.testing.assert_allclose(local_exponent(width, row["P"]), row["Nslopes"], atol=1e-4)


@pytest.mark.parametrize(("nu", "beta"), [(1.25, 0.8), (1.5, 0.5), (1.5, 1.5), (1.5, 2.5)])
def test_asymptotes(nu, beta):
    spectrum = source_capacity(INF, nu=nu, beta=beta)
    modes, n = compressed(spectrum), np.array([1e6, 2e6])
    for limit, law, power in (
        (limits.context_limit, limits.context_law(spectrum), min(beta, 2)),
        (limits.width_limit, limits.width_law(spectrum), min(beta, 1)),
    ):
        values = np.array([limit(modes, m) for m in n])
        assert law.exponent == pytest.approx(nu * power)
        assert values[1] / law(n[1]) == pytest.approx(1, abs=0.05)
        assert local_exponent(values, n)[0] == pytest.approx(nu * power, abs=0.02)


def test_logarithms_are_no_power_laws():
    with pytest.raises(SolverError, match=r"beta is 1.*width.*logarithm"):
        limits.width_law(source_capacity(INF, nu=1.5, beta=1.0))
    with pytest.raises(SolverError, match=r"beta is 2.*context.*logarithm"):
        limits.context_law(source_capacity(INF, nu=1.5, beta=2.0))


def sampled(modes, *, context, width, kind, power, gamma, depth, noise, draws, seed):
    """Mean and standard error of the loss by its definition, M = O B O^T Sh."""
    lam, weights, dim = modes.eigenvalues, modes.weights, int(modes.dim)
    rng, losses = np.random.default_rng(seed), []
    for _ in range(draws):
        sample = np.diag(lam)
        if context:
            x = np.sqrt(lam)[:, None] * rng.standard_normal((dim, context))
            sample = x @ x.T / context
        seen = np.eye(dim)
        if width:
            a = rng.standard_normal((width, dim)) / math.sqrt(width)
            if kind == "orthogonal":
                a = np.linalg.qr(a.T)[0].T
            seen = np.linalg.matrix_power(a.T @ a, power)
        residual = np.linalg.matrix_power(np.eye(dim) - gamma / depth * seen @ sample, depth)
        loss = np.sum((residual**2 * lam[:, None]).sum(axis=0) * weights / lam)
        if noise:
            # f - y* also holds x*^T sum_l (I - g M)^l g B X eps / P
            reach, term = np.zeros((dim, dim)), np.eye(dim)
            for _ in range(depth):
                reach += term
                term = term @ (np.eye(dim) - gamma / depth * seen @ sample)
            moved = gamma / depth * reach @ seen @ x / context
            loss += noise**2 * np.sum(lam[:, None] * moved**2)
        losses.append(loss)
    return np.mean(losses), np.std(losses) / math.sqrt(draws)


@pytest.mark.parametrize(
    ("kind", "power", "width", "context", "noise", "at_edge"),
    [
        ("none", 1, None, 60, 0.0, 0.6),
        ("none", 1, None, 60, 0.5, 0.6),
        ("orthogonal", 1, 50, None, 0.0, 0.6),
        ("orthogonal", 1, 55, 60, 0.0, 0.5),
        ("orthogonal", 1, 40, 60, 0.5, 0.5),
        ("gaussian", 1, 50, 80, 0.0, 0.4),
        ("gaussian", 1, 150, 60, 0.0, 0.4),
        ("gaussian", 2, 60, 60, 0.0, 0.3),
    ],
)
def test_against_sampling(kind, power, width, context, noise, at_edge):
    k = np.arange(1, 101.0)
    modes = population(k**-1.0, k**-0.8 / np.sum(k**-1.8))
    system = Stream(
        modes=modes, context=context or INF, width=width or INF, projection=kind, power=power
    )
    depth = 6
    gamma = at_edge * 2 * depth / edge(system)
    loss, _ = landscape(system, gamma, depth=depth, noise=noise)
    mean, error = sampled(
        modes,
        context=context,
        width=width,
        kind=kind,
        power=power,
        gamma=gamma,
        depth=depth,
        noise=noise,
        draws=150,
        seed=1,
    )
    # the corrections at D = 100 are below 4 / D
    assert abs(mean - loss) < 4 * error + 0.04 * loss
    assert error < 0.02 * loss


def test_one_layer_in_closed_form():
    """Tr Om Lam - 2 gamma Tr Om Lam E M + gamma^2 Tr Om E M^T Lam M, by Gaussian moments to
    leading order in D.
    """
    k = np.arange(1, 31.0)
    lam, om = k**-0.7, k**-0.4
    modes, context, gamma = population(lam, om), 20.0, 0.37
    system = Stream(modes=modes, context=context)
    square = np.sum(om * lam**3) + np.sum(om * lam) * np.sum(lam**2) / context
    loss = np.sum(om * lam) - 2 * gamma * np.sum(om * lam**2) + gamma**2 * square
    assert landscape(system, gamma, depth=1)[0] == pytest.approx(loss, rel=1e-12)
    width = 12.0
    system = Stream(modes=modes, width=width, projection="gaussian")
    square = np.sum(om * lam**3) + np.sum(om * lam**2) * np.sum(lam) / width
    loss = np.sum(om * lam) - 2 * gamma * np.sum(om * lam**2) + gamma**2 * square
    assert landscape(system, gamma, depth=1)[0] == pytest.approx(loss, rel=1e-12)


def test_wide_and_long_is_infinite():
    spectrum = source_capacity(200, nu=1.25, beta=0.8)
    modes, sums_over = compressed(spectrum), power_law_modes(spectrum)
    gamma = np.array([0.0, 1e-9, 0.5, 6.0, 15.0])
    expected = sums.loss(sums_over, gamma, depth=8)
    steepness = sums.slope(sums_over, gamma, depth=8)
    for system in (
        Stream(modes=modes),
        Stream(modes=modes, context=1e13),
        Stream(modes=modes, width=200, projection="orthogonal"),
        Stream(modes=modes, width=1e13, projection="gaussian", power=2),
    ):
        loss, slope = landscape(system, gamma, depth=8)
        np.testing.assert_allclose(loss, expected, rtol=1e-9)
        np.testing.assert_allclose(slope, steepness, rtol=1e-8)


def test_small_scales_keep_their_digits():
    system = stream({"N": 100, "P": 60})
    k = np.arange(1, 201.0)
    power = k**-2.0 / np.sum(k**-2.0)
    start = 2 * (100 / 200) * np.sum(power * k**-1.25)
    for gamma in (0.0, 1e-12, 1e-9, -1e-9):
        loss, slope = landscape(system, gamma, depth=4)
        assert slope == pytest.approx(-start, rel=1e-7)
        assert loss == pytest.approx(1 - gamma * start, rel=1e-13)


@pytest.mark.parametrize("depth", [1, 7, 64, 100_001, INF])
def test_contour(depth):
    end = 1.7
    gamma = 0.9 * 2 * min(depth, 1e4) / end
    right = 16 / gamma if math.isinf(depth) else depth * math.expm1(16 / depth) / gamma
    left = -INF if math.isinf(depth) else -right - 2 * depth / gamma
    at = contours(end, np.array([left]), np.array([right]), efolds=30)
    s, c = at.nodes[0], at.weights[0]
    power = np.exp(gamma * s) if math.isinf(depth) else np.exp(depth * np.log1p(gamma / depth * s))
    for x in (0.0, 1e-5, 0.3, 1.2, 1.7):
        exact = math.exp(-gamma * x) if math.isinf(depth) else (1 - gamma / depth * x) ** depth
        assert np.sum(c * power / (s + x)).real == pytest.approx(exact, abs=1e-10)
    # nodes grow with the logarithm of the depth
    assert s.size < 90


@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    st.floats(1.0, 150.0),
    st.floats(1.0, 500.0),
    st.sampled_from([("orthogonal", 1), ("gaussian", 1), ("gaussian", 2)]),
    st.floats(-6.0, 2.0),
    st.floats(0.02, 3.1),
)
def test_subordination_is_the_inverse(width, context, kind, size, angle):
    system = stream({"N": width, "P": context, "power": kind[1]}, kind=kind[0])
    end = edge(system)
    s = np.array([end * 10**size * np.exp(1j * angle)])
    kappa = subordinate(system, s, end=end)
    np.testing.assert_allclose(laplace_variable(system, kappa)[0], s, rtol=1e-9)
    assert kappa.imag[0] > 0


@pytest.mark.parametrize("dim", [1000, 200_000])
@pytest.mark.parametrize(("nu", "beta"), [(1.25, 0.8), (3.0, 0.5), (0.5, 1.0)])
def test_compression(dim, nu, beta):
    modes = compressed(source_capacity(dim, nu=nu, beta=beta))
    k = np.arange(1.0, dim + 1)
    lam, power = k**-nu, k ** (-nu * beta - 1)
    power /= power.sum()
    assert modes.eigenvalues.size < 700
    for size in (1e-6, 1e-3, 1.0):
        kappa = size * np.exp(2.5j)
        for exact, values in ((lam, modes.inputs), (power, modes.weights)):
            found = np.sum(values / (kappa + modes.eigenvalues))
            assert found == pytest.approx(np.sum(exact / (kappa + lam)), rel=2e-14)


def test_error_estimate_covers_the_error():
    for row in REFERENCE["de_precise"]:
        system, gamma = stream(row), row["L"] * row["gamma_over_L"]
        best, _ = landscape(system, gamma, depth=row["L"], tolerance=1e-12)
        for tolerance in (1e-4, 1e-7, 1e-10):
            loss, _ = landscape(system, gamma, depth=row["L"], tolerance=tolerance)
            error = landscape_error(system, gamma, depth=row["L"], tolerance=tolerance)
            assert abs(loss - best) <= error <= tolerance * best * 10


def test_depth_512_and_infinite_depth():
    system = stream({"N": 100, "P": 60})
    gamma = np.array([0.5, 5.0, 50.0])
    deep, _ = landscape(system, gamma, depth=512)
    deeper, _ = landscape(system, gamma, depth=1024)
    limit, _ = landscape(system, gamma, depth=INF)
    # first order in 1/L: Richardson's step reaches second order
    np.testing.assert_allclose(2 * deeper - deep, limit, rtol=2e-4)
    assert np.all(np.abs(deep - limit) > np.abs(deeper - limit))


def test_euler_steps():
    for row in REFERENCE["training"]["rrs"]:
        system = stream(row)
        gamma, recorded = 1e-9, {}
        for step in range(61):
            loss, slope = landscape(system, gamma, depth=row["L"])
            recorded[step] = (float(loss), gamma)
            gamma -= row["eta"] * float(slope)
        for step, (loss, scale) in zip((5, 20, 60), row["th"][1:], strict=True):
            assert recorded[step][1] == pytest.approx(scale, rel=2e-5)
            assert recorded[step][0] == pytest.approx(loss, rel=2e-5)
        for step, (loss, _, _) in zip((5, 20, 60), row["sgd"][1:], strict=True):
            assert recorded[step][0] == pytest.approx(loss, rel=0.06)


def test_predict_reads_the_landscape():
    model = {"width": 100, "projection": "orthogonal"}
    row = REFERENCE["de_precise"][2]
    curve = predict(run(GivenScale(gamma=8.0), **model))
    assert curve.loss[0] == pytest.approx(row["loss"], rel=1e-8)
    assert curve.scalar("edge") == pytest.approx(16 / row["edge"], rel=1e-12)
    assert curve.status == "ok"
    assert 0 < curve.loss_error[0] < 1e-9 * curve.loss[0]
    past = predict(run(GivenScale(gamma=30.0), **model))
    assert past.status == "unstable"
    assert past.loss[0] > 1


def test_best_scale():
    # near N = P the best scale saturates: it stays put however deep the model
    deep = predict(run(BestScale(), depth=64, width=100, projection="orthogonal"))
    assert deep.loss[0] == pytest.approx(0.0397369, abs=1e-6)
    deepest = predict(run(BestScale(), depth=INF, width=100, projection="orthogonal"))
    deeper = predict(run(BestScale(), depth=512, width=100, projection="orthogonal"))
    assert deeper.scalar("gamma") == pytest.approx(deepest.scalar("gamma"), rel=0.01)
    assert deepest.scalar("gamma") < 0.2 * deeper.scalar("edge")
    # the slope vanishes there, and neighbors lose
    system = finite.stream_of(*parts(run(BestScale(), width=100, projection="orthogonal")))
    gamma = finite.best_scale(system, depth=64)
    near, slope = landscape(system, gamma * np.array([0.99, 1.0, 1.01]), depth=64)
    assert abs(slope[1]) * gamma < 1e-8
    assert near[1] < min(near[0], near[2])
    # without a narrower stream nothing stops the descent
    endless = predict(run(BestScale(), depth=INF, context=60))
    assert endless.scalar("gamma") == INF
    assert endless.loss[0] == pytest.approx(limits.context_limit(system.modes, 60), rel=1e-9)
    noisy = predict(run(BestScale(), depth=INF, context=60, noise=1.0))
    assert noisy.scalar("gamma") < 100


def parts(spec):
    return spec.task, spec.model


def test_flow():
    model = {"width": 100, "projection": "orthogonal"}
    times = (0.0, 1.0, 30.0, 1e4)
    curve = predict(run(GradientFlow(times=times, start=0.1), noise=0.2, **model))
    system = finite.stream_of(*parts(run(GivenScale(gamma=0.0), **model)))
    assert curve.measures == ()
    # against classical Runge-Kutta steps on the landscape itself
    gamma, steps = 0.1, 40

    def velocity(g):
        return -float(landscape(system, g, depth=8, noise=0.2)[1])

    for _ in range(steps):
        h = 1.0 / steps
        a = velocity(gamma)
        b = velocity(gamma + h / 2 * a)
        c = velocity(gamma + h / 2 * b)
        gamma += h / 6 * (a + 2 * b + 2 * c + velocity(gamma + h * c))
    loss, _ = landscape(system, gamma, depth=8, noise=0.2)
    assert curve.loss[1] == pytest.approx(float(loss), rel=1e-6)
    assert np.all(np.diff(curve.loss) < 0)
    named = predict(
        run(
            GradientFlow(times=times, start=0.1),
            noise=0.2,
            tied=False,
            evaluation=Evaluation(measures=("gamma",)),
            **model,
        )
    )
    assert named.measures[0].values[1] == pytest.approx(gamma, rel=1e-6)
    np.testing.assert_array_equal(named.loss, curve.loss)
    best = finite.best_scale(system, depth=8, noise=0.2)
    settled = predict(run(GradientFlow(times=(1e7,)), noise=0.2, **model))
    assert settled.scalar("gamma") == pytest.approx(best, rel=1e-5)


def test_flow_near_infinite_context_is_the_infinite_branch():
    times = (1.0, 100.0)
    long = predict(run(GradientFlow(times=times), context=10**12))
    endless = predict(run(GradientFlow(times=times), context=INF))
    np.testing.assert_allclose(long.loss, endless.loss, rtol=1e-7)


def test_tabulated():
    table = Tabulated(lambda x: 1 / (1 + x**2), scale=0.3, tolerance=1e-11)
    for x in (-7.0, 0.0, 0.2, 3.0, 500.0):
        assert table(x) == pytest.approx(1 / (1 + x**2), abs=1e-10)
    assert table.error <= 1e-11
    with pytest.raises(SolverError, match="not finite"):
        Tabulated(lambda x: np.full_like(x, np.nan), scale=1.0, tolerance=1e-10)(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"N": 0.5}, "width: got 0.5, expected a number >= 1"),
        ({"P": 0.5}, "context: got 0.5, expected a number >= 1"),
        ({"N": 300, "kind": "orthogonal"}, "width: got 300 above the dim 200"),
        ({"D": 10, "N": 5, "kind": "none"}, "projection: got 'none' with width 5"),
    ],
)
def test_refused_streams(change, message):
    with pytest.raises(SolverError, match=message):
        stream(change)


def test_refusals():
    system = stream({"P": 60})
    for tolerance in (1e-13, 0.0, math.nan, 1.0):
        with pytest.raises(SolverError, match="tolerance"):
            landscape(system, 1.0, depth=4, tolerance=tolerance)
    with pytest.raises(SolverError, match="gamma: expected finite"):
        landscape(system, np.inf, depth=4)
    for eigenvalues in ([1.0, 0.0], [1.0, -1.0], [np.nan, 1.0]):
        with pytest.raises(SolverError, match="eigenvalues: got"):
            population(eigenvalues, [1.0, 1.0])
    with pytest.raises(SolverError, match="shapes"):
        population([1.0, 2.0], [1.0])
    with pytest.raises(SolverError, match="infinite dimension"):
        compressed(Spectrum(dim=INF, input_exponent=1.0, task_exponent=1.0))
    with pytest.raises(SolverError, match="dim: got infinity"):
        Stream(
            modes=compressed(source_capacity(INF, nu=1.5, beta=1.0)),
            width=5,
            projection="orthogonal",
        )
    with pytest.raises(SpecError, match="width"):
        run(BestScale(), width=300, projection="orthogonal")
    shifted = Evaluation(task=run(BestScale()).task)
    with pytest.raises(SolverError, match=r"evaluation\.task"):
        predict(run(BestScale(), evaluation=shifted))
    with pytest.raises(SolverError, match="untied"):
        predict(run(BestScale(), tied=False))
    with pytest.raises(SolverError, match="recipe: got Training"):
        predict(run(Training(steps=1, batch_size=1, queries=1, rate=1.0)))
    with pytest.raises(SolverError, match="width"):
        rotated.check_infinite(run(BestScale(), context=INF, width=5, projection="gaussian"))


def test_infinite_dimension():
    """Compressed spectra have a limit, and a Gaussian stream in it."""
    endless = Stream(
        modes=compressed(source_capacity(INF, nu=2.0, beta=0.8)),
        context=50,
        width=30,
        projection="gaussian",
    )
    losses = []
    for dim in (10**6, 10**8):
        modes = compressed(source_capacity(dim, nu=2.0, beta=0.8))
        system = Stream(modes=modes, context=50, width=30, projection="orthogonal")
        losses.append(float(landscape(system, 20 / system.mean, depth=16)[0]))
    limit, _ = landscape(endless, 20.0, depth=16)
    assert losses[1] == pytest.approx(float(limit), rel=1e-6)
    assert abs(losses[1] - limit) < abs(losses[0] - limit)
