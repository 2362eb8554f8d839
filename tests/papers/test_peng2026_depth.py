"""Depth of trained softmax attention: fits, claims on planted models, figures, bad input."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from leadline import ident, papers
from leadline.curve import Measure, trained
from leadline.errors import FitError, LeadlineWarning
from leadline.papers.peng2026 import depth, depth_claims, depth_figures, depth_fits, sweeps
from leadline.papers.peng2026.depth import depth_run
from leadline.papers.peng2026.floor import factor
from leadline.papers.peng2026.tables import key
from leadline.runs import from_curves
from leadline.spec import SoftmaxAttention, Sweep, replace
from leadline.sweeps.store import Store, load_runs, write_part
from leadline.theory.retrieval import best_layer
from leadline.theory.retrieval_task import target_energy

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
SINGLE = best_layer(dim=16, context=64, targets=2).loss
BOUND = 1.99985148
"""The least loss of all ensembles at (0, 0), docs/theory/retrieval.md."""


def planted(
    *,
    alpha=0.3,
    plateau=BOUND,
    gain=SINGLE - BOUND,
    noise=1e-4,
    coupling=0.3,
    seeds=3,
    depths=DEPTHS,
    growth=0.0,
):
    """Models of a known law: R = plateau + gain L^-alpha, layers whose disagreement grows as
    L^growth and is `coupling` at the last depth.
    """
    rng = np.random.default_rng(5)
    last = gain * depths[-1] ** -alpha
    models = []
    for n in depths:
        for seed in range(seeds):
            loss = (plateau + gain * n**-alpha) * (1 + noise * rng.standard_normal())
            apart = last * depths[-1] / coupling * (n / depths[-1]) ** growth
            apart *= 1 + 1e-3 * rng.standard_normal()
            models.append(
                depth_fits.Trained(
                    depth=n,
                    seed=seed,
                    loss=loss,
                    loss_error=0.002 * loss,
                    modes=np.full(16, loss / 16),
                    parts=depth_fits.Decomposition(
                        depth=n, own=loss + apart * (1 - 1 / n), shared=loss - apart / n
                    )
                    if n > 1
                    else None,
                )
            )
    return models


def found(**values):
    """Both recipes alike at (0, 0)."""
    return {recipe: {(2, 0, 0): planted(**values)} for recipe in depth.RECIPES}


def verdicts(rows):
    return {row["name"]: row["verdict"] for row in rows}


def test_fit_finds_the_planted_law():
    fitted = depth_fits.fit_depths(planted(alpha=1.0, noise=2e-5))
    assert fitted.exponent.contains(1.0)
    assert fitted.exponent.width < 0.1
    assert fitted.plateau.contains(BOUND)
    assert fitted.r_squared > 0.999
    assert "21 models, L = 1, 2, 4, 8, 16, 32, 64, 3 seeds" in fitted.exponent.method
    assert fitted.exponent.unit == "model"
    # what is left is the exponent of another law
    assert not depth_fits.fit_depths(planted(alpha=0.5, noise=2e-5)).exponent.contains(1.0)


def test_an_open_end_is_told():
    """A straight line in log L has no plateau: its profile runs into the bound."""
    line = planted(alpha=0.01, plateau=0.0, gain=SINGLE)
    fitted = depth_fits.fit_depths(line)
    assert fitted.plateau.low == 0.0
    assert "ends at the bound 0" in fitted.plateau.method


@pytest.mark.parametrize("first", [32, 128])
def test_a_window_of_too_few_depths_is_refused(first):
    with pytest.raises(FitError, match=rf"window L >= {first}: got .* depths .*expected") as caught:
        depth_fits.fit_depths(planted(), first=first)
    assert "\n" not in str(caught.value)


def test_three_depths_of_one_seed_are_refused():
    with pytest.raises(FitError, match="3 models at 3 depths"):
        depth_fits.fit_depths(planted(seeds=1), first=16)


def test_missing_seeds_are_told():
    models = [m for m in planted() if (m.depth, m.seed) != (64, 2)]
    assert "only 2 at L = 64" in depth_fits.fit_depths(models).exponent.method
    with pytest.raises(FitError, match="seed 2: lacks L = 64"):
        depth_fits.seed_exponents(models)
    with pytest.raises(FitError, match="seeds: got 1"):
        depth_fits.seed_exponents(planted(seeds=1))
    with pytest.raises(FitError, match=r"top-16 \(0\.25, 0\.5\): no model was trained"):
        depth_fits.of_row(found()["short"], (16, 0.25, 0.5))


def test_rows_with_isotropic_inputs_are_one_training():
    own = {(2, 0, 0): planted()}
    half = depth_fits.of_row(own, (2, 0, 0.5))
    by = np.mean(np.arange(1.0, 17) ** -0.5)
    for one, model in zip(half, own[2, 0, 0], strict=True):
        assert one.loss == pytest.approx(by * model.loss, rel=1e-12)
        if one.parts is not None:
            assert one.parts.loss == pytest.approx(one.loss, rel=1e-9)
    fitted = depth_fits.fit_depths(half).exponent
    assert fitted.estimate == pytest.approx(
        depth_fits.fit_depths(own[2, 0, 0]).exponent.estimate, rel=1e-4
    )


def test_exponent_with_a_known_plateau():
    """The exponent above the bound is that which was planted; the interval covers the bound's."""
    models = planted(alpha=0.4, noise=0.0)
    measured = depth_fits.exponent_above(models, depth_claims.bound(models))
    assert measured.estimate == pytest.approx(0.4, abs=1e-3)
    assert measured.low < 0.4 < measured.high
    assert measured.width > 0.01
    wrong = dataclasses.replace(depth_claims.bound(models), high=2.1)
    assert depth_fits.exponent_above(models, wrong).high == np.inf


def test_shared_gap_and_coupling():
    """With coupling c and constant disagreement L_0 - C_L = (A - C)/L - (R - L_0)."""
    models = planted(alpha=0.5, noise=0.0, coupling=0.25)
    bound = depth_claims.bound(models)
    deep = depth_claims.deepest(models)
    assert depth_fits.coupling(deep, bound).estimate == pytest.approx(0.25, rel=0.01)
    gaps = [bound.estimate - m.parts.shared for m in models if m.parts]
    n = np.array([m.depth for m in models if m.parts])
    expected = -np.polyfit(np.log(n), np.log(gaps), 1)[0]
    assert depth_fits.gap_exponent(models, bound).estimate == pytest.approx(expected, abs=1e-6)


def test_claims_follow_the_exponent():
    """Near one they are reproduced, at 0.3 they are not."""
    for alpha, expected in ((1.0, "reproduced"), (0.3, "not reproduced")):
        own = {"short": {(2, 0, 0): planted(alpha=alpha, noise=2e-6)}}
        rows = verdicts(depth_claims.exponent_claims(own))
        assert rows["depth-exponent-top-2-(0,0)-short-from-1"] == expected
    law = depth_claims.theory_slope(1, 64)
    rows = verdicts(depth_claims.bound_claims(found(alpha=law, noise=1e-6)))
    assert rows["depth-exponent-above-the-bound-short-from-1"] == "corrected"
    assert rows["depth-exponent-independent-of-recipe"] == "reproduced"
    other = found(alpha=law, noise=1e-6) | {"factored": {(2, 0, 0): planted(alpha=0.9)}}
    assert verdicts(depth_claims.bound_claims(other))["depth-exponent-independent-of-recipe"] == (
        "not reproduced"
    )


def test_claims_on_plateaus():
    rows = verdicts(
        depth_claims.plateau_claims(
            {"short": {(2, 0, 0): planted(alpha=1.0, noise=2e-6), (16, 0, 0): planted(noise=2e-6),
                       (2, 1, 0): planted(), (2, 0.25, 0): planted(), (2, 0.5, 0): planted(),
                       (2, 0.5, 0.5): planted(), (2, 0.25, 0.25): planted(),
                       (2, 0.25, 0.5): planted(), (16, 0.25, 0.25): planted(),
                       (16, 0.25, 0.5): planted()}}
        )
    )  # fmt: skip
    assert rows["plateau-top-2-(0,0)-short"] == "reproduced"
    assert rows["plateau-top-2-(0,1)-short"] == "reproduced"
    assert rows["plateau-top-2-(1,0)-short"] == "not reproduced"


def test_claims_on_layers():
    def of(**values):
        return verdicts(depth_claims.layer_claims(found(noise=1e-6, **values)))

    alone = of(coupling=1.0)
    assert alone["layers-err-independently-short"] == "reproduced"
    assert alone["disagreement-has-converged-short"] == "reproduced"
    assert alone["disagreement-independent-of-recipe"] == "reproduced"
    apart = of(coupling=0.1, growth=0.5)
    assert apart["layers-err-independently-short"] == "not reproduced"
    assert apart["disagreement-has-converged-short"] == "not reproduced"
    other = found(coupling=0.1) | {"factored": {(2, 0, 0): planted(coupling=0.2)}}
    rows = verdicts(depth_claims.layer_claims(other))
    assert rows["disagreement-independent-of-recipe"] == "not reproduced"


def test_claims_on_subsets_and_modes():
    own = found(coupling=0.1)
    rows = verdicts(depth_claims.subset_claims(own))
    assert rows["trained-beats-subset-top-2-(0,0)"] == "not reproduced"
    assert rows["decomposition-of-trained-layers"] == "reproduced"
    # models whose layers are those of the deepest: R = C + (A - C)/n
    alike = planted(alpha=1.0, coupling=1.0, noise=0.0)
    rows = verdicts(depth_claims.subset_claims({"short": {(2, 0, 0): alike}}))
    assert rows["trained-beats-subset-top-2-(0,0)"] == "reproduced"
    broken = [
        dataclasses.replace(m, loss=1.01 * m.loss) if m.depth == 8 else m
        for m in own["short"][2, 0, 0]
    ]
    rows = verdicts(depth_claims.subset_claims({"short": {(2, 0, 0): broken}}))
    assert rows["decomposition-of-trained-layers"] == "not reproduced"
    together = {"short": {(2, 1, 0): planted()}}
    assert set(verdicts(depth_claims.mode_claims(together)).values()) == {"reproduced"}
    k = np.arange(1.0, 17)
    apart = [
        dataclasses.replace(m, modes=1 + np.exp(-m.depth / k)) for m in together["short"][2, 1, 0]
    ]
    rows = verdicts(depth_claims.mode_claims({"short": {(2, 1, 0): apart}}))
    assert rows["modes-fall-together"] == "not reproduced"
    assert rows["strongest-mode-gains"] == "reproduced"
    rising = [
        dataclasses.replace(m, modes=m.modes * np.where(k == 1, m.depth**0.03, 1))
        for m in together["short"][2, 1, 0]
    ]
    rows = verdicts(depth_claims.mode_claims({"short": {(2, 1, 0): rising}}))
    assert rows["strongest-mode-gains"] == "not reproduced"


def planted_tables(scale="small"):
    """Tables of every sweep, with losses of 1/4 power, the shape of real ones."""
    tables = {}
    for sweep in depth.sweeps(scale):
        curves = []
        for spec in sweep.runs:
            n, (_, a, b) = spec.model.depth, key(spec)
            size = factor(b) if a == 0 else 0.4
            loss = size * (2 + 0.1 * n**-0.25) * (1 + 1e-4 * np.sin(spec.seed + n))
            errors = np.full((n, n), loss - 0.5 * size / n) + np.eye(n) * 0.5 * size
            weight = np.arange(1.0, 17) ** (-a - b)
            curves.append(
                trained(
                    spec,
                    step=np.array([spec.recipe.steps]),
                    time=np.array([1.0]),
                    loss=np.array([loss]),
                    error=np.array([0.002 * loss]),
                    measures=(
                        Measure(name="layer_errors", values=errors[None]),
                        Measure(name="modes", values=(loss * weight / weight.sum())[None]),
                    ),
                )
            )
        tables[sweep.name] = from_curves(sweep.runs, curves, engine="simulation").frame
    return tables


@pytest.fixture(scope="module")
def tables():
    return planted_tables()


def test_tables_are_read(tables):
    short = depth_fits.trained(tables, "short")
    assert set(short) == {*depth.SEEDED, *depth.SINGLE}
    first, *_, last = short[2, 0, 0]
    assert (first.depth, last.depth, first.parts) == (1, 64, None)
    assert last.parts.loss == pytest.approx(last.loss, rel=1e-9)
    assert last.modes.sum() == pytest.approx(last.loss)
    assert verdicts(depth_claims.redundancy_claims(tables, {"short": short})) == {
        f"redundant-top-2-(0,1)-depth-{n}": "reproduced" for n in depth.REDUNDANT_DEPTHS
    }
    name = "peng2026/depth-identity/simulation"
    wrong = tables | {name: tables[name].with_columns(loss=pl.col("loss") * 1.05)}
    rows = verdicts(depth_claims.redundancy_claims(wrong, {"short": short}))
    assert set(rows.values()) == {"not reproduced"}


def test_no_run_is_repeated_for_isotropic_inputs():
    for scale in ("small", "paper"):
        short, factored, _ = depth.sweeps(scale)
        assert {key(r)[2] for r in (*short.runs, *factored.runs) if key(r)[1] == 0} == {0}
        assert len(set(short.runs)) == len(short.runs)
    assert [r.model.depth for r in depth.sweeps("demo")[0].runs] == [1, 4, 16]


def test_figures_are_drawn(tables):
    drawn = depth_figures.figures(tables)
    assert [f.name for f in drawn] == [
        f"peng2026-{name}" for name in ("figure6", "figure7", "figure8", "figure14", "subsets")
    ]
    for figure in drawn:
        assert figure.numbers.height > 20
        assert "<svg" in figure.svg()[:10]
    (demo,) = depth_figures.figures(planted_tables("demo"))
    assert "300 steps" in demo.caption
    assert depth_figures.figures({}) == ()
    assert depth_claims.claims(planted_tables("demo")) == []


def test_targets_of_figure_8():
    """The mean target lies along the query at the length that theory gives."""
    cloud, two, mean = depth_figures._targets()
    assert mean[0] == pytest.approx(cloud[:, 0].mean())
    # mean of the two tokens, in the plane of the last query
    np.testing.assert_allclose(two.mean(axis=0), cloud[-1], atol=1e-9)
    square = np.mean(np.sum(cloud**2, axis=1))
    # 300 queries leave 0.2
    assert square == pytest.approx(target_energy(dim=16, context=64, targets=2), abs=0.8)


def test_runs_of_another_engine_version_are_told_and_not_mixed(tmp_path, monkeypatch):
    """Old rows keep their own ids: they are reported, and the table has the new numbers only."""
    quick = replace(depth_run((2, 0, 0), 1), "recipe.steps", 100)
    sweep = Sweep(name="peng2026/depth-short/simulation", engine="simulation", runs=(quick,))
    curve = trained(
        quick, step=np.array([100]), time=np.array([1.0]), loss=np.array([7.0]),
        error=np.array([0.1]),
    )  # fmt: skip
    store = Store(tmp_path)
    monkeypatch.setitem(ident.VERSION, "simulation", 99)
    old = from_curves([quick], [curve], engine="simulation").frame
    write_part(store, old.with_columns(schema_version=pl.lit(1, pl.Int64), host=pl.lit("here")))
    monkeypatch.setitem(ident.VERSION, "simulation", 1)
    assert load_runs(store, sweep=sweep).frame.is_empty()
    new = from_curves([quick], [dataclasses.replace(curve, loss=np.array([2.1]))],
                      engine="simulation").frame  # fmt: skip
    write_part(store, new.with_columns(schema_version=pl.lit(1, pl.Int64), host=pl.lit("here")))
    study = papers.Study(
        name="depth", title="", sweeps=lambda _: (sweep,), figures=lambda _: (), claims=lambda _: []
    )
    with pytest.warns(LeadlineWarning, match="version 99 of the simulation engine.*not used"):
        answered = papers.answer(study, store=tmp_path, scale="small")
    assert answered[sweep.name]["loss"].to_list() == [2.1]
    assert load_runs(store, sweep=sweep).frame["version"].to_list() == [1]


def test_sweeps_reach_the_paper():
    assert {s.name for s in depth.sweeps("small")} <= {s.name for s in sweeps.sweeps("small")}
    model = depth_run((16, 0, 0), 8).model
    assert isinstance(model, SoftmaxAttention)
    assert (model.start, model.spread) == (0.25, 0.15)
    assert depth_run((2, 0, 0), 8, recipe="factored").recipe.steps == 3000
