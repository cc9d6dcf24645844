"""Scores that a readout reads off a model's output are explained as logits are."""

from dataclasses import dataclass, replace

import pytest
import tiny
import torch

from lrpx.errors import NonFiniteError
from lrpx.passes.attribution import run
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.predictions import read_predictions
from lrpx.text.batching import Item, Readout, pad

ITEMS = [Item((11, 12, 13, 14), 3, 21, 22), Item((15, 16, 17), 2), Item((18, 19), 1, 23)]


@dataclass(frozen=True)
class LogitsOf(Readout):
    """The logits at each item's position: what is explained without a readout."""

    factor: float = 1.0

    def __call__(self, output, batch):
        return self.factor * output.logits[torch.arange(len(batch.positions)), batch.positions]


@pytest.mark.parametrize("rules", ["lrp", "attnlrp", {}], ids=["lrp", "attnlrp", "gradient"])
@pytest.mark.parametrize("family", ["causal:gpt2", "causal:llama"])
def test_the_logits_by_a_readout_are_the_logits(family, rules):
    model = tiny.build(family)
    plain, read = (
        run(model, pad(ITEMS, model, likeliest=5, readout=readout), rules, ["embedding"])
        for readout in (None, LogitsOf())
    )
    assert read.targets == plain.targets
    torch.testing.assert_close(torch.tensor(read.values), torch.tensor(plain.values))
    torch.testing.assert_close(torch.tensor(read.products), torch.tensor(plain.products))
    for ours, theirs in zip(*map(read_predictions, (read.predictions, plain.predictions)), strict=True):
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.target == pytest.approx(theirs.target)
    assert (plain.products != 0).any()


def test_readouts_are_told_apart_by_a_runner():
    """Also where one is compiled: another one must not be given what was kept of the first."""
    model = tiny.build("causal:llama", dtype=torch.float32)
    runner = PassRunner(model)
    batch = pad(ITEMS, model, readout=LogitsOf())
    specs = [runner._key(one, spec) for one, spec in _asked(batch)]
    assert len(set(specs)) == 3
    once, twice = (run(model, replace(batch, readout=LogitsOf(factor)), "lrp", runner=runner) for factor in (1.0, 2.0))
    torch.testing.assert_close(torch.tensor(twice.products), 2 * torch.tensor(once.products))


def _asked(batch):
    from lrpx.passes.spec import PassSpec

    for readout in (None, LogitsOf(), LogitsOf(2.0)):
        yield replace(batch, readout=readout), PassSpec("lrp", readout=readout)


def test_scores_that_are_not_finite_are_refused():
    model = tiny.build("causal:gpt2")
    with pytest.raises(NonFiniteError, match="are not finite"):
        run(model, pad(ITEMS, model, readout=LogitsOf(float("inf"))), "lrp")
