"""Which class of transformers loads a model: a causal or a masked language model, by its configuration."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedModelError


def auto_class_of(config: Any, name: str) -> Any:
    """The auto class for a configuration: ``AutoModelForCausalLM`` or ``AutoModelForMaskedLM``."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto import modeling_auto

    causal: dict[str, str] = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    masked: dict[str, str] = dict(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    architecture = (getattr(config, "architectures", None) or [None])[0]
    model_type = getattr(config, "model_type", "")
    # Families in both tables are encoders; the configuration says if they are used as causal decoders.
    used_as_decoder = getattr(config, "is_decoder", False) or getattr(config, "causal", False)

    if architecture is None:
        is_causal, is_masked = model_type in causal, model_type in masked
    else:
        is_causal = architecture in causal.values() or architecture.endswith(("ForCausalLM", "LMHeadModel"))
        is_masked = architecture in masked.values() or architecture.endswith("ForMaskedLM")
        # BertForPreTraining and its like: the masked language model and one more head
        is_masked = is_masked or (architecture.endswith("ForPreTraining") and model_type in masked)
    if getattr(config, "is_encoder_decoder", False) or not (is_causal or is_masked):
        raise UnsupportedModelError(
            f"{name} is a {architecture or model_type}: causal and masked language models are explained "
            "(like GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM)."
        )
    if is_causal and is_masked:
        is_causal = used_as_decoder
    return AutoModelForCausalLM if is_causal else AutoModelForMaskedLM
