"""Relevance of heads and layers: whether a call computes it, and a note where it could not."""

from __future__ import annotations

from typing import Any

from ..passes.execution import Execution
from ..text.batching import Attribution

SHORT = 1024  # tokens of all texts of a call, up to which it is computed unasked: it costs next to nothing there


def with_heads(settings: dict[str, Any], tokens: int, execution: Execution) -> dict[str, Any]:
    """The options of a method for a call of so many tokens; ``heads=None`` becomes ``True`` or ``False``."""
    if settings.get("heads", False) is not None:
        return settings
    return {**settings, "heads": tokens <= SHORT and not execution.compile}


def without_heads(settings: dict[str, Any], result: Attribution, *, several: bool = False) -> list[str]:
    """A note where heads were asked for and are not known; ``several`` tokens are explained together."""
    if settings.get("heads") is not True or result.by_head is not None:
        return []
    if several:
        return ["heads=True was asked for, and heads are known of one explained token, not of several together."]
    return ["what the heads wrote was not found in this pass, although heads=True was asked for."]
