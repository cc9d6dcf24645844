"""Passes of models with other heads are traced with their readouts, and give the same."""

import numpy as np
import pytest
from compiled_tools import quick, unfused
from tiny_classifiers import ENTITIES, SENTIMENT, classifier, tokenizer

import lrpx

TEXTS = ["the film was not good", "a dog runs"]
CASES = {
    "texts": ("SequenceClassification", "Bert", SENTIMENT, {"target": "POSITIVE", "contrast": "NEGATIVE"}),
    "texts of a decoder": ("SequenceClassification", "Llama", SENTIMENT, {"target": "POSITIVE"}),
    "tokens": ("TokenClassification", "Bert", ENTITIES, {"position": 2, "target": "B-PER"}),
    "answers": ("QuestionAnswering", "Bert", {}, {"question": "who runs ?"}),
    "choices": ("MultipleChoice", "Bert", {}, {"choices": ["he runs", "it is great ."]}),
}


@pytest.mark.parametrize("what", CASES)
def test_compiled_and_eager_agree(monkeypatch, what):
    head, family, config, asked = CASES[what]
    model = classifier(head, family=family, **config)
    pieces = unfused(monkeypatch)
    compiled = lrpx.Explainer(model, tokenizer(pairs=family == "Bert"), compile=True)
    eager = lrpx.Explainer(model, compiled.tokenizer)
    with quick():
        for text in (*TEXTS, TEXTS[0]):  # the last by what is kept
            ours, theirs = compiled(text, **asked), eager(text, **asked)
            assert ours.value == pytest.approx(theirs.value)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
            np.testing.assert_allclose(ours.relevance, theirs.relevance, atol=1e-10)
    assert pieces
