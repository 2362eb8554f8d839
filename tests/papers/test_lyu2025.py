"""The solvable attention: its sweeps, its figures, and its verdicts, on real and planted tables."""

import numpy as np
import polars as pl
import pytest

from leadline import papers
from leadline.papers.lyu2025 import claims, figures, sweeps
from leadline.papers.lyu2025.tables import envelope, limit_slope
from leadline.runs import from_curves
from leadline.simulation.train import train
from leadline.theory.predict import predict


def solve(spec, engine):
    return predict(spec) if engine == "theory" else train([spec])[0]


@pytest.fixture(scope="module")
def tables():
    """Everything that "demo" runs."""
    return {
        s.name: from_curves(s.runs, [solve(r, s.engine) for r in s.runs], engine=s.engine).frame
        for s in sweeps.sweeps("demo")
    }


def verdicts(tables):
    return {row["name"]: row["verdict"] for row in claims.claims(tables)}


def test_verdicts(tables):
    found = verdicts(tables)
    corrected = {name for name, verdict in found.items() if verdict == "corrected"}
    assert corrected == {"adaptation-from-any-start", "time-law-of-a-lazy-start"}
    assert {v for name, v in found.items() if name not in corrected} == {"reproduced"}
    assert {f"fixed-{law}-exponent" for law in claims.LAWS} < set(found)


def test_planted_mistakes_are_found(tables):
    """A slope off by a tenth, and a solution off by two percent."""
    name = "lyu2025/fixed/time/theory"
    row = tables[name].row(0, named=True)
    tilted = np.array(row["curve_loss"]) * np.array(row["curve_time"]) ** 0.1
    wrong = tables[name].with_columns(pl.Series("curve_loss", [tilted.tolist()]))
    assert verdicts(tables | {name: wrong})["fixed-time-exponent"] == "not reproduced"

    name = "lyu2025/adaptation/simulation"
    moved = [
        [{**m, "values": [1.02 * v for v in m["values"]]} for m in row]
        for row in tables[name]["measures"].to_list()
    ]
    wrong = tables[name].with_columns(
        pl.Series("measures", moved, dtype=tables[name].schema["measures"])
    )
    found = verdicts(tables | {name: wrong})
    assert found["constrained-model-adapts-perfectly"] == "not reproduced"
    assert found["adaptation-from-any-start"] == "not reproduced"


def test_simulation_beside_theory(tables):
    """64 tasks of 1e4 tokens: time and size within the order 1/psi of the query token."""
    keys = ["width", "curve_loss"]
    runs = {
        engine: tables[f"lyu2025/fixed/small/{engine}"]
        .filter(pl.col("spec").str.contains('"sequences":"inf"'))
        .select(keys)
        for engine in ("theory", "simulation")
    }
    assert runs["theory"]["width"].to_list() == runs["simulation"]["width"].to_list()
    for ours, other in zip(*(r["curve_loss"].to_list() for r in runs.values()), strict=True):
        assert ours == pytest.approx(other, rel=5e-3)


def test_figures(tables):
    drawn = figures.figures(tables)
    names = [figure.name.removeprefix("lyu2025-") for figure in drawn]
    assert names == ["figure1", "figure2", "simulated", "figure9"]
    for figure in drawn:
        assert figure.svg().startswith("<svg")
        assert figure.numbers.height > 10
        assert figure.caption
        assert figure.alternative


def test_every_sweep_is_a_part_of_the_small_scale():
    demo = {s.name for s in sweeps.sweeps("demo")}
    small = {s.name: s for s in sweeps.sweeps("small")}
    assert demo < set(small)
    assert len(small) == len(sweeps.sweeps("small"))
    assert papers.study("lyu2025").name == "lyu2025"


def test_limit_of_a_slope():
    x = np.geomspace(1, 1e6, 61)
    measured = limit_slope(x, x**-0.5 * (1 + x**-0.5), np.zeros(61))
    assert measured.contains(0.5)
    assert measured.width < 0.2
    assert not limit_slope(x, x**-0.6, np.zeros(61)).contains(0.5)


def test_the_envelope_is_a_minimum_over_sizes():
    """L = D^-1 + t^-1 at C = t D is least at D = sqrt(C): 2 C^-1/2."""
    time = np.geomspace(1e-6, 1e9, 600)
    sizes = 2.0 ** (np.arange(4, 60) / 4)
    runs = pl.DataFrame(
        {
            "width": sizes,
            "curve_time": [time.tolist()] * len(sizes),
            "curve_loss": [(1 / d + 1 / time).tolist() for d in sizes],
            "curve_loss_error": [[0.0] * len(time)] * len(sizes),
        }
    )
    budgets, losses, error = envelope(runs)
    assert losses == pytest.approx(2 * budgets**-0.5, rel=3e-3)
    assert np.all(error >= 0)
