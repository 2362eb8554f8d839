"""From a table of runs to a law, its intervals and its status (NumPy, no JAX)."""

from leadline.laws.artifact import SavedFit, load_law, save_law
from leadline.laws.compare import compare, likelihood_ratio
from leadline.laws.doctor import best_over, inspect_runs
from leadline.laws.families import CHINCHILLA, Family, Law, Separable, power_law, separable
from leadline.laws.findings import Finding
from leadline.laws.fit import Fit, fit
from leadline.laws.forecast import forecast
from leadline.laws.forms import (
    KAPLAN,
    broken,
    critical_depth,
    custom,
    rotated_covariance,
    turning,
)
from leadline.laws.identify import explain, inspect_law, parabola_bias
from leadline.laws.intervals import bootstrap, intervals, jackknife
from leadline.laws.objectives import AsymmetricAbsolute, Huber, LeastSquares, StudentT
from leadline.laws.profiles import Profile, profile
from leadline.laws.read import drop_largest_losses, read_runs

__all__ = [
    "CHINCHILLA",
    "KAPLAN",
    "AsymmetricAbsolute",
    "Family",
    "Finding",
    "Fit",
    "Huber",
    "Law",
    "LeastSquares",
    "Profile",
    "SavedFit",
    "Separable",
    "StudentT",
    "best_over",
    "bootstrap",
    "broken",
    "compare",
    "critical_depth",
    "custom",
    "drop_largest_losses",
    "explain",
    "fit",
    "forecast",
    "inspect_law",
    "inspect_runs",
    "intervals",
    "jackknife",
    "likelihood_ratio",
    "load_law",
    "parabola_bias",
    "power_law",
    "profile",
    "read_runs",
    "rotated_covariance",
    "save_law",
    "separable",
    "turning",
]
