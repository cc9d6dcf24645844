"""Which changes of a model invalidate captured and compiled passes, and which do not."""

import functools
import sys
import threading
import types

import pytest
import tiny
import torch
from support import families
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lrpx.passes.forward_backward import compute
from lrpx.passes.model_state import ModelState, foreign_code, settings
from lrpx.passes.spec import PassOptions, PassSpec
from lrpx.text.batching import Item, pad

FAMILIES = ["causal:gpt2", "causal:llama", "masked:bert", "causal:gemma2", "causal:mixtral", "causal:bloom"]
LENGTHS = (9, 12, 5)


def model_and_state(family="causal:llama"):
    model = tiny.build(family)
    with torch.no_grad():  # buffers as a pass leaves them
        model(**tiny.inputs(model))
    return model, ModelState(model)


def projection(model):
    return model.model.layers[1].self_attn.q_proj


def one_more(value):
    return lambda *_: value


class Wrapped(nn.Module):
    """As an adapter wraps a linear function."""

    def __init__(self, base):
        super().__init__()
        self.base, self.down = base, nn.Linear(32, 2, dtype=torch.float64)

    def forward(self, x):
        return self.base(x) + self.down(x).sum(-1, keepdim=True)


def replace_module(model):
    model.model.layers[1].self_attn.q_proj = nn.Linear(32, 32, bias=False, dtype=torch.float64)


def wrap(model):
    model.model.layers[1].self_attn.q_proj = Wrapped(projection(model))


def replace_parameter(model):
    projection(model).weight = nn.Parameter(projection(model).weight.detach().clone())


def replace_data(model):
    projection(model).weight.data = projection(model).weight.data.clone()


def swap_two_weights(model):
    attention = model.model.layers[1].self_attn
    attention.k_proj.weight, attention.v_proj.weight = attention.v_proj.weight, attention.k_proj.weight


def transpose(model):
    projection(model).weight.data = projection(model).weight.data.T


def swap_classes(model):
    class Other(type(projection(model))):
        pass

    projection(model).__class__ = Other


def remove_last_block(model):
    del model.model.layers[1]


def set_forward(model):
    projection(model).forward = one_more(0)


def own_forward(model):
    """One that holds the model."""
    projection(model).forward = lambda x: nn.Linear.forward(projection(model), x)


def there_and_back(model):
    model.to(torch.float32).to(torch.float64)


def rope(model):
    model.model.rotary_emb.register_buffer("inv_freq", model.model.rotary_emb.inv_freq.clone())


class Holder(nn.Module):
    """A module of a user's own, with all that one may hold beside weights."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.heads = 1
        self.nothing = None
        self.options = {"scale": 1.0}
        self.chosen = {4, 5}
        self.active = ["a"]
        self.vector = torch.ones(32, dtype=torch.float64)
        self.vectors = {"a": torch.ones(32, dtype=torch.float64)}
        self.many = list(range(10_000))  # too many to look at
        self.lock = threading.Lock()

    def forward(self, x):
        return self.base(x)


def holder(model):
    return model.model.layers[1].self_attn.q_proj


def held(change):
    """A change of what a module holds. The fingerprint is of a model that has one."""

    def do(model):
        change(holder(model))

    do.prepares = lambda model: setattr(model.model.layers[1].self_attn, "q_proj", Holder(holder(model)))
    return do


HELD = {
    "a number": lambda h: setattr(h, "heads", 2),
    "a number of another kind": lambda h: setattr(h, "heads", True),
    "something instead of nothing": lambda h: setattr(h, "nothing", 1),
    "one more": lambda h: setattr(h, "more", 1),
    "one less": lambda h: delattr(h, "nothing"),
    "within a dictionary": lambda h: h.options.update(scale=2.0),
    "within a set": lambda h: h.chosen.add(6),
    "within a list": lambda h: h.active.__setitem__(0, "b"),
    "a tensor replaced": lambda h: setattr(h, "vector", torch.ones(32, dtype=torch.float64)),
    "a tensor changed in place": lambda h: h.vector.mul_(2),
    "a tensor within a dictionary": lambda h: h.vectors.update(a=torch.zeros(32, dtype=torch.float64)),
}
HELD = {f"held: {name}": held(change) for name, change in HELD.items()}


# What is done to the model. All of it must be noticed.
CHANGES = {
    "a module replaced": replace_module,
    "a module wrapped": wrap,
    "a module added": lambda m: m.add_module("extra", nn.Identity()),
    "a block removed": remove_last_block,
    "blocks in another order": lambda m: m.model.layers.insert(0, m.model.layers.pop(1)),
    "a parameter replaced": replace_parameter,
    "two parameters exchanged": swap_two_weights,
    "a parameter added": lambda m: projection(m).register_parameter("more", nn.Parameter(torch.ones(1))),
    "a parameter taken away": lambda m: projection(m).register_parameter("weight", None),
    "a parameter's data replaced": replace_data,
    "a parameter's data transposed where it lies": transpose,
    "another dtype": lambda m: m.to(torch.float32),
    "another dtype and back": there_and_back,
    "a buffer replaced": rope,
    "a buffer added": lambda m: projection(m).register_buffer("more", torch.ones(1)),
    "another class": swap_classes,
    "a forward of its own": set_forward,
    "a hook": lambda m: projection(m).register_forward_hook(one_more(None)),
    "a hook before": lambda m: projection(m).register_forward_pre_hook(one_more(None)),
    "a hook on the way back": lambda m: projection(m).register_full_backward_hook(one_more(None)),
    "training mode": lambda m: m.train(),
    "training mode of one module": lambda m: projection(m).train(),
    "the configuration": lambda m: setattr(m.config, "rms_norm_eps", 1e-3),
    "within the configuration": lambda m: m.config.rope_parameters.update(rope_theta=1e3),
    "more in the configuration": lambda m: setattr(m.config, "final_logit_softcapping", 30.0),
    "a module's scale": lambda m: setattr(m.model.layers[0].self_attn, "scaling", 1.0),
    "a scale that is a tensor now": lambda m: setattr(m.model.layers[0].self_attn, "scaling", torch.ones(4)),
    "a module's epsilon": lambda m: setattr(m.model.norm, "variance_epsilon", 0.1),
    "a tensor in the configuration": lambda m: setattr(m.config, "steer", torch.ones(3)),
    "a module's flag": lambda m: setattr(m.model.layers[0].self_attn, "is_causal", False),
}


@pytest.mark.parametrize("change", {**CHANGES, **HELD})
def test_changes_are_noticed(change):
    do = {**CHANGES, **HELD}[change]
    model, known = model_and_state()
    if hasattr(do, "prepares"):
        do.prepares(model)
        known = ModelState(model)
    assert known.holds()
    do(model)
    assert not known.holds()
    assert ModelState(model).holds()  # the model as it is now


@torch.no_grad()
def one_step(model):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()


def load_weights(model):
    model.load_state_dict({name: 2 * weight for name, weight in model.state_dict().items()})


def add_and_remove_a_hook(model):
    projection(model).register_forward_hook(one_more(None)).remove()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: projection(m).weight.data.mul_(3),
        lambda m: m.model.rotary_emb.inv_freq.mul_(3),
        one_step,
        load_weights,
        add_and_remove_a_hook,
        lambda m: m.requires_grad_(False),
        lambda m: m.train().eval(),
        lambda m: m.to("cpu"),
    ],
    ids=["weight", "buffer", "optimiser", "load", "hook", "requires_grad", "train and eval", "moved to where it is"],
)
def test_what_a_captured_pass_sees_by_itself_is_no_change(change):
    model, known = model_and_state()
    change(model)
    assert known.holds()


def test_what_is_undone_is_no_change():
    model, known = model_and_state()
    hook = projection(model).register_forward_hook(one_more(None))
    assert not known.holds()
    hook.remove()
    assert known.holds()
    model.config.rms_norm_eps, before = 1e-3, model.config.rms_norm_eps
    assert not known.holds()
    model.config.rms_norm_eps = before
    assert known.holds()
    layer = model.model.layers[0]
    plain = layer.self_attn
    layer.self_attn = Wrapped(plain)
    assert not known.holds()
    layer.self_attn = plain
    assert known.holds()


@pytest.mark.parametrize("family", FAMILIES)
def test_passes_are_no_change(family):
    """Of any length, checkpointed, looked at inside: each leaves the model as the fingerprint says."""
    model, known = model_and_state(family)
    for n in LENGTHS:
        batch = pad([Item(tuple(tiny.inputs(model, n_tokens=n)["input_ids"][0].tolist()), 1, 11, 13)], model)
        for rules in ("attnlrp", {}):
            compute(model, batch, PassSpec(rules, ("input", "embedding")), PassOptions(checkpoint=n == 12))
            assert known.holds()


def test_a_length_that_a_model_notes_is_no_change():
    """Funnel's."""
    model, known = model_and_state("masked:funnel")
    with torch.no_grad():
        model(**tiny.inputs(model, n_tokens=7))
    assert not known.holds()
    assert "seq_len" in known.what_changed()
    known.forget_changed(only_integers=True)
    lengths = set()
    for n in LENGTHS:
        with torch.no_grad():
            model(**tiny.inputs(model, n_tokens=n))
        lengths.add(model.funnel.encoder.attention_structure.seq_len)
        assert known.holds()
    assert lengths == set(LENGTHS)
    model.funnel.encoder.attention_structure.sin_dropout.p = 0.5
    assert known.what_changed() == "p"
    assert not known.holds()


def test_no_attribute_but_an_integer_is_a_note():
    model = tiny.build("causal:llama")
    layer = model.model.layers[0]
    layer.state, layer.note = [1], 1
    known = ModelState(model)
    layer.state.append(2)
    layer.note = 2
    known.forget_changed(only_integers=True)
    assert known.what_changed() == "state"
    known.forget_changed(only_integers=False)
    layer.state.append(3)
    layer.note = 3
    assert known.holds()


def test_memory_of_weights_is_kept():
    """A graph may still be reading them."""
    model, known = model_and_state()
    place = projection(model).weight.data_ptr()
    replace_parameter(model)
    assert any(t.data_ptr() == place for t in known.weights)
    assert len(known.weights) == len([*model.parameters(), *model.buffers()])


def test_what_is_looked_at_takes_about_a_millisecond():
    """By what it calls, since time also depends on what else the machine does: a call takes a tenth of a microsecond."""
    model, known = model_and_state()
    calls = 0

    def count(_, event, __):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert known.holds()
    finally:
        sys.setprofile(None)
    assert calls / len(model.model.layers) < 1500  # about 600


def test_any_module_has_one():
    module = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    known = ModelState(module)
    assert known.holds()
    module[1] = nn.Sigmoid()
    assert not known.holds()


def test_a_parameter_that_becomes_a_buffer_and_names_that_change_places():
    model, known = model_and_state()
    norm = model.model.layers[1].input_layernorm
    weight = norm.weight
    del norm.weight
    norm.register_buffer("weight", weight.detach())
    assert not known.holds()
    model = tiny.build("causal:gpt2")
    known = ModelState(model)
    own = model.transformer.ln_f._parameters
    own["weight"], own["bias"] = own["bias"], own["weight"]
    assert not known.holds()
    own["weight"], own["bias"] = own["bias"], own["weight"]
    assert known.holds()
    model.transformer.ln_f._parameters = {"bias": own["weight"], "weight": own["bias"]}
    assert not known.holds()


def test_a_hook_on_all_modules():
    model, known = model_and_state()
    hook = torch.nn.modules.module.register_module_forward_hook(one_more(None))
    try:
        assert not known.holds()
        assert foreign_code(model).startswith("all modules have a hook (one_more.")
    finally:
        hook.remove()
    assert known.holds()
    assert foreign_code(model) is None


# Code of others


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Recorder:
    def __call__(self, *_):
        return None


FOREIGN = {
    "a hook": (
        lambda m: projection(m).register_forward_hook(one_more(None)),
        "layers.1.self_attn.q_proj has a hook (one_more",
    ),
    "a hook before": (lambda m: m.register_forward_pre_hook(Recorder()), "it has a hook (Recorder)"),
    "a hook that passes for another": (
        lambda m: m.register_forward_hook(functools.wraps(type(m).forward)(one_more(None))),
        "it has a hook (LlamaForCausalLM.forward)",
    ),
    "a forward that passes for another": (
        lambda m: setattr(m.lm_head, "forward", functools.wraps(m.lm_head.forward)(one_more(0))),
        "lm_head has a forward of its own",
    ),
    "a partial forward": (
        lambda m: setattr(m.lm_head, "forward", functools.partial(one_more(0), 1)),
        "lm_head has a forward of its own",
    ),
    "another function": (
        lambda m: setattr(m.model, "helper", one_more(0)),
        "model has a helper of its own (one_more",
    ),
    "a class": (wrap, "model.layers.1.self_attn.q_proj is a "),
    "a class that is derived": (swap_classes, "model.layers.1.self_attn.q_proj is a "),
    "a weight of another kind": (
        lambda m: m.register_buffer("steer", torch.ones(3).as_subclass(type("Steer", (torch.Tensor,), {}))),
        "it has a weight of the kind Steer",
    ),
    "a hook on the way back": (lambda m: projection(m).register_full_backward_hook(one_more(None)), "has a hook"),
    "a forward": (set_forward, "model.layers.1.self_attn.q_proj has a forward of its own (one_more"),
    "a bound forward": (
        lambda m: setattr(m.lm_head, "forward", types.MethodType(one_more(0), m)),
        "lm_head has a forward",
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_code_that_people_attach_is_found(kind):
    do, said = FOREIGN[kind]
    model = tiny.build("causal:llama")
    assert foreign_code(model) is None
    do(model)
    assert said in foreign_code(model)


@families(tiny.FAMILIES)
def test_no_model_of_transformers_has_any(family):
    assert foreign_code(tiny.build(family)) is None


@pytest.mark.parametrize("mode", [Mode, Dispatched])
def test_modes_of_others(mode):
    model = tiny.build("causal:llama")
    with mode():
        assert foreign_code(model) == f"a {'TorchDispatchMode' if mode is Dispatched else 'Mode'} is active"
    with torch.device("cpu"):  # a mode too
        assert foreign_code(model) is None


def test_what_transformers_attaches_is_its_own():
    model = tiny.build("causal:llama")
    model.enable_input_require_grads()
    with torch.no_grad():
        model(**tiny.inputs(model), output_hidden_states=True, output_attentions=True)
    assert foreign_code(model) is None


def test_settings_that_decide_what_a_pass_computes():
    plain = settings("cpu")
    assert settings("cpu") == plain
    seen = {plain}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen.add(settings("cpu"))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        seen.add(settings("cpu"))
    with Mode():
        seen.add(settings("cpu"))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    seen.add(settings("cpu"))
    torch.set_default_dtype(default)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    seen.add(settings("cpu"))
    torch.set_float32_matmul_precision(precision)
    assert len(seen) == 6
