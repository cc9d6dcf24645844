"""Sentences with a verb in two numbers, from three published formats, row by row.

- ``lgd`` (Goldberg 2019, ``lgd_dataset.tsv``): tab-separated, no header: number of attractors, sentence, sentence with
  ``***mask***`` for the verb, verb, verb in the other number.
- ``linzen`` (Linzen et al. 2016, ``agr_50_mostcommon_10K.tsv``, also gzipped): tab-separated with a header. Rows are
  kept with 1 to 4 nouns between subject and verb, all of the other number; the verb's other form is looked up among the
  forms that the file itself contains.
- ``blimp`` (Warstadt et al. 2020): JSON lines whose ``sentence_good`` and ``sentence_bad`` differ in the verb only.

A sentence is its words, joined by single spaces. A row that does not have this form is *bad*: it is reported with its
line number, and skipped only on request. A row of good form that the benchmark does not want is *dropped*, with a
reason.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, nearest
from ..files import json_object, sha256
from .download import Published, local_file, published
from .inflection import Inflections

MASK = "***mask***"
_SHOWN = 10  # bad rows listed in an error


class SourceRow(NamedTuple):
    """One sentence of a source."""

    sample_id: int  # number of the row in the source, from 0; a header does not count
    line: int  # line of the file, from 1
    n_attractors: int | None  # as the source says, if it does
    words: tuple[str, ...]  # with the verb in place
    verb_index: int  # into words
    verb: str
    other: str  # the verb in the other number


class Dropped(NamedTuple):
    """A row that is not in the benchmark, and why."""

    sample_id: int
    line: int
    reason: str
    detail: str


@dataclass(frozen=True)
class SourceFile:
    """A file that was read.

    Attributes:
        name: File name, without its folder.
        format: ``lgd``, ``linzen`` or ``blimp``.
        sha256: Of the file as it is (of a gzipped file: gzipped).
        published: What the file is, if it is one that its authors published.
        rows: The usable rows, in the order of the file.
        dropped: The others: bad ones and those outside the selection.
    """

    name: str
    format: str
    sha256: str
    published: Published | None
    rows: list[SourceRow]
    dropped: list[Dropped]


class BadRow(ValueError):
    """A row that does not have the form of its format; the message says why."""


def read_source(
    source: str | Path, *, format: str | None = None, skip_bad_rows: bool = False, downloads: Path = Path()
) -> SourceFile:
    """Read a source file.

    Args:
        source: A path, or an http(s) URL with ``#sha256=...`` (not needed for the published files).
        format: ``lgd``, ``linzen`` or ``blimp``; recognised by content if not given.
        skip_bad_rows: Skip rows that cannot be used instead of refusing the file.
        downloads: Folder for a downloaded file.

    Raises:
        InputError: There is no such file, its format is not recognised, rows are bad, or none is usable.
    """
    path = local_file(str(source), downloads)
    if format is None:
        format = _recognise(path)
    elif format not in _READERS:
        raise InputError(f"unknown format {format!r}. {nearest(format, _READERS)}")
    found = list(_READERS[format](path))
    rows = [result for result in found if isinstance(result, SourceRow)]
    dropped = sorted(result for result in found if isinstance(result, Dropped))
    bad = [d for d in dropped if d.reason == "bad_row"]
    total = len(rows) + len(dropped)
    if bad and not skip_bad_rows:
        listed = "".join(f"\n  line {b.line}: {b.detail}" for b in bad[:_SHOWN])
        more = f"\n  ... and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise InputError(
            f"{path.name}: {len(bad)} of {total} rows cannot be used as {format}:{listed}{more}\n"
            "Mend the file, or leave these rows out: skip_bad_rows=True"
        )
    if not rows:
        raise InputError(f"{path.name}: none of its {total} rows can be used as {format} ({len(bad)} bad).")
    return SourceFile(path.name, format, sha256(path), published(path), rows, dropped)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines with their line ends; bytes that are not UTF-8 become lone surrogates."""
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    try:
        # Bytes are split at "\n" alone: text mode would also split at the other line ends that sentences may contain.
        with gzip.open(path, "rb") if compressed else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                yield number, line.decode("utf-8", errors="surrogateescape")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file: {error}. Get it again.") from error


def numbered_rows(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank."""
    return ((number, text) for number, text in _lines(path) if text.strip())


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow("not UTF-8") from None


def _recognise(path: Path) -> str:
    """The format of ``path``, by its first lines, some of which may be broken."""
    first = [text for _, text in islice(numbered_rows(path), 20)]
    if not first:
        raise InputError(f"{path} is empty.")
    if {"orig_sentence", "verb_index"} <= set(first[0].rstrip("\r\n").split("\t")):
        return "linzen"
    if any(MASK in text and "\t" in text for text in first):
        return "lgd"
    if any(text.lstrip().startswith("{") and "sentence_good" in text for text in first):
        return "blimp"
    start = first[0].rstrip()[:60].encode("utf-8", errors="replace").decode("utf-8")
    raise InputError(
        f"{path} is not recognised; it starts with {start!r}. Known formats: lgd (five columns, {MASK} in the third), linzen "
        "(a header with orig_sentence and verb_index), blimp (JSON lines with sentence_good and sentence_bad). "
        "If it is one of them, name it: format=."
    )


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise BadRow(f"{what} is {text[:40]!r}, not a number")
    return int(text)


def _single_word(text: str, what: str) -> str:
    if len(text.split()) != 1:
        raise BadRow(f"{what} is {text[:40]!r}, not one word")
    return text.strip()


def _each_line(row: Callable[[int, int, str], SourceRow], path: Path) -> Iterator[SourceRow | Dropped]:
    """The rows of a format that has one in each line."""
    for sample_id, (line, text) in enumerate(numbered_rows(path)):
        try:
            _check_text(text)
            yield row(sample_id, line, text)
        except BadRow as error:
            yield Dropped(sample_id, line, "bad_row", str(error))


# lgd


def _lgd_row(sample_id: int, line: int, text: str) -> SourceRow:
    fields = text.rstrip("\r\n").split("\t")
    if len(fields) != 5:
        raise BadRow(f"{len(fields)} columns, expected 5")
    n_attractors = _number(fields[0], "number of attractors")
    verb, other = _single_word(fields[3], "verb"), _single_word(fields[4], "other verb form")
    if (masks := fields[2].count(MASK)) != 1:
        raise BadRow(f"{MASK} occurs {masks} times in the third column, expected once")
    words, masked = tuple(fields[1].split()), fields[2].split()
    if MASK not in masked:
        raise BadRow(f"{MASK} is not a word of its own")
    index = masked.index(MASK)
    masked[index] = verb
    if tuple(masked) != words:
        if index < len(words) and words[index] != verb:
            raise BadRow(f"verb {verb!r} is not in the sentence where {MASK} stands; {words[index]!r} is")
        raise BadRow("the second and third column are not the same sentence")
    return SourceRow(sample_id, line, n_attractors, words, index, verb, other)


# linzen

_LINZEN_COLUMNS = ("orig_sentence", "verb_index", "n_intervening", "n_diff_intervening", "verb_pos")


def _read_linzen(path: Path) -> Iterator[SourceRow | Dropped]:
    """One pass: count all verb forms, hold back the selected rows, and look up their other forms at the end."""
    inflections = Inflections()
    selected: list[tuple[SourceRow, str]] = []
    # Sentences with quotes are stored as CSV writers do, hence csv and not split("\t").
    reader = csv.reader((text for _, text in _lines(path)), delimiter="\t")
    columns = {name: index for index, name in enumerate(next(reader, []))}
    missing = [name for name in _LINZEN_COLUMNS if name not in columns]
    if missing:
        raise InputError(f"{path.name}: the header lacks {', '.join(missing)}.")
    try:
        for sample_id, fields in enumerate(filter(None, reader)):
            line = reader.line_num
            try:
                row, tag, wanted = _linzen_row(sample_id, line, fields, columns)
            except BadRow as error:
                yield Dropped(sample_id, line, "bad_row", str(error))
                continue
            inflections.see(row.verb, tag)
            if wanted is None:
                selected.append((row, tag))
            else:
                yield Dropped(sample_id, line, "not_selected", wanted)
    except csv.Error as error:
        raise InputError(f"{path.name}, line {reader.line_num}: {error}.") from error
    for row, tag in selected:
        other = inflections.other(row.verb, tag)
        if other is None:
            yield Dropped(row.sample_id, row.line, "no_other_form", f"{row.verb!r} ({tag})")
        else:
            yield row._replace(other=other)


def _linzen_row(
    sample_id: int, line: int, fields: list[str], columns: dict[str, int]
) -> tuple[SourceRow, str, str | None]:
    """A row without its other form yet, the verb's tag, and why the row is not selected (``None``: it is)."""
    if any("\n" in field for field in fields):
        raise BadRow("a quote that was opened is closed only some lines later")
    if len(fields) != len(columns):
        raise BadRow(f"{len(fields)} columns, expected {len(columns)}")
    sentence, *numbers, tag = (fields[columns[name]] for name in _LINZEN_COLUMNS)
    _check_text(sentence)
    words = tuple(sentence.split())
    place, between, different = (
        _number(value, name) for value, name in zip(numbers, _LINZEN_COLUMNS[1:4], strict=True)
    )
    if not 1 <= place <= len(words):
        raise BadRow(f"verb_index is {place}, the sentence has {len(words)} words")
    if tag not in ("VBZ", "VBP"):
        raise BadRow(f"verb_pos is {tag[:20]!r}, expected VBZ or VBP")
    verb = words[place - 1]
    if "verb" in columns and fields[columns["verb"]].strip().lower() != verb.lower():
        raise BadRow(f"verb {fields[columns['verb']][:40]!r} is not in the sentence at verb_index; {verb!r} is")
    wanted = None if between == different and 1 <= between <= 4 else f"{different} of {between} nouns differ in number"
    return SourceRow(sample_id, line, different, words, place - 1, verb, ""), tag, wanted


# blimp


def _blimp_row(sample_id: int, line: int, text: str) -> SourceRow:
    try:
        data = json_object(text)
    except ValueError as error:
        raise BadRow(str(error)) from error
    if data.get("linguistics_term", "subject_verb_agreement") != "subject_verb_agreement":
        raise BadRow(f"its paradigm is {data['linguistics_term']!r}, expected subject_verb_agreement")
    if data.get("one_prefix_method") is False:
        raise BadRow(
            "the two sentences differ in the subject and share the verb; use a paradigm that varies the verb, such as "
            "regular_plural_subject_verb_agreement_1"
        )
    good, other, index = differing_word(data)
    return SourceRow(sample_id, line, None, good, index, good[index], other)


def differing_word(data: dict[str, Any]) -> tuple[tuple[str, ...], str, int]:
    """The words of a pair's acceptable sentence, the one word that the other sentence has instead, and its position.

    Raises:
        BadRow: A sentence is missing, or they do not differ in exactly one word.
    """
    sentences = [s for key in ("sentence_good", "sentence_bad") if isinstance(s := data.get(key), str) and s.strip()]
    if len(sentences) != 2:
        raise BadRow("sentence_good and sentence_bad are not both text")
    for sentence in sentences:
        _check_text(sentence)
    good, bad = (_split_end(sentence) for sentence in sentences)
    differing = [i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b]
    if len(good) != len(bad) or len(differing) != 1:
        raise BadRow("the two sentences do not differ in exactly one word")
    return good, bad[differing[0]], differing[0]


def _split_end(sentence: str) -> tuple[str, ...]:
    """Words, with the final punctuation as a word of its own, as the other sources and the parsers have it."""
    return tuple(re.sub(r"(?<=\w)([.?!]+)\s*$", r" \1", sentence).split())


_READERS: dict[str, Callable[[Path], Iterator[SourceRow | Dropped]]] = {
    "lgd": partial(_each_line, _lgd_row),
    "linzen": _read_linzen,
    "blimp": partial(_each_line, _blimp_row),
}
FORMATS = tuple(_READERS)
