"""Text classification: labels, pairs, kinds of problems, the pooled position, and what is refused."""

import numpy as np
import pytest
import tiny_heads
import torch
from support import fingerprint
from tiny_classifiers import SENTIMENT, classifier, tokenizer
from torch import nn

import lrpx
from lrpx.errors import InputError, LrpxWarning, UnsupportedModelError
from lrpx.passes.attribution import run
from lrpx.tasks.text_classification import LabelScores
from lrpx.text.batching import Item, pad

TEXT = "The film was not good"


@pytest.fixture(scope="module")
def explainer():
    return lrpx.Explainer(classifier("SequenceClassification", **SENTIMENT), tokenizer())


def logits_of(explainer, *texts, **options):
    with torch.no_grad():
        return explainer.model(**explainer.tokenizer(*texts, return_tensors="pt", **options)).logits[0].double().numpy()


def test_the_top_label_is_explained(explainer):
    e, logits = explainer(TEXT), logits_of(explainer, TEXT)
    assert (e.task, e.explains, e.position, e.span) == ("text-classification", "", 0, None)
    assert (e.target.id, e.target.text) == (logits.argmax(), ["NEGATIVE", "POSITIVE"][logits.argmax()])
    assert e.value == pytest.approx(logits.max())
    shares = np.exp(logits) / np.exp(logits).sum()
    assert e.target_probability == pytest.approx(shares.max())
    assert [(t.text, p) for t, p in e.top] == [
        (["NEGATIVE", "POSITIVE"][i], pytest.approx(shares[i])) for i in np.argsort(-shares)
    ]
    assert e.residual == pytest.approx(e.value - e.relevance.sum())
    assert e.contrast is None
    assert e.special == (0, 6)


@pytest.mark.parametrize(("target", "contrast"), [("POSITIVE", "NEGATIVE"), (1, 0), (np.int64(1), torch.tensor(0))])
def test_labels_by_name_or_id(explainer, target, contrast):
    e, logits = explainer(TEXT, target=target, contrast=contrast), logits_of(explainer, TEXT)
    assert (e.target.text, e.contrast.text) == ("POSITIVE", "NEGATIVE")
    assert e.value == pytest.approx(logits[1] - logits[0])
    one, other = explainer(TEXT, target=1), explainer(TEXT, target=0)
    np.testing.assert_allclose(e.relevance, one.relevance - other.relevance, atol=1e-10)
    assert e.target_rank + e.contrast_rank == 3


def test_gradient_x_input_is_what_autograd_gives(explainer):
    """Written out: the embedding is a leaf, and the value is taken from the model's own output."""
    model, ids = explainer.model, explainer.tokenizer(TEXT, return_tensors="pt")
    rows = model.get_input_embeddings()(ids["input_ids"]).detach().requires_grad_()
    logits = model(
        inputs_embeds=rows, attention_mask=ids["attention_mask"], token_type_ids=ids["token_type_ids"]
    ).logits
    (gradient,) = torch.autograd.grad(logits[0, 1] - logits[0, 0], rows)
    e = explainer(TEXT, target=1, contrast=0, method="gradient-x-input", at="embedding")
    np.testing.assert_allclose(e.relevance, (rows * gradient).sum(-1)[0].detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "lrp-uniform-gate"])
def test_the_poolers_tanh_follows_the_identity_rule(method):
    """It is one activation more than those of the blocks, no product is met, and ``x * (tanh(x) / x)`` gives the same map."""
    model = classifier("SequenceClassification")
    batch = pad([Item((2, 5, 6, 3), 0, 1, 0)], model, readout=LabelScores())
    before = run(model, batch, method, ["embedding"])
    assert before.mode.hits["activation"] == model.config.num_hidden_layers + 1
    assert before.mode.hits["product"] == 0

    class Scaled(nn.Module):
        def forward(self, x):
            return x * (torch.tanh(x) / x).detach()

    model.bert.pooler.activation = Scaled().eval()
    after = run(model, batch, method, ["embedding"])
    np.testing.assert_allclose(after.products, before.products, rtol=1e-9)
    plain = run(model, batch, {}, ["embedding"])
    assert not np.allclose(plain.products, before.products, rtol=1e-3)


def test_a_pair(explainer):
    e, logits = explainer("The film", text_pair="was not good"), logits_of(explainer, "The film", "was not good")
    assert [tuple(segment) for segment in e.segments] == [("text", 1, 3), ("text_pair", 4, 7)]
    assert [unit.text for unit in e.units] == ["[CLS]", " The", " film", " [SEP]", " was", " not", " good", " [SEP]"]
    assert e.text == "The film\nwas not good"
    assert e.value == pytest.approx(logits.max())
    apart = explainer.model(**explainer.tokenizer("The film [SEP] was not good", return_tensors="pt")).logits
    assert float(apart.detach().max()) != pytest.approx(e.value)  # the types of the tokens matter


def test_several_pairs_and_several_of_one_text(explainer):
    several = explainer(["The film", "a dog"], text_pair=["was not good", "sleeps"])
    alone = [explainer("The film", text_pair="was not good"), explainer("a dog", text_pair="sleeps")]
    for ours, theirs in zip(several, alone, strict=True):
        np.testing.assert_allclose(ours.relevance, theirs.relevance, atol=1e-10)
        assert ours.segments == theirs.segments
    first, second = explainer("The film", text_pair=["was not good", "sleeps"])
    np.testing.assert_allclose(first.relevance, alone[0].relevance, atol=1e-10)
    assert second.tokens[4] == "sleeps"


@pytest.mark.parametrize("family", ["Bert", "Llama"])
def test_a_batch_is_as_one_by_one(family):
    explainer = lrpx.Explainer(
        classifier("SequenceClassification", family=family, **SENTIMENT), tokenizer(pairs=family == "Bert")
    )
    texts = ["The film was not good", "a dog", "it is great but he sleeps ."]
    for ours, text in zip(explainer(texts, contrast="NEGATIVE", target="POSITIVE"), texts, strict=True):
        theirs = explainer(text, target="POSITIVE", contrast="NEGATIVE")
        np.testing.assert_allclose(ours.relevance, theirs.relevance, atol=1e-8)
        assert ours.value == pytest.approx(theirs.value)
        assert ours.position == theirs.position == (0 if family == "Bert" else len(ours.tokens) - 1)


def test_a_decoder_that_knows_no_padding_token_is_explained_text_by_text():
    """Transformers refuses to run it on several texts; padded alone it would read its label at the padding."""
    model = classifier("SequenceClassification", family="Llama", pad_token_id=None, **SENTIMENT)
    explainer = lrpx.Explainer(model, tokenizer(pairs=False))
    texts = ["The film was not good", "a dog", "a film"]
    for e, text in zip(explainer(texts, target=1), texts, strict=True):
        assert e.value == pytest.approx(logits_of(explainer, text, return_token_type_ids=False)[1])
        assert e.position == len(e.tokens) - 1


def test_a_text_that_ends_in_the_padding_token_is_read_before_it():
    """As the model does, whose padding token may be the end of texts too."""
    explainer = lrpx.Explainer(
        classifier("SequenceClassification", family="Llama", **SENTIMENT), tokenizer(pairs=False)
    )
    with pytest.warns(LrpxWarning, match="end with 1 padding token"):
        e = explainer([5, 6, 7, 0])
    assert e.position == 2
    np.testing.assert_allclose(e.relevance[:3], explainer([5, 6, 7]).relevance, atol=1e-10)
    assert e.relevance[3] == 0


def test_labels_that_do_not_exclude_each_other():
    config = {"id2label": dict(enumerate("abc")), "problem_type": "multi_label_classification"}
    explainer = lrpx.Explainer(classifier("SequenceClassification", **config), tokenizer())
    e, logits = explainer(TEXT), logits_of(explainer, TEXT)
    likely = 1 / (1 + np.exp(-logits))
    assert e.target_probability == pytest.approx(likely.max())
    assert [p for _, p in e.top] == pytest.approx(sorted(likely, reverse=True))
    assert sum(p for _, p in e.top) != pytest.approx(1)


@pytest.mark.parametrize("config", [{"num_labels": 1}, {"num_labels": 1, "problem_type": "regression"}])
def test_regression_explains_the_value(config):
    explainer = lrpx.Explainer(classifier("SequenceClassification", **config), tokenizer())
    e = explainer(TEXT)
    assert (e.explains, e.top, e.target_probability, e.target.text) == ("value", (), None, "LABEL_0")
    assert e.value == pytest.approx(logits_of(explainer, TEXT)[0])
    assert "the value is read at position 0" in e.to_html()
    with pytest.raises(InputError, match=r"the model has one output, 'LABEL_0'\. Leave contrast out"):
        explainer(TEXT, contrast=0)


def test_of_several_values_one_is_named():
    config = {"id2label": {0: "size", 1: "age"}, "problem_type": "regression"}
    explainer = lrpx.Explainer(classifier("SequenceClassification", **config), tokenizer())
    with pytest.raises(InputError, match=r"predicts 2 values. Say which: target=, one of 'size' \(0\), 'age' \(1\)"):
        explainer(TEXT)
    assert explainer(TEXT, target="age").value == pytest.approx(logits_of(explainer, TEXT)[1])


BAD = {
    "unknown": (
        {"target": "Positive"},
        "target='Positive' is no label. Did you mean 'POSITIVE'? Known: NEGATIVE, POSITIVE",
    ),
    "id": ({"contrast": 2}, r"contrast=2 is no id of a label. There are 2: 'NEGATIVE' \(0\), 'POSITIVE' \(1\)"),
    "type": ({"target": 1.5}, "target=1.5 has the type float. Give a label by name or id"),
    "bool": ({"target": True}, "target=True has the type bool"),
    "several": ({"contrast": [["NEGATIVE", "POSITIVE"]]}, "is a list, and one label is explained"),
    "same": ({"target": 1, "contrast": "POSITIVE"}, "are the same label: their difference is 0"),
    "position": ({"position": 1}, "has one prediction for the whole text. Leave it out"),
    "question": (
        {"question": "who ?"},
        "question= is for question-answering, and BertForSequenceClassification is for text-",
    ),
    "objective": ({"objective": "logprob"}, "objective='logprob' is for language models"),
    "explains": ({"explains": "it"}, "explains='it': a name for the function .* Tokens and labels have their own"),
    "pair": ({"text_pair": " "}, "text_pair is ' ', which is empty"),
    "pair of ids": ({"text_pair": 3}, "text_pair is 3. Give a string"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(explainer, what):
    asked, message = BAD[what]
    with pytest.raises(InputError, match=message.replace("?", r"\?") if "Did you" in message else message):
        explainer(TEXT, **asked)


def test_the_top_label_as_contrast(explainer):
    with pytest.raises(
        InputError, match=r"the model's top label is the contrast itself, .*Say which target, such as target='"
    ):
        explainer(TEXT, contrast=int(logits_of(explainer, TEXT).argmax()))


@pytest.mark.parametrize("method", ["alti-logit", "alti", "attention-rollout"])
def test_methods_for_language_models_are_refused(explainer, method):
    with pytest.raises(UnsupportedModelError, match=f'{method} is for language models, .* Type: method="attnlrp"'):
        explainer(TEXT, method=method)


def test_parts_of_other_tasks_are_refused_for_a_language_model():
    model = classifier("MaskedLM")
    with pytest.raises(
        InputError, match="text_pair= is for text-classification, and BertForMaskedLM is for language modelling"
    ):
        lrpx.explain(model, tokenizer(), "the [MASK] was good", text_pair="a dog")


def test_errors_are_collected(explainer):
    several = explainer([TEXT, "", "a dog"], errors="collect")
    assert len(several) == 2
    [failure] = several.failures
    assert (failure.index, "is empty" in str(failure.error)) == (1, True)
    with pytest.raises(InputError, match=r"text\[1\]: the text '' is empty"):
        explainer([TEXT, ""])


def test_a_pair_in_one_string_is_noted_where_it_is_sure(explainer):
    with pytest.warns(LrpxWarning, match=r"the text has \[SEP\] inside. .* give the second one as text_pair="):
        noted = explainer("the film [SEP] was good")
    assert "text_pair" in noted.notes[0]
    assert explainer("the film . was good").notes == ()
    assert explainer("the film", text_pair="was good").notes == ()


def test_a_tuple_of_two_strings_is_noted_as_what_it_is(explainer):
    """Two texts, as a list would be, and easily meant as a pair."""
    texts = ("The film", "was not good")
    with pytest.warns(LrpxWarning, match="a tuple of two strings is two texts") as caught:
        both = explainer(texts)
    assert len(caught) == 1
    assert [e.text for e in both] == [*texts]
    assert all(e.notes == (str(caught[0].message),) for e in both)
    for given in (list(texts), (*texts, "a dog")):
        assert all(e.notes == () for e in explainer(given))
    assert all(e.notes == () for e in explainer(texts, text_pair="sleeps"))


def test_several_methods_make_one_grid(explainer):
    several = explainer(TEXT, method=["lrp", "attnlrp", "gradient"])
    assert [e.method for e in several] == ["lrp", "attnlrp", "gradient"]
    assert several[2].residual is None


def test_the_model_is_left_as_it_was(explainer):
    before = fingerprint(explainer.model)
    explainer(TEXT, text_pair="a dog", at=["embedding", "bert.encoder.layer.0"])
    with pytest.raises(InputError):
        explainer(TEXT, at="nowhere")
    assert fingerprint(explainer.model) == before


def test_a_whole_chat_is_classified():
    """As a reward model reads it: with the end of the reply, and without the beginning of another one."""
    model = classifier("SequenceClassification", family="Llama", num_labels=1)
    chat = tokenizer(pairs=False)
    chat.chat_template = (
        "{% for m in messages %}{{ m['content'] }} . {% endfor %}{% if add_generation_prompt %}he is{% endif %}"
    )
    messages = [{"role": "user", "content": "who sleeps ?"}, {"role": "assistant", "content": "a dog"}]
    e = lrpx.Explainer(model, chat)(messages)
    assert e.tokens == ["who", "sleeps", "?", ".", "a", "dog", "."]
    assert e.position == 6


def test_views_say_what_is_explained(explainer):
    page = explainer("The film", text_pair="was good", target="POSITIVE", contrast="NEGATIVE").to_html()
    assert "POSITIVE" in page
    assert "the label is read at position 0" in page
    assert "text_pair:" in page
    assert "likeliest:" in page


def test_a_label_that_is_read_at_all_tokens():
    """ModernBERT may average what comes out of its last block."""
    model = tiny_heads.build("text-classification:modernbert", classifier_pooling="mean")
    e = lrpx.explain(model, None, [11, 12, 13, 14])
    assert (e.position, e.span) == (0, (0, 4))
    assert "the label is read at positions 0 to 3" in e.to_html()


def test_what_goes_on_with_a_text_is_another_model(explainer):
    with pytest.raises(InputError, match="BertForSequenceClassification is for text-classification and does not go on"):
        explainer.generate(TEXT, max_new_tokens=2)


def test_in_bfloat16_the_map_is_nearly_the_same(explainer):
    rough = lrpx.Explainer(classifier("SequenceClassification", **SENTIMENT).to(torch.bfloat16), explainer.tokenizer)
    ours, theirs = rough(TEXT, target=1), explainer(TEXT, target=1)
    assert np.corrcoef(ours.relevance, theirs.relevance)[0, 1] > 0.99


def test_recomputed_blocks_give_the_same(explainer):
    again = lrpx.Explainer(explainer.model, explainer.tokenizer, checkpoint=True)
    np.testing.assert_allclose(again(TEXT).relevance, explainer(TEXT).relevance, atol=1e-12)
