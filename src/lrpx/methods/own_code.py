"""What a method of one's own was made of when it was registered, so that a run of the benchmark knows it again."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..files import sha256


class OwnCode(NamedTuple):
    """Checksums of a function's source."""

    function: str | None  # of the function alone; None: its source cannot be read
    file: str | None  # of the whole file, since the function may call others there; None: a notebook, or no source
    path: str | None  # of that file


def code_of(function: Callable[..., Any]) -> OwnCode:
    """Checksums of a function's source as it is now: call this when it is defined, since the file may change later."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # defined by exec, or compiled
        return OwnCode(None, None, None)
    digest = hashlib.sha256(source.encode()).hexdigest()
    path = Path(inspect.getsourcefile(function) or "")
    if not path.is_file():  # a cell of a notebook
        return OwnCode(digest, None, None)
    return OwnCode(digest, sha256(path), str(path))
