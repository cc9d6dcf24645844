"""The embedding of a text, made from the hidden states of its tokens, and backward passes from its D numbers.

What a sum of them, weighted, owes to each token is one backward pass; what each of them owes, D passes together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import NonFiniteError, UnsupportedModelError
from ..models.sentence_encoder import Embedding
from ..text.batching import Batch, Readout
from .dispatch import PassRunner
from .forward_backward import watched
from .many_targets import ManyTargets, with_options
from .memory import values_at_once
from .scores import accepted, exact_dtype
from .scoring import PositionScores, Scoring
from .spec import PassOptions, PassSpec

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class MeanEmbedding(Readout):
    """The numbers of the embedding ``[B, D]``, of texts without padding."""

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """The mean of the hidden states over the tokens."""
        states: Tensor = output[0]
        return states.mean(1)


def explain_embedding(
    runner: PassRunner, batch: Batch, spec: PassSpec, made: Embedding, ask: Callable[[ManyTargets], Answer]
) -> Answer:
    """Run one text forward and return what ``ask`` finds out by backward passes from its embedding.

    ``ManyTargets.scores`` are its D numbers; ``ManyTargets.relevance`` takes weights ``[V, D]``.

    Args:
        runner: Of the model, whose lock the caller holds.
        batch: One text.
        spec: The rules, and the one place where relevance is taken.
        made: How the embedding is made of hidden states.
        ask: Calls ``ManyTargets.relevance``. It is called again if a pass has to be.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly, or returns no hidden states.
        NonFiniteError: A number of the embedding or a gradient is NaN or infinite.
    """
    model = runner.model

    def attempt(options: PassOptions) -> Answer:
        many = 1 if options.checkpoint else values_at_once(model, batch)
        with watched(model, batch, spec, options) as now:
            embedding = made(_hidden(model, now.batch)[0])
            if not embedding.isfinite().all():
                raise NonFiniteError(
                    f"an embedding of {type(model).__name__} has NaN or infinity in {embedding.dtype}. "
                    'Load the model in a wider dtype: dtype="float32".'
                )
            values, root = embedding.to(exact_dtype(embedding)), embedding.unsqueeze(1)
            width = len(embedding)
            scoring = Scoring([0] * width, [0] * width, reads_forward=False)
            return ask(
                ManyTargets(model, now, scoring, PositionScores(values, root, torch.ones_like(root)), together=many)
            )

    return with_options(runner, batch, spec, attempt)


def embedding_of(model: PreTrainedModel, batch: Batch, made: Embedding) -> Tensor:
    """The embedding ``[D]`` of one text, by a forward pass alone."""
    with torch.no_grad():
        return made(_hidden(model, batch)[0])


def _hidden(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The hidden states after the last block and its norm ``[1, T, D]``: what the model without its head returns."""
    body: Any = model.base_model
    output = body(**batch.inputs, **accepted(body, use_cache=False, return_dict=True))
    states = output[0] if not hasattr(output, "last_hidden_state") else output.last_hidden_state
    if not isinstance(states, Tensor) or states.shape[:2] != batch.inputs["input_ids"].shape:
        raise UnsupportedModelError(
            f"{type(body).__name__} returns no hidden state for each token, so there is nothing to pool an embedding from."
        )
    return states
