"""Building a benchmark: every row accounted for, resumable to the same bytes, refusing what does not fit."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from benchmark_tools import HAS_REAL_PARSER, REAL_PARSER, SHARED, templates, toy_parser

from lrpx import files
from lrpx.benchmark import Benchmark, build, builder, load_benchmark
from lrpx.benchmark.ground_truth import load_parser
from lrpx.errors import InputError, LrpxError

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
FILES = ("samples.parquet", "dropped.parquet", "counts.json", "manifest.json", "README.md")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The folder of a spaCy pipeline that knows the template sentences."""
    pytest.importorskip("spacy", reason="spaCy is not installed")
    return str(toy_parser(tmp_path_factory.mktemp("parser") / "toy"))


@pytest.fixture
def source(tmp_path):
    """24 template sentences, one of them (row 3) with two equal verb forms."""
    lines = [t.lgd for t in templates()]
    lines[3] = lines[3].rsplit("\t", 1)[0] + "\t" + templates()[3].words[5]
    path = tmp_path / "lgd.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def contents(folder):
    """What a build leaves, byte for byte."""
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    return {name: (folder / name).read_bytes() for name in FILES}


def truth_file(path, lines):
    path.write_text("\n".join(["sample_id\tsubject\tverb_tag", *lines]) + "\n")
    return path


def test_every_row_is_kept_or_dropped_for_a_reason(tmp_path, source, toy):
    benchmark = build(source, tmp_path / "out", parser=toy, progress=False)
    kept, dropped = benchmark.samples.to_pylist(), benchmark.dropped.to_pylist()
    assert sorted(row["sample_id"] for row in kept + dropped) == list(range(24))
    for row in kept:
        template = templates()[row["sample_id"]]
        assert row == {
            "sample_id": row["sample_id"],
            "line": row["sample_id"] + 1,
            "sentence": " ".join(template.words),
            "verb_index": 5,
            "verb": template.words[5],
            "other": template.other,
            "verb_tag": template.tags[5],
            "subject_index": 1,
            "subject": template.words[1],
            "attractors": [4],
            "n_attractors": 1,
        }
    for row in dropped:
        if row["sample_id"] == 3:
            assert (row["reason"], row["detail"]) == ("equal_forms", f"both are {templates()[3].words[5]!r}")
        else:
            assert row["reason"] == "no_subject"
            assert "auxpass" in row["detail"]
            assert "nsubj" not in templates()[row["sample_id"]].deps
    passive = sum("nsubj" not in t.deps for t in templates())
    steps = {step["reason"]: (step["dropped"], step["left"]) for step in benchmark.counts["steps"]}
    assert steps["equal_forms"] == (1, 23)
    assert steps["no_subject"] == (passive, 23 - passive)
    assert len(benchmark) == benchmark.counts["kept"] == len(kept) == 23 - passive


def test_verbs_that_are_not_present_tense_are_dropped(tmp_path, source):
    tags = ["VBZ", "VBD", "VBP"]
    truth = truth_file(tmp_path / "t.tsv", [f"{n}\t1\t{tags[n % 3]}" for n in range(24)])
    benchmark = build(source, tmp_path / "out", ground_truth=truth, progress=False)
    reasons = {d["sample_id"]: d["reason"] for d in benchmark.dropped.to_pylist()}
    assert reasons == {3: "equal_forms", **{n: "verb_tag" for n in range(24) if n % 3 == 1}}


def test_no_parser_is_needed_with_a_ground_truth_file(tmp_path, source, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)  # as if it were not installed
    truth = truth_file(tmp_path / "t.tsv", ["0\t1\tVBZ"])
    benchmark = build(source, tmp_path / "out", ground_truth=truth, progress=False)
    assert benchmark.samples.column("sample_id").to_pylist() == [0]
    assert benchmark.manifest["ground_truth"]["file"]["name"] == "t.tsv"
    with pytest.raises(ImportError, match=r"needs spacy: pip install spacy pyarrow"):
        build(source, tmp_path / "other")


def test_skipped_rows_are_accounted_for(tmp_path, source):
    with source.open("a") as file:
        file.write("a\tb\n")
    truth = truth_file(tmp_path / "t.tsv", ["0\t1\tVBZ"])
    with pytest.raises(InputError, match="1 of 25 rows"):
        build(source, tmp_path / "out", ground_truth=truth)
    assert not (tmp_path / "out").exists()
    benchmark = build(source, tmp_path / "out", ground_truth=truth, skip_bad_rows=True)
    assert benchmark.counts["rows"] == 25
    assert benchmark.counts["steps"][0] == {
        "reason": "bad_row",
        "what": builder.REASONS["bad_row"],
        "dropped": 1,
        "left": 24,
    }
    assert benchmark.dropped.to_pylist()[-1] == {
        "sample_id": 24,
        "line": 25,
        "reason": "bad_row",
        "detail": "2 columns, expected 5",
    }


def test_nothing_left_is_an_error_that_shows_the_counts(tmp_path, source):
    truth = truth_file(tmp_path / "t.tsv", ["0\t1\tVBD"])
    with pytest.raises(InputError, match=r"no row is left of 24 \(equal_forms 1, no_subject 22, verb_tag 1\)"):
        build(source, tmp_path / "out", ground_truth=truth)
    assert not (tmp_path / "out").exists()  # so that a better file can go there


def test_a_stopped_build_goes_on_to_the_same_bytes(tmp_path, source, toy, monkeypatch):
    monkeypatch.setattr(builder, "PART", 5)
    build(source, tmp_path / "whole", parser=toy, progress=False)
    parsed = []

    def parse(pipeline, rows):
        if len(parsed) == 2:
            raise KeyboardInterrupt
        parsed.append([row.sample_id for row in rows])
        return builder_parse(pipeline, rows)

    builder_parse = builder.parse
    monkeypatch.setattr(builder, "parse", parse)
    with pytest.raises(KeyboardInterrupt):
        build(source, tmp_path / "out", parser=toy, progress=False)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["manifest.json", "parts"]
    with pytest.raises(InputError, match="is not finished: run what made it again"):
        load_benchmark(tmp_path / "out")
    first = list(parsed)
    parsed.clear()
    monkeypatch.setattr(builder, "parse", lambda pipeline, rows: parsed.append(rows) or builder_parse(pipeline, rows))
    build(source, tmp_path / "out", parser=toy, progress=False)
    again = [row.sample_id for rows in parsed for row in rows]
    assert first == [[0, 1, 2, 4, 5], [6, 7, 8, 9, 10]]
    assert again == list(range(11, 24))  # nothing twice
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_full_disk_keeps_the_parts(tmp_path, source, toy, monkeypatch):
    monkeypatch.setattr(builder, "PART", 5)
    build(source, tmp_path / "whole", parser=toy, progress=False)
    fsync, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(LrpxError, match=r"No space left on device. What was finished is kept"):
        build(source, tmp_path / "out", parser=toy, progress=False)
    assert sorted(p.name for p in (tmp_path / "out" / "parts").iterdir()) == ["00000.parquet", "00001.parquet"]
    monkeypatch.setattr(files.os, "fsync", fsync)
    build(source, tmp_path / "out", parser=toy, progress=False)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_loaded_pipeline_is_used_as_it_is(tmp_path, source, toy):
    build(source, tmp_path / "name", parser=toy, progress=False)
    build(source, tmp_path / "object", parser=load_parser(toy), workers=2, progress=False)
    assert contents(tmp_path / "name") == contents(tmp_path / "object")


@pytest.mark.slow
def test_a_killed_build_leaves_no_process_and_goes_on_to_the_same_bytes(tmp_path, source, toy, monkeypatch):
    build(source, tmp_path / "whole", parser=toy, progress=False)
    script = tmp_path / "run.py"
    script.write_text(
        "import os, time\n"
        "from lrpx.benchmark import build, builder, ground_truth\n"
        "builder.PART = 8\n"
        "write = builder._write_part\n"
        "def slow(*args):\n"
        "    write(*args)\n"
        "    print('part', flush=True)\n"
        "    time.sleep(600)\n"
        "builder._write_part = slow\n"
        "if __name__ == '__main__':\n"
        f"    build({str(source)!r}, {str(tmp_path / 'out')!r}, parser={toy!r}, workers=2, progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "part\n"
        children = _children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 300
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in children)
    assert len(list((tmp_path / "out" / "parts").glob("0*.parquet"))) == 1
    monkeypatch.setattr(builder, "PART", 8)
    build(source, tmp_path / "out", parser=toy, workers=2, progress=False)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def _children(pid):
    """Process ids of the children, where the system tells."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return []


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_finished_build_is_not_done_again(tmp_path, source, toy, monkeypatch):
    first = build(source, tmp_path / "out", parser=toy, progress=False)
    before = contents(first.path)
    monkeypatch.setattr(builder, "parse", lambda *_: pytest.fail("parsed again"))
    second = build(source, tmp_path / "out", parser=toy, progress=False)
    assert isinstance(second, Benchmark)
    assert contents(second.path) == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_source_or_other_options_are_refused(tmp_path, source, toy, finished):
    out = tmp_path / "out"
    truth = truth_file(tmp_path / "t.tsv", ["0\t1\tVBZ"])
    build(source, out, ground_truth=truth)
    if not finished:
        (out / "counts.json").unlink()
    with pytest.raises(InputError, match="skip_bad_rows is False there and True now"):
        build(source, out, ground_truth=truth, skip_bad_rows=True)
    with pytest.raises(InputError, match=r"ground_truth.parser is not given there and \{'name': 'en_toy'"):
        build(source, out, parser=toy)
    truth_file(truth, ["1\t1\tVBP"])
    with pytest.raises(InputError, match=r"ground_truth.file.sha256 is '\w{64}' there and '\w{64}' now"):
        build(source, out, ground_truth=truth)
    truth_file(truth, ["0\t1\tVBZ"])
    source.write_text(source.read_text().replace("old", "new"))
    with pytest.raises(InputError, match=r"source.sha256 is '\w{64}' there and '\w{64}' now.*Choose another folder"):
        build(source, out, ground_truth=truth)


def test_parts_of_another_size_are_refused(tmp_path, source, toy, monkeypatch):
    build(source, tmp_path / "out", parser=toy, progress=False)
    (tmp_path / "out" / "counts.json").unlink()
    rows = builder.read_source(source).rows[:2]
    builder._write_part(tmp_path / "out" / "parts" / "00000.parquet", rows, [builder.Truth(1, "VBZ", ())] * 2)
    with pytest.raises(InputError, match="belongs to another build: remove the folder"):
        build(source, tmp_path / "out", parser=toy, progress=False)


def test_places_that_are_no_benchmark(tmp_path, source, toy):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds thesis.tex"):
        build(source, tmp_path / "mine", parser=toy)
    with pytest.raises(InputError, match=r"is not a benchmark: it has no manifest\.json"):
        load_benchmark(tmp_path / "mine")
    with pytest.raises(InputError, match="is a file"):
        build(source, source, parser=toy)


def test_a_benchmark_of_another_schema_is_refused(tmp_path, source):
    truth = truth_file(tmp_path / "t.tsv", ["0\t1\tVBZ"])
    path = build(source, tmp_path / "out", ground_truth=truth).path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "schema": 99}))
    with pytest.raises(InputError, match=r"has schema 99, this version of lrpx reads 1. Make it again"):
        load_benchmark(tmp_path / "out")
    path.write_text(json.dumps({**manifest, "kind": "run"}))
    with pytest.raises(
        InputError, match=r"is a run\. Expected: a benchmark\. lrpx\.benchmark\.build\(\.\.\.\) makes one"
    ):
        load_benchmark(tmp_path / "out")


def test_arguments_that_make_no_sense(tmp_path, source, toy):
    with pytest.raises(InputError, match="workers=0"):
        build(source, tmp_path / "out", parser=toy, workers=0)
    with pytest.raises(InputError, match="ground_truth and parser are both given"):
        build(source, tmp_path / "out", ground_truth=tmp_path / "none.tsv", parser=toy)
    with pytest.raises(InputError, match="ground truth as TSV or JSON lines"):
        build(source, tmp_path / "out", ground_truth=tmp_path / "none.tsv")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not HAS_REAL_PARSER, reason=f"the spaCy pipeline {REAL_PARSER} is not installed")
@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the shared data folder is not here")
def test_real_rows_agree_with_a_plain_reading_of_the_rules(tmp_path):
    """The first 300 real rows, against the paper's three filters written out one row at a time."""
    import spacy
    from spacy.tokens import Doc

    lines = (SHARED / "data" / "lgd_subset.tsv").read_text(encoding="utf-8").split("\n")[:300]
    (tmp_path / "lgd.tsv").write_text("\n".join(lines), encoding="utf-8")
    benchmark = build(tmp_path / "lgd.tsv", tmp_path / "out", parser=REAL_PARSER, progress=False)
    pipeline = spacy.load(REAL_PARSER)
    expected = {}
    for n, line in enumerate(lines):
        _, sentence, masked, verb, other = line.split("\t")
        token = pipeline(Doc(pipeline.vocab, words=sentence.split()))[masked.split().index("***mask***")]
        subjects = [child.i for child in token.lefts if child.dep_ == "nsubj"]
        subjects += [child.i for child in token.rights if child.dep_ == "nsubj"]
        if verb == other:
            expected[n] = "equal_forms"
        elif not subjects:
            expected[n] = "no_subject"
        elif token.tag_ not in ("VBZ", "VBP"):
            expected[n] = "verb_tag"
        else:
            expected[n] = subjects[0]
    actual = {row["sample_id"]: row["subject_index"] for row in benchmark.samples.to_pylist()}
    actual |= {row["sample_id"]: row["reason"] for row in benchmark.dropped.to_pylist()}
    assert actual == expected
    assert 0.8 < len(benchmark) / 300 < 0.95
