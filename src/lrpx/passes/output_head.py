"""The output embedding computes only what is asked for: the explained positions' logits, and of these a few rows.

A vocabulary of 128,256 tokens makes the output embedding a fifth of a Llama-3.2-1B, and all but two of its rows are of no
interest. When the model calls its output embedding, an ``OutputHead`` becomes active: the linear function then sees each item's
explained positions only, and the rows of target and contrast where both are known. What a model does to its logits afterwards
(soft caps, scales, casts) still happens, if it treats every logit alike; anything else is noticed, and then all logits are
computed as the model itself would. ``logits_of`` does the same to other hidden states, so that all logits of many positions can
be had a few positions at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from torch.overrides import TorchFunctionMode

from .._torch_internals import no_function_modes
from ..recognition.call import tensors_in
from ..recognition.operations import operation_of
from .aside import Aside

# After the output embedding, kinds of operations that treat every logit alike.
_ALIKE = frozenset({"elementwise", "activation", "power", "product", "division", "sigmoid"})
_SHAPES = frozenset({"getitem", "__getitem__", "view", "reshape", "contiguous", "alias"})
_SAME = _SHAPES | {"to"}
# Questions whose answers do not depend on how many logits there are, or on their values.
_HARMLESS = frozenset(
    "dim dtype device get_device is_floating_point is_complex is_contiguous is_inference is_tensor requires_grad "
    "requires_grad_ element_size register_hook retain_grad".split()
)


class OutputHead(TorchFunctionMode):
    """Computes the explained logits only, and says whether that was the model's own result.

    Args:
        module: The output embedding, with a weight ``[vocabulary, width]``.
        positions: ``[B, P]`` indices of the explained positions of each item.
        ids: ``[B, P, K]`` rows to compute; ``None``: all of them.
        length: Number of tokens T of the padded batch.
        aside: Computes all rows beside those of ``ids``, without a gradient, for ``all_logits``; ``None``: they are not.

    Attributes:
        hidden: What the output embedding was given at the explained positions, ``[B, P, width]``, once it was called.
    """

    def __init__(
        self, module: nn.Module, positions: Tensor, ids: Tensor | None, length: int, *, aside: Aside | None = None
    ) -> None:
        super().__init__()
        self.module, self.positions, self.ids, self._aside = module, positions, ids, aside
        self.shape = (positions.shape[0], length)
        self.uses = 0
        self.sure = True
        self.hidden: Tensor | None = None
        self._bias: Tensor | None = None
        self._all: Tensor | None = None
        self._logits: list[Tensor] = []  # what was made of the output embedding's result, the last one last
        self._steps: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Tensor]] = []  # by what, and what

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the block runs, the mode becomes active when the output embedding is called: before, it would only cost."""
        with ExitStack() as stack:
            waiting = [threading.get_ident()]

            def before(_: nn.Module, __: Any) -> None:
                if waiting == [threading.get_ident()]:
                    waiting.clear()
                    stack.enter_context(self)

            handle = self.module.register_forward_pre_hook(before)
            try:
                yield
            finally:
                handle.remove()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is linear and self._is_asked(args, kwargs):
            return self._explained(args, kwargs)
        output = func(*args, **kwargs)
        if self.uses:
            operation = operation_of(func)
            if self._follow(operation.name, operation.kind, tensors_in((*args, *kwargs.values())), output):
                self._steps.append((func, args, kwargs, output))
        return output

    def _weight(self) -> Tensor:
        weight = self.module.weight  # looked up each time: an offloaded weight is another tensor in each pass
        assert isinstance(weight, Tensor)
        return weight

    def _is_asked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call of ``linear`` is the output embedding's, on hidden states ``[B, T, width]``."""
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        return weight is self._weight() and len(args) > 0 and args[0].ndim == 3 and args[0].shape[:2] == self.shape

    def _explained(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """The explained logits ``[B, P, K]`` or ``[B, P, vocabulary]``."""
        hidden, weight = args[0], self._weight()
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        self.uses += 1
        # A gather: its backward pass writes each row once, where indexing would sort them first.
        places = self.positions.to(hidden.device)[..., None].expand(-1, -1, hidden.shape[-1])
        hidden = hidden.gather(1, places)
        if self.ids is None:
            logits = linear(hidden, weight, bias)
        else:
            ids = self.ids.to(weight.device)
            logits = (hidden.unsqueeze(2) @ embedding(ids, weight).transpose(2, 3)).squeeze(2)
            if bias is not None:
                logits = logits + bias[ids]
            if (
                self._aside is not None
            ):  # not seen by the rules, for which a detached tensor would be one that is cut off
                with no_function_modes():
                    # Now, while an offloaded weight is there.
                    self._all = self._aside(partial(linear, hidden.detach(), weight, bias))
        self.hidden, self._bias = hidden, bias
        self._logits.append(logits)
        return logits

    def _follow(self, name: str, kind: str, operands: Sequence[Tensor], output: Any) -> bool:
        """Look at an operation after the output embedding. Whether it changes the logits, and treats every one alike."""
        ours = [t for t in operands if any(t is seen for seen in self._logits)]
        if not ours or name in _HARMLESS:
            return False
        if isinstance(output, Tensor) and output.shape == ours[0].shape:
            others = [t for t in operands if not any(t is o for o in ours)]
            if name in _SAME or (kind in _ALIKE and all(t.numel() == 1 for t in others)):
                self._logits.append(output)
                return True
        self.sure = False
        return False

    def logits_of(self, hidden: Tensor, logits: Tensor) -> Tensor:
        """All logits ``[..., vocabulary]`` of ``hidden`` ``[..., width]``, made as the model made its own ``logits``."""
        return self._made_of(linear(hidden, self._weight(), self._bias), logits)

    def all_logits(self, logits: Tensor) -> Tensor:
        """All logits ``[B, vocabulary]`` of each item's first position, made as the model made ``logits`` of a few; aside."""
        assert self._aside is not None
        first = self._all
        assert first is not None
        with no_function_modes(), torch.no_grad():
            return self._aside(lambda: self._made_of(first, logits)[:, 0])

    def _made_of(self, first: Tensor, logits: Tensor) -> Tensor:
        new = {id(self._logits[0]): first}
        for func, args, kwargs, output in self._steps:
            if operation_of(func).name in _SHAPES:
                new[id(output)] = next(new[id(a)] for a in (*args, *kwargs.values()) if id(a) in new)
            else:
                given = [new.get(id(a), a) for a in args]
                new[id(output)] = func(*given, **{name: new.get(id(a), a) for name, a in kwargs.items()})
        return new[id(logits)]

    def gave(self, logits: Tensor) -> bool:
        """Whether ``logits`` are what this head computed, and nothing else was done to them."""
        return self.sure and self.uses == 1 and any(logits is seen for seen in self._logits)


def output_embedding(model: nn.Module) -> nn.Module | None:
    """The model's output embedding, if it has one that is an ordinary matrix."""
    try:
        module: nn.Module | None = model.get_output_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return None
    weight = getattr(module, "weight", None)
    return module if isinstance(weight, Tensor) and weight.ndim == 2 else None
