"""Evaluation: records against explanations made one by one, resuming after any stop, memory, failures, bad input."""

import copy
import dataclasses
import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_tools import byte_bpe
from evaluation_tools import benchmark, bert, gpt2
from support import fingerprint, slow_but
from tiny_classifiers import SENTIMENT, classifier
from tiny_classifiers import tokenizer as tiny_classifiers_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import lrpx
from lrpx import files
from lrpx.benchmark import build_haystack, load_benchmark, tokenize
from lrpx.benchmark.haystack import FILLER
from lrpx.errors import InputError, LrpxError, NonFiniteError, UnsupportedModelError
from lrpx.evaluation import asked, selection
from lrpx.evaluation import run as module
from lrpx.evaluation import scoring as explaining
from lrpx.evaluation.metrics import score
from lrpx.evaluation.records import METRICS, find_runs, open_run
from lrpx.evaluation.run import evaluate, evaluate_all
from lrpx.evaluation.scoring import BatchExplainer, sources
from lrpx.evaluation.selection import plan, select
from lrpx.methods import METHODS, Method
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution
from lrpx.propagation import rules
from lrpx.propagation.rulesets import RULESETS
from lrpx.text.batching import Attribution

ALL = ["lrp", "attnlrp", "lrp-uniform-gate", "gradient", "gradient-x-input", "alti-logit", "alti"]


@pytest.fixture(scope="module")
def sva(tmp_path_factory):
    """A benchmark of 40 sentences, tokenised for both models."""
    folder = benchmark(tmp_path_factory.mktemp("benchmark"))
    for model, tokenizer in (gpt2(), bert()):
        evaluate(
            folder, model, ["gradient"], folder.parent / model.config.model_type, tokenizer=tokenizer, progress=False
        )
    return folder


def run_of(sva, out, methods=("lrp", "gradient"), pair=None, **options):
    model, tokenizer = pair or gpt2()
    return evaluate(sva, model, list(methods), out, tokenizer=tokenizer, progress=False, **options)


def chosen(names):
    return [METHODS[name] for name in names]


def rows(run):
    return run.table().to_pylist()


def contents(out):
    return {path.name: path.read_bytes() for path in sorted((Path(out) / "records").iterdir())}


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(selection, "PART", 10)


@pytest.fixture
def register(monkeypatch):
    """Give ``METHODS`` a method of one's own: a function of the model and the batch."""

    def add(name, function):
        made = type(sys)(f"test_{name}")
        made.explain = function
        monkeypatch.setitem(sys.modules, f"lrpx.methods.{name}", made)
        monkeypatch.setitem(METHODS, name, Method(name, "", "", f"{name}:explain"))

    return add


def values_of(model, batch):
    logits, index = explaining.explained_logits(model, batch)
    n = torch.arange(len(index))
    picked = logits[n, index].detach()
    return (picked[n, batch.targets] - picked[n, batch.contrasts]).tolist()


def even(model, batch):
    """Relevance 0, 1, 2, ... times the value."""
    return [
        Attribution(relevance=np.arange(s.stop - s.start) * v, value=v, residual=0.0, target=int(t))
        for s, v, t in zip(batch.spans, values_of(model, batch), batch.targets, strict=True)
    ]


# How it is computed


@pytest.fixture
def passes(monkeypatch):
    """Notes how each pass is to be run; runs it as usual."""
    seen = []
    real = PassRunner.run

    def noting(self, batch, spec):
        seen.append(self.execution)
        return real(PassRunner(self.model), batch, spec)

    monkeypatch.setattr(PassRunner, "run", noting)
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fast": True},
        {"fast": False},
        {"compile": True},
        {"checkpoint": True},
        {"checkpoint": False},
    ],
)
def test_speed_and_memory_options_reach_every_pass(sva, tmp_path, passes, options):
    run = run_of(sva, tmp_path / "run", ALL, limit=6, **options)
    assert run.failed == 0
    assert len(passes) >= 4  # three kinds of LRP, one plain gradient
    assert set(passes) == {Execution(**options)}


@pytest.mark.parametrize("name", ["compile", "tf32"])
def test_what_changes_digits_belongs_to_the_run(sva, tmp_path, passes, name):
    before = torch.get_float32_matmul_precision()

    def run(folder, changed):
        torch.set_float32_matmul_precision("high" if changed and name == "tf32" else before)
        try:
            return run_of(sva, tmp_path / folder, limit=6, **({name: True} if changed and name == "compile" else {}))
        finally:
            torch.set_float32_matmul_precision(before)

    assert run("run", True).manifest["options"][name] is True
    assert run("run", True).finished
    with pytest.raises(InputError, match=f"{name} is True there and not given now"):
        run("run", False)
    assert not {"fast", "compile", "checkpoint", "tf32"} & set(run("plain", False).manifest["options"])
    with pytest.raises(InputError, match=f"{name} is not given there and True now"):
        run("plain", True)


def test_options_that_change_none_do_not(sva, tmp_path, small_parts, monkeypatch):
    """A run goes on with another one, to the same bytes."""
    run_of(sva, tmp_path / "whole", batch_tokens=30)
    real = module.write_part
    monkeypatch.setattr(module, "write_part", lambda this, n, records: real(this, n, records) if n < 1 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_of(sva, tmp_path / "run", batch_tokens=30, checkpoint=True)
    monkeypatch.setattr(module, "write_part", real)
    run_of(sva, tmp_path / "run", batch_tokens=30, fast=False)
    assert len(contents(tmp_path / "run")) > 1
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


# What is recorded


@pytest.mark.slow
@pytest.mark.parametrize("pair", [gpt2, bert], ids=["causal", "masked"])
def test_records_are_the_explanations_of_the_predicted_form(sva, tmp_path, pair):
    """One by one, with the prediction made first: the definition."""
    model, _ = pair()
    methods = [*ALL, "occlusion"]
    run = run_of(sva, tmp_path / "run", methods, pair())
    names = [n for m in methods for n in (("gradient-l1", "gradient-l2") if m == "gradient" else (m,))]
    assert sorted(run.manifest["methods"]) == sorted(names)
    found = rows(run)
    assert len(found) == 40 * len(names)
    assert {(r["sample_id"], r["method"]) for r in found} == {(n, m) for n in range(40) for m in names}
    samples = {
        s.sample_id: s
        for s in next(
            t for t in load_benchmark(sva).tokenized.values() if t.input == ("masked" if pair is bert else "causal")
        ).samples
    }
    outcomes = set()
    for r in found:
        s = samples[r["sample_id"]]
        ids = torch.tensor([s.input_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, s.position]
        correct = bool(logits[s.verb_id] > logits[s.other_id])
        outcomes.add(correct)
        target, contrast = (s.verb_id, s.other_id) if correct else (s.other_id, s.verb_id)
        assert r["correct"] == correct
        assert (r["predicted"], r["other"]) == ((s.verb, s.other) if correct else (s.other, s.verb))
        assert (r["predicted_id"], r["other_id"]) == (target, contrast)
        name, _, norm = r["method"].partition("-l")
        method, options = (
            ("gradient", {"norm": f"l{norm}"}) if norm in ("1", "2") and name == "gradient" else (r["method"], {})
        )
        e = lrpx.explain(
            model,
            None,
            list(s.input_ids),
            target=target,
            contrast=contrast,
            position=s.position,
            method=method,
            **options,
        )
        np.testing.assert_allclose(r["relevance"], e.relevance, rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(r["value"], e.value, rtol=1e-8)
        assert r["value"] > 0
        assert (r["residual"] is None) == (e.residual is None)
        assert (r["tokens"], r["token_ids"], r["roles"]) == (s.tokens, s.input_ids, s.roles)
        assert (r["ground_truth"], r["position"], r["error"]) == (s.ground_truth, s.position, None)
    assert outcomes == {True, False}  # both signs were there


def test_the_other_direction_is_the_negative_exactly(sva, tmp_path):
    """What allows one pass: exchanging target and contrast changes the sign of relevance, bit for bit."""
    model, _ = gpt2(torch.float32)
    samples = load_benchmark(sva).tokenized["GPT2LMHeadModel"].samples[:8]
    swapped = [
        dataclasses.replace(s, verb_id=s.other_id, other_id=s.verb_id, verb=s.other, other=s.verb) for s in samples
    ]
    explain = BatchExplainer(model, sources(chosen([*ALL, "occlusion"]), PassRunner(model)))
    for a, b in zip(explain(samples), explain(swapped), strict=True):
        assert a.correct != b.correct
        assert a.predicted_id == b.predicted_id  # the same prediction, so the same explanation
        np.testing.assert_array_equal(a.relevance, b.relevance)
        assert a.value == b.value


def test_scores_are_those_of_the_metrics(sva, tmp_path):
    for r in rows(run_of(sva, tmp_path / "run", ["attnlrp", "gradient-x-input"])):
        expected = score([r["relevance"]], [r["ground_truth"]]).to_dict()
        assert {name: r[name] for name in METRICS} == {
            name: pytest.approx(float(expected[name][0])) for name in METRICS
        }


def test_equal_logits_are_not_a_correct_prediction(sva):
    model, _ = gpt2(seed=1)
    samples = load_benchmark(sva).tokenized["GPT2LMHeadModel"].samples[:4]
    with torch.no_grad():
        for s in samples:
            model.lm_head.weight[[s.verb_id, s.other_id]] = 0  # equal rows may give logits that differ by rounding
    for record in BatchExplainer(model, sources(chosen(["lrp", "gradient"]), PassRunner(model)))(samples):
        assert record.value == 0
        assert record.correct is False
        assert record.error is None
        assert not record.relevance.any()


@pytest.mark.parametrize("pair", slow_but([gpt2, bert], gpt2))
def test_relevance_at_the_embedding(sva, tmp_path, pair):
    """Other numbers than at the input where positions are added, and each record says which they are."""
    model, _ = pair()
    one = {at: rows(run_of(sva, tmp_path / at, ALL, pair(), limit=6, at=at)) for at in ("input", "embedding")}
    for there, r in zip(one["input"], one["embedding"], strict=True):
        name, _, norm = r["method"].partition("-l")
        options = {"norm": f"l{norm}"} if name == "gradient" and norm in ("1", "2") else {}
        method = name if options else r["method"]
        if "at" not in METHODS[method].options:
            assert (there["at"], r["at"]) == (None, None)
            assert there == r
            continue
        assert (there["at"], r["at"]) == ("input", "embedding")
        same = r["method"].startswith("gradient-l") and pair is gpt2  # adding positions does not change a gradient
        assert np.allclose(there["relevance"], r["relevance"], rtol=1e-3) == same
        asked = {"target": r["predicted_id"], "contrast": r["other_id"], "position": r["position"], "method": method}
        e = lrpx.explain(model, None, r["token_ids"], at="embedding", **asked, **options)
        np.testing.assert_allclose(r["relevance"], e.relevance, rtol=1e-8, atol=1e-11)


def test_relevance_at_a_block(sva, tmp_path):
    """The sums over the width of what ``lrpx.explain`` gives there, for each kind of pass; the others are as they were."""
    model, _ = pair = gpt2()
    names, at = ["attnlrp", "gradient", "gradient-x-input", "alti-logit"], "transformer.h.0"
    found = rows(run_of(sva, tmp_path / "run", names, pair, limit=6, at=at))
    assert {(r["method"], r["at"]) for r in found} >= {("attnlrp", at), ("gradient-l2", at), ("alti-logit", None)}
    for r in found:
        name, _, norm = r["method"].partition("-l")
        options = {"norm": f"l{norm}"} if norm in ("1", "2") else {}
        method = name if options else r["method"]
        asked = {"target": r["predicted_id"], "contrast": r["other_id"], "position": r["position"], "method": method}
        if r["at"] is None:
            e = lrpx.explain(model, None, r["token_ids"], **asked)
            np.testing.assert_allclose(r["relevance"], e.relevance, rtol=1e-8, atol=1e-11)
            continue
        e = lrpx.explain(model, None, r["token_ids"], at=["input", at], **asked, **options)
        np.testing.assert_allclose(r["relevance"], e.layers[at].sum(-1), rtol=1e-8, atol=1e-11)
        assert not np.allclose(r["relevance"], e.relevance, rtol=1e-3)
        if r["residual"] is not None:
            assert r["residual"] == pytest.approx(r["value"] - sum(r["relevance"]))


def test_where_relevance_is_taken_belongs_to_the_run(sva, tmp_path):
    assert run_of(sva, tmp_path / "run", at="embedding", limit=4).manifest["options"]["at"] == "embedding"
    assert run_of(sva, tmp_path / "plain", limit=4).manifest["options"]["at"] == "input"
    with pytest.raises(InputError, match=r"at is 'embedding' there and 'input' now"):
        run_of(sva, tmp_path / "run", limit=4)


def test_a_rule_for_layers_with_weights(sva, tmp_path):
    """It joins each method's own rule set; methods without rules are what they were."""
    model, _ = gpt2()
    names = ["lrp", "attnlrp", "gradient"]
    run = run_of(sva, tmp_path / "run", names, limit=4, rules="alpha1beta0")
    assert run.manifest["options"]["rules"] == "alpha1beta0"
    plain = {(r["sample_id"], r["method"]): r for r in rows(run_of(sva, tmp_path / "plain", names, limit=4))}
    assert "rules" not in open_run(tmp_path / "plain").manifest["options"]
    for r in rows(run):
        before = plain[r["sample_id"], r["method"]]
        if r["method"] in RULESETS:
            assert not np.allclose(r["relevance"], before["relevance"], rtol=1e-3)
            asked = {"target": r["predicted_id"], "contrast": r["other_id"], "position": r["position"]}
            rule_set = {**RULESETS[r["method"]], "linear": rules.alpha1beta0}
            e = lrpx.explain(model, None, r["token_ids"], **asked, method=r["method"], rules=rule_set)
            np.testing.assert_allclose(r["relevance"], e.relevance, rtol=1e-8, atol=1e-11)
        else:
            assert r == before


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (["lrp"], {"at": "transformer.h.9"}, "at='transformer.h.9' matches no module. Did you mean 'transformer.h.0'"),
        (["lrp"], {"at": "transformer.h.*"}, "fits 2 modules, .* Give one of them: transformer.h.0."),
        (["lrp"], {"at": ["input"]}, "at one place: give one name"),
        (["lrp"], {"at": "pixels"}, "the benchmark has no images"),
        (["lrp"], {"at": "embeding"}, "Did you mean 'embedding'"),
        (["alti-logit", "alti"], {"at": "embedding"}, "takes no option 'at'"),
        (["gradient"], {"rules": "gamma=0.25"}, "gradient takes no option 'rules'"),
        (
            ["lrp"],
            {"rules": "gama=0.25"},
            "unknown rule 'gama=0.25' for layers with weights. Did you mean 'gamma=0.25'",
        ),
        (["lrp"], {"rules": "attnlrp"}, "unknown rule 'attnlrp'"),
        (["lrp"], {"rules": "alpha2beta2"}, "alpha - beta has to be 1"),
    ],
)
def test_places_and_rules_that_are_none(sva, tmp_path, methods, options, message):
    with pytest.raises(InputError, match=message):
        run_of(sva, tmp_path / "run", methods, **options)
    assert not (tmp_path / "run").exists()


def test_a_run_of_an_earlier_schema_is_refused(sva, tmp_path):
    manifest = run_of(sva, tmp_path / "run", limit=4).manifest
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({**manifest, "schema": 1}))
    with pytest.raises(InputError, match=r"has schema 1, this version of lrpx reads 3\. Make it again\."):
        open_run(tmp_path / "run")


def test_all_plain_gradients_come_from_one_pass(sva, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(explaining, "run", lambda *args, **how: calls.append(len(args[1].spans)) or real(*args, **how))
    from lrpx.passes.attribution import run as real

    run = run_of(sva, tmp_path / "run", ["gradient", "gradient-x-input"])
    assert sum(calls) == 40
    assert run.manifest["methods"] == ["gradient-l1", "gradient-l2", "gradient-x-input"]


def test_the_order_of_methods_does_not_matter(sva, tmp_path):
    run_of(sva, tmp_path / "a", ["gradient-x-input", "lrp", "gradient", "lrp"])
    run_of(sva, tmp_path / "b", ["lrp", "gradient", "gradient-x-input"])
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_counts(sva, tmp_path):
    run = run_of(sva, tmp_path / "run")
    table = rows(run)
    correct = {r["sample_id"] for r in table if r["correct"]}
    assert run.finished
    assert run.failed == 0
    assert run.counts["samples"] == run.counts["predicted"] == 40
    assert run.counts["correct"] == len(correct)
    assert run.counts["accuracy"] == len(correct) / 40
    assert run.counts["failures"] == []
    assert run.counts["card"] == platform.machine()
    assert 0 < len(correct) < 40


def test_the_model_is_as_before(sva, tmp_path):
    model, _ = gpt2()
    before = fingerprint(model)
    run_of(sva, tmp_path / "run", ALL)
    assert fingerprint(model) == before


def test_a_method_of_ones_own(sva, tmp_path, register):
    register("even", even)
    run = run_of(sva, tmp_path / "run", ["even", "lrp"])
    assert run.manifest["methods"] == ["lrp", "even"]
    for r in (r for r in rows(run) if r["method"] == "even"):
        np.testing.assert_allclose(r["relevance"], np.arange(len(r["tokens"])) * r["value"])


# What is evaluated


def test_a_limit_chooses_by_seed_and_sample(sva):
    causal, masked = (load_benchmark(sva).tokenized[name].samples for name in ("GPT2LMHeadModel", "BertForMaskedLM"))

    def chosen(samples, limit, seed=0):
        return [s.sample_id for s in select(samples, limit, seed)]

    ten = chosen(causal, 10)
    assert len(ten) == 10
    assert ten == sorted(ten)
    assert set(chosen(causal, 5)) < set(ten)
    assert chosen(masked, 10) == ten
    assert chosen(causal, 10, seed=1) != ten
    assert chosen(causal, None) == chosen(causal, 1000) == [s.sample_id for s in causal]


def test_parts_follow_from_the_lengths(sva, small_parts):
    samples = load_benchmark(sva).tokenized["GPT2LMHeadModel"].samples
    parts = plan(samples, 30, 0.1)
    assert parts == plan(samples, 30, 0.1)
    assert sorted(s.sample_id for part in parts for batch in part for s in batch) == list(range(40))
    assert all(sum(map(len, part)) >= 10 for part in parts[:-1])
    assert len(parts) > 2
    assert all(len(b) == 1 or len(b) * max(len(s.tokens) for s in b) <= 30 for part in parts for b in part)


def test_the_tokenised_set_is_made_where_it_is_missing(tmp_path):
    folder = benchmark(tmp_path, 6)
    _model, tokenizer = gpt2()
    assert load_benchmark(folder).tokenized == {}
    first = run_of(folder, tmp_path / "a")
    (made,) = load_benchmark(folder).tokenized
    assert first.manifest["benchmark"]["tokenized"] == made
    tokenize(folder, tokenizer, name="mine", progress=False)
    assert run_of(folder, tmp_path / "b", tokenized="mine").manifest["benchmark"]["tokenized"] == "mine"


def test_a_name_is_loaded(sva, tmp_path):
    model, tokenizer = gpt2(torch.float32)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "tiny")
    run = evaluate(
        sva, tmp_path / "tiny", ["lrp"], tmp_path / "run", dtype="float64", device="cpu", limit=5, progress=False
    )
    facts = run.manifest["model"]
    assert (facts["name"], facts["dtype"], facts["device"]) == ("tiny", "float64", "cpu")
    assert (facts["layers"], facts["heads"], facts["width"]) == (2, 2, 16)
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())


def test_a_checkpoint_in_half_precision_is_evaluated_in_single(sva, tmp_path):
    model, tokenizer = gpt2(torch.float32)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")

    def dtype_of(folder, **options):
        run = evaluate(sva, tmp_path / "tiny", ["lrp"], tmp_path / folder, limit=3, progress=False, **options)
        return run.manifest["model"]["dtype"]

    assert dtype_of("a") == dtype_of("b", dtype=None) == "float32"
    assert dtype_of("c", dtype="auto") == "bfloat16"
    assert dtype_of("d", dtype="float64") == "float64"


def test_the_papers_methods_by_default(sva, tmp_path, caplog):
    assert run_of(sva, tmp_path / "a", pair=gpt2(), limit=3).manifest["methods"] == [
        "lrp",
        "gradient-l1",
        "gradient-l2",
    ]
    model, tokenizer = gpt2()
    run = evaluate(sva, model, None, tmp_path / "b", tokenizer=tokenizer, limit=3, progress=False)
    assert run.manifest["methods"] == ["lrp", "attnlrp", "gradient-l1", "gradient-l2", "gradient-x-input", "alti-logit"]


def test_alti_logit_is_left_out_by_default_where_the_family_is_not_known(sva, tmp_path, caplog, monkeypatch):
    def unknown(model):
        raise UnsupportedModelError("no family describes it")

    monkeypatch.setattr(asked, "find_family", unknown)
    model, tokenizer = gpt2()
    run = evaluate(sva, model, None, tmp_path / "run", tokenizer=tokenizer, limit=3, progress=False)
    assert "alti-logit" not in run.manifest["methods"]
    assert "alti-logit is left out: no family describes it" in caplog.text


def test_several_models(sva, tmp_path):
    for name, (model, tokenizer) in {"one": gpt2(), "two": bert()}.items():
        for part in (model, tokenizer):
            part.save_pretrained(tmp_path / name)
    models = [tmp_path / "one", tmp_path / "two"]
    runs = evaluate_all(sva, models, ["lrp"], tmp_path / "runs", limit=4, progress=False)
    assert [run.path for run in runs] == [tmp_path / "runs" / "one", tmp_path / "runs" / "two"]
    assert [run.name for run in find_runs([tmp_path / "runs"])] == ["one", "two"]
    evaluate_all(sva, models, ["random"], tmp_path / "runs" / "more", limit=4, progress=False)
    evaluate_all(sva, models[:1], ["attnlrp"], tmp_path / "runs" / "third", limit=4, progress=False)
    found = [str(run.path.relative_to(tmp_path)) for run in find_runs([tmp_path / "runs"])]
    assert found == ["runs/more/one", "runs/more/two", "runs/one", "runs/third", "runs/two"]
    (alone,) = evaluate_all(sva, models[:1], ["lrp"], tmp_path / "alone", limit=4, progress=False)
    assert alone.path == tmp_path / "alone"
    with pytest.raises(InputError, match="holds the run of one model"):
        evaluate_all(sva, models, ["lrp"], tmp_path / "alone", progress=False)
    with pytest.raises(InputError, match="two models are called one"):
        evaluate_all(sva, [models[0]] * 2, ["lrp"], tmp_path / "other", progress=False)


# Stopping and going on


@pytest.mark.parametrize("stop", slow_but([0, 1, 2], 1))
def test_a_stopped_run_goes_on_to_the_same_bytes(sva, tmp_path, small_parts, monkeypatch, stop):
    whole = run_of(sva, tmp_path / "whole", batch_tokens=30)
    assert whole.manifest["plan"]["parts"] == 4
    written = []

    def write(run, number, records):
        if number == stop:
            raise KeyboardInterrupt
        written.append(number)
        real(run, number, records)

    real = module.write_part
    monkeypatch.setattr(module, "write_part", write)
    with pytest.raises(KeyboardInterrupt):
        run_of(sva, tmp_path / "run", batch_tokens=30)
    stopped = open_run(tmp_path / "run")
    assert not stopped.finished
    assert len(stopped.parts) == stop
    if stop:
        assert len(stopped.table()) > 0  # what was finished is readable
    monkeypatch.setattr(module, "write_part", lambda run, n, r: written.append(n) or real(run, n, r))
    written.clear()
    resumed = run_of(sva, tmp_path / "run", batch_tokens=30)
    assert written == list(range(stop, 4))  # nothing twice, nothing lost
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert resumed.counts == whole.counts


def test_a_part_that_is_removed_is_computed_anew(sva, tmp_path, small_parts):
    """As the error about a damaged one says; until then nothing is computed from the others."""
    run = run_of(sva, tmp_path / "run", batch_tokens=30)
    before = contents(run.path)
    run.part(1).unlink()
    assert not open_run(run.path).finished
    with pytest.raises(InputError, match=r"has lost records: run the same evaluation again"):
        open_run(run.path).table()
    run_of(sva, run.path, batch_tokens=30)
    assert contents(run.path) == before


def test_a_finished_run_is_returned_as_it_is(sva, tmp_path, monkeypatch):
    first = run_of(sva, tmp_path / "run")
    monkeypatch.setattr(module, "write_part", None)
    assert run_of(sva, tmp_path / "run").counts == first.counts


KILLED = """
import os, signal, sys
import pyarrow.parquet as pq
sys.path.insert(0, {tests!r})
from evaluation_tools import gpt2
from lrpx.passes import attribution as capture
from lrpx.evaluation import run as module, selection
import torch
torch.set_num_threads(1)
selection.PART = 10
real = pq.write_table
def write(table, path, **options):
    real(table, path, **options)
    if "part-00002" in str(path):
        with open(path, "r+b") as file:
            file.truncate(100)  # as if it came in the middle of writing
        os.kill(os.getpid(), signal.SIGKILL)
pq.write_table = write
model, tokenizer = gpt2()
module.evaluate({sva!r}, model, ["lrp", "gradient"], {out!r}, tokenizer=tokenizer, batch_tokens=30, progress=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_kill_9_in_the_middle_of_a_file(sva, tmp_path, small_parts):
    run_of(sva, tmp_path / "whole", batch_tokens=30)
    script = KILLED.format(tests=str(Path(__file__).parents[1] / "helpers"), sva=str(sva), out=str(tmp_path / "run"))
    process = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert process.returncode == -signal.SIGKILL
    assert any(path.name.endswith(".tmp") for path in (tmp_path / "run" / "records").iterdir())
    assert len(open_run(tmp_path / "run").parts) == 2
    run_of(sva, tmp_path / "run", batch_tokens=30)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")  # the half-written file is gone too


def test_records_of_a_part_are_written_while_the_next_is_computed(sva, tmp_path, small_parts, monkeypatch):
    order, write = [], module.write_part
    monkeypatch.setattr(module, "write_part", lambda run, n, r: order.append(f"write {n}") or write(run, n, r))
    model, tokenizer = gpt2()
    handle = model.register_forward_pre_hook(lambda *_: order.append("pass"))
    try:
        run = evaluate(sva, model, ["lrp"], tmp_path / "run", tokenizer=tokenizer, batch_tokens=130, progress=False)
    finally:
        handle.remove()
    count = run.manifest["plan"]["parts"]  # of one batch each
    assert count > 2
    between = [step for n in range(count - 1) for step in ("pass", f"write {n}")]
    assert order == ["pass", *between, f"write {count - 1}"]


def test_what_was_computed_is_written_where_a_later_batch_stops_the_run(sva, tmp_path, small_parts, register):
    calls = []

    def stops(model, batch):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return even(model, batch)

    register("stops", stops)
    with pytest.raises(KeyboardInterrupt):
        run_of(sva, tmp_path / "run", ["stops"], batch_tokens=130)
    assert [path.name for path in open_run(tmp_path / "run").parts] == ["part-00000.parquet", "part-00001.parquet"]
    register("stops", even)
    resumed = run_of(sva, tmp_path / "run", ["stops"], batch_tokens=130)
    whole = run_of(sva, tmp_path / "whole", ["stops"], batch_tokens=130)
    assert contents(resumed.path) == contents(whole.path)


def test_a_full_disk(sva, tmp_path, small_parts, monkeypatch):
    import pyarrow.parquet as pq

    def write(table, path, **options):
        if "part-00001" in str(path):
            Path(path).write_bytes(b"PAR1")
            raise OSError(28, "No space left on device")
        real(table, path, **options)

    real = pq.write_table
    monkeypatch.setattr(pq, "write_table", write)
    with pytest.raises(
        LrpxError, match=r"could not write .*part-00001.parquet: No space left on device. .*run the same command"
    ):
        run_of(sva, tmp_path / "run", batch_tokens=30)
    assert [p.name for p in (tmp_path / "run" / "records").iterdir()] == ["part-00000.parquet"]
    assert len(open_run(tmp_path / "run").table()) > 0
    monkeypatch.setattr(pq, "write_table", real)
    run_of(sva, tmp_path / "whole", batch_tokens=30)
    run_of(sva, tmp_path / "run", batch_tokens=30)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["lrp"]}, r"methods are lrp, gradient-l1, gradient-l2 there and lrp now"),
        ({"limit": 7}, "limit is not given there and 7 now"),
        ({"seed": 3}, "seed is 0 there and 3 now"),
        ({"batch_tokens": 99}, "batch_tokens is 4096 there and 99 now"),
        ({"pair": (gpt2(seed=2))}, "model.weights is '.*' there and '.*' now"),
        ({"pair": (gpt2(torch.float32))}, "model.dtype is 'float64' there and 'float32' now"),
    ],
    ids=["methods", "limit", "seed", "batch", "weights", "dtype"],
)
def test_a_folder_of_another_run_is_refused(sva, tmp_path, change, message):
    run_of(sva, tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=message):
        run_of(sva, tmp_path / "run", **change)
    assert contents(tmp_path / "run") == before


def test_a_folder_of_another_benchmark_is_refused(sva, tmp_path):
    run_of(sva, tmp_path / "run")
    other = benchmark(tmp_path / "other", 12)
    with pytest.raises(InputError, match=r"benchmark.sentences is '.*' there and '.*' now"):
        run_of(other, tmp_path / "run")


def test_a_folder_of_something_else_is_refused(sva, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for out, message in [
        (tmp_path / "full", "is not a run and not empty"),
        (tmp_path / "file", "is a file"),
        (sva, r"is a benchmark\. Expected: a run\. lrpx\.evaluation\.run\.evaluate\(\.\.\.\) makes one\."),
    ]:
        with pytest.raises(InputError, match=message):
            run_of(sva, out)


def test_a_part_that_is_not_ours_is_refused(sva, tmp_path, small_parts):
    run_of(sva, tmp_path / "run", batch_tokens=30)
    (tmp_path / "run" / "counts.json").unlink()
    parts = open_run(tmp_path / "run").parts
    good = parts[0].read_bytes()
    parts[0].write_bytes(parts[1].read_bytes())
    with pytest.raises(InputError, match=r"part-00000.parquet holds other samples"):
        run_of(sva, tmp_path / "run", batch_tokens=30)
    parts[0].write_bytes(good[:200])
    with pytest.raises(InputError, match=r"part-00000.parquet cannot be read as Parquet"):
        run_of(sva, tmp_path / "run", batch_tokens=30)


# Memory


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("MPS backend out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", slow_but(OUT_OF_MEMORY, OUT_OF_MEMORY[0]))
def test_out_of_memory_halves_the_batch(sva, tmp_path, register, caplog, error):
    sizes = []

    def hungry(model, batch):
        sizes.append(batch.inputs["input_ids"].numel())
        if sizes[-1] > 40:
            raise error
        return even(model, batch)

    register("even", even)
    whole = run_of(sva, tmp_path / "a" / "run", ["even"])
    register("even", hungry)
    run = run_of(sva, tmp_path / "b" / "run", ["even"])
    assert run.failed == 0
    assert "does not fit into memory" in caplog.text
    too_large = [s for s in sizes if s > 40]
    assert too_large == sorted(too_large, reverse=True)  # no size is tried again once it was too large
    assert len(too_large) == len(set(too_large))
    assert [p.name for p in run.parts] == [p.name for p in whole.parts]
    for a, b in zip(rows(whole), rows(run), strict=True):
        np.testing.assert_allclose(a.pop("relevance"), b.pop("relevance"), rtol=1e-9, atol=1e-12)
        assert a.pop("value") == pytest.approx(b.pop("value"), rel=1e-9)
        assert a.pop("rma") == pytest.approx(b.pop("rma"), rel=1e-9)
        assert {**a, "residual": None} == {**b, "residual": None}


@pytest.mark.slow
def test_a_sample_that_does_not_fit_is_recorded(sva, tmp_path, register):
    sizes = []

    def hungry(model, batch):
        if batch.inputs["input_ids"].shape[1] > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(batch.inputs["input_ids"].numel())
        return even(model, batch)

    register("even", hungry)
    run = run_of(sva, tmp_path / "run", ["even"])
    failed = [r for r in rows(run) if r["error"]]
    assert {len(r["tokens"]) for r in failed} == {9}
    assert all("out of memory" in r["error"] for r in failed)
    assert run.failed == len(failed) > 0
    assert max(sizes) > 8  # the others still share batches


# Failures


def test_a_sample_that_fails_is_recorded_with_its_reason(sva, tmp_path, register):
    def picky(model, batch):
        if 7 in seen(batch):
            raise ValueError("not this\none")
        return even(model, batch)

    samples = load_benchmark(sva).tokenized["GPT2LMHeadModel"].samples
    by_ids = {tuple(s.input_ids): s.sample_id for s in samples}

    def seen(batch):
        ids = batch.inputs["input_ids"]
        return [by_ids.get(tuple(row[span].tolist())) for row, span in zip(ids, batch.spans, strict=True)]

    assert len(by_ids) == 40
    register("even", even)
    whole = {r["sample_id"]: r for r in rows(run_of(sva, tmp_path / "a", ["even"]))}
    register("picky", picky)
    run = run_of(sva, tmp_path / "b", ["lrp", "picky"])
    assert run.failed == 1
    assert run.counts["failures"] == [{"method": "picky", "reason": "ValueError: not this one", "samples": 1}]
    assert run.counts["predicted"] == 40  # the other method tells the prediction
    for r in (r for r in rows(run) if r["method"] == "picky"):
        if r["sample_id"] == 7:
            assert r["error"] == "ValueError: not this one"
            assert all(r[name] is None for name in ("relevance", "value", "residual", *METRICS))
            assert r["correct"] == whole[7]["correct"]
        else:
            np.testing.assert_allclose(r["relevance"], whole[r["sample_id"]]["relevance"], rtol=1e-9, atol=1e-12)
    assert run_of(sva, tmp_path / "b", ["lrp", "picky"]).failed == 1  # a finished run says so again


@pytest.mark.parametrize(
    ("relevance", "reason"),
    [
        (lambda n: np.full(n, np.nan), "NonFiniteError: relevance or value is NaN or infinite"),
        (lambda n: np.zeros(n + 1), r"relevance of shape \[\d+\] for \d+ tokens"),
        (lambda n: np.zeros((n, 2)), r"relevance of shape \[\d+, 2\] for \d+ tokens"),
    ],
)
def test_a_useless_result_is_a_failure(sva, tmp_path, register, relevance, reason):
    def useless(model, batch):
        return [dataclasses.replace(a, relevance=relevance(len(a.relevance))) for a in even(model, batch)]

    register("useless", useless)
    run = run_of(sva, tmp_path / "run", ["lrp", "useless"], limit=3)
    assert run.failed == 3
    assert {failure["method"] for failure in run.counts["failures"]} == {"useless"}
    assert all(re.fullmatch(reason, failure["reason"]) for failure in run.counts["failures"])


def test_a_prediction_that_no_method_could_make_counts_for_nothing(sva, tmp_path, register):
    def broken(model, batch):
        if len(batch.spans) == 1 and batch.inputs["input_ids"].shape[1] == 9:
            raise NonFiniteError("the logits are not finite")
        if batch.inputs["input_ids"].shape[1] == 9:
            raise NonFiniteError("somewhere in here")
        return even(model, batch)

    register("broken", broken)
    run = run_of(sva, tmp_path / "run", ["broken"])
    failed = [r for r in rows(run) if r["error"]]
    assert run.counts["predicted"] == 40 - len(failed)
    assert all(r["correct"] is None and r["predicted"] is None and r["value"] is None for r in failed)


def test_a_run_in_which_all_fails_stops(sva, tmp_path, register):
    def broken(model, batch):
        raise ValueError("always")

    register("broken", broken)
    with pytest.raises(
        LrpxError, match=r"broken failed on each of the first 20 samples. The last one: ValueError: always"
    ):
        run_of(sva, tmp_path / "run", ["broken"])


def test_what_is_about_the_model_stops_at_once(sva, tmp_path, register):
    calls = []

    def unsuited(model, batch):
        calls.append(1)
        raise UnsupportedModelError("not for this model")

    register("unsuited", unsuited)
    with pytest.raises(UnsupportedModelError, match="not for this model"):
        run_of(sva, tmp_path / "run", ["unsuited"])
    assert len(calls) == 1


def test_a_sample_longer_than_the_model_reads(sva, tmp_path):
    samples = load_benchmark(sva).tokenized["GPT2LMHeadModel"].samples
    model, tokenizer = gpt2(seed=3)
    longest = max(len(s.tokens) for s in samples)
    model.config.max_position_embeddings = model.config.n_positions = longest - 1
    run = run_of(sva, tmp_path / "run", ["lrp", "gradient"], (model, tokenizer))
    failed = [r for r in rows(run) if r["error"]]
    assert {r["sample_id"] for r in failed} == {s.sample_id for s in samples if len(s.tokens) == longest}
    assert {r["error"] for r in failed} == {f"{longest} tokens; GPT2LMHeadModel reads {longest - 1}"}
    assert len(failed) == 3 * run.failed


# Explanations made elsewhere


def made_elsewhere(sva, path, *, method=True, count=40):
    """What a run of ours found, as a file of somebody else's."""
    found = [r for r in rows(run_of(sva, path.parent / "ours", ["lrp"])) if r["sample_id"] < count]
    entries = [
        {"sample_id": r["sample_id"], "relevance": r["relevance"]} | ({"method": "theirs"} if method else {})
        for r in found
    ]
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(entries), path)
    else:
        path.write_text("".join(json.dumps(e) + "\n" for e in entries))
    return found


@pytest.mark.parametrize(("name", "method"), [("their.jsonl", True), ("their.parquet", True), ("their.jsonl", False)])
def test_explanations_made_elsewhere_are_scored(sva, tmp_path, name, method):
    ours = {r["sample_id"]: r for r in made_elsewhere(sva, tmp_path / name, method=method)}
    run = run_of(sva, tmp_path / "run", ["gradient"], relevances=tmp_path / name)
    label = "theirs" if method else "their"
    assert run.manifest["methods"] == ["gradient-l1", "gradient-l2", label]
    theirs = [r for r in rows(run) if r["method"] == label]
    assert len(theirs) == 40
    for r in theirs:
        for name in ("relevance", "correct", "predicted", *METRICS):
            assert r[name] == ours[r["sample_id"]][name], name
        assert r["value"] == pytest.approx(ours[r["sample_id"]]["value"])
        assert r["residual"] is None


def test_only_explained_samples_are_scored(sva, tmp_path, caplog):
    made_elsewhere(sva, tmp_path / "their.jsonl", count=15)
    model, tokenizer = gpt2()
    run = evaluate(
        sva, model, None, tmp_path / "run", tokenizer=tokenizer, relevances=tmp_path / "their.jsonl", progress=False
    )
    assert run.manifest["methods"] == ["theirs"]
    assert {r["sample_id"] for r in rows(run)} == set(range(15))
    assert "25 of 40 samples have no relevance" in caplog.text


ENTRY = '{"sample_id": 0, "relevance": [1, 2]}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no entries"),
        ("{\n", "line 1: not JSON"),
        ("[1]\n", "line 1: a JSON list, expected an object"),
        ('{"sample_id": 0}\n', "line 1: there is no relevance"),
        ('{"relevance": [1]}\n', "line 1: there is no sample_id"),
        ('{"sample_id": "0", "relevance": [1]}\n', "line 1: sample_id is '0', expected a whole number"),
        ('{"sample_id": 0, "relevance": ["a"]}\n', "line 1: relevance is not a list of numbers"),
        ('{"sample_id": 0, "relevance": [NaN]}\n', "line 1: relevance must be one finite number per token"),
        ('{"sample_id": 0, "relevance": [[1]]}\n', "line 1: relevance must be one finite number per token"),
        ('{"sample_id": 0, "relevance": [1], "method": 3}\n', "line 1: method is 3, expected a name"),
        (ENTRY + "\n" + ENTRY, "line 3: sample_id 0 is there twice for the method 'their'"),
        (ENTRY, r"sample_id 0 \(their\) has 2 numbers for \d+ tokens"),
        ('{"sample_id": 99, "relevance": [1]}\n', r"sample_id 99 \(their\) is not a sample of this tokenised set"),
        ('{"sample_id": 0, "relevance": [1], "method": "lrp"}\n', "'lrp' is the name of a method of lrpx"),
    ],
)
def test_a_bad_file_of_relevances(sva, tmp_path, text, message):
    (tmp_path / "their.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        run_of(sva, tmp_path / "run", relevances=tmp_path / "their.jsonl")
    assert not (tmp_path / "run").exists()


def test_files_of_relevances_that_cannot_be_read(sva, tmp_path):
    (tmp_path / "their.parquet").write_text(ENTRY)
    (tmp_path / "their.jsonl").write_bytes(b"\xff\xfe")
    for name, message in [("none", "no such file"), ("their.parquet", "as Parquet"), ("their.jsonl", "is not UTF-8")]:
        with pytest.raises(InputError, match=message):
            run_of(sva, tmp_path / "run", relevances=tmp_path / name)


def test_methods_of_a_file_share_their_samples(sva, tmp_path):
    length = {s.sample_id: len(s.tokens) for s in load_benchmark(sva).tokenized["GPT2LMHeadModel"].samples}
    entries = [(0, "a"), (1, "a"), (1, "b"), (2, "b")]
    path = tmp_path / "their.jsonl"
    path.write_text(
        "".join(json.dumps({"sample_id": i, "method": m, "relevance": [1.0] * length[i]}) + "\n" for i, m in entries)
    )
    model, tokenizer = gpt2()
    run = evaluate(sva, model, None, tmp_path / "run", tokenizer=tokenizer, relevances=path, progress=False)
    assert [(r["sample_id"], r["method"]) for r in rows(run)] == [(1, "a"), (1, "b")]


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["lpr"]}, "unknown method 'lpr'. Did you mean 'lrp'"),
        ({"methods": []}, "give a list of names"),
        ({"limit": 0}, "limit=0: give a whole number, 1 or more"),
        ({"batch_tokens": -1}, "batch_tokens=-1: give a whole number"),
        *(({name: 1}, f"{name}=1: give True or False") for name in ("fast", "compile", "checkpoint")),
        ({"dtype": "float32"}, "dtype: only for a model that is loaded by its name"),
        ({"tokenized": "nothing"}, "has no tokenised set 'nothing'"),
        ({"tokenized": "BertForMaskedLM"}, "has masked input; GPT2LMHeadModel is causal"),
    ],
)
def test_bad_options(sva, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        run_of(sva, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_no_benchmark(tmp_path):
    with pytest.raises(InputError, match="is not a benchmark: "):
        run_of(tmp_path, tmp_path / "run")


def test_a_loaded_model_needs_its_tokenizer(sva, tmp_path):
    with pytest.raises(InputError, match="a loaded model needs its tokenizer"):
        evaluate(sva, gpt2()[0], ["lrp"], tmp_path / "run", progress=False)


def test_a_classifier_is_no_language_model(sva, tmp_path):
    model = classifier("SequenceClassification", **SENTIMENT)
    with pytest.raises(InputError, match="is for text-classification, and the benchmark is about the next word"):
        run_of(sva, tmp_path / "run", pair=(model, tiny_classifiers_tokenizer()))


def test_a_tokenizer_that_is_not_the_models(sva, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=1)).eval()
    with pytest.raises(
        InputError, match=r"has token id \d+; GPT2LMHeadModel knows 20. Is this the model's own tokenizer"
    ):
        run_of(sva, tmp_path / "run", pair=(small, gpt2()[1]))
    other = benchmark(tmp_path / "other", 6)
    tokenize(other, gpt2()[1], name="theirs", progress=False)
    from benchmark_tools import byte_bpe

    with pytest.raises(InputError, match="was made with another tokenizer than this model's"):
        run_of(other, tmp_path / "run", pair=(gpt2()[0], byte_bpe(["something else"], size=300)), tokenized="theirs")


def test_a_slow_tokenizer(sva, tmp_path):
    class Slow:
        is_fast = False

    with pytest.raises(InputError, match="Slow is a slow tokenizer"):
        run_of(sva, tmp_path / "run", pair=(gpt2()[0], Slow()))


# Progress


def test_progress_shows_speed_and_counts_what_was_done(sva, tmp_path, small_parts, monkeypatch, capsys):
    model, tokenizer = gpt2()
    real = files.atomic_write
    run = evaluate(sva, model, ["lrp"], tmp_path / "run", tokenizer=tokenizer, batch_tokens=30, progress=True)
    assert "sample/s" in capsys.readouterr().err
    run.part(3).unlink()
    (tmp_path / "run" / "counts.json").unlink()
    evaluate(sva, model, ["lrp"], tmp_path / "run", tokenizer=tokenizer, batch_tokens=30, progress=True)
    bars = capsys.readouterr().err
    assert "/40 [" in bars
    assert " 0/40" not in bars  # it goes on where it stopped
    assert files.atomic_write is real
    evaluate(sva, model, ["lrp"], tmp_path / "quiet", tokenizer=tokenizer, progress=False)
    assert capsys.readouterr().err == ""


def test_a_haystack_is_evaluated_as_any_benchmark(tmp_path):
    """Long texts in batches; each record's relevance is that of one text alone, of the first tokens that differ."""
    tokenizer = byte_bpe([*FILLER, "The special magic number for"])
    sizes = {"vocab_size": len(tokenizer), "n_positions": 512, "n_embd": 16, "n_layer": 2, "n_head": 2}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes)).double().eval()
    build_haystack(tmp_path / "hay", sentences=12, needles=2, samples=6)
    run = evaluate(tmp_path / "hay", model, ["attnlrp"], tmp_path / "run", tokenizer=tokenizer, progress=False)
    assert run.manifest["benchmark"]["task"] == "haystack"
    assert run.manifest["benchmark"]["ground_truth"] == "the value in the needle"
    records = run.table().to_pylist()
    assert len(records) == 6
    for record in records:
        assert record["error"] is None
        e = lrpx.explain(
            model,
            tokenizer,
            record["token_ids"],
            target=record["predicted_id"],
            contrast=record["other_id"],
            method="attnlrp",
        )
        np.testing.assert_allclose(record["relevance"], e.relevance, rtol=1e-6, atol=1e-12)
        text = tokenizer.decode([record["token_ids"][i] for i in record["ground_truth"]]).strip()
        assert text == (record["predicted"] if record["correct"] else record["other"])
