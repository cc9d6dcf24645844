"""A key in a haystack: texts that say what they claim, of the size that was asked for, and their tokens."""

import random
import re

import pytest
from benchmark_tools import byte_bpe, word_piece

from lrpx.benchmark import build_haystack, load_benchmark, tokenize
from lrpx.benchmark.haystack import FILLER, hay
from lrpx.errors import InputError

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
NEEDLE = re.compile(r"The special magic number for (\w+) is (\d{5})\.")
CORPUS = [*FILLER, "The special magic number for tiger piano river is 1 ."]


def digits():
    """A tokenizer that writes a space before a number, and its digits, as tokens of their own, as SmolLM's does."""
    from tokenizers import pre_tokenizers

    tokenizer = byte_bpe(CORPUS, size=330)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def trimmed():
    """A tokenizer whose tokens do not count the space before a word as theirs, as Llama 3's."""
    from tokenizers import processors

    tokenizer = byte_bpe(CORPUS, size=330)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def prefixed():
    """A tokenizer for which every number starts with the same token, a hash."""
    from tokenizers import Regex, normalizers

    tokenizer = byte_bpe(CORPUS, size=330)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex(r" (?=\d{5}$)"), " #")
    return tokenizer


@pytest.mark.parametrize("needles", [1, 3, 9])
def test_a_text_states_its_answer_once(needles):
    for seed in range(20):
        made = hay(random.Random(seed), 9, needles)
        stated = dict(NEEDLE.findall(made.text))
        assert len(stated) == needles
        assert made.text.endswith(f" The special magic number for {made.key} is")
        assert stated[made.key] == made.value
        assert made.other in stated.values() if needles > 1 else made.other not in made.text
        firsts = {value[0] for value in [*stated.values(), made.other]}
        assert len(firsts) == max(needles, 2)  # so that first tokens differ
        words = made.text.split(" ")
        first, end = made.needle
        assert " ".join(words[first:end]) == f"The special magic number for {made.key} is {made.value}."
        assert sorted(words[i] for i in made.attractors) == sorted(f"{v}." for v in stated.values() if v != made.value)
        sentences = re.findall(r"[^.]+\.", made.text)
        assert len(sentences) == made.sentences == 9 + needles
        place = next(i for i, s in enumerate(sentences) if made.value in s)
        assert made.depth == place / (len(sentences) - 1)
        assert [s.strip() for s in sentences if "magic" not in s] == [FILLER[i % 5] for i in range(9)]


def test_places_cover_the_text():
    depths = [hay(random.Random(seed), 20, 2).depth for seed in range(200)]
    assert min(depths) == 0
    assert max(depths) == 1
    assert 0.4 < sum(depths) / len(depths) < 0.6


def test_the_folder_is_that_of_a_benchmark(tmp_path):
    made = build_haystack(tmp_path / "hay", sentences=6, needles=2, samples=4)
    assert len(made) == 4
    for row in made.samples.to_pylist():
        words = row["sentence"].split(" ")
        assert words[row["verb_index"]] == row["verb"] == words[-1]
        assert words[row["subject_index"]] == row["subject"] == f"{row['verb']}."
        assert row["subject_end"] == row["subject_index"] + 1
        assert row["n_attractors"] == 1
        assert words[row["attractors"][0]] == f"{row['other']}."
    card = (made.path / "README.md").read_text()
    assert "The ground truth is the value in the needle." in card
    assert "| size | 6 sentences |" in card
    again = build_haystack(tmp_path / "again", sentences=6, needles=2, samples=4)
    assert again.samples.equals(made.samples)
    other = build_haystack(tmp_path / "other", sentences=6, needles=2, samples=4, seed=1)
    assert not other.samples.equals(made.samples)
    assert build_haystack(tmp_path / "hay", sentences=6, needles=2, samples=4).counts == made.counts
    with pytest.raises(InputError, match=r": seed is 0 there and 1 now"):
        build_haystack(tmp_path / "hay", sentences=6, needles=2, samples=4, seed=1)


@pytest.mark.parametrize("truth", ["value", "needle"])
@pytest.mark.parametrize(
    "make", [digits, trimmed, lambda: byte_bpe(CORPUS, size=330)], ids=["digits", "trimmed", "bytes"]
)
def test_the_first_token_that_differs_is_predicted(tmp_path, make, truth):
    tokenizer = make()
    build_haystack(tmp_path / "hay", sentences=6, needles=2, samples=6, truth=truth)
    found = tokenize(tmp_path / "hay", tokenizer, name="tiny", progress=False)
    assert len(found) == 6
    assert found.input == "causal"
    for sample in found.samples:
        assert sample.position == len(sample.input_ids) - 1
        for value, token in ((sample.verb, sample.verb_id), (sample.other, sample.other_id)):
            whole = tokenizer(f"{sample.text} {value}")["input_ids"]
            assert whole[: sample.position + 2] == [*sample.input_ids, token]
        assert tokenizer.decode(sample.input_ids).rstrip() == sample.text
        truth_text = tokenizer.decode([sample.input_ids[i] for i in sample.ground_truth]).strip()
        (key,) = [key for key, value in NEEDLE.findall(sample.text) if value == sample.verb]
        assert truth_text == (
            sample.verb if truth == "value" else f"The special magic number for {key} is {sample.verb}"
        )
        attractors = [i for i, role in enumerate(sample.roles) if role == "attractor"]
        assert tokenizer.decode([sample.input_ids[i] for i in attractors]).strip() == sample.other
        assert [i for i, role in enumerate(sample.roles) if role == "subject"] == sample.ground_truth


def test_values_that_start_with_the_same_token_are_dropped_and_counted(tmp_path):
    build_haystack(tmp_path / "hay", sentences=6, needles=2, samples=3)
    with pytest.raises(InputError, match=r"verb_tokens 3\); for instance line 1: '\d{5}' and '\d{5}' both start with"):
        tokenize(tmp_path / "hay", prefixed(), name="tiny", progress=False)


def test_only_causal_models_continue_a_text(tmp_path):
    build_haystack(tmp_path / "hay", samples=1)
    with pytest.raises(InputError, match="is for causal models, which continue its texts; this one is masked"):
        tokenize(tmp_path / "hay", word_piece(CORPUS), input="masked", progress=False)


def test_tokens_are_filled_and_not_exceeded(tmp_path):
    tokenizer = byte_bpe(CORPUS, size=330)
    made = build_haystack(tmp_path / "hay", tokens=300, tokenizer=tokenizer, needles=2, samples=5)
    longest = max(len(tokenizer(line)["input_ids"]) for line in FILLER)
    for row in made.samples.to_pylist():
        size = len(tokenizer(row["sentence"].rsplit(" ", 1)[0])["input_ids"])
        assert 300 - longest - 10 <= size <= 300
    assert load_benchmark(made.path).manifest["options"]["size"] == "300 tokens"


def test_a_filler_of_ones_own(tmp_path):
    (tmp_path / "mine.txt").write_text("It rains.\n\n  It   snows.\n")
    made = build_haystack(tmp_path / "hay", sentences=2, needles=1, samples=1, filler=tmp_path / "mine.txt")
    (text,) = made.samples.column("sentence").to_pylist()
    assert "It rains." in text
    assert "It snows." in text
    assert FILLER[0] not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentences": 2, "needles": 3}, "3 needles do not fit between 2 sentences: give more sentences, or fewer needles"),
        ({"needles": 10}, "needles=10: give at most 9"),
        ({"needles": 0}, "needles=0: give 1 or more"),
        ({"samples": 0}, "samples=0: give 1 or more"),
        ({"tokens": 100}, "tokens=100: by which tokenizer"),
        ({"tokens": 100, "sentences": 5}, "sentences=5 and tokens=100: give one of the two"),
        ({"truth": "key"}, "unknown truth 'key'"),
        ({"filler": [" "]}, "the filler has no sentence"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_said(tmp_path, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        build_haystack(tmp_path / "hay", **options)
    assert not (tmp_path / "hay").exists()


def test_too_few_tokens_say_how_many_it_takes(tmp_path):
    tokenizer = byte_bpe(CORPUS, size=330)
    with pytest.raises(InputError, match=r"take \d+ tokens: give more than 30, or fewer needles") as error:
        build_haystack(tmp_path / "hay", tokens=30, tokenizer=tokenizer)
    least = int(re.search(r"take (\d+)", str(error.value))[1])
    assert len(build_haystack(tmp_path / "hay", tokens=least, tokenizer=tokenizer, samples=1)) == 1
    with pytest.raises(InputError, match=r"none.txt cannot be read"):
        build_haystack(tmp_path / "other", filler=tmp_path / "none.txt")
