"""``Explainer.generate``: what is generated, what is explained of it, and what cannot be."""

import numpy as np
import pytest
import tiny
import tiny_tokenizers
import torch
from support import fingerprint, lift_float32_norms
from transformers import BatchEncoding, GenerationConfig, LlamaConfig, LlamaForCausalLM

import lrpx
from lrpx.errors import InputError, LrpxWarning, UnsupportedModelError
from lrpx.results.tokens import Token

PROMPT = "The keys to the"


@pytest.fixture(scope="module")
def explainer():
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = tiny_tokenizers.CHAT
    return lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer, method="attnlrp")


@pytest.fixture(scope="module")
def explained(explainer):
    return explainer.generate(PROMPT, continuation=" cabinet are here")


# Of each token


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "lrp-uniform-gate", "gradient-x-input", "gradient"])
def test_every_row_is_what_a_call_gives(explainer, method):
    g = explainer.generate(PROMPT, continuation=" cabinet are here", method=method)
    assert len(g) == g.generated == 3
    for i, e in enumerate(g):
        end = g.prompt_length + i
        one = explainer(g.token_ids[:end], target=g.token_ids[end], method=method)
        np.testing.assert_allclose(e.relevance, one.relevance, rtol=0, atol=1e-10)
        assert e.value == pytest.approx(one.value, abs=1e-10)
        assert e.residual == (None if one.residual is None else pytest.approx(one.residual, abs=1e-10))
        assert (e.tokens, e.token_ids, e.position) == (one.tokens, one.token_ids, one.position)
        assert (e.target, e.method, e.measures, e.at) == (one.target, one.method, one.measures, one.at)
        assert (e.explains, e.span) == ("", None)
        np.testing.assert_array_equal(g.relevance[i, end:], 0)


@pytest.mark.parametrize("method", ["alti-logit", "alti", "attention-rollout"])
def test_methods_without_a_backward_pass(explainer, method):
    g = explainer.generate(PROMPT, continuation=" cabinet are here", method=method, contrast=7)
    for i, e in enumerate(g):
        end = g.prompt_length + i
        one = explainer(g.token_ids[:end], target=g.token_ids[end], contrast=7, method=method)
        np.testing.assert_allclose(e.relevance, one.relevance, rtol=0, atol=1e-10)
        assert e.value == pytest.approx(one.value, abs=1e-10)
        assert e.measures == one.measures
    if method == "alti-logit":
        assert g.notes == ("The residuals hold what MLPs and biases gave, which alti-logit assigns to no token.",)
        spans = explainer.generate(PROMPT, continuation=" cabinet are here", method=method, contrast=7, spans=[(0, 2)])
        np.testing.assert_allclose(spans[0].relevance, g.span(0, 2).relevance, rtol=0, atol=1e-12)
    else:
        assert g.residuals is None


def test_options_of_the_methods(explainer):
    l2 = explainer.generate(PROMPT, continuation=" are", method="gradient", norm="l2", at="embedding")
    one = explainer(PROMPT, target=" are", method="gradient", norm="l2", at="embedding")
    np.testing.assert_allclose(l2[0].relevance, one.relevance, rtol=1e-10)
    ruled = explainer.generate(PROMPT, continuation=" are", rules="lrp")
    np.testing.assert_allclose(ruled[0].relevance, explainer(PROMPT, target=" are", rules="lrp").relevance, rtol=1e-10)


def test_probabilities_are_the_models_own(explainer, explained):
    with torch.no_grad():
        logits = explainer.model(torch.tensor([explained.token_ids])).logits[0]
    for i, probability in enumerate(explained.probabilities):
        at = explained.prompt_length + i
        assert probability == pytest.approx(float(logits[at - 1].softmax(-1)[explained.token_ids[at]]))


def test_the_text(explained):
    assert explained.tokens == ["The", "Ġkeys", "Ġto", "Ġthe", "Ġcabinet", "Ġare", "Ġhere"]
    assert "".join(unit.text for unit in explained.units) == "The keys to the cabinet are here"
    assert (explained.generated_text, explained.text) == (" cabinet are here", PROMPT)
    assert explained[0].text == PROMPT
    assert explained[1].text is None
    assert "attnlrp of ' cabinet are here': 3 rows, 7 tokens" in repr(explained)


def test_the_model_is_left_as_it_was(explainer):
    before = fingerprint(explainer.model)
    explainer.generate(PROMPT, max_new_tokens=3, contrast="mean", hops=1)
    assert fingerprint(explainer.model) == before


def test_inside_inference_mode(explainer, explained):
    with torch.inference_mode():
        g = explainer.generate(PROMPT, continuation=" cabinet are here", spans=[(0, 2)], contrast="mean")
    np.testing.assert_allclose(g.relevance[0, :5] == 0, False)
    with torch.inference_mode():
        again = explainer.generate(PROMPT, continuation=" cabinet are here")
    np.testing.assert_array_equal(again.relevance, explained.relevance)


# Generation


def test_the_model_goes_on_greedily(explainer):
    g = explainer.generate(PROMPT, max_new_tokens=4)
    ids = list(g.token_ids[: g.prompt_length])
    for _ in range(4):
        with torch.no_grad():
            ids.append(int(explainer.model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert g.token_ids == ids


def test_a_configuration_of_ones_own(explainer):
    torch.manual_seed(0)
    settings = {"do_sample": True, "max_new_tokens": 5, "temperature": 5.0}
    sampled = [explainer.generate(PROMPT, generation_config=settings).token_ids for _ in range(3)]
    assert len(set(map(tuple, sampled))) > 1
    config = GenerationConfig(do_sample=False)
    g = explainer.generate(PROMPT, max_new_tokens=2, generation_config=config)
    assert g.token_ids == explainer.generate(PROMPT, max_new_tokens=2).token_ids
    assert config.max_new_tokens is None  # not changed


def test_generation_stops_at_the_end_token(explainer):
    second = explainer.generate(PROMPT, max_new_tokens=2).token_ids[-1]
    g = explainer.generate(PROMPT, max_new_tokens=6, generation_config={"eos_token_id": second})
    assert g.token_ids[-1] == second
    assert g.generated <= 2


def test_chat_messages_use_the_template(explainer):
    g = explainer.generate([{"role": "user", "content": "The keys"}], continuation=" are")
    text = "".join(unit.text for unit in g.units)
    assert text == "<user>The keys\n<assistant> are"


def test_ids_without_a_tokenizer(explainer, explained):
    plain = lrpx.Explainer(explainer.model, None)
    ids = explained.token_ids
    g = plain.generate(ids[:4], continuation=ids[4:])
    np.testing.assert_array_equal(g.relevance, explained.relevance)
    g = plain.generate(torch.tensor(ids[:4]), continuation=np.array(ids[4:]))
    np.testing.assert_array_equal(g.relevance, explained.relevance)


# Spans, weights, contrasts, objectives


def test_a_span_is_the_sum_of_its_rows_and_one_backward_pass(explainer, explained):
    weights = [0.5, -2.0, 3.0]
    g = explainer.generate(PROMPT, continuation=" cabinet are here", spans=[(0, 3), (1, 3)], weights=weights)
    for i, (start, stop) in enumerate([(0, 3), (1, 3)]):
        e = explained.span(start, stop, weights[start:stop])
        np.testing.assert_allclose(g[i].relevance, e.relevance, rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            e.relevance, np.array(weights)[start:stop] @ explained.relevance[start:stop], rtol=0, atol=1e-14
        )
        assert g[i].value == pytest.approx(e.value, abs=1e-12)
        assert g[i].residual == pytest.approx(e.residual, abs=1e-12)
    assert g.probabilities is None
    assert not g.per_token


@pytest.mark.parametrize(
    "asked", [{"objective": "logprob"}, {"contrast": "mean"}, {"contrast": "top3"}, {"contrast": 5}]
)
def test_spans_of_other_scores(explainer, asked):
    rows = explainer.generate(PROMPT, continuation=" cabinet are here", **asked)
    one = explainer.generate(PROMPT, continuation=" cabinet are here", spans=[(0, 2)], **asked)
    np.testing.assert_allclose(one[0].relevance, rows.span(0, 2).relevance, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pair", [(0, 2), [0, 2], (0, -1)])
def test_a_pair_of_integers_is_one_span(explainer, pair):
    [one] = explainer.generate(PROMPT, continuation=" cabinet are here", spans=pair)
    [listed] = explainer.generate(PROMPT, continuation=" cabinet are here", spans=[pair])
    assert one.to_dict() == listed.to_dict()


def test_spans_of_a_short_text_with_inputs_beside_its_ids(explainer):
    """The prompt's token types go on over what is read, which is all but the last token."""
    prompt = BatchEncoding({"input_ids": [7], "attention_mask": [1], "token_type_ids": [4]})
    [e] = explainer.generate(prompt, continuation=[10, 11], spans=[(0, 2)])
    first, second = explainer.generate(prompt, continuation=[10, 11])
    np.testing.assert_allclose(e.relevance, np.pad(first.relevance, (0, 1)) + second.relevance, atol=1e-5)
    assert first.value == pytest.approx(explainer(prompt, target=10).value, rel=1e-5)


def test_scores(explainer):
    def values(**asked):
        return explainer.generate(PROMPT, continuation=" cabinet are here", **asked).values

    with torch.no_grad():
        ids = explainer.generate(PROMPT, continuation=" cabinet are here").token_ids
        logits = explainer.model(torch.tensor([ids])).logits[0, 3:6]
    chosen = logits.gather(1, torch.tensor(ids[4:])[:, None])[:, 0]
    np.testing.assert_allclose(values(), chosen, rtol=1e-12)
    np.testing.assert_allclose(values(objective="logprob"), chosen - logits.logsumexp(1), rtol=1e-12)
    np.testing.assert_allclose(values(contrast="mean"), chosen - logits.mean(1), rtol=1e-12)
    np.testing.assert_allclose(values(contrast="top2"), chosen - logits.topk(2).values.mean(1), rtol=1e-10)
    others = [tokens(explainer, " is"), 7, tokens(explainer, " to")]
    np.testing.assert_allclose(values(contrast=[" is", 7, " to"]), chosen - logits[[0, 1, 2], others], rtol=1e-12)


def tokens(explainer, text):
    [token] = explainer.tokenizer(text)["input_ids"]
    return token


def test_headers(explainer, explained):
    assert repr(explained[0]).startswith("<Explanation attnlrp of ' cabinet': value")
    assert "of sum of the logits of ' cabinet are'" in repr(explained.span(0, 2))
    mean = explainer.generate(PROMPT, continuation=" are here", contrast="mean")
    assert "of logit minus mean logit, of ' are'" in repr(mean[0])
    assert "of sum of logits minus mean logit, of ' are here'" in repr(mean.span(0))
    top = explainer.generate(PROMPT, continuation=" are", contrast="top10")
    assert "of logit minus mean of the 10 largest logits, of ' are'" in repr(top[0])
    log = explainer.generate(PROMPT, continuation=" are", objective="logprob")
    assert "log-probability of ' are'" in repr(log[0])
    pair = explainer.generate(PROMPT, continuation=" are here", contrast=[" is", 5])
    assert pair[0].contrast == Token(tokens(explainer, " is"), "Ġis", " is")
    assert pair.span(0).contrast.text.startswith("Ġis")


def test_maps_of_spans_are_marked_at_all_their_positions(explained):
    e = explained.span(1, 3)
    assert (e.span, e.position, e.target.text) == ((4, 6), 5, "ĠareĠhere")
    page = e.to_html()
    assert "the logits at positions 4 to 5 are explained" in page
    assert page.count('explained" style') == 2
    assert "sum of the logits of" in page


# Hops


def test_hops_by_passes_are_hops_by_rows(explainer):
    rows = explainer.generate(PROMPT, continuation=" cabinet are here", contrast=20)
    for hops in (1, 2, 5):
        by_passes = explainer.generate(PROMPT, continuation=" cabinet are here", contrast=20, spans=[(0, 3)], hops=hops)
        by_rows = rows.span(0, 3, hops=hops)
        np.testing.assert_allclose(by_passes[0].relevance, by_rows.relevance, rtol=0, atol=1e-9)
        assert by_passes[0].notes == by_rows.notes
        assert by_passes.hops == hops
    assert explainer.generate(PROMPT, continuation=" are", hops=1).contrast == "mean"


def test_without_biases_all_relevance_arrives_at_the_prompt():
    """LRP conserves relevance, and what the model chose greedily has a positive score: nothing is lost or kept on the way."""
    model = tiny.build("causal:llama")
    explainer = lrpx.Explainer(model, None, method="lrp")
    with lift_float32_norms(model):
        prompt = tiny.inputs(model, n_tokens=6)["input_ids"][0].tolist()
        settings = {"max_new_tokens": 4, "generation_config": {"eos_token_id": None}, "contrast": "mean"}
        direct = explainer.generate(prompt, **settings, spans=[(3, 4)])
        traced = [explainer.generate(prompt, **settings, spans=[(3, 4)], hops=hops) for hops in (1, 2, 3)]
    assert np.abs(direct.relevance[0, 6:]).max() > 1e-3 * np.abs(direct.relevance).max()
    for hops, g in enumerate(traced, 1):
        assert g.relevance.sum() == pytest.approx(float(g.values[0]))
        assert g.residuals[0] == pytest.approx(0, abs=1e-9)
        np.testing.assert_allclose(g.relevance[0, 9 - hops :], 0, atol=1e-12)  # no later token holds any of it
    assert traced[2].relevance[0, :6].sum() == pytest.approx(float(direct.values[0]))


# What cannot be used

REFUSED = {
    "nothing to generate": ({}, "max_new_tokens=20"),
    "both": ({"max_new_tokens": 2, "continuation": " are"}, "max_new_tokens=2 and continuation=' are' are both given"),
    "a configuration for nothing": ({"continuation": " are", "generation_config": {}}, "nothing is generated"),
    "no tokens": ({"max_new_tokens": 0}, "max_new_tokens=0: give a number of tokens from 1"),
    "no number": ({"max_new_tokens": True}, "max_new_tokens=True"),
    "an empty continuation": ({"continuation": ""}, "continuation='' is empty"),
    "no ids": ({"continuation": []}, r"continuation=\[\] is empty"),
    "a strange continuation": ({"continuation": 3.5}, "continuation=3.5 is float"),
    "an id too large": ({"continuation": [4, 100000]}, "continuation holds 100000, outside the vocabulary"),
    "another configuration": ({"max_new_tokens": 1, "generation_config": 3}, "generation_config is int"),
    "several": ({"generation_config": {"max_new_tokens": 2, "num_return_sequences": 2, "do_sample": True}}, "one continuation"),
    "too long": ({"max_new_tokens": 61}, "more than the 64 tokens that GPT2LMHeadModel can read"),
    "too long a text": ({"continuation": [5] * 70}, "the text has 73 tokens, 9 more than the 64"),
    "objective": ({"continuation": " are", "objective": "p"}, "objective='p': give \"logit\" or \"logprob\""),
    "hops": ({"continuation": " are", "hops": -1}, "hops=-1: give a number from 0"),
    "hops of a norm": ({"continuation": " are", "hops": 1, "method": "gradient"}, "does not decompose"),
    "a mean of other methods": (
        {"continuation": " are", "method": "alti-logit", "contrast": "mean"}, "explains logits of tokens"
    ),
    "probabilities of other methods": (
        {"continuation": " are", "method": "alti-logit", "objective": "logprob"}, "explains logits of tokens"
    ),
    "spans of mixtures": ({"continuation": " are", "method": "alti", "spans": [(0, 1)]}, "spans have no map"),
    "place": ({"continuation": " are", "at": "transformer.h.0"}, 'at "input" or at "embedding"'),
    "norm": ({"continuation": " are", "method": "gradient", "norm": "l3"}, "unknown norm 'l3'"),
    "a keyword": ({"max_tokens": 3}, "unknown option 'max_tokens'. Did you mean 'max_new_tokens'"),
    "span outside": ({"continuation": " are", "spans": [(0, 2)]}, "goes beyond the generated tokens, of which there are 1"),
    "empty span": ({"continuation": " are here", "spans": [(1, 1)]}, "is empty or .* at most 2"),
    "no spans": ({"continuation": " are", "spans": []}, r"spans=\[\]: no span"),
    "no span": ({"continuation": " are", "spans": [3]}, "the span 3: give"),
    "a number for spans": ({"continuation": " are", "spans": 3}, r"spans=3: no span. Give some, such as spans=\[\(0, 1\)\]"),
    "weights": ({"continuation": " are", "spans": [(0, 1)], "weights": [1, 2]}, "give 1 number,"),
    "weights of rows": ({"continuation": " are", "weights": [1]}, "give spans="),
    "contrasts": ({"continuation": " are here", "contrast": [1]}, "1 contrasts for 2 generated tokens"),
    "itself": ({"continuation": " are", "contrast": " are"}, "is generated token 0 itself"),
    "no contrast": ({"continuation": " are here", "contrast": [4, None]}, "a contrast is None"),
    "more than all": ({"continuation": " are", "contrast": "top100000"}, "the vocabulary has"),
    "two tokens": ({"continuation": " are", "contrast": " xyz"}, "contrast=' xyz' is 4 tokens here"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_used_is_said(explainer, what):
    asked, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        explainer.generate(PROMPT, **asked)


@pytest.mark.parametrize("prompt", ["", "  ", [], None])
def test_an_empty_prompt(explainer, prompt):
    with pytest.raises(InputError, match=r"empty|no prompt|\[\]"):
        explainer.generate(prompt, continuation=" are")


def test_several_prompts(explainer):
    with pytest.raises(InputError, match=r"2 prompts: generate\(\) takes one"):
        explainer.generate([PROMPT, PROMPT], max_new_tokens=2)


def test_a_continuation_that_changes_the_prompt(explainer):
    with pytest.raises(InputError, match=r"the text ends with ' ca', and with the .* becomes ' cabinet', ' are'"):
        explainer.generate("The ca", continuation="binet are")
    explainer.generate("The", continuation=" cabinet are")


def test_a_masked_model():
    tokenizer = tiny_tokenizers.word_piece()
    explainer = lrpx.Explainer(tiny_tokenizers.bert(tokenizer), tokenizer)
    with pytest.raises(InputError, match="fills in masks and does not go on with a text"):
        explainer.generate("The keys", max_new_tokens=2)


def test_a_model_in_training_mode(explainer):
    explainer.model.train()
    try:
        with pytest.raises(UnsupportedModelError, match="training mode"):
            explainer.generate(PROMPT, continuation=" are")
    finally:
        explainer.model.eval()


# Long texts


def llama(limit, rope=None):
    """A Llama without a table of positions, made for texts of ``limit`` tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=limit, rope_parameters=rope, eos_token_id=None, initializer_range=0.2,
        )  # fmt: skip
        return lrpx.Explainer(LlamaForCausalLM(config).double().eval())


def rotated(kind):
    """One whose rotations change with the length of the text beyond 8 tokens."""
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 8}
    return llama(8, rope)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotations_that_depend_on_the_length_of_the_text(kind):
    """Within the original length rows are those of calls for the beginnings. Beyond it they are not, and a note says so."""
    explainer, message = rotated(kind), "depends on how long the text is, beyond 8 tokens"
    ids = [5 + i for i in range(12)]
    one = explainer(ids[:5], target=ids[5])
    within = explainer.generate(ids[:5], continuation=ids[5:9])
    assert within.notes == ()
    np.testing.assert_allclose(within[0].relevance, one.relevance, rtol=0, atol=1e-12)
    with pytest.warns(LrpxWarning, match=message):
        beyond = explainer.generate(ids[:5], continuation=ids[5:])
    assert message in beyond.notes[0]
    assert np.abs(beyond[0].relevance - one.relevance).max() > 1e-6 * np.abs(one.relevance).max()
    several = explainer(ids[:5], target=[ids[5:]])[0]
    assert any(message in note for note in several.notes)


def test_not_more_than_the_model_was_made_for():
    """A model without a table of positions would go on for ever."""
    explainer = llama(32)
    message = (
        "max_new_tokens=99999 are more than the 32 tokens that LlamaForCausalLM was made for, by its configuration"
    )
    with pytest.raises(InputError, match=message):
        explainer.generate([5, 6, 7], max_new_tokens=99999)
    with pytest.raises(InputError, match="max_new_tokens=29 is the most"):
        explainer.generate([5, 6, 7], max_new_tokens=30)
    assert explainer.generate([5, 6, 7], max_new_tokens=29).generated <= 29
