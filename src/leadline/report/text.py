"""Results in one line of text, for a terminal as for a page."""

from __future__ import annotations

from leadline.laws.fit import Fit


def equation(fit: Fit) -> str:
    """The law in one line, for raw counts."""
    p, family = fit.law.parameters, fit.law.family
    terms = [
        f"{p[c]:.4g} {v}^-{p[a]:.4f}"
        for c, a, v in zip(family.coefficients, family.exponents, family.variables, strict=True)
    ]
    return f"loss = {p['E']:.4f} + " + " + ".join(terms)
