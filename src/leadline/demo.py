"""The main job, on real input: two published tables fitted and planned, one paper reproduced, and
three transformers trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from leadline import data
from leadline.laws.families import CHINCHILLA, separable
from leadline.laws.fit import Huber, fit
from leadline.laws.intervals import bootstrap, intervals
from leadline.laws.read import drop_largest_losses, read_runs
from leadline.papers import Study, answer, section, study
from leadline.papers.peng2026 import depth, depth_claims, depth_figures
from leadline.planning.optimum import plan
from leadline.report.fits import fit_section
from leadline.report.page import Section, write_report

BUDGETS = (1e20, 1e21, 1e22, 1e23, 1e24)
DRAWS = 1000
RETRIEVAL = Study(
    name="retrieval",
    title="Retrieval: does depth pay in softmax attention? (arXiv:2610.11063)",
    sweeps=depth.sweeps,
    figures=depth_figures.figures,
    claims=depth_claims.claims,
)
"""What of the inverse-depth study trains models; theory alone takes longer."""


def chinchilla_section() -> Section:
    """The 245 Chinchilla points: the law, its intervals, and plans."""
    source = data.SOURCES["chinchilla_epoch.csv"]
    runs = drop_largest_losses(read_runs(data.bundled("chinchilla_epoch.csv")), 5)
    law = fit(CHINCHILLA, runs)
    draws = bootstrap(law, draws=DRAWS)
    return fit_section(
        "Chinchilla: how to split compute between parameters and tokens",
        law,
        intervals(law, draws),
        [plan(law, budget, draws=draws) for budget in BUDGETS],
        name="chinchilla",
        text=[
            f"{source.source}. The five largest losses are dropped, as in the published "
            "replication; tokens are FLOPs / (6 parameters)."
        ],
        command="leadline plan chinchilla_epoch.csv --law chinchilla --drop-largest-losses 5 "
        + " ".join(f"--budget {b:g}" for b in BUDGETS),
    )


def gemstones_section() -> Section:
    """The 220 Gemstones checkpoints with width and depth: what each of the sizes buys."""
    source = data.SOURCES["gemstones_hot.jsonl"]
    runs = read_runs(data.bundled("gemstones_hot.jsonl"))
    law = fit(CHINCHILLA, runs)
    draws = bootstrap(law, draws=DRAWS)
    shape = fit(separable(("width", "depth", "tokens")), runs, objective=Huber(delta=1e-3))
    shape_draws = bootstrap(shape, draws=DRAWS)
    first = fit_section(
        "Gemstones: parameters and tokens, then width and depth apart",
        law,
        intervals(law, draws),
        [plan(law, budget, draws=draws) for budget in BUDGETS],
        name="gemstones",
        text=[
            f"{source.source}. Checkpoints of one run stay together when runs are resampled. The "
            "second law takes width and depth apart."
        ],
        command="leadline fit gemstones_hot.jsonl --law separable --variables width,depth,tokens",
    )
    second = fit_section("", shape, intervals(shape, shape_draws), name="gemstones-shape")
    return Section(
        title=first.title,
        text=[*first.text, *second.text],
        tables=[*first.tables, *second.tables],
        figures=[*first.figures, *second.figures],
        command=first.command,
    )


def run_demo(path: Path, *, say: Callable[[str], None], store: Path, workers: int) -> Path:
    """Do the main job, keep its runs in `store`, and write the report to `path`."""
    say("fitting the Chinchilla points and planning five budgets")
    chinchilla = chinchilla_section()
    say("fitting Gemstones: parameters and tokens; width, depth and tokens")
    gemstones = gemstones_section()
    say("in-context regression: theory and simulation of Figure 2")
    paper = study("bordelon2025")
    tables = answer(paper, store=store, scale="demo", backend="process", workers=workers)
    regression = section(paper, tables, command="leadline reproduce bordelon2025 --scale demo")
    say("retrieval: softmax attention of 1, 4 and 16 layers, trained")
    trained = answer(RETRIEVAL, store=store, scale="demo", backend="process", workers=workers)
    retrieval = section(RETRIEVAL, trained, command="leadline reproduce peng2026 --scale demo")
    say("drawing the report")
    return write_report(
        [chinchilla, gemstones, regression, retrieval],
        path,
        title="leadline: what depth, width, context and time buy",
        subtitle="Made by leadline demo: two published tables of runs, one solvable theory, and "
        "three transformers trained just now.",
    )
