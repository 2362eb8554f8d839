"""What is asked: spectra, tasks, models, recipes, evaluations, runs and sweeps.

Everything here is a frozen value over plain numbers, strings and tuples, checked once when it is
made. Both engines answer a `RunSpec`; neither appears here.
"""

from leadline.spec.fields import MAX_SEED, Bounds, Spec, check_value, field_hints
from leadline.spec.models import (
    LinearAttention,
    PerTaskAttention,
    ReducedAttention,
    SoftmaxAttention,
    StreamAttention,
    Transformer,
)
from leadline.spec.paths import dotted_paths, grid, replace
from leadline.spec.question import (
    Model,
    Recipe,
    RegressionRun,
    RetrievalRun,
    RunSpec,
    SparseRun,
    Sweep,
    Task,
    TransformerRun,
    is_regression,
    is_retrieval,
    is_sparse,
    is_transformer,
)
from leadline.spec.recipes import BestScale, Evaluation, GivenScale, GradientFlow, Training
from leadline.spec.tasks import (
    InContextRegression,
    Retrieval,
    SparseFeatures,
    Spectrum,
    Turn,
    flat,
    source_capacity,
)

__all__ = [
    "MAX_SEED",
    "BestScale",
    "Bounds",
    "Evaluation",
    "GivenScale",
    "GradientFlow",
    "InContextRegression",
    "LinearAttention",
    "Model",
    "PerTaskAttention",
    "Recipe",
    "ReducedAttention",
    "RegressionRun",
    "Retrieval",
    "RetrievalRun",
    "RunSpec",
    "SoftmaxAttention",
    "SparseFeatures",
    "SparseRun",
    "Spec",
    "Spectrum",
    "StreamAttention",
    "Sweep",
    "Task",
    "Training",
    "Transformer",
    "TransformerRun",
    "Turn",
    "check_value",
    "dotted_paths",
    "field_hints",
    "flat",
    "grid",
    "is_regression",
    "is_retrieval",
    "is_sparse",
    "is_transformer",
    "replace",
    "source_capacity",
]
