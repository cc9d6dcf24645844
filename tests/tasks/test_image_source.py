"""Encoder-decoder models that describe an image: how it is given, by name and on the command line, and what is refused."""

import io
import json

import numpy as np
import pytest
import tiny_image_text
import tiny_images
import tiny_processors
import torch
import transformers
from pictures import photo
from rich.console import Console
from tiny_image_inputs import inputs
from transformers import VisionTextDualEncoderProcessor, ViTImageProcessor
from typer.testing import CliRunner

import lrpx
from lrpx.cli.main import app
from lrpx.errors import InputError
from lrpx.heatmap import render_generated

PREFIX = {"target_prefix": [2]}


@pytest.fixture(scope="module")
def vit():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    decoder = transformers.BertConfig(**sizes, vocab_size=97, is_decoder=True, add_cross_attention=True)
    encoder = transformers.ViTConfig(**sizes, image_size=64, patch_size=16)
    torch.manual_seed(0)
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = transformers.VisionEncoderDecoderModel(both).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.generation_config.decoder_start_token_id = 2
    images = ViTImageProcessor(size={"height": 64, "width": 64})
    return lrpx.Explainer(model, VisionTextDualEncoderProcessor(images, tiny_processors.words(4)))


def test_a_picture_in_any_form(vit, tmp_path):
    photo().save(tmp_path / "a.png")
    e = vit(photo(), target="cat", contrast="dog")
    assert e.tokens[:3] == ["[CLS]", "[1, 1]", "[1, 2]"]
    assert (e.target.text, e.contrast.text) == ("cat", "dog")
    [image] = e.images
    assert (image.start, image.rows, image.columns, image.width) == (1, 4, 4, 64)
    made = vit.reader(images=photo(), return_tensors="pt")
    asked = {"target": "cat", "contrast": "dog"}
    for given in (str(tmp_path / "a.png"), np.asarray(photo()), dict(made), made["pixel_values"][0].numpy()):
        np.testing.assert_array_equal(vit(given, **asked).relevance, e.relevance)
    several = vit([photo(), photo(seed=1)], **asked)
    np.testing.assert_array_equal(several[0].relevance, e.relevance)
    assert "16 patches" in e.to_html() or "4 x 4" in e.to_html()
    words = vit(photo(), target="a cat")
    assert words.span == (17, 19)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
ENCODERS = {
    "TrOCR": ("DeiTConfig", {**SMALL, "image_size": 32, "patch_size": 8}),
    "Donut": (
        "DonutSwinConfig",
        {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]},
    ),
}
DECODERS = {"TrOCR": "TrOCRConfig", "Donut": "MBartConfig"}


@pytest.mark.parametrize(("make", "before", "rows"), [("TrOCR", 2, 4), ("Donut", 0, 16)])
def test_makes_of_encoders_and_decoders(make, before, rows):
    """Relevance of patches and target adds up under LRP without constants, also where blocks merge patches (Swin)."""
    kind, sizes = ENCODERS[make]
    encoder = getattr(transformers, kind)(**sizes)
    sizes = {"vocab_size": 97, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    decoder = getattr(transformers, DECODERS[make])(**sizes, is_decoder=True, add_cross_attention=True)
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    torch.manual_seed(0)
    model = transformers.VisionEncoderDecoderModel(both).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    tiny_images.zero_constants(model)
    model.generation_config.decoder_start_token_id = 2
    pixels = torch.randn(3, encoder.image_size, encoder.image_size)
    e = lrpx.explain(model, None, pixels, target=11, contrast=13, method="lrp", target_prefix=[2, 20])
    assert abs(e.residual) < 1e-4 * np.abs(e.relevance).sum()
    [image] = e.images
    assert (image.start, image.rows, image.columns) == (before, rows, rows)
    assert len(e.tokens) == before + rows**2 + 2


def test_what_it_writes_is_explained_token_by_token(vit):
    g = vit.generate(photo(), max_new_tokens=2)
    assert len(g) == 2
    assert g.images == vit(photo(), target=9).images
    assert vit.likeliest(photo(), 2)[0].token.id == g.token_ids[g.prompt_length]
    console = Console(file=io.StringIO(), width=200)
    console.print(render_generated(g))
    table = console.file.getvalue().partition("strongest")[2]
    assert " image " in table  # a picture is no token, and has no quotes
    assert 'image"' not in table


BAD = [
    ("cat.png", "there is no file 'cat.png'"),
    (".", "'.' is a folder. Give the path of a picture."),
    ({"input_ids": [1]}, "reads an image, pixel_values, and was given a dictionary with input_ids"),
    (torch.zeros(3, 8), r"pixel_values has the shape \[3, 8\]: expected one image"),
    (torch.full((3, 64, 64), torch.nan), "NaN or infinity"),
    (torch.zeros(3, 30, 30), "the encoder of VisionEncoderDecoderModel cannot read this image"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[m[:15] for _, m in BAD])
def test_bad_input(vit, given, message):
    with pytest.raises(InputError, match=message):
        vit(given, target=9)


def test_what_is_for_others_is_refused(vit):
    with pytest.raises(InputError, match=r"through its processor, which is missing.*AutoProcessor"):
        lrpx.explain(vit.model, None, photo(), target=9, **PREFIX)
    with pytest.raises(InputError, match='at="embedding" is for texts alone'):
        vit(photo(), target=9, at="embedding")
    with pytest.raises(InputError, match=r"images= are those of a text, .* reads no text"):
        vit(photo(), images=[photo()], target=9)
    with pytest.raises(InputError, match=r"images= are those of a text, .* reads no text"):
        vit.generate(photo(), images=[photo()], max_new_tokens=1)
    with pytest.raises(InputError, match="changes word embeddings"):
        vit(photo(), target=9, method="integrated-gradients")


def test_loaded_by_name_and_on_the_command_line(vit, tmp_path):
    """Without a processor of its own: tokenizer and image processor are saved beside it."""
    vit.model.save_pretrained(tmp_path)
    vit.tokenizer.save_pretrained(tmp_path)
    vit.reader.image_processor.save_pretrained(tmp_path)
    photo().save(tmp_path / "a.png")
    expected = vit(photo(), target="cat")
    explain = ["explain", "--image", tmp_path / "a.png", "--target", "cat", "-m", tmp_path, "--format", "json"]
    done = CliRunner().invoke(app, list(map(str, explain)))
    assert done.exit_code == 0, done.output
    [saved] = json.loads(done.stdout)
    np.testing.assert_allclose(saved["relevance"], expected.relevance, rtol=1e-4, atol=1e-6)
    done = CliRunner().invoke(app, list(map(str, [*explain, "--at", "pixels"])))
    assert done.exit_code == 0, done.output
    [saved] = json.loads(done.stdout)
    assert np.shape(saved["layers"]["pixels"]) == (3, 64, 64)
    assert saved["tokens"][:2] == ["[1, 1]", "[1, 2]"]
    pixels = vit(photo(), target="cat", at="pixels").relevance
    np.testing.assert_allclose(saved["relevance"], pixels, rtol=1e-3, atol=1e-4 * abs(pixels).max())
    generate = [
        "generate",
        "--image",
        tmp_path / "a.png",
        "--continuation",
        "a cat",
        "-m",
        tmp_path,
        "--format",
        "json",
    ]
    done = CliRunner().invoke(app, list(map(str, generate)))
    assert done.exit_code == 0, done.output
    saved = json.loads(done.stdout)
    assert saved["images"]
    assert len(saved["relevance"]) == 2


def test_pix2struct_padding_is_left_out():
    model = tiny_image_text.build("pix2struct")
    given = inputs(model)["flattened_patches"]
    padded = torch.cat([given, torch.zeros(1, 5, given.shape[2], dtype=given.dtype)], 1)
    mask = (padded[..., 0] > 0).long()
    explained = [
        lrpx.explain(model, None, each, target=11, target_prefix=[0])
        for each in (given, padded, {"flattened_patches": padded, "attention_mask": mask})
    ]
    for e in explained:
        assert len(e.tokens) == 17
        np.testing.assert_allclose(e.relevance, explained[0].relevance, atol=1e-12)
    with pytest.raises(InputError, match=r"decoder_input_ids beside.*target_prefix="):
        lrpx.explain(
            model, None, {"flattened_patches": given, "decoder_input_ids": [[1]]}, target=11, target_prefix=[0]
        )


@pytest.mark.skipif("florence2" not in tiny_image_text.NAMES, reason="this transformers has no Florence 2")
def test_florence_puts_its_image_token_itself():
    model = tiny_image_text.build("florence2", dtype=torch.float32)
    images = tiny_processors.with_pillow("CLIP")(size={"height": 64, "width": 64}, do_center_crop=False)
    images.image_seq_length = 65
    tokenizer = tiny_processors.words(4, extra_special_tokens={"image_token": "<image>"})
    processor = transformers.Florence2Processor(images, tokenizer)
    e = lrpx.explain(model, processor, "What is in the picture ?", images=[photo()], target=11, **PREFIX)
    assert e.tokens[:66] == [*["<image>"] * 65, "<s>"]
    [image] = e.images
    assert (image.start, image.rows, image.columns) == (1, 8, 8)
    with pytest.raises(InputError, match="reads one image with a text, and 2 are given"):
        lrpx.explain(model, processor, "What is in the picture ?", images=[photo(), photo()], target=11, **PREFIX)
    with pytest.raises(InputError, match="images need the model's processor"):
        lrpx.explain(model, tokenizer, "What is in the picture ?", images=[photo()], target=11, **PREFIX)
