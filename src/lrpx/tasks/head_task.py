"""What all tasks of models with a head of their own have in common: see ``HeadTask``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedModel

from ..errors import InputError
from ..models.lock import lock_of
from ..models.shifted import decoder_reads
from ..models.signature import ModelSignature
from ..models.stacks import encoder_of
from ..results.tokens import Prediction, Token
from ..text.batching import Attribution, Function, Item, Readout
from ..text.items import check_readable, read_extras
from ..text.tokenization import Encoded, encoder

SHOWN = 5  # of the best labels, choices or answers


@dataclass(frozen=True)
class One:
    """A list that is one value, such as the choices of one text."""

    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class AskedScore:
    """One text, and which score of it is explained.

    Attributes:
        shown: The tokens of the explanation.
        rows: What the model reads. Of several, what each one gives is multiplied by its weight and added up; the first
            ``shared`` tokens are those of all.
        weights: Of several rows, one each.
        constant: Added to the value of several rows, and a part of no token.
        function: What is explained in place of a score.
        span: The positions that are marked, as (start, stop).
        answers: Of question answering: target and contrast as (first, last) tokens, or ``None``.
        told: Fields of the ``Explanation`` that are known before it is computed.
        notes: What the user has to know of the text, and is warned of.
        remarks: What is noted beside.
    """

    shown: Encoded
    rows: tuple[Item, ...]
    span: tuple[int, int]
    weights: tuple[float, ...] = ()
    constant: float = 0.0
    function: Function | None = None
    shared: int = 0
    answers: tuple[tuple[int, int] | None, ...] = ()
    told: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class HeadTask(ABC):
    """How texts of one task are read, which score is explained, and how that is told.

    Args:
        model: One of the task.
        tokenizer: Its tokenizer, or ``None``.

    Attributes:
        parts: What a call is given beside the text, such as ``question``.
        likeliest: How many of the best scores the pass is to tell, with their probabilities.
        whole: The readout of all that the model says of a text, if that has to be known before a target is.
    """

    name: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ()
    likeliest: int = 0
    whole: Readout | None = None

    def __init__(self, model: PreTrainedModel, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.signature = ModelSignature.of(model)
        self.encode_one = encoder(tokenizer, whole_chats=True)

    def wrapped(self, name: str, value: Any) -> Any:
        """What was given as ``name``. A value that is itself a list becomes a ``One``, to tell it from a list of values."""
        return value

    @abstractmethod
    def encode(self, given: Any, parts: Mapping[str, Any]) -> list[Encoded]:
        """Tokenise a text with its parts: the rows that the model reads.

        Raises:
            InputError: One of them cannot be used.
        """

    @abstractmethod
    def ask(self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray]) -> AskedScore:
        """Which score is explained.

        Args:
            rows: By ``encode``.
            asked: ``target``, ``contrast`` and ``position``.
            said: What ``whole`` reads off the model's output for each row; empty where it is ``None``.

        Raises:
            InputError: A target, a contrast or a position that cannot be used.
        """

    def ask_function(
        self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray], function: Function
    ) -> AskedScore:
        """The same as ``ask``, for a function of the scores in place of a target; there is no contrast.

        Raises:
            InputError: A position or a function that cannot be used.
        """
        found = self.ask(rows, {**asked, "target": 0}, said)  # any label: its score is not looked at
        own = tuple(replace(row, target=None, function=function) for row in found.rows)
        return replace(found, rows=own, function=function)

    @abstractmethod
    def readout(self, asked: Sequence[AskedScore]) -> Readout:
        """Which scores of the model are explained, for all texts of a call."""

    def items(self, asked: AskedScore, readout: Readout) -> tuple[Item, ...]:
        """The rows, with target and contrast as ids of the readout's scores."""
        return asked.rows

    def tell(self, asked: AskedScore, result: Attribution) -> dict[str, Any]:
        """Fields of the ``Explanation``: target, contrast, their probabilities, and what the score is."""
        return asked.told

    def item(self, encoded: Encoded, position: int = 0, target: int | None = None, contrast: int | None = None) -> Item:
        """What the model reads of a text, once it is known to be readable.

        Raises:
            InputError: It is too long, or of another vocabulary.
        """
        notes, ids = check_readable(self.signature, encoded), encoded.token_ids
        if encoder_of(self.model) is not None:
            with lock_of(self.model):
                both = (*ids, *decoder_reads(self.model, ids))
            return Item(both, len(ids) + position, target, contrast, {}, notes, source=len(ids))
        return Item(ids, position, target, contrast, read_extras(self.signature, encoded), notes)

    def text(self, given: Any) -> list[Encoded]:
        """Tokenise a text without parts: a string, ids, a ``BatchEncoding`` or a chat."""
        if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
            raise InputError(f"the text is a list of {len(given)} strings. {self.advice()}")
        return [self.encode_one(given)]

    def advice(self) -> str:
        """What to type for a text of several parts."""
        return 'Give one string; of a pair the other one as text_pair="...".'


def named(token: Token, predicted: tuple[float, int] | None, role: str) -> dict[str, Any]:
    """The fields of a target or contrast, with its probability and rank where they are known."""
    probability, rank = predicted or (None, None)
    return {role: token, f"{role}_probability": probability, f"{role}_rank": rank}


def best_of(probabilities: np.ndarray, tokens: Sequence[Token]) -> tuple[Prediction, ...]:
    """The ``SHOWN`` likeliest, with their probabilities."""
    order = np.argsort(-probabilities, kind="stable")[:SHOWN]
    return tuple(Prediction(tokens[i], float(probabilities[i])) for i in order)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Of the last dimension."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return shares


def rank_among(scores: np.ndarray, i: int) -> int:
    """The place of a score among all, from 1."""
    return int((scores > scores[i]).sum()) + 1
