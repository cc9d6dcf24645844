"""The notebooks run, and what is stored in them is what they show.

CI executes each, with the default model. Numbers are compared with a tolerance, since processors round differently.
"""

import re
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="notebooks are executed by nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="notebooks are executed by nbclient and ipykernel")

import nbformat
import notebook_runner
from nbclient.exceptions import CellExecutionError
from support import CI

from lrpx.errors import InputError
from lrpx.models.default import download

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 400_000  # bytes
EVERY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
DECIMAL = re.compile(r"[-+]?\d+\.\d+")


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@EVERY
def test_a_stored_notebook_was_executed_without_an_error_or_a_warning(path):
    notebook = read(path)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert any("text/html" in o.get("data", {}) or "image/png" in o.get("data", {}) for o in outputs)
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    assert not re.search(r"/home/|/root/|/Users/|/tmp/|/work/|site-packages|Traceback", text)


def not_printed(notebook):
    """Decimal numbers in the text that no output has, with as many digits or rounded; links and code are left out."""
    shown = {abs(float(n)) for cell in code_cells(notebook) for n in DECIMAL.findall(notebook_runner.printed(cell))}
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    quoted = DECIMAL.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", "\n".join(texts)))
    half = {number: 0.5 * 10 ** -len(number.split(".")[1]) + 1e-9 for number in quoted}
    return [n for n in quoted if all(abs(value - abs(float(n))) > half[n] for value in shown)]


@EVERY
def test_the_text_quotes_numbers_that_the_cells_print(path):
    assert not_printed(read(path)) == []


def test_a_number_that_no_cell_prints_is_noticed():
    cell = nbformat.v4.new_code_cell("print(0.84)")
    cell.outputs = [nbformat.v4.new_output("stream", text="0.84")]
    text = nbformat.v4.new_markdown_cell("The mean is 0.84, 0.8 or 0.85; `1.5` and [this](v2.0) are none.")
    assert not_printed(nbformat.v4.new_notebook(cells=[cell, text])) == ["0.85"]


def test_links_lead_somewhere():
    for path in NOTEBOOKS:
        text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_readme_names_every_notebook():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [path.name for path in NOTEBOOKS if f"](notebooks/{path.name})" not in readme]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One kernel for all notebooks, so that torch and transformers are imported once."""
    with notebook_runner.kernel(tmp_path_factory.mktemp("kernel")) as manager:
        yield manager


@pytest.fixture(scope="module")
def default_model():
    try:
        download.default_model(progress=False)
    except InputError as error:
        if CI:
            raise
        pytest.skip(f"needs the default model, which cannot be fetched here: {error}")


@pytest.mark.slow
@pytest.mark.network
@EVERY
def test_a_notebook_runs_and_shows_what_is_stored(path, kernel, default_model):
    stored = code_cells(read(path))
    found = code_cells(notebook_runner.execute(path, kernel))
    for before, now in zip(stored, found, strict=True):
        texts = [notebook_runner.printed(cell) for cell in (before, now)]
        assert notebook_runner.same(*texts), f"in {before.source[:80]!r}...: stored {texts[0]!r}, found {texts[1]!r}"
        kinds = [[sorted(o.get("data", {})) for o in cell.outputs if "data" in o] for cell in (before, now)]
        assert kinds[0] == kinds[1]


@pytest.mark.slow
def test_a_cell_that_fails_is_noticed_and_variables_are_removed(tmp_path, kernel):
    for name, source in (("first", "left = 1"), ("second", "print(left)")):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    notebook_runner.execute(tmp_path / "first.ipynb", kernel)
    with pytest.raises(CellExecutionError, match="NameError"):
        notebook_runner.execute(tmp_path / "second.ipynb", kernel)


@pytest.mark.parametrize(
    ("stored", "found", "same"),
    [
        ("mrr 0.81", "mrr 0.82", True),
        ("mrr 0.81", "mrr 0.91", False),
        ("layer 3", "layer 4", False),
        ("value -4.79", "value +4.79", False),
        ("The +1.37", "keys +1.37", False),
        ("a 1", "a 1 2", False),
        ("0.1   2", "0.1 2\n", True),
    ],
)
def test_what_counts_as_the_same(stored, found, same):
    assert notebook_runner.same(stored, found) is same
