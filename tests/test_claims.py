"""Verdicts are computed: the whole table of cases, for numbers, identities and orders."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.claims import Claim, Interval, judge, numerical, verdict
from leadline.errors import SpecError


def claim(**changes):
    fields = {
        "name": "prefactor",
        "source": "a paper, section 1",
        "statement": "The prefactor is one.",
        "kind": "number",
        "published": 1.0,
        "smallest_effect": 0.2,
    }
    return Claim(**fields | changes)


def interval(low, high):
    return Interval(
        estimate=(low + high) / 2, low=low, high=high, level=0.95, method="normal", unit="run"
    )


@pytest.mark.parametrize("kind", ["number", "identity"])
@pytest.mark.parametrize(
    ("low", "high", "corrected", "expected"),
    [
        # the published value lies inside: the width decides
        (0.95, 1.05, None, "reproduced"),
        (0.95, 1.05, 2.0, "reproduced"),
        (1.0, 1.1, 2.0, "reproduced"),
        (0.9, 1.0, 2.0, "reproduced"),
        (0.8, 1.2, None, "not tested at this scale"),
        (0.9, 1.1 + 1e-9, 2.0, "not tested at this scale"),
        (0.5, 2.5, 2.0, "not tested at this scale"),
        # it lies outside
        (1.95, 2.05, 2.0, "corrected"),
        (1.2, 2.8, 2.0, "corrected"),
        (2.0, 2.1, 2.0, "corrected"),
        (1.95, 2.05, None, "not reproduced"),
        (1.2, 2.8, None, "not reproduced"),
        (1.4, 1.5, 2.0, "not reproduced"),
        (-3.0, -2.0, 2.0, "not reproduced"),
        # nothing was measured
        (math.nan, math.nan, 2.0, "not tested at this scale"),
        (1.9, math.inf, 2.0, "not tested at this scale"),
        (-math.inf, 0.5, 2.0, "not tested at this scale"),
    ],
)
def test_verdicts_on_numbers(kind, low, high, corrected, expected):
    assert verdict(claim(kind=kind, corrected=corrected), interval(low, high)) == expected


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("low", "high", "corrected", "expected"),
    [
        # of the published value only the sign counts
        (0.01, 0.02, None, "reproduced"),
        (5.0, 9.0, None, "reproduced"),
        (5.0, 9.0, -1.0, "reproduced"),
        (-0.02, -0.01, None, "not reproduced"),
        (-9.0, -5.0, None, "not reproduced"),
        (-9.0, -5.0, -1.0, "corrected"),
        (-0.02, -0.01, -7.0, "corrected"),
        (-0.02, -0.01, 3.0, "not reproduced"),
        # no order: narrow enough to say so, or too wide to say anything
        (-0.05, 0.05, None, "not reproduced"),
        (-0.05, 0.05, -1.0, "not reproduced"),
        (0.0, 0.05, None, "not reproduced"),
        (-0.5, 0.5, None, "not tested at this scale"),
        (0.0, 0.5, None, "not tested at this scale"),
        (-0.1, math.inf, None, "not tested at this scale"),
    ],
)
def test_verdicts_on_orders(sign, low, high, corrected, expected):
    low, high = sorted([sign * low, sign * high])
    corrected = None if corrected is None else sign * corrected
    ordered = claim(kind="order", published=float(sign), corrected=corrected)
    assert verdict(ordered, interval(low, high)) == expected


def test_an_interval_as_wide_as_the_smallest_effect_decides_nothing():
    checked = claim(smallest_effect=0.25)
    assert verdict(checked, interval(0.875, 1.125)) == "not tested at this scale"
    assert verdict(checked, interval(0.875, 1.124)) == "reproduced"


finite = st.floats(-10, 10)


@given(published=finite, gap=st.floats(0.6, 5), center=finite, half=st.floats(0, 5))
@settings(derandomize=True, deadline=None)
def test_verdicts_follow_the_rule(published, gap, center, half):
    checked = claim(published=published, corrected=published + gap, smallest_effect=0.5)
    measured = interval(center - half, center + half)
    inside = measured.low <= published <= measured.high
    found = verdict(checked, measured)
    if inside:
        wide = measured.high - measured.low >= 0.5
        assert found == ("not tested at this scale" if wide else "reproduced")
    else:
        ours = measured.low <= published + gap <= measured.high
        assert found == ("corrected" if ours else "not reproduced")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"corrected": 1.1},
            "claim prefactor: published and corrected differ by 0.1, less than the smallest "
            "effect 0.2",
        ),
        ({"corrected": 1.0}, "claim prefactor: published and corrected differ by 0, less"),
        ({"smallest_effect": 0.0}, "claim prefactor: got smallest_effect 0.0, expected"),
        ({"smallest_effect": -1.0}, "claim prefactor: got smallest_effect -1.0, expected"),
        ({"smallest_effect": math.inf}, "claim prefactor: got smallest_effect inf, expected"),
        ({"smallest_effect": math.nan}, "claim prefactor: got smallest_effect nan, expected"),
        ({"published": math.nan}, "claim prefactor: got published nan, expected a finite"),
        ({"corrected": math.inf}, "claim prefactor: got corrected inf, expected a finite"),
        ({"kind": "order", "published": 0.0}, "claim prefactor: got published 0, an order needs"),
        ({"kind": "order", "corrected": 0.0}, "claim prefactor: got corrected 0, an order needs"),
    ],
)
def test_claims_that_nothing_could_decide_are_refused(changes, message):
    with pytest.raises(SpecError) as caught:
        claim(**changes)
    assert str(caught.value).startswith(message)


def test_a_gap_of_the_smallest_effect_is_enough():
    assert claim(published=1.0, corrected=1.25, smallest_effect=0.25).corrected == 1.25


def test_intervals():
    one = interval(1.0, 3.0)
    assert one.width == 2.0
    assert one.contains(1.0)
    assert one.contains(3.0)
    assert not one.contains(3.0000001)
    assert not one.contains(math.nan)
    exact = numerical(2.0, 0.5)
    assert (exact.estimate, exact.low, exact.high, exact.level) == (2.0, 1.5, 2.5, 1.0)
    assert exact.unit == "none"


def test_a_row_of_the_ledger_is_plain_data():
    row = judge(claim(corrected=2.0), interval(1.9, 2.1))
    assert (
        json.loads(json.dumps(row, allow_nan=False))
        == row
        == {
            "record": "claim",
            "name": "prefactor",
            "source": "a paper, section 1",
            "statement": "The prefactor is one.",
            "kind": "number",
            "published": 1.0,
            "corrected": 2.0,
            "smallest_effect": 0.2,
            "measured_estimate": 2.0,
            "measured_low": 1.9,
            "measured_high": 2.1,
            "measured_level": 0.95,
            "measured_method": "normal",
            "measured_unit": "run",
            "verdict": "corrected",
        }
    )
