"""Occlusion and leave-one-out against loops over the model's own inputs; random scores."""

import numpy as np
import pytest
import tiny
import torch

import lrpx

IDS = list(range(10, 19))
ASKED = {"target": 20, "contrast": 21}


def difference(logits):
    return (logits[20] - logits[21]).item()


@pytest.mark.parametrize("family", ["causal:llama", "masked:bert"])
@pytest.mark.parametrize("window", [1, 3])
@torch.no_grad()
def test_occlusion_is_the_loop_over_windows(family, window):
    model = tiny.build(family)
    e = lrpx.Explainer(model)(IDS, method="occlusion", window=window, baseline=12, position=4, **ASKED)
    x, hidden = model.get_input_embeddings()(torch.tensor(IDS)), model.get_input_embeddings()(torch.tensor([12]))[0]
    expected, windows = np.zeros(9), np.zeros(9)
    for start in range(9 - window + 1):
        changed = x.clone()
        changed[start : start + window] = hidden
        lost = e.value - difference(model(inputs_embeds=changed[None]).logits[0, 4])
        expected[start : start + window] += lost / window
        windows[start : start + window] += 1
    np.testing.assert_allclose(e.relevance, expected / windows, rtol=1e-9, atol=1e-10)
    assert e.residual is None
    assert e.measures == "scores"


def test_a_token_after_the_explained_one_hides_nothing_of_a_causal_model():
    e = lrpx.Explainer(tiny.build("causal:llama"))(IDS, method="occlusion", position=4, **ASKED)
    assert np.abs(e.relevance[:5]).min() > 1e-6
    assert np.abs(e.relevance[5:]).max() < 1e-12


@pytest.mark.parametrize("position", [4, 8, 0])
@torch.no_grad()
def test_leave_one_out_is_the_text_without_the_token(position):
    model = tiny.build("causal:llama")
    e, _ = lrpx.Explainer(model)([IDS, [*IDS, 30]], method="leave-one-out", position=position, **ASKED)
    for t in range(9):
        without = [*IDS[:t], *IDS[t + 1 :]]
        place = max(position - 1, 0) if t <= position else position
        expected = e.value - difference(model(torch.tensor([without])).logits[0, place])
        assert e.relevance[t] == pytest.approx(expected, abs=1e-9)


def test_the_only_token_cannot_be_left_out():
    e = lrpx.Explainer(tiny.build("causal:llama"))([10], method="leave-one-out", **ASKED)
    assert e.relevance.tolist() == [0.0]


def test_leave_one_out_is_for_causal_models():
    with pytest.raises(lrpx.UnsupportedModelError, match="Use occlusion"):
        lrpx.Explainer(tiny.build("masked:bert"))(IDS, method="leave-one-out", position=2)


def test_random_scores_depend_on_text_and_seed_alone():
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    first, again, other = (explainer(IDS, method="random", seed=seed).relevance for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    many = np.concatenate([explainer(list(range(8, 68)), method="random", seed=n).relevance for n in range(5)])
    assert abs(many.mean()) < 0.15
    assert many.std() == pytest.approx(1, abs=0.15)
