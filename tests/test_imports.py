"""What is loaded when: the command line and the theory start fast because they load little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import leadline

HEAVY = ("numpy", "jax", "scipy", "polars", "matplotlib", "ray")


def loaded(code, *names):
    """Which of the packages `names` a fresh interpreter has loaded after `code`."""
    report = f"{code}\nimport sys; print(*[n for n in {names!r} if n in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=True
    )
    return found.stdout.split()


@pytest.mark.parametrize("module", ["leadline", "leadline.cli", "leadline.spec", "leadline.ident"])
def test_the_front_door_loads_nothing_heavy(module):
    assert loaded(f"import {module}", *HEAVY, "rich") == []


PREDICTION = """
from leadline.spec import GivenScale, InContextRegression, ReducedAttention, RunSpec, flat
from leadline.theory.predict import predict
task = InContextRegression(spectrum=flat(8), covariance="isotropic", context=8, noise=0.5)
recipe = GivenScale(gamma=1.0)
assert predict(RunSpec(task=task, model=ReducedAttention(depth=4), recipe=recipe)).loss[0] < 1
"""


def test_a_prediction_loads_numpy_only():
    assert loaded(PREDICTION, *HEAVY) == ["numpy"]


def test_laws_and_plans_load_neither_jax_nor_figures():
    code = "import leadline.laws, leadline.planning.optimum"
    assert loaded(code, "jax", "jaxlib", "ray", "matplotlib", "jinja2") == []


def test_a_public_name_loads_its_own_module_only():
    assert loaded("import leadline; leadline.RunSpec, leadline.grid, leadline.run_id", *HEAVY) == []
    code = "from leadline import fit, predict, read_runs, separable"
    assert loaded(code, "jax", "ray", "matplotlib") == []


def test_the_table_of_contents():
    promised = """
        predict train program_key grid run_id run_sweep load_runs read_runs fit bootstrap intervals
        plan reproduce write_report Spectrum flat source_capacity InContextRegression
        ReducedAttention Training GradientFlow GivenScale BestScale Evaluation RunSpec Sweep Curve
        Runs Law Fit Interval Plan Claim judge separable CHINCHILLA Huber Store __version__
    """
    assert set(promised.split()) <= set(leadline.__all__)
    assert set(leadline.__all__) <= set(dir(leadline))
    for name in leadline.__all__:
        value = getattr(leadline, name)
        assert getattr(value, "__name__", name) == name
    assert leadline.__version__.count(".") == 2


def test_types_and_run_time_agree_on_where_a_name_lives():
    tree = ast.parse(Path(leadline.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen.keys() | {"__version__"} == set(leadline.__all__)
    for name, module in seen.items():
        found = __import__(module, fromlist=[name])
        assert getattr(leadline, name) is getattr(found, name)


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'leadline' has no attribute 'fitt'"):
        _ = leadline.fitt
