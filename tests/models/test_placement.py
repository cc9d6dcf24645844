"""A model that is divided over devices, or partly offloaded, is explained exactly as the undivided one."""

import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path

import accelerate
import numpy as np
import pytest
import tiny
import tiny_files
import torch
import transformers
from packaging.version import Version
from support import families, few_passes, slow_but
from torch import nn
from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM

import lrpx
from lrpx.check import check
from lrpx.cli import main as cli
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.methods import METHODS
from lrpx.models import device_map as device_maps
from lrpx.models.placement import (
    devices_of,
    entry_device,
    is_divided,
    is_offloaded,
    is_unloaded,
    offloaded_as,
    stored,
    stored_parameters,
)
from lrpx.models.provenance import model_facts
from lrpx.text.batching import Item, pad

CLASSES = {"gpt2": GPT2LMHeadModel, "bert": BertForMaskedLM, "llama": LlamaForCausalLM}
BLOCKS = {
    "causal:llama": "model.layers",
    "causal:gpt2": "transformer.h",
    "masked:bert": "bert.encoder.layer",
    "gpt2": "transformer.h",
    "bert": "bert.encoder.layer",
    "llama": "model.layers",
}
FAMILIES = ["causal:llama", "causal:gpt2", "masked:bert"]
ON_DISK = {"": "disk", "model.embed_tokens": "cpu", "lm_head": "cpu"}
IDS = [8, 20, 31, 44, 52, 60, 17]


def between_cpu_and_disk(model, family, folder):
    """The last block on disk, all else in memory."""
    path = BLOCKS[family]
    last = len(model.get_submodule(path)) - 1
    places = device_maps.complete({"": "cpu", f"{path}.{last}": "disk"}, model)
    return accelerate.dispatch_model(model, places, offload_dir=folder)


DIVISIONS = {
    "offloaded to the CPU": lambda model, family, folder: accelerate.cpu_offload(model, torch.device("cpu")),
    "offloaded to disk": lambda model, family, folder: accelerate.disk_offload(model, folder, torch.device("cpu")),
    "between the CPU and disk": between_cpu_and_disk,
}


@pytest.fixture(params=slow_but(DIVISIONS, "offloaded to the CPU"))
def divide(request, tmp_path):
    return lambda model, family: DIVISIONS[request.param](model, family, tmp_path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Name -> (folder of a saved model, the model)."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: (root / name, tiny_files.save(root / name, model_class, tiny_files.CONFIGS[name], dtype=torch.float64))
        for name, model_class in CLASSES.items()
    }


def assert_equal(found, expected, *, exactly=False):
    """Two explanations agree in everything, to the rounding of float64 or exactly.

    Of an output embedding that is offloaded all rows are computed, of another one only those asked for: that rounds otherwise.
    """
    assert (found.target, found.tokens, found.components.keys()) == (
        expected.target,
        expected.tokens,
        expected.components.keys(),
    )
    assert found.layers.keys() == expected.layers.keys()
    pairs = [(getattr(found, name), getattr(expected, name)) for name in ("value", "relevance", "by_layer", "by_head")]
    pairs += [(found.components[name], part) for name, part in expected.components.items()]
    pairs += [(found.layers[name], layer) for name, layer in expected.layers.items()]
    for one, other in pairs:
        assert (one is None) == (other is None)
        if other is not None:
            rtol, atol = (0, 0) if exactly else (1e-11, 1e-12)
            assert (np.shape(one), np.asarray(one).dtype) == (np.shape(other), np.asarray(other).dtype)
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def explained(model, method, **options):
    options |= few_passes(method)
    return lrpx.explain(model, None, IDS, target=9, contrast=10, position=4, method=method, **options)


# Every method


@pytest.mark.parametrize("method", METHODS)
@families(FAMILIES, quick=["causal:llama"])
def test_every_method_is_as_undivided(divide, family, method):
    if method == "leave-one-out" and not family.startswith("causal"):
        pytest.skip("leave-one-out is for causal language models")
    whole, model = tiny.build(family), divide(tiny.build(family), family)
    assert is_divided(model)
    expected = explained(whole, method)
    same_head = not model.get_output_embeddings().weight.is_meta
    for _ in range(2):  # nothing is left behind
        assert_equal(explained(model, method), expected, exactly=same_head)
    assert np.abs(expected.relevance).max() > 0


def test_hidden_relevance_is_as_undivided(divide):
    family = "causal:llama"
    whole, model = tiny.build(family), divide(tiny.build(family), family)
    at = ["embedding", "model.layers.*", "model.layers.1.mlp.act_fn"]
    found = explained(model, "attnlrp", at=at)
    assert len(found.layers) == len(whole.model.layers) + 1
    assert_equal(found, explained(whole, "attnlrp", at=at))


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputing_blocks_is_as_undivided(divide, family):
    whole, model = tiny.build(family), divide(tiny.build(family), family)
    assert_equal(explained(model, "attnlrp", checkpoint=True), explained(whole, "attnlrp"))


@pytest.mark.parametrize("method", ["attnlrp", "alti-logit"])
def test_a_batch_is_as_undivided(divide, method):
    family = "causal:gpt2"
    whole, model = tiny.build(family), divide(tiny.build(family), family)
    items = [Item(tuple(IDS), 3, 9, 10), Item(tuple(IDS[:4]), 2)]
    entry = METHODS[method]
    pairs = zip(*(entry.load()(m, pad(items, m), **entry.options) for m in (model, whole)), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found.relevance, expected.relevance, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["attnlrp", "alti-logit"])
def test_the_model_is_left_as_it_was(divide, family, method):
    model = divide(tiny.build(family), family)
    frozen = next(name for name, p in model.named_parameters() if name.endswith("weight"))
    model.get_parameter(frozen).requires_grad_(False)

    def state():
        hooks = [name for name, m in model.named_modules() if m._forward_hooks or m._forward_pre_hooks]
        return {n: (p.device, p.requires_grad, p.grad) for n, p in model.named_parameters()}, hooks

    explained(model, method)  # loading and offloading may make one parameter of two
    before = state()
    assert [n for n, (_, grad, _) in before[0].items() if not grad] == [frozen]
    explained(model, method)
    assert state() == before


@pytest.mark.parametrize("method", ["attnlrp", "alti-logit"])
def test_a_pass_in_inference_mode_does_no_harm(divide, method):
    family = "causal:llama"
    model = divide(tiny.build(family), family)
    with torch.inference_mode():
        model(torch.tensor([IDS]))
        explained(model, method)
    assert_equal(explained(model, method), explained(tiny.build(family), method))
    if method == "attnlrp":
        assert not any(p.is_inference() for p in model.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_the_weights_have_the_same_digest(divide):
    model, whole = divide(tiny.build("masked:bert"), "masked:bert"), tiny.build("masked:bert")
    explained(model, "lrp")
    found, expected = model_facts(model), model_facts(whole)
    assert found == expected
    with torch.no_grad():
        whole.bert.encoder.layer[1].output.dense.bias[0] += 1
    assert model_facts(whole)["weights"] != found["weights"]


def test_provenance_names_the_devices(divide):
    model = divide(tiny.build("causal:gpt2"), "causal:gpt2")
    assert explained(model, "lrp").provenance["device"] == devices_of(model) == "cpu, offloaded"


def test_check_holds_for_offloaded_models_as_for_others(divide):
    whole, model = tiny.build("masked:bert"), divide(tiny.build("masked:bert"), "masked:bert")
    expected, found = check(whole), check(model)

    def findings(report):
        return [line.partition(": ")[0] for _, line in report.lines if not line.startswith("relevance flow")]

    assert findings(found) == findings(expected)
    flow = "relevance flow is not checked: each token would load all offloaded weights anew"
    assert (None, flow) in found.lines
    assert found.sums == pytest.approx(expected.sums, rel=1e-11)
    assert found.holds
    assert_equal(explained(model, "lrp"), explained(whole, "lrp"))  # the biases are back


def test_numbers_that_are_not_finite_are_found_in_offloaded_weights(divide):
    model = tiny.build("causal:gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = torch.nan
    model = divide(model, "causal:gpt2")
    with pytest.raises(
        lrpx.NonFiniteError, match=r"weights hold NaN or infinity: transformer\.h\.1\.mlp\.c_fc\.weight"
    ):
        explained(model, "attnlrp")


# What is where


def test_facts_about_a_model_that_is_not_divided():
    model = tiny.build("causal:gpt2")
    assert (is_divided(model), is_offloaded(model), is_unloaded(model)) == (False, False, False)
    assert (entry_device(model), devices_of(model)) == (torch.device("cpu"), "cpu")
    for (name, found), (expected_name, expected) in zip(
        stored_parameters(model), model.named_parameters(), strict=True
    ):
        assert name == expected_name
        assert torch.equal(found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_stored_parameters_are_those_of_the_undivided_model(divide, family):
    model, whole = divide(tiny.build(family), family), tiny.build(family)
    explained(model, "lrp")
    found = dict(stored_parameters(model))
    assert is_offloaded(model)
    assert not is_unloaded(model)
    assert found.keys() == dict(whole.named_parameters()).keys()
    for name, expected in whole.named_parameters():
        assert torch.equal(found[name], expected)


def test_a_batch_goes_where_the_embedding_computes(divide):
    model = divide(tiny.build("causal:llama"), "causal:llama")
    assert entry_device(model) == torch.device("cpu")
    assert pad([Item((8, 9), 1)], model).inputs["input_ids"].device == torch.device("cpu")


def test_weights_that_nothing_loads_are_refused():
    with torch.device("meta"):
        model = LlamaForCausalLM(tiny_files.CONFIGS["llama"]).eval()
    assert is_unloaded(model)
    with pytest.raises(InputError, match="not loaded"):
        lrpx.explain(model, None, IDS)


def test_alti_logit_says_what_it_cannot_read(tmp_path):
    kind = {"preload_module_classes": ["LlamaAttention"]}  # loads what is below such a module, which then has no hook
    model = accelerate.cpu_offload(tiny.build("causal:llama"), torch.device("cpu"), **kind)
    assert not is_unloaded(model)
    assert_equal(explained(model, "attnlrp"), explained(tiny.build("causal:llama"), "attnlrp"))
    with pytest.raises(UnsupportedModelError, match="weight can be read"):
        explained(model, "alti-logit")


def test_offloaded_weights_can_be_read_as_others():
    model = accelerate.cpu_offload(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), torch.device("cpu"))
    x = torch.randn(3, 2)
    before = model(x)
    with offloaded_as(model, lambda name, weight: torch.zeros_like(weight) if name == "bias" else weight):
        assert stored(model[0], "bias").count_nonzero() == 0
        assert not torch.equal(model(x), before)
    assert torch.equal(model(x), before)
    assert stored(model[0], "no such name") is None


# Loading


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", slow_but(CLASSES, "gpt2"))
def test_a_model_loaded_by_a_device_map_is_as_any_other(folders, name, method):
    if method == "leave-one-out" and name == "bert":
        pytest.skip("leave-one-out is for causal language models")
    folder, whole = folders[name]
    model, _ = lrpx.load(folder, device_map={"": "cpu", f"{BLOCKS[name]}.0": "disk"})
    assert is_offloaded(model)
    assert_equal(explained(model, method), explained(whole, method))


# On two GPUs PyTorch says this of a model that is divided over them; no gradient is accumulated here, and nothing is captured.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@pytest.mark.parametrize("device_map", ["auto", "balanced_low_0", ON_DISK, json.dumps(ON_DISK)])
def test_other_device_maps(folders, device_map):
    folder, whole = folders["llama"]
    model, _ = lrpx.load(folder, device_map=device_map)
    found, expected = explained(model, "attnlrp"), explained(whole, "attnlrp")
    if torch.cuda.is_available() and isinstance(device_map, str):
        np.testing.assert_allclose(found.relevance, expected.relevance, rtol=1e-3, atol=1e-4)
    else:
        assert_equal(found, expected)


def test_another_dtype_can_go_to_disk(folders):
    folder, _ = folders["gpt2"]
    model, _ = lrpx.load(folder, dtype="float32", device_map={"": "cpu", "transformer.h": "disk"})
    expected = lrpx.load(folder, dtype="float32", device="cpu").model
    assert model.dtype == torch.float32
    found, expected = explained(model, "alti-logit"), explained(expected, "alti-logit")
    np.testing.assert_allclose(found.relevance, expected.relevance, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_of_an_older_format_can_go_to_disk(folders, tmp_path):
    folder, whole = folders["llama"]
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(whole.state_dict(), tmp_path / "pytorch_model.bin")
    model, _ = lrpx.load(tmp_path, device_map={"": "cpu", "model.layers.1": "disk"})
    assert_equal(explained(model, "attnlrp"), explained(whole, "attnlrp"))


@pytest.mark.parametrize("device_map", [{"": "disk"}, {"": "disk", "model.norm": "cpu"}])
def test_all_on_disk_works_or_is_refused(folders, device_map):
    folder, whole = folders["llama"]
    try:
        model, _ = lrpx.load(folder, device_map=device_map)
    except InputError as error:
        assert "this version of transformers" in str(error)  # noqa: PT017
        assert Version(transformers.__version__) < Version("5.17")
    else:
        assert_equal(explained(model, "attnlrp"), explained(whole, "attnlrp"))


def test_the_log_says_how_the_model_was_divided(folders, caplog):
    with caplog.at_level(logging.INFO, "lrpx"):
        lrpx.load(folders["bert"][0], device_map={"": "cpu", "bert.encoder.layer.1": "disk"})
    assert "BertForMaskedLM, torch.float64 on cpu (1 blocks, 0.000" in caplog.text
    assert "; disk (1 blocks, " in caplog.text
    assert [record.name for record in caplog.records] == ["lrpx"]  # nothing of accelerate's


@pytest.mark.parametrize(
    ("device_map", "message"),
    [
        ("atuo", r"unknown device_map 'atuo'. Did you mean 'auto'"),
        ("cuda:1", r"single device. Type device='cuda:1'"),
        ({}, "expected device_map="),
        (3, "expected device_map="),
        ({0: "cpu"}, "expected device_map="),
        ("{no json", "no valid JSON"),
        ({"": "gpu0"}, r"sends everything else to 'gpu0', which cannot be used.* Known"),
        ({"": "meta"}, "holds no numbers"),
        ({"": "cuda:99"}, r"sends everything else to 'cuda:99', .* torch sees \d+ CUDA devices"),
        ({"lm_head": 99, "": "cpu"}, r"sends 'lm_head' to '99', .* CUDA devices"),
        ({"lm_head": None, "": "cpu"}, r"sends 'lm_head' to 'None'"),
        ({"lm_haed": "cpu", "": "cpu"}, r"has no module 'lm_haed'. Did you mean 'lm_head'"),
        ({"model.embed_tokens": "cpu"}, r"says nothing about 'model.layers'"),
    ],
)
def test_device_maps_that_cannot_be_used(folders, device_map, message):
    with pytest.raises(InputError, match=message):
        lrpx.load(folders["llama"][0], device_map=device_map)


def test_a_device_and_a_device_map(folders):
    with pytest.raises(InputError, match=r"device='cpu' and device_map='auto': give one of them"):
        lrpx.load(folders["llama"][0], device="cpu", device_map="auto")


def test_accelerate_is_asked_for(folders, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "accelerate" else find(name, *a))
    with pytest.raises(InputError, match=r"pip install accelerate"):
        lrpx.load(folders["llama"][0], device_map="auto")


def test_complete_gives_every_weight_one_place():
    model = BertForMaskedLM(tiny_files.CONFIGS["bert"])
    places = device_maps.complete({"": "cpu", "bert.encoder.layer.1": "disk"}, model)
    assert places["bert.encoder.layer.1"] == "disk"
    assert "" not in places
    for name, _ in model.named_parameters():
        above = [place for place in places if name == place or name.startswith(place + ".")]
        assert len(above) == 1
        assert places[above[0]] == ("disk" if "layer.1" in name else "cpu")


def test_a_block_is_not_divided_between_gpus():
    model = LlamaForCausalLM(tiny_files.CONFIGS["llama"])
    device_maps.check_blocks({"": 0, "model.layers.1": 1}, model)
    device_maps.check_blocks({"": 0, "model.layers.1.mlp": "cpu"}, model)  # it computes on 0
    with pytest.raises(InputError, match=r"divides model.layers.1 between cuda:0 and cuda:1"):
        device_maps.complete({"": 0, "model.layers.1.mlp": 1}, model)


def test_what_is_tied_is_not_divided_between_gpus():
    model = LlamaForCausalLM(tiny_files.CONFIGS["llama"])  # its head is its embedding
    with pytest.raises(
        InputError, match=r"'lm_head.weight' is 'model.embed_tokens.weight'.* to cuda:1 and the other to cuda:0"
    ):
        device_maps.complete({"": 0, "lm_head": 1}, model)


def test_the_command_line_divides_too(folders, monkeypatch, capsys):
    command = [
        "lrpx",
        "explain",
        "to the cabinet",
        "--format",
        "json",
        "--model",
        str(folders["llama"][0]),
        "--device-map",
    ]
    monkeypatch.setattr("sys.argv", [*command, json.dumps(ON_DISK)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    (explained,) = json.loads(capsys.readouterr().out)
    assert explained["provenance"]["device"] == "cpu, offloaded"
    monkeypatch.setattr("sys.argv", [*command, "atuo"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "Did you mean 'auto'" in capsys.readouterr().err


# Several devices that compute


@pytest.fixture(scope="module")
def on_two_devices():
    """Family -> method -> largest difference, on the CPU and a pretended second device, which is as strict as a GPU."""
    backends = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(backends, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this version of PyTorch takes no device written in Python")
    script = Path(__file__).parents[1] / "helpers" / "pretended_device.py"
    run = subprocess.run([sys.executable, "-W", "ignore", str(script), *FAMILIES], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_of_two_devices_never_meet(family, on_two_devices):
    found = on_two_devices[family]
    methods = len(METHODS) - (not family.startswith("causal"))  # without leave-one-out
    assert len(found) == 2 * (methods + 1)  # and a flow
    assert max(found.values()) < 1e-12, found


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("rest", [1, "cpu", "disk"])
@pytest.mark.parametrize("name", CLASSES)
def test_two_gpus_are_as_one(folders, name, rest):
    folder, _ = folders[name]
    head = {"gpt2": "lm_head", "bert": "cls", "llama": "lm_head"}[name]  # tied to the embedding
    model, _ = lrpx.load(folder, device_map={"": 0, f"{BLOCKS[name]}.1": rest, head: 0})
    whole, _ = lrpx.load(folder, device="cuda:0")
    for method in METHODS:
        if method == "leave-one-out" and name == "bert":  # for causal language models
            continue
        expected, found = explained(whole, method), explained(model, method)
        assert_equal(found, expected)
        assert found.provenance["device"] == ("cuda:0, cuda:1" if rest == 1 else "cuda:0, offloaded")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("options", [{"checkpoint": True}, {"fast": True}, {"compile": True}])
def test_two_gpus_with_options_of_speed(lenient, folders, options):
    folder, _ = folders["llama"]
    model, _ = lrpx.load(folder, device_map={"": 0, "model.layers.1": 1, "lm_head": 0})
    found = [explained(model, "attnlrp", **options) for _ in range(3)]
    expected = explained(lrpx.load(folder, device="cpu").model, "attnlrp")
    for each in found:
        np.testing.assert_allclose(
            each.relevance, expected.relevance, rtol=0, atol=1e-2 * np.abs(expected.relevance).max()
        )
