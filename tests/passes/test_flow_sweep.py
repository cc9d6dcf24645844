"""Every family that can be built tiny: its flow holds in every way of computing it, or is refused by name."""

import numpy as np
import pytest
import tiny
from support import families, runner_of
from swept import ENCODER_DECODER

from lrpx.errors import LrpxError, UnsupportedModelError
from lrpx.passes.attribution import run
from lrpx.passes.flow import Keep, flow_of
from lrpx.passes.spec import PassSpec
from lrpx.text.batching import Item, pad

LISTS = "parts of its blocks are in several lists"
REFUSED = {  # whose token relevance is explained, but not the flow: why
    "causal:hrm_text": LISTS,
    "causal:xlm": LISTS,
    "masked:xlm": LISTS,
    "masked:flaubert": LISTS,
    "masked:longformer": "does not take and return a hidden state",  # it pads texts to whole windows
    "masked:squeezebert": "no module list of blocks was seen",
}
AROUND = {  # which have ways around the residual stream
    *("causal:dory", "causal:gemma3n_text", "causal:gemma4", "causal:gemma4_text", "causal:zaya", "masked:neomme"),
    *("causal:inkling2_loop_text", "causal:inkling2_text", "causal:zamba", "causal:zamba2"),
}


def matrix(found, step):
    whole = np.zeros((found.relevance.shape[1],) * 2)
    whole[step.edges[:, 0], step.edges[:, 1]] = step.relevance
    return whole


# An encoder and a decoder, with a text each, are refused where a flow is asked for (``explainer/flow.py``).
@families([family for family in tiny.FAMILIES if family not in ENCODER_DECODER])
def test_a_flow_holds_or_is_refused(family):
    model = tiny.build(family)
    ids = tiny.inputs(model, n_tokens=6)["input_ids"][0].tolist()
    batch = pad([Item(tuple(ids), 4, 5)], model)
    for at in ("input", "embedding"):
        try:
            expected, error = run(model, batch, "attnlrp", (at,), runner=runner_of(model)), None
            break
        except LrpxError as raised:
            error = raised
    spec = PassSpec("attnlrp", (at,))
    if family in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[family]):
            flow_of(runner_of(model), batch, spec, Keep(1.0))
        return
    if error is not None:
        with pytest.raises(LrpxError):
            flow_of(runner_of(model), batch, spec, Keep(1.0))
        return
    found = slow = flow_of(runner_of(model), batch, spec, Keep(1.0))
    if any(step.way == "attention" for step in found.steps):
        slow = flow_of(runner_of(model), batch, spec, Keep(1.0), explicit=False)
    np.testing.assert_allclose(found.relevance[0], expected.products[0], rtol=1e-12, atol=1e-12)
    scale = np.abs(found.relevance).max()
    for step, other in zip(found.steps, slow.steps, strict=True):
        rows = matrix(found, step)
        np.testing.assert_allclose(rows, matrix(slow, other), rtol=0, atol=1e-6 * scale)
        assert abs(found.relevance[step.lower].sum() - rows.sum() - step.around) < 1e-5 * scale
        if family not in AROUND:
            np.testing.assert_allclose(rows.sum(0), found.relevance[step.lower], rtol=0, atol=1e-6 * scale)
    assert any("ways around" in note for note in found.notes) == (family in AROUND)
    assert len(found.places) > 2


def test_the_lists_name_families_that_there_are():
    known = set(tiny.FAMILIES) | set(tiny.SKIPPED)
    old = {"causal:hrm_text", *AROUND}  # newer than the lowest version of transformers
    assert REFUSED.keys() <= known | old
