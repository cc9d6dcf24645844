r"""Mixers that select: recurrences whose factors are functions of the input, such as the scan of Mamba.

:math:`y_t = C_t h_t` with :math:`h_t = a_t h_{t-1} + \Delta_t B_t x_t` is linear in ``x``, which is *written*; ``C``, ``a``,
``Delta`` and ``B`` say what is read, kept and written: they *select*. However a model computes it, step by step or in chunks,
it is one function, so no product inside has a rule of its own. Instead, a rule is applied to every tensor that selects, as
soon as it is there (kind ``selector``), and one to ``x``, where it meets the first of them (kind ``written``).

Ranks cannot tell which is which: in Mamba-2, ``x``, ``B`` and ``C`` come out of one SiLU. So a small table says it for each
class. If what it names is not found while the mixer runs, or if a product inside has two factors that the rules leave open,
the map is refused. What is not in the table but looks like such a mixer is refused before (``unknown_mixers``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._torch_internals import no_function_modes
from .activations import Applies, running
from .call import Call, tensors_in
from .gates import Edge, edge_of, edges_of, ranked
from .linear_attention import LinearAttention, follow_roles, linear_attention_of, under_rule
from .operations import ACTIVATION, SIGNAL, operation_of, operation_of_node
from .steps import Steps


@dataclass(frozen=True)
class Mixer:
    """Where a mixer's code says what selects.

    Attributes:
        functions: Those whose results select.
        parts: The parts of a split that select: of three, of which those two are of one size. ``()``: there is no such split.
        written: What is written: a part of that split (its number), what the split tensor was projected from, or the
            mixer's argument.
        factors: How many factors select, in the equation.
    """

    functions: tuple[str, ...]
    parts: tuple[int, ...]
    written: int | Literal["projected", "argument"]
    factors: int


_MAMBA = Mixer(("softplus",), (1, 2), "projected", 4)  # dt, B, C = split(x_proj(x))
_MAMBA2 = Mixer(("softplus",), (1, 2), 0, 4)  # x, B, C = split(conv(x))
_RGLRU = Mixer(("sigmoid",), (), "argument", 3)  # h = a h + sqrt(1 - a^2) i x

MIXERS: dict[str, Mixer] = {
    **dict.fromkeys("MambaMixer FalconMambaMixer JambaMambaMixer ZambaMambaMixer".split(), _MAMBA),
    **dict.fromkeys("Mamba2Mixer BambaMixer FalconH1Mixer NemotronHMamba2Mixer".split(), _MAMBA2),
    **dict.fromkeys("Zamba2MambaMixer GraniteMoeHybridMambaLayer".split(), _MAMBA2),
    "RecurrentGemmaRglru": _RGLRU,
}
"""Class of ``transformers`` -> where it says what selects."""

# Names of classes, and of weights, that mixers of this kind have. Their own rules are not written yet.
_LIKE_A_MIXER = re.compile(
    r"[Mm]amba|SSM|[Dd]elta[Nn]et|DeltaAttention|FalconH1Mixer|[Rr]wkv|RWKV|RgLru|RecurrentBlock|ShortConv$|LinearAttention|"
    r"LightningAttention|x?LSTM|Retention|Hyena|SelectiveScan"
)
_WEIGHTS = frozenset(("A_log", "dt_bias", "time_decay", "recurrent_param"))
_KEPT = {"recurrent_states", "conv1d_state"}  # by RecurrentGemma, from call to call
_PART_OF_A_MODEL = re.compile(r"Norm|Rotary|MLP$|Mlp$|FeedForward$|Embedding|KimiLinearAttention$")


def mixer_of(module: nn.Module) -> Mixer | LinearAttention | None:
    """What a table says about a module; ``None`` if it is none of transformers' own mixers."""
    kind = type(module)
    if not kind.__module__.startswith("transformers.models."):
        return None
    return MIXERS.get(kind.__name__) or linear_attention_of(module)


def known_mixers(modules: Sequence[nn.Module]) -> dict[nn.Module, Mixer | LinearAttention]:
    """Those modules that are in a table."""
    return {module: mixer for module in modules if (mixer := mixer_of(module)) is not None}


def unknown_mixers(model: nn.Module, modules: Sequence[nn.Module]) -> list[str]:
    """The classes of modules that look like mixers that select, but are not in the table; ``modules`` are all of the model's."""
    kinds = {type(module) for module in modules}
    named = any(
        _LIKE_A_MIXER.search(kind.__name__) or any(hasattr(kind, weight) for weight in _WEIGHTS) for kind in kinds
    )
    # Most models have nothing of the kind, which is seen without a look at each of some hundred modules for each name.
    if not named and all(map(_has_no_weights, modules)):
        return []
    found: dict[str, None] = {}
    _look_for_unknown(model, found)
    return list(found)


def _has_no_weights(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule):  # whose names cannot be gone through like these
        return not any(hasattr(module, weight) for weight in _WEIGHTS)
    places: tuple[Iterable[str], ...] = module._parameters, module._buffers, module._modules, vars(module)
    return all(_WEIGHTS.isdisjoint(names) for names in places)


def _look_for_unknown(module: nn.Module, found: dict[str, None]) -> bool:
    """Whether there is a mixer in a module, known or not; the unknown ones are added to ``found``."""
    if mixer_of(module) is not None:
        return True
    inside = [_look_for_unknown(child, found) for child in module.children()]
    name = type(module).__name__
    looks = bool(_LIKE_A_MIXER.search(name)) and not _PART_OF_A_MODEL.search(name)
    weighs = any(hasattr(module, weight) for weight in _WEIGHTS)
    if (looks or weighs) and not any(inside):
        found[name] = None
        return True
    return any(inside)


def follow_mixers(modules: Sequence[nn.Module], active: Applies, stack: ExitStack) -> None:
    """Until ``stack`` unwinds, apply the rules for what selects and for what is written, wherever one of the table runs.

    A state that a module keeps for the next call is then what it was before.
    """
    for module in modules:
        for name in vars(module).keys() & _KEPT:
            stack.callback(setattr, module, name, getattr(module, name))
    for module, mixer in known_mixers(modules).items():
        if isinstance(mixer, Mixer):
            _follow(module, mixer, active, stack)
        elif active.rules:
            follow_roles(module, mixer, active, stack)


def _follow(module: nn.Module, mixer: Mixer, active: Applies, stack: ExitStack) -> None:
    modes: list[Steps | None] = []

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        now = running(active)
        with no_function_modes():
            given = tensors_in((*args, *kwargs.values()))[:1]
            carries = bool(given) and given[0].requires_grad and torch.is_grad_enabled()
        mode = None
        if now is not None and carries:
            mode = _Selection(mixer, now, given[0]) if now.rules else Steps()
            mode.__enter__()
        modes.append(mode)

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if modes and (mode := modes.pop()) is not None:
            mode.__exit__(None, None, None)
            if isinstance(mode, _Selection) and output is not None and (missing := mode.missing()):
                mode.active.unknown[f"{type(module).__name__}, in which {missing}"] += 1  # None: after an exception

    stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(module.register_forward_hook(after, always_call=True).remove)


class _Selection(Steps):
    """While a mixer runs: finds what selects and what is written, and keeps other rules away from the recurrence.

    The recurrence begins with the first tensor that selects and ends with the next activation, that of the output gate.
    """

    def __init__(self, mixer: Mixer, active: Applies, given: Tensor) -> None:
        super().__init__()
        self.mixer, self.active = mixer, active
        self._inside = self._wrote = False
        self._found: set[str] = set()
        self._written = set(_views(edge_of(given)) if mixer.written == "argument" else ())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation, kwargs = operation_of(func), kwargs or {}
        if operation.rank == ACTIVATION:
            self._inside = False
        if self._inside and operation.kind in ("product", "contraction", "linear"):
            with no_function_modes():  # which would see each look at a tensor
                several = sum([t.requires_grad for t in tensors_in((*args, *kwargs.values()))]) > 1
            output = self._product(func, args, kwargs) if several else func(*args, **kwargs)
            if operation.name == "matmul":  # whose node says it
                return output
            with no_function_modes():
                return ranked(output, SIGNAL)  # for the output gate; x itself may come out of a SiLU
        if operation.name == "getitem" and (part := self.step(args)) is not None:
            return part
        output = func(*args, **kwargs)
        if operation.name in self.mixer.functions:
            return self._selector(operation.name, output)
        if operation.name == "split" and self._selects(output):
            if output[self.mixer.parts[0]].requires_grad:
                self._note_written(args[0], output)
            return tuple(self._selector("split", t) if i in self.mixer.parts else t for i, t in enumerate(output))
        return output

    def missing(self) -> str:
        """What the table names and was not found; ``""``: nothing."""
        expected = {*self.mixer.functions, *(["split"] if self.mixer.parts else [])}
        if expected - self._found:
            return f"no {' and '.join(sorted(expected - self._found))} was seen that selects"
        return "" if self._wrote or "written" not in self.active.rules else "nothing was seen to be written"

    def _selects(self, parts: Sequence[Tensor]) -> bool:
        sizes = {parts[i].shape[-1] for i in self.mixer.parts if i < len(parts)}
        return bool(self.mixer.parts) and len(parts) == 3 and len(sizes) == 1

    def _selector(self, name: str, tensor: Tensor) -> Tensor:
        self._found.add(name)
        self._inside = True
        return under_rule(self.active, "selector", tensor, 2 * self.mixer.factors)

    def _note_written(self, split: Tensor, parts: Sequence[Tensor]) -> None:
        with no_function_modes():
            if isinstance(self.mixer.written, int):
                self._written = {edge_of(parts[self.mixer.written])}
            elif self.mixer.written == "projected":
                projection = _views(edge_of(split))[-1][0]
                self._written = {edge for parent in edges_of(projection) for edge in _views(parent)}

    def _product(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A product of factors that carry gradient: its ordinary gradient, but for the rule of what is written."""
        if "written" not in self.active.rules:
            self.active.unknown["a product inside a recurrence, both of whose factors carry gradient"] += 1
        with no_function_modes():
            return Call(func, args, kwargs).change(self._as_written)()

    def _as_written(self, factor: Tensor) -> Tensor:
        if not factor.requires_grad or self._written.isdisjoint(_views(edge_of(factor))):
            return factor
        self._wrote = True
        return under_rule(self.active, "written", factor, 2)


def _views(edge: Edge) -> list[Edge]:
    """Where a tensor came out of, and what it is a view, a cast, or by a constant a multiple of."""
    found = [edge]
    while True:
        node = found[-1][0]
        parents = edges_of(node)
        if len(parents) != 1 or operation_of_node(node.name()).kind not in ("structure", "elementwise", "product"):
            return found
        found += parents
