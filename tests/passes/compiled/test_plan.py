"""Compiled passes: when a mask may be left out, which plan serves a batch, what falls back, and what is let go."""

import logging
import shutil
import threading
import unittest.mock
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny
import torch
from compiled_tools import ASKED, OTHERS, assert_close, batch_for, gpt2, shallow
from support import change_mlp
from torch import nn

import lrpx
from lrpx.errors import UnsupportedModelError
from lrpx.passes import dispatch
from lrpx.passes.compiled import partition as pieces
from lrpx.passes.compiled import plan as module
from lrpx.passes.compiled.plan import KEPT, Masks, Plan, looks_back, masks_of
from lrpx.passes.compiled.trace import weights_of
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassOptions, PassSpec
from lrpx.propagation import rules
from lrpx.propagation.jacobians import scale_gradient
from lrpx.propagation.rulesets import LRP

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="TorchInductor needs a C++ compiler on a CPU"
)
compiles = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7),
    reason="TorchInductor of torch 2.6 fails on its own cache",
)
Q = PassSpec("attnlrp")


pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture
def plans(monkeypatch):
    """The plans that were made."""
    made = []

    class Noted(Plan):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(module, "Plan", Noted)
    return made


def compiling(model):
    return PassRunner(model, Execution(compile=True))


def runs_as_usual(runner, batch, spec=Q):
    """Run a pass; whether it was neither captured nor compiled. Its result is right in any case."""
    with unittest.mock.patch.object(dispatch, "compute", wraps=compute) as usual:
        found = runner.run(batch, spec)
    assert_close(found, compute(runner.model, batch, spec))
    return usual.called


def alike(lengths):
    return [(n, n // 2, 11, 13) for n in lengths]


# Masks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "spare", "back"),
    [
        ("causal:gpt2", True, True),
        ("causal:llama", True, True),
        ("causal:bloom", True, True),
        ("causal:gemma3_text", True, True),
        ("causal:mixtral", True, True),
        ("masked:bert", True, False),
        ("masked:modernbert", True, False),
        ("causal:roberta", True, False),  # also comes in a masked variant
        ("causal:xlnet", True, False),  # causal by its name only
        ("causal:xlm", False, False),  # looks for padding in a text where it has no mask
    ],
)
def test_what_masks_do_in_a_model(family, spare, back, dtype):
    if dtype == torch.bfloat16 and family == "causal:xlnet":
        pytest.skip("XLNet does not run in bfloat16")
    model = tiny.build(family, dtype=dtype)
    for asked in (ASKED, [(1, 0, 11, 13)], [(40, 3, 11, 13)]):
        assert masks_of(model, batch_for(model, asked)) == Masks(spare, back), asked


def test_a_type_that_looks_back_may_be_told_to_look_ahead():
    model = tiny.build("causal:gemma3_text")
    assert looks_back(model)
    assert masks_of(model, batch_for(model)).back
    config = tiny.configuration("causal:gemma3_text")
    config.use_bidirectional_attention = True
    both = type(model)(config).double().eval()
    both.load_state_dict(model.state_dict())
    assert masks_of(both, batch_for(both)) == Masks(spare=True, back=False)


def test_where_a_mask_hides_nothing_that_a_token_sees():
    model = tiny.build("causal:llama")
    same, right = batch_for(model, alike((9, 9))), batch_for(model, alike((9, 6)))
    left = batch_for(model, alike((9, 6)), side="left")
    longer = batch_for(model, alike((9, 9)), length=12)
    for masks, expected in (
        (Masks(True, True), [True, True, False, True]),
        (Masks(True, False), [True, False, False, False]),
        (Masks(False, True), [False] * 4),
    ):
        assert [masks.hide_nothing(batch) for batch in (same, right, left, longer)] == expected


@pytest.mark.parametrize(
    ("family", "asked", "side", "masked"),
    [
        ("causal:llama", alike((9, 6)), "right", False),
        ("causal:llama", alike((9, 6)), "left", True),
        ("masked:bert", alike((9, 6)), "right", True),
        ("masked:bert", alike((9, 9)), "right", False),
    ],
)
def test_masks_are_left_out_only_where_they_may_be(trusted, as_traced, family, asked, side, masked):
    model = shallow(family)
    seen = []

    class Watched(type(model.base_model)):
        def forward(self, *args, **kwargs):
            seen.append(kwargs.get("attention_mask") is not None)
            return super().forward(*args, **kwargs)

    model.base_model.__class__ = Watched
    batch = batch_for(model, asked, side=side)
    found = compiling(model).run(batch, Q)
    assert seen[-1] == masked  # when it was traced, after all trials
    assert_close(found, compute(model, batch, Q))


# Plans


def test_one_plan_for_all_lengths_and_numbers_of_texts(as_traced, plans):
    model = tiny.build("causal:gpt2")
    known = compiling(model)
    for asked in (ASKED, *OTHERS, ASKED):
        batch = batch_for(model, asked)
        found = known.run(batch, Q)
        if batch.chosen:
            assert_close(found, compute(model, batch, Q))
    assert len(plans) == len(known.compiled) == 1


def test_a_text_alone_and_other_questions_have_plans_of_their_own(as_traced, plans):
    model = gpt2()
    known = compiling(model)
    asked = [
        (ASKED, Q),
        ([(9, 4, 11, 13)], Q),
        ([(9, 4, None, 13)], Q),  # whatever it predicts
        (alike((9, 9)), PassSpec("lrp", at=("transformer.h.0", "input"))),
    ]
    for _ in range(2):
        for texts, question in asked:
            batch = batch_for(model, texts)
            assert_close(known.run(batch, question), compute(model, batch, question))
    assert len(plans) == len(known.compiled) == len(asked)


def test_changed_weights_are_read_and_exchanged_ones_noticed(trusted, as_traced, plans):
    model = gpt2()
    known, batch = compiling(model), batch_for(model)
    layer = model.transformer.h[0].mlp.c_fc

    def in_place():
        layer.weight.mul_(3)

    def parameter():
        layer.weight = nn.Parameter(layer.weight * 0.5)

    def module():
        change_mlp(model, lambda y: y * 2)

    before = known.run(batch, Q)
    old = weakref.ref(plans[0])
    for change, count in ((in_place, 1), (parameter, 2), (module, 3)):
        with torch.no_grad():
            change()
        found = known.run(batch, Q)
        assert_close(found, compute(model, batch, Q))
        assert not torch.allclose(found.summary[:2], before.summary[:2])
        assert (len(plans), len(known.compiled)) == (count, 1)
        before = found
    plans.clear()
    del found, before
    assert old() is None


class Adapters(nn.Module):
    """Several ways to change a layer, chosen by a list, as PEFT's are."""

    def __init__(self, base):
        super().__init__()
        self.base, self.active, self.scale = base, ["a"], {"a": 0.01, "b": -0.02}
        self.vectors = {"a": torch.linspace(0, 1, 48).double(), "b": torch.linspace(1, 2, 48).double()}

    def forward(self, x):
        y = self.base(x)
        for name in self.active:
            y = y + self.scale[name] * self.vectors[name] * x.sum(-1, keepdim=True)
        return y


def test_what_a_module_holds_beside_weights_is_noticed(trusted, as_traced, plans):
    model = gpt2()
    mlp = model.transformer.h[0].mlp
    mlp.c_fc = adapters = Adapters(mlp.c_fc).eval()
    known, batch = compiling(model), batch_for(model)
    found = known.run(batch, Q)
    changes = [  # the others are in tests/passes/test_model_state.py
        lambda: adapters.active.__setitem__(0, "b"),
        lambda: adapters.vectors["b"].mul_(2),
        lambda: adapters.active.clear(),
    ]
    for count, change in enumerate(changes, 2):
        before = found
        change()
        found = known.run(batch, Q)
        assert_close(found, compute(model, batch, Q))
        assert not torch.allclose(found.summary[:2], before.summary[:2])
        assert len(plans) == count
    known.run(batch, Q)
    assert len(plans) == count


def test_code_of_others_is_not_compiled(as_traced, plans, caplog):
    """A hook that leaves something out, another thing each time, and one that writes down what it sees."""
    model = gpt2()
    left_out, seen = [0], []

    def leave_out(_, args):
        x = args[0].clone()
        for n in left_out:
            x[..., n] = 0
        return (x,)

    block = model.transformer.h[0]
    hooks = [
        block.mlp.register_forward_pre_hook(leave_out),
        block.register_forward_hook(lambda _, __, y: seen.append(y)),
    ]
    known, batch = compiling(model), batch_for(model)
    for n in range(3):
        left_out[:] = [n]
        assert runs_as_usual(known, batch, Q)
    assert seen
    assert [r.getMessage() for r in caplog.records if r.name == "lrpx"] == [
        "GPT2LMHeadModel is not compiled and runs as usual: transformer.h.0 has a hook (test_code_of_others_is_not_compiled."
        "<locals>.<lambda>), and a captured or compiled pass would not run that code again"
    ]
    for hook in hooks:
        hook.remove()
    assert_close(known.run(batch, Q), compute(model, batch, Q))
    assert len(plans) == 1
    block.mlp.forward = lambda x: x * left_out[0]
    assert runs_as_usual(known, batch, Q)
    del block.mlp.forward
    assert_close(known.run(batch, Q), compute(model, batch, Q))
    assert len(plans) == 2


def test_rules_of_others_are_not_compiled(as_traced, plans, caplog):
    """One that reads what may change, and one made anew, perhaps where another one was."""
    model = gpt2()
    known, batch = compiling(model), batch_for(model)
    factor = [1.0]

    def scaled(call):
        return scale_gradient(call(), factor[0])

    for rule in (scaled, lambda call: rules.identity(call)):
        assert runs_as_usual(known, batch, PassSpec({**LRP, "activation": rule}))
    assert (
        "the rule for 'activation' is not one of lrpx.rules, and a captured or compiled pass would not run"
        in caplog.text
    )
    question = PassSpec({**LRP, "activation": rules.identity})
    assert_close(known.run(batch, question), compute(model, batch, question))
    assert len(plans) == 1


def test_reasons_that_alternate_are_told_once(as_traced, caplog):
    model = gpt2()
    model.transformer.h[0].register_forward_hook(lambda *_: None)
    known, batch = compiling(model), batch_for(model)
    own = PassSpec({**LRP, "activation": lambda call: rules.identity(call)})
    for _ in range(3):
        for question in (Q, own):
            assert runs_as_usual(known, batch, question)
    assert len([r for r in caplog.records if r.name == "lrpx"]) == 2


def test_autocast_is_not_compiled(as_traced, plans, caplog):
    model = gpt2()
    known, batch = compiling(model), batch_for(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert runs_as_usual(known, batch, Q)
    assert "torch.autocast is on" in caplog.text
    assert_close(known.run(batch, Q), compute(model, batch, Q))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert runs_as_usual(known, batch, Q)


def test_a_model_that_changes_itself_is_tried_once(lenient, trusted, as_traced, caplog):
    class Remembers(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.last = base, None
            self.tries = []

        def forward(self, x):
            self.last = self.base(x)
            return self.last

    model = gpt2()
    block = model.transformer.h[0]
    block.mlp = Remembers(block.mlp).eval()
    known, batch = compiling(model), batch_for(model)
    for _ in range(3):
        assert runs_as_usual(known, batch, Q)
        compute(model, batch, Q)
    said = [r.getMessage() for r in caplog.records if r.name == "lrpx" and r.levelname == "WARNING"]
    assert "it changes itself while it runs: last" in said[0]
    assert len(said) <= 2
    block.mlp = block.mlp.base
    assert_close(known.run(batch, Q), compute(model, batch, Q))


class Pretended:
    """A plan that serves one length."""

    made = 0

    def __init__(self, model, batch, spec, options):
        type(self).made += 1
        self.length, self.answers = batch.inputs["input_ids"].shape[1], spec.at

    def fits(self, rows, length):
        return length == self.length

    def run(self, batch, weights, aside):
        return self.length, self.answers  # no result, but enough to tell them apart


def test_the_plans_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(module, "Plan", Pretended)
    monkeypatch.setattr(Pretended, "made", 0)
    model = gpt2()
    known = compiling(model)

    def ask(length, at="input"):
        assert known.run(batch_for(model, [(length, 1, 11, 13)]), PassSpec("lrp", (at,))) == (length, (at,))
        return Pretended.made

    assert [ask(n) for n in range(2, KEPT + 2)] == list(range(1, KEPT + 1))
    assert ask(2) == KEPT
    assert ask(2, "embedding") == KEPT + 1  # instead of that for three tokens
    assert len(known.compiled) == KEPT
    assert ask(2) == ask(4) == KEPT + 1
    assert ask(3) == KEPT + 2
    assert len(known.compiled) == KEPT


# What is let go


@pytest.mark.parametrize("checkpoint", [False, True])
def test_tensors_are_let_go_after_their_last_use(monkeypatch, checkpoint):
    """When a piece begins, of all that others gave there is only what it, or a later one, takes, and the result.

    By memory: a view may keep the tensor that it was made of.
    """
    calls = []  # of each piece: the places in memory that it is given, and those that are still there of what others gave
    given = []  # by pieces

    def place(tensor):
        return tensor.untyped_storage().data_ptr()

    def there():
        return [place(t) for reference in given if (t := reference()) is not None and place(t) not in weights]

    def watched(graph, examples):
        def piece(*tensors):
            calls.append(({place(t) for t in tensors if isinstance(t, torch.Tensor)}, there()))
            found = graph(*tensors)
            given.extend(weakref.ref(t) for t in found if isinstance(t, torch.Tensor))
            return found

        return piece

    monkeypatch.setattr(pieces, "_compile", watched)
    model = gpt2(layers=2)
    weights = {place(t) for t in weights_of(model)}
    plan = Plan(model, batch_for(model), PassSpec("attnlrp"), PassOptions(static=True, checkpoint=checkpoint))
    found = plan.run(batch_for(model), weights_of(model))
    results = {place(t) for t in found.tensors()}
    assert len(calls) == 2 * 2 + 2
    assert len(given) > 10
    for k, (_, alive) in enumerate(calls):
        later = {p for taken, _ in calls[k:] for p in taken}
        assert [p for p in alive if p not in later | results] == []
    assert set(there()) == results


def test_an_explainer_that_is_gone_leaves_nothing(as_traced):
    model = gpt2()
    explainer = lrpx.Explainer(model, compile=True)
    explainer([11, 12, 13])
    assert len(explainer._runner.compiled) == 1
    gone = weakref.ref(model)
    del model, explainer
    import gc

    gc.collect()
    assert gone() is None


# What falls back


def explained(model, rows, **options):
    return lrpx.explain(model, None, rows, position=2, target=11, contrast=13, **options)


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a.relevance, b.relevance)
        assert a.value == b.value


@pytest.mark.parametrize("family", ["causal:mixtral", "causal:deepseek_v3"])
def test_what_looks_at_numbers_runs_as_usual_and_says_so_once(lenient, family, caplog):
    model = tiny.build(family)
    rows = [tiny.inputs(model, n_tokens=n, seed=n)["input_ids"][0].tolist() for n in (9, 6)]
    expected = explained(model, rows)
    explainer = lrpx.Explainer(model, compile=True)
    for _ in range(2):
        assert_same(explainer(rows, position=2, target=11, contrast=13), expected)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "compiled" in r.getMessage()]
    assert len(warnings) == 1
    assert type(model).__name__ in warnings[0]
    assert "runs as usual" in warnings[0]
    assert len(explainer._runner.compiled) == 0


def test_a_model_that_changed_is_tried_again(lenient, trusted, as_traced, caplog):
    model = gpt2()
    known, batch = compiling(model), batch_for(model)
    block = change_mlp(model, lambda y: y * (2 if float(y.sum()) > 0 else 3))
    assert runs_as_usual(known, batch, Q)
    assert "is not compiled" in caplog.text
    block.mlp = block.mlp.base
    assert_close(known.run(batch, Q), compute(model, batch, Q))


def test_a_plan_that_fails_is_not_asked_again(lenient, monkeypatch, caplog):
    class Failing(Pretended):
        def run(self, batch, weights, aside):
            if batch.inputs["input_ids"].shape[0] > 2:
                raise RuntimeError("shapes do not match")
            return super().run(batch, weights, aside)

    monkeypatch.setattr(module, "Plan", Failing)
    model = gpt2()
    known = compiling(model)
    assert known.run(batch_for(model, alike((9, 9))), Q)
    assert runs_as_usual(known, batch_for(model, alike((9, 9, 9))), Q)
    assert "shapes do not match" in caplog.text
    assert runs_as_usual(known, batch_for(model, alike((9, 9))), Q)


def test_what_is_no_failure_of_compiling_is_raised(trusted, as_traced):
    model = gpt2()
    change_mlp(model, torch.special.i0)
    with pytest.raises(UnsupportedModelError, match="special_i0"):
        compiling(model).run(batch_for(model), Q)
    full = gpt2()

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    change_mlp(full, fail)
    with pytest.raises(torch.OutOfMemoryError):
        compiling(full).run(batch_for(full), Q)


def test_objections_are_those_of_this_batch(as_traced):
    """Noted as tensors, they are part of what is compiled."""
    model = gpt2()
    batch = batch_for(model)
    known = compiling(model)
    assert known.run(batch, Q).read(2).raised == []
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = torch.inf
    raised = known.run(batch, Q).read(2).raised
    assert raised == compute(model, batch, Q).read(2).raised
    assert raised
    assert len(known.compiled) == 1


# From texts to relevance


def test_threads_that_share_a_model(as_traced, plans):
    """Two explain it, and one computes its logits meanwhile."""
    model = gpt2().requires_grad_(True)
    rows = [tiny.inputs(model, n_tokens=n, seed=n)["input_ids"][0].tolist() for n in (9, 8)]
    expected = explained(model, rows)
    logits = model(torch.tensor(rows[:1])).logits
    stop = threading.Event()

    def elsewhere():
        same = []
        while not (stop.is_set() and same):
            with torch.no_grad():
                same.append(torch.equal(model(torch.tensor(rows[:1])).logits, logits))
        return same

    explainer = lrpx.Explainer(model, compile=True)
    with ThreadPoolExecutor(3) as pool:
        plain = pool.submit(elsewhere)
        try:
            explaining = [pool.submit(explainer, rows, position=2, target=11, contrast=13) for _ in range(2)]
            found = [future.result() for future in explaining]
        finally:
            stop.set()
        assert all(plain.result())
    for each in found:
        for a, b in zip(each, expected, strict=True):
            np.testing.assert_allclose(a.relevance, b.relevance, rtol=1e-9, atol=1e-9 * abs(b.relevance).max())
    assert len(plans) == 1


@needs_compiler
@compiles
@pytest.mark.parametrize(
    ("family", "method", "lengths"),
    [("causal:llama", "attnlrp", (12, 9, 6, 3)), ("masked:bert", "lrp", (12, 11))],
    ids=["one by one", "padded"],
)
def test_compiled_in_float32(family, method, lengths):
    """In earnest, with TorchInductor, once with heads. One plan serves all lengths."""
    model = tiny.build(family, dtype=torch.float32) if family == "causal:llama" else shallow(family).float()
    rows = [tiny.inputs(model, n_tokens=n, seed=n)["input_ids"][0].tolist() for n in lengths]
    explainer, heads = lrpx.Explainer(model, method=method, compile=True), family == "causal:llama"
    found = explainer(rows, position=2, target=11, contrast=13, heads=heads)
    expected = explained(model, rows, method=method, heads=heads)
    assert len(explainer._runner.compiled) == 1
    for a, b in zip(found, expected, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-5)
        np.testing.assert_allclose(a.relevance, b.relevance, rtol=1e-5, atol=1e-5 * abs(b.relevance).max())
        assert [token.id for token, _ in a.top] == [token.id for token, _ in b.top]
        assert [p for _, p in a.top] == pytest.approx([p for _, p in b.top], rel=1e-5)
        assert (a.target_rank, a.contrast_rank) == (b.target_rank, b.contrast_rank)
        probabilities = b.target_probability, b.contrast_probability
        assert (a.target_probability, a.contrast_probability) == pytest.approx(probabilities, rel=1e-5)
        for name in ("by_head", "by_attention", "by_mlp", "by_layer") if heads else ():
            ours, theirs = getattr(a, name), getattr(b, name)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max(), err_msg=name)
