"""What the paper does not ask of depth: planted tables whose verdicts are known, laws of planted
shapes, and the untrained layer that losses are anchored on.
"""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from leadline.ident import run_id, to_json
from leadline.papers.peng2026 import (
    beyond,
    beyond_claims,
    beyond_figures,
    beyond_floor,
    beyond_floor_figure,
    beyond_law,
    depth,
)
from leadline.papers.peng2026.floor import LAW_DEPTHS
from leadline.simulation.train import program_key, train
from leadline.spec import replace

BOUND = {2: 2.0, 16: 0.27}
SINGLE = {2: 2.1224, 16: 0.3267}


def coupled(n, depth, p):
    return (20 * n**-2.0 + 0.5 / depth + 6 * p**-0.3) ** 0.7


def separable(n, depth, p):
    return 1 + 20 * n**-2.0 + 0.5 / depth + 6 * p**-0.3


class World:
    """What training would find if the claims were true; `change` makes them false one by one."""

    def __init__(self, **change):
        self.change = change

    def loss(self, sweep, spec):
        model, k = spec.model, spec.task.targets
        get = self.change.get
        if spec.recipe.steps == 0:
            return beyond_floor.reference_loss(k)
        if sweep == "beyond-shapes":
            law = get("law", coupled)
            return law(model.width, model.depth, spec.task.context)
        if sweep == "beyond-splits":
            return 2.1 * (1 + get("narrow", 0.1) * (model.depth > 1))
        if sweep == "beyond-ties" and model.depth > 1:
            values = {"looped": SINGLE[2], "tempered": 2.0733, "separate": 2.04}
            loss = values[model.layers] + get(model.layers, 0.0)
            return loss + get("late", 0.0) * (model.layers == "tempered" and model.depth == 16)
        if model.contrast and model.matrix == "scale":
            return get("pair", 0.2533)
        if model.contrast:
            return BOUND[k] - get("signed", 0.02)
        if sweep == "beyond-optimizers":
            return 2.04 + get("spread", 0.0) * (spec.recipe.rate == 0.05)
        if model.depth == 64:
            return 2.03 + get("deep", 0.0)
        return SINGLE[k]

    def disagreement(self, sweep, spec):
        if sweep != "beyond-optimizers":
            return 2.0
        p, q = self.change.get("path", (0.4, 0.4))
        return 3.0 * (spec.recipe.rate / 0.02) ** p * (spec.recipe.steps / 1500) ** q

    def tables(self):
        rng = np.random.default_rng(0)
        sweeps = {s.name: s for s in (*beyond.sweeps("small"), *depth.sweeps("small"))}
        luck = {k: 1 + 0.002 * rng.standard_normal(5) for k in (2, 16)}
        found = {}
        for name, sweep in sweeps.items():
            rows = []
            for spec in sweep.runs:
                if "beyond" not in name and spec.task.spectrum.input_exponent:
                    continue
                short = name.split("/")[1]
                loss = self.loss(short, spec)
                loss *= 1 + 2e-5 * rng.standard_normal() * (short != "beyond-shapes")
                loss += (luck[spec.task.targets][spec.evaluation.seed] - 1) * SINGLE[
                    spec.task.targets
                ]
                size = spec.model.depth
                apart = self.disagreement(short, spec)
                matrix = np.full((size, size), 1.0) + apart * np.eye(size)
                measure = {
                    "name": "layer_errors",
                    "shape": [1, size, size],
                    "values": matrix.ravel().tolist(),
                }
                rows.append(
                    {
                        "spec": to_json(spec),
                        "loss": loss,
                        "loss_error": 0.002 * loss,
                        "measures": [measure],
                    }
                )
            found[name] = pl.DataFrame(rows)
        return found


@pytest.fixture(autouse=True)
def _theory(monkeypatch):
    """The numbers of theory, without the minute that they take; they have tests of their own."""

    def theory(targets):
        bound = SimpleNamespace(loss=BOUND[targets], loss_error=1e-4)
        built = [SimpleNamespace(loss=BOUND[targets] + 0.1 / n) for n in LAW_DEPTHS]
        return SimpleNamespace(bound=bound, built=built, grid=None)

    for module in (beyond_claims, beyond_floor, beyond_figures, beyond_floor_figure):
        monkeypatch.setattr(module, "theory", theory)
        if hasattr(module, "single"):
            monkeypatch.setattr(module, "single", SINGLE.__getitem__)
        if hasattr(module, "temperatures"):
            monkeypatch.setattr(module, "temperatures", lambda: SimpleNamespace(loss=2.0733))
        if hasattr(module, "built_law"):
            built = SimpleNamespace(loss=2.0142)
            monkeypatch.setattr(module, "built_law", lambda *_, built=built, **__: built)
    monkeypatch.setattr(beyond_law, "FOLDS", 3)
    monkeypatch.setattr(beyond_floor, "frames", lambda: 2.0142)
    monkeypatch.setattr(beyond_floor, "signed_pair", lambda: 0.2533)
    rows = [
        {"varied": n, "value": v, "ratio": 1.1} for n, vs in beyond_floor.MAP.items() for v in vs
    ]
    monkeypatch.setattr(beyond_floor_figure, "bound_map", lambda: pl.DataFrame(rows))


PARTS = {
    "width": beyond_claims.width_claims,
    "ties": beyond_claims.tie_claims,
    "floor": beyond_floor.floor_claims,
    "signs": beyond_floor.sign_claims,
    "optimizers": beyond_claims.optimizer_claims,
}


def verdicts(part, **change):
    found = PARTS[part](World(**change).tables())
    return {row["name"].removeprefix("beyond-"): row["verdict"] for row in found}


def test_runs_of_each_scale():
    assert beyond.sweeps("demo") == ()
    assert beyond_claims.claims({}) == []
    assert beyond_figures.figures({}) == ()
    runs = [spec for sweep in beyond.sweeps("small") for spec in sweep.runs]
    keys = {program_key(spec) for spec in runs}
    assert 1 < len(keys) < len(runs)
    ids = {run_id(spec, engine="simulation") for spec in runs}
    shared = {
        run_id(spec, engine="simulation") for sweep in depth.sweeps("small") for spec in sweep.runs
    }
    # what the study of depth trains is not trained again
    assert len(ids & shared) >= 10
    more = [spec for sweep in beyond.sweeps("paper") for spec in sweep.runs]
    assert len(more) > len(runs)


def test_every_claim_holds_where_it_was_planted():
    found = beyond_claims.claims(World().tables())
    assert len(found) == 19
    assert [row["name"] for row in found if row["verdict"] != "reproduced"] == []


NARROW = tuple(f"wide-beats-deep-{depth}x{width}" for depth, width in beyond.SPLITS[1:])
MIXTURE = (
    "tempered-is-the-temperature-mixture",
    *(f"untied-beats-tempered-{recipe}" for recipe in depth.RECIPES),
)
DEEP = tuple(
    f"{claim}-{recipe}"
    for claim in ("trained-above-the-bound", "untrained-beats-trained")
    for recipe in depth.RECIPES
)
SIGNED = ("signed-below-the-bound-top-2", "signed-below-the-bound-top-16")


@pytest.mark.parametrize(
    ("part", "change", "lost"),
    [
        ("width", {"narrow": -0.1, "law": separable}, (*NARROW, "shape-is-coupled")),
        ("ties", {"looped": -0.02}, ("looped-is-one-layer",)),
        ("ties", {"tempered": -0.06}, MIXTURE),
        ("ties", {"late": -0.02}, ("tempered-saturates", MIXTURE[0])),
        ("floor", {"deep": -0.04}, DEEP),
        ("signs", {"signed": -0.02}, SIGNED),
        ("signs", {"pair": 0.27}, ("signed-pair",)),
        ("optimizers", {"spread": 0.1}, ("loss-hardly-varies",)),
        ("optimizers", {"path": (0.1, 0.1)}, ("disagreement-varies",)),
        ("optimizers", {"path": (0.9, 0.2)}, ("disagreement-follows-the-path",)),
    ],
)
def test_claims_fall_where_the_opposite_was_planted(part, change, lost):
    found = verdicts(part, **change)
    assert {name for name, verdict in found.items() if verdict == "not reproduced"} == set(lost)


def test_an_anchor_takes_the_luck_of_the_contexts():
    tables = World().tables()
    models = beyond_law.trained(tables, "beyond-signs").filter(targets=2, depth=64)
    raw = models["loss"].to_numpy()
    found = beyond_floor.anchored(tables, models, own_contexts=True)
    assert np.ptp(raw) > 2e-3
    np.testing.assert_allclose(found, BOUND[2] - 0.02, atol=2e-3)
    assert np.ptp(found) < np.ptp(raw) / 2


def test_the_untrained_layer_loses_what_theory_says():
    """The anchor itself, simulation against quadrature: one standard error is 0.4%."""
    run = replace(beyond.reference_run(2, seed=3), "evaluation.contexts", 1600)
    curve = train([run])[0]
    loss, error = float(curve.loss[-1]), float(curve.loss_error[-1])
    exact = beyond_floor.reference_loss(2)
    assert error < 0.005 * exact
    assert abs(loss - exact) < 4 * error
    assert abs(loss - 1.1 * exact) > 10 * error


def test_error_of_an_anchor():
    """Contexts drawn in NumPy: two temperatures near the best mixture minus the untrained layer."""
    rng = np.random.default_rng(5)
    dim, context, queries, count = 16, 64, 16, 400
    difference = np.empty(count)
    for i in range(count):
        x, q = rng.standard_normal((context, dim)), rng.standard_normal((queries, dim))
        cosine = (q @ x.T) / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(x, axis=1)
        wanted = x[np.argsort(-cosine, axis=1)[:, :2]].mean(1)

        def loss(taus, weights, cosine=cosine, x=x, wanted=wanted):
            logits = dim * np.multiply.outer(taus, cosine)
            rows = np.exp(logits - logits.max(-1, keepdims=True))
            rows /= rows.sum(-1, keepdims=True)
            return np.mean(np.sum((np.tensordot(weights, rows, 1) @ x - wanted) ** 2, -1))

        difference[i] = loss([0.597, 2.08], [0.757, 0.357]) - loss([0.9046], [1.0])
    error = difference.std() / np.sqrt(6400)
    assert 0.5 * beyond_floor.ANCHOR_ERROR < error < beyond_floor.ANCHOR_ERROR
    gap = 2.0736 - beyond_floor.reference_loss(2)
    assert abs(difference.mean() - gap) < 4 * difference.std() / np.sqrt(count)


def test_laws_find_the_shapes_they_made():
    for name, law in (("coupled", coupled), ("separable", separable)):
        runs = beyond_law.shape_runs(World(law=law).tables())
        fits = beyond_law.fitted(runs)
        worst = {n: np.abs(f.residuals).max() for n, f in fits.items()}
        assert min(worst, key=worst.__getitem__) == name
        assert worst["product"] > 10 * worst[name]


def test_path_exponents():
    models = beyond_law.trained(World(path=(0.7, 0.3)).tables(), "beyond-optimizers")
    adam = models.filter(optimizer="adam", start=0.5, seed=0)
    for found, planted in zip(beyond_claims.path_exponents(adam), (0.7, 0.3, 0.4), strict=True):
        assert found.estimate == pytest.approx(planted, abs=1e-9)
        assert found.contains(planted)
    noisy = adam.with_columns(
        disagreement=pl.col("disagreement")
        * np.exp(0.1 * np.random.default_rng(1).standard_normal(adam.height))
    )
    assert beyond_claims.path_exponents(noisy)[0].width > 0.1


def test_figures_have_their_numbers(tmp_path):
    figures = beyond_figures.figures(World().tables())
    assert [f.name for f in figures] == [
        f"peng2026-beyond-{name}" for name in ("shapes", "ties", "floor", "optimizers")
    ]
    for figure in figures:
        assert figure.numbers.height > 5
        assert figure.svg().startswith("<svg")
    json.dumps(figures[0].numbers.to_dicts())
