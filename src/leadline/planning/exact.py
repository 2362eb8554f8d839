r"""The best shape for a budget, from the exact theory of in-context regression.

For rotated covariances the loss of a model of width $N$ and depth $L$ on contexts of $P$ examples,
trained for the time $t$, is known (`leadline.theory.equivalents`), so the shape can be found
without a fitted law, and without the assumption that four terms add:

$$\min\ \mathcal L(t, N, L, P)\quad\text{at}\quad t\,P^2N^2L = C.$$

The stream keeps the power of the inputs: $A = \sqrt{D/N}$ times an orthogonal projection, so that
$\frac1D\operatorname{Tr}B = 1$ and time does not depend on how large $D$ is against $N$. Time is
that of the scalar flow in this normalization: $(N/D)^2$ times that of the bare projection.

Derived in docs/theory/equivalents.md, "The best shape". Ref: arXiv:2510.01098, Result 8.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from leadline.display import Card, Shown, short
from leadline.errors import PlanError, SolverError, nearest
from leadline.planning.optimum import MONOMIAL_COSTS, Optimum, power_law_optimum
from leadline.spec import InContextRegression, Spectrum
from leadline.theory import landscape as sums
from leadline.theory.compression import Population, compressed
from leadline.theory.equivalents import landscape, landscape_error
from leadline.theory.finite import best_scale, flow_scale
from leadline.theory.limits import (
    context_law,
    context_limit,
    deep_limit,
    width_law,
    width_limit,
)
from leadline.theory.rotated import depth_law, time_law
from leadline.theory.rotated import flow_scale as endless_flow
from leadline.theory.spectra import power_law_modes
from leadline.theory.streams import Stream, edge

RESOURCES: tuple[str, ...] = ("steps", "width", "depth", "context")
SHARE = 4
"""Width and context up to dim / SHARE: beyond that the end of the spectrum is felt."""
ROUGH = 1e-5
ROUGH_DIGITS = 6.0
FIRST_MOVE, LAST_MOVE = 0.7, 0.02
"""Relative changes of a size that the search tries, in ln."""
MIDDLING = [4.0, 4.0, 4.0]
"""Where the search starts without laws."""


@dataclass(frozen=True, kw_only=True)
class ShapePlan(Shown):
    r"""The best shape for a budget, and what the sum of four power laws would have advised.

    **Arguments:**
    - `sizes`: "steps" (the time $t$, real), "width", "depth", "context" (whole); they spend
      `budget` exactly under the convention `cost`.
    - `loss` there, its numerical error `loss_error`, and the scale `gamma` reached, as a part
      `gamma_over_edge` of the edge of stability.
    - `alone`: the loss that each resource would leave if the others were infinite.
    - `additive`: the optimum of the sum of the four asymptotic laws, in the order of `sizes`; None
      where one of them is no power law. `additive_sizes`: the same, rounded; `additive_loss` the
      exact loss of that shape.
    - `notes`: what to know before spending the budget.
    """

    budget: float
    cost: str
    sizes: Mapping[str, float]
    loss: float
    loss_error: float
    gamma: float
    gamma_over_edge: float
    alone: Mapping[str, float]
    additive: Optimum | None
    additive_sizes: Mapping[str, float]
    additive_loss: float
    notes: tuple[str, ...]

    def card(self) -> Card:
        """The best shape beside the one that the sum of four laws advises."""
        advised = {**self.additive_sizes, "loss": self.additive_loss} if self.additive else {}
        rows = [
            [name, short(value), short(advised[name]) if advised else ""]
            for name, value in {**self.sizes, "loss": self.loss}.items()
        ]
        return Card(
            title=f"best shape for {short(self.budget)} FLOPs ({self.cost}), exact theory",
            columns=("quantity", "best", "sum of four laws"),
            rows=rows,
            notes=[
                f"gamma {short(self.gamma)}, {self.gamma_over_edge:.0%} of the edge of stability",
                *self.notes,
            ],
        )


def best_shape(task: InContextRegression, budget: float, *, cost: str) -> ShapePlan:
    r"""The width, depth, context (whole numbers) and time of least loss at `budget`.

    The search starts at the optimum of the sum of the four laws and moves one or two sizes at a
    time, time taking what the budget leaves.

    **Arguments:** `task` with rotated covariance and infinite `context` (which is what is looked
    for); `budget` in the unit of the convention `cost` of `MONOMIAL_COSTS`, which must count
    steps, width, depth and context.

    **Raises:** `PlanError` for another task or convention, a budget below that of the smallest
    shape (one of each), and where the best width or context exceeds a quarter of the dimension:
    the message says which dimension is needed. `SolverError` where the spectrum has no finite
    trace.
    """
    prefactor, powers = _cost(cost)
    _check(task)
    if not (math.isfinite(budget) and budget >= prefactor):
        raise PlanError(
            f"budget: got {budget:g}, expected a finite number >= {prefactor:g}, the cost of the "
            "smallest shape (one step, width, layer and example)"
        )
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # many small products: more threads only wait for each other
        return _best_shape(task, budget, cost, powers, budget / prefactor)


def _best_shape(
    task: InContextRegression, budget: float, cost: str, powers: list[float], amount: float
) -> ShapePlan:
    """The plan of checked arguments; `amount` is the budget in the product of powers."""
    spectrum, noise = task.spectrum, task.noise
    additive, notes = _additive(spectrum, powers, amount)
    search = _Search(spectrum, noise, powers, amount)
    advised = search.affordable(MIDDLING if additive is None else additive.resources[1:].tolist())
    shape = search.best(advised)
    if max(shape[0], shape[2]) > spectrum.dim / SHARE:
        _refuse(spectrum, noise, powers, amount, shape)
    time = search.time(shape)
    stream = _stream(compressed(spectrum), shape)
    unit = stream.mean  # of gamma in the normalized stream
    gamma, gamma_error = flow_scale(stream, [time * unit**-2], depth=shape[1], noise=noise)
    loss, slope = landscape(stream, gamma, depth=shape[1], noise=noise)
    error = landscape_error(stream, gamma, depth=shape[1], noise=noise)
    end = edge(stream)
    sizes = dict(zip(RESOURCES, (time, *shape), strict=True))
    if noise:
        notes.append("label noise is in the loss, not in the four laws")
    return ShapePlan(
        budget=budget,
        cost=cost,
        sizes=sizes,
        loss=float(loss[0]),
        loss_error=float(error[0] + 2 * abs(slope[0]) * gamma_error[0]),
        gamma=float(gamma[0]) * unit,
        gamma_over_edge=float(gamma[0]) * end / (2 * shape[1]),
        alone=alone(spectrum, sizes),
        additive=additive,
        additive_sizes={}
        if additive is None
        else dict(zip(RESOURCES, (search.time(advised), *advised), strict=True)),
        additive_loss=math.nan if additive is None else search.loss(advised),
        notes=tuple(notes),
    )


@dataclass(frozen=True, kw_only=True)
class Additivity:
    r"""What a width, a context and a depth leave together after infinite time, and each alone.

    **Arguments:** `loss` at the best scale `gamma`; `gamma_over_edge` where that lies;
    `deep_limit` the joint limit at infinite depth and scale, which diverges where width equals
    context; `alone`, the losses "width", "depth", "context" of each resource when the others are
    infinite. A sum of power laws would have `loss` near the sum of `alone`.
    """

    loss: float
    gamma: float
    gamma_over_edge: float
    deep_limit: float
    alone: Mapping[str, float]


def additivity(task: InContextRegression, *, width: int, depth: int, context: int) -> Additivity:
    """How far the loss of one shape is from a sum of its parts.

    **Arguments:** as for `best_shape`; width and context of at least one.
    """
    _check(task)
    sizes = (width, depth, context)
    stream = _stream(compressed(task.spectrum), sizes)
    gamma = best_scale(stream, depth=depth, noise=task.noise)
    loss, _ = landscape(stream, gamma, depth=depth, noise=task.noise)
    parts = alone(task.spectrum, dict(zip(RESOURCES[1:], sizes, strict=True)))
    return Additivity(
        loss=float(loss),
        gamma=gamma * stream.mean,
        gamma_over_edge=gamma * edge(stream) / (2 * depth),
        deep_limit=deep_limit(stream),
        alone=parts,
    )


def _cost(cost: str) -> tuple[float, list[float]]:
    """Prefactor and the powers of `RESOURCES` in a convention."""
    if cost not in MONOMIAL_COSTS:
        raise PlanError(
            f"cost: {cost!r} is no product of powers; expected one of "
            f"{', '.join(MONOMIAL_COSTS)}{nearest(cost, MONOMIAL_COSTS)}"
        )
    prefactor, powers = MONOMIAL_COSTS[cost]
    if sorted(powers) != sorted(RESOURCES):
        raise PlanError(
            f"cost {cost!r} counts {', '.join(powers)}; exact theory has {', '.join(RESOURCES)}"
        )
    return prefactor, [powers[name] for name in RESOURCES]


def _check(task: InContextRegression) -> None:
    if task.covariance != "rotated":
        raise PlanError(
            f"task.covariance: got {task.covariance!r}, expected 'rotated', whose loss at finite "
            "width and context is known"
        )
    if not math.isinf(task.context):
        raise PlanError(
            f"task.context: got {task.context}, expected infinity: the context is one of the sizes "
            "looked for"
        )


def _additive(
    spectrum: Spectrum, powers: list[float], amount: float
) -> tuple[Optimum | None, list[str]]:
    """The optimum of the sum of the four asymptotic laws, or why there is none."""
    endless = dataclasses.replace(spectrum, dim=math.inf)
    try:
        laws = [f(endless) for f in (time_law, width_law, depth_law, context_law)]
    except SolverError as refusal:
        return None, [f"no sum of power laws to compare with: {refusal}"]
    best = power_law_optimum(
        [law.prefactor for law in laws], [law.exponent for law in laws], powers, amount
    )
    return best, []


def alone(spectrum: Spectrum, sizes: Mapping[str, float]) -> dict[str, float]:
    """The loss that each resource of `sizes` leaves if the others are infinite: "width", "depth",
    "context", and, where it is among them, "steps", the time of the scalar flow.
    """
    modes, points = power_law_modes(spectrum), compressed(spectrum)
    found: dict[str, float] = {}
    if "steps" in sizes:
        gamma, _ = endless_flow(modes, [sizes["steps"]], depth=math.inf)
        found["steps"] = float(sums.loss(modes, gamma, depth=math.inf)[0])
    found["width"] = width_limit(points, sizes["width"])
    gamma = sums.best_scale(modes, depth=sizes["depth"])
    found["depth"] = float(sums.loss(modes, gamma, depth=sizes["depth"]))
    found["context"] = context_limit(points, sizes["context"])
    return found


Shape = tuple[int, int, int]
"""Width, depth, context."""


def _stream(modes: Population, shape: Shape) -> Stream:
    """The stream of a shape. In infinite dimension the normalized projection acts like a Gaussian
    matrix.
    """
    width, _, context = shape
    kind = "gaussian" if math.isinf(modes.dim) else "orthogonal"
    return Stream(modes=modes, context=context, width=width, projection=kind)


class _Search:
    """The loss of shapes of one budget, each computed once."""

    def __init__(
        self, spectrum: Spectrum, noise: float, powers: list[float], amount: float
    ) -> None:
        self._modes = compressed(spectrum, digits=ROUGH_DIGITS)
        self._noise = noise
        self._powers = powers
        self._amount = amount
        self._known: dict[Shape, float] = {}

    def time(self, shape: Shape) -> float:
        """What the budget leaves for time."""
        spent = math.prod(float(n) ** a for n, a in zip(shape, self._powers[1:], strict=True))
        return (self._amount / spent) ** (1 / self._powers[0])

    def loss(self, shape: Shape) -> float:
        if shape not in self._known:
            self._known[shape] = self._solve(shape)
        return self._known[shape]

    def _solve(self, shape: Shape) -> float:
        width, depth, _ = shape
        if min(shape) < 1 or width > self._modes.dim or self.time(shape) < 1:
            return math.inf
        stream = _stream(self._modes, shape)
        gamma, _ = flow_scale(
            stream,
            [self.time(shape) / stream.mean**2],
            depth=depth,
            noise=self._noise,
            tolerance=ROUGH,
        )
        loss, _ = landscape(stream, gamma, depth=depth, noise=self._noise, tolerance=ROUGH)
        return float(loss[0])

    def affordable(self, sizes: list[float]) -> Shape:
        """`sizes`, rounded, and reduced until a unit of time is left."""
        width, depth, context = (max(1, round(n)) for n in sizes)
        while self.time((width, depth, context)) < 1:
            width, depth, context = (max(1, int(n / 1.2)) for n in (width, depth, context))
        return int(min(width, self._modes.dim)), depth, context

    def best(self, start: Shape) -> Shape:
        """The shape of least loss, by moves of one size at a time that shrink by half, and along
        the last improvement.
        """
        center, move = start, FIRST_MOVE
        while move > LAST_MOVE:
            before = center
            for axis in range(3):
                for sign in (1, -1):
                    trial = _moved(center, axis, sign * move)
                    if self.loss(trial) < self.loss(center):
                        center = trial
                        break
            if center == before:
                move /= 2
        return center


def _moved(shape: Shape, axis: int, move: float) -> Shape:
    """`shape` with one size changed by the factor e^`move`, by one at least."""
    size = round(shape[axis] * math.exp(move))
    if size == shape[axis]:
        size += 1 if move > 0 else -1
    sizes = list(shape)
    sizes[axis] = size
    return sizes[0], sizes[1], sizes[2]


def _refuse(
    spectrum: Spectrum, noise: float, powers: list[float], amount: float, shape: Shape
) -> None:
    """Say which dimension the best shape needs.

    **Raises:** `PlanError`, always.
    """
    needed, known = SHARE * max(shape[0], shape[2]), 0
    while needed > known:
        known = 2 * needed
        larger = dataclasses.replace(spectrum, dim=known)
        shape = _Search(larger, noise, powers, amount).best(shape)
        needed = SHARE * max(shape[0], shape[2])
    raise PlanError(
        f"task.spectrum.dim: got {spectrum.dim}; the best shape at this budget has width "
        f"{shape[0]} and context {shape[2]}, expected dim >= {needed}, {SHARE} times the larger"
    )
