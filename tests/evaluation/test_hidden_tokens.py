"""Measures of faithfulness of an evaluation's records: against ``lrpx.faithfulness`` of single texts, resumed, and failing."""

import dataclasses

import numpy as np
import pytest
import torch
from evaluation_tools import benchmark, bert, gpt2

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import lrpx
from lrpx.benchmark import load_benchmark
from lrpx.errors import InputError
from lrpx.evaluation import hidden_tokens, selection
from lrpx.evaluation.curves import NAMES
from lrpx.evaluation.hidden_tokens import faithfulness_metrics
from lrpx.evaluation.metrics import FEWEST
from lrpx.evaluation.ray_cluster import Cluster
from lrpx.evaluation.ray_engine import job_for
from lrpx.evaluation.ray_worker import Worker, block_of
from lrpx.evaluation.records import find_runs, open_run
from lrpx.evaluation.run import evaluate
from lrpx.evaluation.selection import plan
from lrpx.methods.options import methods_with_options
from lrpx.report import report, tables
from lrpx.report.results import method_label, results_of

METHODS = ["lrp", "random"]


@pytest.fixture(scope="module")
def sva(tmp_path_factory):
    return benchmark(tmp_path_factory.mktemp("benchmark"), count=12)


def run_of(sva, out, pair=None, metrics=("faithfulness",), **options):
    model, tokenizer = pair or gpt2()
    return evaluate(sva, model, METHODS, out, tokenizer=tokenizer, progress=False, metrics=metrics, **options)


@pytest.mark.parametrize("pair", [gpt2, bert])
def test_records_have_the_measures_of_single_texts(sva, tmp_path, pair):
    """Of the predicted form against the other, one text after the other and without padding."""
    model, _ = pair()
    run = run_of(sva, tmp_path / "run", pair())
    explainer = lrpx.Explainer(model)
    seen = set()
    for record in run.table().to_pylist():
        asked = {"position": record["position"], "target": record["predicted_id"], "contrast": record["other_id"]}
        e = explainer(record["token_ids"], method=record["method"], **asked)
        e = dataclasses.replace(
            e, relevance=np.array(record["relevance"])
        )  # also of ``random``, which saw the other direction
        (one,) = lrpx.faithfulness(explainer, [e]).each
        for name in NAMES:
            assert record[name] == pytest.approx(getattr(one, name), rel=1e-6, abs=1e-8), name
        seen.add(record["correct"])
    assert seen == {True, False}


def test_what_is_not_asked_for_is_not_computed(sva, tmp_path):
    whole = run_of(sva, tmp_path / "whole").table().to_pylist()
    for metrics in (["area_least"], ["sufficiency", "comprehensiveness"]):
        some = run_of(sva, tmp_path / metrics[0], metrics=metrics)
        assert sorted(some.manifest["options"]["metrics"]) == sorted(metrics)
        for row, expected in zip(some.table().to_pylist(), whole, strict=True):
            for name in NAMES:
                assert row[name] == (pytest.approx(expected[name], abs=1e-9) if name in metrics else None)
    none = run_of(sva, tmp_path / "none", metrics=())
    assert "metrics" not in none.manifest["options"]
    assert all(row[name] is None for row in none.table().to_pylist() for name in NAMES)


def test_a_stopped_run_goes_on_to_the_same_bytes(sva, tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "PART", 4)
    whole = run_of(sva, tmp_path / "whole")
    stopped = run_of(sva, tmp_path / "stopped")
    (stopped.path / "counts.json").unlink()
    stopped.part(1).unlink()
    again = run_of(sva, tmp_path / "stopped")
    assert len(whole.parts) > 2
    for number in range(len(whole.parts)):
        assert again.part(number).read_bytes() == whole.part(number).read_bytes()
    with pytest.raises(InputError, match="metrics"):
        run_of(sva, tmp_path / "stopped", metrics=["difference"])


def test_a_sample_that_cannot_be_measured_fails_alone(sva, tmp_path, monkeypatch):
    real = hidden_tokens.values_without
    (tokenised,) = (each for each in load_benchmark(sva).tokenized.values() if each.input == "causal")
    longest = max(len(sample.input_ids) for sample in tokenised.samples)

    def fails(model, batch, *rest):
        if batch.shape[1] == longest:
            raise lrpx.NonFiniteError("too long")
        return real(model, batch, *rest)

    monkeypatch.setattr(hidden_tokens, "values_without", fails)
    run = run_of(sva, tmp_path / "run")
    for record in run.table().to_pylist():
        failed = len(record["token_ids"]) == longest
        assert (record["error"] == "faithfulness: NonFiniteError: too long") == failed
        assert (record["relevance"] is None) == failed
        assert all((record[name] is None) == failed for name in (*NAMES, "mrr"))
    assert 0 < run.failed < 12


def test_a_metric_that_is_none(sva, tmp_path):
    with pytest.raises(InputError, match="Did you mean 'area_most'"):
        run_of(sva, tmp_path / "run", metrics=["area"])
    assert not (tmp_path / "run").exists()


def test_the_report_has_a_table_of_its_own(tmp_path):
    run_of(benchmark(tmp_path / "benchmark", count=24), tmp_path / "run")
    (result,) = results_of(find_runs([tmp_path / "run"]))
    rows = [row for row in open_run(tmp_path / "run").table().to_pylist() if row["correct"]]
    for method, scored in result.methods.items():
        for name in NAMES:
            own = [row[name] for row in rows if row["method"] == method]
            assert scored.measures[name].mean == pytest.approx(np.mean(own))
            assert len(own) >= FEWEST
            assert scored.measures[name].low <= scored.measures[name].mean <= scored.measures[name].high
    table = tables.faithfulness_table([result])
    assert [name for name, _ in table.rows] == [method_label(method) for method in METHODS]
    assert table.groups[0][1] == ["area, most first", "area, least first", *NAMES[2:]]
    for column, name in enumerate(NAMES):  # the better one is marked: where low is better, the lower one
        means = {method: result.methods[method].measures[name].mean for method in METHODS}
        best = (min if name in ("area_least", "sufficiency") else max)(means, key=means.get)
        assert [cells[0][column].rank for _, cells in table.rows] == [1 if m == best else 2 for m in METHODS]
    for format in ("terminal", "markdown", "latex", "html"):
        assert "omprehensiveness" in report([tmp_path / "run"], format=format)
    assert "comprehensiveness" in report([tmp_path / "run"], format="csv")


def test_a_worker_gives_the_same_records(sva, tmp_path):
    """What Ray hands to a worker is enough for it; ``test_ray_engine.py`` runs workers."""
    for part in gpt2():
        part.save_pretrained(tmp_path / "tiny")
    loading = {"dtype": "float32", "device": "cpu"}
    local = evaluate(
        sva, tmp_path / "tiny", METHODS, tmp_path / "run", progress=False, metrics=["difference"], **loading
    )
    model = lrpx.load(tmp_path / "tiny", **loading).model
    options = methods_with_options(METHODS, {})
    methods = [dataclasses.replace(method, options=given) for method, given in options]
    job = job_for(
        Cluster("cpu", 1, torch.get_num_threads()),
        tmp_path / "tiny",
        loading,
        model,
        methods,
        {},
        metrics=["difference"],
        proven=False,
    )
    (tokenised,) = (each for each in load_benchmark(sva).tokenized.values() if each.input == "causal")
    (part,) = plan(tokenised.samples, 4096, 0.1)
    row = {sample.sample_id: n for n, sample in enumerate(tokenised.samples)}
    table = tokenised.table.take([row[s.sample_id] for batch in part for s in batch])
    (result,) = Worker(job, lambda number: 1)(block_of(0, part, table)).to_pylist()
    assert result["error"] is None
    assert result["content"] == local.part(0).read_bytes()


def test_a_metric_that_is_none_is_named():
    with pytest.raises(
        InputError, match=r"metric='differnce' is unknown. Did you mean 'difference'.* PG2, .* are always there"
    ):
        faithfulness_metrics(["differnce"])
