"""A method's entry in the table of methods: what it is, what it assumes, and the function that computes it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UnsupportedModelError, counted, import_optional
from ..models.lock import lock_of
from ..results.explanation import Measures
from .own_code import OwnCode

if TYPE_CHECKING:
    from ..passes.dispatch import PassRunner
    from ..text.batching import Attribution, Batch

FAMILY = "alti.families:find_family"


@dataclass(frozen=True)
class Traits:
    """What a method assumes, costs and gives: the columns of Table 1 of Arras et al. 2025.

    Attributes:
        granularity: The parts of a model that get relevance of their own.
        cost: Passes through the model.
        linear_norms: Norms are treated as linear, their deviation as a constant. ``None``: norms are not looked at.
        constant_attention: Attention weights are treated as constants.
        through_mlps: What MLPs do is followed back to their inputs.
        decomposes: Relevance is a decomposition of the logit: its parts add up, but for what biases and softmax absorb.
        in_paper: The method is one of those in that table.
    """

    granularity: str
    cost: str
    linear_norms: bool | None
    constant_attention: bool
    through_mlps: bool
    decomposes: bool
    in_paper: bool = True


@dataclass(frozen=True)
class Method:
    """A method's entry in the table: what it is, where it comes from and the function that computes it."""

    name: str
    summary: str  # one line
    source: str  # paper
    # "module:function" below lrpx.methods, imported on use; or one of the user's own.
    function: str | Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)  # what the function takes, with defaults
    traits: Traits | None = None  # None: not told, for a method of one's own
    measures: Measures = "parts"  # what its numbers are; see ``Explanation``
    needs: str = ""  # a package that an extra of this name installs
    changes_pixels: bool = False  # it reads images too, alone or in a text: it changes their pixels, or features
    check: str = ""  # "module:function" as above, which refuses a model that the method cannot explain
    code: OwnCode | None = None  # of a registered function

    @property
    def goes_to_any_place(self) -> bool:
        """Whether it goes backwards to other places than word embeddings, so that it reads images beside a text too."""
        return self.has_passes and "embedding" not in self.options.get("at", ())

    @property
    def reads_images(self) -> bool:
        """Whether it explains what an image alone contributes."""
        return self.changes_pixels or self.goes_to_any_place

    def load(self) -> Callable[..., Any]:
        """The function ``(model, batch, **options) -> Sequence[Attribution]``."""
        return self.function if callable(self.function) else _loaded(self.function)

    def check_model(self, model: Any) -> None:
        """Refuse a model that it cannot explain, before anything is computed.

        Raises:
            UnsupportedModelError: It cannot; the error says why.
            ImportError: A package that it needs is not installed.
        """
        if self.needs:
            import_optional(self.needs, f'method="{self.name}"', extra=self.needs)
        if self.check:
            _loaded(self.check)(model)

    @property
    def has_passes(self) -> bool:
        """Whether it goes backwards through the model, so that a ``PassRunner`` says how."""
        return _takes_runner(self.load())

    def suits(self, model: Any) -> bool:
        """Whether it can explain a model that is no language model; a package that it needs may still be missing."""
        if self.needs_family:
            return False
        try:
            if self.check:
                _loaded(self.check)(model)
        except UnsupportedModelError:
            return False
        return True

    @property
    def needs_family(self) -> bool:
        """Whether it follows the residual stream of a language model, which has to be of a family that is described."""
        return self.check == FAMILY

    def run_by(self, runner: PassRunner) -> Callable[..., Sequence[Attribution]]:
        """The function as ``(batch, **options) -> Sequence[Attribution]``, for the runner's model and by its passes.

        It holds the model's lock meanwhile. A method without a backward pass has its own way.

        Raises:
            UnsupportedModelError: When called: the model cannot be explained correctly.
        """
        from ..models.positions import fresh_rotations
        from ..passes.validation import check_model

        model, function, has_passes = runner.model, self.load(), self.has_passes
        checked = self._checked if callable(self.function) else lambda found, batch: found

        def run(batch: Batch, **options: Any) -> Sequence[Attribution]:
            with lock_of(model):
                if has_passes:
                    return checked(function(model, batch, runner=runner, **options), batch)
                check_model(model, {})
                with fresh_rotations(model):
                    return checked(function(model, batch, **options), batch)

        return run

    def _checked(self, found: Any, batch: Batch) -> Sequence[Attribution]:
        """What a registered function returned, if it is an ``Attribution`` for each item of the batch."""
        from ..text.batching import Attribution

        count = len(batch.places)
        given = f"{type(found).__name__}"
        if isinstance(found, list | tuple):
            wrong = [type(one).__name__ for one in found if not isinstance(one, Attribution)]
            if len(found) == count and not wrong and all(one.target is not None for one in found):
                return found
            given = f"a list of {counted(len(found), 'item')}"
            given += f", one of them of type {wrong[0]}" if wrong else ", with target=None" * (len(found) == count)
        raise InputError(
            f"the method {self.name!r} returned {given}. Expected: a list of {counted(count, 'item')}, one Attribution for each "
            "text of the batch, its target a token id.",
            python="See docs/add_a_method.md.",
        )


def _loaded(path: str) -> Callable[..., Any]:
    module, function = path.split(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)  # type: ignore[no-any-return]


@cache
def _takes_runner(function: Callable[..., Any]) -> bool:
    return "runner" in inspect.signature(function).parameters
