"""The commands on tables and laws beyond the plain fit."""

import polars as pl
import pytest

import leadline
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


def test_inspect_says_what_it_took_for_what_and_which_rows_it_left(run, records, tmp_path):
    text = "Weights,tokens,Val Loss\n1e7,1e9,3.0\n2e7,oops,2.9\n4e7,3e9,2.8\n"
    (tmp_path / "lab.csv").write_text(text)
    code, out, _ = run("inspect", "lab.csv", "--map", "params=Weights")
    assert code == 0
    assert "params            1e+07 to 4e+07" in out
    assert "2 rows used, 1 excluded" in out
    assert "row 2: tokens oops: not a number" in out
    (left,) = [
        r for r in records("inspect lab.csv --map params=Weights") if r["record"] == "excluded"
    ]
    assert (left["row"], left["field"]) == (2, "tokens")
    (tmp_path / "none.csv").write_text("Weights,loss\n1e7,3.0\n2e7,2.9\n")
    assert "warning no-sizes" in run("inspect", "none.csv")[1]
    assert "no-sizes" not in out


def test_a_fit_and_a_plan_say_what_makes_them_meaningless(run, records, tmp_path):
    table = pl.read_csv(cli.__file__.replace("cli/__init__.py", "data/chinchilla_kyotakano.csv"))
    wrong = table.with_columns(pl.col("N") / 1e6)
    wrong.write_csv(tmp_path / "millions.csv")
    assert " units: " in run("fit", "millions.csv", "--draws", "0")[1]
    assert " units: " in run("plan", "millions.csv", "--draws", "0", "--budget", "1e21")[1]
    table.write_csv(tmp_path / "raw.csv")
    assert " units: " not in run("fit", "raw.csv", "--draws", "0")[1]
    (made,) = records("plan millions.csv --draws 0 --budget 1e21")
    assert [found["code"] for found in made["findings"]] == ["units"]


def test_a_loss_that_never_changes_is_told(run, tmp_path):
    lines = [f"{n}e7,{n}e9,3" for n in range(1, 9)]
    (tmp_path / "flat.csv").write_text("params,tokens,loss\n" + "\n".join(lines) + "\n")
    code, out, err = run("fit", "flat.csv", "--law", "power", "--variables", "params")
    assert (code, err) == (0, "")
    assert "error constant-loss: all 8 rows have the loss 3" in out
    assert "structured-residuals" not in out


def test_a_bundled_table_misspelt(run):
    code, _, err = run("fit", "chinchila_epoch.csv")
    assert code == 2
    assert "nor a bundled table of that name (did you mean 'chinchilla_epoch.csv'?)" in err


def test_the_version_and_help_without_a_command(run):
    code, out, _ = run("--version")
    assert (code, out) == (0, f"leadline {leadline.__version__}\n")
    code, out, _ = run()
    assert code == 0
    assert "Commands:" in out


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
