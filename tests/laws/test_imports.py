"""Fitting and planning start without the libraries that they do not need."""

import subprocess
import sys


def test_laws_and_planning_load_neither_scipy_nor_jax():
    code = (
        "import sys, leadline.laws, leadline.planning, leadline.data;"
        "print([m for m in ('scipy', 'jax', 'ray', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
