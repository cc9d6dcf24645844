"""Execute notebooks, all of them in one kernel, whose variables are removed before each.

As a program, it executes the notebooks that it is given and stores what they show:

    python tests/helpers/notebook_runner.py notebooks/*.ipynb
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
SECONDS = 300


@contextmanager
def kernel(folder: Path) -> Iterator[KernelManager]:
    """A kernel of this Python that runs in ``folder``, which also has IPython's files, and computes with one thread."""
    environment = os.environ | {
        "IPYTHONDIR": str(folder / "ipython"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONWARNINGS": "ignore:IProgress not found",  # of tqdm, about ipywidgets
    }
    environment.pop("MPLBACKEND", None)  # the kernel's own puts figures into the notebook
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(folder), env=environment)
    client.stop_channels()
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def execute(path: Path, manager: KernelManager) -> Any:
    """The notebook at ``path``, executed; the file stays as it is.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
    nothing_left = nbformat.v4.new_code_cell("%reset -f")
    notebook.cells.insert(0, nothing_left)
    client = NotebookClient(notebook, km=manager, timeout=SECONDS, record_timing=False, coalesce_streams=True)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()  # the kernel goes on
    notebook.cells.pop(0)
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if "execution_count" in output:
                output["execution_count"] = count
    notebook.metadata = {name: notebook.metadata[name] for name in ("kernelspec", "language_info")}
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def printed(cell: Any) -> str:
    """What a code cell printed, and the text of the results that are no pictures."""
    found = []
    for output in cell.outputs:
        data = output.get("data", {})
        if output.output_type == "stream":
            found.append(output.text)
        elif not {"image/png", "text/html"} & data.keys():
            found.append(data.get("text/plain", ""))
    return "".join(found)


def same(stored: str, found: str) -> bool:
    """Whether two texts have the same words, and numbers that differ by less than another processor changes them."""
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (stored, found)]
    words = [NUMBER.sub("0", text).split() for text in (stored, found)]
    return words[0] == words[1] and all(abs(a - b) <= 0.03 * max(1, abs(a)) for a, b in zip(*numbers, strict=True))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, kernel(Path(folder)) as manager:
        for path in map(Path, sys.argv[1:]):
            nbformat.write(execute(path, manager), path)
            print(path)
