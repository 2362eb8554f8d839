"""What is learned: spectra and tasks."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from leadline.errors import SpecError
from leadline.spec.fields import (
    Bounds,
    Extent,
    NonNegative,
    Positive,
    Real,
    Seed,
    Spec,
    check_value,
)


@dataclass(frozen=True, kw_only=True)
class Spectrum(Spec):
    r"""Power-law spectra of inputs and tasks: $\lambda_k = k^{-a}$, $\omega_k = s\,k^{-b}$ for
    $k = 1, \dots,$ `dim`.

    **Arguments:** `dim` is a whole number or infinity (theory only); `input_exponent` is
    $a \ge 0$; `task_exponent` is $b$; `total` sets the scale $s$ such that
    $\sum_k \omega_k \lambda_k$ equals it, None means $s = 1$.

    The source exponent is $\beta = (a + b - 1)/a$.
    """

    role: ClassVar[str] = "task.spectrum"

    dim: Extent
    input_exponent: NonNegative
    task_exponent: Real
    total: Annotated[float | None, Bounds(low=0, open_low=True)] = None


def flat(dim: int) -> Spectrum:
    r"""The isotropic spectrum: $\lambda_k = 1$, $\omega_k = 1/$`dim`, so that the loss of the
    prediction zero is one.
    """
    return Spectrum(dim=dim, input_exponent=0.0, task_exponent=0.0, total=1.0)


def source_capacity(dim: int | float, *, nu: float, beta: float) -> Spectrum:
    r"""Source and capacity conditions: $\lambda_k = k^{-\nu}$ and
    $\omega_k\lambda_k \propto k^{-\nu\beta - 1}$ with sum one.

    **Arguments:** `nu` $> 0$ is the input exponent, `beta` $> 0$ the source exponent.

    Ref: arXiv:2510.01098, section 3.3.
    """
    check_value("task.spectrum.nu", nu, Positive)
    check_value("task.spectrum.beta", beta, Positive)
    return Spectrum(dim=dim, input_exponent=nu, task_exponent=1 + nu * beta - nu, total=1.0)


@dataclass(frozen=True, kw_only=True)
class Turn(Spec):
    r"""A rotation of the input covariance away from the basis of the task vectors:
    $\Sigma' = e^{-\theta S}\,\Sigma\,e^{\theta S}$ with $\theta$ = `angle` and the antisymmetric
    $S = (G - G^T)/\sqrt{2D}$, whose eigenvalues fill $[-2i, 2i]$, where $G$ is
    `numpy.random.default_rng(seed).standard_normal((D, D))`.
    """

    role: ClassVar[str] = "task.turn"

    angle: Real
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class InContextRegression(Spec):
    r"""Linear regression in context: $y = \beta\cdot x + \sigma\epsilon$.

    Each context draws $\beta$ with covariance $\Omega$ and `context` labeled inputs with
    covariance $\Sigma$. `covariance` is "isotropic" ($\Sigma = I$, $\Omega = I/D$), "fixed" (both
    diagonal in one basis, the same in every context) or "rotated" (a fresh Haar rotation of both
    in every context).

    **Arguments:** `context` is the number of labeled examples $P$ (or infinity); `noise` is
    $\sigma$ on the labels in context; `query_noise` the standard deviation of label noise on
    the query tokens that training sees. The loss always excludes the noise of the queries.
    `turn` rotates the inputs of a fixed covariance; only the task of an evaluation has one.
    """

    role: ClassVar[str] = "task"

    spectrum: Spectrum
    covariance: Literal["isotropic", "fixed", "rotated"]
    context: Extent
    noise: NonNegative = 0.0
    query_noise: NonNegative = 0.0
    turn: Turn | None = field(default=None, metadata={"added": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        s = self.spectrum
        if self.turn is not None and (self.covariance != "fixed" or math.isinf(s.dim)):
            raise SpecError(
                f"task.turn: got a turn of {self.covariance} covariance in dimension {s.dim}, "
                "expected fixed covariance in finite dimension"
            )
        if self.covariance == "isotropic" and (
            s.input_exponent != 0 or s.task_exponent != 0 or s.total != 1
        ):
            raise SpecError("task.spectrum: an isotropic task needs the spectrum flat(dim)")


@dataclass(frozen=True, kw_only=True)
class SparseFeatures(Spec):
    r"""Multitask sparse feature regression: a sequence of type $s$, drawn with probability
    $P_s \propto s^{-\alpha}$, $s = 1, \dots,$ `num_tasks`, holds $\psi_s$ labeled tokens. Feature
    number $s$ of a token is a random sign, all others are zero, and its label is $\Lambda_s$ times
    the sum of its features. The query token has features and no label.

    **Arguments:** `type_exponent` is $\alpha$; `context` is $\psi_1$ and $\psi_s = \psi_1
    s^{-\beta}$ with $\beta$ = `context_exponent`; `strength` is $\Lambda_1$ and $\Lambda_s =
    \Lambda_1 s^{-\gamma}$ with $\gamma$ = `strength_exponent`. A tuple gives $\psi_s$ or
    $\Lambda_s$ one by one. `sequences` is the number $N$ of training sequences, drawn once;
    infinity stands for fresh sequences, or their average, at every step.
    `feature_noise` gives all other features Gaussian values of that standard deviation;
    `feature_decay` $\tau$ gives them the variances of a source and capacity condition: counted
    cyclically from the own one, the $k$-th has the variance $k^{-\tau}$. Infinity stands for none.

    Ref: Lyu, Wang, Zhu (ICLR 2025); docs/theory/sparse.md.
    """

    role: ClassVar[str] = "task"

    num_tasks: Extent
    type_exponent: NonNegative
    context: Positive | tuple[Positive, ...]
    context_exponent: NonNegative = 0.0
    strength: Real | tuple[Real, ...] = 1.0
    strength_exponent: NonNegative = 0.0
    sequences: Extent = math.inf
    feature_noise: NonNegative = field(default=0.0, metadata={"added": True})
    feature_decay: Annotated[float, Bounds(low=0, open_low=True, infinite=True)] = field(
        default=math.inf, metadata={"added": True}
    )

    @property
    def sparse(self) -> bool:
        """Whether a sequence has the feature of its own type alone."""
        return self.feature_noise == 0 and math.isinf(self.feature_decay)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature_noise and math.isfinite(self.feature_decay):
            raise SpecError(
                f"task.feature_noise: got {self.feature_noise:g} beside task.feature_decay "
                f"{self.feature_decay:g}; expected one of them, noise 0 or decay infinity"
            )
        if math.isinf(self.num_tasks) and self.type_exponent <= 1:
            raise SpecError(
                f"task.type_exponent: got {self.type_exponent:g} with infinitely many tasks, whose "
                "probabilities have no finite sum; expected a number > 1, or a finite num_tasks"
            )
        for name in ("context", "strength"):
            values, exponent = getattr(self, name), getattr(self, f"{name}_exponent")
            if not isinstance(values, tuple):
                continue
            count = len(typing.cast(tuple[float, ...], values))
            if count != self.num_tasks:
                raise SpecError(
                    f"task.{name}: got {count} values, expected task.num_tasks = {self.num_tasks}"
                )
            if exponent:
                raise SpecError(
                    f"task.{name}_exponent: got {exponent:g} beside one value a task; expected 0"
                )


@dataclass(frozen=True, kw_only=True)
class Retrieval(Spec):
    r"""Retrieval in context: labels $y_i = \beta\cdot x_i$ without noise, and a query whose target
    is the label of the token that matches it. Inputs have the covariance
    $O\operatorname{diag}(\lambda) O^T$ and $\beta$ has $O\operatorname{diag}(\omega)O^T$ with a
    fresh Haar rotation $O$ in every context.

    **Arguments:** `context` is the number $P$ of labeled tokens; `targets` is $k$; `difficulty` is
    "difficult" (a fresh query; the target is the mean label of the $k$ tokens of largest cosine
    with it) or "easy" (the query is one of the tokens and the target its label; $k = 1$, and
    infinitely many tokens have a meaning: $\Sigma$ in place of its sample).

    Ref: arXiv:2610.11063, section 2; docs/retrieval.md.
    """

    role: ClassVar[str] = "task"

    spectrum: Spectrum
    context: Extent
    targets: Annotated[int, Bounds(low=1)]
    difficulty: Literal["difficult", "easy"] = "difficult"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.difficulty == "easy":
            if self.targets != 1:
                raise SpecError(
                    f"task.targets: got {self.targets} for the easy task, whose target is the "
                    "label of one token; expected 1"
                )
            return
        if math.isinf(self.context):
            raise SpecError(
                "task.context: got infinity for the difficult task; the most similar of infinitely "
                "many tokens are copies of the query, expected a whole number"
            )
        if self.targets > self.context:
            raise SpecError(
                f"task.targets: got {self.targets} of task.context = {self.context} tokens; "
                "expected at most as many"
            )
        if self.spectrum.dim < 2:
            raise SpecError(
                f"task.spectrum.dim: got {self.spectrum.dim}; on a line every cosine is 1 or -1 "
                "and the most similar tokens are not defined, expected at least 2"
            )
