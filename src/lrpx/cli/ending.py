"""How a command ends: its exit status, and wrong use as one sentence.

0    everything worked; also if whoever reads the output goes away (``lrpx methods | head -1``)
1    something failed, or does not hold
2    wrong use, or nothing could be done
130  an interrupt, as shells have it
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from ..errors import LrpxError
from ..methods import METHODS
from .wording import ERROR, running_commands, tell

UsageError: Any = typer.BadParameter.__base__  # click's, or that of the copy of click that newer releases of typer have
_RULES = ("alpha1beta0", "gamma", "epsilon")


def status_of(command: Callable[[], int | None], root: Any, arguments: Sequence[str]) -> int:
    """Run a command and tell how it ended; an error that a person can mend is one line on standard error.

    Args:
        command: Gives an exit status, or ``None`` for 0.
        root: The whole command line, for messages.
        arguments: What was typed.
    """
    try:
        status = command() or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as end:  # typer's and rich's answer to a closed pipe
        if isinstance(end.__context__, BrokenPipeError):
            return _reader_gone()
        raise
    except KeyboardInterrupt:
        return 130
    except typer.Abort:
        tell(ERROR, "aborted.")
        return 1
    except UsageError as error:
        if not error.format_message():  # a group without a command: its help
            error.show()
        else:
            tell(ERROR, in_a_sentence(error, arguments, root))
        return 2
    except (LrpxError, ImportError, OSError) as error:
        tell(ERROR, error, *running_commands(root, arguments))
        return 2


def in_a_sentence(error: Any, arguments: Sequence[str], root: Any) -> str:
    """Wrong use of the command line, as the other errors say it."""
    context = getattr(error, "ctx", None)
    path = (
        context.command_path
        if context
        else " ".join(["lrpx", *(one.name for one in running_commands(root, arguments)[:-1])])
    )
    message = error.format_message().rstrip(".")
    if found := re.fullmatch(r"Invalid value for '([^']+)': (.*)", message, flags=re.DOTALL):
        name, why = found[1].split(" / ")[-1], found[2]
        given = _given(error.param.opts, arguments)
        message = f"{name}{'' if given is None else ' ' + shlex.quote(given)}: {_wanted(why)}"
    elif found := re.match(r"No such option: (-[\w-]+)", message):
        known = [option for parameter in context.command.params for option in parameter.opts] if context else []
        if found[1] in [option for parameter in root.params for option in parameter.opts]:
            return f"{found[1]} goes before the command: lrpx {found[1]} ... {path.removeprefix('lrpx ')} ..."
        message = f"no such option: {found[1]}.{_instead(found[1], known)}".rstrip(".")
    else:
        message = _lowered(message)
    return f"{message}{'' if message.endswith('?') else '.'} Try '{path} --help'."


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]


def _given(names: Sequence[str], arguments: Sequence[str]) -> str | None:
    """The last value that was typed for an option."""
    found = None
    for argument, after in zip(arguments, [*arguments[1:], None], strict=True):
        name, equals, value = argument.partition("=")
        if name in names:
            found = value if equals else after
    return found


def _wanted(why: str) -> str:
    if most := re.search(r"(less|greater) than or equal to (\S+)", why):
        return f"give at {'most' if most[1] == 'less' else 'least'} {most[2]}"
    if "valid integer" in why:
        return "give a whole number"
    if "valid number" in why or "valid float" in why:
        return "give a number"
    return _lowered(why)


def _instead(option: str, known: Sequence[str]) -> str:
    """How something is typed that has no option of its own, or the nearest of the ``known`` options."""
    name = option.removeprefix("--")
    if name in _RULES:
        return f" Rules are typed as --rules {name}{'' if name == 'alpha1beta0' else '=0.25'}"
    if name.replace("-", "_") in {option for method in METHODS.values() for option in method.options}:
        return f" Options of methods are typed as --option {name}=VALUE"
    close = difflib.get_close_matches(option, known, n=1, cutoff=0.7) if option.startswith("--") else []
    return f" Did you mean {close[0]}?" if close else ""


def _reader_gone() -> int:
    """Whoever read the output has seen enough. What is still to be written goes nowhere, so that Python's end is quiet."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return 0
