"""What a fit cannot know, in words: separation, bounds, structure, reach and sensitivity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import FitError
from leadline.laws.families import CHINCHILLA, Law
from leadline.laws.findings import Finding
from leadline.laws.fit import MAX_CONDITION, Fit, fit
from leadline.laws.levels import loss_quantum
from leadline.laws.objectives import AsymmetricAbsolute, Huber, Objective, StudentT
from leadline.runs import Runs

INSEPARABLE = 0.95
"""Correlation of two estimates above which they move together."""
VAGUE = 0.2
"""Relative standard error above which an estimate that moves with another is not determined."""
UNKNOWN = 0.5
"""Standard error of an exponent, relative, above which it is not determined."""
LOOSE_FLOOR = 0.15
"""Standard error of the floor, in units of the smallest loss, above which it is not determined."""
FEW_LEVELS = 4
"""Distinct values of a variable below which the shape of its term is assumed, not seen."""
FEW_RUNS = 100
"""Runs below which the sandwich is too small: at 95% it covers 91% to 95% of 80, 80% to 90% of 8 to
20."""
FEW_FREE = 5
"""Degrees of freedom below which residuals say nothing about noise."""
FAR = 10.0
"""A point this many times beyond the data in a variable is a far extrapolation."""
SMALL_P = 0.002
"""Chance of a structure warning on residuals without structure, over all axes together."""
MOVED = 3.0
"""Standard errors beyond which a change of protocol is a warning."""
MENTIONED = 1.0
"""And beyond which it is mentioned."""
DROP = 0.02
"""Share of the largest losses that the sensitivity to exclusions leaves out."""
ONE_OPTIMUM = 0.5
"""Share of starts that should end at the optimum."""


def explain(
    fitted: Fit, *, at: Mapping[str, ArrayLike] | pl.DataFrame | None = None
) -> tuple[Finding, ...]:
    """What these runs cannot tell about this law, most serious first; nothing if there is nothing.

    Looks at the fit (converged, bounds, condition), the design (levels, degrees of freedom,
    correlations between estimates), the residuals (rank tests along each axis, Holm's correction
    over all of them), and refits without the largest losses and with another delta.

    **Arguments:** `fitted`; `at` further points, whose distance from the data is then reported.

    **Raises:** `FitError` if `at` lacks a variable.
    """
    found = [
        *_solution(fitted),
        *_design(fitted),
        *_separation(fitted),
        *_floor(fitted),
        *_structure(fitted),
    ]
    if fitted.converged:
        found += _sensitivity(fitted)
    if at is not None:
        found += _distance(fitted, at)
    order = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _warning(code: str, message: str) -> Finding:
    return Finding(code=code, severity="warning", message=message)


def _solution(fitted: Fit) -> list[Finding]:
    """Whether there is one optimum."""
    if not fitted.converged:
        return [
            Finding(
                code="not-converged",
                severity="error",
                message="no start converged: these parameters are not an optimum",
            )
        ]
    if fitted.starts_at_optimum < ONE_OPTIMUM and len(fitted.optima) > 1:
        apart = float(fitted.optima[1] / fitted.optima[0] - 1) if fitted.optima[0] > 0 else math.inf
        return [
            _warning(
                "several-optima",
                f"{len(fitted.optima)} local optima; {100 * fitted.starts_at_optimum:.0f}% of the "
                f"starts reach the lowest, the next is {100 * apart:.2g}% higher: a fit from few "
                "starts may report another law",
            )
        ]
    return []


def _design(fitted: Fit) -> list[Finding]:
    """Levels and degrees of freedom."""
    found: list[Finding] = []
    for name in fitted.law.family.variables:
        levels = fitted.runs.column(name).n_unique()
        if levels < FEW_LEVELS:
            found.append(
                _warning(
                    "too-few-levels",
                    f"{name} has {levels} distinct values: that its term is a power law is "
                    "assumed, "
                    "not seen",
                )
            )
    runs = _run_count(fitted)
    if runs < FEW_RUNS:
        ours = (
            "parameters have jackknife intervals, other quantities a few percent less coverage "
            "than stated"
            if fitted.covariance_accurate
            else "this fit has no accurate covariance, so that `intervals` has percentiles only"
        )
        found.append(
            Finding(
                code="few-runs",
                severity="note",
                message=f"{runs} runs: standard errors (sandwich) are too small and percentiles "
                f"of a bootstrap too narrow; {ours}",
            )
        )
    free = fitted.degrees_of_freedom
    if free < FEW_FREE:
        found.append(
            Finding(
                code="degrees-of-freedom",
                severity="error" if free < 1 else "warning",
                message=f"{fitted.rows} rows leave {free} degrees of freedom: the law follows the "
                "noise, and a small residual says nothing",
            )
        )
    return found


def _run_count(fitted: Fit) -> int:
    frame = fitted.runs.frame
    return frame["run"].n_unique() if "run" in frame.columns else fitted.rows


def _correlation(covariance: Floats) -> Floats:
    scale = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(covariance / np.outer(scale, scale))


def _moves(fitted: Fit, name: str) -> bool:
    return name not in fitted.at_bound and name not in fitted.restriction.fixed


def _shape(fitted: Fit) -> list[str]:
    """The floor and the parameters without a unit: what another table can be asked for too."""
    family = fitted.law.family
    names = dict.fromkeys((*(n for n in family.parameters if n == "E"), *family.unit_free))
    return [name for name in names if _moves(fitted, name)]


def _separation(fitted: Fit) -> list[Finding]:
    """Exponents that the design cannot separate, from each other or from the floor."""
    family, found = fitted.law.family, list[Finding]()
    if fitted.condition_number > MAX_CONDITION:
        found.append(
            _warning(
                "ill-conditioned",
                f"condition number {fitted.condition_number:.1e}: other parameters fit as well; "
                "trust predictions near the data, not single parameters",
            )
        )
    names = family.parameters
    shown = [names.index(name) for name in _shape(fitted) if name in names]
    correlation = _correlation(fitted.covariance)
    values, errors = fitted.law.parameters, fitted.standard_errors
    for k, i in enumerate(shown):
        for j in shown[:k]:
            rho = float(correlation[i, j])
            vague = max(errors[n] / max(abs(values[n]), 1e-300) for n in (names[i], names[j]))
            if abs(rho) > INSEPARABLE and vague > VAGUE:
                way = "same" if rho > 0 else "opposite"
                found.append(
                    _warning(
                        "inseparable",
                        f"{names[j]} and {names[i]} can move together in the {way} direction "
                        f"(correlation {rho:+.3f}, standard error {100 * vague:.0f}%) without the "
                        "fit "
                        "getting worse: these runs cannot tell them apart",
                    )
                )
    found += [
        _warning(
            "unknown-exponent",
            f"{name} = {values[name]:.3g} has a standard error of {errors[name]:.2g}: these runs "
            "do "
            "not determine it",
        )
        for name in family.unit_free
        if _moves(fitted, name) and errors[name] > UNKNOWN * abs(values[name])
    ]
    return found


def _floor(fitted: Fit) -> list[Finding]:
    """The floor and other parameters at their bound, or not to be known."""
    found: list[Finding] = []
    least = float(fitted.runs.column("loss").to_numpy().min())
    if "E" in fitted.at_bound:
        low = fitted.law.parameters["E"] < 0.5 * least
        found.append(
            _warning(
                "floor-at-bound",
                "the floor E is at its "
                f"{'lower bound 0' if low else 'upper bound, the smallest loss'}:"
                " it has no standard error; the losses bend "
                f"{'less' if low else 'more'} than a floor would have them",
            )
        )
    found += [
        _warning("at-bound", f"{name} is at its bound: this term has no effect that can be seen")
        for name in fitted.at_bound
        if name != "E"
    ]
    if "E" in fitted.law.family.parameters and "E" not in fitted.at_bound:
        error = fitted.standard_errors["E"]
        if error > LOOSE_FLOOR * least:
            found.append(
                _warning(
                    "floor-unknown",
                    f"the floor E = {fitted.law.parameters['E']:.3g} has a standard error of "
                    f"{error:.2g}: these runs end too far above it",
                )
            )
        quantum = loss_quantum(fitted.runs)
        if quantum is not None and 2 * error < quantum:
            found.append(
                _warning(
                    "below-quantum",
                    f"the losses come in steps of {quantum:.2g}; the floor's standard error of "
                    f"{error:.2g} claims more than that",
                )
            )
    return found


def _unit_means(fitted: Fit, name: str) -> tuple[Floats, Floats]:
    """The values of a variable and the residuals; of runs that keep its value, one mean each, since
    the checkpoints of a run share its deviation.
    """
    values = fitted.runs.column(name).to_numpy().astype(np.float64)
    if "run" not in fitted.runs.frame.columns:
        return values, fitted.residuals
    frame = pl.DataFrame(
        {"run": fitted.runs.frame["run"], "value": values, "residual": fitted.residuals}
    )
    means = frame.group_by("run", "value", maintain_order=True).agg(pl.col("residual").mean())
    return means["value"].to_numpy(), means["residual"].to_numpy()


def _structure(fitted: Fit) -> list[Finding]:
    """Residuals that follow a variable: their rank against it, against the distance from its
    middle, and their order along it.
    """
    from scipy import stats

    tests: list[tuple[float, str, str]] = []
    for name in fitted.law.family.variables:
        values, residuals = _unit_means(fitted, name)
        if len(values) < 10 or np.ptp(values) == 0 or np.ptp(residuals) == 0:
            continue
        logs = np.log(values)
        for axis, shape in (
            (logs, "rise or fall"),
            (np.abs(logs - np.median(logs)), "bend"),
        ):
            if np.ptp(axis) > 0:
                p = float(stats.spearmanr(axis, residuals).pvalue)
                tests.append((p, name, shape))
        if len(np.unique(values)) == len(values):
            tests.append((runs_test(residuals[np.argsort(values)]), name, "keep their sign"))
    found: list[Finding] = []
    tests.sort()
    for i, (p, name, shape) in enumerate(tests):
        # Holm: the i-th smallest is judged against what is left
        if p * (len(tests) - i) > SMALL_P:
            break
        found.append(
            _warning(
                "structured-residuals",
                f"residuals {shape} along {name} (p = {p:.1g}): the law misses something there, "
                "and "
                "intervals hold only within the law",
            )
        )
    return found


def runs_test(residuals: ArrayLike) -> float:
    """The chance (two-sided, normal approximation with continuity correction) of as few or many
    sign changes about the median in a random order (Wald and Wolfowitz 1940).
    """
    values = np.asarray(residuals, np.float64)
    above = values[values != np.median(values)] > np.median(values)
    plus, minus = int(above.sum()), int((~above).sum())
    total = plus + minus
    if min(plus, minus) == 0 or total < 3:
        return 1.0
    count = 1 + int((above[1:] != above[:-1]).sum())
    mean = 1 + 2 * plus * minus / total
    variance = (mean - 1) * (mean - 2) / (total - 1)
    if variance <= 0:
        return 1.0
    distance = max(abs(count - mean) - 0.5, 0.0) / math.sqrt(variance)
    return math.erfc(distance / math.sqrt(2))


def _refit(fitted: Fit, runs: Runs, objective: Objective) -> Fit | None:
    given = fitted.restriction
    try:
        return fit(
            fitted.law.family,
            runs,
            objective=objective,
            weights=fitted.weights,
            noise=fitted.noise,
            fixed=given.fixed,
            shared=given.shared,
            bounds=given.bounds,
            starts=[dict(fitted.law.parameters)],
        )
    except FitError:
        return None


def _moved(fitted: Fit, other: Fit) -> tuple[str, float, float] | None:
    """The floor or exponent that moved most, in standard errors of the first fit."""
    errors = fitted.standard_errors
    worst: tuple[str, float, float] | None = None
    for name in _shape(fitted):
        error = errors.get(name, 0.0)
        if not (math.isfinite(error) and error > 0):
            continue
        steps = abs(other.law.parameters[name] - fitted.law.parameters[name]) / error
        if worst is None or steps > worst[2]:
            worst = (name, other.law.parameters[name], steps)
    return worst


def _sensitivity(fitted: Fit) -> list[Finding]:
    """What other exclusions and another objective would have said."""
    loss = fitted.runs.column("loss").to_numpy()
    count = max(1, round(DROP * len(loss)))
    gone = loss >= np.sort(loss)[-count]
    kept = replace(fitted.runs, frame=fitted.runs.frame.filter(pl.Series(~gone)))
    changes = [
        (
            "sensitive-to-exclusions",
            f"without the {gone.sum()} largest losses",
            "say which rows are in, and why",
            _refit(fitted, kept, fitted.objective) if gone.sum() <= 3 * count else None,
        )
    ]
    changes += [
        (
            "sensitive-to-objective",
            f"with {objective}",
            "a few rows decide; state the objective",
            _refit(fitted, fitted.runs, objective),
        )
        for objective in _neighbors(fitted)
    ]
    worst: dict[str, tuple[float, Finding]] = {}
    for code, how, advice, other in changes:
        moved = None if other is None else _moved(fitted, other)
        if moved is None or moved[2] < MENTIONED:
            continue
        name, value, steps = moved
        finding = Finding(
            code=code,
            severity="warning" if steps > MOVED else "note",
            message=f"{how} {name} is {value:.3g} instead of {fitted.law.parameters[name]:.3g}, "
            f"{steps:.1f} standard errors away: {advice}",
        )
        if code not in worst or steps > worst[code][0]:
            worst[code] = (steps, finding)
    return [finding for _, finding in worst.values()]


def _neighbors(fitted: Fit) -> list[Objective]:
    """Objectives that another analyst may have taken."""
    objective = fitted.objective
    if isinstance(objective, Huber):
        return [replace(objective, delta=objective.delta * factor) for factor in (0.1, 10.0)]
    if isinstance(objective, AsymmetricAbsolute):
        return []
    delta = float(np.median(np.abs(fitted.residuals)))
    return [Huber(delta=delta, residual=objective.residual)] if delta > 0 else []


def _distance(fitted: Fit, at: Mapping[str, ArrayLike] | pl.DataFrame) -> list[Finding]:
    """How far the points `at` lie beyond the data in each variable."""
    found: list[Finding] = []
    given = list(at.columns) if isinstance(at, pl.DataFrame) else list(at)
    for name in fitted.law.family.variables:
        if name not in given:
            raise FitError(f"no value for {name!r}; got {', '.join(given) or 'nothing'}")
        target = np.asarray(at[name], np.float64)
        column = fitted.runs.column(name).to_numpy()
        factor = float(max((target / column.max()).max(), (column.min() / target).max()))
        if factor > 1:
            decades = math.log10(factor) / max(math.log10(column.max() / column.min()), 1e-12)
            found.append(
                Finding(
                    code="extrapolation",
                    severity="warning" if factor >= FAR else "note",
                    message=f"{name} lies a factor {factor:.3g} beyond the data, {decades:.0%} of "
                    "their range in decades: intervals hold within the law; only a hold-out says "
                    "whether the law holds there",
                )
            )
    return found


def inspect_law(law: Law, fitted: Fit) -> tuple[Finding, ...]:
    """What a law given by numbers, from a paper or a log, says of the runs of `fitted`: whether its
    digits suffice, and whether it is an optimum of them at all.

    Printed digits are judged by the largest change of the loss over the runs when the last printed
    digit of every parameter is off by half; the optimum by the objective of `fitted`.
    """
    found: list[Finding] = []
    frame = fitted.runs.frame
    slope = np.abs(law.gradient(frame)) @ np.array(
        [_half_digit(law.parameters[name]) for name in law.family.parameters]
    )
    off = float((slope / law.loss(frame)).max())
    noise = float(np.median(np.abs(fitted.residuals)))
    if off > 0.1 * noise and off > 1e-6:
        found.append(
            _warning(
                "rounded-parameters",
                f"the printed digits leave the loss open by up to {100 * off:.2g}%, against a "
                "typical "
                f"residual of {100 * noise:.2g}%: take the parameters from a lossless artifact",
            )
        )
    value = objective_value(law, fitted)
    ratio = value / fitted.value if fitted.value > 0 else math.inf
    if ratio > 1.01:
        found.append(
            _warning(
                "not-the-optimum",
                f"the objective of these parameters is {ratio:.4g} times that of the optimum for "
                "these runs: rounded, from other runs, from another objective, or from a search "
                "that "
                "stopped early",
            )
        )
    return tuple(found)


def objective_value(law: Law, fitted: Fit) -> float:
    """The objective of `law` on the runs, and under the objective, weights and noise, of
    `fitted`.

    **Raises:** `FitError` for Student's t, whose scale belongs to the fit.
    """
    objective = fitted.objective
    if isinstance(objective, StudentT):
        raise FitError("objective_value: the scale of Student's t is fitted with the law")
    predicted, loss = law.loss(fitted.runs.frame), fitted.runs.column("loss").to_numpy()
    log = objective.residual == "log"
    residual = np.log(predicted) - np.log(loss) if log else predicted - loss
    if fitted.noise is not None:
        residual = residual / fitted.runs.column(fitted.noise).to_numpy()
    value, _, _ = objective.penalty(residual, objective.path(float(np.std(residual)))[-1])
    weight = 1.0 if fitted.weights is None else fitted.runs.column(fitted.weights).to_numpy()
    return float(np.sum(weight * value))


def _half_digit(value: float) -> float:
    """Half a unit of the last digit that Python prints of `value`."""
    mantissa, _, exponent = f"{value!r}".partition("e")
    digits = len(mantissa.partition(".")[2]) if not mantissa.endswith(".0") else 0
    return 0.5 * 10.0 ** (int(exponent or 0) - digits)


def parabola_bias(law: Law, *, budgets: ArrayLike, points: int, span: float, at: float) -> Floats:
    r"""The relative error of the optimal params and tokens (2) at the budget `at` when each of
    `budgets` is read by a parabola through the losses of `points` sizes, spaced evenly in $\log N$
    over a factor `span` to either side of the optimum, and the vertices are continued by a power
    law. Without noise: the parabola alone makes this error unless the exponents are equal
    (arXiv:2603.22339).

    **Arguments:** `law` of the family `CHINCHILLA`; `budgets` in FLOPs under 6ND; `span` > 1.

    **Raises:** `FitError` for another family.
    """
    if law.family != CHINCHILLA:
        raise FitError(f"parabola_bias: got the family {law.family.name}, expected chinchilla")
    p = law.parameters
    total = p["alpha"] + p["beta"]
    scale = (p["alpha"] * p["A"] / (p["beta"] * p["B"])) ** (1 / total)
    budget = np.asarray(budgets, np.float64)

    def best(flops: Floats) -> Floats:
        return scale * (flops / 6) ** (p["beta"] / total)

    x = np.linspace(-math.log(span), math.log(span), points)
    params = best(budget)[:, None] * np.exp(x)
    loss = law.loss({"params": params, "tokens": budget[:, None] / (6 * params)})
    curvature, slope, _ = np.polyfit(x, loss.T, 2)
    vertex = np.log(best(budget)) - slope / (2 * curvature)
    growth, start = np.polyfit(np.log(budget), vertex, 1)
    ratio = math.exp(growth * math.log(at) + start) / float(best(np.array(at)))
    return np.array([ratio - 1, 1 / ratio - 1])
