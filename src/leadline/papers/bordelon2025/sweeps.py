"""The runs behind each figure, in theory and in simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leadline.papers.bordelon2025 import depth_law, fixed, rotated, shapes, transformers, untied
from leadline.papers.bordelon2025.tables import NAME, sweeps_of
from leadline.spec import (
    BestScale,
    Evaluation,
    GivenScale,
    InContextRegression,
    ReducedAttention,
    RunSpec,
    Sweep,
    Training,
    flat,
    grid,
    is_regression,
    replace,
)

ALL_DEPTHS = (1, 2, 4, 8, 16, 64)
NOISES = (0.0, 0.25, 0.5, 1.0)
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SGD_AXES: Mapping[str, tuple[float, ...]] = {
    "tau": (0.5, 1.0, 2.0, 4.0),
    "alpha": (0.5, 1.0, 2.0, 4.0),
    "kappa": (0.25, 0.5, 1.0, 4.0),
}
SGD_STEPS = 60
SGD_RATE = 0.1
r"""$\eta$ of the recursion, which advances the scalar flow by $\eta/2$ a step."""


def isotropic(
    dim: int, *, ratio: float, depth: float, noise: float = 0.0, contexts: int = 64
) -> RunSpec:
    r"""The isotropic task in `dim` dimensions, $P = $ `ratio` `dim` labels, at its best scale."""
    return RunSpec(
        task=InContextRegression(
            spectrum=flat(dim), covariance="isotropic", context=round(ratio * dim), noise=noise
        ),
        model=ReducedAttention(depth=depth),
        recipe=BestScale(),
        evaluation=Evaluation(contexts=contexts),
    )


def _landscape(
    base: RunSpec, scales: Sequence[float], depths: tuple[int, ...], noises: tuple[float, ...]
) -> tuple[RunSpec, ...]:
    """Points at `scales`, in units of the edge of stability."""
    assert is_regression(base)
    ratio = base.task.context / base.task.spectrum.dim
    edge = 2 / (1 + ratio**-0.5) ** 2
    runs: list[RunSpec] = []
    for depth in depths:
        at_depth = replace(base, "model.depth", depth)
        for scale in scales:
            own = replace(at_depth, "recipe", GivenScale(gamma=depth * edge * scale))
            runs += grid(own, {"task.noise": noises})
    return tuple(runs)


def landscapes(scale: str) -> tuple[Sweep, ...]:
    """Figure 2: the loss over gamma, by depth at two context ratios and by noise at depth 16."""
    dim = 256 if scale == "paper" else 128
    sweeps: list[Sweep] = []
    for panel, ratio, depths, noises in (
        ("a", 0.5, ALL_DEPTHS, (0.0,)),
        ("b", 2.0, ALL_DEPTHS, (0.0,)),
        ("c", 1.0, (16,), NOISES),
    ):
        base = isotropic(dim, ratio=ratio, depth=1)
        name = f"{NAME}/figure2{panel}"
        lines = _landscape(base, [i / 80 for i in range(1, 81)], depths, noises)
        points = _landscape(base, [(i + 0.6) / 12 for i in range(12)], depths, noises)
        sweeps.append(Sweep(name=f"{name}/theory", engine="theory", runs=lines))
        sweeps.append(Sweep(name=f"{name}/simulation", engine="simulation", runs=points))
    return tuple(sweeps)


def final_losses(scale: str) -> tuple[Sweep, ...]:
    """The least loss over gamma against the context ratio, at every depth; and in three sizes,
    from which the simulation is extrapolated in 1/D.

    At P = D the best scale of deep models is the edge of stability itself, where finite size
    enters by powers of D^(-2/3); at P = 4D it lies within, and terms in 1/D remain.
    """
    dim, contexts = (256, 2048) if scale == "paper" else (128, 256)
    theory = [
        isotropic(4096, ratio=2 ** (i / 4), depth=depth)
        for depth in (*ALL_DEPTHS, math.inf)
        for i in range(-10, 15)
    ]
    points = [isotropic(dim, ratio=ratio, depth=depth) for ratio in RATIOS for depth in ALL_DEPTHS]
    noisy = [isotropic(4096, ratio=1.0, depth=16, noise=noise) for noise in NOISES]
    sized = [
        isotropic(size, ratio=ratio, depth=depth, contexts=contexts)
        for size in (dim // 4, dim // 2, dim)
        for ratio, depth in ((1.0, 1), (4.0, 1), (4.0, 4))
    ]
    return (
        Sweep(name=f"{NAME}/final/theory", engine="theory", runs=(*theory, *noisy)),
        Sweep(name=f"{NAME}/final/simulation", engine="simulation", runs=tuple(points)),
        Sweep(name=f"{NAME}/sized/simulation", engine="simulation", runs=tuple(sized)),
    )


def shallow_run(dim: int, **ratios: float) -> RunSpec:
    r"""Stochastic gradient descent on the full matrix at depth one, with $P = \alpha D$ labels,
    $B = \tau D$ contexts a step and $K = \kappa D$ queries a context; ratios not given are one.
    """
    alpha, tau, kappa = (ratios.get(name, 1.0) for name in ("alpha", "tau", "kappa"))
    base = isotropic(dim, ratio=alpha, depth=1)
    recipe = Training(
        steps=SGD_STEPS,
        batch_size=round(tau * dim),
        queries=round(kappa * dim),
        rate=SGD_RATE * dim / 2,
    )
    record = tuple(range(0, SGD_STEPS + 1, 5))
    return replace(replace(base, "recipe", recipe), "evaluation.record", record)


def shallow_training(scale: str) -> tuple[Sweep, ...]:
    """Figure 7: loss curves of shallow SGD by batch size, context and queries; the simulation in
    three sizes for the claims on the recursion, the smaller ones, which cost little and decide the
    error of the limit, with more seeds.
    """
    dim, seeds = (128, 16) if scale == "paper" else (64, 8)
    sweeps: list[Sweep] = []
    for panel, (axis, values) in zip("abc", SGD_AXES.items(), strict=True):
        theory = tuple(shallow_run(1024, **{axis: v}) for v in values)
        runs = [
            run
            for v in values
            for run in grid(shallow_run(dim, **{axis: v}), {"seed": range(seeds)})
        ]
        name = f"{NAME}/figure7{panel}"
        sweeps.append(Sweep(name=f"{name}/theory", engine="theory", runs=theory))
        sweeps.append(Sweep(name=f"{name}/simulation", engine="simulation", runs=tuple(runs)))
    sizes = [
        run
        for size, times in ((dim // 4, 24), (dim // 2, 24), (dim, 3))
        for run in grid(shallow_run(size), {"seed": range(times * seeds)})
    ]
    sweeps.append(
        Sweep(name=f"{NAME}/recursion/simulation", engine="simulation", runs=tuple(sizes))
    )
    return tuple(sweeps)


def first_steps(scale: str) -> tuple[Sweep, ...]:
    """The first step of gradient descent at depth 4, from which the prefactor of the flow is
    read, for each covariance.
    """
    seeds = {"seed": range(32 if scale == "paper" else 16)}
    isotropic_run = isotropic(64, ratio=1.0, depth=4)
    named = {
        "": replace(
            isotropic_run,
            "recipe",
            Training(steps=1, batch_size=64, queries=math.inf, rate=0.64),
        )
    }
    if scale != "demo":
        one = Training(steps=1, batch_size=1024, queries=math.inf, rate=0.01)
        named["-fixed"] = replace(fixed.fixed_run(16, depth=4, at=(1.0,)), "recipe", one)
        named["-rotated"] = replace(rotated.rotated_run(16, depth=4), "recipe", one)
    return sweeps_of(
        {f"first-step{name}/simulation": grid(run, seeds) for name, run in named.items()}
    )


def sweeps(scale: str) -> tuple[Sweep, ...]:
    """Every sweep of this paper at `scale`; "demo" is what a minute of a laptop affords."""
    quick = (*landscapes(scale), *final_losses(scale), *first_steps(scale))
    if scale == "demo":
        return quick
    return (
        *quick,
        *shallow_training(scale),
        *fixed.sweeps(),
        *rotated.sweeps(),
        *depth_law.sweeps(),
        *untied.sweeps(),
        *shapes.sweeps(),
        *transformers.sweeps(scale),
    )
