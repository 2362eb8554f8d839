"""Sparse feature regression simulated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from leadline.curve import Curve
from leadline.errors import SolverError
from leadline.simulation.descent import Observer
from leadline.spec import SparseRun


def program_key(spec: SparseRun) -> Hashable:
    """What the program of `spec` depends on."""
    raise SolverError("task: simulation of SparseFeatures is not available")


def solve(specs: Sequence[SparseRun], *, observe: Observer | None) -> list[Curve]:
    """The curves of runs on sparse features."""
    raise SolverError("task: simulation of SparseFeatures is not available")
