"""A benchmark of BLiMP's paradigms: its files, its card, and its tokens."""

import hashlib
from pathlib import Path

import pytest
from benchmark_tools import byte_bpe

from lrpx.benchmark import build_blimp, download, load_benchmark, tokenize
from lrpx.benchmark.blimp import PARADIGMS, read_pairs
from lrpx.benchmark.download import PUBLISHED
from lrpx.errors import InputError

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
PAIRS = Path(__file__).parent / "blimp"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build_blimp(PAIRS, tmp_path_factory.mktemp("blimp") / "agreement")


def test_the_files_hold_every_pair(made):
    read = read_pairs(PAIRS)
    rows = made.samples.to_pylist()
    assert len(rows) == len(made) == len(read.samples)
    for row, sample in zip(rows, read.samples, strict=True):
        words = row["sentence"].split(" ")
        assert words[row["subject_index"]] == row["subject"] == sample.row.words[sample.decides]
        assert words[row["verb_index"]] == row["verb"]
        assert row["paradigm"] == sample.paradigm
        assert row["verb_tag"] is None
        assert row["attractors"] == (None if sample.attractors is None else list(sample.attractors))
    assert made.dropped.num_rows == 12 * len(PARADIGMS) - len(made)
    assert sum(each["kept"] for each in made.counts["paradigms"].values()) == len(made)


def test_the_same_build_is_read_and_another_is_refused(made):
    assert build_blimp(PAIRS, made.path).counts == made.counts
    with pytest.raises(InputError, match="made from something else"):
        build_blimp(PAIRS, made.path, paradigms=["determiner_noun_agreement_1"])


def test_the_card_says_what_decides_and_what_was_dropped(made):
    card = (made.path / "README.md").read_text()
    for name, each in made.counts["paradigms"].items():
        (line,) = [line for line in card.splitlines() if line.startswith(f"| {name} |")]
        assert f"| {PARADIGMS[name].predicted} | {PARADIGMS[name].decides} |" in line
        assert line.endswith(f"| {each['kept']} |")
    assert "not the files that BLiMP's authors published" in card
    assert "license_name: as-the-source" in card
    assert "paper" not in card.split("## Sentences")[1]


def test_the_card_of_published_files_has_their_licence(tmp_path, monkeypatch):
    name = "determiner_noun_agreement_1"
    content = (PAIRS / f"{name}.jsonl").read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    (known,) = [file for file in PUBLISHED.values() if file.name == name]
    monkeypatch.setitem(download.PUBLISHED, blob, known)
    card = (build_blimp(PAIRS, tmp_path / "out", paradigms=[name]).path / "README.md").read_text()
    assert f"BLiMP {name} (Warstadt et al. (2020)" in card
    assert "license: cc-by-4.0" in card
    assert "keep its licence: CC BY 4.0." in card


def test_a_paradigm_alone_that_lacks_its_forms_says_where_they_are(tmp_path):
    with pytest.raises(
        InputError, match=r"no row is left of 12 \(no_other_form 12\).* give the folder with all of them"
    ):
        build_blimp(PAIRS / "determiner_noun_agreement_2.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_empty_file_is_said_to_be_empty(tmp_path):
    source = tmp_path / "determiner_noun_agreement_1.jsonl"
    source.write_text("\n")
    with pytest.raises(InputError, match=r"_1\.jsonl is empty: it has no rows"):
        build_blimp(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_its_tokens_are_those_of_the_words(made):
    corpus = made.samples.column("sentence").to_pylist()
    forms = [f"x {word}" for word in made.samples.column("other").to_pylist()]
    tokenizer = byte_bpe(corpus + forms, size=2000)
    found = tokenize(made.path, tokenizer, name="tiny", progress=False)
    rows = {row["sample_id"]: row for row in load_benchmark(made.path).samples.to_pylist()}
    assert len(found) > 100
    for sample in found.samples:
        row = rows[sample.sample_id]
        told = tokenizer.decode([sample.input_ids[i] for i in sample.ground_truth])
        assert told.strip() == row["subject"]
        assert tokenizer.decode([sample.verb_id]) == f" {row['verb']}"
        assert tokenizer.decode([sample.other_id]) == f" {row['other']}"
    assert "paper" not in (made.path / "README.md").read_text().split("## Tokenised")[1]
