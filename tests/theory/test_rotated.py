"""Rotated covariance: the depth law, the flow and the recipes against the reference numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from leadline.errors import SolverError
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
from leadline.theory import landscape, rotated
from leadline.theory.landscape import local_exponent
from leadline.theory.predict import predict
from leadline.theory.spectra import power_law_modes

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "bordelon2025.json").read_text())
ROWS = REFERENCE["rrs_inf"]["rows"]


def spectrum(row):
    return source_capacity(math.inf, nu=row["nu"], beta=row["beta"])


def run(recipe, *, dim=math.inf, nu=1.25, beta=0.8, depth=4, context=math.inf, **changes):
    evaluation = changes.pop("evaluation", Evaluation())
    task = InContextRegression(
        spectrum=source_capacity(dim, nu=nu, beta=beta),
        covariance="rotated",
        context=context,
        noise=changes.pop("noise", 0.0),
    )
    model = ReducedAttention(depth=depth, **changes)
    return RunSpec(task=task, model=model, recipe=recipe, evaluation=evaluation)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['nu']}-{r['beta']}")
def test_reference_optimum(row):
    for depth, ratio, best, at_inverse in row["best"]:
        curve = predict(run(BestScale(), nu=row["nu"], beta=row["beta"], depth=depth))
        tolerance = 1e-5 if depth <= 1024 else 1e-3
        assert curve.scalar("gamma") / depth == pytest.approx(ratio, abs=1e-7)
        assert curve.loss[0] == pytest.approx(best, rel=tolerance)
        given = predict(run(GivenScale(gamma=depth), nu=row["nu"], beta=row["beta"], depth=depth))
        assert given.loss[0] == pytest.approx(at_inverse, rel=tolerance)
        assert (curve.status, given.status) == ("ok", "ok")
        assert curve.loss_error[0] < 1e-9 * curve.loss[0]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['nu']}-{r['beta']}")
def test_depth_law(row):
    modes, law = power_law_modes(spectrum(row)), rotated.depth_law(spectrum(row))
    assert law.exponent == pytest.approx(row["beta"])
    # fitted between two depths against the local exponent between them
    depths = np.array([256.0, 1024.0])
    losses = [best for depth, _, best, _ in row["best"] if depth in depths]
    fitted = local_exponent(losses, depths)[0]
    assert fitted == pytest.approx(landscape.depth_exponent(modes, depth=512), abs=0.005)
    deep = 10**7
    best = landscape.best_scale(modes, depth=deep)
    assert landscape.depth_exponent(modes, depth=deep) == pytest.approx(row["beta"], abs=1e-5)
    assert landscape.loss(modes, best, depth=deep) == pytest.approx(law(deep), rel=1e-5)
    # the scale L/lambda_1 has the same exponent and 2^beta the loss
    inverse = landscape.loss(modes, deep, depth=deep)
    assert inverse / law(deep) == pytest.approx(2 ** row["beta"], rel=1e-4)


@pytest.mark.parametrize("row", ROWS[:2], ids=lambda r: f"{r['nu']}-{r['beta']}")
def test_time_law(row):
    times = (1e7, 1e8, 1e9)
    flow = GradientFlow(times=times)
    curve = predict(run(flow, nu=row["nu"], beta=row["beta"], depth=math.inf))
    law = rotated.time_law(spectrum(row))
    assert law.exponent == pytest.approx(row["tslope_th"])
    slopes = local_exponent(curve.loss, times)
    np.testing.assert_allclose(slopes, row["tslope_th"], atol=1e-3)
    exponents = rotated.flow_exponent(power_law_modes(spectrum(row)), times, depth=math.inf)
    np.testing.assert_allclose(slopes, exponents[:-1], atol=0.005)
    np.testing.assert_allclose(curve.loss, law(times), rtol=1e-6)
    assert np.all(curve.loss_error < 1e-6 * curve.loss)


@pytest.mark.parametrize(("depth", "start"), [(1, 0.0), (6, 0.0), (6, 11.0), (math.inf, 0.5)])
def test_flow_against_euler(depth, start):
    dim, time, steps = 5, 0.4, 4000
    k = np.arange(1.0, dim + 1)
    lam, power = k**-1.25, k**-2.0 / np.sum(k**-2.0)

    def velocity(gamma):
        if math.isinf(depth):
            return 2 * (power * lam) @ np.exp(-2 * gamma * lam)
        return 2 * (power * lam) @ (1 - gamma * lam / depth) ** (2 * depth - 1)

    gamma, h = start, time / steps
    for _ in range(steps):
        gamma += h * velocity(gamma + h / 2 * velocity(gamma))
    flow = GradientFlow(times=(time,), start=start)
    evaluation = Evaluation(measures=("gamma",))
    curve = predict(run(flow, dim=dim, depth=depth, evaluation=evaluation))
    assert curve.scalar("gamma") == pytest.approx(gamma, rel=1e-6)
    assert curve.measures[0].values.tolist() == [curve.scalar("gamma")]


def test_flow_ends_at_the_best_scale():
    curve = predict(run(GradientFlow(times=(1.0, 1e3, 1e9)), dim=50, depth=8))
    best = predict(run(BestScale(), dim=50, depth=8))
    assert curve.scalar("gamma") == pytest.approx(best.scalar("gamma"), rel=1e-8)
    assert np.all(np.diff(curve.loss) < 0)
    assert curve.loss[-1] == pytest.approx(best.loss[0], rel=1e-9)


def test_label_noise_vanishes_with_infinite_context():
    quiet, noisy = (predict(run(BestScale(), noise=noise)) for noise in (0.0, 2.0))
    assert quiet.loss == noisy.loss


def test_edge_of_stability():
    stable, beyond = (predict(run(GivenScale(gamma=g), dim=20)) for g in (7.9, 8.1))
    assert stable.scalar("edge") == 8
    assert (stable.status, beyond.status) == ("ok", "unstable")
    k = np.arange(1.0, 21)
    expected = (1 - 8.1 / 4 * k**-1.25) ** 8 @ (k**-2.0 / np.sum(k**-2.0))
    assert beyond.loss[0] == pytest.approx(expected, rel=1e-13)
    assert predict(run(GivenScale(gamma=1e60), dim=20)).status == "diverged"


def test_infinite_depth_leaves_nothing():
    curve = predict(run(BestScale(), depth=math.inf))
    assert curve.loss[0] == 0
    assert math.isinf(curve.scalar("gamma"))


def test_untied_layers():
    flow = GradientFlow(times=(1.0, 100.0))
    tied, untied = (predict(run(flow, dim=30, tied=tied)) for tied in (True, False))
    np.testing.assert_array_equal(tied.loss, untied.loss)
    reference = REFERENCE["christoffel_untied_opt"][0]
    loss = dict(zip(reference["L"], reference["loss"], strict=True))[8]
    best = predict(
        run(BestScale(), depth=8, tied=False, evaluation=Evaluation(measures=("scales",)))
    )
    assert best.loss[0] == pytest.approx(loss, rel=1e-5)
    assert best.loss_error[0] < 1e-9 * loss
    k = np.arange(1.0, 1e5)
    residual = np.prod(1 - np.multiply.outer(best.measures[0].values / 8, k**-1.25), axis=0)
    assert np.sum(k**-2.0 * residual**2) * 6 / np.pi**2 == pytest.approx(loss, rel=2e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation": Evaluation(measures=("scales",))}, "got 'scales'; .* records nothing"),
        (
            {"recipe": Training(steps=3, batch_size=4, queries=4, rate=0.1)},
            "recipe: got Training",
        ),
    ],
)
def test_refusals(changes, message):
    recipe = changes.pop("recipe", BestScale())
    with pytest.raises(SolverError, match=message):
        predict(run(recipe, **changes))


def test_laws_need_a_power_law():
    with pytest.raises(SolverError, match="input_exponent 0"):
        rotated.scale_law(Spectrum(dim=10, input_exponent=0.0, task_exponent=2.0))
