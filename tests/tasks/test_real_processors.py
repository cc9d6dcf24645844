"""An image file and a text through the processor classes of transformers, built here with a small vocabulary, to a map.

What a processor packs is put together again: the picture of the explanation is the one that was given. Where the image
processor needs torchvision, the test runs where that is installed.
"""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_image_text
import tiny_processors
import torch
import transformers
from pictures import photo
from PIL import Image
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.utils import is_torchvision_available

import lrpx
from lrpx.errors import InputError
from lrpx.tasks.pixel_maps import _side, unpacked_pictures

QUESTION = "What is in the picture ?"
ALIKE = 0.98  # correlation of two pictures, which may be scaled


def words(model, image="<image>", **more):
    """A vocabulary with the tokens that a processor wants, by their names."""
    ids = {token: 96 - n for n, token in enumerate({token for token in more.values() if token != image})}
    return tiny_processors.words(tiny_image_text.image_token(model), image, ids, extra_special_tokens=more)


def chat(token):
    return tiny_processors.CHAT.replace("IMAGE", token)


def hunyuan(model):
    tokenizer = words(model, image_token="<image>", image_start_token="<is>", image_end_token="<ie>")
    images = transformers.HunYuanVLImageProcessorPil(
        patch_size=model.config.vision_config.patch_size, size={"shortest_edge": 1, "longest_edge": 10**9}
    )
    return transformers.HunYuanVLProcessor(images, tokenizer, chat_template=chat("<is><image><ie>"))


def kosmos(model):
    tokenizer = words(model, "<simg>", image_token="<simg>", boi_token="<image>", eoi_token="</image>")
    images = transformers.Kosmos2_5ImageProcessorPil(patch_size={"height": 8, "width": 8})
    processor = transformers.Kosmos2_5Processor(images, tokenizer, num_image_tokens=4)
    processor.images_kwargs = {**processor.images_kwargs, "max_patches": 24}
    return processor


def gemma3(model):
    soft = "<image_soft_token>"
    tokenizer = words(model, soft, image_token=soft, boi_token="<boi>", eoi_token="<eoi>")
    images = transformers.Gemma3ImageProcessorPil(size={"height": 64, "width": 64})
    return transformers.Gemma3Processor(images, tokenizer, image_seq_length=4)


def muse(model):
    vision = model.config.vision_config
    more = {"a": "<|image_start|>", "b": "<|image_end|>"}
    images = transformers.MuseGlimmerImageProcessor(
        patch_size=vision.patch_size, merge_size=vision.merge_size, temporal_patch_size=vision.patch_temporal
    )
    return transformers.MuseGlimmerProcessor(
        image_processor=images,
        video_processor=transformers.MuseGlimmerVideoProcessor(),
        tokenizer=words(model, "<|patch|>", **more),
        chat_template=chat("<|patch|>"),
    )


def inkling(model):
    vision = model.config.vision_config
    side = vision.patch_size * vision.spatial_merge_size
    images = transformers.Inkling2ImageProcessor(size={"height": side, "width": side})
    return transformers.Inkling2Processor(images, words(model, image_token="<image>"), chat_template=chat("<image>"))


def molmo(model):
    names = ("im_col", "im_start", "low_res_im_start", "frame_start", "im_end", "frame_end", "im_low")
    more = {"image_token": "<|image|>", "v": "<|video|>", **{name: f"<{name}>" for name in names}}
    images = transformers.Molmo2ImageProcessor(
        size={"height": 32, "width": 32}, patch_size=8, overlap_margins=[1, 1], max_crops=4
    )
    return transformers.Molmo2Processor(
        images, transformers.Molmo2VideoProcessor(), words(model, "<im_patch>", **more), chat_template=chat("<|image|>")
    )


PROCESSORS = {
    "hunyuan_vl": (hunyuan, False),
    "kosmos-2.5": (kosmos, False),
    "t5gemma2": (gemma3, False),
    "muse_glimmer": (muse, True),
    "inkling2": (inkling, True),
    "molmo2": (molmo, True),
}
"""Model type -> how its processor is built, and whether that needs torchvision."""


def needs(family, torchvision=False):
    return [
        pytest.mark.skipif(
            family not in tiny_image_text.NAMES or not hasattr(transformers, "Gemma3ImageProcessorPil"),
            reason="not in this transformers",
        ),
        *([pytest.mark.skipif(not is_torchvision_available(), reason="needs torchvision")] * torchvision),
    ]


def likeness(image, picture):
    """Correlation of the picture of an explanation with the one that was given."""
    seen = Image.open(io.BytesIO(image.png)).convert("RGB").resize(picture.size)
    return np.corrcoef(np.asarray(seen, float).ravel(), np.asarray(picture, float).ravel())[0, 1]


@pytest.mark.filterwarnings("ignore:the text has .* tokens:lrpx.errors.LrpxWarning")
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=needs(name, torchvision)) for name, (_, torchvision) in PROCESSORS.items()]
)
def test_image_file_and_text_to_a_map(family, tmp_path):
    model = tiny_image_text.build(family, dtype=torch.float32)
    model.generation_config.decoder_start_token_id = 2
    explainer = lrpx.Explainer(model, PROCESSORS[family][0](model))
    path, picture = tmp_path / "a.png", photo(96, 64)
    picture.save(path)
    for at in ("input", "pixels"):
        asked = {"images": [str(path)], "at": at}
        e = explainer(QUESTION, target="a", **asked)
        assert abs(e.residual - (e.value - e.relevance.sum())) < 1e-4 * abs(e.relevance).max()
        if at == "pixels" or family != "kosmos-2.5":  # whose tokens are mixtures
            assert likeness(e.images[0], picture) > ALIKE
            assert abs(e.relevance[list(e.images[0].tokens)]).max() > 0
        g = explainer.generate(QUESTION, continuation=" a cat", **asked)
        np.testing.assert_allclose(g[0].relevance, e.relevance, rtol=0, atol=1e-4 * abs(e.relevance).max())
    if family == "t5gemma2":
        placed = explainer("What is <boi> ?", images=[str(path)], target="a")
        assert placed.tokens[2:4] == ["<boi>", "<image_soft_token>"]
    if family == "kosmos-2.5":
        assert e.tokens[:3] == ["<s>", "<image>", "[1, 1]"]  # the processor puts the image before the text, and once
        assert e.tokens.count("<image>") == 1


@pytest.mark.parametrize("family", [pytest.param("pix2struct", marks=needs("pix2struct"))])
def test_pix2struct_reads_a_picture_as_its_processor_does(family, tmp_path):
    model = tiny_image_text.build(family, dtype=torch.float32)
    model.generation_config.decoder_start_token_id = 2
    images = transformers.Pix2StructImageProcessorPil(patch_size={"height": 8, "width": 8}, max_patches=1000)
    processor = transformers.Pix2StructProcessor(images, tiny_processors.words(4))
    processor.images_kwargs = {"max_patches": 40}  # which go before those of the image processor
    explainer, path, picture = lrpx.Explainer(model, processor), tmp_path / "a.png", photo(96, 64)
    picture.save(path)
    made = processor(images=picture, return_tensors="pt")
    for at in ("input", "pixels"):
        e = explainer(str(path), target="cat", at=at)
        [image] = e.images
        assert (image.rows, image.columns) == (5, 7)
        assert likeness(image, picture) > ALIKE
        np.testing.assert_allclose(explainer(dict(made), target="cat", at=at).relevance, e.relevance, atol=1e-5)
        assert len(explainer.generate(str(path), continuation="a cat", at=at)) == 2
    with pytest.raises(InputError, match=r"decoder_input_ids beside flattened_patches .* is target_prefix="):
        explainer(dict(processor(images=picture, text="What is in", return_tensors="pt")), target="cat")
    images.is_vqa = True
    with pytest.raises(InputError, match=r"A header text must be provided .* give what it makes: explainer\(processor"):
        explainer(str(path), target="cat")


@pytest.mark.parametrize("family", [pytest.param("pp_formulanet", marks=needs("pp_formulanet", torchvision=True))])
def test_pp_formulanet_reads_a_picture_as_its_processor_does(family, tmp_path):
    model = tiny_image_text.build(family, dtype=torch.float32)
    model.generation_config.decoder_start_token_id = 2
    images = transformers.PPFormulaNetImageProcessor(size={"height": 64, "width": 64})
    processor = transformers.PPFormulaNetProcessor(images, tiny_processors.words(4))
    explainer, path = lrpx.Explainer(model, processor), tmp_path / "a.png"
    photo(96, 64).save(path)
    made = processor(images=photo(96, 64), return_tensors="pt")
    for at in ("input", "pixels"):
        e = explainer(str(path), target="cat", at=at)
        assert (e.images[0].rows, e.images[0].columns) == (8, 8)
        np.testing.assert_allclose(explainer(dict(made), target="cat", at=at).relevance, e.relevance, atol=1e-5)
        assert len(explainer.generate(str(path), continuation="a cat", at=at)) == 2


PACKED = [
    name
    for name in (
        *("cohere_compass", "cosmos3_edge", "cosmos3_omni", "dots3_note", "ernie4_5_vl_moe", "exaone4_5", "gemma4"),
        *("gemma4_unified", "glm46v", "glm4v", "glm5_next", "glmga", "hunyuan_vl", "hy_v4_vl", "hyperclovax_vision_v2"),
        *("kimi_k25", "kosmos-2.5", "lfm2_vl", "lfm3_vl", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "minimax_m3_vl"),
        *("molmo2", "muse_glimmer", "muse_spark", "nemotron_h_omni", "paddleocr_vl", "pix2struct", "qwen2_5_vl"),
        *("qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen4_exp", "video_llama_3"),
    )
    if name in tiny_image_text.NAMES
]
"""Model types whose image processors pack patches: in lists, strips or crops."""


@pytest.mark.slow
@pytest.mark.skipif(not is_torchvision_available(), reason="needs torchvision")
@pytest.mark.parametrize("family", PACKED)
def test_what_a_processor_packs_is_put_together_again(family):
    """With the sizes of the released models: a picture of few colours that fills all patches, as it was but for its size."""
    known = IMAGE_PROCESSOR_MAPPING_NAMES[family]
    name = known["torchvision"] if isinstance(known, dict) else known
    model = SimpleNamespace(config=CONFIG_MAPPING[family]())
    processor, side = getattr(transformers, name)(), _side(model)
    if side and isinstance(getattr(processor, "patch_size", None), int) and processor.patch_size != side:
        processor = getattr(transformers, name)(patch_size=side)  # shared with models of another size
    colours = np.random.default_rng(0).integers(0, 255, (7, 9, 3), dtype=np.uint8)
    picture = Image.fromarray(colours).resize((448, 336), Image.Resampling.BICUBIC)
    made = processor(images=[picture], return_tensors="pt")
    inputs = {key: torch.as_tensor(value) for key, value in made.items()}
    first = torch.from_numpy(np.ascontiguousarray(unpacked_pictures(model, inputs)[0].pixels)).float()
    found = torch.nn.functional.interpolate(first[None], size=(336, 448), mode="bilinear", antialias=True)[0]
    for channel, expected in zip(found.numpy(), np.asarray(picture, float).transpose(2, 0, 1), strict=True):
        assert np.corrcoef(channel.ravel(), expected.ravel())[0, 1] > 0.999
