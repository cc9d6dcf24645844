"""One forward and one backward pass of a padded batch, from the explained logits down to the hidden states asked for.

1. Check that the model can be explained at all (eval mode, an attention PyTorch functions can see, no state-space mixer).
2. Run it under a rule set, with hooks that note the hidden states named in ``at``.
3. ``value = logit[target] - logit[contrast]`` at each item's position; its gradient with respect to those states.
4. Check that the rules took effect and that everything is finite.
"""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .batching import Attribution, Batch
from .errors import InputError, NonFiniteError, UnsupportedModelError, nearest
from .families.refused import REFUSED
from .propagate import Propagation, propagate
from .rulesets import RuleSet

ALTERNATIVE = 'Load it with attn_implementation="sdpa", or call model.set_attn_implementation("sdpa").'
# Mixers that are neither attention nor MLP; their own rules are not written yet.
STATE_SPACE = re.compile(
    r"[MmB]amba|SSM|[Dd]elta[Nn]et|DeltaAttention|FalconH1Mixer|[Rr]wkv|RWKV|RgLru|RecurrentBlock|ShortConv$|LinearAttention|"
    r"LightningAttention|x?LSTM|Retention|Hyena"
)


@dataclass(frozen=True)
class Hidden:
    """A hidden state and the gradient of the summed values with respect to it, both ``[B, T, width]``."""

    state: Tensor
    gradient: Tensor

    def of(self, item: int, span: slice) -> tuple[np.ndarray, np.ndarray]:
        """State and gradient of one item's real tokens, float64 ``[T, width]``."""
        return self.state[item, span].double().cpu().numpy(), self.gradient[item, span].double().cpu().numpy()


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
    rows = torch.arange(len(batch.spans), device=batch.positions.device)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        propagate(model, rules, mode=mode) as active,
        ExitStack() as stack,
    ):
        active.keep_gradient = True
        batch = batch.outside_inference_mode()
        rows = torch.arange(len(batch.spans), device=batch.positions.device)
        wanted = resolve_at(model, at)
        taps = stack.enter_context(_taps(model, wanted, batch.inputs["input_ids"].shape))
        logits, index = explained_logits(model, batch)
        at_position = logits[rows, index]  # [B, vocabulary]
        if not at_position.isfinite().all():
            raise NonFiniteError(_where_not_finite(model, batch))
        targets = torch.where(batch.targets < 0, at_position.argmax(-1), batch.targets)
        values = at_position[rows, targets].double()
        contrasted = batch.contrasts >= 0
        values = values - torch.where(contrasted, at_position[rows, batch.contrasts.clamp(min=0)].double(), 0)
        for name in wanted:
            if name not in taps:
                raise InputError(_not_met(model, name))
        if active.rules:
            _check_rules_took_effect(model, active, values)
        if "input" in wanted and active.rules:
            _check_no_bypass(model, values, taps)
        states = [taps[name] for name in wanted]  # in the order asked for
        differentiable = [state for state in states if state.requires_grad]
        found = torch.autograd.grad(values.sum(), differentiable, allow_unused=True)
    gradients = dict(zip(map(id, differentiable), found, strict=True))
    hidden = {}
    for name, state in zip(wanted, states, strict=True):
        gradient = gradients.get(id(state))
        if gradient is None:
            gradient = torch.zeros_like(state)
        if not gradient.isfinite().all():
            raise NonFiniteError(
                f"the gradient at {name} is not finite in {state.dtype}. Load the model in a wider dtype, "
                'e.g. dtype="bfloat16" instead of "float16", or "float32".'
            )
        length = batch.inputs["input_ids"].shape[1]
        if gradient[:, length:].any():
            raise UnsupportedModelError(
                f"{type(model).__name__} puts tokens of its own around the text, so hidden states and tokens do not match."
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
    found = []
    for i, span in enumerate(batch.spans):
        parts = {name: combine(*hidden.of(i, span)) for name, hidden in result.hidden.items()}  # [T, width]
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
    if accepted(model, logits_to_keep=positions):
        output = model(**inputs, logits_to_keep=positions)
        logits = output.logits if hasattr(output, "logits") else output[0]
        if logits.shape[1] == len(positions):
            return logits, index
        return logits, batch.positions
    output = model(**inputs)
    logits = output.logits if hasattr(output, "logits") else output[0]
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


# Where to look: names -> modules -> tensors.


def layer_count(model: PreTrainedModel) -> int:
    """How many blocks the configuration says the model has; 0 if it does not say."""
    config = model.config.get_text_config()
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    return next((n for name in names if isinstance(n := getattr(config, name, None), int)), 0)


def first_blocks(model: nn.Module) -> list[nn.Module]:
    """What may be the first block: the first module of every list of modules. The one that runs first is."""
    found = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module):
            first = module[0]
            while isinstance(first, nn.ModuleList | nn.ModuleDict) and len(first):
                first = next(first.children())
            found.append(first)
    return found


def place_first(at: Sequence[str]) -> list[str]:
    """``at`` with the place of the token relevance first: ``"input"`` or ``"embedding"``; ``"input"`` if it names neither."""
    names = [at] if isinstance(at, str) else list(dict.fromkeys(at))
    place = next((name for name in names if name in ("input", "embedding")), "input")
    return [place, *(name for name in names if name != place)]


def resolve_at(model: PreTrainedModel, at: Sequence[str]) -> dict[str, nn.Module | None]:
    """Names and globs -> modules, in order. ``"input"`` is no module: what enters the first block to run.

    Raises:
        InputError: A name matches nothing.
    """
    modules = dict(model.named_modules())
    found: dict[str, nn.Module | None] = {}
    for name in at:
        if name == "embedding":
            found[name] = model.get_input_embeddings()
        elif name == "input":
            found[name] = None
        else:
            matches = [m for m in modules if m and fnmatch.fnmatchcase(m, name)]
            if not matches:
                # Names of the first block and above say enough.
                names = [m for m in modules if m and not re.search(r"\.[1-9]\d*(\.|$)", m)]
                raise InputError(f"at={name!r} matches no module. {nearest(name, ['input', 'embedding', *names[:30]])}")
            found.update({m: modules[m] for m in matches})
    return found


@contextmanager
def _taps(
    model: PreTrainedModel, wanted: dict[str, nn.Module | None], shape: torch.Size
) -> Iterator[dict[str, Tensor]]:
    """While the block runs, note the hidden state of every wanted name. The hooks are removed on exit."""
    taps: dict[str, Tensor] = {}

    def is_hidden(value: Any) -> bool:
        """Whether this is a hidden state; a model may append padding of its own (Longformer)."""
        fits = isinstance(value, Tensor) and value.ndim >= 3 and value.is_floating_point()
        return fits and value.shape[0] == shape[0] and value.shape[1] >= shape[1]

    def tap_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if "input" in taps:  # only the first block to run, and its first use, sees the input
            return
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()]
        state = tensors[0] if tensors else None
        if state is not None and is_hidden(state):
            # The very tensor the model goes on with, so that a residual path around the block is seen too.
            taps["input"] = state if state.requires_grad else state.requires_grad_()

    def tap_embedding(_: nn.Module, __: Any, output: Any) -> Any:
        if "embedding" in taps or not is_hidden(output):
            return output
        taps["embedding"] = output.detach().requires_grad_()
        return taps["embedding"].clone()  # a model may write into its embeddings; the leaf must stay as it is

    def tap_output(name: str, output: Any) -> Any:
        state = next((v for v in (output, *_items(output)) if isinstance(v, Tensor) and v.is_floating_point()), None)
        if state is None:
            raise InputError(f"at={name!r}: this module returns {type(output).__name__}, not a hidden state.")
        flat = state.ndim == 2 and state.shape[0] == shape.numel()  # some models flatten batch and tokens
        view = state.reshape(*shape, -1) if flat else state
        if name in taps or not is_hidden(view):
            raise InputError(
                f"at={name!r}: this module returns shape {list(state.shape)}, or runs more than once; "
                f"expected one hidden state [batch, tokens, width] = {[*shape, 'width']}."
            )
        taps[name] = view  # a constant, such as a router's softmax under LRP, has relevance 0
        new = taps[name].clone().reshape(state.shape)  # a later in-place operation must not touch what was noted
        return new if state is output else _replaced(output, state, new)

    with ExitStack() as stack:
        for name, module in wanted.items():
            if name == "input":
                if "embedding" not in wanted:  # so that what bypasses the first block is seen, see _check_no_bypass
                    table = model.get_input_embeddings()
                    stack.callback(table.register_forward_hook(tap_embedding, prepend=True).remove)
                for block in first_blocks(model):
                    stack.callback(block.register_forward_pre_hook(tap_input, with_kwargs=True).remove)
            elif name == "embedding" and module is not None:
                stack.callback(module.register_forward_hook(tap_embedding, prepend=True).remove)
            elif module is not None:
                hook = partial(lambda name, _, __, output: tap_output(name, output), name)
                stack.callback(module.register_forward_hook(hook).remove)
        yield taps


def _not_met(model: nn.Module, name: str) -> str:
    if name in ("input", "embedding"):
        other = "embedding" if name == "input" else "input"
        return (
            f"at={name!r}: {type(model).__name__} shows no hidden state [batch, tokens, width] there. "
            f"Use at={other!r}, or name a module."
        )
    return f"at={name!r}: this module did not run in the forward pass, so it has no relevance."


def _items(output: Any) -> Sequence[Any]:
    return list(output.values()) if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()


def _replaced(output: Any, old: Tensor, new: Tensor) -> Any:
    """``output`` with the tensor ``old`` replaced by ``new``."""
    if isinstance(output, dict):
        return type(output)(**{k: new if v is old else v for k, v in output.items()})
    return type(output)(new if v is old else v for v in output)


# Checks: a wrong map looks like a right one, so refuse instead.


def check_model(model: PreTrainedModel, rules: str | RuleSet) -> None:
    """Refuse what cannot be explained correctly.

    Raises:
        UnsupportedModelError: Training mode, attention that bypasses PyTorch's functions, an encoder-decoder model, or a
            state-space or linear-attention mixer.
    """
    name = type(model).__name__
    if model.training:
        raise UnsupportedModelError(
            f"{name} is in training mode, where dropout makes every pass different. Call model.eval()."
        )
    if next(model.parameters()).is_inference():
        raise UnsupportedModelError(
            f"{name} was loaded inside torch.inference_mode(), so no gradient can pass it. Load it outside."
        )
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder model. Causal and masked language models are explained."
        )
    reason = REFUSED.get(getattr(config, "model_type", ""))
    if reason:
        raise UnsupportedModelError(f"{name} is not supported: {reason}.")
    attention = getattr(config, "_attn_implementation", None)
    if attention not in (None, "eager", "sdpa"):
        raise UnsupportedModelError(
            f"{name} uses attn_implementation={attention!r}, a kernel that hides its operations. {ALTERNATIVE}"
        )
    if not rules:
        return
    for module in model.modules():
        if STATE_SPACE.search(type(module).__name__):
            raise UnsupportedModelError(
                f"{name} mixes tokens with {type(module).__name__}, a state-space or linear-attention layer, which has no "
                'propagation rules yet. The methods "gradient" and "gradient-x-input" work.'
            )


def _check_rules_took_effect(model: PreTrainedModel, mode: Propagation, values: Tensor) -> None:
    """At least one normaliser and one attention per block were met, and nothing carried gradient unseen."""
    name, layers = type(model).__name__, layer_count(model)
    norms = sum(mode.hits[k] for k in ("layer_norm", "rms_norm", "unit_norm", "normaliser", "division"))
    attentions = (
        mode.hits["attention"] + mode.hits["softmax"] + (mode.hits["contraction"] if "softmax" not in mode.rules else 0)
    )
    modules = [type(m).__name__ for m in model.modules()]
    has_norms = sum("Norm" in m and "NoNorm" not in m for m in modules) >= layers  # MobileBERT has next to none
    has_attention = any("att" in m.lower() for m in modules)  # FNet has none
    if (has_norms and norms < layers) or (has_attention and attentions < layers):
        raise UnsupportedModelError(
            f"{name}: with {layers} blocks, the rules met {norms} normalisers and {attentions} attentions. It computes them "
            f"in a way PyTorch functions do not show, so a map would be wrong. {ALTERNATIVE}"
        )
    unseen = [*mode.unknown, *foreign_nodes(values)]
    if unseen:
        raise UnsupportedModelError(
            f"{name}: gradient passes through operations without a known rule: {', '.join(unseen)}. "
            'The methods "gradient" and "gradient-x-input" work.'
        )


def _check_no_bypass(model: nn.Module, values: Tensor, taps: dict[str, Tensor]) -> None:
    """What enters the first block must be the only way from the embedding to the logits."""
    embedding = taps.get("embedding")
    if embedding is None or embedding is taps["input"]:
        return
    entry = taps["input"].grad_fn
    for node in _nodes(values, stop=entry):
        if getattr(node, "variable", None) is embedding:
            raise UnsupportedModelError(
                f"{type(model).__name__} feeds its embedding into later blocks too, so what enters the first block is not all "
                'that the text contributes. Use at="embedding".'
            )


_KNOWN_NODES = re.compile(
    r"(torch::autograd::(AccumulateGrad|Copy\w+)|GeneratedBackwardFor_transformers_grouped_mm\w*|\w*Backward\d*)$"
)
_OUR_NODES = ("_SlopeBackward", "_ScaleBackward", "_FactorBackward", "_LayerNormBackward")


def foreign_nodes(values: Tensor) -> list[str]:
    """Names of autograd nodes that come neither from PyTorch's own operations nor from our rules."""
    found = set()
    for node in _nodes(values):
        custom = isinstance(node, torch.autograd.function.BackwardCFunction)
        if (custom and node.name() not in _OUR_NODES) or not _KNOWN_NODES.match(node.name()):
            found.add(node.name())
    return sorted(found)


def _nodes(values: Tensor, stop: Any = None) -> Iterator[Any]:
    """The nodes of the autograd graph above ``values``; not beyond ``stop``."""
    seen, queue = {None, stop}, [values.grad_fn]
    while queue:
        node: Any = queue.pop()
        if node not in seen:
            seen.add(node)
            yield node
            queue.extend(parent for parent, _ in node.next_functions)


def _where_not_finite(model: PreTrainedModel, batch: Batch) -> str:
    """Run once more and name the first module whose output is not finite, as the end of a sentence a person can act on."""
    first: list[str] = []

    def look(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            state = (
                output
                if isinstance(output, Tensor)
                else next((v for v in _items(output) if isinstance(v, Tensor)), None)
            )
            if state is not None and state.is_floating_point() and not first and not state.isfinite().all():
                first.append(name)

        return hook

    with ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            if name and not any(module.children()):
                stack.callback(module.register_forward_hook(look(name)).remove)
        explained_logits(model, batch)
    broken = [n for n, p in model.named_parameters() if not p.isfinite().all()]
    where = (
        f"the first module that returned NaN or infinity is {first[0]!r}"
        if first
        else "no single module shows where it began"
    )
    weights = f"; its weights hold NaN or infinity: {', '.join(broken[:3])}" if broken else ""
    return f"the logits of {type(model).__name__} are not finite: {where}{weights}. Check the checkpoint, or use a wider dtype."
