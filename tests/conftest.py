"""One thread per worker: the models are tiny, and threads that wait for each other cost more than they give."""

import asyncio
import gc
import os

import browser
import compiled_tools
import pytest
import torch

from lrpx.passes import model_state


def pytest_configure(config):
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start


def pytest_collection_finish(session):
    """What was imported stays; looking at it again and again took the garbage collector a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture
def trusted(monkeypatch):
    """Code of these tests counts as known code, which reads nothing but what modules hold."""
    monkeypatch.setattr(model_state, "KNOWN_CODE", {*model_state.KNOWN_CODE, "support", "tests"})


@pytest.fixture(autouse=True)
def one_thread():
    """Again after a test of something that sets the number: with more, the tests that follow take up to thirty times longer."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """A failure that would only make a pass slower is raised."""
    monkeypatch.setenv("LRPX_STRICT", "1")


@pytest.fixture
def lenient(strict, monkeypatch):
    """As users have it: what cannot be captured or compiled runs as usual."""
    monkeypatch.delenv("LRPX_STRICT")


@pytest.fixture
def quickly():
    """As ``compiled_tools.quick``."""
    with compiled_tools.quick():
        yield


@pytest.fixture
def as_traced(monkeypatch):
    """Pieces are not fused; what would be."""
    return compiled_tools.unfused(monkeypatch)


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests of this process, and Playwright's event loop."""
    if reason := browser.why_not():
        pytest.skip(reason)
    with browser.launched() as found:
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield found, loop
        asyncio._set_running_loop(loop)


@pytest.fixture
def new_page(chromium):
    """Opens pages: ``new_page(390, dark=True)``. The test fails if one of them logs an error, or asks another machine."""
    found, loop = chromium
    with browser.driving(loop):
        pages = browser.Pages(found)
        yield pages
        pages.close()
