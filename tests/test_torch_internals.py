"""The private parts of PyTorch do what they stand for."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lrpx import _torch_internals as internals
from lrpx.propagation.propagate import propagate


def test_hooks_of_a_module():
    module = nn.Linear(1, 1)
    assert internals.hooks_of(module) == []
    kinds = ("forward", "forward_pre", "full_backward", "full_backward_pre")
    hooks = [getattr(module, f"register_{kind}_hook")(print) for kind in kinds]
    assert internals.hooks_of(module) == [print] * 4
    for hook in hooks:
        hook.remove()
    assert internals.hooks_of(module) == []


def test_hooks_of_all_modules():
    assert internals.global_hooks() == []
    hook = nn.modules.module.register_module_forward_hook(print)
    try:
        assert internals.global_hooks() == [print]
    finally:
        hook.remove()


def test_modes():
    class Mine(TorchFunctionMode):
        pass

    class Dispatched(TorchDispatchMode):
        pass

    assert internals.active_modes() == []
    with torch.device("cpu"), Mine(), Dispatched():
        assert internals.active_modes() == ["Mine", "TorchDispatchMode"]


def traced(function, *shapes):
    fake, environment = internals.tensors_without_numbers()
    inputs = [internals.with_symbols(fake, torch.zeros(shape)) for shape in shapes]
    with fake:
        return internals.traced_graph(function, inputs), environment, inputs


def test_a_graph_with_symbols_for_sizes_and_constants():
    constant = torch.arange(3.0)
    graph, _, inputs = traced(lambda x: (x * x.shape[0]).sum(0) + constant, (5, 3))
    assert all(isinstance(size, torch.SymInt) for size in inputs[0].shape)
    assert any(node.op == "get_attr" for node in graph.graph.nodes)
    for rows in (2, 7):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(graph(x), (x * rows).sum(0) + constant)


def test_the_tracer_that_runs():
    seen = []

    def function(x):
        y = x + 1
        seen.append((len(internals.tracer().graph.nodes), y in internals.tracer().tensor_tracker))
        return y

    traced(function, (2, 3))
    assert seen == [(2, True)]


def test_operations_that_write_and_their_twins():
    def function(x):
        y = x + 1
        y.mul_(2)
        return y.view(-1)

    graph, *_ = traced(function, (2, 3))
    add, mul, *_, view = [n for n in graph.graph.nodes if n.op == "call_function" and "sym" not in str(n.target)]
    assert [internals.overwrites(n) for n in (add, mul, view)] == [False, True, False]
    assert [internals.fresh_result(n) for n in (add, view)] == [True, False]
    assert internals.not_in_place(mul) is torch.ops.aten.mul.Tensor
    assert internals.not_in_place(add) is None


@pytest.mark.parametrize("missing", [False, True])
def test_fused(monkeypatch, missing):
    """Without a compiler: which function is asked."""
    asked = []
    graph, *_ = traced(lambda x: x.sin(), (4, 3))
    if missing:
        monkeypatch.setattr(torch, "_inductor", None, raising=False)
        monkeypatch.setattr(torch, "compile", lambda graph, **options: asked.append(options) or graph)
    else:
        monkeypatch.setattr("torch._inductor.compile", lambda graph, inputs: asked.append(len(inputs)) or graph)
    x = torch.randn(5, 3)
    torch.testing.assert_close(internals.fused(graph, [x])(x), x.sin())
    assert asked == ([{"fullgraph": True, "dynamic": True}] if missing else [1])


@pytest.mark.parametrize("rules", [{}, "lrp"], ids=["gradient", "lrp"])
def test_the_gradient_of_batch_norm(rules):
    """Of one item that goes on with its channels last, PyTorch's own gradient on a CPU is another one than that of two."""
    torch.manual_seed(0)
    norm, x, g = nn.BatchNorm2d(16).double().eval(), torch.randn(1, 16, 4, 4).double(), torch.randn(1, 16, 16).double()
    nn.init.normal_(norm.weight)

    def gradient():
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(norm(leaf).flatten(2).transpose(1, 2), leaf, g)[0]

    slope = norm.weight / (norm.running_var + norm.eps).sqrt()
    expected = g.transpose(1, 2).unflatten(2, (4, 4)) * slope[:, None, None]
    with propagate(norm, rules):
        torch.testing.assert_close(gradient(), expected.detach())
    assert not torch.allclose(gradient(), expected)  # else PyTorch is right by now, and CORRECTED can go
