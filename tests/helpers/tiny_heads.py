"""A tiny random model for every family that transformers lists for classification, question answering and multiple choice.

    model = build("text-classification:llama")   # float64, eval mode, three labels

The configurations are those of ``tiny.py``; nothing is downloaded.
"""

from __future__ import annotations

import tiny
import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from lrpx.models.heads import HEADS
from lrpx.models.refused import REFUSED, REFUSED_HEADS

TASKS = ("text-classification", "token-classification", "question-answering", "multiple-choice")
LABELS = {"text-classification": 3, "token-classification": 5}

_CLASS_NAMES: dict[str, str] = {}
for _head in HEADS:
    if _head.task in TASKS:
        for _name, _kind in dict(getattr(modeling_auto, _head.tables[0])).items():
            _CLASS_NAMES[f"{_head.task}:{_name}"] = _kind if isinstance(_kind, str) else _kind[0]

_LAYOUTLMV2 = "needs detectron2 to be built at all; refused like layoutlmv3"
SKIPPED: dict[str, str] = {f: _LAYOUTLMV2 for f in _CLASS_NAMES if f.endswith(":layoutlmv2")}
"""Family -> why it is not built."""

OLD = Version(transformers.__version__) < Version("5.17")
if OLD:  # what earlier releases of transformers cannot run themselves
    _FAILS = ("multiple-choice:camembert", "multiple-choice:xlm-roberta", "question-answering:led")
    _FAILS += tuple(f for f in _CLASS_NAMES if f.endswith(":t5gemma2"))
    SKIPPED |= dict.fromkeys(_FAILS, "this release of transformers fails to run it")

FAMILIES: list[str] = [family for family in _CLASS_NAMES if family not in SKIPPED]
"""Every other family of the four mappings, as ``<task>:<model type>``."""


def of(task: str) -> list[str]:
    """The families of a task."""
    return [family for family in FAMILIES if family.startswith(f"{task}:")]


def type_of(family: str) -> str:
    """The model type."""
    return family.split(":")[1]


_ENCODER_DECODER = "bart bigbird_pegasus led mbart mt5 mvp plbart t5 t5gemma t5gemma2 umt5".split()
_ENCODERS = ("token-classification:mt5", "token-classification:t5")  # heads on the encoder alone

PAIRS = [f for f in FAMILIES if type_of(f) in _ENCODER_DECODER and f not in _ENCODERS]
"""Families with an encoder and a decoder."""

REFUSES: dict[str, str] = {
    family: reason
    for family in FAMILIES
    for reason in [
        REFUSED.get(type_of(family))
        or REFUSED_HEADS.get(type_of(family))
        or ("it classifies tokens by a decoder" if family in PAIRS and family.startswith("token") else None)
    ]
    if reason
}
"""Family -> why it is refused by name."""

FLOAT32_ONLY = {"splinter": "multiplies a mask of integers by float64's smallest number, in float32"}
"""Model types that transformers cannot run in float64 -> why."""

if OLD:
    FLOAT32_ONLY |= dict.fromkeys(("mpt", "mvp"), "fills its mask with float64's smallest number in float32")

EXPLAINED: list[str] = [family for family in FAMILIES if family not in REFUSES]
"""All others."""


def build(
    family: str,
    *,
    dtype: torch.dtype = torch.float64,
    zero_biases: bool = False,
    pad: int | None = 0,
    **changes: object,
) -> PreTrainedModel:
    """A tiny model of ``family`` in eval mode; ``pad`` is its padding token, and ``changes`` are set in the configuration."""
    task, name = family.split(":")
    dtype = torch.float32 if name in FLOAT32_ONLY else dtype
    tiny._CLASS_NAMES.setdefault(family, _CLASS_NAMES[family])
    with tiny._quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = tiny.configuration(family)
        if task in LABELS:
            config.num_labels = LABELS[task]
        text = config.get_text_config()
        if pad is None or text.pad_token_id is None:
            text.pad_token_id = pad
        if family in PAIRS and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = 2
        if name == "longformer":
            config.attention_window = [4] * config.num_hidden_layers
        for key, value in changes.items():
            setattr(config, key, value)
        kind = getattr(transformers, _CLASS_NAMES[family])
        options = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
        model = kind._from_config(config, dtype=dtype, **options)
        tiny._draw(model, torch.Generator().manual_seed(0))
    if zero_biases:
        tiny.zero_bias(model)
    return model.eval()
