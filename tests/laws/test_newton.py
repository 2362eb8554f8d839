"""The derivatives against differences of the definition, and the minimizer on its bounds."""

import numpy as np
import pytest

from leadline.laws.newton import derivatives, minimize, problem
from leadline.laws.objectives import homotopy


def rows(variables, seed=0, count=40):
    rng = np.random.default_rng(seed)
    logs = rng.standard_normal((variables, count))
    return problem(logs, 0.1 * rng.standard_normal(count))


def value(rows, lane, weights, delta):
    count = len(rows.logs)
    loss = lane[0] + sum(
        lane[1 + i] * np.exp(-lane[1 + count + i] * rows.logs[i]) for i in range(count)
    )
    size = np.abs(np.log(loss) - rows.target)
    inside = size <= delta
    return (weights * np.where(inside, size**2 / 2, delta * (size - delta / 2))).sum()


@pytest.mark.parametrize("variables", [1, 2, 4])
@pytest.mark.parametrize("delta", [0.05, 0.3, 10.0])
def test_gradient_and_hessian_are_the_differences_of_the_value(variables, delta):
    data = rows(variables)
    rng = np.random.default_rng(1)
    lanes = rng.uniform(0.1, 0.8, (3, 1 + 2 * variables))
    weights = rng.integers(0, 4, (3, 40)).astype(float)
    got, gradient, hessian = derivatives(data, lanes, weights, delta)
    step = 1e-6
    for lane in range(3):
        assert got[lane] == pytest.approx(value(data, lanes[lane], weights[lane], delta), rel=1e-12)
        for i in range(lanes.shape[1]):
            move = step * np.eye(lanes.shape[1])[i]
            up = value(data, lanes[lane] + move, weights[lane], delta)
            down = value(data, lanes[lane] - move, weights[lane], delta)
            assert gradient[lane, i] == pytest.approx((up - down) / (2 * step), abs=1e-7)
            above = derivatives(data, lanes[[lane]] + move, weights[[lane]], delta)[1][0]
            below = derivatives(data, lanes[[lane]] - move, weights[[lane]], delta)[1][0]
            # a row may cross delta within the step, which moves one entry by at most step
            assert hessian[lane, i] == pytest.approx((above - below) / (2 * step), abs=2e-5)


def test_lanes_do_not_see_each_other():
    data = rows(2)
    rng = np.random.default_rng(2)
    starts = rng.uniform(0.2, 0.8, (70, 5))
    weights = rng.integers(0, 3, (70, 40)).astype(float)
    path = homotopy(1e-2, 0.1)
    together = minimize(data, starts, weights, path)
    for lane in (0, 33, 69):
        alone = minimize(data, starts[[lane]], weights[[lane]], path)
        assert together.value[lane] == pytest.approx(alone.value[0], rel=1e-9)


def test_a_minimum_within_the_bounds_satisfies_the_conditions_of_a_bounded_minimum():
    data = rows(3, seed=4)
    starts = np.random.default_rng(0).uniform(0.1, 0.8, (20, 7))
    ends = minimize(data, starts, np.ones((1, 40)), homotopy(1e-2, 0.2))
    assert ends.sound.mean() > 0.8
    x, slope = ends.unknowns[ends.sound], ends.gradient[ends.sound]
    assert (x >= data.low).all()
    assert (x <= data.high).all()
    inside = (x > data.low) & (x < data.high)
    scale = ends.value[ends.sound][:, None]
    assert (np.abs(slope) < 1e-4 * scale)[inside].all()
    vanished = np.zeros_like(inside)
    vanished[:, 4:] = x[:, 1:4] == 0
    assert (slope > -1e-4 * scale)[(x <= data.low) & ~vanished].all()
    assert (slope < 1e-4 * scale)[(x >= data.high) & ~vanished].all()


def test_the_homotopy_ends_at_the_wanted_delta():
    assert homotopy(1e-3, 1e-2) == pytest.approx([2.7e-2, 9e-3, 3e-3, 1e-3])
    assert homotopy(1e-3, 1e-4) == [1e-3]
