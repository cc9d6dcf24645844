"""A desk with a tiny random model of each kind that the app knows, and a question that it can answer."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache
from typing import Any

import app_tools
import pictures
import tiny
import tiny_classifiers
import tiny_images
import tiny_processors
import tiny_tokenizers
import torch
from transformers import CLIPProcessor, T5Config, T5ForConditionalGeneration, ViTImageProcessor

import lrpx
from lrpx.app.desk import Desk, Limits

IMAGE = "data:image/png;base64," + base64.b64encode(pictures.png_of(pictures.photo())).decode("ascii")
SMALL = {"size": {"height": 16, "width": 16}}
MESSAGES = [{"role": "user", "content": "w5 w6"}]


def _text2text() -> lrpx.Explainer:
    tokenizer = tiny_tokenizers.roberta()
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48, "d_model": 32}
    ids = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **sizes, **ids))
    return lrpx.Explainer(model.double().eval(), tokenizer)


def _masked() -> lrpx.Explainer:
    tokenizer = tiny_tokenizers.word_piece()
    return lrpx.Explainer(tiny_tokenizers.bert(tokenizer), tokenizer)


def _head(head: str, **config: Any) -> Callable[[], lrpx.Explainer]:
    return lambda: lrpx.Explainer(tiny_classifiers.classifier(head, **config), tiny_classifiers.tokenizer())


def _clip() -> lrpx.Explainer:
    reader = CLIPProcessor(ViTImageProcessor(**SMALL), tiny_processors.words(20))
    return lrpx.Explainer(tiny_images.build("score:clip"), reader)


def _llava() -> lrpx.Explainer:
    model = tiny.build("vision:llava")
    return lrpx.Explainer(model, tiny_processors.llava(model))


# Name -> how the explainer is made, and what is asked of it.
KINDS: dict[str, tuple[Callable[[], lrpx.Explainer], dict[str, Any]]] = {
    "causal": (app_tools.explainer, {"text": app_tools.TEXT}),
    "masked": (_masked, {"text": "the keys [MASK] here"}),
    "text2text": (_text2text, {"text": app_tools.TEXT}),
    "text-classification": (
        _head("SequenceClassification", **tiny_classifiers.SENTIMENT),
        {"text": "the film was great", "text_pair": "not good"},
    ),
    "token-classification": (
        _head("TokenClassification", **tiny_classifiers.ENTITIES),
        {"text": "wolf lives in berlin", "position": 4},
    ),
    "question-answering": (
        _head("QuestionAnswering"),
        {"text": "wolf lives in berlin", "question": "who lives in berlin ?"},
    ),
    "multiple-choice": (_head("MultipleChoice"), {"text": "a dog", "choices": ["runs", "sleeps"]}),
    "image-classification": (
        lambda: lrpx.Explainer(tiny_images.build("image:vit"), ViTImageProcessor(**SMALL)),
        {"kind": "image", "images": [IMAGE]},
    ),
    "image-text-score": (_clip, {"kind": "image", "images": [IMAGE], "target": "a cat </s>"}),
    "vision-language": (_llava, {"kind": "text", "text": "w5 w6"}),
    "vision-language with an image": (_llava, {"kind": "chat", "messages": MESSAGES, "images": [IMAGE]}),
}


@cache
def desk(kind: str) -> Desk:
    """The desk of a kind."""
    return Desk(KINDS[kind][0](), Limits(tokens=100, new_tokens=6))
