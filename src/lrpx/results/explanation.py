"""The result of explaining one prediction: numbers and strings (no tensor, no model), to be shown, saved, sent and compared."""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from ..errors import InputError, NonFiniteError, counted, import_optional
from ..files import check_ending, json_line, save_output
from ..heatmap.matrix import head_positions
from ..heatmap.shown import TOP, ShownPairs
from ..heatmap.text import as_string
from .images import ImagePatches, check_images, plain_images, read_images
from .inside import INSIDE, columns_of, relevance_of_head, strongest_neurons
from .saved import WROTE, read_saved
from .tokens import Prediction, Segment, Token, Unit, readable_texts

SCHEMA = 1
Measures: TypeAlias = Literal["parts", "sensitivity", "mixture", "scores"]
MEASURES = get_args(Measures)
NUMBERS = ("relevance", "value", *INSIDE, "pairs", "residual", "target_probability", "contrast_probability")


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation(ShownPairs):
    """How much each input token contributed to a logit, or to a difference of logits.

    Attributes:
        tokens: The T raw pieces of the input, special tokens included.
        token_ids: Their T ids.
        units: The text as people read it: ``(start, end, text)`` of tokens ``start`` to ``end`` (exclusive), in order, covering
            all of them. Where a character is split over several tokens there are fewer units than tokens; the relevance of one
            is ``relevance[start:end].sum()``.
        relevance: float64 ``[T]``; what the numbers are, ``measures`` says.
        value: The explained scalar: ``logit[target] - logit[contrast]``, or ``logit[target]``.
        residual: ``value`` minus everything that was assigned; what biases and softmax absorbed. ``None`` for
            methods that do not decompose the value (``gradient``, ``alti``, ``attention-rollout``).
        target: The explained token; of several explained together, the id of the first and the text of all.
        contrast: The token it is compared with, or ``None``.
        target_probability, contrast_probability: How likely the model finds them at ``position``, over the whole vocabulary;
            ``None`` where that is not known.
        target_rank, contrast_rank: Their places among its predictions: of rank 1 is the most likely token. Likewise.
        top: The five most likely tokens at ``position``, the likeliest first: ``for token, probability in e.top``. May be empty.
        measures: ``"parts"``: the relevances are parts of ``value``, in logits. ``"sensitivity"``: how much ``value`` depends on
            each token, in logits per unit of the hidden state (``gradient``). ``"mixture"``: each token's share in the hidden
            state at ``position``, whatever is predicted there (``alti``, ``attention-rollout``). These two are not negative.
            ``"scores"``: signed numbers that do not add up to anything (``occlusion``, ``leave-one-out``, ``lime``, ``random``).
        notes: What a reader must know about this explanation, in sentences.
        explains: What ``value`` is, as words before the target, where it is not a logit or a difference of two.
        task: What the model is for, where it is no language model, in the words of the Hub: ``"text-classification"``. Then
            ``target``, ``contrast`` and ``top`` are labels with their ids, choices, or answers with their first tokens.
        position: Index of the token whose logits are explained.
        span: Where logits of several positions are explained together, these, as (start, stop) without stop; or ``None``.
        method: Name of the method.
        at: Where ``relevance`` was taken: ``"input"`` or ``"embedding"``; of a head or neuron, its place in words.
        index: Its place among the texts (or images, or targets of one text) of its call, from 0, that of a row of a table whose
            column was given; ``None`` where one was given alone.
        text: The explained text, or ``None`` when token ids were given.
        special: Positions of the tokenizer's special tokens: BOS, ``[CLS]``, the roles of a chat.
        segments: The parts of an input that has several, in order and without overlap: ``"question"`` and ``"context"``,
            ``"text"`` and ``"text_pair"``. Special tokens around them may belong to none. Empty where the text is one piece.
        images: Which tokens are patches of which image, with the pictures. Empty where there are none.
        layers: Module name -> float64 ``[T, width]`` relevance of what that module returned.
        by_layer: float64 ``[L, T]``: relevance of what each layer adds to the residual stream: at the positions of that layer;
            of ALTI-Logit that of the attention alone, carried to the input tokens. ``None`` where it is not known.
        by_attention, by_mlp: float64 ``[L, T]``: relevance of what each layer's attention and its MLP add, each on its own: what
            passes from the attention through the MLP is in both. ``None`` for ALTI-Logit and where it is not known.
        by_head: float64 ``[L, H, T]``: relevance of each head, at the positions where it writes; of ALTI-Logit, at the
            positions from which it reads. Zeros where a layer has fewer heads. ``None`` where it is not known.
        pairs: float64 ``[T1, T2]``: of two texts whose similarity is explained, what each token of the first contributes
            together with each of the second, or ``None``. ``residual`` is that of ``relevance``; that of the pairs is
            ``value - pairs.sum()``.
        components: Parts of ``value`` that belong to no token: name -> number or float64 array.
        provenance: What the numbers came from: model, revision, dtype, device, versions, options.
    """

    tokens: list[str]
    token_ids: list[int]
    units: list[Unit]
    relevance: np.ndarray
    value: float
    residual: float | None
    target: Token
    contrast: Token | None
    position: int
    method: str
    at: str = "input"
    index: int | None = None
    text: str | None = None
    special: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    images: tuple[ImagePatches, ...] = ()
    target_probability: float | None = None
    target_rank: int | None = None
    contrast_probability: float | None = None
    contrast_rank: int | None = None
    top: tuple[Prediction, ...] = ()
    measures: Measures = "parts"
    explains: str = ""
    task: str = ""
    span: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    layers: dict[str, np.ndarray] = field(default_factory=dict)
    by_layer: np.ndarray | None = None
    by_attention: np.ndarray | None = None
    by_mlp: np.ndarray | None = None
    by_head: np.ndarray | None = None
    pairs: np.ndarray | None = None
    components: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (len(self.tokens) == len(self.token_ids) and np.shape(self.relevance) == (len(self.tokens),)):
            raise InputError(
                f"{len(self.tokens)} tokens, {len(self.token_ids)} ids and relevance of shape {np.shape(self.relevance)}: "
                "an explanation has one of each per token."
            )
        starts, ends, _ = zip(*self.units, strict=True) if self.units else ((), (), ())
        if (*starts, len(self.tokens)) != (0, *ends):
            raise InputError(f"the units {self.units} do not cover the {len(self.tokens)} tokens one after the other.")
        edges = [0, *(place for _, *ends in self.segments for place in ends), len(self.tokens)]
        if edges != sorted(edges) or any(start == end for _, start, end in self.segments):
            raise InputError(
                f"segments {self.segments}: give parts of the {len(self.tokens)} tokens, in order and without overlap."
            )
        if self.measures not in MEASURES:
            raise InputError(f"measures={self.measures!r}: expected one of {', '.join(MEASURES)}.")
        check_images(self.images, len(self.tokens))
        for name, numbers in self._numbers():
            # One number at a time is faster this way, and an evaluation makes a hundred thousand explanations.
            if not (
                math.isfinite(numbers) if type(numbers) is float else np.isfinite(np.asarray(numbers, float)).all()
            ):
                raise NonFiniteError(f"{name} of the {self.method} explanation holds NaN or infinity.")

    def noted(self, notes: Iterable[str]) -> Explanation:
        """The same with more notes."""
        return self._with("notes", (*self.notes, *notes))

    def numbered(self, index: int) -> Explanation:
        """The same as one of several, with its place among them."""
        return self._with("index", index)

    def _with(self, name: str, value: Any) -> Explanation:
        found = copy.copy(self)  # as dataclasses.replace, without checking all numbers once more
        object.__setattr__(found, name, value)
        return found

    def _numbers(self) -> list[tuple[str, Any]]:
        """Every number of the explanation, by name: float64 arrays and single numbers."""
        named: list[tuple[str, Any]] = [(name, getattr(self, name)) for name in NUMBERS]
        named += [(f"top[{i}].probability", predicted.probability) for i, predicted in enumerate(self.top)]
        named += [(f"layers[{k!r}]", v) for k, v in self.layers.items()]
        named += [(f"components[{k!r}]", v) for k, v in self.components.items()]
        return [(name, v) for name, v in named if v is not None]

    def __repr__(self) -> str:
        tokens = [token.shown or token.text for token in (self.target, self.contrast) if token]
        what = " - ".join(map(as_string, filter(None, tokens)))
        what = f"{self.explains} {what}".rstrip() if self.explains else what
        if self.measures == "mixture":  # not about the target, whatever it is
            return f"<Explanation {self.method} of position {self.position}, {counted(len(self.tokens), 'token')}>"
        return f"<Explanation {self.method} of {what}: value {self.value:.4g}, {counted(len(self.tokens), 'token')}>"

    def head(self, layer: int, head: int) -> Explanation:
        """The relevance of one head as an explanation of its own: where it wrote; of ALTI-Logit, from where it read.

        Raises:
            InputError: There is no relevance of heads, or no such head.
        """
        numbers = relevance_of_head(self.by_head, (layer, head), self)
        return self._part(f"head {head} of layer {layer}", head_positions(self.components), numbers)

    def neurons(self, module: str | None = None, top: int = TOP) -> list[Explanation]:
        """The strongest neurons of ``layers``, each as an explanation of its own.

        Args:
            module: A name or glob of modules. Default: each of ``layers``.
            top: How many of each module: those of the largest absolute relevance, summed over the tokens.

        Raises:
            InputError: There is no relevance of neurons ; the error says how to ask for it.
        """
        found = strongest_neurons(self.layers, module, top, self)
        return [self._part(f"{name}, neuron {i}", f"output of {name}", numbers) for name, i, numbers in found]

    def _part(self, name: str, at: str, relevance: np.ndarray) -> Explanation:
        """A part of the model as an explanation of its own."""
        inside: dict[str, Any] = dict.fromkeys((*INSIDE, "pairs"))
        inside |= {"method": f"{self.method}, {name}", "at": at, "relevance": relevance}
        return dataclasses.replace(self, residual=None, layers={}, components={}, **inside)

    def to_frame(self, of: Literal["tokens", "layers", "heads"] = "tokens") -> Any:
        """One row per token as a pandas ``DataFrame``: ``position``, ``text``, ``token`` (raw), ``token_id``, ``relevance``.

        ``text`` is readable, and empty for a token that only goes on with the character that the token before began.
        ``of="layers"`` gives a row per layer and position with ``by_layer`` and its relatives, ``of="heads"`` one per layer, head
        and position.

        Raises:
            InputError: Another ``of``, or there are no such numbers.
        """
        pd = import_optional("pandas", "to_frame()", extra="viz")
        if of != "tokens":
            arrays = {name: numbers for name in INSIDE if (numbers := getattr(self, name)) is not None}
            return pd.DataFrame(columns_of(of, arrays, readable_texts(self.units), self))
        texts = {"text": readable_texts(self.units), "token": self.tokens, "token_id": self.token_ids}
        return pd.DataFrame({"position": range(len(self.tokens)), **texts, "relevance": self.relevance})

    # Saving. Plain JSON: readable, diffable and safe to load.

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON types, with a ``schema`` number."""
        plain = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "images"}
        return {"schema": SCHEMA, **plain, "images": plain_images(self.images)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Explanation:
        """The inverse of ``to_dict``.

        Raises:
            InputError: The schema is not one this version reads, or a field is missing or unknown.
        """
        schema = data.get("schema")
        if data.get("kind") == "generation":
            raise InputError(
                "not one explanation, but generated text.",
                python="Type: lrpx.GenerationExplanation.load(path)",
                command=WROTE,
            )
        if data.get("kind") == "flow":
            raise InputError(
                "not an explanation, but a flow.", python="Type: lrpx.RelevanceFlow.load(path)", command=WROTE
            )
        if schema is None or not {"tokens", "relevance", "method"} <= data.keys():
            known = "no field 'schema'" if schema is None else "no tokens with relevance"
            raise InputError(
                f"not a saved explanation: it has {known}.",
                python="Give what Explanation.save() or to_dict() made.",
                command=WROTE,
            )
        if schema != SCHEMA:
            raise InputError(f"schema {schema!r}: this version of lrpx reads schema {SCHEMA}. Upgrade lrpx to read it.")
        fields = {k: v for k, v in data.items() if k != "schema"}
        expected = {f.name for f in dataclasses.fields(cls)}
        fields = _later_fields(fields) | fields
        if fields.keys() != expected:
            raise InputError(f"not a saved explanation: these fields differ: {sorted(fields.keys() ^ expected)}.")
        try:
            return cls(**cls._typed(fields))
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not a saved explanation: a field is not what it should be ({error}).") from error

    @staticmethod
    def _typed(fields: dict[str, Any]) -> dict[str, Any]:
        """Lists and dictionaries of JSON as the types of the fields."""
        typed = {
            "units": [Unit(*u) for u in fields["units"]],
            "target": Token(*fields["target"]),
            "contrast": Token(*fields["contrast"]) if fields["contrast"] else None,
            "top": tuple(Prediction(Token(*token), probability) for token, probability in fields["top"]),
            "notes": tuple(fields["notes"]),
            "span": tuple(fields["span"]) if fields["span"] else None,
            "relevance": np.asarray(fields["relevance"], dtype=np.float64),
            "special": tuple(fields["special"]),
            "segments": tuple(Segment(*segment) for segment in fields["segments"]),
            "images": read_images(fields["images"]),
            "value": float(fields["value"]),
            "residual": None if fields["residual"] is None else float(fields["residual"]),
            "position": operator.index(fields["position"]),
            "provenance": dict(fields["provenance"]),
            "layers": {k: np.asarray(v, dtype=np.float64) for k, v in fields["layers"].items()},
            "components": {k: _array_or_number(v) for k, v in fields["components"].items()},
        }
        for name in (*INSIDE, "pairs"):
            if fields[name] is not None:
                typed[name] = np.asarray(fields[name], dtype=np.float64)
        return fields | typed

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the explanation as JSON; ``Explanation.load`` reads it back to the last digit."""
        save_output(check_ending(path, "json"), json_line(self.to_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Explanation:
        """Read what ``save`` wrote.

        Raises:
            InputError: The file is not a saved explanation.
        """
        data = read_saved(path, "Explanation.save()")
        if isinstance(data, list) and data and isinstance(data[0], dict):
            raise InputError(f"{path} holds a list. If it is one of explanations: lrpx.Explanations.load(path).")
        if not isinstance(data, dict):
            raise InputError(
                f"{path} holds a JSON {type(data).__name__}, not an explanation.",
                python="Give what Explanation.save() wrote.",
                command=WROTE,
            )
        try:
            return cls.from_dict(data)
        except InputError as error:
            raise error.at(str(path)) from None


def _later_fields(saved: dict[str, Any]) -> dict[str, Any]:
    """Fields that older versions of lrpx did not save, with the values they would have had."""
    measured = {"gradient": "sensitivity", "alti": "mixture", "attention-rollout": "mixture"}
    unknown = ("by_attention", "by_mlp", "target_probability", "target_rank", "contrast_probability", "contrast_rank")
    return {
        **dict.fromkeys(unknown),
        "index": None,
        "top": [],
        "notes": [],
        "explains": "",
        "task": "",
        "span": None,
        "special": [],
        "segments": [],
        "pairs": None,
        "images": [],
        "measures": measured.get(str(saved.get("method")), "parts"),
    }


def _plain(value: Any) -> Any:
    """Arrays and tuples as lists, numpy numbers as Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _array_or_number(value: Any) -> Any:
    return np.asarray(value, dtype=np.float64) if isinstance(value, list) else value
