"""The plan of ``lrpx reproduce``: what is done, how long it takes, and what is missing."""

import shutil

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.report.plan import plan, plan_text

TERA = 1e12


def test_the_plan(folder, tmp_path, monkeypatch):
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
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("usage", (), {"free": 10})())
    assert plan(tmp_path / "out", models=["gpt2-xl"], rate=lambda *_: TERA)[-1].what == "space on the disk"
