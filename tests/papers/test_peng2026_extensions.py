"""Trained models of appendices C and D.2: what is run, and verdicts on planted tables."""

import math
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from leadline.curve import Measure, trained
from leadline.errors import FitError
from leadline.papers.peng2026 import (
    extension_claims,
    extension_figures,
    extension_tables,
    extensions,
)
from leadline.runs import from_curves
from leadline.simulation.retrieval import program_key
from leadline.spec import SoftmaxAttention, StreamAttention

SIZE = 64


def luck(spec):
    """What all models of a seed share, and what differs from run to run."""
    own = 1e-4 * math.sin(3 * spec.seed + 5 * spec.model.depth + spec.task.targets)
    return 1 + 0.002 * spec.seed + own


def parts(spec):
    """C_L and A_L - C_L: constant at top-2, as the paper has them."""
    # both better than mixtures of layers on inputs that stay as they are, 1.9999 and 0.2701
    if isinstance(spec.model, StreamAttention):
        return 1.7, 0.9
    return (2.0, 0.3) if spec.task.targets == 2 else (0.25, 0.06 * (spec.model.depth == 1))


def planted(spec):
    """What training would find if the paper were right."""
    depth = spec.model.depth
    shared, apart = parts(spec)
    measures, scalars = [], {"selection_error": 0.16 + 0.02 / depth + 1e-5 * spec.seed}
    updates = isinstance(spec.model, SoftmaxAttention) and spec.model.updates
    looped = updates and spec.model.layers == "looped"
    loss = (shared + apart / (1 if looped else depth)) * luck(spec)
    if updates:
        broad = spec.task.targets == 16
        scalars["mask"] = -2.3 if broad else -0.5 - 0.1 * math.log2(depth)
        scalars["mask"] += 1e-3 * math.sin(spec.seed)
        rho = 0.15 if broad else 0.99
        flat = rho * np.eye(SIZE) + (1 - rho) / SIZE
        values = {
            "self_attention": np.full(depth, flat[0, 0] - 1e-4 * spec.seed),
            "effective_tokens": np.full(depth, 45.0 + spec.seed if broad else 1.1),
            "map": flat,
        }
        measures += [Measure(name=n, values=v[None]) for n, v in values.items()]
    errors = np.full((depth, depth), shared) + apart * np.eye(depth)
    q = np.arange(1, 100)
    values = {
        "layer_errors": errors * luck(spec),
        # the single layer is better below the tenth percentile
        "selection": q / 500 - (depth > 1) * (q - 10.5) / 2000 + 1e-6 * spec.seed,
    }
    measures += [Measure(name=n, values=v[None]) for n, v in values.items()]
    step = np.array([spec.recipe.steps])
    return trained(
        spec, step=step, time=step * 0.01, loss=np.array([loss]), error=np.array([0.001]),
        scalars=scalars, measures=tuple(m for m in measures if m.name in spec.evaluation.measures),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _theory(monkeypatch):
    """The bounds of theory without the time that they take; they have tests of their own."""

    def theory(targets):
        return SimpleNamespace(bound=SimpleNamespace(loss={2: 1.99985, 16: 0.27011}[targets]))

    monkeypatch.setattr(extension_claims, "theory", theory)


@pytest.fixture(scope="module")
def stored():
    return {
        s.name: from_curves(s.runs, [planted(r) for r in s.runs], engine=s.engine).frame
        for s in extensions.sweeps("small")
    }


def ledger(tables):
    rows = extension_claims.claims(tables)
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    return {row["name"]: row["verdict"] for row in rows}


def test_everything_is_reproduced_where_the_paper_is_right(stored):
    found = ledger(stored)
    assert {name for name, verdict in found.items() if verdict != "reproduced"} == set()
    assert len(found) > 20


def changed(stored, name, **columns):
    """The tables with some columns of one sweep replaced."""
    full = f"peng2026/{name}/simulation"
    return stored | {full: stored[full].with_columns(**columns)}


def with_measure(stored, name, measure, change):
    """The tables with one measure of every run of a sweep changed."""
    full = f"peng2026/{name}/simulation"
    frame = stored[full]
    kept = [
        [m | ({"values": change(np.array(m["values"])).tolist()} if m["name"] == measure else {})
         for m in own]
        for own in frame["measures"].to_list()
    ]  # fmt: skip
    column = pl.Series("measures", kept, dtype=frame.schema["measures"])
    return stored | {full: frame.with_columns(column)}


DEPTH = pl.col("depth").cast(pl.Float64)
FLIPS = {
    "stream-depth-pays": ("stream", {"loss": pl.col("loss") * DEPTH}, "not reproduced"),
    "stream-more-depth-pays": (
        "stream",
        {"loss": pl.col("loss") + (pl.col("depth") > 2) * 1.0},
        "not reproduced",
    ),
    "stream-second-layer": (
        "stream",
        {"loss": pl.col("loss") + (pl.col("depth") > 1) * 0.3},
        "not reproduced",
    ),
    "stream-inverse-depth": (
        "stream",
        {"loss": pl.when(DEPTH > 1).then(1.9 + pl.col("seed") * 1e-4).otherwise(pl.col("loss"))},
        "not reproduced",
    ),
    "stream-below-bound": ("stream", {"loss": pl.col("loss") + 0.25}, "not reproduced"),
    "broad-below-bound": ("updates-broad", {"loss": pl.col("loss") + 0.025}, "not reproduced"),
    "values-similar-loss": ("values", {"loss": pl.col("loss") * 1.05}, "not reproduced"),
    "updates-depth-pays": ("updates", {"loss": 2.0 + 1e-4 * DEPTH}, "not reproduced"),
    "updates-mask-varies": ("updates", {"mask": -0.66 + 1e-3 * DEPTH}, "not reproduced"),
    "updates-similar-loss": ("updates", {"loss": pl.col("loss") * 1.05}, "not reproduced"),
    "broad-second-layer": ("updates-broad", {"loss": 0.3 + 1e-4 * DEPTH}, "not reproduced"),
    "broad-then-nothing": ("updates-broad", {"loss": 0.3 - 0.02 * DEPTH.log(2)}, "not reproduced"),
    "broad-mask": ("updates-broad", {"mask": pl.col("mask") + 0.5}, "not reproduced"),
    "broad-mask-stable": ("updates-broad", {"mask": -2.3 + 0.2 * DEPTH}, "not reproduced"),
    "looped-gains-nothing": ("looped", {"loss": pl.col("loss") * 0.97}, "not reproduced"),
    "percentiles-mean": (
        "percentiles",
        {"selection_error": 0.2 - pl.col("selection_error")},
        "not reproduced",
    ),
}


@pytest.mark.parametrize("name", FLIPS)
def test_what_is_wrong_is_seen(stored, name):
    sweep, columns, verdict = FLIPS[name]
    assert ledger(changed(stored, sweep, **columns))[name] == verdict


def more_apart(values):
    """Eight layers that disagree more."""
    return values + 2 * np.eye(8).ravel() if values.size == 64 else values


def deep(change):
    """The percentiles of the deep model, which are lower in the middle, moved."""
    return lambda values: values + change * (values[50] < 51 / 500)


def mottled(values):
    """A map that two numbers do not describe."""
    return values + 0.02 * np.random.default_rng(1).standard_normal(values.shape)


MEASURED = {
    "stream-disagreement-constant": ("stream", "layer_errors", more_apart),
    "updates-near-identity": ("updates", "self_attention", lambda x: x - 0.2),
    "broad-map": ("updates-broad", "effective_tokens", lambda x: x / 4),
    "broad-two-numbers": ("updates-broad", "map", mottled),
    "percentiles-2": ("percentiles", "selection", deep(-0.02)),
    "percentiles-90": ("percentiles", "selection", lambda x: x[::-1]),
    "percentiles-crossover": ("percentiles", "selection", deep(0.02)),
}


@pytest.mark.parametrize("name", MEASURED)
def test_wrong_measures_are_seen(stored, name):
    assert ledger(with_measure(stored, *MEASURED[name]))[name] == "not reproduced"


def test_missing_seeds_are_said(stored):
    """One seed has no interval; a depth of one seed only is not judged."""
    one = {name: frame.filter(pl.col("seed") == 0) for name, frame in stored.items()}
    with pytest.raises(FitError, match="seeds: got 0 depths with more than one seed"):
        extension_claims.claims(one)
    frame = extension_tables.models(stored, "stream")
    assert extension_tables.several(frame) == [1, 2, 8]
    with pytest.raises(FitError, match="seeds: got 1 with L = 2, 16"):
        extension_tables.at(frame, "loss", 2, 16)
    with pytest.raises(FitError, match="seeds: got 1 with both L = 16 and 1"):
        extension_tables.log_ratio((frame, 16), (frame, 1))


def test_two_numbers_of_a_map():
    """Least squares by the normal equations of all three matrices."""
    rng = np.random.default_rng(0)
    attention = rng.dirichlet(np.ones(SIZE), SIZE) + 0.2 * np.eye(SIZE)
    attention /= attention.sum(1, keepdims=True)
    flat = np.full(SIZE * SIZE, 1 / SIZE)
    slope, *_ = np.linalg.lstsq(
        (np.eye(SIZE).ravel() - flat)[:, None], attention.ravel() - flat, rcond=None
    )
    rho, left = extension_tables.uniform_part(attention)
    model = rho * np.eye(SIZE) + (1 - rho) / SIZE
    assert rho == pytest.approx(slope[0], rel=1e-12)
    rest = np.sum((attention - model) ** 2) / np.sum((attention - 1 / SIZE) ** 2)
    assert left == pytest.approx(rest, rel=1e-12)


def test_sweeps():
    """Nothing at demo; what claims need has seeds; the paper's depth at paper."""
    assert extensions.sweeps("demo") == ()
    assert extension_claims.claims({}) == []
    assert extension_figures.figures({}) == []
    for sweep in extensions.sweeps("small"):
        for spec in sweep.runs:
            assert spec.evaluation.seed == spec.seed
            program_key(spec)  # refuses what cannot be trained or measured
    deepest = {s.name: max(r.model.depth for r in s.runs) for s in extensions.sweeps("paper")}
    for name in ("percentiles", "stream", "updates"):
        assert deepest[f"peng2026/{name}/simulation"] == 256


def test_contexts_of_a_seed_are_taken_out(stored):
    """Seeds of planted runs differ by what their contexts do, and hardly otherwise."""
    frame = extension_tables.models(stored, "updates")
    raw, moved = frame, extension_tables.anchored(frame, frame)
    scatter = [own.filter(pl.col("depth") == 16)["loss"].to_numpy().std() for own in (raw, moved)]
    assert scatter[0] == pytest.approx(0.0033, rel=0.2)
    assert scatter[1] < scatter[0] / 5
    kept = [own.filter(pl.col("depth") == 1)["loss"].to_numpy().mean() for own in (raw, moved)]
    assert kept[0] == pytest.approx(kept[1], rel=1e-12)


def test_figures_draw(stored):
    """Every figure from planted tables, with what it shows in its numbers."""
    drawn = {figure.name: figure for figure in extension_figures.figures(stored)}
    assert list(drawn) == [f"peng2026-figure{n}" for n in (9, 10, 11, 12, 13)]
    for figure in drawn.values():
        assert figure.svg().startswith("<svg")
    numbers = drawn["peng2026-figure9"].numbers.filter(pl.col("model") == "one stream")
    assert numbers["depth"].to_list() == [1, 2, 4, 8, 16]
    assert numbers["seeds"].to_list() == [3, 3, 1, 3, 1]
    gain = drawn["peng2026-figure13"].numbers
    np.testing.assert_allclose(gain["gain"], (gain["percentile"] - 10.5) / 2000, atol=1e-12)
