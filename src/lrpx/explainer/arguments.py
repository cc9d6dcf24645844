"""What ``Explainer`` and ``explain`` are given, as types: written once, and completed by editors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ..propagation.rulesets import RuleSet

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

Model: TypeAlias = PreTrainedModel | str | os.PathLike[str]
Reader: TypeAlias = "PreTrainedTokenizerBase | ProcessorMixin | BaseImageProcessor"
Ids: TypeAlias = "Sequence[int] | Sequence[Sequence[int]] | torch.Tensor | np.ndarray | BatchEncoding"
Chat: TypeAlias = Sequence[Mapping[str, object]]
Text: TypeAlias = "str | Ids | Chat | Sequence[str] | Sequence[Ids] | Sequence[Chat]"
Target: TypeAlias = "str | int | Sequence[str | int | None] | torch.Tensor | np.ndarray | None"
Position: TypeAlias = "int | Sequence[int | None] | torch.Tensor | np.ndarray | None"
MethodName: TypeAlias = Literal[
    "attnlrp",
    "lrp",
    "lrp-uniform-gate",
    "gradient",
    "gradient-x-input",
    "alti-logit",
    "alti",
    "attention-rollout",
]
OneMethod: TypeAlias = MethodName | str
Methods: TypeAlias = list[OneMethod] | tuple[OneMethod, ...]


class CallOptions(TypedDict, total=False):
    """The options of a call of an ``Explainer``; its docstring says what they mean."""

    target: Target
    contrast: Target
    position: Position
    objective: Literal["logit", "logprob"]
    at: str | Sequence[str] | None
    norm: Literal["l1", "l2"] | None
    direct: bool | None
    rules: str | RuleSet | None
    errors: Literal["raise", "collect"]
    progress: bool | None


class GenerateOptions(TypedDict, total=False):
    """The options of ``Explainer.generate`` that belong to a method."""

    at: str | Sequence[str] | None
    norm: Literal["l1", "l2"] | None
    direct: bool | None
    rules: str | RuleSet | None


class ExplainOptions(CallOptions, total=False):
    """The options of ``explain``: those of a call, and those of an ``Explainer``."""

    batch_tokens: int
    fast: bool | None
    compile: bool
    checkpoint: bool | None
