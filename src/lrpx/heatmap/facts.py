"""What a map says of an explanation in words: its model and settings, how likely its tokens are, and which begin a character."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from .drawable import Drawable, Made, VocabularyEntry
from .numbers import probability
from .text import half_character, in_quotes


def model_and_settings(e: Made, place: str | None = None) -> list[str]:
    """The model, where relevance was taken (or another ``place``; nothing if it is empty), and the options of the method."""
    model, options = e.provenance.get("model"), e.provenance.get("options")
    name = [os.path.basename(model) if os.path.isabs(model) else model] if isinstance(model, str) else []
    chosen = options.items() if isinstance(options, dict) else ()
    method = e.method.partition(", ")[0]  # of one head or neuron: "attnlrp, head 5 of layer 3"
    rules = dict(chosen).get("rules", method)
    own = "rules of your own" if str(rules).startswith("{") else f"rules={rules}"
    return [
        *name,
        *([own] if rules != method else []),
        *filter(None, [f"relevance at the {e.at}" if place is None else place]),
        *(f"{k}={v}" for k, v in chosen if k not in ("rules", "at", "seed") and _is_told(v)),
    ]


def _is_told(value: object) -> bool:
    """Whether an option is one word or number, which changes what the map shows."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def how_likely(e: Drawable, entry: Callable[[VocabularyEntry], str]) -> Iterator[str]:
    """How likely the explained tokens are, and which are the likeliest."""
    asked = [
        (e.target, e.target_probability, e.target_rank),
        (e.contrast, e.contrast_probability, e.contrast_rank),
    ]
    for token, p, rank in [] if e.measures == "mixture" else asked:
        if token is not None and p is not None:
            yield f"{in_quotes(entry(token))} p {probability(p)}" + ("" if rank is None else f", rank {rank:,}")
    best = [in_quotes(entry(token)) + " " + probability(p).strip("= ") for token, p in e.top]
    if best:
        yield f"likeliest: {', '.join(best)}"


def begun_characters(e: Drawable) -> Iterator[str]:
    """What a token is the beginning of, where it is no whole character."""
    for token in (e.target, e.contrast):
        if token is not None and "\\x" in token.shown and (letters := half_character(token.text)):
            yield f"{in_quotes(token.shown)} begins a character, one of {letters}."
