"""The dataset card: its header is what the Hub reads, and its numbers are those of the files."""

import numpy as np
import pytest
import yaml
from benchmark_tools import byte_bpe, templates, word_piece

from lrpx.benchmark import build, card, load_benchmark, tokenize
from lrpx.benchmark.card import PAPER_DROPPED, PAPER_ROWS, PAPER_SETS, spread
from lrpx.benchmark.download import Published

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

CHOSEN = [t for t in templates() if "nsubj" in t.deps]  # as many plural as singular


@pytest.fixture
def folder(tmp_path):
    """All nominal template sentences but one plural (dropped), with the truth from a file."""
    (tmp_path / "lgd.tsv").write_text("\n".join(t.lgd for t in CHOSEN))
    lines = ["sample_id\tsubject\tverb_tag\tattractors"]
    lines += [f"{n}\t1\t{t.tags[5]}\t4" for n, t in enumerate(CHOSEN) if n != 1]
    (tmp_path / "truth.tsv").write_text("\n".join(lines))
    return build(tmp_path / "lgd.tsv", tmp_path / "sva", ground_truth=tmp_path / "truth.tsv", progress=False).path


def read(folder):
    """Header as data, and the cells of every table row by their first cell."""
    _, header, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    rows = [line[1:-1].split("|") for line in body.split("\n") if line.startswith("| ")]
    return yaml.safe_load(header), body, {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def test_the_header_is_what_the_hub_reads(folder):
    tokenize(folder, byte_bpe(["the key is are old"] * 3), name="tiny", progress=False)
    header, _, _ = read(folder)
    assert header["language"] == ["en"]
    assert (header["license"], header["license_name"]) == ("other", "as-the-source")
    assert header["size_categories"] == ["n<1K"]
    assert header["configs"] == [
        {"config_name": "samples", "data_files": "samples.parquet"},
        {"config_name": "dropped", "data_files": "dropped.parquet"},
        {"config_name": "tokenized-tiny", "data_files": "tokenized/tiny/samples.parquet"},
    ]
    assert all((folder / config["data_files"]).is_file() for config in header["configs"])


def test_numbers_of_the_sentences(folder):
    _, body, rows = read(folder)
    n = len(CHOSEN) - 1
    assert rows["samples"] == [str(n), "28,786"]
    assert rows["rows of the source"] == ["", str(n + 1), "", "29,985"]
    assert rows["the verb has no nominal subject (nsubj)"] == ["1", str(n), "1,005", "28,934"]
    assert rows["plural verb (VBP)"] == [f"{(n // 2) / n:.1%}", "67%"]
    assert rows["singular verb (VBZ)"] == [f"{(n - n // 2) / n:.1%}", "33%"]
    assert rows["words in a sentence"][0] == "8-8, mean 8, std 0, median 8"
    assert rows["words from subject to verb"][0] == "4-4, mean 4, std 0, median 4"
    assert rows["attractors found between subject and verb"][0] == "1: 100.0%"
    assert "not of the source's form" not in rows  # filters that took nothing are not listed ...
    assert rows["both forms of the verb are the same"] == [
        "0",
        str(n + 1),
        "46",
        "29,939",
    ]  # ... unless the paper has them
    assert "the file `truth.tsv`" in body
    assert "parser makes mistakes" not in body


def test_numbers_of_a_tokenised_set(folder, monkeypatch):
    tokenizer = byte_bpe(["the key is are near the farm old"] * 3)
    paper = ("Small", (99, "2-60, mean 11, std 7, median 8", "1-7", "85.1%", "12.4%"))
    monkeypatch.setitem(card.PAPER_SETS, len(tokenizer), paper)
    result = tokenize(folder, tokenizer, name="tiny", progress=False)
    _, body, rows = read(folder)
    lengths = [len(s.input_ids) for s in result.samples]
    truth = np.array([len(s.ground_truth) for s in result.samples])
    roles = [role for s in result.samples for role in s.roles]
    assert len(set(lengths)) > 1
    assert rows["tokens in the input"] == [spread(lengths), "2-60, mean 11, std 7, median 8"]
    assert rows["tokens in the ground truth"] == [f"{truth.min()}-{truth.max()}", "1-7"]
    assert rows["ground truth of 1 token"] == [f"{np.mean(truth == 1):.1%}", "85.1%"]
    assert rows["ground truth of 2 tokens"] == [f"{np.mean(truth == 2):.1%}", "12.4%"]
    assert f"subject {roles.count('subject') / len(roles):.1%}" in rows["tokens by role"][0]
    assert f"BPE vocabulary of {len(tokenizer)}" in body
    assert "paper (Small)" in body


def test_sets_that_the_paper_does_not_have_stand_alone(folder):
    tokenize(folder, word_piece(["the key is are near the farm old"] * 3), name="tiny", progress=False)
    _, _, rows = read(folder)
    assert rows["tokens in the ground truth"][1] == ""


def test_a_published_source_is_named_with_its_licence(folder):
    benchmark = load_benchmark(folder)
    known = Published("x", "BLiMP x", "https://host/x", "Warstadt et al.", "CC BY 4.0")
    benchmark.counts["published"] = known._asdict()
    text = card.card(benchmark)
    assert yaml.safe_load(text.split("---\n")[1])["license"] == "cc-by-4.0"
    assert "BLiMP x (Warstadt et al.)" in text
    assert "keep its licence: CC BY 4.0." in text


def test_the_papers_own_figures_add_up():
    assert PAPER_ROWS - sum(PAPER_DROPPED.values()) == 28786
    assert [(name, figures[0]) for name, figures in PAPER_SETS.values()] == [
        ("BERT", 28472),
        ("GPT-2", 28602),
        ("Llama-3", 28629),
    ]


def test_spread():
    assert spread([1, 2, 6]) == "1-6, mean 3, std 2.2, median 2"
