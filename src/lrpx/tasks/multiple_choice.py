"""Multiple choice: a prompt, and several texts of which one fits best. The model reads the prompt with each choice, on its own.

Each choice gets one logit, and a softmax over the choices makes them probabilities. A logit alone says nothing about the choice:
adding a number to all of them changes no prediction. So what is explained is a difference, ``logit[target] - logit[contrast]``,
by default that of the best choice and the next best. The map shows the prompt once, with what it adds to the one minus what it
adds to the other, then the two choices. One choice alone, ``choices=["..."]``, is explained by its logit.

A function of the logits of all choices is explained by its gradient: what each choice's logit owes to the tokens, times how much
the function grows with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, nearest
from ..models.pooling import pooled
from ..passes.functions import value_and_gradient
from ..results.tokens import Segment, Token, Unit
from ..text.batching import Batch, Function, Readout
from ..text.given import as_python, shortened
from ..text.pairs import BETWEEN, encode_pair
from ..text.tokenization import Encoded
from .head_task import AskedScore, HeadTask, One, best_of, named, rank_among, softmax


@dataclass(frozen=True)
class ChoiceScore(Readout):
    """The logit of one choice, read with the prompt as the only one of its text."""

    def inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """``[B, T]`` as ``[B, 1, T]``."""
        return {name: values.unsqueeze(1) for name, values in inputs.items()}

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """``logits`` ``[B, 1]``."""
        logits: Tensor = output.logits
        return logits


class MultipleChoice(HeadTask):
    """See the top of this file."""

    name = "multiple-choice"
    parts = ("choices",)
    whole = ChoiceScore()

    def wrapped(self, name: str, value: Any) -> Any:
        """A list of strings are the choices of one text."""
        value = as_python(value)
        if name != "choices" or not isinstance(value, list):
            return value
        if not any(isinstance(each, list) for each in value):
            return One(tuple(value))
        return [One(tuple(each)) if isinstance(each, list) else each for each in value]

    def encode(self, given: Any, parts: Mapping[str, Any]) -> list[Encoded]:
        """The prompt with each choice."""
        if parts["choices"] is None:
            raise InputError(
                f"{self.signature.name} chooses among texts.",
                python='Give them: choices=["first", "second"].',
                app="Type them in “Choices”, one per line.",
            )
        choices = parts["choices"].values if isinstance(parts["choices"], One) else ()
        if isinstance(parts["choices"], One) and not choices:
            raise InputError("choices=[] is empty.", python='Give at least one: choices=["first", "second"].')
        if not choices or not all(isinstance(choice, str) for choice in choices):
            raise InputError(f"choices={shortened(list(choices) or parts['choices'])}: give a list of strings.")
        if len(set(choices)) < len(choices):
            twice = next(choice for choice in choices if choices.count(choice) > 1)
            raise InputError(f"choices has {twice!r} more than once. Give choices that differ.")
        return [encode_pair(self.tokenizer, given, choice, ("prompt", "choice")) for choice in choices]

    def ask(self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray]) -> AskedScore:
        """The choice that is given, or the best one; compared with the one that is given, or the best other one."""
        _check_position(asked["position"])
        names = asked["choices"].values
        scores = np.array([float(logit[0]) for logit in said])
        target, contrast = (_resolve(asked[role], role, names) for role in ("target", "contrast"))
        if target is None:
            target = int(np.argmax(np.where(np.arange(len(scores)) == contrast, -np.inf, scores)))
        if contrast is None and len(rows) > 1:
            contrast = int(np.argmax(np.where(np.arange(len(scores)) == target, -np.inf, scores)))
        if target == contrast:
            raise InputError(
                f"target and contrast are the same choice, {names[target]!r}: their difference is 0. Give two that differ."
            )
        shares, tokens = softmax(scores), [Token(n, name, name) for n, name in enumerate(names)]
        told = named(tokens[target], None, "target")
        if len(rows) > 1:
            told = named(tokens[target], (float(shares[target]), rank_among(scores, target)), "target")
            told["top"] = best_of(shares, tokens)
        items = [self.item(rows[target], target=0)]
        shown, shared = rows[target], 0
        if contrast is not None:
            told |= named(tokens[contrast], (float(shares[contrast]), rank_among(scores, contrast)), "contrast")
            items.append(self.item(rows[contrast], target=0))
            shown, shared = _together([rows[target], rows[contrast]], ["choice", "contrast"], [names[contrast]])
        return AskedScore(
            shown=shown,
            rows=tuple(items),
            weights=(1.0, -1.0) if len(items) > 1 else (),
            span=pooled(self.model, rows[target].token_ids),
            shared=shared,
            told=told,
            notes=tuple(dict.fromkeys(note for item in items for note in item.notes)),
        )

    def ask_function(
        self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray], function: Function
    ) -> AskedScore:
        """A function of the logits of all choices ``[C]``: as good as a weighted sum of them, near the logits as they are."""
        _check_position(asked["position"])
        names = asked["choices"].values
        scores = np.array([float(logit[0]) for logit in said])
        value, gradient = value_and_gradient(function, torch.from_numpy(scores).to(self.model.dtype))
        weights = gradient.double().cpu().numpy()
        items = [self.item(row, target=0) for row in rows]
        shown, shared = _together(rows, [f"choice {n}" for n in range(len(rows))], names[1:])
        tokens = [Token(n, name, name) for n, name in enumerate(names)]
        return AskedScore(
            shown=shown,
            rows=tuple(items),
            weights=tuple(weights.tolist()),
            constant=float(value) - float(weights @ scores),
            function=function,
            span=(0, 0),
            shared=shared,
            told={"top": best_of(softmax(scores), tokens)} if len(rows) > 1 else {},
            notes=tuple(dict.fromkeys(note for item in items for note in item.notes)),
        )

    def readout(self, asked: Sequence[AskedScore]) -> Readout:
        """The logit of the choice."""
        return ChoiceScore()


def _check_position(position: Any) -> None:
    if position is not None:
        raise InputError(f"position={position!r}: a choice has one logit. Leave position out.")


def _resolve(given: Any, role: str, names: Sequence[str]) -> int | None:
    """A choice that is given by its text or its index."""
    given = as_python(given)
    if given is None:
        return None
    if type(given) is int and 0 <= given < len(names):
        return given
    if isinstance(given, str) and given in names:
        return names.index(given)
    if isinstance(given, str):
        raise InputError(f"{role}={given!r} is none of the choices. {nearest(given, names)}")
    raise InputError(f"{role}={given!r}: give one of the choices, or its index from 0 to {len(names) - 1}.")


def _together(rows: Sequence[Encoded], names: Sequence[str], others: Sequence[str]) -> tuple[Encoded, int]:
    """The prompt and several choices as the tokens of one map, and how many of them are of all rows.

    Args:
        rows: The prompt with each choice.
        names: How the segment of each choice is called.
        others: The choices after the first.

    Raises:
        InputError: The tokenizer does not read the prompt in the same way before all of them.
    """
    first, begin = rows[0], rows[0].segments[-1].start
    units, segments = list(first.units), [*first.segments[:-1], first.segments[-1]._replace(name=names[0])]
    ids, tokens = list(first.token_ids), list(first.tokens)
    for row, name in zip(rows[1:], names[1:], strict=True):
        same = first.token_ids[:begin] == row.token_ids[:begin] and first.segments[:-1] == row.segments[:-1]
        if not same or row.segments[-1].start != begin:
            raise InputError(
                "the tokenizer reads the prompt in another way before another choice, so they cannot be compared."
            )
        move, own = len(ids) - begin, row.segments[-1]
        more = [Unit(unit.start + move, unit.end + move, unit.text) for unit in row.units if unit.start >= begin]
        if sum(unit.end - unit.start for unit in more) != len(row.token_ids) - begin:
            raise InputError("a character of the prompt and the choice is split over tokens of both.")
        units += more
        segments.append(Segment(name, own.start + move, own.end + move))
        ids += row.token_ids[begin:]
        tokens += row.tokens[begin:]
    shown = replace(
        first,
        token_ids=tuple(ids),
        tokens=tokens,
        units=units,
        spans=[*first.spans, *[None] * (len(ids) - len(first.token_ids))],
        extras={},
        text=BETWEEN.join([str(first.text), *others]),
        segments=tuple(segments),
    )
    return shown, begin
