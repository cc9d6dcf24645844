"""What is in the output folder: a benchmark by source and parser, a run by its model, how it is computed, and versions."""

import json

import pytest
from evaluation_tools import benchmark, made_up

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from lrpx.errors import InputError
from lrpx.files import read_json, write_json
from lrpx.models.provenance import versions
from lrpx.report.already_there import check_benchmark_there, run_differences


def test_a_benchmark_by_checksum_and_pipeline(tmp_path):
    """A copy of the source under another name is the same, and so is a pipeline given as a folder."""
    sva = benchmark(tmp_path, 4)
    copy = tmp_path / "copy.tsv"
    copy.write_bytes((tmp_path / "source.tsv").read_bytes())
    with pytest.raises(InputError, match=r"subjects by the file truth.tsv, and .* with en_mine is asked for"):
        check_benchmark_there(sva, copy, "en_mine")
    manifest = read_json(sva / "manifest.json")
    write_json(sva / "manifest.json", manifest | {"ground_truth": {"parser": {"name": "en_mine"}}})
    check_benchmark_there(sva, copy, "en_mine")
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "meta.json").write_text(json.dumps({"lang": "en", "name": "mine"}))
    check_benchmark_there(sva, copy, str(tmp_path / "pipeline"))
    with pytest.raises(InputError, match=r"\(another file\), subjects by en_mine, and lgd_dataset.tsv with en_mine"):
        check_benchmark_there(sva, None, "en_mine")


def test_a_run_by_its_manifest(tmp_path):
    device = "cpu"
    run = made_up(
        tmp_path / "run", ["lrp"], model={"device": device}, versions=versions(), options={"batch_tokens": 4096}
    )
    model, limit = run.manifest["model"], run.manifest["options"]["limit"]
    same = (model["name"], limit, model["dtype"], model["device"])
    assert run_differences(tmp_path / "nothing", *same) == []
    assert run_differences(run.path, *same) == []
    assert run_differences(run.path, model["name"], limit, "auto", model["device"]) == []
    there = "all" if limit is None else limit
    assert run_differences(run.path, "x", 5, *same[2:]) == [f"model {model['name']}, not x", f"samples {there}, not 5"]
    assert len(run_differences(run.path, *same[:2], "float16", model["device"])) == 1
    assert run_differences(run.path, *same, batch_tokens=7) == ["batch tokens 4096, not 7"]
    assert run_differences(run.path, *same, compile=True) == ["compile False, not True"]
    older = run.manifest["versions"] | {"torch": "1.0"}
    write_json(run.path / "manifest.json", run.manifest | {"versions": older})
    assert run_differences(run.path, *same) == [f"torch 1.0, not {versions()['torch']}"]
