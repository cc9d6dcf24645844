"""A second device for machines that have only a CPU: it computes there, and is as strict as a GPU.

A tensor on ``pretended:0`` is a wrapper around one of the CPU. Operations on it run on the CPU and give wrapped results. An
operation that meets tensors of both devices raises as CUDA does; the same exceptions hold (numbers without dimensions, indices
on the CPU, copies). So code that forgets to move a tensor fails here too.

PyTorch registers a device once and for all, so this runs in a process of its own: ``python pretended_device.py FAMILY ...``
divides a tiny model of each, explains two items by every method, with and without the division, and writes the largest
differences to standard output, as JSON.
"""

import json
import os
import sys

import numpy as np
import pytest
import tiny
import torch
from accelerate.hooks import attach_align_device_hook_on_blocks
from accelerate.utils import find_tied_parameters, retie_parameters
from support import few_passes
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lrpx.methods import METHODS
from lrpx.models.placement import devices_of, entry_device, is_divided
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.flow import Keep, flow_of
from lrpx.passes.spec import PassSpec
from lrpx.text.batching import Item, pad

DEVICE = "pretended:0"
ITEMS = [Item((8, 20, 31, 44, 52, 60, 17), 3, 9, 10), Item((8, 20, 31, 44), 2)]

aten = torch.ops.aten
_COPIES = {aten.copy_.default, aten._to_copy.default}
_INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class Pretended(torch.Tensor):
    """A tensor on the pretended device."""

    @staticmethod
    def __new__(cls, inner):
        like = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=DEVICE, **like)
        self.inner = inner
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})

    def tolist(self):
        return self.inner.tolist()


class Factories(TorchDispatchMode):
    """Sees operations that take no tensor, such as ``torch.zeros(3, device=DEVICE)``."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


def dispatch(func, args, kwargs):
    """Run ``func`` on the CPU, if all its tensors are on one device."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    there = any(isinstance(x, Pretended) for x in tensors)
    if func in _COPIES:
        there = isinstance(args[0], Pretended)
    elif func in _INDEXING:
        indices = [x for x in args[1] if x is not None]
        values = args[2:3]
        there = isinstance(args[0], Pretended)
        if any(isinstance(x, Pretended) != there and (x.ndim or not there) for x in values) or (
            not there and any(isinstance(x, Pretended) for x in indices)
        ):
            raise mixed(func, tensors)
    elif there and any(not isinstance(x, Pretended) and x.ndim for x in tensors):
        raise mixed(func, tensors)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]) == torch.device(DEVICE)
        kwargs = {**kwargs, "device": "cpu"}
    inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, Pretended) else x, (args, kwargs))
    output = func(*inner_args, **inner_kwargs)
    if not there:
        return output
    known = {id(x.inner): x for x in tensors if isinstance(x, Pretended)}  # an in-place operation returns its argument

    def wrapped(x):
        if not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else Pretended(x)

    return tree_map(wrapped, output)


def mixed(func, tensors):
    places = ", ".join(f"{x.device} {list(x.shape)}" for x in tensors)
    return RuntimeError(f"Expected all tensors to be on the same device, but {func} got {places}")


def set_up():
    """Make the device known to PyTorch."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend("pretended")
    on_the_cpu = torch.tensor

    def tensor(data, *args, device=None, **kwargs):  # the one factory that no mode sees
        made = on_the_cpu(data, *args, **kwargs)
        return made if device is None else made.to(device)

    torch.tensor = tensor


def divide(model, first, second):
    """The first half of the blocks, and what comes before them, on ``first`` and the rest on ``second``, as accelerate does."""
    path, blocks = max(
        ((name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)), key=lambda x: len(x[1])
    )
    half = [f"{path}.{i}" for i in range(len(blocks) // 2)]
    tied = find_tied_parameters(model)
    together = {name.rpartition(".")[0] for group in tied for name in group if "weight" in name}
    places = {}

    def visit(name, module):
        if module in list(blocks) or not (name == "" or path.startswith(name + ".") or name == path):
            before = not any(p.startswith(path) for p in places) or name in half
            shared = any(t == name or t.startswith(name + ".") for t in together)  # a tied head is with the embedding
            places[name] = first if before or shared else second
            return
        for child, below in module.named_children():
            visit(f"{name}.{child}".lstrip("."), below)

    visit("", model)
    execution = {**places, "": first}
    attach_align_device_hook_on_blocks(
        model,
        execution_device=execution,
        offload=dict.fromkeys(places, False),
        tied_params_map={p.data_ptr(): {} for group in tied for p in [model.get_parameter(group[0])]},
    )
    retie_parameters(model, tied)
    return places


def explained(method, model):
    heads = {"heads": True} if "heads" in method.options else {}
    return method.load()(model, pad(ITEMS, model), **method.options | few_passes(method.name) | heads)


def flow_difference(whole, model, explicit):
    a, b = (
        flow_of(PassRunner(m), pad(ITEMS[:1], m), PassSpec("attnlrp"), Keep(1.0), explicit=explicit)
        for m in (whole, model)
    )
    assert [step.way for step in a.steps] == [step.way for step in b.steps]

    def matrix(step):
        found = np.zeros((len(ITEMS[0].token_ids),) * 2)
        found[step.edges[:, 0], step.edges[:, 1]] = step.relevance
        return found

    steps = [np.abs(matrix(s) - matrix(t)).max() for s, t in zip(a.steps, b.steps, strict=True)]
    return max(np.abs(a.relevance - b.relevance).max(), *steps) / np.abs(a.relevance).max()


def differences(family):
    """Method -> largest difference of relevance, for the first half here and there."""
    found = {}
    for order in (("cpu", DEVICE), (DEVICE, "cpu")):
        whole, model = tiny.build(family), tiny.build(family)
        divide(model, *order)
        assert is_divided(model)
        assert str(entry_device(model)) == order[0]
        assert devices_of(model) == ", ".join(order), devices_of(model)
        for method in METHODS.values():
            if method.name == "leave-one-out" and not family.startswith("causal"):
                continue
            pairs = list(zip(explained(method, whole), explained(method, model), strict=True))
            off = max(np.abs(a.relevance - b.relevance).max() + abs(a.value - b.value) for a, b in pairs)
            for name in ("by_head", "by_attention", "by_mlp", "by_layer"):
                parts = [(getattr(a, name), getattr(b, name)) for a, b in pairs]
                off += sum(np.abs(a - b).max() for a, b in parts if a is not None)
            size = max(np.abs(a.relevance).max() for a, _ in pairs)
            found[f"{method.name}, first {order[0]}"] = off / size
        found[f"flow, first {order[0]}"] = max(flow_difference(whole, model, explicit) for explicit in (True, False))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_up()
    with Factories():
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(2) + torch.ones(2, device=DEVICE)
        print(json.dumps({family: differences(family) for family in sys.argv[1:]}), flush=True)
    os._exit(0)  # PyTorch's thread for the device would not end
