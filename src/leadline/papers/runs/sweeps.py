"""There is nothing to run: the tables are bundled."""

from __future__ import annotations

from leadline.spec import Sweep


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """No sweeps, at any scale."""
    del scale
    return ()
