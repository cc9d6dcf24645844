"""Where to look: names -> modules -> hidden states, noted by hooks while a model runs.

``"input"`` is what enters the first block to run (the paper's x^0, positions added), ``"embedding"`` the word-embedding
rows, ``"pixels"`` the pixel values of an image, and any other name a module or a glob over modules, whose output is noted.
``"text_model:input"`` is what enters the first block of that module, for models with several towers of blocks. Encoder and
decoder are looked at apart, also where they share one embedding; then their states are put one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from .._torch_internals import base_of, no_function_modes
from ..errors import InputError, nearest
from ..models.modules import modules_of, reads_images_alone
from ..models.signature import takes
from ..models.stacks import Stack, encoder_of, stacks_of
from ..results.inside import fits
from .checkpointing import Recomputation


def layer_count(model: PreTrainedModel) -> int:
    """How many blocks the configuration says the model has, 0 if it does not say; of encoder and decoder together."""
    if encoder_of(model) is not None:
        return sum(stack.depth for stack in stacks_of(model))
    reads_images = reads_images_alone(model)
    config = getattr(model.config, "vision_config", None) if reads_images else None
    config = model.config.get_text_config() if config is None else config
    stages = [n for name in _STAGES if isinstance(n := getattr(config, name, None), list | tuple)]
    if reads_images and stages:  # in which ``num_layers`` counts the stages
        return sum(stages[0])
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    return next((n for name in names if isinstance(n := getattr(config, name, None), int)), 0)


_STAGES = ("depths", "depth")  # how many blocks each stage has


def first_blocks(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """What may be the first block: the first module of every list of modules. The one that runs first is."""
    found = []
    for module in modules:
        if isinstance(module, nn.ModuleList) and len(module):
            first = module[0]
            while isinstance(first, nn.ModuleList | nn.ModuleDict) and len(first):
                first = next(first.children())
            found.append(first)
    return found


PLACES = ("input", "embedding", "pixels")
ENTRY = ":input"


def place_first(at: Sequence[str]) -> list[str]:
    """``at`` with the place of the token relevance first, the first of ``PLACES`` in it; ``"input"`` if it names none."""
    names = [at] if isinstance(at, str) else list(dict.fromkeys(at))
    place = next((name for name in names if name in PLACES or name.endswith(ENTRY)), "input")
    return [place, *(name for name in names if name != place)]


def beyond_sums(at: Sequence[str]) -> bool:
    """Whether more than one number per token is wanted: of several places, and of pixels."""
    return place_first(at) not in (["input"], ["embedding"])


def is_entry(name: str) -> bool:
    """Whether a place is what enters a first block."""
    return name == "input" or name.endswith(ENTRY)


def resolve_at(model: PreTrainedModel, at: Sequence[str]) -> dict[str, nn.Module | None]:
    """Names and globs -> modules, in order. ``"input"`` is no module: what enters the first block to run; nor is ``"pixels"``.

    In a glob ``*`` and ``?`` stay between two dots, ``**`` crosses them.

    Raises:
        InputError: A name matches nothing.
    """
    modules = dict(model.named_modules()) if set(at) - set(PLACES) else {}
    found: dict[str, nn.Module | None] = {}
    for name in at:
        if name == "embedding":
            found[name] = model.get_input_embeddings()
        elif name in PLACES:
            found[name] = None
        elif name.removesuffix(ENTRY) in modules:
            found[name] = modules[name.removesuffix(ENTRY)]
        else:
            matches = [m for m in modules if m and fits(m, name)]
            if not matches:
                # Names of the first block and above say enough.
                names = [m for m in modules if m and not re.search(r"\.[1-9]\d*(\.|$)", m)]
                places = [place for place in PLACES if place != "pixels" or takes(model, "pixel_values")]
                raise InputError(f"at={name!r} matches no module. {nearest(name, [*places, *names[:30]])}")
            found.update({m: modules[m] for m in matches})
    return found


@contextmanager
def taps_of(
    stack: Stack,
    wanted: dict[str, nn.Module | None],
    shape: tuple[int, int],
    again: Recomputation,
    runs: Callable[[], bool],
    *,
    linked: bool = False,
) -> Iterator[dict[str, Tensor]]:
    """While the block runs, note the hidden state of every wanted name. The hooks are removed on exit.

    Args:
        stack: The model, or its encoder or decoder.
        wanted: Names -> modules of the stack.
        shape: How many items, and how many tokens, 0 if that is not known before.
        again: Says whether blocks are recomputed.
        runs: Says whether it is this stack that is running now.
        linked: What enters the first block stays linked to the embedding.
    """
    taps: dict[str, Tensor] = {}
    cut = not linked and wanted.keys().isdisjoint(("embedding", "pixels"))

    def elsewhere() -> bool:
        """Whether this call is not one of the pass by this stack."""
        return again.elsewhere() or not runs()

    def is_hidden(value: Any) -> bool:
        """Whether this is a hidden state; a model may append padding of its own (Longformer)."""
        fits = isinstance(value, Tensor) and value.ndim >= 3 and value.is_floating_point()
        return fits and value.shape[0] == shape[0] and value.shape[1] >= shape[1]

    def tap_input(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in taps or elsewhere():  # only the first block to run, and its first use, sees the input
            return
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()]
        state = tensors[0] if tensors else None
        if state is None:
            return
        # Of an image, a list of modules may begin with convolutions; a tower has a batch of its own.
        own = name != "input" or (not shape[1] and state.shape[0] == shape[0])
        if stack.name == "encoder" and stack.embedding is None:  # before the blocks it may have lists of convolutions
            fits = state.ndim in (3, 4) and (state.shape[0], state.shape[1:-1].numel()) == shape  # 4: rows and columns
        else:
            fits = state.ndim == 3 if own else is_hidden(state)
        if fits:
            # The very tensor the model goes on with, so that a residual path around the block is seen too. Cut off from the
            # embedding, so that a gradient that reaches that all the same came around the first block.
            with no_function_modes():
                if cut and base_of(state) is state:
                    state.detach_()
                taps[name] = state.requires_grad_()

    def tap_embedding(_: nn.Module, __: Any, output: Any) -> Any:
        if "embedding" in taps or elsewhere() or not is_hidden(output):
            return output
        taps["embedding"] = output.detach().requires_grad_()
        return taps["embedding"].clone()  # a model may write into its embeddings; the leaf must stay as it is

    def tap_output(name: str, output: Any) -> Any:
        if elsewhere():
            return output
        state = next((v for v in (output, *items_of(output)) if isinstance(v, Tensor) and v.is_floating_point()), None)
        if state is None:
            raise InputError(
                f"at={name!r}: this module returns an object of the type {type(output).__name__}, not a hidden state."
            )
        flat = state.ndim == 2 and state.shape[0] == shape[0] * shape[1]  # some models flatten batch and tokens
        view = state.reshape(*shape, -1) if flat else state
        if name in taps or not is_hidden(view):
            raise InputError(
                f"at={name!r}: this module returns shape {list(state.shape)}, or runs more than once; "
                f"expected one hidden state [batch, tokens, width] = {[shape[0], shape[1] or 'tokens', 'width']}. Name "
                "modules that return one, such as the blocks."
            )
        taps[name] = view  # a constant, such as a router's softmax under LRP, has relevance 0
        new = taps[name].clone().reshape(state.shape)  # a later in-place operation must not touch what was noted
        return new if state is output else replaced(output, state, new)

    with ExitStack() as hooks:
        for name, module in wanted.items():
            if is_entry(name):
                # So that what bypasses the first block is seen, see validation.check_no_bypass
                if name == "input" and "embedding" not in wanted and shape[1] and stack.embedding is not None:
                    hooks.callback(stack.embedding.register_forward_hook(tap_embedding, prepend=True).remove)
                for block in first_blocks(stack.modules if module is None else modules_of(module)):
                    hook = partial(tap_input, name)
                    hooks.callback(block.register_forward_pre_hook(hook, with_kwargs=True).remove)
            elif name == "embedding":
                if stack.embedding is not None:
                    hooks.callback(stack.embedding.register_forward_hook(tap_embedding, prepend=True).remove)
            elif module is not None:
                noted = partial(lambda name, _, __, output: tap_output(name, output), name)
                hooks.callback(module.register_forward_hook(noted).remove)
        yield taps


class State:
    """One hidden state of a model ``[B, T, width]``: in one piece, or in one of encoder and decoder each; ``None``: not there.

    Args:
        pieces: One of each stack.
        shapes: Of each stack, how many items and tokens; 0 tokens if that is not known before.
    """

    def __init__(self, pieces: Sequence[Tensor | None], shapes: Sequence[tuple[int, int]]) -> None:
        self.pieces, self._shapes = pieces, shapes

    @property
    def lengths(self) -> list[int]:
        """How many tokens each stack has."""
        pairs = zip(self.pieces, self._shapes, strict=True)
        return [shape[1] or (0 if piece is None else piece.shape[1]) for piece, shape in pairs]

    def one_row(self, piece: Tensor) -> Tensor:
        """A piece ``[B, tokens, width]``: an encoder of images may keep rows and columns apart, ``[B, rows, columns, width]``."""
        return piece.flatten(-3, -2) if len(self.pieces) > 1 and piece.ndim == 4 else piece

    def whole(self, pieces: Sequence[Tensor | None] | None = None) -> Tensor:
        """The pieces, or others of the same shapes, one after the other in the dimension of the tokens, the last but one.

        Without the padding that a stack may have appended; 0 where there is none, and behind a narrower one.
        """
        pieces = self.pieces if pieces is None else pieces
        pieces = [None if piece is None else self.one_row(piece) for piece in pieces]
        if len(pieces) == 1:
            assert pieces[0] is not None
            return pieces[0]
        known = next(piece for piece in pieces if piece is not None)
        width = max(piece.shape[-1] for piece in pieces if piece is not None)
        rows = []
        for piece, length in zip(pieces, self.lengths, strict=True):
            if piece is None:
                rows.append(known.new_zeros(*known.shape[:-2], length, width))
            else:
                rows.append(pad(piece[..., :length, :], (0, width - piece.shape[-1])).to(known.device, known.dtype))
        return torch.cat(rows, -2)


def not_met(model: PreTrainedModel, name: str) -> str:
    """Why ``name`` got no hidden state, for an error message."""
    if name in PLACES or is_entry(name):
        image = reads_images_alone(model)
        other = "input" if not is_entry(name) else "pixels" if image or name != "input" else "embedding"
        return (
            f"at={name!r}: {type(model).__name__} shows no hidden state [batch, tokens, width] there. "
            f"Use at={other!r}, or name a module."
        )
    return f"at={name!r}: this module did not run in the forward pass, so it has no relevance."


def items_of(output: Any) -> Sequence[Any]:
    """What a module returned, one by one: the parts of a tuple or of a ``ModelOutput``."""
    return list(output.values()) if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()


def replaced(output: Any, old: Tensor, new: Tensor) -> Any:
    """``output`` with the tensor ``old`` replaced by ``new``."""
    if isinstance(output, dict):
        return type(output)(**{k: new if v is old else v for k, v in output.items()})
    return type(output)(new if v is old else v for v in output)
