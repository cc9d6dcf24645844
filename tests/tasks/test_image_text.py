"""Texts with images: read as the model's processor reads them, explained correctly, and refused with what to type."""

import io
import json
from contextlib import nullcontext

import numpy as np
import pytest
import tiny
import tiny_processors
import torch
from pictures import photo
from PIL import Image

import lrpx
import lrpx.models.loading
from lrpx import Explanation
from lrpx.check import check
from lrpx.cli import main as cli
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.passes.attribution import run
from lrpx.propagation.propagate import propagate
from lrpx.text.batching import Item, pad

TEXT = "What is in the picture ?"
CAT, DOG = 20, 21
PLACED = "user : <image> What is in the picture ? assistant :"


@pytest.fixture(scope="module")
def llava():
    model = tiny.build("vision:llava")
    return model, tiny_processors.llava(model)


@pytest.fixture(scope="module")
def explainer(llava):
    return lrpx.Explainer(*llava)


def logits(model, processor, text, images):
    inputs = processor(text=[text], images=[images], return_tensors="pt")
    with torch.no_grad():
        return model(**inputs.to(model.dtype)).logits[0]


# What is read.


def test_one_map_for_text_and_patches(llava, explainer):
    picture = photo()
    e = explainer(PLACED, images=[picture], target=CAT, contrast=DOG)
    plain = logits(*llava, PLACED, [picture])[-1]
    assert e.value == pytest.approx(float(plain[CAT] - plain[DOG]), rel=1e-9)
    assert e.tokens == ["user", ":", *["<image>"] * 4, *TEXT.split(), "assistant", ":"]
    [image] = e.images
    assert (image.start, image.rows, image.columns, image.width, image.height) == (2, 2, 2, 64, 64)
    assert e.text == PLACED
    assert not any("not given" in note for note in e.notes)


def test_a_text_without_a_place_is_a_chat_message_and_it_is_said(explainer):
    a, b = explainer(TEXT, images=[photo()], target=20), explainer(PLACED, images=[photo()], target=20)
    assert a.tokens == b.tokens
    assert a.relevance.tolist() == b.relevance.tolist()
    assert "the text had no place for its images, and was read as a chat message, images first." in a.notes


def test_without_a_chat_template_the_image_stands_before_the_text(llava):
    model, _ = llava
    e = lrpx.explain(model, tiny_processors.llava(model, chat_template=None), TEXT, images=[photo()], target=20)
    assert e.tokens == [*["<image>"] * 4, *TEXT.split()]
    assert any("'<image>' was put before it" in note for note in e.notes)


@pytest.mark.parametrize("kind", ["in the message", "beside it", "a path"])
def test_chat_messages(explainer, tmp_path, kind):
    picture = photo()
    picture.save(tmp_path / "cat.png")
    held = {"in the message": {"image": picture}, "beside it": {}, "a path": {"image": str(tmp_path / "cat.png")}}[kind]
    chat = [{"role": "user", "content": [{"type": "image", **held}, {"type": "text", "text": TEXT}]}]
    images = [picture] if kind == "beside it" else None
    a, b = explainer(chat, images=images, target=20), explainer(PLACED, images=[picture], target=20)
    assert a.relevance.tolist() == b.relevance.tolist()
    assert a.notes == b.notes
    assert chat[0]["content"][0] == {"type": "image", **held}  # what was given is as it was


def test_the_chat_is_read_as_the_processor_reads_it(llava, explainer):
    picture = photo()
    content = [{"type": "text", "text": "see"}, {"type": "image", "image": picture}, {"type": "text", "text": "a cat"}]
    chat = [{"role": "user", "content": content}]
    options = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
    inputs = llava[1].apply_chat_template(chat, **options)
    a, b = explainer(chat, target=20), explainer(inputs, target=20)
    assert a.tokens == b.tokens
    np.testing.assert_allclose(a.relevance, b.relevance, rtol=1e-9, atol=1e-12)


def test_what_a_processor_returned_is_read(llava, explainer):
    inputs = llava[1](text=[PLACED], images=[[photo()]], return_tensors="pt")
    a, b = explainer(inputs, target=20), explainer(PLACED, images=[photo()], target=20)
    assert a.relevance.tolist() == b.relevance.tolist()
    assert a.images == b.images
    without = lrpx.explain(llava[0], None, dict(inputs), target=20)  # ids for tokens, another picture
    assert without.relevance.tolist() == a.relevance.tolist()
    assert without.images[0][:5] == a.images[0][:5]


@pytest.mark.parametrize("kind", ["array", "tensor", "real numbers", "path"])
def test_an_image_in_another_form(explainer, tmp_path, kind):
    picture = photo()
    pixels = np.asarray(picture)
    picture.save(tmp_path / "a.png")
    given = {
        "array": pixels,
        "tensor": torch.from_numpy(pixels.copy()).permute(2, 0, 1),
        "real numbers": pixels / 255,
        "path": tmp_path / "a.png",
    }[kind]
    a, b = (explainer(PLACED, images=[image], target=20) for image in (given, picture))
    assert a.relevance.tolist() == b.relevance.tolist()


def test_text_alone_is_as_before(llava, explainer):
    model, processor = llava
    a, b = explainer(TEXT, target=20), lrpx.explain(model, processor.tokenizer, TEXT, target=20)
    assert a.relevance.tolist() == b.relevance.tolist()
    assert a.images == ()


def test_modules_of_the_language_model_are_places_too(explainer):
    e = explainer(PLACED, images=[photo()], target=20, at=["input", "model.language_model.layers.*"])
    assert [layer.shape for layer in e.layers.values()] == [(len(e.tokens), 32)] * 2


def test_heads_and_layers_are_those_of_the_language_model(explainer):
    e = explainer(PLACED, images=[photo()], target=20, at=["input", "model.language_model.layers.*.mlp"])
    mlps = [layer.sum(1) for layer in e.layers.values()]
    np.testing.assert_allclose(e.by_mlp, mlps, rtol=0, atol=1e-9 * np.abs(mlps).max())
    assert e.by_head.shape == (2, 4, len(e.tokens))


@pytest.mark.parametrize("options", [{"checkpoint": True}, {"fast": True}])
def test_other_ways_to_run_a_pass_give_the_same(llava, options):  # compiled: tests/passes/compiled/test_images.py
    a, b = (lrpx.explain(*llava, PLACED, images=[photo()], target=20, **each) for each in (options, {}))
    np.testing.assert_allclose(a.relevance, b.relevance, rtol=1e-9, atol=1e-12)


def test_several_texts_with_images_of_their_own(explainer):
    texts = [PLACED, TEXT, "<image> see <image> ?"]
    images = [[photo()], None, [photo(seed=1), photo(seed=2)]]
    together = explainer(texts, images=images, target=20)
    for text, given, e in zip(texts, images, together, strict=True):
        alone = explainer(text, images=given, target=20)
        np.testing.assert_allclose(e.relevance, alone.relevance, rtol=1e-7, atol=1e-9)
        assert e.images == alone.images


def test_the_picture_is_what_the_model_saw(explainer):
    """The middle of a wide picture, which the processor cuts out."""
    wide = photo(128, 64)
    [image] = explainer(PLACED, images=[wide], target=20).images
    seen = np.asarray(Image.open(io.BytesIO(image.png)).convert("RGB"), dtype=float)
    np.testing.assert_allclose(seen, np.asarray(wide, dtype=float)[:, 32:96], atol=2)


def test_it_is_saved_and_drawn(explainer, tmp_path):
    e = explainer(PLACED, images=[photo()], target=20)
    e.save(tmp_path / "e.json")
    assert Explanation.load(tmp_path / "e.json").images == e.images
    assert "image " in e.to_html()
    e.to_png(tmp_path / "e.png")


# That the numbers are right.


def test_gradients_are_those_of_finite_differences(llava):
    """Gradient x input at the patches: the change of the logit when the features of one image token are scaled."""
    model, processor = llava
    e = lrpx.explain(model, processor, PLACED, images=[photo()], target=20, method="gradient-x-input")
    inputs = processor(text=[PLACED], images=[[photo()]], return_tensors="pt").to(model.dtype)
    step = 3e-3  # norms are computed in float32

    def value(token, factor):
        def scale(_, args, kwargs):
            embeds = kwargs["inputs_embeds"].clone()
            embeds[0, token] *= factor
            return args, {**kwargs, "inputs_embeds": embeds}

        handle = model.model.language_model.register_forward_pre_hook(scale, with_kwargs=True)
        try:
            with torch.no_grad():
                return float(model(**inputs).logits[0, -1, 20])
        finally:
            handle.remove()

    slopes = [(value(token, 1 + step) - value(token, 1 - step)) / (2 * step) for token in range(len(e.tokens))]
    np.testing.assert_allclose(e.relevance, slopes, rtol=1e-3, atol=1e-3 * np.abs(slopes).max())


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient-x-input"])
def test_it_is_the_map_of_the_language_model_given_the_same_vectors(llava, method):
    model, processor = llava
    e = lrpx.explain(model, processor, PLACED, images=[photo()], target=20, method=method)
    inputs = processor(text=[PLACED], images=[[photo()]], return_tensors="pt").to(model.dtype)
    seen = {}
    handle = model.model.language_model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.update(kwargs), with_kwargs=True
    )
    with torch.no_grad():
        model(**inputs)
    handle.remove()
    x = seen["inputs_embeds"].clone().requires_grad_()
    with propagate(model, method) if method != "gradient-x-input" else nullcontext():
        [gradient] = torch.autograd.grad(model.lm_head(model.model.language_model(inputs_embeds=x)[0])[0, -1, 20], x)
    np.testing.assert_allclose(e.relevance, (x * gradient).sum(-1)[0].detach(), rtol=1e-9, atol=1e-12)


QWEN = {"pixel_values": (24, 1176), "image_grid_thw": [[1, 4, 6]]}


def qwen(family):
    """A model, and the ids of a text with 2 x 3 image tokens."""
    model = tiny.build(family, zero_biases=True)
    vision, image = model.config.vision_config, model.config.image_token_id
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = torch.randn(24, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = [9, 10, *[image] * 6, 20, 21, 22]
    kinds = tuple(int(i == image) for i in ids)
    inputs = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 6]])}
    return model, ids, kinds, inputs


def test_deepstack_features_are_further_inputs_of_the_same_patches():
    """Without them the account would not balance, and the map is refused where they are not known."""
    model, ids, kinds, inputs = qwen("vision:qwen3_vl")
    batch = pad([Item(tuple(ids), len(ids) - 1, 11, 13, {"mm_token_type_ids": kinds}, images=inputs)], model)
    result = run(model, batch, "lrp")
    hidden = result.hidden["input"]
    products = (hidden.state * hidden.gradient)[0]
    width = model.config.text_config.hidden_size
    assert products.shape[-1] == 2 * width  # one layer of DeepStack
    assert float(products.sum()) == pytest.approx(result.values[0], rel=1e-6)
    later = products[:, width:].sum(-1)
    assert later.abs().sum() > 1e-3 * products.abs().sum()
    assert [bool(n) for n in later] == [bool(k) for k in kinds]  # nothing where there is no image


def test_deepstack_that_is_not_known_is_refused(monkeypatch):
    model, ids, kinds, inputs = qwen("vision:qwen3_vl")
    monkeypatch.setattr("lrpx.passes.image_inputs.FEATURES", "another name")
    given = {"input_ids": [ids], "mm_token_type_ids": [kinds], **inputs}
    for method in ("lrp", "gradient-x-input"):
        with pytest.raises(UnsupportedModelError, match="later blocks too, in a way that lrpx does not know"):
            lrpx.explain(model, None, given, target=11, method=method)


@pytest.mark.parametrize("method", ["attnlrp", "gradient-x-input"])
@pytest.mark.parametrize("family", ["vision:qwen2_vl", "vision:qwen3_vl"])
def test_generated_tokens_are_explained_as_one_by_one(family, method):
    model, ids, kinds, inputs = qwen(family)
    given = {"input_ids": [ids], "mm_token_type_ids": [kinds], **inputs}
    g = lrpx.Explainer(model, None).generate(given, continuation=[30, 31], method=method)
    assert g.images == g[0].images != ()
    for n, target in enumerate((30, 31)):
        more = {**given, "input_ids": [[*ids, 30][: len(ids) + n]], "mm_token_type_ids": [[*kinds, 0][: len(ids) + n]]}
        e = lrpx.explain(model, None, more, target=target, method=method)
        np.testing.assert_allclose(g.relevance[n, : len(ids) + n], e.relevance, rtol=1e-7, atol=1e-10)
        assert g.values[n] == pytest.approx(e.value, rel=1e-9)


def test_the_model_goes_on_as_it_does_by_itself(llava, explainer):
    model, processor = llava
    g = explainer.generate(PLACED, images=[photo()], max_new_tokens=3)
    inputs = processor(text=[PLACED], images=[[photo()]], return_tensors="pt").to(model.dtype)
    expected = model.generate(**inputs, max_new_tokens=3, do_sample=False)[0].tolist()
    assert g.token_ids == expected
    assert "image" in g.to_html()
    again = lrpx.GenerationExplanation.from_dict(json.loads(json.dumps(g.to_dict())))
    assert again.images == g.images


def test_several_target_tokens(explainer):
    e = explainer(PLACED, images=[photo()], target=" a cat")
    g = explainer.generate(PLACED, images=[photo()], continuation=" a cat", spans=[(0, 2)])
    np.testing.assert_allclose(e.relevance, g.relevance[0][: len(e.tokens)], rtol=1e-7, atol=1e-10)


def test_the_model_is_as_before(llava):
    model, processor = llava
    with torch.no_grad():  # transformers has hooks of its own, from the first forward pass on
        model(**processor(text=PLACED, images=[photo()], return_tensors="pt"))
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    trained = [p.requires_grad for p in model.parameters()]
    lrpx.explain(model, processor, PLACED, images=[photo()], target=20)
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == hooks
    assert [p.requires_grad for p in model.parameters()] == trained
    assert all(p.grad is None for p in model.parameters())


def test_check_tries_an_image_where_the_processor_is_there(llava):
    report = check(*llava)
    assert report.holds, report.lines
    lines = [line for _, line in report.lines if "with an image" in line]
    assert len(lines) == 4
    assert (None, "it reads images too, which are not checked: that needs its processor") in check(llava[0]).lines


def test_check_fails_where_the_account_does_not_balance(llava, monkeypatch):
    """By plain gradients in place of the rules, which do not add up."""
    monkeypatch.setattr("lrpx.check.run", lambda m, b, r, *a, **k: run(m, b, {} if b.with_images else r, *a, **k))
    failed = [line for ok, line in check(*llava).lines if ok is False]
    assert len(failed) == 1
    assert "with an image, LRP relevance" in failed[0]


# Bad input.


@pytest.mark.parametrize(
    ("text", "images", "message"),
    [
        (PLACED, [], "images=\\[\\] is empty"),
        (PLACED, ["nowhere.png"], "images\\[0\\]: there is no file 'nowhere.png'"),
        (PLACED, ["https://a.b/cat.png"], "lrpx downloads no images. .*load_image"),
        (PLACED, [3], "images\\[0\\] is of the type int. Give a picture"),
        (PLACED, [np.zeros((4, 4, 7))], "array of shape \\[4, 4, 7\\]"),
        (PLACED, [np.full((4, 4, 3), 7.0)], "numbers from 7 to 7: expected real numbers from 0 to 1"),
        (PLACED, [photo(), photo()], "the text has 1 places for images \\('<image>'\\), and 2 images are given"),
        ("", [photo()], "is empty"),
        ([5, 6, 7], [photo()], "token ids take no images="),
        ({"input_ids": [5, 6, 7]}, [photo()], "token ids take no images="),
        ([{"role": "user", "content": [{"type": "image"}]}], [photo(), photo()], "1 image parts without .* has 2"),
        ([{"role": "user", "content": [{"type": "sound"}]}], [photo()], "0 image parts"),
        ([{"role": "user", "content": [{"type": "image"}, {"type": "sound"}]}], [photo()], "is no part of a message"),
        ([PLACED, PLACED], [photo()], "images=1 entries for 2 texts"),
        ([PLACED, PLACED], photo(), "for 2 texts: give a list of images"),
    ],
)
def test_refuses_images_that_cannot_be_used(explainer, text, images, message):
    with pytest.raises(InputError, match=message):
        explainer(text, images=images)


def test_refuses_readers_models_and_methods_that_do_not_fit(llava, explainer, tmp_path):
    model, processor = llava
    (tmp_path / "a.png").write_text("no picture")
    cases = [
        (
            lambda: lrpx.explain(model, processor.tokenizer, PLACED, images=[photo()]),
            "images need the model's processor",
        ),
        (lambda: lrpx.explain(model, None, PLACED, images=[photo()]), "no processor is given"),
        (
            lambda: lrpx.explain(model, processor.image_processor, PLACED, images=[photo()]),
            "a CLIPImageProcessor\\w* is",
        ),
        (
            lambda: lrpx.explain(tiny.build("causal:llama"), processor, PLACED, images=[photo()]),
            "LlamaForCausalLM reads no images",
        ),
        (lambda: explainer(PLACED, images=[tmp_path / "a.png"]), "cannot be read as a picture"),
        (lambda: explainer(PLACED, images=[photo()], method="alti-logit"), 'Take method="attnlrp"'),
        (
            lambda: explainer(PLACED, images=[photo()], at="embedding"),
            "at='embedding' is no place where images and text",
        ),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixel_values_videos": torch.zeros(1)}, "no video or sound"),
        ({"pixel_nonsense": torch.zeros(1)}, "which LlavaForConditionalGeneration does not take"),
        ({"input_ids": [[5, 6], [7, 8]], "attention_mask": None}, "the images of several texts cannot be told apart"),
        ({"attention_mask": torch.zeros(1, 14, dtype=torch.long)}, "shows 0 of them"),
    ],
)
def test_refuses_ready_inputs_that_cannot_be_used(llava, explainer, change, message):
    inputs = dict(llava[1](text=[PLACED], images=[[photo()]], return_tensors="pt"))
    with pytest.raises(InputError, match=message):
        explainer({**inputs, **change})


def test_images_for_a_model_of_text_alone_are_refused(llava):
    inputs = llava[1](text=[PLACED], images=[[photo()]], return_tensors="pt")
    with pytest.raises(InputError, match="LlamaForCausalLM reads no images, and the input has pixel_values"):
        lrpx.explain(tiny.build("causal:llama"), llava[1], inputs)


# The command line.


@pytest.fixture
def command(llava, monkeypatch, capsys):
    """Run ``lrpx`` with the tiny LLaVA for every model; returns exit status, standard output, standard error."""
    loaded = lrpx.models.loading.Loaded(*llava)
    monkeypatch.setattr("lrpx.models.loading.load", lambda *_, **__: loaded)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lrpx", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return run


def test_the_command_takes_images(command, explainer, tmp_path):
    path = str(tmp_path / "cat.png")
    photo().save(path)
    code, out, err = command("explain", TEXT, "--image", path, "--target-id", "20", "--format", "json")
    assert code == 0, err
    [e] = map(Explanation.from_dict, json.loads(out))
    np.testing.assert_allclose(e.relevance, explainer(PLACED, images=[photo()], target=20).relevance, rtol=1e-9)
    assert len(e.images) == 1
    code, out, err = command("generate", TEXT, "--image", path, "--max-new-tokens", "2", "--format", "json")
    assert code == 0, err
    assert lrpx.GenerationExplanation.from_dict(json.loads(out)).images == e.images
    code, out, err = command(
        "generate", TEXT, "--image", path, "--max-new-tokens", "2", "--at", "pixels", "--format", "json"
    )
    assert code == 0, err
    g = lrpx.GenerationExplanation.from_dict(json.loads(out))
    expected = explainer.generate(PLACED, images=[photo()], max_new_tokens=2, at="pixels")
    assert g.tokens == expected.tokens
    np.testing.assert_allclose(g.relevance, expected.relevance, rtol=1e-6, atol=1e-9)
    lines = tmp_path / "a.jsonl"
    content = [{"type": "image", "image": path}, {"type": "text", "text": TEXT}]
    lines.write_text(json.dumps({"messages": [{"role": "user", "content": content}], "target": 20}))
    code, out, err = command("explain", "--file", str(lines), "--format", "json")
    assert code == 0, err
    assert Explanation.from_dict(json.loads(out)[0]).relevance.tolist() == e.relevance.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TEXT, "--image", "nowhere.png"), "there is no file 'nowhere.png'"),
        ((TEXT, "--image", "https://a.b/c.png"), "downloads no images"),
        ((TEXT, TEXT, "--image", "a.png"), "--image is for one text, and there are 2"),
    ],
)
def test_the_command_refuses(command, arguments, message):
    code, out, err = command("explain", *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("at", [None, "pixels"])
@pytest.mark.parametrize(("method", "options"), [("integrated-gradients", {"steps": 2}), ("occlusion", {"window": 2})])
def test_methods_that_change_the_input_on_the_command_line(command, explainer, tmp_path, method, options, at):
    path = str(tmp_path / "cat.png")
    photo().save(path)
    given = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    given += ["--at", at] if at else []
    code, out, err = command(
        *("explain", TEXT, "--image", path, "--target-id", "20", "--method", method, *given, "--format", "json")
    )
    assert code == 0, err
    [e] = map(Explanation.from_dict, json.loads(out))
    expected = explainer(PLACED, images=[photo()], target=20, method=method, at=at, **options)
    np.testing.assert_allclose(e.relevance, expected.relevance, rtol=1e-9, atol=1e-12)
    assert (e.at, e.components) == (at or "input", pytest.approx(expected.components))


def test_several_predictions_of_one_text_with_images(explainer):
    """From one pass, with functions of the logits among them: as by a call each."""

    def animals(logits):
        return logits[[CAT, DOG]].logsumexp(0)

    asked = [(CAT, None, 12), (DOG, CAT, 12), (animals, None, 9), (None, None, 4)]
    targets, contrasts, positions = map(list, zip(*asked, strict=True))
    picture = photo()
    found = explainer(PLACED, images=[picture], target=targets, contrast=contrasts, position=positions)
    for e, (target, contrast, position) in zip(found, asked, strict=True):
        one = explainer(PLACED, images=[picture], target=target, contrast=contrast, position=position)
        np.testing.assert_allclose(e.relevance, one.relevance, rtol=0, atol=1e-10)
        assert e.value == pytest.approx(one.value)
        assert (e.target, e.position, len(e.images)) == (one.target, one.position, 1)
