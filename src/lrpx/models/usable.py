"""What counts as a model that was given: one of transformers, loaded, and nothing wrapped around it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..errors import InputError
from .adapters import without_peft
from .placement import is_unloaded


def usable_model(model: Any) -> PreTrainedModel:
    """The model itself; of a ``PeftModel`` the one inside, with its adapters.

    Raises:
        InputError: It is none of transformers, it was compiled, or its weights are not loaded.
        UnsupportedModelError: It has an adapter that works outside of the model, as in prompt tuning.
    """
    model = without_peft(model)
    if isinstance(getattr(model, "_orig_mod", None), PreTrainedModel):
        raise InputError(
            "the model was compiled by torch.compile, which hides its operations. Give what that wraps, model._orig_mod; "
            "lrpx.explain(..., compile=True) fuses the pass itself."
        )
    if isinstance(model, tuple):
        raise InputError(
            "model and tokenizer came as one, as lrpx.load returns them. Type a star: lrpx.Explainer(*loaded)."
        )
    if not isinstance(model, PreTrainedModel):
        from transformers import Pipeline  # here, since it brings 26 modules with it

        if isinstance(model, Pipeline):
            raise InputError("the model is a pipeline. Give what is in it: lrpx.Explainer(pipe.model, pipe.tokenizer).")
        raise InputError(
            f"the model is of type {type(model).__name__}. Give a model of transformers (of a wrapper, what it wraps), or the "
            "name of one: lrpx.Explainer(model, tokenizer), lrpx.explain(model, tokenizer, text)."
        )
    if is_unloaded(model):
        raise InputError(f"the weights of this {type(model).__name__} are not loaded (device 'meta'). Load them first.")
    return model
