"""Plans from exact theory on the command line; plans from tables are beside the laws."""

import pytest

BASE = ["plan", "--exact", "--nu", "1.25", "--beta", "0.8"]


def test_a_shape_spends_its_budget_and_beats_the_sum_of_laws(records, run):
    plans = records(*BASE, "--budget", "1e6", "--budget", "1e8")
    losses = []
    for made, budget in zip(plans, (1e6, 1e8), strict=True):
        size = made["sizes"]
        spent = size["steps"] * size["context"] ** 2 * size["width"] ** 2 * size["depth"]
        assert made["record"] == "plan"
        assert spent == pytest.approx(budget, rel=1e-12)
        assert made["loss"] < made["additive_loss"]
        assert made["loss"] > max(made["alone"].values())
        assert sum(made["additive"]["shares"]) == pytest.approx(1)
        losses.append(made["loss"])
    assert losses[1] < losses[0]
    code, out, _ = run(*BASE, "--budget", "1e6")
    assert code == 0
    assert "a sum of four laws advises steps" in out


def test_noise_and_a_finite_dimension_are_heard(records):
    (quiet,) = records(*BASE, "--budget", "1e6", "--dim", "2000")
    (noisy,) = records(*BASE, "--budget", "1e6", "--dim", "2000", "--noise", "0.5")
    assert noisy["loss"] > quiet["loss"]
    assert any("label noise" in note for note in noisy["notes"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["plan", "--budget", "1e9"], "file: missing; give a table of runs, or --exact"),
        (["plan", "--exact", "--budget", "1e9"], "nu, beta: --exact needs both"),
        ([*BASE, "x.csv", "--budget", "1e9"], "file: --exact plans from theory"),
        ([*BASE, "--budget", "1e9", "--draws", "5"], "--draws: --exact plans from theory"),
        (["plan", "x.csv", "--budget", "1e9", "--nu", "1"], "--nu: belongs to --exact"),
        ([*BASE, "--budget", "0.5"], "budget: got 0.5, expected a finite number >= 1"),
        ([*BASE, "--budget", "1e9", "--cost", "6ND"], "cost '6ND' counts params, tokens"),
        ([*BASE, "--budget", "1e9", "--dim", "x"], "dim: got 'x', expected a whole number or inf"),
        ([*BASE, "--budget", "1e9", "--dim", "100"], "task.spectrum.dim: got 100; the best shape"),
    ],
)
def test_mistakes_are_one_line(refused, command, message):
    assert message in refused(*command)
