"""Make the pictures of what lrpx draws, keys.png, flow.png and app.png of docs/images: ``python website/maps.py``.

It explains the default model, and looks at the app in Chromium (``apt-get install chromium``).
"""

import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
LRPX = [sys.executable, "-m", "lrpx"]
WHY = ["--target", " are", "--contrast", " is"]
METHODS = ["attnlrp", "lrp", "alti-logit"]
BLOCKS = [0, 1, 2, 6, 10, 14, 18, 22, 24, 25, 26, 27, 28]  # where little happens in between


def keys() -> None:
    """Three methods, as README.md and docs/index.md show them."""
    methods = [word for name in METHODS for word in ("--method", name)]
    subprocess.run([*LRPX, "explain", "The keys to the cabinet", *WHY, *methods, "-o", FOLDER / "keys.png"], check=True)


def flow() -> None:
    """The flow of docs/flow.md."""
    layers = [word for block in BLOCKS for word in ("--layers", str(block))]
    text = "The keys to the cabinet in the old house"
    subprocess.run([*LRPX, "flow", text, *WHY, *layers, "-o", FOLDER / "flow.png"], check=True)


def app() -> None:
    """The app of docs/app.md, with what a link to it holds."""
    asked = [("text", "The keys to the cabinet"), ("target", " are"), ("contrast", " is"), ("token", "1")]
    link = urlencode([*asked, *(("method", name) for name in METHODS)])
    with subprocess.Popen([*LRPX, "app", "--port", "0"], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().split()[2]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1100, "height": 800}, reduced_motion="reduce")
                page.goto(f"{address}/#{link}")
                page.locator("#inside-body table").first.wait_for(timeout=120_000)
                model = page.locator("#model")
                model.evaluate("(all, text) => { all.textContent = text }", model.text_content().split(" · version")[0])
                page.screenshot(path=FOLDER / "app.png")
                browser.close()
        finally:
            running.terminate()


if __name__ == "__main__":
    keys()
    flow()
    app()
