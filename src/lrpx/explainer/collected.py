"""Several texts or images of one call: an error says which it is about, or is kept while the others are explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import InputError, LrpxError, NonFiniteError


class Collected:
    """What texts and images of a call have in common.

    Attributes:
        of: What there are several of, for errors: ``"text"``, ``"image"``, or ``"target"`` and its like.
        several: Whether there are several, so that an error has to say which it is about.
        collect: Whether errors are kept.
        failed: Of each that cannot be explained, by its index: why. Filled only if errors are kept.
    """

    of: str
    several: bool
    collect: bool
    failed: dict[int, LrpxError]

    @contextmanager
    def _trying(self, i: int) -> Iterator[None]:
        """Keep what speaks against the one with this index, or let the error say which of several it is about."""
        try:
            yield
        except (InputError, NonFiniteError) as error:
            if self.collect:
                self.failed[i] = error
                return
            if not self.several:
                raise
            raise type(error)(f"{self.of}[{i}]: {error}") from None
