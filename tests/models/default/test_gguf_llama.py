"""The conversion of a GGUF file keeps every value, and the tokenizer splits as SmolLM's does."""

import pytest
import tiny_files
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lrpx.errors import InputError, UnsupportedModelError
from lrpx.models.default import gguf_llama

pytest.importorskip("gguf", reason="needs the package gguf")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("quantized", [False, True], ids=["float32", "Q4_1"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_every_weight_arrives_bit_for_bit(tmp_path, folder, tied, quantized):
    expected = tiny_files.write_gguf(tmp_path / "tiny.gguf", tied=tied, quantized=quantized)
    ticks = []

    gguf_llama.convert(tmp_path / "tiny.gguf", folder, tick=lambda: ticks.append(1))

    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    state = model.state_dict()
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert state.keys() == expected.keys() | {"lm_head.weight"}
    for name, values in expected.items():
        assert torch.equal(state[name], torch.from_numpy(values)), name
    assert len(ticks) == len(expected)


def test_the_configuration_says_what_the_file_says(tmp_path, folder):
    tiny_files.write_gguf(tmp_path / "tiny.gguf")
    gguf_llama.convert(tmp_path / "tiny.gguf", folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    assert config.architectures == ["LlamaForCausalLM"]
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (64, 96, 2)
    assert (config.vocab_size, config.max_position_embeddings) == (tiny_files.VOCABULARY, 128)
    assert config.rms_norm_eps == pytest.approx(1e-5, rel=1e-6)
    assert config.rope_parameters["rope_theta"] == 1e5
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert model.generation_config.eos_token_id == 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_files.write_gguf(folder / "tiny.gguf")
    gguf_llama.convert(folder / "tiny.gguf", folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("to the", ["t", "o", "Ġthe"]),
        ("the  the", ["t", "he", "Ġ", "Ġthe"]),  # the second space belongs to the word
        (" 12", ["Ġ", "1", "2"]),  # digits stand alone, although 1 2 is a merge
        ("a  1", ["a", "ĠĠ", "1"]),  # and take no space with them
        ("<|im_start|>t<|im_end|>", ["<|im_start|>", "t", "<|im_end|>"]),  # no second BOS
        ("", []),
    ],
)
def test_text_is_split_as_by_smollm(tokenizer, text, pieces):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids  # nothing is added
    assert tokenizer.decode(ids) == text


def test_text_survives_the_round_trip(tokenizer):
    text = "naïve café 日本語 🙂 12,345  two  spaces . , !\n\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens_and_chat_template(tokenizer):
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        0,
        1,
        2,
        2,
    )
    assert len(tokenizer) == tiny_files.VOCABULARY
    assert tokenizer.model_max_length == 128
    assert tokenizer.decode([1, 84, 2], skip_special_tokens=True) == tokenizer.decode([84])
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n"
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], return_dict=True)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1


def test_another_kind_of_file_is_refused(tmp_path, folder):
    tiny_files.write_gguf(tmp_path / "other.gguf", pre="llama-bpe")
    with pytest.raises(UnsupportedModelError, match="llama-bpe"):
        gguf_llama.convert(tmp_path / "other.gguf", folder)
    (tmp_path / "text.gguf").write_bytes(b"not a GGUF file at all" * 10)
    with pytest.raises(InputError, match=r"text\.gguf is not a GGUF file"):
        gguf_llama.convert(tmp_path / "text.gguf", folder)
    assert not list(folder.iterdir())


def test_an_unknown_tensor_is_an_error():
    assert gguf_llama._transformers_name("blk.3.ffn_up.weight") == "model.layers.3.mlp.up_proj.weight"
    for name in ("blk.0.attn_q_norm.weight", "rope_freqs.weight"):
        with pytest.raises(UnsupportedModelError, match=name):
            gguf_llama._transformers_name(name)
