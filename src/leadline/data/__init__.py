"""Bundled tables of real training runs, with their source and license."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leadline.errors import TableError, nearest


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a bundled table comes from: `source`, `license`, `rows`, and what its `columns` are."""

    source: str
    license: str
    rows: int
    columns: str


SOURCES: dict[str, Source] = {
    "chinchilla_epoch.csv": Source(
        source="245 points read off figure 4 of Hoffmann et al. 2022 (arXiv:2203.15556) by "
        "Besiroglu et al. 2024 (arXiv:2404.10102)",
        license="not stated with the points; published data, cite both papers",
        rows=245,
        columns="Model Size (parameters), Training FLOP, loss (nats); x, y, color and hex_color of "
        "the point in the figure. Tokens = FLOP / (6 parameters).",
    ),
    "chinchilla_kyotakano.csv": Source(
        source="the table of K. Takano's package chinchilla: of the 245 points above, those with "
        "at least one token a parameter",
        license="Apache-2.0",
        rows=234,
        columns="C (FLOPs), N (parameters), D (tokens), loss (nats)",
    ),
    "gemstones_hot.jsonl": Source(
        source="220 checkpoints of 22 models of varied width and depth, McLeish et al. 2025, "
        "the Gemstones (arXiv:2502.06857)",
        license="MIT",
        rows=220,
        columns="run_name, params_active_precise (parameters without embeddings), width, depth, "
        "tokens, step, num_nodes, seconds_per_step, final_loss (nats)",
    ),
}
"""The bundled tables by file name."""


def bundled(name: str) -> Path:
    """The path of a bundled table, for `read_runs`.

    **Raises:** `TableError` for an unknown name, with the nearest.
    """
    if name not in SOURCES:
        raise TableError(
            f"bundled table: got {name!r}, expected one of {', '.join(SOURCES)}"
            f"{nearest(name, SOURCES)}"
        )
    return Path(__file__).with_name(name)
