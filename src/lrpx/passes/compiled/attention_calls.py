"""How a model calls fused attention: noted while it runs, repeated while its pass is traced.

A model that runs can see that its mask hides nothing, and leave it out. One that is traced cannot look at numbers: it keeps its
mask, and repeats keys and values for every head that shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class AttentionCall(NamedTuple):
    """How fused attention was called without a mask."""

    causal: bool
    heads: int | None  # of keys and values that are shared by several heads of the queries; None: not shared

    def again(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments of the call when the model was run, in place of those of the traced model."""
        query, key, value, *rest = args
        kwargs = {**kwargs, "attn_mask": None, "is_causal": self.causal}
        if self.heads is not None and key.shape[1] != self.heads:
            step = key.shape[1] // self.heads
            # Contiguous, or what is kept for the backward pass would be a view of the repeated ones.
            key, value = key[:, ::step].contiguous(), value[:, ::step].contiguous()
            kwargs["enable_gqa"] = True
        return (query, key, value, *rest), kwargs


class AttentionCalls(TorchFunctionMode):
    """Notes in ``calls`` how fused attention is called; ``None`` where it has a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[AttentionCall | None] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            plain = len(args) == 3 and kwargs.get("attn_mask") is None
            heads = args[1].shape[1] if plain and kwargs.get("enable_gqa") else None
            self.calls.append(AttentionCall(bool(kwargs.get("is_causal")), heads) if plain else None)
        return func(*args, **kwargs)


class RepeatAttentionCalls(TorchFunctionMode):
    """Lets a traced model call fused attention as it was noted. To be entered after (inside) a ``Propagation``.

    Args:
        calls: Of one forward pass, in order.

    Attributes:
        count: How many calls there have been.
    """

    def __init__(self, calls: Sequence[AttentionCall | None]) -> None:
        super().__init__()
        self.calls = calls
        self.count = 0
        self._inside = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention or self._inside:
            return func(*args, **kwargs)
        call = self.calls[self.count]
        self.count += 1
        if call is not None:
            args, kwargs = call.again(args, kwargs)
        self._inside = True  # entered twice, it sees the call twice
        try:
            return func(*args, **kwargs)
        finally:
            self._inside = False

    @contextmanager
    def since(self, count: int) -> Iterator[None]:
        """Enter it once more, in whatever thread, for a part of the pass that runs again: the one after ``count`` calls."""
        before, self.count = self.count, count
        try:
            with self:
                yield
        finally:
            self.count = before
