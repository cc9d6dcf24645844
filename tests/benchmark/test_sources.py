"""The three source formats, row by row, and everything that can be wrong with them."""

import gzip
import json

import pytest
from benchmark_tools import SHARED, templates

from lrpx.benchmark.sources import read_source
from lrpx.errors import InputError

GOOD = templates()[0].lgd  # "1 \t the key near the dogs is old . \t ... ***mask*** ... \t is \t are"


def write(path, *lines, end="\n"):
    path.write_bytes("".join(line + end for line in lines).encode("utf-8"))
    return path


# lgd


def test_lgd_rows(tmp_path):
    source = read_source(write(tmp_path / "lgd.tsv", GOOD, templates()[1].lgd))
    assert source.format == "lgd"
    first, second = source.rows
    assert first.words == ("the", "key", "near", "the", "dogs", "is", "old", ".")
    assert (first.sample_id, first.line, first.verb_index, first.verb, first.other) == (0, 1, 5, "is", "are")
    assert (second.sample_id, second.line, second.verb, second.n_attractors) == (1, 2, "are", 1)
    assert source.dropped == []
    assert source.published is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lgd_line_ends_a_mark_at_the_start_and_blank_lines(tmp_path, end):
    path = tmp_path / "lgd.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + end.join([GOOD, "", GOOD, ""]).encode())
    rows = read_source(path).rows
    assert [(r.sample_id, r.line, r.verb, r.other) for r in rows] == [(0, 1, "is", "are"), (1, 3, "is", "are")]


def test_only_a_line_feed_ends_a_line(tmp_path):
    """Wikipedia text contains other characters that Python's text mode and splitlines() take for line ends."""
    line = GOOD.replace("key", "k\u2028e\x85y")
    row = read_source(write(tmp_path / "lgd.tsv", line)).rows[0]
    assert row.words[1:4] == ("k", "e", "y")  # whitespace, hence word ends
    assert row.words[row.verb_index] == "is"


BAD_LGD = {
    "four columns": (GOOD.rsplit("\t", 1)[0], "4 columns, expected 5"),
    "six columns": (GOOD + "\tx", "6 columns, expected 5"),
    "no mask": (GOOD.replace("***mask***", "is"), r"occurs 0 times"),
    "two masks": (GOOD.replace("***mask*** old", "***mask*** ***mask***"), "occurs 2 times"),
    "mask inside a word": (GOOD.replace("***mask***", "(***mask***)"), "not a word of its own"),
    "verb not in sentence": (GOOD.replace("\tis\tare", "\twas\twere"), "verb 'was' is not in the sentence .*; 'is' is"),
    "other sentence": (GOOD.replace("old .\tthe", "new .\tthe"), "not the same sentence"),
    "no verb": (GOOD.replace("\tis\tare", "\t\tare"), "verb is '', not one word"),
    "two words": (GOOD.replace("\tis\tare", "\tis\tare not"), "other verb form is 'are not', not one word"),
    "attractors": ("x" + GOOD, "number of attractors is 'x1', not a number"),
}


@pytest.mark.parametrize("name", BAD_LGD)
def test_bad_lgd_rows_are_named_by_line(tmp_path, name):
    line, message = BAD_LGD[name]
    path = write(tmp_path / "lgd.tsv", GOOD, line, GOOD)
    with pytest.raises(InputError, match=rf"1 of 3 rows cannot be used as lgd:\n  line 2: .*{message}") as error:
        read_source(path)
    assert "skip_bad_rows=True" in str(error.value)
    source = read_source(path, skip_bad_rows=True)
    assert [r.sample_id for r in source.rows] == [0, 2]  # ids stay what they are in the file
    assert [(d.sample_id, d.line, d.reason) for d in source.dropped] == [(1, 2, "bad_row")]


def test_bytes_that_are_not_utf8(tmp_path):
    path = tmp_path / "lgd.tsv"
    path.write_bytes(GOOD.encode() + b"\n" + GOOD.replace("key", "k\xe9y").encode("latin-1") + b"\n")
    with pytest.raises(InputError, match="line 2: not UTF-8"):
        read_source(path)


def test_many_bad_rows_are_counted_and_ten_are_shown(tmp_path):
    with pytest.raises(InputError, match=r"(?s)25 of 26 rows .*and 15 more") as error:
        read_source(write(tmp_path / "lgd.tsv", GOOD, *["a\tb"] * 25))
    assert str(error.value).count("\n  line ") == 10


def test_a_broken_first_line_does_not_hide_the_format(tmp_path):
    with pytest.raises(InputError, match="line 1: 2 columns"):
        read_source(write(tmp_path / "lgd.tsv", "a\tb", GOOD))


def test_nothing_usable(tmp_path):
    path = write(tmp_path / "lgd.tsv", GOOD.replace("\tis\tare", "\tit\tare"))
    with pytest.raises(InputError, match=r"none of its 1 rows can be used as lgd \(1 bad\)"):
        read_source(path, skip_bad_rows=True)


def test_files_that_are_not_recognised(tmp_path):
    with pytest.raises(InputError, match="is empty"):
        read_source(write(tmp_path / "a", ""))
    with pytest.raises(InputError, match=r"not recognised; it starts with 'hello'.*name it: format="):
        read_source(write(tmp_path / "b", "hello"))
    (tmp_path / "c").write_bytes(b"PAR1\xff\xfe\x00")
    with pytest.raises(InputError, match="not recognised"):
        read_source(tmp_path / "c")


def test_the_format_can_be_said(tmp_path):
    path = write(tmp_path / "a", GOOD)
    assert read_source(path, format="lgd").format == "lgd"
    with pytest.raises(InputError, match="cannot be used as blimp"):
        read_source(path, format="blimp")
    with pytest.raises(InputError, match=r"the header lacks orig_sentence, verb_index"):
        read_source(path, format="linzen")
    with pytest.raises(InputError, match=r"unknown format 'lgb'. Did you mean 'lgd'"):
        read_source(path, format="lgb")


# linzen

HEADER = ["sentence", "orig_sentence", "verb", "verb_pos", "verb_index", "n_intervening", "n_diff_intervening"]


def linzen(sentence, index, tag, between, different, verb=None):
    words = sentence.split()
    quoted = '"' + sentence.replace('"', '""') + '"' if '"' in sentence else sentence
    return "\t".join([quoted, quoted, verb or words[index - 1], tag, str(index), str(between), str(different)])


LINZEN = [
    linzen("the keys near the dog are old .", 6, "VBP", 1, 1),  # selected
    linzen("the key near the dog is old .", 6, "VBZ", 1, 0),  # the noun between has the same number
    linzen("the dogs bark .", 3, "VBP", 0, 0),  # none between
    linzen("the dog near the keys barks .", 6, "VBZ", 1, 1),  # selected
    linzen("the dog of the men of the farms sings .", 9, "VBZ", 2, 2),  # selected, but no "sing" in the file
    linzen('the " key " near the dogs is old .', 8, "VBZ", 1, 1),  # selected, with quotes
    linzen("a b c d e f g are", 8, "VBP", 5, 5),  # five between
]


@pytest.mark.parametrize("compressed", [False, True])
def test_linzen_rows(tmp_path, compressed):
    path = write(tmp_path / "agr.tsv", "\t".join(HEADER), *LINZEN, end="\r\n")
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    source = read_source(path)
    assert source.format == "linzen"
    kept = [(r.sample_id, r.line, r.verb, r.other, r.n_attractors) for r in source.rows]
    assert kept == [(0, 2, "are", "is", 1), (3, 5, "barks", "bark", 1), (5, 7, "is", "are", 1)]
    assert source.rows[2].words == ("the", '"', "key", '"', "near", "the", "dogs", "is", "old", ".")
    assert source.rows[2].words[source.rows[2].verb_index] == "is"
    assert [(d.sample_id, d.reason, d.detail) for d in source.dropped] == [
        (1, "not_selected", "0 of 1 nouns differ in number"),
        (2, "not_selected", "0 of 0 nouns differ in number"),
        (4, "no_other_form", "'sings' (VBZ)"),
        (6, "not_selected", "5 of 5 nouns differ in number"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\tb", "2 columns, expected 7"),
        (linzen("the keys are", 3, "VBP", 1, 1).replace("\t3\t", "\t4\t"), "verb_index is 4, the sentence has 3 words"),
        (linzen("the keys are", 3, "VBP", 1, 1).replace("\t3\t", "\tx\t"), "verb_index is 'x', not a number"),
        (linzen("the keys are", 3, "VBP", 1, 1).replace("\t3\t", "\t0\t"), "verb_index is 0"),
        (linzen("the keys were", 3, "VBD", 1, 1), "verb_pos is 'VBD', expected VBZ or VBP"),
        (linzen("the keys are", 3, "VBP", 1, 1, verb="is"), "verb 'is' is not in the sentence at verb_index; 'are' is"),
    ],
)
def test_bad_linzen_rows(tmp_path, line, message):
    path = write(tmp_path / "agr.tsv", "\t".join(HEADER), *LINZEN, line)
    with pytest.raises(InputError, match=f"1 of 8 rows cannot be used as linzen:\n  line 9: {message}"):
        read_source(path)
    assert len(read_source(path, skip_bad_rows=True).rows) == 3


def test_a_damaged_gzip_file(tmp_path):
    path = tmp_path / "agr.tsv.gz"
    whole = gzip.compress("\n".join(["\t".join(HEADER), *LINZEN]).encode())
    path.write_bytes(whole[:-12])
    with pytest.raises(InputError, match="damaged gzip"):
        read_source(path)


def test_an_unclosed_quote_that_swallows_the_file(tmp_path):
    broken = LINZEN[0].replace("the keys", '"the keys', 1)
    path = write(tmp_path / "agr.tsv", "\t".join(HEADER), *LINZEN, broken, *LINZEN)
    with pytest.raises(InputError, match=r"line 15: a quote that was opened is closed only some lines later"):
        read_source(path)
    path = write(tmp_path / "agr.tsv", "\t".join(HEADER), broken, *LINZEN[:5] * 500)
    with pytest.raises(InputError, match=r"agr\.tsv, line \d+: field larger than field limit"):
        read_source(path)


# blimp


def blimp(good, bad, **more):
    return json.dumps({"sentence_good": good, "sentence_bad": bad, **more})


def test_blimp_rows(tmp_path):
    path = write(
        tmp_path / "b.jsonl",
        blimp("The sketch of those trucks hasn't hurt Alan.", "The sketch of those trucks haven't hurt Alan."),
        blimp("Boys that aren't disturbing Natalie suffer.", "Boys that aren't disturbing Natalie suffers."),
    )
    source = read_source(path)
    assert source.format == "blimp"
    first, second = source.rows
    assert first.words == ("The", "sketch", "of", "those", "trucks", "hasn't", "hurt", "Alan", ".")
    assert (first.verb_index, first.verb, first.other, first.n_attractors) == (5, "hasn't", "haven't", None)
    assert (second.words[second.verb_index], second.verb, second.other) == ("suffer", "suffer", "suffers")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON list, expected an object"),
        (blimp("The keys are.", 3), "not both text"),
        (blimp("The keys are.", "The key are.", one_prefix_method=False), "differ in the subject and share the verb"),
        (blimp("The keys are.", "The keys is.", linguistics_term="binding"), "its paradigm is 'binding'"),
        (blimp("The keys are.", "The keys are."), "do not differ in exactly one word"),
        (blimp("The keys are.", "The key is."), "do not differ in exactly one word"),
        (blimp("The keys are.", "The keys is here."), "do not differ in exactly one word"),
        (blimp("The k\ud800s are.", "The k\ud800s is."), "not UTF-8"),
    ],
)
def test_bad_blimp_rows(tmp_path, line, message):
    path = write(tmp_path / "b.jsonl", blimp("The keys are.", "The keys is."), line)
    with pytest.raises(InputError, match=f"line 2: .*{message}"):
        read_source(path)


# Real data


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the shared data folder is not here")
def test_the_real_sentences_are_read_as_they_are():
    path = SHARED / "data" / "lgd_subset.tsv"
    source = read_source(path)
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    assert [(" ".join(r.words), r.verb, r.other, r.n_attractors) for r in source.rows] == [
        (line[1], line[3], line[4], int(line[0])) for line in lines
    ]
    assert all(r.words[r.verb_index] == r.verb for r in source.rows)
    assert source.dropped == []
