"""How much memory a pass takes, by estimate, and whether its blocks have to be recomputed because of that."""

from __future__ import annotations

import logging

import torch
from transformers import PreTrainedModel

from ..models.placement import devices_of, is_offloaded
from ..text.batching import Batch
from .hidden_states import layer_count

logger = logging.getLogger("lrpx")

ROOM = 0.8  # of the free memory that a pass may take by estimate
TOGETHER = 1 << 28  # bytes of gradients of one block that a CPU computes together
SMALL = 1 << 28  # bytes; below, free memory is not looked up

# Names of the MLP's width and of the experts per token that ``attribute_map`` does not unite.
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size")
_EXPERTS = ("num_experts_per_tok", "top_k")


def needs_checkpoint(model: PreTrainedModel, batch: Batch, *, compiled: bool = False) -> bool:
    """Whether the inner values of all blocks would take more GPU memory than there is, by estimate; logged if so."""
    device = batch.positions.device
    if device.type != "cuda" or batch.of_images:  # how many tokens they have is not known yet
        return False
    if is_offloaded(model):
        return True  # loaded weights would stay until the backward pass
    estimate = activation_bytes(model, batch, compiled=compiled)
    estimate //= max(1, devices_of(model).count("cuda"))
    if estimate < SMALL:
        return False
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if estimate <= ROOM * free:
        return False
    logger.info(
        "%d tokens would take about %.1f GiB of %.1f GiB free: each block is recomputed in the backward pass "
        "(checkpoint=True)",
        *(sum(rows * length for rows, length in batch.shapes), estimate / 2**30, free / 2**30),
    )
    return True


def values_at_once(model: PreTrainedModel, batch: Batch) -> int:
    """How many values of one text go backwards together: as many as one block's gradients leave room for, by estimate."""
    device, room = batch.positions.device, TOGETHER
    if device.type == "cuda":
        room = int(ROOM * torch.cuda.mem_get_info(device)[0]) // 4
    layers = layer_count(model) or 12
    return max(1, room * layers // max(1, activation_bytes(model, batch)))


def activation_bytes(model: PreTrainedModel, batch: Batch, *, compiled: bool = False) -> int:
    """About what the backward pass needs of the forward pass, in bytes.

    Per token and block, four vectors of the model's width and three of its MLP's (two where fused), in the model's dtype;
    eager attention keeps its weights too. Encoder and decoder are counted as if both read all tokens. Measured figures
    are in ``docs/performance.md``.
    """
    config = model.config.get_text_config()
    several = getattr(config, "is_heterogeneous", False)  # layers have sizes of their own: count the largest
    configs = [config.per_layer_config[n] for n in range(config.num_hidden_layers)] if several else [config]

    def size(*names: str, default: int) -> int:
        for name in names:
            known = [n for each in configs if isinstance(n := getattr(each, name, None), int) and n > 0]
            if known:
                return max(known)
        return default

    # ``attribute_map`` of a configuration gives its own names for these (``n_embd``, ``n_layer``, ``n_head``) the usual ones.
    width = size("hidden_size", "d_model", default=1024)
    layers = layer_count(model) or 12
    heads = size("num_attention_heads", default=16)
    inner = size(*_INNER, default=4 * width)
    active = size(*_EXPERTS, default=1)
    rows, length = len(batch.ids), sum(length for _, length in batch.shapes)
    per_token = 4 * width + (2 if compiled else 3) * inner * active
    if getattr(config, "_attn_implementation", None) == "eager":
        per_token += 3 * heads * length
    return rows * length * layers * per_token * model.dtype.itemsize
