"""The samples with the highest difference of logits, as explanations that a heatmap can draw.

The records hold everything except readable text, which is made here from the tokenizer's raw pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import import_optional
from ..heatmap.text import continues_character, readable
from ..results.explanation import Explanation
from ..results.tokens import Token, Unit
from .results import Result, kind_in, measures_of, method_label, methods_in, without_sign

_LONGEST = 4  # bytes of a character in UTF-8, so tokens that may share one


@dataclass(frozen=True)
class Example:
    """One sample.

    Attributes:
        sample_id: The row of the benchmark's source.
        predicted: The verb form that the model predicts.
        other: The form in the other number.
        value: ``logit[predicted] - logit[other]``.
        units: Readable text over all tokens.
        roles: Of every token.
        position: The token whose logits are explained: the last one, or the mask.
        explanations: One per method.
        colours: What red and blue mean.
    """

    sample_id: int
    predicted: str
    other: str
    value: float
    units: list[Unit]
    roles: list[str]
    position: int
    explanations: list[Explanation]
    colours: str


def examples(result: Result, count: int) -> list[Example]:
    """The ``count`` correctly predicted samples with the highest difference of logits, highest first."""
    pa, pc = import_optional("pyarrow", "A report"), import_optional("pyarrow.compute", "A report")
    reported = [result.norm if method == "gradient" and result.norm else method for method in methods_in([result])]
    records: dict[int, dict[str, Any]] = {}
    for run in result.runs:
        table = run.table()
        good = pc.and_(pc.fill_null(table.column("correct"), False), pc.is_null(table.column("error")))
        table = table.filter(good)
        if not records:
            first = table.select(["sample_id", "value"]).group_by("sample_id").aggregate([("value", "max")])
            best = first.sort_by([("value_max", "descending"), ("sample_id", "ascending")]).slice(0, count)
            records = {i: {} for i in best.column("sample_id").to_pylist()}
        chosen = table.filter(pc.is_in(table.column("sample_id"), pa.array(list(records), pa.int64())))
        for record in chosen.to_pylist():
            records[record["sample_id"]].setdefault(record["method"], record)
    return [_example(result, [found[m] for m in reported if m in found]) for found in records.values()]


def _example(result: Result, records: Sequence[dict[str, Any]]) -> Example:
    first = records[0]
    units = units_from_tokens(first["tokens"], [role == "special" for role in first["roles"]])
    return Example(
        sample_id=first["sample_id"],
        predicted=first["predicted"],
        other=first["other"],
        value=first["value"],
        units=units,
        roles=first["roles"],
        position=first["position"],
        explanations=[_explanation(result, record, units) for record in records],
        colours=f"Red speaks for it, blue for the other {kind_in([result]).other}; each map has its own scale."
        + without_sign(
            [record["method"] for record in records],
            [result],
            "there red says how much a token matters, for or against",
        ),
    )


def _explanation(result: Result, record: dict[str, Any], units: list[Unit]) -> Explanation:
    return Explanation(
        tokens=record["tokens"],
        token_ids=record["token_ids"],
        units=units,
        special=tuple(i for i, role in enumerate(record["roles"]) if role == "special"),
        relevance=np.asarray(record["relevance"], dtype=np.float64),
        value=record["value"],
        residual=record["residual"],
        target=Token(record["predicted_id"], record["predicted"]),
        contrast=Token(record["other_id"], record["other"]),
        position=record["position"],
        method=method_label(record["method"]),
        measures=measures_of(record["method"], result),
        provenance={"model": result.label},
        components=_outside(record),
    )


def _outside(record: dict[str, Any]) -> dict[str, float]:
    """What a method gave to no token, as one part: the records have its sum only, which value and residual tell."""
    if record["residual"] is None:
        return {}
    outside = record["value"] - record["residual"] - float(np.sum(record["relevance"]))
    return {"parts of no token": outside} if abs(outside) > 1e-6 * max(1.0, abs(record["value"])) else {}


def units_from_tokens(tokens: Sequence[str], special: Sequence[bool]) -> list[Unit]:
    """Readable text for raw pieces, in order; several tokens share a unit where a character is split over them."""
    byte_level = any("Ġ" in token for token in tokens)
    wordpiece = any(token.startswith("##") or token in ("[CLS]", "[SEP]", "[MASK]") for token in tokens)
    units: list[Unit] = []
    start = 0
    while start < len(tokens):
        text, end = tokens[start], start + 1
        if wordpiece:  # its pieces mark the inside of a word, not its start
            text = text[2:] if text[2:] and text.startswith("##") else " " * bool(units) + text
        elif not special[start]:
            joined, text = text, readable(text)
            # Bytes that are no character come back as they are, and some byte is not ASCII.
            while byte_level and text == joined and not joined.isascii() and end < min(start + _LONGEST, len(tokens)):
                joined += tokens[end]
                text, end = readable(joined), end + 1
            if byte_level and text == joined and not joined.isascii():  # no character comes of it
                text, end = readable(tokens[start], byte_level=True), start + 1
        if units and not special[start] and continues_character(units[-1].text, text):
            first = units.pop()
            units.append(Unit(first.start, end, first.text + text))
        else:
            units.append(Unit(start, end, text))
        start = end
    return units
