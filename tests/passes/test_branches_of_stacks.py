"""Heads and layers of models with two stacks of blocks, and of image classifiers: against hooks on named modules, and sums."""

import re
from contextlib import ExitStack

import numpy as np
import pytest
import tiny
import tiny_heads
import tiny_images
import torch
from support import families, fingerprint, lift_float32_norms

import lrpx
from lrpx.errors import InputError
from lrpx.propagation.propagate import propagate
from lrpx.tasks.text2text import start_tokens

# Family -> of its blocks: which attentions they have, by the projection that their heads enter, and what adds the MLP.
T5 = (
    (r"encoder\.block\.\d+", ["layer.0.SelfAttention.o"], "layer.1.DenseReluDense.wo"),
    (r"decoder\.block\.\d+", ["layer.0.SelfAttention.o", "layer.1.EncDecAttention.o"], "layer.2.DenseReluDense.wo"),
)
BART = (
    (r"model\.encoder\.layers\.\d+", ["self_attn.out_proj"], "fc2"),
    (r"model\.decoder\.layers\.\d+", ["self_attn.out_proj", "encoder_attn.out_proj"], "fc2"),
)
PAIRS = {"text2text:t5": T5, "text2text:bart": BART}
# Encoder-decoder models of which the heads are not known: their encoders attend in pieces.
IN_PIECES = {"text2text:led", "text2text:longt5", "text2text:pegasus_x"}
MERGED = {"text2text:t5gemma2"}  # one attention reads the target and the source
SWEPT = [f"text2text:{kind}" for kind in (
    "bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus "
    "pegasus_x plbart switch_transformers t5 t5gemma t5gemma2 umt5"
).split()]  # fmt: skip
SWEPT = [family for family in SWEPT if family in tiny.PAIRS]
SOURCE = [9, 10, 11, 12, 14]
# Image classifiers whose blocks all read the same tokens.
IMAGES = (
    "beit clip data2vec-vision deit dinov2 dinov2_with_registers ijepa metaclip_2 siglip siglip2 vit vit_msn".split()
)
IMAGES = [f"image:{kind}" for kind in IMAGES if f"image:{kind}" in tiny_images.FAMILIES]
STAGES = [f"image:{kind}" for kind in ("hiera", "swin", "pvt", "resnet") if f"image:{kind}" in tiny_images.FAMILIES]


def prefix(model):
    try:
        return [*start_tokens(model), 20, 21]
    except InputError:  # the configuration names none
        return [2, 20, 21]


def explain(model, **options):
    options = {"method": "lrp", "heads": True, **options}
    return lrpx.explain(model, None, SOURCE, target=11, contrast=13, target_prefix=prefix(model), **options)


def by_hand(model, blocks, rules, value_of):
    """Of each block the relevance of heads ``[H, T]``, of attentions and of the MLP ``[T]``: each tensor times its gradient."""
    noted = []
    with ExitStack() as stack, propagate(model, rules, unknown="ignore"):

        def note(module, *, output):
            place = {}

            def see(_, args, result=None):
                place["tensor"] = result if output else args[0]
                place["value"] = place["tensor"].detach().clone()

            hook = module.register_forward_hook if output else module.register_forward_pre_hook
            stack.callback(hook(see).remove)
            return place

        for pattern, attentions, mlp in blocks:
            for name, block in model.named_modules():
                if re.fullmatch(pattern, name):
                    parts = [block.get_submodule(each) for each in attentions]
                    noted.append(
                        (
                            [note(part, output=False) for part in parts],
                            [note(part, output=True) for part in parts],
                            [note(block.get_submodule(mlp), output=True)],
                        )
                    )
        value = value_of(model)
        places = [place for of_block in noted for of_kind in of_block for place in of_kind]
        gradients = torch.autograd.grad(value, [place["tensor"] for place in places])
    for place, gradient in zip(places, gradients, strict=True):
        place["relevance"] = (place["value"] * gradient)[0].detach()
    heads = next(
        n
        for name in ("num_attention_heads", "num_heads", "encoder_attention_heads")
        if (n := getattr(model.config, name, 0))
    )
    found = []
    for of_heads, of_attention, of_mlp in noted:
        split = [place["relevance"].unflatten(-1, (heads, -1)).sum(-1).T for place in of_heads]
        sums = (sum(place["relevance"].sum(-1) for place in each) for each in (of_attention, of_mlp))
        found.append([part.numpy() for part in (torch.cat(split), *sums)])
    return found


@pytest.mark.parametrize("rules", ["lrp", "attnlrp"])
@pytest.mark.parametrize("family", PAIRS)
def test_agrees_with_hooks_on_named_modules(family, rules):
    model = tiny.build(family)
    before = fingerprint(model)

    def value(model):
        read = {
            "inputs_embeds": (model.get_encoder(), SOURCE),
            "decoder_inputs_embeds": (model.get_decoder(), prefix(model)),
        }
        leaves = {
            name: stack.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
            for name, (stack, ids) in read.items()
        }
        logits = model(**leaves, use_cache=False).logits[0, -1]
        return logits[11] - logits[13]

    with lift_float32_norms(model):
        e = explain(model, method=rules)
        expected = by_hand(model, PAIRS[family], rules, value)
    assert len(e.by_head) == len(e.by_attention) == len(e.by_mlp) == len(expected)
    for n, (heads, attention, mlp) in enumerate(expected):
        own = slice(0, 5) if n < len(expected) // 2 else slice(5, 8)  # tokens of the source, or of the target
        np.testing.assert_allclose(e.by_head[n, : len(heads), own], heads, atol=1e-9)
        np.testing.assert_allclose(e.by_attention[n, own], attention, atol=1e-9)
        np.testing.assert_allclose(e.by_mlp[n, own], mlp, atol=1e-9)
        assert not e.by_head[n, len(heads) :].any()
        assert not np.delete(e.by_head[n], np.r_[own], axis=-1).any()
        assert np.abs(heads).max() > 1e-6
    assert fingerprint(model) == before


@families(SWEPT, ("text2text:t5", "text2text:bart"))
def test_the_source_gets_what_cross_attention_passes_on(family):
    """Under LRP without biases nothing is lost: what the decoder's heads take from the encoder is what the source has."""
    model = tiny.build(family, zero_biases=True)
    e = explain(model)
    scale = np.abs(e.relevance).sum()
    if family in IN_PIECES:
        assert e.by_head is None
        assert any("what the heads wrote was not found" in note for note in e.notes)
        return
    np.testing.assert_allclose(e.by_head.sum(1), e.by_attention, atol=3e-6 * scale)
    depth = len(e.by_head) // 2
    assert not e.by_head[:depth, :, 5:].any()
    assert not e.by_head[depth:, :, :5].any()
    if family in MERGED:
        return
    count = e.by_head.shape[1] // 2
    cross = e.by_head[depth:, count:].sum()
    assert cross == pytest.approx(e.relevance[:5].sum(), abs=3e-6 * scale)
    assert abs(e.by_head[depth:, :count].sum() - e.relevance[:5].sum()) > 1e-4 * scale  # it can miss
    attnlrp = explain(model, method="attnlrp")
    assert abs(attnlrp.by_head[depth:, count:].sum() - attnlrp.relevance[:5].sum()) > 1e-4 * scale


def test_however_a_pass_is_run():
    model = tiny.build("text2text:bart")
    explainer, short = lrpx.Explainer(model, method="attnlrp"), [9, 10, 2]
    asked = {"target": 11, "contrast": 13, "target_prefix": prefix(model)}
    alone = [explainer(text, heads=True, **asked) for text in (SOURCE, short)]
    both = explainer([SOURCE, short], heads=True, **asked)
    checkpointed = lrpx.explain(model, None, SOURCE, heads=True, checkpoint=True, method="attnlrp", **asked)
    several = explainer(SOURCE, target=[11, 12], contrast=13, target_prefix=prefix(model), heads=True)
    assert alone[1].by_head.shape == (4, 8, 6)
    for one, other in ((alone[0], both[0]), (alone[1], both[1]), (alone[0], checkpointed), (alone[0], several[0])):
        for name in ("by_head", "by_attention", "by_mlp", "by_layer"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-10)
    assert explainer(SOURCE, **asked).by_head is not None  # of a short text, unasked
    assert explainer(SOURCE, heads=False, **asked).by_head is None


def test_a_classifier_of_two_stacks_adds_up_what_a_token_has_in_both():
    model = tiny_heads.build("text-classification:bart", zero_biases=True)
    end = model.config.eos_token_id
    e = lrpx.explain(model, None, [*SOURCE, end], target=2, contrast=0, method="lrp", heads=True)
    assert e.by_head.shape == (4, 8, 6)
    scale = np.abs(e.by_head).sum()
    np.testing.assert_allclose(e.by_head.sum(1), e.by_attention, atol=1e-9 * scale)
    # All relevance of the encoder comes through cross-attention; the decoder's tokens have the rest.
    cross, total = e.by_head[2:, 4:].sum(), e.relevance.sum() + e.components["the decoder's start token"]
    assert total == pytest.approx(e.value, abs=1e-9 * scale)
    assert abs(cross) > 1e-3 * abs(total)


VIT = ((r"vit\.(encoder\.layer|layers)\.\d+", ["attention.output.dense|attention.o_proj"], "output.dense|mlp.fc2"),)


def vit_modules(model):
    """The names differ between releases of transformers."""
    (pattern, [attention], mlp), names = VIT[0], dict(model.named_modules())
    [first, *_] = [name for name in names if re.fullmatch(pattern, name)]
    chosen = [next(p for p in each.split("|") if f"{first}.{p}" in names) for each in (attention, mlp)]
    return ((pattern, [chosen[0]], chosen[1]),)


@pytest.mark.parametrize("rules", ["lrp", "attnlrp"])
def test_an_image_classifier_agrees_with_hooks(rules):
    model = tiny_images.build("image:vit")
    pixels = tiny_images.inputs(model)["pixel_values"]

    def value(model):
        logits = model(pixels.clone().requires_grad_()).logits[0]
        return logits[1] - logits[2]

    e = lrpx.explain(model, None, pixels[0], target=1, contrast=2, method=rules)
    for n, (heads, attention, mlp) in enumerate(by_hand(model, vit_modules(model), rules, value)):
        np.testing.assert_allclose(e.by_head[n], heads, atol=1e-9)
        np.testing.assert_allclose(e.by_attention[n], attention, atol=1e-9)
        np.testing.assert_allclose(e.by_mlp[n], mlp, atol=1e-9)


@families(IMAGES, ("image:vit", "image:siglip2"))
def test_heads_of_image_classifiers_add_up(family):
    model = tiny_images.build(family, zero=True)
    inputs = tiny_images.inputs(model)
    e = lrpx.explain(model, None, inputs, target=1, contrast=2, method="lrp")
    assert e.by_head.shape == (2, 4, len(e.tokens))
    scale = np.abs(e.by_head).sum()
    np.testing.assert_allclose(e.by_head.sum(1), e.by_attention, atol=1e-9 * scale)
    assert len(e.to_frame(of="heads")) == 8 * len(e.tokens)


@families(STAGES, ("image:swin",))
def test_blocks_that_read_other_tokens_are_left_out(family):
    model = tiny_images.build(family)
    e = lrpx.explain(model, None, tiny_images.inputs(model), target=1, heads=True)
    assert (e.by_head, e.by_layer, e.by_attention, e.by_mlp) == (None,) * 4
    assert any("what the heads wrote was not found" in note for note in e.notes)


def test_images_in_a_batch_and_at_pixels():
    model = tiny_images.build("image:vit")
    explainer, pixels = lrpx.Explainer(model), tiny_images.inputs(model, batch=2)["pixel_values"]
    both, alone = explainer(pixels, target=1), explainer(pixels[1], target=1)
    np.testing.assert_allclose(both[1].by_head, alone.by_head, atol=1e-12)
    assert explainer(pixels[1], target=1, at="pixels").by_head is None  # a pixel is no token of the blocks
    assert explainer(list(pixels) * 3, target=1)[0].by_head is None  # many images: unasked, no heads
    assert explainer(pixels[1], target=1, heads=False).by_head is None
