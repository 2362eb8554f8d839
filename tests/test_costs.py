"""Counts of parameters and FLOPs against numbers worked out by hand for known shapes."""

import math

import pytest

from leadline.costs import parameters, training_flops
from leadline.errors import SpecError

GPT3 = {"width": 12288, "depth": 96}
GPT2_SMALL = {"width": 768, "depth": 12}


@pytest.mark.parametrize(
    ("convention", "shape", "count"),
    [
        ("non-embedding", GPT3, 173_946_175_488),
        ("tied embedding", GPT3 | {"vocabulary": 50257}, 174_563_733_504),
        ("untied embedding", GPT3 | {"vocabulary": 50257}, 175_181_291_520),
        ("non-embedding", GPT2_SMALL, 84_934_656),
        ("tied embedding", GPT2_SMALL | {"vocabulary": 50257}, 123_532_032),
        ("non-embedding", {"width": 10, "depth": 0}, 0),
    ],
)
def test_parameters(convention, shape, count):
    assert parameters(convention, **shape) == count


@pytest.mark.parametrize(
    ("convention", "shape", "count"),
    [
        ("6ND", {"params": 70e9, "tokens": 1.4e12}, 5.88e23),
        ("6ND", {"params": 175e9, "tokens": 300e9}, 3.15e23),
        # 12 * 96 * 12288 * 2048 = 28,991,029,248 a token for the scores
        (
            "6ND + attention",
            GPT3 | {"params": 175e9, "tokens": 1.0, "context": 2048},
            6 * 175e9 + 28_991_029_248,
        ),
        (
            "6ND + attention",
            GPT3 | {"params": 175e9, "tokens": 300e9, "context": 2048},
            3.15e23 + 8.6973087744e21,
        ),
        ("t P^2 N^2 L", {"steps": 10, "context": 3, "width": 4, "depth": 5}, 7200),
    ],
)
def test_training_flops(convention, shape, count):
    assert training_flops(convention, **shape) == pytest.approx(count, rel=1e-14)


def test_the_attention_term_is_what_the_two_conventions_differ_in():
    shape = {"params": 1e9, "tokens": 1e10}
    more = training_flops("6ND + attention", **shape, width=2048, depth=24, context=4096)
    assert more / training_flops("6ND", **shape) == pytest.approx(
        1 + 2 * 24 * 2048 * 4096 / 1e9, rel=1e-14
    )


def test_infinity_and_overflow_are_infinite():
    shape = {"steps": 1, "width": 4, "depth": 5}
    assert training_flops("t P^2 N^2 L", context=math.inf, **shape) == math.inf
    assert training_flops("t P^2 N^2 L", context=1e200, **shape) == math.inf
    assert training_flops("t P^2 N^2 L", context=10**200, **shape) == math.inf


@pytest.mark.parametrize(
    ("count", "convention", "shape", "message"),
    [
        (
            training_flops,
            "6NDD",
            {},
            "FLOP convention: got '6NDD', expected one of 6ND, 6ND + attention, t P^2 N^2 L",
        ),
        (
            parameters,
            "nonembedding",
            {},
            "parameter convention: got 'nonembedding', expected one of non-embedding, tied "
            "embedding, untied embedding (did you mean 'non-embedding'?)",
        ),
        (
            training_flops,
            "6ND",
            {"params": 1},
            "FLOP convention '6ND' takes params, tokens; got params",
        ),
        (
            training_flops,
            "6ND",
            {"params": 1, "tokens": 1, "depth": 1},
            "FLOP convention '6ND' takes params, tokens; got params, tokens, depth",
        ),
        (
            parameters,
            "non-embedding",
            {},
            "parameter convention 'non-embedding' takes width, depth",
        ),
        (
            training_flops,
            "6ND",
            {"params": -1, "tokens": 1},
            "params: got -1, expected a number >= 0",
        ),
        (
            training_flops,
            "6ND",
            {"params": 1, "tokens": math.nan},
            "tokens: got nan, expected a number >= 0",
        ),
    ],
)
def test_errors(count, convention, shape, message):
    with pytest.raises(SpecError) as caught:
        count(convention, **shape)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
