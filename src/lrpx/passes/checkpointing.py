"""Long texts in little memory: each block's inner values are thrown away and computed again for the backward pass.

Only what enters a block is kept. When the backward pass reaches it, the block runs once more, under the same rules, in
whatever thread the backward pass runs in. That is PyTorch's own non-reentrant checkpointing, put around each block by
forward hooks that are removed on exit: the model is not put into training mode, and no class or module is changed.
The result is the same, bit for bit, as long as the block's operations are deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import _checkpoint_without_reentrant_generator as checkpoint
from transformers import Cache

from .._torch_internals import saved_tensor_hooks
from ..propagation.propagate import Propagation
from .compiled.attention_calls import RepeatAttentionCalls


def outer_blocks(model: nn.Module) -> list[nn.Module]:
    """The model's blocks: the modules in its outermost lists of modules."""
    found: list[nn.Module] = []
    for child in model.children():
        found += list(child) if isinstance(child, nn.ModuleList) else outer_blocks(child)
    return found


class Recomputation:
    """Tells hooks of a pass whether they are called for the pass itself. To be made in the thread of the pass.

    Attributes:
        running: Blocks are being recomputed for the backward pass, in whatever thread: what is noted of them is noted already.
    """

    def __init__(self) -> None:
        self.running, self._thread = False, threading.get_ident()

    def elsewhere(self) -> bool:
        """Whether a block is being recomputed, or this is another thread, which uses the model too."""
        return self.running or threading.get_ident() != self._thread


@contextmanager
def checkpointed(
    blocks: Sequence[nn.Module], mode: Propagation, again: Recomputation, attention: RepeatAttentionCalls | None = None
) -> Iterator[None]:
    """Inside the block, every call of one of ``blocks`` in the caller's thread is checkpointed. Includes the backward pass.

    Args:
        blocks: The model's blocks.
        mode: The one that applies the rules now; while a block is recomputed, another one does, which counts nothing here.
        again: Is told when a block is recomputed.
        attention: The mode that repeats calls of fused attention, if one does.
    """
    running: list[tuple[nn.Module, Any, Any]] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if again.elsewhere() or running:  # a block within a block is recomputed with it
            return None

        args = tuple(map(_unless_cache, args))
        kwargs = {name: _unless_cache(value) for name, value in kwargs.items()}
        repeated = nullcontext if attention is None else partial(attention.since, attention.count)

        def recompute() -> Any:
            again.running = True
            try:
                with another(mode), repeated():
                    return module.forward(*args, **kwargs)  # without its hooks: what they did to the arguments is done
            finally:
                again.running = False

        steps = checkpoint(recompute, False)  # no random state to restore: nothing is random in eval mode
        next(steps)
        running.append((module, steps, mode.saving))
        mode.saving = saved_tensor_hooks()
        return args, kwargs

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if again.elsewhere() or not running or running[-1][0] is not module:
            return
        _, steps, mode.saving = running.pop()
        next(steps, None)

    with ExitStack() as stack:
        for module in blocks:
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after, prepend=True).remove)
        try:
            yield
        finally:
            for _, steps, mode.saving in reversed(running):  # after an exception
                steps.close()


def another(mode: Propagation) -> Propagation:
    """One that applies the same rules in the same way; it counts apart."""
    other = type(mode)(mode.rules)
    other.added, other.recognise = mode.added, mode.recognise
    return other


def _unless_cache(value: Any) -> Any:
    """A block that runs twice would write its keys into a cache twice. Some models make one whatever they are told."""
    return None if isinstance(value, Cache) else value
