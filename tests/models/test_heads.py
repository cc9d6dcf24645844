"""Which task a model is for, by the class of its head."""

import pytest
import transformers

from lrpx.errors import UnsupportedModelError
from lrpx.models.auto_class import auto_class_of
from lrpx.models.heads import HEADS, IMAGE_TEXT_SCORE, TEXT_ENCODER, head_of
from lrpx.models.signature import task_of

TINY = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.auto_class)
def test_every_listed_class_has_its_task(head):
    assert len(head.classes()) > 5 or head is TEXT_ENCODER
    both = next(h for h in HEADS if h.task == IMAGE_TEXT_SCORE).classes()  # a model of two towers has no other head
    for name in head.classes() - (both if head.task == "feature-extraction" else set()):
        assert head_of([name]) is head
    assert getattr(transformers, head.auto_class)


@pytest.mark.parametrize(
    ("names", "task"),
    [
        (["OwnForSequenceClassification"], "text-classification"),
        (["Own", "BertForTokenClassification", "BertPreTrainedModel"], "token-classification"),
        (["XLMForQuestionAnsweringSimple"], "question-answering"),
        (["BertModel", "BertPreTrainedModel"], "feature-extraction"),
        (["UMT5EncoderModel", "UMT5PreTrainedModel"], "feature-extraction"),
        (["BertPreTrainedModel"], None),
    ],
)
def test_the_nearest_known_class_decides(names, task):
    head = head_of(names)
    assert (head and head.task) == task


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.auto_class)
def test_model_and_configuration_agree(head):
    if head is TEXT_ENCODER:
        config = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=20)
    elif head.task == IMAGE_TEXT_SCORE:
        config = transformers.CLIPConfig(text_config=TINY, vision_config={**TINY, "image_size": 32})
    else:
        of_images = "image" in head.task
        config = transformers.ViTConfig(**TINY, image_size=16) if of_images else transformers.BertConfig(**TINY)
    model = getattr(transformers, head.auto_class).from_config(config)
    config.architectures = [type(model).__name__]
    if head.explained:
        assert task_of(model) == head.task
        assert auto_class_of(config, "it").__name__ == head.auto_class
    else:
        with pytest.raises(UnsupportedModelError, match=f"is for {head.task}"):
            task_of(model)
        with pytest.raises(UnsupportedModelError, match=type(model).__name__):
            auto_class_of(config, "it")
