"""Agreement in BLiMP (Warstadt et al. 2020): of each pair of sentences, the word that is predicted and the one that decides it.

The two sentences of a pair differ in one word. Which one that is depends on the paradigm:

- *the predicted word* (``determiner_noun_agreement_1``: "those essays", "those essay"). Its two forms are in the pair; the
  word that decides has a known place in BLiMP's templates;
- *the word that decides* (``determiner_noun_agreement_2``: "that bank", "those bank"). It is the one that differs. The other
  form of the predicted word is looked up in the paradigms that vary it.

No parser is needed. A sentence is kept if exactly one word of it decides: if a second one shows the same ("*many* actors
are", "the girl who *is* here has"), an explanation may point at either, so the sentence is dropped and counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, nearest
from ..files import json_object, sha256
from .download import PUBLISHED, Published, published
from .sources import BadRow, Dropped, SourceRow, differing_word, numbered_rows

PAIR_REASONS = {
    "bad_row": "not of BLiMP's form",
    "no_other_form": "the predicted word's other form is in no pair",
    "not_found": "the word that decides cannot be told",
    "also_shown": "a second word shows the same as the word that decides",
}


class Paradigm(NamedTuple):
    """What is predicted in a paradigm, what decides it, and which of the two differs in a pair."""

    predicted: str  # "verb", "noun" or "pronoun"
    decides: str  # "subject", "determiner" or "antecedent"
    varies: str  # "predicted" or "decides"
    after_subject: tuple[str, ...] = ()  # words of which the first ends the subject; none: the verb does


_VERB = Paradigm("verb", "subject", "predicted")
_SUBJECT = Paradigm("verb", "subject", "decides")
_NOUN = Paradigm("noun", "determiner", "predicted")
_DETERMINER = Paradigm("noun", "determiner", "decides")
_PRONOUN = Paradigm("pronoun", "antecedent", "predicted")

PARADIGMS = {
    "regular_plural_subject_verb_agreement_1": _VERB,
    "regular_plural_subject_verb_agreement_2": _SUBJECT,
    "irregular_plural_subject_verb_agreement_1": _VERB,
    "irregular_plural_subject_verb_agreement_2": _SUBJECT,
    "distractor_agreement_relational_noun": _VERB._replace(after_subject=("of", "about")),
    "distractor_agreement_relative_clause": _VERB._replace(after_subject=("that", "who")),
    "determiner_noun_agreement_1": _NOUN,
    "determiner_noun_agreement_2": _DETERMINER,
    "determiner_noun_agreement_irregular_1": _NOUN,
    "determiner_noun_agreement_irregular_2": _DETERMINER,
    "determiner_noun_agreement_with_adjective_1": _NOUN,
    "determiner_noun_agreement_with_adj_2": _DETERMINER,
    "determiner_noun_agreement_with_adj_irregular_1": _NOUN,
    "determiner_noun_agreement_with_adj_irregular_2": _DETERMINER,
    "anaphor_number_agreement": _PRONOUN,
    "anaphor_gender_agreement": _PRONOUN,
}

# The closed classes of BLiMP's vocabulary that show a number, or do not.
_DEMONSTRATIVES = {"this", "that", "these", "those"}
_WITH_NUMBER = {"a", "an", "every", "all", "most", "many", *_DEMONSTRATIVES}
_DETERMINERS = {"the", "some", *_WITH_NUMBER}
_REFLEXIVES = {"himself", "herself", "itself", "themselves"}
_COMPOUNDS = {"art", "college", "grocery", "high", "ice", "movie", "newspaper", "public"}  # "high schools"
_OF_BOTH_NUMBERS = {"can", "could", "will", "would", "should", "might", "must", "had", "did"}
_PAST = {"forgot", "found", "hid", "hurt", "knew", "left", "saw", "thought", "upset"}  # other past forms end with -ed
_AUXILIARIES = {"is": "are", "was": "were", "has": "have", "does": "do"}


class MinimalPair(NamedTuple):
    """Two sentences that differ in one word."""

    sample_id: int
    line: int
    paradigm: str
    words: tuple[str, ...]  # of the acceptable sentence; its final punctuation is a word of its own
    place: int  # of the word that differs
    bad: str  # that word in the other sentence


class Agreement(NamedTuple):
    """A row of the benchmark."""

    row: SourceRow
    decides: int  # which word
    attractors: tuple[int, ...] | None
    paradigm: str


class PairFiles(NamedTuple):
    """What was read of BLiMP."""

    manifest: dict[str, str]  # name, format, sha256
    published: Published | None
    samples: list[Agreement]
    dropped: list[tuple[str, Dropped]]  # with the paradigm
    rows: Counter[str]  # of each paradigm that was asked for


def read_pairs(source: str | Path, *, paradigms: Sequence[str] | None = None, skip_bad_rows: bool = False) -> PairFiles:
    """Read BLiMP's agreement paradigms, and find the word that decides in each pair.

    Args:
        source: A folder with BLiMP's ``NAME.jsonl`` files (others in it are not read), or one such file. The other forms
            of predicted words are looked up in all of the folder, so give the whole of it and choose by ``paradigms``.
        paradigms: Names out of ``PARADIGMS``; all that are there if not given.
        skip_bad_rows: Leave rows out that are not of BLiMP's form, instead of refusing the file.

    Raises:
        InputError: There is no such folder, file or paradigm, or rows are bad.
    """
    files = _files(Path(source).expanduser())
    for name in paradigms or ():
        if name not in PARADIGMS:
            raise InputError(f"no agreement paradigm of BLiMP is called {name!r}. {nearest(name, PARADIGMS)}")
        if name not in files:
            raise InputError(f"{source} has no {name}.jsonl; it has {', '.join(files)}.")
    wanted = [name for name in files if paradigms is None or name in paradigms]
    found = {name: list(_pairs(path, name)) for name, path in files.items()}
    bad = [(name, each) for name in found for each in found[name] if isinstance(each, Dropped)]
    if bad and not skip_bad_rows:
        listed = "".join(f"\n  {name}.jsonl, line {b.line}: {b.detail}" for name, b in bad[:10])
        raise InputError(
            f"{len(bad)} rows cannot be used:{listed}\nMend the files, or leave these rows out: skip_bad_rows=True"
        )
    forms = _other_forms([pair for pairs in found.values() for pair in pairs if isinstance(pair, MinimalPair)])
    samples, dropped, first = [], [], 0
    for name in wanted:
        for each in found[name]:
            numbered = each._replace(sample_id=first + each.sample_id)
            result = numbered if isinstance(numbered, Dropped) else agreement(numbered, forms)
            if isinstance(result, Dropped):
                dropped.append((name, result))
            else:
                samples.append(result)
        first += len(found[name])
    digests = {name: sha256(files[name]) for name in files}
    known = [published(files[name]) for name in wanted]
    return PairFiles(
        {
            "name": Path(source).name,
            "format": "blimp",
            "sha256": hashlib.sha256(
                "".join(f"{n} {digests[n]} {n in wanted}\n" for n in sorted(digests)).encode()
            ).hexdigest(),
        },
        None if None in known else _together(wanted),
        samples,
        dropped,
        Counter({name: len(found[name]) for name in wanted}),
    )


def _together(names: Sequence[str]) -> Published:
    """The published files of these paradigms, as one."""
    some = next(file for file in PUBLISHED.values() if file.name == names[0])
    title = f"BLiMP {names[0]}" if len(names) == 1 else f"{len(names)} agreement paradigms of BLiMP"
    return some._replace(name="blimp", title=title, url=some.url.rsplit("/", 1)[0])


_GET_IN_PYTHON = "Get them with: lrpx.benchmark.fetch('blimp')"
_GET_BY_COMMAND = "Get them with: lrpx benchmark download blimp"


def _files(source: Path) -> dict[str, Path]:
    """The files of the paradigms by name, in the order of ``PARADIGMS``."""
    if source.is_file():
        if source.stem not in PARADIGMS:
            raise InputError(
                f"{source.name} is none of BLiMP's agreement paradigms. {nearest(source.stem, PARADIGMS)} Files are called "
                "NAME.jsonl, as BLiMP has them."
            )
        return {source.stem: source}
    if not source.is_dir():
        raise InputError(
            f"{source} is not there: give the folder with BLiMP's files.",
            python=_GET_IN_PYTHON,
            command=_GET_BY_COMMAND,
        )
    files = {name: path for name in PARADIGMS if (path := source / f"{name}.jsonl").is_file()}
    if not files:
        raise InputError(
            f"{source} has none of BLiMP's agreement paradigms, such as determiner_noun_agreement_1.jsonl.",
            python=_GET_IN_PYTHON,
            command=_GET_BY_COMMAND,
        )
    return files


def _pairs(path: Path, paradigm: str) -> Iterator[MinimalPair | Dropped]:
    """The pairs of a file, and its bad rows."""
    for sample_id, (line, text) in enumerate(numbered_rows(path)):
        try:
            data = json_object(text)
            words, bad, index = differing_word(data)
            if data.get("UID") != paradigm:
                raise BadRow(f"its UID is {data.get('UID')!r}, expected {paradigm!r}, as the file is called")
            yield MinimalPair(sample_id, line, paradigm, words, index, bad)
        except ValueError as error:
            yield Dropped(sample_id, line, "bad_row", str(error))


# Which word is predicted, and which one decides


def agreement(pair: MinimalPair, forms: dict[tuple[str, str], str]) -> Agreement | Dropped:
    """The sample that a pair makes, or why it makes none.

    Args:
        pair: Of one of the ``PARADIGMS``.
        forms: (kind of word, form) -> its form in the other number.
    """
    paradigm, words = PARADIGMS[pair.paradigm], pair.words
    target = pair.place
    if paradigm.varies == "decides":
        target = pair.place + 1 if paradigm.decides == "subject" else len(words) - 2
    other = pair.bad if paradigm.varies == "predicted" else forms.get((paradigm.predicted, words[target]))
    if other is None:
        return Dropped(pair.sample_id, pair.line, "no_other_form", repr(words[target]))
    decides = pair.place if paradigm.varies == "decides" else _decides(paradigm, words, target)
    if decides is None:
        return Dropped(pair.sample_id, pair.line, "not_found", f"of {words[target]!r} in {' '.join(words)!r}")
    if second := _second(paradigm, words, decides, target, other):
        return Dropped(pair.sample_id, pair.line, "also_shown", f"{words[decides]!r} and {second!r}")
    attractors = None
    if paradigm.decides == "subject":
        attractors = (target - 1,) if paradigm.after_subject else ()
    count = None if attractors is None else len(attractors)
    row = SourceRow(pair.sample_id, pair.line, count, words, target, words[target], other)
    return Agreement(row, decides, attractors, pair.paradigm)


def _decides(paradigm: Paradigm, words: Sequence[str], target: int) -> int | None:
    """Which word decides, if the predicted one varies; ``None``: that cannot be told."""
    if paradigm.decides == "determiner":
        return max((i for i in range(target) if words[i].lower() in _DEMONSTRATIVES), default=None)
    named = words[0].lower() not in _DETERMINERS
    if paradigm.decides == "antecedent":
        noun = 0 if named else 1
        unclear = words[1][0].isupper() if named else words[1] in _COMPOUNDS
        return None if unclear else noun
    ends = [i for i in range(1, target) if words[i] in paradigm.after_subject]
    if paradigm.after_subject and not ends:
        return None
    noun = min(ends, default=target) - 1
    return None if named and noun > 0 else noun  # "Harvard University": two words


def _second(paradigm: Paradigm, words: Sequence[str], decides: int, target: int, other: str) -> str | None:
    """A second word that shows the same as the one that decides, if there is one."""
    if paradigm.decides == "determiner":
        return None
    if paradigm.decides == "antecedent" and (words[target] == "themselves") == (other == "themselves"):
        return None  # they differ in gender
    shown = [word for word in words[:decides] if word.lower() in _WITH_NUMBER]
    if paradigm.decides == "antecedent":
        shown += [word for word in words[decides + 1 : decides + 2] if not _is_of_both_numbers(word)]
    else:
        shown += [word for word in words[target:] if word in _REFLEXIVES]
        if "that" in paradigm.after_subject:  # the verb of the relative clause
            shown += [word for word in words[decides + 2 : decides + 3] if not _is_of_both_numbers(word)]
    return next(iter(shown), None)


def _is_of_both_numbers(verb: str) -> bool:
    """Whether a finite verb is the same in singular and plural; not, if that is not known."""
    past = verb in _PAST or (verb.endswith("ed") and not verb.endswith("eed"))
    base = "can" if verb == "can't" else "will" if verb == "won't" else verb.removesuffix("n't")
    return past or base in _OF_BOTH_NUMBERS


def _other_forms(pairs: Sequence[MinimalPair]) -> dict[tuple[str, str], str]:
    """(kind of word, form) -> its form in the other number, the most frequent one in the pairs; the first of equals."""
    seen: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        paradigm, good = PARADIGMS[pair.paradigm], pair.words[pair.place]
        kind = paradigm.predicted if paradigm.varies == "predicted" else "noun" if paradigm.decides == "subject" else ""
        if kind:
            seen[kind, good][pair.bad] += 1
            seen[kind, pair.bad][good] += 1
    forms = {key: min(found, key=lambda form: (-found[form], form)) for key, found in seen.items()}
    for end in ("", "n't"):  # pairs of auxiliaries may differ in tense too
        for one, many in _AUXILIARIES.items():
            forms["verb", one + end], forms["verb", many + end] = many + end, one + end
    return forms


def counts_by_paradigm(read: PairFiles) -> dict[str, dict[str, Any]]:
    """What of each paradigm was kept and what was dropped, by reason."""
    kept = Counter(sample.paradigm for sample in read.samples)
    reasons = Counter((name, dropped.reason) for name, dropped in read.dropped)
    return {
        name: {"rows": n, "kept": kept[name], **{reason: reasons[name, reason] for reason in PAIR_REASONS}}
        for name, n in read.rows.items()
    }
