"""An app with a tiny random model, and what it answers: for tests with Starlette's client, and for those in a browser."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import tiny_tokenizers
import torch

import lrpx
from lrpx.app.desk import Desk, Limits
from lrpx.app.server import build

TEXT = tiny_tokenizers.TEXT


def explainer(dtype=torch.float64, *, chat=True):
    """A tiny random GPT-2 with its tokenizer."""
    tokenizer = tiny_tokenizers.byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    if chat:
        tokenizer.chat_template = tiny_tokenizers.CHAT
    return lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer, dtype), tokenizer)


def desk(limits=Limits(tokens=40, new_tokens=6), samples=None, **options):  # noqa: B008
    """A desk with that model."""
    return Desk(explainer(**options), limits, samples)


def client(of):
    """Starlette's client of a desk's app."""
    from starlette.testclient import TestClient

    return TestClient(build(of), base_url="http://127.0.0.1:7860")


def events(client, name, data, **options):
    """What the app answers: a list of events."""
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    answer = client.post(f"/api/{name}", content=json.dumps(data), headers=headers, **options)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def one(answers, event):
    """The last event of this name."""
    assert answers[-1]["event"] == "end", answers[-1]
    return [each for each in answers if each["event"] == event][-1]


@contextlib.contextmanager
def served(of):
    """The address of a desk's app, served by uvicorn in a thread."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(build(of), log_level="error", access_log=False, ws="none", lifespan="off"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


def settled(page):
    """The page, when nothing is computed any more."""
    page.wait_for_selector("#results[aria-busy=false]")
    return page
