"""Speed and memory of the transformer and of its reduced form in training.

Run with `python benchmarks/attention.py`; benchmarks/README.md describes the output. PyTorch is an
optional opponent: what needs it is reported as not measured where it is missing.
"""

# one thread must be fixed before JAX and PyTorch load
# ruff: noqa: E402
from __future__ import annotations

import os

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from leadline.simulation import models
from leadline.simulation.attention import Architecture, Reduced
from leadline.simulation.contexts import Law
from leadline.simulation.lanes import LANES
from leadline.simulation.risk import Draw, Setting, risk
from leadline.simulation.train import train
from leadline.spec import (
    Evaluation,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Training,
    Transformer,
    flat,
    grid,
    replace,
    source_capacity,
)

try:
    import torch
except ImportError:
    torch: Any = None
else:
    torch.set_num_threads(1)

REPEATS = 5


def report(**fields: object) -> None:
    fields["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(fields), flush=True)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def compare(
    what: str, ours: Callable[[], object], theirs: Callable[[], object], **more: Any
) -> None:
    """Alternate ours, ten calls in a row as in training, and the opponent, both called before."""

    def ten() -> tuple[float, float]:
        cpu, wall = seconds(lambda: [ours() for _ in range(10)])
        return cpu / 10, wall / 10

    ours()
    theirs()
    pairs = [(ten(), seconds(theirs)) for _ in range(REPEATS)]
    ratios = [other[0] / own[0] for own, other in pairs]
    report(
        what=what,
        ours_cpu_s=statistics.median(own[0] for own, _ in pairs),
        ours_wall_s=statistics.median(own[1] for own, _ in pairs),
        opponent_cpu_s=statistics.median(other[0] for _, other in pairs),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        **more,
    )


# --- linear attention through the covariance, against pairs -----------------------------------

DIM, DEPTH, BATCH, CONTEXT = 16, 16, 64, 512


def linear_attention() -> None:
    """Loss and gradient in Gamma over a batch, data given."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((BATCH, DIM, CONTEXT)).astype(np.float32)
    tasks = rng.standard_normal((BATCH, DIM)).astype(np.float32) / math.sqrt(DIM)
    queries = rng.standard_normal((BATCH, DIM, 1)).astype(np.float32)
    gamma = np.eye(DIM, dtype=np.float32)[None]
    law = Law(*(np.ones(DIM, np.float32) * v for v in (1, 1 / DIM)), np.float32(0), None)
    setting = Setting(
        architecture=Architecture(
            depth=DEPTH, softmax=False, separate=True, score=1.0, residual=1 / DEPTH
        ),
        linear=True, dim=DIM, rotated=False, context=CONTEXT, queries=math.inf, noisy=False,
    )  # fmt: skip

    def averaged(gamma: Any, inputs: Any) -> Any:
        zero = jnp.zeros(DIM, gamma.dtype)
        reduced = Reduced(gamma[:, None] / DEPTH, jnp.ones((1, 1), gamma.dtype), jnp.ones(()), zero)
        one = lambda x: risk(None, reduced, Draw(None, x, None, None, None), law, setting)  # type: ignore[arg-type] # noqa: E731
        return jnp.mean(jax.vmap(one)(inputs))

    def literal(gamma: Any, inputs: Any, tasks: Any, queries: Any) -> Any:
        def one(x: Any, task: Any, query: Any) -> Any:
            found = models.literal_predictions(gamma, x, x.T @ task, query, depth=DEPTH)
            return jnp.mean((found - query.T @ task) ** 2)

        return jnp.mean(jax.vmap(one)(inputs, tasks, queries))

    fast, slow = jax.jit(jax.value_and_grad(averaged)), jax.jit(jax.value_and_grad(literal))
    ours = lambda: jax.block_until_ready(fast(gamma, inputs))  # noqa: E731
    compare(
        f"linear attention through S, d {DIM} L {DEPTH} P {CONTEXT} B {BATCH}, against P x P, JAX",
        ours,
        lambda: jax.block_until_ready(slow(gamma, inputs, tasks, queries)),
        must=60,
        stretch=120,
    )
    if torch is None:
        report(what="linear attention against PyTorch", measured=False)
        return
    x, task, query = (torch.from_numpy(v) for v in (inputs, tasks, queries))

    def pairs() -> None:
        g = torch.from_numpy(gamma[0]).requires_grad_()
        label, found = (x.mT @ task[..., None]), torch.zeros(BATCH, 1, 1)
        scale, key = 1 / (DEPTH * CONTEXT), g @ x
        for _ in range(DEPTH):
            found = found + scale * query.mT @ key @ label
            label = label - scale * (x.mT @ key) @ label
        ((found[..., 0] - query.mT[..., 0, :] @ task.mT.diagonal()) ** 2).mean().backward()

    def absorbed() -> None:
        g = torch.from_numpy(gamma[0]).requires_grad_()
        covariance = x @ x.mT / CONTEXT
        moment, weight = covariance @ task[..., None], torch.zeros(BATCH, DIM, 1)
        for _ in range(DEPTH):
            step = g @ moment / DEPTH
            weight, moment = weight + step, moment - covariance @ step
        ((query.mT @ (weight - task[..., None])) ** 2).mean().backward()

    for name, theirs in (("P x P", pairs), ("absorbed", absorbed)):
        compare(f"linear attention, the same, against {name} in PyTorch", ours, theirs)


# --- training of the reduced model ------------------------------------------------------------


def reduced_training() -> None:
    """A step of reduced-Gamma training, d 64 N 8 L 4 B 128 P 512: eight lanes, per lane."""
    dim, width, depth, batch, context = 64, 8, 4, 128, 512
    base = RunSpec(
        task=InContextRegression(
            spectrum=source_capacity(dim, nu=1.25, beta=0.8), covariance="rotated", context=context
        ),
        model=ReducedAttention(depth=depth, width=width, projection="orthogonal"),
        recipe=Training(steps=4, batch_size=batch, queries=math.inf, rate=0.1),
        evaluation=Evaluation(contexts=1),
    )

    def steps(count: int) -> Callable[[], object]:
        runs = grid(replace(base, "recipe.steps", count), {"seed": range(LANES)})
        return lambda: train(runs)

    short, long = steps(2), steps(6)
    short()
    long()
    times = [(seconds(long)[0] - seconds(short)[0]) / 4 / LANES for _ in range(REPEATS)]
    ours = statistics.median(times)
    report(what="reduced-Gamma training, a step of one lane", ours_cpu_s=ours)
    if torch is None:
        report(what="reduced-Gamma training against PyTorch", measured=False)
        return
    limits = {torch.float64: (0.179, 10, 20), torch.float32: (0.062, 4, 7)}
    for dtype, (published, must, stretch) in limits.items():
        lam = torch.arange(1, dim + 1, dtype=dtype) ** -1.25
        task_deviation = torch.arange(1, dim + 1, dtype=dtype) ** -0.375
        gamma = torch.zeros(width, width, dtype=dtype, requires_grad=True)
        frame = torch.linalg.qr(torch.randn(dim, width, dtype=dtype))[0].mT

        def step() -> None:
            x = lam.sqrt()[:, None] * torch.randn(batch, dim, context, dtype=dtype)  # noqa: B023
            basis = torch.linalg.qr(torch.randn(batch, dim, dim, dtype=dtype))[0]  # noqa: B023
            task = basis @ (task_deviation * torch.randn(batch, dim, dtype=dtype))[..., None]  # noqa: B023
            x = basis @ x
            label, seen = x.mT @ task, frame @ x  # noqa: B023
            weight = torch.zeros(batch, width, 1, dtype=dtype)  # noqa: B023
            for _ in range(depth):
                update = gamma @ (seen @ label) / (context * depth)  # noqa: B023
                weight, label = weight + update, label - seen.mT @ update
            error = basis.mT @ (frame.mT @ weight - task)  # noqa: B023
            loss = (lam[:, None] * error**2).sum(dim=1).mean()  # noqa: B023
            (slope,) = torch.autograd.grad(loss, gamma)  # noqa: B023
            with torch.no_grad():
                gamma.sub_(0.1 * slope)  # noqa: B023

        step()
        theirs = statistics.median(seconds(step)[0] for _ in range(REPEATS))
        report(
            what=f"reduced-Gamma training against the usual PyTorch loop, {dtype}",
            opponent_cpu_s=theirs,
            opponent_published_s=published,
            opponent_is_fair=abs(theirs / published - 1) < 0.25,
            ratio=theirs / ours,
            must=must,
            stretch=stretch,
        )


# --- training of the transformer --------------------------------------------------------------


def transformer_training() -> None:
    """A step of a lane in 32 dimensions, 32 contexts a step, and peak memory against steps."""
    for depth in (1, 4, 16):
        base = RunSpec(
            task=InContextRegression(spectrum=flat(32), covariance="isotropic", context=32),
            model=Transformer(
                depth=depth, width=33, tied=True, channels="separate", initial="aligned",
                trainable="attention",
            ),
            recipe=Training(
                steps=1, batch_size=32, queries=math.inf, rate=0.002, optimizer="adam"
            ),
            evaluation=Evaluation(contexts=1),
        )  # fmt: skip
        peaks, cpu = [], []
        for steps in (50, 500):
            runs = grid(replace(base, "recipe.steps", steps), {"seed": range(LANES)})
            train(runs)
            cpu.append(seconds(lambda runs=runs: train(runs))[0])
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        report(
            what=f"transformer training, a step of one lane, D 32 P 32 B 32 L {depth}",
            ours_cpu_s=(cpu[1] - cpu[0]) / 450 / LANES,
            peak_mib_at_50_and_500_steps=peaks,
        )


if __name__ == "__main__":
    linear_attention()
    reduced_training()
    transformer_training()
