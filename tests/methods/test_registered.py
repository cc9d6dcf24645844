"""A method of the user's own: registered by a decorator, and found by name everywhere."""

import numpy as np
import pytest
import tiny

import lrpx
from lrpx.methods import METHODS
from lrpx.text.batching import Attribution


@pytest.fixture
def own():
    known = dict(METHODS)

    @lrpx.register_method("place", source="nobody", measures="scores")
    def place(model, batch, *, power=1):
        """The place of a token, to a power."""
        sizes = [span.stop - span.start for span in batch.spans]
        return [
            Attribution(relevance=np.arange(n, dtype=float) ** power, value=1.0, residual=None, target=20)
            for n in sizes
        ]

    yield place
    METHODS.clear()
    METHODS.update(known)


def test_it_is_called_by_name_with_its_options(own):
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    first, second = explainer([[10, 11, 12], [10, 11]], method="place", power=2)
    assert first.relevance.tolist() == [0, 1, 4]
    assert second.relevance.tolist() == [0, 1]
    assert first.measures == "scores"
    assert METHODS["place"].summary == "The place of a token, to a power."
    with pytest.raises(lrpx.InputError, match="takes no option 'norm'"):
        explainer([10, 11], method="place", norm="l1")


def test_a_name_that_is_taken_is_refused(own):
    with pytest.raises(lrpx.InputError, match="there is a method 'lrp' already"):
        lrpx.register_method("lrp")(own)
    lrpx.register_method("place")(own)  # the same again, as when a notebook's cell is run twice


def test_a_function_that_cannot_be_called_is_refused():
    with pytest.raises(lrpx.InputError, match=r"a method takes \(model, batch\)"):
        lrpx.register_method("mine")(lambda model: [])
    with pytest.raises(lrpx.InputError, match="keyword-only with defaults"):
        lrpx.register_method("mine")(lambda model, batch, *, steps: [])
    assert "mine" not in METHODS


@pytest.mark.parametrize(
    ("returned", "given"),
    [
        (None, "returned NoneType"),
        ([], "returned a list of 0 items"),
        ([1], "returned a list of 1 item, one of them of type int"),
        (
            [Attribution(relevance=np.ones(2), value=1.0, residual=None, target=None)],
            "returned a list of 1 item, with target=None",
        ),
    ],
)
def test_what_is_no_list_of_attributions_is_refused(own, returned, given):
    lrpx.register_method("wrong")(lambda model, batch: returned)
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    with pytest.raises(
        lrpx.InputError, match=rf"the method 'wrong' {given}. Expected: a list of 1 item, one Attribution"
    ):
        explainer([10, 11], method="wrong")


def test_measures_that_there_are_not_are_refused():
    with pytest.raises(lrpx.InputError, match=r"measures='score' is unknown\. Did you mean 'scores'"):
        lrpx.register_method("mine", measures="score")
