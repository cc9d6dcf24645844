"""Subjects and attractors: from hand-made parses, from pipelines, and from files."""

import json
import shutil

import pytest
from benchmark_tools import HAS_REAL_PARSER, REAL_PARSER, templates, toy_parser

from lrpx.benchmark.ground_truth import Truth, load_parser, parse, read_doc, read_file
from lrpx.benchmark.sources import SourceRow
from lrpx.errors import InputError

spacy = pytest.importorskip("spacy", reason="spaCy is not installed")
from spacy.tokens import Doc  # noqa: E402


def doc(text):
    """``word/TAG/dep/head`` for each word."""
    words, tags, deps, heads = zip(*(part.split("/") for part in text.split()), strict=True)
    return Doc(spacy.blank("en").vocab, words=words, tags=tags, deps=deps, heads=[int(h) for h in heads])


KEYS = "the/DT/det/1 keys/NNS/nsubj/5 to/IN/prep/1 the/DT/det/4 cabinet/NN/pobj/2 are/VBP/ROOT/5 old/JJ/acomp/5"


def test_the_nsubj_child_is_the_subject():
    truth = read_doc(doc(KEYS), 5)
    assert truth == Truth(1, "VBP", (4,))
    assert truth.reason() is None


def test_the_leftmost_of_several_subjects():
    parsed = doc("keys/NNS/nsubj/3 and/CC/cc/0 locks/NNS/nsubj/3 are/VBP/ROOT/3 we/PRP/nsubj/3")
    assert read_doc(parsed, 3).subject == 0


def test_only_the_verbs_own_child_counts():
    """The subject of another verb, and other relations to this one, are no ground truth."""
    parsed = doc("keys/NNS/nsubj/1 fit/VBP/ccomp/4 doors/NNS/dobj/1 it/PRP/expl/4 is/VBZ/ROOT/4 he/PRP/nsubjpass/4")
    truth = read_doc(parsed, 4)
    assert truth.reason() == ("no_subject", "relation of the verb: ROOT; its children: ccomp, expl, nsubjpass")
    assert read_doc(parsed, 1).subject == 0


def test_the_verbs_tag_must_be_present_tense():
    for tag in ("VBZ", "VBP"):
        assert read_doc(doc(f"keys/NNS/nsubj/1 fit/{tag}/ROOT/1"), 1).reason() is None
    for tag in ("VBD", "VB", "MD", "NN"):
        truth = read_doc(doc(f"keys/NNS/nsubj/1 fit/{tag}/ROOT/1"), 1)
        assert truth.reason() == ("verb_tag", f"the verb is tagged {tag}")


def test_a_verb_without_children_or_label():
    blank = Doc(spacy.blank("en").vocab, words=["a", "b"])
    assert read_doc(blank, 1).reason() == ("no_subject", "relation of the verb: none; its children: none")


@pytest.mark.parametrize(
    ("text", "attractors"),
    [
        # singular verb: plural nouns between attract, common or proper; singular ones do not
        ("key/NN/nsubj/4 cars/NNS/x/0 Alps/NNPS/x/0 Rome/NNP/x/0 is/VBZ/ROOT/4 men/NNS/x/4", (1, 2)),
        # plural verb: the other way round
        ("keys/NNS/nsubj/4 cars/NNS/x/0 Rome/NNP/x/0 car/NN/x/0 are/VBP/ROOT/4 man/NN/x/4", (2, 3)),
        # the verb's number decides, also for a pronoun
        ("you/PRP/nsubj/2 man/NN/x/0 are/VBP/ROOT/2", (1,)),
        # subject after the verb: between means between
        ("man/NN/x/1 are/VBP/ROOT/1 car/NN/x/3 keys/NNS/nsubj/1 dog/NN/x/3", (2,)),
        # a verb of no known number has none
        ("keys/NNS/nsubj/2 car/NN/x/0 were/VBD/ROOT/2", ()),
    ],
)
def test_attractors_are_nouns_between_of_the_other_number(text, attractors):
    parsed = doc(text)
    verb = next(token.i for token in parsed if token.dep_ == "ROOT")
    assert read_doc(parsed, verb).attractors == attractors


# Pipelines


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return toy_parser(tmp_path_factory.mktemp("parser") / "toy")


def rows():
    return [
        SourceRow(n, n + 1, 1, tuple(t.words), t.verb_index, t.words[t.verb_index], t.other)
        for n, t in enumerate(templates())
    ]


def test_a_pipeline_finds_what_its_sentences_were_made_with(toy):
    pipeline = load_parser(str(toy))
    for template, truth in zip(templates(), parse(pipeline, rows()), strict=True):
        assert truth.subject == (1 if "nsubj" in template.deps else None)
        assert truth.verb_tag == template.tags[5]
        assert truth.attractors == ((4,) if "nsubj" in template.deps else None)


def test_pipelines_that_are_not_there():
    with pytest.raises(InputError, match=r"python -m spacy download xx_core_web_trf \(or bring .* ground_truth=\)"):
        load_parser("xx_core_web_trf")
    with pytest.raises(InputError, match=r"'my_parser' is not there. Install the package that provides it"):
        load_parser("my_parser")


@pytest.mark.parametrize(("pipes", "missing"), [([], "no tagger and no parser"), (["tagger"], "no parser")])
def test_pipelines_without_the_needed_parts(tmp_path, pipes, missing):
    pipeline = spacy.blank("en")
    for pipe in pipes:
        pipeline.add_pipe(pipe).add_label("X")
        pipeline.initialize()
    pipeline.to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match=f"has {missing}, only {'tagger' if pipes else 'a tokenizer'}. Use one with"):
        load_parser(str(tmp_path / "blank"))


def test_a_pipeline_whose_parts_are_not_installed(tmp_path, toy):
    shutil.copytree(toy, tmp_path / "toy")
    config = tmp_path / "toy" / "config.cfg"
    config.write_text(config.read_text().replace('factory = "tagger"', 'factory = "curated_tagger"'))
    with pytest.raises(InputError, match=r"cannot be loaded: .*curated_tagger"):
        load_parser(str(tmp_path / "toy"))


@pytest.mark.skipif(not HAS_REAL_PARSER, reason=f"the spaCy pipeline {REAL_PARSER} is not installed")
def test_a_real_pipeline():
    words = ("the", "keys", "to", "the", "cabinet", "that", "he", "lost", "are", "on", "the", "table", ".")
    truth = parse(load_parser(REAL_PARSER), [SourceRow(0, 1, 1, words, 8, "are", "is")])[0]
    assert truth == Truth(1, "VBP", (4,))


# Files


def tsv(path, *lines):
    path.write_text("\n".join(line.replace(" ", "\t") for line in lines) + "\n", encoding="utf-8")
    return path


def test_a_table_of_subjects(tmp_path):
    path = tsv(
        tmp_path / "t.tsv", "sample_id subject verb_tag attractors subject_word", "2 1 VBZ 4 key", "0 1 VBD 2,4 key"
    )
    truths = read_file(path, rows()[:3])
    assert truths[2] == Truth(1, "VBZ", (4,))
    assert truths[0] == Truth(1, "VBD", (2, 4))
    assert truths[0].reason() == ("verb_tag", "the verb is tagged VBD")
    assert truths[1].reason() == ("no_subject", "not in t.tsv")


def test_only_two_columns_are_needed(tmp_path):
    path = tsv(tmp_path / "t.tsv", "subject sample_id", "1 0", "\t1")
    first, second = read_file(path, rows()[:2])
    assert first == Truth(1, None, None)
    assert first.reason() is None  # the tag is not known, so it does not count
    assert second.reason() == ("no_subject", "t.tsv, line 3: no subject")


def test_an_empty_cell_of_attractors_means_none(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("sample_id\tsubject\tattractors\r\n0\t1\t\r\n")
    assert read_file(path, rows()[:1])[0].attractors == ()


def test_json_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    entries = [{"sample_id": 0, "subject": 1, "attractors": [4]}, {"sample_id": 1, "subject": None}]
    path.write_text("\n".join(json.dumps(e) for e in entries))
    first, second = read_file(path, rows()[:2])
    assert first == Truth(1, None, (4,))
    assert second.subject is None


def test_a_quote_is_a_word_like_others(tmp_path):
    row = SourceRow(0, 1, 1, ("a", '"', "is"), 2, "is", "are")
    assert read_file(tsv(tmp_path / "t.tsv", "sample_id subject subject_word", '0 1 "'), [row])[0].subject == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["sample_id verb"], "header lacks subject"),
        (["0 1"], "header lacks sample_id and subject"),
        (["sample_id subject", "0 1 2"], "line 2: the number of columns"),
        (["sample_id subject verb_tag", "0 1"], "line 2: the number of columns"),
        (["sample_id subject", "x 1"], "line 2: sample_id is 'x': give a whole number"),
        (["sample_id subject", "\t1"], "line 2: there is no sample_id"),
        (["sample_id subject", "0 -1"], "subject is '-1': give a whole number"),
        (["sample_id subject", "0 8"], "subject 8 is outside the sentence, which has 8 words"),
        (["sample_id subject", "0 5"], "subject 5 is the verb 'is'"),
        (["sample_id subject", "0 1", "0 1"], "line 3: sample_id 0 is there twice"),
        (["sample_id subject attractors", "0 1 9"], "attractors 9 is outside"),
        (["sample_id subject subject_word", "0 2 key"], "word 2 of sample 0 is 'near', not 'key'.*another source"),
        (["sample_id subject", "99 1"], "none of its 1 sample_ids is a row of the source"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        read_file(tsv(tmp_path / "t.tsv", *lines), rows()[:2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"sample_id": 0, "subject": 1}\n{', "line 2: not JSON"),
        ('{"sample_id": 0, "subject": 1}\n[]', "line 2: a JSON list"),
        ('{"sample_id": true, "subject": 1}', "sample_id is True"),
        ('{"sample_id": 0, "subject": 1, "attractors": 4}', "attractors is 4: give a list"),
    ],
)
def test_json_lines_that_do_not_fit(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_file(path, rows()[:2])


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "t").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        read_file(tmp_path / "t", rows())
    with pytest.raises(InputError, match="is not a file"):
        read_file(tmp_path, rows())
