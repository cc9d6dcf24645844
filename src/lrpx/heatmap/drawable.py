"""What a heatmap reads of an explanation. ``lrpx.Explanation`` has it all, and describes each attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


class VocabularyEntry(Protocol):
    """An ``lrpx.results.tokens.Token``."""

    @property
    def id(self) -> int: ...

    @property
    def text(self) -> str: ...

    @property
    def shown(self) -> str: ...


class Patches(Protocol):
    """An ``lrpx.results.images.ImagePatches``."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...

    @property
    def png(self) -> bytes: ...

    @property
    def name(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]: ...


class Made(Protocol):
    """What says how something was computed."""

    @property
    def method(self) -> str: ...

    @property
    def at(self) -> str: ...

    @property
    def provenance(self) -> Mapping[str, Any]: ...


class Tokens(Made, Protocol):
    """What explanations, generated text and flows have in common: the tokens that they are about, and notes."""

    @property
    def tokens(self) -> Sequence[str]: ...

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def units(self) -> Sequence[tuple[int, int, str]]: ...

    @property
    def special(self) -> Sequence[int]: ...

    @property
    def notes(self) -> Sequence[str]: ...


@runtime_checkable
class Drawable(Tokens, Protocol):
    """An ``Explanation``, or something with the same attributes."""

    @property
    def segments(self) -> Sequence[tuple[str, int, int]]: ...

    @property
    def images(self) -> Sequence[Patches]: ...

    @property
    def relevance(self) -> np.ndarray: ...

    @property
    def value(self) -> float: ...

    @property
    def residual(self) -> float | None: ...

    @property
    def target(self) -> VocabularyEntry: ...

    @property
    def contrast(self) -> VocabularyEntry | None: ...

    @property
    def target_probability(self) -> float | None: ...

    @property
    def target_rank(self) -> int | None: ...

    @property
    def contrast_probability(self) -> float | None: ...

    @property
    def contrast_rank(self) -> int | None: ...

    @property
    def top(self) -> Sequence[tuple[VocabularyEntry, float]]: ...

    @property
    def measures(self) -> str: ...

    @property
    def explains(self) -> str: ...

    @property
    def task(self) -> str: ...

    @property
    def position(self) -> int: ...

    @property
    def span(self) -> tuple[int, int] | None: ...

    @property
    def by_layer(self) -> np.ndarray | None: ...

    @property
    def by_attention(self) -> np.ndarray | None: ...

    @property
    def by_mlp(self) -> np.ndarray | None: ...

    @property
    def by_head(self) -> np.ndarray | None: ...

    @property
    def components(self) -> Mapping[str, Any]: ...


class Generated(Tokens, Protocol):
    """A ``lrpx.GenerationExplanation``, which describes each attribute."""

    @property
    def images(self) -> Sequence[Patches]: ...

    @property
    def prompt_length(self) -> int: ...

    @property
    def source(self) -> int: ...

    @property
    def spans(self) -> Sequence[tuple[int, int]]: ...

    @property
    def relevance(self) -> np.ndarray: ...

    @property
    def values(self) -> np.ndarray: ...

    @property
    def residuals(self) -> np.ndarray | None: ...

    @property
    def contrast(self) -> str | tuple[VocabularyEntry, ...] | None: ...

    @property
    def probabilities(self) -> np.ndarray | None: ...

    @property
    def per_token(self) -> bool: ...

    @property
    def measures(self) -> str: ...

    def what(self, count: int) -> str: ...


class FlowStepLike(Protocol):
    """A step of ``lrpx.RelevanceFlow``, which describes each attribute."""

    @property
    def upper(self) -> str: ...

    @property
    def lower(self) -> str: ...

    @property
    def edges(self) -> np.ndarray: ...

    @property
    def relevance(self) -> np.ndarray: ...

    @property
    def kept(self) -> float: ...


class FlowLike(Tokens, Protocol):
    """A ``lrpx.RelevanceFlow``, which describes each attribute."""

    @property
    def value(self) -> float: ...

    @property
    def residual(self) -> float: ...

    @property
    def target(self) -> VocabularyEntry: ...

    @property
    def contrast(self) -> VocabularyEntry | None: ...

    @property
    def position(self) -> int: ...

    @property
    def places(self) -> Sequence[str]: ...

    @property
    def relevance(self) -> np.ndarray: ...

    @property
    def kept(self) -> np.ndarray: ...

    @property
    def steps(self) -> Sequence[FlowStepLike]: ...

    @property
    def share(self) -> float | None: ...

    @property
    def threshold(self) -> float | None: ...

    @property
    def edge_count(self) -> int: ...

    def shares(self) -> np.ndarray: ...
