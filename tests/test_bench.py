"""Every benchmark runs at its smallest size and says what it promises. Nothing here looks at a time."""

import importlib
import json
import os
import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import tiny_tokenizers
import torch
from evaluation_tools import benchmark, gpt2
from transformers import GPT2Config, GPT2LMHeadModel

import lrpx
from lrpx.evaluation.condensed import find_condensed
from lrpx.text.batching import pad

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    """Runs a script as from the command line; returns its JSON and what it printed."""
    monkeypatch.syspath_prepend(str(BENCH))

    def run(script, *options):
        file = tmp_path / f"{script}.json"
        monkeypatch.setattr(sys, "argv", [script, *map(str, options), "--json", str(file)])
        runpy.run_path(str(BENCH / f"{script}.py"), run_name="__main__")
        return json.loads(file.read_text()), capsys.readouterr().out

    yield run
    sys.modules.pop("common", None)


def check_facts(found, script):
    assert found["script"] == script
    assert {"card", "torch", "transformers", "python", "lrpx", "float32_matmul_precision"} <= found[
        "environment"
    ].keys()
    assert found["arguments"]["device"] == "cpu"


def check_timing(figures, *, rounds):
    assert figures["count"] == rounds
    assert 0 < figures["lower_quartile_s"] <= figures["median_s"] <= figures["upper_quartile_s"]


@pytest.mark.parametrize("shape", ["llama-3.2-1b", "bert-base"])
def test_per_sample(bench, shape):
    found, printed = bench("per_sample", "--smoke", "--device", "cpu", "--shape", shape)
    check_facts(found, "per_sample")
    contenders = found["results"]["contenders"]
    assert list(contenders) == [
        "forward",
        *("lrpx eager", "lrpx fast", "lrpx fast TF32"),
        *("method fast", "method fast TF32"),
    ]
    for figures in contenders.values():
        check_timing(figures, rounds=6)
        assert len(figures["halves_s"]) == 2
        assert figures["warm_up_s"] > 0
        assert figures["peak_mib"] > 0
    assert found["results"]["ratios"].keys() == {f"{name} / forward" for name in contenders if name != "forward"}
    assert found["results"]["lengths"]["mean"] > 3
    assert printed.count("give --lxt PATH") == 2
    assert found["results"]["lxt"].keys() == {"efficient", "explicit"}
    assert found["results"]["not_as_in_the_paper"][1:] == [
        "random token ids instead of the benchmark's (--benchmark DIR)",
        "6 samples instead of the first 1,000",
        "LXT's explicit models were not timed",
    ]
    assert "Not as in the paper: the shape tiny" in printed


@pytest.mark.parametrize(("shape", "low", "high"), [("llama-3.2-1b", 1.54, 1.61), ("bert-base", 1.83, 1.98)])
def test_per_sample_says_whether_it_followed_the_paper(monkeypatch, capsys, shape, low, high):
    monkeypatch.syspath_prepend(str(BENCH))
    script = runpy.run_path(str(BENCH / "per_sample.py"), run_name="per_sample")
    args = Namespace(shape=shape, samples=1000)
    timed = {"explicit": {"median_s": 1.0, "count": 1000}}
    assert script["departures"](args, "the first 1000 of NAME", timed) == []
    timed["explicit"]["count"] = 200
    assert script["departures"](args, "the first 1000 of NAME", timed) == ["LXT explained only 200 of the samples"]
    figures = {"median_s": 0.1, "halves_s": [0.1], "warm_up_s": 1.0, "peak_mib": 1.0}
    facts = dict.fromkeys(("card", "threads", "torch", "transformers", "python", "lrpx"), "x")
    found = {
        "arguments": vars(args),
        "environment": facts,
        "results": {
            "contenders": {"forward": figures, "lrpx eager": figures},
            "lengths": {"mean": 10.0, "different": 5, "origin": "the first 1000 of NAME"},
            "lxt": {"explicit": {**figures, "transformers": "4.48.1"}},
            "speedups": {"lrpx eager over LXT explicit": 1.234},
            "graphs": 0,
            "spent_s": {"model": 1.0},
            "reserved_by_warm_up_mib": 0,
            "not_as_in_the_paper": [],
        },
    }
    script["show"](found)
    printed = capsys.readouterr().out
    assert "lrpx eager over LXT explicit: 1.23 times" in printed
    assert f"to be compared with lrpx eager: {low} to {high} times (V100, A100)" in printed
    assert "As in the paper: the first 1,000 samples; its row is lrpx eager." in printed
    sys.modules.pop("common", None)


def test_all(monkeypatch, tmp_path, capsys):
    """What fails, or does not end in time, is reported, and the others go on."""
    monkeypatch.syspath_prepend(str(BENCH))
    script = runpy.run_path(str(BENCH / "all.py"), run_name="all")
    rows, row = script["ROWS"], script["Row"]
    rows["fails"] = row("Section", "overhead --no-such-option", 300)
    rows["slow"] = row("Section", "overhead", 0.01)
    options = ["--smoke", "--device", "cpu", "--out", str(tmp_path / "out")]
    found = script["main"]([*options, "--only", "fails", "slow", "overhead-cpu"])
    assert found == json.loads((tmp_path / "out" / "all.json").read_text())
    fails, slow, done = found["rows"].values()
    assert fails["ended"] == "failed"
    assert "unrecognized arguments: --no-such-option" in fails["why"]
    assert slow["ended"] == "out of time"
    assert done["ended"] == "done"
    assert done["limit_s"] == rows["overhead-cpu"].limit
    check_facts(done["found"], "overhead")
    page = (tmp_path / "out" / "all.md").read_text()
    assert page in capsys.readouterr().out
    assert "| row " in page
    for name in ("torch", "transformers", "lrpx"):
        assert found["environment"][name] in page
    assert "## Section: slow\n\n`python bench/overhead.py --device cpu --smoke`\n\n**out of time**" in page
    assert "| explain, attnlrp " in page.split("## What the rules cost")[1]

    found = script["main"]([*options, "--only", "overhead-cpu", "--limit", "1e-9"])
    assert found["rows"]["overhead-cpu"]["why"] == "--limit 1e-09 minutes were over"
    for wrong in (["--limit", "0"], ["--only", "nothing"]):
        with pytest.raises(SystemExit):
            script["main"]([*options, *wrong])
    sys.modules.pop("common", None)


def test_all_names_scripts_and_options_that_there_are(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    script = runpy.run_path(str(BENCH / "all.py"), run_name="all")
    for row in script["ROWS"].values():
        page = (BENCH.parent / "docs" / row.page).read_text()
        name, *options = row.command.split()
        source = (BENCH / f"{name}.py").read_text() + (BENCH / "common.py").read_text()
        missing = [o for o in options if o.startswith("--") and f'"{o.replace("--no-", "--")}"' not in source]
        assert missing == []
        assert f"# {row.section}\n" in page
    sys.modules.pop("common", None)


def test_all_begins_with_what_matters_most_and_takes_no_longer_than_it_says(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    script = runpy.run_path(str(BENCH / "all.py"), run_name="all")
    rows = script["ROWS"]
    assert list(rows)[:5] == ["per-sample-llama", "per-sample-bert", "long-context", "dataset", "overhead"]
    on_one_card = [row for row in rows.values() if row.device == "cuda" and row.cards == 1]
    minutes = round(sum(row.limit for row in on_one_card) / 60)
    assert f"those of one GPU are {minutes} minutes together" in (BENCH.parent / "docs" / "performance.md").read_text()
    assert "on a GPU: about 20 minutes" in script["__doc__"]
    sys.modules.pop("common", None)


def test_all_hands_checkouts_on(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    script = runpy.run_path(str(BENCH / "all.py"), run_name="all")
    commands, main = [], script["main"]
    monkeypatch.setitem(main.__globals__, "ended", lambda command, *_: commands.append(command) or 1)
    options = ["--smoke", "--device", "cpu", "--out", str(tmp_path), "--flashtrace", "theirs", "--lxt", "other"]
    main([*options, "--only", "flashtrace", "dataset", "flow"])
    assert [("--flashtrace" in c, "--lxt" in c) for c in commands] == [(True, False), (False, True), (False, False)]
    sys.modules.pop("common", None)


def test_a_row_that_is_stopped_takes_its_processes_with_it(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    script = runpy.run_path(str(BENCH / "all.py"), run_name="all")
    sleep = [sys.executable, "-c", "import time; time.sleep(120)"]
    start = f"import subprocess; subprocess.Popen({sleep}); print('started', flush=True); import time; time.sleep(120)"
    reading, writing = os.pipe()
    with open(reading) as left, open(writing, "w") as printed:
        assert script["ended"]([sys.executable, "-c", start], printed, 3) is None
        printed.close()
        left.read()  # ends when nobody can write any more
    sys.modules.pop("common", None)


def test_overhead(bench):
    found, printed = bench("overhead", "--smoke", "--device", "cpu")
    check_facts(found, "overhead")
    names = ["forward", "Gradient x Input", "propagate, lrp", "propagate, attnlrp", "explain, lrp", "explain, attnlrp"]
    names += ["explain, lrp, heads=False", "explain, attnlrp, heads=False"]
    assert list(found["results"]["contenders"]) == names
    for figures in found["results"]["contenders"].values():
        check_timing(figures, rounds=4)
    assert found["results"]["over_gradient_x_input"]["Gradient x Input"] == 1
    assert printed.count("give --lxt PATH") == 1


def test_images(bench, monkeypatch):
    from compiled_tools import unfused

    pieces = unfused(monkeypatch)
    found, printed = bench("images", "--smoke", "--device", "cpu")
    check_facts(found, "images")
    for name, of in found["results"].items():
        assert name in printed
        for how in ("eager", "compiled"):
            check_timing(of[how], rounds=2)
        assert of["difference"] < 1e-5
    assert list(found["results"]) == ["ViT", "LLaVA"]
    assert pieces


def test_per_sample_takes_lengths_of_a_benchmark(bench, tmp_path):
    from lrpx.benchmark import tokenize

    folder = benchmark(tmp_path, 6)
    _, tokenizer = gpt2()
    lengths = [
        len(s.input_ids) for s in tokenize(folder, tokenizer, name="toy", input="causal", progress=False).samples
    ]
    options = ("--smoke", "--device", "cpu", "--benchmark", folder / "tokenized" / "toy")
    found, _ = bench("per_sample", *options)
    assert found["results"]["lengths"]["mean"] == pytest.approx(sum(lengths) / len(lengths))
    assert (
        found["results"]["lengths"]["origin"] == "lengths of the first 6 of toy"
    )  # its ids are too large for the tiny shape


def test_samples_of_a_benchmark_keep_their_ids(monkeypatch, tmp_path):
    from lrpx.benchmark import tokenize

    folder = benchmark(tmp_path, 6)
    made = tokenize(folder, gpt2()[1], name="toy", input="causal", progress=False).samples
    monkeypatch.syspath_prepend(str(BENCH))
    common = importlib.import_module("common")
    samples, origin = common.samples_of("narrow", 4, folder / "tokenized" / "toy")  # the shape has 500 ids
    assert origin == "the first 4 of toy"
    expected = [(s.input_ids, s.position, s.verb_id, s.other_id) for s in made[:4]]
    assert [(s.ids, s.position, s.target, s.contrast) for s in samples] == expected
    sys.modules.pop("common", None)


def test_dataset(bench):
    found, printed = bench("dataset", "--smoke", "--device", "cpu", "--rounds", 2, "--method")
    check_facts(found, "dataset")
    settings = found["results"]["settings"]
    assert list(settings) == ["TF32, 128 tokens per batch", "strict float32, 128 tokens per batch"]
    for name, rounds in zip(settings, (2, 1), strict=True):
        timed = settings[name]
        assert list(timed["contenders"]) == ["lrpx", "forward, explained row", "method", "forward, all logits"]
        for figures in timed["contenders"].values():
            assert len(figures["seconds"]) == rounds
            assert figures["samples_per_s"] == pytest.approx(40 / figures["median_s"])
        assert timed["ratios"].keys() == {f"lrpx / {name}" for name in timed["contenders"] if name != "lrpx"}
        assert 0 <= timed["padding"] <= 0.1
        assert timed["failed"] == {}
    assert printed.count("give --lxt PATH") == 2


def test_dataset_measures_the_batches_that_lrpx_makes(bench, monkeypatch):
    """The forward passes see the padded ids that ``lrpx.explain`` pads, each once."""
    explain, explained = importlib.import_module("lrpx.explainer.texts"), []
    monkeypatch.setattr(explain, "pad", lambda *args, **how: explained.append(pad(*args, **how)) or explained[-1])
    script = runpy.run_path(str(BENCH / "dataset.py"))
    common = sys.modules["common"]
    model = common.build("tiny", "cpu", torch.float32)
    samples, _ = common.samples_of("tiny", 12)
    script["explain"](lrpx.Explainer(model, batch_tokens=64), samples)
    batches = script["batches_of"](model, samples, 64)
    assert [b.inputs["input_ids"].tolist() for b in batches] == [b.inputs["input_ids"].tolist() for b in explained]
    for batch in batches:
        rows, all_rows = script["explained_row"](model, batch), script["all_logits"](model, batch)
        torch.testing.assert_close(rows, all_rows)


def test_long_context(bench):
    found, printed = bench("long_context", "--smoke", "--device", "cpu")
    check_facts(found, "long_context")
    ways = found["results"]["ways"]
    assert list(ways) == ["forward", "eager", "checkpointed", "default"]
    for figures in ways.values():
        check_timing(figures, rounds=2)
        assert len(figures["halves_s"]) == 2
        assert figures["first_s"] > 0
    assert ways["checkpointed"]["peak_mib"] < ways["eager"]["peak_mib"]
    assert "give --lxt PATH" in printed
    found, _ = bench("long_context", "--smoke", "--device", "cpu", "--checkpoint")
    assert list(found["results"]["ways"]) == ["forward", "checkpointed"]
    check_timing(found["results"]["ways"]["checkpointed"], rounds=1)


def test_alti_logit(bench):
    found, _ = bench("alti_logit", "--smoke", "--device", "cpu")
    check_facts(found, "alti_logit")
    assert [row["tokens"] for row in found["results"]["rows"]] == [8, 16]
    for row in found["results"]["rows"]:
        assert row["ratio"] == pytest.approx(row["ALTI-Logit ms"] / row["forward ms"])
        assert row["tensor MiB"] > row["ALTI-Logit MiB"] > 0


def test_evaluate(bench, tmp_path):
    model, tokenizer = gpt2(torch.float32)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options = ("--model", tmp_path / "model", "--smoke", "--device", "cpu")
    found, _ = bench("evaluate", benchmark(tmp_path, 10), *options)
    check_facts(found, "evaluate")
    results = found["results"]
    assert results["samples"] == 6
    assert results["median_s"].keys() == {
        *("forward, all logits", "forward, one logit row"),
        *("explain", "write", "evaluate"),
    }
    assert len(results["ratios"]) == 5
    assert results["bytes"] > 0
    assert results["same_bytes"]


def test_methods(bench, tmp_path):
    model, tokenizer = gpt2(torch.float32)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options = ("--model", tmp_path / "model", "--smoke", "--device", "cpu")
    found, printed = bench("methods", benchmark(tmp_path, 10), *options)
    check_facts(found, "methods")
    (results,) = found["results"].values()
    assert results["samples"] == 6
    contrast, single = results["questions"]["contrast"], results["questions"]["single"]
    usual = {*lrpx.METHODS, "gradient-l1", "gradient-l2"} - {"gradient"}
    assert contrast.keys() == usual - {
        "integrated-gradients",
        "smoothgrad",
        "occlusion",
        "leave-one-out",
        "random",
        "lime",
        "kernel-shap",
    }
    assert single.keys() == {"attnlrp", "lrp", "lrp-uniform-gate", "gradient-x-input", "alti-logit"}
    for summary in [*contrast.values(), *single.values()]:
        assert summary["samples"] == results["correct"] > 0
        assert all(0 <= share <= 1 for share in summary["shares"].values())
    assert abs(contrast["alti-logit"]["residual"]["median"]) < 1e-4
    assert "residual" not in contrast["gradient-l1"]
    assert 0 < results["chance"]["mrr"]["mean"] < 1
    assert "| alti-logit " in printed
    assert printed.count("| chance ") == 1


def test_results(bench, tmp_path):
    """A run for each step, condensed where it is asked for; a method that a model does not know is no reason to stop."""
    model, tokenizer = gpt2(torch.float32)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    options = ("--model", tmp_path / "tiny", "--smoke", "--device", "cpu", "--layers", 2, "--output", tmp_path / "runs")
    methods = ("--method", "lrp", "gradient", "random", "leave-one-out")
    found, _ = bench("results", benchmark(tmp_path, 10), *options, *methods, "--packed", tmp_path / "packed")
    check_facts(found, "results")
    steps = ["lrp", "gradient", "random", "embedding", "transformer.h.0", "transformer.h.1", "leave-one-out"]
    assert list(found["results"]) == [f"tiny/{step}" for step in steps]
    packed = find_condensed([tmp_path / "packed"])
    assert sorted(p.path.name for p in packed) == sorted(steps)
    places = {p.path.name: set(p.scores.column("at").to_pylist()) for p in packed}
    own = {"lrp": "input", "gradient": "input", "random": None, "leave-one-out": None}
    assert places == {step: {own.get(step, step)} for step in steps}
    with pytest.raises(SystemExit):  # no time left
        bench("results", tmp_path / "sva", *options, *methods, "--minutes", -1)


def test_methods_summarises_records(bench):
    """Shares, residual and metrics of two records worked out by hand."""
    script = runpy.run_path(str(BENCH / "methods.py"))
    metrics = {"pg2": 1.0, "mrr": 0.5, "rma": 0.25}
    records = [
        {"relevance": [1.0, -2.0, 1.0], "value": 2.0, "residual": 2.0, "position": 2, "ground_truth": [1], **metrics},
        {
            "relevance": [0.0, 0.0, -3.0],
            "value": -6.0,
            "residual": -3.0,
            "position": 2,
            "ground_truth": [0, 1],
            **metrics,
        },
    ]
    found = script["summary"](records)
    assert found["shares"] == {"first": 0.125, "explained": 0.625, "subject": 0.25}
    assert found["residual"] == pytest.approx({"median": 0.75, "low": 0.55, "high": 0.95})
    assert found["metrics"]["mrr"] == {"mean": 0.5}  # two have no interval
    assert script["rows_of"]({"lrp": found})[1] == [
        *("lrp", "1.00", "0.50", "0.25", "75%", "55% to 95%"),
        *("12%", "62%", "25%"),
    ]
    many = script["summary"](records * 5)
    assert many["metrics"]["mrr"] == {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert script["rows_of"]({"lrp": many})[1][1] == "1.00 ± 0.00"


def test_large(bench):
    pytest.importorskip("accelerate")
    found, _ = bench("large", "--smoke")
    check_facts(found, "large")
    assert list(found["results"]["methods"]) == ["attnlrp", "lrp", "alti-logit"]
    for method in found["results"]["methods"].values():
        check_timing(method["seconds"], rounds=3)
    lrp = found["results"]["methods"]["lrp"]
    assert abs(lrp["value"] - lrp["sum_of_parts"]) < 0.1 * lrp["sum_of_magnitudes"]  # bfloat16


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # its own use of what it deprecated
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # older releases of Ray
def test_scale(bench):
    pytest.importorskip("ray")
    found, _ = bench("scale", "--smoke", "--device", "cpu", "--local", "--workers", 1)
    check_facts(found, "scale")
    runs = found["results"]["runs"]
    assert list(runs) == ["in one process", "1 workers"]
    for figures in runs.values():
        assert figures["parts"] > 1
        assert figures["samples_per_s"] == pytest.approx(figures["timed_samples"] / figures["timed_s"])
        assert figures["ratio"] > 0
        assert figures["failed"] == 0
        assert figures["difference"] < 1e-5  # threads may add up in another order


def test_a_folder_that_is_no_checkout_is_said(bench, tmp_path):
    options = ("--smoke", "--device", "cpu", "--lxt", tmp_path, "--lxt-transformers", tmp_path)
    found, printed = bench("long_context", *options, "--ways", "forward")
    assert f"{tmp_path} is no checkout of LXT" in printed
    assert "skipped" in found["results"]["lxt"]["efficient"]


def test_what_a_process_of_its_own_says_comes_back(bench, tmp_path):
    """An LXT that cannot be imported is reported with its error, whichever implementation is asked for."""
    (tmp_path / "lxt").mkdir()
    (tmp_path / "lxt" / "__init__.py").write_text("raise ImportError('of another age')\n")
    found, printed = bench("long_context", "--smoke", "--device", "cpu", "--lxt", tmp_path, "--ways", "forward")
    assert found["results"]["lxt"]["efficient"]["unsupported"]
    assert "ImportError: of another age" in printed


def test_the_process_computes_what_lxt_is_asked_for(bench, tmp_path):
    """With an LXT that changes nothing, that is gradient times input at the embeddings, from the same weights."""
    (tmp_path / "lxt").mkdir()
    (tmp_path / "lxt" / "__init__.py").touch()
    (tmp_path / "lxt" / "efficient.py").write_text("def monkey_patch(module):\n    pass\n")
    common = importlib.import_module("common")
    samples, _ = common.samples_of("tiny", 3)
    model = common.build("tiny", "cpu", torch.float32)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    args = Namespace(lxt=tmp_path, lxt_older=None, lxt_transformers=None, device="cpu")
    more = {"weights": str(tmp_path / "weights.pt"), "relevance": 3, "rounds": 2}
    found = common.lxt(args, "efficient", "tiny", samples, "float32", **more)
    assert len(found["seconds"]) == 6
    for relevance, sample in zip(found["relevance"], samples, strict=True):
        options = {"target": sample.target, "contrast": sample.contrast, "at": "embedding"}
        ours = lrpx.explain(model, None, sample.ids, method="gradient-x-input", **options)
        torch.testing.assert_close(torch.tensor(relevance).double(), torch.tensor(ours.relevance), rtol=1e-4, atol=1e-9)


def test_lengths_are_those_of_the_paper():
    common = runpy.run_path(str(BENCH / "common.py"))
    for name, mean, deviation, median in [("CAUSAL_LENGTHS", 11, 7, 9), ("MASKED_LENGTHS", 30, 12, 28)]:
        drawn = sorted(common[name].draw(28629))
        found = sum(drawn) / len(drawn)
        assert found == pytest.approx(mean, abs=0.2)
        assert (sum((n - found) ** 2 for n in drawn) / len(drawn)) ** 0.5 == pytest.approx(deviation, abs=0.3)
        assert drawn[len(drawn) // 2] == median
        assert drawn[0] == common[name].least
        assert common[name].draw(5) == common[name].draw(5)
        assert common[name].draw(5) != common[name].draw(5, seed=1)


@pytest.mark.parametrize("work", ["sample", "batch", "long"])
def test_where_time_goes(bench, work, tmp_path):
    trace = tmp_path / "trace.json"
    found, printed = bench(
        "where_time_goes", "--smoke", "--device", "cpu", "--work", work, "--names", 1, "--trace", trace
    )
    check_facts(found, "where_time_goes")
    results = found["results"]
    kinds = results["kinds"]
    assert sum(kind["kernels"] for kind in kinds.values()) == results["kernels"]
    assert sum(kind["share"] for kind in kinds.values()) == pytest.approx(1)
    assert kinds["matrix products"]["longest"][0][0] in ("aten::mm", "aten::bmm", "aten::addmm")
    assert kinds["attention"]["kernels"] >= 2  # forward and backward
    assert "matrix products" in printed
    assert json.loads(trace.read_text())["traceEvents"]


def test_generation(bench):
    found, printed = bench("generation", "--smoke", "--device", "cpu")
    check_facts(found, "generation")
    results = found["results"]
    assert list(results["contenders"]) == [
        "one call per token",
        "generate",
        "one backward pass per token",
        "repeated rows",
        "a span of all",
        "one target",
    ]
    for figures in results["contenders"].values():
        check_timing(figures, rounds=1)
    assert results["difference"] < 1e-4
    assert "4 generated tokens on a prompt of 12" in printed
    assert "long" not in results
    found, printed = bench("generation", "--smoke", "--device", "cpu", "--long", 5000)
    assert list(found["results"]["long"]["contenders"]) == ["a span of all", "one target"]
    assert "A span of 24 tokens in a text of 48" in printed


def test_flow(bench):
    found, printed = bench("flow", "--smoke", "--device", "cpu")
    check_facts(found, "flow")
    results = found["results"]
    assert list(results["contenders"]) == [
        *("forward", "token relevance", "flow, share 0.9", "flow, everything", "flow, passes", "naive loop"),
    ]
    for figures in results["contenders"].values():
        check_timing(figures, rounds=1)
    assert results["difference"] < 1e-5
    assert results["kept"]["flow, everything"]["ways"] == {"diagonal": 2, "attention": 2}
    assert results["kept"]["flow, passes"]["ways"] == {"diagonal": 2, "passes": 2}
    assert "times faster than the loop" in printed


@pytest.fixture
def retrieval(tmp_path):
    """A model with a chat template, in a folder."""
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = tiny_tokenizers.CHAT
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=2048, n_embd=16, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_flashtrace(bench, retrieval):
    """Without a checkout, lrpx alone is measured."""
    found, printed = bench("flashtrace", "--smoke", "--device", "cpu", "--model", retrieval)
    check_facts(found, "flashtrace")
    assert "FlashTrace is left out: give --flashtrace PATH" in printed
    assert list(found["results"]["lengths"]) == ["4", "6"]
    for of_length in found["results"]["lengths"].values():
        methods = of_length["methods"]
        assert list(methods)[-1] == "chance"
        assert {"lrpx attnlrp", "lrpx lrp", "lrpx attnlrp, 1 hop"} <= methods.keys()
        assert 0 <= of_length["answered"] <= 2
        for name, row in methods.items():
            if name != "chance":
                check_timing(row["seconds"], rounds=2)
            for score in (row["recovery"], row["rise"]):
                first, second = score["each"]
                assert 0 <= first <= 1
                assert score["mean"] == pytest.approx((first + second) / 2)
                assert score["deviation"] == pytest.approx(abs(first - second) / 2**0.5)
    first, second = (of["tokens"] for of in found["results"]["lengths"].values())
    assert max(first) < min(second)


FLASHTRACE = """
import importlib.util

importlib.util.find_spec("wordfreq")  # as transformers asks for packages

class Trace:
    def __init__(self, scores):
        self.scores = scores

class FlashTrace:
    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer

    def trace(self, prompt, target, output_span, method, hops=0, reasoning_span=None):
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if "There and back again." in prompt:
            raise ValueError("too long")
        return Trace([float(i) for i in range(len(ids))])

def load_model_and_tokenizer(*args, **options):
    raise AssertionError("there are no weights to load")
"""


def test_flashtrace_runs_in_a_process_of_its_own(bench, tmp_path):
    """With random weights only the time is measured; what fails there is said, and the shorter prompts are kept."""
    (tmp_path / "flashtrace").mkdir()
    (tmp_path / "flashtrace" / "__init__.py").write_text(FLASHTRACE)
    found, printed = bench("flashtrace", "--smoke", "--device", "cpu", "--flashtrace", tmp_path)
    assert found["results"]["flashtrace"] == {"failed": "ValueError: too long"}
    assert "FlashTrace failed: ValueError: too long" in printed
    short, long = (list(of_length["methods"].items()) for of_length in found["results"]["lengths"].values())
    assert [name for name, _ in short[:2]] == ["FlashTrace, span", "FlashTrace, 1 hop"]
    assert short[2][0] == long[0][0] == "lrpx attnlrp"
    for name, row in (*short, *long):
        assert name != "chance"
        assert list(row) == ["seconds"]
        check_timing(row["seconds"], rounds=2)
