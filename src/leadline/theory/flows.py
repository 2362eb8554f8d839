"""Gradient flows: a few numbers that move down a loss landscape in continuous time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from leadline.errors import SolverError

Floats = NDArray[np.float64]

MAX_EVALUATIONS = 50_000
"""Ordinary flows over thirteen decades of time need fewer than 5,000."""
OVERFLOW = 1e250


def scalar_flow(
    slope: Callable[[float], float],
    times: Sequence[float] | Floats,
    *,
    start: float = 0.0,
    tolerance: float = 1e-12,
) -> tuple[Floats, Floats]:
    r"""$\gamma(t)$ of $\dot\gamma = -$`slope`$(\gamma)$, $\gamma(0)$ = `start`, where `slope` is
    $d\,$Loss$/d\gamma$ of any landscape.

    **Arguments:** `times`, increasing and $\ge 0$, may span many decades; `tolerance` is
    relative, and absolute at scale one.

    **Returns:** $\gamma$ at `times`, and an estimate of its error: the distance to a solution
    with a tolerance a hundred times looser.

    **Raises:** `SolverError` if the velocity overflows or the integration stops early.
    """
    states, error = flow(
        lambda state: np.array([-slope(float(state[0]))]), times, start=[start], tolerance=tolerance
    )
    return states[:, 0], error[:, 0]


def flow(
    velocity: Callable[[Floats], Floats],
    times: Sequence[float] | Floats,
    *,
    start: Sequence[float] | Floats,
    tolerance: float = 1e-12,
) -> tuple[Floats, Floats]:
    r"""The state of $\dot s = $ `velocity`$(s)$, $s(0)$ = `start`, for a stiff autonomous system.

    **Returns:** arrays of shape (time, state): the state, and an estimate of its error as in
    `scalar_flow`.

    **Raises:** `SolverError` if the velocity overflows or the integration stops early.
    """
    at = np.asarray(times, np.float64)
    initial = np.asarray(start, np.float64)
    _check_velocity(velocity(initial), 0.0)
    tight = _integrate(velocity, at, initial, tolerance)
    loose = _integrate(velocity, at, initial, 100 * tolerance)
    return tight, np.abs(tight - loose)


def _integrate(
    velocity: Callable[[Floats], Floats], times: Floats, start: Floats, tolerance: float
) -> Floats:
    if times[-1] == 0:
        return np.tile(start, (times.size, 1))

    # scipy takes longer to import than most landscapes take to evaluate
    from scipy.integrate import solve_ivp

    evaluations = itertools.count(1)

    def bounded_velocity(time: float, state: Floats) -> Floats:
        if next(evaluations) > MAX_EVALUATIONS:
            raise SolverError(
                f"gradient flow: stopped at time {time:g} of {times[-1]:g} after "
                f"{MAX_EVALUATIONS} evaluations; expected a start closer to the minimum"
            )
        # a trial step may overflow; the integrator rejects it if it can take its norm
        return np.clip(velocity(state), -OVERFLOW, OVERFLOW)

    solution = solve_ivp(
        bounded_velocity,
        (0.0, float(times[-1])),
        start,
        method="LSODA",
        t_eval=times,
        rtol=tolerance,
        atol=tolerance,
    )
    if not solution.success:
        raise SolverError(
            f"gradient flow stopped at time {solution.t[-1]:g} of {times[-1]:g}: {solution.message}"
        )
    states = solution.y.T
    for time, state in zip(times, states):
        _check_velocity(velocity(state), time)
    return states


def _check_velocity(value: Floats, time: float) -> None:
    if not np.all(np.abs(value) < OVERFLOW):
        raise SolverError(f"gradient flow: the velocity overflows at time {time:g}")
