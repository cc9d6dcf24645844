"""Condensed runs: what they hold against the records, and every way in which one may not hold."""

import json
import shutil

import numpy as np
import pytest
from evaluation_tools import benchmark, gpt2, made_up

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.benchmark import build, tokenize
from lrpx.errors import InputError
from lrpx.evaluation.condensed import check_against, digest_of, find_condensed, load_condensed, pack
from lrpx.evaluation.records import METRICS, open_run
from lrpx.evaluation.run import evaluate
from lrpx.files import sha256, write_json

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

METHODS = ["lrp", "alti-logit", "gradient-l1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("runs") / "run", METHODS, parts=2)


@pytest.fixture(scope="module")
def packed(run, tmp_path_factory):
    return pack(run, tmp_path_factory.mktemp("packed") / "made-up")


@pytest.mark.parametrize("method", METHODS)
def test_the_metrics_are_those_of_the_records(run, packed, method):
    records = sorted((r for r in run.table().to_pylist() if r["method"] == method), key=lambda r: r["sample_id"])
    found = packed.of(method)
    assert found["sample_id"].tolist() == [r["sample_id"] for r in records]
    for metric in METRICS:
        tolerance = {"rma": 5.1e-5}.get(metric, 1e-12)
        np.testing.assert_allclose(found[metric], [r[metric] for r in records], rtol=0, atol=tolerance)


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
        InputError, match=r"counts\.json has no 'samples', .*: remove the file, and run the same lrpx eval"
    ):
        open_run(path)


def test_an_unfinished_run_is_not_packed(tmp_path):
    with pytest.raises(InputError, match=r"is not finished: run the same lrpx evaluate again"):
        pack(made_up(tmp_path / "run", ["lrp"], parts=3, done=2), tmp_path / "packed")


def test_a_folder_of_something_else_is_not_overwritten(run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        pack(run, tmp_path)
    with pytest.raises(InputError, match="holds 'run', expected 'condensed'"):
        pack(run, run.path)


def test_several_folders(packed, tmp_path):
    shutil.copytree(packed.path, tmp_path / "b" / "one")
    shutil.copytree(packed.path, tmp_path / "a")
    assert [c.path for c in find_condensed([tmp_path])] == [tmp_path / "a", tmp_path / "b" / "one"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no condensed records\. Make them from a run: lrpx records pack RUN"):
        find_condensed([tmp_path / "empty"])


# What does not hold


def changed(manifest, **parts):
    """The manifest with parts replaced; ``None`` takes a key away."""
    for name, value in parts.items():
        part, _, key = name.partition("__")
        if key:
            manifest[part][key] = value
        elif value is None:
            del manifest[part]
        else:
            manifest[part] = value
    return manifest


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"kind": "run"}, "holds 'run', expected 'condensed'"),
        ({"schema": 9}, "has schema 9, this version of lrpx reads 1"),
        ({"options": None}, "has no options"),
        ({"model": {"name": "x"}}, r"has no model\.revision"),
        ({"methods": ["lrp", "lrp"]}, "expected a list of different names"),
        ({"methods": ["lrp", ["lrp"]]}, "expected a list of different names"),
        ({"model__name": ["x"]}, r"model\.name is \['x'\], expected a text"),
        ({"options__at": None}, r"options\.at is None, expected a text"),
        ({"checksums__tokenised": 7}, r"checksums\.tokenised is 7, expected a text"),
        ({"counts__failures": [1]}, r"counts\.failures is no list of method, reason and samples"),
        ({"methods": ["lrp"]}, "the manifest says \\['lrp'\\]"),
        ({"counts__predicted": 31}, "has 30 samples; the manifest says that 31 of 30 were predicted"),
        ({"plan__samples": 40}, "of 40 that were to be"),
        ({"counts__correct": 1}, "correct predictions, the manifest says 1"),
        (
            {"counts__failures": [{"method": "lrp", "reason": "", "samples": 3}]},
            "lrp has 30 samples; .* it failed on 3",
        ),
        ({"checksums__tokenised": "00"}, "they are of another tokenised set"),
        ({"checksums__scores.parquet": "00"}, "the file was changed or damaged"),
    ],
    ids=str,
)
def test_a_manifest_that_does_not_hold(packed, tmp_path, parts, message):
    shutil.copytree(packed.path, tmp_path / "c")
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    write_json(tmp_path / "c" / "manifest.json", changed(manifest, **parts))
    with pytest.raises(InputError, match=message):
        load_condensed(tmp_path / "c")


@pytest.mark.parametrize(
    ("file", "column", "value", "message"),
    [
        ("scores", "rank", 99, r"sample 797 \(lrp\): rank is 99, which is not 1 to the number of tokens"),
        ("scores", "rank", 0, "rank is 0"),
        ("scores", "agreeing", -1, "agreeing is -1"),
        ("scores", "rma", 1.5, "rma is 1.5, which is no share"),
        ("scores", "subject", float("nan"), "subject is nan"),
        ("scores", "top", "verb", "top is verb"),
        ("scores", "sample_id", 5, "sample_id is 5, which is not among the samples"),
        ("scores", "sample_id", 804, "a sample of lrp is there twice"),
        ("scores", "method", None, "method is missing in a row"),
        ("samples", "correct", None, "correct is missing in a row"),
        ("scores", "method", "mine", "has the methods .*'mine'"),
        ("samples", "sample_id", 804, "sample_id is 804, which is there twice, or out of order"),
        ("samples", "subject", 0, "subject is 0"),
        ("samples", "digest", "00000000", "they are of another tokenised set"),
        ("samples", "tokens", 1.5, "has the columns"),
    ],
)
def test_rows_that_do_not_hold(packed, tmp_path, file, column, value, message):
    """One value of the first row changed, with a checksum that fits the file."""
    folder = shutil.copytree(packed.path, tmp_path / "c")
    path = folder / f"{file}.parquet"
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    field = table.schema.field(column) if isinstance(value, str | int | None) else pa.field(column, pa.float32())
    array = pa.array([value, *values[1:]], field.type)
    pq.write_table(table.set_column(table.schema.get_field_index(column), field, array), path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["checksums"][path.name] = sha256(path)
    write_json(folder / "manifest.json", manifest)
    with pytest.raises(InputError, match=message):
        load_condensed(folder)


def test_rows_out_of_order(packed, tmp_path):
    """Methods are compared sample by sample, in the order of the rows."""
    folder = shutil.copytree(packed.path, tmp_path / "c")
    path = folder / "scores.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take([1, 0, *range(2, len(table))]).replace_schema_metadata(table.schema.metadata), path)
    manifest = json.loads((folder / "manifest.json").read_text())
    write_json(folder / "manifest.json", changed(manifest, checksums=manifest["checksums"] | {path.name: sha256(path)}))
    with pytest.raises(InputError, match="a sample of lrp is there twice, or out of order"):
        load_condensed(folder)


def test_files_that_are_missing_or_changed(packed, tmp_path):
    folder = shutil.copytree(packed.path, tmp_path / "c")
    with (folder / "samples.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match=r"samples\.parquet has sha256 .* the file was changed or damaged"):
        load_condensed(folder)
    (folder / "samples.parquet").unlink()
    with pytest.raises(InputError, match=r"has no samples\.parquet: it is not complete"):
        load_condensed(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"it has no manifest\.json"):
        load_condensed(folder)


def test_against_the_benchmark(tmp_path):
    """The samples are those of the tokenised set, and another sentence is seen."""
    model, tokenizer = gpt2()
    sva = benchmark(tmp_path, 12)
    run = evaluate(sva, model, ["random"], tmp_path / "run", tokenizer=tokenizer, limit=6, progress=False)
    packed = pack(run, tmp_path / "packed")
    assert check_against(packed, sva) == 12
    other = benchmark(tmp_path / "other", 12)
    with pytest.raises(InputError, match=r"has no tokenised set for the tokenizer .* lrpx benchmark tokenize"):
        check_against(packed, other)
    shutil.rmtree(other)
    source = tmp_path / "other" / "source.tsv"
    source.write_text(source.read_text().replace("near", "by"))
    build(source, other, ground_truth=source.with_name("truth.tsv"), progress=False)
    tokenize(other, tokenizer, input="causal", progress=False)
    with pytest.raises(InputError, match=r"sample \d+ is another one in"):
        check_against(packed, other)
