r"""Linear attention and its relatives: which tensors of such a mixer select, and which one is written.

:math:`o_t = \sum_s w_{ts} v_s`, whose weights are made of queries, keys and gates (what decays, and how much is
written): by a delta rule, :math:`S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T`, in chunks or token by token (gated delta
nets, Kimi); by a decay alone (lightning attention, mLSTM); by a softmax without queries (RWKV). ``v`` is *written*, the others
*select*, as in ``mixers.py``. A short convolution between two gates (LFM2), ``C * conv(B * x)``, is two gated products.

Where each tensor is, a table says for every class: what a split gives, and what a child returns. From these to the child that is
called with the result, a norm or a projection, products keep their ordinary gradient. What is not as the table says is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch_internals import no_function_modes
from .activations import Applies, running
from .call import Call, tensors_in
from .gates import ranked
from .operations import SIGNAL, operation_of


@dataclass(frozen=True)
class Role:
    """What a tensor is to a mixer: its kind of operation, and which share of the relevance it has, as 1 / ``count``."""

    kind: str
    count: int


WRITTEN = Role("written", 2)


def _selects(factors: int) -> Role:
    """One of so many factors that the weights are made of."""
    return Role("selector", 2 * factors)


@dataclass(frozen=True)
class LinearAttention:
    """Where a mixer's code has its queries, keys, values and gates.

    Attributes:
        until: The child that is called with the result.
        parts: Of the split into as many: what each part is.
        split: The function that splits.
        children: Name of a child -> what it returns is.
        softmax: The weights are a softmax, written out: its sum is no normaliser.
    """

    until: str
    parts: tuple[Role, ...] = ()
    split: str = "split"
    children: Mapping[str, Role] = field(default_factory=dict)
    softmax: bool = False


def _delta(until: str, *gates: str) -> LinearAttention:
    """A delta net, by the children that make what decays and what writes."""
    return LinearAttention(until, (_selects(4), _selects(4), WRITTEN), children=dict.fromkeys(gates, _selects(4)))


_LIGHTNING = LinearAttention("norm", (_selects(2), _selects(2), WRITTEN))  # q and k; the decay is a number
_MLSTM = LinearAttention(
    "multihead_norm",
    children={"v": WRITTEN, **dict.fromkeys(("q", "k", "igate_preact", "fgate_preact"), _selects(4))},
)
_RWKV = LinearAttention(  # the softmax of k, times v, times the receptance: half of what the product with this leaves
    "output",
    children={"receptance": Role("selector", 2), "key": Role("selector", 4), "value": Role("written", 4)},
    softmax=True,
)
_CONVOLUTION = LinearAttention(  # B, C, x
    "out_proj", (Role("selector", 4), Role("selector", 2), Role("written", 4)), "chunk"
)

LINEAR_ATTENTION: dict[str, LinearAttention] = {
    "Qwen3NextGatedDeltaNet": _delta("norm", "in_proj_ba"),
    "OlmoHybridGatedDeltaNet": _delta("o_norm", "a_proj", "b_proj"),
    **dict.fromkeys(
        "Qwen3_5GatedDeltaNet Qwen3_5MoeGatedDeltaNet Qwen4ExpTextGatedDeltaNet LaraMiniGatedDeltaNet".split(),
        _delta("norm", "in_proj_a", "in_proj_b"),
    ),
    **dict.fromkeys(
        "KimiLinearDeltaAttention BailingHybridDeltaAttention Glm5NextTextLinearAttention".split(),
        _delta("o_norm", "forget_gate", "b_proj"),
    ),
    **dict.fromkeys("Lfm2ShortConv Lfm2MoeShortConv Lfm3ShortConv Lfm3VlVisionShortConv".split(), _CONVOLUTION),
    "MiniMaxLightningAttention": _LIGHTNING,
    "RwkvSelfAttention": _RWKV,
    "xLSTMLayer": _MLSTM,
}
"""Class of ``transformers`` -> where its tensors are."""


_STABILISERS = ("max", "maximum", "amax")  # a largest exponent, which cancels out
_SOLVE = "linalg_solve_triangular"
_PRODUCTS = ("product", "contraction", "linear")


def linear_attention_of(module: nn.Module) -> LinearAttention | None:
    """What the table says about a module."""
    return LINEAR_ATTENTION.get(type(module).__name__)


class Roles(TorchFunctionMode):
    """While a mixer runs: applies the rules to what selects and what is written, and keeps others away from their products."""

    def __init__(self, mixer: LinearAttention, active: Applies) -> None:
        super().__init__()
        self.mixer, self.active = mixer, active
        self.inside = True
        self.seen = Counter[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation, kwargs = operation_of(func), kwargs or {}
        if not self.inside:
            return func(*args, **kwargs)
        if operation.name in _STABILISERS:
            with torch.no_grad():
                return func(*args, **kwargs)
        solves = operation.name == _SOLVE
        if solves or operation.kind in (*_PRODUCTS, *(["division"] if self.mixer.softmax else [])):
            carrying = sum([t.requires_grad for t in tensors_in((*args, *kwargs.values()))])
            if carrying > 1 or solves:
                return self._product(
                    func, args, kwargs, constant=carrying < 2 and not (solves and args[0].requires_grad)
                )
        output = func(*args, **kwargs)
        if operation.name == self.mixer.split and len(output) == len(self.mixer.parts):
            self.seen[f"a {operation.name}"] += 1
            return tuple(map(self.ruled, self.mixer.parts, output))
        return output

    def ruled(self, role: Role, tensor: Tensor) -> Tensor:
        """A tensor under the rule of its role."""
        return under_rule(self.active, role.kind, tensor, role.count)

    def _product(self, func: Any, args: Any, kwargs: Any, *, constant: bool) -> Any:
        """A product or quotient with its ordinary gradient; ``constant``: one factor at most carries gradient."""
        if "written" not in self.active.rules and not constant:
            self.active.unknown["a product inside a recurrence, both of whose factors carry gradient"] += 1
        with no_function_modes():
            return func(*args, **kwargs)


def under_rule(active: Applies, kind: str, tensor: Tensor, count: int) -> Tensor:
    """A tensor that selects or is written, under the rule of its kind; its share of the relevance is 1 / ``count``."""
    if not tensor.requires_grad:
        return tensor
    with no_function_modes():  # as wherever a rule is called: what it does is not looked at
        result: Tensor = active.apply(Call(_same, (tensor, count), {}, active.unknown, kind))
        return result


def _same(tensor: Tensor, _: int) -> Tensor:
    return tensor if torch.is_grad_enabled() else tensor.detach()  # a view made without gradient would still carry it


def follow_roles(module: nn.Module, mixer: LinearAttention, active: Applies, stack: ExitStack) -> None:
    """Until ``stack`` unwinds, apply the rules for what selects and what is written while ``module`` runs.

    Args:
        module: A mixer.
        mixer: What the table says about it.
        active: What applies rules.
        stack: Removes the hooks.
    """
    roles: list[Roles] = []
    expected = {*mixer.children, mixer.until, *([f"a {mixer.split}"] if mixer.parts else [])}

    def before(*_: Any) -> None:
        if (now := running(active)) is not None:
            roles.append(Roles(mixer, now))
            roles[-1].__enter__()

    def child(name: str, _: nn.Module, __: Any, output: Tensor) -> Tensor | None:
        if running(active) is None or not roles:
            return None
        roles[-1].seen[name] += 1
        return roles[-1].ruled(mixer.children[name], output)

    def leave(_: nn.Module, args: tuple[Any, ...]) -> None:
        if running(active) is not None and roles:
            for result in args[:1]:
                ranked(result, SIGNAL)  # a sum over tokens, whatever each is
            roles[-1].seen[mixer.until] += 1
            roles[-1].inside = False

    def after(_: nn.Module, __: Any, output: Any) -> None:
        if running(active) is None or not roles:
            return
        done = roles.pop()
        done.__exit__(None, None, None)
        missing = sorted(name for name in expected if done.seen[name] != 1)
        if missing and output is not None:  # None: after an exception
            done.active.unknown[f"{type(module).__name__}, in which {', '.join(missing)} is not seen once"] += 1

    stack.callback(module.register_forward_pre_hook(before).remove)
    for name, part in module.named_children():
        if name in mixer.children:
            stack.callback(part.register_forward_hook(partial(child, name)).remove)
        if name == mixer.until:
            stack.callback(part.register_forward_pre_hook(leave).remove)
    stack.callback(module.register_forward_hook(after, always_call=True).remove)
