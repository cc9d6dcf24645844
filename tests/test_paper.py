"""What is said about the paper, in code and documentation, is what the paper says."""

import re
from pathlib import Path

import pytest
from support import SHARED, needs_shared

from lrpx.methods import METHODS, Traits
from lrpx.report.paper import MODELS, SET_UP

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    p for folder in ("src", "docs", "bench", "tests") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md")
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in [*SOURCES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]}
PAPER_TEXT = ""
if (SHARED / "paper.tex").is_file():
    PAPER_TEXT = " ".join((SHARED / "paper.tex").read_text(encoding="utf-8").replace("\\", "").split())
PROOFS = [
    "linear layers",
    r"LRP-$\alpha,\beta$ rule",
    "LRP-identity",
    "signal-take-all",
    "normalization layers",
    "softmax",
]


@pytest.fixture(scope="module")
def appendices():
    """Letter -> title and titles of its sections, read from the paper's source."""
    text = (SHARED / "paper.tex").read_text(encoding="utf-8").split(r"\appendix")[1]
    found = {}
    for kind, title in re.findall(r"^\\(section|subsection)\{(.+)\}", text, flags=re.M):
        if kind == "section":
            found[chr(ord("A") + len(found))] = (title, [])
        else:
            found[list(found)[-1]][1].append(title)
    return found


def mentions():
    """Every appendix that is named, such as ``("D", "5")``, with the file that names it."""
    pattern = r"\bApp(?:endix|\.) ([A-Z])(?:\.(\d))?\b(?!\w)"
    return [(path, letter, number) for path, text in TEXTS.items() for letter, number in re.findall(pattern, text)]


def test_the_proofs_are_in_appendix_d():
    """D.1 to D.6, and B for the data set; A and C (software, models) are not referred to in such short form."""
    assert len(mentions()) > 40
    for path, letter, number in mentions():
        if path.name != "test_paper.py":
            assert letter in ("B", "D"), f"{path}: App. {letter}"
            assert number in ("", *"123456"[: 6 if letter == "D" else 0]), f"{path}: App. {letter}.{number}"


@needs_shared(SHARED / "paper.tex")
def test_appendices_are_those_of_the_paper(appendices):
    assert list(appendices) == ["A", "B", "C", "D"]
    assert appendices["B"][0] == "XAI Benchmark Dataset Generation"
    title, sections = appendices["D"]
    assert title.startswith("Proofs on implementing LRP variants")
    assert len(sections) == len(PROOFS)
    for section, word in zip(sections, PROOFS, strict=True):
        assert word in section


@needs_shared(SHARED / "paper.tex")
def test_what_methods_assume_is_what_table_1_says():
    """Row by row: granularity, computation, and four ticks or crosses."""
    text = (SHARED / "paper.tex").read_text(encoding="utf-8")
    table = text[
        text.index("Overview of the XAI attribution methods") : text.index("label{table:xai_methods_overview}")
    ]
    names = {"ALTI-Logit": ["alti-logit"], "LRP": ["lrp"], "AttnLRP": ["attnlrp"]}
    names[r"\begin{tabular}{@{}l@{}} Gradient, \\ Gradient$\times$Input \end{tabular}"] = [
        "gradient",
        "gradient-x-input",
    ]
    found = {}
    for name, methods in names.items():
        (row,) = re.findall(rf"^\s*{re.escape(name)}\s*&(.+)\\\\$", table, flags=re.M)
        granularity, cost, *marks = (cell.strip() for cell in row.split("&"))
        answers = [{"51": True, "55": False}[re.search(r"ding\{(\d+)\}", mark).group(1)] for mark in marks]
        plain = cost.replace(r"$\times$", "x").replace("$+$", "+")
        found |= dict.fromkeys(methods, Traits(granularity, plain, *answers))
    assert {name: method.traits for name, method in METHODS.items() if method.traits.in_paper} == found


def test_the_guide_to_methods_has_the_traits_of_all_methods():
    page = TEXTS[ROOT / "docs" / "choosing_a_method.md"].split("## What each method assumes")[1].split("\n## ")[0]
    found = {}
    for name, star, *cells in re.findall(r"^\| `([\w-]+)`( \*)? \|" + r" (.+?) \|" * 6 + "$", page, flags=re.M):
        answers = [{"yes": True, "no": False, "–": None}[cell] for cell in cells[2:]]
        found[name] = Traits(*cells[:2], *answers, in_paper=not star)
    assert found == {name: method.traits for name, method in METHODS.items()}


@needs_shared(SHARED / "paper.tex")
def test_the_papers_speedups_are_what_it_says():
    text = " ".join((SHARED / "paper.tex").read_text(encoding="utf-8").split())
    assert (
        r"On \texttt{bert-base-uncased} we obtained a speedup between 1.83 and 1.98, and on \texttt{Llama-3.2-1B} between 1.54"
        in text
    )
    script = TEXTS[ROOT / "bench" / "per_sample.py"]
    assert '"llama-3.2-1b": (1.54, 1.61)' in script
    assert '"bert-base": (1.83, 1.98)' in script
    page = " ".join(TEXTS[ROOT / "docs" / "performance.md"].split())
    assert "1.54 to 1.61 for Llama-3.2-1B and 1.83 to 1.98 for BERT-base" in page


def test_which_of_lrp_and_attnlrp_the_paper_finds_better():
    page = " ".join(TEXTS[ROOT / "docs" / "footguns.md"].split())
    for name, better in (("GPT2-small", "lrp"), ("bert-base-uncased", "attnlrp")):
        (model,) = [m for m in MODELS if m.name == name]
        worse = {"lrp": "attnlrp", "attnlrp": "lrp"}[better]
        assert model.scores[better][:2] > model.scores[worse][:2]
        first, second = ("/".join(f"{x:.3f}"[1:] for x in model.scores[m][:2]) for m in (better, worse))
        assert f"({'PG2/MRR ' if better == 'lrp' else ''}{first} against {second})" in page


def test_the_page_of_differences_quotes_the_paper():
    """Its set-up, and word for word what stands in quotation marks."""
    page = " ".join(TEXTS[ROOT / "docs" / "differences_from_the_paper.md"].split())
    for name, value in SET_UP.items():
        if name not in ("source", "parser"):
            assert value in page, name
    assert "float64; bfloat16 for Llama-3.2-3B" in page
    quotations = [quoted for quoted in page.split('"')[1::2] if "*" not in quoted]
    assert len(quotations) > 3
    for quoted in quotations:
        assert not PAPER_TEXT or quoted in PAPER_TEXT, quoted


def test_the_readme_claims_no_more_than_holds():
    readme = " ".join(TEXTS[ROOT / "README.md"].split())
    assert "any Hugging Face" not in readme
    assert "All are the methods" not in readme


def table_after(page, words):
    """The first table after these words: the header's cells, and first cell -> the others."""
    lines = page.split(words, 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[0][1:], {name.replace("`", ""): cells for name, *cells in rows[2:]}


CHOOSING = TEXTS[ROOT / "docs" / "choosing_a_method.md"]


def test_the_guide_says_of_methods_what_they_say_of_themselves():
    _, rows = table_after(CHOOSING, "## What each method assumes")
    words = {True: "yes", False: "no", None: "–"}
    expected = {
        f"{name}{'' if t.in_paper else ' *'}": [
            *(t.granularity, t.cost),
            *(words[x] for x in (t.linear_norms, t.constant_attention, t.through_mlps, t.decomposes)),
        ]
        for name, t in ((name, method.traits) for name, method in METHODS.items())
        if t
    }
    assert rows == expected


def test_the_guide_quotes_the_paper_s_reciprocal_ranks():
    models, rows = table_after(CHOOSING, "**The paper's figures**")
    assert models == [model.name for model in MODELS]
    chance = "chance (the paper's *random*)"
    assert rows.keys() == {"attnlrp", "lrp", "alti-logit", "gradient", "gradient-x-input", chance}
    for i, model in enumerate(MODELS):
        scores = {name: mrr for name, (_, mrr, _, _) in model.scores.items()}
        for name, cells in rows.items():
            mrr = model.random[0][1] if name == chance else scores.get(name)
            text = "–" if mrr is None else f"{mrr:.3f}".removeprefix("0")
            assert cells[i] == (f"**{text}**" if mrr == max(scores.values()) else text)
