import math

import pytest

from leadline.errors import SpecError
from leadline.sweeps.definition import load_sweep, override, parse_shard

GOOD = """
from leadline.spec import *

def small():
    task = InContextRegression(spectrum=flat(8), covariance="isotropic", context=16)
    base = RunSpec(task=task, model=ReducedAttention(depth=2), recipe=GivenScale(gamma=0.5))
    return Sweep(name="small", engine="theory", runs=grid(base, {"seed": range(3)}))
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return path

    return write


def test_a_sweep_comes_from_a_function(file):
    sweep = load_sweep(f"{file(GOOD)}:small")
    assert (sweep.name, len(sweep.runs)) == ("small", 3)


def test_a_file_may_import_its_neighbors(file, tmp_path):
    (tmp_path / "neighbor_of_mine.py").write_text(GOOD)
    assert load_sweep(f"{file('from neighbor_of_mine import small')}:small").name == "small"


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        (GOOD, "smal", "has no function 'smal' (did you mean 'small'?)"),
        ("def f():\n    return 1 / 0", "f", "raised ZeroDivisionError: division by zero (line 2)"),
        ("def f():\n    return [1]", "f", "returned list, expected a leadline.spec.Sweep"),
        ("def f(x):\n    return x", "f", "raised TypeError"),
        ("x = 1\nimport nowhere_at_all", "f", "raised ModuleNotFoundError: No module named"),
        ("def f(:\n", "f", "raised SyntaxError"),
        (GOOD.replace("depth=2", "depth=0"), "small", "raised SpecError: model.depth: got 0"),
    ],
)
def test_bad_functions(file, text, function, message):
    with pytest.raises(SpecError) as caught:
        load_sweep(f"{file(text)}:{function}")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("target", ["sweep", "file.py", "file.py:", "file.txt:f", ":f"])
def test_bad_targets(target):
    with pytest.raises(SpecError, match=r"expected FILE\.py:function"):
        load_sweep(target)


def test_an_absent_file(tmp_path):
    with pytest.raises(SpecError, match="there is no file"):
        load_sweep(f"{tmp_path}/none.py:f")


def test_settings_change_every_run(file):
    sweep = load_sweep(f"{file(GOOD)}:small")
    changed = override(sweep, ["recipe.gamma=0.01", "model.depth = inf", "evaluation.record=[0]"])
    assert {r.recipe.gamma for r in changed.runs} == {0.01}
    assert {r.model.depth for r in changed.runs} == {math.inf}
    assert {r.evaluation.record for r in changed.runs} == {(0,)}
    assert override(sweep, []) == sweep


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("recipe.gama=1", "did you mean 'gamma'?"),
        ("depth=1", "no field 'depth'"),
        ("recipe.gamma", "expected PATH=VALUE"),
        ("recipe.gamma=high", "recipe.gamma: got str 'high', expected a finite number"),
        ("task.covariance=isotropc", "did you mean 'isotropic'?"),
    ],
)
def test_bad_settings(file, setting, message):
    with pytest.raises(SpecError) as caught:
        override(load_sweep(f"{file(GOOD)}:small"), [setting])
    assert message in str(caught.value)


def test_shards():
    assert parse_shard("0/4") == (0, 4)
    for text in ("4/4", "1", "a/b", "-1/3", "1/0"):
        with pytest.raises(SpecError, match="expected i/n"):
            parse_shard(text)
