"""What a model predicts at the explained position: its likeliest tokens, and how likely target and contrast are.

The logits of the position say it, which a pass computes anyway, or needs one more product for. They are reduced where they
are: of a vocabulary of 128,256 a few numbers travel.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..text.batching import Predictions


def predictions(logits: Tensor, targets: Tensor, contrasts: Tensor, count: int, *, independent: bool = False) -> Tensor:
    """Ids and log-probabilities of the ``count`` likeliest tokens, and log-probabilities and ranks of two tokens.

    Args:
        logits: ``[B, vocabulary]``.
        targets: ``[B]`` token ids.
        contrasts: ``[B]`` token ids, -1 where there is none.
        count: k, or the size of the vocabulary if that is smaller.
        independent: Each logit has a probability of its own, by a sigmoid; otherwise all share one, by a softmax.

    Returns:
        ``[B, 2 k + 4]``, at least float32, for ``read_predictions``.
    """
    logits = logits.detach()
    logits = logits if logits.dtype == torch.float64 else logits.float()
    best = logits.topk(min(count, logits.shape[1]))
    pair = torch.stack([targets, contrasts.clamp(min=0)], 1).to(logits.device)
    asked = logits.gather(1, pair)
    ranks = (logits.unsqueeze(1) > asked.unsqueeze(2)).sum(-1) + 1  # [B, 2]
    ranks = torch.stack([ranks[:, 0], ranks[:, 1] * (contrasts >= 0).to(ranks.device)], 1)
    if independent:
        likely, asked = logsigmoid(best.values), logsigmoid(asked)
    else:
        total = logits.logsumexp(-1, keepdim=True)
        likely, asked = best.values - total, asked - total
    return torch.cat([best.indices.to(logits.dtype), likely, asked, ranks.to(logits.dtype)], 1)


def read_predictions(numbers: np.ndarray) -> Iterator[Predictions]:
    """``predictions`` of each item, from ``[B, 2 k + 4]`` on the CPU."""
    count = (numbers.shape[1] - 4) // 2
    ids, likely = numbers[:, :count].astype(int), np.exp(numbers[:, count : 2 * count])
    asked = np.exp(numbers[:, 2 * count : 2 * count + 2]).tolist()
    ranks = numbers[:, 2 * count + 2 :].astype(int).tolist()
    for best, probabilities, pair, (rank, other_rank) in zip(ids, likely, asked, ranks, strict=True):
        yield Predictions(best, probabilities, (pair[0], rank), (pair[1], other_rank) if other_rank else None)
