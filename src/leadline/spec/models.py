"""What learns: the models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from leadline.errors import SpecError
from leadline.spec.fields import Bounds, Extent, NonNegative, Real, Spec


@dataclass(frozen=True, kw_only=True)
class ReducedAttention(Spec):
    r"""The reduced linear transformer: `depth` layers that share the matrix $\Gamma$, predicting
    $f(x_*) = \frac1{LP} x_*^T\Gamma\sum_{l<L}(I - \hat\Sigma\Gamma/L)^l X y$.

    **Arguments:** `depth` $L$ (infinity in theory); `width` $N$ of the residual stream, None for
    the full dimension; `projection` says how inputs enter a narrower stream; `power` is that of
    the projection in the reduced form; `tied` says whether all layers share one matrix.

    Ref: arXiv:2510.01098, equation 5.
    """

    role: ClassVar[str] = "model"

    depth: Extent
    width: Annotated[int | None, Bounds(low=1)] = None
    projection: Literal["none", "orthogonal", "gaussian"] = "none"
    power: Annotated[int, Bounds(low=1, high=2)] = 2
    tied: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.width is None) != (self.projection == "none"):
            raise SpecError(
                f"model.projection: got {self.projection!r} with width {self.width}; a narrower "
                "stream needs both a width and a projection, a full one neither"
            )


@dataclass(frozen=True, kw_only=True)
class PerTaskAttention(Spec):
    r"""One layer of linear attention whose value vector $v_s$ belongs to the type of the sequence:
    $f_s = v_s^TH_sw_s$ with $H_s = \sum_i(\text{token}_i)(\text{token}_i)^T$ on feature $s$ and the
    label, trained towards $\Lambda_s$.

    **Arguments:** `size` $D$: the model has the features $s \le D$, the other tasks stay as they
    start; `start` is $f_s(0)/\Lambda_s$ and `invariant` the product $c = gh$ of
    $g = \eta^TH\eta$ and $h = \rho^TH\rho$ at the start, $\eta = v + w$, $\rho = v - w$ (zero for
    aligned $v$ and $w$, large for lazy training); `offset` is the component of $v$ and of $w$
    perpendicular to the tokens $(1, \Lambda_s)$, which training does not move; `constrained` keeps
    the value vector on the label and the rest on the feature, $v = (0, v_c)$, $w = (w_s, 0)$;
    `shared_value` makes the label coordinate of $v$ one number for all types, which starts where
    that of the first would (simulation only).

    Ref: Lyu, Wang, Zhu (ICLR 2025); docs/theory/sparse.md.
    """

    role: ClassVar[str] = "model"

    size: Extent = math.inf
    start: Real = 0.01
    invariant: NonNegative = 0.0
    offset: Real = 0.0
    constrained: bool = False
    shared_value: bool = field(default=False, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start <= 0 and self.invariant == 0:
            raise SpecError(
                f"model.start: got {self.start:g} with invariant 0: g(0) = 0, and gradient flow "
                "ends in the saddle f = 0 without learning; expected start > 0 or invariant > 0"
            )
        if self.constrained and self.offset:
            raise SpecError(
                f"model.offset: got {self.offset:g}; a constrained model has no perpendicular "
                "component, leave it at 0"
            )
