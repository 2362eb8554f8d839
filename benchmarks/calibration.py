"""How often 95% intervals contain the truth, on a fixed grid of planted tables.

`python benchmarks/calibration.py [tables]` prints one line of JSON a cell and method: the number of
tables where the method claims to hold, the share of them whose interval contains each true
parameter, and its standard error. A method that does not claim to hold says so in its result: the
sandwich by `Fit.covariance_accurate` and by the finding `few-runs`, the bootstrap by the same and
by falling back on the jackknife, whose coverage then counts as its own.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl

from leadline.laws import CHINCHILLA, Huber, bootstrap, fit, intervals, separable
from leadline.laws.identify import FEW_RUNS
from leadline.laws.intervals import FEW_UNITS, percentile_interval
from leadline.laws.objectives import LeastSquares
from leadline.laws.profiles import profile
from leadline.runs import Runs, nothing_excluded

TRUTH = {
    "two": {"E": 1.7, "A": 400.0, "B": 2000.0, "alpha": 0.34, "beta": 0.37},
    "one": {"E": 1.7, "c_params": 400.0, "a_params": 0.34},
}
FAMILY = {"two": CHINCHILLA, "one": separable(["params"])}
OBJECTIVE = {"least squares": LeastSquares(), "huber 1e-3": Huber(delta=1e-3)}
DRAWS = 200
SHARED = 0.8
"""Share of the noise (standard deviation) that the checkpoints of a run have in common."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of table: `law`, the number of `runs` and of `checkpoints` each, the standard
    deviation and `shape` of the log-normal noise, the `objective` that fits it, and which
    parameters get a profile, which costs more than all else together.
    """

    law: str = "two"
    runs: int
    checkpoints: int = 1
    noise: float = 0.01
    shape: str = "normal"
    objective: str = "least squares"
    profiled: tuple[str, ...] = ()


GRID = (
    Cell(runs=12, profiled=("E", "beta")),
    *(Cell(runs=runs) for runs in (20, 40, 80, 120)),
    Cell(runs=240, profiled=("E", "beta")),
    Cell(law="one", runs=8, profiled=("E", "a_params")),
    *(Cell(law="one", runs=runs) for runs in (20, 120, 240)),
    *(Cell(runs=runs, checkpoints=8) for runs in (8, 12, 25, 120, 240)),
    *(Cell(runs=runs, noise=0.03) for runs in (40, 240)),
    *(Cell(runs=runs, shape="t4") for runs in (20, 120, 240)),
    Cell(runs=60, noise=0.002, objective="huber 1e-3"),
    Cell(runs=240, noise=0.002, objective="huber 1e-3"),
    Cell(runs=30, noise=0.01, objective="huber 1e-3"),
    Cell(runs=300, noise=0.01, objective="huber 1e-3"),
)


def table(cell: Cell, seed: int) -> Runs:
    """A table of runs of random size, three decades in each variable."""
    rng = np.random.default_rng([seed, cell.runs, cell.checkpoints])
    params = np.repeat(10 ** rng.uniform(7, 10, cell.runs), cell.checkpoints)
    if cell.checkpoints > 1:
        tokens = np.tile(np.geomspace(1e9, 1e12, cell.checkpoints), cell.runs)
    else:
        tokens = 10 ** rng.uniform(9, 12, cell.runs)
    size = params.size
    noise = rng.standard_t(4, size) / 2**0.5 if cell.shape == "t4" else rng.standard_normal(size)
    if cell.checkpoints > 1:
        shared = np.repeat(rng.standard_normal(cell.runs), cell.checkpoints)
        noise = SHARED * shared + (1 - SHARED**2) ** 0.5 * noise
    p = TRUTH[cell.law]
    loss = (
        p["E"] + p["A"] * params ** -p["alpha"] + p["B"] * tokens ** -p["beta"]
        if cell.law == "two"
        else p["E"] + p["c_params"] * params ** -p["a_params"]
    )
    names = np.repeat([f"run {i}" for i in range(cell.runs)], cell.checkpoints)
    columns = {"params": params, "tokens": tokens, "loss": loss * np.exp(cell.noise * noise)}
    frame = pl.DataFrame(columns | {"run": names})
    return Runs(frame=frame, units={}, excluded=nothing_excluded(), source="planted")


def _within(estimate: float, error: float, truth: float, *, in_logs: bool) -> bool:
    """Whether the normal interval holds the truth; a coefficient's is one of its logarithm."""
    wide = NormalDist().inv_cdf(0.975)
    if in_logs:
        return abs(math.log(estimate / truth)) <= wide * error / estimate if estimate > 0 else False
    return abs(estimate - truth) <= wide * error


def methods(
    cell: Cell, seed: int, *, draws: int = DRAWS
) -> Iterator[tuple[str, bool, dict[str, bool]]]:
    """Each method, whether it claims to hold for this table, and which true values its 95%
    interval contains.
    """
    truth = TRUTH[cell.law]
    fitted = fit(FAMILY[cell.law], table(cell, seed), objective=OBJECTIVE[cell.objective])
    if not fitted.converged:
        return
    at, errors = fitted.law.parameters, fitted.standard_errors
    free = fitted.law.family.unit_free
    yield (
        "sandwich",
        fitted.covariance_accurate and cell.runs >= FEW_RUNS,
        {
            name: _within(at[name], errors[name], truth[name], in_logs=name not in (*free, "E"))
            for name in truth
        },
    )
    if cell.profiled:
        yield (
            "profile",
            fitted.status == "ok",
            {name: profile(fitted, name).contains(truth[name]) for name in cell.profiled},
        )
    drawn = bootstrap(fitted, draws=draws, seed=seed)
    found = intervals(fitted, drawn)
    yield (
        "bootstrap",
        fitted.covariance_accurate,
        {name: found[name].contains(truth[name]) for name in truth},
    )
    kept = drawn.filter(pl.col("status") != "not converged")
    raw = {
        name: percentile_interval(kept[name].to_numpy(), estimate=at[name], draws=drawn, level=0.95)
        for name in truth
    }
    yield (
        "percentile",
        fitted.covariance_accurate and cell.runs >= FEW_UNITS,
        {name: raw[name].contains(truth[name]) for name in truth},
    )


def coverage(cell: Cell, tables: int, *, draws: int = DRAWS) -> dict[str, dict[str, object]]:
    """For each method the number of tables where it claims to hold, the share of hits there, and
    over all tables, by parameter.
    """
    hits: dict[str, list[list[bool]]] = {}
    claims: dict[str, list[bool]] = {}
    names: dict[str, list[str]] = {}
    for seed in range(tables):
        for method, claimed, inside in methods(cell, seed, draws=draws):
            hits.setdefault(method, []).append(list(inside.values()))
            names[method] = list(inside)
            claims.setdefault(method, []).append(claimed)
    result: dict[str, dict[str, object]] = {}
    for method in hits:
        inside, claimed = np.array(hits[method]), np.array(claims[method])
        held = inside[claimed].mean(axis=0).tolist() if claimed.any() else []
        result[method] = {
            "tables": len(inside),
            "claimed": int(claimed.sum()),
            "coverage": dict(zip(names[method], held, strict=False)),
            "coverage_of_all": dict(zip(names[method], inside.mean(axis=0).tolist(), strict=True)),
        }
    return result


def main() -> None:
    tables = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for cell in GRID:
        start = time.process_time()
        for method, row in coverage(cell, tables).items():
            spent = round(time.process_time() - start, 1)
            shown = dict(vars(cell))
            print(json.dumps(shown | {"method": method, "cpu_s": spent} | row), flush=True)


if __name__ == "__main__":
    main()
