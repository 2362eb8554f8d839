"""Families of laws, and `Law`: a family with its parameters and units, without data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import FitError, nearest


@dataclass(frozen=True, kw_only=True)
class Separable:
    r"""A floor and one power law a variable: $L = E + \sum_i c_i x_i^{-a_i}$.

    **Arguments:** `variables` are canonical columns; `coefficients` and `exponents` name
    $c_i > 0$ and $a_i > 0$ in the same order; the floor is always called E.
    """

    name: str
    variables: tuple[str, ...]
    coefficients: tuple[str, ...]
    exponents: tuple[str, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters: the floor, the coefficients, the exponents."""
        return ("E", *self.coefficients, *self.exponents)


def separable(variables: Sequence[str]) -> Separable:
    r"""The family $L = E + \sum_i c_i x_i^{-a_i}$ in any `variables`, with parameters E,
    c_<variable> and a_<variable>.

    **Raises:** `FitError` without variables, or when one occurs twice.
    """
    names = tuple(variables)
    if isinstance(variables, str) or not names or len(set(names)) < len(names):
        raise FitError(
            f"variables: got {variables!r}, expected one or more distinct names, such as "
            "('params', 'tokens')"
        )
    return Separable(
        name="separable",
        variables=names,
        coefficients=tuple(f"c_{name}" for name in names),
        exponents=tuple(f"a_{name}" for name in names),
    )


CHINCHILLA = Separable(
    name="chinchilla",
    variables=("params", "tokens"),
    coefficients=("A", "B"),
    exponents=("alpha", "beta"),
)
r"""$L = E + A\,N^{-\alpha} + B\,D^{-\beta}$ with $N$ parameters and $D$ tokens
(arXiv:2203.15556, equation 2)."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """A law: `family`, the value of each of its `parameters` for raw counts (never millions or
    billions), and the `units` of its variables and of the loss.

    **Raises:** `FitError` if a parameter is missing, unknown or not finite.
    """

    family: Separable
    parameters: Mapping[str, float]
    units: Mapping[str, str]

    def __post_init__(self) -> None:
        wanted = self.family.parameters
        unknown = [name for name in self.parameters if name not in wanted]
        missing = [name for name in wanted if name not in self.parameters]
        if unknown or missing:
            close = nearest(unknown[0], wanted) if unknown else ""
            raise FitError(
                f"parameters: got {', '.join(self.parameters)}; the family {self.family.name} has "
                f"{', '.join(wanted)}{close}"
            )
        for name, value in self.parameters.items():
            if not math.isfinite(value):
                raise FitError(f"parameters.{name}: got {value}, expected a finite number")

    @property
    def vector(self) -> Floats:
        """The parameters in the order of `family.parameters`."""
        return np.array([self.parameters[name] for name in self.family.parameters])

    def loss(self, at: Mapping[str, ArrayLike] | pl.DataFrame) -> Floats:
        """The loss at points `at`: for each variable an array (or a number) of positive raw
        counts; arrays broadcast. Returns the array of losses.

        **Raises:** `FitError` for a missing variable or a value that is not positive.
        """
        return self.parameters["E"] + np.sum(self._terms(self._points(at)), axis=0)

    def gradient(self, at: Mapping[str, ArrayLike] | pl.DataFrame) -> Floats:
        """The derivative of the loss by each parameter, in the order of `family.parameters`, as
        the last axis.

        **Raises:** as `loss`.
        """
        points = self._points(at)
        terms = self._terms(points)
        coefficients = [
            x ** -self.parameters[a] for x, a in zip(points, self.family.exponents, strict=True)
        ]
        exponents = [-np.log(x) * term for x, term in zip(points, terms, strict=True)]
        return np.stack([np.ones_like(terms[0]), *coefficients, *exponents], axis=-1)

    def _points(self, at: Mapping[str, ArrayLike] | pl.DataFrame) -> list[Floats]:
        given = list(at.columns) if isinstance(at, pl.DataFrame) else list(at)
        arrays: list[Floats] = []
        for name in self.family.variables:
            if name not in given:
                raise FitError(
                    f"no value for {name!r}; got {', '.join(given) or 'nothing'}"
                    f"{nearest(name, given)}"
                )
            values = np.asarray(at[name], np.float64)
            if not np.all(values > 0):
                worst = values[~(values > 0)].flat[0]
                raise FitError(f"{name}: got {worst:g}, expected a number > 0")
            arrays.append(values)
        return [np.asarray(x) for x in np.broadcast_arrays(*arrays)]

    def _terms(self, points: Sequence[Floats]) -> list[Floats]:
        p, f = self.parameters, self.family
        return [
            p[c] * x ** -p[a] for c, a, x in zip(f.coefficients, f.exponents, points, strict=True)
        ]
