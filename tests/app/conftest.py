"""The app with a tiny model: its desk, and the address of its page."""

import app_tools
import pytest


@pytest.fixture(scope="module")
def desk():
    return app_tools.desk()


@pytest.fixture(scope="module")
def url(desk):
    with app_tools.served(desk) as address:
        yield address
