"""BLiMP's pairs: which word is predicted, which one decides, and which pairs are left out."""

import json
import shutil
from pathlib import Path

import pytest

from lrpx.benchmark.blimp import PAIR_REASONS, PARADIGMS, MinimalPair, agreement, counts_by_paradigm, read_pairs
from lrpx.benchmark.download import PUBLISHED
from lrpx.benchmark.sources import Dropped
from lrpx.errors import InputError

PAIRS = Path(__file__).parent / "blimp"
NOUN = "determiner_noun_agreement_1"


@pytest.fixture(scope="module")
def read():
    return read_pairs(PAIRS)


def entries():
    """(paradigm, entry) of each line of the files, in the order of the paradigms."""
    return [
        (name, json.loads(line)) for name in PARADIGMS for line in (PAIRS / f"{name}.jsonl").read_text().splitlines()
    ]


def marked(sample):
    """The sentence with *the word that decides*, ~attractors~ and [both forms]."""
    words = list(sample.row.words)
    words[sample.row.verb_index] = f"[{sample.row.verb}/{sample.row.other}]"
    words[sample.decides] = f"*{words[sample.decides]}*"
    for place in sample.attractors or ():
        words[place] = f"~{words[place]}~"
    return " ".join(words)


def sample_of(paradigm, good, bad, forms=None):
    """What ``agreement`` makes of a pair; ``bad`` is the word that the other sentence has."""
    words = tuple(good.split())
    place = next(i for i, word in enumerate(words) if word.startswith("*"))
    words = tuple(word.strip("*") for word in words)
    return agreement(MinimalPair(0, 1, paradigm, words, place, bad), forms or {})


def test_every_pair_is_a_sample_or_dropped_for_a_reason(read):
    ids = [s.row.sample_id for s in read.samples] + [d.sample_id for _, d in read.dropped]
    assert sorted(ids) == list(range(12 * len(PARADIGMS)))
    assert {d.reason for _, d in read.dropped} <= set(PAIR_REASONS)
    counts = counts_by_paradigm(read)
    assert list(counts) == list(PARADIGMS)
    for each in counts.values():
        assert each["rows"] == 12 == each["kept"] + sum(each[reason] for reason in PAIR_REASONS)
    assert sum(each["kept"] for each in counts.values()) == len(read.samples) > 120


def test_the_words_are_those_that_blimp_names(read):
    """BLiMP's own fields say where the two sentences part (one prefix), or which words follow when they do (two prefixes)."""
    lines = entries()
    for sample in read.samples:
        paradigm, entry = lines[sample.row.sample_id]
        words, target = sample.row.words, sample.row.verb_index
        assert sample.paradigm == paradigm == entry["UID"]
        if PARADIGMS[paradigm].varies == "predicted":
            before = " ".join(words[:target])
            assert before.startswith(entry["one_prefix_prefix"])  # a compound noun has another word before the last
            forms = zip(entry["one_prefix_word_good"].split(), entry["one_prefix_word_bad"].split(), strict=True)
            assert (sample.row.verb, sample.row.other) in forms  # "works with", "work with"
        else:
            good, bad = entry["two_prefix_prefix_good"].split(), entry["two_prefix_prefix_bad"].split()
            differing = [i for i, (a, b) in enumerate(zip(good, bad, strict=True)) if a != b]
            assert differing == [sample.decides]
            assert sample.row.verb in entry["two_prefix_word"].split()
        assert sample.decides < target
        assert sample.row.verb != sample.row.other


def test_the_other_form_of_a_shared_word_is_one_that_blimp_contrasts_with_it(read):
    contrasted = {("is", "are"), ("was", "were"), ("has", "have"), ("does", "do")}
    for _, entry in entries():
        good, bad = (entry[key].rstrip(".").split() for key in ("sentence_good", "sentence_bad"))
        contrasted |= {(a, b) for a, b in zip(good, bad, strict=True) if a != b}
    shared = [s for s in read.samples if PARADIGMS[s.paradigm].varies == "decides"]
    assert len(shared) > 20
    for sample in shared:
        pair = tuple(form.removesuffix("n't") for form in (sample.row.verb, sample.row.other))
        assert pair in contrasted or pair[::-1] in contrasted


SUBJECT, OF, THAT = (
    "regular_plural_subject_verb_agreement_1",
    "distractor_agreement_relational_noun",
    "distractor_agreement_relative_clause",
)
NUMBER, GENDER = "anaphor_number_agreement", "anaphor_gender_agreement"


@pytest.mark.parametrize(
    ("paradigm", "good", "bad", "expected"),
    [
        (SUBJECT, "The cups *alarm* Angela .", "alarms", "The *cups* [alarm/alarms] Angela ."),
        (SUBJECT, "Some high schools *are* open .", "is", "Some high *schools* [are/is] open ."),
        (SUBJECT.replace("1", "2"), "The *women* are here .", "woman", "The *women* [are/is] here ."),
        (OF, "The sketch of a lot of men *does* exist .", "do", "The *sketch* of a lot of ~men~ [does/do] exist ."),
        (THAT, "Boys that can't thank Ann *suffer* .", "suffers", "*Boys* that can't thank ~Ann~ [suffer/suffers] ."),
        (
            NOUN,
            "That cat saw those out in the open *girls* .",
            "girl",
            "That cat saw *those* out in the open [girls/girl] .",
        ),
        (NOUN.replace("1", "2"), "Al saw *that* grocery store .", "those", "Al saw *that* grocery [store/stores] ."),
        (NUMBER, "Carol had hated *herself* .", "themselves", "*Carol* had hated [herself/themselves] ."),
        (GENDER, "Every dancer is here by *herself* .", "himself", "Every *dancer* is here by [herself/himself] ."),
    ],
)
def test_the_word_that_decides(paradigm, good, bad, expected):
    forms = {("verb", "are"): "is", ("noun", "store"): "stores"}
    assert marked(sample_of(paradigm, good, bad, forms)) == expected


@pytest.mark.parametrize(
    ("paradigm", "good", "bad", "reason", "detail"),
    [
        (SUBJECT, "Many cups *are* here .", "is", "also_shown", "'cups' and 'Many'"),
        (SUBJECT, "The men *hurt* themselves .", "hurts", "also_shown", "'men' and 'themselves'"),
        (SUBJECT, "A lot of men *are* here .", "is", "also_shown", "'men' and 'A'"),
        (SUBJECT, "Harvard University *is* here .", "are", "not_found", "of 'is'"),
        (THAT, "The girl who is near boys *has* left .", "have", "also_shown", "'girl' and 'is'"),
        (THAT, "The girl near boys *has* left .", "have", "not_found", "of 'has'"),
        (NUMBER, "The girl talks to *herself* .", "themselves", "also_shown", "'girl' and 'talks'"),
        (NUMBER, "The boys need *themselves* .", "himself", "also_shown", "'boys' and 'need'"),
        (NUMBER, "Winston Churchill saw *himself* .", "themselves", "not_found", "of 'himself'"),
        (GENDER, "This high school had hurt *itself* .", "himself", "not_found", "of 'itself'"),
        (NOUN, "We saw the *boys* .", "boy", "not_found", "of 'boys'"),
        (NOUN.replace("1", "2"), "We saw *this* boy .", "these", "no_other_form", "'boy'"),
    ],
)
def test_pairs_without_one_word_that_decides_are_dropped(paradigm, good, bad, reason, detail):
    found = sample_of(paradigm, good, bad)
    assert isinstance(found, Dropped)
    assert found.reason == reason
    assert found.detail.startswith(detail)


def test_a_selection_still_looks_forms_up_in_all(read):
    name = "determiner_noun_agreement_2"
    chosen = read_pairs(PAIRS, paradigms=[name])
    assert {s.paradigm for s in chosen.samples} == {name}
    assert [marked(s) for s in chosen.samples] == [marked(s) for s in read.samples if s.paradigm == name]
    assert chosen.manifest["sha256"] != read.manifest["sha256"]
    alone = read_pairs(PAIRS / f"{name}.jsonl")
    assert not alone.samples
    assert {d.reason for _, d in alone.dropped} == {"no_other_form"}


def test_the_paradigms_are_those_that_can_be_downloaded():
    assert {file.name for file in PUBLISHED.values()} == {"lgd", *PARADIGMS}


def test_bad_rows_are_an_error_or_left_out(tmp_path):
    good = (PAIRS / f"{NOUN}.jsonl").read_text().splitlines()
    entry = json.loads(good[0])
    rows = [
        {**entry, "sentence_bad": None},
        {key: value for key, value in entry.items() if key != "UID"},
        {**entry, "sentence_bad": entry["sentence_good"]},
    ]
    path = tmp_path / f"{NOUN}.jsonl"
    path.write_text("\n".join([*good, *map(json.dumps, rows), "{"]) + "\n")
    with pytest.raises(InputError, match="4 rows cannot be used") as error:
        read_pairs(path)
    for told in (
        f"{NOUN}.jsonl, line 13: sentence_good and sentence_bad are not both text",
        f"line 14: its UID is None, expected '{NOUN}'",
        "line 15: the two sentences do not differ in exactly one word",
        "line 16:",
        "skip_bad_rows=True",
    ):
        assert told in str(error.value)
    left = read_pairs(path, skip_bad_rows=True)
    assert len(left.samples) == 12
    assert [d.reason for _, d in left.dropped] == ["bad_row"] * 4


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(
        InputError, match=r"called 'determiner_noun_agreement'. Did you mean 'determiner_noun_agreement_"
    ):
        read_pairs(PAIRS, paradigms=["determiner_noun_agreement"])
    with pytest.raises(InputError, match=r"is not there: give the folder .* lrpx\.benchmark\.fetch\('blimp'\)"):
        read_pairs(tmp_path / "none")
    with pytest.raises(InputError, match="has none of BLiMP's agreement paradigms"):
        read_pairs(tmp_path)
    shutil.copy(PAIRS / f"{NOUN}.jsonl", tmp_path / f"{NOUN}.jsonl")
    with pytest.raises(InputError, match=f"has no anaphor_gender_agreement.jsonl; it has {NOUN}"):
        read_pairs(tmp_path, paradigms=["anaphor_gender_agreement"])
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"other.jsonl is none of BLiMP's agreement paradigms"):
        read_pairs(tmp_path / "other.jsonl")
