"""One thread per worker: the models are tiny, and threads that wait for each other cost more than they give."""

import torch


def pytest_configure(config):
    torch.set_num_threads(1)
