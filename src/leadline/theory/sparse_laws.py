r"""The scaling laws of sparse feature regression: exponents and prefactors in time, model size,
data and compute.

With $\delta = \alpha+2\gamma$ the power $P_s\Lambda_s^2$ falls as $s^{-\delta}$, and the tasks up
to $s$ are learned by the time $\propto s^\nu$. From an aligned start ($c = 0$)
$\nu = \alpha+\beta+\gamma$; in lazy training ($c>0$) the rate no longer knows the strength,
$\nu = \alpha+\beta$. The constrained model is slower by the strength, which replaces the label. All
losses have the factor 1/2 and all times are those of its flow, as in the paper.

Derived in docs/theory/sparse.md. Ref: Lyu, Wang, Zhu (ICLR 2025), tables 1 and 2 (not available;
exponents and prefactors derived).
"""

from __future__ import annotations

import math

import numpy as np

from leadline.curve import Floats
from leadline.errors import SolverError
from leadline.spec import PerTaskAttention, SparseFeatures
from leadline.theory.landscape import PowerLaw
from leadline.theory.sparse import solution, start_at
from leadline.theory.sparse_types import power_sum


def front_exponent(task: SparseFeatures, *, model: PerTaskAttention) -> float:
    r"""$\nu$: task $s$ is learned at the time $\propto s^\nu$. Softmax attention does not know
    the context, and at one strength for all tasks it has $\nu = \alpha$.

    **Raises:** `SolverError` for softmax attention and strengths that fall.
    """
    if model.attention == "softmax":
        if task.strength_exponent:
            raise SolverError(
                f"task.strength_exponent: got {task.strength_exponent:g} with softmax attention, "
                "whose exponent is known for 0"
            )
        return task.type_exponent
    lazy = model.invariant > 0
    gamma = task.strength_exponent
    return (
        task.type_exponent
        + task.context_exponent
        + (0.0 if lazy else gamma)
        + (gamma if model.constrained else 0.0)
    )


def time_law(task: SparseFeatures, *, model: PerTaskAttention) -> PowerLaw:
    r"""$\mathcal L\to Ct^{-(\delta-1)/\nu}$ on unlimited data, for infinitely many tasks and a
    model of any size:
    $$\mathcal L\to\frac{\Lambda_1^2}{2Z\nu}A^{-q}I\,t^{-q},\qquad q = \frac{\delta-1}\nu,\qquad
    I = \int_0^\infty x^{q-1}\rho(x)^2dx,$$
    where $\rho(x)$ is the residual over $\Lambda$ of one task at $x = As^{-\nu}t$: the logistic
    front $be^{-x}/(1+be^{-x})$ with $A = 2\psi_1\Lambda_1M/Z$ from an aligned start, the
    exponential one with $A = \psi_1\sqrt cM/Z$ in lazy training of falling strengths, and the whole
    solution where $\gamma = 0$. $M = 1+\Lambda_1^2$ if $\gamma = 0$, else 1.

    **Raises:** `SolverError` if $\delta\le1$, strengths and contexts are not power laws, or
    attention is not linear.
    """
    _linear(model)
    delta = _decay(task)
    norm = power_sum(task.type_exponent)
    strength, context = _first(task)
    nu, c = front_exponent(task, model=model), model.invariant
    constant = task.strength_exponent == 0
    mass = strength if model.constrained else (1 + strength**2 if constant else 1.0)
    if constant:
        scale = math.hypot(2 * strength, math.sqrt(c))
        target, invariant = strength / scale, c / scale**2  # the solution at Delta = 1
    elif c:
        scale, target, invariant = math.sqrt(c), 0.0, 1.0
    else:
        scale, target, invariant = 2 * strength, 0.5, 0.0
    q = (delta - 1) / nu
    speed = context * mass * scale / norm
    integral = _front_integral(q, target=target, invariant=invariant, start=model.start)
    prefactor = strength**2 / (2 * norm * nu) * speed**-q * integral
    return PowerLaw(prefactor=prefactor, exponent=q)


def _front_integral(q: float, *, target: float, invariant: float, start: float) -> float:
    r"""$\int_0^\infty x^{q-1}\rho(x)^2dx$ by the trapezoidal rule in $\ln x$, which converges
    geometrically; below the first node $\rho = \rho(0)$.
    """
    step = 0.01
    logs = np.arange(-45.0 / min(q, 1.0), 8.0, step)
    x = np.exp(logs)
    if target == 0:  # the limit of weak strength, where the residual falls from 1 - f(0)/Lambda
        left = (1 - start) * np.exp(-x)
    else:
        solved = solution(
            x, rate=1.0, strength=target, start=start_at(start * target, invariant=invariant)
        )
        left = solved.residual / target
    summed = step * float(np.sum(np.exp(q * logs) * left**2))
    return summed + (1 - start) ** 2 * math.exp(q * (logs[0] - step / 2)) / q


def size_law(task: SparseFeatures, *, model: PerTaskAttention) -> PowerLaw:
    r"""$\mathcal L\to(1-\rho)^2\Lambda_1^2D^{-(\delta-1)}/2Z(\delta-1)$ against the model size $D$,
    after infinite time on unlimited data, $\rho = f(0)/\Lambda$. `sparse_loss.size_loss` is exact.
    """
    delta = _decay(task)
    strength, _ = _first(task)
    scale = (1 - model.start) ** 2 * strength**2 / (2 * power_sum(task.type_exponent))
    return PowerLaw(prefactor=scale / (delta - 1), exponent=delta - 1)


def data_law(task: SparseFeatures, *, model: PerTaskAttention) -> PowerLaw:
    r"""$\mathcal L\to\frac{(1-\rho)^2\Lambda_1^2}{2Z\alpha}\Gamma(q)(N/Z)^{-q}$ with
    $q = (\delta-1)/\alpha$, against the number of sequences $N$, after infinite time.
    """
    delta = _decay(task)
    strength, _ = _first(task)
    norm, q = power_sum(task.type_exponent), (delta - 1) / task.type_exponent
    scale = (1 - model.start) ** 2 * strength**2 / (2 * norm * task.type_exponent)
    return PowerLaw(prefactor=scale * math.gamma(q) * norm**q, exponent=q)


def compute_law(task: SparseFeatures, *, model: PerTaskAttention) -> PowerLaw:
    r"""The least loss at $C = tD$, exponent $(\delta-1)/(\nu+1)$. At large $C$ the loss of size $D$
    after the time $C/D$ depends on $y = (AC)^{-1/(\nu+1)}D$ alone,
    $$\mathcal L\to\frac{\Lambda_1^2}{2Z}(AC)^{-\frac{\delta-1}{\nu+1}}
    \min_y\Big[\int_0^yu^{-\delta}\rho\big(u^{-\nu}/y\big)^2du
    + (1-\rho_0)^2\frac{y^{1-\delta}}{\delta-1}\Big].$$
    `best_size` has the minimizing $D$. Aligned start only.
    """
    best, value, speed = _best_share(task, model)
    del best
    delta, nu = _decay(task), front_exponent(task, model=model)
    strength, _ = _first(task)
    exponent = (delta - 1) / (nu + 1)
    scale = strength**2 / (2 * power_sum(task.type_exponent)) * value
    return PowerLaw(prefactor=scale * speed**-exponent, exponent=exponent)


def best_size(task: SparseFeatures, *, model: PerTaskAttention) -> PowerLaw:
    r"""The size $D = y(AC)^{1/(\nu+1)}$ of least loss, a power law with the exponent
    $-1/(\nu+1)$; the best time is $C/D$.
    """
    best, _, speed = _best_share(task, model)
    exponent = 1 / (front_exponent(task, model=model) + 1)
    return PowerLaw(prefactor=best * speed**exponent, exponent=-exponent)


def _best_share(task: SparseFeatures, model: PerTaskAttention) -> tuple[float, float, float]:
    """The y of least loss, the bracket there, and A."""
    _linear(model)
    if model.invariant:
        raise SolverError(
            f"model.invariant: got {model.invariant:g}; the constant of the compute law is known "
            "for an aligned start, expected 0"
        )
    delta, nu, norm = _decay(task), front_exponent(task, model=model), power_sum(task.type_exponent)
    strength, context = _first(task)
    constant = task.strength_exponent == 0
    mass = strength if model.constrained else (1 + strength**2 if constant else 1.0)
    speed = 2 * context * strength * mass / norm

    def bracket(y: float) -> float:
        # u = y e^-z; the front is double exponential in z
        z = np.arange(0.0, 40.0, 0.005) + 0.0025
        u = y * np.exp(-z)
        solved = solution(u**-nu / y, rate=1.0, strength=0.5, start=start_at(model.start / 2))
        learned = 0.005 * float(np.sum(u ** (1 - delta) * (2 * solved.residual) ** 2))
        return learned + (1 - model.start) ** 2 * y ** (1 - delta) / (delta - 1)

    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda log: bracket(math.exp(log)), bracket=(-2.0, -0.5, 1.0), method="brent"
    )
    return math.exp(float(found.x)), float(found.fun), speed


def _decay(task: SparseFeatures) -> float:
    delta = task.type_exponent + 2 * task.strength_exponent
    if task.type_exponent <= 1:
        raise SolverError(
            f"task.type_exponent: got {task.type_exponent:g}; the laws hold for infinitely many "
            "tasks, whose probabilities need an exponent > 1 to have a finite sum"
        )
    return delta


def _linear(model: PerTaskAttention) -> None:
    if model.attention != "linear":
        raise SolverError(
            f"model.attention: got {model.attention!r}; the constant of this law is known for "
            "'linear', the exponent is that of front_exponent"
        )


def _first(task: SparseFeatures) -> tuple[float, float]:
    if isinstance(task.context, tuple) or isinstance(task.strength, tuple):
        raise SolverError("task: got one context or strength a task; a law needs power laws")
    return abs(task.strength), task.context


def fit_exponent(values: Floats, at: Floats) -> float:
    """The slope of a least-squares line through the logarithms, positive for a falling power."""
    return -float(np.polyfit(np.log(at), np.log(values), 1)[0])
