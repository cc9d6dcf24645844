"""A made-up run and the condensed one that is packed from it."""

import pytest
from evaluation_tools import CONDENSED, made_up


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("runs") / "run", CONDENSED, parts=2)


@pytest.fixture(scope="module")
def packed(run, tmp_path_factory):
    from lrpx.evaluation.packing import pack

    return pack(run, tmp_path_factory.mktemp("packed") / "made-up")
