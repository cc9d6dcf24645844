"""When an explanation has relevance of heads and layers, and what it says where it has not."""

import numpy as np
import pytest
import tiny

import lrpx
from lrpx.errors import InputError

FIELDS = ("by_head", "by_attention", "by_mlp", "by_layer")
TEXTS = ([9, 10, 11, 12, 13], [20, 21, 22])


@pytest.fixture(scope="module")
def model():
    return tiny.build("causal:llama")


def shapes(e):
    return {name: getattr(e, name).shape for name in FIELDS if getattr(e, name) is not None}


HERE = {"by_head": (2, 4, 5), "by_attention": (2, 5), "by_mlp": (2, 5), "by_layer": (2, 5)}


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "lrp-uniform-gate", "gradient-x-input"])
def test_short_texts_have_it(model, method):
    assert shapes(lrpx.explain(model, None, TEXTS[0], target=40, method=method)) == HERE
    assert shapes(lrpx.explain(model, None, TEXTS[0], target=40, method=method, heads=False)) == {}


@pytest.mark.parametrize("method", ["gradient", "alti", "attention-rollout"])
def test_other_methods_have_not(model, method):
    assert shapes(lrpx.explain(model, None, TEXTS[0], target=40, method=method)) == {}
    with pytest.raises(InputError, match="takes no option 'heads'"):
        lrpx.explain(model, None, TEXTS[0], target=40, method=method, heads=True)


def test_long_texts_have_it_if_asked(model, monkeypatch):
    monkeypatch.setattr("lrpx.explainer.heads.SHORT", 7)
    explainer = lrpx.Explainer(model)
    assert shapes(explainer(TEXTS[0], target=40)) == HERE
    assert [shapes(e) for e in explainer(TEXTS, target=40)] == [{}, {}]  # eight tokens in all
    assert [e.by_head.shape for e in explainer(TEXTS, target=40, heads=True)] == [(2, 4, 5), (2, 4, 3)]


def test_texts_in_a_batch_and_with_several_methods(model):
    explainer = lrpx.Explainer(model)
    both = explainer(TEXTS, target=40, method=["attnlrp", "gradient"], heads=True)
    for e, text in zip(both[::2], TEXTS, strict=True):
        alone = explainer(text, target=40)
        for name in FIELDS:
            np.testing.assert_allclose(getattr(e, name), getattr(alone, name), rtol=0, atol=1e-6)
    assert [shapes(e) for e in both[1::2]] == [{}, {}]


@pytest.mark.parametrize("heads", ["yes", 1, []])
def test_what_is_no_answer(model, heads):
    with pytest.raises(InputError, match=r"heads=.*: give True or False"):
        lrpx.explain(model, None, TEXTS[0], heads=heads)


@pytest.mark.parametrize("heads", [None, True])
@pytest.mark.parametrize(("asked", "which"), [({"target": (40, 41)}, "target"), ({"contrast": (42, 43)}, "contrast")])
@pytest.mark.filterwarnings("ignore:.*different numbers of tokens")
def test_several_tokens_together_have_none(model, heads, asked, which):
    """A text of which several tokens are explained is explained all the same, beside others that have heads."""
    first = {"target": 40, "contrast": None} | asked
    both = lrpx.Explainer(model)(TEXTS, heads=heads, target=[first["target"], 40], contrast=[first["contrast"], None])
    assert [len(shapes(e)) for e in both] == [0, 4]
    said = [any("heads are known of one explained token" in note for note in e.notes) for e in both]
    assert said == [bool(heads), False]
    for ask in (lambda: both[0].show("layers"), lambda: both[0].head(0, 0), lambda: both.to_frame("heads")):
        with pytest.raises(InputError, match=f"the {which} is ") as error:
            ask()
        assert "explainer(text, target=40, heads=True)" in str(error.value)
        assert error.value.in_command.endswith(" lrpx explain TEXT --target-id 40 --heads")
    with pytest.raises(InputError, match="explanation 0: this explanation"):
        both.to_frame("heads")


def test_generated_text_and_two_embeddings_have_none(model):
    explainer = lrpx.Explainer(model)
    for ask in (
        lambda **options: explainer.generate(TEXTS[0], continuation=TEXTS[1], **options)[0],
        lambda **options: explainer.similarity(*TEXTS, pooling="mean", **options),
    ):
        with pytest.raises(InputError, match=r"heads=True is for one explained prediction.*TEXT_BEFORE_IT"):
            ask(heads=True)
        with pytest.raises(InputError, match=r"of one explained prediction.*explainer\(TEXT_BEFORE_IT, target=TOKEN"):
            ask().show("heads")


def test_several_predictions_of_a_text_have_it_as_each_alone(model):
    explainer = lrpx.Explainer(model)
    for e, target in zip(explainer(TEXTS[0], target=[40, 41]), (40, 41), strict=True):
        alone = explainer(TEXTS[0], target=target)
        for name in FIELDS:
            np.testing.assert_allclose(getattr(e, name), getattr(alone, name), rtol=0, atol=1e-9)


def test_a_run_without_heads_does_not_serve_one_with(model):
    """Passes that are kept differ by what they compute."""
    explainer = lrpx.Explainer(model)
    found = [shapes(explainer(TEXTS[0], target=40, heads=heads)) for heads in (False, True, False, True)]
    assert found == [{}, HERE, {}, HERE]


@pytest.mark.parametrize(("family", "known"), [("causal:llama", True), ("masked:fnet", False)])
def test_heads_that_are_asked_for_and_not_found_are_noted(family, known):
    explainer = lrpx.Explainer(tiny.build(family))
    options = {} if family.startswith("causal") else {"position": 2}
    asked, usual = (explainer(list(range(10, 16)), target=20, heads=heads, **options) for heads in (True, None))
    assert (asked.by_head is not None) == known
    assert any("what the heads wrote was not found" in note for note in asked.notes) != known
    assert not any("heads" in note for note in usual.notes)
