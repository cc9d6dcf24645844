r"""Check a built site: ``python website/check.py site``.

- Every link, picture, script and stylesheet of a page leads to a file of the site, and every anchor to a place on its page.
- A browser that shows a page loads nothing from elsewhere. (Links to other sites, which readers follow, are allowed.)
- No Markdown is left as text: Python-Markdown wants an empty line before a list, which GitHub does not, and shows the
  backslash of ``\|`` in the code of a table, which GitHub needs there.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed", "object", "track", "image", "use", "link"}
NOT_LOADED = {
    "canonical",
    "next",
    "prev",
    "alternate",
    "author",
    "license",
}  # <link rel=...> that browsers do not follow
CSS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
LEFT_OVER = re.compile(r"^(?:[-*] |\d+\. |```|\$\$)|:(?:math|func|class|meth|mod):`|\.\. \w+::|^::: ", re.M)


class Page(HTMLParser):
    """What a page links to, what it loads, the names of its places, and the texts of its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.paragraphs: list[str] = []
        self.escaped: list[str] = []  # code with a backslash before a bar
        self.diagrams = 0
        self._inside: list[str] = []  # the elements p, code, ... that are open
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element links to or loads."""
        have = {name: value or "" for name, value in attrs}
        self.places |= {have[name] for name in ("id", "name") if name in have}
        self.diagrams += "mermaid" in have.get("class", "").split()
        found = [have[name] for name in ("href", "src", "data", "poster", "xlink:href") if name in have]
        found += [part.split()[0] for part in have.get("srcset", "").split(",") if part.strip()]
        loaded = tag in LOADED and not (tag == "link" and NOT_LOADED & set(have.get("rel", "").split()))
        (self.loads if loaded else self.links).extend(found)
        self.loads += _urls(have.get("style", ""))
        if tag == "p":
            self.paragraphs.append("")
        if tag in ("p", "code", "pre", "style", "script"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave the element."""
        if tag in self._inside:
            del self._inside[len(self._inside) - 1 - self._inside[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        """Note the text of a paragraph, and what a style sheet loads."""
        if self._inside == ["p"]:
            self.paragraphs[-1] += data
        elif self._inside[-1:] == ["code"] and "pre" not in self._inside and "\\|" in data:
            self.escaped.append(data)
        elif self._inside[-1:] == ["style"]:
            self.loads += _urls(data)


def _urls(css: str) -> list[str]:
    return [url or imported for url, imported in CSS.findall(css)]


def problems(site: Path) -> list[str]:
    """What is wrong with the site in a folder, one line for each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: no pages. Build them first: python -m zensical build --strict --clean"]
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: loads {url}" for url in page.loads if _elsewhere(url)]
        found += [f"{name}: a diagram that the theme's script draws with a program from elsewhere"] * page.diagrams
        raw = [text for text in page.paragraphs if LEFT_OVER.search(text)] + page.escaped
        found += [f"{name}: not rendered: {text.strip()[:60]!r}" for text in raw]
        for url in page.links + page.loads:
            if not _elsewhere(url) and (wrong := _leads_nowhere(url, path, site, pages)):
                found.append(f"{name}: {url} ({wrong})")
    for path in sorted(site.rglob("*.css")):
        urls = _urls(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: loads {url}" for url in urls if _elsewhere(url)]
    return found


def _elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def _leads_nowhere(url: str, path: Path, site: Path, pages: dict[Path, Page]) -> str:
    parts = urlsplit(url)
    if parts.scheme:  # mailto:, data:, javascript:
        return ""
    start = site if parts.path.startswith("/") else path.parent
    target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "no such file"
    if not target.is_relative_to(site):
        return "not in the site"
    page = pages.get(target)
    if parts.fragment and page and unquote(parts.fragment) not in page.places:
        return "no such place on the page"
    return ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python website/check.py FOLDER, such as site")
    wrong = problems(Path(sys.argv[1]).resolve())
    print(*wrong, sep="\n")
    sys.exit(f"{len(wrong)} problems" if wrong else None)
