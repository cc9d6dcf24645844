"""A wrong map looks like a right one: refuse what cannot be explained correctly, and say why.

Before the pass: training mode, hidden kernels, mixers without rules. After it: rules that were not met, operations that
carried gradient unseen, ways around the first block, numbers that are not finite.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .._torch_internals import HOOK_NODE, backward_hooks_of, hooks_of
from ..errors import InputError, LrpxError, UnsupportedModelError, lines_of
from ..models.heads import IMAGE_TASKS
from ..models.modules import first_parameter, modules_of, text_config
from ..models.placement import stored_parameters
from ..models.quantised import check_quantised
from ..models.refused import why_refused
from ..models.signature import task_of
from ..models.stacks import encoder_of
from ..propagation.propagate import Propagation
from ..propagation.rulesets import RuleSet, get_rules
from ..recognition.foreign import foreign_nodes, nodes_above
from ..recognition.mixers import known_mixers, unknown_mixers
from .checkpointing import outer_blocks
from .hidden_states import items_of, layer_count
from .image_inputs import reading_part

NORMS = ("layer_norm", "rms_norm", "unit_norm", "normaliser", "division")
IN_APP = "Start the app with --attn-implementation sdpa."
ALTERNATIVE = 'Load it with attn_implementation="sdpa", or call model.set_attn_implementation("sdpa").'
# Packages whose kernels transformers calls in place of a recurrence and its convolution, where they are installed.
_FUSED = ("fla", "causal_conv1d", "mamba_ssm", "mambapy", "kernels")
# The name of a module that attends from a decoder to an encoder.
CROSSING = re.compile(r"(^|\.)(encoder_?attn|encoder_?attention|EncDecAttention|cross_?attn|cross_?attention)$")


def check_model(model: PreTrainedModel, rules: str | RuleSet) -> None:
    """Refuse what cannot be explained correctly.

    Raises:
        UnsupportedModelError: Training mode, attention that bypasses PyTorch's functions, no causal or masked language model,
            or a state-space or linear-attention mixer.
    """
    name = type(model).__name__
    modules = modules_of(model)
    if any(module.training for module in modules):
        parts = [n for n, m in model.named_modules() if m.training] if not model.training else [name]
        raise UnsupportedModelError(
            f"{', '.join(parts[:3])}{' and more' if len(parts) > 3 else ''} {'is' if len(parts) == 1 else 'are'} in training "
            "mode, where dropout makes every pass different.",
            python="Call model.eval().",
        )
    weight = first_parameter(model)
    assert weight is not None
    if weight.is_inference() and not weight.is_meta:  # an offloaded one is loaded anew
        raise UnsupportedModelError(
            f"{name} was loaded inside torch.inference_mode(), so no gradient can pass it. Load it outside."
        )
    config = getattr(model, "config", None)
    text_head = task_of(model) not in ("causal", "masked", *IMAGE_TASKS)
    reason = why_refused(getattr(config, "model_type", ""), language_model=not text_head)
    if reason:
        raise UnsupportedModelError(f"{name} is not supported: {reason}.")
    attention = getattr(config, "_attn_implementation", None)
    if attention not in (None, "eager", "sdpa"):
        raise UnsupportedModelError(
            f"{name} uses attn_implementation={attention!r}, a kernel that hides its operations.",
            python=ALTERNATIVE,
            app=IN_APP,
        )
    check_quantised(model, modules, linear_rule="linear" in get_rules(rules))
    if any("BlockSparseAttention" in type(module).__name__ for module in modules):
        raise UnsupportedModelError(
            f"{name} has block-sparse attention, and a short text would switch it to full attention for good.",
            python='Load it with attention_type="original_full".',
        )
    if not rules:
        return
    mixers = unknown_mixers(model, modules)
    if mixers:
        raise UnsupportedModelError(
            f"{name} mixes tokens with {mixers[0]}, a state-space or linear-attention layer, which has no propagation rules yet. "
            'The methods "gradient" and "gradient-x-input" work.'
        )


@contextmanager
def own_failures_named(
    model: nn.Module, inputs: Mapping[str, Any], keeps: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """A model that cannot read ``inputs``, also without rules and hooks, is refused with what it says itself.

    What fails inside the block only, and not in a plain forward pass, is raised as it is; so is what a hook of the user's raises,
    and what ``keeps`` names: the ways of a pass to ask for another one.

    Raises:
        UnsupportedModelError: The model's own forward fails.
    """
    as_they_are: tuple[type[Exception], ...] = (LrpxError, torch.OutOfMemoryError, *keeps)
    try:
        yield
        return
    except as_they_are:
        raise
    except Exception as error:
        raised = error
    try:
        with torch.no_grad():
            model(**inputs)
    except torch.OutOfMemoryError:
        raise raised from None
    except Exception as error:
        if _raised_by_a_hook(model, error):
            raise raised from None
        said = next(iter(lines_of(error)), "no message")
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot read this input, also without lrpx: its own forward raises "
            f"{type(error).__name__}: {said[:200]}"
        ) from error
    raise raised


def _raised_by_a_hook(model: nn.Module, error: BaseException) -> bool:
    """Whether an error passed through a hook that somebody has registered."""
    hooks = {getattr(hook, "__code__", None) for module in modules_of(model) for hook in hooks_of(module)} - {None}
    return any(frame.f_code in hooks for frame, _ in traceback.walk_tb(error.__traceback__))


def check_not_compiled(model: PreTrainedModel) -> None:
    """Refuse a model that ``torch.compile`` has compiled, whole or in parts.

    Raises:
        UnsupportedModelError: The model or a part of it was compiled in place, or a part is wrapped.
    """
    if any("_orig_mod" in m._modules for m in modules_of(model)):
        part = next(n for n, m in model.named_modules() if "_orig_mod" in m._modules)
        raise UnsupportedModelError(
            f"{part} was compiled by torch.compile, which hides its operations.",
            python=f"Put back what that wraps: model.{part} = model.{part}._orig_mod. lrpx.explain(..., compile=True) fuses the "
            "pass itself.",
        )
    if any(m._compiled_call_impl is not None for m in modules_of(model)):
        compiled = [n or type(model).__name__ for n, m in model.named_modules() if m._compiled_call_impl is not None]
        raise UnsupportedModelError(
            f"{compiled[0]} was compiled by its compile(), which hides its operations.",
            python="Load the model anew, or undo that by module._compiled_call_impl = None. "
            "lrpx.explain(..., compile=True) fuses the pass itself.",
        )


def check_carries_gradient(model: PreTrainedModel, values: Tensor) -> None:
    """Refuse values that depend on no hidden state."""
    if not values.requires_grad:
        raise UnsupportedModelError(
            f"the logits of {type(model).__name__} carry no gradient, so there is nothing to explain them by: the model's "
            "code (detach, numbers taken out of tensors), or the rules, cut every way to them."
        )


def check_rules_took_effect(
    model: PreTrainedModel, modules: Sequence[nn.Module], mode: Propagation, values: Tensor, *, images: bool = False
) -> None:
    """At least one normaliser and one attention per block were met, and nothing carried gradient unseen."""
    name, layers = type(model).__name__, layer_count(model)
    if not images:  # text alone skips Mllama's blocks that attend to images
        layers -= len(getattr(model.config.get_text_config(), "cross_attention_layers", None) or ())
    crossing = 0 if encoder_of(model) is None else sum(bool(CROSSING.search(n)) for n, _ in model.named_modules())
    kinds = [type(m).__name__ for m in modules]
    norms = sum(mode.hits[kind] for kind in NORMS)
    attentions = mode.met["attention"] + mode.met["softmax"]
    # MobileBERT has next to none; a batch norm is a constant factor.
    has_norms = sum("Norm" in m and not re.search("NoNorm|BatchNorm", m) for m in kinds) >= layers
    attending = layers if _attend(modules) else 0  # FNet does not
    if known_mixers(modules):  # which say themselves that they were followed
        attending = _attending(reading_part(model), layers)
    absent = [kind for kind in (*NORMS, "attention", "selector") if mode.met[kind] and kind not in mode.rules]
    too_few = (has_norms and norms < layers) or (attending and attentions < attending + crossing)
    if absent and (too_few or "selector" in absent):
        raise InputError(
            f"the rule set has no rule for {', '.join(absent)}, which {name} computes.",
            python="Start from a whole one: {**lrpx.propagation.rulesets.LRP, ...}.",
        )
    if too_few:
        also = f" and {crossing} cross-attentions" if crossing else ""
        raise UnsupportedModelError(
            f"{name}: with {layers} blocks{also}, the rules met {norms} normalisers and {attentions} attentions. It computes "
            f"them in a way PyTorch functions do not show, so a map would be wrong.",
            python=ALTERNATIVE,
            app=IN_APP,
        )
    unseen = [*(+mode.unknown), *foreign_nodes(values)]
    if unseen:
        refuse_unseen(model, unseen)


def _attend(modules: Sequence[nn.Module]) -> bool:
    """Whether there is an attention among modules, by their names."""
    return any(re.search("(?<!fl)att", type(m).__name__, re.IGNORECASE) for m in modules)  # flatten is none


def _attending(model: nn.Module, layers: int) -> int:
    """How many of ``layers`` blocks have an attention, of a model with known mixers."""
    attend = mix = 0
    for inside in map(modules_of, outer_blocks(model)):
        mixers = {part for mixer in known_mixers(inside) for part in modules_of(mixer)}
        found = _attend([module for module in inside[1:] if module not in mixers])
        attend += found
        mix += bool(mixers) and not found
    return min(attend, layers - mix)


def refuse_unseen(model: PreTrainedModel, what: Sequence[str]) -> NoReturn:
    """Raise the error about operations that no rule knows."""
    if HOOK_NODE in what:
        hooked = [name or type(model).__name__ for name, module in model.named_modules() if backward_hooks_of(module)]
        where = f"on {', '.join(map(repr, hooked[:3]))}" if hooked else "for all modules"
        raise UnsupportedModelError(
            f"a backward hook is registered {where}{' and more' if len(hooked) > 3 else ''}, and may change any gradient.",
            python="Remove it, handle.remove(), and register it again afterwards.",
        )
    kernels = [package for package in _FUSED if find_spec(package)] if known_mixers(modules_of(model)) else []
    hidden = (
        f"Kernels of {', '.join(kernels)} hide operations: uninstall them, so that PyTorch's own are used. "
        if kernels
        else ""
    )
    raise UnsupportedModelError(
        f"{type(model).__name__}: gradient passes through operations without a known rule: {', '.join(what)}. {hidden}"
        'The methods "gradient" and "gradient-x-input" work.'
    )


def about_cuts(name: str, mode: Propagation) -> str:
    """A sentence on gradients that the model's own code cuts: right for choices (top-k), a loss anywhere else."""
    return (
        f"{name} cuts the gradient by {', '.join(sorted(+mode.cuts))}: what it takes from there into the prediction is a "
        "constant and gets no relevance. That is as it should be where it only chooses experts."
    )


_TABLES = {
    **dict.fromkeys(("gemma3n_text", "gemma4_text", "gemma4_unified_text"), "embed_tokens_per_layer"),
    "neomme": "value_embeddings",
    "qwen4_exp_text": "ngram_embedding",
}
"""Type of the text model -> the name of a module with embeddings of tokens, or of n-grams of them, beside the word embedding."""


def about_tables(model: PreTrainedModel) -> tuple[str, ...]:
    """A note on embeddings of the text that get no relevance, since they are looked up beside the word embedding."""
    table = _TABLES.get(getattr(text_config(model), "model_type", ""))
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] == table] if table else []
    if not names:
        return ()
    what = "n-grams of tokens" if table == "ngram_embedding" else "the tokens"
    where = ", ".join(names[:2]) + (" and others" if len(names) > 2 else "")
    return (
        f"{type(model).__name__} also reads {what} by {where}, beside the word embedding. What it takes from there is a constant "
        "here, and a part of the residual.",
    )


def check_no_bypass(model: nn.Module, values: Tensor, sources: Mapping[str, Tensor], entries: Sequence[Tensor]) -> None:
    """What enters the first block must be the only way from what was read to the logits.

    Args:
        model: The one that has run.
        values: What is explained.
        sources: ``"embedding"`` or ``"pixels"`` -> the leaf.
        entries: What enters the first block, of each tower.

    Raises:
        UnsupportedModelError: There is another way.
    """
    above = nodes_above(values, *(entry.grad_fn for entry in entries))
    reached = {id(node.variable) for node in above if hasattr(node, "variable")}
    for name, leaf in sources.items():
        if id(leaf) in reached and not any(leaf is entry for entry in entries):
            if name not in ("embedding", "pixels"):
                raise UnsupportedModelError(
                    f"{type(model).__name__} feeds its images into later blocks too (as by cross-attention), so what enters the "
                    "first block is not all that they contribute.",
                    python='Take at="pixels".',
                    app="Of such a model images are explained in Python.",
                )
            what = "the text contributes" if name == "embedding" else "the image contributes"
            raise UnsupportedModelError(
                f"{type(model).__name__} feeds its {name} into later blocks too, so what enters the first block is not all "
                f"that {what}.",
                python=f'Use at="{name}".',
            )


def where_not_finite(model: PreTrainedModel, forward: Callable[[], object]) -> str:
    """Run once more and name the first module whose output is not finite, as the end of a sentence a person can act on."""
    first: list[str] = []

    def look(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            state = (
                output
                if isinstance(output, Tensor)
                else next((v for v in items_of(output) if isinstance(v, Tensor)), None)
            )
            if state is not None and state.is_floating_point() and not first and not state.isfinite().all():
                first.append(name)

        return hook

    with ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            if name and not any(module.children()):
                stack.callback(module.register_forward_hook(look(name)).remove)
        forward()
    broken = [n for n, p in stored_parameters(model) if not p.isfinite().all()]
    where = (
        f"the first module that returned NaN or infinity is {first[0]!r}"
        if first
        else "no single module shows where it began"
    )
    weights = f"; its weights hold NaN or infinity: {', '.join(broken[:3])}" if broken else ""
    return f"the logits of {type(model).__name__} are not finite: {where}{weights}. Check the checkpoint, or use a wider dtype."
