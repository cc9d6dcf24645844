"""What a model reads and predicts: its task, its inputs and its context length."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from .heads import TEXT2TEXT, head_of, writes_text
from .modules import held, text_config
from .positions import context_length, made_for
from .stacks import encoder_of, stacks_of


def task_of(model: PreTrainedModel) -> str:
    """The task by the class of the model, in the words of the Hub, but ``"causal"`` or ``"masked"`` for a language model.

    What reads images too is causal, given text alone. The other tasks are those of ``heads.HEADS``.

    Raises:
        UnsupportedModelError: It is none of these.
    """
    kind: Any = type(model)
    if encoder_of(model) is not None:
        names = [base.__name__ for base in kind.__mro__]
        if writes_text(names):
            return TEXT2TEXT
        if (head := head_of(names)) is not None and head.pairs:
            return head.task
        what = f"for {head.task}" if head else "that does not write text"
        raise UnsupportedModelError(
            f"{kind.__name__} is an encoder-decoder model {what}. Of these, the ones that write text, classify it or answer "
            "questions are explained: see AutoModelForSeq2SeqLM and AutoModelForSpeechSeq2Seq."
        )
    is_masked, is_causal = _classes(kind)
    if not (is_masked or is_causal) and (head := head_of(base.__name__ for base in kind.__mro__)) is not None:
        if not head.explained:
            raise UnsupportedModelError(
                f"{kind.__name__} is for {head.task}, and is neither a causal nor a masked language model: its predictions are "
                "not explained yet."
            )
        return head.task
    if is_masked and is_causal:  # an encoder that may be used as a decoder (XLM); its configuration says so
        is_masked = not (getattr(model.config, "is_decoder", False) or getattr(model.config, "causal", False))
    if not is_masked and not is_causal:
        raise UnsupportedModelError(
            f"{kind.__name__} is neither a causal nor a masked language model, and has no other head that lrpx knows.",
            python="Load it with AutoModelForCausalLM, AutoModelForMaskedLM or AutoModelForImageTextToText, or with "
            "lrpx.load(name).",
            command="Give a model with a language-model head.",
        )
    if (needed := _needs_more(kind)) and not _of_an_image(needed):
        raise UnsupportedModelError(f"{kind.__name__} needs {needed}, and lrpx explains text alone.")
    return "masked" if is_masked else "causal"


def goes_on(task: str) -> bool:
    """Whether models for a task predict the token after those that they have read."""
    return task in ("causal", TEXT2TEXT)


@cache
def _needs_more(kind: Any) -> str | None:
    """An input beside the text that ``forward`` has to be given, such as ``pixel_values``."""
    known = ("self", "input_ids", "attention_mask", "token_type_ids", "position_ids")
    for name, parameter in inspect.signature(kind.forward).parameters.items():
        optional = parameter.default is not inspect.Parameter.empty
        if not optional and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and name not in known:
            return name
    return None


def _of_an_image(name: str) -> bool:
    return name.startswith("pixel_values") or name == "flattened_patches"


@cache
def _classes(kind: Any) -> tuple[bool, bool]:
    """Whether models of this class are masked, and whether they are causal language models."""
    from transformers.models.auto import modeling_auto as auto

    from .auto_class import reading_more_than_text

    def is_one(table: dict[str, Any], suffix: str) -> bool:
        known = {name for value in table.values() for name in ([value] if isinstance(value, str) else value)}
        return any(base.__name__ in known or base.__name__.endswith(suffix) for base in kind.__mro__)

    return (
        is_one(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "ForMaskedLM"),
        is_one(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | reading_more_than_text(), "ForCausalLM"),
    )


def padding_id(model: PreTrainedModel, tokenizer: Any = None) -> int | None:
    """The id of the padding token, as the tokenizer says, or else the configuration; ``None`` if there is none."""
    known = getattr(tokenizer, "pad_token_id", None)
    if known is None:
        known = getattr(text_config(model), "pad_token_id", None)
    return known if isinstance(known, int) and known >= 0 else None


def filler(model: PreTrainedModel) -> int:
    """The token id used for padding: the padding token's, if the model has an embedding for it."""
    padding = padding_id(model)
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:  # of an encoder of images
        table = None
    size = getattr(table, "num_embeddings", None) or text_config(model).vocab_size
    return 0 if padding is None or padding >= size else padding


def takes(model: PreTrainedModel, name: str) -> bool:
    """Whether the model's ``forward`` names an argument."""
    forward: Any = model.forward
    if "forward" in vars(model):  # set on this instance: do not cache it
        return name in inspect.signature(forward).parameters
    return name in _parameters(forward.__func__)


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


@dataclass(frozen=True)
class EncoderInput:
    """What the encoder of an encoder-decoder model reads.

    Attributes:
        vocabulary: Number of token ids; ``None`` if it reads no text.
        context: How many tokens it can read; ``None`` if it has no limit.
        features: The name of the input if it reads sound or an image, such as ``"input_features"``; empty for text.
    """

    vocabulary: int | None
    context: int | None
    features: str

    @property
    def is_image(self) -> bool:
        """Whether it reads an image, and no text."""
        return _of_an_image(self.features)

    @classmethod
    def of(cls, model: PreTrainedModel) -> EncoderInput:
        """Read it off the model and its configuration."""
        embedding = stacks_of(model)[0].embedding
        vocabulary = getattr(embedding, "num_embeddings", None)
        features = "" if takes(model, "input_ids") and vocabulary else model.main_input_name
        if features == "inputs":  # of whatever encoder it is
            features = getattr(encoder_of(model), "main_input_name", features)
        return cls(vocabulary, None if features else context_length(model, "encoder"), features)


@dataclass(frozen=True)
class ModelSignature:
    """What a model reads and predicts.

    Attributes:
        name: Of its class, for messages.
        task: By ``task_of``.
        vocabulary: Number of token ids; of an encoder-decoder model the decoder's.
        context: How many tokens it can read; ``None`` if it has no limit. Of an encoder-decoder model: its decoder.
        made_for: How many it was made for, by its configuration: beyond, it predicts badly. ``None`` if it does not say.
        extras: Per-token inputs besides the ids that its ``forward`` takes.
        placeholders: Ids that stand for an image, a video or sound.
        source: What an encoder reads; ``None`` if there is none.
        needs: The input of images that it always has to be given; empty if it reads text alone too.
    """

    name: str
    task: str
    vocabulary: int
    context: int | None
    made_for: int | None
    extras: frozenset[str]
    placeholders: frozenset[int] = frozenset()
    source: EncoderInput | None = None
    needs: str = ""

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelSignature:
        """Read it off the model and its configuration.

        Raises:
            UnsupportedModelError: As ``task_of``; or it consists of several models, and does not say which reads the text.
        """
        task = task_of(model)  # first: a model that reads no text has no vocabulary either
        if task in ("causal", "masked"):
            _check_reads_text(model)
        extras = frozenset(name for name in PER_TOKEN if takes(model, name))
        limits: tuple[int | None, int | None]
        if task == TEXT2TEXT:
            embedding: Any = stacks_of(model)[1].embedding
            size = getattr(embedding, "num_embeddings", None)
            vocabulary = model.config.get_text_config(decoder=True).vocab_size if size is None else size
            limits, source = (context_length(model, "decoder"), None), EncoderInput.of(model)
            return cls(type(model).__name__, task, vocabulary, *limits, frozenset(), source=source)
        vocabulary = getattr(text_config(model), "vocab_size", None)
        if vocabulary is None or task == "image-classification":
            raise UnsupportedModelError(
                f"{type(model).__name__} reads images, and this is for models that read text.",
                python="Its labels are explained by explainer(image).",
                command="Its labels are explained by lrpx explain --image FILE.",
            )
        limits = context_length(model), made_for(model)
        kind: Any = type(model)
        named = (getattr(model.config, name) for name in sorted(held(model.config, _PLACEHOLDERS)))
        placeholders = frozenset(i for i in named if isinstance(i, int))
        return cls(type(model).__name__, task, vocabulary, *limits, extras, placeholders, needs=_needs_more(kind) or "")


def _check_reads_text(model: PreTrainedModel) -> None:
    try:
        model.get_input_embeddings()
    except NotImplementedError:
        parts = [name for name, child in model.named_children() if isinstance(child, PreTrainedModel)]
        raise UnsupportedModelError(
            f"{type(model).__name__} does not say where its word embeddings are. It consists of several models "
            f"({', '.join(parts)}).",
            python=f"Explain the one that reads text: lrpx.Explainer(model.{parts[0] if parts else 'part'}).",
        ) from None


PER_TOKEN = ("token_type_ids", "mm_token_type_ids", "image_embeds_position_mask")
"""Inputs with one number for each token, besides the ids and their mask."""
_PLACEHOLDERS = {
    f"{kind}_token_{suffix}" for kind in ("image", "video", "audio", "media") for suffix in ("id", "index")
}
