"""Methods that change the text, of models with heads of their own, against loops over the model's own inputs; random numbers."""

import numpy as np
import pytest
import tiny_heads
import torch
from tiny_classifiers import ENTITIES, SENTIMENT, classifier, tokenizer

import lrpx
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.methods import METHODS

TEXT, QUESTION, CHOICES = "Wolfgang lives in Berlin", "who lives in paris ?", ["sleeps .", "is great"]
CHANGING = [name for name, method in METHODS.items() if not (method.has_passes or method.needs_family)]
ASKED = {
    "SequenceClassification": {"target": "POSITIVE", "contrast": "NEGATIVE"},
    "TokenClassification": {"position": 2, "target": "B-PER", "contrast": "O"},
    "QuestionAnswering": {"question": QUESTION, "target": "Berlin"},
    "MultipleChoice": {"choices": CHOICES, "target": 1, "contrast": 0},
}
CASES = [(head, family) for head in ASKED for family in ("Bert", "Llama")]
CASES = [case for case in CASES if case != ("MultipleChoice", "Llama")]  # transformers has none


def explainer_of(head, family="Bert"):
    labels = {"SequenceClassification": SENTIMENT, "TokenClassification": ENTITIES}.get(head, {})
    return lrpx.Explainer(classifier(head, family=family, **labels), tokenizer())


def score_of(head, e, output):
    """What is explained, read off the model's output by hand."""
    if head == "QuestionAnswering":
        first, stop = e.span or (e.position, e.position + 1)
        return float(output.start_logits[0, first] + output.end_logits[0, stop - 1])
    logits = output.logits[0, e.position] if head == "TokenClassification" else output.logits[0]
    return float(logits[e.target.id] - logits[e.contrast.id])


def rows_of(head, e, tokenizer):
    """The model's inputs: a row, or of multiple choice each choice, with where its tokens are in the map, and its sign."""
    if head != "MultipleChoice":
        given = (QUESTION, TEXT) if head == "QuestionAnswering" else (TEXT,)
        return [(tokenizer(*given, return_tensors="pt"), list(range(len(e.tokens))), 1)]
    rows = [tokenizer(TEXT, choice, return_tensors="pt") for choice in (CHOICES[1], CHOICES[0])]
    start = e.segments[1].start
    first, second = (row["input_ids"].shape[1] for row in rows)
    return [
        (rows[0], list(range(first)), 1),
        (rows[1], [*range(start), *range(first, first + second - start)], -1),
    ]


def value_of(head, e, model, inputs, **changed):
    """The score of one row."""
    given = {"attention_mask": inputs["attention_mask"]}
    if "token_type_ids" in inputs and model.config.model_type == "bert":
        given["token_type_ids"] = inputs["token_type_ids"]
    given |= changed or {"input_ids": inputs["input_ids"]}
    with torch.no_grad():
        if head == "MultipleChoice":
            return float(model(**{name: each[:, None] for name, each in given.items()}).logits[0, 0])
        return score_of(head, e, model(**given))


@pytest.mark.parametrize(("head", "family"), CASES)
def test_occlusion_is_the_loop_over_tokens(head, family):
    explainer = explainer_of(head, family)
    e = explainer(TEXT, method="occlusion", **ASKED[head])
    expected, total = np.zeros(len(e.tokens)), 0.0
    for inputs, places, sign in rows_of(head, e, explainer.tokenizer):
        whole = value_of(head, e, explainer.model, inputs)
        total += sign * whole
        for t, place in enumerate(places):
            table = explainer.model.get_input_embeddings()
            rows = table(inputs["input_ids"]).detach().clone()
            rows[0, t] = table.weight.detach().mean(0)
            expected[place] += sign * (whole - value_of(head, e, explainer.model, inputs, inputs_embeds=rows))
    assert e.value == pytest.approx(total, abs=1e-12)
    np.testing.assert_allclose(e.relevance, expected, rtol=1e-9, atol=1e-10)
    assert np.abs(expected).max() > 1e-3
    assert (e.residual, e.measures) == (None, "scores")


@pytest.mark.parametrize(("head", "family"), CASES)
@pytest.mark.parametrize("method", CHANGING)
def test_the_value_is_the_one_that_lrp_explains(head, family, method):
    explainer = explainer_of(head, family)
    if METHODS[method].needs:
        pytest.importorskip(METHODS[method].needs)
    if method == "leave-one-out" and head in ("TokenClassification", "QuestionAnswering"):
        with pytest.raises(UnsupportedModelError, match=f"only causal .* not {family}For{head}. Use occlusion"):
            explainer(TEXT, method=method, **ASKED[head])
        return
    e, lrp = explainer(TEXT, method=[method, "lrp"], **ASKED[head])
    assert (e.value, e.target, e.contrast, e.tokens) == (lrp.value, lrp.target, lrp.contrast, lrp.tokens)
    assert (e.target_probability, e.top) == (lrp.target_probability, lrp.top)
    assert (e.position, e.span, e.segments) == (lrp.position, lrp.span, lrp.segments)
    texts = [TEXT, "the film was good and great"]
    if head != "QuestionAnswering":  # each in a padded batch, as alone
        options = {"baseline": "zero"} if "baseline" in METHODS[method].options else {}
        both, alone = (explainer(each, method=method, **options, **ASKED[head]) for each in (texts, TEXT))
        np.testing.assert_allclose(both[0].relevance, alone.relevance, atol=1e-9)


@pytest.mark.parametrize(
    ("head", "family"), [(h, f) for h, f in CASES if h in ("SequenceClassification", "MultipleChoice")]
)
def test_leave_one_out_is_the_text_without_the_token(head, family):
    explainer = explainer_of(head, family)
    e = explainer(TEXT, method="leave-one-out", **ASKED[head])
    expected = np.zeros(len(e.tokens))
    for inputs, places, sign in rows_of(head, e, explainer.tokenizer):
        whole, length = value_of(head, e, explainer.model, inputs), inputs["input_ids"].shape[1]
        for t, place in enumerate(places):
            kept = [n for n in range(length) if n != t]
            shorter = {name: each[:, kept] for name, each in inputs.items()}
            expected[place] += sign * (whole - value_of(head, e, explainer.model, shorter))
    np.testing.assert_allclose(e.relevance, expected, rtol=1e-9, atol=1e-10)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("family", ["bart", "mbart", "t5"])
def test_a_token_that_encoder_and_decoder_read_is_hidden_in_both(family):
    model = tiny_heads.build(f"text-classification:{family}")
    ids = [11, 12, 13, 14, 15, model.config.eos_token_id]
    stacks = {name: getattr(model, f"get_{name}")().get_input_embeddings() for name in ("encoder", "decoder")}
    baseline = stacks["decoder"](torch.arange(model.config.vocab_size)).detach().mean(0)
    e = lrpx.explain(model, None, ids, target=2, contrast=0, method="occlusion")

    def value_without(token):
        def changed(_, __, output):
            places = range(output.shape[1])
            runs, output = turns.pop(0), output.clone()
            output[0, [p for p in places if p - (runs == "decoder") == token]] = baseline
            return output

        turns = ["encoder", "decoder"]
        hooks = [embedding.register_forward_hook(changed) for embedding in {*stacks.values()}]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        for hook in hooks:
            hook.remove()
        return float(logits[2] - logits[0])

    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    assert e.value == float(logits[2] - logits[0])
    np.testing.assert_allclose(e.relevance, [e.value - value_without(t) for t in range(6)], atol=1e-10)
    with pytest.raises(UnsupportedModelError, match="without a decoder behind an encoder"):
        lrpx.explain(model, None, ids, method="leave-one-out")


@pytest.mark.parametrize("method", ["kernel-shap", "integrated-gradients"])
def test_of_two_choices_all_parts_add_up(method):
    """Also the value of the baseline, which is another one for each choice."""
    if METHODS[method].needs:
        pytest.importorskip(METHODS[method].needs)
    e = explainer_of("MultipleChoice")(TEXT, method=method, choices=["runs", "is great"])
    assert e.relevance.sum() + sum(e.components.values()) + e.residual == pytest.approx(e.value)
    assert abs(e.components["baseline"]) > 1e-3


def test_random_numbers_of_two_choices_are_no_larger_where_both_are_read():
    explainer, sums = explainer_of("MultipleChoice"), []
    for seed in range(60):
        e = explainer(TEXT, method="random", seed=seed, **ASKED["MultipleChoice"])
        start = e.segments[1].start
        sums.append([e.relevance[:start].std(), e.relevance[start:].std()])
    prompt, choices = np.mean(sums, 0)
    assert prompt == pytest.approx(choices, rel=0.15)


@pytest.mark.parametrize("head", ASKED)
def test_one_of_several_methods_that_cannot_is_named_before_anything_is_computed(head, monkeypatch):
    explainer, ran = explainer_of(head), []
    monkeypatch.setattr(lrpx.passes.dispatch.PassRunner, "run", lambda *_: ran.append(1))
    with pytest.raises(
        UnsupportedModelError, match=r"alti is for language models, .* These can: lrp, .* random"
    ) as error:
        explainer(TEXT, method=["lrp", "random", "alti"], **ASKED[head])
    assert ("leave-one-out" in str(error.value)) == (head in ("SequenceClassification", "MultipleChoice"))
    assert not ran


def test_a_function_of_the_scores_is_refused_before_anything_is_computed(monkeypatch):
    explainer, ran = explainer_of("SequenceClassification"), []
    monkeypatch.setattr(lrpx.passes.dispatch.PassRunner, "run", lambda *_: ran.append(1))
    with pytest.raises(InputError, match=r"occlusion explains one score, .* the target is the function"):
        explainer(TEXT, method=["lrp", "occlusion"], target=lambda logits: logits.max())
    assert not ran


@pytest.mark.parametrize("method", ["occlusion", "integrated-gradients"])
def test_a_model_that_pads_its_texts_itself_is_refused(method):
    """Its embeddings have another shape than the text; they would stay as they are, and the map be one of zeros."""
    model = tiny_heads.build("text-classification:longformer")
    with pytest.raises(UnsupportedModelError, match="LongformerForSequenceClassification pads its texts itself"):
        lrpx.explain(model, None, [11, 12, 13, 14, 15], method=method)
