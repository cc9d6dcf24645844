"""What a heatmap reads of an explanation. ``lrpx.Explanation`` has it all, and describes each attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Drawable(Protocol):
    """An ``Explanation``, or something with the same attributes."""

    @property
    def tokens(self) -> Sequence[str]: ...

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def units(self) -> Sequence[tuple[int, int, str]]: ...

    @property
    def relevance(self) -> np.ndarray: ...

    @property
    def value(self) -> float: ...

    @property
    def residual(self) -> float | None: ...

    @property
    def target(self) -> tuple[int, str]: ...

    @property
    def contrast(self) -> tuple[int, str] | None: ...

    @property
    def position(self) -> int: ...

    @property
    def method(self) -> str: ...

    @property
    def at(self) -> str: ...

    @property
    def by_layer(self) -> np.ndarray | None: ...

    @property
    def components(self) -> Mapping[str, Any]: ...

    @property
    def provenance(self) -> Mapping[str, Any]: ...
