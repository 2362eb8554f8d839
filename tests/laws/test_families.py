"""Laws: values and derivatives from their definition, and refusals."""

import numpy as np
import pytest

from leadline.errors import FitError
from leadline.laws import CHINCHILLA, Law, separable

HOFFMANN = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28}


def chinchilla(**changes) -> Law:
    return Law(family=CHINCHILLA, parameters=HOFFMANN | changes, units={})


def test_loss_of_the_published_law():
    # 70B parameters on 1.4T tokens
    wanted = 1.69 + 406.4 / (70e9) ** 0.34 + 410.7 / (1.4e12) ** 0.28
    got = chinchilla().loss({"params": 70e9, "tokens": 1.4e12})
    assert got == pytest.approx(wanted, rel=1e-14)


def test_points_broadcast():
    at = {"params": np.geomspace(1e7, 1e10, 5)[:, None], "tokens": np.geomspace(1e9, 1e12, 3)}
    assert chinchilla().loss(at).shape == (5, 3)
    assert chinchilla().gradient(at).shape == (5, 3, 5)


def test_gradient_is_the_difference_quotient():
    at = {"params": [1e8, 3e9], "tokens": [1e11, 2e10]}
    got = chinchilla().gradient(at)
    for i, name in enumerate(CHINCHILLA.parameters):
        step = 1e-6 * HOFFMANN[name]
        up = chinchilla(**{name: HOFFMANN[name] + step}).loss(at)
        down = chinchilla(**{name: HOFFMANN[name] - step}).loss(at)
        assert got[:, i] == pytest.approx((up - down) / (2 * step), rel=1e-6)


def test_names_of_a_separable_family():
    family = separable(["width", "tokens"])
    assert family.parameters == ("E", "c_width", "c_tokens", "a_width", "a_tokens")
    law = Law(
        family=family,
        parameters={"E": 1.0, "c_width": 2.0, "c_tokens": 3.0, "a_width": 1.0, "a_tokens": 0.5},
        units={},
    )
    assert law.loss({"tokens": 9.0, "width": 4.0}) == pytest.approx(1 + 2 / 4 + 3 / 3)


@pytest.mark.parametrize("variables", [[], ["width", "width"], "width"])
def test_variables_must_be_distinct_names(variables):
    with pytest.raises(FitError, match="variables"):
        separable(variables)


def test_a_law_knows_its_parameters():
    with pytest.raises(FitError, match=r"E, A, B, alpha, beta.*did you mean 'alpha'"):
        Law(family=CHINCHILLA, parameters=HOFFMANN | {"alhpa": 0.3}, units={})
    with pytest.raises(FitError, match="E, A, B, alpha, beta"):
        Law(family=CHINCHILLA, parameters={"E": 1.0}, units={})
    with pytest.raises(FitError, match=r"parameters\.E: got nan"):
        chinchilla(E=np.nan)


def test_points_must_be_complete_and_positive():
    with pytest.raises(FitError, match=r"no value for 'tokens'.*did you mean 'tokns'"):
        chinchilla().loss({"params": 1e9, "tokns": 1e10})
    with pytest.raises(FitError, match="tokens: got -1"):
        chinchilla().loss({"params": 1e9, "tokens": [1e10, -1]})
