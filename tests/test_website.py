"""The check of the built site finds what it is for, and formulas become MathML. CI builds the site (``.ci/run``)."""

import importlib.util
import json
import re
from pathlib import Path

import browser
import pytest

import lrpx

ROOT = Path(__file__).resolve().parents[1]


def module(name):
    """A file of ``website/``, which is no package."""
    spec = importlib.util.spec_from_file_location(f"website_{name}", ROOT / "website" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


check = module("check")
GOOD = """<link rel="canonical" href="https://example.org/"><link rel="stylesheet" href="s.css"><h1 id="top">A</h1>
<a href="b.html#end">b</a> <a href="#top">up</a> <a href="https://example.org">a link</a> <a href="mailto:a@b.c">c</a>
<p>Text <code>:math:`x`</code></p><pre><code>- a</code></pre><img src="data:image/png;base64,AA">"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "b.html").write_text('<h2 id="end">B</h2>')
    (tmp_path / "s.css").write_text("a { background: url(data:image/svg+xml,x) }")
    return tmp_path


def test_a_good_site_has_no_problem(site):
    assert check.problems(site) == []


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<a href="c.html">c</a>', "c.html (no such file)"),
        ('<a href="b.html#nowhere">b</a>', "b.html#nowhere (no such place on the page)"),
        ('<a href="#nowhere">b</a>', "#nowhere (no such place on the page)"),
        ('<a href="../a.py">b</a>', "../a.py (no such file)"),
        ('<img src="none.png">', "none.png (no such file)"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/css">', "loads //fonts.example/css"),
        ('<link rel="preconnect" href="https://fonts.example">', "loads https://fonts.example"),
        ('<img srcset="b.html 1x, https://e.example/i.png 2x">', "loads https://e.example/i.png"),
        ('<p style="background: url(https://e.example/i)">', "loads https://e.example/i"),
        ("<style>@import 'https://e.example/i.css';</style>", "loads https://e.example/i.css"),
        ('<pre class="mermaid"><code>a</code></pre>', "a diagram"),
        ("<p>A list:\n- one\n- two</p>", "not rendered"),
        ("<p>The sum :math:`<code>x</code></p>", "not rendered"),
        ("<p>::: lrpx.explain</p>", "not rendered"),
        ("<td><code>max(\\|x\\|)</code></td>", "not rendered"),
    ],
)
def test_a_problem_is_found(site, html, found):
    (site / "a.html").write_text(GOOD + html)
    (problem,) = check.problems(site)
    assert problem.startswith("a.html: ")
    assert found in problem


def test_a_stylesheet_that_loads_from_elsewhere_is_found(site):
    (site / "s.css").write_text("@font-face { src: url('https://fonts.example/a.woff2') }")
    assert check.problems(site) == ["s.css: loads https://fonts.example/a.woff2"]


def test_an_empty_folder_is_a_problem(tmp_path):
    assert "zensical build" in check.problems(tmp_path)[0]


TOO_WIDE = """() => {
  const found = [];
  if (document.documentElement.scrollWidth > window.innerWidth) found.push("the page itself");
  if (window.innerWidth < 1000) return found;
  for (const block of document.querySelectorAll(".formula, .md-typeset__scrollwrap")) {
    const columns = block.querySelector("tr")?.cells?.length ?? 0;
    if (columns < 10 && block.scrollWidth > block.clientWidth + 1) found.push(block.textContent.trim().slice(0, 60));
  }
  return found;
}"""


def scrolls_sideways(page, path):
    """What one has to scroll sideways to read, as ``(width of the window, what)``."""
    found = []
    page.goto(path.as_uri())
    for width in (browser.DESKTOP, browser.PHONE):
        page.set_viewport_size({"width": width, "height": 900})
        found += [(width, what) for what in page.evaluate(TOO_WIDE)]
    return found


@pytest.mark.browser
@pytest.mark.slow
def test_no_page_has_to_be_scrolled_sideways(new_page):
    """Code may be wide, and tables with ten columns and more; those scroll by themselves."""
    pages = sorted((ROOT / "site").rglob("*.html"))
    if not pages:
        pytest.skip("needs the site: python -m zensical build --strict --clean")
    new_page.expected = ("ERR_FILE_NOT_FOUND",)  # the search, which needs a server
    page = new_page()
    found = {str(path.relative_to(ROOT)): scrolls_sideways(page, path) for path in pages}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.browser
@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<div style='width: 1300px'>a", [(1280, "the page itself"), (390, "the page itself")]),
        ("<div style='width: 400px'>a", [(390, "the page itself")]),
        ("<div class='formula' style='overflow: auto'><p style='width: 1300px'>a = b", [(1280, "a = b")]),
        (
            "<div class='md-typeset__scrollwrap' style='overflow: auto'><table style='width: 1300px'><td>a",
            [(1280, "a")],
        ),
        ("<div class='md-typeset__scrollwrap' style='overflow: auto'><table style='width: 1300px'>" + "<td>a" * 10, []),
    ],
)
def test_what_has_to_be_scrolled_sideways_is_found(new_page, tmp_path, html, found):
    (tmp_path / "a.html").write_text(f"<!doctype html><meta name=viewport content='width=device-width'>{html}")
    assert scrolls_sideways(new_page(), tmp_path / "a.html") == found


@pytest.fixture(scope="module")
def latex():
    pytest.importorskip("latex2mathml", reason="needs the extra docs")
    pytest.importorskip("markdown", reason="needs the extra docs")
    return module("latex")


def test_formulas_of_docstrings_become_mathml(latex):
    import markdown

    text = "The sum :math:`a_i \\, b`, and `:math:` as code.\n\n.. math:: R_i = \\sum_j z_{ij}\n"
    html = markdown.markdown(text, extensions=[latex.Formulas()])
    assert re.findall(r'<math [^>]*display="(\w+)"', html) == ["inline", "block"]
    assert "<code>:math:</code>" in html
    assert ".. math" not in html


def test_a_formula_that_cannot_be_drawn_is_an_error(latex):
    assert latex.fence("a = b").startswith('<div class="formula"><math ')
    with pytest.raises(ValueError, match=r"\\nosuchthing"):
        latex.fence("a = \\nosuchthing b")


@pytest.mark.parametrize(
    ("source", "shown"), [(r"\begin{aligned} a &= b \end{aligned}", "&"), (r"\texttt{a\_b}", r"\_b")]
)
def test_a_formula_with_a_character_left_over_is_an_error(latex, source, shown):
    with pytest.raises(ValueError, match=f"No MathML for {re.escape(shown)}"):
        latex.fence(source)


def test_the_number_of_a_formula_stands_apart(latex):
    assert re.search(r"<mspace width=.2em.[^>]*/><mtext>\(3\)</mtext>", latex.fence(r"a = b \tag{3}"))


def test_long_names_in_tables_may_be_broken():
    markdown = pytest.importorskip("markdown", reason="needs the extra docs")
    text = (
        "`test_of_a_long_name.py` a\n\n| `test_of_a_long_name.py` | `short_name` | `R_i = x_i w_j` |\n|---|---|---|\n"
    )
    html = markdown.markdown(text, extensions=["tables", module("breaks").Breaks()])
    assert re.findall("<code>(.*?)</code>", html) == [
        "test_of_a_long_name.py",
        "test_<wbr />of_<wbr />a_<wbr />long_<wbr />name.py",
        "short_name",
        "R_i = x_i w_j",
    ]


def test_every_page_has_a_place_in_the_site():
    listed = re.findall(r'"([\w/]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize(("name", "draw"), module("pictures").PICTURES.items())
def test_pictures_are_what_the_script_draws(name, draw):
    """If not: ``python website/pictures.py``."""
    assert (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8") == draw().svg()


@pytest.mark.parametrize(("package", "others"), module("pictures").IMPORTS)
def test_packages_import_from_each_other_as_drawn(package, others):
    found = ROOT / "src" / "lrpx" / package
    files = found.rglob("*.py") if found.is_dir() else [found.with_suffix(".py")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    for other in others.split():
        assert re.search(rf"^ *from \.+{other}(\.\S+)? import|^ *from \.+ import .*\b{other}\b", text, flags=re.M), (
            other
        )


def test_functions_and_tests_that_pages_name_are_there():
    rules = (ROOT / "src" / "lrpx" / "propagation" / "rules.py").read_text(encoding="utf-8")
    tests = list((ROOT / "tests").rglob("test_*.py"))
    there = {path.stem for path in tests} | {
        name
        for path in tests
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), flags=re.M)
    }
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`rules\.(\w+)`", text):
            assert re.search(rf"^def {name}\(|^{name} = ", rules, flags=re.M), f"{page.name}: rules.{name}"
        for name, cut in re.findall(r"\b(test_\w+)(\.\.\.)?", text):
            assert name in there or (cut and any(t.startswith(name) for t in there)), f"{page.name}: {name}"


def test_every_public_name_is_in_the_reference():
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", pages, flags=re.M)
    public = {f"lrpx.{name}" for name in lrpx.__all__ if name != "__version__"}
    public |= {f"lrpx.benchmark.{name}" for name in lrpx.benchmark.__all__}
    assert public <= set(shown)
    assert len(set(shown)) == len(shown)


def test_an_entry_for_several_names_becomes_one_for_each():
    pytest.importorskip("griffe", reason="needs the extra docs")
    docstring = "A, b: c.\n\nArgs:\n    a, b, c: First line\n        and ``x: y``, the second.\n    d: Alone.\n"
    entries = module("docstrings").one_name_each(docstring).split("Args:\n")[1].splitlines()
    assert entries == [
        "    a: First line",
        "        and ``x: y``, the second.",
        "    b: Likewise.",
        "    c: Likewise.",
        "    d: Alone.",
    ]


def test_a_notebook_becomes_a_page(tmp_path):
    markdown = pytest.importorskip("markdown", reason="needs the extra docs")
    latex = pytest.importorskip("latex2mathml", reason="needs the extra docs") and module("latex")
    outputs = [
        {"output_type": "stream", "text": ["one\n", "<two>\n"]},
        {"output_type": "display_data", "data": {"text/html": ["<b>*map*</b>"], "text/plain": "map"}},
        {"output_type": "display_data", "data": {"image/png": "AA\nBB", "text/plain": "<Figure>"}},
    ]
    cells = [
        {
            "cell_type": "markdown",
            "source": ["# Title\n", "[a](../docs/b.md#c) [d](02_e.ipynb) $r_t$ `$x$`\n", "$$a = b$$"],
        },
        {"cell_type": "code", "source": ["x = 1\n", "# *no*"], "outputs": outputs},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    fences = {"pymdownx.superfences": {"custom_fences": [{"name": "math", "class": "m", "format": latex.fence}]}}
    html = markdown.markdown(
        "Before.\n\n<!-- notebook: n.ipynb -->\n",
        extensions=[module("notebooks").Notebooks(root=str(tmp_path)), latex.Formulas(), "pymdownx.superfences"],
        extension_configs=fences,
    )
    text = re.sub(r"<math.*?</math>", "<math/>", html, flags=re.S)
    assert "<h1>Title</h1>" in text
    assert '<a href="../b.md#c">a</a> <a href="e.md">d</a> <math/> <code>$x$</code></p>' in text
    assert '<div class="formula"><math/></div>' in text
    assert '<div class="output"><b>*map*</b></div>' in text
    assert '<img src="data:image/png;base64,AABB" alt="&lt;Figure&gt;">' in text
    assert "&lt;two&gt;" in text
    assert "<em>" not in text


def test_every_notebook_has_a_page():
    shown = re.findall(
        r"^<!-- notebook: (\S+) -->$",
        "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "notebooks").glob("*.md")),
        flags=re.M,
    )
    assert sorted(shown) == sorted(f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb"))
