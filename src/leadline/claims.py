"""Published statements, what we measured, and the rule that computes a verdict.

A `Claim` says what a paper states and what we hold to be right; a measurement is an `Interval`.
`judge` compares the two. Nobody writes a verdict by hand.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from leadline.errors import SpecError

Verdict = Literal["reproduced", "corrected", "not reproduced", "not tested at this scale"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and its interval: `level` is the nominal coverage, `method` how the interval
    was obtained, `unit` the unit that was resampled or counted ("run", "context", "none").
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str
    unit: str

    @property
    def width(self) -> float:
        """Length of the interval."""
        return self.high - self.low

    def contains(self, value: float) -> bool:
        """Whether `value` lies in the closed interval."""
        return self.low <= value <= self.high


def numerical(value: float, error: float) -> Interval:
    """The interval of a number computed without sampling: `value` plus and minus `error`, the
    bound on its numerical error.
    """
    return Interval(
        estimate=value,
        low=value - error,
        high=value + error,
        level=1.0,
        method="numerical error bound",
        unit="none",
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published statement in a form that a number decides.

    **Arguments:** `name` is a short identifier; `source` the paper and place; `statement` the
    claim in words; `kind` is "number" (a value), "order" (a ranking, written as a difference of
    which only the sign counts) or "identity" (two quantities agree, written as their difference
    or ratio); `published` the value that the source gives; `corrected` the value that we derive
    where the source errs, else None; `smallest_effect` the smallest difference that matters: a
    measurement with a wider interval decides nothing.
    """

    name: str
    source: str
    statement: str
    kind: Literal["number", "order", "identity"]
    published: float
    corrected: float | None = None
    smallest_effect: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.smallest_effect) and self.smallest_effect > 0):
            raise SpecError(
                f"claim {self.name}: got smallest_effect {self.smallest_effect}, expected a finite "
                "number > 0"
            )
        for name, value in (("published", self.published), ("corrected", self.corrected)):
            if value is not None and not math.isfinite(value):
                raise SpecError(f"claim {self.name}: got {name} {value}, expected a finite number")
            if value == 0 and self.kind == "order":
                raise SpecError(f"claim {self.name}: got {name} 0, an order needs a sign")
        if self.corrected is not None:
            gap = abs(self.corrected - self.published)
            if gap < self.smallest_effect:
                raise SpecError(
                    f"claim {self.name}: published and corrected differ by {gap:g}, less than the "
                    f"smallest effect {self.smallest_effect:g}"
                )


def verdict(claim: Claim, measured: Interval) -> Verdict:
    """What a measurement says of a claim.

    An interval that contains the published value and is wider than the smallest effect decides
    nothing; a narrower one reproduces the claim. One that excludes it corrects the claim if it
    contains our value, and does not reproduce it otherwise. Of an order only the sign counts: the
    published value stands for its sign, and an interval that contains zero shows no order.
    """
    if not (math.isfinite(measured.low) and math.isfinite(measured.high)):
        return "not tested at this scale"
    narrow = measured.width < claim.smallest_effect
    if claim.kind == "order":
        if measured.contains(0.0):
            return "not reproduced" if narrow else "not tested at this scale"
        positive = measured.low > 0
        if positive == (claim.published > 0):
            return "reproduced"
        corrected = claim.corrected is not None and positive == (claim.corrected > 0)
        return "corrected" if corrected else "not reproduced"
    if measured.contains(claim.published):
        return "reproduced" if narrow else "not tested at this scale"
    if claim.corrected is not None and measured.contains(claim.corrected):
        return "corrected"
    return "not reproduced"


def judge(claim: Claim, measured: Interval) -> dict[str, Any]:
    """One row of the ledger: the claim, its measurement and the computed verdict, as plain data."""
    row = asdict(claim) | {f"measured_{k}": v for k, v in asdict(measured).items()}
    return {"record": "claim"} | row | {"verdict": verdict(claim, measured)}
