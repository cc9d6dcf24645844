"""Saved results: JSON files, and whether they hold what they should."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import InputError


def read_saved(path: str | os.PathLike[str], written_by: str) -> Any:
    """The JSON of a file that ``save`` wrote; ``written_by`` is how users call it.

    Raises:
        InputError: It is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}. Give a file written by {written_by}.") from error
