"""Which class of transformers loads a model, by its configuration: a language model, or a model with another head."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedModelError
from .heads import auto_class_of_pair, head_of


def reading_more_than_text() -> dict[str, str]:
    """Model type -> class, for models that read images or sound too, and go on from a text as a causal model does."""
    from transformers.models.auto import modeling_auto

    tables = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES")  # since 5.0, later
    return {k: v for table in tables for k, v in dict(getattr(modeling_auto, table, {})).items()}


def auto_class_of(config: Any, name: str) -> Any:
    """The auto class for a configuration: for causal models, masked ones, those that read more than text, or other heads.

    Raises:
        UnsupportedModelError: It is none of these.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    causal: dict[str, str] = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    masked: dict[str, str] = dict(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    more = reading_more_than_text()
    architecture = (getattr(config, "architectures", None) or [None])[0]
    model_type = getattr(config, "model_type", "")
    if getattr(config, "is_encoder_decoder", False) and (pair := auto_class_of_pair(model_type, architecture)):
        return getattr(transformers, pair)
    # Families in both tables are encoders; the configuration says if they are used as causal decoders.
    used_as_decoder = getattr(config, "is_decoder", False) or getattr(config, "causal", False)

    if architecture is None:
        is_causal, is_masked, is_more = model_type in causal, model_type in masked, model_type in more
    else:
        is_causal = architecture in causal.values() or architecture.endswith(("ForCausalLM", "LMHeadModel"))
        is_masked = architecture in masked.values() or architecture.endswith("ForMaskedLM")
        # BertForPreTraining and its like: the masked language model and one more head
        is_masked = is_masked or (architecture.endswith("ForPreTraining") and model_type in masked)
        is_more = architecture in more.values()
    head = head_of([architecture]) if architecture and not (is_causal or is_masked or is_more) else None
    if head is not None and head.explained and (head.pairs or not getattr(config, "is_encoder_decoder", False)):
        return getattr(transformers, head.auto_class)
    if getattr(config, "is_encoder_decoder", False) or not (is_causal or is_masked or is_more):
        raise UnsupportedModelError(
            f"{name} is a {architecture or model_type}: causal and masked language models are explained "
            "(like GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM), and encoder-decoder models that write text (like "
            "T5ForConditionalGeneration)."
        )
    if is_masked and not (is_causal and used_as_decoder):
        return transformers.AutoModelForMaskedLM
    # Of a family with a model for text alone and one for more, the causal table may have either.
    if is_more and (not is_causal or causal.get(model_type) != architecture is not None):
        images = model_type in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        return transformers.AutoModelForImageTextToText if images else transformers.AutoModelForMultimodalLM
    return transformers.AutoModelForCausalLM
