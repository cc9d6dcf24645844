"""The stacks of blocks of a model, each with a token axis of its own: encoder and decoder, or the one that most models are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from .modules import modules_of, reads_images_alone


@dataclass(frozen=True)
class Stack:
    """A model, or the encoder or decoder of one.

    Attributes:
        name: ``"encoder"``, ``"decoder"``, or ``""`` for a whole model.
        root: The module.
        modules: Its modules. What belongs to neither of two stacks (the output embedding) is counted among the decoder's, except
            what has blocks of its own and reads images for the encoder.
        embedding: Its word embedding, which two stacks may share; ``None`` if it reads no tokens.
    """

    name: str
    root: nn.Module
    modules: list[nn.Module]
    embedding: nn.Module | None

    @property
    def depth(self) -> int:
        """How many blocks it has."""
        return len(self.blocks)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Its blocks: the longest of its outermost lists of modules that attend, or else of all of these lists."""
        lists = _outermost(self.root)
        attending = [each for each in lists if any("Att" in type(m).__name__ for m in each[0].modules())]
        return max(attending or lists, key=len, default=[])


def encoder_of(model: PreTrainedModel) -> nn.Module | None:
    """The encoder of an encoder-decoder model, ``None`` for any other, such as the encoder of one by itself."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return None
    encoder: Any = model.get_encoder()
    # Of T5 Gemma 2, features of images enter the latter.
    if hasattr(encoder, "vision_tower") and hasattr(encoder, "text_model"):
        encoder = encoder.text_model
    found: nn.Module | None = None if model in (encoder, model.get_decoder()) else encoder
    return found


def decoder_of(model: PreTrainedModel, encoder: nn.Module) -> nn.Module:
    """The decoder of an encoder-decoder model, without its ``encoder``."""
    decoder: Any = model.get_decoder()
    if any(module is encoder for module in decoder.modules()):  # Florence 2: the whole language model
        decoder = decoder.get_decoder()
    found: nn.Module = decoder
    return found


def towers_of(model: PreTrainedModel) -> list[nn.Module]:
    """What reads images for the encoder of text of an encoder-decoder model; empty where an encoder reads them itself."""
    encoder = encoder_of(model)
    return [] if encoder is None else list(_towers(model, {encoder, decoder_of(model, encoder)}))


def _towers(module: nn.Module, stacks: set[nn.Module]) -> Iterator[nn.Module]:
    """The outermost modules with blocks of their own beside the stacks, such as what reads images for an encoder of text."""
    for child in module.children():
        if child in stacks:
            continue
        if not stacks.isdisjoint(child.modules()):
            yield from _towers(child, stacks)
        elif any(isinstance(each, nn.ModuleList) for each in child.modules()):
            yield child


def stacks_of(model: PreTrainedModel, modules: Sequence[nn.Module] | None = None) -> list[Stack]:
    """Encoder and decoder, or the whole model as one stack; ``modules`` are the model's, if known already."""
    modules = modules_of(model) if modules is None else list(modules)
    encoder = encoder_of(model)
    if encoder is None:
        return [Stack("", model, modules, _only_words_of(model))]
    inside, decoder = modules_of(encoder), decoder_of(model, encoder)
    shared = set(inside) & set(modules_of(decoder))
    apart = {m for tower in _towers(model, {encoder, decoder}) for m in tower.modules()}
    others = [m for m in modules if m in shared or (m not in set(inside) and m not in apart)]
    return [
        Stack("encoder", encoder, inside, _words_of(encoder)),
        Stack("decoder", decoder, others, _words_of(decoder)),
    ]


def _only_words_of(model: PreTrainedModel) -> nn.Module | None:
    """The word embedding of a model of one stack; ``None`` for a model of images, or of images and text in two towers."""
    if reads_images_alone(model):
        return None
    try:
        words: nn.Module = model.get_input_embeddings()
    except NotImplementedError:
        if hasattr(model, "vision_model"):
            return None
        raise
    own = getattr(getattr(model.base_model, "encoder", None), "embed_tokens", None)  # T5's encoder alone has a copy
    return own if isinstance(own, nn.Embedding) else words


def _outermost(module: nn.Module) -> list[list[nn.Module]]:
    """The lists of modules that are in no other list."""
    found: list[list[nn.Module]] = []
    for child in module.children():
        found += ([list(child)] if len(child) else []) if isinstance(child, nn.ModuleList) else _outermost(child)
    return found


def _words_of(stack: nn.Module) -> nn.Module | None:
    """The embedding of words in a stack; ``None`` for an encoder of sound or images."""
    own = getattr(stack, "embed_tokens", None)
    if own is None and isinstance(stack, PreTrainedModel):
        try:
            own = stack.get_input_embeddings()
        except NotImplementedError:
            return None
    return own if isinstance(own, nn.Embedding) else None


@contextmanager
def watching_encoder(model: PreTrainedModel) -> Iterator[Callable[[], bool]]:
    """Inside the block, a function that says whether the model is at its encoder, in the caller's thread.

    It is from its beginning, since some models look up the encoder's embeddings themselves (Florence 2), until that has run.
    """
    encoder, thread = encoder_of(model), threading.get_ident()
    done: list[bool] = []
    if encoder is None:
        yield lambda: False
        return

    def before(_: nn.Module, __: Any) -> None:
        if threading.get_ident() == thread:
            done.clear()

    def after(_: nn.Module, __: Any, ___: Any) -> None:
        if threading.get_ident() == thread:
            done.append(True)

    hooks = [module.register_forward_pre_hook(before, prepend=True) for module in (model, encoder)]
    hooks.append(encoder.register_forward_hook(after))
    try:
        yield lambda: not done
    finally:
        for hook in hooks:
            hook.remove()
