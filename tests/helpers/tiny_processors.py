"""Processors for tiny models that read images: a vocabulary of words, and image processors that need Pillow alone."""

import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = "What is in the picture ? a cat dog user assistant : and two images see . \n".split(" ")
CHAT = (
    "{% for m in messages %}{{ m['role'] }} : {% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %} {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)


def words(image_id, image_token="<image>", more=(), size=97, **named):
    """A tokenizer of words, in which ``image_token`` has the id ``image_id``; the ids below it are special."""
    more = dict(more)
    by_id = {i: token for token, i in {"<unk>": 0, "<s>": 1, "</s>": 2, image_token: image_id, **more}.items()}
    known = iter([w for w in WORDS if w])
    vocabulary = {by_id.get(i) or next(known, f"w{i}"): i for i in range(size)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [AddedToken(token, special=True, normalized=False) for token in by_id.values()]
    backend.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>", **named
    )
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [image_token, *more]}, replace_extra_special_tokens=False
    )
    return tokenizer


def with_pillow(family):
    """The class of image processors of ``CLIP`` or ``Qwen2VL`` that needs Pillow alone; named in another way before 5.3."""
    name = f"{family}ImageProcessor"
    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def llava(model, **options):
    """LLaVA's processor."""
    side = model.config.vision_config.image_size
    crop = {"height": side, "width": side}
    images = with_pillow("CLIP")(size={"shortest_edge": side}, crop_size=crop)
    return transformers.LlavaProcessor(
        images,
        words(model.config.image_token_id),
        patch_size=model.config.vision_config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        **{"chat_template": CHAT.replace("IMAGE", "<image>"), **options},
    )
