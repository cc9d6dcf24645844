"""What ``Explainer`` and ``explain`` are given, as types: written once, and completed by editors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ..propagation.rulesets import RuleSet

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image
    import torch
    from transformers import ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

Model: TypeAlias = PreTrainedModel | str | os.PathLike[str]
Reader: TypeAlias = "PreTrainedTokenizerBase | ProcessorMixin | BaseImageProcessor"
Ids: TypeAlias = "Sequence[int] | Sequence[Sequence[int]] | torch.Tensor | np.ndarray | BatchEncoding"
Chat: TypeAlias = Sequence[Mapping[str, object]]
Text: TypeAlias = "str | Ids | Chat | Sequence[str] | Sequence[Ids] | Sequence[Chat]"
Function: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
Image: TypeAlias = "PIL.Image.Image | str | os.PathLike[str] | np.ndarray | torch.Tensor"
Images: TypeAlias = "Image | Sequence[Image] | Sequence[Sequence[Image] | None] | None"
OneTarget: TypeAlias = "str | int | tuple[int, int] | Function | None"
Target: TypeAlias = "OneTarget | Sequence[OneTarget | Sequence[int]] | torch.Tensor | np.ndarray"
Prefix: TypeAlias = "str | Sequence[str | Sequence[int] | int | None] | torch.Tensor | np.ndarray | None"
Position: TypeAlias = "int | Sequence[int | None] | torch.Tensor | np.ndarray | None"
Explains: TypeAlias = "str | Sequence[str | None] | None"
Part: TypeAlias = str | Sequence[str] | None
Choices: TypeAlias = Sequence[str] | Sequence[Sequence[str]] | None
MethodName: TypeAlias = Literal[
    "attnlrp",
    "lrp",
    "lrp-uniform-gate",
    "gradient",
    "gradient-x-input",
    "alti-logit",
    "alti",
    "attention-rollout",
    "integrated-gradients",
    "smoothgrad",
    "occlusion",
    "leave-one-out",
    "lime",
    "kernel-shap",
    "random",
]
OneMethod: TypeAlias = MethodName | str
Methods: TypeAlias = list[OneMethod] | tuple[OneMethod, ...]


class _OfEveryCall(TypedDict, total=False):
    objective: Literal["logit", "logprob"]
    at: str | Sequence[str] | None
    norm: Literal["l1", "l2"] | None
    direct: bool | None
    rules: str | RuleSet | None
    heads: bool | None
    steps: int | None
    samples: int | None
    noise: float | None
    seed: int | None
    baseline: Literal["zero", "mean", "pad"] | int | None
    window: int | None
    errors: Literal["raise", "collect"]
    progress: bool | None


class OneCall(_OfEveryCall, total=False):
    """The options of a call of an ``Explainer`` for one prediction of one text."""

    text_pair: str | None
    question: str | None
    choices: Sequence[str] | None
    target: OneTarget
    contrast: str | int | None
    position: int | None
    target_prefix: str | Sequence[int] | None
    explains: str | None


class CallOptions(_OfEveryCall, total=False):
    """The options of a call of an ``Explainer``; its docstring says what they mean."""

    text_pair: Part
    question: Part
    choices: Choices
    target: Target
    contrast: Target
    position: Position
    target_prefix: Prefix
    explains: Explains
    images: Images


class GenerateOptions(TypedDict, total=False):
    """The options of ``Explainer.generate`` that belong to a method."""

    at: str | Sequence[str] | None
    norm: Literal["l1", "l2"] | None
    direct: bool | None
    rules: str | RuleSet | None


class _OfAnExplainer(TypedDict, total=False):
    batch_tokens: int
    fast: bool | None
    compile: bool
    checkpoint: bool | None


class OneExplain(OneCall, _OfAnExplainer, total=False):
    """The options of ``explain`` for one prediction of one text."""


class ExplainOptions(CallOptions, _OfAnExplainer, total=False):
    """The options of ``explain``: those of a call, and those of an ``Explainer``."""
