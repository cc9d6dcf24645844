"""Table 2 end to end, with tiny models in the place of the paper's."""

import shutil

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import lrpx
from lrpx.errors import InputError
from lrpx.evaluation.condensed import load_condensed
from lrpx.evaluation.records import open_run
from lrpx.files import read_json, write_json
from lrpx.models.provenance import versions
from lrpx.report.plan import plan
from lrpx.report.reproduce import reproduce

TERA = 1e12


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
    assert f"holds another run (lrpx {lrpx.__version__}, not 9.9): give another output folder" in step.missing


@pytest.mark.parametrize("call", [plan, reproduce])
@pytest.mark.parametrize(("option", "message"), [({"dtype": "float23"}, "float23"), ({"device": "tpux"}, "tpux")])
def test_a_dtype_or_device_that_is_none(folder, tmp_path, call, option, message):
    with pytest.raises(InputError, match=f"unknown d.* '{message}'"):
        call(tmp_path / "out", models=["gpt2"], benchmark=folder / "sva", **option)
    assert not (tmp_path / "out").exists()


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
                InputError, match=r"source.tsv.*subjects by mine, and .* Give another output, or benchmark="
            ) as error:
                call(tmp_path / "out", **options | changed)
            assert "Give another --output, or --benchmark" in error.value.in_command
    with pytest.raises(InputError, match=r"gone\.tsv is not a file"):
        plan(tmp_path / "out", **options | {"source": tmp_path / "gone.tsv"})
