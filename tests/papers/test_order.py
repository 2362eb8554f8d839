"""Tables of a study keep the order of its sweeps, on which claims and figures may build."""

from leadline import papers


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
