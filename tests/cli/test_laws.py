"""The commands on tables and laws beyond the plain fit."""

import polars as pl
import pytest

from leadline import cli

CHINCHILLA = "chinchilla_epoch.csv --drop-largest-losses 5"


def test_a_saved_law_forecasts_without_its_data(records):
    fitted = records(f"fit {CHINCHILLA} --draws 0 --save law.json")[0]["parameters"]
    rows = records("forecast law.json --at params=1e9,tokens=2e10 --at params=7e10,tokens=1.4e12")
    for row, (params, tokens) in zip(rows, [(1e9, 2e10), (7e10, 1.4e12)], strict=True):
        expected = (
            fitted["E"]
            + fitted["A"] * params ** -fitted["alpha"]
            + fitted["B"] * tokens ** -fitted["beta"]
        )
        assert row["loss"] == pytest.approx(expected, rel=1e-14)
        assert row["run_low"] < row["low"] < row["loss"] < row["high"] < row["run_high"]
    assert rows[0]["reach"] == 1
    assert rows[1]["reach"] > 4  # the largest model has 16 billion parameters


def test_fixed_and_shared_exponents(records):
    fixed = records(f"fit {CHINCHILLA} --fixed alpha=0.34 --draws 0")[0]
    assert fixed["parameters"]["alpha"] == 0.34
    free = records(f"fit {CHINCHILLA} --draws 0")[0]
    assert fixed["objective"] > free["objective"]
    shared = records(
        "fit gemstones_hot.jsonl --law separable --variables width,depth,tokens "
        "--shared a_width,a_depth --draws 0"
    )[0]["parameters"]
    assert shared["a_width"] == shared["a_depth"] != shared["a_tokens"]


def test_profiles_need_a_likelihood(run, records):
    profiled = records(f"fit {CHINCHILLA} --objective least-squares --profile")[0]
    assert "profile likelihood" in profiled["intervals"]["alpha"]["method"]
    code, out, err = run(*f"fit {CHINCHILLA} --profile".split())
    assert (code, out) == (2, "")
    assert "a profile needs a noise model" in err


def test_findings_name_what_is_wrong(run, records, tmp_path):
    table = pl.read_csv(cli.__file__.replace("cli/__init__.py", "data/chinchilla_kyotakano.csv"))
    mixed = table.with_columns(
        pl.when(pl.int_range(pl.len()) < 100).then(pl.col("D") / 1e9).otherwise(pl.col("D"))
    )
    mixed.write_csv(tmp_path / "mixed.csv")
    found = records("inspect mixed.csv")
    assert any("tokens" in f["message"] and f["severity"] != "note" for f in found)
    # the table holds the clean rows as well: without the change nothing is said of units
    table.write_csv(tmp_path / "clean.csv")
    assert not any(f["severity"] == "error" for f in records("inspect clean.csv"))


def test_compare_prefers_the_law_that_predicts(records):
    rows = records(f"compare {CHINCHILLA} --law chinchilla --law power:params --draws 19")
    errors = {r["family"]: r["value"] for r in rows if r["measure"] == "held-out error"}
    assert len(errors) == 2
    assert errors["chinchilla"] == min(errors.values())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fit chinchilla_epoch.csv --law kaplan --variables params", "use --law separable"),
        ("fit chinchilla_epoch.csv --law power", "needs --variables"),
        ("fit chinchilla_epoch.csv --law power --variables params,tokens", "one variable"),
        ("fit chinchilla_epoch.csv --objective hubert", "did you mean 'huber'"),
        ("fit chinchilla_epoch.csv --fixed alpha", "fixed: got 'alpha'"),
        ("fit chinchilla_epoch.csv --fixed alhpa=1", "did you mean 'alpha'"),
        ("fit chinchilla_epoch.csv --shared alpha,gamma", "gamma"),
        ("fit chinchilla_epoch.csv --save nowhere/law.json --draws 0", "cannot write the law"),
        ("forecast nothing.json --at params=1", "nothing.json"),
        ("forecast table.csv --at params=1", "table.csv"),
        ("compare chinchilla_epoch.csv --law chinchilla --holdout 0", "holdout"),
        ("inspect nothing.csv", "no such file"),
        ("plan chinchilla_epoch.csv --budget 1e21 --given width", "given: got 'width'"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, line, message):
    (tmp_path / "table.csv").write_text("loss\n1\n")
    code, out, err = run(*line.split())
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ")
    assert message in err
