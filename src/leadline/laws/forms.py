"""Families beyond a separable sum: coupled, broken, turning, tied by theory, and a user's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from leadline.curve import Floats
from leadline.errors import FitError, nearest
from leadline.laws.families import FLATTEST, MAX_STEEPNESS, STEEPEST, Family, PowerSum, distinct

Function = Callable[[Mapping[str, Floats], Mapping[str, float]], Floats]
"""A user's law: columns (row) and parameters by name, to losses (row)."""
Gradient = Callable[[Mapping[str, Floats], Mapping[str, float]], Mapping[str, Floats]]
"""Its derivative by each parameter (row)."""


@dataclass(frozen=True, kw_only=True)
class Coupled(Family):
    r"""Kaplan's coupled law,
    $L = \left[(N_c/N)^{\alpha_N/\alpha_D} + D_c/D\right]^{\alpha_D}$: a power law in parameters
    where tokens abound, in tokens where parameters do, without a floor.

    **Arguments:** `variables` are the two columns, parameters first. The parameters of the law are
    N_c, D_c (raw counts), alpha_N and alpha_D, all > 0.

    Ref: arXiv:2001.08361, equation 1.5.
    """

    name: str = "kaplan"
    variables: tuple[str, ...] = ("params", "tokens")

    @property
    def parameters(self) -> tuple[str, ...]:
        """N_c, D_c, alpha_N, alpha_D."""
        return ("N_c", "D_c", "alpha_N", "alpha_D")

    @property
    def unit_free(self) -> tuple[str, ...]:
        """The exponents."""
        return ("alpha_N", "alpha_D")

    def value(self, points: Floats, parameters: Floats) -> Floats:
        """The loss (lane, row)."""
        _, log_sum, _, _ = self._terms(points, parameters)
        return np.exp(parameters[:, 3:] * log_sum)

    def gradient(self, points: Floats, parameters: Floats) -> Floats:
        """The derivatives of the loss (lane, row, parameter)."""
        n_c, d_c, a_n, a_d = (parameters[:, i, None] for i in range(4))
        ratio, log_sum, first, second = self._terms(points, parameters)
        loss = np.exp(a_d * log_sum)
        # shares of the two terms in the bracket
        one, two = np.exp(first - log_sum), np.exp(second - log_sum)
        return np.stack(
            [
                loss * a_n * one / n_c,
                loss * a_d * two / d_c,
                loss * one * ratio,
                loss * (log_sum - a_n / a_d * one * ratio),
            ],
            axis=2,
        )

    def _terms(self, points: Floats, parameters: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """log(N_c/N), the logarithm of the bracket, and those of its two terms."""
        n_c, d_c, a_n, a_d = (parameters[:, i, None] for i in range(4))
        ratio = np.log(n_c) - np.log(points[0])
        first, second = a_n / a_d * ratio, np.log(d_c) - np.log(points[1])
        return ratio, np.logaddexp(first, second), first, second

    def raw(self, scaled: Floats, centers: Floats, level: float) -> tuple[Floats, Floats]:
        """The parameters for raw counts; scaled are log N_c, log D_c and the exponents."""
        a_n, a_d = scaled[:, 2], scaled[:, 3]
        raw = scaled.copy()
        raw[:, 0] = np.exp(scaled[:, 0] + centers[0] + np.log(level) / a_n)
        raw[:, 1] = np.exp(scaled[:, 1] + centers[1] + np.log(level) / a_d)
        chain = np.zeros((len(scaled), 4, 4))
        chain[:, 0, 0], chain[:, 1, 1] = raw[:, 0], raw[:, 1]
        chain[:, 2, 2] = chain[:, 3, 3] = 1.0
        chain[:, 0, 2] = -raw[:, 0] * np.log(level) / a_n**2
        chain[:, 1, 3] = -raw[:, 1] * np.log(level) / a_d**2
        return raw, chain

    def scaled(self, raw: Floats, centers: Floats, level: float) -> Floats:
        """The scaled parameters; the inverse of `raw`."""
        result = raw.copy()
        result[:, 0] = np.log(raw[:, 0]) - centers[0] - np.log(level) / raw[:, 2]
        result[:, 1] = np.log(raw[:, 1]) - centers[1] - np.log(level) / raw[:, 3]
        return result

    def bounds(self, logs: Floats, smallest: float) -> tuple[Floats, Floats]:
        """Exponents within [1e-3, 10]."""
        return np.array([-300.0, -300.0, 1e-3, 1e-3]), np.array([300.0, 300.0, 10.0, 10.0])

    def search(self, logs: Floats) -> tuple[Floats, Floats]:
        """A bracket of order one, exponents from 0.02 to 2."""
        return np.array([-20.0, -3.0, 0.02, 0.02]), np.array([1.0, 1.0, 2.0, 2.0])


KAPLAN = Coupled()
"""Kaplan's coupled law in parameters and tokens (arXiv:2001.08361, equation 1.5)."""


@dataclass(frozen=True, kw_only=True)
class Broken(Family):
    r"""A smoothly broken power law,
    $L = E + b\,x^{-c_0}\left[1 + (x/d)^{1/f}\right]^{-c_1 f}$: the exponent is $c_0$ below the
    break at $d$ and $c_0 + c_1$ above it, and $f$ is the width of the change in $\log x$.

    **Arguments:** one variable. Bounds: E within [0, smallest loss], b and c_0 >= 0, c_0 + c_1 may
    be negative (the loss turns), d within the data's range, f within [0.02, 5].

    Ref: arXiv:2210.14891, equation 1, with one break.
    """

    name: str = "broken power law"

    @property
    def parameters(self) -> tuple[str, ...]:
        """E, b, c_0, c_1, d, f."""
        return ("E", "b", "c_0", "c_1", "d", "f")

    @property
    def linear(self) -> tuple[str, ...]:
        """The floor and the prefactor."""
        return ("E", "b")

    @property
    def unit_free(self) -> tuple[str, ...]:
        """The exponents and the width of the break."""
        return ("c_0", "c_1", "f")

    def value(self, points: Floats, parameters: Floats) -> Floats:
        """The loss (lane, row)."""
        e, b, c0, c1, _, f = (parameters[:, i, None] for i in range(6))
        logs, _, soft = self._break(points, parameters)
        return e + b * np.exp(-c0 * logs - c1 * f * soft)

    def gradient(self, points: Floats, parameters: Floats) -> Floats:
        """The derivatives of the loss (lane, row, parameter)."""
        _, b, c0, c1, d, f = (parameters[:, i, None] for i in range(6))
        logs, z, soft = self._break(points, parameters)
        above = np.exp(z - soft)
        shape = np.exp(-c0 * logs - c1 * f * soft)
        term = b * shape
        return np.stack(
            [
                np.ones_like(term),
                shape,
                -logs * term,
                -f * soft * term,
                c1 * above * term / d,
                -c1 * (soft - z * above) * term,
            ],
            axis=2,
        )

    def _break(self, points: Floats, parameters: Floats) -> tuple[Floats, Floats, Floats]:
        """The values log x, z = log(x/d)/f and log(1 + e^z)."""
        logs = np.log(points[0])
        z = (logs - np.log(parameters[:, 4, None])) / parameters[:, 5, None]
        return np.broadcast_to(logs, z.shape), z, np.logaddexp(0.0, z)

    def raw(self, scaled: Floats, centers: Floats, level: float) -> tuple[Floats, Floats]:
        """The parameters for raw counts; d is scaled as its logarithm."""
        raw = scaled.copy()
        factor = level * np.exp(scaled[:, 2] * centers[0])
        raw[:, 0] *= level
        raw[:, 1] *= factor
        raw[:, 4] = np.exp(scaled[:, 4] + centers[0])
        chain = np.zeros((len(scaled), 6, 6))
        i = np.arange(6)
        chain[:, i, i] = 1.0
        chain[:, 0, 0], chain[:, 1, 1], chain[:, 4, 4] = level, factor, raw[:, 4]
        chain[:, 1, 2] = raw[:, 1] * centers[0]
        return raw, chain

    def scaled(self, raw: Floats, centers: Floats, level: float) -> Floats:
        """The scaled parameters; the inverse of `raw`."""
        result = raw.copy()
        result[:, 0] /= level
        result[:, 1] *= np.exp(-raw[:, 2] * centers[0]) / level
        result[:, 4] = np.log(raw[:, 4]) - centers[0]
        return result

    def bounds(self, logs: Floats, smallest: float) -> tuple[Floats, Floats]:
        """The bounds stated above."""
        steep = MAX_STEEPNESS / np.abs(logs).max()
        low = np.array([0.0, 0.0, 0.0, -steep, logs.min(), 0.02])
        return low, np.array([smallest, np.inf, steep, steep, logs.max(), 5.0])

    def search(self, logs: Floats) -> tuple[Floats, Floats]:
        """Breaks anywhere in the data, at most as steep as a separable term."""
        reach = float(np.ptp(logs))
        steep = STEEPEST / reach
        low = np.array([0.0, 0.0, FLATTEST / reach, -steep / 2, logs.min(), 0.05])
        return low, np.array([1.0, 1.0, steep, steep, logs.max(), 1.0])


def broken(variable: str) -> Broken:
    """The smoothly broken power law `Broken` in one variable."""
    return Broken(variables=(variable,))


@dataclass(frozen=True, kw_only=True)
class Turning(PowerSum):
    r"""A separable law and a term that rises with depth and falls with width,
    $L = E + \sum_i c_i x_i^{-a_i} + c_\text{turn}\,\text{depth}^{p}\,\text{width}^{-q}$.

    At fixed width the loss is least at the depth
    $[a_\text{depth} c_\text{depth} / (p\,c_\text{turn})]^{1/(a+p)}\,\text{width}^{q/(a+p)}$, with
    $a = a_\text{depth}$; beyond it more layers raise the loss. The critical depth grows as a power
    of the width, as published; this smooth form of it is ours: it is linear in its coefficients,
    closed under a change of units, and `Separable` when c_turn is 0.

    Ref: the critical depth, arXiv:2601.20994.
    """

    def powers(self, exponents: Floats) -> tuple[Floats, Floats]:
        """The separable terms, then depth to p and width to -q."""
        count = len(self.variables)
        slopes = np.zeros((count + 1, count, count + 2))
        i = np.arange(count)
        slopes[i, i, i] = -1.0
        slopes[count, self.variables.index("depth"), count] = 1.0
        slopes[count, self.variables.index("width"), count + 1] = -1.0
        return np.einsum("lq,tvq->ltv", exponents, slopes), np.broadcast_to(
            slopes, (len(exponents), *slopes.shape)
        )

    def _steepest(self, reach: Floats, folds: float) -> Floats:
        pair = [self.variables.index("depth"), self.variables.index("width")]
        return folds / np.concatenate([reach, reach[pair]])


def turning(variables: Sequence[str]) -> Turning:
    """The family `Turning`, with parameters E, c_<variable>, c_turn, a_<variable>, p_turn and
    q_turn.

    **Raises:** `FitError` unless `variables` are distinct and hold "depth" and "width".
    """
    names = distinct(variables)
    if not {"depth", "width"} <= set(names):
        raise FitError(
            f"variables: got {', '.join(names)}; a depth term that turns needs depth and width"
        )
    return Turning(
        name="turning",
        variables=names,
        coefficients=(*(f"c_{name}" for name in names), "c_turn"),
        exponents=(*(f"a_{name}" for name in names), "p_turn", "q_turn"),
    )


def critical_depth(parameters: Mapping[str, float], width: float) -> float:
    """The depth at which the loss of a `Turning` law with these `parameters` is least at `width`;
    infinite where no term rises.
    """
    a, p = parameters["a_depth"], parameters["p_turn"]
    rise = p * parameters["c_turn"] * width ** -parameters["q_turn"]
    return (a * parameters["c_depth"] / rise) ** (1 / (a + p)) if rise > 0 else float("inf")


ROTATED_VARIABLES = ("time", "width", "depth", "context")


@dataclass(frozen=True, kw_only=True)
class RotatedCovariance(PowerSum):
    r"""A separable law whose exponents all follow from two numbers, as the theory of rotated
    covariances has it: time $\beta/(2+\beta)$, width $\nu\min(\beta,1)$, depth $\beta$, context
    $\nu\min(\beta,2)$.

    Fitting it and the free `Separable` law to the same rows tests the theory: the first is the
    second with the exponents tied.

    Ref: arXiv:2510.01098, section 4; docs/theory/rotated.md.
    """

    def powers(self, exponents: Floats) -> tuple[Floats, Floats]:
        """Minus the tied exponents."""
        nu, beta = exponents[:, 0], exponents[:, 1]
        zero, one = np.zeros_like(nu), np.ones_like(nu)
        small, less = np.minimum(beta, 1.0), np.minimum(beta, 2.0)
        known = {
            "time": (beta / (2 + beta), zero, 2 / (2 + beta) ** 2),
            "width": (nu * small, small, nu * (beta < 1)),
            "depth": (beta, zero, one),
            "context": (nu * less, less, nu * (beta < 2)),
        }
        count = len(self.variables)
        powers = np.zeros((len(nu), count, count))
        slopes = np.zeros((len(nu), count, count, 2))
        for i, name in enumerate(self.variables):
            exponent, by_nu, by_beta = known[name]
            powers[:, i, i] = -exponent
            slopes[:, i, i, 0], slopes[:, i, i, 1] = -by_nu, -by_beta
        return powers, slopes

    def tied(self, parameters: Mapping[str, float]) -> dict[str, float]:
        """The exponent of each variable, by its name."""
        powers, _ = self.powers(np.array([[parameters["nu"], parameters["beta"]]]))
        return dict(zip(self.variables, (-np.diag(powers[0])).tolist(), strict=True))

    def _steepest(self, reach: Floats, folds: float) -> Floats:
        del reach
        return np.array([20.0, 20.0]) if folds > 1 else np.array([0.05, 0.05])

    def search(self, logs: Floats) -> tuple[Floats, Floats]:
        """Both numbers from 0.05 to 5."""
        low, high = super().search(logs)
        high[-2:] = 5.0
        return low, high


def rotated_covariance(variables: Sequence[str] = ROTATED_VARIABLES) -> RotatedCovariance:
    """The family `RotatedCovariance` in some of time, width, depth and context, with parameters E,
    c_<variable>, nu and beta.

    **Raises:** `FitError` for a variable that the theory does not know, or when nothing depends on
    nu (neither width nor context is among them).
    """
    names = distinct(variables)
    for name in names:
        if name not in ROTATED_VARIABLES:
            raise FitError(
                f"variables: {name!r} has no exponent in this theory; expected some of "
                f"{', '.join(ROTATED_VARIABLES)}{nearest(name, ROTATED_VARIABLES)}"
            )
    if not {"width", "context"} & set(names):
        raise FitError(
            f"variables: got {', '.join(names)}; nu needs width or context, and the exponents of "
            "time and depth need no tie"
        )
    return RotatedCovariance(
        name="rotated covariance",
        variables=names,
        coefficients=tuple(f"c_{name}" for name in names),
        exponents=("nu", "beta"),
    )


@dataclass(frozen=True, kw_only=True)
class Custom(Family):
    """A user's own law.

    **Arguments:** `function` takes the columns (row) and the parameters, both by name, and returns
    the losses (row); `gradient` its derivatives by parameter, else they are taken by complex steps
    where the function allows, by central differences where it does not; `limits` (low, high) of
    each parameter; `linear_in` names parameters in which the law is linear.
    """

    function: Function = field(repr=False)
    names: tuple[str, ...]
    limits: tuple[tuple[float, float], ...]
    slope: Gradient | None = field(repr=False)
    linear_in: tuple[str, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names given."""
        return self.names

    @property
    def positive(self) -> bool:
        """Variables may be any finite numbers."""
        return False

    @property
    def linear(self) -> tuple[str, ...]:
        """The names given."""
        return self.linear_in

    def value(self, points: Floats, parameters: Floats) -> Floats:
        """The loss (lane, row)."""
        columns = dict(zip(self.variables, points, strict=True))
        return np.array([self._call(columns, lane, points.shape[1]) for lane in parameters])

    def gradient(self, points: Floats, parameters: Floats) -> Floats:
        """The derivatives of the loss (lane, row, parameter)."""
        columns = dict(zip(self.variables, points, strict=True))
        return np.array([self._slopes(columns, lane, points.shape[1]) for lane in parameters])

    def check_gradient(self, points: Floats, parameters: Floats) -> None:
        """Compare the derivatives (parameter) with central differences of the function.

        **Raises:** `FitError` for a parameter whose derivatives differ.
        """
        columns = dict(zip(self.variables, points, strict=True))
        given = self.gradient(points, parameters[None])[0]
        for i, name in enumerate(self.names):
            step = 6e-6 * (abs(parameters[i]) or 1.0)
            move = step * (np.arange(len(parameters)) == i)
            up = self._call(columns, parameters + move, points.shape[1])
            down = self._call(columns, parameters - move, points.shape[1])
            difference = (up - down) / (2 * step)
            # rounding of the two values, far above what the differences lose
            noise = 1e-9 * float(np.abs(up).max()) / step
            size = float(np.linalg.norm(difference))
            if np.linalg.norm(given[:, i] - difference) > 1e-2 * size + noise:
                where = "the gradient given" if self.slope is not None else "the complex step"
                raise FitError(
                    f"{self.name}: {where} of {name} disagrees with differences of the function; "
                    "give a right gradient=, or write the function without abs, real or max"
                )

    def _call(self, columns: Mapping[str, Floats], lane: Floats, rows: int) -> Floats:
        values = np.asarray(self.function(columns, dict(zip(self.names, lane, strict=True))))
        if values.shape not in ((), (rows,)):
            raise FitError(
                f"{self.name}: the function returned shape {values.shape} for {rows} rows"
            )
        return np.broadcast_to(values, (rows,))

    def _slopes(self, columns: Mapping[str, Floats], lane: Floats, rows: int) -> Floats:
        if self.slope is not None:
            given = self.slope(columns, dict(zip(self.names, lane, strict=True)))
            return np.stack([np.broadcast_to(given[n], (rows,)) for n in self.names], axis=1)
        with warnings.catch_warnings():
            return self._steps(columns, lane, rows)

    def _steps(self, columns: Mapping[str, Floats], lane: Floats, rows: int) -> Floats:
        """Complex steps, or central differences where the function does not allow them."""
        result = np.empty((rows, len(lane)))
        value = self._call(columns, lane, rows)
        for i, at in enumerate(lane):
            step = 1e-20 * (abs(at) or 1.0)
            try:
                # a function that drops the imaginary part would have no derivative
                warnings.simplefilter("error", np.exceptions.ComplexWarning)
                moved = self._call(columns, lane + 1j * step * (np.arange(len(lane)) == i), rows)
                good = np.iscomplexobj(moved) and np.allclose(moved.real, value, equal_nan=True)
            except (TypeError, np.exceptions.ComplexWarning):
                moved, good = value, False
            if good:
                result[:, i] = moved.imag / step
                continue
            step = 6e-6 * (abs(at) or 1.0)
            move = step * (np.arange(len(lane)) == i)
            up, down = (
                self._call(columns, lane + move, rows),
                self._call(columns, lane - move, rows),
            )
            result[:, i] = (up - down) / (2 * step)
        return result

    def bounds(self, logs: Floats, smallest: float) -> tuple[Floats, Floats]:
        """The limits given."""
        low, high = np.array(self.limits).T
        return low, high

    def search(self, logs: Floats) -> tuple[Floats, Floats]:
        """The limits given; starts can be drawn only where they are finite."""
        return self.bounds(logs, 0.0)


def custom(
    function: Function,
    parameters: Sequence[str],
    variables: Sequence[str],
    *,
    name: str = "custom",
    bounds: Mapping[str, tuple[float, float]] | None = None,
    gradient: Gradient | None = None,
    linear: Sequence[str] = (),
) -> Custom:
    """A family from a user's `function(columns, parameters) -> losses`, both by name.

    A fit searches where every parameter that is not in `linear` has finite `bounds`; otherwise it
    needs `starts`.

    **Raises:** `FitError` for names that occur twice or are unknown, or bounds that are not low <
    high.
    """
    names, columns = distinct(parameters), distinct(variables)
    given = dict(bounds or {})
    for key in (*given, *linear):
        if key not in names:
            raise FitError(
                f"{key!r} is no parameter of {name}; it has {', '.join(names)}{nearest(key, names)}"
            )
    for key, (low, high) in given.items():
        if not low < high:
            raise FitError(f"bounds of {key}: got {low}, {high}; expected low < high")
    return Custom(
        name=name,
        variables=columns,
        function=function,
        names=names,
        limits=tuple(given.get(n, (-np.inf, np.inf)) for n in names),
        slope=gradient,
        linear_in=tuple(linear),
    )
