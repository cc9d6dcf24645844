"""Hidden states of a text with images put in place of the model's own, and what these are where every token is the same.

1. What enters the first block of the language model is written into the very tensor that the model goes on with.
2. DeepStack's features are put where they are handed to the language model; features that enter later blocks (Mllama) where the
   module that makes them returns them. Both are named and laid out as in a ``Pass``.

The hooks run before those of a pass, which then notes what was put there and takes its gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .._torch_internals import no_function_modes
from ..errors import UnsupportedModelError
from ..text.batching import Batch
from .edits import values_inside
from .hidden_states import first_blocks
from .image_inputs import (
    FEATURES,
    IMAGE_PARTS,
    STATES,
    WHERE,
    before_the_language_model,
    language_model,
    language_modules,
    with_each,
)

Enter = Callable[
    [Tensor], Tensor | None
]  # what enters the first block -> what is to enter in its place; ``None``: itself


@dataclass(frozen=True)
class Entry:
    """How the embeddings of a text with images get into the first block of its language model.

    Attributes:
        model: The model.
        batch: The text.
        early: The first block is given the very tensor that the language model is given, so it is changed there already: the
            model may make something else of it too (Gemma 4: an input of each block).
    """

    model: PreTrainedModel
    batch: Batch
    early: bool

    @classmethod
    def of(cls, model: PreTrainedModel, batch: Batch) -> Entry:
        """Look at a model while it runs.

        Raises:
            UnsupportedModelError: The embeddings are not met, or contribute more than what enters the first block.
        """
        token = model.get_input_embeddings()(batch.ids[:, :1])[0, 0].detach()
        late = cls(model, batch, False)
        state, value, early = late._of_same(token)
        found = cls(model, batch, early)
        other = found.value_at({"input": state}, later=False)
        if abs(value - other) > torch.finfo(model.dtype).eps ** 0.5 * max(1.0, abs(value), abs(other)):
            raise UnsupportedModelError(
                f"{type(model).__name__} uses its embeddings beside its first block, so changing what enters that is not all. "
                "Methods of one backward pass, such as attnlrp, explain it."
            )
        return found

    def with_same(self, embedding: Tensor) -> Tensor:
        """What enters the first block ``[1, T, width]`` if every token, of text and images, has this embedding.

        Positions and scales that a model adds before its first block are in it.
        """
        return self._of_same(embedding)[0]

    @contextmanager
    def placed(self, states: Mapping[str, Tensor], rows: Tensor | None = None, *, later: bool = True) -> Iterator[None]:
        """Inside the block, the model goes on with these states.

        Args:
            states: ``"input"`` ``[1, T, width]``, what enters the first block with DeepStack's features behind it; and features
                that enter later blocks, by the name that a ``Pass`` has for them.
            rows: bool ``[T]``, the tokens of ``"input"`` that are put; the others stay what the model made. Default: all, and
                DeepStack's features.
            later: DeepStack's features are in ``"input"``.
        """
        input, thread = states["input"], threading.get_ident()

        def entry(state: Tensor) -> Tensor:
            width = state.flatten(2).shape[2]
            new = input[..., :width].to(state.device, state.dtype).view(state.shape)
            if rows is None:
                return new
            there = rows.to(state.device).clone()  # one made in inference mode cannot be saved for the backward pass
            return torch.where(there.view(1, -1, *[1] * (state.ndim - 2)), new, state)

        def feature(number: int, tensor: Tensor) -> Tensor:
            new = states.get(f"{STATES} {number}")
            return tensor if new is None else new.to(tensor.device, tensor.dtype).view(tensor.shape)

        def handed(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            features, where = kwargs.get(FEATURES), kwargs.get(WHERE)
            unasked = rows is not None or not later or threading.get_ident() != thread
            if unasked or features is None or where is None:
                return None
            put, begin = [], input.shape[-1] - sum(each.shape[-1] for each in features)
            with no_function_modes():
                for each in features:
                    new = input[..., begin : begin + each.shape[-1]].to(where.device)[where].to(each.device, each.dtype)
                    begin += each.shape[-1]
                    put.append(
                        each + (new - each).detach()
                    )  # the gradient of what a pass has noted is that at the new ones
            return args, {**kwargs, FEATURES: put}

        has_features = any(name.startswith(STATES) for name in states)
        with ExitStack() as stack:
            stack.callback(language_model(self.model).register_forward_pre_hook(handed, with_kwargs=True).remove)
            stack.enter_context(self._entering(entry, feature if has_features else None))
            yield

    def value_at(self, states: Mapping[str, Tensor], rows: Tensor | None = None, *, later: bool = True) -> float:
        """The explained scalar with these states, by a forward pass; see ``placed``.

        Raises:
            NonFiniteError: A score is NaN or infinite.
        """
        found = values_inside(self.model, self.batch, lambda: self.placed(states, rows, later=later))
        return float(found[0])

    def _of_same(self, embedding: Tensor) -> tuple[Tensor, float, bool]:
        """What enters the first block, the value, and whether it is what the language model is given."""
        met: list[Tensor] = []
        given: list[Tensor] = []
        same: list[bool] = []
        thread = threading.get_ident()

        def put(tensor: Tensor) -> Tensor:
            given.append(embedding.to(tensor.device, tensor.dtype).expand_as(tensor).clone())
            return given[-1]

        def handed(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            found = kwargs.get("inputs_embeds")
            if threading.get_ident() != thread:
                return None
            if isinstance(found, Tensor):
                return args, {**kwargs, "inputs_embeds": put(found)}
            # Kosmos 2 puts them among the embeddings inside the language model.
            return args, {**kwargs, "image_embeds": None} if "image_embeds" in kwargs else kwargs

        def embedded(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            return output if threading.get_ident() != thread else put(output)

        def entry(state: Tensor) -> None:
            same.append(given[-1] is state if given else False)
            met.append(state.detach().clone())

        @contextmanager
        def inside() -> Iterator[None]:
            with ExitStack() as stack:
                if self.model.config.model_type not in IMAGE_PARTS:
                    hook = language_model(self.model).register_forward_pre_hook(handed, with_kwargs=True)
                    stack.callback(hook.remove)
                stack.callback(self.model.get_input_embeddings().register_forward_hook(embedded).remove)
                stack.enter_context(self._entering(entry))
                yield

        value = float(values_inside(self.model, self.batch, inside)[0])
        if not met or not given:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} does not show the embeddings that its language model reads, so they cannot be "
                "changed. Methods of one backward pass, such as attnlrp, explain it."
            )
        return met[-1].flatten(2), value, same[-1]

    @contextmanager
    def _entering(self, entry: Enter, feature: Callable[[int, Tensor], Tensor] | None = None) -> Iterator[None]:
        """Inside the block, change what enters the first block, and the features before it, counted as a pass counts them."""
        model = self.model
        thread = threading.get_ident()
        entered, features = False, 0

        def begins(_: nn.Module, __: Any) -> None:
            nonlocal entered, features
            if threading.get_ident() == thread:
                entered, features = False, 0

        def elsewhere() -> bool:
            return entered or threading.get_ident() != thread

        def change(tensor: Tensor) -> Tensor:
            nonlocal features
            features += 1
            assert feature is not None
            return feature(features - 1, tensor)

        def returned(_: nn.Module, __: Any, output: Any) -> Any:
            return output if elsewhere() else with_each(output, change)

        def change_state(state: Any) -> Tensor | None:
            """Change what is about to enter; a tensor that has to be handed on in place of it, or ``None``."""
            nonlocal entered
            if elsewhere() or not isinstance(state, Tensor) or state.ndim < 3 or state.shape[:2] != self.batch.shape:
                return None
            entered = True
            with no_function_modes():
                new = entry(state)
                if new is None or not all(state.stride()):
                    return new  # streams that share one memory cannot be written into
                with torch.set_grad_enabled(torch.is_grad_enabled() and new.requires_grad):
                    state.copy_(new)  # the model may use it around the block too
            return None

        def block(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            state = next(
                (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()), None
            )
            new = change_state(state)
            if new is None:
                return None
            args = tuple(new if v is state else v for v in args)
            return args, {name: new if v is state else v for name, v in kwargs.items()}

        def handed(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            state = kwargs.get("inputs_embeds")
            new = change_state(state)
            return None if new is None else (args, {**kwargs, "inputs_embeds": new})

        with ExitStack() as stack:
            stack.callback(model.register_forward_pre_hook(begins).remove)
            for module in before_the_language_model(model) if feature else ():
                stack.callback(module.register_forward_hook(returned).remove)
            if self.early:
                stack.callback(language_model(model).register_forward_pre_hook(handed, with_kwargs=True).remove)
            for module in first_blocks(language_modules(model)):
                stack.callback(module.register_forward_pre_hook(block, with_kwargs=True).remove)
            yield
