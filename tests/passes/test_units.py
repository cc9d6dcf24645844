"""Heads and neurons changed: against hooks on named modules, and relevance as the first-order effect of removing."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch
from support import families, lift_float32_norms

import lrpx
from lrpx.passes.blocks import Noted
from lrpx.passes.edits import values, values_inside
from lrpx.passes.units import heads_changed, neurons_changed, values_without_units, watch_units
from lrpx.text.batching import Item, pad

IDS = (10, 30, 12, 45, 14, 60, 16, 17, 70)
ASKED = {"target": 20, "contrast": 21}

# Family -> in a block: the projection that the heads enter, and the module that returns an MLP's neurons.
MODULES = {
    "causal:llama": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp.up_proj"),
    "causal:gpt2": ("transformer.h.{}.attn.c_proj", "transformer.h.{}.mlp.act"),
    "masked:bert": ("bert.encoder.layer.{}.attention.output.dense", "bert.encoder.layer.{}.intermediate"),
    "causal:gptj": ("transformer.h.{}.attn.out_proj", "transformer.h.{}.mlp.act"),
    "causal:bloom": ("transformer.h.{}.self_attention.dense", "transformer.h.{}.mlp.dense_h_to_4h"),
    "causal:opt": ("model.decoder.layers.{}.self_attn.out_proj", "model.decoder.layers.{}.fc1"),  # flattened MLP
}
QUICK = ("causal:llama", "causal:gpt2", "masked:bert")


def batch_of(model):
    return pad([Item(IDS, 4, 20, 21)], model)


def value_of(model):
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0, 4]
    return (logits[20] - logits[21]).item()


def neurons_of(family):
    return partial(neurons_changed, [MODULES[family][1].format(layer) for layer in range(2)])


@families([f for f in MODULES if f in tiny.FAMILIES], quick=QUICK)
@pytest.mark.parametrize("mean", [True, False])
def test_removed_heads_are_columns_of_the_projection_s_input(family, mean):
    model = tiny.build(family)
    batch, heads = batch_of(model), model.config.num_attention_heads
    units = watch_units(model, [batch], heads_changed)
    assert units.places == {(layer, 0): slice(layer * heads, (layer + 1) * heads) for layer in range(2)}
    removed = np.zeros((3, 2 * heads), bool)
    removed[1, 1] = removed[2, [0, heads + 2]] = True
    found = values_without_units(model, batch, removed, units, heads_changed, mean=mean)
    assert found[0] == pytest.approx(value_of(model), abs=1e-9)

    for row in (1, 2):
        hooks = []
        for layer in range(2):

            def without(_, args, layer=layer, row=row):
                x = args[0].reshape(1, 9, heads, -1).clone()
                gone = removed[row, layer * heads : (layer + 1) * heads]
                x[:, :, gone] = x[:, :, gone].mean(1, keepdim=True) if mean and layer == 0 else 0
                if mean and layer == 1:  # the mean of the model as it is, not of the changed one
                    x[:, :, gone] = units.means[1, 0][torch.from_numpy(gone)]
                return (x.reshape(args[0].shape),)

            module = model.get_submodule(MODULES[family][0].format(layer))
            hooks.append(module.register_forward_pre_hook(without))
        expected = value_of(model)
        for hook in hooks:
            hook.remove()
        assert found[row] == pytest.approx(expected, abs=1e-8)
        assert abs(found[row] - found[0]) > 1e-6


@families([f for f in MODULES if f in tiny.FAMILIES], quick=QUICK)
def test_removed_neurons_are_columns_of_what_modules_return(family):
    model = tiny.build(family)
    batch, changed = batch_of(model), neurons_of(family)
    units = watch_units(model, [batch], changed)
    removed = np.zeros((2, units.count), bool)
    removed[1, [3, units.count - 5]] = True
    found = values_without_units(model, batch, removed, units, changed, mean=False)
    hooks = []
    for layer in range(2):
        module = model.get_submodule(MODULES[family][1].format(layer))

        def without(_, __, output, layer=layer):
            output = output.clone()
            output[..., 3 if layer == 0 else -5] = 0
            return output

        hooks.append(module.register_forward_hook(without))
    expected = value_of(model)
    for hook in hooks:
        hook.remove()
    assert found[0] == pytest.approx(value_of(model), abs=1e-9)
    assert found[1] == pytest.approx(expected, abs=1e-9)
    assert not module._forward_hooks


@families([f for f in MODULES if f in tiny.FAMILIES], quick=QUICK)
@pytest.mark.parametrize("of", ["heads", "neurons"])
def test_relevance_under_gradient_x_input_is_what_the_value_loses_to_first_order(family, of):
    """The derivative of the value by a factor of a unit's numbers at all tokens, at 1, by central differences."""
    model = tiny.build(family)
    changed = heads_changed if of == "heads" else neurons_of(family)
    batch = batch_of(model)
    units = watch_units(model, [batch], changed)
    names = [] if of == "heads" else list(units.places)
    asked = {"method": "gradient-x-input", "position": 4, "at": ["input", *names], "heads": of == "heads", **ASKED}
    slopes = []
    with lift_float32_norms(model):
        e = lrpx.Explainer(model)(list(IDS), **asked)
        for where, place in units.places.items():
            relevance = e.by_head[where[0]].sum(-1) if of == "heads" else e.layers[where].sum(0)
            assert len(relevance) == place.stop - place.start
            for unit in (0, len(relevance) - 1):
                ends = [
                    values_inside(model, batch, partial(changed, model, batch, partial(scaled, where, unit, 1 + s)))[0]
                    for s in (1e-3, -1e-3)
                ]
                slopes.append((ends[0] - ends[1]) / 2e-3)
                assert relevance[unit] == pytest.approx(slopes[-1], rel=1e-3, abs=1e-4)
    assert np.abs(slopes).max() > 1e-3


def scaled(there, unit, factor, where, state):
    """The numbers of one unit, times a factor."""
    factors = torch.ones(state.shape[2], 1, dtype=state.dtype)
    factors[unit] = factor
    return state * factors if where == there else state


def test_of_a_linear_model_removal_costs_exactly_the_relevance():
    """Without norms, gates and activations, and with attention that does not depend on the text, what is lost is x . g."""
    model = tiny.build("causal:gpt2")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :64] = 0  # queries and keys: attention is uniform
            block.attn.c_attn.bias[:64] = 0
            block.mlp.act = torch.nn.Identity()
            block.ln_1 = block.ln_2 = torch.nn.Identity()
        model.transformer.ln_f = torch.nn.Identity()
    model.eval()
    batch = batch_of(model)
    units = watch_units(model, [batch], heads_changed)
    e = lrpx.Explainer(model)(list(IDS), method="gradient-x-input", position=4, heads=True, **ASKED)
    one_each = np.eye(units.count, dtype=bool)
    lost = values(model, batch)[0] - values_without_units(model, batch, one_each, units, heads_changed, mean=False)
    np.testing.assert_allclose(lost, e.by_head.sum(-1).ravel(), rtol=1e-7)


def test_nothing_is_left_behind():
    model = tiny.build("causal:llama")
    before, batch = value_of(model), batch_of(model)

    def fails(where, state):
        raise ZeroDivisionError

    for changed in (heads_changed, neurons_of("causal:llama")):
        with pytest.raises(ZeroDivisionError):
            watch_units(model, [batch], lambda *given, changed=changed: changed(*given[:2], fails))
    assert value_of(model) == before
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("order", [(), (0, 2, 1, 3), (1, 2, 0, 3), (2, 0, 1, 3)])
def test_heads_are_put_back_in_the_order_in_which_they_were(order):
    """What an equation returns may have batch, heads and tokens in any order."""
    found = torch.randn(2, 3, 4, 5)
    shape = [found.shape[i] for i in order] if order else found.shape
    noted = Noted(found, 0, None, tuple(shape), order)
    assert torch.equal(noted.as_noted(noted.by_head(found)), found)


def test_heads_of_a_flat_batch_are_put_back():
    found = torch.randn(6, 4, 5)
    noted = Noted(found, 0, None, (2, 3, 4, 5))
    assert torch.equal(noted.as_noted(noted.by_head(found) * 2), found * 2)
