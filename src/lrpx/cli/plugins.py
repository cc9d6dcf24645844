"""Modules of the user's own that register methods, for a command."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from ..errors import InputError
from ..methods import METHODS


def load_plugin(name: str) -> None:
    """Import a module by its name, or a file that ends in ``.py``.

    Raises:
        InputError: There is none, it cannot be imported, or it registers no method.
    """
    before = dict(METHODS)
    try:
        if name.endswith(".py"):
            _run(Path(name))
        else:
            importlib.import_module(name)
    except (ImportError, OSError, SyntaxError) as error:
        raise InputError(f"--plugin {name}: {error}. Give a module that can be imported, or a file.py.") from error
    if before == METHODS:
        raise InputError(f"--plugin {name} registers no method. It has to call @lrpx.register_method(...).")


def _run(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
