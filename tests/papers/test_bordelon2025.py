"""The isotropic part of the paper: its sweeps, its figures, and verdicts on planted tables."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from leadline import papers
from leadline.claims import Claim, judge, numerical
from leadline.curve import trained
from leadline.errors import SpecError, StoreError
from leadline.papers.bordelon2025 import claims, figures, sweeps
from leadline.runs import from_curves
from leadline.simulation.train import program_key
from leadline.spec import GivenScale, Sweep, Training
from leadline.theory.predict import predict


def isotropic_sweeps(scale):
    """The sweeps of sections 0 to 2; "demo" has no training curves."""
    quick = (*sweeps.landscapes(scale), *sweeps.final_losses(scale), *sweeps.first_steps("demo"))
    return quick if scale == "demo" else (*quick, *sweeps.shallow_training(scale))


def planted(spec):
    """What simulation would find in a finite dimension if theory were right: its answer moved by
    terms in 1/D and 1/D^2, with a small standard error, and seeds that scatter.
    """
    dim = spec.task.spectrum.dim
    if isinstance(spec.recipe, Training) and math.isinf(spec.recipe.queries):
        time = np.array([spec.recipe.rate / dim])
        gamma = 2 * time[0] * (1 + 0.01 * math.cos(spec.seed))
        one = np.ones(1)
        return trained(
            spec, step=one.astype(int), time=time, loss=one, error=one, scalars={"gamma": gamma}
        )
    curve = predict(spec)
    scatter = 1 + 1e-4 * math.sin(spec.seed) + 3 / dim - 20 / dim**2
    return dataclasses.replace(curve, loss=curve.loss * scatter, loss_error=1e-4 * curve.loss)


@pytest.fixture(scope="module")
def tables():
    """The isotropic tables of the scale "small", simulation planted."""
    found = {}
    for sweep in isotropic_sweeps("small"):
        answer = predict if sweep.engine == "theory" else planted
        curves = [answer(spec) for spec in sweep.runs]
        found[sweep.name] = from_curves(sweep.runs, curves, engine=sweep.engine).frame
    return found


VERDICTS = {
    "iso-shallow-loss": "corrected",
    "iso-closed-optimum": "reproduced",
    "iso-depth-pays": "reproduced",
    "iso-depth-useless-at-long-context": "reproduced",
    "iso-noise-lowers-gamma": "reproduced",
    "flow-prefactor": "corrected",
    "sgd-start": "corrected",
    "sgd-rates": "reproduced",
}


def ledger(tables):
    return {row["name"]: row for row in claims.claims(tables)}


def test_verdicts_where_theory_is_right(tables):
    rows = ledger(tables)
    assert {name: row["verdict"] for name, row in rows.items()} == VERDICTS
    json.dumps(list(rows.values()), allow_nan=False)


def test_the_extrapolation_removes_two_orders_in_the_dimension(tables):
    rows = ledger(tables)
    # closed forms: 1/(1 + P/D) at depth one; the Catalan sum at depth 4, P = 4D, in fractions
    four = 1 - Fraction(4, 5) - Fraction(16, 125) - Fraction(128, 3125) - Fraction(1280, 78125)
    for name, value in {"iso-shallow-loss": 1 / 2, "iso-closed-optimum": float(four)}.items():
        assert rows[name]["measured_estimate"] == pytest.approx(value, rel=1e-9)
        # 99% of errors of 1e-4 of the loss in each size, in quadrature
        half = 2.575829 * 1e-4 * value * math.sqrt(8**2 + 6**2 + 1) / 3
        width = rows[name]["measured_high"] - rows[name]["measured_low"]
        assert width == pytest.approx(2 * half, rel=1e-3)
    assert rows["iso-closed-optimum"]["published"] == pytest.approx(float(four), rel=1e-13)
    gain = rows["iso-depth-pays"]["measured_estimate"]
    assert gain == pytest.approx(float(four - Fraction(1, 5)), rel=1e-9)


def test_the_recursion_of_shallow_training(tables):
    # step by step at alpha = kappa = tau = 1, eta = 0.1, without noise
    distance, losses = 0.25, []
    for _ in range(61):
        losses.append(2 * distance + 0.5)
        distance = (0.8**2 + 0.02 * 4) * distance + 0.02
    rows = ledger(tables)
    for name, step in (("sgd-start", 5), ("sgd-rates", 60)):
        right = rows[name]["corrected"] or rows[name]["published"]
        assert right == pytest.approx(losses[step], rel=1e-12)
        assert rows[name]["measured_estimate"] == pytest.approx(losses[step], rel=1e-4)
    # from C(0) = 1 instead of 1/4
    distance = 1.0
    for _ in range(5):
        distance = 0.72 * distance + 0.02
    assert rows["sgd-start"]["published"] == pytest.approx(2 * distance + 0.5, rel=1e-12)


def moved(tables, name, **columns):
    """The tables with columns of one of them multiplied."""
    key = f"bordelon2025/{name}/simulation"
    changes = [pl.col(column) * factor for column, factor in columns.items()]
    return tables | {key: tables[key].with_columns(changes)}


@pytest.mark.parametrize(
    ("sweep", "columns", "name", "verdict"),
    [
        # the loss of the paper
        ("sized", {"loss": 0.5}, "iso-shallow-loss", "reproduced"),
        # neither
        ("sized", {"loss": 0.8}, "iso-shallow-loss", "not reproduced"),
        ("sized", {"loss": 1.2}, "iso-closed-optimum", "not reproduced"),
        ("sized", {"loss": -1.0}, "iso-depth-pays", "not reproduced"),  # the order reversed
        # too few contexts to tell
        ("sized", {"loss_error": 2000.0}, "iso-shallow-loss", "not tested at this scale"),
        ("sized", {"loss_error": 2000.0}, "iso-closed-optimum", "not tested at this scale"),
        ("first-step", {"best_gamma": 0.5}, "flow-prefactor", "reproduced"),
        ("first-step", {"best_gamma": 2.0}, "flow-prefactor", "not reproduced"),
    ],
)
def test_planted_results_change_the_verdict(tables, sweep, columns, name, verdict):
    assert ledger(moved(tables, sweep, **columns))[name]["verdict"] == verdict


def test_the_scale_demo_judges_what_it_has(tables):
    demo = {sweep.name: tables[sweep.name] for sweep in isotropic_sweeps("demo")}
    rows = ledger(demo)
    assert rows.keys() == VERDICTS.keys() - {"sgd-start", "sgd-rates"}
    assert [f.name for f in figures.figures(demo)] == [
        "bordelon2025-figure2",
        "bordelon2025-final-loss",
    ]


def test_figures(tables):
    drawn = figures.figures(tables)
    assert [f.name for f in drawn][-1] == "bordelon2025-figure7"
    for figure in drawn:
        assert len(figure.alternative) > 40
        assert "<svg" in figure.svg()[:10]
        assert set(figure.numbers["engine"]) == {"theory", "simulation"}
        assert {"loss", "loss_error"} <= set(figure.numbers.columns)
    captions = " ".join(" ".join(f.caption for f in drawn).split())
    assert captions.count("in 128 dimensions") == 2
    assert "8 seeds in 64 dimensions" in captions


def test_figure_2_has_every_panel(tables):
    drawn = figures.figure2(tables)
    assert [ax.get_title()[:1] for ax in drawn.canvas.axes] == ["a", "b", "c"]
    for ax, labels in zip(
        drawn.canvas.axes,
        [["L = 1", "L = 2", "L = 4", "L = 8", "L = 16", "L = 64"]] * 2
        + [["σ = 0", "σ = 0.25", "σ = 0.5", "σ = 1"]],
        strict=True,
    ):
        assert [t.get_text() for t in ax.get_legend().get_texts()] == labels
        assert len(ax.containers) == len(labels)  # points with error bars
    # a line drawn is the table's
    line = drawn.canvas.axes[0].lines[0]
    table = tables["bordelon2025/figure2a/theory"].filter(pl.col("depth") == 1).sort("gamma")
    np.testing.assert_array_equal(line.get_ydata(), table["loss"])


@pytest.mark.parametrize("scale", papers.SCALES)
def test_sweeps(scale):
    made = sweeps.sweeps(scale)
    names = [sweep.name for sweep in made]
    assert len(set(names)) == len(names)
    for sweep in made:
        assert sweep.name.startswith("bordelon2025/")
        assert sweep.name.endswith(f"/{sweep.engine}")
        if sweep.engine == "simulation":
            for spec in sweep.runs:
                program_key(spec)  # refuses what simulation cannot answer
    demo = sweeps.sweeps("demo")
    if scale != "paper":
        assert set(demo) <= set(made)


def test_what_figure_2_asks():
    by_name = {sweep.name: sweep.runs for sweep in sweeps.sweeps("demo")}
    for panel, ratio, depths, noises in [
        ("a", 0.5, {1, 2, 4, 8, 16, 64}, {0.0}),
        ("b", 2.0, {1, 2, 4, 8, 16, 64}, {0.0}),
        ("c", 1.0, {16}, {0.0, 0.25, 0.5, 1.0}),
    ]:
        for engine in ("theory", "simulation"):
            runs = by_name[f"bordelon2025/figure2{panel}/{engine}"]
            assert {run.task.context / run.task.spectrum.dim for run in runs} == {ratio}
            assert {run.model.depth for run in runs} == depths
            assert {run.task.noise for run in runs} == noises
            # up to the edge of stability 2L / (1 + alpha^-1/2)^2
            shares = [
                run.recipe.gamma / (2 * run.model.depth / (1 + ratio**-0.5) ** 2) for run in runs
            ]
            assert 0.9 < max(shares) <= 1 + 1e-12
            assert min(shares) > 0


def small_study(*runs, engine="theory"):
    """A study of a few runs, with one claim on the first."""
    made = (Sweep(name=f"small/{engine}", engine=engine, runs=runs),)

    def judged(tables):
        claim = Claim(
            name="half",
            source="a paper",
            statement="It is one half.",
            kind="number",
            published=0.5,
            smallest_effect=0.1,
        )
        return [judge(claim, numerical(tables[made[0].name]["loss"][0], 1e-9))]

    return papers.Study(
        name="small",
        title="A small study",
        sweeps=lambda scale: made,
        figures=lambda tables: (),
        claims=judged,
    )


HALF = sweeps.isotropic(8, ratio=1.0, depth=1)


def test_reproduce_goes_through_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(papers, "PAPERS", {"small": lambda: small_study(HALF)})
    first = papers.reproduce("small", store=tmp_path / "runs")
    assert first["verdict"].to_list() == ["reproduced"]
    assert first["measured_estimate"][0] == pytest.approx(0.5, rel=1e-12)
    assert list((tmp_path / "runs").glob("part-*.parquet"))

    def refuse(_):
        raise AssertionError("computed twice")

    monkeypatch.setattr("leadline.theory.predict.predict", refuse)
    assert papers.reproduce("small", store=tmp_path / "runs").equals(first)


def test_reproduce_without_a_store(monkeypatch):
    monkeypatch.setattr(papers, "PAPERS", {"small": lambda: small_study(HALF)})
    assert papers.reproduce("small")["verdict"].to_list() == ["reproduced"]


def test_a_failed_run_is_an_error():
    deep = dataclasses.replace(
        HALF,
        model=dataclasses.replace(HALF.model, depth=2),
        recipe=Training(steps=1, batch_size=1, queries=1, rate=1.0),
    )
    with pytest.raises(StoreError, match="1 runs failed: ") as caught:
        papers.answer(small_study(deep), store=None, scale="demo")
    assert "\n" not in str(caught.value)


def test_the_section_of_a_report(tables):
    study = papers.study("bordelon2025")
    made = papers.section(study, tables, command="leadline reproduce bordelon2025")
    assert made.title == study.title
    assert {"iso-shallow-loss", "sgd-rates"} <= {row["name"] for row in made.claims}
    assert made.command == "leadline reproduce bordelon2025"


def test_unknown_papers_and_scales():
    with pytest.raises(SpecError, match=r"^paper: got 'bordelon2024', .*did you mean 'bordelon"):
        papers.study("bordelon2024")
    with pytest.raises(SpecError, match=r"^scale: got 'tiny', expected one of demo, small, paper"):
        papers.reproduce("bordelon2025", scale="tiny")
    given = dataclasses.replace(HALF, recipe=GivenScale(gamma=0.5))
    with pytest.raises(SpecError, match=r"^scale: got 'large'"):
        papers.answer(small_study(given), store=None, scale="large")
