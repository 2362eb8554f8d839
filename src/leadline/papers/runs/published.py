"""What was published on the bundled tables, as printed."""

from __future__ import annotations

import math

from leadline.laws.families import CHINCHILLA, Law

NAME = "runs"
HOFFMANN = "arXiv:2203.15556"
BESIROGLU = "arXiv:2404.10102"
GEMSTONES = "arXiv:2502.06857"


def _chinchilla(**parameters: float) -> Law:
    return Law(
        family=CHINCHILLA,
        parameters=parameters,
        units={"params": "parameters", "tokens": "tokens", "loss": "nats"},
    )


LAWS: dict[str, Law] = {
    "Hoffmann, as printed": _chinchilla(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
    # the source of the paper has the logarithms
    "Hoffmann, from the source": _chinchilla(
        E=math.exp(0.5267228),
        A=math.exp(6.0073404),
        B=math.exp(6.0179186),
        alpha=0.33917084,
        beta=0.2849083,
    ),
    "Besiroglu": _chinchilla(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
}
"""Laws of the points in `chinchilla_epoch.csv`."""

BESIROGLU_95: dict[str, tuple[float, float]] = {
    "E": (1.769, 1.871),
    "alpha": (0.317, 0.373),
    "beta": (0.331, 0.415),
}
"""95% intervals of 4,000 bootstraps in the notebook of that replication."""

KYOTAKANO = _chinchilla(E=1.70042, A=185.373, B=1626.858, alpha=0.28923, beta=0.3556)
"""The law in the README of the package chinchilla, by its mean asymmetric absolute error."""

GEMSTONES_EXPONENTS: dict[int, dict[str, float]] = {
    2: {"a_params": 0.2929, "a_tokens": 0.713},
    4: {"a_width": 0.2447, "a_depth": 0.3872, "a_params": 0.5001, "a_tokens": 0.4761},
}
"""Published exponents by the number of terms."""
