"""Messages of the library in the words of the page.

1. An error has its advice for the app apart from that for Python (``LrpxError.in_app``).
2. What is left of Python are names of arguments, such as ``target='are'``: here they become the names of fields.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import LrpxError, with_arguments
from ..results.explanation import Explanation

# Arguments of an explainer -> fields of the page, with the value behind them.
FIELDS = {
    "choices": "“Choices” {}",
    "contrast": "“and not” {}",
    "hide": "what “View” hides",
    "images": "“Images” {}",
    "max_new_tokens": "tokens to generate: {}",
    "method": "“Methods” {}",
    "objective": "as many tokens in “and not” as in “Explain”",  # the page has no other objective than logits
    "palette": "“Colours” {}",
    "position": "“Position” {}",
    "question": "“Question about the text” {}",
    "target": "“Explain” {}",
    "text": "“Text” {}",
    "text_pair": "“Second text” {}",
}


def on_page(error: BaseException) -> str:
    """What an error says on the page, in one line."""
    message = error.in_app if isinstance(error, LrpxError) else str(error)
    return " ".join(in_words_of_page(message).split()) or type(error).__name__


def with_notes_of_page(e: Explanation) -> Explanation:
    """An explanation whose notes name fields of the page."""
    return replace(e, notes=tuple(map(in_words_of_page, e.notes)))


def in_words_of_page(message: str) -> str:
    """A message with the fields of the page in place of arguments."""

    def field(name: str, value: str | None) -> str | None:
        return FIELDS[name].format(value or "").strip() if name in FIELDS else None

    return with_arguments(message, field)
