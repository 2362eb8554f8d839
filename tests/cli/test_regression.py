"""The command line: the JSON that others script against, and one line for every mistake."""

import json
import math
import subprocess
import sys

import pytest

from leadline import papers
from leadline.ident import run_id, to_json
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    flat,
)


def loss(params, tokens):
    return 1.8 + 400 * params**-0.34 + 2000 * tokens**-0.36


SIZES = [(1e7 * 2**i, 1e9 * 3**j) for i in range(5) for j in range(5)]
GOOD = [f"{n},{d},{loss(n, d) * (1 + 0.002 * math.sin(7 * i))!r}" for i, (n, d) in enumerate(SIZES)]


def write(path, rows, header="params,tokens,loss"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.fixture
def good(tmp_path):
    return write(tmp_path / "good.csv", GOOD)


def test_chinchilla_without_its_five_largest_losses(records):
    (fit,) = records(
        "fit", "chinchilla_epoch.csv", "--law", "chinchilla", "--drop-largest-losses", 5
    )
    assert fit["record"] == "fit"
    assert fit["parameters"].keys() == {"E", "A", "B", "alpha", "beta"}
    # Besiroglu et al. 2024, refitted; raw counts
    for name, value in {"E": 1.8172, "alpha": 0.3473, "beta": 0.3672}.items():
        assert fit["parameters"][name] == pytest.approx(value, abs=0.002)
    assert 300 < fit["parameters"]["A"] < 700
    assert 1200 < fit["parameters"]["B"] < 5500
    assert fit["objective"] <= 0.0010183
    assert fit["status"] == "ok"
    assert fit["rows_used"] == 240
    assert len(fit["rows_excluded"]) == 5
    for row in fit["rows_excluded"]:
        assert row.keys() == {"row", "field", "value", "reason"}
        assert row["field"] == "loss"
        assert "5-th largest loss" in row["reason"]
    assert fit["intervals"].keys() == fit["parameters"].keys()
    for name, interval in fit["intervals"].items():
        assert interval["low"] < fit["parameters"][name] < interval["high"]
        assert interval["level"] == 0.95
        assert interval["unit"] == "run"
    assert fit["units"]["loss"] == "nats"


def test_a_separable_law_in_four_variables(records):
    variables = ["width", "depth", "params", "tokens"]
    (fit,) = records(
        *("fit", "gemstones_hot.jsonl", "--law", "separable", "--variables", ",".join(variables)),
        *("--delta", "1e-4", "--draws", 40),
    )
    names = {"E"} | {f"{kind}_{name}" for kind in "ca" for name in variables}
    assert fit["parameters"].keys() == fit["intervals"].keys() == names
    assert fit["variables"] == variables
    assert fit["objective"] <= 0.00011140379 * (1 + 1e-6)
    assert fit["delta"] == 1e-4
    assert fit["rows_used"] == 220
    assert fit["rows_excluded"] == []
    assert all("draws" in i["method"] for i in fit["intervals"].values())


def test_ties_at_the_last_dropped_loss_go_too(records, run, tmp_path):
    tied = write(
        tmp_path / "tied.csv", [*GOOD, "1e6,1e9,9.5", "1e6,2e9,9", "1e6,3e9,9", "1e6,4e9,9"]
    )
    (fit,) = records("fit", tied, "--drop-largest-losses", 2, "--draws", 0)
    assert fit["rows_used"] == 25
    assert [row["row"] for row in fit["rows_excluded"]] == [26, 27, 28, 29]
    assert all("with ties 4 runs" in row["reason"] for row in fit["rows_excluded"])
    code, out, _ = run("fit", tied, "--drop-largest-losses", 2, "--draws", 0)
    assert code == 0
    assert out.count("with ties 4 runs") == 4


BAD = {
    "1e8,1e10,nan": ("loss", "nan", "not finite"),
    "1e8,1e10,inf": ("loss", "inf", "not finite"),
    "1e8,1e10,0": ("loss", "0", "not > 0"),
    "1e8,1e10,-2": ("loss", "-2", "not > 0"),
    "1e8,1e10,": ("loss", "", "missing"),
    "nan,1e10,2.5": ("params", "nan", "not finite"),
    "0,1e10,2.5": ("params", "0", "not > 0"),
    "1e8,-5,2.5": ("tokens", "-5", "not > 0"),
    "1e8,-inf,2.5": ("tokens", "-inf", "not finite"),
    "many,1e10,2.5": ("params", "many", "not a number"),
    "1e8,,2.5": ("tokens", "None", "missing or not a finite number > 0"),
}


def test_bad_rows_are_excluded_and_listed(records, run, good, tmp_path):
    rows = [*GOOD[:3], *BAD, *GOOD[3:]]
    dirty = write(tmp_path / "dirty.csv", rows)
    (clean,) = records("fit", good, "--draws", 0)
    (fit,) = records("fit", dirty, "--draws", 0)
    assert fit["rows_used"] == len(GOOD)
    listed = {r["row"]: (r["field"], r["value"], r["reason"]) for r in fit["rows_excluded"]}
    assert listed == dict(zip(range(4, 4 + len(BAD)), BAD.values(), strict=True))
    assert fit["parameters"] == clean["parameters"]
    assert fit["digest"] == clean["digest"]
    for command in (["fit", dirty], ["plan", dirty, "--budget", "1e19"]):
        code, out, _ = run(*command, "--draws", 0)
        assert code == 0
        assert f"{len(GOOD)} rows used, {len(BAD)} excluded" in out
        for row, (field, value, reason) in listed.items():
            assert f"  row {row}: {field} {value}: {reason}\n" in out
    (plan,) = records("plan", dirty, "--budget", "1e19", "--draws", 0)
    assert plan["rows_excluded"] == fit["rows_excluded"]


def test_columns_by_other_names(records, good, tmp_path):
    other = write(tmp_path / "other.csv", GOOD, header="N,D,end")
    (fit,) = records("fit", other, "--map", "loss=end", "--draws", 0)
    (same,) = records("fit", good, "--draws", 0)
    assert fit["parameters"] == same["parameters"]


def test_a_fit_in_words(run):
    code, out, err = run("fit", "chinchilla_epoch.csv", "--drop-largest-losses", 5, "--draws", 60)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("loss = 1.8172 + ")
    for name, line in zip(("E", "A", "B", "alpha", "beta"), lines[1:6], strict=True):
        assert line.split()[0] == name
        assert "[" in line
    assert "240 rows used, 5 excluded" in out
    assert out.count("5-th largest loss") == 5


def test_plans(records, run):
    budgets = ["--budget", "1e21", "--budget", "1e24"]
    table = ["chinchilla_epoch.csv", "--drop-largest-losses", 5, "--draws", 100]
    plans = records("plan", *table, *budgets)
    assert [plan["budget"] for plan in plans] == [1e21, 1e24]
    for plan in plans:
        assert plan["record"] == "plan"
        sizes = plan["sizes"]
        assert 6 * sizes["params"] * sizes["tokens"] == pytest.approx(plan["budget"], rel=1e-9)
        assert plan["floor"] < plan["loss"]
        for name, value in {**sizes, "loss": plan["loss"]}.items():
            assert plan["intervals"][name]["low"] < value < plan["intervals"][name]["high"]
        assert plan["status"] == "ok"
        assert plan["rows_used"] == 240
        assert len(plan["rows_excluded"]) == 5
    assert plans[0]["sizes"]["params"] < plans[1]["sizes"]["params"]
    assert any("outside the data" in note for note in plans[1]["notes"])
    code, out, _ = run("plan", *table, *budgets)
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines() if "FLOPs" in line] == [
        "1e+21 FLOPs",
        "1e+24 FLOPs",
    ]


ISOTROPIC = RunSpec(
    task=InContextRegression(spectrum=flat(100), covariance="isotropic", context=100),
    model=ReducedAttention(depth=1),
    recipe=BestScale(),
)
SHAPE = ["--dim", 100, "--context", 100, "--depth", 1]


def test_predictions_at_depth_one(records):
    # by hand at P = D: loss(gamma) = 1 - 2 gamma + 2 gamma^2, least at 1/2
    (best,) = records("predict", *SHAPE)
    assert (best["record"], best["engine"], best["status"]) == ("run", "theory", "ok")
    assert best["loss"] == pytest.approx([0.5], rel=1e-12)
    assert best["scalars"]["gamma"] == pytest.approx(0.5)
    assert best["time"] == [None]
    assert best["run_id"] == run_id(ISOTROPIC, engine="theory")
    assert records("predict", *SHAPE, "--best") == [best]
    (given,) = records("predict", *SHAPE, "--gamma", 0.2)
    assert given["loss"] == pytest.approx([0.68], rel=1e-12)
    (flow,) = records("predict", *SHAPE, "--times", "0.5,2")
    assert flow["time"] == [0.5, 2.0]
    # dgamma/dt = 2 - 4 gamma
    gammas = [(1 - math.exp(-4 * t)) / 2 for t in (0.5, 2.0)]
    assert flow["loss"] == pytest.approx([1 - 2 * g + 2 * g * g for g in gammas], rel=1e-9)


def test_the_landscape_ends_at_the_edge_of_stability(records):
    points = records("predict", *SHAPE, "--landscape", 4)
    # the edge 2 / (1 + 1)^2
    gammas = [0.125, 0.25, 0.375, 0.5]
    assert [p["scalars"]["gamma"] for p in points] == pytest.approx(gammas)
    assert [p["loss"][0] for p in points] == pytest.approx([1 - 2 * g + 2 * g * g for g in gammas])
    rotated = ["--covariance", "rotated", "--nu", 1.5, "--beta", 1, "--dim", "inf"]
    points = records("predict", *rotated, "--context", "inf", "--depth", 3, "--landscape", 2)
    assert [p["scalars"]["gamma"] for p in points] == pytest.approx([3.0, 6.0])


def test_infinity_is_text_in_json(records):
    (best,) = records("predict", "--dim", 100, "--context", 200, "--depth", "inf")
    assert best["scalars"]["gamma"] == "inf"
    assert best["loss"] == [0.0]


def test_a_specification_from_a_file(records, refused, tmp_path):
    path = tmp_path / "run.json"
    given = RunSpec(task=ISOTROPIC.task, model=ISOTROPIC.model, recipe=GivenScale(gamma=0.2))
    path.write_text(to_json(given))
    (found,) = records("predict", "--spec", path)
    assert found["run_id"] == run_id(given, engine="theory")
    assert found["loss"] == pytest.approx([0.68])
    # what is asked in so many words wins over the file
    (best,) = records("predict", "--spec", path, "--best")
    assert best["run_id"] == run_id(ISOTROPIC, engine="theory")
    assert [p["loss"][0] for p in records("predict", "--spec", path, "--landscape", 1)] == [
        pytest.approx(0.5)
    ]
    # and what the file says cannot be said again
    for option in (["--depth", "3"], ["--covariance", "isotropic"], ["--noise", "0"]):
        text = refused("predict", "--spec", path, *option)
        assert text == f"{option[0]}: the file {path} says this; leave it out"
    assert refused("train", "--spec", path, "--steps", 3).startswith("--steps: the file ")


def test_training(records):
    shape = ["--dim", 8, "--context", 16, "--depth", 2]
    options = ["--steps", 4, "--records", 2, "--seeds", 2, "--contexts", 8]
    trained = records("train", *shape, *options)
    assert [r["step"] for r in trained] == [[0, 2, 4]] * 2
    assert len({r["run_id"] for r in trained}) == 2
    for record in trained:
        assert (record["engine"], record["status"]) == ("simulation", "ok")
        assert record["loss"][0] == pytest.approx(1.0, rel=1e-12)
        assert record["loss"][2] < record["loss"][1] < 1
        assert record["time"] == pytest.approx([0.0, 0.1, 0.2])
    spec = RunSpec(
        task=InContextRegression(spectrum=flat(8), covariance="isotropic", context=16),
        model=ReducedAttention(depth=2),
        recipe=Training(steps=4, batch_size=64, queries=math.inf, rate=0.4),
        evaluation=Evaluation(contexts=8, record=(0, 2, 4)),
    )
    assert trained[0]["run_id"] == run_id(spec, engine="simulation")


FILES = {
    "missing.csv": None,
    "empty.csv": b"",
    "header.csv": b"params,tokens,loss\n",
    "binary.csv": bytes(range(256)),
    "columns.csv": b"params,tokens,los\n1e8,1e9,3\n",
    "few.csv": "\n".join(["params,tokens,loss", *GOOD[:5]]).encode(),
    "all-bad.csv": b"params,tokens,loss\n1e8,1e9,nan\n1e8,0,2\n",
    "text.jsonl": b'{"params": "1e8", "tokens": 1e9, "loss": 3.0}\n',
    "good.csv": "\n".join(["params,tokens,loss", *GOOD]).encode(),
    "not.json": b"{",
    "unknown.json": to_json(ISOTROPIC).replace("depth", "dept").encode(),
    "zero.json": to_json(ISOTROPIC).replace('"depth":1', '"depth":0').encode(),
    "spectrum.json": to_json(flat(3)).encode(),
}


@pytest.fixture
def files(tmp_path):
    for name, content in FILES.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()


TABLES = [
    ("fit missing.csv", "missing.csv: no such file"),
    ("fit folder", "folder: a folder; expected a csv, jsonl or parquet file"),
    ("fit empty.csv", "empty.csv: empty"),
    ("fit header.csv", "header.csv: no data rows"),
    ("fit binary.csv", "binary.csv: binary; expected a csv, jsonl or parquet file"),
    ("fit columns.csv", "columns.csv: no column for loss; it has params, tokens, los (did you "),
    ("fit few.csv", "few.csv: 5 usable rows; the law chinchilla has 5 parameters and needs at "),
    ("fit all-bad.csv", "all-bad.csv: no usable rows; 2 bad rows: row 1: loss nan (not finite), "),
    ("fit text.jsonl", "text.jsonl: no usable rows; 1 bad row: row 1: params 1e8 (a number stored"),
    (f"fit {'long' * 99}.csv", "long"),
    (
        "fit good.csv --law chinchila",
        "law: got 'chinchila', expected one of chinchilla, kaplan, separable",
    ),
    ("fit good.csv --law separable", "variables: --law separable needs --variables"),
    (
        "fit good.csv --law separable --variables params,token",
        "good.csv: no column 'token'; it has row, params, tokens, loss (did you mean 'tokens'?)",
    ),
    ("fit good.csv --law separable --variables params,params", "variables: got ['params', 'par"),
    ("fit good.csv --law separable --variables", "Option '--variables' requires an argument"),
    ("fit good.csv --law separable --variables params,", "good.csv: no column ''; it has row"),
    ("fit good.csv --variables params", "variables: the chinchilla law is in params,tokens"),
    ("fit good.csv --delta 0", "delta: got 0.0, expected a finite number > 0"),
    ("fit good.csv --delta nan", "delta: got nan, expected a finite number > 0"),
    ("fit good.csv --delta thin", "Invalid value for '--delta'"),
    ("fit good.csv --draws -1", "Invalid value for '--draws'"),
    ("fit good.csv --draws 1.5", "Invalid value for '--draws'"),
    ("fit good.csv --draws many", "Invalid value for '--draws'"),
    ("fit good.csv --draws 5", "draws: 5 of 5 converged; an interval needs 20"),
    ("fit good.csv --level 2", "level: got 2.0, expected a number between 0 and 1"),
    ("fit good.csv --level nan --draws 0", "level: got nan, expected a number between 0 and 1"),
    ("fit good.csv --seed -1", "Invalid value for '--seed'"),
    ("fit good.csv --drop-largest-losses -1", "Invalid value for '--drop-largest-losses'"),
    ("fit good.csv --drop-largest-losses 25", "good.csv: cannot drop the 25 largest losses of 25"),
    ("fit good.csv --map loss", "map: got 'loss', expected NAME=COLUMN, such as loss=final_loss"),
    ("fit good.csv --map loss=los", "good.csv: no column 'los' for loss; it has params, tokens, "),
    ("fit good.csv --map los=loss", "good.csv: 'los' is not a canonical column; these are "),
    ("fit good.csv --map loss=loss --map loss=params", "map: loss is given twice"),
    ("fit good.csv more.csv", "Got unexpected extra argument"),
    ("fit good.csv --nonsense 3", "No such option: --nonsense"),
    ("fit", "Missing argument"),
    ("plan good.csv", "Missing option '--budget'"),
    ("plan good.csv --budget 0", "budget: got 0.0, expected a finite number of FLOPs > 0"),
    ("plan good.csv --budget -1e20", "budget: got -1e+20, expected a finite number of FLOPs > 0"),
    ("plan good.csv --budget nan", "budget: got nan, expected a finite number of FLOPs > 0"),
    ("plan good.csv --budget 1e20 --budget inf", "budget: got inf, expected a finite number of"),
    ("plan good.csv --budget large", "Invalid value for '--budget'"),
    ("plan good.csv --budget 1e20 --cost 7ND", "cost: '7ND' is unknown; expected one of 6ND, "),
    ("plan good.csv --budget 1e20 --level 0", "level: got 0.0, expected a number between 0"),
    ("plan missing.csv --budget 1e20", "missing.csv: no such file"),
]
SHAPES = [
    ("predict --context 0", "task.context: got 0, expected a whole number >= 1 or infinity"),
    ("predict --depth 0", "model.depth: got 0, expected a whole number >= 1 or infinity"),
    ("predict --dim 0", "task.spectrum.dim: got 0, expected a whole number >= 1"),
    ("predict --depth deep", "depth: got 'deep', expected a whole number or inf"),
    ("predict --depth 1.5", "depth: got '1.5', expected a whole number or inf"),
    ("predict --context nan", "context: got 'nan', expected a whole number or inf"),
    (f"predict --context {10**400}", "task.context: got 1000"),
    ("predict --dim inf", "dim: an isotropic task needs a finite dim"),
    ("predict --noise -1", "task.noise: got -1.0, expected a finite number >= 0"),
    ("predict --noise loud", "Invalid value for '--noise'"),
    ("predict --gamma nan", "recipe.gamma: got nan, expected a finite number"),
    ("predict --gamma 1 --best", "choose one of --gamma, --best, --landscape and --times"),
    ("predict --landscape 0", "Invalid value for '--landscape'"),
    ("predict --landscape -3", "Invalid value for '--landscape'"),
    ("predict --landscape 3 --depth inf", "landscape: infinite depth has no edge of stability"),
    ("predict --times x", "times: got 'x', expected numbers such as 1,10,100"),
    ("predict --times 2,1", "recipe.times: expected at least one time, in increasing order"),
    ("predict --times -1", "recipe.times[0]: got -1.0, expected a finite number >= 0"),
    ("predict --covariance isotropi", "covariance: got 'isotropi', expected one of"),
    ("predict --covariance fixed", "covariance: 'fixed' needs a spectrum: give --nu and --beta"),
    ("predict --covariance fixed --nu 1", "nu, beta: a power-law spectrum needs both"),
    ("predict --nu 1 --beta 1", "nu, beta: an isotropic spectrum is flat; use --covariance"),
    ("predict --covariance rotated --nu 0 --beta 1", "task.spectrum.nu: got 0.0, expected"),
    ("predict --spec folder", "folder: cannot be read (Is a directory)"),
    ("predict --spec empty.csv", "empty.csv: not a specification in JSON: "),
    ("predict --spec binary.csv", "binary.csv: 'utf-8' codec can't decode"),
    ("predict --spec not.json", "not.json: not a specification in JSON: "),
    ("predict --spec unknown.json", "unknown.json: model: ReducedAttention has no field 'dept'; "),
    ("predict --spec zero.json", "zero.json: model.depth: got 0, expected a whole number >= 1"),
    ("predict --spec spectrum.json", "spectrum.json: holds a Spectrum, expected a RunSpec"),
    ("predict --unknown", "No such option: --unknown"),
    ("train --seeds 0", "Invalid value for '--seeds'"),
    ("train --records 0", "Invalid value for '--records'"),
    ("train --steps -1", "recipe.steps: got -1, expected a whole number >= 0"),
    ("train --batch-size 0", "recipe.batch_size: got 0, expected a whole number >= 1"),
    ("train --queries none", "queries: got 'none', expected a whole number or inf"),
    ("train --rate 0", "recipe.rate: got 0.0, expected a finite number > 0"),
    ("train --contexts 0", "evaluation.contexts: got 0, expected a whole number >= 1"),
    ("train --depth inf", "model.depth: got infinity, which is answered by theory"),
    ("train --spec spectrum.json", "spectrum.json: holds a Spectrum, expected a RunSpec"),
]
STUDIES = [
    ("reproduce", "paper: give the name of one paper, or --all"),
    ("reproduce bordelon2025 --all", "paper: give the name of one paper, or --all"),
    ("reproduce bordelon2025 --figures good.csv", "good.csv: cannot write the figures ("),
    ("reproduce bordelon2024", "paper: got 'bordelon2024', expected one of bordelon2025"),
    ("reproduce bordelon2025 --scale tiny", "scale: got 'tiny', expected one of demo, small, pap"),
    ("reproduce bordelon2025 --workers 0", "Invalid value for '--workers'"),
    ("reproduce bordelon2025 --workers 9999 --scale demo", "workers: got 9999, this machine has"),
    ("reproduce bordelon2025 --store good.csv", "good.csv: a store is a folder, this is a file"),
    ("reproduce bordelon2025 --report folder", "folder: cannot write the report (it is a folder)"),
    (
        "reproduce bordelon2025 --report good.csv/x.html",
        "good.csv/x.html: cannot write the report (",
    ),
    ("demo --report folder", "folder: cannot write the report (it is a folder)"),
    ("demo --workers 0", "Invalid value for '--workers'"),
    ("demo --workers many", "Invalid value for '--workers'"),
    ("fitt good.csv", "No such command 'fitt'. Did you mean 'fit'?"),
    ("--nonsense", "No such option: --nonsense"),
]


def test_seeds_are_told_apart(run):
    command = "train --depth 1 --dim 4 --context 4 --steps 2 --records 1 --seeds 2"
    code, out, _ = run(*command.split())
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()] == ["seed 0"] * 2 + ["seed 1"] * 2
    assert ["gamma" in line for line in out.splitlines()] == [False, True] * 2


@pytest.mark.parametrize(("command", "text"), TABLES + SHAPES + STUDIES)
def test_mistakes_are_one_line(refused, files, command, text):
    assert refused(*command.split()).startswith(text)


def test_help(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    commands = ("predict", "train", "fit", "plan", "reproduce", "demo")
    assert all(f"  {name} " in out for name in commands)
    for name in commands:
        code, out, err = run(name, "--help")
        assert (code, err) == (0, "")
        assert "Usage: leadline" in out


def test_an_extra_that_is_not_installed(run, monkeypatch):
    for name in [n for n in sys.modules if n.startswith("leadline.simulation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    code, out, err = run("train", "--steps", 1)
    assert (code, out) == (2, "")
    assert err == (
        "error: jax is not installed; install leadline with the extra 'simulation': "
        "pip install 'leadline[simulation]', or '.[simulation]' in its folder\n"
    )


@pytest.mark.parametrize("said", ["", "3 of 7 runs are stored\nthe same command goes on from here"])
def test_an_interruption_says_what_is_kept(run, monkeypatch, said):
    def interrupted(*_, **__):
        raise KeyboardInterrupt(said)

    monkeypatch.setattr(papers, "answer", interrupted)
    assert run("reproduce", "bordelon2025") == (130, "", f"{said or 'stopped'}\n")


def process(*arguments, **options):
    """Run a command in a process of its own."""
    command = [sys.executable, "-c", "from leadline.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_the_process_itself(tmp_path):
    good = write(tmp_path / "good.csv", GOOD)
    found = process("fit", str(good), "--draws", "0", "--json")
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["rows_used"] == 25
    found = process("fit", "missing.csv")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "error: missing.csv: no such file\n"


def test_a_reader_that_leaves_early():
    code = "from leadline.cli import main; main()"
    command = [sys.executable, "-c", code, "predict", "--landscape", "2000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout.readline().startswith(b'{"record"')
        started.stdout.close()
        assert started.stderr.read() == b""
    assert started.returncode == 0
