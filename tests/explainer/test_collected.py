"""Errors about one of several, kept or named, and collections of garbage that are put off."""

import gc

import pytest

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
