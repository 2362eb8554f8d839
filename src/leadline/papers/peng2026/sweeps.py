"""The sweeps of the paper: what theory answers, and what is trained."""

from __future__ import annotations

from leadline.papers.peng2026 import beyond, depth, exact, extensions, linear_trained
from leadline.papers.peng2026.published import NAME
from leadline.spec import Sweep

__all__ = ["NAME", "sweeps"]


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """The sweeps of the paper at `scale`."""
    return (
        *exact.sweeps(scale),
        *depth.sweeps(scale),
        *linear_trained.sweeps(scale),
        *extensions.sweeps(scale),
        *beyond.sweeps(scale),
    )
