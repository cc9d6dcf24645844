"""The texts of one call of a model with a head of its own: a classifier, or one that answers questions.

They are read by the model's task (``tasks/``); how they are explained, batch by batch, is the same as for language models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError
from ..methods import METHODS, SIGNED, Method
from ..models.pooling import finds_padding
from ..models.stacks import encoder_of
from ..passes.dispatch import PassRunner
from ..passes.plain import scores_of
from ..results.explanation import Explanation
from ..tasks.head_task import AskedScore, HeadTask
from ..text.batching import Attribution, Item, Readout, pad
from ..text.items import check_name, function_of
from ..text.tokenization import Encoded
from .collected import Explain
from .texts import Texts


class HeadTexts(Texts):
    """Texts, and which score of each is explained.

    Attributes:
        task: How texts are read.
        asked: Of each text that can be used, by its index: what is explained.
        readouts: From the model's output to the scores, or to what functions of them are given.
    """

    def __init__(
        self,
        runner: PassRunner,
        task: HeadTask,
        text: Any,
        asked: Mapping[str, Any],
        *,
        batch_tokens: int,
        **options: Any,
    ) -> None:
        """Read what a user gave; ``asked`` has what ``Texts`` takes, and the task's parts.

        Raises:
            InputError: Something cannot be used. Of several texts, it names the one.
            UnsupportedModelError: The model cannot be explained correctly.
        """
        self.task, self.runner, self.batch_tokens = task, runner, batch_tokens
        self.asked: dict[int, AskedScore] = {}
        self._of_all = () if asked.get("text_pair", text) is not None else _like_a_pair(text)
        super().__init__(runner.model, task.tokenizer, text, asked, **options)

    def _read(self, model: PreTrainedModel) -> dict[int, Any]:
        return dict(enumerate(self.given))  # what belongs to a text may be several, for one text

    def _ask(self, model: PreTrainedModel, read: dict[int, Any], columns: dict[str, list[Any]]) -> None:
        if self.objective != "logit":
            raise InputError(
                f"objective={self.objective!r} is for language models. {type(model).__name__} is explained by its logits."
            )
        self.explains = columns.pop("explains")
        rows: dict[int, list[Encoded]] = {}
        for i, one in read.items():
            with self._trying(i):
                rows[i] = self.task.encode(one, {name: columns[name][i] for name in self.task.parts})
        said = self._said(rows)
        for i in rows:
            with self._trying(i):
                self.asked[i] = self._asked(
                    i, rows[i], {name: column[i] for name, column in columns.items()}, said.get(i, [])
                )
                self.encoded[i] = self.asked[i].shown
        self.readouts: dict[bool, Readout] = {
            kind: self.task.readout([one for one in self.asked.values() if (one.function is not None) == kind])
            for kind in (False, True)
        }
        notes = self._known_notes(model, list(self.encoded.values()))
        for (i, asked_of_it), known in zip(self.asked.items(), notes, strict=True):
            longest = max(asked_of_it.rows, key=lambda row: len(row.token_ids))
            own_notes = (*self._of_all, *known, *asked_of_it.notes)
            self.items[i] = replace(
                longest, position=asked_of_it.span[0], notes=own_notes, function=asked_of_it.function
            )

    def _asked(self, i: int, rows: Sequence[Encoded], asked: dict[str, Any], said: Sequence[np.ndarray]) -> AskedScore:
        """What is explained of a text: a score, or a function of all scores."""
        check_name(asked["target"], self.explains[i])
        function = function_of(asked["target"], asked["contrast"])
        return (
            self.task.ask(rows, asked, said)
            if function is None
            else self.task.ask_function(rows, asked, said, function)
        )

    def _said(self, rows: dict[int, list[Encoded]]) -> dict[int, list[np.ndarray]]:
        """What the model says of each row of each text, where its task has to know."""
        if self.task.whole is None:
            return {}
        items, owners = [], []
        for i in list(rows):
            with self._trying(i):
                own = [self.task.item(row) for row in rows[i]]
                items += own
                owners += [i] * len(own)
        for i in self.failed:
            rows.pop(i, None)
        found: dict[int, list[np.ndarray]] = {i: [] for i in rows}
        for i, scores in zip(owners, scores_of(self.runner, items, self.task.whole, self.batch_tokens), strict=True):
            found[i].append(scores)
        return found

    def check_method(self, method: Method, settings: dict[str, Any]) -> None:
        """Refuse a method that cannot explain the task.

        Raises:
            UnsupportedModelError: It is for language models, or for other tasks.
            InputError: It cannot explain the difference of two choices.
        """
        if method.needs_family:
            others = ", ".join(each.name for each in METHODS.values() if each.suits(self.model))
            raise UnsupportedModelError(
                f"{method.name} is for language models, and {type(self.model).__name__} is for {self.task.name}.",
                python=f'Type: method="attnlrp". These can: {others}.',
                app="Choose another method, such as attnlrp.",
            )
        super().check_method(method, settings)
        if method.measures not in SIGNED and any(asked.weights for asked in self.asked.values()):
            raise InputError(
                f"{method.name} has no sign, so what it gives for two choices cannot be subtracted.",
                python='Type: method="gradient-x-input", or give one choice.',
                app="Choose another method, such as gradient-x-input, or leave “and not” empty.",
            )

    def _takes_one_pass(self, method: Method, settings: dict[str, Any], runner: PassRunner) -> bool:
        return False

    def _groups(self, model: PreTrainedModel, batch_tokens: int, **how: bool) -> list[list[int]]:
        groups = self._of_like_length(model, batch_tokens, **how)
        if self.readouts[True] == self.readouts[False]:
            return groups
        kinds = [[[i for i in group if (i in self._functions) == kind] for kind in (False, True)] for group in groups]
        return [part for parts in kinds for part in parts if part]

    @property
    def _functions(self) -> set[int]:
        """The texts of which functions are explained."""
        return {i for i, asked in self.asked.items() if asked.function is not None}

    def _of_like_length(self, model: PreTrainedModel, batch_tokens: int, **how: bool) -> list[list[int]]:
        if not finds_padding(model):
            return [[i] for i in self.items if i not in self.failed]
        if encoder_of(model) is not None:  # BART wants the same number of end tokens in all texts of a batch
            end = model.config.eos_token_id
            ends: dict[int, list[int]] = {}
            for i, item in self.items.items():
                ends.setdefault(item.token_ids.count(end), []).append(i)
            groups = super()._groups(model, batch_tokens, **how)
            return [part for group in groups for own in ends.values() if (part := [i for i in group if i in own])]
        most = max((len(asked.rows) for asked in self.asked.values()), default=1)
        return super()._groups(model, max(1, batch_tokens // most), **how)

    def _attributions(
        self, function: Explain, group: list[int], method: Method, settings: dict[str, Any]
    ) -> Sequence[Attribution]:
        readout = self.readouts[group[0] in self._functions]
        rows = {i: self.task.items(self.asked[i], readout) for i in group}
        everything = [row for own in rows.values() for row in own]
        batch = pad(everything, self.model, likeliest=self.task.likeliest, readout=readout)
        results = iter(map(_of_the_text, function(batch, **settings), everything))
        drawn = method.name == "random"
        return [_together([next(results) for _ in own], self.asked[i], drawn=drawn) for i, own in rows.items()]

    def _explanation(
        self, i: int, result: Attribution, method: Method, settings: dict[str, Any], about: dict[str, Any]
    ) -> Explanation:
        asked = self.asked[i]
        told = {"contrast": None, **self.task.tell(asked, result), "task": self.task.name}
        if (function := self.items[i].function) is not None:
            told |= {"target": self._named_function(i, function), "explains": "function"}
            told |= {"target_probability": None, "target_rank": None}
        if asked.span[1] - asked.span[0] != 1:
            told["span"] = asked.span
        return self._made(i, result, method, settings, about, told)

    def _doubts(self, i: int, e: Explanation, result: Attribution) -> tuple[Sequence[str], Sequence[str]]:
        return (), self.asked[i].remarks


def _like_a_pair(text: Any) -> tuple[str, ...]:
    """A note on a tuple of two strings: several texts, as any tuple or list, and easily meant as a pair."""
    if not isinstance(text, tuple) or len(text) != 2 or not all(isinstance(one, str) for one in text):
        return ()
    return (
        "a tuple of two strings is two texts, each explained by itself. If they are a pair: explainer(text, text_pair=other). "
        "A list of two texts has no such note.",
    )


def _of_the_text(result: Attribution, item: Item) -> Attribution:
    """What encoder and decoder give, which read the same tokens, one place apart; added up for each token of the text.

    What the decoder's start token gets is a part of its own.
    """
    if not item.source:
        return result
    length = item.source

    def added(both: np.ndarray) -> np.ndarray:
        return both[:length] + np.concatenate([both[length + 1 :], np.zeros_like(both[:1])])

    def of_blocks(name: str) -> np.ndarray | None:
        numbers = getattr(result, name)
        return None if numbers is None else np.moveaxis(added(np.moveaxis(numbers, -1, 0)), 0, -1)

    start = {"the decoder's start token": float(result.relevance[length])}
    return replace(
        result,
        relevance=added(result.relevance),
        layers={name: added(whole) for name, whole in result.layers.items()},
        by_layer=of_blocks("by_layer"),
        by_attention=of_blocks("by_attention"),
        by_mlp=of_blocks("by_mlp"),
        by_head=of_blocks("by_head"),
        components={**result.components, **(start if result.residual is not None else {})},
    )


def _together(results: list[Attribution], asked: AskedScore, *, drawn: bool = False) -> Attribution:
    """What the rows give, times their weights, added up; their first tokens may be those of all.

    Of numbers that were ``drawn``, each token has one as it was drawn: a sum of two would be larger than the others.
    """
    if len(results) == 1 and not asked.weights:
        return results[0]
    shared, weighted = asked.shared or len(results[0].relevance), list(zip(asked.weights, results, strict=True))

    def joined(name: str, of: str | None = None, axis: int = -1) -> np.ndarray:
        each = [getattr(r, name) if of is None else getattr(r, name)[of] for _, r in weighted]
        weights = [1.0] * len(each) if drawn else asked.weights
        parts = [weight * np.moveaxis(one, axis, 0) for weight, one in zip(weights, each, strict=True)]
        all_of_all = parts[0][:shared] if drawn else sum(part[:shared] for part in parts)
        return np.moveaxis(np.concatenate([all_of_all, *(part[shared:] for part in parts)]), 0, axis)

    def if_known(name: str) -> np.ndarray | None:
        return None if any(getattr(r, name) is None for r in results) else joined(name)

    residuals = [r.residual for r in results if r.residual is not None]
    residual = sum(w * part for w, part in zip(asked.weights, residuals, strict=True)) if residuals else None
    components = {name: sum(weight * r.components[name] for weight, r in weighted) for name in results[0].components}
    return replace(
        results[0],
        relevance=joined("relevance"),
        value=sum(weight * r.value for weight, r in weighted) + asked.constant,
        residual=None if residual is None else residual + asked.constant,
        components=components,
        layers={name: joined("layers", name, 0) for name in results[0].layers},
        by_layer=if_known("by_layer"),
        by_attention=if_known("by_attention"),
        by_mlp=if_known("by_mlp"),
        by_head=if_known("by_head"),
        notes=tuple(dict.fromkeys(note for r in results for note in r.notes)),
    )
