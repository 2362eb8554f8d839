"""The paper's claims, and ours beyond it, judged from the tables of its sweeps."""

from __future__ import annotations

from typing import Any

from leadline.papers.peng2026 import (
    beyond_claims,
    depth_claims,
    extension_claims,
    linear_trained_claims,
)
from leadline.papers.peng2026.floor import floor_claims, identity_claims, table5_claims, theory
from leadline.papers.peng2026.linear import table1_claims, table2_claims, table3_claims
from leadline.papers.peng2026.tables import Tables


def claims(tables: Tables) -> list[dict[str, Any]]:
    """All claims that the scale of `tables` can judge."""
    return [
        *table2_claims(tables),
        *table3_claims(tables),
        *table1_claims(tables, theory(2).bound.loss),
        *identity_claims(),
        *floor_claims(tables),
        *table5_claims(),
        *depth_claims.claims(tables),
        *linear_trained_claims.claims(tables),
        *extension_claims.claims(tables),
        *beyond_claims.claims(tables),
    ]
