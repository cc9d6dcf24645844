"""``lrpx.explain``: one call, after which nothing is kept."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from transformers import PreTrainedModel

from ..errors import InputError
from ..methods.options import methods_with_options
from ..models.placement import entry_device
from ..passes.execution import Execution
from ..propagation.rulesets import RuleSet
from ..results.explanation import Explanation
from ..results.explanations import Explanations
from .api import BATCH_TOKENS, IMAGES_ALONE, NO_TEXT, Explainer
from .arguments import (
    Choices,
    ExplainOptions,
    Explains,
    Images,
    Methods,
    Model,
    OneExplain,
    OneMethod,
    Part,
    Position,
    Prefix,
    Reader,
    Target,
    Text,
)
from .keywords import check_call

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of the standard library from Python 3.11 on

logger = logging.getLogger("lrpx")

MANY_CALLS = 8  # of ``explain`` with one model on a GPU, before the log says what an ``Explainer`` would save


@overload
def explain(
    model: Model,
    tokenizer: Reader | None,
    text: str,
    *,
    method: OneMethod = "attnlrp",
    **options: Unpack[OneExplain],
) -> Explanation: ...
@overload
def explain(
    model: Model,
    tokenizer: Reader | None,
    text: list[str] | tuple[str, ...],
    *,
    method: OneMethod | Methods = "attnlrp",
    **options: Unpack[ExplainOptions],
) -> Explanations: ...
@overload
def explain(
    model: Model,
    tokenizer: Reader | None = None,
    text: Text | None = None,
    *,
    method: OneMethod | Methods = "attnlrp",
    **options: Unpack[ExplainOptions],
) -> Explanation | Explanations: ...
def explain(
    model: Model,
    tokenizer: Reader | None = None,
    text: Text | None = None,
    *,
    text_pair: Part = None,
    question: Part = None,
    choices: Choices = None,
    method: OneMethod | Methods = "attnlrp",
    images: Images = None,
    target: Target = None,
    contrast: Target = None,
    position: Position = None,
    target_prefix: Prefix = None,
    objective: Literal["logit", "logprob"] = "logit",
    explains: Explains = None,
    at: str | Sequence[str] | None = None,
    norm: Literal["l1", "l2"] | None = None,
    direct: bool | None = None,
    rules: str | RuleSet | None = None,
    heads: bool | None = None,
    errors: Literal["raise", "collect"] = "raise",
    progress: bool | None = None,
    batch_tokens: int = BATCH_TOKENS,
    fast: bool | None = None,
    compile: bool = False,
    checkpoint: bool | None = None,
    **options: object,
) -> Explanation | Explanations:
    """Explain what ``model`` predicts for ``text``, once: an ``Explainer`` is made for the call, and nothing is kept.

    The first two arguments and ``batch_tokens``, ``fast``, ``compile`` and ``checkpoint`` are those of ``Explainer``, all
    others, the result and the errors those of calling it.

    Examples:
        >>> e = lrpx.explain(model, tokenizer, "The keys to the cabinet", target=" are", contrast=" is")
        >>> e.show()
    """
    check_call(options, ExplainOptions.__annotations__)
    options |= {"at": at, "norm": norm, "direct": direct, "rules": rules, "heads": heads}
    methods_with_options(method, options)  # refused before a model is loaded
    Execution(fast, compile, checkpoint)
    if text is None:
        raise InputError(NO_TEXT if images is None else IMAGES_ALONE)
    explainer = Explainer(
        model, tokenizer, batch_tokens=batch_tokens, fast=fast, compile=compile, checkpoint=checkpoint
    )
    _recommend_an_explainer(explainer.model)
    asked: dict[str, Any] = {
        "text_pair": text_pair,
        "question": question,
        "choices": choices,
        "target": target,
        "contrast": contrast,
        "position": position,
        "target_prefix": target_prefix,
        "objective": objective,
        "explains": explains,
        "images": images,
        **options,
    }
    return explainer(text, method=method, errors=errors, progress=progress, **asked)


_calls: weakref.WeakKeyDictionary[PreTrainedModel, int] = weakref.WeakKeyDictionary()


def _recommend_an_explainer(model: PreTrainedModel) -> None:
    """Say once, after many calls with a model on a GPU, what an ``Explainer`` would save."""
    _calls[model] = _calls.get(model, 0) + 1
    if _calls[model] == MANY_CALLS and entry_device(model).type == "cuda":
        logger.info(
            "lrpx.explain was called %d times with one %s. An lrpx.Explainer(model, tokenizer) keeps CUDA graphs between "
            "calls, with which a short text takes a fraction of the time.",
            *(MANY_CALLS, type(model).__name__),
        )
