"""Where the parts of a model family are: plain data, for the methods that need more than operations (ALTI-Logit).

Each file of this folder describes one way of building a transformer as a ``Family``: module paths that one can check
against the printed model. ``find_family(model)`` picks the one that fits, or says what is missing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ....errors import UnsupportedModelError

ALTERNATIVES = "Methods that need no family: 'attnlrp', 'lrp', 'gradient-x-input'."


@dataclass(frozen=True, kw_only=True)
class Family:
    """A residual stream to which every block adds an attention output and an MLP output.

    Attributes:
        model_types: Values of ``config.model_type``.
        blocks: Path of the list of blocks, from the model.
        attention_output: Path of the output projection of the attention, from a block: a linear layer whose input is
            the heads side by side.
        mlp_output: Path of the module, from a block, whose output is what the MLP adds to the stream.
        head: Paths of the norms and linear layers from the last block's output to the logits, in order. What is
            ``None`` in a model is left out; elementwise functions in between (GELU, a soft cap, a factor) are no entry.
        branch_norms: Norms of the attention output and of the MLP output *before* they are added (Gemma 2, OLMo 2).
        sum_norms: Norms of the stream *after* the attention and after the MLP were added (BERT).
        norm_offset: Added to the weight of a norm to get its gain (1 for Gemma).
        multiplier: Name in the config of a factor of the attention and MLP outputs, or ``None``.
        causal: Whether a position sees only itself and earlier ones.
        requires: Config values that the description relies on; a model with another value is not of this family.
            A value that the config does not have counts as the required one, and ``None`` as ``False``.
    """

    model_types: tuple[str, ...]
    blocks: str
    attention_output: str
    mlp_output: str
    head: tuple[str, ...]
    branch_norms: tuple[str, str] | None = None
    sum_norms: tuple[str, str] | None = None
    norm_offset: float = 0.0
    multiplier: str | None = None
    causal: bool = True
    requires: Mapping[str, Any] = field(default_factory=dict)

    def factor(self, config: Any) -> float:
        """What the attention and MLP outputs are multiplied by."""
        return 1.0 if self.multiplier is None else float(getattr(config, self.multiplier))

    def missing(self, model: Any) -> list[str]:
        """What this description names and ``model`` does not have, in words; empty if all is there."""
        config = model.config
        lacks = []
        for name, value in self.requires.items():
            given = getattr(config, name, value)
            if (given or False) != (value or False):
                lacks.append(f"config.{name} = {value!r} (it is {given!r})")
        if not hasattr(model, "get_output_embeddings") or model.get_output_embeddings() is None:
            lacks.append("a language-model head")
        lacks += [path for path in self.head if not _has(model, path)]
        if self.multiplier is not None and not hasattr(config, self.multiplier):
            lacks.append(f"config.{self.multiplier}")
        if not _has(model, self.blocks):
            return [*lacks, self.blocks]
        parts = (self.attention_output, self.mlp_output, *(self.branch_norms or ()), *(self.sum_norms or ()))
        for path in parts:
            without = [str(index) for index, block in enumerate(get(model, self.blocks)) if not _has(block, path)]
            if without:
                lacks.append(f"{path} in block {', '.join(without)}")
        return lacks


def get(module: nn.Module, path: str) -> Any:
    """The submodule at a dotted path."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _has(module: nn.Module, path: str) -> bool:
    try:
        get(module, path)
    except AttributeError:
        return False
    return True


def all_families() -> list[Family]:
    """Every ``Family`` in the files of this folder, in the order of the files' names."""
    files = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in files]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Family)]


def find_family(model: nn.Module) -> Family:
    """The description that fits ``model``.

    Raises:
        UnsupportedModelError: No family knows the model type, or the model lacks a part that its family names; the
            error says which, and which methods work without.
    """
    name = type(model).__name__
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder model; ALTI-Logit follows one residual stream. {ALTERNATIVES}"
        )
    families = all_families()
    candidates = [family for family in families if kind in family.model_types]
    if not candidates:
        known = sorted(kind for family in families for kind in family.model_types)
        raise UnsupportedModelError(
            f"no family describes model type {kind!r} ({name}), so the places of its blocks, attention output, MLP and "
            f"head are missing. Known: {', '.join(known)}.",
            python=f"To add one, see docs/add_a_family.md. {ALTERNATIVES}",
            app=ALTERNATIVES,
        )
    lacking = [(family.missing(model), family) for family in candidates]
    missing, best = min(lacking, key=lambda pair: len(pair[0]))
    if missing:
        raise UnsupportedModelError(
            f"{name} (model type {kind!r}) is not as its family describes; missing: {'; '.join(missing)}. {ALTERNATIVES}"
        )
    return best
