"""One pass as a function of tensors: against plain autograd, text by text, and what speaks against a result."""

import numpy as np
import pytest
import tiny
import torch
from support import CORE, families
from transformers.modeling_outputs import CausalLMOutput

from lrpx.errors import NonFiniteError, UnsupportedModelError
from lrpx.passes import forward_backward as program
from lrpx.passes.forward_backward import compute
from lrpx.passes.objections import check
from lrpx.passes.scores import explained_logits
from lrpx.passes.spec import PassOptions, PassResult, PassSpec
from lrpx.propagation.propagate import Propagation
from lrpx.text.batching import Item, pad

FAMILIES = ["causal:gpt2", "causal:llama", "masked:bert", "causal:opt", "causal:gpt_neox", "masked:roberta"]
# Length, position, target, contrast: padded, with and without a target and a contrast of its own.
ASKED = [(9, 8, 11, 13), (6, 2, 11, None), (9, 0, None, 13), (3, 1, None, None), (1, 0, 20, 21)]
CHOSEN = [(n, p, 11 if t is None else t, c) for n, p, t, c in ASKED]


def items_of(model, asked):
    rows = [tiny.inputs(model, n_tokens=n, seed=i)["input_ids"][0].tolist() for i, (n, *_) in enumerate(asked)]
    return [Item(tuple(row), p, t, c) for row, (_, p, t, c) in zip(rows, asked, strict=True)]


def batch_for(model, asked=((9, 4, 11, 13),), **options):
    return pad(items_of(model, asked), model, **options)


def plain(model, item):
    """Value, target, and state and gradient at the word embeddings, by definition: the item alone, nothing left out."""
    leaf = []

    def note(_, __, output):
        leaf.append(output.detach().requires_grad_())
        return leaf[0]

    hook = model.get_input_embeddings().register_forward_hook(note)
    try:
        logits = model(torch.tensor([item.token_ids])).logits[0, item.position]
    finally:
        hook.remove()
    target = int(logits.argmax()) if item.target is None else item.target
    value = logits[target] - (0 if item.contrast is None else logits[item.contrast])
    (gradient,) = torch.autograd.grad(value, leaf)
    return float(value.detach()), target, leaf[0][0].detach(), gradient[0]


@pytest.mark.parametrize("whole_head", [False, True], ids=["short", "whole"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("asked", [ASKED, CHOSEN], ids=["mixed", "chosen"])
@families(FAMILIES, quick=CORE)
def test_values_targets_and_products_are_those_of_plain_autograd(family, asked, side, whole_head):
    model = tiny.build(family)
    items = items_of(model, asked)
    batch = pad(items, model, side=side)
    assert batch.chosen == (asked is CHOSEN)
    assert max(span.start for span in batch.spans) == (8 if side == "left" else 0)
    answer = compute(model, batch, PassSpec({}, ("embedding",)), PassOptions(whole_head=whole_head))
    reading = answer.read(len(items))
    assert reading.raised == []
    assert reading.values.dtype == reading.products.dtype == np.float64
    for i, (item, span) in enumerate(zip(items, batch.spans, strict=True)):
        value, target, state, gradient = plain(model, item)
        assert reading.targets[i] == target
        assert reading.values[i] == pytest.approx(value, rel=1e-10, abs=1e-12)
        torch.testing.assert_close(answer.states["embedding"][i, span], state, rtol=1e-12, atol=0)
        torch.testing.assert_close(answer.gradients["embedding"][i, span], gradient, rtol=1e-9, atol=1e-11)
        expected = np.zeros(reading.products.shape[1])
        expected[span] = (state * gradient).sum(-1).numpy()
        np.testing.assert_allclose(reading.products[i], expected, rtol=1e-9, atol=1e-11)


def test_a_target_that_is_not_given_is_each_items_top_prediction(caplog):
    model = tiny.build("causal:llama")
    items = items_of(model, [(9, p, None, None) for p in range(9)])
    expected = [plain(model, item)[:2] for item in items]
    assert len({target for _, target in expected}) > 3
    reading = compute(model, pad(items, model), PassSpec("attnlrp")).read(9)
    assert reading.targets == [target for _, target in expected]
    np.testing.assert_allclose(reading.values, [value for value, _ in expected], rtol=1e-6)
    assert not caplog.records  # in particular, the model is not said to cut a gradient


@pytest.mark.parametrize("target", [11, None], ids=["chosen", "top"])
def test_without_a_contrast_no_other_logit_matters(target):
    """Some models exclude a token by a logit of minus infinity, be it the one with id 0."""
    model = tiny.build("causal:llama")
    batch = batch_for(model, [(9, 4, target, None), (6, 3, target, None)])
    question = (PassSpec("attnlrp"), PassOptions(whole_head=True))
    expected = compute(model, batch, *question)
    first = torch.arange(tiny.VOCABULARY) == 0
    model.lm_head.register_forward_hook(lambda _, __, logits: logits.masked_fill(first, -torch.inf))
    found = compute(model, batch, *question)
    assert found.read(2).raised == []
    assert torch.equal(found.summary, expected.summary)


@pytest.mark.parametrize("number", [torch.inf, torch.nan], ids=["inf", "nan"])
def test_rows_of_the_output_embedding_that_nobody_asked_for_do_not_matter(number):
    model = tiny.build("causal:llama")
    batch = batch_for(model, [(9, 4, 11, None), (6, 3, 12, 13)])
    expected = compute(model, batch, PassSpec("attnlrp"))
    with torch.no_grad():
        model.lm_head.weight[[0, -1]] = number
    found = compute(model, batch, PassSpec("attnlrp"))
    assert found.read(2).raised == []
    assert torch.equal(found.summary, expected.summary)


def test_at_several_places_in_the_order_asked_for():
    model = tiny.build("causal:llama")
    at = ("model.layers.1", "input", "model.layers.0.mlp", "embedding")
    answer = compute(model, batch_for(model), PassSpec("attnlrp", at))
    assert list(answer.states) == list(answer.gradients) == list(at)
    alone = compute(model, batch_for(model), PassSpec("attnlrp"))
    assert torch.equal(answer.gradients["input"], alone.gradients["input"])
    first = (answer.states["model.layers.1"] * answer.gradients["model.layers.1"]).sum(-1)
    np.testing.assert_allclose(answer.read(1).products, first, rtol=1e-12)


@pytest.mark.parametrize("rules", ["attnlrp", {}], ids=["attnlrp", "gradient"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_operations_for_any_values_give_the_same(family, rules):
    model = tiny.build(family)
    for whole_head in (False, True):
        batch = batch_for(model, ASKED)
        usual = compute(model, batch, PassSpec(rules), PassOptions(whole_head=whole_head))
        static = compute(model, batch, PassSpec(rules), PassOptions(whole_head=whole_head, static=True))
        torch.testing.assert_close(static.summary, usual.summary, rtol=1e-12, atol=1e-12)


def test_without_a_mask_where_the_model_needs_none():
    model = tiny.build("causal:llama")
    seen = []
    model.model.register_forward_pre_hook(lambda _, __, kwargs: seen.append(kwargs["attention_mask"]), with_kwargs=True)
    usual, unpadded = (
        compute(model, batch_for(model), PassSpec("lrp"), PassOptions(unpadded=u)) for u in (False, True)
    )
    assert [mask is None for mask in seen] == [False, True]
    torch.testing.assert_close(unpadded.summary, usual.summary, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 32, 33, 70, 200, 10**6])
def test_products_in_steps_are_the_products(monkeypatch, at_once):
    """At one, two and six tokens of width 32 at a time, and all at once."""
    model = tiny.build("causal:gpt2")
    batch = batch_for(model, ASKED)
    expected = compute(model, batch, PassSpec("attnlrp"), PassOptions(static=True))  # always in one step
    monkeypatch.setattr(program, "CHUNK", at_once)
    assert torch.equal(compute(model, batch, PassSpec("attnlrp")).summary, expected.summary)


@pytest.mark.parametrize("at_once", [1, 100, 10**6])
def test_low_precision_is_widened_before_it_is_summed(monkeypatch, at_once):
    monkeypatch.setattr(program, "CHUNK", at_once)
    model = tiny.build("causal:llama", dtype=torch.bfloat16)
    answer = compute(model, batch_for(model), PassSpec("attnlrp"))
    state, gradient = answer.states["input"], answer.gradients["input"]
    assert state.dtype == gradient.dtype == torch.bfloat16
    expected = (state.double() * gradient.double()).sum(-1)
    np.testing.assert_allclose(answer.read(1).products, expected, rtol=1e-12)


# Answers


def answer_of(values, targets, reasons, products):
    flags = [holds for _, holds in reasons]
    numbers = torch.tensor([*values, *targets, *flags, *np.ravel(products)], dtype=torch.float64)
    state = torch.arange(24.0).view(2, 4, 3)
    states, gradients = {"input": state, "x": state + 100}, {"input": -state, "x": -state - 100}
    return PassResult(numbers, states, gradients, [reason for reason, _ in reasons], Propagation({}))


REASONS = [(("logits", ""), False), (("gradient", "x"), True), (("padding", ""), True)]


def test_a_summary_is_read_as_it_was_packed():
    products = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    reading = answer_of([0.5, -1.5], [7, 50_256], REASONS, products).read(2)
    assert reading.values.tolist() == [0.5, -1.5]
    assert reading.targets == [7, 50_256]
    assert all(type(target) is int for target in reading.targets)
    assert reading.raised == [("gradient", "x"), ("padding", "")]
    assert (reading.products == products).all()


def test_an_answer_with_other_tensors():
    answer = answer_of([0.5, -1.5], [7, 9], REASONS, np.zeros((2, 4)))
    assert len(answer.tensors()) == 5
    same = answer.with_tensors(answer.tensors())
    for kind in ("states", "gradients"):
        assert list(getattr(same, kind)) == ["input", "x"]
        assert all(getattr(same, kind)[name] is tensor for name, tensor in getattr(answer, kind).items())
    doubled = answer.with_tensors([2 * tensor for tensor in answer.tensors()])
    assert torch.equal(doubled.summary, 2 * answer.summary)
    assert torch.equal(doubled.gradients["x"], 2 * answer.gradients["x"])
    assert (doubled.reasons, doubled.mode) == (answer.reasons, answer.mode)
    with pytest.raises(ValueError, match="zip"):
        answer.with_tensors(answer.tensors()[:-1])


def test_an_answer_cut_to_its_first_tokens():
    answer = answer_of([0.5, -1.5], [7, 9], REASONS, np.zeros((2, 4)))
    short = answer.cut(3)
    assert short.summary is answer.summary
    assert torch.equal(short.states["x"], answer.states["x"][:, :3])
    assert torch.equal(short.gradients["input"], answer.gradients["input"][:, :3])


def test_an_answers_summary_repeats_what_a_pass_gave():
    """Packing and unpacking are two pieces of code: a pass with objections, read back."""
    model = tiny.build("causal:llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.inf
    reading = compute(model, batch_for(model, CHOSEN), PassSpec("attnlrp")).read(len(CHOSEN))
    assert reading.targets == [item.target for item in items_of(model, CHOSEN)]
    assert np.isnan(reading.values).any()
    assert {kind for kind, _ in reading.raised} >= {"logits", "gradient"}


# Objections


def refused(model, rules="attnlrp", asked=((9, 4, 11, 13), (6, 2, 11, 13)), at=("input",)):
    batch = batch_for(model, asked)
    answer = compute(model, batch, PassSpec(rules, at))
    check(model, batch, answer, answer.read(len(asked)))


@pytest.mark.parametrize("rules", ["attnlrp", "lrp", {}], ids=["attnlrp", "lrp", "gradient"])
@pytest.mark.parametrize(
    ("family", "module"),
    [
        ("causal:llama", "model.layers.0.self_attn.v_proj"),
        ("causal:gpt2", "transformer.h.1.mlp.c_fc"),
        ("masked:bert", "bert.encoder.layer.1.output.dense"),
        ("causal:llama", "lm_head"),
    ],
)
@pytest.mark.parametrize("number", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_a_weight_that_is_not_finite_is_named(family, module, number, rules):
    model = tiny.build(family)
    refused(model, rules)  # nothing speaks against it as it is
    with torch.no_grad():
        model.get_submodule(module).weight[11, 13] = number
    with pytest.raises(NonFiniteError, match=rf"returned NaN or infinity is '{module}'.*{module}\.weight"):
        refused(model, rules)


def test_a_gradient_that_is_not_finite_is_refused_where_the_logits_are():
    model = tiny.build("causal:llama")
    model.model.layers[1].register_forward_hook(lambda _, __, y: y + (0 * y).sqrt())  # the root's slope at 0
    with pytest.raises(
        NonFiniteError, match=r"the gradient at input is not finite in torch.float64.*attn_implementation"
    ):
        refused(model, {})
    narrow = tiny.build("causal:llama", dtype=torch.bfloat16)
    narrow.model.layers[1].register_forward_hook(lambda _, __, y: y + (0 * y).sqrt())
    with pytest.raises(NonFiniteError, match=r"not finite in torch.bfloat16.*dtype=\"float32\""):
        refused(narrow, {})
    with pytest.raises(NonFiniteError, match=r"gradient at model\.layers\.0 is"):
        refused(narrow, {}, at=("model.layers.0", "input"))


def test_padding_that_takes_part_is_refused():
    model = tiny.build("causal:llama")
    model.model.layers[0].register_forward_hook(lambda _, __, y: y + y.mean(1, keepdim=True))
    with pytest.raises(UnsupportedModelError, match=r"padding take part.*one by one"):
        refused(model, {})
    refused(model, {}, asked=((9, 4, 11, 13), (9, 2, 11, 13)))


def test_tokens_of_the_models_own_are_refused():
    """A token behind the text that takes part in the prediction (in front of it, positions would not match)."""
    model = tiny.build("masked:bert")
    model.bert.embeddings.register_forward_hook(lambda _, __, y: torch.cat([y, y[:, :1] + 1], 1))
    model.bert.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
    )
    model.cls.register_forward_pre_hook(lambda _, args: (args[0][:, :-1],))
    with pytest.raises(UnsupportedModelError, match="tokens of its own"):
        refused(model, {}, asked=((9, 4, 11, 13),))


def test_objections_are_about_any_item_of_the_batch():
    """One text that meets a broken row of the embedding, among others."""
    model = tiny.build("causal:llama")
    asked = ((9, 4, 11, 13), (6, 2, 11, 13))
    first, second = items_of(model, asked)
    broken = next(i for i in second.token_ids[:3] if i not in first.token_ids)
    with torch.no_grad():
        model.model.embed_tokens.weight[broken] = torch.nan
    refused(model, asked=asked[:1])
    with pytest.raises(NonFiniteError, match=r"'model\.embed_tokens'"):
        refused(model, asked=asked)


# Logits


@pytest.mark.parametrize("family", FAMILIES)
def test_all_logits_of_the_explained_positions(family):
    model = tiny.build(family)
    batch = batch_for(model, ASKED)
    with torch.no_grad():
        expected = model(**batch.inputs).logits[torch.arange(len(ASKED)), batch.positions]
        for static in (False, True):
            logits, index = explained_logits(model, batch, static=static)
            found = logits[torch.arange(len(ASKED)), index]
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            if static:
                assert logits.shape == (len(ASKED), 9, tiny.VOCABULARY)


def test_logits_of_another_shape_are_refused():
    model = tiny.build("causal:llama")

    class Last(type(model)):
        def forward(self, input_ids=None, attention_mask=None, use_cache=None):
            states = self.model(input_ids, attention_mask=attention_mask, use_cache=use_cache)
            return CausalLMOutput(logits=self.lm_head(states.last_hidden_state[:, -1:]))

    model.__class__ = Last
    with pytest.raises(UnsupportedModelError, match=r"Last returns logits of shape \[1, 1, 97\] for \[1, 9\] tokens"):
        compute(model, batch_for(model), PassSpec({}), PassOptions(whole_head=True))
