"""Sums over types, exponents and prefactors, and the answer to runs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import zeta
from scipy.stats import binom

from leadline.errors import SolverError, SpecError
from leadline.runs import from_curves
from leadline.spec import (
    BestScale,
    Evaluation,
    GradientFlow,
    PerTaskAttention,
    ReducedAttention,
    RunSpec,
    SparseFeatures,
    Training,
    replace,
)
from leadline.theory.predict import predict
from leadline.theory.sparse import vanishing_start
from leadline.theory.sparse_counts import binomial_nodes
from leadline.theory.sparse_laws import (
    best_size,
    compute_law,
    data_law,
    fit_exponent,
    size_law,
    time_law,
)
from leadline.theory.sparse_loss import compute_optimum, data_loss, size_loss, time_loss
from leadline.theory.sparse_types import power_sum

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "lyu2025.json").read_text(encoding="utf-8")
)
MODEL = PerTaskAttention(start=0.01)
LARGEST = 200_000
"""Tasks that the reference keeps; the others stay as they start."""
INFINITE = SparseFeatures(num_tasks=math.inf, type_exponent=1.8, context=100)


def task(alpha, beta=0.0, gamma=0.0, num_tasks=math.inf, psi=100, **rest):
    return SparseFeatures(
        num_tasks=num_tasks,
        type_exponent=alpha,
        context=psi,
        context_exponent=beta,
        strength_exponent=gamma,
        **rest,
    )


def run(of=INFINITE, times=(1.0,), model=MODEL, **evaluation):
    return RunSpec(
        task=of,
        model=model,
        recipe=GradientFlow(times=times),
        evaluation=Evaluation(**evaluation),
    )


def logistic_loss(alpha, beta, gamma, count, times, *, start=0.01, psi=100.0):
    """Direct sum of the logistic solution with the factor 1/2."""
    s = np.arange(1.0, count + 1)
    p = s**-alpha / np.sum(s**-alpha)
    strength = s**-gamma
    rate = 2 * p * psi * s**-beta * (1 + strength**2) * strength
    b = 1 / start - 1
    losses = []
    for t in times:
        left = b * np.exp(-rate * t)
        losses.append(np.sum(p * (strength * left / (1 + left)) ** 2) / 2)
    return np.array(losses)


@pytest.mark.parametrize("p", [1.1, 1.8, 3.0, 5.5])
def test_power_sums_are_hurwitz_zeta_functions(p):
    assert power_sum(p) == pytest.approx(zeta(p), rel=1e-14)
    assert power_sum(p, start=1000) == pytest.approx(zeta(p, 1001), rel=1e-14)
    assert power_sum(p, start=7, stop=5000) == pytest.approx(zeta(p, 8) - zeta(p, 5001), rel=1e-13)
    with pytest.raises(SolverError, match="expected > 1"):
        power_sum(1.0)


@pytest.mark.parametrize("row", REFERENCE["loss_sums"])
def test_loss_sums_reference(row):
    of = task(row["alpha"], row["beta"], row["gamma"], num_tasks=row["S"])
    losses = [
        time_loss(of, row["t"], model=MODEL),
        time_loss(of, row["t"], model=replace(MODEL, "size", 50)),
        data_loss(of, 1000, model=MODEL),
    ]
    keys = ("test_loss", "test_loss_D50", "expected_loss_N1000_t_inf")
    assert losses == pytest.approx([row[key] for key in keys], rel=1e-10)


@pytest.mark.parametrize(
    ("alpha", "beta", "gamma", "start"),
    [(1.8, 0, 0, 0.01), (1.2, 0.6, 0.4, 1e-6), (2.5, 0, 0.3, 0.5)],
)
def test_a_million_tasks_by_quadrature_equal_the_direct_sum(alpha, beta, gamma, start):
    times = np.geomspace(1e-3, 1e7, 7)
    of = task(alpha, beta, gamma, num_tasks=10**6)
    ours = time_loss(of, times, model=PerTaskAttention(start=start))
    exact = logistic_loss(alpha, beta, gamma, 10**6, times, start=start)
    assert ours == pytest.approx(exact, rel=1e-9)


def test_a_model_of_any_size_by_quadrature():
    of, times = task(1.5, 0.2, 0.1, num_tasks=50_000), np.geomspace(1, 1e6, 5)
    ours = time_loss(of, times, model=replace(MODEL, "size", 7_000))
    direct = time_loss(of, times, model=replace(MODEL, "size", 7_000), explicit=50_000)
    assert ours == pytest.approx(direct, rel=1e-11)


def test_tuples_are_the_power_laws_that_they_spell_out():
    s = np.arange(1.0, 9)
    law = task(1.4, 0.3, 0.2, num_tasks=8)
    tuples = SparseFeatures(
        num_tasks=8,
        type_exponent=1.4,
        context=tuple(100 * s**-0.3),
        strength=tuple(s**-0.2),
    )
    times = np.geomspace(0.01, 10, 5)
    model = replace(MODEL, "size", 6)
    assert time_loss(tuples, times, model=model) == pytest.approx(
        time_loss(law, times, model=model), rel=1e-13
    )
    assert size_loss(tuples, 6, model=MODEL) == pytest.approx(size_loss(law, 6, model=MODEL))
    assert data_loss(tuples, 9, model=model) == pytest.approx(data_loss(law, 9, model=model))


@pytest.mark.parametrize("row", REFERENCE["exponents"], ids=str)
def test_exponents_reference(row):
    of = task(row["alpha"], row["beta"], row["gamma"])
    laws = {
        "time": time_law(of, model=MODEL),
        "model": size_law(of, model=MODEL),
        "data": data_law(of, model=MODEL),
        "compute": compute_law(of, model=MODEL),
        "Dopt": best_size(of, model=MODEL),
    }
    for name, law in laws.items():
        assert -law.exponent == pytest.approx(row["theory"][name], rel=1e-12)
    kept = replace(MODEL, "size", LARGEST)
    samples, fits = row["samples"], row["fit"]

    times = np.geomspace(*row["windows"]["t"], 25)
    losses = time_loss(of, times, model=kept)
    assert -fit_exponent(losses, times) == pytest.approx(fits["time"], abs=2e-4)
    assert time_loss(of, samples["t"], model=kept) == pytest.approx(samples["L_t"], rel=1e-9)
    apart = losses[-1] / laws["time"](times[-1]) - 1
    assert apart == pytest.approx(row["prefactor_relerr"]["time"], abs=1e-4)

    counts = np.geomspace(*row["windows"]["N"], 25)
    losses = data_loss(of, counts, model=kept)
    assert -fit_exponent(losses, counts) == pytest.approx(fits["data"], abs=2e-4)
    assert data_loss(of, samples["N"], model=kept) == pytest.approx(samples["L_N"], rel=1e-9)
    apart = losses[-1] / laws["data"](counts[-1]) - 1
    assert apart == pytest.approx(row["prefactor_relerr"]["data"], abs=1e-5)

    sizes = np.round(np.geomspace(*row["windows"]["D"], 25))
    losses = size_loss(of, sizes, model=MODEL)
    assert -fit_exponent(losses, sizes) == pytest.approx(fits["model"], abs=2e-4)
    assert size_loss(of, samples["D"], model=MODEL) == pytest.approx(samples["L_D"], rel=1e-9)
    assert losses[-1] == pytest.approx(laws["model"](sizes[-1]), rel=1e-3)


@pytest.mark.parametrize("row", REFERENCE["exponents"], ids=str)
def test_compute_reference(row):
    of = task(row["alpha"], row["beta"], row["gamma"])
    budgets = np.geomspace(*row["windows"]["C"], 25)
    best = [compute_optimum(of, c, model=MODEL) for c in budgets]
    losses, sizes = np.array([b.loss for b in best]), np.array([float(b.size) for b in best])
    assert -fit_exponent(losses, budgets) == pytest.approx(row["fit"]["compute"], abs=2e-4)
    assert -fit_exponent(sizes, budgets) == pytest.approx(row["fit"]["Dopt"], abs=5e-3)
    assert losses[-1] == pytest.approx(compute_law(of, model=MODEL)(budgets[-1]), rel=0.005)
    assert sizes[-1] == pytest.approx(best_size(of, model=MODEL)(budgets[-1]), rel=0.005)
    assert [b.time * b.size for b in best] == pytest.approx(budgets)


def test_the_compute_optimum_is_a_minimum_over_whole_sizes():
    best = compute_optimum(INFINITE, 300.0, model=MODEL)
    sizes = range(1, 400)
    losses = [time_loss(INFINITE, 300 / d, model=replace(MODEL, "size", d)) for d in sizes]
    assert best.size == 1 + int(np.argmin(losses))
    assert best.loss == min(losses)
    with pytest.raises(SolverError, match="compute: got 0"):
        compute_optimum(INFINITE, 0.0, model=MODEL)


@pytest.mark.parametrize("row", REFERENCE["exponents_general_init_pitfall"], ids=str)
def test_a_finite_invariant_takes_the_strength_out_of_the_time_law(row):
    of = task(row["alpha"], 0.0, row["gamma"])
    model = PerTaskAttention(start=0.0, invariant=row["general_init_c"])
    ends = []
    for s in (100.0, 2000.0):
        strength = s ** -row["gamma"]
        rate = s ** -row["alpha"] / zeta(row["alpha"]) * 100 * (1 + strength**2)
        ends.append(1 / (rate * math.hypot(2 * strength, math.sqrt(row["general_init_c"]))))
    times = np.geomspace(*ends, 25)
    losses = time_loss(of, times, model=replace(model, "size", LARGEST))
    assert -fit_exponent(losses, times) == pytest.approx(row["fit_time"], abs=0.006)
    law = time_law(of, model=model)
    lazy = (row["alpha"] + 2 * row["gamma"] - 1) / row["alpha"]
    assert law.exponent == pytest.approx(lazy, rel=1e-12)
    # the strength must be far below the invariant for the lazy law
    late = 1e14
    assert time_loss(of, late, model=model) == pytest.approx(law(late), rel=2e-3)


def test_laws_refuse_what_has_none():
    with pytest.raises(SolverError, match=r"type_exponent: got 0\.9"):
        time_law(task(0.9, num_tasks=10), model=MODEL)
    with pytest.raises(SolverError, match="power laws"):
        size_law(SparseFeatures(num_tasks=2, type_exponent=2, context=(5, 4)), model=MODEL)
    with pytest.raises(SolverError, match="aligned start"):
        compute_law(INFINITE, model=PerTaskAttention(invariant=1.0))


@pytest.mark.parametrize(("total", "share"), [(30, 0.4), (10_000, 0.3), (10**7, 1e-6)])
def test_binomial_nodes_take_expectations(total, share):
    counts, weights = binomial_nodes(total, share)
    k = np.arange(binom.ppf(1 - 1e-16, total, share) + 1)
    exact = np.sum(binom.pmf(k, total, share) / (1 + (k / (total * share)) ** 2))
    assert weights @ (1 / (1 + (counts / (total * share)) ** 2)) == pytest.approx(exact, rel=1e-12)


def test_predict_answers_with_the_mean_squared_error_and_its_clock():
    """Loss without 1/2, whose flow runs twice as fast as the paper's."""
    times = (0.0, 0.05, 1.0, 20.0)
    curve = predict(run(task(1.8, 0, 0.4, num_tasks=300), times))
    exact = 2 * logistic_loss(1.8, 0, 0.4, 300, 2 * np.array(times))
    assert curve.loss == pytest.approx(exact, rel=1e-12)
    assert np.all(np.abs(curve.loss - exact) <= curve.loss_error + 1e-13 * exact)
    assert curve.time.tolist() == list(times)
    assert curve.tokens.tolist() == [0] * 4
    assert curve.flops == pytest.approx(300 * np.array(times))
    assert curve.scalar("inverse_context") == 0.01
    row = from_curves([run()], [predict(run())], engine="theory").frame.row(0, named=True)
    assert (row["dim"], row["context"], row["depth"]) == (math.inf, 100.0, 1.0)
    assert (row["width"], row["status"]) == (math.inf, "ok")


def test_predict_averages_over_the_counts_of_finitely_many_sequences():
    of = task(1.8, num_tasks=5, sequences=50)
    times = (0.01, 0.2, 1.0, 1e4)
    p = np.arange(1.0, 6) ** -1.8 / np.sum(np.arange(1.0, 6) ** -1.8)
    k = np.arange(51.0)
    exact = []
    for t in times:
        left = 99 * np.exp(-4 * 100 * k / 50 * 2 * t)
        exact.append(sum(q * binom.pmf(k, 50, q) @ (left / (1 + left)) ** 2 for q in p))
    assert predict(run(of, times)).loss == pytest.approx(exact, rel=1e-11)
    late = predict(run(replace(INFINITE, "sequences", 10_000), (1e12,)))
    assert late.loss == pytest.approx(2 * data_loss(INFINITE, [1e4], model=MODEL), rel=1e-10)


def test_predict_evaluates_unseen_strengths():
    of = task(1.8, num_tasks=4)
    times = (1e3,)
    small = PerTaskAttention(start=1e-12)
    loss = predict(run(of, times, model=small, strength=0.25)).loss[0]
    assert loss == pytest.approx((vanishing_start(0.25, strength=1.0) - 0.25) ** 2, rel=1e-9)
    constrained = PerTaskAttention(start=1e-12, constrained=True)
    assert predict(run(of, times, model=constrained, strength=0.25)).loss[0] < 1e-25


def test_predict_records_the_output():
    curve = predict(run(task(1.8, num_tasks=3), (0.0, 1e3), measures=("output",)))
    assert curve.measures[0].values == pytest.approx(np.array([[0.01] * 3, [1.0] * 3]), rel=1e-12)
    with pytest.raises(SpecError, match="did you mean 'output'"):
        predict(run(measures=("outputs",)))
    with pytest.raises(SolverError, match="at most 1048576 to record"):
        predict(run(measures=("output",)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: task(1.0), "task.type_exponent: got 1 with infinitely many tasks"),
        (lambda: PerTaskAttention(start=0), "model.start: got 0 with invariant 0"),
        (lambda: PerTaskAttention(offset=1, constrained=True), "model.offset: got 1"),
        (
            lambda: SparseFeatures(num_tasks=3, type_exponent=1, context=(1, 2)),
            "task.context: got 2 values, expected task.num_tasks = 3",
        ),
        (
            lambda: SparseFeatures(num_tasks=1, type_exponent=1, context=(1,), context_exponent=1),
            "task.context_exponent: got 1 beside one value a task",
        ),
        (
            lambda: SparseFeatures(num_tasks=2, type_exponent=1, context=(1, 0)),
            "task.context[1]: got 0, expected a finite number > 0",
        ),
        (
            lambda: replace(run(), "model", ReducedAttention(depth=1)),
            "model: got ReducedAttention for SparseFeatures",
        ),
        (lambda: replace(run(), "recipe", BestScale()), "recipe: got BestScale"),
        (
            lambda: replace(run(), "recipe", GradientFlow(times=(1,), start=1)),
            "recipe.start: got start 1",
        ),
        (
            lambda: replace(run(), "recipe", Training(steps=1, batch_size=1, queries=2, rate=1)),
            "recipe.queries: got 2",
        ),
        (
            lambda: predict(run(task(1.8, 0.6))),
            "task.context: from task 2155 on there is less than one token",
        ),
        (
            lambda: predict(run(SparseFeatures(num_tasks=3, type_exponent=1, context=(9, 0.5, 2)))),
            "task.context: from task 2 on",
        ),
    ],
)
def test_impossible_runs_are_refused(make, text):
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_a_model_within_its_contexts_is_answered():
    curve = predict(run(task(1.8, 0.6), model=replace(MODEL, "size", 2154)))
    assert curve.status == "ok"
    assert curve.scalar("inverse_context") == pytest.approx(1, rel=1e-3)


def test_theory_does_not_train():
    recipe = Training(steps=1, batch_size=math.inf, queries=1, rate=1e-3)
    with pytest.raises(SolverError, match="recipe: got Training on sparse features"):
        predict(replace(run(), "recipe", recipe))
