"""The modules of a model and their weights: looked through quickly, frozen for a pass, and followed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig

from ..errors import InputError, UnsupportedModelError


def reads_images_alone(model: Any) -> bool:
    """Whether a model is given images and no text."""
    return model.main_input_name == "pixel_values" and "input_ids" not in inspect.signature(model.forward).parameters


_PARTS = frozenset(("text_config", "decoder", "generator", "text_encoder"))  # of a configuration, where text is read


def text_config(model: Any) -> Any:
    """``model.config.get_text_config()``, which takes ten times as long and is asked for eight times in a call."""
    config, usual = model.config, PretrainedConfig.get_text_config
    flat = type(config).get_text_config is usual and not held(config, _PARTS)
    return config if flat else config.get_text_config()


def held(config: Any, names: Set[str]) -> Set[str]:
    """Those of the names that a configuration of transformers holds; ``hasattr`` takes a microsecond for each it does not."""
    return names & (vars(config).keys() if names.isdisjoint(config.attribute_map) else _with_aliases(config))


def _with_aliases(config: Any) -> Set[str]:
    return vars(config).keys() | config.attribute_map.keys()


def first_parameter(model: nn.Module) -> Tensor | None:
    """``next(model.parameters(), None)``, which takes ten times as long."""
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None:
            for parameter in module._parameters.values():
                if parameter is not None:
                    return parameter
            waiting += reversed(module._modules.values())
    return None


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, each once; ``model.modules()`` takes five times as long."""
    found, seen = [model], {model}
    for module in found:  # which grows meanwhile
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


_NEURONS = (
    "up_proj",
    "act",
    "intermediate",
    "fc1",
    "wi_1",
    "wi",
    "mlp",
    "feed_forward",
    "ffn",
)  # the first that is there


def neuron_pattern(model: nn.Module) -> str | None:
    """A glob for the modules that return the neurons of a model's MLPs, if they are called as usual.

    Of a gated MLP that is the factor beside the gate, ``"model.layers.*.mlp.up_proj"``; else the activation, or what contains it.
    """
    names = [name for name, _ in model.named_modules() if re.search(r"\.\d+\.", name)]
    for last in _NEURONS:
        for name in names:
            if name.rpartition(".")[2] == last:
                return re.sub(r"\.\d+\.", ".*.", name)
    return None


def visible_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, all of which call PyTorch's functions where they can be seen.

    Raises:
        InputError: It is no module.
        UnsupportedModelError: A part is TorchScript; the error names it.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{model!r:.60} is no torch.nn.Module. Give the model itself; a function can be the forward of one."
        )
    modules = modules_of(model)
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        name, module = next((n, m) for n, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule))
        raise UnsupportedModelError(
            f"{name or 'the model'} is TorchScript ({type(module).__name__}), which hides its operations, so no rule can be "
            "applied. Use the module that it was made from."
        )
    return modules


@contextmanager
def frozen(modules: Sequence[nn.Module]) -> Iterator[None]:
    """No parameter of the modules carries gradient inside the block; afterwards each is as it was."""
    # By place: a weight that is loaded for its module's pass is another tensor in each.
    trainable = [(m, name) for m in modules for name, p in m._parameters.items() if p is not None and p.requires_grad]
    try:
        _require_gradient(trainable, False)
        yield
    finally:
        _require_gradient(trainable, True)


def _require_gradient(places: Sequence[tuple[nn.Module, str]], required: bool) -> None:
    for module, name in places:
        parameter = module._parameters[name]
        if parameter is not None and parameter.is_meta and parameter.is_inference():
            # Offloaded after a pass inside ``torch.inference_mode()``. It stands for the weight and holds no numbers.
            module._parameters[name] = nn.Parameter(torch.empty_like(parameter), required)
        elif parameter is not None:
            parameter.requires_grad_(required)


class FollowWeights(TorchFunctionMode):
    """Weights that are selected, cast or moved stay weights (``is_weight``): an expert's, say.

    Only for rules of layers that multiply by weights: these also apply to ``x @ W[expert]``, however a model writes it.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        given = [t for a in args for t in (a if isinstance(a, list | tuple) else [a]) if isinstance(t, Tensor)]
        if any(map(is_weight, given)) and not any(t.requires_grad for t in given):
            for tensor in output if isinstance(output, tuple | list) else [output]:
                if isinstance(tensor, Tensor):
                    tensor._lrpx_weight = True  # type: ignore[attr-defined]
        return output


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or made of parameters alone while ``FollowWeights`` was active."""
    return isinstance(tensor, nn.Parameter) or getattr(tensor, "_lrpx_weight", False)
