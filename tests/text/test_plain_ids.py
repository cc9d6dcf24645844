"""Lists of ids that need no closer look give what reading them one by one gives, and all others are looked at."""

import random
import warnings

import numpy as np
import pytest
import tiny
import tiny_tokenizers

import lrpx
from lrpx.errors import InputError
from lrpx.explainer.texts import Texts
from lrpx.models.signature import ModelSignature
from lrpx.text import plain_ids

COUNT = 60


def model_and_tokenizer(kind):
    if kind == "causal":
        return tiny.build("causal:llama"), None
    if kind == "masked":
        return tiny.build("masked:bert"), None
    if kind == "short context":
        return tiny.build("causal:gpt2"), None
    if kind == "mask token":
        tokenizer = tiny_tokenizers.word_piece()
        return tiny_tokenizers.bert(tokenizer), tokenizer
    tokenizer = tiny_tokenizers.byte_level(("<|endoftext|>", "[MASK]"))
    tokenizer.pad_token = tokenizer.bos_token = tokenizer.eos_token = "<|endoftext|>"
    tokenizer.mask_token = "[MASK]"
    return tiny_tokenizers.gpt2(tokenizer), tokenizer


KINDS = ["causal", "masked", "short context", "mask token", "padding is a special token"]


def texts_for(model, tokenizer, seed):
    """Random lists of ids, some of them with every kind of oddity that there is a sentence for."""
    draw, size = random.Random(seed), ModelSignature.of(model).vocabulary
    special = getattr(tokenizer, "all_special_ids", None) or [0, 1, 2]
    context = ModelSignature.of(model).context or 20

    def ids(count):
        return [draw.randrange(3, min(size, len(tokenizer or range(size)))) for _ in range(count)]

    odd = [
        list,
        lambda: [-1, *ids(2)],
        lambda: [*ids(2), size],
        lambda: [*ids(2), size - 1],
        lambda: ids(context + 1),
        lambda: [draw.choice(special), *ids(3)],
        lambda: [*ids(3), draw.choice(special)],
        lambda: [*[draw.choice(special)] * 2, *ids(2)],
        lambda: [*ids(2), *[draw.choice(special)] * 2],
        lambda: [*ids(1), draw.choice(special), *ids(1)],
        lambda: [special[0]] * 3,
        lambda: ids(1) * 3,
        lambda: ids(1),
    ]
    return [draw.choice(odd)() if draw.random() < 0.3 else ids(draw.randrange(1, 9)) for _ in range(COUNT)]


def asked_for(model, texts, seed):
    draw, size = random.Random(seed + 100), ModelSignature.of(model).vocabulary

    def usually(usual, odd):
        return odd if draw.random() < 0.1 else usual

    targets = [usually(draw.randrange(size), draw.choice([5, size, -1])) for _ in texts]
    contrasts = [usually(draw.randrange(size), draw.choice([5, size, -1])) for _ in texts]
    positions = [usually(-1, draw.choice([0, len(t) - 1, len(t), -len(t), -len(t) - 1])) for t in texts]
    asked = {"target": targets, "contrast": contrasts, "position": positions, "explains": None}
    for name in ("target", "contrast", "position"):
        if draw.random() < 0.3:
            asked[name] = None
    return asked


def read(monkeypatch, few, model, tokenizer, texts, asked):
    monkeypatch.setattr(plain_ids, "FEW", few)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = Texts(model, tokenizer, texts, asked, collect=True)
    return found, [str(one.message) for one in said]


@pytest.mark.parametrize("kind", KINDS)
def test_as_one_by_one(monkeypatch, kind):
    model, tokenizer = model_and_tokenizer(kind)
    plain = objected = 0
    for seed in range(12):
        texts = texts_for(model, tokenizer, seed)
        asked = asked_for(model, texts, seed)
        slow, slow_said = read(monkeypatch, 10**9, model, tokenizer, texts, asked)
        fast, fast_said = read(monkeypatch, 1, model, tokenizer, texts, asked)
        assert list(fast.items.items()) == list(slow.items.items())  # also in the order that batches follow from
        assert {i: fast.encoded[i] for i in slow.encoded} == dict(slow.encoded)
        assert {i: (type(e), str(e)) for i, e in fast.failed.items()} == {
            i: (type(e), str(e)) for i, e in slow.failed.items()
        }
        assert fast_said == slow_said
        plain += int(fast._plain.which.sum())
        objected += len(fast.failed)
    assert plain > COUNT
    assert objected > COUNT // 2


def test_most_of_a_usual_call_is_plain(monkeypatch):
    """Otherwise nothing would be gained, and nothing else here would show it."""
    model = tiny.build("causal:llama")
    texts = [[5, 7 + n % 9, 6] for n in range(40)]
    asked = {"target": 3, "contrast": 4, "position": None, "explains": None}
    asked = {name: value and [value] * 40 for name, value in asked.items()}
    found = Texts(model, None, texts, asked, collect=False)
    assert found._plain.which.all()
    assert len(dict(found.encoded)) == 0  # not read yet
    assert found.encoded[3].token_ids == (5, 10, 6)


@pytest.mark.parametrize("odd", [True, 2.0, "7", None, [3], 2**70, np.int64(4)])
def test_what_is_no_id_is_left_to_a_closer_look(odd):
    model = tiny.build("causal:llama")
    texts = [[5, 7, 6]] * 30 + [[5, odd]]
    if not isinstance(odd, np.int64):
        with pytest.raises(InputError, match=r"text\[30\]|not a token id|token id"):
            lrpx.explain(model, None, texts, target=3, contrast=4)
        return
    assert lrpx.explain(model, None, texts, target=3, contrast=4)[30].token_ids == [5, 4]


def test_the_first_text_that_cannot_be_used_is_named_among_many():
    model = tiny.build("causal:llama")
    texts = [[5, 7, 6] for _ in range(50)]
    texts[31] = [5, 10**6]
    texts[40] = [5, -2]
    with pytest.raises(InputError, match=r"^text\[40\]: token id -2 is negative"):  # tokens first, of all texts
        lrpx.explain(model, None, texts, target=3, contrast=4)
    texts[40] = [5, 7]
    with pytest.raises(InputError, match=r"^text\[31\]: token id 1000000 is outside the model's vocabulary"):
        lrpx.explain(model, None, texts, target=3, contrast=4)
    texts[31] = [5, 7]
    with pytest.raises(InputError, match=r"^text\[9\]: target=-1 is outside the vocabulary"):
        lrpx.explain(model, None, texts, target=[3] * 9 + [-1] + [3] * 40, contrast=4)
    with pytest.raises(InputError, match=r"^text\[0\]: target 3 and contrast 3 are the same token"):
        lrpx.explain(model, None, texts, target=3, contrast=3)
    found = lrpx.explain(model, None, texts, target=[3] * 9 + [4] + [3] * 40, contrast=4, errors="collect")
    assert [failure.index for failure in found.failures] == [9]
    assert len(found) == 49
