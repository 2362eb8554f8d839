"""What results show of themselves, in a notebook and in a terminal."""

import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from leadline import (
    CHINCHILLA,
    InContextRegression,
    Law,
    LeastSquares,
    best_shape,
    bootstrap,
    fit,
    plan,
    read_runs,
    separable,
    source_capacity,
)
from leadline.curve import Curve, Measure
from leadline.display import SHOWN_ROWS, Card, Shown, thinned


def terminal(result):
    console = Console(file=io.StringIO(), width=120)
    console.print(result)
    return console.file.getvalue()


class Hostile(Shown):
    def card(self):
        return Card(
            title="<script>alert(1)</script>",
            columns=["[red]name[/red]", "a<b"],
            rows=[["[bold]x[/bold]", "1 & 2"]],
            notes=["<img src=x>"],
        )


def test_text_from_a_table_is_neither_markup_nor_html():
    page = Hostile()._repr_html_()
    assert "<script>" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "1 &amp; 2" in page
    assert "[red]name[/red]" in terminal(Hostile())
    assert "[bold]x[/bold]" in terminal(Hostile())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """24 runs of a known law with one percent of noise, one row broken."""
    rng = np.random.default_rng(0)
    params, tokens = np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 4))
    loss = 1.7 + 400 * params**-0.34 + 410 * tokens**-0.28
    frame = pl.DataFrame({"params": params.ravel(), "tokens": tokens.ravel()}).with_columns(
        loss=pl.Series(loss.ravel() * np.exp(0.01 * rng.standard_normal(24)))
    )
    frame = frame.with_columns(loss=pl.when(pl.arange(24) == 5).then(-1.0).otherwise("loss"))
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    frame.write_csv(path)
    return read_runs(path)


def test_runs_show_ranges_units_and_what_was_excluded(runs):
    text = terminal(runs)
    assert "23 runs" in text
    assert "1e+07" in text
    assert "1e+09" in text
    assert "excluded (1): not > 0" in text
    assert "parameters" in runs._repr_html_()


def test_a_fit_shows_its_law_errors_and_status(runs):
    found = fit(separable(["params", "tokens"]), runs, objective=LeastSquares())
    text = terminal(found)
    for name, error in found.standard_errors.items():
        line = next(line for line in text.splitlines() if line.split()[:1] == [name])
        assert f"{found.law.parameters[name]:.6g}" in line
        assert f"{error:.3g}" in line
    assert f"status {found.status}" in text
    assert "23 rows used, 1 excluded" in text
    assert "standard errors are rough" in terminal(replace(found, covariance_accurate=False))


def test_a_plan_shows_sizes_with_their_intervals(runs):
    found = fit(separable(["params", "tokens"]), runs, objective=LeastSquares())
    made = plan(found, 1e21, draws=bootstrap(found, draws=50))
    text = terminal(made)
    for name, size in made.sizes.items():
        line = next(line for line in text.splitlines() if line.split()[:1] == [name])
        assert f"{size:.4g}" in line
        assert f"{made.intervals[name].low:.4g} to {made.intervals[name].high:.4g}" in line
    for note in made.notes:
        assert note[:40] in text
    values = {"E": 1.8, "A": 480, "B": 2000, "alpha": 0.35, "beta": 0.37}
    law = Law(family=CHINCHILLA, parameters=values, units={})
    bare = plan(law, 1e21).card()
    assert all(row[2] == "" for row in bare.rows)


def test_a_shape_shows_what_the_sum_of_laws_advises():
    task = InContextRegression(
        spectrum=source_capacity(10**6, nu=1.25, beta=0.8), covariance="rotated", context=np.inf
    )
    made = best_shape(task, 1e6, cost="t P^2 N^2 L")
    rows = {row[0]: row for row in made.card().rows}
    assert rows["width"][1] == f"{made.sizes['width']:.4g}"
    assert rows["loss"][2] == f"{made.additive_loss:.4g}"
    assert "edge of stability" in terminal(made)


def curve(count):
    steps = np.arange(count)
    return Curve(
        step=steps,
        time=np.full(count, np.nan),
        tokens=10.0 * steps,
        flops=np.zeros(count),
        loss=1 / (1.0 + steps),
        loss_error=np.full(count, 0.01),
        status="ok",
        scalars=(("gain", 1.25),),
        measures=(Measure(name="modes", values=np.ones((count, 4))),),
    )


def test_a_curve_shows_few_points_and_no_empty_columns():
    card = curve(200).card()
    assert list(card.columns) == ["step", "tokens", "loss", "loss_error"]
    assert len(card.rows) == SHOWN_ROWS
    assert card.rows[0][0] == "0"
    assert card.rows[-1][0] == "199"
    assert "gain = 1.25" in card.notes
    assert "modes (200, 4)" in card.notes[1]
    single = replace(curve(1), loss_error=np.zeros(1)).card()
    assert list(single.columns) == ["loss"]


@pytest.mark.parametrize("count", [1, SHOWN_ROWS, SHOWN_ROWS + 1, 1000])
def test_thinning_keeps_both_ends_and_order(count):
    shown = thinned(count)
    assert shown == sorted(set(shown))
    assert shown[0] == 0
    assert shown[-1] == count - 1
    assert len(shown) == min(count, SHOWN_ROWS)
