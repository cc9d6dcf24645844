"""Condensed runs: their metrics are those of the records, and every way in which one may not hold."""

import json
import shutil

import numpy as np
import pytest
from evaluation_tools import CONDENSED, benchmark, gpt2

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.benchmark import build, tokenize
from lrpx.errors import InputError
from lrpx.evaluation.condensed import check_against, find_condensed, load_condensed
from lrpx.evaluation.packing import pack
from lrpx.evaluation.records import METRICS
from lrpx.evaluation.run import evaluate
from lrpx.files import sha256, write_json

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("method", CONDENSED)
def test_the_metrics_are_those_of_the_records(run, packed, method):
    records = sorted((r for r in run.table().to_pylist() if r["method"] == method), key=lambda r: r["sample_id"])
    found = packed.of(method)
    assert found["sample_id"].tolist() == [r["sample_id"] for r in records]
    for metric in METRICS:
        tolerance = {"rma": 5.1e-5}.get(metric, 1e-12)
        np.testing.assert_allclose(found[metric], [r[metric] for r in records], rtol=0, atol=tolerance)


def test_several_folders(packed, tmp_path):
    shutil.copytree(packed.path, tmp_path / "b" / "one")
    shutil.copytree(packed.path, tmp_path / "a")
    assert [c.path for c in find_condensed([tmp_path])] == [tmp_path / "a", tmp_path / "b" / "one"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        InputError, match=r"has no condensed records\. Make them from a run: lrpx\.evaluation\.packing\.pack"
    ):
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
        ({"kind": "run"}, "is a run. Expected: condensed records"),
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
    with pytest.raises(InputError, match=r"has no tokenised set for the tokenizer .* lrpx\.benchmark\.tokenize"):
        check_against(packed, other)
    shutil.rmtree(other)
    source = tmp_path / "other" / "source.tsv"
    source.write_text(source.read_text().replace("near", "by"))
    build(source, other, ground_truth=source.with_name("truth.tsv"), progress=False)
    tokenize(other, tokenizer, input="causal", progress=False)
    with pytest.raises(InputError, match=r"sample \d+ is another one in"):
        check_against(packed, other)
