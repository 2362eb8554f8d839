"""Figures 6, 7, 8 and 14 from trained softmax attention, subsets of layers, and the demo's one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from leadline.claims import Interval
from leadline.curve import Floats
from leadline.papers.peng2026.depth import (
    DEMO_STEPS,
    EVALUATION,
    RECIPES,
    SEEDED,
    Recipe,
    training,
)
from leadline.papers.peng2026.depth_claims import (
    ISOTROPIC,
    MODES_ROW,
    bound,
    deepest,
    normalized_modes,
)
from leadline.papers.peng2026.depth_fits import (
    DepthFit,
    Trained,
    by_seed,
    fit_depths,
    of_row,
    trained,
)
from leadline.papers.peng2026.floor import LAW_DEPTHS, theory
from leadline.papers.peng2026.published import (
    NAME,
    NONLINEAR,
    SOFTMAX_CONTEXT,
    SOFTMAX_DIM,
    TABLE4,
    Row,
)
from leadline.papers.peng2026.tables import Tables, has, rows
from leadline.report.figures import BLUE, GRAY, ORANGE, Figure, few_ticks, panels, shades
from leadline.theory.linear_floor import isotropic_floor
from leadline.theory.retrieval import best_layer
from leadline.theory.retrieval_task import target_energy

ByRow = dict[Row, list[Trained]]
TASKS_VARY: tuple[Row, ...] = ((2, 0, 0), (2, 0, 0.25), (2, 0, 0.5), (2, 0, 1))
INPUTS_VARY: tuple[Row, ...] = ((2, 0, 0), (2, 0.25, 0), (2, 0.5, 0), (2, 1, 0))
JOINT = tuple(row for row in TABLE4 if row[0] == 2)
BROAD = tuple(row for row in TABLE4 if row[0] == 16)
MODES = (1, 2, 4, 8, 16)
SAMPLES = 300
"""Queries of Figure 8a."""


def _at(found: ByRow, wanted: Sequence[Row]) -> dict[Row, list[Trained]]:
    return {row: of_row(found, row) for row in wanted}


def _name(row: Row) -> str:
    return f"({row[1]:g}, {row[2]:g})"


def _points(ax: Any, depth: Floats, values: Floats, color: Any, **more: Any) -> None:
    """Mean over seeds at each depth, with the range of the seeds."""
    at = np.unique(depth)
    own = [values[depth == d] for d in at]
    mean = np.array([v.mean() for v in own])
    spread = np.array([[m - v.min(), v.max() - m] for m, v in zip(mean, own, strict=True)]).T
    ax.errorbar(at, mean, spread, fmt="o", ms=3.5, lw=1, capsize=2, color=color, **more)


def _depths(models: Sequence[Trained]) -> Floats:
    return np.array([float(model.depth) for model in models])


def _interval(found: Interval) -> str:
    return f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _plateau(row: Row) -> float:
    return TABLE4[row][0] if row in TABLE4 else NONLINEAR[row][0]


def _gain_panel(ax: Any, found: dict[Row, list[Trained]], recipe: Recipe) -> pl.DataFrame:
    """Loss over that of one layer against depth, the fitted law, and the published one: an inverse
    of the depth (or the published power of it) to the published plateau. One color a row.
    """
    frames: list[pl.DataFrame] = []
    for (row, models), color in zip(found.items(), shades(len(found)), strict=True):
        fitted: DepthFit = fit_depths(models)
        depth, loss = _depths(models), np.array([model.loss for model in models])
        alpha, plateau = fitted.exponent, fitted.plateau
        single = float(loss[depth == 1].mean())
        _points(ax, depth, loss / single, color, label=f"{_name(row)}: α = {_interval(alpha)}")
        line = np.geomspace(1, depth.max(), 60)
        law = plateau.estimate + fitted.coefficient * line**-alpha.estimate
        ax.plot(line, law / single, color=color, lw=1.2)
        power = TABLE4[row][1] if row in TABLE4 else 1.0
        share = _plateau(row) / single
        ax.plot(line, share + (1 - share) * line**-power, ":", color=color, lw=1.2)
        frames.append(
            pl.DataFrame({"depth": depth, "loss": loss, "seed": [m.seed for m in models]})
            .with_columns(kind=pl.lit("loss"), recipe=pl.lit(recipe))
            .with_columns(**_columns(row))
            .with_columns(
                plateau=plateau.estimate, plateau_low=plateau.low, plateau_high=plateau.high,
                exponent=alpha.estimate, exponent_low=alpha.low, exponent_high=alpha.high,
                r_squared=fitted.r_squared,
            )
        )  # fmt: skip
    low, high = ax.get_ylim()
    # room for the legend
    ax.set(xscale="log", xlabel="layers L", ylabel="loss / that of one layer")
    ax.set_ylim(low - 0.5 * (high - low), high)
    few_ticks(ax)
    ax.legend(loc="lower left", fontsize=7)
    return pl.concat(frames)


def _columns(row: Row) -> dict[str, pl.Expr]:
    return {"targets": pl.lit(row[0]), "a": pl.lit(float(row[1])), "b": pl.lit(float(row[2]))}


def _parts_panel(ax: Any, found: dict[Row, list[Trained]], part: str) -> pl.DataFrame:
    """C_L or A_L - C_L against depth."""
    frames: list[pl.DataFrame] = []
    for (row, models), color in zip(found.items(), shades(len(found)), strict=True):
        deep = [model for model in models if model.parts is not None]
        values = np.array([getattr(model.parts, part) for model in deep], float)
        _points(ax, _depths(deep), values, color, label=_name(row), ls="-")
        frames.append(
            pl.DataFrame({"depth": _depths(deep), part: values, "seed": [m.seed for m in deep]})
            .with_columns(kind=pl.lit(part))
            .with_columns(**_columns(row))
        )
    symbol = "$C_L$" if part == "shared" else "$A_L - C_L$"
    ax.set(xscale="log", yscale="log", xlabel="layers L", ylabel=symbol)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    few_ticks(ax)
    if part == "disagreement":
        ax.legend(loc="lower right", ncols=2, fontsize=7)
    return pl.concat(frames)


def _setting(found: dict[Row, list[Trained]], recipe: Recipe) -> str:
    """What a caption says of the runs."""
    models = [model for own in found.values() for model in own]
    seeds = sorted({len({model.seed for model in own}) for own in found.values()})
    steps = training(recipe).steps
    count = " or ".join(map(str, seeds))
    return (
        f"{SOFTMAX_DIM} dimensions, {SOFTMAX_CONTEXT} tokens, recipe {recipe} ({steps} steps), L = "
        f"1 to {deepest(models)[0].depth}, {count} seed{'s' if seeds[-1] > 1 else ''} a spectrum "
        f"(points: means, bars: range), {EVALUATION.contexts} common contexts of "
        f"{EVALUATION.queries} queries."
    )


def _four_panels(
    gains: tuple[ByRow, ByRow], parts: ByRow, recipe: Recipe, titles: Sequence[str]
) -> tuple[Canvas, list[pl.DataFrame]]:
    """Loss against depth of two groups of rows, and what the layers of `parts` share."""
    with panels(4, height=3.2) as (canvas, axes):
        frames = [_gain_panel(ax, rows, recipe) for ax, rows in zip(axes, gains, strict=False)]
        frames += [
            _parts_panel(ax, parts, name)
            for ax, name in zip(axes[2:], ("shared", "disagreement"), strict=True)
        ]
        for ax, letter, title in zip(axes, "abcd", titles, strict=True):
            ax.set_title(f"{letter}  {title}")
    return canvas, frames


def figure6(found: ByRow, recipe: Recipe) -> Figure:
    """Depth on the difficult task: loss and what layers share, one exponent varied at a time."""
    tasks, inputs = _at(found, TASKS_VARY), _at(found, INPUTS_VARY)
    both = tasks | inputs
    titles = ("b varies, a = 0", "a varies, b = 0", "shared error", "disagreement")
    canvas, frames = _four_panels((tasks, inputs), both, recipe, titles)
    return Figure(
        name=f"{NAME}-figure6",
        caption="Figure 6. Trained softmax attention on top-2 retrieval, spectra (a, b). (a, b) "
        "Loss over that of one layer; lines: L_0 + c L^-α fitted to all depths, with the 99% "
        "profile interval of α; dotted: 1/L from one layer to the published plateau. No plateau "
        "is subtracted, because fits to these depths do not bound it. All of (a) is one training "
        "and one curve: R(0, b) = R(0, 0) mean_k k^-b. (c, d) What two layers share, and their "
        "disagreement. " + _setting(both, recipe),
        alternative="Four panels against depth on log axes: losses fall more slowly than dotted "
        "lines of 1/L, shared errors and disagreements rise.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def figure7(found: ByRow, recipe: Recipe) -> Figure:
    """The modes of one spectrum against depth."""
    seeds = by_seed(found[MODES_ROW])
    depths = [model.depth for model in seeds[0]]
    losses = np.array([[model.modes for model in own] for own in seeds])
    shares = np.array([normalized_modes(own)[1] for own in seeds])
    frames: list[pl.DataFrame] = []
    with panels(2, height=3.2) as (canvas, axes):
        for k, color in zip(MODES, shades(len(MODES)), strict=True):
            for ax, values in ((axes[0], losses / losses[:, :1]), (axes[1], shares)):
                own = values[:, :, k - 1]
                _points(ax, np.tile(depths, len(seeds)).astype(float), own.ravel(), color, ls="-",
                        label=f"k = {k}")  # fmt: skip
            frames.append(
                pl.DataFrame(
                    {
                        "depth": np.tile(depths, len(seeds)),
                        "seed": np.repeat(range(len(seeds)), len(depths)),
                        "loss": losses[:, :, k - 1].ravel(),
                        "normalized": shares[:, :, k - 1].ravel(),
                    }
                ).with_columns(mode=pl.lit(k))
            )
        axes[0].set(xscale="log", ylabel="loss of mode k / that of one layer", title="a  modes")
        axes[1].set(xscale="log", ylabel="share still to lose", title="b  normalized")
        for ax in axes:
            ax.set(xlabel="layers L")
            few_ticks(ax)
            ax.legend(ncols=2 if ax is axes[0] else 1)
    return Figure(
        name=f"{NAME}-figure7",
        caption=f"Figure 7. Single modes at (a, b) = {_name(MODES_ROW)}, top-2. (a) Loss of mode "
        "k over that of one layer. (b) What it has still to lose before L = "
        f"{depths[-1]}, as a share of all that it loses from one layer on. "
        + _setting({MODES_ROW: found[MODES_ROW]}, recipe),
        alternative="Left, curves of single modes against depth; right, the same between one and "
        "zero.",
        canvas=canvas,
        numbers=pl.concat(frames),
    )


def _targets(seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Targets of isotropic top-2 retrieval, each in its own plane through the query: the part along
    it and the length across, shape (query, 2); the two tokens in the plane of the last one (token,
    2); the mean target along the query.
    """
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((SAMPLES, SOFTMAX_DIM))
    query /= np.linalg.norm(query, axis=1, keepdims=True)
    tokens = rng.standard_normal((SAMPLES, SOFTMAX_CONTEXT, SOFTMAX_DIM))
    cosine = np.einsum("npd,nd->np", tokens, query) / np.linalg.norm(tokens, axis=2)
    chosen = np.argpartition(cosine, -2, axis=1)[:, -2:]
    two = np.take_along_axis(tokens, chosen[:, :, None], axis=1)
    target = two.mean(axis=1)
    along = np.sum(target * query, axis=1)
    across = target - along[:, None] * query
    length = np.linalg.norm(across, axis=1)
    plane = np.stack([query[-1], across[-1] / length[-1]])
    return np.stack([along, length], axis=1), two[-1] @ plane.T, np.array([along.mean(), 0.0])


def _arrow(ax: Any, begin: Any, end: Any, color: str, width: float = 1.6) -> None:
    style = {"arrowstyle": "-|>", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=tuple(end), xytext=tuple(begin), arrowprops=style)


def figure8(found: ByRow, recipe: Recipe) -> Figure:
    """What of the target the query foretells, from sampled contexts, and what models leave."""
    cloud, two, mean = _targets()
    models = found[ISOTROPIC]
    task = {"dim": SOFTMAX_DIM, "context": SOFTMAX_CONTEXT, "targets": 2}
    deep = deepest(models)
    left = {
        "prediction zero": target_energy(**task),
        "what the query foretells": isotropic_floor(**task, features="population"),
        "linear attention": isotropic_floor(**task, features="context"),
        "softmax, 1 layer": float(np.mean([m.loss for m in models if m.depth == 1])),
        f"softmax, {deep[0].depth} layers": float(np.mean([m.loss for m in deep])),
        "bound of all ensembles": bound(models).estimate,
    }
    with panels(2, height=3.2) as (canvas, axes):
        ax = axes[0]
        ax.plot(*cloud.T, "o", ms=2.2, mew=0, alpha=0.5, color=GRAY, label="targets t")
        for token in two:
            _arrow(ax, (0, 0), token, "black", 1.1)
        _arrow(ax, (0, 0), mean, BLUE, 2.4)
        _arrow(ax, mean, cloud[-1], ORANGE, 2.0)
        ax.annotate("mean target", mean / 2, xytext=(0, -11), textcoords="offset points",
                    ha="center", color=BLUE, fontsize=8)  # fmt: skip
        ax.annotate("residual", (mean + cloud[-1]) / 2, xytext=(4, 0), textcoords="offset points",
                    color=ORANGE, fontsize=8)  # fmt: skip
        ax.axhline(0, color=GRAY, lw=0.8)
        ax.set(xlabel="along the query", ylabel="across it", title="a  targets of 300 queries")
        ax.set(xlim=(-0.2, 4.0), ylim=(-0.6, 4.6))
        ax.legend(loc="upper left")
        ax = axes[1]
        colors = [GRAY, BLUE, BLUE, ORANGE, ORANGE, "black"]
        bars = ax.barh(list(left), list(left.values()), color=colors, height=0.6)
        ax.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        ax.invert_yaxis()
        ax.set(xlabel="loss at (0, 0)", title="b  what is left of the target")
        ax.set_xlim(0, 1.15 * max(left.values()))
        ax.grid(visible=False, axis="y")
    return Figure(
        name=f"{NAME}-figure8",
        caption="Figure 8, our own drawing from sampled contexts: isotropic top-2 retrieval, "
        f"{SOFTMAX_DIM} dimensions, {SOFTMAX_CONTEXT} tokens. (a) Targets t, means of the two "
        "tokens most similar to the query, each in its own plane through the query. Black: the two "
        "tokens of one query, seen in that plane; blue: the mean target, which the query "
        "foretells; orange: the residual, which depends on the context. (b) Mean square of t, what "
        "is left of it without the part along the query, and with the best linear attention; "
        "losses of trained softmax attention, means over seeds; the least loss of all ensembles "
        "of layers on the same contexts. " + _setting({ISOTROPIC: models}, recipe),
        alternative="Left, a cloud of points well above the axis of the query, with arrows for its "
        "mean and one residual. Right, bars that fall from 8 to 2.",
        canvas=canvas,
        numbers=pl.concat(
            [
                pl.DataFrame({"along": cloud[:, 0], "across": cloud[:, 1]}),
                pl.DataFrame({"model": list(left), "loss": list(left.values())}),
            ],
            how="diagonal",
        ),
    )


def figure14(found: ByRow, recipe: Recipe) -> Figure:
    """Depth on broader targets and spectra with both exponents above zero."""
    joint, broad = _at(found, JOINT), _at(found, BROAD)
    titles = ("top-2, a and b > 0", "top-16", "shared error, top-2", "disagreement, top-2")
    canvas, frames = _four_panels((joint, broad), joint, recipe, titles)
    return Figure(
        name=f"{NAME}-figure14",
        caption="Figure 14. As Figure 6 for spectra (a, b) with both exponents above zero and for "
        "broader targets. The two rows of (b) with a = 0 are one training. "
        + _setting(joint | broad, recipe),
        alternative="Four panels against depth on log axes, like those of Figure 6.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def subsets(found: dict[Recipe, ByRow]) -> Figure:
    """Trained losses against depth by recipe, theory, and subsets of the deepest model."""
    models = {recipe: found[recipe][ISOTROPIC] for recipe in RECIPES}
    plateau = bound(models["short"])
    exact = best_layer(dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=2).loss
    luck = plateau.estimate / theory(2).bound.loss
    law = pl.DataFrame(
        {"depth": [1, *LAW_DEPTHS], "loss": [luck * x for x in
         (exact, *(m.loss for m in theory(2).law))]}
    ).with_columns(kind=pl.lit("law of depth"))  # fmt: skip
    frames = [law]
    with panels(2, height=3.2) as (canvas, axes):
        for ax in axes:
            ax.plot(law["depth"], law["loss"] - (plateau.estimate if ax is axes[1] else 0), "--",
                    color=GRAY, label="theory, law of depth")  # fmt: skip
        for recipe, color in zip(RECIPES, (BLUE, ORANGE), strict=True):
            own = models[recipe]
            depth, loss = _depths(own), np.array([m.loss for m in own])
            for ax, shift in ((axes[0], 0.0), (axes[1], plateau.estimate)):
                _points(ax, depth, loss - shift, color, ls="-", label=f"trained, {recipe}")
            deep = [m.parts for m in deepest(own) if m.parts is not None]
            sizes = np.array(sorted({m.depth for m in own if m.depth > 1}))
            part = np.array([np.mean([p.subset(int(n)) for p in deep]) for n in sizes])
            for ax, shift in ((axes[0], 0.0), (axes[1], plateau.estimate)):
                ax.plot(sizes, part - shift, "^:", ms=4, color=color,
                        label=f"n of its {deep[0].depth} layers")  # fmt: skip
            frames += [
                pl.DataFrame({"depth": depth, "loss": loss}).with_columns(
                    kind=pl.lit("trained"), recipe=pl.lit(recipe)
                ),
                pl.DataFrame({"depth": sizes, "loss": part}).with_columns(
                    kind=pl.lit("subset"), recipe=pl.lit(recipe)
                ),
            ]
        axes[0].axhline(plateau.estimate, color="black", lw=1)
        axes[0].set(
            ylabel="loss at (0, 0)", title="a  loss", ylim=(0.985 * plateau.estimate, 1.12 * exact)
        )
        line = np.array([4.0, 64.0])
        axes[1].plot(line, 0.6 / line, color="black", lw=1, label="1/L")
        axes[1].set(yscale="log", ylabel="loss − bound", title="b  above the bound")
        for ax in axes:
            ax.set(xscale="log", xlabel="layers L")
            few_ticks(ax)
        axes[1].legend(fontsize=7, loc="upper right")
    return Figure(
        name=f"{NAME}-subsets",
        caption="Depth at (0, 0), top-2: models trained with L layers, by recipe, beside n layers "
        "taken from the deepest, C + (A − C)/n. Dashed: theory's law of depth, no fitted "
        "parameter; black in (a): the least loss of all ensembles; both as the common contexts "
        "see them. " + _setting({ISOTROPIC: models["short"]}, "short"),
        alternative="Losses of trained models fall slowly and stay far below those of subsets of "
        "the deepest model, which fall as 1/n from high above.",
        canvas=canvas,
        numbers=pl.concat(frames, how="diagonal_relaxed"),
    )


def demo(tables: Tables) -> Figure:
    """Three trainings cut short."""
    stored = [row for _, row in rows(tables, "depth-demo", engine="simulation")]
    depth, loss, error = (
        np.array([row[name] for row in stored], float) for name in ("depth", "loss", "loss_error")
    )
    exact = best_layer(dim=SOFTMAX_DIM, context=SOFTMAX_CONTEXT, targets=2).loss
    with panels(1, height=3.2) as (canvas, (ax,)):
        canvas.set_size_inches(5.2, 3.4)
        ax.errorbar(depth, loss, 2 * error, fmt="o", ms=4, capsize=3, color=BLUE, label="trained")
        ax.axhline(exact, color=GRAY, ls="--", lw=1.2, label="best single layer, exactly")
        ax.set(xscale="log", xlabel="layers L", ylabel="loss (mean squared error)")
        ax.set_xticks(depth, [f"{d:g}" for d in depth])
        ax.minorticks_off()
        ax.legend()
    gain = float(loss[0] - loss[-1])
    return Figure(
        name=f"{NAME}-demo",
        caption="Softmax attention on top-2 retrieval, trained for the demo: isotropic inputs in "
        f"{SOFTMAX_DIM} dimensions, {SOFTMAX_CONTEXT} tokens, {DEMO_STEPS} steps of Adam where the "
        "full recipe takes 1,500, one seed. Bars are two standard errors over contexts, which all "
        f"models share, so that the difference of {gain:.3f} between the ends is known better than "
        "either. The dashed line is exact; the first point may lie on either side of it by the "
        "luck of the contexts. Three depths cannot give an exponent: see the scale small.",
        alternative="Three points, the deeper model a little lower, and a dashed line.",
        canvas=canvas,
        numbers=pl.DataFrame({"depth": depth, "loss": loss, "loss_error": error}),
    )


def figures(tables: Tables) -> tuple[Figure, ...]:
    """Every figure that the scale of `tables` can draw."""
    if has(tables, "depth-demo", engine="simulation"):
        return (demo(tables),)
    found: dict[Recipe, ByRow] = {recipe: trained(tables, recipe) for recipe in RECIPES}
    short = found["short"]
    if not set(SEEDED) <= short.keys():
        return ()
    return (
        figure6(short, "short"),
        figure7(short, "short"),
        figure8(short, "short"),
        figure14(short, "short"),
        subsets(found),
    )
