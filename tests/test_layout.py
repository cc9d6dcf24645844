"""Imports go only downwards, importing lrpx is light and changes nothing, and heatmaps need no torch."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "lrpx"
# Top to bottom; a file imports only from rooms below its own, or from its own. A package is a room, and so is a file.
ROOMS = [
    ["lrpx"],  # __init__.py
    ["__main__"],
    ["cli"],
    ["app"],
    ["report"],
    ["evaluation"],
    ["explainer"],
    ["check"],
    ["check_inputs"],
    ["tasks"],
    ["methods"],
    ["passes"],
    ["propagation"],
    ["recognition"],
    ["text"],
    ["models"],
    ["benchmark"],
    ["results"],
    ["heatmap"],
    ["files", "_torch_internals"],
    ["errors", "notebook", "version"],
]
LEVEL = {name: level for level, names in enumerate(ROOMS) for name in names}
# Packages whose files know only the package's __init__.py, and not each other.
SIBLINGS_APART = ("methods.alti.families",)
WITHOUT_TORCH = ("heatmap", "report", "results", "errors", "files", "version")
HEAVY = ["torch", "transformers"]  # loaded when something is used that needs them
NOT_ON_IMPORT = [
    "spacy",
    "datasets",
    "ray",
    "starlette",
    "uvicorn",
    "matplotlib",
    "pandas",
    "pyarrow",
    "IPython",
    "gguf",
]

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


def level(module):
    return LEVEL[module.split(".")[0]]


def complaint(importer, imported):
    """What is wrong with one import, or ``None``."""
    package = importer.rpartition(".")[0]
    if package in SIBLINGS_APART and imported.startswith(f"{package}."):
        return f"{importer} imports its sibling {imported}"
    if importer.split(".")[0] == imported.split(".")[0]:
        return None
    return (
        None if level(importer) < level(imported) else f"{importer} imports {imported}, which does not stand below it"
    )


def circle(graph):
    """Files that import each other in a circle, or ``None``; an import inside a function counts too."""
    state = {}

    def visit(name, path):
        state[name] = "open"
        for other in sorted(graph.get(name, ())):
            if state.get(other) == "open":
                return [*path[path.index(other) :], other] if other in path else [name, other]
            found = None if other in state else visit(other, [*path, other])
            if found:
                return found
        state[name] = "done"
        return None

    return next((found for name in sorted(graph) if name not in state and (found := visit(name, [name]))), None)


def test_no_stray_files_are_committed():
    """The top of the repository holds what its tools look for there: a view saved while trying something out is none."""
    root = SOURCE.parents[1]
    if not (root / ".git").exists():
        pytest.skip("needs a clone: there is no .git here")
    names = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    top = {Path(name) for name in names if "/" not in name}
    known = {".md", ".toml", ".cff", ".yaml"}
    assert {str(p) for p in top if p.suffix not in known} == {".gitignore", "LICENSE"}


def test_every_file_has_a_room():
    assert {name.split(".")[0] for name in FILES} <= LEVEL.keys()
    assert len([name for name, path in FILES.items() if path.parent == SOURCE]) <= 12


# What recognition can be read without: a table of names, activations that models write out, functions that are several
# operations, recurrences, a check for what a mode does not see.
BESIDE = {
    f"recognition.{name}"
    for name in ("table", "activations", "composed", "mixers", "linear_attention", "steps", "foreign")
}


@pytest.mark.parametrize(
    ("room", "more", "limit"), [("propagation", {"methods.lrp"}, 510), ("recognition", set(), 410)]
)
def test_the_heart_is_one_reading(room, more, limit):
    """How relevance propagates, all of it, docstrings included; and what an operation is."""
    names = {name for name in FILES if name.split(".")[0] == room} | more
    assert len(names) > 4
    assert sum(len(FILES[name].read_text(encoding="utf-8").splitlines()) for name in names - BESIDE) <= limit


def test_imports_go_downwards():
    found = [complaint(name, imported) for name, path in FILES.items() for imported in own(path)]
    assert len(found) > 100
    assert [c for c in found if c] == []


def test_no_circles():
    graph = {name: {o for o in own(path) if o != name} for name, path in FILES.items()}
    assert circle(graph) is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]  # a check that can fail


def names_of_several(files):
    """The public classes that several of the files define, with these files."""
    found = {}
    for name, text in files.items():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    return {name: there for name, there in found.items() if len(there) > 1}


def test_one_name_is_one_class():
    assert names_of_several({name: path.read_text(encoding="utf-8") for name, path in FILES.items()}) == {}
    assert names_of_several({"a": "class A: ...", "b": "class A: ..."}) == {"A": ["a", "b"]}  # a check that can fail


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("propagation.rules", "passes.dispatch"), ("text.batching", "explainer"), ("passes.validation", "methods"),
     ("errors", "lrpx"), ("methods.alti.families.llama", "methods.alti.families.gpt2"), ("models.hub", "text.targets")],
)  # fmt: skip
def test_the_check_can_fail(importer, imported):
    assert complaint(importer, imported)


@pytest.mark.parametrize("name", [name for name in FILES if name.split(".")[0] in WITHOUT_TORCH])
def test_no_torch_in(name):
    assert {"torch", "transformers"}.isdisjoint(i.split(".")[0] for i in imports_of(FILES[name]))


def loaded_by(program):
    """Which heavy modules a fresh Python has loaded after a program."""
    program += f"\nimport json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "program",
    [
        "import lrpx; dir(lrpx), lrpx.__version__, lrpx.METHODS, lrpx.Explanation, lrpx.InputError, lrpx.heatmap",
        "from lrpx import Explanation, Explanations, LrpxError",
        "import lrpx.cli.main, lrpx.report",
        "import lrpx.evaluation.ray_attempts",  # in a process that only counts
    ],
)
def test_importing_lrpx_loads_no_torch(program):
    assert loaded_by(program) == []


@pytest.mark.slow
def test_the_check_for_torch_can_fail():
    assert loaded_by("import lrpx; lrpx.Explainer") == HEAVY


def test_every_public_name_is_there():
    import lrpx

    assert dir(lrpx) == sorted(lrpx.__all__)
    for name in lrpx.__all__:
        assert getattr(lrpx, name) is not None
    assert lrpx.rules.__name__ == "lrpx.propagation.rules"
    assert lrpx.check.check is importlib.import_module("lrpx.check").check  # a submodule
    for name in ("nothing", "_nothing", "__nothing__"):
        with pytest.raises(AttributeError, match=f"module 'lrpx' has no attribute '{name}'"):
            getattr(lrpx, name)


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
import lrpx, lrpx.cli.main, lrpx.heatmap
[getattr(lrpx, name) for name in lrpx.__all__]
print(json.dumps([[m for m in {NOT_ON_IMPORT} if m in sys.modules], state() == before, sorted(lrpx.__all__)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    loaded, unchanged, names = json.loads(done.stdout)
    assert loaded == []
    assert unchanged
    assert {"explain", "load", "propagate", "Explanation"} <= set(names)
