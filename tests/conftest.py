"""One thread per worker: the models are tiny, and threads that wait for each other cost more than they give."""

import compiled_tools
import pytest
import torch

from lrpx.passes import model_state as fingerprint


def pytest_configure(config):
    torch.set_num_threads(1)


@pytest.fixture
def trusted(monkeypatch):
    """Code of these tests counts as known code, which reads nothing but what modules hold."""
    tests = {"support", "tests", "test_compiled", "test_fingerprint", "test_graphs"}
    monkeypatch.setattr(fingerprint, "KNOWN_CODE", {*fingerprint.KNOWN_CODE, *tests})


@pytest.fixture
def quickly():
    """As ``compiled_tools.quick``."""
    with compiled_tools.quick():
        yield


@pytest.fixture
def as_traced(monkeypatch):
    """Pieces are not fused; what would be."""
    return compiled_tools.unfused(monkeypatch)
