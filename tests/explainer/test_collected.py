"""Errors about one of several, kept or named, and collections of garbage that are put off."""

import gc

import pytest
import tiny

import lrpx
from lrpx.errors import InputError
from lrpx.explainer.collected import NEVER, Collected, without_collections, without_full_collections


def several(*, collect):
    found = Collected()
    found.of, found.several, found.collect, found.failed = "text", True, collect, {}
    return found


def test_an_error_is_kept_or_says_which_it_is_about():
    kept = several(collect=True)
    with kept._trying(3):
        raise InputError("it is empty.")
    assert str(kept.failed[3]) == "it is empty."
    with pytest.raises(InputError, match=r"^text\[3\]: it is empty\.$"), several(collect=False)._trying(3):
        raise InputError("it is empty.")
    with pytest.raises(KeyError), kept._trying(4):  # a bug is no error of the user's
        raise KeyError("x")
    assert set(kept.failed) == {3}


def test_garbage_is_collected_again_afterwards_also_after_an_error():
    with without_collections():
        assert not gc.isenabled()
        with without_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(InputError), without_collections():
        raise InputError("it is empty.")
    assert gc.isenabled()


def test_only_full_collections_are_put_off_while_passes_run_and_thresholds_come_back_also_after_an_error():
    before = gc.get_threshold()
    with without_full_collections():
        assert gc.isenabled()
        assert gc.get_threshold() == (*before[:2], NEVER)
        with without_full_collections():  # also where it is another thread's
            pass
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == before
    with pytest.raises(InputError), without_full_collections():
        raise InputError("it is empty.")
    assert gc.get_threshold() == before


def test_explanations_know_their_place_among_all_texts_given():
    """Where a text could not be explained, and by several methods, the place in the sequence is another one."""
    explainer = lrpx.Explainer(tiny.build("causal:gpt2"))
    es = explainer([[5, 6, 7], [], [8, 9]], target=20, contrast=21, method=["lrp", "random"], errors="collect")
    assert [failure.index for failure in es.failures] == [1]
    assert [e.index for e in es] == [0, 0, 2, 2]
    frame = es.to_frame()
    assert dict(zip(frame["explanation"], frame["input"], strict=True)) == {0: 0, 1: 0, 2: 2, 3: 2}
    assert lrpx.faithfulness(explainer, es).to_frame()["text"].tolist() == [0, 0, 2, 2]
    assert [e.index for e in (lrpx.Explanation.from_dict(es[2].to_dict()), explainer([5, 6]))] == [2, None]


def test_texts_of_several_calls_are_counted_where_they_are_perturbed():
    explainer = lrpx.Explainer(tiny.build("causal:gpt2"))
    first, second = (explainer([ids], target=20, contrast=21)[0] for ids in ([5, 6, 7], [8, 9]))
    assert first.index == second.index == 0
    assert [one.text for one in lrpx.faithfulness(explainer, [first, second]).each] == [0, 1]
