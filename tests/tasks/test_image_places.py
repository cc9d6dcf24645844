"""Where the patches of an image stand: compared with what models and processors of transformers do themselves."""

import io

import numpy as np
import pytest
import tiny_image_text
import tiny_processors
import torch
import transformers
from pictures import photo
from PIL import Image

from lrpx.tasks.image_places import image_patches, image_tokens
from lrpx.tasks.pictures import png_of
from lrpx.tasks.pixel_maps import pixel_maps


def opened(patches):
    return np.asarray(Image.open(io.BytesIO(patches.png)).convert("RGB"), dtype=float)


def test_qwen_patches_are_put_together_to_the_picture_again():
    """So rows and columns are those of the patches in their order, merged two by two."""
    model = tiny_image_text.build("qwen2_vl")
    vision = model.config.vision_config
    processor = tiny_processors.with_pillow("Qwen2VL")(patch_size=vision.patch_size, min_pixels=1, max_pixels=10**9)
    side = vision.patch_size * vision.spatial_merge_size
    pictures = [photo(3 * side, 2 * side), photo(side, 4 * side, seed=1)]
    made = processor(images=pictures, return_tensors="pt")
    image = tiny_image_text.image_token(model)
    ids = [9, *[image] * 6, 10, *[image] * 4]
    found = image_patches(model, ids, made, processor, ())
    assert [(p.start, p.rows, p.columns) for p in found] == [(1, 2, 3), (8, 4, 1)]
    for patches, picture in zip(found, pictures, strict=True):
        np.testing.assert_allclose(opened(patches), np.asarray(picture, dtype=float), atol=1)


@pytest.mark.parametrize("size", [(64, 128), (40, 128), (128, 64), (100, 128), (128, 50), (128, 128)])
@pytest.mark.parametrize("name", ["llava_next", "llava_onevision"])
def test_tiles_are_in_the_order_in_which_the_model_packs_them(name, size):
    """Features that hold their own row and column, packed by the model."""
    model = tiny_image_text.build(name)
    vision, points = model.config.vision_config, model.config.image_grid_pinpoints
    high, wide = transformers.image_processing_utils.select_best_resolution(size, points)
    base = vision.image_size // vision.patch_size
    rows, columns = high // vision.image_size, wide // vision.image_size
    row, column = np.mgrid[: rows * base, : columns * base]
    whole = np.stack([row, column], -1).reshape(rows, base, columns, base, 2).transpose(0, 2, 1, 3, 4)
    tiles = torch.from_numpy(whole.reshape(rows * columns, base * base, 2).astype(float))
    small = torch.full((1, base * base, 2), -1.0, dtype=torch.float64)
    packed, _ = model.model.pack_image_features(
        [torch.cat([small, tiles])],
        torch.tensor([size]),
        **({"vision_feature_select_strategy": "default"} if name == "llava_next" else {}),
        image_newline=torch.full((2,), -9.0, dtype=torch.float64),
    )
    [packed] = packed
    image = tiny_image_text.image_token(model)
    pixels = torch.rand(1, 1 + len(tiles), 3, vision.image_size, vision.image_size)
    inputs = {"pixel_values": pixels, "image_sizes": torch.tensor([size])}
    found = image_patches(model, [image] * len(packed), inputs, None, ())
    first, second = found
    assert (packed[list(first.tokens)] == -1).all()
    read = packed[list(second.tokens)].reshape(second.rows, second.columns, 2)
    assert (read >= 0).all()  # no end of a row
    assert (read[..., 0] == read[:, :1, 0]).all()
    assert (read[1:, 0, 0] - read[:-1, 0, 0] == 1).all()
    assert (read[:, 1:, 1] - read[:, :-1, 1] == 1).all()
    assert len(first.tokens) + second.rows * (second.columns + 1) == len(packed)


def test_tokens_at_the_ends_of_rows_are_left_out():
    """As Pixtral's: they have an id of their own."""
    model = tiny_image_text.build("mistral3")
    side = model.config.vision_config.patch_size * model.config.spatial_merge_size
    image, end = tiny_image_text.image_token(model), 50
    ids = [9, *([image] * 3 + [end]) * 2, 10]
    inputs = {"pixel_values": torch.rand(1, 3, 2 * side, 3 * side), "image_sizes": torch.tensor([[2 * side, 3 * side]])}
    [found] = image_patches(model, ids, inputs, None, ())
    assert (found.rows, found.columns, found.width, found.height) == (2, 3, 3 * side, 2 * side)
    assert list(found.tokens) == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("images", [1, 2])
def test_tiles_that_say_where_they_are_become_one_image(images):
    """As SmolVLM's: rows and columns of tiles, then the whole image; each tile has another grey."""
    model = tiny_image_text.build("llava")
    side, image = model.config.vision_config.image_size, tiny_image_text.image_token(model)
    greys = torch.arange(1, 7.0 * images + 1).view(1, -1, 1, 1, 1) / (7 * images)  # all 0 is padding
    inputs = {"pixel_values": greys.expand(-1, -1, 3, side, side)}
    text = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2, 3)] + ["<global-img>"]
    pieces = [piece for label in text * images for piece in (label, *["<image>"] * 4)]
    ids = [image if piece == "<image>" else 9 for piece in pieces]
    processor = transformers.image_processing_utils.BaseImageProcessor(image_mean=[0.0] * 3, image_std=[1.0] * 3)
    found = image_patches(model, ids, inputs, processor, (), pieces)
    which = [""] if images == 1 else [" 1", " 2"]
    assert [p.name for p in found] == [f"image{n}, {kind}" for n in which for kind in ("in detail", "whole")]
    for n, detail in enumerate(found[::2]):
        assert (detail.rows, detail.columns, detail.width, detail.height) == (4, 6, 3 * side, 2 * side)
        tokens = np.array(detail.tokens).reshape(2, 2, 3, 2)  # rows of tiles, rows, columns of tiles, columns
        for row, column in np.ndindex(2, 3):
            start = n * 35 + (row * 3 + column) * 5 + 1
            assert tokens[row, :, column].ravel().tolist() == list(range(start, start + 4))
            grey = 255 * (n * 7 + row * 3 + column + 1) / (7 * images)
            drawn = opened(detail)[row * side : (row + 1) * side, column * side : (column + 1) * side]
            np.testing.assert_allclose(drawn, grey, atol=1)


def test_tiles_of_which_one_is_missing_stay_as_they_are():
    model = tiny_image_text.build("llava")
    side, image = model.config.vision_config.image_size, tiny_image_text.image_token(model)
    pieces = ["<row_1_col_1>", "<image>", "<row_2_col_2>", "<image>", "<global-img>", "<image>"]
    ids = [image if piece == "<image>" else 9 for piece in pieces]
    found = image_patches(model, ids, {"pixel_values": torch.rand(1, 3, 3, side, side)}, None, (), pieces)
    assert [(p.start, p.rows, p.columns) for p in found] == [(1, 1, 1), (3, 1, 1), (5, 1, 1)]


@pytest.mark.parametrize("count", [5, 3])
def test_what_does_not_fit_has_no_places(count):
    model = tiny_image_text.build("llava")
    side = model.config.vision_config.image_size
    ids = [tiny_image_text.image_token(model)] * count
    assert image_patches(model, ids, {"pixel_values": torch.rand(1, 3, side, side)}, None, ()) is None


@pytest.mark.parametrize(
    "family",
    [
        name
        for name in ("qwen2_vl", "hunyuan_vl", "hy_v4_vl", "muse_glimmer", "inkling2")
        if name in tiny_image_text.NAMES
    ],
)
def test_a_token_stands_where_the_pixels_are_that_it_is_made_of(family):
    """Without attention a token is made of its own pixels alone, by plain autograd."""
    model = tiny_image_text.build(family)
    given = tiny_image_text.inputs(model)
    for module in model.modules():
        if "Attention" in type(module).__name__:
            for name, layer in module.named_modules():
                if isinstance(layer, torch.nn.Linear) and name.rpartition(".")[2] in ("out_proj", "proj", "o_proj"):
                    torch.nn.init.zeros_(layer.weight)
    tokens = image_tokens(model, given["input_ids"][0].tolist())
    [image] = image_patches(model, given["input_ids"][0].tolist(), given, None, ())
    pixels = given["pixel_values"].clone().requires_grad_()
    of_images = {key: value for key, value in given.items() if key == "image_grid_thw"}
    owner = model if hasattr(model, "get_image_features") else model.model
    found = owner.get_image_features(pixel_values=pixels, **of_images).pooler_output
    features = torch.cat([each.flatten(0, -2) for each in (found if isinstance(found, tuple | list) else [found])])
    weights = torch.randn(features.shape[-1], generator=torch.Generator().manual_seed(0), dtype=features.dtype)
    for place, token in enumerate(image.tokens):
        (slope,) = torch.autograd.grad((features[tokens.index(token)] * weights).sum(), pixels, retain_graph=True)
        [each] = pixel_maps(model, {**given, "pixel_values": pixels}, "pixel_values", slope.abs().numpy())
        high, wide = each.pixels.shape[1] // image.rows, each.pixels.shape[2] // image.columns
        cells = each.pixels.sum(0).reshape(image.rows, high, image.columns, wide).sum((1, 3)).ravel()
        assert cells[place] == pytest.approx(cells.sum())


def test_a_resampler_leaves_no_places():
    model = tiny_image_text.build("idefics2")
    given = tiny_image_text.inputs(model)
    assert image_patches(model, given["input_ids"][0].tolist(), given, None, ()) is None


def test_a_large_picture_is_kept_smaller():
    width, height, _ = png_of(photo(1200, 600))
    assert (width, height) == (1024, 512)


def test_a_score_of_image_and_text_has_no_position():
    import app_kinds
    import pictures

    explainer = app_kinds.desk("image-text-score").explainer
    e = explainer(pictures.photo(), target="a cat </s>")
    assert "the score is that of the whole image and text; the image begins at position 0" in e.to_html()
