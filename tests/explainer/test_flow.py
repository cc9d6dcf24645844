"""``Explainer.flow``: what it takes, what it refuses, and that it explains what a call explains."""

import numpy as np
import pytest
import tiny
import tiny_tokenizers
import torch
from support import fingerprint
from transformers import BertConfig, BertForSequenceClassification, T5Config, T5ForConditionalGeneration

import lrpx
from lrpx.errors import InputError, UnsupportedModelError

IDS = list(range(20, 28))


@pytest.fixture(scope="module")
def explainer():
    return lrpx.Explainer(tiny.build("causal:gpt2"))


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "lrp-uniform-gate", "gradient-x-input"])
def test_it_explains_what_a_call_explains(explainer, method):
    asked = {"target": 50, "contrast": 60, "method": method}
    flow, e = explainer.flow(IDS, **asked), explainer(IDS, **asked)
    np.testing.assert_allclose(flow.relevance[0], e.relevance, rtol=1e-12, atol=1e-12)
    assert flow.value == pytest.approx(e.value, rel=1e-12)
    assert (flow.target, flow.contrast, flow.position, flow.method) == (e.target, e.contrast, e.position, method)
    assert flow.provenance["options"] == e.provenance["options"]


def test_the_top_prediction_and_a_position(explainer):
    flow, e = explainer.flow(IDS, position=3), explainer(IDS, position=3)
    assert flow.target == e.target
    assert flow.position == 3
    np.testing.assert_allclose(flow.relevance[0], e.relevance, atol=1e-12)


def test_a_masked_model():
    explainer = lrpx.Explainer(tiny.build("masked:bert"))
    flow, e = (call(IDS, position=2, target=50) for call in (explainer.flow, explainer))
    np.testing.assert_allclose(flow.relevance[0], e.relevance, atol=1e-12)
    assert flow.kept[-1].tolist() == [i == 2 for i in range(8)]


def test_rules_of_ones_own_and_the_embedding(explainer):
    flow = explainer.flow(IDS, rules="gamma=0.25", at="embedding")
    e = explainer(IDS, rules="gamma=0.25", at="embedding")
    assert flow.places[0] == "embedding"
    np.testing.assert_allclose(flow.relevance[0], e.relevance, atol=1e-12)
    assert explainer.flow(IDS, between=("embedding", "last")).places == ["embedding", "block.1"]


def test_inside_inference_mode_and_with_options_of_the_explainer():
    model = tiny.build("causal:llama", dtype=torch.float32)
    usual = lrpx.Explainer(model).flow(IDS)
    before = fingerprint(model)
    with torch.inference_mode():
        inside = lrpx.Explainer(model).flow(IDS)
    np.testing.assert_array_equal(inside.relevance, usual.relevance)
    for options in ({"checkpoint": True}, {"compile": True}, {"fast": True}):  # a flow is neither captured nor compiled
        other = lrpx.Explainer(model, **options).flow(IDS)
        np.testing.assert_allclose(other.relevance, usual.relevance, rtol=1e-4, atol=1e-5)
        assert [step.edges.tolist() for step in other.steps] == [step.edges.tolist() for step in usual.steps]
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0}, "share=0: give the share"),
        ({"share": True}, "share=True: give the share"),
        ({"share": float("nan")}, "share=nan: give the share"),
        ({"threshold": -1}, "threshold=-1: give the least relevance"),
        ({"threshold": "a"}, "threshold='a': give the least relevance"),
        ({"share": 0.5, "threshold": 0.5}, "are both given"),
        ({"between": ("input", "last"), "layers": [0]}, "are both given"),
        ({"between": "input"}, "between='input': give two places or more"),
        ({"between": ["input"]}, "give two places or more"),
        ({"between": ["input", "nowhere"]}, "there is no place 'nowhere'"),
        ({"layers": 1}, "layers=1: give a list of numbers of blocks"),
        ({"layers": [9]}, "give numbers of blocks from 0 to 1"),
        ({"at": "transformer.h.0"}, 'the lowest place of a flow is "input" or "embedding"'),
        ({"method": "alti-logit"}, "no flow of it; lrp, attnlrp, lrp-uniform-gate, gradient-x-input do"),
        ({"method": "gradient"}, "no flow of it"),
        ({"target": 5, "contrast": 5}, "their difference is 0"),
        ({"target": [5, 6]}, r"target=\[5, 6\]: flow\(\) follows one prediction, of one token. Call it once for each"),
        ({"position": 8}, "position 8 is outside the text"),
        ({"sharee": 0.5}, "Did you mean 'share'"),
    ],
)
def test_what_cannot_be_used(explainer, options, message):
    with pytest.raises(InputError, match=message):
        explainer.flow(IDS, **options)


def test_texts_that_cannot_be_used(explainer):
    for text, message in (([], "the text is"), ([IDS, IDS], "2 texts: flow"), (None, "the text is None")):
        with pytest.raises(InputError, match=message):
            explainer.flow(text)
    top, second = (prediction.token.id for prediction in explainer(IDS).top[:2])
    with pytest.raises(InputError, match=f"top prediction is the contrast itself, .* such as target={second} "):
        explainer.flow(IDS, contrast=top)


SIZES = {"num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
OTHERS = {
    "text-classification": (BertForSequenceClassification, BertConfig(vocab_size=50, hidden_size=32, **SIZES)),
    "text2text-generation": (
        T5ForConditionalGeneration,
        T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
    ),
}


@pytest.mark.parametrize("task", OTHERS)
def test_models_for_other_tasks_are_refused(task):
    kind, config = OTHERS[task]
    with pytest.raises(UnsupportedModelError, match=f"is for {task}, and a flow is"):
        lrpx.Explainer(kind(config).eval()).flow(IDS)


def test_a_forgotten_space_is_noted_as_in_a_call():
    tokenizer = tiny_tokenizers.byte_level()
    explainer = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)
    text = "The keys to the cabinet"
    likely = explainer(text).top[0].token.text
    model, ids = explainer.model, [tokenizer.convert_tokens_to_ids(word) for word in ("Ġare", "are")]
    with torch.no_grad():  # " are" becomes what the model expects
        model.lm_head.weight[ids[0]] = 40 * model.lm_head.weight[tokenizer.convert_tokens_to_ids(likely)]
    with pytest.warns(lrpx.LrpxWarning, match="far less probable"):
        e = explainer(text, target="are")
    with pytest.warns(lrpx.LrpxWarning, match="far less probable"):
        flow = explainer.flow(text, target="are")
    assert [note for note in flow.notes if "far less probable" in note] == [n for n in e.notes if "far less" in n]
    assert explainer.flow(text, target=" are").notes == ()
