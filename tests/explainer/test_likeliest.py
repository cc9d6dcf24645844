"""``Explainer.likeliest`` tells what the model's own logits say, wherever a text is asked about."""

import numpy as np
import pytest
import tiny
import tiny_heads
import tiny_tokenizers
import torch

import lrpx

TEXT = tiny_tokenizers.TEXT


@pytest.fixture(scope="module")
def causal():
    tokenizer = tiny_tokenizers.byte_level()
    return lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)


def compare(found, logits, count):
    best = logits.double().softmax(-1).topk(count)
    assert [token.id for token, _ in found] == best.indices.tolist()
    np.testing.assert_allclose([p for _, p in found], best.values, rtol=1e-9)


@pytest.mark.parametrize("position", [None, 1])
def test_a_causal_model(causal, position):
    ids = torch.tensor([causal.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        logits = causal.model(ids).logits[0, -1 if position is None else position]
    found = causal.likeliest(TEXT, 7, position=position)
    compare(found, logits, 7)
    e = causal(TEXT, position=position, target=found[1].token.id)
    assert (e.target.shown, e.target_probability) == (
        found[1].token.shown,
        pytest.approx(found[1].probability, rel=1e-9),
    )
    assert [token for token, _ in e.top] == [token for token, _ in found[:5]]


def test_a_masked_model_at_its_mask():
    tokenizer = tiny_tokenizers.word_piece()
    explainer = lrpx.Explainer(tiny_tokenizers.bert(tokenizer), tokenizer)
    ids = torch.tensor([tokenizer("The keys [MASK] here")["input_ids"]])
    with torch.no_grad():
        logits = explainer.model(ids).logits[0, ids[0].tolist().index(tokenizer.mask_token_id)]
    compare(explainer.likeliest("The keys [MASK] here", 4), logits, 4)


def test_an_encoder_decoder_model_after_its_prefix():
    model = tiny.build("text2text:t5")
    source, prefix = [5, 6, 7, 1], [0, 9, 12]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([prefix])).logits[0, -1]
    compare(lrpx.Explainer(model).likeliest(source, 5, target_prefix=prefix), logits, 5)


def test_all_of_a_small_vocabulary(causal):
    found = causal.likeliest(TEXT, 10**6)
    assert len(found) == len(causal.tokenizer)
    assert sum(p for _, p in found) == pytest.approx(1)


def test_what_is_refused(causal):
    for count in (0, -1, True, 1.5):
        with pytest.raises(lrpx.InputError, match="give a number of tokens from 1"):
            causal.likeliest(TEXT, count)
    with pytest.raises(lrpx.InputError, match="2 texts: likeliest\\(\\) takes one"):
        causal.likeliest([TEXT, TEXT])
    with pytest.raises(lrpx.InputError, match="position"):
        causal.likeliest(TEXT, position=99)
    family = next(family for family in tiny_heads.of("text-classification") if "bert" in family)
    with pytest.raises(lrpx.InputError, match=r"likeliest\(\) is for language models"):
        lrpx.Explainer(tiny_heads.build(family)).likeliest([5, 6])
