"""Files of a benchmark folder: whole or absent, versioned, and never mixed up."""

import errno
import json
import os
from pathlib import Path

import pytest

from lrpx import files
from lrpx.benchmark import storage
from lrpx.benchmark.ground_truth import _how_to_get
from lrpx.benchmark.sources import _recognise
from lrpx.benchmark.storage import check_claim, check_place, claim, read_manifest, read_table, write_table
from lrpx.benchmark.wrong_folder import not_there
from lrpx.cli.wording import in_command_syntax
from lrpx.errors import InputError, LrpxError
from lrpx.files import read_json, write_json

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_says_what_to_do_and_keeps_what_was_there(tmp_path, monkeypatch, step):
    path = tmp_path / "t.parquet"
    write_table(path, "samples", {"a": [1, 2]}, {"a": pa.int64()})

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, step, full)
    with pytest.raises(LrpxError, match=r"could not write .*t\.parquet: No space left on device.*make room"):
        write_table(path, "samples", {"a": [3]}, {"a": pa.int64()})
    monkeypatch.undo()
    assert read_table(path, "samples").to_pydict() == {"a": [1, 2]}
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_a_table_comes_back_with_its_kind_and_schema(tmp_path):
    path = tmp_path / "t.parquet"
    columns = {"words": [["a", "b"], []], "n": [1, None]}
    write_table(path, "samples", columns, {"words": pa.list_(pa.string()), "n": pa.int32()})
    table = read_table(path, "samples")
    assert table.to_pydict() == columns
    assert json.loads(table.schema.metadata[b"lrpx"]) == {"kind": "samples", "schema": storage.SCHEMA}
    with pytest.raises(InputError, match="holds samples, expected dropped"):
        read_table(path, "dropped")


def test_a_table_of_another_schema_or_maker_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    monkeypatch.setattr(storage, "SCHEMA", 99)
    write_table(path, "samples", {"a": [1]}, {"a": pa.int64()})
    monkeypatch.undo()
    with pytest.raises(InputError, match=f"has schema 99, this version of lrpx reads schema {storage.SCHEMA}"):
        read_table(path, "samples")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match="holds no lrpx table"):
        read_table(path, "samples")


def test_a_missing_or_damaged_table_is_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "none.parquet", "samples")
    path = tmp_path / "t.parquet"
    write_table(path, "samples", {"a": list(range(1000))}, {"a": pa.int64()})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"t\.parquet cannot be read as Parquet"):
        read_table(path, "samples")


def test_claiming_again_is_fine_and_another_claim_names_every_difference(tmp_path):
    folder = tmp_path / "out"
    manifest = {"kind": "benchmark", "source": {"sha256": "aa", "name": "x"}, "skip": False}
    claim(folder, manifest, what="benchmark")
    claim(folder, manifest, what="benchmark")
    with pytest.raises(InputError) as error:
        claim(folder, {"kind": "benchmark", "source": {"sha256": "bb", "name": "x"}, "skip": True}, what="benchmark")
    assert "skip is False there and True now" in str(error.value)
    assert "source.sha256 is 'aa' there and 'bb' now" in str(error.value)
    assert "name" not in str(error.value)
    renamed = {**manifest, "source": {"sha256": "aa", "name": "y"}}
    claim(folder, renamed, what="benchmark")  # a file is known by its content
    assert read_json(folder / "manifest.json") == manifest


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "photo.jpg").write_text("")
    with pytest.raises(InputError, match=r"not a benchmark and not empty \(it holds photo.jpg\)"):
        claim(tmp_path, {"kind": "benchmark"}, what="benchmark")
    with pytest.raises(InputError, match="is a file"):
        check_place(tmp_path / "photo.jpg", what="benchmark")


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"cannot be made: \S+file is a file"):
        check_place(tmp_path / "file" / "out", what="run")
    check_place(tmp_path / "new" / "out", what="run")


def test_leftovers_of_our_own_are_no_obstacle(tmp_path):
    (tmp_path / storage.DOWNLOADS).mkdir()
    (tmp_path / ".manifest.json.abc.tmp").write_text("")
    claim(tmp_path, {"kind": "benchmark"}, what="benchmark")


def test_a_folder_of_something_else_is_told_by_what_was_given(tmp_path):
    """What follows from it, such as checksums, is not."""
    there = {
        "model": {"name": "a", "weights": "x", "layers": 2},
        "methods": ["lrp"],
        "options": {"limit": 300},
        "plan": {"parts": 3, "selection": "x"},
    }
    claim(tmp_path / "run", there, what="run")
    for changed, told in [
        ({"options": {"limit": 100}, "plan": {"parts": 1, "selection": "y"}}, "limit is 300 there and 100 now"),
        ({"methods": ["lrp", "attnlrp"]}, "methods are lrp there and lrp, attnlrp now"),
        ({"model": {"name": "b", "weights": "y", "layers": 4}}, "model.name is 'a' there and 'b' now"),
        ({"model": {"name": "a", "weights": "y", "layers": 2}}, "model.weights is 'x' there and 'y' now"),
        ({"plan": {"parts": 2, "selection": "x"}}, "plan.parts is 3 there and 2 now"),
    ]:
        with pytest.raises(InputError) as error:
            check_claim(tmp_path / "run", there | changed, what="run")
        assert f"made from something else: {told}. Choose" in str(error.value)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(
        InputError,
        match=r"there is no folder '.*nothing'. Current folder: .*. lrpx.evaluation.run.evaluate\(...\) makes one",
    ):
        read_manifest(tmp_path / "nothing", "run")


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ("empty", "run", "empty is not a run: it is empty. lrpx evaluate makes one."),
        ("notes.txt", "run", "notes.txt is not a run: it is a file. lrpx evaluate makes one."),
        ("model", "run", "it holds a model. Type: lrpx evaluate BENCHMARK --model model --out RUN, and give RUN."),
        ("runs", "run", "it has no manifest.json. In it are: runs/a, runs/b. Give one of them."),
        (".", "run", "In it are: many/0, "),
        ("many", "run", "In it are: many/0, many/1, many/2, many/3, many/4 and 2 more. Give one of them."),
        ("runs/a/records", "run", "it is empty. It is in runs/a: give that folder."),
        ("runs/a/manifest.json", "run", "it is a file. It is in runs/a: give that folder."),
        ("sva", "run", "sva is a benchmark. Expected: a run. Type: lrpx evaluate sva --out RUN, and give RUN."),
        ("sva/tokenized/gpt2", "benchmark", "is a tokenised set. Expected: a benchmark."),
        ("sva/tokenized/gpt2", "benchmark", "It is in sva: give that folder."),
        ("sva", "condensed", "Type: lrpx evaluate sva --out RUN, then lrpx records pack RUN --out DIR, and give DIR."),
        ("runs/a", "condensed", "runs/a is a run. Expected: condensed records. Type: lrpx"),
        ("packed", "run", "Its scores are for: lrpx results packed --output results.md"),
    ],
)
def test_the_error_for_a_wrong_folder_says_what_it_is_and_what_to_type(tmp_path, monkeypatch, given, kind, said):
    monkeypatch.chdir(tmp_path)
    folders = {
        "runs/a": "run",
        "runs/b": "run",
        "sva": "benchmark",
        "sva/tokenized/gpt2": "tokenized",
        "packed": "condensed",
    }
    for name, made in (folders | {f"many/{n}": "run" for n in range(7)}).items():
        Path(name).mkdir(parents=True)
        write_json(Path(name) / "manifest.json", {"kind": made})
    for name in ("empty", "model", "runs/a/records"):
        Path(name).mkdir()
    for name in ("notes.txt", "model/config.json"):
        Path(name).touch()
    with pytest.raises(InputError) as error:
        read_manifest(Path(given), kind)
    assert said in error.value.in_command


def test_errors_name_arguments_in_python_and_options_on_the_command_line(tmp_path):
    with pytest.raises(InputError) as no_folder:
        read_manifest(tmp_path / "nothing", "benchmark")
    assert str(no_folder.value).endswith(" lrpx.benchmark.build(...) makes one.")
    assert no_folder.value.in_command.endswith(" lrpx benchmark build, blimp or haystack makes one.")
    no_records = not_there(tmp_path / "nothing", "condensed")
    made = " lrpx.evaluation.packing.pack(lrpx.evaluation.records.open_run(RUN), DIR) makes them."
    assert str(no_records).endswith(made)
    assert no_records.in_command.endswith(" lrpx records pack makes them.")
    (tmp_path / "rows.txt").write_text("neither\n", encoding="utf-8")
    with pytest.raises(InputError) as no_format:
        _recognise(tmp_path / "rows.txt")
    assert str(no_format.value).endswith("name it: format=.")
    said = in_command_syntax(no_format.value.in_command, {"format": "--format"})
    assert said.endswith("name it: --format.")
    assert "--" not in _how_to_get("en_core_web_trf")
