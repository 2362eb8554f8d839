"""`leadline reproduce`: claims, figures and pages of one paper and of all."""

import json
import os

import polars as pl
import pytest

from leadline import papers
from leadline.claims import Claim, judge, numerical
from leadline.report.figures import Figure, panels
from leadline.spec import (
    BestScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Sweep,
    flat,
)


def run_at(context):
    return RunSpec(
        task=InContextRegression(spectrum=flat(100), covariance="isotropic", context=context),
        model=ReducedAttention(depth=1),
        recipe=BestScale(),
    )


def study(name, context, published):
    """Depth one loses 1 / (1 + context / dim); one figure, and claims on the loss."""

    def claims(tables):
        loss = tables[f"{name}/theory"]["loss"][0]
        fields = {"source": "a paper", "statement": "A loss.", "kind": "number"}
        fields |= {"published": published, "smallest_effect": 0.1}
        return [
            judge(Claim(name=f"{name}-{which}", **fields), numerical(loss, 1e-9))
            for which in ("loss", "again")
        ]

    def figures(tables):
        table = tables[f"{name}/theory"].select("context", "loss")
        with panels(1) as (canvas, axes):
            axes[0].plot(table["context"], table["loss"], "o")
        return (
            Figure(
                name=f"{name}-figure",
                caption="A point.",
                alternative="One point.",
                canvas=canvas,
                numbers=table,
            ),
        )

    sweep = Sweep(name=f"{name}/theory", engine="theory", runs=(run_at(context),))
    return papers.Study(
        name=name,
        title=f"The {name} study",
        sweeps=lambda scale: (sweep,),
        figures=figures,
        claims=claims,
    )


@pytest.fixture
def studies(monkeypatch):
    known = {
        "small": lambda: study("small", 100, published=0.5),
        "other": lambda: study("other", 300, published=0.5),
    }
    monkeypatch.setattr(papers, "PAPERS", known)


def test_one_claim_a_line(studies, run, records, tmp_path):
    store = ["--store", tmp_path / "runs", "--workers", 1]
    claims = records("reproduce", "small", *store)
    assert [(claim["record"], claim["paper"]) for claim in claims] == [("claim", "small")] * 2
    assert claims[0]["verdict"] == "reproduced"
    assert {"name", "source", "statement", "kind", "published", "corrected"} <= claims[0].keys()
    assert claims[0]["measured_low"] < 0.5 < claims[0]["measured_high"]
    assert list((tmp_path / "runs").glob("part-*.parquet"))
    page = tmp_path / "pages" / "report.html"
    code, out, err = run("reproduce", "small", *store, "--report", page)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("reproduced ")
    assert lines[2:] == ["claims: 2 reproduced", f"report: {page}"]
    assert "The small study" in page.read_text()
    # with --json the records stay alone on standard output
    code, out, err = run("reproduce", "small", *store, "--report", page, "--json")
    assert len([json.loads(line) for line in out.splitlines()]) == 2
    assert err == f"report: {page}\n"


def test_all_papers_in_one_ledger_and_one_page(studies, run, records, tmp_path):
    store = ["--store", tmp_path / "runs", "--workers", 1]
    claims = records("reproduce", "--all", *store)
    assert [(c["paper"], c["name"], c["verdict"]) for c in claims] == [
        ("small", "small-loss", "reproduced"),
        ("small", "small-again", "reproduced"),
        ("other", "other-loss", "not reproduced"),
        ("other", "other-again", "not reproduced"),
    ]
    assert claims[2]["measured_estimate"] == pytest.approx(0.25, rel=1e-12)
    page = tmp_path / "all.html"
    code, out, err = run("reproduce", "--all", *store, "--report", page)
    assert (code, err) == (0, "")
    assert out.splitlines()[2].startswith("not reproduced            other/other-loss: ")
    assert out.splitlines()[4:] == ["claims: 2 reproduced, 2 not reproduced", f"report: {page}"]
    text = page.read_text()
    assert text.index("The small study") < text.index("The other study")
    assert "leadline reproduce other --scale small --only other-figure" in text


def test_figures_in_every_format(studies, run, tmp_path):
    folder, store = tmp_path / "new" / "figures", ["--store", tmp_path / "runs", "--workers", 1]
    code, out, err = run("reproduce", "small", *store, "--figures", folder)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"figures: 4 files in {folder}"
    kinds = ("csv", "pdf", "png", "svg")
    assert sorted(os.listdir(folder)) == [f"small-figure.{kind}" for kind in kinds]
    assert pl.read_csv(folder / "small-figure.csv")["loss"].to_list() == pytest.approx([0.5])


def test_only_what_is_named(studies, run, records, refused, tmp_path):
    store = ["--store", tmp_path / "runs", "--workers", 1]
    claims = records("reproduce", "--all", *store, "--only", "other-again")
    assert [claim["name"] for claim in claims] == ["other-again"]
    folder = tmp_path / "figures"
    named = ["--figures", folder, "--only", "small-figure"]
    code, out, err = run("reproduce", "--all", *store, *named)
    assert (code, err) == (0, "")
    assert out == f"claims: none\nfigures: 4 files in {folder}\n"
    assert len(os.listdir(folder)) == 4
    assert refused("reproduce", "small", *store, "--only", "small-lost") == (
        "only: got 'small-lost', expected the name of a claim, or with --figures or --report of a "
        "figure (did you mean 'small-loss'?)"
    )


@pytest.mark.full
def test_bordelon2025(records, tmp_path):
    command = ["reproduce", "bordelon2025", "--scale", "demo", "--store", tmp_path / "runs"]
    claims = records(*command)
    verdicts = {claim["name"]: claim["verdict"] for claim in claims}
    assert {
        "iso-shallow-loss": "corrected",
        "iso-closed-optimum": "reproduced",
        "iso-depth-pays": "reproduced",
        "flow-prefactor": "corrected",
    }.items() <= verdicts.items()
    assert records(*command) == claims
