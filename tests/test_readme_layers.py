"""Imports go only downwards, importing lrpx is light and changes nothing, and heatmaps need no torch."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "lrpx"
# Top to bottom; a file imports only from lines below its own. A package stands for its files.
LAYERS = [
    ["lrpx"],  # __init__.py
    ["cli", "app"],
    ["cli_benchmark"],
    ["cli_speed"],
    ["evaluate", "report"],
    ["distributed"],
    ["worker"],
    ["explainer", "facts"],
    ["check", "explain"],
    ["heatmap"],
    ["methods"],
    ["capture"],
    ["execution"],
    ["compiled"],
    ["graphs", "pieces"],
    ["traced"],
    ["program"],
    ["checkpointing", "guards", "trace"],
    ["mixing", "taps"],
    ["affine", "attention", "l1_kernel", "propagate"],
    ["head", "fingerprint"],
    ["loading"],
    ["default_model"],
    ["hub", "gguf_llama"],
    ["targets"],
    ["batching", "encoding"],
    ["records", "given"],
    ["rulesets", "families"],
    ["benchmark", "metrics", "explanation"],
    ["device_maps"],
    ["rules", "devices"],
    ["errors", "marks", "turns", "version"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
SIBLINGS_APART = ("families", "methods")  # their files know only their package's __init__.py
UPWARDS = {("explanation", "heatmap")}  # the views of a result, loaded on use
WITHOUT_TORCH = ("heatmap", "report", "explanation", "errors", "metrics", "version")
NOT_ON_IMPORT = ["spacy", "datasets", "ray", "gradio", "matplotlib", "pandas", "pyarrow", "IPython", "gguf"]

FILES = {path.relative_to(SOURCE).with_suffix("").parts: path for path in sorted(SOURCE.rglob("*.py"))}
FILES = {".".join(part for part in parts if part != "__init__") or "lrpx": path for parts, path in FILES.items()}


def imports_of(path):
    """The absolute names that a file imports, wherever in it."""
    package = ["lrpx", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                yield ".".join([*base, alias.name])


def own(path):
    """The files of lrpx that a file imports: the longest known name of each import."""
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "lrpx":
            known = (".".join(parts[1:end]) for end in range(len(parts), 1, -1))
            yield next((k for k in known if k in FILES), "lrpx")


def layer(module):
    return LEVEL[module.split(".")[0]]


def complaint(importer, imported):
    """What is wrong with one import, or ``None``."""
    top, other = importer.split(".")[0], imported.split(".")[0]
    if top == other:
        siblings = top in SIBLINGS_APART and imported != top and importer != top
        return f"{importer} imports its sibling {imported}" if siblings else None
    if layer(importer) >= layer(imported) and (importer, imported) not in UPWARDS:
        return f"{importer} imports {imported}, which does not stand below it"
    return None


def test_every_file_has_a_layer():
    assert {name.split(".")[0] for name in FILES} <= LEVEL.keys()


def test_imports_go_downwards():
    found = [complaint(name, imported) for name, path in FILES.items() for imported in own(path)]
    assert len(found) > 100
    assert [c for c in found if c] == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("rules", "propagate"), ("batching", "explain"), ("capture", "methods"), ("guards", "capture"), ("errors", "lrpx"),
     ("methods.lrp", "methods.gradient"), ("families.llama", "families.gpt2"), ("encoding", "batching")],
)  # fmt: skip
def test_the_check_can_fail(importer, imported):
    assert complaint(importer, imported)


@pytest.mark.parametrize("name", [name for name in FILES if name.split(".")[0] in WITHOUT_TORCH])
def test_no_torch_in(name):
    assert {"torch", "transformers"}.isdisjoint(i.split(".")[0] for i in imports_of(FILES[name]))


def test_importing_lrpx_is_light_and_changes_nothing():
    program = f"""
import json, os, sys, warnings
import torch, transformers.modeling_utils  # which set some of this themselves
from transformers.utils import logging
def state():
    return [
        dict(os.environ), sys.excepthook, warnings.filters[:], logging.get_verbosity(),
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.get_rng_state().tolist(),
        torch.nn.Module.__call__, torch.Tensor.backward,
    ]
before = state()
import lrpx, lrpx.cli, lrpx.heatmap
print(json.dumps([[m for m in {NOT_ON_IMPORT} if m in sys.modules], state() == before, sorted(lrpx.__all__)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    loaded, unchanged, names = json.loads(done.stdout)
    assert loaded == []
    assert unchanged
    assert {"explain", "load", "propagate", "Explanation"} <= set(names)
