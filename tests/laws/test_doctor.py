"""Known faults of tables are found by name, and clean tables are left alone."""

import json

import numpy as np
import polars as pl
import pytest

from leadline.data import bundled
from leadline.errors import FitError, TableError
from leadline.laws import CHINCHILLA, bootstrap, fit, read_runs
from leadline.laws.doctor import best_over, inspect_runs
from leadline.laws.levels import loss_quantum
from leadline.runs import Runs, nothing_excluded

LAWS = [
    (1.7, 400.0, 2000.0, 0.34, 0.37),
    (1.9, 50.0, 1e4, 0.25, 0.45),
    (0.8, 20.0, 300.0, 0.15, 0.2),
    (1.69, 406.4, 410.7, 0.34, 0.28),
]


def table(**columns) -> Runs:
    frame = pl.DataFrame(columns).with_row_index("row", offset=1)
    return Runs(frame=frame, units={}, excluded=nothing_excluded(), source="test table")


def changed(runs: Runs, **columns) -> Runs:
    frame = runs.frame.with_columns(**columns)
    return Runs(frame=frame, units=runs.units, excluded=runs.excluded, source=runs.source)


def law(params, tokens, values=LAWS[0]):
    floor, a, b, alpha, beta = values
    return floor + a * params**-alpha + b * tokens**-beta


def scattered(seed: int = 0, rows: int = 80, noise: float = 0.01) -> Runs:
    """Runs of random size, in raw counts and nats."""
    rng = np.random.default_rng(seed)
    params, tokens = 10 ** rng.uniform(7, 10, rows), 10 ** rng.uniform(9, 12, rows)
    loss = law(params, tokens) * np.exp(noise * rng.standard_normal(rows))
    return table(params=params, tokens=tokens, flops=6 * params * tokens, loss=loss)


def clean(seed: int) -> Runs:
    """A sound table: one of five designs, four laws, four noises, normal or heavy-tailed."""
    rng = np.random.default_rng(seed)
    values, noise = LAWS[seed % 4], (0.002, 0.005, 0.01, 0.02)[(seed // 3) % 4]
    kind, extra = seed % 5, {}
    if kind == 0:
        params, tokens = 10 ** rng.uniform(7, 10, 80), 10 ** rng.uniform(9, 12, 80)
    elif kind == 1:
        grid = np.meshgrid(np.geomspace(1e7, 1e10, 8), np.geomspace(1e9, 1e12, 8))
        params, tokens = (x.ravel() for x in grid)
    elif kind == 2:
        _, a, b, alpha, beta = values
        budget = np.repeat(np.geomspace(1e18, 1e22, 6), 9)
        best = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
        best = best * (budget / 6) ** (beta / (alpha + beta))
        spread = np.tile(np.geomspace(1 / 16, 16, 9), 6)
        params = best * spread * np.exp(0.02 * rng.standard_normal(54))
        tokens = budget / (6 * params)
    elif kind == 3:
        params = np.repeat(10 ** rng.uniform(7, 10, 25), 8)
        tokens = np.tile(np.geomspace(1e9, 1e12, 8), 25)
        extra = {"run": np.repeat([f"run {i}" for i in range(25)], 8)}
    else:
        grid = np.meshgrid(np.geomspace(1e7, 1e10, 10), np.geomspace(5, 500, 8))
        params, ratio = (x.ravel() for x in grid)
        tokens = params * ratio
    size = params.size
    error = rng.standard_normal(size) if seed % 2 else rng.standard_t(5, size)
    if kind == 3:
        error = 0.6 * error + 0.8 * np.repeat(rng.standard_normal(25), 8)
    loss = law(params, tokens, values) * np.exp(noise * error)
    return table(params=params, tokens=tokens, flops=6 * params * tokens, loss=loss, **extra)


def found(runs: Runs) -> dict:
    return {finding.code: finding for finding in reversed(inspect_runs(runs))}


def warnings(runs: Runs) -> list:
    return [finding for finding in inspect_runs(runs) if finding.severity != "note"]


@pytest.mark.parametrize("seed", range(20))
def test_a_clean_table_gives_no_warning(seed):
    assert warnings(clean(seed)) == []


@pytest.mark.parametrize("name", ["gemstones_hot.jsonl"])
def test_a_clean_published_table_gives_no_warning(name):
    assert warnings(read_runs(bundled(name))) == []


def test_duplicated_rows_are_named_and_do_not_shrink_intervals():
    runs = scattered()
    twice = pl.concat([runs.frame, runs.frame[:20]]).drop("row").with_row_index("row", offset=1)
    pasted = Runs(frame=twice, units={}, excluded=nothing_excluded(), source="pasted")
    finding = found(pasted)["duplicated-rows"]
    assert finding.rows == tuple(range(81, 101))
    assert "duplicated-rows" not in found(runs)
    # weighted twice or not, a row stays one unit
    spread = bootstrap(fit(CHINCHILLA, pasted), draws=150)["alpha"].std()
    once = bootstrap(fit(CHINCHILLA, runs), draws=150)["alpha"].std()
    assert spread > 0.8 * once


@pytest.mark.parametrize(
    ("column", "factor"), [("tokens", 1e9), ("tokens", 1e6), ("params", 1e6), ("params", 1e9)]
)
def test_counts_in_another_unit_are_found_by_the_cost(column, factor):
    runs = changed(scattered(), **{column: pl.col(column) / factor})
    assert found(runs)["units"].severity == "error"
    assert "raw counts" in found(runs)["units"].message


@pytest.mark.parametrize("column", ["tokens", "params"])
def test_counts_in_another_unit_are_suspected_without_a_cost(column):
    runs = changed(scattered(), **{column: pl.col(column) / 1e9})
    without = Runs(frame=runs.frame.drop("flops"), units={}, excluded=runs.excluded, source="")
    assert found(without)["units"].severity == "warning"


@pytest.mark.parametrize("flops", [True, False])
def test_half_a_table_in_another_unit_is_found_with_its_rows(flops):
    half = pl.col("row") <= 30
    runs = changed(
        scattered(), tokens=pl.when(half).then(pl.col("tokens") / 1e9).otherwise(pl.col("tokens"))
    )
    if not flops:
        runs = Runs(frame=runs.frame.drop("flops"), units={}, excluded=runs.excluded, source="")
    finding = found(runs)["mixed-units"]
    assert finding.severity == "error"
    assert finding.rows == tuple(range(1, 31))


@pytest.mark.parametrize("factor", [1 / np.log(2), 0.36, 1 / (4.2 * np.log(2))])
@pytest.mark.parametrize("rows", [20, 40])
def test_two_units_of_loss_are_found_with_their_rows(factor, rows):
    chosen = np.random.default_rng(1).permutation(80)[:rows]
    mask = np.isin(np.arange(80), chosen)
    runs = scattered()
    loss = runs.frame["loss"].to_numpy() * np.where(mask, factor, 1.0)
    finding = found(changed(runs, loss=pl.Series(loss)))["loss-units"]
    assert finding.severity == "error"
    rest = tuple(np.flatnonzero(~mask) + 1)
    assert finding.rows in (tuple(np.flatnonzero(mask) + 1), rest)


def test_embeddings_on_one_side_only_are_seen_in_the_cost():
    width = np.repeat([256.0, 512, 1024, 2048, 4096], 8)
    depth = np.repeat([4.0, 8, 12, 24, 32], 8)
    inner, outer = 12 * depth * width**2, 50_000 * width
    tokens = np.tile(np.geomspace(1e9, 1e12, 8), 5)
    columns = {
        "params": inner,
        "tokens": tokens,
        "width": width,
        "depth": depth * np.tile(np.geomspace(1, 2, 8), 5),
        "flops": 6 * (inner + outer) * tokens,
        "loss": law(inner, tokens),
    }
    finding = found(table(**columns))["parameter-count"]
    assert "embeddings" in finding.message
    # small models with a big vocabulary are the ones that are off: 1 + 50000/(12 depth width)
    assert "5.07" in finding.message
    honest = table(**columns | {"flops": 6 * inner * tokens})
    assert "parameter-count" not in found(honest)


def test_another_convention_of_cost_is_shown():
    runs = changed(scattered(), flops=pl.col("flops") * 4 / 3)
    assert found(runs)["cost-convention"].severity == "note"
    assert "1.33" in found(runs)["cost-convention"].message


def test_losses_read_off_a_scale_are_recognized():
    runs = read_runs(bundled("chinchilla_epoch.csv"))
    finding = found(runs)["quantized-loss"]
    assert "99 distinct losses among 245 rows" in finding.message
    steps = np.diff(np.unique(runs.frame["loss"].to_numpy()))
    assert loss_quantum(runs) == pytest.approx(np.median(steps))
    rounded = changed(scattered(), loss=pl.col("loss").round(1))
    assert loss_quantum(rounded) == pytest.approx(0.1)
    assert loss_quantum(scattered()) is None
    assert loss_quantum(changed(scattered(), loss=pl.col("loss").round(4))) is None


def checkpoints(*, cosine: bool, seed: int = 0) -> Runs:
    """Runs of several lengths with eight checkpoints each; under a decaying rate only the last of
    a run has the loss of its size.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(24):
        params, total = 10 ** rng.uniform(7, 10), 10 ** rng.uniform(10, 12)
        for part in np.arange(1, 9) / 8:
            tokens = part * total
            loss = law(params, tokens) * (1 + 0.04 * (part < 1) * cosine)
            noise = np.exp(0.003 * rng.standard_normal())
            rows.append((f"run {i}", params, tokens, 1000.0 * part, loss * noise))
    names = ("run", "params", "tokens", "step", "loss")
    return table(**{n: list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)})


def test_checkpoints_are_noted_and_resampled_by_run():
    runs = checkpoints(cosine=False)
    assert found(runs)["checkpoints"].severity == "note"
    assert warnings(runs) == []


def test_checkpoints_without_names_are_a_warning():
    runs = checkpoints(cosine=False)
    bare = Runs(frame=runs.frame.drop("run"), units={}, excluded=runs.excluded, source="")
    assert "add a column run" in found(bare)["unnamed-runs"].message


def test_checkpoints_inside_a_cosine_schedule_are_found_by_the_drop_at_the_end():
    finding = found(checkpoints(cosine=True))["cosine-checkpoints"]
    assert finding.severity == "warning"
    assert len(finding.rows) == 24 * 7


def test_checkpoints_inside_a_named_schedule_are_found():
    runs = changed(checkpoints(cosine=False), lr_schedule=pl.lit("cosine"))
    assert len(found(runs)["cosine-checkpoints"].rows) == 24 * 7
    constant = changed(checkpoints(cosine=False), lr_schedule=pl.lit("constant"))
    assert "cosine-checkpoints" not in found(constant)


def test_a_mix_of_checkpoints_and_final_losses_is_a_warning():
    runs = checkpoints(cosine=False)
    last = pl.col("step") == 1000.0
    short = runs.frame.filter(last | pl.col("run").is_in([f"run {i}" for i in range(12)]))
    mixed = Runs(frame=short, units={}, excluded=nothing_excluded(), source="mixed")
    assert (
        "12 runs have several checkpoints and 12 only one"
        in found(mixed)["mixed-checkpoints"].message
    )


def test_a_resumed_run_repeats_steps():
    runs = checkpoints(cosine=False)
    again = runs.frame[:3].with_columns(pl.col("loss") * 1.001)
    joined = pl.concat([runs.frame, again]).drop("row").with_row_index("row", offset=1)
    resumed = Runs(frame=joined, units={}, excluded=nothing_excluded(), source="resumed")
    assert found(resumed)["resumed-run"].rows == (193, 194, 195)


def test_torn_lines_and_drifting_headers_are_named(tmp_path):
    path = tmp_path / "log.csv"
    lines = ["params,tokens,loss"]
    lines += [
        f"{10 ** (7 + i / 10):.6g},{10 ** (9 + i / 7):.6g},{3 - i / 30:.4f}" for i in range(20)
    ]
    lines += ["params,tokens,loss", "2e8,1e1"]
    path.write_text("\n".join(lines))
    codes = found(read_runs(path))
    assert codes["torn-line"].rows == (22,)
    assert codes["drifting-header"].rows == (21,)


def test_a_loss_whose_name_changed_on_the_way_is_named(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [
        {"params": 10 ** (7 + i / 10), "tokens": 10 ** (9 + i / 7)}
        | {("loss" if i < 15 else "valid_nll"): 3 - i / 30}
        for i in range(20)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    finding = found(read_runs(path))["drifting-header"]
    assert finding.rows == (16, 17, 18, 19, 20)


def test_a_size_whose_name_changed_on_the_way_is_named():
    runs = scattered()
    first = pl.col("row") <= 40
    frame = runs.frame.with_columns(
        tokens=pl.when(first).then(pl.col("tokens")),
        seen_tokens=pl.when(~first).then(pl.col("tokens")),
    )
    drifted = Runs(frame=frame, units={}, excluded=nothing_excluded(), source="drifted")
    assert "'tokens' or 'seen_tokens'" in found(drifted)["drifting-header"].message


def test_width_and_depth_that_grow_together_are_a_warning_and_then_refused():
    width = np.geomspace(256, 4096, 20)
    tokens = np.random.default_rng(0).permutation(np.geomspace(1e9, 1e12, 20))
    loss = 1.7 + 20 * width**-0.5 + 2000 * tokens**-0.37
    together = table(width=width, depth=width / 64, tokens=tokens, loss=loss)
    assert "predict along the line" in found(together)["varied-together"].message
    from leadline.laws import separable

    with pytest.raises(FitError, match="cannot tell their exponents apart"):
        fit(separable(["width", "depth", "tokens"]), together)
    along = fit(separable(["width", "tokens"]), together)
    assert along.law.parameters["a_width"] == pytest.approx(0.5, rel=1e-4)


def rates(*, best: float) -> Runs:
    """Five rates at each of 16 sizes; the loss is least at the rate `best`."""
    grid = np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4))
    params, tokens = (np.repeat(x.ravel(), 5) for x in grid)
    rate = np.tile([1e-4, 3e-4, 1e-3, 3e-3, 1e-2], 16)
    loss = law(params, tokens) * (1 + 0.02 * np.log(rate / best) ** 2)
    return table(params=params, tokens=tokens, rate=rate, loss=loss)


def test_several_rates_ask_for_the_best_and_get_it():
    runs = rates(best=1e-3)
    assert 'best_over(runs, "rate")' in found(runs)["several-rates"].message
    assert "edge-of-rates" not in found(runs)
    best = best_over(runs, "rate")
    assert len(best) == 16
    assert set(best.frame["rate"]) == {1e-3}
    assert best.frame["loss"].to_numpy() == pytest.approx(
        law(best.frame["params"].to_numpy(), best.frame["tokens"].to_numpy())
    )
    assert best.excluded.height == 64
    assert set(best.excluded["reason"]) == {"not the least loss over rate at this size"}
    assert "several-rates" not in found(best)


def test_an_optimum_at_the_edge_of_the_rates_is_found():
    finding = found(rates(best=2e-2))["edge-of-rates"]
    assert finding.rows == tuple(range(5, 81, 5))


def test_the_best_over_a_size_is_refused():
    with pytest.raises(TableError, match="runs of different size"):
        best_over(rates(best=1e-3), "tokens")
    with pytest.raises(TableError, match="no column 'lr'"):
        best_over(rates(best=1e-3), "lr")


def test_diverged_runs_are_named():
    runs = scattered()
    # large runs, which smaller ones beat
    large = np.argsort(-runs.frame["flops"].to_numpy())[:3]
    loss = runs.frame["loss"].to_numpy().copy()
    loss[large] = [4.0, 7.5, 10.8]
    finding = found(changed(runs, loss=pl.Series(loss)))["diverged-runs"]
    assert finding.rows == tuple(sorted(large + 1))


def test_fixed_budgets_warn_of_parabolas_and_of_minima_at_the_edge():
    runs = clean(2)
    assert found(runs)["isoflop-parabola"].severity == "note"
    assert "surface" in found(runs)["isoflop-parabola"].message
    small = runs.frame.with_columns(
        rank=pl.col("params").rank("ordinal").over(pl.col("flops").log10().round(1))
    ).filter(pl.col("rank") <= 4)
    edge = Runs(frame=small.drop("rank"), units={}, excluded=nothing_excluded(), source="edge")
    assert "no optimum inside the data" in found(edge)["edge-minimum"].message


def test_a_smoothed_loss_beside_the_last_one_is_noted_with_their_difference():
    rng = np.random.default_rng(0)
    runs = scattered(noise=0.0)
    noisy = runs.frame["loss"].to_numpy() * np.exp(0.02 * rng.standard_normal(80))
    both = changed(runs, loss_smooth=pl.col("loss"), loss=pl.Series(noisy))
    finding = found(both)["several-losses"]
    assert finding.severity == "note"
    # 80 draws know the standard deviation of 2% to 8% of itself
    assert float(finding.message.split("by ")[1].split("%")[0]) == pytest.approx(2.0, rel=0.25)


def test_findings_come_worst_first_and_each_is_explained():
    from pathlib import Path

    runs = changed(rates(best=2e-2), tokens=pl.col("tokens") / 1e9)
    order = [finding.severity for finding in inspect_runs(runs)]
    rank = {"error": 0, "warning": 1, "note": 2}
    assert order == sorted(order, key=rank.__getitem__)
    source = Path(__file__).parents[2]
    text = (source / "docs" / "diagnosis.md").read_text()
    for module in ("doctor", "levels", "checkpoints", "identify"):
        code = (source / "src" / "leadline" / "laws" / f"{module}.py").read_text()
        import re

        for name in re.findall(r'(?:code=|_warning\(\s*)"([a-z-]+)"', code):
            assert f"`{name}`" in text, name


def test_a_table_without_losses_is_refused():
    with pytest.raises(TableError, match="no column 'loss'"):
        inspect_runs(table(params=[1e7, 1e8]))
    with pytest.raises(TableError, match="holds String"):
        inspect_runs(table(loss=["a", "b"]))


def test_tiny_and_odd_tables_do_not_break_the_doctor():
    assert isinstance(inspect_runs(table(loss=[3.0])), tuple)
    assert isinstance(inspect_runs(table(loss=[3.0, 2.0], params=[1e7, 1e7])), tuple)
    assert isinstance(inspect_runs(table(loss=[3.0, -2.0, 1.0] * 10, params=[1e7] * 30)), tuple)
