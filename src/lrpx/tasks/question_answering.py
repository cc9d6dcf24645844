"""Extractive question answering: the score of an answer, ``start_logits[first token] + end_logits[last token]``.

Without a target, the best answer is explained: of the spans of the context of up to ``LONGEST`` tokens, the one of the highest
score. Its probability is that of transformers' pipeline: the softmax of the starts times the softmax of the ends, over the
context and the first token, which stands for "no answer" if the tokenizer puts it there. A function as target gets the logits of
all tokens, ``[T, 2]``: starts, and ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..results.tokens import Prediction, Token
from ..text.batching import Batch, Function, Item, Readout
from ..text.given import as_python, name_of
from ..text.pairs import encode_pair
from ..text.tokenization import Encoded
from .head_task import SHOWN, AskedScore, HeadTask, One, named, softmax

LONGEST = 15  # tokens of an answer that is looked for, as in transformers' pipeline


@dataclass(frozen=True)
class StartsAndEnds(Readout):
    """The logits of starts and ends ``[B, T, 2]``, to look at."""

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """Both logits of each token."""
        return torch.stack([output.start_logits, output.end_logits], -1)


def _of_own_tokens(output: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Start and end logits ``[B, T]`` with the tokens of the text first, in their order; and how many these are, ``[B, 1]``."""
    mask = batch.inputs["attention_mask"].to(output.start_logits.device)
    length = mask.shape[1]
    own = (torch.arange(length, device=mask.device) + mask.argmax(1, keepdim=True)) % length
    starts, ends = (logits[:, :length].gather(1, own) for logits in (output.start_logits, output.end_logits))
    return starts, ends, mask.sum(1, keepdim=True)


@dataclass(frozen=True)
class AllAnswerLogits(Readout):
    """The logits of starts and ends in turns, ``[B, 2 T]``, the tokens of the text first: for functions of them."""

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """Start and end of the first token, of the second one, and so on."""
        starts, ends, _ = _of_own_tokens(output, batch)
        return torch.stack([starts, ends], -1).flatten(1)


@dataclass(frozen=True)
class OfTokens:
    """A function of start and end logits ``[T, 2]``, as one of ``AllAnswerLogits``."""

    function: Function
    tokens: int

    @property
    def shape(self) -> tuple[int, int]:
        """What the function gets."""
        return self.tokens, 2

    @property
    def __name__(self) -> str:
        return name_of(self.function)

    def __call__(self, logits: Tensor) -> Any:
        """The value."""
        return self.function(logits[: 2 * self.tokens].reshape(self.shape))


@dataclass(frozen=True)
class AnswerScores(Readout):
    """The scores of all answers of up to ``longest`` tokens: an answer's id is ``start * longest + tokens - 1``.

    Starts count from the first token of the text, so an id is the same whatever the padding.
    """

    longest: int

    def id_of(self, first: int, last: int) -> int:
        """The id of an answer by its first and last token."""
        return first * self.longest + last - first

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """``start_logits[start] + end_logits[end]``, ``[B, T * longest]``; minus infinity where the text has ended."""
        starts, ends, count = _of_own_tokens(output, batch)
        rows, length = starts.shape
        first = torch.arange(length, device=starts.device).unsqueeze(1)
        stops = first + torch.arange(self.longest, device=starts.device)  # [T, longest]
        sums = starts.unsqueeze(2) + ends[:, stops.clamp(max=length - 1)]
        inside = stops.unsqueeze(0) < count.unsqueeze(2)
        return sums.masked_fill(~inside, -torch.inf).reshape(rows, -1)


class QuestionAnswering(HeadTask):
    """See the top of this file."""

    name = "question-answering"
    parts = ("question",)
    whole = StartsAndEnds()

    def wrapped(self, name: str, value: Any) -> Any:
        """(first, last) tokens are one answer."""
        value = as_python(value)
        if not isinstance(value, list):
            return value
        if len(value) == 2 and all(type(i) is int for i in value):
            return One(tuple(value))
        return [self.wrapped(name, each) for each in value]

    def encode(self, given: Any, parts: Mapping[str, Any]) -> list[Encoded]:
        """Question and context, or the reverse for a tokenizer that pads on the left, as transformers' pipeline does."""
        if parts["question"] is None:
            raise InputError(
                f"{self.signature.name} answers a question about a text.",
                python='Give it: question="Who ... ?"',
                app="Type it in “Question about the text”.",
            )
        texts = {"question": parts["question"], "context": given}
        names = ("question", "context")
        if getattr(self.tokenizer, "padding_side", "right") == "left":
            names = ("context", "question")
        return [encode_pair(self.tokenizer, texts[names[0]], texts[names[1]], names)]

    def ask(self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray]) -> AskedScore:
        """The answer that is given, or the best one."""
        [encoded], [logits] = rows, said
        _check_position(asked["position"])
        found = _Answers(encoded, logits)
        remarks: list[str] = []
        spans: dict[str, tuple[int, int]] = {}
        for role in ("target", "contrast"):
            if asked[role] is not None:
                spans[role], more = found.resolve(asked[role], role)
                remarks += more
        if "target" not in spans:
            spans["target"] = found.best()
            remarks += found.doubts(spans["target"])
        if spans["target"] == spans.get("contrast"):
            raise InputError("target and contrast are the same answer: their difference is 0. Give two that differ.")
        item = self.item(encoded, spans["target"][0])
        told: dict[str, Any] = {"explains": "(start + end) logit", "top": found.top()}
        for role, span in spans.items():
            told |= named(found.token(span), (found.probability(span), found.rank(span)), role)
        start, last = spans["target"]
        answers = (spans["target"], spans.get("contrast"))
        return AskedScore(
            shown=encoded,
            rows=(item,),
            span=(start, last + 1),
            told=told,
            notes=item.notes,
            remarks=tuple(remarks),
            answers=answers,
        )

    def ask_function(
        self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray], function: Function
    ) -> AskedScore:
        """A function of the logits of all tokens, which is about no one of them."""
        [encoded], [logits] = rows, said
        _check_position(asked["position"])
        item = replace(self.item(encoded), function=OfTokens(function, len(encoded.token_ids)))
        told = {"top": _Answers(encoded, logits).top()}
        return AskedScore(shown=encoded, rows=(item,), span=(0, 0), told=told, notes=item.notes, function=function)

    def readout(self, asked: Sequence[AskedScore]) -> Readout:
        """The scores of answers, up to the longest that is asked about; or all logits, for functions."""
        if any(one.function for one in asked):
            return AllAnswerLogits()
        lengths = [span[1] - span[0] + 1 for one in asked for span in one.answers if span]
        return AnswerScores(1 << (max([LONGEST, *lengths]) - 1).bit_length())  # few values, so that passes can be kept

    def items(self, asked: AskedScore, readout: Readout) -> tuple[Item, ...]:
        """Answers as ids of the scores."""
        if not isinstance(readout, AnswerScores):
            return asked.rows
        ids = [None if span is None else readout.id_of(*span) for span in asked.answers]
        return (replace(asked.rows[0], target=ids[0], contrast=ids[1]),)


def _check_position(position: Any) -> None:
    if position is not None:
        raise InputError(
            f"position={position!r}: the explained answer says it.",
            python="Give target=, a string or (first, last) tokens.",
            command="Give target='...', a string of the context.",
            app="Leave “Position” empty.",
        )


class _Answers:
    """The answers that a text has, with their scores.

    Args:
        encoded: Question and context.
        logits: ``[T, 2]`` of starts and ends.
    """

    def __init__(self, encoded: Encoded, logits: np.ndarray) -> None:
        self.encoded, (self.start, self.end) = encoded, logits.T
        self.context = next(segment for segment in encoded.segments if segment.name == "context")
        counted = np.zeros(len(logits), dtype=bool)
        counted[self.context.start : self.context.end] = True
        # Whether the first token stands for no answer.
        self._nothing = all(segment.start > 0 for segment in encoded.segments)
        counted[0] |= self._nothing
        self._shares = [softmax(np.where(counted, each, -np.inf)) for each in (self.start, self.end)]
        firsts = np.arange(self.context.start, self.context.end)
        first, last = np.broadcast_arrays(firsts[:, None], firsts[:, None] + np.arange(LONGEST))
        self._valid = np.stack([first, last], -1)[last < self.context.end]  # [n, 2]

    def _scores(self) -> np.ndarray:
        scores: np.ndarray = self.start[self._valid[:, 0]] + self.end[self._valid[:, 1]]
        return scores

    def score(self, span: tuple[int, int]) -> float:
        """``start_logits[first] + end_logits[last]``."""
        return float(self.start[span[0]] + self.end[span[1]])

    def probability(self, span: tuple[int, int]) -> float:
        """As transformers' pipeline tells it."""
        return float(self._shares[0][span[0]] * self._shares[1][span[1]])

    def rank(self, span: tuple[int, int]) -> int:
        """The place among the answers that are looked for, from 1."""
        return int((self._scores() > self.score(span)).sum()) + 1

    def best(self) -> tuple[int, int]:
        """First and last token of the answer of the highest score."""
        first, last = self._valid[int(self._scores().argmax())]
        return int(first), int(last)

    def top(self) -> tuple[Prediction, ...]:
        """The best answers, with their probabilities."""
        order = np.argsort(-self._scores(), kind="stable")[:SHOWN]
        spans = [(int(first), int(last)) for first, last in self._valid[order]]
        return tuple(Prediction(self.token(span), self.probability(span)) for span in spans)

    def token(self, span: tuple[int, int]) -> Token:
        """An answer as an explanation names it: its text, and as an id the index of its first token."""
        known = [place for place in self.encoded.spans[span[0] : span[1] + 1] if place is not None]
        if known and self.encoded.text is not None:
            text = self.encoded.text[known[0][0] : known[-1][1]]
        else:
            text = "".join(unit.text for unit in self.encoded.units if span[0] <= unit.start <= span[1]).strip()
        return Token(span[0], text.strip(), text.strip())

    def doubts(self, span: tuple[int, int]) -> list[str]:
        """A note where the model finds it likelier that there is no answer."""
        if not self._nothing or self.score((0, 0)) <= self.score(span):
            return []
        return [
            f"the model gives a higher score to no answer at all ({self.score((0, 0)):.3g} at the first token) than to this one "
            f"({self.score(span):.3g})."
        ]

    def resolve(self, given: Any, role: str) -> tuple[tuple[int, int], list[str]]:
        """An answer that is given as a string of the context or as (first, last) tokens, and notes on it.

        Raises:
            InputError: It is none.
        """
        length = len(self.encoded.token_ids)
        if isinstance(given, str):
            return self._text(given, role)
        if isinstance(given, One):
            start, last = given.values
            if 0 <= start <= last < length:
                return (start, last), []
            raise InputError(
                f"{role}={given.values} is no run of the {length} tokens. Give its first and its last token, counted from 0; the "
                f"context has tokens {self.context.start} to {self.context.end - 1}."
            )
        raise InputError(
            f"{role}={given!r} is no answer.",
            python="Give a string of the context, or (first, last) tokens.",
            app="Give a string of the text.",
            command=f"Give a string of the context: {role}='...'",
        )

    def _text(self, given: str, role: str) -> tuple[tuple[int, int], list[str]]:
        wanted = given.strip()
        places = {n: place for n in range(self.context.start, self.context.end) if (place := self.encoded.spans[n])}
        if not places or self.encoded.text is None:
            raise InputError(
                f"{role}={given!r} cannot be found, because the tokenizer does not say which characters a token stands for.",
                python="Give (first, last) tokens.",
                command="Leave it out: the answer of the model is explained.",
                app="Choose an answer in the list.",
            )
        begin, stop = min(start for start, _ in places.values()), max(end for _, end in places.values())
        text, found, cut = self.encoded.text[:stop], [], ""
        at = text.find(wanted, begin) if wanted else -1
        while at >= 0:
            inside = [n for n, (start, end) in places.items() if start < at + len(wanted) and end > at and start < end]
            covered = text[places[inside[0]][0] : places[inside[-1]][1]].strip() if inside else ""
            if covered == wanted:
                found.append((inside[0], inside[-1]))
            cut = cut or covered
            at = text.find(wanted, at + 1)
        if not found:
            problem = f"{role}={given!r} is no run of tokens of the context."
            if cut:
                raise InputError(f"{problem} The tokens there read {cut!r}: give that.")
            raise InputError(
                problem,
                python="Copy it from the context, or give (first, last) tokens.",
                command="Copy it from the context.",
                app="Copy it from the text, or choose an answer in the list.",
            )
        chosen = max(found, key=self.score)
        if len(found) == 1:
            return chosen, []
        return chosen, [
            f"{role} {wanted!r} is in the context {len(found)} times; the one with the highest score is explained, tokens "
            f"{chosen[0]} to {chosen[1]}. Another one can be given as tokens: {role}=(start, end)."
        ]
