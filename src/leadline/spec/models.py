"""What learns: the models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from leadline.errors import SpecError
from leadline.spec.fields import Bounds, Count, Extent, NonNegative, Positive, Real, Spec


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
class Transformer(Spec):
    r"""A transformer on the tokens of in-context regression. A token starts as $h = W_xx + w_yy$
    ($y = 0$ for evaluation tokens), each of the `depth` $L$ layers adds

    $$\frac mP\sum_\nu M\,(k_\nu\cdot q_\mu)\,v_\nu,\qquad k = W_kh,\; q = W_qh,\; v = W_vh,$$

    over the $P$ labeled tokens $\nu$, with $M = -1$ for labeled and $+1$ for evaluation tokens, and
    the prediction is $w_o\cdot h$. Under softmax attention the weights
    $\operatorname{softmax}_\nu(k_\nu\cdot q_\mu)$ take the place of $(k_\nu\cdot q_\mu)/P$. The
    multiplier $m$ is that of the scaling rule, $1/L$ by default.

    **Arguments:** `width` $N$ of the residual stream; each of the `heads` has its own rows of $W_k$
    and $W_q$, $N/$`heads` of them, and its own $N\times N$ matrix of values; `mlp` blocks of `mlp`
    times $N$ hidden units with GELU follow each attention layer (0: none); `tied` says whether all
    layers share their weights; `trainable` names what learns: the layers, with the read-in $W_x$,
    or with $W_x$, $w_y$ and $w_o$; `channels` "separate" keeps inputs and labels apart: keys and
    queries do not see the label direction $w_y$, and values are $v = a\,w_y(w_o\cdot h)$ with one
    number $a$ a head, so that the model is linear in the labels; `scaling` is the rule that sets
    initialization, rates and multipliers against width and depth; `initial` weights are random, or
    aligned: $W_x$ the unit matrix, $w_y = w_o$ a direction of its own, $W_k$ and $W_q$ multiples of
    the unit matrix, $W_v$ of $w_yw_o^T$; `start` multiplies the initial $W_k$, $W_q$ and $W_v$, and
    of aligned weights also those of the read-in and read-out that learn, $W_x$ times $\sqrt2$.

    Ref: arXiv:2510.01098, section 2; docs/theory/transformers.md.
    """

    role: ClassVar[str] = "model"

    depth: Count
    width: Count
    heads: Count = 1
    attention: Literal["linear", "softmax"] = "linear"
    mlp: Annotated[int, Bounds(low=0)] = 0
    tied: bool = False
    trainable: Literal["attention", "attention and read-in", "all"] = "all"
    channels: Literal["free", "separate"] = "free"
    scaling: Literal["standard", "depth", "width", "width and depth"] = "depth"
    initial: Literal["random", "aligned"] = "random"
    start: Positive = 1.0

    @property
    def linear(self) -> bool:
        """Whether predictions are linear in the evaluation token."""
        return self.attention == "linear" and self.mlp == 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise SpecError(
                f"model.heads: got {self.heads}, which does not divide model.width = {self.width}"
            )
        if self.channels == "separate" and self.mlp:
            raise SpecError(
                f"model.mlp: got {self.mlp} with channels 'separate'; MLP blocks mix the channels, "
                "expected 0, or channels 'free'"
            )


@dataclass(frozen=True, kw_only=True)
class PerTaskAttention(Spec):
    r"""One layer of attention, linear unless said otherwise, whose value vector $v_s$ belongs to
    the type of the sequence: $f_s = v_s^TH_sw_s$ with
    $H_s = \sum_i(\text{token}_i)(\text{token}_i)^T$ on feature $s$ and the label, trained towards
    $\Lambda_s$.

    **Arguments:** `size` $D$: the model has the features $s \le D$, the other tasks stay as they
    start; `start` is $f_s(0)/\Lambda_s$ and `invariant` the product $c = gh$ of
    $g = \eta^TH\eta$ and $h = \rho^TH\rho$ at the start, $\eta = v + w$, $\rho = v - w$ (zero for
    aligned $v$ and $w$, large for lazy training); `offset` is the component of $v$ and of $w$
    perpendicular to the tokens $(1, \Lambda_s)$, which training does not move; `constrained` keeps
    the value vector on the label and the rest on the feature, $v = (0, v_c)$, $w = (w_s, 0)$;
    `shared_value` makes the label coordinate of $v$ one number for all types, which starts where
    that of the first would (simulation only).

    `attention` "softmax" replaces $w_s$ by the key matrix of the type and the query vector of its
    feature, $c = (W_Ku)\cdot(W_Qe)$, $u = (1, \Lambda_s)$, $e = (1, 0)$: with the same value
    vector and long contexts $f_s = (v_s\cdot u)\tanh c$. Value, key and query start with equal
    norms at the $f_s(0)$ asked for.

    Ref: Lyu, Wang, Zhu (ICLR 2025); docs/theory/sparse.md.
    """

    role: ClassVar[str] = "model"

    size: Extent = math.inf
    start: Real = 0.01
    invariant: NonNegative = 0.0
    offset: Real = 0.0
    constrained: bool = False
    shared_value: bool = field(default=False, metadata={"added": True})
    attention: Literal["linear", "softmax"] = field(default="linear", metadata={"added": True})

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
        if self.attention == "softmax":
            for name in ("invariant", "offset", "constrained", "shared_value"):
                if getattr(self, name):
                    raise SpecError(
                        f"model.{name}: got {getattr(self, name)} with attention 'softmax'; "
                        f"expected {getattr(type(self), name)}, linear attention has it"
                    )


@dataclass(frozen=True, kw_only=True)
class LinearAttention(Spec):
    r"""Linear attention with context updates: every layer moves the label of token $j$ by $-B_l$
    and the prediction by $+B_l$ times the inner products, so that $\hat y = q\cdot(I - \prod_l(I -
    B_lS/L))\beta$ with $S = XX^T/P$. What learns is $K_l = B_l/L$: steps have to grow with depth,
    and gradients of $B_l$ would not.

    **Arguments:** `depth` $L$; `tied` layers share $K$; `matrix` "full" lets every entry learn,
    "scale" keeps multiples of the identity; `width` $N$ makes $K_l = W_k^TW_q/\sqrt N$ with
    $N\times d$ factors. At the start $K_l$ is `start` times the identity plus `spread` times a
    Gaussian matrix of variance $1/d$ (a scale: plus `spread` times a normal); the entries of
    factors have variance `spread`$^2/d$.

    Ref: arXiv:2610.11063, section 2.2.
    """

    role: ClassVar[str] = "model"

    depth: Count
    tied: bool = False
    matrix: Literal["full", "scale"] = "full"
    width: Annotated[int | None, Bounds(low=1)] = None
    start: Real = 0.0
    spread: NonNegative = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factors(self)


@dataclass(frozen=True, kw_only=True)
class SoftmaxAttention(Spec):
    r"""Softmax attention on two streams: the inputs stay as they are, and the label stream of the
    query collects $\hat y = \frac1L\sum_l g_l\,p_l\cdot z_{l-1}$ with $p_l =
    \operatorname{softmax}_i(\hat x_i^TM_l\hat q)$ over the $P$ labeled tokens, $z_0 = y$.

    **Arguments:** `depth` $L$; `layers` "separate" ($M_l$), "tempered" ($M_l = t_lM$, one
    temperature a layer) or "looped" ($M_l = M$); `matrix` "full" or "scale" (multiples of the
    identity); `width` $N$ makes $M_l = W_k^TW_q/\sqrt N$ with $N\times d$ factors, None learns
    $M_l$ itself; `values` is one gain $g$ for all layers ("shared") or one for each ("separate");
    `updates` lets the labels of the context attend too, $z_l = (I + mA_l/L)z_{l-1}$ with the
    learned scalar $m$ and $A_l = \operatorname{softmax}$ over tokens with the same $M_l$;
    `normalized` scales every token to norm $\sqrt d$ before it is compared. At the start $g = 1$,
    separate gains alternately $1 + c$ and $1 - c$ with $c$ the `contrast`, $m = -1$, and $M_l$ is
    `start` times the identity plus `spread` times a Gaussian matrix of variance $1/d$ (a scale or a
    temperature: plus `spread` times a normal); the entries of factors have variance
    `spread`$^2/d$.

    Ref: arXiv:2610.11063, sections 2.2, C.2 and C.3.
    """

    role: ClassVar[str] = "model"

    depth: Count
    layers: Literal["separate", "tempered", "looped"] = "separate"
    matrix: Literal["full", "scale"] = "full"
    width: Annotated[int | None, Bounds(low=1)] = None
    values: Literal["shared", "separate"] = "shared"
    updates: bool = False
    normalized: bool = True
    start: Real = 0.5
    spread: NonNegative = 0.3
    contrast: NonNegative = field(default=0.0, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factors(self)
        if self.contrast and (self.values == "shared" or self.depth == 1):
            raise SpecError(
                f"model.contrast: got {self.contrast:g} with values {self.values!r} and depth "
                f"{self.depth}; only the gains of several layers can start apart, expected 0, or "
                "values 'separate' and depth >= 2"
            )
        if self.layers == "tempered" and self.matrix == "scale":
            raise SpecError(
                "model.matrix: got 'scale' for tempered layers, whose temperatures are scales; "
                "expected matrix 'full', or layers 'separate'"
            )


@dataclass(frozen=True, kw_only=True)
class StreamAttention(Spec):
    r"""Softmax attention on one stream of width $N$ that holds input and label together: keys and
    values are $E_i = W_xx_i + W_yy_i$, the query starts at $h_0 = W_xq$ and moves by
    $\frac1LW_v\sum_ip_{l,i}E_i$, $p_l = \operatorname{softmax}_i(\hat E_i^TM_l\hat h_{l-1})$, hats
    scaling to norm $\sqrt d$; $\hat y = W_oh_L$.

    **Arguments:** `depth` $L$; `width` $N$ of the stream; `normalized` False leaves out the hats;
    `start` and `spread` are those of $M_l$, as in `SoftmaxAttention`; `label` is the norm of $W_y$
    at the start, where $W_x$ is an isometry (a projection if $N$ is less than the dimension), $W_v$
    the identity, and $W_o$ reads $W_y$ with gain one.

    Ref: arXiv:2610.11063, section C.1.
    """

    role: ClassVar[str] = "model"

    depth: Count
    width: Count
    normalized: bool = True
    start: Real = 0.5
    spread: NonNegative = 0.3
    label: Positive = 0.1


def _check_factors(model: LinearAttention | SoftmaxAttention) -> None:
    """A product of factors has neither a start nor the form of a scale."""
    if model.width is None:
        return
    if model.matrix != "full":
        raise SpecError(
            f"model.width: got {model.width} with matrix {model.matrix!r}, which has no factors; "
            "expected none"
        )
    if not model.spread:
        raise SpecError(
            f"model.spread: got 0 with width {model.width}; factors that start at zero stay there, "
            "expected a number > 0"
        )
    if model.start:
        raise SpecError(
            f"model.start: got {model.start:g} with width {model.width}; factors start at random "
            "with variance spread^2/d, expected 0"
        )
