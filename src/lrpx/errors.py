"""The errors lrpx raises on purpose. Each says what was given, what was expected and what to type next."""

import difflib
import os
from collections.abc import Iterable


class LrpxError(Exception):
    """Base class of every error that lrpx raises on purpose."""


class InputError(LrpxError, ValueError):
    """Something the caller gave cannot be used: a text, a target, a position, a name, a file."""


class UnsupportedModelError(LrpxError, ValueError):
    """The model cannot be explained correctly, so no map is returned."""


class NonFiniteError(LrpxError, ArithmeticError):
    """A NaN or an infinity appeared where a number was needed."""


def nearest(name: object, known: Iterable[str]) -> str:
    """A sentence that lists ``known`` names and, where one is close to ``name`` (in any case), suggests it."""
    by_lower = {k.lower(): k for k in sorted(known)}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    hint = f"Did you mean {by_lower[close[0]]!r}? " if close else ""
    return f"{hint}Known: {', '.join(by_lower.values())}."


def strict() -> bool:
    """Whether failures that only make a pass slower are raised: where the environment says ``LRPX_STRICT=1``."""
    return os.environ.get("LRPX_STRICT") == "1"
