"""What reads a model's input: told apart by its kind, and loaded where its files are."""

import pytest
import tiny
import tiny_files
import tiny_processors
import torch
from transformers import LlavaProcessor, PreTrainedTokenizerBase

import lrpx
from lrpx.models.reader import image_processor_of, tokenizer_of

CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def processor():
    images = tiny_processors.with_pillow("CLIP")(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return LlavaProcessor(images, tiny_files.tokenizer(), patch_size=8, chat_template=CHAT)


def test_the_parts_of_a_processor():
    whole = processor()
    assert tokenizer_of(whole) is whole.tokenizer
    assert image_processor_of(whole) is whole.image_processor
    assert tokenizer_of(whole.tokenizer) is whole.tokenizer
    assert image_processor_of(whole.tokenizer) is None
    assert tokenizer_of(whole.image_processor) is None
    assert image_processor_of(whole.image_processor) is whole.image_processor
    assert tokenizer_of(None) is image_processor_of(None) is None


def test_a_processor_reads_texts_like_its_tokenizer():
    model, whole = tiny.build("causal:llama"), processor()
    a, b = (lrpx.explain(model, reader, "3,4,5", target=11) for reader in (whole, whole.tokenizer))
    assert a.tokens == b.tokens
    assert a.relevance.tolist() == b.relevance.tolist()


@pytest.mark.parametrize("saved", [True, False])
def test_load_gives_the_processor_where_there_is_one(tmp_path, saved):
    model = tiny.build("vision:llava", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    (processor() if saved else tiny_files.tokenizer()).save_pretrained(tmp_path)
    _, reader = lrpx.load(tmp_path)
    assert isinstance(reader, LlavaProcessor if saved else PreTrainedTokenizerBase)
    assert tokenizer_of(reader)("3,4")["input_ids"]


def test_a_processor_that_cannot_be_loaded_is_said(tmp_path):
    tiny.build("vision:llava", dtype=torch.float32).save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(
        '{"processor_class": "LlavaProcessor", "image_processor": {"image_processor_type": "NoSuch"}}'
    )
    with pytest.warns(UserWarning, match="processor of .* cannot be loaded, so texts can be explained, but no images"):
        _, reader = lrpx.load(tmp_path)
    assert isinstance(reader, PreTrainedTokenizerBase)
