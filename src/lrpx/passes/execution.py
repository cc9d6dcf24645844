"""How passes are run, as a user asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError


@dataclass(frozen=True)
class Execution:
    """How passes are run. Results differ by rounding at most, and not at all between ``fast`` and the padded eager pass.

    Attributes:
        fast: CUDA graphs for short texts. ``None``: from the second use of a shape on; ``True``: from the first.
        compile: Trace and fuse the pass, once for all lengths: up to a minute; worth it for long or many texts. A text alone,
            several together, and a text of one token are traced separately, and so are every method, and every size and number
            of images.
        checkpoint: Recompute each block in the backward pass, for a fraction of the memory and a third more time. ``None``:
            if an estimate says that it is needed.
    """

    fast: bool | None = None
    compile: bool = False
    checkpoint: bool | None = None

    def __post_init__(self) -> None:
        for name in ("fast", "compile", "checkpoint"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and name != "compile"):
                raise InputError(f"{name}={value!r}: give True or False.")


DEFAULT = Execution()
