"""Tables of a study keep the order of its sweeps, on which claims and figures may build."""

import polars as pl
from matplotlib.figure import Figure as Canvas

from leadline import papers
from leadline.report.figures import Figure


def test_tables_are_in_the_order_of_the_sweep():
    study = papers.study("lyu2025")
    runs = next(s for s in study.sweeps("demo") if s.name.endswith("/adaptation/theory"))
    small = papers.Study(
        name="small",
        title="small",
        sweeps=lambda scale: (runs,),
        figures=study.figures,
        claims=study.claims,
    )
    table = papers.answer(small, store=None, scale="demo")[runs.name]
    assert [papers.run_id(spec, engine="theory") for spec in runs.runs] == table["run_id"].to_list()
    assert table["run_id"].to_list() != sorted(table["run_id"])


def test_figures_are_in_the_order_of_the_paper():
    def figure(name):
        canvas = Canvas()
        return Figure(
            name=name, caption="", alternative="", canvas=canvas, numbers=pl.DataFrame({"x": [1]})
        )

    given = ["a-floor", "a-figure10", "a-figure8", "a-figure8-trained", "a-figure2", "a-extra"]
    study = papers.Study(
        name="a",
        title="a",
        sweeps=lambda scale: (),
        figures=lambda tables: tuple(map(figure, given)),
        claims=lambda tables: [],
    )
    drawn = papers.section(study, {}, command="leadline reproduce a").figures
    assert [f.name for f in drawn] == [
        "a-figure2",
        "a-figure8",
        "a-figure8-trained",
        "a-figure10",
        "a-floor",
        "a-extra",
    ]
