"""The output embedding's short cut: the same logits as the whole model's, a fraction of its work, and no wrong use of it."""

from functools import cache

import pytest
import tiny
import torch
from support import runner_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

import lrpx
from lrpx.passes.attribution import run
from lrpx.passes.forward_backward import compute
from lrpx.passes.output_head import output_embedding
from lrpx.passes.scores import HeadNotFollowed
from lrpx.passes.spec import PassOptions, PassSpec
from lrpx.propagation import rules
from lrpx.propagation.rulesets import LRP
from lrpx.text.batching import Item, pad

TARGET, CONTRAST = 11, 13
EXACT = {"rtol": 1e-12, "atol": 0}


def projected_opt():
    """Word embeddings narrower than the model: a projection stands before the output embedding."""
    config = tiny.configuration("causal:opt")
    config.word_embed_proj_dim = 16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = type(tiny.build("causal:opt"))(config).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    assert model.model.decoder.project_out is not None
    return model


def tied_llama():
    model = tiny.build("causal:llama")
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


MODELS = {
    "gpt2, tied": lambda: tiny.build("causal:gpt2"),
    "llama, untied": lambda: tiny.build("causal:llama"),
    "llama, tied": tied_llama,
    "bert, with a bias": lambda: tiny.build("masked:bert"),
    "gemma2, soft cap": lambda: tiny.build("causal:gemma2"),
    "cohere, scaled logits": lambda: tiny.build("causal:cohere"),
    "opt, projected": projected_opt,
}


@cache
def model_of(name):
    return MODELS[name]()


def batch_for(model, lengths=(9,), target=TARGET, contrast=CONTRAST, side="right"):
    rows = [tiny.inputs(model, n_tokens=n, seed=i)["input_ids"][0].tolist() for i, n in enumerate(lengths)]
    return pad([Item(tuple(row), len(row) // 2, target, contrast) for row in rows], model, side=side)


def plain(model, lengths=(9,), target=TARGET, contrast=CONTRAST):
    """By definition, text by text: values, targets, and gradients at the word embeddings."""
    found = []
    for i, n in enumerate(lengths):
        leaf = []

        def note(_, __, output, leaf=leaf):
            leaf.append(output.detach().requires_grad_())
            return leaf[0]

        hook = model.get_input_embeddings().register_forward_hook(note)
        logits = model(**tiny.inputs(model, n_tokens=n, seed=i)).logits[0, n // 2]
        hook.remove()
        top = int(logits.argmax()) if target is None else target
        value = logits[top] - (0 if contrast is None else logits[contrast])
        (gradient,) = torch.autograd.grad(value, leaf)
        found.append((value.detach(), top, gradient[0]))
    return found


class Products(TorchDispatchMode):
    """Notes the shapes of all matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.shapes.append(tuple(output.shape))
        return output

    def rows_of_all_logits(self):
        return sum(torch.Size(shape[:-1]).numel() for shape in self.shapes if shape[-1] == tiny.VOCABULARY)


@pytest.mark.parametrize("target", [TARGET, None], ids=["chosen", "top"])
@pytest.mark.parametrize("contrast", [CONTRAST, None], ids=["contrast", "single"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_the_whole_model(name, contrast, target):
    model, lengths = model_of(name), (9, 7)
    batch = batch_for(model, lengths, target, contrast)
    answer = compute(model, batch, PassSpec({}, ("embedding",)))
    reading = answer.read(2)
    for i, (value, top, gradient) in enumerate(plain(model, lengths, target, contrast)):
        assert reading.targets[i] == top
        assert reading.values[i] == pytest.approx(float(value), rel=1e-6)  # some norms are in float32
        scale = float(gradient.abs().max())
        torch.testing.assert_close(answer.gradients["embedding"][i, : lengths[i]], gradient, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("rule_set", ["lrp", "attnlrp", {}], ids=["lrp", "attnlrp", "gradient"])
@pytest.mark.parametrize("target", [TARGET, None], ids=["chosen", "top"])
@pytest.mark.parametrize("name", MODELS)
def test_the_short_cut_agrees_with_all_logits_to_the_last_digits(name, target, rule_set):
    model = model_of(name)
    batch = batch_for(model, (9, 7), target)
    short, whole = (
        compute(model, batch, PassSpec(rule_set), PassOptions(whole_head=all_of_it)) for all_of_it in (False, True)
    )
    torch.testing.assert_close(short.summary, whole.summary, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(short.gradients, whole.gradients, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_only_what_is_asked_for_is_computed(name):
    model, lengths = model_of(name), (9, 7)
    for target, whole, rows in ((TARGET, False, 0), (None, False, 2), (TARGET, True, None)):
        with Products() as products:
            compute(model, batch_for(model, lengths, target), PassSpec("lrp"), PassOptions(whole_head=whole))
        found = products.rows_of_all_logits()
        assert found == rows if rows is not None else found > 2, (target, whole)


# What a model does to its logits


class Changed(LlamaForCausalLM):
    """A Llama whose logits are ``change(lm_head, hidden states)``."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, use_cache=None):
        states = self.model(input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=use_cache)
        return CausalLMOutput(logits=self.change(self.lm_head, states.last_hidden_state))


def changed(change):
    model = tiny.build("causal:llama")
    model.__class__ = Changed
    model.change = change
    return model


def vector(seed=0):
    return torch.randn(tiny.VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def masked(head, hidden):
    logits = head(hidden)
    logits[..., 5] = -torch.inf
    return logits


def added_in_place(head, hidden):
    logits = head(hidden)
    logits += vector()
    return logits


UNLIKE = {
    "softmax": lambda head, x: head(x).softmax(-1),
    "log_softmax": lambda head, x: torch.log_softmax(head(x), -1),
    "minus the largest": lambda head, x: head(x) - head(x).amax(-1, keepdim=True),
    "over the largest": lambda head, x: (lambda y: y / y.abs().amax(-1, keepdim=True))(head(x)),
    "minus the mean": lambda head, x: (lambda y: y - y.mean(-1, keepdim=True))(head(x)),
    "a vector added": lambda head, x: head(x) + vector(),
    "a vector added in place": added_in_place,
    "a vector multiplied": lambda head, x: head(x) * vector(),
    "a vector divided by": lambda head, x: torch.div(head(x), vector()),
    "masked by a vector": lambda head, x: head(x).masked_fill(vector() > 1.5, -5.0),
    "masked in place": masked,
    "columns turned round": lambda head, x: head(x).flip(-1),
    "columns cut off in front": lambda head, x: head(x)[..., 2:],
    "padded": lambda head, x: nn.functional.pad(head(x), (2, 0)),
    "sorted": lambda head, x: head(x).sort(-1).values,
    "positions turned round": lambda head, x: head(x).flip(1),
    "positions summed up": lambda head, x: head(x).cumsum(1),
    "twice, the second returned": lambda head, x: (head(2 * x), head(x))[1],
    "twice, added": lambda head, x: head(2 * x) + head(x),
    "through another matrix": lambda head, x: head(x) @ torch.outer(vector(1), vector(2)),
    "by the number of logits": lambda head, x: (lambda y: y / y.shape[-1] ** 0.5)(head(x)),
    "positions counted": lambda head, x: (lambda y: y * y.size(1))(head(x)),
    "positions, by which logit is the largest": lambda head, x: (lambda y: y * y[0, 0].argmax())(head(x)),
    "in another shape": lambda head, x: (lambda y: y.view(-1, tiny.VOCABULARY).tanh().view_as(y))(head(x)),
    "as the weight itself": lambda head, x: x @ head.weight.T,
    "without the linear function": lambda head, x: torch.einsum("btd,vd->btv", x, head.weight),
    "of other hidden states": lambda head, x: head(torch.cat([x, x], -1)[..., : x.shape[-1]].flip(1)).flip(1),
    "unseen": lambda head, x: _Doubled.apply(head(x)),
    "rounded, straight through": lambda head, x: (lambda y: y + (y.round() - y).detach())(head(x)),
}

ALIKE = {
    "as it is": lambda head, x: head(x),
    "capped": lambda head, x: torch.tanh(head(x) / 3.0) * 3.0,
    "scaled": lambda head, x: head(x) * 0.25,
    "scaled in place": lambda head, x: head(x).mul_(0.25),
    "scaled by a tensor": lambda head, x: torch.tensor(0.25, dtype=x.dtype) * head(x),
    "divided and shifted": lambda head, x: head(x) / 7 - 3,
    "cast": lambda head, x: head(x).to(torch.float64).double(),
    "to a power": lambda head, x: head(x) ** 3,
    "negated": lambda head, x: -head(x),
    "through a sigmoid": lambda head, x: torch.sigmoid(head(x)),
    "all columns": lambda head, x: head(x)[:, :, :].contiguous(),
    "asked about": lambda head, x: (lambda y: y.float() if y.dtype == torch.float16 or y.dim() != 3 else y)(head(x)),
    "of changed hidden states": lambda head, x: head(x * 2),
}


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 + torch.arange(x.shape[-1])

    @staticmethod
    def backward(ctx, g):
        return g * 2


def check_against_plain(model, **what):
    """As ``lrpx.explain`` computes it; the batch is padded."""
    lengths = (9, 7)
    with torch.enable_grad():
        expected = plain(model, lengths, **what)
    result = run(model, batch_for(model, lengths, **what), {}, ["embedding"], runner=runner_of(model))
    for i, (value, top, gradient) in enumerate(expected):
        assert result.targets[i] == top
        assert result.values[i] == pytest.approx(float(value), rel=1e-6, abs=1e-9)
        scale = float(gradient.abs().max())
        found = result.hidden["embedding"].gradient[i, : lengths[i]]
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("change", UNLIKE)
def test_a_model_that_treats_its_logits_unlike_is_noticed(change):
    model = changed(UNLIKE[change])
    with pytest.raises(HeadNotFollowed):
        compute(model, batch_for(model), PassSpec({}))


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, None], ids=["chosen", "top"])
@pytest.mark.parametrize("change", [name for name in UNLIKE if not name.startswith("positions")])
def test_and_explained_by_all_its_logits(change, target):
    check_against_plain(changed(UNLIKE[change]), target=target)


@pytest.mark.parametrize("change", [name for name in UNLIKE if name.startswith("positions")])
def test_and_explained_by_all_its_logits_where_positions_are_mixed(change):
    """Here padding takes part, so one text at a time."""
    model = changed(UNLIKE[change])
    ((value, _, gradient),) = plain(model)
    result = run(model, batch_for(model), {}, ["embedding"])
    assert result.values[0] == pytest.approx(float(value), rel=1e-6)
    torch.testing.assert_close(result.hidden["embedding"].gradient[0], gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", [TARGET, None], ids=["chosen", "top"])
@pytest.mark.parametrize("change", ALIKE)
def test_a_model_that_treats_its_logits_alike_keeps_the_short_cut(change, target):
    model = changed(ALIKE[change])
    compute(model, batch_for(model, target=target), PassSpec({}))
    check_against_plain(model, target=target)
    assert not runner_of(model).whole_head


def test_columns_cut_off_at_the_end_leave_those_asked_for():
    model = changed(lambda head, x: head(x)[..., :50])
    for target in (TARGET, None):
        check_against_plain(model, target=target)


@pytest.mark.parametrize("seed", range(3))
def test_explanations_of_an_unusual_model_are_right(seed):
    """``lrpx.explain``, with a token that the short cut would have computed in another way."""
    model = changed(UNLIKE["a vector added"])
    ids = tiny.inputs(model, n_tokens=8, seed=seed)["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
    target = int(logits.argmin())
    explainer = lrpx.Explainer(model)
    assert explainer(ids[0].tolist(), target=target).value == pytest.approx(float(logits[target]), rel=1e-12)
    assert explainer._runner.whole_head
    top = lrpx.explain(model, None, ids[0].tolist())
    assert top.target.id == int(logits.argmax())


def test_a_hook_on_the_output_embedding_is_followed():
    model = tiny.build("causal:llama")
    hook = model.lm_head.register_forward_hook(lambda _, __, logits: logits / 2)
    compute(model, batch_for(model), PassSpec("lrp"))
    check_against_plain(model)
    hook.remove()
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + vector())
    with pytest.raises(HeadNotFollowed):
        compute(model, batch_for(model), PassSpec("lrp"))
    check_against_plain(model)


def test_an_adapter_at_the_output_embedding_is_noticed():
    class Adapted(nn.Module):  # like LoRA's
        def __init__(self, base):
            super().__init__()
            self.base, self.weight = base, base.weight
            self.a, self.b = (nn.Linear(*sizes, bias=False, dtype=torch.float64) for sizes in ((32, 2), (2, 97)))

        def forward(self, x):
            return self.base(x) + self.b(self.a(x))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = tiny.build("causal:llama")
        model.lm_head = Adapted(model.lm_head).eval()
    with pytest.raises(HeadNotFollowed):
        compute(model, batch_for(model), PassSpec("lrp"))
    for length in (9, 1):
        ((value, _, _),) = plain(model, (length,))
        found = run(model, batch_for(model, (length,)), {}, ["embedding"])
        assert found.values[0] == pytest.approx(float(value), rel=1e-6)


# What else asks for all logits


def test_a_rule_for_linear_functions_reaches_the_output_embedding():
    model = tiny.build("causal:llama")
    rule_set = {**LRP, "linear": rules.alpha1beta0}
    for target in (TARGET, None):
        batch = batch_for(model, target=target)
        short, whole = (
            compute(model, batch, PassSpec(rule_set), PassOptions(whole_head=all_of_it)) for all_of_it in (False, True)
        )
        assert torch.equal(short.gradients["input"], whole.gradients["input"])
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert short.mode.hits["linear"] == len(linears)


@pytest.mark.parametrize("length", [9, 1])
@pytest.mark.parametrize("place", ["cls.predictions.decoder", "cls.predictions", "cls"])
def test_the_output_embedding_as_a_place_to_look_at(place, length):
    """Whoever asks for its output gets all of it."""
    model = tiny.build("masked:bert")
    batch = batch_for(model, (length,))
    answer = compute(model, batch, PassSpec({}, ("input", place)))
    with torch.no_grad():
        logits = model(**batch.inputs).logits
    torch.testing.assert_close(answer.states[place], logits, **EXACT)
    expected = torch.zeros_like(logits)
    expected[0, length // 2, [TARGET, CONTRAST]] = torch.tensor([1.0, -1.0], dtype=logits.dtype)
    assert torch.equal(answer.gradients[place], expected)


def test_models_without_an_ordinary_output_embedding():
    def none():
        raise NotImplementedError

    model = tiny.build("causal:llama")
    assert output_embedding(model) is model.lm_head
    for own in (none, lambda: None, lambda: model.model.norm, lambda: nn.Identity()):
        model.get_output_embeddings = own
        assert output_embedding(model) is None
        check_against_plain(model)
        assert not runner_of(model).whole_head  # it never tried


def test_a_failure_of_the_model_itself_is_not_the_heads():
    model = tiny.build("causal:llama")

    def fail(*_):
        raise ZeroDivisionError("of its own")

    hook = model.model.layers[1].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError, match="of its own"):
        compute(model, batch_for(model), PassSpec("lrp"))
    hook.remove()
    model.lm_head.register_forward_hook(fail)  # perhaps because of the few logits: tried again with all of them
    with pytest.raises(HeadNotFollowed):
        compute(model, batch_for(model), PassSpec("lrp"))
    with pytest.raises(ZeroDivisionError, match="of its own"):
        run(model, batch_for(model), "lrp")
