"""Encoder-decoder models as users call them: sources, targets, generated text and what is refused."""

import json
from functools import partial

import numpy as np
import pytest
import tiny_tokenizers
import torch
from support import fingerprint
from tiny_tokenizers import TEXT
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

import lrpx
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.tasks.text2text import start_tokens

EOS, PAD = 2, 1

# The models are random, so another spelling is often the likelier one.
pytestmark = pytest.mark.filterwarnings("ignore:.*far less probable here:lrpx.errors.LrpxWarning")


def made(kind="bart", dtype=torch.float64, **settings):
    """A random model with a tokenizer like BART's: ``<s> text </s>``, a space belongs to the word after it."""
    tokenizer = tiny_tokenizers.roberta()
    common = {"vocab_size": len(tokenizer), "pad_token_id": PAD, "eos_token_id": EOS, "d_model": 32}
    torch.manual_seed(0)
    if kind == "bart":
        stack = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
        sizes = {f"{name}_{key}": n for name in ("encoder", "decoder") for key, n in stack.items()}
        config = BartConfig(**common, **sizes, max_position_embeddings=24, decoder_start_token_id=EOS)
        model = BartForConditionalGeneration(config)
    else:
        sizes = {"num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48}
        model = T5ForConditionalGeneration(T5Config(**common, **sizes, decoder_start_token_id=PAD))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model.to(dtype).eval(), tokenizer


@pytest.fixture(scope="module")
def bart():
    model, tokenizer = made()
    return lrpx.Explainer(model, tokenizer)


@pytest.fixture(scope="module")
def t5():
    model, tokenizer = made("t5")
    return lrpx.Explainer(model, tokenizer)


def logits(explainer, e):
    """The model's own logits after what the explanation says was read."""
    end = e.segments[0].end
    with torch.no_grad():
        ids = torch.tensor([e.token_ids[:end]]), torch.tensor([e.token_ids[end:]])
        return explainer.model(input_ids=ids[0], decoder_input_ids=ids[1], use_cache=False).logits[0]


@pytest.mark.parametrize("which", ["bart", "t5"])
def test_a_token(which, request):
    explainer = request.getfixturevalue(which)
    before = fingerprint(explainer.model)
    e = explainer(TEXT, target="The", contrast="key", method="lrp")
    start = EOS if which == "bart" else PAD
    assert e.token_ids == [*explainer.tokenizer(TEXT)["input_ids"], start]
    assert e.segments == (("source", 0, 7), ("target", 7, 8))
    assert (e.position, e.text, e.span) == (7, TEXT, None)
    own = logits(explainer, e)[-1]
    ids = explainer.tokenizer(["The", "key"], add_special_tokens=False)["input_ids"]
    assert e.value == pytest.approx(float(own[ids[0][0]] - own[ids[1][0]]))
    assert e.target_probability == pytest.approx(float(own.softmax(0)[ids[0][0]]))
    assert fingerprint(explainer.model) == before
    reverse = explainer(TEXT, target="key", contrast="The", method="lrp")
    np.testing.assert_allclose(reverse.relevance, -e.relevance, atol=1e-12)
    top = explainer(TEXT)
    assert top.target.id == int(own.argmax())
    assert type(top).from_dict(json.loads(json.dumps(top.to_dict()))).segments == top.segments


@pytest.mark.parametrize("objective", ["logit", "logprob"])
def test_a_target_of_several_tokens(bart, objective):
    """Its relevance is that of its tokens, each explained after those before it, over all tokens that were read."""
    e = bart(TEXT, target="The key is", objective=objective)
    assert e.tokens[7:] == ["</s>", "The", "Ġkey"]
    assert (e.position, e.span) == (7, (7, 10))
    own = logits(bart, e)
    scores = own if objective == "logit" else own.log_softmax(-1)
    ids = bart.tokenizer("The key is", add_special_tokens=False)["input_ids"]
    assert e.value == pytest.approx(float(scores[range(3), ids].sum()))
    assert e.target_probability == pytest.approx(float(own.softmax(-1)[range(3), ids].prod()))
    parts = np.zeros(10)
    for end in range(3):
        one = bart(TEXT, target=ids[end], target_prefix=[EOS, *ids[:end]], objective=objective)
        parts[: len(one.relevance)] += one.relevance
    np.testing.assert_allclose(e.relevance, parts, atol=1e-9)
    assert not e.components
    assert e.residual == pytest.approx(e.value - e.relevance.sum())


def test_a_contrast_of_another_length(bart):
    e = bart(TEXT, target="The key", contrast="is", objective="logprob")
    one, other = (bart(TEXT, target=t, objective="logprob") for t in ("The key", "is"))
    expected = one.relevance.copy()
    expected[: len(other.relevance)] -= other.relevance
    np.testing.assert_allclose(e.relevance, expected, atol=1e-9)
    assert e.value == pytest.approx(one.value - other.value)


def test_a_prefix_as_text_and_as_ids(bart):
    ids = bart.tokenizer("The key", add_special_tokens=False)["input_ids"]
    as_text = bart(TEXT, target=" is", target_prefix="The key")
    as_ids = bart(TEXT, target=" is", target_prefix=[EOS, *ids])
    assert as_text.token_ids == as_ids.token_ids
    np.testing.assert_array_equal(as_text.relevance, as_ids.relevance)
    assert as_text.target.text == "Ġis"
    assert not any("start token" in note for note in (*as_text.notes, *as_ids.notes))
    both = bart([TEXT, "The key"], target=" is", target_prefix=["The key", "The"])
    np.testing.assert_allclose(both[0].relevance, as_text.relevance, atol=1e-9)
    assert both[1].tokens == ["<s>", "The", "Ġkey", "</s>", "</s>", "The"]


def test_a_prefix_of_ids_without_the_start_token_is_noted(bart):
    ids = bart.tokenizer("The key", add_special_tokens=False)["input_ids"]
    said = rf"target_prefix= begins with id {ids[0]}, and the decoder begins with its start token, {EOS}\. .* put {EOS} before"
    for call in (bart, partial(bart.generate, max_new_tokens=1)):
        with pytest.warns(lrpx.LrpxWarning, match=said) as caught:
            found = call(TEXT, target_prefix=ids)
        assert str(caught[0].message) in found.notes
        for fine in ([EOS, *ids], "The key", None):
            assert not any("start token" in note for note in call(TEXT, target_prefix=fine).notes)


def test_a_batch_is_each_alone(t5):
    """To what a softmax in float32 leaves, whose last digit is the processor's."""
    texts = [TEXT, "The key", "The keys to the cabinet are here", "keys"]
    for method in ("lrp", "attnlrp", "gradient", "gradient-x-input"):
        for text, e in zip(texts, t5(texts, target="The", method=method), strict=True):
            alone = t5(text, target="The", method=method)
            near = 5e-5 * np.abs(alone.relevance).max()
            np.testing.assert_allclose(e.relevance, alone.relevance, rtol=0, atol=near)


def test_several_targets_and_functions_of_one_source(bart):
    found = bart(TEXT, target=["The", "is", lambda logits: logits[9] - logits[11]])
    assert [e.value for e in found[:2]] == pytest.approx([bart(TEXT, target=t).value for t in ("The", "is")])
    np.testing.assert_allclose(found[2].relevance, bart(TEXT, target=9, contrast=11).relevance, atol=1e-9)


@pytest.mark.parametrize("which", ["bart", "t5"])
def test_generated_text_is_what_the_model_generates(which, request):
    """Every row is that of a call with the target before it as prefix."""
    explainer = request.getfixturevalue(which)
    g = explainer.generate(TEXT, max_new_tokens=4)
    source = explainer.tokenizer(TEXT, return_tensors="pt")
    own = explainer.model.generate(**source, max_new_tokens=4, do_sample=False, num_beams=1)[0].tolist()
    assert g.token_ids[7:] == own
    assert (g.prompt_length, g.source) == (8, 7)
    for i in range(len(g)):
        one = explainer(TEXT, target=g.token_ids[8 + i], target_prefix=g.token_ids[7 : 8 + i])
        np.testing.assert_allclose(g[i].relevance, one.relevance, atol=1e-9 * np.abs(one.relevance).max())
        assert g[i].segments == one.segments
        assert g.probabilities[i] == pytest.approx(one.target_probability)
    whole = type(g).from_dict(json.loads(json.dumps(g.to_dict())))
    assert whole.source == 7
    older = g.to_dict()
    del older["source"]
    assert type(g).from_dict(json.loads(json.dumps(older))).source == 0


def test_a_given_continuation_with_hops_and_spans(bart):
    g = bart.generate(TEXT, continuation="The key is", contrast="mean")
    assert g.generated_text == "The key is"
    hopped = bart.generate(TEXT, continuation="The key is", contrast="mean", hops=2, spans=[(2, 3)])
    np.testing.assert_allclose(g.span(2, 3, hops=2).relevance, hopped[0].relevance, atol=1e-9)
    tokens = bart.generate(TEXT, continuation="The key is", contrast=["is", " is", " are"])
    assert tokens[1].value == pytest.approx(bart(TEXT, target=" key", contrast=" is", target_prefix="The").value)


def test_the_decoder_begins_as_in_generate():
    model, tokenizer = made(forced_bos_token_id=0)
    assert start_tokens(model) == (EOS, 0)
    g = lrpx.Explainer(model, tokenizer).generate(TEXT, max_new_tokens=3)
    own = model.generate(**tokenizer(TEXT, return_tensors="pt"), max_new_tokens=4, do_sample=False, num_beams=1)[0]
    assert g.token_ids[7:] == own.tolist()[: len(g.token_ids) - 7]
    chosen = {"forced_bos_token_id": 5, "max_new_tokens": 2, "do_sample": False}
    assert lrpx.Explainer(model, tokenizer).generate(TEXT, generation_config=chosen).token_ids[7:9] == [EOS, 5]
    for config in (model.generation_config, model.config):
        config.decoder_start_token_id = config.bos_token_id = None
    with pytest.raises(InputError, match=r"does not say with which token its decoder begins.*target_prefix=\["):
        start_tokens(model)


class TwoSides:
    """A tokenizer whose target side is another one's, as Marian's."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __call__(self, text=None, text_target=None, **options):
        if text_target is not None:
            text = text_target.replace("Schlüssel", "key")
        return self._tokenizer(text, **options)

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


def test_the_target_side_of_a_tokenizer(bart):
    explainer = lrpx.Explainer(bart.model, TwoSides(bart.tokenizer))
    e = explainer(TEXT, target="Schlüssel")
    assert e.target.text == "key"
    assert explainer("Schlüssel", target="The").tokens != explainer("key", target="The").tokens


BAD = [
    ({"target": ""}, r"target='' is no token"),
    ({"target": "The", "contrast": "The"}, r"are the same token"),
    ({"target": [9, 10_000]}, r"outside the vocabulary|target\[1\]"),
    ({"target": "The", "target_prefix": [EOS, 10_000]}, r"target_prefix holds 10000, outside the vocabulary"),
    ({"target": "The", "target_prefix": 3}, r"target_prefix=3 is int\. Give a string, or token ids"),
    ({"target": "s", "target_prefix": "The key"}, r"target='s' changes the tokens before it"),
    ({"target": "The", "position": 2}, r"position=2: an encoder-decoder model is explained after .* target_prefix="),
    ({"target": "key " * 30}, r"the target has 6\d tokens|have \d+ tokens to read|can read"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[m[:30] for _, m in BAD])
def test_bad_input(bart, options, message):
    with pytest.raises(InputError, match=message):
        bart(TEXT, **options)


def test_bad_sources_and_models(bart):
    with pytest.raises(InputError, match="is empty"):
        bart(" ", target="The")
    with pytest.raises(InputError, match=r"the source has 44 tokens, 20 more than the 24 that Bart.* can read"):
        bart("keys " * 41, target="The")
    with pytest.raises(InputError, match="continuation='' is no token"):
        bart.generate(TEXT, continuation="")
    with pytest.raises(InputError, match="tokens of the target and max_new_tokens=24 are more than the 24"):
        bart.generate(TEXT, max_new_tokens=24)
    for method in ("alti-logit", "alti", "attention-rollout"):
        with pytest.raises(UnsupportedModelError, match="BartForConditionalGeneration is an encoder-decoder model"):
            bart(TEXT, method=method)
    with pytest.raises(UnsupportedModelError, match="BartForConditionalGeneration is for text2text-generation"):
        bart.flow(TEXT)
    tokenizer = tiny_tokenizers.byte_level()
    gpt2 = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)
    for call in (gpt2, gpt2.generate):
        with pytest.raises(InputError, match="target_prefix= is for"):
            call(TEXT, target_prefix="The", **({"max_new_tokens": 2} if call != gpt2 else {}))


def test_bfloat16_and_ids_alone():
    model, tokenizer = made("t5", torch.bfloat16)
    e = lrpx.explain(model, None, tokenizer(TEXT)["input_ids"], target=9, method="lrp")
    exact, _ = made("t5")
    exact = lrpx.explain(exact, None, e.token_ids[:7], target=9, method="lrp")
    assert np.corrcoef(e.relevance, exact.relevance)[0, 1] > 0.98


def test_views_name_both_parts(bart, tmp_path):
    e = bart(TEXT, target="The key")
    html = e.to_html()
    assert "source" in html
    assert "target" in html
    e.to_png(tmp_path / "e.png")
    bart.generate(TEXT, max_new_tokens=3).to_html(tmp_path / "g.html")
