"""The table of runs: canonical columns, units, and a record of what was excluded.

`Runs` is the waist of leadline. Theory, simulation and a user's own trainings all end here, and
everything after works on it alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from leadline.curve import Curve, model_width
from leadline.display import Card, Shown, short
from leadline.errors import TableError, nearest
from leadline.ident import VERSION, Engine, run_id, to_json
from leadline.spec import RunSpec, is_regression, is_retrieval, is_sparse, is_transformer

UNITS = {
    "params": "parameters",
    "tokens": "tokens",
    "flops": "FLOPs",
    "width": "residual stream dimension",
    "depth": "layers",
    "context": "labeled examples or tokens",
    "batch_size": "sequences or contexts a step",
    "step": "optimizer steps",
    "time": "scalar-flow time",
    "rate": "learning rate",
    "loss": "nats",
}
"""The canonical quantities and the unit of each. Counts are raw, never in millions."""

EXCLUDED_SCHEMA = {"row": pl.Int64, "field": pl.String, "value": pl.String, "reason": pl.String}
CURVE_SCHEMA = {
    name: pl.List(pl.Int64 if name == "step" else pl.Float64)
    for name in ("step", "time", "tokens", "flops", "loss", "loss_error")
}
MEASURES_SCHEMA = pl.List(
    pl.Struct({"name": pl.String, "shape": pl.List(pl.Int64), "values": pl.List(pl.Float64)})
)


@dataclass(frozen=True, kw_only=True)
class Runs(Shown):
    """A table of runs, one row each.

    **Arguments:** `frame` has canonical columns; `units` the unit of each quantity present;
    `excluded` one row for each excluded row of the source (`row`, counted from 1, `field`,
    `value`, `reason`); `source` says where the table came from.
    """

    frame: pl.DataFrame
    units: Mapping[str, str]
    excluded: pl.DataFrame
    source: str

    def __len__(self) -> int:
        return self.frame.height

    def card(self) -> Card:
        """The quantities of the table with their unit and range, and what was excluded."""
        rows: list[tuple[str, ...]] = []
        for name in (n for n in self.units if n in self.frame.columns):
            column = self.frame[name].cast(pl.Float64, strict=False)
            values = column.drop_nulls().drop_nans().to_numpy()
            missing = len(self) - len(values)
            ends = (short(values.min()), short(values.max())) if len(values) else ("", "")
            rows.append((name, self.units[name], *ends, str(missing) if missing else ""))
        reasons = self.excluded["reason"].value_counts(sort=True).iter_rows()
        return Card(
            title=f"{len(self)} runs, {self.source}",
            columns=("quantity", "unit", "smallest", "largest", "missing"),
            rows=rows,
            notes=[f"excluded ({count}): {reason}" for reason, count in reasons],
        )

    def column(self, name: str) -> pl.Series:
        """The column `name`.

        **Raises:** `TableError` naming the columns that exist and the nearest one.
        """
        if name not in self.frame.columns:
            way = ""
            if name in UNITS:
                way = f"; name it with --map {name}=COLUMN, or columns= in Python"
            if name == "tokens":
                way += "; tokens follow where there are params and flops"
            raise TableError(
                f"{self.source}: no column {name!r}; it has {', '.join(self.frame.columns)}"
                f"{nearest(name, self.frame.columns)}{way}"
            )
        return self.frame[name]

    def exclude(self, rows: pl.Series, *, field: str, reason: str) -> Runs:
        """These runs without those where the boolean `rows` is true, each listed in `excluded`
        with `reason`. Needs the column `row`.
        """
        gone = self.frame.filter(rows)
        listed = pl.DataFrame(
            {
                "row": gone["row"],
                "field": [field] * gone.height,
                "value": [str(v) for v in gone[field]],
                "reason": [reason] * gone.height,
            },
            schema=EXCLUDED_SCHEMA,
        )
        return dataclasses.replace(
            self,
            frame=self.frame.filter(~rows),
            excluded=pl.concat([self.excluded, listed]),
        )

    def digest(self, columns: Iterable[str]) -> str:
        """SHA-256 of the given columns' exact values, independent of the order of rows."""
        text = sorted(repr(row) for row in self.frame.select(list(columns)).iter_rows())
        return hashlib.sha256("\n".join(text).encode()).hexdigest()


def nothing_excluded() -> pl.DataFrame:
    """An empty table of exclusions."""
    return pl.DataFrame(schema=EXCLUDED_SCHEMA)


def curve_row(spec: RunSpec, curve: Curve, *, engine: Engine) -> dict[str, Any]:
    """One run as one row: its identity, the quantities of its spec, the final values, and the
    whole curve and measures as nested columns.
    """
    recipe = spec.recipe
    row: dict[str, Any] = {
        "run_id": run_id(spec, engine=engine),
        "engine": engine,
        "version": VERSION[engine],
        "status": curve.status,
        **_sizes(spec),
        "width": float(model_width(spec)),
        "recipe": type(recipe).__name__,
        "seed": spec.seed,
    }
    for name in ("batch_size", "queries", "rate", "gamma"):
        value = getattr(recipe, name, None)
        row[name] = None if value is None else float(value)
    row |= {f"best_{k}" if k == "gamma" else k: v for k, v in curve.scalars}
    for name in CURVE_SCHEMA:
        values = getattr(curve, name).tolist()
        row[name] = values[-1]
        row[f"curve_{name}"] = values
    row["measures"] = [
        {"name": m.name, "shape": list(m.values.shape), "values": m.values.ravel().tolist()}
        for m in curve.measures
    ]
    return row | {"spec": to_json(spec)}


def _sizes(spec: RunSpec) -> dict[str, float]:
    """Dimension, context, noise and depth: of sparse features the number of tasks, and the context
    of the first.
    """
    if is_sparse(spec):
        task = spec.task
        first = task.context[0] if isinstance(task.context, tuple) else task.context
        return {"dim": float(task.num_tasks), "context": first, "noise": 0.0, "depth": 1.0}
    noise = 0.0
    if not is_retrieval(spec):
        assert is_regression(spec) or is_transformer(spec)
        noise = spec.task.noise
    return {
        "dim": float(spec.task.spectrum.dim),
        "context": float(spec.task.context),
        "noise": noise,
        "depth": float(spec.model.depth),
    }


def from_curves(specs: Iterable[RunSpec], curves: Iterable[Curve], *, engine: Engine) -> Runs:
    """The table of these runs, one row for each spec and its curve."""
    rows = [curve_row(s, c, engine=engine) for s, c in zip(specs, curves, strict=True)]
    nested = {f"curve_{name}": kind for name, kind in CURVE_SCHEMA.items()}
    frame = pl.DataFrame(
        rows,
        schema_overrides=nested | {"measures": MEASURES_SCHEMA},
        infer_schema_length=None,
    )
    return Runs(
        frame=frame,
        units=engine_units(frame.columns),
        excluded=nothing_excluded(),
        source=f"{engine} engine",
    )


def engine_units(columns: Iterable[str]) -> dict[str, str]:
    """The unit of each quantity among `columns` of a table that an engine made."""
    units = {k: v for k, v in UNITS.items() if k in set(columns)}
    return units | {"loss": "mean squared error"} if "loss" in units else units
