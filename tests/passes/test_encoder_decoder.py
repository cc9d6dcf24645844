"""Passes through an encoder and a decoder: the rules, the two rows of tokens in one result, and how a pass is run."""

import logging
from functools import partial

import numpy as np
import pair_twins
import pytest
import tiny
import torch
from support import fingerprint, runner_of
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

from lrpx.errors import InputError, UnsupportedModelError
from lrpx.passes.attribution import attributions, run
from lrpx.passes.hidden_states import layer_count
from lrpx.passes.memory import activation_bytes
from lrpx.propagation.propagate import propagate
from lrpx.text.batching import Item, pad

SOURCE, TARGET = (9, 31, 12, 55, 80), (2, 40, 17)
ITEM = Item((*SOURCE, *TARGET), 7, 11, None, source=5)
PAIRS = ["text2text:bart", "text2text:t5"]


def one_block(kind):
    """A BART or a T5 v1.1 of one block per stack, in float64; norms that transformers computes in float32 are not."""
    torch.manual_seed(0)
    if kind == "bart":
        sizes = {
            f"{stack}_{name}": n for stack in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 24))
        }
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        model = BartForConditionalGeneration(
            BartConfig(vocab_size=97, max_position_embeddings=32, d_model=16, **sizes, **heads)
        )
    else:
        sizes = {"vocab_size": 97, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
        config = T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
        model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model = model.double().eval()
    for module in model.modules():
        if type(module).__name__ == "T5LayerNorm":
            module.forward = partial(pair_twins.rms_norm, norm=module)
    return model


def relevance_of(model, items, rules, **options):
    batch = pad(items, model)
    result = run(model, batch, rules, runner=runner_of(model, **options))
    return [found.relevance for found in attributions(result, batch, torch.mul, decomposes=True)], result.values


@pytest.mark.parametrize("rules", ["lrp", "attnlrp"])
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_as_written_out_by_hand(kind, rules):
    model = one_block(kind)
    with torch.no_grad():
        value, expected = getattr(pair_twins, kind)(model, list(SOURCE), list(TARGET), 11, rules)
    [found], values = relevance_of(model, [ITEM], rules)
    near = 1e-6 if kind == "t5" else 1e-9  # older releases compute T5's softmax in float32
    np.testing.assert_allclose(values, [float(value)], rtol=near)
    np.testing.assert_allclose(found, expected, rtol=0, atol=near * float(expected.abs().max()))
    [plain], _ = relevance_of(model, [ITEM], {})
    assert np.abs(plain - found).max() > 0.01 * np.abs(found).max()  # the comparison can fail


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_the_rules_alone(kind):
    """``propagate`` without any of the passes: relevance of both embeddings adds up, and a contrast changes its sign."""
    model = tiny.zero_bias(one_block(kind))
    source, target = (torch.tensor([ids]) for ids in (SOURCE, TARGET))

    def relevance(a, b):
        x, y = (model.get_input_embeddings()(ids).detach().requires_grad_() for ids in (source, target))
        with propagate(model, "lrp"):
            logits = model(inputs_embeds=x, decoder_inputs_embeds=y, use_cache=False).logits[0, -1]
        value = logits[a] - logits[b]
        gradients = torch.autograd.grad(value, [x, y])
        return value, torch.cat([(t * g).sum(-1)[0] for t, g in zip((x, y), gradients, strict=True)])

    if kind == "bart":  # its positions take a share
        with torch.no_grad():
            model.model.encoder.embed_positions.weight.zero_()
            model.model.decoder.embed_positions.weight.zero_()
    value, found = relevance(11, 13)
    torch.testing.assert_close(found.sum(), value, rtol=1e-9, atol=1e-9)
    _, other = relevance(13, 11)
    torch.testing.assert_close(other, -found, rtol=1e-9, atol=1e-12)
    assert found[:5].abs().sum() > 0.01 * found.abs().sum() < found[5:].abs().sum() * 100  # both get some


@pytest.mark.parametrize("family", PAIRS)
@pytest.mark.parametrize("rules", ["lrp", "attnlrp", {}], ids=["lrp", "attnlrp", "none"])
def test_a_batch_of_different_lengths_is_each_alone(family, rules):
    """Sources and targets, each shorter or longer than the other's; padding of either gets nothing."""
    model = tiny.build(family)
    items = [
        ITEM,
        Item((9, 31, *TARGET, 50, 51), 6, 11, 13, source=2),
        Item((*SOURCE, 22, 23, 24, 2), 8, 20, None, source=8),
    ]
    together, values = relevance_of(model, items, rules)
    near = 5e-5 if "t5" in family else 1e-9  # T5's softmax is in float32, whose last digit is the processor's
    for item, found, value in zip(items, together, values, strict=True):
        [alone], [its] = relevance_of(model, [item], rules)
        assert found.shape == (len(item.token_ids),)
        np.testing.assert_allclose(found, alone, rtol=0, atol=near * np.abs(alone).max())
        np.testing.assert_allclose(value, its, rtol=near)


def test_padding_that_takes_part_is_refused():
    model = tiny.build("text2text:bart")
    batch = pad([ITEM, Item((9, 2), 1, 11, None, source=1)], model)
    batch.inputs["attention_mask"][1] = 1  # as if the source's padding were text
    result = run(model, batch, "lrp")
    assert np.abs(result.products[1, 1:5]).max() > 0
    batch.inputs["attention_mask"][1, 1:] = 0
    assert not np.abs(run(model, batch, "lrp").products[1, 1:5]).any()
    hook = model.get_decoder().register_forward_pre_hook(without_mask, with_kwargs=True)
    with pytest.raises(UnsupportedModelError, match="lets padding take part"):
        run(model, batch, "lrp")
    hook.remove()


def without_mask(_, args, kwargs):
    return args, {**kwargs, "encoder_attention_mask": None}


@pytest.mark.parametrize("family", PAIRS)
@pytest.mark.parametrize("rules", ["lrp", "attnlrp"])
def test_recomputed_blocks_change_nothing(family, rules):
    model = tiny.build(family)
    before = fingerprint(model)
    [plain], _ = relevance_of(model, [ITEM], rules)
    [again], _ = relevance_of(model, [ITEM], rules, checkpoint=True)
    assert np.array_equal(plain, again)
    assert fingerprint(model) == before


def test_neither_compiled_nor_captured_and_said_so(caplog):
    model = tiny.build("text2text:t5")
    [plain], _ = relevance_of(model, [ITEM], "lrp")
    with caplog.at_level(logging.INFO, logger="lrpx"):
        [same], _ = relevance_of(model, [ITEM], "lrp", compile=True)
    assert np.array_equal(plain, same)
    assert (
        "compile=True: T5ForConditionalGeneration has an encoder and a decoder: only texts alone and images are"
        in caplog.text
    )


def test_modules_of_either_stack_have_rows_of_all_tokens():
    model = tiny.build("text2text:bart", zero_biases=True)
    names = ["input", "model.encoder.layers.0", "model.decoder.layers.1"]
    batch = pad([ITEM], model)
    result = run(model, batch, "lrp", names)
    rows = {name: (h.state * h.gradient).double().sum(-1)[0] for name, h in result.hidden.items()}
    assert all(row.shape == (8,) for row in rows.values())
    assert not rows["model.encoder.layers.0"][5:].any()
    assert rows["model.encoder.layers.0"][:5].all()
    assert not rows["model.decoder.layers.1"][:5].any()
    torch.testing.assert_close(rows["model.decoder.layers.1"].sum(), torch.tensor(result.values[0]))  # all passes here
    with pytest.raises(InputError, match="did not run"):
        run(
            model,
            batch,
            "lrp",
            ["model.shared" if model.model.shared is not model.model.encoder.embed_tokens else "lm"],
        )


@pytest.mark.parametrize("place", ["input", "embedding"])
@pytest.mark.parametrize("family", PAIRS)
def test_one_embedding_module_for_both_stacks(family, place):
    """Its hook fires twice in a pass, and sources and targets have one length here."""
    model = tiny.build(family)
    batch = pad([Item((*SOURCE[:3], *TARGET), 5, 11, None, source=3)], model)
    apart = run(model, batch, "attnlrp", [place]).products
    model.get_decoder().embed_tokens = model.get_encoder().embed_tokens
    np.testing.assert_allclose(run(model, batch, "attnlrp", [place]).products, apart, rtol=1e-12)
    assert np.abs(apart).min() > 0


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_way_around_the_first_block_of_either_stack_is_seen(stack):
    model = tiny.build("text2text:bart")
    root, kept = getattr(model.model, stack), []
    root.embed_tokens.register_forward_hook(lambda _, __, output: kept.append(output))
    root.layers[1].register_forward_pre_hook(lambda _, args: (args[0] + kept[-1], *args[1:]))
    with pytest.raises(UnsupportedModelError, match="feeds its embedding into later blocks too"):
        run(model, pad([ITEM], model), "lrp")


def test_both_stacks_count():
    model = tiny.build("text2text:bart")
    assert layer_count(model) == 4
    one, two = (pad([Item((*SOURCE[:n], *TARGET), n + 2, 11, None, source=n)], model) for n in (2, 4))
    assert activation_bytes(model, two) / activation_bytes(model, one) == pytest.approx(7 / 5)


def test_cross_attention_that_is_hidden_is_refused():
    """Two attentions per block of a decoder have to be met."""
    model = tiny.build("text2text:bart")
    for layer in model.model.decoder.layers:
        layer.encoder_attn.forward = partial(hidden_attention, layer.encoder_attn)
    with pytest.raises(UnsupportedModelError, match=r"4 blocks and 2 cross-attentions.*4 attentions"):
        run(model, pad([ITEM], model), "lrp")


def hidden_attention(module, hidden_states, key_value_states=None, **_):
    """Every source token gets the same weight, so that no softmax is seen."""
    mixed = module.v_proj(key_value_states).mean(1, keepdim=True).expand_as(hidden_states)
    return module.out_proj(mixed), None
