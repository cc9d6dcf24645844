"""What images put into a language model, watched while it runs.

1. Images become features before the language model runs, in modules that have blocks of their own. So the first block is
   looked for in the language model alone, and what those modules do is no part of a pass: their output is cut off, and
   counted is what happens after.
2. The features stand in what enters the first block, in place of the image's tokens. A gradient that reaches a feature all
   the same came around the first block (as in Mllama, through cross-attention), and the map is refused.
3. DeepStack (Qwen3-VL; Meng et al., 2024, arXiv 2406.04334) adds further features of the same tokens after each of the first
   blocks. They are further inputs: each is noted as ``[B, T, width]``, zero where there is no image, beside what enters the
   first block.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .._torch_internals import no_function_modes
from ..errors import UnsupportedModelError
from ..propagation.propagate import Propagation
from .checkpointing import Recomputation

_FEATURES, _WHERE = "deepstack_visual_embeds", "visual_pos_masks"


def language_model(model: PreTrainedModel) -> nn.Module:
    """The part of a model that reads text and image features together.

    Raises:
        UnsupportedModelError: It is not told from the rest.
    """
    found: Any = model.get_decoder()
    if not isinstance(found, nn.Module) or found is model or found is model.base_model:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not say which part of it is the language model (get_decoder), so images cannot be "
            "explained. Explain text alone."
        )
    return found


def before_the_language_model(model: PreTrainedModel) -> list[nn.Module]:
    """The outermost modules that neither hold the language model, nor are part of it, nor are the word embedding."""
    inside, table = set(language_model(model).modules()), model.get_input_embeddings()
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            if child in inside or child is table:
                continue
            if inside.isdisjoint(child.modules()):
                found.append(child)
            else:
                look(child)

    look(model)
    return found


@contextmanager
def watched_images(
    model: PreTrainedModel, taps: Mapping[str, Tensor], active: Propagation, again: Recomputation
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """While the block runs, note image features: those that must not come around the first block, and those of DeepStack.

    Args:
        model: A model that is given images.
        taps: Where -> hidden state; what enters the first block is there as soon as that runs.
        active: The mode that applies the rules. Its counts begin with the language model.
        again: Says whether a block runs once more.
    """
    features: list[Tensor] = []
    later: list[Tensor] = []
    thread = threading.get_ident()

    def elsewhere() -> bool:
        return "input" in taps or again.running or threading.get_ident() != thread

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        return output if elsewhere() else _with_leaves(output, features)

    def entered(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if elsewhere():
            return None
        for counter in (active.hits, active.met, active.cuts, active.unknown):
            counter.clear()
        embeds, where = kwargs.get(_FEATURES), kwargs.get(_WHERE)
        if embeds is None or where is None:
            return None
        with no_function_modes():
            new = []
            for each in embeds:
                whole = each.new_zeros(*where.shape, each.shape[-1])
                whole[where] = each.detach()
                later.append(whole.requires_grad_())
                new.append(whole[where])
        return args, {**kwargs, _FEATURES: new}

    with ExitStack() as stack:
        for module in before_the_language_model(model):
            stack.callback(module.register_forward_hook(cut).remove)
        stack.callback(language_model(model).register_forward_pre_hook(entered, with_kwargs=True).remove)
        yield features, later


def _with_leaves(output: Any, leaves: list[Tensor]) -> Any:
    """What a module returned, each floating tensor cut off from what made it."""
    if isinstance(output, Tensor):
        if not output.is_floating_point():
            return output
        with no_function_modes(), torch.enable_grad():
            leaves.append(output.detach().requires_grad_())
            return leaves[-1].clone()  # a model may write into it
    if isinstance(output, dict):
        new = copy.copy(output)
        for name, value in output.items():
            new[name] = _with_leaves(value, leaves)
        return new
    if isinstance(output, tuple | list):
        parts = [_with_leaves(value, leaves) for value in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return output
