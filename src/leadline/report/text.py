"""Results in one line of text, for a terminal as for a page."""

from __future__ import annotations

from leadline.laws.families import Separable
from leadline.laws.fit import Fit


def equation(fit: Fit) -> str:
    """The law in one line, for raw counts."""
    p, family = fit.law.parameters, fit.law.family
    if not isinstance(family, Separable):
        values = ", ".join(f"{name} = {value:.4g}" for name, value in p.items())
        return f"loss = {family.name} law of {', '.join(family.variables)}: {values}"
    terms = [
        f"{p[c]:.4g} {v}^-{p[a]:.4f}"
        for c, a, v in zip(family.coefficients, family.exponents, family.variables, strict=True)
    ]
    return "loss = " + " + ".join([*([f"{p['E']:.4f}"] if family.floor else []), *terms])
