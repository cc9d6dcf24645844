"""What may be said of how passes are run."""

import numpy as np
import pytest

from lrpx.errors import InputError
from lrpx.passes.execution import DEFAULT, Execution


@pytest.mark.parametrize("name", ["fast", "compile", "checkpoint"])
@pytest.mark.parametrize("value", [1, 0, "yes", "", 1.0, np.True_, [True]])
def test_options_that_are_neither_true_nor_false_are_refused(name, value):
    with pytest.raises(InputError, match=rf"^{name}=.*: give True or False\."):
        Execution(**{name: value})


def test_none_lets_choose_where_there_is_a_choice():
    assert Execution(fast=None, checkpoint=None) == DEFAULT == Execution(None, False, None)
    with pytest.raises(InputError, match="compile=None"):
        Execution(compile=None)
    for fast in (True, False, None):
        for checkpoint in (True, False, None):
            assert Execution(fast, True, checkpoint).checkpoint is checkpoint
