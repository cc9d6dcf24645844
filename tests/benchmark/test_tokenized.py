"""Tokenised sets: positions by offsets, verb forms in context, every filter, and real sentences with real tokenizers."""

import json
import re
import sys
import unicodedata

import numpy as np
import pytest
from benchmark_tools import SHARED, byte_bpe, llama_like, roberta_like, templates, word_piece

from lrpx.benchmark import build, fingerprint, load_benchmark, load_tokenized, tokenize, tokenized
from lrpx.benchmark.align import Sentence, align
from lrpx.benchmark.folder import set_name
from lrpx.benchmark.sources import Dropped
from lrpx.errors import InputError

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

CORPUS = [" ".join(t.words) for t in templates()] * 3


def sentence(text, verb_index, other, subject, attractors=()):
    """A benchmark row; the verb is the word at ``verb_index``."""
    verb = text.split(" ")[verb_index]
    return Sentence(7, 8, text, verb_index, verb, other, "VBP", subject, list(attractors), 1)


KEYS = sentence("the keys near the dog are old .", 5, "is", 1, (4,))


def one(tokenizer, kind, row):
    return next(align(tokenizer, kind, [row]))


# What the model sees


def test_causal_input_is_the_text_before_the_verb():
    sample = one(byte_bpe(CORPUS), "causal", KEYS)
    assert sample.text == "the keys near the dog"
    assert sample.tokens == ["the", "Ġkeys", "Ġnear", "Ġthe", "Ġdog"]
    assert sample.position == 4
    assert sample.ground_truth == [1]
    assert sample.roles == ["other", "subject", "other", "other", "attractor"]


def test_verb_forms_have_the_leading_space_where_the_tokenizer_has_one():
    for tokenizer, mark in ((byte_bpe(CORPUS), "Ġ"), (llama_like(CORPUS), "▁")):
        sample = one(tokenizer, "causal", KEYS)
        assert tokenizer.convert_ids_to_tokens([sample.verb_id, sample.other_id]) == [f"{mark}are", f"{mark}is"]
    tokenizer = word_piece(CORPUS)
    sample = one(tokenizer, "masked", KEYS)
    assert tokenizer.convert_ids_to_tokens([sample.verb_id, sample.other_id]) == ["are", "is"]


def test_special_tokens_are_part_of_the_input():
    sample = one(llama_like(CORPUS), "causal", KEYS)
    assert sample.tokens[0] == "<s>"
    assert sample.roles == ["special", "other", "subject", "other", "other", "attractor"]
    assert sample.ground_truth == [2]
    assert sample.position == 5


def test_a_causal_input_does_not_end_with_an_end_token():
    """A model that is asked what comes after </s> is asked something else."""
    plain, closed = (one(llama_like(CORPUS, end=end), "causal", KEYS) for end in (False, True))
    assert closed == plain


def test_masked_input_is_the_sentence_with_the_mask():
    sample = one(word_piece(CORPUS), "masked", KEYS)
    assert sample.text == "the keys near the dog [MASK] old ."
    assert sample.tokens == ["[CLS]", "the", "keys", "near", "the", "dog", "[MASK]", "old", ".", "[SEP]"]
    assert sample.position == 6
    assert sample.ground_truth == [2]
    assert [i for i, role in enumerate(sample.roles) if role == "special"] == [0, 6, 9]


def test_a_mask_that_swallows_the_space_before_it():
    sample = one(roberta_like(CORPUS), "masked", KEYS)
    assert sample.tokens == ["<s>", "the", "Ġkeys", "Ġnear", "Ġthe", "Ġdog", "<mask>", "Ġold", "Ġ.", "</s>"]
    assert roberta_like(CORPUS).convert_ids_to_tokens([sample.verb_id, sample.other_id]) == ["Ġare", "Ġis"]


def test_a_subject_after_the_verb_of_a_masked_sentence():
    sample = one(word_piece(CORPUS), "masked", sentence("near the dog are the old keys .", 3, "is", 6, (2,)))
    assert sample.tokens[sample.ground_truth[0]] == "keys"
    assert sample.roles[3] == "attractor"


# Which tokens are the subject


def test_repeated_words_are_told_apart_by_their_place():
    text = "the keys near the dogs near the keys are old ."
    for subject in (1, 7):
        row = sentence(text, 8, "is", subject)
        sample = one(byte_bpe(CORPUS), "causal", row)
        assert sample.ground_truth == [subject]
        sample = one(word_piece(CORPUS), "masked", row)
        assert sample.ground_truth == [subject + 1]


ODD_WORDS = [
    "café", "naïve", "o'neil", "x-ray", '"quoted"', "'s", "—", "日本", "ключи", "f(x)", "c#", "ß", "ﬁsh", "𝒜𝒷", "🔑🔑",
    "key's", "…", "a.b.c.", "İstanbul", "cafe\u0301", "n\u0303o\u0304", "co\u00adop", "keyskeyskeys", "##s", "Ġ",
]  # fmt: skip


def spelled(tokenizer, tokens):
    """The text that pieces spell, by the tokenizer's own rules and without offsets."""
    if "##" in "".join(tokenizer.get_vocab()) and tokenizer.mask_token == "[MASK]":
        return "".join(t.removeprefix("##") for t in tokens)
    if tokenizer.bos_token:
        return "".join(tokens).replace("▁", " ")
    return tokenizer.decode(tokenizer.convert_tokens_to_ids(tokens))


@pytest.mark.parametrize("word", ODD_WORDS)
@pytest.mark.parametrize("make", [byte_bpe, roberta_like, word_piece, llama_like])
def test_odd_words_are_found_whole_and_alone(make, word):
    """The word stands between two others that must not be touched, and once more where it must not be found."""
    tokenizer = make([*CORPUS, *(f"the {w} near" for w in ODD_WORDS)])
    kind = "masked" if tokenizer.mask_token else "causal"
    sample = one(tokenizer, kind, sentence(f"the {word} near the {word} are old .", 5, "is", 1))
    assert not isinstance(sample, Dropped), sample
    first, last = sample.ground_truth[0], sample.ground_truth[-1]
    assert sample.ground_truth == list(range(first, last + 1))
    before = [t for t in sample.tokens[:first] if t not in tokenizer.all_special_tokens]
    found, after = sample.tokens[first : last + 1], sample.tokens[last + 1 :]
    assert spelled(tokenizer, before).strip() == "the"
    assert spelled(tokenizer, after).strip().startswith("near")
    assert spelled(tokenizer, found).strip() == (_uncased(word) if make is word_piece else word)


# What is dropped


@pytest.mark.parametrize(
    ("make", "kind", "row", "reason", "detail"),
    [
        (byte_bpe, "causal", sentence("are the keys old ?", 0, "is", 2), "no_text_before_verb", ""),
        (word_piece, "masked", sentence("the keys [MASK] are old", 3, "is", 1), "mask_in_text", "[MASK] is there 2 times"),
        (byte_bpe, "causal", sentence("the keys sparkle .", 2, "sparkles", 1), "verb_tokens", "'sparkle' is "),
        (byte_bpe, "causal", sentence("the keys are .", 2, "sparkles", 1), "verb_tokens", "'sparkles' is "),
        (word_piece, "masked", sentence("the keys sparkle .", 2, "is", 1), "verb_tokens", "'sparkle' is "),
        (word_piece, "masked", sentence("the keys are .", 2, "日", 1), "verb_tokens", "'日' is [UNK]"),
        (word_piece, "masked", sentence("the keys are .", 2, "ARE", 1), "verb_tokens", "'are' and 'ARE' are the same token"),
        (byte_bpe, "causal", sentence("near the dog are the keys .", 3, "is", 5), "subject_after_verb", "subject 5, verb 3"),
        (word_piece, "masked", sentence("the \u0301 near are old", 3, "is", 1), "subject_tokens", "none"),
        (byte_bpe, "causal", sentence("keys are old .", 1, "is", 0), "not_shorter", ""),
    ],
)  # fmt: skip
def test_reasons_to_drop_a_sample(make, kind, row, reason, detail):
    result = one(make(CORPUS), kind, row)
    assert (result.sample_id, result.line, result.reason) == (7, 8, reason)
    assert detail in result.detail


@pytest.mark.parametrize("word", ["keys", "keysdogs"])
def test_a_token_before_the_text_does_not_make_a_sample_less_trivial(word):
    """All that the model reads besides its BOS token is the ground truth, of one token or of several."""
    result = one(llama_like(CORPUS), "causal", sentence(f"{word} are old .", 1, "is", 0))
    assert result.reason == "not_shorter"
    first, second = re.fullmatch(r"(\d+) of (\d+) tokens that are not special", result.detail).groups()
    assert first == second
    assert (int(first) > 1) == (word == "keysdogs")
    kept = one(llama_like(CORPUS), "causal", sentence(f"the {word} are old .", 2, "is", 1))
    assert len(kept.ground_truth) == int(first)


def test_inputs_longer_than_the_model_takes():
    tokenizer = byte_bpe(CORPUS)
    tokenizer.model_max_length = 4
    assert one(tokenizer, "causal", KEYS).reason == "too_long"
    tokenizer.model_max_length = 5
    assert one(tokenizer, "causal", KEYS).sample_id == 7


def test_a_piece_that_joins_two_words_is_no_ground_truth():
    """Some tokenizers have pieces with spaces inside; such a piece is not the subject's own."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"[UNK]": 0, "the keys": 1, " near": 2, " are": 3, " is": 4}
    model = models.Unigram([(piece, -1.0) for piece in vocabulary], unk_id=0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    result = one(tokenizer, "causal", sentence("the keys near are", 3, "is", 1))
    assert (result.reason, result.detail) == ("subject_tokens", "'keys': the keys")
    result = one(tokenizer, "causal", sentence("the keys near are", 3, "is", 2))
    assert result.ground_truth == [1]


def test_a_verb_that_changes_the_tokens_before_it():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = models.Unigram([("[UNK]", -9.0), ("a", -1.0), (" b", -1.0), (" b are", -1.5), (" is", -1.0)], unk_id=0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    result = one(tokenizer, "causal", sentence("a b are", 2, "is", 1))
    assert (result.reason, result.detail) == ("verb_tokens", "'are' changes the tokens around it")


# Folders


@pytest.fixture
def folder(tmp_path):
    """A benchmark of 18 template sentences, by a ground-truth file; no parser needed."""
    chosen = [t for t in templates() if "nsubj" in t.deps]
    (tmp_path / "lgd.tsv").write_text("\n".join(t.lgd for t in chosen))
    lines = ["sample_id\tsubject\tverb_tag\tattractors", *(f"{n}\t1\t{t.tags[5]}\t4" for n, t in enumerate(chosen))]
    (tmp_path / "truth.tsv").write_text("\n".join(lines))
    build(tmp_path / "lgd.tsv", tmp_path / "sva", ground_truth=tmp_path / "truth.tsv", progress=False)
    return tmp_path / "sva"


def test_a_set_is_written_and_read_back(folder):
    tokenizer = byte_bpe(CORPUS)
    result = tokenize(folder, tokenizer, name="tiny", progress=False)
    assert result.path == folder / "tokenized" / "tiny"
    assert result.input == "causal"
    assert len(result) == 18
    loaded = load_tokenized(folder, "tiny")
    assert loaded.samples == result.samples
    columns = load_benchmark(folder).samples.to_pydict()
    rows = [
        Sentence(*row) for row in zip(*(columns[name] for name in Sentence._fields if name in columns), strict=True)
    ]
    assert loaded.samples == list(align(tokenizer, "causal", rows))
    np.testing.assert_array_equal(loaded.lengths, [len(s.input_ids) for s in loaded.samples])
    assert loaded.ground_truths == [s.ground_truth for s in loaded.samples]
    assert loaded.manifest["tokenizer"]["sha256"] == fingerprint(tokenizer)["sha256"]


@pytest.mark.parametrize("name", ["counts.json", "tokenized/bpe/counts.json"])
def test_counts_that_lack_a_number_are_refused(folder, name):
    tokenize(folder, byte_bpe(CORPUS), name="bpe")
    (folder / name).write_text("{}")
    expected = rf"{name} has no 'rows', 'kept', 'steps'.*: remove the file, and run what made it again"
    with pytest.raises(InputError, match=expected):
        load_tokenized(folder, "bpe")


def test_counts_account_for_every_sample(folder):
    with pytest.raises(
        InputError, match=r"tiny: no sample is left of 18 \(verb_tokens 18\); for instance line 1: 'is' is"
    ):
        tokenize(folder, byte_bpe(["x"], size=257), name="tiny")
    assert not (folder / "tokenized" / "tiny").exists()  # so that the name is free for a better one
    tokenizer = byte_bpe([c for c in CORPUS if "farm" not in c], size=300)
    tokenizer.model_max_length = 5
    result = tokenize(folder, tokenizer, name="short", progress=False)
    dropped = result.dropped.to_pylist()
    assert 0 < len(dropped) < 18
    assert {d["reason"] for d in dropped} == {"too_long"}
    assert sorted([d["sample_id"] for d in dropped] + [s.sample_id for s in result.samples]) == list(range(18))
    step = next(s for s in result.counts["steps"] if s["reason"] == "too_long")
    assert (step["dropped"], step["left"]) == (len(dropped), result.counts["kept"])


def test_the_kind_of_input(folder):
    with_mask, without = word_piece(CORPUS), byte_bpe(CORPUS)
    assert tokenize(folder, with_mask, name="a", progress=False).input == "masked"
    assert tokenize(folder, without, name="b", progress=False).input == "causal"
    causal = tokenize(folder, with_mask, name="c", input="causal", progress=False)
    assert causal.input == "causal"
    assert causal.samples[0].tokens == ["[CLS]", "the", "key", "near", "the", "dogs"]
    with pytest.raises(InputError, match="masked input needs a mask token"):
        tokenize(folder, without, name="d", input="masked")
    with pytest.raises(InputError, match="give 'causal' or 'masked'"):
        tokenize(folder, without, name="d", input="both")


@pytest.mark.parametrize(("architecture", "kind"), [("GemmaForCausalLM", "causal"), ("BertForMaskedLM", "masked")])
def test_a_named_tokenizer_goes_by_its_model(folder, tmp_path, architecture, kind):
    """Some causal models have a tokenizer with a mask token."""
    word_piece(CORPUS).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({"model_type": "gemma", "architectures": [architecture]})
    )
    assert tokenize(folder, tmp_path / "model", progress=False).input == kind


def test_a_tokenizer_by_path_and_its_set_by_either_name(folder, tmp_path):
    byte_bpe(CORPUS).save_pretrained(tmp_path / "my-gpt")
    tokenize(folder, str(tmp_path / "my-gpt"), progress=False)
    for name in ("my-gpt", str(tmp_path / "my-gpt")):
        assert load_tokenized(folder, name).name == "my-gpt"
    manifest = (folder / "tokenized" / "my-gpt" / "manifest.json").read_text()
    assert str(tmp_path) not in manifest  # a benchmark that is shared does not tell where it was made


def test_names_of_sets(tmp_path):
    assert set_name("meta-llama/Llama-3.2-1B") == "meta-llama--Llama-3.2-1B"
    assert set_name(str(tmp_path)) == tmp_path.name
    assert set_name("../a b") == "--a_b"


def test_a_finished_set_is_not_done_again(folder, monkeypatch):
    first = tokenize(folder, byte_bpe(CORPUS), name="tiny", progress=False)
    before = {p.name: p.read_bytes() for p in first.path.iterdir()}
    monkeypatch.setattr(tokenized, "align", lambda *_: pytest.fail("tokenised again"))
    second = tokenize(folder, byte_bpe(CORPUS), name="tiny", progress=False)
    assert {p.name: p.read_bytes() for p in second.path.iterdir()} == before


def test_a_set_of_another_tokenizer_is_refused(folder):
    tokenize(folder, byte_bpe(CORPUS), name="tiny", progress=False)
    with pytest.raises(InputError, match=r"made from something else: .*tokenizer\.sha256 is '\w+' there and '\w+' now"):
        tokenize(folder, byte_bpe(CORPUS, size=280), name="tiny", progress=False)


def test_a_set_of_another_benchmark_is_refused(folder, tmp_path):
    tokenize(folder, byte_bpe(CORPUS), name="tiny", progress=False)
    truth = tmp_path / "truth.tsv"
    truth.write_text("\n".join(truth.read_text().split("\n")[:-1]))
    build(tmp_path / "lgd.tsv", tmp_path / "other", ground_truth=truth, progress=False)
    (tmp_path / "other" / "tokenized").mkdir()
    (folder / "tokenized" / "tiny").rename(tmp_path / "other" / "tokenized" / "tiny")
    with pytest.raises(InputError, match=r"benchmark is '\w{64}' there and '\w{64}' now"):
        tokenize(tmp_path / "other", byte_bpe(CORPUS), name="tiny", progress=False)


def test_sets_that_are_not_there(folder):
    with pytest.raises(
        InputError,
        match=r"no tokenised set 'gpt2'. There is none yet. Make it with: lrpx\.benchmark\.tokenize\('.*', 'gpt2'\)",
    ):
        load_tokenized(folder, "gpt2")
    tokenize(folder, byte_bpe(CORPUS), name="gpt3", progress=False)
    with pytest.raises(InputError, match="Did you mean 'gpt3'"):
        load_tokenized(folder, "gpt2")
    with pytest.raises(InputError, match="is not a benchmark: "):
        tokenize(folder.parent, byte_bpe(CORPUS))


def test_the_fingerprint_is_about_ids(folder):
    base = byte_bpe(CORPUS)
    other = byte_bpe(CORPUS)
    other.backend_tokenizer.enable_padding(length=9)
    other.backend_tokenizer.enable_truncation(3)
    other.model_max_length = 9
    other.pad_token = "Ġkeys"
    assert fingerprint(other) == fingerprint(base)
    other.add_tokens(["keys"])
    assert fingerprint(other)["sha256"] != fingerprint(base)["sha256"]


def test_padding_and_truncation_settings_do_not_matter(folder):
    plain, set_up = byte_bpe(CORPUS), byte_bpe(CORPUS)
    set_up.backend_tokenizer.enable_padding(length=40)
    set_up.backend_tokenizer.enable_truncation(3)
    assert one(set_up, "causal", KEYS) == one(plain, "causal", KEYS)


def test_slow_and_missing_tokenizers(folder, tmp_path):
    from transformers import ByT5Tokenizer

    with pytest.raises(InputError, match=r"ByT5Tokenizer is a slow tokenizer.*tokenizer.json"):
        tokenize(folder, ByT5Tokenizer())
    (tmp_path / "empty").mkdir()
    # transformers 5.0 makes a tokenizer without words of an empty folder.
    with pytest.raises(InputError, match=r"'.*empty' cannot be loaded|empty: no sample is left"):
        tokenize(folder, str(tmp_path / "empty"))


def test_reading_needs_no_tokenizer_library(folder, monkeypatch):
    tokenize(folder, byte_bpe(CORPUS), name="tiny", progress=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "spacy", None)
    assert len(load_tokenized(folder, "tiny").samples) == 18


# Real sentences


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "tokenizers").is_dir(), reason="the shared tokenizers are not here")
@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased"])
def test_every_real_subject_comes_back_from_its_tokens(name):
    """4,000 real sentences, every one with two words taken as subject: tokens -> word, without offsets."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / name)
    kind = "causal" if name == "gpt2" else "masked"
    lines = (SHARED / "data" / "lgd_subset.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    rows = []
    for n, line in enumerate(lines):
        _, text, masked, verb, other = line.split("\t")
        words = text.split(" ")
        index = masked.split(" ").index("***mask***")
        longest = max(range(index), key=lambda i: (len(words[i]), not words[i].isascii()))
        rows += [Sentence(n, n + 1, text, index, verb, other, None, s, None, None) for s in (longest, n % index)]
    samples = list(align(tokenizer, kind, rows))
    checked = 0
    for row, sample in zip(rows, samples, strict=True):
        if isinstance(sample, Dropped):
            assert sample.reason in ("verb_tokens", "not_shorter")
            continue
        checked += 1
        word = sample.text.split(" ")[row.subject_index]
        assert sample.ground_truth == list(range(sample.ground_truth[0], sample.ground_truth[-1] + 1))
        ids = [sample.input_ids[i] for i in sample.ground_truth]
        pieces = [sample.tokens[i] for i in sample.ground_truth]
        if kind == "causal":
            assert tokenizer.decode(ids).strip() == word
            lone_space = sample.tokens[sample.ground_truth[0] - 1] == "Ġ"  # stands for no character of the word
            assert row.subject_index == 0 or pieces[0].startswith("Ġ") or lone_space
            assert tokenizer.decode(sample.input_ids) == sample.text
            assert tokenizer.decode([*sample.input_ids, sample.verb_id]) == f"{sample.text} {row.verb}"
        else:
            assert tokenizer.unk_token_id in ids or "".join(p.removeprefix("##") for p in pieces) == _uncased(word)
            assert tokenizer.decode([sample.verb_id]) == _uncased(row.verb)
            assert sample.input_ids[sample.position] == tokenizer.mask_token_id
        assert len(sample.ground_truth) < len(sample.roles) - sample.roles.count("special")
    assert checked > 0.99 * len(rows)


def _uncased(word):
    """What BERT makes of a word: lower case, no accents, no control characters."""
    plain = unicodedata.normalize("NFD", word.lower())
    return "".join(c for c in plain if unicodedata.category(c) != "Mn" and unicodedata.category(c)[0] != "C")


def test_a_bar_is_for_terminals(folder, capsys):
    tokenize(folder, byte_bpe(CORPUS), name="tiny")
    assert capsys.readouterr() == ("", "")
