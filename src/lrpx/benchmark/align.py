"""One sentence as tokens: what the model sees, the ids of both verb forms, and which tokens are the subject.

Positions come from character offsets: a word's tokens are those whose characters overlap it. Verb forms are encoded in
their context and compared with the input, so that nothing is assumed about leading spaces.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple

from .folder import TokenizedSample
from .sources import Dropped

# Why a sample of the benchmark is not in a tokenised set, in the order in which the reasons are checked.
REASONS = {
    "no_text_before_verb": "the verb is the first word (causal input)",
    "mask_in_text": "the sentence itself contains the mask token (masked input)",
    "verb_tokens": "a form of the predicted word is not one token in this context, or both start with the same one",
    "subject_after_verb": "the ground truth lies after the verb (causal input)",
    "subject_tokens": "the subject has no tokens of its own",
    "not_shorter": "the ground truth is all that the input has besides special tokens",
    "too_long": "the input is longer than the tokenizer's model_max_length",
}


class Sentence(NamedTuple):
    """One row of the benchmark."""

    sample_id: int
    line: int
    sentence: str
    verb_index: int
    verb: str
    other: str
    verb_tag: str | None
    subject_index: int
    attractors: list[int] | None
    n_attractors: int | None
    subject_end: int | None = None  # of several words: the one after the last; they count without final punctuation

    def drop(self, reason: str, detail: str = "") -> Dropped:
        """The entry that says why this sentence is left out."""
        return Dropped(self.sample_id, self.line, reason, detail)


class _WordText(NamedTuple):
    """A sentence as one model reads it: its words, joined by spaces, and where each starts."""

    words: list[str]
    text: str
    starts: list[int]

    @classmethod
    def of(cls, sentence: Sentence, kind: str, filler: str | None) -> _WordText:
        """The text with ``filler`` (or nothing) for the verb; causal text ends there."""
        words = sentence.sentence.split(" ")
        before, after = words[: sentence.verb_index], words[sentence.verb_index + 1 :]
        seen = [*before, *([] if filler is None else [filler]), *(after if kind == "masked" else [])]
        starts = accumulate((len(word) + 1 for word in seen[:-1]), initial=0)
        return cls(seen, " ".join(seen), list(starts))

    def span(self, word: int, *, bare: bool = False) -> tuple[int, int]:
        """First and end character of a word; ``bare``: without the punctuation at its end."""
        length = len(self.words[word].rstrip(".,;:!?")) if bare else len(self.words[word])
        return self.starts[word], self.starts[word] + length

    def subject(self, sentence: Sentence) -> tuple[int, int]:
        """First and end character of the word, or words, that decide."""
        if sentence.subject_end is None:
            return self.span(sentence.subject_index)
        return self.starts[sentence.subject_index], self.span(sentence.subject_end - 1, bare=True)[1]

    def is_covered(self, span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
        """Whether tokens with the character spans ``spans`` stand for the characters of ``span`` and for nothing else.

        A token's span may include the space before the word. Spaces between words may belong to no token, and neither
        need characters that the tokenizer's normalisation removes: accents that stand alone, control characters.
        """
        start, end = span
        covered = set().union(*(range(a, b) for a, b in spans))
        spilled = any(not start <= c < end and not self.text[c].isspace() for c in covered)
        missed = (self.text[c] for c in range(start, end) if c not in covered and not self.text[c].isspace())
        return bool(covered) and not spilled and all(unicodedata.category(c)[0] in "MC" for c in missed)


class _Encoded(NamedTuple):
    """What the tokenizer says about one text, special tokens included."""

    ids: list[int]
    special: list[int]  # 1 where the tokenizer added the token
    offsets: list[tuple[int, int]]  # characters of each token; empty where they were not asked for

    def plain(self) -> list[int]:
        """Ids of the text alone."""
        return [i for i, special in zip(self.ids, self.special, strict=True) if not special]

    def without_end(self) -> _Encoded:
        """Without special tokens after the text: a causal model continues from the text's last token."""
        end = len(self.ids)
        while end and self.special[end - 1]:
            end -= 1
        return _Encoded(self.ids[:end], self.special[:end], self.offsets[:end])


def align(
    tokenizer: Any, kind: str, sentences: Sequence[Sentence], *, first_token: bool = False
) -> Iterator[TokenizedSample | Dropped]:
    """The sample of each sentence, or why there is none.

    The tokenizer is called three times for all sentences: for the input, with the verb in place, and with the other
    form.

    Args:
        tokenizer: A fast tokenizer.
        kind: ``causal`` or ``masked``.
        sentences: Rows of the benchmark.
        first_token: Forms may have several tokens, and the first one that tells them apart is predicted. A space before
            it that is a token of its own becomes part of the input. Causal input only.
    """

    def encode(texts: Sequence[_WordText], *, offsets: bool = False) -> list[_Encoded]:
        result = tokenizer(
            [t.text for t in texts],
            return_offsets_mapping=offsets,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            padding=False,
            truncation=False,
            verbose=False,  # samples that are too long are dropped below, without a warning
        )
        spans = result["offset_mapping"] if offsets else repeat([], len(texts))
        columns = result["input_ids"], result["special_tokens_mask"], spans
        return [_Encoded(*row) for row in zip(*columns, strict=True)]

    texts = [_WordText.of(s, kind, tokenizer.mask_token if kind == "masked" else None) for s in sentences]
    inputs = encode(texts, offsets=True)
    verbs = encode([_WordText.of(s, kind, s.verb) for s in sentences])
    others = encode([_WordText.of(s, kind, s.other) for s in sentences])
    for sentence, text, *encoded in zip(sentences, texts, inputs, verbs, others, strict=True):
        yield _sample(tokenizer, kind, sentence, text, *encoded, first_token=first_token)


def _sample(
    tokenizer: Any,
    kind: str,
    sentence: Sentence,
    text: _WordText,
    encoded: _Encoded,
    verb: _Encoded,
    other: _Encoded,
    *,
    first_token: bool,
) -> TokenizedSample | Dropped:
    """One sample, or why there is none; the checks run in the order of ``REASONS``."""
    if kind == "causal":
        if sentence.verb_index == 0:
            return sentence.drop("no_text_before_verb")
        encoded = encoded.without_end()
        forms = [_added(encoded.plain(), form.plain()) for form in (verb, other)]
        if first_token:
            encoded, forms = _up_to_the_difference(tokenizer, encoded, text, forms)
        position = len(encoded.ids) - 1
    else:
        mask = tokenizer.mask_token_id
        masks = [n for n, i in enumerate(encoded.ids) if i == mask]
        if len(masks) != 1:
            return sentence.drop("mask_in_text", f"{tokenizer.mask_token} is there {len(masks)} times")
        position = masks[0]
        encoded.special[position] = 1
        forms = [_exchanged(position, encoded.ids, form.ids) for form in (verb, other)]
    if problem := _verb_problem(tokenizer, sentence, forms, first_token):
        return sentence.drop("verb_tokens", problem)

    if sentence.subject_index >= len(text.words):
        return sentence.drop("subject_after_verb", f"subject {sentence.subject_index}, verb {sentence.verb_index}")

    def tokens_of(span: tuple[int, int]) -> list[int]:
        start, end = span
        return [n for n, (a, b) in enumerate(encoded.offsets) if a < end and b > start and not encoded.special[n]]

    subject = text.subject(sentence)
    ground_truth = tokens_of(subject)
    if not text.is_covered(subject, [encoded.offsets[n] for n in ground_truth]):
        pieces = tokenizer.convert_ids_to_tokens([encoded.ids[n] for n in ground_truth])
        return sentence.drop("subject_tokens", f"{text.text[slice(*subject)]!r}: {' '.join(pieces) or 'none'}")

    length, effective = len(encoded.ids), encoded.special.count(0)
    if len(ground_truth) >= effective:  # a BOS token before it would not make the sample less trivial
        return sentence.drop("not_shorter", f"{len(ground_truth)} of {effective} tokens that are not special")
    if length > tokenizer.model_max_length:
        return sentence.drop("too_long", f"{length} tokens, at most {tokenizer.model_max_length}")

    roles = ["special" if s else "other" for s in encoded.special]
    for word in sentence.attractors or []:
        if word < len(text.words):
            for n in tokens_of(text.span(word, bare=sentence.subject_end is not None)):
                roles[n] = "attractor"
    for n in ground_truth:
        roles[n] = "subject"
    return TokenizedSample(
        sample_id=sentence.sample_id,
        text=text.text,
        input_ids=encoded.ids,
        tokens=tokenizer.convert_ids_to_tokens(encoded.ids),
        position=position,
        verb=sentence.verb,
        other=sentence.other,
        verb_id=forms[0][0],
        other_id=forms[1][0],
        ground_truth=ground_truth,
        roles=roles,
        verb_tag=sentence.verb_tag,
        n_attractors=sentence.n_attractors,
    )


def _added(before: list[int], after: list[int]) -> list[int]:
    """The ids that the verb added to ``before``; none if it changed those."""
    return after[len(before) :] if after[: len(before)] == before else []


def _up_to_the_difference(
    tokenizer: Any, encoded: _Encoded, text: _WordText, forms: Sequence[list[int]]
) -> tuple[_Encoded, list[list[int]]]:
    """The input up to the first token in which two forms differ, and that token of each.

    What the forms share may only be a space that is a token of its own, as tokenizers write before digits. Otherwise
    there are no tokens to compare, and both forms come back as they are.
    """
    shared = 0
    while shared < min(map(len, forms)) and forms[0][shared] == forms[1][shared]:
        shared += 1
    space = forms[0][:shared]
    if shared == min(map(len, forms)) or (space and tokenizer.decode(space).strip()):
        return encoded, list(forms)
    end = len(text.text)
    longer = _Encoded(encoded.ids + space, encoded.special + [0] * shared, encoded.offsets + [(end, end)] * shared)
    return longer, [form[shared : shared + 1] for form in forms]


def _exchanged(position: int, masked: list[int], filled: list[int]) -> list[int]:
    """The ids in ``filled`` at the mask of ``masked``; none if other ids differ too."""
    rest = masked[position + 1 :]
    end = len(filled) - len(rest)
    return filled[position:end] if filled[:position] == masked[:position] and filled[end:] == rest else []


def _verb_problem(tokenizer: Any, sentence: Sentence, forms: Sequence[list[int]], first_token: bool) -> str | None:
    """Why the ids of the two verb forms cannot be compared; ``None`` if they can."""
    if first_token and forms[0][:1] and forms[0][:1] == forms[1][:1]:
        same = tokenizer.convert_ids_to_tokens(forms[0][:1])[0]
        return f"{sentence.verb!r} and {sentence.other!r} both start with {same}"
    for form, ids in zip((sentence.verb, sentence.other), forms, strict=True):
        if not ids:
            return f"{form!r} changes the tokens around it"
        if len(ids) > 1 or ids[0] == tokenizer.unk_token_id:
            return f"{form!r} is {' '.join(tokenizer.convert_ids_to_tokens(ids))}"
    return f"{sentence.verb!r} and {sentence.other!r} are the same token" if forms[0] == forms[1] else None
