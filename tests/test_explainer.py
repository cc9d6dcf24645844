"""``lrpx.explain``: a list is explained like its items one by one, padding carries nothing, and every option is heard."""

import contextlib
import inspect
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny
import tiny_files
import tiny_tokenizers
import torch
from support import CORE, families, few_passes, slow_but
from transformers import GPT2LMHeadModel

import lrpx
from lrpx.errors import UnsupportedModelError
from lrpx.methods import METHODS
from lrpx.models.positions import context_length
from lrpx.models.precision import matmul_precision
from lrpx.models.provenance import provenance
from lrpx.models.signature import ModelSignature
from lrpx.passes.attribution import run
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution
from lrpx.propagation import rules as lrpx_rules
from lrpx.text import grouping
from lrpx.text.batching import Item, pad
from lrpx.text.items import item_of
from lrpx.text.tokenization import encode

TEXT = tiny_tokenizers.TEXT
MIXTURE = "causal:mixtral"
FAMILIES = [
    "causal:gpt2",
    "masked:bert",
    "causal:llama",
    "causal:opt",
    "causal:bloom",
    "causal:gpt_neox",
    "causal:gemma2",
    "causal:mistral",  # a sliding window of 5 tokens
    "causal:qwen3",
    MIXTURE,
    "masked:roberta",
]
# Their convolutions, pools, landmarks and Fourier transforms would reach into padding.
NOT_PADDED = [
    "masked:convbert",
    "masked:fnet",
    "masked:funnel",
    "masked:longformer",
    "masked:mobilebert",
    "masked:nystromformer",
]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def ids_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(tiny.FIRST_TEXT_ID, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def positions_of(family, rows):
    return [None if family.startswith("causal") else len(row) // 2 for row in rows]


def assert_same(actual, expected, tolerance):
    """Relevance of all kinds agrees, relative to the largest value."""
    assert (actual.tokens, actual.target, actual.position) == (expected.tokens, expected.target, expected.position)
    for name, numbers in actual._numbers():
        numbers, other = np.asarray(numbers), np.asarray(dict(expected._numbers())[name])
        assert numbers.shape == other.shape
        scale = np.abs(other).max() if numbers.ndim else np.abs(expected.relevance).max() + abs(expected.value)
        assert np.abs(numbers - other).max() <= tolerance * scale, name


# Batches


EXACT = [(family, torch.float64) for family in FAMILIES]
ROUNDED = [(family, torch.float32) for family in (*CORE, MIXTURE)]  # whose experts are one product in float32


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("family", "dtype"), slow_but([*EXACT, *ROUNDED], *(case for case in EXACT if case[0] in CORE))
)
def test_a_list_is_explained_like_one_by_one(family, method, dtype):
    if method == "leave-one-out" and not family.startswith("causal"):
        pytest.skip("it makes texts shorter, which is for causal models")
    model = tiny.build(family, dtype=dtype)
    rows = ids_of([12, 11, 5, 12, 1 if dtype == torch.float64 else 5])
    where = positions_of(family, rows)
    options = {"target": 11, "contrast": 13, "method": method, **few_passes(method)}
    together = lrpx.explain(model, None, rows, position=where, **options)
    for row, position, explanation in zip(rows, where, together, strict=True):
        assert_same(explanation, lrpx.explain(model, None, row, position=position, **options), TOLERANCE[dtype])


def test_the_check_above_pads():
    lengths = [12, 11, 5, 12, 1]
    groups = grouping.buckets(lengths, max_tokens=4096)
    assert any(len({lengths[i] for i in group}) > 1 for group in groups)


@families(NOT_PADDED, quick=["masked:fnet"])
def test_models_that_see_padding_get_none(family, monkeypatch):
    model = tiny.build(family)
    rows = ids_of([9, 8, 9])
    options = {"target": 11, "method": "lrp", "at": "embedding"}

    def errors():
        together = lrpx.explain(model, None, rows, position=4, **options)
        alone = [lrpx.explain(model, None, row, position=4, **options) for row in rows]
        return [
            np.abs(a.relevance - b.relevance).max() / np.abs(b.relevance).max()
            for a, b in zip(together, alone, strict=True)
        ]

    assert max(errors()) <= 1e-9
    if family != "masked:longformer":  # its masks are right in float32 and give NaN in float64
        monkeypatch.setattr(grouping, "allowed_waste", lambda *_: 0.1)
        with contextlib.suppress(UnsupportedModelError):  # where relevance reaches the padding, the pass itself says so
            assert max(errors()) > 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
@families(FAMILIES, quick=CORE)
def test_padding_on_either_side_carries_nothing(family, side):
    model = tiny.build(family)
    if side == "left" and model.config._attn_implementation == "eager":
        # A row of padding alone is masked with float64's smallest number, which transformers' float32 softmax cannot hold.
        model = tiny.build(family, dtype=torch.float32)
    rows = ids_of([12, 9, 11])
    items = [
        Item(tuple(row), len(row) // 2 if p is not None else len(row) - 1, 11, 13)
        for row, p in zip(rows, positions_of(family, rows), strict=True)
    ]
    places = ["input", "embedding"]
    for method, rules in (("attnlrp", "attnlrp"), ("gradient-x-input", {})):
        batch = pad(items, model, side=side)
        assert (batch.inputs["attention_mask"] == 0).any()
        result = run(model, batch, rules, places)
        padding = batch.inputs["attention_mask"] == 0
        for hidden in result.hidden.values():
            assert not hidden.gradient[padding].any()
            assert hidden.gradient[~padding].any()
        function, options = METHODS[method].load(), METHODS[method].options | {"at": places}
        for item, found in zip(items, function(model, batch, **options), strict=True):
            (alone,) = function(model, pad([item], model), **options)
            for a, b in ((found.relevance, alone.relevance), (found.layers["embedding"], alone.layers["embedding"])):
                assert np.abs(a - b).max() <= TOLERANCE[model.dtype] * np.abs(b).max()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["gpt2", "bert", "roberta"])
def test_a_padded_batch_encoding_is_the_plain_texts(kind, side):
    tokenizer = {"gpt2": "byte_level", "bert": "word_piece", "roberta": "roberta"}[kind]
    tokenizer = getattr(tiny_tokenizers, tokenizer)()
    model = {"gpt2": tiny_tokenizers.gpt2, "bert": tiny_tokenizers.bert, "roberta": tiny_tokenizers.roberta_model}[
        kind
    ](tokenizer)
    mask = tokenizer.mask_token or ""
    texts = [f"the keys to the cabinet {mask}", f"the {mask} key"] if mask else [TEXT, "the key"]
    batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
    target = tokenizer(" are" if kind != "bert" else "are", add_special_tokens=False)["input_ids"][0]
    padded = lrpx.explain(model, tokenizer, batch, target=target)
    for explanation, text in zip(padded, texts, strict=True):
        assert_same(explanation, lrpx.explain(model, tokenizer, text, target=target), 1e-9)
        assert explanation.units == lrpx.explain(model, tokenizer, text, target=target).units


def test_items_with_and_without_token_types_do_not_share_a_batch():
    tokenizer = tiny_tokenizers.word_piece()
    model = tiny_tokenizers.bert(tokenizer)
    ids = [2, 5, 4, 6, 3]
    pair = {"input_ids": ids, "token_type_ids": [0, 0, 1, 1, 1]}
    together = lrpx.explain(model, tokenizer, [ids, pair, "the [MASK] keys"])
    assert np.allclose(together[0].relevance, together[2].relevance, rtol=1e-9, atol=0)
    assert np.abs(together[0].relevance - together[1].relevance).max() > 1e-3
    alone = lrpx.explain(model, tokenizer, {name: torch.tensor([row]) for name, row in pair.items()})
    assert np.allclose(together[1].relevance, alone[0].relevance, rtol=1e-9, atol=0)


def test_many_batches_keep_the_order_of_the_texts():
    model = tiny.build("causal:gpt2")
    rows = ids_of([3, 9, 1, 7, 9, 2, 8])
    explanations = lrpx.explain(model, None, rows, batch_tokens=9, progress=False)
    assert [e.token_ids for e in explanations] == rows


# What may be given


@pytest.fixture(scope="module")
def gpt2():
    tokenizer = tiny_tokenizers.byte_level()
    return tiny_tokenizers.gpt2(tokenizer), tokenizer


@pytest.fixture(scope="module")
def bert():
    tokenizer = tiny_tokenizers.word_piece()
    return tiny_tokenizers.bert(tokenizer), tokenizer


def test_one_text_gives_one_explanation_and_a_list_a_list(gpt2):
    one = lrpx.explain(*gpt2, TEXT)
    assert isinstance(one, lrpx.Explanation)
    for several in ([TEXT], (TEXT,), np.array([TEXT]), gpt2[1]([TEXT]), torch.tensor(gpt2[1]([TEXT])["input_ids"])):
        (same,) = lrpx.explain(*gpt2, several)
        assert_same(same, one, 0)


def test_the_value_is_a_difference_of_the_models_logits(gpt2):
    model, tokenizer = gpt2
    ids = tokenizer(TEXT)["input_ids"]
    are, is_ = tokenizer.convert_tokens_to_ids(["Ġare", "Ġis"])
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    e = lrpx.explain(model, tokenizer, TEXT, target=" are", contrast=" is")
    assert (e.target, e.contrast, e.position) == ((are, "Ġare", " are"), (is_, "Ġis", " is"), 4)
    assert math.isclose(e.value, float(logits[4, are] - logits[4, is_]), rel_tol=1e-12)
    assert math.isclose(e.relevance.sum() + e.residual, e.value, rel_tol=1e-12)
    second = lrpx.explain(model, tokenizer, TEXT, target=are, position=1)
    assert math.isclose(second.value, float(logits[1, are]), rel_tol=1e-12)
    top = lrpx.explain(model, tokenizer, TEXT, position=-2)
    assert (top.target.id, top.position, top.contrast) == (int(logits[3].argmax()), 3, None)
    contrasted = lrpx.explain(model, tokenizer, TEXT, contrast=" is")
    assert math.isclose(contrasted.value, float(logits[4].max() - logits[4, is_]), rel_tol=1e-12)


def test_the_value_of_a_masked_model_is_at_the_mask(bert):
    model, tokenizer = bert
    ids = tokenizer("The keys [MASK] here")["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, 3]
    are, is_ = tokenizer.convert_tokens_to_ids(["are", "is"])
    e = lrpx.explain(model, tokenizer, "The keys [MASK] here", target="are", contrast="is")
    assert e.position == 3
    assert math.isclose(e.value, float(logits[are] - logits[is_]), rel_tol=1e-12)


@pytest.mark.filterwarnings("ignore:.* far less probable here than:lrpx.LrpxWarning")  # by chance, of random weights
def test_one_value_for_all_texts_or_one_each(gpt2):
    texts = [TEXT, "the key", "The"]
    for_all = lrpx.explain(*gpt2, texts, target=" are", contrast=" is")
    assert {(e.target.text, e.contrast.text) for e in for_all} == {("Ġare", "Ġis")}
    ids = gpt2[1].convert_tokens_to_ids(["Ġare", "Ġis", "Ġto"])
    for given in (ids, tuple(ids), np.array(ids), torch.tensor(ids), [" are", ids[1], np.int64(ids[2])]):
        each = lrpx.explain(*gpt2, texts, target=given)
        assert [e.target.text for e in each] == ["Ġare", "Ġis", "Ġto"]
    mixed = lrpx.explain(
        *gpt2, texts, target=[" are", None, None], contrast=[None, " is", None], position=[1, None, -1]
    )
    assert [e.contrast and e.contrast.text for e in mixed] == [None, "Ġis", None]
    assert mixed[0].target.text == "Ġare"
    assert mixed[2].target == lrpx.explain(*gpt2, "The").target
    assert [e.position for e in mixed] == [1, 1, 0]


def test_special_tokens_after_the_text_are_left_out_for_a_causal_model_only():
    tokenizer = tiny_tokenizers.roberta()
    causal = lrpx.explain(tiny_tokenizers.gpt2(tokenizer), tokenizer, TEXT)
    assert (causal.tokens[0], causal.tokens[-1], causal.position) == ("<s>", "Ġcabinet", 5)
    masked = lrpx.explain(tiny_tokenizers.roberta_model(tokenizer), tokenizer, TEXT + " <mask>")
    assert (masked.tokens[-1], masked.tokens[masked.position]) == ("</s>", "<mask>")


def test_chat_messages(gpt2):
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = tiny_tokenizers.CHAT
    messages = [{"role": "user", "content": "the keys"}]
    e = lrpx.explain(gpt2[0], tokenizer, messages, target="are")
    assert (e.text, e.target.text) == ("<user>the keys\n<assistant>", "are")
    assert len(lrpx.explain(gpt2[0], tokenizer, [messages, messages])) == 2


@pytest.mark.filterwarnings("ignore:the text ends with a space")
def test_unusual_texts(gpt2):
    for text in ("🤗", "a 👩‍👧 é", "<|endoftext|>", "The ", "\n", " x", "a\0b", "מפתחות", "\t\tx", "keys" * 64):
        if not text.strip():
            continue
        e = lrpx.explain(*gpt2, text)
        assert "".join(unit.text for unit in e.units) == text
        assert np.isfinite(e.relevance).all()


def test_ids_need_no_tokenizer(gpt2):
    model, tokenizer = gpt2
    ids = tokenizer(TEXT)["input_ids"]
    e = lrpx.explain(model, None, ids, target=3, contrast=4)
    assert (e.tokens, e.target, e.contrast, e.text) == ([str(i) for i in ids], (3, "3", "3"), (4, "4", "4"), None)
    assert np.array_equal(e.relevance, lrpx.explain(model, tokenizer, TEXT, target=3, contrast=4).relevance)


def test_layers_and_places(gpt2, tmp_path):
    blocks = ["transformer.h.0", "transformer.h.1"]
    e = lrpx.explain(*gpt2, TEXT, at=["embedding", *blocks])
    assert e.at == "embedding"
    assert {name: part.shape for name, part in e.layers.items()} == dict.fromkeys(blocks, (5, 32))
    assert np.allclose(e.relevance, lrpx.explain(*gpt2, TEXT, at="embedding").relevance, rtol=1e-12)
    both = lrpx.explain(*gpt2, TEXT, at=("input", "embedding"))
    assert (both.at, list(both.layers)) == ("input", ["embedding"])
    both.save(tmp_path / "e.json")
    assert lrpx.Explanation.load(tmp_path / "e.json").provenance == both.provenance


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_defaults(gpt2, method):
    e = lrpx.explain(*gpt2, TEXT, method=method)
    assert e.method == method
    assert e.relevance.shape == (5,)
    options = METHODS[method].options
    assert e.provenance["options"] == {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}


def test_provenance(gpt2):
    e = lrpx.explain(*gpt2, TEXT, target=" are", method="gradient", norm="l2")
    assert e.provenance["architecture"] == "GPT2LMHeadModel"
    assert e.provenance["dtype"] == "float64"
    assert e.provenance["device"] == "cpu"
    assert e.provenance["attn_implementation"] == "sdpa"
    assert e.provenance["method"] == "gradient"
    assert e.provenance["options"]["norm"] == "l2"
    assert e.provenance["target_text"] == "Ġare"
    assert (e.provenance["contrast"], e.provenance["contrast_text"]) == (None, None)
    assert e.provenance["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert {"model", "revision"} <= set(e.provenance)
    json.dumps(e.provenance, allow_nan=False)


def test_autocast_is_in_the_provenance(gpt2):
    """The dtype of the weights does not say in which one it is computed then."""
    with torch.autocast("cpu", torch.bfloat16):
        inside = lrpx.explain(*gpt2, TEXT).provenance
    assert inside["execution"].pop("autocast") == "bfloat16"
    assert inside == lrpx.explain(*gpt2, TEXT).provenance


def test_a_rule_set_of_the_users_own_is_named_in_the_provenance(gpt2):
    e = lrpx.explain(*gpt2, TEXT, rules={})
    assert e.provenance["options"]["rules"] == "{}"
    assert np.allclose(e.relevance, lrpx.explain(*gpt2, TEXT, method="gradient-x-input").relevance, rtol=1e-12)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inside_no_grad_and_inference_mode(gpt2, context):
    with context():
        inside = lrpx.explain(*gpt2, [TEXT, "the key"])
    for a, b in zip(inside, lrpx.explain(*gpt2, [TEXT, "the key"]), strict=True):
        assert_same(a, b, 0)


def test_threads_that_share_a_model_do_not_disturb_each_other(gpt2):
    expected = lrpx.explain(*gpt2, TEXT, target=5).relevance
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: lrpx.explain(*gpt2, TEXT, target=5).relevance, range(24)))
    assert all(np.array_equal(relevance, expected) for relevance in found)


def test_a_name_loads_the_model_and_its_tokenizer(tmp_path):
    model = tiny_files.save(tmp_path, GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    tokenizer = tiny_files.tokenizer()
    expected = lrpx.explain(model, tokenizer, "the 12")
    for name in (tmp_path, str(tmp_path)):
        assert_same(lrpx.explain(name, None, "the 12"), expected, 1e-5)
    own = tiny_files.tokenizer()
    own.add_tokens(["the 12"])
    with pytest.raises(lrpx.InputError, match="outside the model's vocabulary"):
        lrpx.explain(tmp_path, own, "the 12")  # the tokenizer that was given is the one that is used


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


@pytest.mark.parametrize("method", slow_but(METHODS, "lrp", "alti-logit"))
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
def test_speed_and_memory_options_reach_every_pass(gpt2, passes, method, options):
    e = lrpx.explain(*gpt2, TEXT, method=method, **options)
    several = lrpx.explain(*gpt2, [TEXT, "the key"], method=method, batch_tokens=5, **options)
    kind = METHODS[method].function.split(":")[0]
    changed = Execution(
        fast=False, checkpoint=options.get("checkpoint")
    )  # of changed embeddings: neither captured nor compiled
    expected = {"lrp": (Execution(**options), 3), "gradient": (Execution(**options), 3), "averaged": (changed, 6)}
    as_usual, times = expected.get(kind, (Execution(), 3 * (kind in ("occlusion", "surrogate"))))  # alti: no such pass
    assert passes == [as_usual] * times
    assert_same(several[0], e, 1e-12)
    assert not set(options) & set(e.provenance["options"])  # the method's own only
    usual = {"fast": None, "compile": False, "checkpoint": None, "float32_matmul_precision": matmul_precision()}
    assert e.provenance["execution"] == usual | options


@pytest.mark.parametrize("name", ["fast", "compile", "checkpoint"])
@pytest.mark.parametrize("value", [1, "yes"])
def test_bad_speed_and_memory_options_are_refused_first(gpt2, passes, name, value):
    with pytest.raises(lrpx.InputError, match=f"{name}={value!r}: give True or False"):
        lrpx.explain(*gpt2, TEXT, **{name: value})
    with pytest.raises(lrpx.InputError, match=f"{name}={value!r}: give True or False"):
        lrpx.explain("no/such-model", None, None, **{name: value})
    assert passes == []


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient", "gradient-x-input"])
def test_recomputing_blocks_changes_no_number(gpt2, bert, method):
    for model, tokenizer in (gpt2, bert):
        text = TEXT if model is gpt2[0] else "The keys [MASK] here"
        plain = lrpx.explain(model, tokenizer, text, method=method)
        assert_same(lrpx.explain(model, tokenizer, text, method=method, checkpoint=True), plain, 0)


# An Explainer


def test_an_explainer_gives_what_explain_gives(gpt2):
    explainer = lrpx.Explainer(*gpt2, method="lrp")
    for method in (None, "attnlrp"):
        for text in (TEXT, [TEXT, "the key"]):
            found = explainer(text, method=method, target=5, progress=False)
            expected = lrpx.explain(*gpt2, text, method=method or "lrp", target=5)
            for a, b in zip(*(each if isinstance(text, list) else [each] for each in (found, expected)), strict=True):
                assert_same(a, b, 0)
                assert a.method == (method or "lrp")


def test_several_methods_of_one_text_or_of_several(gpt2):
    explainer, names = lrpx.Explainer(*gpt2), ["alti-logit", "attnlrp", "gradient"]
    one = explainer(TEXT, method=names)
    assert isinstance(one, lrpx.Explanations)
    assert [e.method for e in one] == names
    two = explainer([TEXT, "the key"], method=names[:2])
    assert [(e.text, e.method) for e in two] == [(t, m) for t in (TEXT, "the key") for m in names[:2]]
    assert_same(two[1], one[1], 1e-12)
    assert isinstance(explainer([TEXT]), lrpx.Explanations)
    assert isinstance(explainer(TEXT, method=["lrp"]), lrpx.Explanations)


def test_each_method_gets_the_options_that_it_takes(gpt2):
    explainer = lrpx.Explainer(*gpt2)
    found = explainer(TEXT, method=["attnlrp", "gradient", "alti-logit"], norm="l2", at="embedding", direct=True)
    assert found[1].provenance["options"]["norm"] == "l2"
    assert [e.at for e in found[:2]] == ["embedding"] * 2
    assert found[2].provenance["options"] == {"direct": True}
    with pytest.raises(lrpx.InputError, match="attnlrp, lrp takes no option 'norm'"):
        explainer(TEXT, method=["attnlrp", "lrp"], norm="l2")
    with pytest.raises(lrpx.InputError, match="give the name of a method"):
        explainer(TEXT, method=[])
    for nothing in ((), (None,)):
        with pytest.raises(lrpx.InputError, match="no text given"):
            explainer(*nothing)
    with pytest.raises(lrpx.InputError, match="images= are those of a text, and no text is given: explainer"):
        explainer(images=["cat.png"])
    with pytest.raises(lrpx.InputError, match="no prompt given"):
        explainer.generate(images=["cat.png"])


def test_refresh_forgets_what_is_kept():
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    runner = explainer._runner
    runner.whole_head, kept = True, runner.graphs
    explainer.refresh()
    assert not runner.whole_head
    assert runner.graphs is not kept


def test_explain_recommends_an_explainer_once(gpt2, monkeypatch, caplog):
    """On a GPU, where one saves time."""
    module = sys.modules["lrpx.explainer.once"]
    model, other = tiny.build("causal:llama"), tiny.build("causal:llama")
    monkeypatch.setattr(module, "entry_device", lambda m: torch.device("cpu" if m is other else "cuda"))
    with caplog.at_level("INFO", logger="lrpx"):
        for _ in range(module.MANY_CALLS + 3):
            for each in (model, other):
                lrpx.explain(each, None, [5, 17, 3])
    (said,) = [r.getMessage() for r in caplog.records if "Explainer" in r.getMessage()]
    assert said.startswith(
        "lrpx.explain was called 8 times with one LlamaForCausalLM. An lrpx.Explainer(model, tokenizer)"
    )


# What the model reads


@pytest.mark.parametrize(
    ("family", "context"),
    [
        ("causal:gpt2", 64),
        ("masked:bert", 64),
        ("causal:llama", None),
        ("causal:opt", 64),
        ("causal:bloom", None),
        ("masked:roberta", 62),
        ("causal:mpt", 64),
    ],
)
def test_context_length(family, context):
    model = tiny.build(family, dtype=torch.float32)
    assert context_length(model) == context
    longest = context or 80
    item = item_of(ModelSignature.of(model), None, encode(None, [9] * longest)[0], target=3, position=0)
    result = run(model, pad([item], model), {}, ["embedding"])  # can be read
    assert np.isfinite(result.values).all()


def test_what_a_model_reads():
    signature = ModelSignature.of(tiny.build("masked:bert"))
    assert (signature.name, signature.task, signature.vocabulary, signature.context) == (
        "BertForMaskedLM",
        "masked",
        97,
        64,
    )
    assert signature.extras == {"token_type_ids"}
    assert ModelSignature.of(tiny.build("causal:opt")).extras == frozenset()


def test_a_rule_set_of_ones_own_is_recorded_by_the_names_of_its_rules():
    model = tiny.build("causal:llama")
    rules = {"softmax": lrpx_rules.constant, "linear": lrpx_rules.alpha1beta0}
    settings = provenance(model, "lrp", {"rules": rules, "at": ("input",)})["options"]
    assert settings == {"rules": "{'softmax': 'constant', 'linear': 'alpha_beta(1, 0)'}", "at": ["input"]}


# Texts that cannot be explained, among others


def test_errors_are_collected_where_that_is_asked_for(gpt2):
    texts = [TEXT, "", "the key", "keys " * 70, "The", 7]
    with pytest.raises(lrpx.InputError, match=r"^text\[1\]: the text '' is empty"):
        lrpx.explain(*gpt2, texts)
    found = lrpx.explain(*gpt2, texts, errors="collect", contrast=" is")
    assert [(f.index, f.text) for f in found.failures] == [(1, ""), (3, "keys " * 70), (5, 7)]
    assert [type(f.error) for f in found.failures] == [lrpx.InputError] * 3
    assert str(found.failures[0].error) == "the text '' is empty. Give at least one word."
    assert "more than the 64 that GPT2LMHeadModel can read" in str(found.failures[1].error)
    assert [e.text for e in found] == [TEXT, "the key", "The"]
    for e in found:
        assert_same(e, lrpx.explain(*gpt2, e.text, contrast=" is"), 1e-9)
    assert repr(found).endswith(", 3 failures)")
    assert found[:2].failures == ()


def test_an_error_of_one_text_in_a_batch_is_that_texts_alone(gpt2):
    """Found only when the batch is computed, by each method; a text that fails in one of them is left out of all."""
    model, tokenizer = gpt2
    texts = [TEXT, "the keys to the key"]
    top = lrpx.explain(model, tokenizer, texts[1]).target.id
    methods = ["lrp", "gradient"]
    found = lrpx.explain(model, tokenizer, texts, contrast=[None, top], method=methods, errors="collect")
    assert [(f.index, f.text) for f in found.failures] == [(1, texts[1])]
    assert "top prediction is the contrast itself" in str(found.failures[0].error)
    assert [(e.text, e.method) for e in found] == [(TEXT, "lrp"), (TEXT, "gradient")]


def test_numbers_that_are_not_finite_are_one_texts_alone():
    model = tiny.build("causal:llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = math.nan
    rows = [[9, 10, 11], [9, 50, 11], [12, 13, 14]]
    with pytest.raises(lrpx.NonFiniteError):
        lrpx.explain(model, None, rows, target=11)
    found = lrpx.explain(model, None, rows, target=11, errors="collect")
    assert [(f.index, type(f.error)) for f in found.failures] == [(1, lrpx.NonFiniteError)]
    assert [e.token_ids for e in found] == [rows[0], rows[2]]


def test_all_texts_may_fail_and_one_alone_raises(gpt2):
    found = lrpx.explain(*gpt2, ["", " "], errors="collect")
    assert (len(found), len(found.failures)) == (0, 2)
    with pytest.raises(lrpx.InputError, match=r"^the text '' is empty"):
        lrpx.explain(*gpt2, "", errors="collect")
    with pytest.raises(lrpx.InputError, match='errors=\'ignore\': give "raise" or "collect"'):
        lrpx.explain(*gpt2, ["a"], errors="ignore")


# What an explainer is made of


def test_an_unknown_keyword_names_all_options(gpt2):
    for call in (lambda: lrpx.explain(*gpt2, TEXT, taget=" are"), lambda: lrpx.Explainer(*gpt2)(TEXT, taget=" are")):
        with pytest.raises(
            lrpx.InputError, match=r"unknown option 'taget'\. Did you mean 'target'\? Known: .*position"
        ) as caught:
            call()
        assert "contrast" in str(caught.value)
    with pytest.raises(
        lrpx.InputError, match=r"unknown option 'group'\. It belongs to show\(\.\.\.\): explainer\(text\)\.show\(group="
    ):
        lrpx.Explainer(*gpt2)(TEXT, group="words")
    with pytest.raises(lrpx.InputError, match=r"unknown option 'batch_token'\. Did you mean 'batch_tokens'"):
        lrpx.explain(*gpt2, TEXT, batch_token=1)
    with pytest.raises(lrpx.InputError, match="attnlrp takes no option 'norm'"):
        lrpx.explain(*gpt2, TEXT, norm="l2")


def test_an_explainer_says_what_it_explains(gpt2):
    assert repr(lrpx.Explainer(*gpt2, method="lrp")) == "<Explainer of GPT2LMHeadModel (GPT2LMHeadModel): lrp>"


def test_without_a_model_the_default_one_is_taken(monkeypatch):
    asked = []
    monkeypatch.setattr(
        sys.modules["lrpx.explainer.api"], "load", lambda name: asked.append(name) or (tiny.build("causal:gpt2"), None)
    )
    lrpx.Explainer()
    assert asked == ["smollm2-135m"] == [inspect.signature(lrpx.load).parameters["name"].default]
