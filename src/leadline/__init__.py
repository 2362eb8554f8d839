"""Measure what depth, width, context and time buy a transformer.

The table of contents: every public name, imported when it is first used. `import leadline` loads
nothing but this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leadline.claims import Claim, Interval, judge
    from leadline.curve import Curve
    from leadline.diagnosis import Diagnosis, diagnose
    from leadline.ident import run_id
    from leadline.laws import (
        CHINCHILLA,
        KAPLAN,
        AsymmetricAbsolute,
        Fit,
        Huber,
        Law,
        LeastSquares,
        StudentT,
        bootstrap,
        broken,
        custom,
        fit,
        forecast,
        intervals,
        load_law,
        power_law,
        profile,
        read_runs,
        rotated_covariance,
        save_law,
        separable,
        turning,
    )
    from leadline.papers import reproduce
    from leadline.planning.exact import ShapePlan, best_shape
    from leadline.planning.optimum import Plan, plan
    from leadline.report.page import write_report
    from leadline.runs import Runs
    from leadline.simulation.train import program_key, train
    from leadline.spec import (
        BestScale,
        Evaluation,
        GivenScale,
        GradientFlow,
        InContextRegression,
        LinearAttention,
        PerTaskAttention,
        ReducedAttention,
        Retrieval,
        RunSpec,
        SoftmaxAttention,
        SparseFeatures,
        Spectrum,
        StreamAttention,
        Sweep,
        Training,
        Transformer,
        Turn,
        flat,
        grid,
        source_capacity,
    )
    from leadline.sweeps.runner import run_sweep
    from leadline.sweeps.store import Store, load_runs
    from leadline.theory.predict import predict

    __version__: str

__all__ = [
    "CHINCHILLA",
    "KAPLAN",
    "AsymmetricAbsolute",
    "BestScale",
    "Claim",
    "Curve",
    "Diagnosis",
    "Evaluation",
    "Fit",
    "GivenScale",
    "GradientFlow",
    "Huber",
    "InContextRegression",
    "Interval",
    "Law",
    "LeastSquares",
    "LinearAttention",
    "PerTaskAttention",
    "Plan",
    "ReducedAttention",
    "Retrieval",
    "RunSpec",
    "Runs",
    "ShapePlan",
    "SoftmaxAttention",
    "SparseFeatures",
    "Spectrum",
    "Store",
    "StreamAttention",
    "StudentT",
    "Sweep",
    "Training",
    "Transformer",
    "Turn",
    "__version__",
    "best_shape",
    "bootstrap",
    "broken",
    "custom",
    "diagnose",
    "fit",
    "flat",
    "forecast",
    "grid",
    "intervals",
    "judge",
    "load_law",
    "load_runs",
    "plan",
    "power_law",
    "predict",
    "profile",
    "program_key",
    "read_runs",
    "reproduce",
    "rotated_covariance",
    "run_id",
    "run_sweep",
    "save_law",
    "separable",
    "source_capacity",
    "train",
    "turning",
    "write_report",
]

_HOMES = {
    "claims": ("Claim", "Interval", "judge"),
    "curve": ("Curve",),
    "diagnosis": ("Diagnosis", "diagnose"),
    "ident": ("run_id",),
    "laws.artifact": ("load_law", "save_law"),
    "laws.families": ("CHINCHILLA", "Law", "power_law", "separable"),
    "laws.fit": ("Fit", "fit"),
    "laws.forecast": ("forecast",),
    "laws.forms": ("KAPLAN", "broken", "custom", "rotated_covariance", "turning"),
    "laws.intervals": ("bootstrap", "intervals"),
    "laws.objectives": ("AsymmetricAbsolute", "Huber", "LeastSquares", "StudentT"),
    "laws.profiles": ("profile",),
    "laws.read": ("read_runs",),
    "papers": ("reproduce",),
    "planning.exact": ("ShapePlan", "best_shape"),
    "planning.optimum": ("Plan", "plan"),
    "report.page": ("write_report",),
    "runs": ("Runs",),
    "simulation.train": ("program_key", "train"),
    "spec": (
        "BestScale",
        "Evaluation",
        "GivenScale",
        "GradientFlow",
        "InContextRegression",
        "LinearAttention",
        "PerTaskAttention",
        "ReducedAttention",
        "Retrieval",
        "RunSpec",
        "SoftmaxAttention",
        "SparseFeatures",
        "Spectrum",
        "StreamAttention",
        "Sweep",
        "Training",
        "Transformer",
        "Turn",
        "flat",
        "grid",
        "source_capacity",
    ),
    "sweeps.runner": ("run_sweep",),
    "sweeps.store": ("Store", "load_runs"),
    "theory.predict": ("predict",),
}
"""The module of each public name, below `leadline`."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("leadline")
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"leadline.{home}"), name)
    raise AttributeError(f"module 'leadline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
