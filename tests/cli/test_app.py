"""``lrpx app``: what is refused before a model is loaded, who can reach it, and that it answers."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing

import pytest
import tiny_files
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

from lrpx.cli.app import _listen, _names_of, is_loopback
from lrpx.cli.main import app
from lrpx.errors import InputError

run = CliRunner().invoke


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "0"], "--max-tokens 0: give a number from 1"),
        (["--max-new-tokens", "-1"], "--max-new-tokens -1: give a number from 1"),
        (["--records", "runs"], "give --benchmark DIR too"),
        (["--host", "203.0.113.7"], "--host 203.0.113.7: "),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(app, ["app", "--model", "/nowhere", *arguments], catch_exceptions=False)


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: .*--port 0 takes any that is free"):
            _listen("127.0.0.1", port)


def test_who_can_reach_it():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "box.local")] == [False] * 4
    assert _names_of("127.0.0.1") == set()
    assert _names_of("box.local") == {"box.local"}
    assert socket.gethostname() in _names_of("0.0.0.0")


SERVES = """
import threading
from types import SimpleNamespace
from lrpx.app.server import build
from lrpx.cli.app import _listen, _serve

def likeliest(question):
    print("computing", flush=True)
    threading.Event().wait()

with _listen("127.0.0.1", 0) as listening:
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    _serve(build(SimpleNamespace(likeliest=likeliest)), listening)
"""


def test_an_interrupt_does_not_wait_for_what_is_computed():
    with subprocess.Popen(
        [sys.executable, "-c", SERVES], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()))) as client:
                client.request("POST", "/api/explain", '{"text": "The"}', {"Content-Type": "application/json"})
                assert process.stdout.readline() == "computing\n"
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, "")


@pytest.mark.slow
def test_the_command_answers_until_it_is_stopped(tmp_path):
    tiny_files.save(tmp_path / "tiny", GPT2LMHeadModel, tiny_files.CONFIGS["gpt2"])
    command = [sys.executable, "-m", "lrpx", "app", "--model", tmp_path / "tiny", "--port", "0", "--host", "0.0.0.0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            port = re.search(r":(\d+)  ", process.stdout.readline())[1]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/about", timeout=300) as answer:
                assert json.load(answer)["model"] == "tiny"
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
    assert "there is no password" in errors
    assert "Traceback" not in errors
    assert process.returncode == 130
