"""The fixture for pages in a real browser can fail: for an error in a page, and for a request to another machine."""

import asyncio

import pytest

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    "content", ["<script>nothing()</script>", '<img alt="" src="http://example.org/x.png">'], ids=["error", "request"]
)
def test_what_a_page_does_wrong_is_noticed(new_page, content):
    new_page().set_content(content)
    assert new_page.complaints
    new_page.complaints.clear()


@pytest.mark.parametrize("dark", [False, True])
def test_a_page_has_the_width_and_the_colours_that_were_asked_for(new_page, dark):
    page = new_page(390, dark=dark)
    page.set_content("<p>text</p>")
    assert page.evaluate("window.innerWidth") == 390
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark


def test_other_tests_can_run_event_loops(chromium):
    asyncio.run(asyncio.sleep(0))
