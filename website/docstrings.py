"""For the reference: an entry of a docstring for several names, ``target, contrast: What they are.``, becomes one for each.

Griffe, which reads docstrings, knows one name for each entry. The first name keeps the words, the others say "Likewise".
"""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"^( +)(\w+)((?:, \w+)+): (.*(?:\n\1 .*)*)", re.M)


def one_name_each(docstring: str) -> str:
    """The docstring with an entry for each name."""

    def split(entry: re.Match[str]) -> str:
        indent, first, others, words = entry.groups()
        return "\n".join(
            [f"{indent}{first}: {words}", *(f"{indent}{name}: Likewise." for name in others[2:].split(", "))]
        )

    return ENTRY.sub(split, docstring)


class OneNameEach(griffe.Extension):
    """Does so for everything that Griffe reads."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = one_name_each(obj.docstring.value)
