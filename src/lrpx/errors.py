"""The errors that lrpx raises on purpose. Each says what was given, what was expected and what to type next."""

import copy
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Error = TypeVar("Error", bound="LrpxError")

_STRING = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_VALUE = rf"{_STRING}|\[[^\]]*\]|\(-?\d+(?:, -?\d+)*\)|-?\d+(?:\.\d+)?\b|True\b|False\b|None\b"
_ARGUMENT = re.compile(rf"(?<!\w)(?:{_STRING})|(?<![\w.#-])(?P<name>[a-z][a-z0-9_]*)=(?P<value>{_VALUE})?")


class LrpxError(Exception):
    """Base class of every error that lrpx raises on purpose.

    What is wrong is the same everywhere; what to do about it is not. So an error has its advice apart, for each way to use lrpx:

    Args:
        problem: What was given and what was expected, and advice that holds everywhere. No code; an argument that was given
            is written as ``name=value``; see ``with_arguments``.
        python: What to type next in Python. The command line turns it into its own words.
        app: What to do next on the page of the app.
        command: What to type next on the command line, where that is not the advice for Python in other words.

    ``str(error)`` is the problem with the advice for Python.
    """

    def __init__(self, problem: str = "", *, python: str = "", app: str = "", command: str | None = None) -> None:
        super().__init__(_joined(problem, python))
        self.problem, self.app, self.command = problem, app, python if command is None else command

    @property
    def in_app(self) -> str:
        """The problem with the advice for the app."""
        return _joined(self.problem, self.app)

    def at(self: "Error", where: str) -> "Error":
        """The same error, with the place where it is before it."""
        moved = copy.copy(self)
        moved.args, moved.problem = (f"{where}: {self}",), f"{where}: {self.problem}"
        return moved

    @property
    def in_command(self) -> str:
        """The problem with the advice for the command line, which still has Python's names of options."""
        return _joined(self.problem, self.command)


class InputError(LrpxError, ValueError):
    """An input cannot be used: a text, a target, a position, a name, a file."""


class UnsupportedModelError(LrpxError, ValueError):
    """The model cannot be explained correctly, so no map is returned."""


class NonFiniteError(LrpxError, ArithmeticError):
    """A NaN or an infinity appeared where a number was needed."""


def counted(count: int, noun: str) -> str:
    """``1 text``, ``2 texts``."""
    return f"{count} {noun}" + "s" * (count != 1)


def listed(names: Sequence[str], most: int, noun: str = "more") -> str:
    """``a, b, c and 5 more``: the first ``most`` of the names, and how many others there are."""
    return ", ".join(names[:most]) + f" and {len(names) - most} {noun}" * (len(names) > most)


class LrpxWarning(UserWarning):
    """Something that a user has to know to read a result right. It is in ``Explanation.notes`` too."""


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def lines_of(error: BaseException) -> list[str]:
    """What an error says, line by line, without empty ones."""
    return [line.strip() for line in str(error).splitlines() if line.strip()]


def first_lines(error: BaseException) -> str:
    """What an error says at first; those of transformers can be pages long."""
    return " ".join(lines_of(error)[:3]) or type(error).__name__


def in_one_line(error: object, most: int) -> str:
    """What an error says, in a line of at most so many characters."""
    return " ".join(str(error).split())[:most]


def nearest(name: object, known: Iterable[str]) -> str:
    """A sentence that lists the ``known`` names and suggests the one closest to ``name``, ignoring case."""
    by_lower = {k.lower(): k for k in sorted(known)}
    given = str(name).lower()
    inside = any(given in other for other in by_lower)  # one word of a label; "foo" is not like "float"
    close = difflib.get_close_matches(given, by_lower, n=1, cutoff=0.5 if inside or len(given) < 3 else 0.55)
    hint = f"Did you mean {by_lower[close[0]]!r}? " if close else ""
    return f"{hint}Known: {', '.join(map(in_a_list, by_lower.values()))}."


def in_a_list(name: str) -> str:
    """A name for a list of names: in quotes if it has punctuation of a sentence."""
    return repr(name) if re.search(r",|[.?!](\s|$)", name) else name


def with_arguments(message: str, said: Callable[[str, str | None], str | None]) -> str:
    """A message of the library with its arguments in other words.

    The library writes them as Python does, ``target=359``, ``device='cpu'`` or ``position=``, because most who read it type
    Python. What stands in quotes is somebody's text, and stays as it is.

    Args:
        message: Any message.
        said: The name of an argument and its value as it is written, if there is one -> other words, or ``None``: as it is.
    """

    def other(match: re.Match[str]) -> str:
        found = said(match["name"], match["value"]) if match["name"] else None
        return match[0] if found is None else found

    return _ARGUMENT.sub(other, message)


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


EXTRAS = {  # what pyproject.toml lists for each, without bounds: pip picks the newest
    "app": "starlette uvicorn",
    "captum": "captum",
    "demo": "gguf",
    "gguf": "gguf accelerate",
    "multi-gpu": "accelerate",
    "ray": '"ray[data]"',
    "sva": "spacy pyarrow",
    "vision": "pillow torchvision",
    "viz": "matplotlib pandas networkx",
}


def install_command(extra: str) -> str:
    """The command that installs an extra's packages, however lrpx itself was installed: from an index, a clone, or not."""
    return f"pip install {EXTRAS[extra]}"


def import_optional(module: str, needed_for: str, *, extra: str | None = None) -> Any:
    """Import a module that an extra of lrpx installs; ``None``: what needs it needs nothing else of its extra.

    Raises:
        ImportError: It is not installed; the error says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        command = f"pip install {package}" if extra is None else install_command(extra)
        raise ImportError(f"{needed_for} needs {package}: {command}") from error


def warn(message: str) -> None:
    """Warn the code that called lrpx, at its own line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lrpx":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, LrpxWarning, stacklevel=level)


def strict() -> bool:
    """Whether failures that only make a pass slower are raised: where the environment says ``LRPX_STRICT=1``."""
    return os.environ.get("LRPX_STRICT") == "1"
