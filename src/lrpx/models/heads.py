"""Which task a model's head is for: classes of transformers -> tasks, in the words of the Hub.

A row is all that a new task needs here: ``task_of`` reads it off a model, ``auto_class_of`` off a configuration. Language models
are told apart in ``signature.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Head:
    """A kind of head.

    Attributes:
        task: What it is for.
        auto_class: The class of transformers that loads models with it.
        tables: Mappings of transformers from model type to class; those that an installed version lacks are skipped.
        suffixes: How classes of this kind end that no mapping has, such as those of a repository's own code.
        explained: Whether its predictions are explained; otherwise such models are refused by name.
        pairs: Whether also those of encoder-decoder models are.
    """

    task: str
    auto_class: str
    tables: tuple[str, ...]
    suffixes: tuple[str, ...]
    explained: bool = True
    pairs: bool = False

    def classes(self) -> frozenset[str]:
        """The names of the classes that transformers lists."""
        return frozenset(_classes_in(self.tables))

    def has(self, name: str) -> bool:
        """Whether a class of this name is of this kind."""
        return name in self.classes() or name.endswith(self.suffixes)


NO_HEAD = Head("feature-extraction", "AutoModel", ("MODEL_MAPPING_NAMES",), ("TextModel",))  # it gives embeddings
TEXT_ENCODER = Head(  # the encoder alone of a family of encoder-decoder models
    "feature-extraction",
    "AutoModelForTextEncoding",
    (),
    ("T5EncoderModel", "T5GemmaEncoderModel", "SwitchTransformersEncoderModel"),
    pairs=True,
)
IMAGE_TEXT_SCORE = "zero-shot-image-classification"
IMAGE_TASKS = ("image-classification", IMAGE_TEXT_SCORE)  # they read images in place of a text

HEADS = (
    Head(
        "text-classification",
        "AutoModelForSequenceClassification",
        ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",),
        ("ForSequenceClassification",),
        pairs=True,
    ),
    Head(
        "token-classification",
        "AutoModelForTokenClassification",
        ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",),
        ("ForTokenClassification",),
    ),
    Head(
        "question-answering",
        "AutoModelForQuestionAnswering",
        ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",),
        ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
        pairs=True,
    ),
    Head(
        "multiple-choice",
        "AutoModelForMultipleChoice",
        ("MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",),
        ("ForMultipleChoice",),
    ),
    Head(
        "image-classification",
        "AutoModelForImageClassification",
        ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",),
        ("ForImageClassification",),
    ),
    Head(
        IMAGE_TEXT_SCORE,
        "AutoModelForZeroShotImageClassification",
        ("MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",),
        (),
    ),
    NO_HEAD,
    TEXT_ENCODER,
)

# Of encoder-decoder models alone: transformers lists in these tables also models that read images or sound and go on from a text.
# What reads images is first, since it has a processor.
_PAIRS = {
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
TEXT2TEXT = "text2text-generation"


def writes_text(names: Iterable[str]) -> bool:
    """Whether an encoder-decoder model whose class is called, or inherits from, one of ``names`` predicts tokens of text."""
    return not _classes_in(tuple(_PAIRS.values())).isdisjoint(names)


def auto_class_of_pair(model_type: str, architecture: str | None) -> str | None:
    """Which auto class loads an encoder-decoder model that writes text; ``None`` for any other model.

    A checkpoint without a head of its own (``BartModel``) is loaded with the head of its family, which shares the embedding.
    """
    from transformers.models.auto import modeling_auto

    for auto_class, table in _PAIRS.items():
        known: dict[str, str] = dict(getattr(modeling_auto, table, {}))
        bare = architecture is None or (
            architecture.endswith("Model") and architecture not in known.values() and not TEXT_ENCODER.has(architecture)
        )
        if architecture in known.values() or (bare and model_type in known):
            return auto_class
    return None


def head_of(names: Iterable[str]) -> Head | None:
    """The head of a class that is called, or inherits from what is called, one of ``names``, the nearest first."""
    return next((head for name in names for head in HEADS if head.has(name)), None)


@cache
def _classes_in(tables: tuple[str, ...]) -> frozenset[str]:
    from transformers.models.auto import modeling_auto

    values = [value for table in tables for value in dict(getattr(modeling_auto, table, {})).values()]
    return frozenset(name for value in values for name in ([value] if isinstance(value, str) else value))
