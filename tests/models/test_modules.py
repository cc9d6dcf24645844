"""What is read quickly off a configuration, over all that transformers has."""

import ast
import re
import warnings
from types import SimpleNamespace

import pytest
import tiny
from transformers import CONFIG_MAPPING

import lrpx
from lrpx.errors import InputError
from lrpx.models.modules import held, neuron_pattern, text_config
from lrpx.models.signature import _PLACEHOLDERS
from lrpx.passes import dispatch


def configurations():
    for name in CONFIG_MAPPING:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield CONFIG_MAPPING[name]()
            except Exception:  # it has no defaults, or needs another package
                continue


def found(ask):
    try:
        return ask()
    except (AttributeError, ValueError) as error:
        return str(error)


def test_quick_reading_finds_what_transformers_finds():
    count = 0
    for config in configurations():
        quick, usual = found(lambda: text_config(SimpleNamespace(config=config))), found(config.get_text_config)  # noqa: B023
        assert quick is usual or (isinstance(quick, str) and quick == usual), type(config).__name__
        for name in _PLACEHOLDERS - held(config, _PLACEHOLDERS):
            assert getattr(config, name, None) is None, (type(config).__name__, name)
        count += 1
    assert count > 200


@pytest.mark.parametrize(
    ("family", "pattern"),
    [
        ("causal:gpt2", "transformer.h.*.mlp.act"),
        ("causal:llama", "model.layers.*.mlp.up_proj"),
        ("masked:bert", "bert.encoder.layer.*.intermediate"),
    ],
)
def test_where_neurons_are(family, pattern):
    assert neuron_pattern(tiny.build(family)) == pattern


def test_neurons_are_looked_for_once(monkeypatch):
    looked = []
    monkeypatch.setattr(dispatch, "neuron_pattern", lambda model: looked.append(model) or "mlp")
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    assert [explainer([5, 6, 7]).provenance["neurons"] for _ in range(2)] == ["mlp", "mlp"]
    assert looked == [explainer.model]


@pytest.mark.parametrize("family", ["causal:gpt2", "causal:llama", "masked:bert"])
def test_the_error_about_neurons_names_modules_that_the_model_has(family):
    explainer = lrpx.Explainer(tiny.build(family))
    ids = [5, 6, 7]
    where = {"position": 1}
    with pytest.raises(InputError, match="no relevance of neurons") as raised:
        explainer(ids, target=20, **where).show("neurons")
    (advised,) = re.findall(r"at=(\[.*\])\)", str(raised.value))
    assert explainer(ids, target=20, at=ast.literal_eval(advised), **where).neurons(top=1)
