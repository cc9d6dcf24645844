"""Table 2 end to end, with tiny models in the place of the paper's; and the plan."""

import shutil

import pytest
import torch
from evaluation_tools import benchmark, bert, gpt2

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import lrpx
from lrpx.errors import InputError
from lrpx.evaluation.condensed import load_condensed
from lrpx.evaluation.records import open_run
from lrpx.files import read_json, write_json
from lrpx.models.provenance import versions
from lrpx.report import reproduce as module
from lrpx.report.paper import MODELS
from lrpx.report.reproduce import Wanted, plan, plan_text, reproduce, wanted_models

TERA = 1e12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A benchmark and two models."""
    root = tmp_path_factory.mktemp("reproduce")
    benchmark(root, 12)
    for name, (model, tokenizer) in (("gpt2", gpt2(torch.float32)), ("bert", bert(torch.float32))):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


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


@pytest.mark.parametrize("call", [plan, reproduce])
@pytest.mark.parametrize("name", ["samples", "batch_tokens"])
def test_a_number_that_is_none(folder, tmp_path, call, name):
    with pytest.raises(InputError, match=f"{name}=0: give a whole number, 1 or more"):
        call(tmp_path / "out", models=["gpt2"], benchmark=folder / "sva", **{name: 0})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("call", [plan, reproduce])
def test_an_output_below_a_file(folder, call):
    with pytest.raises(InputError, match=r"source\.tsv is a file"):
        call(folder / "source.tsv" / "out", models=["gpt2"], benchmark=folder / "sva")


def test_end_to_end(folder, tmp_path, monkeypatch, caplog):
    """Two models are evaluated, the third cannot be had; the same call again computes nothing."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = [f"gpt2={folder / 'gpt2'}", f"llama-3.2-1b={tmp_path / 'nothing'}", f"bert-base-uncased={folder / 'bert'}"]
    options = {"models": names, "benchmark": folder / "sva", "samples": 6, "dtype": "float32", "progress": False}
    done = reproduce(tmp_path / "out", **options)
    assert list(done.missing) == ["Llama-3.2-1B"]
    assert "nothing" in done.missing["Llama-3.2-1B"]
    assert "Llama-3.2-1B is left out" in caplog.text
    text = done.comparison.read_text()
    assert "## GPT2-small\n\n**This is another model than the paper's GPT2-small: 2 layers (paper: 12); " in text
    assert f"Loaded from `{folder / 'gpt2'}`, computed on" in text
    assert f"GPT2-small from {folder / 'gpt2'} is another model than the paper's: 2 layers (paper: 12)" in caplog.text
    assert "## bert-base-uncased" in text
    assert "## Llama-3.2-1B\n\nNot evaluated" in text
    run = open_run(tmp_path / "out" / "runs" / "bert-base-uncased")
    assert run.manifest["methods"] == ["lrp", "attnlrp", "gradient-l1", "gradient-l2", "gradient-x-input"]
    assert run.manifest["options"]["limit"] == 6
    assert len(load_condensed(tmp_path / "out" / "records" / "gpt2").samples) == 6
    assert "<html" in (tmp_path / "out" / "report.html").read_text()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*.parquet")}
    again = reproduce(tmp_path / "out", **options)
    assert again.comparison.read_text() == text
    assert {path: path.stat().st_mtime_ns for path in before} == before
    same = {"models": names[:1], "benchmark": folder / "sva", "rate": lambda *_: TERA, "samples": 6, "dtype": "fp32"}
    assert (
        "## bert-base-uncased" in reproduce(tmp_path / "out", **options | {"models": names[:1]}).comparison.read_text()
    )
    assert "bert" in (tmp_path / "out" / "report.html").read_text()
    kept = done.comparison.read_text()
    assert list(reproduce(tmp_path / "out", **options | {"models": names[1:2]}).missing) == ["Llama-3.2-1B"]
    assert done.comparison.read_text() == kept
    (tmp_path / "out" / "records" / "bert-base-uncased" / "scores.parquet").write_bytes(b"damaged")
    assert "## bert" not in reproduce(tmp_path / "out", **options | {"models": names[:1]}).comparison.read_text()
    assert "bert-base-uncased, evaluated before, is left out" in caplog.text
    assert "## bert-base-uncased" in reproduce(tmp_path / "out", **options).comparison.read_text()
    _, step = plan(tmp_path / "out", **same)
    assert step.what.endswith("fp32: finished already")
    assert (step.missing, step.seconds, step.bytes) == ("", None, 0)
    _, step = plan(tmp_path / "out", **same | {"samples": None, "dtype": None, "models": ["gpt2=another"]})
    assert "finished" not in step.what
    assert "(model gpt2, not another; samples 6, not all; dtype float32, not float64): give another" in step.missing
    monkeypatch.setitem(versions.__globals__, "__version__", "9.9")
    _, step = plan(tmp_path / "out", **same)
    assert f"holds another run (lrpx {lrpx.__version__}, not 9.9): give another --output" in step.missing


@pytest.mark.parametrize("call", [plan, reproduce])
@pytest.mark.parametrize(("option", "message"), [({"dtype": "float23"}, "float23"), ({"device": "tpux"}, "tpux")])
def test_a_dtype_or_device_that_is_none(folder, tmp_path, call, option, message):
    with pytest.raises(InputError, match=f"unknown d.* '{message}'"):
        call(tmp_path / "out", models=["gpt2"], benchmark=folder / "sva", **option)
    assert not (tmp_path / "out").exists()


def test_the_plan(folder, tmp_path, monkeypatch):
    """What is done, how long it takes, and what is missing."""
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    given = {"benchmark": folder / "sva", "rate": lambda *_: TERA}
    small, large = plan(tmp_path / "out", models=[f"gpt2={folder / 'gpt2'},llama-3.2-3b"], **given)[1:]
    assert "28,602 samples, alti-logit, lrp, attnlrp, gradient, gradient-x-input, float64" in small.what
    assert (small.missing, small.bytes) == ("", 0)
    assert small.seconds == pytest.approx(6 * 124e6 * 28602 * 11 * 4 / TERA)
    assert "bfloat16" in large.what
    assert "gated on the Hub" in large.missing
    assert large.bytes == pytest.approx(6.43e9, rel=0.01)  # bfloat16
    text = plan_text([small, large])
    assert "(download about 6.4 GB, " in text
    assert "MISSING: it is gated on the Hub: ask for access there, and `hf auth login`" in text
    assert text.endswith("1 missing.")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "a token")
    assert not plan(tmp_path / "out", models=["llama-3.2-3b"], **given)[1].missing
    monkeypatch.undo()
    (step,) = plan(tmp_path / "out", models=[f"gpt2={tmp_path / 'nothing'}"], **given)[1:]
    assert (step.missing, step.bytes) == (f"{tmp_path / 'nothing'} does not exist", 0)


def test_a_model_of_another_architecture_is_refused(folder, tmp_path, monkeypatch):
    """It would be hours of work for figures that cannot be compared."""
    other = {"models": [f"bert-base-uncased={folder / 'gpt2'}"], "benchmark": folder / "sva"}
    (step,) = plan(tmp_path / "out", **other, rate=lambda *_: TERA)[1:]
    assert step.missing.endswith("is of the architecture gpt2, and bert-base-uncased is bert: give another place")
    assert "is of the architecture gpt2" in reproduce(tmp_path / "out", **other).missing["bert-base-uncased"]
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(folder / "gpt2" / "config.json"))
    (step,) = plan(
        tmp_path / "out", models=["bert-base-uncased=some/name"], benchmark=folder / "sva", rate=lambda *_: TERA
    )[1:]
    assert "some/name is of the architecture gpt2" in step.missing


def test_the_data_is_counted_among_what_is_downloaded(folder, tmp_path):
    steps = plan(tmp_path / "out", models=[f"gpt2={folder / 'gpt2'}"], rate=lambda *_: TERA)
    assert "In all: about 9 MB to download" in plan_text(steps)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lgd_dataset.tsv").write_text("")
    assert plan(tmp_path / "out", models=[f"gpt2={folder / 'gpt2'}"], rate=lambda *_: TERA)[0].bytes == 0


def test_what_the_benchmark_needs(tmp_path, monkeypatch):
    (step, *_) = plan(tmp_path / "out", models=["gpt2"], benchmark=tmp_path / "sva", rate=lambda *_: TERA)
    assert step.missing == "it is not there, or not finished"
    given = {"models": ["gpt2"], "parser": "no_such_pipeline", "source": tmp_path / "lgd.tsv", "rate": lambda *_: TERA}
    (step, *_) = plan(tmp_path / "out", **given)
    assert "subjects by no_such_pipeline" in step.what
    assert "lgd.tsv does not exist" in step.missing
    assert "no_such_pipeline" in step.missing or "spacy is not installed" in step.missing
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("usage", (), {"free": 10})())
    assert plan(tmp_path / "out", models=["gpt2-xl"], rate=lambda *_: TERA)[-1].what == "space on the disk"


def test_the_benchmark_is_built_where_none_is_given(folder, tmp_path, monkeypatch):
    """From the source and with the parser that are given; once."""
    seen = []

    def build(source, out, *, parser):
        seen.append((source, parser))
        shutil.copytree(folder / "sva", out)
        manifest = read_json(out / "manifest.json") | {"ground_truth": {"parser": {"name": parser}}}
        write_json(out / "manifest.json", manifest)

    monkeypatch.setattr("lrpx.benchmark.build", build)
    source = folder / "source.tsv"
    options = {"models": [f"gpt2={tmp_path / 'nothing'}"], "source": source, "parser": "mine"}
    for _ in range(2):
        assert list(reproduce(tmp_path / "out", **options).missing) == ["GPT2-small"]
    assert seen == [(source, "mine")]
    assert (
        "finished already"
        in plan(tmp_path / "out", **options | {"models": ["gpt2=gpt2"]}, rate=lambda *_: TERA)[0].what
    )
    (tmp_path / "other.tsv").write_text("other")
    for changed in ({"source": tmp_path / "other.tsv"}, {"parser": "yours"}, {"source": None}):
        for call in (plan, reproduce):
            with pytest.raises(
                InputError, match=r"source.tsv.*subjects by mine, and .*: give another --output, or --b"
            ):
                call(tmp_path / "out", **options | changed)
    with pytest.raises(InputError, match=r"gone\.tsv is not a file"):
        plan(tmp_path / "out", **options | {"source": tmp_path / "gone.tsv"})
