"""Runs that are condensed: what is written of the records, and which runs and folders are refused."""

import shutil

import numpy as np
import pytest
from evaluation_tools import made_up

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.errors import InputError
from lrpx.evaluation.condensed import digest_of
from lrpx.evaluation.packing import pack
from lrpx.evaluation.records import METRICS, open_run
from lrpx.files import write_json

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_shares_and_the_most_relevant_token(run, packed):
    """Read aloud, for each sample and method."""
    records = {(r["sample_id"], r["method"]): r for r in run.table().to_pylist()}
    assert len(records) == len(packed.scores)
    for row in packed.scores.to_pylist():
        record = records[row["sample_id"], row["method"]]
        absolute = np.abs(record["relevance"])
        shares = absolute / absolute.sum()
        assert row["first"] == pytest.approx(shares[0], abs=0.0051)
        assert row["explained"] == pytest.approx(shares[-1], abs=0.0051)
        (subject,) = record["ground_truth"]
        assert row["subject"] == pytest.approx(shares[subject], abs=0.0051)
        attractors = [share for share, role in zip(shares, record["roles"], strict=True) if role == "attractor"]
        assert row["attractor"] == pytest.approx(sum(attractors), abs=0.0051)
        top = int(np.argmax(record["relevance"]))
        last = len(shares) - 1
        named = {subject: "subject"} if top == subject else {0: "first", last: "explained"}
        assert row["top"] == named.get(top, record["roles"][top])
        assert row["at"] == record["at"]


def test_samples(run, packed):
    records = {r["sample_id"]: r for r in run.table().to_pylist()}
    assert packed.samples.column("sample_id").to_pylist() == sorted(records)
    for row in packed.samples.to_pylist():
        record = records[row["sample_id"]]
        forms = (record["other_id"], record["predicted_id"])  # whichever is predicted
        told = (record["token_ids"], record["position"], forms, record["ground_truth"])
        assert row["digest"] == digest_of(*told)
        assert row["digest"] != digest_of([9, *record["token_ids"]], *told[1:])
        assert (row["tokens"], row["attractors"]) == (len(record["tokens"]), record["attractors"])


def test_it_says_what_it_was_made_with(run, packed):
    for part in ("benchmark", "model", "methods", "options", "plan", "versions"):
        assert packed.manifest[part] == run.manifest[part]
    assert packed.manifest["counts"] == run.counts
    assert "card" in packed.manifest["counts"]


def test_packing_twice_gives_the_same_bytes(run, packed, tmp_path):
    again = pack(run, tmp_path / "again")
    pack(run, tmp_path / "again")
    for file in packed.path.iterdir():
        assert (again.path / file.name).read_bytes() == file.read_bytes()


def test_failures_are_left_out_and_counted(tmp_path):
    def fail(record):
        if record.sample_id == 993 and record.method == "attnlrp":
            nothing = dict.fromkeys(("relevance", "value", "residual", *METRICS))
            return record._replace(**nothing, error="ValueError: no")
        return record

    found = pack(made_up(tmp_path / "run", ["lrp", "attnlrp"], change=fail), tmp_path / "packed")
    assert len(found.of("lrp")["rank"]) == 30
    assert 993 not in found.of("attnlrp")["sample_id"]
    assert len(found.of("attnlrp")["rank"]) == 29


def test_a_method_that_failed_on_all_samples(tmp_path):
    nothing = dict.fromkeys(("relevance", "value", "residual", *METRICS))

    def fail(record):
        return record._replace(**nothing, error="ValueError: no") if record.method == "attnlrp" else record

    found = pack(made_up(tmp_path / "run", ["lrp", "attnlrp"], change=fail), tmp_path / "packed")
    assert [len(found.of(name)["rank"]) for name in ("lrp", "attnlrp")] == [30, 0]


def test_a_run_without_predictions_is_not_packed(tmp_path):
    nothing = dict.fromkeys(("correct", "predicted", "other", "relevance", "value", "residual", *METRICS))
    run = made_up(tmp_path / "run", ["lrp"], change=lambda record: record._replace(**nothing, error="ValueError: no"))
    with pytest.raises(InputError, match="has nothing to pack: no sample was predicted"):
        pack(run, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_packing_that_was_stopped_is_begun_anew(run, packed, tmp_path):
    for names in (["samples.parquet"], ["samples.parquet", "scores.parquet"]):
        folder = tmp_path / str(len(names))
        folder.mkdir()
        for name in names:
            shutil.copy(packed.path / name, folder)
        assert pack(run, folder).manifest == packed.manifest
    folder = tmp_path / "other"
    folder.mkdir()
    shutil.copy(packed.path / "scores.parquet", folder / "samples.parquet")
    with pytest.raises(InputError, match=r"samples\.parquet holds condensed scores, expected condensed samples"):
        pack(run, folder)


def test_counts_that_are_not_those_of_a_run(tmp_path):
    path = made_up(tmp_path / "run", ["lrp"], samples=4).path
    write_json(path / "counts.json", {})
    with pytest.raises(
        InputError, match=r"counts\.json has no 'samples', .*: remove the file, and run what made it again"
    ):
        open_run(path)


def test_an_unfinished_run_is_not_packed(tmp_path):
    with pytest.raises(InputError, match=r"is not finished\. Call evaluate\(\.\.\.\) with the same arguments again"):
        pack(made_up(tmp_path / "run", ["lrp"], parts=3, done=2), tmp_path / "packed")


def test_a_folder_of_something_else_is_not_overwritten(run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        pack(run, tmp_path)
    with pytest.raises(InputError, match=r"is a run\. Expected: condensed records"):
        pack(run, run.path)
