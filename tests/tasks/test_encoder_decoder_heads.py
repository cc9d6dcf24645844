"""Encoder-decoder classifiers: both stacks read the text, and a token's relevance is what it has in both."""

import threading

import numpy as np
import pytest
import tiny_heads
import torch
from support import fingerprint
from tiny_classifiers import tokenizer

import lrpx
from lrpx.errors import UnsupportedModelError
from lrpx.models.shifted import decoder_reads

FAMILIES = ["text-classification:bart", "text-classification:mbart", "text-classification:t5"]
IDS = (11, 12, 13, 14, 15)


def with_end(model):
    return [*IDS, model.config.eos_token_id]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_value_is_the_models_own(family):
    """Without a word about the decoder, as users of transformers call it."""
    model = tiny_heads.build(family)
    e = lrpx.explain(model, None, with_end(model), target=2, contrast=0)
    with torch.no_grad():
        logits = model(torch.tensor([with_end(model)])).logits[0]
    assert e.value == pytest.approx(float(logits[2] - logits[0]))
    assert e.tokens == [str(i) for i in with_end(model)]
    assert e.position == 5
    assert e.residual == pytest.approx(e.value - e.relevance.sum() - e.components["the decoder's start token"])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_x_input_is_what_autograd_gives(family):
    """Both embeddings are leaves; the decoder's tokens are those of the text, one place later."""
    model = tiny_heads.build(family)
    ids, leaves, hooks = torch.tensor([with_end(model)]), [], []

    def leaf(_, __, output):
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    for stack in (model.get_encoder(), model.get_decoder()):
        hooks.append(stack.get_input_embeddings().register_forward_hook(leaf))
    if model.get_encoder().get_input_embeddings() is model.get_decoder().get_input_embeddings():
        hooks.pop().remove()
    logits = model(ids).logits[0]
    gradients = torch.autograd.grad(logits[1], leaves)
    for hook in hooks:
        hook.remove()
    encoder, decoder = ((x * g).sum(-1)[0].detach().numpy() for x, g in zip(leaves, gradients, strict=True))
    e = lrpx.explain(model, None, with_end(model), target=1, method="gradient-x-input", at="embedding")
    np.testing.assert_allclose(e.relevance[:-1], encoder[:-1] + decoder[1:], rtol=1e-6, atol=1e-9)
    assert e.relevance[-1] == pytest.approx(encoder[-1])
    assert e.components["the decoder's start token"] == pytest.approx(decoder[0], abs=1e-9)
    assert np.abs(decoder[1:]).max() > 1e-3 * np.abs(encoder).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_as_one_by_one(family):
    explainer = lrpx.Explainer(tiny_heads.build(family))
    end = explainer.model.config.eos_token_id
    texts = [with_end(explainer.model), [21, 22, end], [31, end, 33, 34, 35, end]]  # the last with two end tokens
    for ours, text in zip(explainer(texts, target=1), texts, strict=True):
        theirs = explainer(text, target=1)
        np.testing.assert_allclose(ours.relevance, theirs.relevance, atol=1e-6 * np.abs(theirs.relevance).max())


@pytest.mark.filterwarnings("ignore:the tokenizer has 29 tokens")  # fewer than the tiny model, which needs no more
def test_an_answer():
    model = tiny_heads.build("question-answering:bart")
    model.config.eos_token_id = 3  # [SEP]
    explainer = lrpx.Explainer(model, tokenizer())
    question, context = "who lives in berlin ?", "wolfgang lives in berlin and paris"
    e = explainer(context, question=question, target="berlin")
    ids = explainer.tokenizer(question, context, return_tensors="pt")
    with torch.no_grad():
        output = model(ids["input_ids"], attention_mask=ids["attention_mask"])
    assert e.value == pytest.approx(float(output.start_logits[0, e.position] + output.end_logits[0, e.position]))
    assert e.tokens[e.position] == "berlin"
    assert [segment.name for segment in e.segments] == ["question", "context"]


def test_asking_what_the_decoder_reads_leaves_the_model_and_other_threads_alone():
    model = tiny_heads.build("text-classification:bart")
    before, seen = fingerprint(model), []

    def elsewhere(*_):
        def run():
            seen.append(model.get_decoder()(input_ids=torch.tensor([[11, 12]])).last_hidden_state.shape)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    hook = model.get_encoder().register_forward_hook(elsewhere)
    assert decoder_reads(model, with_end(model)) == (2, *IDS)
    hook.remove()
    assert seen == [(1, 2, 32)]
    assert fingerprint(model) == before


def test_a_decoder_that_reads_something_else_is_refused():
    model = tiny_heads.build("text-classification:bart")
    decoder = model.get_decoder()
    hook = decoder.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "input_ids": kwargs["input_ids"].flip(1)}), with_kwargs=True
    )
    with pytest.raises(UnsupportedModelError, match="gives its decoder other tokens than those of the text"):
        lrpx.explain(model, None, with_end(model))
    hook.remove()
