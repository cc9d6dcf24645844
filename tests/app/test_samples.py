"""A benchmark is browsed: the right samples, their subject marked, and the scores of the records."""

import app_tools
import evaluation_tools
import numpy as np
import pytest
import tiny_classifiers
from benchmark_tools import byte_bpe
from transformers import GPT2Config, GPT2LMHeadModel

import lrpx
from lrpx.app.desk import Desk, Limits
from lrpx.app.samples import LONG, PAGE, Filter, Samples, filter_of
from lrpx.benchmark import build_haystack, load_benchmark, tokenize
from lrpx.benchmark.haystack import FILLER
from lrpx.errors import InputError
from lrpx.evaluation.metrics import score
from lrpx.evaluation.records import open_run
from lrpx.evaluation.run import evaluate
from lrpx.evaluation.selection import tokenized_set as evaluation_set

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def explainer():
    return lrpx.Explainer(*evaluation_tools.gpt2())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, explainer):
    """A benchmark with the records of two methods."""
    root = tmp_path_factory.mktemp("browse")
    sva = evaluation_tools.benchmark(root)
    tokenize(sva, explainer.tokenizer, name="tiny", progress=False)
    evaluate(sva, explainer.model, ["lrp", "gradient"], root / "run", tokenizer=explainer.tokenizer, progress=False)
    return root


@pytest.fixture(scope="module")
def samples(folder, explainer):
    return Samples(explainer, folder / "sva", folder / "run")


@pytest.fixture(scope="module")
def records(folder):
    return open_run(folder / "run").table().to_pylist()


def test_all_are_there_page_by_page(samples):
    first = samples.find(Filter())
    assert (first["count"], len(first["samples"])) == (len(samples.set), PAGE)
    pages = [samples.find(Filter(page=n))["samples"] for n in range(first["pages"])]
    assert [s["id"] for page in pages for s in page] == [s.sample_id for s in samples.set.samples]
    assert samples.find(Filter(page=99))["samples"] == []


def test_the_subject_is_marked(samples):
    sample = samples.set.samples[0]
    shown = samples.shown(sample)
    assert "".join(text for text, _ in shown["pieces"]) == sample.text
    subject = "".join(text for text, role in shown["pieces"] if role == "subject").strip()
    assert any(subject in pair for pair in evaluation_tools.NOUNS)
    assert shown["truth"] == sample.ground_truth


def test_wrong_predictions_are_those_of_the_records(samples, records):
    wrong = {row["sample_id"] for row in records if row["correct"] is False}
    assert 0 < len(wrong) < len(samples.set)
    found = samples.find(Filter(predicted="wrong"))
    assert found["count"] == len(wrong)
    assert {s["id"] for s in found["samples"]} <= wrong
    assert samples.find(Filter(predicted="correct"))["count"] == len(samples.set) - len(wrong)


@pytest.mark.parametrize("descending", [False, True])
def test_samples_are_sorted_by_a_metric(samples, records, descending):
    scores = {row["sample_id"]: row["mrr"] for row in records if row["method"] == "lrp" and row["mrr"] is not None}
    found = samples.find(Filter(method="lrp", metric="mrr", descending=descending))
    assert found["count"] == len(scores)
    shown = [s["score"] for s in found["samples"]]
    assert shown == [scores[s["id"]] for s in found["samples"]]
    np.testing.assert_array_equal(shown, sorted(scores.values(), reverse=descending)[:PAGE])


def test_attractors_and_words(samples):
    count = samples.find(Filter(attractors=1))["count"]
    assert count == sum(samples.attractors[s.sample_id] == 1 for s in samples.set.samples) > 0
    assert samples.find(Filter(attractors=3))["count"] == 0
    dogs = samples.find(Filter(text="DOGS"))
    assert 0 < dogs["count"] < len(samples.set)
    assert all("dogs" in "".join(text for text, _ in s["pieces"]) for s in dogs["samples"])


@pytest.mark.parametrize("correct", [True, False])
def test_a_sample_is_explained_as_the_records_score_it(samples, explainer, records, correct):
    client = app_tools.client(Desk(explainer, Limits(tokens=40), samples))
    sample = next(sample for sample in samples.set.samples if samples.correct[sample.sample_id] is correct)
    verb, other = (sample.verb_id, sample.other_id) if correct else (sample.other_id, sample.verb_id)
    answers = app_tools.events(client, "explain", {"kind": "sample", "sample": sample.sample_id, "methods": ["lrp"]})
    maps, shown = app_tools.one(answers, "maps"), app_tools.one(answers, "predictions")
    assert maps["truth"] == sample.ground_truth
    assert (shown["target"]["id"], shown["contrast"]["id"]) == (verb, other)
    e = explainer(sample.input_ids, target=verb, contrast=other, position=sample.position, method="lrp")
    scored = score([e.relevance], [sample.ground_truth])
    [record] = [row for row in records if (row["sample_id"], row["method"]) == (sample.sample_id, "lrp")]
    assert (scored.rma, scored.mrr) == pytest.approx((record["rma"], record["mrr"]))
    assert maps["grids"][0]["rows"][0]["what"].endswith(f"{e.value:+.4g}".replace("-", "\N{MINUS SIGN}"))


def test_the_forms_of_a_sample_are_swapped(samples, explainer):
    client = app_tools.client(Desk(explainer, Limits(tokens=40), samples))
    sample = samples.set.samples[3]
    swapped = {"kind": "sample", "sample": sample.sample_id, "target": sample.other_id, "contrast": sample.verb_id}
    assert app_tools.one(app_tools.events(client, "explain", swapped), "predictions")["target"]["id"] == sample.other_id
    [event] = [e for e in app_tools.events(client, "browse", {"attractors": 1}) if e["event"] == "samples"]
    assert event["samples"]
    assert (
        "has none of this number"
        in app_tools.events(client, "explain", {"kind": "sample", "sample": -7})[-1]["message"]
    )


def test_a_long_text_is_shown_around_its_needle(tmp_path):
    tokenizer = byte_bpe([*FILLER, "The special magic number for"])
    sizes = {"n_positions": 1024, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).eval()
    build_haystack(tmp_path / "hay", sentences=80, needles=2, samples=3)
    tokenize(tmp_path / "hay", tokenizer, name="tiny", progress=False)
    found = Samples(lrpx.Explainer(model, tokenizer), tmp_path / "hay").find(Filter(attractors=1))
    assert (found["count"], found["truth"]) == (3, "needle value")
    for shown in found["samples"]:
        text = "".join(text for text, _ in shown["pieces"])
        assert len(shown["pieces"]) <= LONG
        assert f"is {shown['verb']}." in text
        assert f"is {shown['other']}." in text
        assert "… " in text
        assert text.rstrip().endswith(" is")
        assert "".join(text for text, role in shown["pieces"] if role == "subject").strip() == shown["verb"]


def test_without_records(folder, explainer):
    bare = Samples(explainer, folder / "sva")
    assert bare.about()["records"] is False
    with pytest.raises(InputError, match="which predictions were wrong is in the records"):
        bare.find(Filter(predicted="wrong"))
    with pytest.raises(InputError, match=r"no scores of lrp by mrr\. There are: none, without --records"):
        bare.find(Filter(method="lrp", metric="mrr"))


def test_a_benchmark_is_tokenised_for_the_model_as_evaluate_does(tmp_path):
    bert = lrpx.Explainer(*evaluation_tools.bert())
    sva = evaluation_tools.benchmark(tmp_path)
    found = Samples(bert, sva)
    assert found.set.input == "masked"
    assert len(found.set) == found.find(Filter())["count"] > 0
    assert found.set.path == evaluation_set(sva, None, bert.model, bert.tokenizer).path
    assert [*load_benchmark(sva).tokenized] == [found.set.name]


def test_nothing_for_this_model(folder, explainer, tmp_path):
    classifier = lrpx.Explainer(tiny_classifiers.classifier("SequenceClassification"), tiny_classifiers.tokenizer())
    with pytest.raises(
        InputError, match=r"BertForSequenceClassification is for text-classification\. Give a causal or masked"
    ):
        Samples(classifier, folder / "sva")
    strange = lrpx.Explainer(evaluation_tools.gpt2(seed=1)[0], explainer.tokenizer)
    with pytest.raises(InputError, match="no records of this model on this benchmark"):
        Samples(strange, folder / "sva", folder / "run")
    with pytest.raises(InputError, match=r"is not a benchmark: it is empty"):
        Samples(explainer, tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "a filter is a JSON object"),
        ({"attractor": 1}, "unknown option 'attractor'. Did you mean 'attractors'"),
        ({"attractors": "1"}, "attractors is '1', expected int"),
        ({"descending": 1}, "descending is '1', expected bool"),
        ({"predicted": "maybe"}, "give wrong or correct"),
        ({"metric": "mrs"}, "unknown metric 'mrs'. Did you mean 'mrr'"),
        ({"page": -1}, "pages count from 0"),
    ],
)
def test_filters_that_cannot_be_used(data, message):
    with pytest.raises(InputError, match=message):
        filter_of(data)
