"""Blocks that are computed twice: the same numbers, under the same rules, in less memory, and the model as it was."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny
import torch
from support import CORE, families, fingerprint
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

import lrpx
from lrpx._torch_internals import saved_tensor_hooks
from lrpx.passes import checkpointing
from lrpx.passes.checkpointing import Recomputation, checkpointed, outer_blocks
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassOptions, PassSpec
from lrpx.propagation.propagate import Propagation, propagate
from lrpx.propagation.rulesets import ATTNLRP
from lrpx.text.batching import Item, pad

FAMILIES = [
    "causal:gpt2",
    "causal:llama",
    "masked:bert",
    "causal:gemma2",
    "causal:gpt_neox",
    "causal:bloom",
    "causal:mixtral",
    "masked:albert",  # one block for all layers
    "masked:modernbert",
    "causal:gemma4_text",  # layers share keys and values
    "causal:granitemoe_swa",  # makes a cache, whatever it is told
]
FAMILIES = [family for family in FAMILIES if family in tiny.FAMILIES]  # older versions of transformers have fewer
RULES = ["lrp", "attnlrp", "lrp-uniform-gate", {}]
IDS = ["lrp", "attnlrp", "lrp-uniform-gate", "gradient"]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def batch_for(model, lengths=(9, 6)):
    rows = [tiny.inputs(model, n_tokens=n, seed=i)["input_ids"][0].tolist() for i, n in enumerate(lengths)]
    return pad([Item(tuple(row), len(row) // 2, 11, 13) for row in rows], model)


def assert_equal(found, expected):
    """Bit for bit."""
    assert torch.equal(found.summary, expected.summary)
    for a, b in zip(found.tensors(), expected.tensors(), strict=True):
        assert torch.equal(a, b)
    assert list(found.states) == list(expected.states)


def both(model, rules="attnlrp", at=("input",), batch=None):
    batch = batch_for(model) if batch is None else batch
    return [compute(model, batch, PassSpec(rules, at), PassOptions(checkpoint=c)) for c in (True, False)]


# The same numbers


@pytest.mark.parametrize("rules", RULES, ids=IDS)
@families(FAMILIES, quick=CORE)
def test_bit_for_bit(family, rules):
    model = tiny.build(family)
    found, expected = both(model, rules, ("input", "embedding"))
    assert_equal(found, expected)
    assert expected.gradients["embedding"].abs().max() > 0
    for count in ("hits", "met", "cuts", "unknown"):
        assert getattr(found.mode, count) == getattr(expected.mode, count), count


def test_code_that_switches_gradients_off():
    """Where a model's own code does so to save memory (HRM), it is ignored, the second time too."""
    model = tiny.build("causal:llama")
    expected = compute(model, batch_for(model), PassSpec("attnlrp"))
    plain = model.model.layers[1].mlp.forward
    model.model.layers[1].mlp.forward = torch.no_grad()(plain)
    for found in both(model):
        assert_equal(found, expected)


@pytest.mark.parametrize("rules", RULES, ids=IDS)
def test_lists_of_parts_of_blocks_and_a_cache_that_all_of_them_fill(rules):
    """XLM's lists hold attentions, MLPs and norms; without its cache, gradients are added up in another order."""
    found, expected = both(tiny.build("causal:xlm"), rules, ("embedding",))
    for a, b in zip(found.tensors(), expected.tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.fixture
def another_thread(monkeypatch):
    """Goes backwards in another thread, as it is with a GPU."""
    real = torch.autograd.grad

    def elsewhere(*args, **kwargs):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(real, *args, **kwargs).result()

    monkeypatch.setattr(torch.autograd, "grad", elsewhere)


@pytest.mark.parametrize("rules", RULES, ids=IDS)
@families(FAMILIES[:7], quick=CORE[:1])
def test_where_another_thread_goes_backwards(another_thread, family, rules):
    model = tiny.build(family)
    before = fingerprint(model)
    found, expected = both(model, rules)
    assert_equal(found, expected)
    assert found.mode.hits == expected.mode.hits
    assert fingerprint(model) == before


@needs_cuda
@pytest.mark.parametrize("rules", RULES, ids=IDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu(family, rules):
    model = tiny.build(family).to("cuda")
    found, expected = both(model, rules, ("embedding",))
    for a, b in zip(found.tensors(), expected.tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bit_for_bit_in_other_precisions(dtype):
    assert_equal(*both(tiny.build("causal:llama", dtype=dtype)))


def test_eager_attention_and_a_rule_set_of_ones_own():
    model = tiny.build("causal:llama", attn_implementation="eager")
    assert_equal(*both(model))
    assert_equal(*both(model, {**ATTNLRP, "linear": lrpx.propagation.rules.alpha1beta0}))


@pytest.mark.parametrize("family", ["causal:gpt2", "causal:llama"])
def test_hidden_states_inside_and_between_blocks(family):
    model = tiny.build(family)
    blocks = next(name for name, m in model.named_modules() if isinstance(m, nn.ModuleList))
    at = ("input", f"{blocks}.*", f"{blocks}.1.mlp", f"{blocks}.0.mlp.act*")
    found, expected = both(model, at=at)
    assert len(expected.states) == 5
    assert_equal(found, expected)


@pytest.mark.parametrize("family", ["causal:gpt2", "masked:bert", "causal:llama"])
def test_the_whole_way_from_texts(family):
    model = tiny.build(family)
    rows = [tiny.inputs(model, n_tokens=n, seed=n)["input_ids"][0].tolist() for n in (12, 5, 11)]
    for method in ("lrp", "attnlrp", "gradient-x-input"):
        options = {"method": method, "position": 2, "target": 11}
        for a, b in zip(
            lrpx.explain(model, None, rows, checkpoint=True, **options),
            lrpx.explain(model, None, rows, checkpoint=False, **options),
            strict=True,
        ):
            assert (a.relevance == b.relevance).all()
            assert a.value == b.value


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_inside_inference_mode_and_no_grad(context):
    model = tiny.build("causal:llama")
    expected = compute(model, batch_for(model), PassSpec("attnlrp"))
    with context():
        found = compute(model, batch_for(model), PassSpec("attnlrp"), PassOptions(checkpoint=True))
    assert_equal(found, expected)


def test_dropout_stays_off_and_random_numbers_untouched():
    model = tiny.build("causal:gpt2")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    state = torch.get_rng_state()
    assert_equal(*both(model))
    assert torch.equal(torch.get_rng_state(), state)


class Noting(Propagation):
    """Notes in which mode fused attention is called, however often."""

    calls: list

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is nn.functional.scaled_dot_product_attention:
            self.calls.append(self)
        return super().__torch_function__(func, types, args, kwargs)


def test_blocks_run_twice_in_eval_mode_under_the_callers_own_mode():
    model = tiny.build("causal:llama")
    Noting.calls = []
    training = []
    model.model.layers[1].mlp.register_forward_pre_hook(lambda module, _: training.append(module.training))
    found = compute(model, batch_for(model), PassSpec("attnlrp", mode=Noting), PassOptions(checkpoint=True))
    assert [mode is found.mode for mode in Noting.calls] == [True, True, False, False]
    assert {(type(mode), mode.rules == ATTNLRP) for mode in Noting.calls} == {(Noting, True)}
    assert training == [False, False]


def test_without_the_rules_in_the_second_run_results_would_differ(monkeypatch):
    """What the tests above say is not said of anything."""
    model = tiny.build("causal:llama")
    expected = compute(model, batch_for(model), PassSpec("attnlrp"))
    monkeypatch.setattr(checkpointing, "another", lambda _: contextlib.nullcontext())
    try:
        found = compute(model, batch_for(model), PassSpec("attnlrp"), PassOptions(checkpoint=True))
    except torch.utils.checkpoint.CheckpointError:  # other tensors than the first time
        return
    assert not torch.allclose(found.gradients["input"], expected.gradients["input"], rtol=1e-3)


# Hooks


def double_first(_, args):
    return (args[0] * 2, *args[1:])


def test_a_models_own_hooks_on_blocks_act_once():
    model = tiny.build("causal:llama")
    plain = compute(model, batch_for(model), PassSpec("attnlrp"))
    for block in model.model.layers:
        block.register_forward_pre_hook(double_first)
    model.model.layers[0].register_forward_hook(lambda _, __, y: 3 * y.tanh())
    found, expected = both(model)
    assert_equal(found, expected)
    assert not torch.allclose(expected.summary[:2], plain.summary[:2])


def test_a_models_own_hooks_inside_blocks_act_in_both_runs():
    model = tiny.build("causal:llama")
    model.model.layers[1].mlp.register_forward_pre_hook(double_first)
    model.model.layers[1].mlp.register_forward_hook(lambda _, __, y: y.tanh())
    assert_equal(*both(model))


def test_a_forward_of_a_blocks_own():
    """As accelerate's hooks are made."""
    model = tiny.build("causal:llama")
    block = model.model.layers[0]
    plain = block.forward
    block.forward = lambda *args, **kwargs: plain(*args, **kwargs) * 2
    assert_equal(*both(model))


@pytest.mark.parametrize("rules", ["attnlrp", {}], ids=["attnlrp", "gradient"])
def test_the_model_is_as_it_was(rules):
    model = tiny.build("causal:llama").requires_grad_(True)
    model.model.layers[0].register_forward_hook(lambda *_: None)
    before = fingerprint(model)
    compute(model, batch_for(model), PassSpec(rules), PassOptions(checkpoint=True))
    assert fingerprint(model) == before


@pytest.mark.parametrize("run", [1, 2], ids=["first run", "second run"])
@pytest.mark.parametrize("place", ["model.layers.0", "model.layers.1.mlp.act_fn", "model.layers.1.self_attn.o_proj"])
def test_the_model_is_as_it_was_after_an_exception(place, run):
    model = tiny.build("causal:llama")
    expected = compute(model, batch_for(model), PassSpec("attnlrp"))
    before = fingerprint(model)
    calls = []

    def fail(*_):
        calls.append(None)
        if len(calls) == run:
            raise ZeroDivisionError

    def attempt():
        compute(model, batch_for(model), PassSpec("attnlrp"), PassOptions(checkpoint=True))

    hook = model.get_submodule(place).register_forward_hook(fail)
    if place == "model.layers.0" and run == 2:
        attempt()  # a block's own hooks have acted when it is computed again
        assert len(calls) == 1
    else:
        with pytest.raises(ZeroDivisionError) as caught:
            attempt()
        assert len(calls) == run
        assert saved_tensor_hooks() is None, caught  # even while the exception, and with it the pass, is kept
    hook.remove()
    assert fingerprint(model) == before
    assert_equal(compute(model, batch_for(model), PassSpec("attnlrp"), PassOptions(checkpoint=True)), expected)


def test_the_mode_is_as_it_was():
    model = tiny.build("causal:llama")
    answer = compute(model, batch_for(model), PassSpec("attnlrp"), PassOptions(checkpoint=True))
    assert answer.mode.saving is None


def test_a_pass_in_another_thread_is_let_be():
    """While a block runs, for the first or for the second time, another thread computes the model's logits."""
    model = tiny.build("causal:llama")
    inputs = tiny.inputs(model)
    with torch.no_grad():
        logits = model(**inputs).logits
    expected = compute(model, batch_for(model), PassSpec("attnlrp"))
    found = []

    def elsewhere():
        with torch.no_grad():
            found.append(model(**inputs).logits)

    me = threading.get_ident()

    def start(*_):
        if threading.get_ident() == me:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    model.model.layers[1].mlp.register_forward_pre_hook(start)
    answer = compute(model, batch_for(model), PassSpec("attnlrp"), PassOptions(checkpoint=True))
    assert_equal(answer, expected)
    assert len(found) == 2
    assert all(torch.equal(each, logits) for each in found)


# Which blocks


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("causal:llama", ["model.layers.0", "model.layers.1"]),
        ("causal:gpt2", ["transformer.h.0", "transformer.h.1"]),
        ("masked:bert", ["bert.encoder.layer.0", "bert.encoder.layer.1"]),
        ("masked:albert", ["albert.encoder.albert_layer_groups.0"]),
        ("causal:mixtral", ["model.layers.0", "model.layers.1"]),  # lists inside blocks are the block's
    ],
)
def test_blocks_are_what_the_outermost_lists_hold(family, names):
    model = tiny.build(family)
    assert outer_blocks(model) == [model.get_submodule(name) for name in names]


class Block(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4, dtype=torch.float64), inner
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        y = torch.tanh(self.linear(x))
        return y if self.inner is None else torch.tanh(self.inner(y)) + y


def test_a_block_within_a_block_is_recomputed_with_it():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inner = Block()
        outer = Block(inner)
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    gradients = []
    for blocks in ([], [outer, inner]):
        with propagate(outer, "lrp") as mode, checkpointed(blocks, mode, Recomputation()):
            gradients += torch.autograd.grad(outer(x).sum(), x)
    assert torch.equal(*gradients)
    assert (outer.runs, inner.runs) == (3, 3)  # one without, two with


# Memory


class Peak(TorchDispatchMode):
    """The most bytes that tensors take at the same time, beside the model's weights."""

    def __init__(self, model):
        super().__init__()
        self.weights = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
        self.living, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.weights:
                    self.living[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        self.living = {k: (ref, size) for k, (ref, size) in self.living.items() if not ref.expired()}
        self.most = max(self.most, sum(size for _, size in self.living.values()))
        return output


def deep(layers):
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": layers, "n_head": 4, "n_inner": 128}
    config = GPT2Config(vocab_size=tiny.VOCABULARY, bos_token_id=None, eos_token_id=None, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config).double().eval()


def test_memory_grows_with_the_depth_by_what_enters_a_block():
    """Per block one hidden state is kept, where all inner values would be."""
    peaks = {}
    for layers in (4, 8):
        model = deep(layers)
        batch = batch_for(model, (48,))
        for checkpoint in (True, False):
            with Peak(model) as peak:
                compute(model, batch, PassSpec("attnlrp"), PassOptions(checkpoint=checkpoint))
            peaks[layers, checkpoint] = peak.most
    state = 48 * 32 * 8  # bytes of a hidden state
    assert (peaks[8, True] - peaks[4, True]) / 4 < 1.5 * state
    assert (peaks[8, False] - peaks[4, False]) / 4 > 6 * state
    assert peaks[8, True] < 0.5 * peaks[8, False]


def test_less_is_saved_for_the_backward_pass():
    """As autograd's own hooks see it: what the caller's hooks get to keep."""
    model = deep(8)
    saved = {}
    for checkpoint in (True, False):
        sizes = []

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            compute(model, batch_for(model, (48,)), PassSpec("attnlrp"), PassOptions(checkpoint=checkpoint))
        saved[checkpoint] = sum(sizes)
    assert saved[True] < 0.1 * saved[False]
