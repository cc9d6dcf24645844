"""Our figures beside the paper's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from evaluation_tools import made_up

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.evaluation.packing import pack
from lrpx.evaluation.records import METRICS
from lrpx.report import against_paper
from lrpx.report.against_paper import Beside, EvaluatedModel, beside, comparison, standard_error
from lrpx.report.paper import MODELS, twin

METHODS = ["alti-logit", "lrp", "attnlrp", "gradient-l1", "gradient-l2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("runs") / "gpt2", METHODS, samples=200)


@pytest.fixture(scope="module")
def packed(run, tmp_path_factory):
    return pack(run, tmp_path_factory.mktemp("packed") / "gpt2")


def test_the_standard_error_is_that_of_a_mean():
    values = np.random.default_rng(0).random(400)
    assert standard_error(values) == pytest.approx(values.std() / 20, rel=0.1)
    assert standard_error(np.ones(6)) == 0
    assert np.isnan(standard_error(np.ones(5)))


def test_every_figure_of_the_paper_has_ours(run, packed):
    model = twin("gpt2")
    rows = beside(model, packed)
    assert [(r.method, r.metric) for r in rows] == [
        ("", "accuracy"),
        *((method, metric) for method in ("alti-logit", "lrp", "attnlrp", "gradient") for metric in METRICS),
    ]  # not Gradient x Input, which was not run
    chosen = [r for r in run.table().to_pylist() if r["correct"]]
    for row in rows[1:]:
        if row.method != "gradient":
            values = [r[row.metric] for r in chosen if r["method"] == row.method]
            assert row.ours == pytest.approx(np.mean(values), abs=5e-5)
            assert row.error == pytest.approx(np.std(values) / np.sqrt(len(values)), rel=0.1)
            assert row.paper == model.scores[row.method][METRICS.index(row.metric)]
    assert rows[0].ours == pytest.approx(len(chosen) / len(METHODS) / 200)
    assert rows[0].paper == 0.919


def test_standard_errors():
    assert Beside("", "lrp", "mrr", 0.7, 0.05, 0.6).errors == pytest.approx(2)
    assert Beside("", "lrp", "mrr", 0.7, 0.0, 0.6).errors == np.inf
    assert np.isnan(Beside("", "lrp", "mrr", 0.6, 0.0, 0.6).errors)


def test_the_comparison(run, packed):
    model = twin("gpt2")
    text = comparison([EvaluatedModel(model, "a/path", run, packed)], {"Llama-3.2-1B": "it is gated."})
    rows = beside(model, packed)
    far = sum(abs(row.errors) > 2 for row in rows)
    assert f"{far} of {len(rows)} figures differ by more than two standard errors." in text
    assert "Not as in the paper: computed in float32 (paper: float64)" in text
    assert "## Llama-3.2-1B\n\nNot evaluated: it is gated." in text
    assert text.count("\n| ") == 1 + len(rows)
    assert f"| LRP, MRR | {next(r.ours for r in rows if (r.method, r.metric) == ('lrp', 'mrr')):.3f} |" in text


def test_a_model_of_another_size_is_named(run, packed):
    """A path under the name of a model of the paper can hold anything."""
    paper = twin("gpt2")
    sizes = {"layers": 12, "width": 768, "parameters": 124_439_808}
    same = replace(run, manifest={**run.manifest, "model": {**run.manifest["model"], **sizes}})
    text = comparison([EvaluatedModel(paper, "my/gpt2", same, packed)], {})
    assert "Loaded from `my/gpt2`, computed on" in text
    assert "another model" not in text
    small = {"layers": 8, "width": 40, "parameters": 123_456}
    other = replace(run, manifest={**run.manifest, "model": {**run.manifest["model"], **small}})
    text = comparison([EvaluatedModel(paper, "my/gpt2", other, packed)], {})
    expected = "8 layers (paper: 12); 40 wide (paper: 768); 123,456 parameters (paper: 124M)"
    assert f"**This is another model than the paper's GPT2-small: {expected}. Its figures cannot be compared" in text


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_what_is_downloaded_is_as_large_as_the_model(model):
    """Beside the models of transformers, without memory; the Llamas are in bfloat16, and GPT-2's files hold its masks."""
    shape = {"hidden_size": model.width, "num_hidden_layers": model.layers, "num_attention_heads": model.heads}
    more, each = 0, 4
    if "Llama" in model.hub:
        mlp = {"intermediate_size": 8192, "num_key_value_heads": 8, "tie_word_embeddings": True}
        made, each = transformers.LlamaForCausalLM, 2
        config = transformers.LlamaConfig(vocab_size=model.vocabulary, **shape, **mlp)
    elif "gpt2" in model.hub:
        made, more = transformers.GPT2LMHeadModel, model.layers * 1024**2
        config = transformers.GPT2Config(**shape)
    else:
        made, config = transformers.BertForMaskedLM, transformers.BertConfig(intermediate_size=4 * model.width, **shape)
    with torch.device("meta"):
        weights = dict(made(config).named_parameters())
    tied = ("lm_head.", "cls.predictions.decoder.")  # is the word embedding; transformers 5.0 does not tie it here
    count = sum(weight.numel() for name, weight in weights.items() if not name.startswith(tied))
    assert model.download == pytest.approx(each * (count + more), rel=0.01)


def test_a_difference_that_rounds_to_zero_has_no_minus():
    row = against_paper.Beside("gpt2", "lrp", "mrr", 0.6999, 0.01, 0.7)
    assert "| +0.000 |" in against_paper._table([row])
