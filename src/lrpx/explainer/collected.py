"""Several texts or images of one call: an error says which it is about, or is kept while the others are explained."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm.auto import tqdm

from ..errors import InputError, LrpxError, NonFiniteError, listed, warn
from ..text.batching import Attribution

Explain = Callable[..., Sequence[Attribution]]  # a batch and a method's options -> one for each item
Found = TypeVar("Found")

NEVER = 1 << 30  # collections of the middle generation before a full one


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

    def _trying(self, i: int) -> Trying:
        """Keep an error about the one with this index, or let it say which of several it is about."""
        return Trying(self, i)

    def _in_groups(
        self, groups: Sequence[list[int]], compute: Callable[[list[int]], Found], name: str, progress: bool | None
    ) -> Iterator[tuple[list[int], Found]]:
        """What ``compute`` gives for each group; where errors are kept and it fails, for each member alone.

        Args:
            groups: Indices.
            compute: From a group.
            name: What the progress bar is called.
            progress: Whether there is one. ``None``: for several groups, on a terminal.
        """
        hidden = None if progress is None and len(groups) > 1 else not progress
        if hidden and len(groups) == 1 and not self.collect:  # making a bar that nobody sees takes 5 % of a short call
            yield groups[0], compute(groups[0])
            return
        with tqdm(total=sum(map(len, groups)), desc=name, unit=self.of, disable=hidden) as bar:
            for group in groups:
                try:
                    parts = [(group, compute(group))]
                except (InputError, NonFiniteError):
                    if not self.collect:
                        raise
                    parts = []
                    for i in group:
                        with self._trying(i):
                            parts.append(([i], compute([i])))
                yield from parts
                bar.update(len(group))

    def _warn_of(self, notes: Mapping[int, Sequence[str]]) -> None:
        """One warning for each note, with the texts, or the targets of one text, that it is about."""
        texts: dict[str, list[int]] = {}
        for i, several in notes.items():
            for note in several:
                texts.setdefault(note, []).append(i)
        for note, about in texts.items():
            which = listed([f"{self.of}[{i}]" for i in about], 3)
            warn(note if len(about) == len(notes) else f"{which}: {note}")


class Trying:
    """``with`` block around one of several; a class of its own, because a call enters some hundred thousand of them."""

    __slots__ = ("all", "index")

    def __init__(self, all: Collected, index: int) -> None:
        self.all, self.index = all, index

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if not isinstance(error, InputError | NonFiniteError):
            return False
        if self.all.collect:
            self.all.failed[self.index] = error
            return True
        if not self.all.several:
            return False
        raise type(error)(f"{self.all.of}[{self.index}]: {error}") from None


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collections while many objects are made that stay: they would look through all of them again and again.

    Measured with 28,629 texts on an H200 machine: 2.3 of 9.5 s.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def without_full_collections() -> Iterator[None]:
    """As ``without_collections`` while passes run too: garbage among what is new is collected as usual.

    What is left out are collections of everything, which would look through all explanations made so far. From Python 3.14 on
    the collector works step by step and has none, so that this changes nothing.
    """
    before = gc.get_threshold()
    if before[2] == NEVER:  # a block around this one, or another thread, will restore it
        yield
        return
    gc.set_threshold(*before[:2], NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
