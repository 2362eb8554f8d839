"""Families of laws that are a floor and a sum of power laws, and `Law`: a family with its
parameters and units, without data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from leadline.curve import Floats
from leadline.errors import FitError, nearest

MAX_STEEPNESS = 50.0
"""Largest exponent times the largest centered logarithm, so that no term overflows."""
FLATTEST, STEEPEST = 0.1, 16.0
"""E-folds of a term over the range of its variable between which starts are drawn: from nearly a
logarithm to a term that only the smallest sizes feel."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A law up to its parameters: what a fit needs to know of it.

    A fit works on *scaled* parameters: those of the same law with each variable divided by its
    geometric mean and the loss by its own, which makes every one of order one. The base class is
    for families that are not closed under a change of units; their scaled parameters are the
    parameters.

    **Arguments:** `name`; `variables` are columns of the table. Points are arrays (variable, row),
    parameters arrays (lane, parameter): a lane is one parameter set.
    """

    name: str
    variables: tuple[str, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters."""
        raise NotImplementedError

    @property
    def positive(self) -> bool:
        """Whether the variables must be > 0."""
        return True

    @property
    def linear(self) -> tuple[str, ...]:
        """The parameters in which the law is linear, given the others."""
        return ()

    @property
    def unit_free(self) -> tuple[str, ...]:
        """The parameters that a change of units leaves alone, such as exponents."""
        return self.parameters

    def value(self, points: Floats, parameters: Floats) -> Floats:
        """The loss (lane, row)."""
        raise NotImplementedError

    def gradient(self, points: Floats, parameters: Floats) -> Floats:
        """The derivatives of the loss (lane, row, parameter)."""
        raise NotImplementedError

    def raw(self, scaled: Floats, centers: Floats, level: float) -> tuple[Floats, Floats]:
        """The parameters for raw counts and their derivatives (lane, parameter, scaled).

        **Arguments:** `centers` (variable) logarithms of the geometric means, `level` that of the
        loss.
        """
        del centers, level
        return scaled, np.broadcast_to(np.eye(scaled.shape[1]), (*scaled.shape, scaled.shape[1]))

    def scaled(self, raw: Floats, centers: Floats, level: float) -> Floats:
        """The scaled parameters; the inverse of `raw`."""
        del centers, level
        return raw

    def bounds(self, logs: Floats, smallest: float) -> tuple[Floats, Floats]:
        """The bounds (parameter) of the scaled parameters.

        **Arguments:** `logs` (variable, row) centered logarithms; `smallest` the smallest loss,
        scaled.
        """
        raise NotImplementedError

    def search(self, logs: Floats) -> tuple[Floats, Floats]:
        """The box of scaled parameters in which starts are drawn. Linear parameters are solved
        for instead.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PowerSum(Family):
    r"""A floor and a sum of monomials, $L = E + \sum_t c_t \prod_v x_v^{p_{tv}}$.

    The powers $p_{tv}$ follow from the parameters `exponents`; several powers may share one.

    **Arguments:** `coefficients` name $c_t \ge 0$ (a term), `exponents` what the powers depend on;
    the floor is called E, and without `floor` there is none.
    """

    coefficients: tuple[str, ...]
    exponents: tuple[str, ...]
    floor: bool = True

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters: the floor, the coefficients, the exponents."""
        return (*(("E",) if self.floor else ()), *self.coefficients, *self.exponents)

    @property
    def linear(self) -> tuple[str, ...]:
        """The floor and the coefficients."""
        return (*(("E",) if self.floor else ()), *self.coefficients)

    @property
    def unit_free(self) -> tuple[str, ...]:
        """The exponents."""
        return self.exponents

    def powers(self, exponents: Floats) -> tuple[Floats, Floats]:
        """The powers (lane, term, variable), and their derivatives (lane, term, variable,
        exponent).
        """
        raise NotImplementedError

    def value(self, points: Floats, parameters: Floats) -> Floats:
        """The loss (lane, row)."""
        floor, coefficients, exponents = self._split(parameters)
        powers, _ = self.powers(exponents)
        terms = coefficients[:, :, None] * np.exp(powers @ np.log(points))
        return floor[:, None] + terms.sum(axis=1)

    def gradient(self, points: Floats, parameters: Floats) -> Floats:
        """The derivatives of the loss (lane, row, parameter)."""
        _, coefficients, exponents = self._split(parameters)
        powers, slopes = self.powers(exponents)
        logs = np.log(points)
        basis = np.exp(powers @ logs)
        terms = coefficients[:, :, None] * basis
        shape = np.einsum("ltvq,lt,ltr,vr->lrq", slopes, coefficients, basis, logs, optimize=True)
        first = [np.ones((*terms[:, 0].shape, 1))] if self.floor else []
        return np.concatenate([*first, basis.swapaxes(1, 2), shape], axis=2)

    def raw(self, scaled: Floats, centers: Floats, level: float) -> tuple[Floats, Floats]:
        """The parameters for raw counts and their derivatives (lane, parameter, scaled)."""
        _, coefficients, exponents = self._split(scaled)
        powers, slopes = self.powers(exponents)
        first, terms = int(self.floor), len(self.coefficients)
        # the coefficient of an ill-posed draw may leave the range of doubles: it stays at the end
        factor = level * np.exp(np.minimum(-(powers @ centers), 700.0))
        raw = scaled.copy()
        raw[:, :first] *= level
        raw[:, first : first + terms] *= factor
        chain = np.zeros((*scaled.shape, scaled.shape[1]))
        i = np.arange(scaled.shape[1])
        chain[:, i, i] = 1.0
        chain[:, :first, :first] *= level
        t = np.arange(first, first + terms)
        chain[:, t, t] = factor
        chain[:, first : first + terms, first + terms :] = -(coefficients * factor)[
            :, :, None
        ] * np.einsum("ltvq,v->ltq", slopes, centers)
        return raw, chain

    def scaled(self, raw: Floats, centers: Floats, level: float) -> Floats:
        """The scaled parameters; the inverse of `raw`."""
        _, _, exponents = self._split(raw)
        powers, _ = self.powers(exponents)
        first, terms = int(self.floor), len(self.coefficients)
        result = raw.copy()
        result[:, :first] /= level
        result[:, first : first + terms] *= np.exp(powers @ centers) / level
        return result

    def bounds(self, logs: Floats, smallest: float) -> tuple[Floats, Floats]:
        """Floor within [0, smallest loss], coefficients and exponents not negative, exponents
        below `MAX_STEEPNESS` over the largest centered logarithm.
        """
        first, terms = int(self.floor), len(self.coefficients)
        low = np.zeros(len(self.parameters))
        high = np.full(len(self.parameters), np.inf)
        high[:first] = smallest
        high[first + terms :] = self._steepest(np.abs(logs).max(axis=1), MAX_STEEPNESS)
        return low, high

    def search(self, logs: Floats) -> tuple[Floats, Floats]:
        """Exponents from 0.1 to 16 e-folds over the range of their variable."""
        reach = np.ptp(logs, axis=1)
        first = int(self.floor) + len(self.coefficients)
        low, high = np.zeros(len(self.parameters)), np.ones(len(self.parameters))
        low[first:] = self._steepest(reach, FLATTEST)
        high[first:] = self._steepest(reach, STEEPEST)
        return low, high

    def _steepest(self, reach: Floats, folds: float) -> Floats:
        """The value of each exponent that makes `folds` e-folds over the logarithmic range `reach`
        of its variable.
        """
        return folds / reach

    def _split(self, parameters: Floats) -> tuple[Floats, Floats, Floats]:
        first, terms = int(self.floor), len(self.coefficients)
        floor = parameters[:, 0] if self.floor else np.zeros(len(parameters))
        return floor, parameters[:, first : first + terms], parameters[:, first + terms :]


@dataclass(frozen=True, kw_only=True)
class Separable(PowerSum):
    r"""A floor and one power law a variable: $L = E + \sum_i c_i x_i^{-a_i}$.

    **Arguments:** `variables` are canonical columns; `coefficients` and `exponents` name
    $c_i > 0$ and $a_i > 0$ in the same order; the floor is always called E, and without `floor`
    there is none.
    """

    def powers(self, exponents: Floats) -> tuple[Floats, Floats]:
        """Each term has one variable, to minus its exponent."""
        one = np.eye(len(self.variables))
        slopes = -(one[:, :, None] * one[:, None, :])
        return -exponents[:, :, None] * one, np.broadcast_to(
            slopes, (len(exponents), *slopes.shape)
        )


def separable(variables: Sequence[str], *, floor: bool = True) -> Separable:
    r"""The family $L = E + \sum_i c_i x_i^{-a_i}$ in any `variables`, with parameters E,
    c_<variable> and a_<variable>; without `floor` there is no E.

    **Raises:** `FitError` without variables, or when one occurs twice.
    """
    names = distinct(variables)
    return Separable(
        name="separable",
        variables=names,
        coefficients=tuple(f"c_{name}" for name in names),
        exponents=tuple(f"a_{name}" for name in names),
        floor=floor,
    )


def power_law(variable: str, *, floor: bool = True) -> Separable:
    r"""One power law, $L = E + c\,x^{-a}$, in one variable, with parameters E, c and a; without
    `floor` there is no E.
    """
    return Separable(
        name="power law",
        variables=(variable,),
        coefficients=("c",),
        exponents=("a",),
        floor=floor,
    )


def distinct(variables: Sequence[str]) -> tuple[str, ...]:
    """`variables` as a tuple.

    **Raises:** `FitError` without variables, or when one occurs twice.
    """
    names = tuple(variables)
    if isinstance(variables, str) or not names or len(set(names)) < len(names):
        raise FitError(
            f"variables: got {variables!r}, expected one or more distinct names, such as "
            "('params', 'tokens')"
        )
    return names


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

    family: Family
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
    def equation(self) -> str:
        """The law in one line, for raw counts."""
        p, family = self.parameters, self.family
        if not isinstance(family, Separable):
            values = ", ".join(f"{name} = {value:.4g}" for name, value in p.items())
            return f"loss = {family.name} law of {', '.join(family.variables)}: {values}"
        terms = [
            f"{p[c]:.4g} {v}^-{p[a]:.4f}"
            for c, a, v in zip(family.coefficients, family.exponents, family.variables, strict=True)
        ]
        return "loss = " + " + ".join([*([f"{p['E']:.4f}"] if family.floor else []), *terms])

    @property
    def vector(self) -> Floats:
        """The parameters in the order of `family.parameters`."""
        return np.array([self.parameters[name] for name in self.family.parameters])

    def loss(self, at: Mapping[str, ArrayLike] | pl.DataFrame) -> Floats:
        """The loss at points `at`: for each variable an array (or a number) of raw counts, which
        broadcast. Returns the array of losses.

        **Raises:** `FitError` for a missing variable or, in a family of powers, a value that is
        not positive.
        """
        points, shape = self._points(at)
        return self.family.value(points, self.vector[None])[0].reshape(shape)

    def gradient(self, at: Mapping[str, ArrayLike] | pl.DataFrame) -> Floats:
        """The derivative of the loss by each parameter, in the order of `family.parameters`, as
        the last axis.

        **Raises:** as `loss`.
        """
        points, shape = self._points(at)
        return self.family.gradient(points, self.vector[None])[0].reshape(*shape, -1)

    def _points(self, at: Mapping[str, ArrayLike] | pl.DataFrame) -> tuple[Floats, tuple[int, ...]]:
        given = list(at.columns) if isinstance(at, pl.DataFrame) else list(at)
        arrays: list[Floats] = []
        for name in self.family.variables:
            if name not in given:
                raise FitError(
                    f"no value for {name!r}; got {', '.join(given) or 'nothing'}"
                    f"{nearest(name, given)}"
                )
            values = np.asarray(at[name], np.float64)
            good = values > 0 if self.family.positive else np.isfinite(values)
            if not np.all(good):
                wanted = "number > 0" if self.family.positive else "finite number"
                raise FitError(f"{name}: got {values[~good].flat[0]:g}, expected a {wanted}")
            arrays.append(values)
        full = np.broadcast_arrays(*arrays)
        return np.array([x.ravel() for x in full]), full[0].shape
