"""Keywords of ``Explainer`` and its calls: one that is none is refused, with where it belongs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from transformers import GenerationConfig

from ..errors import InputError, check_names
from ..heatmap.shown import ViewOptions
from ..methods import METHODS
from ..models.loading import load
from .arguments import CallOptions, ExplainOptions

Call = TypeVar("Call", bound=Callable[..., Any])

HOME = {  # options that are often typed in the wrong place -> where they belong
    **{name: f"It belongs to show(...): explainer(text).show({name}=...)." for name in ViewOptions.__annotations__},
    **{
        name: f"How a model generates is explainer.generate(prompt, generation_config={{{name!r}: ...}})."
        for name in vars(GenerationConfig())
    },
    **{
        name: f"It is one of explainer.generate(prompt, {name}=...)."
        for name in ("max_new_tokens", "continuation", "generation_config", "spans", "weights", "hops")
    },
    "batch_size": "Batches are made by the number of their tokens: lrpx.Explainer(model, batch_tokens=4096).",
    **{
        name: f"It is one of lrpx.load: lrpx.Explainer(*lrpx.load('org/name', {name}=...))."
        for name in inspect.signature(load).parameters
    },
    **{
        name: f"It is one of lrpx.Explainer: lrpx.Explainer(model, {name}=...)."
        for name in ExplainOptions.__annotations__
    },
    **{name: f"It is one of the call: explainer(text, {name}=...)." for name in CallOptions.__annotations__},
}


def named_after_the_text(call: Call) -> Call:
    """A decorator of ``Explainer.__call__``: what follows the text without a name is refused, with the names it may have had."""

    @functools.wraps(call)
    def checked(self: Any, *text: Any, **options: Any) -> Any:
        if len(text) > 1:
            given = ", ".join(
                f"{name}={value!r}" for name, value in zip(("target", "contrast"), text[1:], strict=False)
            )
            raise InputError("after the text, arguments have names.", python=f"Type: explainer(text, {given})")
        return call(self, *text, **options)

    return checked  # type: ignore[return-value]


def check_call(options: Mapping[str, object], named: Iterable[str]) -> None:
    """Refuse a keyword that is neither an option of the call nor of any method."""
    check_names(options, {"method", *named, *(option for m in METHODS.values() for option in m.options)}, HOME)
