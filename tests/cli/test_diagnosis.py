"""`leadline diagnose`."""

import numpy as np
import pytest


@pytest.fixture
def stored(tmp_path):
    """Three layers on 400 samples in 100 groups, written as a user would."""
    rng = np.random.default_rng(0)
    predictions = rng.standard_normal((3, 400)).astype("float32")
    path = tmp_path / "layers.npz"
    np.savez(path, predictions=predictions, targets=np.zeros(400), groups=np.arange(400) // 4)
    return path, predictions


def test_the_layers_of_a_file(stored, records, run):
    path, predictions = stored
    (found,) = records("diagnose", path, "--draws", 200)
    loss = float(np.mean(predictions.mean(0) ** 2))
    assert found["intervals"]["loss"]["estimate"] == pytest.approx(loss, rel=1e-6)
    assert found["units"] == 100
    assert found["intervals"]["loss"]["unit"] == "group"
    assert found["intervals"]["loss"]["low"] < loss < found["intervals"]["loss"]["high"]
    code, out, _ = run("diagnose", path)
    assert code == 0
    assert "3 layers on 400 samples" in out
    assert "cost of dropping layer 2" in out


def test_running_read_outs(stored, records, tmp_path):
    _, predictions = stored
    path = tmp_path / "running.npz"
    np.savez(path, predictions=predictions, targets=np.zeros(400))
    (found,) = records("diagnose", path, "--kind", "running", "--draws", 10)
    assert found["layers"] == 2
    last = float(np.mean(predictions[-1].astype(float) ** 2))
    assert found["intervals"]["loss"]["estimate"] == pytest.approx(last, rel=1e-6)


def test_mistakes_are_one_line(stored, run, tmp_path):
    path, predictions = stored
    np.savez(tmp_path / "other.npz", answers=predictions)
    np.savez(tmp_path / "words.npz", predictions=np.array(["a"]), targets=np.zeros(1))
    np.savez(tmp_path / "objects.npz", predictions=np.array([{}]), targets=np.zeros(1))
    np.save(tmp_path / "single.npy", predictions)
    (tmp_path / "text.npz").write_text("layer,sample\n")
    (tmp_path / "empty.npz").write_bytes(b"")
    for arguments, message in [
        (["other.npz"], "no array 'predictions'; it has answers"),
        (["words.npz"], "predictions holds <U1, expected numbers"),
        (["objects.npz"], "not an npz file of plain arrays"),
        (["single.npy"], "not an npz file of plain arrays"),
        (["text.npz"], "not an npz file of plain arrays"),
        (["empty.npz"], "not an npz file of plain arrays"),
        (["missing.npz"], "missing.npz: cannot read it (No such file"),
        ([path, "--kind", "both"], "kind: got 'both'"),
        ([path, "--level", "2"], "level: got 2"),
    ]:
        code, out, err = run("diagnose", *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
