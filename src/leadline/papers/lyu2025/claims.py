r"""What the paper states, as far as its public discussion says it, and what our sweeps measure."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from leadline.claims import Claim, Interval, judge, numerical
from leadline.curve import Floats
from leadline.papers.lyu2025.approximate import approximate_claims
from leadline.papers.lyu2025.sweeps import (
    ADAPTATION_CONTEXT,
    ALPHA,
    CASES,
    LAZY,
    NEW,
    ORDER_RATE,
    ORDER_STRENGTH,
    RATES,
    SEEN,
    SHARED_TASKS,
    SOURCE,
    START,
    power_task,
)
from leadline.papers.lyu2025.tables import (
    Tables,
    column,
    half_times,
    has,
    law_curve,
    limit_slope,
    measure,
    table,
)
from leadline.papers.lyu2025.trained import trained_claims
from leadline.theory.sparse import adapted, vanishing_start
from leadline.theory.sparse_laws import compute_law, data_law, fit_exponent, size_law, time_law
from leadline.theory.sparse_order import Block, first_order

THREAD = f"{SOURCE}, public discussion"
LAWS = {"time": time_law, "size": size_law, "data": data_law, "compute": compute_law}
IN_WORDS = {
    "fixed": "fixed contexts and strengths",
    "context": "contexts that shorten as s^-0.6",
    "strength": "strengths that fall as s^-0.4",
    "both": "contexts and strengths that fall",
}


def exponent_claims(tables: Tables) -> list[dict[str, Any]]:
    """The four exponents of every case whose sweeps are in `tables`."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if not has(tables, f"{case}/time", "theory"):
            continue
        for law, of in LAWS.items():
            claim = Claim(
                name=f"{case}-{law}-exponent",
                source=f"{SOURCE}, section 4.2 and tables 1 and 2, as derived in "
                "docs/theory/sparse.md",
                statement=f"With {IN_WORDS[case]} the loss falls as a power of {law}.",
                kind="number",
                published=of(power_task(case), model=START).exponent,
                smallest_effect=0.05,
            )
            rows.append(judge(claim, limit_slope(*law_curve(tables, case, law))))
    return rows


def order_errors(tables: Tables) -> pl.DataFrame:
    """The largest distance of the simulated flow from the zeroth and from the first order of
    theory, one row a context.
    """
    rows: list[dict[str, float]] = []
    pairs = (table(tables, "order", engine).sort("context") for engine in ("simulation", "theory"))
    for exact, leading in zip(*(p.iter_rows(named=True) for p in pairs), strict=True):
        f, f0 = measure(exact, "output")[:, 0], measure(leading, "output")[:, 0]
        # the start of the runs: aligned along (1, strength), f(0) = 0.05 of the strength
        mass = 1 + ORDER_STRENGTH**2
        root = float(np.sqrt(0.05 * ORDER_STRENGTH)) / mass
        both = (root, root * ORDER_STRENGTH)
        block = Block(value=both, query=both, rate=ORDER_RATE, strength=ORDER_STRENGTH)
        scale = exact["context"] / ORDER_RATE
        f1 = first_order(2 * scale * column(exact, "time"), block=block)
        rows.append(
            {
                "context": exact["context"],
                "zeroth": float(np.abs(f - f0).max()),
                "first": float(np.abs(f - f0 - f1 / exact["context"]).max()),
            }
        )
    return pl.DataFrame(rows)


def order_claims(tables: Tables) -> list[dict[str, Any]]:
    """The orders of the expansion in the inverse context."""
    errors = order_errors(tables)
    logs = np.log(errors["context"].to_numpy())
    rows: list[dict[str, Any]] = []
    for name, order in (("zeroth", 1.0), ("first", 2.0)):
        values = np.log(errors[name].to_numpy())
        slopes = -np.diff(values) / np.diff(logs)
        measured = Interval(
            estimate=float(slopes[-1]),
            low=float(slopes[-1] - 3 * abs(slopes[-1] - slopes[-2])),
            high=float(slopes[-1] + 3 * abs(slopes[-1] - slopes[-2])),
            level=1.0,
            method="local slope at the longest contexts, give or take three times its last change",
            unit="none",
        )
        claim = Claim(
            name=f"{name}-order",
            source=f"{THREAD}, appendix G",
            statement=f"The {name} order of the solution errs by O(1/psi^{order:g}).",
            kind="number",
            published=order,
            smallest_effect=0.1,
        )
        rows.append(judge(claim, measured))
    return rows


def descent_errors(tables: Tables) -> list[float]:
    """The largest distance of f_s between descent on sampled sequences and the exact flow, for
    each of the `RATES`.
    """
    runs = table(tables, "solution", "simulation")
    flow = measure(runs.filter(pl.col("recipe") == "GradientFlow").row(0, named=True), "output")
    return [
        float(
            np.abs(
                measure(runs.filter(pl.col("rate") == rate).row(0, named=True), "output") - flow
            ).max()
        )
        for rate in RATES
    ]


def descent_claims(tables: Tables) -> list[dict[str, Any]]:
    """Descent on sampled sequences against the exact flow."""
    coarse, fine = descent_errors(tables)
    follows = Claim(
        name="descent-follows-the-solution",
        source=f"{THREAD}, figure 1",
        statement="Gradient descent on sampled sequences follows the solution (largest distance of "
        "f_s over five tasks, strength one).",
        kind="identity",
        published=0.0,
        smallest_effect=0.02,
    )
    first = Claim(
        name="descent-error-of-first-order",
        source="derived in docs/theory/sparse.md",
        statement="That distance is proportional to the rate: halving the rate halves it.",
        kind="number",
        published=2.0,
        smallest_effect=0.1,
    )
    distance = Interval(
        estimate=fine,
        low=fine - 0.005,
        high=fine + 0.005,
        level=1.0,
        method="largest distance, give or take half a percent",
        unit="none",
    )
    return [
        judge(follows, distance),
        judge(first, numerical(coarse / fine, 2 * fine)),
    ]


def adaptation_claims(tables: Tables) -> list[dict[str, Any]]:
    """Outputs on sequences of an unseen strength."""
    runs = table(tables, "adaptation", "simulation")
    outputs = np.array([measure(r, "output")[0, 0] for r in runs.iter_rows(named=True)])
    vanishing, general, constrained = outputs.reshape(3, len(NEW))
    formula = vanishing_start(NEW, strength=SEEN)
    at = NEW.index(2.0)
    across = 1e-3
    frame = np.array([SEEN, -1]) / np.sqrt(1 + SEEN**2) * across
    along = np.array([1, SEEN]) * np.sqrt(0.05 * SEEN / ADAPTATION_CONTEXT) / (1 + SEEN**2)
    ours = adapted(
        NEW[at], strength=SEEN, context=ADAPTATION_CONTEXT, value=along + frame, query=along + frame
    )
    small = Claim(
        name="adaptation-from-a-vanishing-start",
        source=THREAD,
        statement="From a vanishing start the trained model answers sequences of an unseen "
        "strength with f = Lambda (1 + Lambda' Lambda)^2 / (1 + Lambda^2)^2 (largest deviation).",
        kind="identity",
        published=0.0,
        smallest_effect=0.01,
    )
    large = Claim(
        name="adaptation-from-any-start",
        source=THREAD,
        statement="The same formula, stated without a condition on the start, at strength 2 after "
        "training at 0.5, relative deviation: what the start has across (1, Lambda) is never "
        "forgotten.",
        kind="number",
        published=0.0,
        corrected=float(ours / formula[at] - 1),
        smallest_effect=0.02,
    )
    perfect = Claim(
        name="constrained-model-adapts-perfectly",
        source=THREAD,
        statement="With the value vector on the label and the query vector on the feature the "
        "trained model answers every unseen strength exactly (largest deviation).",
        kind="identity",
        published=0.0,
        smallest_effect=1e-3,
    )
    worst = float(np.abs(vanishing - formula).max())
    missed = float(np.abs(constrained - np.array(NEW)).max())
    query = 20 / ADAPTATION_CONTEXT  # what the query token may change
    return [
        judge(small, numerical(worst, query)),
        judge(large, numerical(float(general[at] / formula[at] - 1), query)),
        judge(perfect, numerical(missed, 1e-6)),
    ]


def start_claims(tables: Tables) -> list[dict[str, Any]]:
    """What a start that is not small does to the time law."""
    task = power_task("strength")
    claim = Claim(
        name="time-law-of-a-lazy-start",
        source=f"{SOURCE}, section 4.2",
        statement="With strengths that fall the time law has the exponent (alpha + 2 gamma - 1) / "
        "(alpha + gamma). From a start of one size for all tasks (c = 1) the rate of late tasks no "
        "longer knows their strength: (alpha + 2 gamma - 1) / alpha.",
        kind="number",
        published=time_law(task, model=START).exponent,
        corrected=time_law(task, model=LAZY).exponent,
        smallest_effect=0.05,
    )
    row = table(tables, "lazy", "theory").row(0, named=True)
    measured = limit_slope(column(row, "time"), column(row, "loss"), column(row, "loss_error"))
    return [judge(claim, measured)]


def order_of_cases(tables: Tables) -> list[dict[str, Any]]:
    """Which case has the better laws."""
    if not has(tables, "strength/time", "theory"):
        return []
    slopes = {
        (case, law): limit_slope(*law_curve(tables, case, law)) for case in CASES for law in LAWS
    }

    def difference(first: tuple[str, str], second: tuple[str, str]) -> Interval:
        a, b = slopes[first], slopes[second]
        gap, margin = a.estimate - b.estimate, (a.width + b.width) / 2
        return Interval(
            estimate=gap,
            low=gap - margin,
            high=gap + margin,
            level=1.0,
            method=a.method,
            unit="none",
        )

    balanced = Claim(
        name="constant-context-is-better",
        source=THREAD,
        statement="With a limited number of steps, contexts of one length for all tasks give a "
        "better law in time than contexts that shorten with the rank of the task.",
        kind="order",
        published=1.0,
        smallest_effect=0.02,
    )
    rows = [judge(balanced, difference(("fixed", "time"), ("context", "time")))]
    for law in LAWS:
        claim = Claim(
            name=f"varied-strength-improves-{law}",
            source=THREAD,
            statement=f"Strengths that fall with the rank of the task improve the law in {law}.",
            kind="order",
            published=1.0,
            smallest_effect=0.02,
        )
        rows.append(judge(claim, difference(("strength", law), ("fixed", law))))
    return rows


def shared_times(tables: Tables) -> list[tuple[str, Floats, Floats]]:
    """Rank and half time of every learned task with a shared value vector, by case."""
    rows = table(tables, "shared", "simulation").iter_rows(named=True)
    found: list[tuple[str, Floats, Floats]] = []
    for case, row in zip(("fixed", "strength"), rows, strict=True):
        s = np.arange(1.0, SHARED_TASKS + 1)
        times = half_times(row, s ** -CASES[case][1])
        learned = np.isfinite(times)
        found.append((case, s[learned], times[learned]))
    return found


def shared_claims(tables: Tables) -> list[dict[str, Any]]:
    """When tasks are learned if they share the value vector of the label."""
    if not has(tables, "shared", "simulation"):
        return []
    _, s, times = shared_times(tables)[0]
    slopes = [-fit_exponent(times[h], s[h]) for h in ((s >= 20) & (s < 45), s >= 45)]
    estimate = -fit_exponent(times[s >= 20], s[s >= 20])
    margin = 2 * abs(slopes[1] - slopes[0])
    claim = Claim(
        name="shared-value-vector",
        source="derived in docs/theory/sparse.md",
        statement="Task s is learned at the time s^alpha, as with a value vector for each task. "
        "If the label coordinate of the value vector is shared it grows with the tasks learned, "
        "and late tasks are learned sooner: s^(alpha - 1/2), a heuristic.",
        kind="number",
        published=ALPHA,
        corrected=ALPHA - 0.5,
        smallest_effect=0.3,
    )
    measured = Interval(
        estimate=estimate,
        low=estimate - margin,
        high=estimate + margin,
        level=1.0,
        method="slope from task 20 on, give or take twice the difference of its halves",
        unit="none",
    )
    return [judge(claim, measured)]


def claims(tables: Tables) -> list[dict[str, Any]]:
    """Every claim whose sweeps are in `tables`."""
    small = has(tables, "shared", "simulation")
    return [
        *order_claims(tables),
        *descent_claims(tables),
        *exponent_claims(tables),
        *order_of_cases(tables),
        *start_claims(tables),
        *adaptation_claims(tables),
        *shared_claims(tables),
        *(approximate_claims(tables) if small else []),
        *(trained_claims(tables) if small else []),
    ]
