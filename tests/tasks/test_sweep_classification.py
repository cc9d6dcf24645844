"""Every classifier, question-answering and multiple-choice model type of the installed transformers.

For each: the forward pass under the rules is the plain one, bit for bit; and relevance under LRP adds up to the value. And once
for each body, whatever its heads: the gradient is that of finite differences; a text in a padded batch gets what it gets alone;
the label is read where the explanation says.
"""

from functools import partial

import pytest
import tiny
import tiny_heads
import torch
from support import slow_but

from lrpx.check import Accounting
from lrpx.errors import LrpxError, NonFiniteError, UnsupportedModelError
from lrpx.models.pooling import finds_padding, pooled
from lrpx.models.shifted import decoder_reads
from lrpx.models.stacks import stacks_of
from lrpx.passes.attribution import run
from lrpx.passes.scores import read_scores
from lrpx.propagation.propagate import propagate
from lrpx.tasks import task_for
from lrpx.tasks.question_answering import AnswerScores
from lrpx.text.batching import Item, pad
from lrpx.text.grouping import allowed_waste

TOLERANCE = 2e-6  # transformers computes many norms in float32, whatever the dtype of the model
LONGEST = 4  # tokens of an answer here
QUICK = (
    "bert",
    "gpt2",
    "llama",
    "qwen3",
    "modernbert",
    "deberta-v2",
    "distilbert",
    "xlm",
    "longformer",
    "roformer",
    "bart",
)
# What stands before the first block is not one hidden state per token, or is not the model's own embedding module.
AT = dict.fromkeys(("ibert", "roc_bert", "token-classification:mt5", "token-classification:t5"), "input")


ONE_HEAD = {tiny_heads.type_of(family): family for family in reversed(tiny_heads.EXPLAINED)}
BODIES = [f for f in tiny_heads.EXPLAINED if f in ONE_HEAD.values() or tiny_heads.type_of(f) in QUICK]
BODIES += [f for f in tiny_heads.PAIRS if f in tiny_heads.EXPLAINED and f not in BODIES]
# Without global attention, the own gradient of Longformer and LED is NaN: this is refused, whatever the method.
NOT_FINITE = ("token-classification:longformer", "question-answering:led")


def families(names):
    quick = [name for name in names if tiny_heads.type_of(name) in QUICK]
    return pytest.mark.parametrize("family", slow_but(names, *quick))


def place(family):
    return AT.get(family, AT.get(tiny_heads.type_of(family), "embedding"))


def readout_of(family, model):
    return AnswerScores(LONGEST) if family.startswith("question") else task_for(model, None).readout([])


def item_of(family, model, length, seed=0):
    ids = tuple(tiny.inputs(model, n_tokens=length, seed=seed)["input_ids"][0].tolist())
    if tiny_heads.type_of(family) == "longformer" and not family.startswith("to"):
        ids = (ids[0], 2, *ids[2:4], 2, *ids[5:-1], 2)  # it looks for three separators
    source = 0
    if family in tiny_heads.PAIRS:
        end = model.config.eos_token_id
        ids = (*ids[:-1], end if isinstance(end, int) else end[0])
        source, ids = len(ids), (*ids, *decoder_reads(model, ids))
    task = family.split(":")[0]
    if task == "question-answering":
        score = AnswerScores(LONGEST)
        return Item(ids, source + 3, score.id_of(3, 4), score.id_of(2, 2), source=source)
    if task == "multiple-choice":
        return Item(ids, 0, 0)
    return Item(ids, source + 3, 2, 1, source=source)


def batch_of(family, model, *items, **how):
    return pad(items or [item_of(family, model, 9)], model, readout=readout_of(family, model), **how)


def value(model, batch):
    scores = read_scores(model, batch, batch.readout).detach()
    target, contrast = int(batch.targets[0]), int(batch.contrasts[0])
    return float(scores[0, target] - (scores[0, contrast] if contrast >= 0 else 0))


@families(tiny_heads.EXPLAINED)
def test_forward_is_bit_identical_and_relevance_adds_up(family):
    model = tiny_heads.build(family, zero_biases=True)
    batch = batch_of(family, model)
    with torch.no_grad():
        plain = read_scores(model, batch, batch.readout)
    for rule_set in ("lrp", "attnlrp"):
        with propagate(model, rule_set), torch.enable_grad():
            assert torch.equal(read_scores(model, batch, batch.readout), plain)

    result = run(model, batch, "lrp", [place(family)], mode=Accounting)
    hidden = result.hidden[place(family)]
    size = float((hidden.state * hidden.gradient).abs().sum())
    assert size > 0
    missing = result.values[0] - result.products.sum() - result.mode.absorbed
    assert abs(missing) < TOLERANCE * size
    if family in NOT_FINITE:
        with pytest.raises(NonFiniteError):
            run(model, batch, {}, [place(family)])
        return
    plain_gradient = run(model, batch, {}, [place(family)]).products.sum()
    assert abs(result.values[0] - plain_gradient) > 50 * TOLERANCE * size  # a check that can fail


# What enters their first block is also passed on beside it, or is of another shape.
MOVED_EARLIER = ("squeezebert", "funnel", "longformer", "flaubert", "xlm", "zamba", "zamba2")
SATURATED = ("mobilebert",)  # the tanh of its pooler, in a model this small


@families([f for f in BODIES if f not in NOT_FINITE and tiny_heads.type_of(f) not in SATURATED])
def test_the_gradient_is_that_of_finite_differences(family):
    """In a random direction, at what enters the first block, or at the embedding."""
    model = tiny_heads.build(family)
    earlier = tiny_heads.type_of(family) in MOVED_EARLIER or family in tiny_heads.PAIRS
    where = "embedding" if earlier else "input"
    batch = batch_of(family, model)
    hidden = run(model, batch, {}, [where]).hidden[where]
    direction = torch.randn(hidden.state.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    along = float((hidden.gradient.double() * direction).sum())
    moved = []
    steep = tiny_heads.type_of(family) in ("t5", "mt5", "umt5")  # their attention has no scale
    step = 1e-5 if steep else 3e-4
    for sign in (1, -1):
        with _moved(model, where, sign * step * direction):
            moved.append(value(model, batch))
    found = (moved[0] - moved[1]) / (2 * step)
    size = float((hidden.gradient.double() * direction).abs().sum())
    assert found == pytest.approx(along, abs=2e-3 * size)
    assert size > 0


class _moved:
    """While it is entered, the hidden states at a place are moved."""

    def __init__(self, model, where, by):
        self.model, self.where, self.by, self.hooks, self.done = model, where, by, [], False

    def __enter__(self):
        from lrpx.models.modules import modules_of
        from lrpx.passes.hidden_states import first_blocks

        stacks = stacks_of(self.model)
        if len(stacks) == 2:
            half = self.by.shape[1] // 2
            for stack, by in zip(stacks, (self.by[:, :half], self.by[:, half:]), strict=True):
                move = partial(lambda by, m, a, o: o + by.to(o.dtype), by)
                self.hooks.append(stack.embedding.register_forward_hook(move))
        elif self.where == "embedding":
            self.hooks.append(self.model.get_input_embeddings().register_forward_hook(lambda m, a, o: self._move(o)))
        else:
            for block in first_blocks(modules_of(self.model)):
                self.hooks.append(block.register_forward_pre_hook(self._before, with_kwargs=True))

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()

    def _move(self, state):
        if self.done:
            return state
        self.done = True
        flat = self.by.reshape(*state.shape[:2], -1)[:, : state.shape[1]]
        return state + flat.reshape(state.shape).to(state.dtype)

    def _before(self, _, args, kwargs):
        args, kwargs = list(args), dict(kwargs)
        for holder, keys in ((args, range(len(args))), (kwargs, list(kwargs))):
            for key in keys:
                one = holder[key]
                if not self.done and isinstance(one, torch.Tensor) and one.is_floating_point():
                    holder[key] = self._move(one)
                    return tuple(args), kwargs
        return None


@families([f for f in BODIES if f not in NOT_FINITE])
def test_a_text_in_a_batch_gets_what_it_gets_alone(family):
    model = tiny_heads.build(family)
    items = [item_of(family, model, 9), item_of(family, model, 7, seed=50), item_of(family, model, 9, seed=2)]
    if allowed_waste(model, family.split(":")[0]) == 0:
        items = [items[0], items[2]]  # such texts are put together only where they have one length
    assert finds_padding(model) or not family.startswith("text") or "t5gemma" in family
    batch = batch_of(family, model, *items)
    together = run(model, batch, "attnlrp", [place(family)])
    for row, item in enumerate(items[:2]):
        alone = run(model, batch_of(family, model, item), "attnlrp", [place(family)])
        size = abs(alone.products).max()
        assert together.values[row] == pytest.approx(alone.values[0], rel=1e-5, abs=1e-5)
        own = together.products[row, batch.places[row]], alone.products[0, : len(item.token_ids)]
        assert abs(own[0] - own[1]).max() < 2e-5 * size


# transformers gives NaN where a row of the attention mask hides everything; earlier releases count positions from the padding.
LEFT_FAILS = ("bloom", "gemma2", "mpt", *("biogpt", "doge", "zamba", "zamba2") * tiny_heads.OLD)


@families(
    [
        f
        for f in tiny_heads.EXPLAINED
        if f.startswith("text-") and tiny_heads.type_of(f) not in LEFT_FAILS and f not in tiny_heads.PAIRS
    ]
)
def test_the_last_token_is_found_with_padding_on_the_left_too(family):
    model = tiny_heads.build(family)
    items = [item_of(family, model, 9), item_of(family, model, 7, seed=50)]
    if pooled(model, items[0].token_ids) != (8, 9):
        pytest.skip("reads its label at the first token, so lrpx pads on the right only")
    batch = batch_of(family, model, *items, side="left")
    alone = run(model, batch_of(family, model, items[1]), "attnlrp", [place(family)])
    together = run(model, batch, "attnlrp", [place(family)])
    size = abs(alone.products).max()
    assert abs(together.products[1, batch.spans[1]] - alone.products[0]).max() < 2e-5 * size


POOLED = [f for f in BODIES if f.startswith(("text-", "multiple")) and f not in tiny_heads.PAIRS]


@families(
    [f for f in POOLED if tiny_heads.type_of(f) not in ("fnet", "funnel", "squeezebert", "longformer", *SATURATED)]
)
def test_the_label_is_read_where_the_explanation_says(family):
    """The gradient with respect to what comes out of the last block is zero at all other positions."""
    model = tiny_heads.build(family)
    item = item_of(family, model, 9)
    last = [n for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == _depth(model)]
    if not last:
        pytest.skip("its blocks are not in one list")
    name = f"{last[0]}.{_depth(model) - 1}"
    try:
        gradient = run(model, batch_of(family, model, item), {}, ["input", name]).hidden[name].gradient
    except LrpxError:
        pytest.skip("its last block gives no hidden state")
    read = gradient[0].abs().sum(-1).nonzero().flatten().tolist()
    assert read == list(range(*pooled(model, item.token_ids)))


def _depth(model):
    from lrpx.passes.hidden_states import layer_count

    return layer_count(model)


@families(list(tiny_heads.REFUSES))
def test_refuses_by_name(family):
    model = tiny_heads.build(family)

    def explain():
        task_for(model, None)  # what the model is for
        run(model, batch_of(family, model), "lrp")  # what it consists of

    with pytest.raises(UnsupportedModelError, match=type(model).__name__):
        explain()
