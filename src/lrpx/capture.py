"""One forward and one backward pass of a padded batch, from the explained logits down to the hidden states asked for.

1. Check that the model can be explained at all (eval mode, an attention PyTorch functions can see, no state-space mixer).
2. Run it under a rule set, with hooks that note the hidden states named in ``at``.
3. ``value = logit[target] - logit[contrast]`` at each item's position; its gradient with respect to those states.
4. Check that the rules took effect and that everything is finite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from .batching import Attribution, Batch
from .errors import InputError, NonFiniteError, UnsupportedModelError
from .guards import check_model, check_no_bypass, check_rules_took_effect, where_not_finite
from .propagate import Propagation, propagate
from .rulesets import RuleSet
from .taps import not_met, place_first, resolve_at, taps_of


@dataclass(frozen=True)
class Hidden:
    """A hidden state and the gradient of the summed values with respect to it, both ``[B, T, width]``."""

    state: Tensor
    gradient: Tensor

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """State and gradient, float64."""
        return self.state.cpu().double().numpy(), self.gradient.cpu().double().numpy()


@dataclass(frozen=True)
class Pass:
    """What one forward and backward pass gave.

    Attributes:
        values: float64 ``[B]``, the explained scalars.
        targets: ``[B]`` explained token ids.
        hidden: Name in ``at`` or module name -> hidden state and gradient; first the place of the token relevance.
        mode: The rules' counters.
    """

    values: np.ndarray
    targets: list[int]
    hidden: dict[str, Hidden]
    mode: Propagation


def run(
    model: PreTrainedModel,
    batch: Batch,
    rules: str | RuleSet,
    at: Sequence[str] = ("input",),
    *,
    mode: type[Propagation] = Propagation,
) -> Pass:
    """Explain a batch: see the top of this file.

    Args:
        model: A causal or masked language model in eval mode.
        batch: From ``batching.pad``.
        rules: A rule set or its name; an empty one gives plain gradients.
        mode: A subclass of ``Propagation`` that watches more.
        at: ``"input"`` (what enters the first block), ``"embedding"`` (the word-embedding rows), module names or globs.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly.
        InputError: A name in ``at`` matches no module, or a module whose output is not ``[batch, tokens, width]``.
        NonFiniteError: A logit or a gradient is NaN or infinite; the error names the module where it began.
    """
    check_model(model, rules)
    at = place_first(at)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        propagate(model, rules, mode=mode) as active,
        ExitStack() as stack,
    ):
        active.keep_gradient = True
        modules = list(model.modules())
        batch = batch.outside_inference_mode()
        rows = torch.arange(len(batch.spans), device=batch.positions.device)
        wanted = resolve_at(model, at)
        taps = stack.enter_context(taps_of(model, modules, wanted, batch.inputs["input_ids"].shape))
        logits, index = explained_logits(model, batch)
        at_position = logits[rows, index]  # [B, vocabulary]
        if not at_position.isfinite().all():
            raise NonFiniteError(where_not_finite(model, lambda: explained_logits(model, batch)))
        targets = torch.where(batch.targets < 0, at_position.argmax(-1), batch.targets)
        values = at_position[rows, targets].double()
        contrasted = batch.contrasts >= 0
        values = values - torch.where(contrasted, at_position[rows, batch.contrasts.clamp(min=0)].double(), 0)
        for name in wanted:
            if name not in taps:
                raise InputError(not_met(model, name))
        if active.rules:
            check_rules_took_effect(model, modules, active, values)
        if "input" in wanted and active.rules:
            check_no_bypass(model, values, taps)
        states = [taps[name] for name in wanted]  # in the order asked for
        differentiable = [state for state in states if state.requires_grad]
        found = torch.autograd.grad(values.sum(), differentiable, allow_unused=True)
    gradients = dict(zip(map(id, differentiable), found, strict=True))
    hidden: dict[str, Hidden] = {}
    padding = batch.inputs["attention_mask"] == 0
    length = padding.shape[1]
    for name, state in zip(wanted, states, strict=True):
        gradient = gradients.get(id(state))
        if gradient is None:
            gradient = torch.zeros_like(state)
        if not gradient.isfinite().all():
            narrow = state.dtype in (torch.float16, torch.bfloat16)
            wider = (
                'Load the model in a wider dtype: dtype="float32".' if narrow else "Try another attn_implementation."
            )
            raise NonFiniteError(f"the gradient at {name} is not finite in {state.dtype}. {wider}")
        if gradient[:, length:].any():
            raise UnsupportedModelError(
                f"{type(model).__name__} puts tokens of its own around the text, so hidden states and tokens do not match."
            )
        if not hidden and gradient[:, :length][padding.to(gradient.device)].any():
            raise UnsupportedModelError(
                f"{type(model).__name__} lets padding take part in its prediction, so a padded batch gives wrong maps. "
                "Explain texts of different lengths one by one."
            )
        hidden[name] = Hidden(state.detach().flatten(2), gradient.flatten(2))
    return Pass(values.detach().cpu().numpy(), targets.tolist(), hidden, active)


def attributions(
    result: Pass, batch: Batch, combine: Callable[[np.ndarray, np.ndarray], np.ndarray], *, decomposes: bool
) -> list[Attribution]:
    """One attribution per item: ``combine(state, gradient)``, cut to its real tokens.

    The first hidden state gives the token relevance, summed over the width; the others are kept whole, in ``layers``.
    ``decomposes`` says that the relevances are parts of the value, so that a residual means something.
    """
    combined = {name: combine(*hidden.arrays()) for name, hidden in result.hidden.items()}  # [B, T, width]
    found = []
    for i, span in enumerate(batch.spans):
        parts = {name: values[i, span] for name, values in combined.items()}
        relevance = parts.pop(next(iter(parts))).sum(-1)
        value = float(result.values[i])
        residual = value - float(relevance.sum()) if decomposes else None
        found.append(
            Attribution(relevance=relevance, value=value, residual=residual, target=result.targets[i], layers=parts)
        )
    return found


def explained_logits(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Forward pass; logits ``[B, K, vocabulary]`` and, per item, which of the K positions is explained ``[B]``.

    Where the model can compute the logits of chosen positions only, it does.
    """
    inputs = {**batch.inputs, **accepted(model, use_cache=False, return_dict=True)}
    positions, index = batch.positions.unique(return_inverse=True)
    keep = accepted(model, logits_to_keep=positions)
    output = model(**inputs, **keep)
    logits = output.logits if hasattr(output, "logits") else output[0]
    if keep and logits.shape[1] == len(positions):
        return logits, index
    if logits.shape[:2] != batch.inputs["input_ids"].shape:
        raise UnsupportedModelError(
            f"{type(model).__name__} returns logits of shape {list(logits.shape)} for {list(batch.inputs['input_ids'].shape)} "
            "tokens; expected [batch, tokens, vocabulary]."
        )
    return logits, batch.positions


def accepted(model: PreTrainedModel, **arguments: Any) -> dict[str, Any]:
    """Those of ``arguments`` that the model's ``forward`` names."""
    names = inspect.signature(model.forward).parameters
    return {k: v for k, v in arguments.items() if k in names}
