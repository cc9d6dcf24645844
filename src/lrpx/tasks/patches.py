"""Which token is which patch of an image, seen while the model runs.

The last convolution before the first block makes the patches: its output has their rows and columns. The first block is given
them row by row, behind tokens of the model's own (class, distillation, registers). Hiera orders them by its windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..models.modules import modules_of
from ..passes.hidden_states import first_blocks

OWN = 16  # tokens of its own that a model has at most
WITHOUT_PATCHES = frozenset({"cvt", "mobilevit", "mobilevitv2", "swiftformer"})
"""Model types with attention whose first block is not given all patches: they convolve between blocks, or within them."""
CELLS = 28  # into about how many rows and columns pixels are gathered, where a model has no patches


@dataclass(frozen=True)
class PatchGrid:
    """The patches of an image among the tokens.

    Attributes:
        rows, columns: How many patches.
        before: How many tokens of the model's own come first.
        order: The token of each patch, row by row, without those before; empty: they follow one another.
        side: Height and width of a patch in pixels, where patches may leave out the last pixels; ``None``: they cover the image.
    """

    rows: int
    columns: int
    before: int = 0
    order: tuple[int, ...] = ()
    side: tuple[int, int] | None = None

    @property
    def tokens(self) -> int:
        """How many tokens there are, and patches."""
        return self.before + self.rows * self.columns

    def covered(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what the patches cover of an image."""
        return (height, width) if self.side is None else (self.rows * self.side[0], self.columns * self.side[1])

    def edges(self, height: int, width: int) -> list[list[int]]:
        """Where the patches of each row, and of each column, begin; the last patch takes what is left over."""
        counts, covered = (self.rows, self.columns), self.covered(height, width)
        assert covered[0] <= height
        assert covered[1] <= width
        return [[n * size // count for n in range(count)] for count, size in zip(counts, covered, strict=True)]

    def numbered(self, height: int, width: int) -> np.ndarray:
        """The number of the patch of each pixel, row by row, int64 ``[height, width]``."""
        sizes = zip(self.edges(height, width), (height, width), strict=True)
        row, column = (np.searchsorted(edges, np.arange(size), side="right") - 1 for edges, size in sizes)
        return row[:, None] * self.columns + column

    def sums(self, pixels: np.ndarray) -> np.ndarray:
        """Numbers of pixels ``[height, width]``, added up by patch ``[rows * columns]``."""
        edges = self.edges(*pixels.shape)
        summed: np.ndarray = np.add.reduceat(np.add.reduceat(pixels, edges[0], axis=0), edges[1], axis=1)
        return summed.ravel()


class Seen:
    """What the hooks noted: see ``grid``."""

    def __init__(self) -> None:
        self.feature_map: tuple[int, int] | None = None
        self.side: tuple[int, int] | None = None
        self.length: int | None = None

    def grid(self, model: nn.Module, patched: tuple[int, int] | None = None) -> PatchGrid | None:
        """The patches that the first block was given; ``None`` if it was given none, or none is a token of its own.

        Args:
            model: The one that has run.
            patched: Rows and columns, if the model was given patches; more patches after them are padding.
        """
        if self.length is None:
            return None
        if patched is not None:
            return PatchGrid(*patched)
        rows, columns = self.feature_map or (0, 0)
        before = self.length - rows * columns
        if not rows * columns or not 0 <= before <= OWN:
            return None
        schedule = next((m.unroll_schedule for m in modules_of(model) if hasattr(m, "unroll_schedule")), None)
        order = () if schedule is None else _by_windows(rows, columns, schedule)
        return PatchGrid(rows, columns, before, order, self.side)


def _by_windows(rows: int, columns: int, schedule: Any) -> tuple[int, ...]:
    """The token of each patch, row by row, where Hiera puts patches at one place of their windows next to one another."""
    places = torch.arange(rows * columns).view(1, rows, columns)
    for high, wide in schedule:
        split = places.unflatten(2, (-1, wide)).unflatten(1, (-1, high))  # [windows, rows, high, columns, wide]
        places = split.permute(0, 2, 4, 1, 3).flatten(0, 2)
    return tuple(places.flatten().argsort().tolist())


@contextmanager
def noted_patches(model: PreTrainedModel) -> Iterator[Seen]:
    """Inside the block, note what the first block is given. Hold the model's lock."""
    seen = Seen()

    def convolved(module: Any, _: Any, output: Tensor) -> None:
        if seen.length is None and output.ndim == 4:
            first, kernel, stride = seen.feature_map is None, module.kernel_size, module.stride
            seen.side = (int(kernel[0]), int(kernel[1])) if first and kernel == stride else None
            seen.feature_map = (output.shape[2], output.shape[3])

    def entered(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()), None)
        if seen.length is None and state is not None and state.ndim == 3:
            seen.length = state.shape[1]

    with ExitStack() as stack:
        modules = modules_of(model)
        for module in modules:
            if isinstance(module, nn.Conv2d):
                stack.callback(module.register_forward_hook(convolved).remove)
        for block in first_blocks(modules):
            stack.callback(block.register_forward_pre_hook(entered, with_kwargs=True).remove)
        yield seen


def default_place(model: PreTrainedModel) -> str:
    """Where the relevance of an image is taken: ``"input"`` if the first block is given its patches, or else ``"pixels"``."""
    attends = any(re.search("(?<!fl)att", type(m).__name__, re.IGNORECASE) for m in modules_of(model))
    return "input" if attends and model.config.model_type not in WITHOUT_PATCHES else "pixels"


def cells(height: int, width: int) -> PatchGrid:
    """A grid for pixels of a model without patches: squares that tile the image, about ``CELLS`` in a row."""
    wanted = max(1, max(height, width) // CELLS)
    side = next(n for n in range(wanted, 0, -1) if height % n == 0 and width % n == 0)
    return PatchGrid(height // side, width // side)


def patch_names(rows: int, columns: int) -> list[str]:
    """A name for each patch, row by row: its row and column, from 1."""
    return [f"[{row}, {column}]" for row in range(1, rows + 1) for column in range(1, columns + 1)]


def own_tokens(model: PreTrainedModel, count: int) -> list[str]:
    """Names for the tokens that a model puts before the patches."""
    weights = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    names = ["[CLS]", *["[DIST]"] * ("distillation_token" in weights)]
    names += [f"[REG{n}]" for n in range(1, count - len(names) + 1)]
    return names[:count]
