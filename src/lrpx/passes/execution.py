"""How passes are run, as a user asks for it, and which of that has no effect."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError
from ..text.batching import Batch


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

    def idle(self, method: str, device: str, *, has_passes: bool) -> dict[str, str]:
        """Which of the options that were asked for change nothing, and why.

        Args:
            method: The method's name.
            device: The type of the model's device.
            has_passes: Whether the method goes backwards.
        """
        why: dict[str, str] = {}
        if not has_passes:
            why = dict.fromkeys(("fast", "compile", "checkpoint"), f"{method} has no backward pass")
        elif self.checkpoint:
            why = {"fast": "a checkpointed pass is not captured"}
        elif device != "cuda":
            why = {"fast": f"CUDA graphs need a GPU, and the model is on {device}"}
        return {option: reason for option, reason in why.items() if getattr(self, option) is True}

    def not_done(self, batch: Batch, model: str) -> str | None:
        """What was asked for and is not done for such inputs, as a warning; ``model`` is the name of its class."""
        done = {"fast": batch.is_text_alone, "compile": batch.is_traceable}
        asked = [name for name in done if getattr(self, name) and not done[name]]
        if not asked:
            return None
        images = batch.of_images or batch.with_images
        why = (
            "has an encoder and a decoder" if batch.sources else "reads images" if images else "is given more than text"
        )
        how = " or ".join({"fast": "captured", "compile": "compiled"}[name] for name in asked)
        what = "texts alone are" if "fast" in asked else "texts alone and images are"
        options = " and ".join(f"{name}=True" for name in asked)
        return f"{options}: {model} {why}: only {what} {how}, so it runs as usual"


DEFAULT = Execution()
