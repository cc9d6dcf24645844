"""A key in a haystack, for decoders with a long context: texts made on the spot, in which one known sentence has the answer.

A text consists of short sentences, over and over, with *needles* between them, "The special magic number for tiger is
48213.", and ends in "The special magic number for tiger is". What comes next is the needle's value; the ground truth is that
value in the needle, or the whole needle. The value is compared with that of another needle (of a single needle: with one that
is not in the text), so that knowing that some number comes next is not enough.

The values of one text have different first digits, so their first tokens differ for every usual tokenizer; where they do not,
``tokenize`` drops the sample and counts it. The task is RULER's "needle in a haystack" (Hsieh et al. 2024, arXiv 2404.06654).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, import_optional, nearest
from ..files import not_utf8
from .builder import write_benchmark
from .folder import Benchmark, load_benchmark
from .ground_truth import Truth
from .kinds import VALUE_TRUTH
from .sources import SourceRow
from .storage import SCHEMA, check_claim, check_place, claim, count

FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
KEYS = (
    *("tiger", "piano", "river", "candle", "harbor", "violin", "meadow", "rocket", "lantern", "saddle", "pepper"),
    *("marble", "falcon", "window", "orchard"),
)
MOST_NEEDLES = 9  # as many first digits as there are
TRUTHS = ("value", "needle")


class Hay(NamedTuple):
    """One text with its answer. Positions count the words of ``text``, which single spaces separate, from 0."""

    text: str  # ends before the value
    key: str
    value: str
    other: str  # what the value is compared with
    needle: tuple[int, int]  # first word, and the one after the last
    attractors: tuple[int, ...]  # the values of the other needles
    depth: float  # sentences before the needle, as a share of all
    sentences: int  # needles included, without the one that is to be continued


def hay(chance: random.Random, sentences: int, needles: int, filler: Sequence[str] = FILLER) -> Hay:
    """A text of ``sentences`` sentences of filler, in their order, with ``needles`` needles at random places."""
    keys = chance.sample(KEYS, needles)
    digits = chance.sample("123456789", max(needles, 2))
    values = [digit + str(chance.randint(0, 9999)).zfill(4) for digit in digits]
    places = chance.sample(range(sentences + 1), needles)  # of the filler sentence that each stands before
    asked = chance.randrange(needles)
    by_place = {place: n for n, place in enumerate(places)}
    words: list[str] = []
    ends, place_of_asked, count_of = {}, (0, 0), 0
    for i in range(sentences + 1):
        if (n := by_place.get(i)) is not None:
            start = len(words)
            words += f"The special magic number for {keys[n]} is {values[n]}.".split(" ")
            ends[n] = len(words) - 1
            if n == asked:
                place_of_asked = start, len(words)
                count_of = i + sum(place < i for place in places)
        if i < sentences:
            words += filler[i % len(filler)].split(" ")
    words += f"The special magic number for {keys[asked]} is".split(" ")
    attractors = tuple(sorted(end for n, end in ends.items() if n != asked))
    other = values[chance.choice([n for n in range(len(values)) if n != asked])]
    total = sentences + needles
    return Hay(
        " ".join(words), keys[asked], values[asked], other, place_of_asked, attractors, count_of / (total - 1), total
    )


def build_haystack(
    out: str | Path,
    *,
    sentences: int | None = None,
    tokens: int | None = None,
    tokenizer: Any = None,
    needles: int = 3,
    samples: int = 100,
    seed: int = 0,
    truth: str = "value",
    filler: Path | Sequence[str] | None = None,
) -> Benchmark:
    """Make a benchmark of texts with a key in a haystack in the folder ``out``.

    Args:
        out: A new or empty folder, or one in which the same benchmark was made.
        sentences: Filler sentences in each text; 20 if neither this nor ``tokens`` is given.
        tokens: Instead of ``sentences``: as many as fit into this many tokens of ``tokenizer``, needles included.
        tokenizer: For ``tokens``: a name on the Hub, a path, or a loaded fast tokenizer. Others can be used with the same
            texts later; they count differently.
        needles: Sentences with a key and a value, 1 to 9.
        samples: Number of texts.
        seed: Another one gives other texts.
        truth: What the ground truth is: ``"value"``, the value in the needle, or ``"needle"``, the whole needle.
        filler: Sentences to use instead of ``FILLER``, in their order, or a text file with one in each line.

    Returns:
        The finished benchmark. Its samples have more columns: ``subject_end``, ``key``, ``depth`` (0: the needle is the
        first sentence, 1: the last) and ``sentences``.

    Raises:
        ImportError: pyarrow is not installed.
        InputError: A number is out of its range, ``tokens`` are too few, or ``out`` holds something else.
        LrpxError: A file could not be written.
    """
    pa = import_optional("pyarrow", "Making a benchmark")
    out = Path(out)
    if truth not in TRUTHS:
        raise InputError(f"unknown truth {truth!r}. {nearest(truth, TRUTHS)}")
    lines = _filler(FILLER if filler is None else filler)
    fit, label = _size(sentences, tokens, tokenizer, needles, lines)
    for name, value in (("samples", samples), ("needles", needles)):
        if value < 1:
            raise InputError(f"{name}={value}: give 1 or more.")
    if needles > MOST_NEEDLES:
        raise InputError(
            f"needles={needles}: give at most {MOST_NEEDLES}, so that their values can start with different digits."
        )
    check_place(out, what="benchmark")
    manifest = {
        "kind": "benchmark",
        "schema": SCHEMA,
        "task": "haystack",
        "input": "causal",
        "predicted": "first_token",
        "source": {
            "name": f"haystack of {label}, {needles} {'needle' if needles == 1 else 'needles'}",
            "format": "haystack",
            "sha256": hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest(),  # of the filler
        },
        "options": {"size": label, "needles": needles, "samples": samples, "seed": seed, "truth": truth},
        "ground_truth": {"rule": {"name": VALUE_TRUTH if truth == "value" else "the needle"}},
    }
    check_claim(out, manifest, what="benchmark")
    if (out / "counts.json").exists():
        return load_benchmark(out)
    made = [fit(f"{seed}:{n}") for n in range(samples)]
    claim(out, manifest, what="benchmark")
    kept = [(_row(n, each), _truth(each, truth)) for n, each in enumerate(made)]
    more: dict[str, tuple[Any, Sequence[Any]]] = {
        "subject_end": (pa.int32(), [each.needle[1] for each in made]),
        "key": (pa.string(), [each.key for each in made]),
        "depth": (pa.float64(), [each.depth for each in made]),
        "sentences": (pa.int32(), [each.sentences for each in made]),
    }
    write_benchmark(out, manifest, kept, [], {**count(samples, [], {}), "published": None}, more)
    return load_benchmark(out)


def _row(number: int, made: Hay) -> SourceRow:
    words = (*made.text.split(" "), made.value)
    return SourceRow(number, number + 1, len(made.attractors), words, len(words) - 1, made.value, made.other)


def _truth(made: Hay, truth: str) -> Truth:
    first, end = made.needle
    return Truth(end - 1 if truth == "value" else first, None, made.attractors)


def _filler(lines: Path | Sequence[str]) -> list[str]:
    """Sentences with single spaces, without empty ones."""
    if isinstance(lines, Path):
        file = lines
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise not_utf8(file.read_bytes(), f"the filler {file}", file) from error
        except OSError as error:
            raise InputError(
                f"the filler {file} cannot be read: {error}. Give a text file with one sentence per line."
            ) from error
    found = [" ".join(line.split()) for line in lines if line.strip()]
    if not found:
        raise InputError("the filler has no sentence: give a text file with one sentence per line.")
    return found


def _size(
    sentences: int | None, tokens: int | None, tokenizer: Any, needles: int, filler: Sequence[str]
) -> tuple[Callable[[str], Hay], str]:
    """A function from a seed to a text of the size that was asked for, and the size in words."""
    if sentences is not None and tokens is not None:
        raise InputError(f"sentences={sentences} and tokens={tokens}: give one of the two.")
    if tokens is None:
        number = 20 if sentences is None else sentences
        if needles > number:
            raise InputError(
                f"{needles} needles do not fit between {number} sentences: give more sentences, or fewer needles."
            )
        return lambda seed: hay(random.Random(seed), number, needles, filler), f"{number} sentences"
    if tokenizer is None:
        raise InputError(
            f"tokens={tokens}: by which tokenizer? Give tokenizer='NAME' too, or a number of sentences instead."
        )
    from .tokenized import load_tokenizer

    loaded = load_tokenizer(tokenizer)

    def size(text: str) -> int:
        return len(loaded(text, truncation=False, verbose=False)["input_ids"])

    each = max(1.0, size(" ".join(filler)) / len(filler))

    def fitting(seed: str) -> Hay:
        number = needles + int(tokens / each)
        while number >= needles:
            made = hay(random.Random(seed), number, needles, filler)
            over = size(made.text) - tokens
            if over <= 0:
                return made
            number -= max(1, int(over / each / 2))
        least = size(hay(random.Random(seed), needles, needles, filler).text)
        raise InputError(
            f"{needles} needles and as many sentences between them take {least} tokens: give more than {tokens}, or "
            "fewer needles."
        )

    return fitting, f"{tokens} tokens"
