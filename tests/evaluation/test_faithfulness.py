"""Faithfulness against loops over the model's own inputs, and what must hold for it."""

import numpy as np
import pytest
import tiny
import torch

import lrpx
from lrpx.evaluation.curves import SHARES
from lrpx.results.agreement import rank_correlation

IDS = [10, 30, 12, 45, 14, 60, 16, 17, 70]
ASKED = {"target": 20, "contrast": 21}


def value_of(model, hidden, position=-1):
    """The explained value with some tokens' embeddings replaced by the mean embedding."""
    table = model.get_input_embeddings()
    x = table(torch.tensor(IDS)).detach().clone()
    x[list(hidden)] = table.weight.detach().mean(0)
    with torch.no_grad():
        logits = model(inputs_embeds=x[None]).logits[0, position]
    return (logits[20] - logits[21]).item()


@pytest.mark.parametrize(("family", "fixed"), [("causal:llama", None), ("masked:bert", 4)])
def test_curves_and_shares_are_loops_over_hidden_tokens(family, fixed):
    model = tiny.build(family)
    place = len(IDS) - 1 if fixed is None else fixed
    e = lrpx.Explainer(model)(IDS, method="attnlrp", position=place, **ASKED)
    [found] = lrpx.faithfulness(model, [e]).each
    order = [t for t in np.argsort(-e.relevance, kind="stable") if t != fixed]
    n = len(order)
    assert found.hidden.tolist() == list(range(n + 1))
    np.testing.assert_allclose(found.most, [value_of(model, order[:k], place) for k in range(n + 1)], atol=1e-9)
    np.testing.assert_allclose(found.least, [value_of(model, order[n - k :], place) for k in range(n + 1)], atol=1e-9)
    tops = [max(1, round(share * n)) for share in SHARES]
    whole = value_of(model, [], place)
    without = np.mean([whole - value_of(model, order[:k], place) for k in tops])
    only = np.mean([whole - value_of(model, order[k:], place) for k in tops])
    assert found.comprehensiveness == pytest.approx(without, abs=1e-9)
    assert found.sufficiency == pytest.approx(only, abs=1e-9)
    assert found.area_most == pytest.approx(np.mean(whole - found.most[1:]), abs=1e-12)
    assert found.most[0] == pytest.approx(e.value, abs=1e-9)


@pytest.mark.parametrize(("family", "place"), [("causal:llama", 8), ("causal:gpt2", 6), ("masked:bert", 4)])
def test_deleted_tokens_leave_a_shorter_text(family, place):
    """Each text that is left is read by itself, without padding, with the explained token where it has moved to."""
    model = tiny.build(family)
    e = lrpx.Explainer(model)(IDS, method="attnlrp", position=place, **ASKED)
    [found] = lrpx.faithfulness(model, [e], hide="delete").each
    order = [t for t in np.argsort(-e.relevance, kind="stable") if t != place]
    assert found.hidden.tolist() == list(range(len(order) + 1))

    @torch.no_grad()
    def value_of_rest(deleted):
        left = [t for t in range(len(IDS)) if t not in deleted]
        logits = model(torch.tensor([[IDS[t] for t in left]])).logits[0, left.index(place)]
        return (logits[20] - logits[21]).item()

    n = len(order)
    np.testing.assert_allclose(found.most, [value_of_rest(order[:k]) for k in range(n + 1)], atol=1e-6)
    np.testing.assert_allclose(found.least, [value_of_rest(order[n - k :]) for k in range(n + 1)], atol=1e-6)
    assert found.most[-1] == found.least[-1]
    replaced = lrpx.faithfulness(model, [e]).each[0]
    assert np.abs(replaced.most[1 : n + 1] - found.most[1:]).max() > 1e-3


def test_the_best_order_beats_random_and_its_reverse():
    """Relevance by occlusion names the token whose loss costs most; the same with another sign names the one that costs least."""
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    texts = [[int(i) for i in np.random.default_rng(n).integers(8, 90, 12)] for n in range(6)]
    found = lrpx.faithfulness(explainer, explainer(texts, method=["occlusion", "random"], **ASKED))
    mean = found.mean()
    assert mean["occlusion"]["difference"][0] > 2 * abs(mean["random"]["difference"][0])
    low, high = mean["occlusion"]["difference"].low, mean["occlusion"]["difference"].high
    assert low < mean["occlusion"]["difference"][0] < high
    assert found.methods == ["occlusion", "random"]
    frame = found.to_frame()
    assert frame["text"].tolist() == [n for n in range(6) for _ in range(2)]
    assert frame["difference"][0] == found.each[0].difference


def test_few_steps_are_a_part_of_many():
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    e = explainer(IDS, **ASKED)
    few, many = (lrpx.faithfulness(explainer, [e], steps=steps).each[0] for steps in (3, 9))
    assert few.hidden.tolist() == [0, 3, 6, 9]
    np.testing.assert_allclose(few.most, many.most[[0, 3, 6, 9]], atol=1e-9)


def test_agreement_averages_over_texts():
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    texts = [IDS, IDS[:6]]
    explained = explainer(texts, method=["attnlrp", "lrp"], **ASKED)
    [(pair, value)] = lrpx.faithfulness(explainer, explained).agreement().items()
    assert pair == ("attnlrp", "lrp")
    each = [rank_correlation(explained[2 * i].relevance, explained[2 * i + 1].relevance) for i in range(2)]
    assert value == pytest.approx(np.mean(each))


def test_what_cannot_be_computed_again_is_refused():
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    with pytest.raises(lrpx.InputError, match="no explanations given"):
        lrpx.faithfulness(explainer, [])
    e = explainer(IDS, target=lambda logits: logits[:4].logsumexp(0))
    with pytest.raises(lrpx.InputError, match="explains something else: "):
        lrpx.faithfulness(explainer, [e])
    with pytest.raises(lrpx.InputError, match=r"the model comes first: faithfulness\(explainer, explanations\)"):
        lrpx.faithfulness(e, explainer)
    with pytest.raises(lrpx.InputError, match="steps=0"):
        lrpx.faithfulness(explainer, [explainer(IDS)], steps=0)
    with pytest.raises(lrpx.InputError, match='give "replace" or "delete"'):
        lrpx.faithfulness(explainer, [explainer(IDS)], hide="drop")
    for others in ({"of": "heads"}, {"baseline": "zero"}):
        with pytest.raises(lrpx.InputError, match='hide="delete": for tokens'):
            lrpx.faithfulness(explainer, [explainer(IDS)], hide="delete", **others)
    with pytest.raises(lrpx.InputError, match="str: give explanations"):
        lrpx.faithfulness(explainer, ["text"])
    t5 = lrpx.Explainer(tiny.build("text2text:t5"))
    with pytest.raises(
        lrpx.InputError, match=r"for causal and masked language models, and T5ForCond.* is for text2text"
    ):
        lrpx.faithfulness(t5, t5(IDS, target=8, target_prefix=[0]))


def test_explanations_of_another_model_are_refused():
    e = lrpx.Explainer(tiny.build("causal:llama"))(IDS, **ASKED)
    with pytest.raises(
        lrpx.InputError, match=r"of LlamaForCausalLM, and the model is GPT2LMHeadModel. Give the model that"
    ):
        lrpx.faithfulness(lrpx.Explainer(tiny.build("causal:gpt2")), e)
    other = tiny.build("causal:llama")
    with torch.no_grad():
        other.lm_head.weight[20] += 100
    for of in ("tokens", "heads"):
        with pytest.raises(lrpx.InputError, match=r"when it is computed again. Give the model that was explained"):
            lrpx.faithfulness(other, lrpx.Explainer(tiny.build("causal:llama"))(IDS, **ASKED, heads=True), of=of)


def test_one_explanation_and_what_is_found_in_a_line():
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    e = explainer(IDS, **ASKED)
    one, same = (lrpx.faithfulness(explainer, given) for given in (e, [e]))
    assert repr(one.mean()) == repr(same.mean())  # with NaN: one text has no interval
    assert repr(one) == "<Faithfulness of 1 text: attnlrp>"
