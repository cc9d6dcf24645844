"""Question answering: answers as strings and as tokens, the best one, its probability, and parts of other models."""

import numpy as np
import pytest
import torch
import transformers
from tiny_classifiers import classifier, tokenizer

import lrpx
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.passes.attribution import run
from lrpx.tasks.question_answering import LONGEST, AnswerScores
from lrpx.text.batching import Item, pad

CONTEXT, QUESTION = "Wolfgang lives in Berlin . he is in Paris", "Who lives in Berlin ?"


@pytest.fixture(scope="module")
def explainer():
    return lrpx.Explainer(classifier("QuestionAnswering"), tokenizer())


def starts_and_ends(explainer, context=CONTEXT, question=QUESTION):
    with torch.no_grad():
        output = explainer.model(**explainer.tokenizer(question, context, return_tensors="pt"))
    return output.start_logits[0].numpy(), output.end_logits[0].numpy()


def test_the_best_answer_by_brute_force(explainer):
    """Every span of the context of up to 15 tokens, one by one; and the probability of transformers' pipeline."""
    e, (start, end) = explainer(CONTEXT, question=QUESTION), starts_and_ends(explainer)
    context = range(7, 17)  # after [CLS], the question and [SEP]; before the last [SEP]
    assert [tuple(s) for s in e.segments] == [("question", 1, 6), ("context", 7, 17)]
    spans = [(a, b) for a in context for b in context if a <= b < a + LONGEST]
    best = max(spans, key=lambda span: start[span[0]] + end[span[1]])
    assert (e.position, e.span or (e.position, e.position + 1)) == (best[0], (best[0], best[1] + 1))
    assert e.value == pytest.approx(start[best[0]] + end[best[1]])
    assert e.explains == "(start + end) logit"
    mass = [sum(np.exp(each[n]) for n in (0, *context)) for each in (start, end)]
    assert e.target_probability == pytest.approx(np.exp(start[best[0]] + end[best[1]]) / mass[0] / mass[1])
    assert e.target_rank == 1
    assert [p for _, p in e.top] == sorted((p for _, p in e.top), reverse=True)
    assert len(e.top) == 5


def test_an_answer_as_a_string_or_as_tokens(explainer):
    start, end = starts_and_ends(explainer)
    e = explainer(CONTEXT, question=QUESTION, target="Wolfgang", contrast="Berlin")
    assert (e.target.text, e.contrast.text, e.position, e.span) == ("Wolfgang", "Berlin", 7, (7, 9))
    assert e.value == pytest.approx(start[7] + end[8] - start[11] - end[11])
    same = explainer(CONTEXT, question=QUESTION, target=(7, 8), contrast=(11, 11))
    np.testing.assert_array_equal(e.relevance, same.relevance)
    one, other = (explainer(CONTEXT, question=QUESTION, target=answer) for answer in ("Wolfgang", "Berlin"))
    np.testing.assert_allclose(e.relevance, one.relevance - other.relevance, atol=1e-10)


def test_gradient_x_input_is_what_autograd_gives(explainer):
    model, ids = explainer.model, explainer.tokenizer(QUESTION, CONTEXT, return_tensors="pt")
    rows = model.get_input_embeddings()(ids["input_ids"]).detach().requires_grad_()
    output = model(inputs_embeds=rows, attention_mask=ids["attention_mask"], token_type_ids=ids["token_type_ids"])
    (gradient,) = torch.autograd.grad(output.start_logits[0, 7] + output.end_logits[0, 8], rows)
    e = explainer(CONTEXT, question=QUESTION, target="Wolfgang", method="gradient-x-input", at="embedding")
    np.testing.assert_allclose(e.relevance, (rows * gradient).sum(-1)[0].detach().numpy(), atol=1e-12)


def test_an_answer_that_is_there_twice(explainer):
    start, end = starts_and_ends(explainer)
    e = explainer(CONTEXT, question=QUESTION, target="in")
    assert e.position == max((10, 15), key=lambda n: start[n] + end[n])
    assert "'in' is in the context 2 times; the one with the highest score is explained" in e.notes[0]


def test_a_long_answer(explainer):
    """Longer than those that are looked for."""
    context = " ".join(["a dog sleeps and"] * 8)
    e = explainer(context, question=QUESTION, target=(7, 7 + 29))
    start, end = starts_and_ends(explainer, context)
    assert e.value == pytest.approx(start[7] + end[36])
    assert e.span == (7, 37)


def test_no_answer_is_noted_where_it_is_likelier():
    model = classifier("QuestionAnswering")
    e = lrpx.Explainer(model, tokenizer())(CONTEXT, question=QUESTION)
    start, end = starts_and_ends(lrpx.Explainer(model, tokenizer()))
    noted = any("a higher score to no answer at all" in note for note in e.notes)
    assert noted == (start[0] + end[0] > e.value)
    nothing = lrpx.Explainer(model, tokenizer())(CONTEXT, question=QUESTION, target=(0, 0))
    assert nothing.value == pytest.approx(start[0] + end[0])


def test_no_answer_is_noted():
    model = classifier("QuestionAnswering")
    explainer = lrpx.Explainer(model, tokenizer())
    for seed in range(20):
        torch.manual_seed(seed)
        with torch.no_grad():
            model.qa_outputs.weight.copy_(torch.randn_like(model.qa_outputs.weight))
        start, end = starts_and_ends(explainer)
        e = explainer(CONTEXT, question=QUESTION)
        if start[0] + end[0] > e.value:
            assert "a higher score to no answer at all" in e.notes[0]
            return
    pytest.fail("no model prefers no answer")


def test_a_batch_is_as_one_by_one(explainer):
    contexts, questions = [CONTEXT, "a dog sleeps and he runs"], [QUESTION, "who runs ?"]
    for ours, context, question in zip(explainer(contexts, question=questions), contexts, questions, strict=True):
        theirs = explainer(context, question=question)
        assert (ours.position, ours.target) == (theirs.position, theirs.target)
        np.testing.assert_allclose(ours.relevance, theirs.relevance, atol=1e-10)
    several = explainer(contexts, question=QUESTION, target=[(7, 8), "dog"])
    assert [e.target.text for e in several] == ["Wolfgang", "dog"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_answer_has_one_id_whatever_the_padding(explainer, side):
    readout = AnswerScores(4)
    items = [
        Item((2, 12, 3, 17, 13, 3), 3, readout.id_of(3, 4), readout.id_of(1, 1)),
        Item((2, *range(5, 20), 3), 3, 5),
    ]
    alone = run(explainer.model, pad(items[:1], explainer.model, readout=readout), {})
    with torch.no_grad():
        output = explainer.model(torch.tensor([items[0].token_ids]))
    start, end = output.start_logits[0], output.end_logits[0]
    assert alone.values[0] == pytest.approx(float(start[3] + end[4] - start[1] - end[1]))
    batch = pad(items, explainer.model, side=side, readout=readout)
    together = run(explainer.model, batch, {})
    assert together.values[0] == pytest.approx(alone.values[0])


def test_a_tokenizer_that_pads_on_the_left_gets_the_context_first():
    """As in transformers' pipeline."""
    explainer = lrpx.Explainer(classifier("QuestionAnswering"), tokenizer(padding_side="left"))
    e = explainer(CONTEXT, question=QUESTION, target="Wolfgang")
    assert [s.name for s in e.segments] == ["context", "question"]
    assert e.span == (1, 3)


BAD = {
    "no question": ({}, 'answers a question about a text. Give it: question="'),
    "part of a token": ({"question": QUESTION, "target": "Ber"}, "is no run of tokens .* read 'Berlin': give that"),
    "not there": ({"question": QUESTION, "target": "Bonn"}, "Copy it from the context, or give .first, last. tokens"),
    "outside": ({"question": QUESTION, "target": (3, 40)}, "is no run of the 18 tokens"),
    "backwards": ({"question": QUESTION, "contrast": (9, 8)}, "is no run of the 18 tokens"),
    "a label": ({"question": QUESTION, "target": 3}, "target=3 is no answer. Give a string of the context"),
    "same": ({"question": QUESTION, "target": "Paris", "contrast": "Paris"}, "are the same answer"),
    "position": ({"question": QUESTION, "position": 3}, "position=3: the explained answer says it"),
    "empty": ({"question": " "}, "question is ' ', which is empty"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(explainer, what):
    asked, message = BAD[what]
    with pytest.raises(InputError, match=message):
        explainer(CONTEXT, **asked)


def test_views_name_question_and_context(explainer):
    page = explainer(CONTEXT, question=QUESTION, target="Wolfgang").to_html()
    assert "question:" in page
    assert "the answer, positions 7 to 8, is explained" in page


def test_without_a_first_token_of_its_own_nothing_stands_for_no_answer():
    """As for a decoder's tokenizer, which puts none: the pipeline does not count it either."""
    explainer = lrpx.Explainer(classifier("QuestionAnswering"), tokenizer(pairs=False))
    e = explainer(CONTEXT, question=QUESTION)
    with torch.no_grad():
        output = explainer.model(torch.tensor([e.token_ids]))
    start, end = output.start_logits[0].numpy(), output.end_logits[0].numpy()
    context = slice(*e.segments[1][1:])
    first, last = e.span[0] if e.span else e.position, e.span[1] - 1 if e.span else e.position
    mass = np.exp(start[context]).sum() * np.exp(end[context]).sum()
    assert e.target_probability == pytest.approx(np.exp(start[first] + end[last]) / mass)
    assert e.notes == ()


# Functions of all logits.


def any_start_in_front(logits):
    """Not linear, of many logits: the log-probability that the answer starts among the first ten tokens."""
    starts, ends = logits.unbind(-1)
    return starts.log_softmax(0)[:10].logsumexp(0) + ends[-1]


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_function_of_the_logits_of_all_tokens(side):
    """Against a backward pass by hand; a function that is an answer; and in a batch with answers and padding."""
    reader = tokenizer(padding_side=side)
    explainer = lrpx.Explainer(classifier("QuestionAnswering"), reader)
    names = (QUESTION, CONTEXT) if side == "right" else (CONTEXT, QUESTION)
    model, ids = explainer.model, reader(*names, return_tensors="pt")
    rows = model.get_input_embeddings()(ids["input_ids"]).detach().requires_grad_()
    given = {name: ids[name] for name in ("attention_mask", "token_type_ids")}
    output = model(inputs_embeds=rows, **given)
    shapes = []

    def asked(logits):
        shapes.append(tuple(logits.shape))
        return any_start_in_front(logits)

    e = explainer(CONTEXT, question=QUESTION, target=asked, method="gradient-x-input", at="embedding")
    length = ids["input_ids"].shape[1]
    assert set(shapes) == {(length, 2)}
    value = any_start_in_front(torch.stack([output.start_logits[0], output.end_logits[0]], -1))
    (gradient,) = torch.autograd.grad(value, rows)
    assert e.value == pytest.approx(float(value.detach()))
    np.testing.assert_allclose(e.relevance, (gradient * rows)[0].sum(-1).detach(), rtol=0, atol=1e-10)
    assert (e.target.text, e.explains, e.span, len(e.top)) == ("asked", "function", (0, 0), 5)

    first, last = (7, 8) if side == "right" else (1, 2)
    answer = explainer(CONTEXT, question=QUESTION, target=(first, last))
    same = explainer(CONTEXT, question=QUESTION, target=lambda logits: logits[first, 0] + logits[last, 1])
    np.testing.assert_allclose(same.relevance, answer.relevance, rtol=0, atol=1e-10)

    several = explainer(
        [CONTEXT, "he is in Paris", CONTEXT],
        question=QUESTION,
        target=[any_start_in_front, any_start_in_front, (first, last)],
        method=["gradient-x-input", "attnlrp"],
        at="embedding",
    )
    np.testing.assert_allclose(several[0].relevance, e.relevance, rtol=0, atol=1e-10)
    alone = explainer("he is in Paris", question=QUESTION, target=any_start_in_front, method="attnlrp", at="embedding")
    np.testing.assert_allclose(several[3].relevance, alone.relevance, rtol=0, atol=1e-10)
    assert several[5].target.text == "Wolfgang"


def test_a_function_is_shown_without_a_mark(explainer):
    e = explainer(CONTEXT, question=QUESTION, target=any_start_in_front, explains="an early start")
    page = e.to_html()
    assert "an early start" in page
    assert "position 0" not in page
    assert abs(e.value - e.relevance.sum() - e.residual) < 1e-12


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"target": any_start_in_front, "contrast": "Berlin"}, "takes no contrast='Berlin'"),
        ({"target": any_start_in_front, "position": 2}, "the explained answer says it"),
        ({"target": lambda logits: logits}, r"It gets the logits, \[18, 2\]"),
        ({"target": lambda logits: logits[0, 0] / 0}, "returned -?inf: finite numbers"),
        ({"target": (7, 8), "explains": "x"}, "a name for the function"),
    ],
)
def test_which_functions_cannot_be_used(explainer, asked, message):
    with pytest.raises(InputError, match=message):
        explainer(CONTEXT, question=QUESTION, **asked)


def test_answers_about_images_are_refused_by_name():
    """Their classes are called like those that find an answer in a text."""
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 32,
    }
    model = transformers.ViltForQuestionAnswering(transformers.ViltConfig(**sizes, vocab_size=50, num_labels=3)).eval()
    with pytest.raises(
        UnsupportedModelError, match="ViltForQuestionAnswering is not supported: it answers questions about"
    ):
        lrpx.explain(model, None, [5, 6], question=[7, 8])
