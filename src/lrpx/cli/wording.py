"""Messages of the library in the words of the command line.

The library says what to type as Python does, ``target=359`` or ``device='cpu'``, because most who read it type Python. Here that
becomes ``--target-id 359`` and ``--device cpu``. Which names are options is read off the commands themselves. What stands in
quotes is somebody's text and stays as it is.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape

_STRING = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_VALUE = rf"{_STRING}|\[[^\]]*\]|-?\d+(?:\.\d+)?\b|True\b|False\b|None\b"
_ADVICE = re.compile(rf"(?<!\w)(?P<text>{_STRING})|(?<![\w.#-])(?P<name>[a-z][a-z0-9_]*)=(?P<value>{_VALUE})?")
_REPEATED = {"choices": "choice"}  # lists of the library -> the option that is given once for each
_AS_ID = {"target": "--target-id", "contrast": "--contrast-id"}  # where the token is given as a number


ERROR, NOTE, SAID = "[bold red]lrpx:[/]", "[yellow]lrpx: note:[/]", "lrpx:"


def tell(kind: str, message: str, command: Any) -> None:
    """Write one line to standard error, in the words of a command of click and those below it.

    ``kind``: ``ERROR``, ``NOTE`` or ``SAID``.
    """
    line = escape(in_command_syntax(message, options_of([command])))
    Console(stderr=True).print(f"{kind} {line}", soft_wrap=True, highlight=False)


def in_command_words(explained: Any, command: Any) -> Any:
    """An explanation whose notes say what to type as ``tell`` does."""
    options = options_of([command])
    return replace(explained, notes=tuple(in_command_syntax(note, options) for note in explained.notes))


def options_of(commands: Iterable[Any]) -> dict[str, str]:
    """The options of click commands: name of the parameter -> how it is typed, ``batch_tokens`` -> ``--batch-tokens``.

    ``images``, a list in Python, is ``--image``, typed for each.
    """
    found: dict[str, str] = {}
    for command in commands:
        for parameter in command.params:
            long = [option for option in parameter.opts if option.startswith("--")]
            if long:
                found.setdefault(parameter.name, long[0])
                if parameter.name == "image":
                    found.setdefault("images", long[0])
        found |= options_of(getattr(command, "commands", {}).values())
        found |= {name: found[option] for name, option in _REPEATED.items() if option in found}
    return found


def in_command_syntax(message: str, options: Mapping[str, str]) -> str:
    """``message`` with ``--name value`` where it says ``name=value`` and ``name`` is an option."""

    def typed(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        if name not in options:
            return match[0]
        try:
            return options[name] if value is None else _typed(name, ast.literal_eval(value), options[name])
        except (SyntaxError, ValueError):  # a list of names: [first, second]
            return f"{options[name]} {value}"

    return _ADVICE.sub(typed, message)


def _typed(name: str, value: Any, option: str) -> str:
    if value is ...:
        return f"{option} ..."
    if isinstance(value, list):
        return " ".join(_typed(name, one, option) for one in value) or option
    if value is True or value is None:
        return option
    if value is False:
        return f"--no-{option.removeprefix('--')}"
    if isinstance(value, int):
        return f"{_AS_ID.get(name, option)} {value}"
    return f"{option} {shlex.quote(str(value))}"
