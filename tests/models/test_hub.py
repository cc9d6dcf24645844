"""Models on the Hub, with a small Hub of our own: a web server in this process, asked by a process beside it."""

import http.server
import importlib.util
import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import tiny_files
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import GPT2LMHeadModel
from transformers.utils import logging as hf_logging

import lrpx
from lrpx.errors import InputError
from lrpx.models import hub
from lrpx.models.loading import load

pytestmark = pytest.mark.slow  # another process, whose answers are waited for
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves one model, org/tiny, and an adapter of it, and answers for others as the Hub does."""

    folder: Path
    up = True
    asked: list[str] = []  # noqa: RUF012

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        self.asked.append(f"{self.command} {self.path}")
        if not self.up or "org/unreachable" in self.path:
            self.connection.shutdown(socket.SHUT_RDWR)  # the line goes dead
        elif "org/gated" in self.path:
            self.fail(403, "GatedRepo")
        elif not any(f"org/{name}" in self.path for name in ("tiny", "bare", "adapter")):
            self.fail(401, "RepoNotFound")
        elif "/resolve/" not in self.path:
            self.fail(404, "EntryNotFound")
        else:
            repository, _, rest = self.path.partition("/resolve/")
            self.serve(repository, *rest.split("/", 1), body=body)

    def serve(self, repository, revision, file, *, body):
        path = (self.folder.parent / "adapter" if repository == "/org/adapter" else self.folder) / file
        if revision not in ("main", "v1", COMMIT):
            self.fail(404, "RevisionNotFound")
            return
        if repository == "/org/bare" or not path.is_file():
            self.fail(404, "EntryNotFound", {"X-Repo-Commit": COMMIT})
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{tiny_files.sha256(path)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def fail(self, status, code, headers=None):
        self.send_response(status)
        for name, value in {
            "X-Error-Code": code,
            "X-Error-Message": code,
            "Content-Length": "0",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args):
        pass


ASK = """
import json, sys, time, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Implicitly cleaning up", ResourceWarning)  # a folder that torch 2.6 makes on import
warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)  # PEFT's
time.sleep = lambda seconds: None  # Hugging Face waits between attempts
import lrpx.models.hub, lrpx.models.loading, lrpx.models.provenance
for line in sys.stdin:
    ask = json.loads(line)
    try:
        if "offline" in ask:
            import huggingface_hub.constants
            huggingface_hub.constants.HF_HUB_OFFLINE = ask.pop("offline")
        model, tokenizer = lrpx.models.loading.load(**{"device": "cpu", **ask})
        answer = lrpx.models.provenance.model_identity(model) | {"class": type(model).__name__, "words": len(tokenizer)}
        if adapters := lrpx.models.adapters.adapters_of(model):
            answer["adapters"] = adapters
    except lrpx.LrpxError as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
"""


def save_adapter(folder):
    """A LoRA for org/tiny, with the tokenizer that it was trained with."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated", FutureWarning)
        model = peft.get_peft_model(GPT2LMHeadModel(tiny_files.CONFIGS["gpt2"]), config)
        model.peft_config["default"].base_model_name_or_path = "org/tiny"
        model.save_pretrained(folder, save_embedding_layers=False)  # else PEFT asks the Hub
    tiny_files.tokenizer().save_pretrained(folder)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """A function that loads from our Hub, in another process: Hugging Face's libraries read its address on import."""
    folder = tmp_path_factory.mktemp("hub")
    Hub.folder = folder / "tiny"
    tiny_files.save(Hub.folder, GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    if importlib.util.find_spec("peft") is not None:
        save_adapter(folder / "adapter")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(folder / "home"),
        "PYTHONPATH": str(Path(lrpx.__file__).parents[1]),
        "NO_PROXY": "127.0.0.1",
    }
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"):
        env.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", ASK],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def call(**arguments):
        Hub.asked.clear()
        process.stdin.write(json.dumps(arguments) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield call
    _, noise = process.communicate()
    server.shutdown()
    server.server_close()
    assert noise == ""  # no bar, no warning, whatever was asked


TINY = {"model": "org/tiny", "revision": COMMIT, "class": "GPT2LMHeadModel", "words": tiny_files.VOCABULARY}


@pytest.mark.parametrize("revision", [None, "main", "v1", COMMIT])
def test_a_model_on_the_hub_is_pinned_to_a_commit(ask, revision):
    assert ask(name="org/tiny", revision=revision) == TINY
    files = [line for line in Hub.asked if "/resolve/" in line]
    first = f"/resolve/{revision or 'main'}/config.json"
    assert all(first in line or f"/resolve/{COMMIT}/" in line for line in files)


def test_what_was_loaded_once_loads_without_a_network(ask):
    assert ask(name="org/tiny") == TINY
    Hub.up = False
    try:
        assert ask(name="org/tiny") == TINY
    finally:
        Hub.up = True
    assert ask(name="org/tiny", offline=True) == TINY
    assert Hub.asked == []
    assert "error" in ask(name="org/other", offline=False)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs the package peft")
@pytest.mark.parametrize("revision", [None, COMMIT])
def test_an_adapter_on_the_hub_is_loaded_with_its_model(ask, revision):
    adapted = TINY | {"adapters": ["default (LORA)"]}
    assert ask(name="org/adapter", revision=revision) == adapted
    Hub.up = False
    try:
        assert ask(name="org/adapter", revision=revision) == adapted  # from the local cache
    finally:
        Hub.up = True


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"name": "org/gated"}, ["gated", "Ask for access", "hf auth login"]),
        ({"name": "org/none"}, ["no such model, or it is private", "Check the spelling", "token=..."]),
        ({"name": "smolm2-135m"}, ["no such model", "Did you mean 'smollm2-135m'?"]),
        ({"name": "org/tiny", "revision": "v9"}, ["has no revision 'v9'", "Leave it out"]),
        ({"name": "org/bare"}, ["has no config.json", "GGUF files, download one"]),
        ({"name": "org/unreachable"}, ["the Hub cannot be reached", "not in the local cache", "give a folder"]),
        ({"name": "org/none", "offline": True}, ["offline mode is on (HF_HUB_OFFLINE)", "not in the local cache"]),
        ({"name": "org/na me", "offline": False}, ["not a valid id on the Hub"]),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_errors_say_what_is_wrong_and_what_to_type(ask, arguments, parts):
    error = ask(**arguments)["error"]
    assert error.startswith("InputError: ")
    for part in parts:
        assert part in error, error


# Quiet


@pytest.fixture
def folder(tmp_path):
    tiny_files.save(tmp_path, GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    return tmp_path


@pytest.fixture
def screen():
    """What the loggers of transformers write to the screen."""
    handler = logging.StreamHandler(io.StringIO())
    logging.getLogger("transformers").addHandler(handler)
    yield handler.stream
    logging.getLogger("transformers").removeHandler(handler)


def settings():
    """What Hugging Face's libraries show."""
    return (
        hf_logging.get_verbosity(),
        hf_logging.is_progress_bar_enabled(),
        are_progress_bars_disabled(),
        [list(handler.filters) for handler in logging.getLogger("transformers").handlers],
    )


def test_loading_is_silent_and_changes_no_setting(folder, screen, capfd):
    before = settings()
    capfd.readouterr()
    load(folder, device="cpu")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError):
        load(folder, device="cpu")
    assert settings() == before
    assert capfd.readouterr() == ("", "")
    assert screen.getvalue() == ""


def test_bars_that_were_off_stay_off():
    assert not are_progress_bars_disabled()
    disable_progress_bars()  # the Hub's only
    try:
        with hub.quiet(bars=False):
            assert not hf_logging.is_progress_bar_enabled()
        assert hf_logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled()
    finally:
        enable_progress_bars()


def test_bars_can_stay():
    with hub.quiet(bars=True):
        assert hf_logging.is_progress_bar_enabled()


def test_only_lines_of_this_thread_are_diverted(screen, caplog):
    caplog.set_level("DEBUG", logger="lrpx")
    log = hf_logging.get_logger("transformers.test_hub")
    with hub.quiet(bars=False):
        log.warning("from here")
        log.error("an error")
        thread = threading.Thread(target=lambda: log.warning("from another thread"))
        thread.start()
        thread.join()
    log.warning("afterwards")
    assert screen.getvalue().split("\n") == ["an error", "from another thread", "afterwards", ""]
    assert [r.getMessage() for r in caplog.records if r.name == "lrpx"] == ["transformers.test_hub: from here"]


def test_a_handler_shared_with_us_is_no_loop(caplog):
    caplog.set_level("DEBUG", logger="lrpx")
    handler = logging.StreamHandler(io.StringIO())
    loggers = [logging.getLogger(name) for name in ("transformers", "lrpx")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with hub.quiet(bars=False):
            hf_logging.get_logger("transformers.test_hub").warning("once")
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert handler.stream.getvalue() == "transformers.test_hub: once\n"


def test_bars_are_for_terminals_and_notebooks(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert not hub.bars_wanted(True)
    monkeypatch.setitem(sys.modules, "ipykernel", object())  # imported, as by a tool that starts kernels
    assert not hub.bars_wanted(True)
    with monkeypatch.context() as inside:
        inside.setattr(hub, "in_notebook", lambda: True)
        assert hub.bars_wanted(True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert hub.bars_wanted(True)
    assert not hub.bars_wanted(False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    assert not hub.bars_wanted(True)
