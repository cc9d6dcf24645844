"""The subject of a verb: from a dependency parse, or from a file.

The ground truth is the verb's ``nsubj`` child, the leftmost if there are several, provided that the verb is tagged
``VBZ`` or ``VBP`` (Arras et al. 2025, App. "XAI Benchmark Dataset Generation"). Nouns between the two whose tag has the
other number are attractors.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, import_optional
from ..files import not_utf8, read_jsonl
from .sources import SourceRow

_VERB_NUMBER = {"VBZ": "singular", "VBP": "plural"}
_NOUN_NUMBER = {"NN": "singular", "NNP": "singular", "NNS": "plural", "NNPS": "plural"}
_UNUSED_PIPES = ("ner", "lemmatizer")  # their results are not used here
_BATCH = 128  # sentences per parser call


class Truth(NamedTuple):
    """What is known about one row's subject. Positions count words from 0."""

    subject: int | None  # None: the verb has no nominal subject
    verb_tag: str | None  # None: not known (a file that does not say)
    attractors: tuple[int, ...] | None  # None: not known
    detail: str = ""  # what was found instead of a subject

    def reason(self) -> tuple[str, str] | None:
        """Why a row with this truth is dropped, as (reason, detail); ``None``: it is kept."""
        if self.subject is None:
            return "no_subject", self.detail
        if self.verb_tag is not None and self.verb_tag not in _VERB_NUMBER:
            return "verb_tag", f"the verb is tagged {self.verb_tag}"
        return None


def read_doc(doc: Any, verb_index: int) -> Truth:
    """The truth in a parsed sentence.

    Args:
        doc: spaCy ``Doc`` with heads, dependency labels and fine-grained tags; its tokens are the sentence's words.
        verb_index: Which token is the verb.
    """
    verb = doc[verb_index]
    children = sorted(verb.children, key=lambda token: token.i)
    subjects = [child.i for child in children if child.dep_ == "nsubj"]
    if not subjects:
        found = ", ".join(child.dep_ for child in children) or "none"
        return Truth(None, verb.tag_, None, f"relation of the verb: {verb.dep_ or 'none'}; its children: {found}")
    subject = subjects[0]
    between = range(min(subject, verb_index) + 1, max(subject, verb_index))
    number = _VERB_NUMBER.get(verb.tag_)
    attractors = tuple(i for i in between if number and _NOUN_NUMBER.get(doc[i].tag_, number) != number)
    return Truth(subject, verb.tag_, attractors)


# The parser


def load_parser(name: str) -> Any:
    """The spaCy pipeline called ``name``, without the parts that are not needed.

    Raises:
        ImportError: spaCy is not installed.
        InputError: The pipeline is not installed or cannot be loaded, or it does not write tags and dependencies.
    """
    spacy = import_optional("spacy", "Parsing the sentences", extra="sva")
    try:
        pipeline = spacy.load(name, exclude=list(_UNUSED_PIPES))
    except OSError as error:
        raise InputError(f"the spaCy pipeline {name!r} is not there. {_how_to_get(name)}") from error
    except (ValueError, ImportError) as error:  # a part of the pipeline needs a package that is not installed
        raise InputError(f"the spaCy pipeline {name!r} cannot be loaded: {error}") from error
    return check_parser(pipeline)


def check_parser(pipeline: Any) -> Any:
    """``pipeline`` itself, if it writes tags and dependencies.

    Raises:
        InputError: It does not.
    """
    written = {name for pipe in pipeline.pipe_names for name in pipeline.get_pipe_meta(pipe).assigns}
    missing = [part for part, mark in (("tagger", "token.tag"), ("parser", "token.dep")) if mark not in written]
    if missing:
        raise InputError(
            f"the spaCy pipeline {parser_label(pipeline)['name']!r} has no {' and no '.join(missing)}, only "
            f"{', '.join(pipeline.pipe_names) or 'a tokenizer'}. Use one with both, such as en_core_web_trf."
        )
    return pipeline


def parser_label(pipeline: Any) -> dict[str, str]:
    """Name and versions of a pipeline: what its parses depend on."""
    meta = pipeline.meta
    return {
        "name": f"{meta.get('lang', '')}_{meta.get('name', '')}",
        "version": str(meta.get("version", "")),
        "spacy": import_optional("spacy", "Parsing the sentences", extra="sva").__version__,
    }


def _how_to_get(name: str) -> str:
    own = "or bring a parse of your own: ground_truth="
    if re.fullmatch(r"[a-z]{2}_(core|dep|ent|sent)_(web|news|wiki)_(sm|md|lg|trf)", name):
        return f"Get it with: python -m spacy download {name} ({own})"
    return f"Install the package that provides it, give the folder of a saved pipeline, {own}."


def parse(pipeline: Any, rows: Sequence[SourceRow]) -> list[Truth]:
    """The truths of ``rows``, parsed as they are split: one token per word."""
    from spacy.tokens import Doc

    docs = (Doc(pipeline.vocab, words=list(row.words)) for row in rows)
    parsed = pipeline.pipe(docs, batch_size=_BATCH)
    return [read_doc(doc, row.verb_index) for doc, row in zip(parsed, rows, strict=True)]


_pipeline: Any = None  # a worker process's own


def start_worker(name: str, threads: int) -> None:
    """Load the pipeline of a worker process, with its share of the processor."""
    global _pipeline
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _pipeline = load_parser(name)
    if "torch" in sys.modules:  # transformer pipelines; each worker would take all cores
        sys.modules["torch"].set_num_threads(threads)


def _end_with_parent() -> None:
    """End this worker with its parent; if the parent was killed, the worker would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def parse_in_worker(rows: Sequence[SourceRow]) -> list[Truth]:
    """``parse`` with the pipeline that ``start_worker`` loaded."""
    return parse(_pipeline, rows)


# A file


def read_file(path: Path, rows: Sequence[SourceRow]) -> list[Truth]:
    """Truths from a file: tab-separated with a header, or JSON lines. ``docs/benchmark.md`` describes the columns.

    Rows that the file does not name, and rows with an empty subject, have no subject.

    Raises:
        InputError: There is no such file, an entry is malformed, twice there, or does not fit its sentence.
    """
    by_id = {row.sample_id: row for row in rows}
    truths: dict[int, Truth] = {}
    seen: set[int] = set()
    for where, entry in _entries(path):
        sample_id = _whole_number(entry.get("sample_id"), f"{where}: sample_id")
        if sample_id is None:
            raise InputError(f"{where}: there is no sample_id.")
        if sample_id in seen:
            raise InputError(f"{where}: sample_id {sample_id} is there twice.")
        seen.add(sample_id)
        if sample_id in by_id:  # a row may have been dropped before its subject matters
            truths[sample_id] = _entry(where, entry, by_id[sample_id])
    if not truths:
        raise InputError(f"{path}: none of its {len(seen)} sample_ids is a row of the source.")
    absent = Truth(None, None, None, f"not in {path.name}")
    return [truths.get(row.sample_id, absent) for row in rows]


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place for messages, fields) of each entry."""
    if not path.is_file():
        raise InputError(f"{path} is not a file: give the ground truth as TSV or JSON lines.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path.read_bytes(), str(path), path) from error
    if text.lstrip().startswith("{"):
        yield from read_jsonl(path)
        return
    reader = csv.DictReader(text.split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = {"sample_id", "subject"} - set(reader.fieldnames or [])
    if missing:
        raise InputError(f"{path.name}: the header lacks {' and '.join(sorted(missing))}; columns are tab-separated.")
    for entry in reader:
        where = f"{path.name}, line {reader.line_num}"
        if None in entry or None in entry.values():
            raise InputError(f"{where}: the number of columns differs from the header's.")
        fields: dict[str, Any] = {name: value for name, value in entry.items() if value != ""}
        if "attractors" in (reader.fieldnames or []):  # an empty cell says that there are none
            fields["attractors"] = [a for a in (entry["attractors"] or "").split(",") if a.strip()]
        yield where, fields


def _whole_number(value: Any, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not re.fullmatch(r"\s*\d{1,9}\s*", str(value), re.ASCII):
        raise InputError(f"{what} is {value!r}: give a whole number from 0.")
    return int(value)


def _entry(where: str, entry: dict[str, Any], row: SourceRow) -> Truth:
    """The truth of ``row`` that one entry gives."""

    def word(value: Any, what: str) -> int | None:
        index = _whole_number(value, f"{where}: {what}")
        if index is not None and index >= len(row.words):
            raise InputError(f"{where}: {what} {index} is outside the sentence, which has {len(row.words)} words.")
        return index

    subject = word(entry.get("subject"), "subject")
    if subject == row.verb_index:
        raise InputError(f"{where}: subject {subject} is the verb {row.verb!r}.")
    expected = entry.get("subject_word")
    if subject is not None and expected is not None and row.words[subject] != expected:
        raise InputError(
            f"{where}: word {subject} of sample {row.sample_id} is {row.words[subject]!r}, not {expected!r}: the file belongs to "
            "another source, or its positions do not count whitespace-separated words from 0."
        )
    listed = entry.get("attractors")
    if listed is not None and not isinstance(listed, list):
        raise InputError(f"{where}: attractors is {listed!r}: give a list of word positions.")
    attractors = None if listed is None else tuple(i for a in listed if (i := word(a, "attractors")) is not None)
    tag = entry.get("verb_tag")
    return Truth(
        subject, None if tag is None else str(tag), attractors, f"{where}: no subject" if subject is None else ""
    )
