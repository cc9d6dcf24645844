"""The errors that lrpx raises on purpose. Each says what was given, what was expected and what to type next."""

import difflib
import functools
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class LrpxError(Exception):
    """Base class of every error that lrpx raises on purpose."""


class InputError(LrpxError, ValueError):
    """An input cannot be used: a text, a target, a position, a name, a file."""


class UnsupportedModelError(LrpxError, ValueError):
    """The model cannot be explained correctly, so no map is returned."""


class NonFiniteError(LrpxError, ArithmeticError):
    """A NaN or an infinity appeared where a number was needed."""


class LrpxWarning(UserWarning):
    """Something that a user has to know to read a result right. It is in ``Explanation.notes`` too."""


def nearest(name: object, known: Iterable[str]) -> str:
    """A sentence that lists the ``known`` names and suggests the one closest to ``name``, ignoring case."""
    by_lower = {k.lower(): k for k in sorted(known)}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.5)
    hint = f"Did you mean {by_lower[close[0]]!r}? " if close else ""
    return f"{hint}Known: {', '.join(by_lower.values())}."


def check_names(given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] = {}) -> None:
    """Refuse the name of an option that is not ``known``; of others ``elsewhere`` says where they belong.

    Raises:
        InputError: There is one. The error suggests the nearest that is known.
    """
    known = [*known]
    for name in given:
        if name not in known:
            there = "There are no options." if not known else nearest(name, known)
            raise InputError(f"unknown option {name!r}. {elsewhere.get(name, there)}")


def names_checked(elsewhere: Mapping[str, str] = {}) -> Callable[[Function], Function]:
    """A decorator: a keyword that the function does not have is refused as by ``check_names``."""

    def decorate(function: Function) -> Function:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            check_names(options, known, elsewhere)
            return function(*args, **options)

        return checked  # type: ignore[return-value]

    return decorate


def import_optional(module: str, needed_for: str, *, extra: str = "sva") -> Any:
    """Import a module that an extra of lrpx installs.

    Raises:
        ImportError: It is not installed; the error says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{needed_for} needs {module.partition(".")[0]}: pip install "lrpx[{extra}]"') from error


def warn(message: str) -> None:
    """Warn the code that called lrpx, at its own line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lrpx":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, LrpxWarning, stacklevel=level)


def strict() -> bool:
    """Whether failures that only make a pass slower are raised: where the environment says ``LRPX_STRICT=1``."""
    return os.environ.get("LRPX_STRICT") == "1"
