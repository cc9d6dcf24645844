"""A forward pass of a batch: the scores that are explained, logits or what a readout makes of the model's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..models.placement import is_divided
from ..models.signature import takes
from ..propagation.propagate import Propagation
from ..text.batching import Batch, Readout
from .functions import with_functions
from .output_head import OutputHead, output_embedding
from .spec import PassOptions


class HeadNotFollowed(Exception):
    """The model's logits cannot be computed one by one; its own way is ``PassOptions(whole_head=True)``."""


def exact_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which values and sums are computed on the tensor's device: float64 where there is one."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def asked_scores(
    model: PreTrainedModel,
    batch: Batch,
    readout: Readout | None,
    options: PassOptions,
    active: Propagation,
    wanted: Mapping[str, Any],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The scores of target and contrast ``[B, 2]``, the targets ``[B]``, and all scores ``[B, K]`` if asked for."""
    if readout is not None:
        return _chosen(read_scores(model, batch, readout), batch)
    module = None if options.whole_head or "linear" in active.rules else output_embedding(model)
    if module is None or any(module in m.modules() for m in wanted.values() if m is not None):
        logits, index = explained_logits(model, batch, static=options.static)
        rows = torch.arange(batch.positions.shape[0], device=logits.device)
        logits = logits[rows, index.to(logits.device)]  # [B, vocabulary]
    else:
        pair = _pair(batch.targets, batch.contrasts) if batch.chosen else None
        ids, length = None if pair is None else pair.unsqueeze(1), batch.ids.shape[1]
        aside = options.aside if batch.likeliest else None
        head = OutputHead(module, batch.positions.unsqueeze(1), ids, length, aside=aside)
        found = followed(model, batch, head)
        logits = found[:, 0]
        if pair is not None:
            return logits, batch.targets, None if aside is None else head.all_logits(found)
    return _chosen(logits, batch)


def _chosen(scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of all scores ``[B, K]``: those of target and contrast ``[B, 2]``, the targets ``[B]``, and all if asked for."""
    asked, contrasts = batch.targets.to(scores.device), batch.contrasts.to(scores.device)
    targets = torch.where(asked < 0, scores.argmax(-1), asked)
    picked = scores.gather(1, _pair(targets, contrasts))
    if batch.functions:
        picked = with_functions(batch.functions, scores, picked.to(exact_dtype(scores)))
    return picked, targets, scores if batch.likeliest else None


def read_scores(model: PreTrainedModel, batch: Batch, readout: Readout) -> Tensor:
    """Forward pass; the scores ``[B, K]`` that ``readout`` reads off the model's output."""
    inputs = readout.inputs(batch.inputs)
    return readout(model(**inputs, **accepted(model, use_cache=False, return_dict=True)), batch)


def read_once(model: PreTrainedModel, batch: Batch) -> object:
    """A forward pass that reads the batch's scores or logits, to look for what is not finite."""
    return explained_logits(model, batch) if batch.readout is None else read_scores(model, batch, batch.readout)


def followed(model: PreTrainedModel, batch: Batch, head: OutputHead) -> Tensor:
    """Forward pass; the logits ``[B, P, K]`` that ``head`` computes.

    Raises:
        HeadNotFollowed: The model does something else with its output embedding.
    """
    try:
        with head.installed():
            output = model(**batch.inputs, **accepted(model, use_cache=False, return_dict=True))
    except Exception as error:
        if head.uses and not isinstance(error, torch.OutOfMemoryError):
            raise HeadNotFollowed from error
        raise
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    if not head.gave(logits):
        raise HeadNotFollowed
    return logits


def _pair(targets: Tensor, contrasts: Tensor) -> Tensor:
    """Ids ``[B, 2]``; where there is no contrast the target's stands twice, so that no logit beside it matters."""
    return torch.stack([targets, torch.where(contrasts < 0, targets, contrasts)], 1)


def explained_logits(model: PreTrainedModel, batch: Batch, *, static: bool = False) -> tuple[Tensor, Tensor]:
    """Forward pass; logits ``[B, K, vocabulary]`` and, per item, which of the K positions is explained ``[B]``.

    Where the model can compute the logits of chosen positions only, it does; not if ``static``, since how many there are
    depends on values.
    """
    inputs = {**batch.inputs, **accepted(model, use_cache=False, return_dict=True)}
    # On a divided model, indexing by positions fails where the last block is on another device than the first.
    positions, index = (None, None) if static or is_divided(model) else batch.positions.unique(return_inverse=True)
    keep = {} if positions is None else accepted(model, logits_to_keep=positions)
    output = model(**inputs, **keep)
    logits = output.logits if hasattr(output, "logits") else output[0]
    if keep and index is not None and positions is not None and logits.shape[1] == len(positions):
        return logits, index
    if logits.shape[:2] != batch.ids.shape:
        raise UnsupportedModelError(
            f"{type(model).__name__} returns logits of shape {list(logits.shape)} for {list(batch.ids.shape)} "
            "tokens; expected [batch, tokens, vocabulary]."
        )
    return logits, batch.positions


def accepted(model: PreTrainedModel, **arguments: Any) -> dict[str, Any]:
    """Those of ``arguments`` that the model's ``forward`` names."""
    return {k: v for k, v in arguments.items() if takes(model, k)}
