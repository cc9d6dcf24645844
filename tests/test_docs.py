"""What the documentation shows is run: Python blocks of README.md and docs/, and the examples in docstrings.

The blocks of a page are one program, run in a process of its own (``forked.py``) in an empty folder. Nothing in lrpx is
replaced: the models and files that the pages name are there, only small. A tiny random GPT-2 lies in the cache of the
Hugging Face Hub under each name and in the cache of lrpx as the default model, ``lgd_dataset.tsv`` has two dozen sentences,
and ``en_core_web_trf`` is a spaCy pipeline trained on them. A block with ``<!-- skip: reason -->`` on the line above it is
left out.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import tiny_tokenizers
import torch
from benchmark_tools import HAS_SPACY, templates, toy_parser

import lrpx
from lrpx.models.default import download
from lrpx.passes.attribution import Hidden, Pass

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- skip: (?P<reason>.+?) -->\n+)?^```python\n(?P<code>.*?)^```$", flags=re.M | re.S)
NAMES = ("openai-community/gpt2", "org/name")  # of the models that the pages load
NEEDS = {
    "README": ("matplotlib", "pandas"),
    "heatmaps": ("matplotlib",),
    "flow": ("matplotlib", "pandas", "networkx"),
    "benchmark": ("spacy", "pyarrow"),
    "more_ground_truth": ("pyarrow",),
    "large_models": ("accelerate",),
}


def program(page):
    """The page's blocks, each on the lines where the page has it, so that a traceback points into the page."""
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        if not block["reason"]:
            first = page.count("\n", 0, block.start("code"))
            code = block["code"].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the pages name, and the caches of the Hub and of lrpx with the models."""
    root = tmp_path_factory.mktemp("docs")
    tokenizer = tiny_tokenizers.byte_level()
    model = tiny_tokenizers.gpt2(tokenizer, torch.float32)
    for name in NAMES:
        stored = root / "hub" / f"models--{name.replace('/', '--')}"
        for part in (model, tokenizer):
            part.save_pretrained(stored / "snapshots" / "0")
        (stored / "refs").mkdir()
        (stored / "refs" / "main").write_text("0")
    default = root / "lrpx" / download.ALIAS
    for part in (model, tokenizer):
        part.save_pretrained(default)
    (default / "source.json").write_text(json.dumps(download.source()))
    (root / "lgd_dataset.tsv").write_text("".join(t.lgd + "\n" for t in templates()), encoding="utf-8")
    if HAS_SPACY:
        toy_parser(root / "en_core_web_trf")
    return root


@pytest.fixture(scope="module")
def process(folder):
    """The process of ``forked.py``, in ``folder``, with its caches."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    environment = {
        **os.environ,
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "LRPX_CACHE": str(folder / "lrpx"),
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, forked.__file__]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        yield running
        running.stdin.close()


def run(process, script):
    """Run a Python program in the folder of ``process``."""
    process.stdin.write(f"{script}\n")
    process.stdin.flush()
    status, said = json.loads(process.stdout.readline())
    assert status == 0, said


WITH_BLOCKS = [path for path in PAGES if program(path.read_text(encoding="utf-8")).strip()]


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_BLOCKS, ids=lambda p: p.stem)
def test_the_blocks_of_a_page_run(folder, process, path):
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package, reason=f"{path.name} shows what needs {package}")
    script = folder / f"{path.stem}.py"
    script.write_text(program(path.read_text(encoding="utf-8")), encoding="utf-8")
    run(process, script)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_no_block_is_overlooked(path):
    """Every fence that an editor would show as Python is one that is run or has a reason."""
    page = path.read_text(encoding="utf-8")
    fences = re.findall(r"^[ \t]*(?:```|~~~)[ \t]*(?:py|python|python3)\b.*$", page, flags=re.M | re.I)
    assert fences == ["```python"] * len(BLOCK.findall(page))


def test_a_program_keeps_its_lines_and_leaves_out_what_is_skipped():
    page = (
        "Text\n\n```python\na = 1\n```\n<!-- skip: needs a GPU -->\n```python\nb = a\n```\n\n```python\nprint(a)\n```\n"
    )
    assert program(page).split("\n")[3] == "a = 1"
    assert program(page).split("\n")[11] == "print(a)"
    assert "b" not in program(page).replace("print", "")


def test_the_loop_over_the_text_gives_each_character_its_relevance(capsys):
    """The page of the first steps prints it. Six characters are more tokens, some of which are a part of one."""
    tokenizer = tiny_tokenizers.byte_level()
    e = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)("中国的首都是")
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    [block] = [block["code"] for block in BLOCK.finditer(page) if "e.units" in block["code"]]
    exec(block[block.index("for ") :], {"e": e})
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [text for text, _ in printed] == [repr(character) for character in "中国的首都是"]
    for (_, number), unit in zip(printed, e.units, strict=True):
        assert float(number) == pytest.approx(e.relevance[unit.start : unit.end].sum(), abs=6e-4)
    assert len(e.relevance) > len(e.units)


@pytest.mark.parametrize("path", [*PAGES, *sorted((ROOT / "notebooks").glob("*.ipynb"))], ids=lambda p: p.stem)
def test_no_page_reads_units_as_tokens(path):
    """Where a character is split over several tokens there are fewer units, and the numbers would be of others."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"zip\([^)]*units|enumerate\([^)]*units|units\[", text)


# Examples in docstrings

MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((SOURCE / "lrpx").rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]
EXAMPLES = """
import doctest, importlib, sys, torch, lrpx
model, tokenizer = lrpx.load("openai-community/gpt2")
ids, target = tokenizer("The keys to the cabinet", return_tensors="pt").input_ids.to(model.device), tokenizer.vocab["Ġare"]

class Checker(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):  # an example that shows no output only has to run
        return not want or super().check_output(want, got, optionflags)

runner = doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS)
names = {name: globals()[name] for name in ("lrpx", "torch", "model", "tokenizer", "ids", "target")}
for test in doctest.DocTestFinder().find(importlib.import_module("MODULE"), extraglobs=names):
    for example in test.examples:
        example.options.pop(doctest.SKIP, None)  # what is not run goes stale
    runner.run(test)
sys.exit(1 if runner.failures or not runner.tries else 0)
"""


def run_examples(folder, process, module):
    script = folder / f"examples of {module}.py"
    script.write_text(EXAMPLES.replace("MODULE", module), encoding="utf-8")
    run(process, script)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_run(folder, process, module):
    """They may use ``lrpx``, ``torch``, and a small ``model`` with its ``tokenizer``, ``ids`` and ``target``."""
    run_examples(folder, process, module)


@pytest.mark.slow
def test_a_wrong_example_is_noticed(folder, process):
    (folder / "wrong.py").write_text('"""\n>>> 1 + 1\n3\n"""\n', encoding="utf-8")
    with pytest.raises(AssertionError, match="Expected"):
        run_examples(folder, process, "wrong")


def test_the_page_about_generated_text_names_every_method():
    page = (ROOT / "docs" / "generation.md").read_text(encoding="utf-8").partition("```")[0]
    assert {name for name in re.findall(r"`([a-z-]+)`", page) if name in lrpx.METHODS} == {
        name for name, method in lrpx.METHODS.items() if isinstance(method.function, str)
    }


def test_the_page_about_methods_names_what_a_pass_gives():
    page = (ROOT / "docs" / "add_a_method.md").read_text(encoding="utf-8")
    names = [f"found.{field.name}" for field in dataclasses.fields(Pass)]
    names += [f"found.hidden[name].{field.name}" for field in dataclasses.fields(Hidden)]
    assert [name for name in names if f"`{name}`" not in page and name != "found.hidden"] == []
