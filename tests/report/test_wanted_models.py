"""The models of the paper by name."""

import pytest

from lrpx.errors import InputError
from lrpx.report.paper import MODELS
from lrpx.report.wanted_models import Wanted, wanted_models


def test_models_by_name():
    assert [(w.paper, w.source) for w in wanted_models(None)] == [(model, model.hub) for model in MODELS]
    assert {"openai-community/gpt2-xl", "meta-llama/Llama-3.2-3B"} <= {model.hub for model in MODELS}
    assert wanted_models(["gpt2-xl,llama-3.2-1b=a/b"]) == [Wanted(MODELS[3], MODELS[3].hub), Wanted(MODELS[4], "a/b")]
    for model in MODELS:
        assert wanted_models([model.hub])[0].paper is model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("gpt3", "Did you mean 'gpt2'"),
        ("gpt2=", "give a model of the paper, or NAME=PATH"),
        ("gpt2,openai-community/gpt2", "GPT2-small is named twice"),
    ],
)
def test_names_that_are_none(given, message):
    with pytest.raises(InputError, match=message):
        wanted_models([given])
