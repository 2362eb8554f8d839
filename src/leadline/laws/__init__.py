"""From a table of runs to a law, its intervals and its status (NumPy, no JAX)."""

from leadline.laws.artifact import SavedFit, load_law, save_law
from leadline.laws.families import CHINCHILLA, Family, Law, Separable, power_law, separable
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
from leadline.laws.intervals import bootstrap, intervals
from leadline.laws.objectives import AsymmetricAbsolute, Huber, LeastSquares, StudentT
from leadline.laws.profiles import Profile, profile
from leadline.laws.read import drop_largest_losses, read_runs

__all__ = [
    "CHINCHILLA",
    "KAPLAN",
    "AsymmetricAbsolute",
    "Family",
    "Fit",
    "Huber",
    "Law",
    "LeastSquares",
    "Profile",
    "SavedFit",
    "Separable",
    "StudentT",
    "bootstrap",
    "broken",
    "critical_depth",
    "custom",
    "drop_largest_losses",
    "fit",
    "forecast",
    "intervals",
    "load_law",
    "power_law",
    "profile",
    "read_runs",
    "rotated_covariance",
    "save_law",
    "separable",
    "turning",
]
