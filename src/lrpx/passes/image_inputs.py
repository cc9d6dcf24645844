"""What images put into a language model, watched while it runs.

1. Images become features before the language model runs, in modules that have blocks of their own. So the first block is
   looked for in the language model alone, and what those modules do is no part of a pass: their output is cut off, and
   counted is what happens after.
2. The features stand in what enters the first block, in place of the image's tokens. A gradient that reaches a feature all
   the same came around the first block (in Mllama, by cross-attention): such features are inputs beside the row of tokens.
3. DeepStack (Qwen3-VL; Meng et al., 2024, arXiv 2406.04334) adds further features of the same tokens after each of the first
   blocks. They are further inputs: each is noted as ``[B, T, width]``, zero where there is no image, beside what enters the
   first block.
4. At ``"pixels"`` nothing is cut off: the rules hold in those modules too, and relevance goes on to what the model was given
   as images. Text is still taken at the first block, of an encoder-decoder model at that of its encoder and its decoder.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .._torch_internals import no_function_modes
from ..errors import InputError, UnsupportedModelError
from ..models.modules import modules_of
from ..models.stacks import encoder_of, towers_of
from ..propagation.propagate import Propagation
from .checkpointing import Recomputation, outer_blocks
from .hidden_states import first_blocks

FEATURES, WHERE = "deepstack_visual_embeds", "visual_pos_masks"
"""Arguments of a language model: the features of DeepStack, and at which tokens they are."""
_PIXELS = re.compile(r"pixel|patches|images?_(?!sizes)")

IMAGE_PARTS = {
    "chameleon": ("vqmodel",),
    "git": ("image_encoder", "visual_projection"),
    "idefics": ("vision_model", "perceiver_resampler"),
}
"""Model type -> the parts that read images, where they are parts of the language model itself."""

APART = "images:"
"""How names begin of what belongs to the images of a text, and is no row of its tokens."""
STATES = f"{APART}states"
"""Features that enter later blocks."""


def pixel_inputs(inputs: Mapping[str, Tensor]) -> list[str]:
    """The names of the images among a model's inputs."""
    return [name for name, tensor in inputs.items() if tensor.is_floating_point() and _PIXELS.search(name)]


def holds_pixels(inputs: Mapping[str, Tensor]) -> bool:
    """Whether images are among a model's inputs."""
    return bool(pixel_inputs(inputs))


def pixel_leaves(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The images among a model's ``inputs``, by name, as leaves that take a gradient; ``inputs`` then hold copies of them.

    Raises:
        InputError: There are none.
    """
    if not holds_pixels(inputs):
        raise InputError(f'at="pixels" is for images, and the model is given {", ".join(inputs)}. Take at="input".')
    leaves = {}
    for name in pixel_inputs(inputs):
        leaves[f"{APART}{name}"] = inputs[name].detach().requires_grad_()
        inputs[name] = leaves[f"{APART}{name}"].clone()  # a model may write into it; the leaf must stay as it is
    return leaves


def through_a_choice(model: PreTrainedModel) -> UnsupportedModelError:
    """The error about pixels that no gradient reaches."""
    return UnsupportedModelError(
        f"{type(model).__name__} reads its images through a choice (softmax or argmax), which takes no relevance under these "
        'rules. Take at="input", where images and text meet.'
    )


def language_model(model: PreTrainedModel) -> nn.Module:
    """The part of a model that reads text and image features together.

    Raises:
        UnsupportedModelError: It is not told from the rest.
    """
    if model.config.model_type in IMAGE_PARTS:
        return model.base_model
    found: Any = model.get_decoder()
    if not isinstance(found, nn.Module) or found is model or found is model.base_model:
        raise UnsupportedModelError(
            f"{type(model).__name__} does not say which part of it is the language model (get_decoder), so images cannot be "
            "explained. Explain text alone."
        )
    return found


def reading_part(model: PreTrainedModel) -> nn.Module:
    """The language model of one that reads images too, or the whole model."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") and not encoder_of(model) else None
    return decoder if isinstance(decoder, nn.Module) else model


def language_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The modules of the language model."""
    modules = modules_of(language_model(model))
    if model.config.model_type not in IMAGE_PARTS:
        return modules
    others = {part for module in before_the_language_model(model) for part in module.modules()}
    return [module for module in modules if module not in others]


def before_the_language_model(model: PreTrainedModel) -> list[nn.Module]:
    """The outermost modules that neither hold the language model, nor are part of it, nor are the word embedding."""
    if (names := IMAGE_PARTS.get(model.config.model_type)) is not None:
        return [part for name in names if (part := getattr(model.base_model, name, None)) is not None]
    inside, table = set(language_model(model).modules()), model.get_input_embeddings()
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            if child in inside or child is table:
                continue
            # A list of modules is not called itself.
            if inside.isdisjoint(child.modules()) and not isinstance(child, nn.ModuleList):
                found.append(child)
            else:
                look(child)

    look(model)
    return found


def _count_anew(active: Propagation, *, follow: bool) -> None:
    """Let the rules' counters begin here; with ``follow``, those of what is refused or noted go on."""
    counters = (active.hits, active.met) if follow else (active.hits, active.met, active.cuts, active.unknown)
    for counter in counters:
        counter.clear()


@contextmanager
def _attending(
    model: PreTrainedModel, readers: Sequence[nn.Module], elsewhere: Callable[[], bool]
) -> Iterator[Callable[[Propagation], None]]:
    """While the block runs, note which blocks attend in what reads images; the function refuses rules that met fewer."""
    attending: set[nn.Module] = set()

    def ran(block: nn.Module, _: Any) -> None:
        if not elsewhere():
            attending.add(block)

    def check(active: Propagation) -> None:
        met = active.met["attention"] + active.met["softmax"]
        if active.rules and met < len(attending):
            raise UnsupportedModelError(
                f"{type(model).__name__}: before the language model, {len(attending)} blocks attend, and the rules met {met} "
                'attentions, so a map of pixels would be wrong. Take at="input", where images and text meet.'
            )

    with ExitStack() as stack:
        for block in (block for reader in readers for block in outer_blocks(reader)):
            if any("Attention" in type(part).__name__ for part in block.modules()):
                stack.callback(block.register_forward_pre_hook(ran).remove)
        yield check


@contextmanager
def counting_from_the_encoder(
    model: PreTrainedModel, active: Propagation, again: Recomputation, *, follow: bool
) -> Iterator[None]:
    """While the block runs, the rules' counters begin with the encoder of an encoder-decoder model.

    What reads images before it (Florence 2, T5 Gemma 2) is no part of a pass where relevance is taken at the first block.

    Args:
        model: An encoder-decoder model.
        active: The mode that applies the rules.
        again: Says whether a block runs once more.
        follow: Relevance goes on to the pixels: see that the rules are met before the encoder too.

    Raises:
        UnsupportedModelError: They are not.
    """
    encoder = encoder_of(model)
    with _attending(model, towers_of(model) if follow else (), again.elsewhere) as check, ExitStack() as stack:

        def entered(_: nn.Module, __: Any) -> None:
            if again.elsewhere():
                return
            check(active)
            _count_anew(active, follow=follow)

        if encoder is not None:
            stack.callback(encoder.register_forward_pre_hook(entered, prepend=True).remove)
        yield


@contextmanager
def watched_images(
    model: PreTrainedModel, taps: Mapping[str, Tensor], active: Propagation, again: Recomputation, *, follow: bool
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """While the block runs, note image features: those that were cut off, and those of DeepStack.

    Args:
        model: A model that is given images.
        taps: Where -> hidden state; what enters the first block is there as soon as that runs.
        active: The mode that applies the rules. Its counts begin with the language model.
        again: Says whether a block runs once more.
        follow: Cut nothing off, and see that the rules are met before the language model too.

    Raises:
        UnsupportedModelError: They are not.
    """
    features: list[Tensor] = []
    later: list[Tensor] = []

    def elsewhere() -> bool:
        return "input" in taps or again.elsewhere()

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        return output if elsewhere() else _with_leaves(output, features)

    def entered(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if elsewhere():
            return None
        check(active)
        _count_anew(active, follow=follow)
        embeds, where = kwargs.get(FEATURES), kwargs.get(WHERE)
        if embeds is None or where is None:
            return None
        with no_function_modes():
            new = []
            for each in embeds:
                whole = each.new_zeros(*where.shape, each.shape[-1])
                whole[where] = each if follow else each.detach()
                later.append(whole if follow else whole.requires_grad_())
                new.append(whole[where])
        return args, {**kwargs, FEATURES: new}

    readers = before_the_language_model(model)
    with ExitStack() as stack:
        check = stack.enter_context(_attending(model, readers if follow else (), elsewhere))
        for module in () if follow else readers:
            stack.callback(module.register_forward_hook(cut).remove)
        whole = model.config.model_type in IMAGE_PARTS
        for module in first_blocks(language_modules(model)) if whole else [language_model(model)]:
            stack.callback(module.register_forward_pre_hook(entered, with_kwargs=True, prepend=True).remove)
        yield features, later


def _with_leaves(output: Any, leaves: list[Tensor]) -> Any:
    """What a module returned, each floating tensor cut off from what made it."""

    def cut(tensor: Tensor) -> Tensor:
        with no_function_modes(), torch.enable_grad():
            leaves.append(tensor.detach().requires_grad_())
            return leaves[-1].clone()  # a model may write into it

    return with_each(output, cut)


def with_each(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What a module returned, with every floating tensor in it changed."""
    if isinstance(output, Tensor):
        return change(output) if output.is_floating_point() else output
    if isinstance(output, dict):
        new = copy.copy(output)
        for name, value in output.items():
            new[name] = with_each(value, change)
        return new
    if isinstance(output, tuple | list):
        parts = [with_each(value, change) for value in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return output
