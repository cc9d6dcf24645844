"""What a captured or compiled pass must notice of a model, and what it must not mind."""

import functools
import gc
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lrpx.passes.forward_backward import PassOptions, PassSpec, compute
from lrpx.passes.model_state import Fingerprint, foreign_code, surroundings
from lrpx.text.batching import Item, pad

FAMILIES = ["causal:gpt2", "causal:llama", "masked:bert", "causal:gemma2", "causal:mixtral", "causal:bloom"]
LENGTHS = (9, 12, 5)


def model_and_fingerprint(family="causal:llama"):
    model = tiny.build(family)
    with torch.no_grad():  # buffers as a pass leaves them
        model(**tiny.inputs(model))
    return model, Fingerprint(model)


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
        self.options = {"scale": 1.0, "deeper": [{"k": (1, 2)}], 3: {4, 5}}
        self.active = ["a"]
        self.vector = torch.ones(32, dtype=torch.float64)
        self.vectors = {"a": torch.ones(32, dtype=torch.float64)}
        self.array = np.ones(3)
        self.part = functools.partial(torch.mul, other=2.0)
        self.function = torch.tanh
        self.many = list(range(10_000))
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
    "deep within a dictionary": lambda h: h.options["deeper"][0].update(k=(1, 3)),
    "within a set": lambda h: h.options[3].add(6),
    "within a list": lambda h: h.active.__setitem__(0, "b"),
    "a tensor replaced": lambda h: setattr(h, "vector", torch.ones(32, dtype=torch.float64)),
    "a tensor changed in place": lambda h: h.vector.mul_(2),
    "a tensor within a dictionary": lambda h: h.vectors.update(a=torch.zeros(32, dtype=torch.float64)),
    "within an array": lambda h: h.array.__setitem__(0, 2),
    "a partial function": lambda h: setattr(h, "part", functools.partial(torch.mul, other=3.0)),
    "a function": lambda h: setattr(h, "function", torch.sigmoid),
    "a long list replaced": lambda h: setattr(h, "many", list(range(10_000))),
    "a lock replaced": lambda h: setattr(h, "lock", threading.Lock()),
}
HELD = {f"held: {name}": (held(change), True) for name, change in HELD.items()}


# What is done to the model -> whether the weights of then lie where they lay. All of it must be noticed.
CHANGES = {
    "a module replaced": (replace_module, True),
    "a module wrapped": (wrap, True),
    "a module added": (lambda m: m.add_module("extra", nn.Identity()), True),
    "a block removed": (remove_last_block, True),
    "blocks in another order": (lambda m: m.model.layers.insert(0, m.model.layers.pop(1)), True),
    "a parameter replaced": (replace_parameter, True),
    "two parameters exchanged": (swap_two_weights, True),
    "a parameter added": (lambda m: projection(m).register_parameter("more", nn.Parameter(torch.ones(1))), True),
    "a parameter taken away": (lambda m: projection(m).register_parameter("weight", None), True),
    "a parameter's data replaced": (replace_data, False),
    "a parameter's data transposed where it lies": (transpose, True),
    "another dtype": (lambda m: m.to(torch.float32), False),
    "another dtype and back": (there_and_back, False),
    "a buffer replaced": (rope, True),
    "a buffer added": (lambda m: projection(m).register_buffer("more", torch.ones(1)), True),
    "another class": (swap_classes, True),
    "a forward of its own": (set_forward, True),
    "a hook": (lambda m: projection(m).register_forward_hook(one_more(None)), True),
    "a hook before": (lambda m: projection(m).register_forward_pre_hook(one_more(None)), True),
    "a hook on the way back": (lambda m: projection(m).register_full_backward_hook(one_more(None)), True),
    "training mode": (lambda m: m.train(), True),
    "training mode of one module": (lambda m: projection(m).train(), True),
    "the configuration": (lambda m: setattr(m.config, "rms_norm_eps", 1e-3), True),
    "within the configuration": (lambda m: m.config.rope_parameters.update(rope_theta=1e3), True),
    "more in the configuration": (lambda m: setattr(m.config, "final_logit_softcapping", 30.0), True),
    "a module's scale": (lambda m: setattr(m.model.layers[0].self_attn, "scaling", 1.0), True),
    "a scale that is a tensor now": (
        lambda m: setattr(m.model.layers[0].self_attn, "scaling", torch.ones(4)),
        True,
    ),
    "a module's epsilon": (lambda m: setattr(m.model.norm, "variance_epsilon", 0.1), True),
    "a tensor in the configuration": (lambda m: setattr(m.config, "steer", torch.ones(3)), True),
    "a module's flag": (lambda m: setattr(m.model.layers[0].self_attn, "is_causal", False), True),
}


@pytest.mark.parametrize("change", {**CHANGES, **HELD})
def test_changes_are_noticed(change):
    do, stays = {**CHANGES, **HELD}[change]
    model, known = model_and_fingerprint()
    if hasattr(do, "prepares"):
        do.prepares(model)
        known = Fingerprint(model)
    assert known.in_place()
    assert known.holds()
    do(model)
    assert known.in_place() == stays
    assert not known.holds()
    assert Fingerprint(model).holds()  # the model as it is now


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
    model, known = model_and_fingerprint()
    change(model)
    assert known.in_place()
    assert known.holds()


def test_what_is_undone_is_no_change():
    model, known = model_and_fingerprint()
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


def test_one_hook_in_place_of_another_is_a_change():
    model = tiny.build("causal:llama")
    hook = projection(model).register_forward_hook(one_more(None))
    known = Fingerprint(model)
    hook.remove()
    projection(model).register_forward_hook(one_more(None))
    assert not known.holds()


def test_one_forward_in_place_of_another_is_a_change():
    """Also where the second one lies in the memory of the first."""
    model = tiny.build("causal:llama")
    for i in range(20):
        projection(model).forward = one_more(i)
        known = Fingerprint(model)
        assert known.holds()
        del projection(model).forward
        projection(model).forward = one_more(i)
        assert not known.holds()


@pytest.mark.parametrize("family", FAMILIES)
def test_passes_are_no_change(family):
    """Of any length, checkpointed, looked at inside: each leaves the model as the fingerprint says."""
    model, known = model_and_fingerprint(family)
    for n in LENGTHS:
        batch = pad([Item(tuple(tiny.inputs(model, n_tokens=n)["input_ids"][0].tolist()), 1, 11, 13)], model)
        for rules in ("attnlrp", {}):
            compute(model, batch, PassSpec(rules, ("input", "embedding")), PassOptions(checkpoint=n == 12))
            assert known.in_place()
            assert known.holds()


def test_a_length_that_a_model_notes_is_no_change():
    model, before = model_and_fingerprint("masked:funnel")
    with torch.no_grad():
        model(**tiny.inputs(model, n_tokens=7))
    known = Fingerprint(model, since=before)
    lengths = set()
    for n in LENGTHS:
        with torch.no_grad():
            model(**tiny.inputs(model, n_tokens=n))
        lengths.add(model.funnel.encoder.attention_structure.seq_len)
        assert known.holds()
        assert Fingerprint(model, since=known).holds()
    assert not before.holds()
    assert lengths == set(LENGTHS)
    assert "seq_len" in before.what_changed()
    model.funnel.encoder.attention_structure.sin_dropout.p = 0.5
    assert known.what_changed() == "p"
    assert not known.holds()


def test_a_fingerprint_keeps_weights_but_no_model():
    model = tiny.build("causal:llama")
    own_forward(model)
    known = Fingerprint(model)
    assert known.holds()
    place = projection(model).weight.data_ptr()
    replace_parameter(model)
    gone = weakref.ref(model)
    gc.collect()
    assert any(t.data_ptr() == place for t in known._kept)  # a graph may still be reading it
    assert known.in_place()
    del model
    gc.collect()
    assert gone() is None
    assert known.in_place()
    assert not known.holds()


class Slots:
    __slots__ = ("model",)

    def __init__(self, model):
        self.model = model


HOLDERS = {
    "a dictionary with modules as keys": lambda m: dict.fromkeys(m.modules(), 1),
    "a set": lambda m: {m},
    "a long list": lambda m: [m] * 2000,
    "a deep list": lambda m: [[[[[[[[m]]]]]]]],
    "an object without weak references": Slots,
    "an iterator": lambda m: iter([m]),
    "a function": lambda m: lambda: m,
    "a bound function": lambda m: m.forward,
    "a partial function": lambda m: functools.partial(print, m),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_fingerprint_keeps_no_model_that_its_modules_hold(holder):
    model = tiny.build("causal:llama")
    projection(model).held = HOLDERS[holder](model)
    known, gone = Fingerprint(model), weakref.ref(model)
    assert known.holds()
    del model
    gc.collect()
    assert gone() is None
    assert not known.holds()


def test_a_fingerprint_keeps_no_model_that_a_weight_knows():
    model = tiny.build("causal:llama")
    projection(model).weight.owner = model
    known, gone = Fingerprint(model), weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert not known.holds()


def test_any_module_has_one():
    module = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    known = Fingerprint(module)
    assert known.holds()
    module[1] = nn.Sigmoid()
    assert not known.holds()


def test_no_attribute_but_an_integer_is_a_note():
    model, before = model_and_fingerprint()
    layer = model.model.layers[0]
    layer.state, layer.note = [1], 1
    before = Fingerprint(model)
    layer.state.append(2)
    layer.note = 2
    known = Fingerprint(model, since=before)
    layer.note = 3
    assert known.holds()
    layer.state.append(3)
    assert not known.holds()


def test_configurations_that_cannot_be_copied_or_compared():
    model = tiny.build("causal:llama")
    model.config.steer, model.config.lock = torch.randn(3), threading.Lock()
    model.config.itself = model.config
    known = Fingerprint(model)
    assert known.holds()
    model.config.steer.mul_(2)
    assert not known.holds()


def test_code_exchanged_on_a_class(monkeypatch):
    """For all models at once, on the class itself or on a parent of it."""
    model, known = model_and_fingerprint()
    kind = type(model.model.layers[0].mlp)
    plain = kind.forward
    with monkeypatch.context() as patch:
        patch.setattr(kind, "forward", lambda self, x: 2 * plain(self, x))
        assert not known.holds()
    assert known.holds()
    with monkeypatch.context() as patch:
        patch.setattr(kind, "__call__", lambda self, *a: None, raising=False)
        assert not known.holds()
    assert known.holds()
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "__call__", lambda self, *a, **k: None)
        assert not known.holds()
    assert known.holds()


def test_what_transformers_does_by_itself_is_no_change(monkeypatch, tmp_path):
    """It exchanges functions while it loads a model, perhaps in another thread, and notes hidden states by hooks of its own."""
    model, known = model_and_fingerprint()
    for kind in (PreTrainedModel, nn.Linear):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "tie_weights" if kind is PreTrainedModel else "reset_parameters", lambda *_, **__: None)
            assert known.holds()
    with torch.no_grad():
        model(**tiny.inputs(model), output_hidden_states=True, output_attentions=True)
    assert known.holds()
    other = tiny.build("causal:llama")
    other.save_pretrained(tmp_path)
    looks, loading = [], threading.Thread(target=lambda: [type(other).from_pretrained(tmp_path) for _ in range(3)])
    loading.start()
    while loading.is_alive():
        looks.append(known.holds())
    assert looks
    assert all(looks)


@pytest.mark.parametrize("name", ["apply_rotary_pos_emb", "eager_attention_forward", "rotate_half"])
def test_code_exchanged_in_the_file_of_a_class(monkeypatch, name):
    model, known = model_and_fingerprint()
    file = sys.modules[type(model).__module__]
    with monkeypatch.context() as patch:
        patch.setattr(file, name, lambda *a, **k: None)
        assert not known.holds()
    assert known.holds()
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", lambda *a, **k: None)
        assert not known.holds()


def test_another_attention_function(monkeypatch):
    model, known = model_and_fingerprint()
    mapping = ALL_ATTENTION_FUNCTIONS._global_mapping
    with monkeypatch.context() as patch:
        patch.setitem(mapping, "sdpa", one_more(None))
        assert not known.holds()
        assert foreign_code(model).startswith("its attention is a function that was registered (one_more")
    assert known.holds()
    assert foreign_code(model) is None


def test_a_parameter_that_becomes_a_buffer_and_names_that_change_places():
    model, known = model_and_fingerprint()
    norm = model.model.layers[1].input_layernorm
    weight = norm.weight
    del norm.weight
    norm.register_buffer("weight", weight.detach())
    assert not known.holds()
    model = tiny.build("causal:gpt2")
    known = Fingerprint(model)
    own = model.transformer.ln_f._parameters
    own["weight"], own["bias"] = own["bias"], own["weight"]
    assert not known.holds()
    own["weight"], own["bias"] = own["bias"], own["weight"]
    assert known.holds()
    model.transformer.ln_f._parameters = {"bias": own["weight"], "weight": own["bias"]}
    assert not known.holds()


def test_a_hook_on_all_modules():
    model, known = model_and_fingerprint()
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


def test_a_method_exchanged_on_a_class(monkeypatch):
    model = tiny.build("causal:llama")
    with monkeypatch.context() as patch:
        patch.setattr(type(model.model.layers[0].mlp), "forward", one_more(0))
        assert foreign_code(model).startswith("LlamaMLP.forward was exchanged (one_more")
    assert foreign_code(model) is None


def test_weights_computed_once():
    model = tiny.build("causal:llama")
    with torch.nn.utils.parametrize.cached():
        assert foreign_code(model) == "torch.nn.utils.parametrize.cached() is active"
        assert surroundings(model, "cpu")[-1] is not None


@pytest.mark.parametrize("family", tiny.FAMILIES)
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
    model = tiny.build("causal:llama")
    plain = surroundings(model, "cpu")
    assert surroundings(model, "cpu") == plain
    seen = {plain}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen.add(surroundings(model, "cpu"))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        seen.add(surroundings(model, "cpu"))
    with Mode():
        seen.add(surroundings(model, "cpu"))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    seen.add(surroundings(model, "cpu"))
    torch.set_default_dtype(default)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    seen.add(surroundings(model, "cpu"))
    torch.set_float32_matmul_precision(precision)
    model.set_attn_implementation("eager")
    seen.add(surroundings(model, "cpu"))
    assert len(seen) == 7
