r"""Trained models of docs/papers/beyond-depth.md as one table, and laws of their shape.

Three laws of width $N$, depth $L$ and context $P$ are fitted to the same losses: a sum of power
laws, their product, and the sum to a power, which is Kaplan's law (arXiv:2001.08361) for three
sizes and has no floor of its own:

$$E + \sum_ic_ix_i^{-a_i},\qquad E + c\prod_ix_i^{-a_i},\qquad
\Big[\sum_ie^{k_i}x_i^{-p_i}\Big]^a .$$
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from leadline.curve import Floats
from leadline.ensembles import decompose
from leadline.laws.compare import LEAST_SQUARES, compare
from leadline.laws.families import Family, separable
from leadline.laws.fit import Fit, fit
from leadline.laws.forms import custom
from leadline.papers.peng2026.published import SOFTMAX_CONTEXT, SOFTMAX_DIM
from leadline.papers.peng2026.tables import Tables, rows
from leadline.runs import EXCLUDED_SCHEMA, Runs, engine_units
from leadline.spec import Retrieval, SoftmaxAttention, Training
from leadline.theory.retrieval import best_layer

SIZES = ("width", "depth", "context")
HELD_OUT = 0.25
"""Share of the shapes, those of most parameters, that laws fitted to the others predict."""


FOLDS = 7
"""Of the laws' comparison on shapes left out: every seventh shape in the order of parameters."""


def trained(tables: Tables, name: str) -> pl.DataFrame:
    """One row a trained model of softmax attention: what it is, its loss, and the disagreement
    A - C of its layers (null for one layer).
    """
    found: list[dict[str, Any]] = []
    for spec, row in rows(tables, name, engine="simulation"):
        task, model, recipe = spec.task, spec.model, spec.recipe
        assert isinstance(task, Retrieval)
        assert isinstance(model, SoftmaxAttention)
        assert isinstance(recipe, Training)
        found.append(
            {
                "targets": task.targets,
                "context": int(task.context),
                "isotropic": task.spectrum.input_exponent == task.spectrum.task_exponent == 0,
                "depth": model.depth,
                "width": model.width,
                "layers": model.layers,
                "matrix": model.matrix,
                "contrast": model.contrast,
                "start": model.start,
                "optimizer": recipe.optimizer,
                "rate": recipe.rate,
                "steps": recipe.steps,
                "decay": recipe.weight_decay,
                "seed": spec.seed,
                "loss": row["loss"],
                "loss_error": row["loss_error"],
                "disagreement": _disagreement(row) if model.depth > 1 else None,
            }
        )
    return pl.DataFrame(found, infer_schema_length=None)


def _disagreement(row: Mapping[str, Any]) -> float | None:
    matrix = next((m for m in row["measures"] if m["name"] == "layer_errors"), None)
    if matrix is None:
        return None
    return decompose(np.array(matrix["values"]).reshape(matrix["shape"])[-1]).disagreement


def by_seed(models: pl.DataFrame, **values: Any) -> pl.DataFrame:
    """The models with these values, in the order of their seeds."""
    return models.filter(*(pl.col(k).eq_missing(v) for k, v in values.items())).sort("seed")


@cache
def single(targets: int) -> float:
    """The loss of the best single layer at 16 dimensions and 64 tokens, exactly."""
    return best_layer(dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=targets).loss


def shape_runs(tables: Tables) -> Runs:
    """The losses of all shapes, with the parameters of their layers, 2 d N L."""
    models = trained(tables, "beyond-shapes").with_columns(
        (2 * SOFTMAX_DIM * pl.col("width") * pl.col("depth")).alias("params")
    )
    frame = models.select(*SIZES, "params", "loss", "loss_error").sort("params", *SIZES)
    return Runs(
        frame=frame,
        units=engine_units(frame.columns),
        excluded=pl.DataFrame(schema=EXCLUDED_SCHEMA),
        source="shapes of factored softmax attention",
    )


def _coupled(at: Mapping[str, Floats], p: Mapping[str, float]) -> Floats:
    total = sum(np.exp(p[f"k_{x}"]) * at[x] ** -p[f"p_{x}"] for x in SIZES)
    return np.asarray(total) ** p["a"]


def _product(at: Mapping[str, Floats], p: Mapping[str, float]) -> Floats:
    return p["E"] + p["c"] * np.prod([at[x] ** -p[f"a_{x}"] for x in SIZES], axis=0)


def laws() -> dict[str, Family]:
    """The three laws by their names."""
    exponents = {f"a_{x}": (1e-3, 5.0) for x in SIZES}
    inner = {f"p_{x}": (1e-3, 8.0) for x in SIZES} | {f"k_{x}": (-12.0, 12.0) for x in SIZES}
    return {
        "separable": separable(SIZES),
        "product": custom(
            _product, ["E", "c", *exponents], SIZES, name="product",
            bounds=exponents, linear=["E", "c"],
        ),
        "coupled": custom(
            _coupled, [*inner, "a"], SIZES, name="coupled", bounds=inner | {"a": (0.02, 3.0)}
        ),
    }  # fmt: skip


def fitted(runs: Runs) -> dict[str, Fit]:
    """The three laws fitted to all shapes by log least squares."""
    return {name: fit(law, runs, objective=LEAST_SQUARES) for name, law in laws().items()}


def compared(runs: Runs) -> pl.DataFrame:
    """`laws.compare` of the three, the shapes of most parameters held out."""
    families = list(laws().values())
    return compare(families, runs, holdout=HELD_OUT, by="params", objective=LEAST_SQUARES)


def left_out(runs: Runs, family: Family) -> Floats:
    """Log loss minus log prediction of every shape, from a law fitted without it and the others of
    its fold.
    """
    errors = np.empty(len(runs))
    fold = np.arange(len(runs)) % FOLDS
    for own in range(FOLDS):
        rest = replace(runs, frame=runs.frame.filter(pl.Series(fold != own)))
        one = runs.frame.filter(pl.Series(fold == own))
        law = fit(family, rest, objective=LEAST_SQUARES).law
        errors[fold == own] = np.log(one["loss"].to_numpy() / law.loss(one))
    return errors
