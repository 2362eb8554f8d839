"""Tables as people have them: names, formats, and everything that can be wrong with them."""

import json
import pickle

import numpy as np
import polars as pl
import pytest

from leadline.data import bundled
from leadline.errors import TableError
from leadline.laws import drop_largest_losses, read_runs

GOOD = {
    "N": [1e7, 2e7, 4e7],
    "D": [1e9, 2e9, 3e9],
    "loss": [3.0, 2.9, 2.8],
    "note": ["a", "b", "c"],
}


def write(path, text):
    path.write_text(text)
    return path


def rows(columns):
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def in_format(path, columns, kind):
    """The same columns as csv, jsonl or parquet, under a name that does not tell."""
    if kind == "parquet":
        pl.DataFrame(columns).write_parquet(path)
    elif kind == "csv":
        pl.DataFrame(columns).write_csv(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(columns)))
    return path


def message(call):
    with pytest.raises(TableError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_runs(tmp_path, kind):
    runs = read_runs(in_format(tmp_path / "table.dat", GOOD, kind))
    assert runs.frame.columns == ["row", "params", "tokens", "loss", "note"]
    assert runs.frame["row"].to_list() == [1, 2, 3]
    assert runs.frame["params"].to_list() == GOOD["N"]
    assert runs.frame["note"].to_list() == GOOD["note"]
    assert runs.units == {"params": "parameters", "tokens": "tokens", "loss": "nats"}
    assert runs.excluded.height == 0
    assert runs.digest(["params", "tokens", "loss"]) == read_runs(
        in_format(tmp_path / "other", GOOD, "csv")
    ).digest(["params", "tokens", "loss"])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("N", "params"),
        ("Model Size", "params"),
        ("parameter_count", "params"),
        ("N_no_emb", "params"),
        ("D", "tokens"),
        ("train_tokens", "tokens"),
        ("C", "flops"),
        ("Training FLOP", "flops"),
        ("d_model", "width"),
        ("n_layers", "depth"),
        ("numl", "depth"),
        ("seq_len", "context"),
        ("n_points", "context"),
    ],
)
def test_sizes_are_found_under_their_usual_names(tmp_path, theirs, ours):
    for name in (theirs, theirs.upper(), theirs.lower()):
        path = write(tmp_path / "t.csv", f"{name},Loss\n10,3\n20,2.5\n")
        assert read_runs(path).frame[ours].to_list() == [10.0, 20.0]


@pytest.mark.parametrize(
    "name", ["loss", "final_loss", "smooth loss", "val/loss", "train/loss", "eval/c4/bpb"]
)
def test_losses_are_found_under_their_usual_names(tmp_path, name):
    runs = read_runs(write(tmp_path / "t.csv", f"N,{name}\n10,3\n20,2.5\n"))
    assert runs.frame["loss"].to_list() == [3.0, 2.5]
    assert runs.units["loss"] == ("bits per byte" if "bpb" in name else "nats")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("n_params", "params"),
        ("Num Parameters", "params"),
        ("compute", "flops"),
        ("Train-FLOPs", "flops"),
    ],
)
def test_further_names_are_taken_where_no_usual_one_is_there(tmp_path, theirs, ours):
    runs = read_runs(write(tmp_path / "a.csv", f"{theirs},loss\n1e9,3\n2e9,2\n"))
    assert runs.column(ours).to_list() == [1e9, 2e9]
    usual = "N" if ours == "params" else "C"
    both = read_runs(write(tmp_path / "b.csv", f"{theirs},{usual},loss\n1,1e9,3\n2,2e9,2\n"))
    assert both.column(ours).to_list() == [1e9, 2e9]


def test_a_loss_under_a_further_name(tmp_path):
    text = "N,Val Loss\n1e9,3\n2e9,2\n"
    assert read_runs(write(tmp_path / "a.csv", text)).column("loss").to_list() == [3, 2]


def test_tokens_follow_from_flops_and_say_so():
    runs = read_runs(bundled("chinchilla_epoch.csv"))
    assert len(runs) == 245
    first = runs.frame.row(0, named=True)
    assert first["tokens"] == pytest.approx(9.993852799709755e18 / 6 / 6795600349.289497, rel=1e-15)
    assert runs.units["tokens"] == "tokens, from flops/(6 params)"
    assert first["hex_color"] == "#faebdd"


def test_given_tokens_are_not_replaced():
    runs = read_runs(bundled("chinchilla_kyotakano.csv"))
    assert runs.frame["tokens"][0] == 3154403320.0
    assert runs.units["tokens"] == "tokens"


def test_the_gemstones_keep_every_column():
    runs = read_runs(bundled("gemstones_hot.jsonl"))
    assert len(runs) == 220
    assert runs.frame["run"].n_unique() == 22
    assert runs.frame["params"][0] == 543482880.0
    assert runs.frame["num_nodes"][0] == 32


def test_an_explicit_name_wins_and_keeps_the_other(tmp_path):
    path = write(tmp_path / "t.csv", "N,loss,my_loss\n10,9,3\n20,8,2.5\n")
    runs = read_runs(path, columns={"loss": "my_loss"})
    assert runs.frame["loss"].to_list() == [3.0, 2.5]
    assert runs.frame["loss (unmapped)"].to_list() == [9, 8]


def test_ambiguous_names_are_refused_with_the_way_out(tmp_path):
    path = write(tmp_path / "t.csv", "N,val/loss,train/loss\n10,9,3\n20,8,2.5\n")
    text = message(lambda: read_runs(path))
    assert "'val/loss', 'train/loss'" in text
    assert "--map loss=val/loss" in text
    assert read_runs(path, columns={"loss": "train/loss"}).frame["loss"][0] == 3.0


def test_unknown_names_come_with_the_nearest(tmp_path):
    path = write(tmp_path / "t.csv", "N,los\n10,9\n")
    text = message(lambda: read_runs(path))
    assert "no column for loss; it has N, los (did you mean 'los'?)" in text
    assert "--map loss=COLUMN" in text
    assert "did you mean 'los'" in message(lambda: read_runs(path, columns={"loss": "loos"}))
    assert "did you mean 'params'" in message(lambda: read_runs(path, columns={"parms": "N"}))
    text = message(lambda: read_runs(path, columns={"loss": "N", "params": "N"}))
    assert "one column is mapped to two names" in text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("-inf", "not finite"),
        ("1e999", "not finite"),
        ("0", "not > 0"),
        ("-3", "not > 0"),
        ("abc", "not a number"),
        ("2.5 nats", "not a number"),
        ('"1,000"', "not a number"),
        ("1_000", "not a number"),
        ("", "missing"),
    ],
)
def test_a_bad_loss_excludes_its_row_and_is_listed(tmp_path, value, reason):
    path = write(tmp_path / "t.csv", f"N,loss\n10,3\n20,{value}\n30,2.5\n")
    runs = read_runs(path)
    assert runs.frame["row"].to_list() == [1, 3]
    assert runs.frame["loss"].to_list() == [3.0, 2.5]
    assert runs.excluded.to_dicts() == [
        {"row": 2, "field": "loss", "value": value.strip('"'), "reason": reason}
    ]
    assert "row 2" in message(lambda: read_runs(path, strict=True))


def test_a_bad_size_excludes_its_row_but_a_missing_one_does_not(tmp_path):
    path = write(tmp_path / "t.csv", "N,width,loss\n10,,3\n-1,64,2.5\n30,64,2.4\n")
    runs = read_runs(path)
    assert runs.frame["width"].to_list() == [None, 64.0]
    assert runs.excluded["row"].to_list() == [2]


def test_a_row_with_two_faults_is_listed_once(tmp_path):
    path = write(tmp_path / "t.csv", "N,loss\n10,3\n-1,-2\n30,2.4\n")
    assert read_runs(path).excluded["row"].to_list() == [2]


def test_numbers_as_text_are_named_not_converted(tmp_path):
    lines = [{"N": 1e7, "loss": 3.0}, {"N": "1e9", "loss": 2.9}, {"N": True, "loss": 2.8}]
    path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines)))
    runs = read_runs(path)
    assert runs.frame["row"].to_list() == [1]
    assert [tuple(row.values()) for row in runs.excluded.to_dicts()] == [
        (2, "params", "1e9", "a number stored as text"),
        (3, "params", "True", "not a number"),
    ]


def test_a_parquet_column_of_text_is_refused_with_its_values(tmp_path):
    path = in_format(tmp_path / "t", GOOD | {"N": ["1e7", "2e7", "4e7"]}, "parquet")
    text = message(lambda: read_runs(path))
    assert "no usable rows; 3 bad rows: row 1: params 1e7 (a number stored as text)" in text


def test_many_bad_rows_are_counted_in_the_message(tmp_path):
    path = write(tmp_path / "t.csv", "N,loss\n" + "1,0\n" * 9)
    text = message(lambda: read_runs(path))
    assert "9 bad rows: row 1" in text
    assert text.endswith("and 4 more")


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.csv", "N,D,loss\n10,20,3\n20,40"), ("t.jsonl", '{"N": 10, "loss": 3}\n{"N": 20, "lo')],
)
def test_a_torn_last_line_is_excluded_with_its_reason(tmp_path, name, text):
    runs = read_runs(write(tmp_path / name, text))
    assert len(runs) == 1
    row, field, _, reason = runs.excluded.row(0)
    assert (row, field) == (2, "row")
    assert reason in ("2 values for 3 columns", "not a JSON object")


def test_further_columns_keep_their_values(tmp_path):
    path = write(tmp_path / "t.csv", "N,loss,id,big,x,y\n1,3,007,12345678901234567890,1.50,\n")
    frame = read_runs(path).frame
    assert frame["id"][0] == "007"
    assert frame["x"][0] == 1.5
    assert frame["y"].to_list() == [None]
    lines = [{"N": 1, "loss": 3, "x": 1, "tags": ["a"]}, {"N": 2, "loss": 2, "x": "one"}]
    path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines)))
    assert read_runs(path).frame["x"].to_list() == ["1", '"one"']


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x00\x01\x02", "binary"),
        (b"\xff\xfe\xfa", "binary"),
        (pickle.dumps({"loss": [1, 2]}), "binary"),
        (b"PAR1 but not really", "damaged parquet"),
        (b'[{"N": 1, "loss": 2}]', "JSON array"),
        (b"N,loss\n", "no data rows"),
        (b"N,loss,loss\n1,2,3\n", "names the column 'loss' twice"),
        (b'N,loss\n1,"2\n', "damaged csv"),
    ],
)
def test_unreadable_files_are_refused_on_one_line(tmp_path, content, words):
    path = tmp_path / "t"
    path.write_bytes(content)
    assert words in message(lambda: read_runs(path))


def test_missing_files_and_folders_are_refused(tmp_path):
    assert "no such file" in message(lambda: read_runs(tmp_path / "none.csv"))
    assert "a folder" in message(lambda: read_runs(tmp_path))


def test_semicolons_and_a_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffN;loss\n10;3\n20;2.5\n".encode())
    assert read_runs(path).frame["params"].to_list() == [10.0, 20.0]


def test_the_largest_losses_are_dropped_with_ties(tmp_path):
    path = write(tmp_path / "t.csv", "N,loss\n1,5\n2,4\n3,4\n4,4\n5,3\n6,2\n")
    runs = drop_largest_losses(read_runs(path), 2)
    assert runs.frame["row"].to_list() == [5, 6]
    assert runs.excluded["row"].to_list() == [1, 2, 3, 4]
    assert set(runs.excluded["reason"]) == {
        "at or above the 2-th largest loss, 4; with ties 4 runs"
    }
    assert len(drop_largest_losses(read_runs(path), 0)) == 6
    for count in (-1, 6):
        assert "cannot drop" in message(lambda count=count: drop_largest_losses(runs, count))


def test_the_epoch_table_without_its_five_largest_losses():
    runs = drop_largest_losses(read_runs(bundled("chinchilla_epoch.csv")), 5)
    assert len(runs) == 240
    assert runs.excluded["row"].to_list() == [1, 2, 3, 4, 5]
    assert np.max(runs.frame["loss"].to_numpy()) < 3.4469
