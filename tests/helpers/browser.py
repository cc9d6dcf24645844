"""Pages in a real browser: headless Chromium of the system, driven by Playwright's Python package.

``new_page`` of ``conftest.py`` opens pages; all tests of a process share one browser. Whatever a page writes to the console as
an error, and whatever it asks of another machine, makes the test fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
from urllib.parse import urlsplit

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
).split()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESKTOP = 390, 1280  # widths, in CSS pixels
SECONDS = 180  # to wait for what will come: a machine may be busy with other tests
OWN = ("127.0.0.1", "localhost", None)  # hosts; None: data:, blob: and file: have none


def why_not():
    """Why there is no browser here, or ``None``."""
    if importlib.util.find_spec("playwright") is None:
        return "needs Playwright: pip install playwright"
    return None if CHROMIUM else "needs Chromium: apt-get install chromium"


@contextlib.contextmanager
def driving(loop):
    """Let Playwright's event loop count as the one that runs in this thread.

    Otherwise it would for the rest of the session, and nothing else could run a loop of its own here.
    """
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


@contextlib.contextmanager
def launched():
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Pages:
    """Pages of one test, each with its own cookies and storage."""

    def __init__(self, browser):
        self.browser, self.contexts, self.complaints, self.expected = browser, [], [], ()

    def __call__(self, width=DESKTOP, *, dark=False, height=900, **options):
        """A new page; ``options`` are those of Playwright's ``new_context``."""
        scheme = "dark" if dark else "light"
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self._heard("error", str(error)))
        page.on("request", self._asked)
        return page

    def _heard(self, kind, text):
        if kind == "error" and not any(part in text for part in self.expected):
            self.complaints.append(text)

    def _asked(self, request):
        if urlsplit(request.url).hostname not in OWN:
            self.complaints.append(f"the page asked for {request.url}")

    def close(self):
        """Close all pages, and fail if one of them had an error."""
        for context in self.contexts:
            context.close()
        assert not self.complaints, self.complaints


def wider_than_window(page):
    """Whether one would have to scroll sideways."""
    return page.evaluate("document.documentElement.scrollWidth > window.innerWidth")


def until(page, expression, seconds=SECONDS):
    """Wait for a JavaScript expression to hold. ``page.wait_for_function`` needs a policy that allows ``eval``."""
    for _ in range(20 * seconds):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{expression} does not hold after {seconds} seconds")
