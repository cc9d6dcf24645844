"""Names, folders and GGUF files become models that are ready to explain, or errors that say what to type."""

import functools
import importlib.util
import json
import logging
import shutil

import pytest
import support
import tiny_files
import torch
import transformers
from transformers import (
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)

from lrpx.errors import InputError, UnsupportedModelError
from lrpx.models import gguf_file, loading
from lrpx.models.auto_class import auto_class_of
from lrpx.models.default import gguf_llama
from lrpx.models.loading import _first_sentence
from lrpx.models.options import parse_device
from lrpx.models.provenance import model_identity

load = functools.partial(loading.load, device="cpu")  # unless a test says where
CLASSES = {"gpt2": GPT2LMHeadModel, "bert": BertForMaskedLM, "llama": LlamaForCausalLM}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Family -> (folder, the model that was saved there)."""
    root = tmp_path_factory.mktemp("models")
    return {
        name: (root / name, tiny_files.save(root / name, model_class, tiny_files.CONFIGS[name]))
        for name, model_class in CLASSES.items()
    }


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the GPT-2 that a test may damage."""
    return shutil.copytree(saved["gpt2"][0], tmp_path / "model")


def edit_config(folder, **changes):
    """Change entries of ``config.json``; ``None`` removes one."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


# Folders


@pytest.mark.parametrize("family", CLASSES)
def test_a_folder_becomes_the_model_that_was_saved(saved, family):
    folder, original = saved[family]
    loaded = load(folder)
    model, tokenizer = loaded
    assert (model, tokenizer) == (loaded.model, loaded.tokenizer)
    assert type(model) is CLASSES[family]
    assert not model.training
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    ids = tokenizer("to the cabinet", return_tensors="pt")["input_ids"]
    assert torch.equal(ids, tiny_files.tokenizer()("to the cabinet", return_tensors="pt")["input_ids"])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, original(ids).logits)
    assert model_identity(model) == {"model": str(folder), "revision": None}


def test_a_name_can_be_a_string_with_a_tilde(saved, monkeypatch):
    folder, _ = saved["gpt2"]
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    assert type(load("~/gpt2").model) is GPT2LMHeadModel


@pytest.mark.parametrize("which", ["gpt2", "bert-base-uncased"])
def test_real_tokenizers_arrive_unchanged(tmp_path, which):
    source = support.SHARED / "tokenizers" / which
    if not source.exists():
        pytest.skip(f"needs ../shared/tokenizers/{which}, which is not here")
    family = which.split("-")[0]
    original = transformers.AutoTokenizer.from_pretrained(source)
    config = type(tiny_files.CONFIGS[family])(**(tiny_files.CONFIGS[family].to_dict() | {"vocab_size": len(original)}))
    tiny_files.save(tmp_path, CLASSES[family], config, with_tokenizer=False)
    original.save_pretrained(tmp_path)
    tokenizer = load(tmp_path).tokenizer
    text = "The keys to the cabinet are 1984's, naïvely."
    assert tokenizer(text)["input_ids"] == original(text)["input_ids"]
    assert tokenizer.mask_token == original.mask_token


# dtype, device, attention


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16, torch.float16])
def test_without_dtype_the_checkpoint_keeps_its_own(tmp_path, own):
    tiny_files.save(tmp_path, GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"], dtype=own)
    assert load(tmp_path).model.dtype == own
    assert load(tmp_path, dtype="auto").model.dtype == own
    assert load(tmp_path, dtype="float32").model.dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float64", torch.float64),
        ("fp64", torch.float64),
        ("torch.float32", torch.float32),
        ("FP32", torch.float32),
        ("bf16", torch.bfloat16),
        ("bfloat16", torch.bfloat16),
        ("half", torch.float16),
        (torch.float16, torch.float16),
    ],
)
def test_names_of_dtypes(saved, dtype, expected):
    assert {p.dtype for p in load(saved["gpt2"][0], dtype=dtype).model.parameters()} == {expected}


def test_float64_holds_the_saved_values_exactly(saved):
    folder, original = saved["llama"]
    state = load(folder, dtype="float64").model.state_dict()
    for name, values in original.state_dict().items():
        assert torch.equal(state[name], values.double()), name


@pytest.mark.parametrize("dtype", ["flaot32", "int8", torch.int64, ""])
def test_unknown_dtypes(saved, dtype):
    with pytest.raises(InputError, match=r"unknown dtype .*Known: auto, bf16"):
        load(saved["gpt2"][0], dtype=dtype)
    if dtype == "flaot32":
        with pytest.raises(InputError, match="Did you mean 'float32'"):
            load(saved["gpt2"][0], dtype=dtype)


@pytest.mark.parametrize("device", ["cpu", "CPU", torch.device("cpu"), "cpu:0"])
def test_names_of_devices(saved, device):
    assert load(saved["gpt2"][0], device=device).model.device.type == "cpu"


@pytest.mark.parametrize("device", [None, "auto"])
def test_without_device_a_gpu_is_used_where_there_is_one(saved, device, monkeypatch):
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert load(saved["gpt2"][0], device=device).model.device.type == expected
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse_device(device) == torch.device("cuda")


@pytest.mark.parametrize("device", ["gpux", "xgpu", "gpu0"])
def test_unknown_devices_are_told_as_they_were_given(device):
    with pytest.raises(InputError, match=f"unknown device '{device}'. .*Known: auto, cpu"):
        parse_device(device)


def test_devices_that_are_not_there(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_device("gpu:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match=r"'cuda:2': torch sees 2 CUDA devices here\. Type device='cpu'"):
        load(saved["gpt2"][0], device="cuda:2")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match="'mps' is not available here"):
        load(saved["gpt2"][0], device="mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(InputError, match="'mps' has no float64"):
        load(saved["gpt2"][0], device="mps", dtype="float64")
    with pytest.raises(InputError, match=r"unknown device 'cdua'\. Did you mean 'cuda'"):
        load(saved["gpt2"][0], device="cdua")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_implementation_is_passed_on(saved, attention):
    assert load(saved["llama"][0], attn_implementation=attention).model.config._attn_implementation == attention


def test_an_attention_implementation_that_is_not_there(saved):
    with pytest.raises(InputError, match=r"attn_implementation='sdpaa' is not known. Did you mean 'sdpa'"):
        load(saved["llama"][0], attn_implementation="sdpaa")


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is installed")
def test_flash_attention_that_is_not_installed_says_what_to_take(saved):
    with pytest.raises(
        InputError, match=r'cannot be loaded: .* Take attn_implementation="sdpa": flash attention hides'
    ):
        load(saved["llama"][0], attn_implementation="flash_attention_2")


def test_the_log_says_what_was_chosen(saved, caplog):
    caplog.set_level(logging.INFO, logger="lrpx")
    folder, _ = saved["bert"]
    load(folder, dtype="bf16", attn_implementation="eager", device="cpu")
    said = f"{folder}: BertForMaskedLM, torch.bfloat16 on cpu, attention implementation eager"
    assert [r.getMessage() for r in caplog.records if r.name == "lrpx"] == [said]


# Which class


def test_without_architectures_the_family_decides(saved, tmp_path):
    expected = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM, "bert": BertForMaskedLM}
    for family, model_class in expected.items():
        folder = shutil.copytree(saved[family][0], tmp_path / family)
        edit_config(folder, architectures=None)
        assert type(load(folder).model) is model_class


def test_a_bert_that_looks_back_only_is_causal(tmp_path):
    config = type(tiny_files.CONFIGS["bert"])(**(tiny_files.CONFIGS["bert"].to_dict() | {"is_decoder": True}))
    tiny_files.save(tmp_path, BertLMHeadModel, config)
    assert type(load(tmp_path).model) is BertLMHeadModel
    edit_config(tmp_path, architectures=None)
    assert type(load(tmp_path).model) is BertLMHeadModel


@pytest.mark.parametrize(
    ("architecture", "model_type", "more", "expected"),
    [
        ("BertForPreTraining", "bert", {}, "masked"),
        ("XLMWithLMHeadModel", "xlm", {"causal": False}, "masked"),
        ("XLMWithLMHeadModel", "xlm", {"causal": True}, "causal"),
        ("TheirOwnForCausalLM", "their_own", {}, "causal"),
        ("TheirOwnForMaskedLM", "their_own", {}, "masked"),
        ("BertModel", "bert", {}, "AutoModel"),
        ("GPT2ForSequenceClassification", "gpt2", {}, "AutoModelForSequenceClassification"),
        ("BartForConditionalGeneration", "bart", {"is_encoder_decoder": True}, "AutoModelForSeq2SeqLM"),
        ("BartModel", "bart", {"is_encoder_decoder": True}, "AutoModelForSeq2SeqLM"),
        (None, "bart", {"is_encoder_decoder": True}, "AutoModelForSeq2SeqLM"),
        ("WhisperForConditionalGeneration", "whisper", {"is_encoder_decoder": True}, "AutoModelForSpeechSeq2Seq"),
        ("MusicgenForConditionalGeneration", "musicgen", {"is_encoder_decoder": True}, None),
        (None, "vit", {}, None),
    ],
)
def test_the_architecture_decides(architecture, model_type, more, expected):
    config = transformers.PreTrainedConfig(architectures=[architecture] if architecture else None)
    config.model_type = model_type
    for name, value in more.items():
        setattr(config, name, value)
    if expected is None:
        with pytest.raises(UnsupportedModelError, match="causal and masked language models are explained") as caught:
            auto_class_of(config, "x")
        assert (architecture or model_type) in str(caught.value)
    else:
        expected = {"causal": "AutoModelForCausalLM", "masked": "AutoModelForMaskedLM"}.get(expected, expected)
        assert auto_class_of(config, "x").__name__ == expected


def test_an_encoder_decoder(tmp_path):
    config = T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=tiny_files.VOCABULARY)
    tiny_files.save(tmp_path, T5ForConditionalGeneration, config)
    assert type(load(tmp_path).model) is T5ForConditionalGeneration


# What is missing or damaged


def test_names_that_lead_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("./model", "a/b/c", str(tmp_path / "no"), "~/no-such-folder", "model.gguf", r"models\gpt2"):
        with pytest.raises(InputError, match=r"no such file or folder\. Current folder"):
            load(name)
    with pytest.raises(InputError, match="name is empty"):
        load("")


def test_a_folder_without_a_configuration(tmp_path):
    with pytest.raises(InputError, match=r"has no config\.json\. Give a folder written by save_pretrained"):
        load(tmp_path)
    (tmp_path / "model.Q4_0.gguf").touch()
    with pytest.raises(InputError, match=r"has no config\.json\. Give the GGUF file itself: .*model\.Q4_0\.gguf"):
        load(tmp_path)


def test_a_file_that_is_not_gguf(saved):
    with pytest.raises(InputError, match=r"model\.safetensors is a file, but not a \.gguf file\. Give the folder"):
        load(saved["gpt2"][0] / "model.safetensors")


def test_a_damaged_configuration(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"configuration of .* cannot be read: .*not a valid JSON"):
        load(folder)
    (folder / "config.json").write_text('{"model_type": "no_such_type"}')
    with pytest.raises(InputError, match=r"configuration of .* cannot be read: .*no_such_type"):
        load(folder)


@pytest.mark.parametrize("family", CLASSES)
def test_a_missing_tokenizer_is_not_made_up(saved, tmp_path, family):
    """Where files are missing, transformers 5 makes a tokenizer without words."""
    folder = shutil.copytree(saved[family][0], tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(InputError, match=r"tokenizer.*tokenizer\.save_pretrained\(folder\)"):
        load(folder)


def test_missing_weights_are_not_made_up(saved, tmp_path):
    """With transformers alone they are random numbers, and it goes on."""
    original = saved["bert"][1]
    original.bert.save_pretrained(tmp_path)
    tiny_files.tokenizer().save_pretrained(tmp_path)
    assert type(load(tmp_path).model) is BertModel  # without its pooler, which no embedding needs
    edit_config(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(InputError, match=r"weights of BertForMaskedLM are missing .*cls\.predictions.*random numbers"):
        load(tmp_path)
    assert BertModel.from_pretrained(tmp_path).dtype == torch.float32  # the checkpoint itself is sound


def test_weights_of_another_shape(folder):
    edit_config(folder, n_positions=32)
    with pytest.raises(
        InputError, match=r"1 weights of GPT2LMHeadModel .* another shape there \(transformer\.wpe\.weight\)"
    ):
        load(folder)


def test_damaged_and_absent_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(
        InputError, match=r"cannot be loaded: .*\. The file of its weights is damaged: download the model again"
    ):
        load(folder)
    weights.unlink()
    with pytest.raises(InputError, match=r"cannot be loaded: .*model\.safetensors"):
        load(folder)


def test_code_of_a_repository_is_not_run_unasked(folder):
    edit_config(folder, model_type="theirs", auto_map={"AutoConfig": "configuration_theirs.TheirConfig"})
    (folder / "configuration_theirs.py").write_text("raise SystemExit('this must not run')")
    with pytest.raises(InputError, match="trust_remote_code=True"):
        load(folder)


@pytest.mark.parametrize("name", ["gpt2", "file.gguf"])
def test_revisions_belong_to_the_hub(saved, name, tmp_path):
    (tmp_path / "file.gguf").touch()
    path = saved["gpt2"][0] if name == "gpt2" else tmp_path / name
    with pytest.raises(InputError, match="revision='main': only models on the Hub have revisions"):
        load(path, revision="main")


# GGUF


@pytest.mark.parametrize("add_bos", [False, True])
def test_a_gguf_file_becomes_a_plain_model(tmp_path, add_bos):
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package, reason=f"needs the package {package}")
    file = tmp_path / "tiny.gguf"
    expected = tiny_files.write_gguf(file, quantized=True, add_bos=add_bos)
    model, tokenizer = load(file)
    for name, values in expected.items():
        assert torch.equal(model.state_dict()[name], torch.from_numpy(values)), name
    assert type(model) is LlamaForCausalLM
    assert model.dtype == torch.float32
    assert not model.training
    assert tokenizer("the")["input_ids"] == [1] * add_bos + tokenizer.convert_tokens_to_ids(["t", "he"])
    assert model_identity(model) == {"model": str(file), "revision": None}
    model.double().save_pretrained(tmp_path / "again")  # nothing of the packing is left
    assert not hasattr(model.config, "quantization_config")
    assert not getattr(model, "is_quantized", False)


def test_the_two_readers_of_gguf_agree(tmp_path):
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package, reason=f"needs the package {package}")
    tiny_files.write_gguf(tmp_path / "tiny.gguf", tied=False)
    gguf_llama.convert(tmp_path / "tiny.gguf", tmp_path)
    theirs, ours = load(tmp_path / "tiny.gguf"), load(tmp_path)
    ids = ours.tokenizer("to the cabinet", return_tensors="pt")["input_ids"]
    assert torch.equal(theirs.tokenizer("to the cabinet", return_tensors="pt")["input_ids"], ids)
    with torch.no_grad():
        assert torch.equal(theirs.model(ids).logits, ours.model(ids).logits)


def test_gguf_packages_that_are_missing(tmp_path, monkeypatch):
    (tmp_path / "tiny.gguf").touch()
    monkeypatch.setattr(gguf_file.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs gguf and accelerate: pip install gguf accelerate"):
        load(tmp_path / "tiny.gguf")


def test_a_file_that_is_gguf_by_name_only(tmp_path):
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package, reason=f"needs the package {package}")
    (tmp_path / "tiny.gguf").write_bytes(b"not a GGUF file at all" * 10)
    with pytest.raises(InputError, match=r"tiny\.gguf cannot be read"):
        load(tmp_path / "tiny.gguf")


# model_identity


def test_the_identity_of_models_that_were_not_loaded():
    model = GPT2LMHeadModel(tiny_files.CONFIGS["gpt2"])
    assert model_identity(model) == {"model": "GPT2LMHeadModel", "revision": None}
    assert model_identity(torch.nn.Linear(2, 2)) == {"model": "Linear", "revision": None}


def test_the_reason_why_there_is_no_tokenizer_is_a_whole_sentence():
    said = "\n".join(["Couldn't instantiate the backend tokenizer from one of: ", "(1) a file, ", "(2) a slow one"])
    assert _first_sentence(ValueError(said)) == "Couldn't instantiate the backend tokenizer."
    assert _first_sentence(ValueError("No such file.\nMore")) == "No such file."
    assert _first_sentence(ValueError()) == "ValueError."
