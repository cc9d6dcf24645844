"""Messages of the library in the words of the command line.

The library says what to type as Python does, ``target=359`` or ``device='cpu'``. Here that becomes ``--target-id 359`` and
``--device cpu``. Which names are options is read off the commands themselves.
"""

from __future__ import annotations

import ast
import itertools
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..errors import LrpxError, with_arguments
from ..methods import METHODS

_REPEATED = {"choices": "choice"}  # lists of the library -> the option that is given once for each
_AS_ID = {"target": "--target-id", "contrast": "--contrast-id"}  # where the token is given as a number


ERROR, NOTE, SAID = "[bold red]lrpx:[/]", "[yellow]lrpx: note:[/]", "lrpx:"


def tell(kind: str, message: str | BaseException, *commands: Any) -> None:
    """Write one line to standard error, in the words of commands of click and those below them, the first before the others.

    ``kind``: ``ERROR``, ``NOTE`` or ``SAID``.
    """
    said = message.in_command if isinstance(message, LrpxError) else str(message)
    line = escape(in_command_syntax(said, options_of(commands)))
    Console(stderr=True).print(f"{kind} {line}", soft_wrap=True, highlight=False)


def in_command_words(explained: Any, *commands: Any) -> Any:
    """An explanation whose notes say what to type as ``tell`` does."""
    options = options_of(commands)
    return replace(explained, notes=tuple(in_command_syntax(note, options) for note in explained.notes))


def options_of(commands: Iterable[Any]) -> dict[str, str]:
    """The options of click commands: name of the parameter -> how it is typed, ``batch_tokens`` -> ``--batch-tokens``.

    Where commands differ, the first one counts. ``images``, a list in Python, is ``--image``, typed for each. Options of methods
    that have no name of their own are typed as ``--option steps=64``, in the commands that have it.
    """
    found: dict[str, str] = {}
    for command in commands:
        own: dict[str, str] = {}
        for parameter in command.params:
            long = [option for option in parameter.opts if option.startswith("--")]
            if long:
                own.setdefault(parameter.name, long[0])
                if parameter.name == "image":
                    own.setdefault("images", long[0])
        own |= {name: own[option] for name, option in _REPEATED.items() if option in own}
        if "option" in own:
            of_methods = (name for method in METHODS.values() for name in method.options)
            own = {name: f"{own['option']} {name}=" for name in of_methods} | own
        found = options_of(getattr(command, "commands", {}).values()) | own | found
    return found


def running_commands(root: Any, arguments: Sequence[str]) -> list[Any]:
    """The command of a group that is being run with ``arguments``, if one is named, and the group."""
    named = (root.commands[each] for each in arguments if each in getattr(root, "commands", {}))
    return [*itertools.islice(named, 1), root]


def in_command_syntax(message: str, options: Mapping[str, str]) -> str:
    """``message`` with ``--name value`` where it says ``name=value`` and ``name`` is an option."""

    def typed(name: str, value: str | None) -> str | None:
        if name not in options:
            return None
        try:
            return options[name] if value is None else _typed(name, ast.literal_eval(value), options[name])
        except (SyntaxError, ValueError):  # a list of names: [first, second]
            return f"{options[name]} {value}"

    return with_arguments(message, typed)


def _typed(name: str, value: Any, option: str) -> str:
    if option.endswith("="):
        text = value if isinstance(value, str) else json.dumps(value)
        return f"{option}{shlex.quote(text)}"
    if value is ...:
        return f"{option} ..."
    if isinstance(value, tuple):  # a head, or the tokens of a span
        return f"{option} {(':' if name in ('span', 'spans') else ',').join(map(str, value))}"
    if isinstance(value, list):
        return " ".join(_typed(name, one, option) for one in value) or option
    if value is True or value is None:
        return option
    if value is False:
        return f"--no-{option.removeprefix('--')}"
    if isinstance(value, int):
        return f"{_AS_ID.get(name, option)} {value}"
    return f"{option} {shlex.quote(str(value))}"
