"""From a table of runs to a law, its intervals and its status (NumPy, no JAX)."""

from leadline.laws.families import CHINCHILLA, Law, Separable, separable
from leadline.laws.fit import Fit, Huber, fit
from leadline.laws.intervals import bootstrap, intervals
from leadline.laws.read import drop_largest_losses, read_runs

__all__ = [
    "CHINCHILLA",
    "Fit",
    "Huber",
    "Law",
    "Separable",
    "bootstrap",
    "drop_largest_losses",
    "fit",
    "intervals",
    "read_runs",
    "separable",
]
