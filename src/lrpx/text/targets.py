"""Which prediction is explained: resolve position, target and contrast to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError, counted
from ..heatmap.text import as_string, without_spaces
from ..models.signature import goes_on
from .given import as_python
from .tokenization import Encoded, check_unicode
from .units import pieces_shown, predicted_token, special_ids

TokenChoice = Any  # a token id (also of numpy or torch), a string, or None


def resolve_position(encoded: Encoded, position: Any, task: str, mask_id: int | None, mask: str | None = None) -> int:
    """The explained position as an index from 0: the last token (causal), the mask token (masked), or the one given.

    ``mask`` is the text of the mask token, for the error.

    Raises:
        InputError: It lies outside the text, or a masked model's text has no mask token, or several.
    """
    length = len(encoded.token_ids)
    position = as_python(position)
    if position is not None:
        if not isinstance(position, int) or isinstance(position, bool):
            raise InputError(
                f"position={position!r} has the type {type(position).__name__}. Give the index of a token."
            )
        if not -length <= position < length:
            raise InputError(
                f"position {position} is outside the text, which has {counted(length, 'token')}: 0 to {length - 1}, "
                f"or -{length} to -1."
            )
        return position % length
    if goes_on(task):
        return length - 1
    masks = [i for i, token in enumerate(encoded.token_ids) if token == mask_id]
    if len(masks) == 1:
        return masks[0]
    if not masks and mask_id is None and mask is None:
        raise InputError(
            "a masked language model predicts what stands in place of a mask token, and this tokenizer has none. Is it the "
            "model's own? If it is, give position=."
        )
    if not masks:
        known = ", ".join([*([repr(mask)] if mask else []), *([] if mask_id is None else [f"id {mask_id}"])])
        raise InputError(
            f"a masked language model predicts what stands in place of a mask token{f' ({known})' if known else ''}, and the "
            "text has none. Put one in, or give position=."
        )
    raise InputError(f"the text has {len(masks)} mask tokens, at positions {masks}. Say which: position={masks[0]}.")


def resolve_token(
    given: TokenChoice,
    role: str,
    encoded: Encoded,
    position: int,
    tokenizer: Any,
    vocabulary: int,
    task: str,
    *,
    several: bool = True,
    other: TokenChoice = None,
) -> int | None:
    """A target or contrast as a token id; ``None`` stays ``None``.

    A string must be exactly one token in its context: after the text up to ``position`` (causal), or in place of the
    token at ``position`` (masked). If the text is not known, or its tokens would change, the string is tokenised alone.

    ``several``: the caller can explain several tokens, so an error may say to give their ids. ``other``: what it is compared
    with, which an error does not advise.

    Raises:
        SeveralTokens: Ids, or a string of several tokens, for a causal model. Not if the string with exactly one leading space
            is one token: that is likely what was meant. A string that has its space is taken as it is, also where it is one
            token without the space: in many scripts that is the end of a longer word.
        InputError: An id outside the vocabulary, or a string of no token or of several; the error shows them.
    """
    given, other = as_python(given), as_python(other)
    if given is None:
        return None
    if isinstance(given, list) and goes_on(task):
        raise SeveralTokens(
            f"{role}={given!r} has the type list. Give a token id or a string.",
            resolve_continuation(given, role, encoded, tokenizer, vocabulary),
        )
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise InputError(f"{role}={given!r} has the type {type(given).__name__}. Give a token id or a string.")
    if isinstance(given, int):
        if not 0 <= given < vocabulary:
            raise InputError(f"{role}={given} is outside the vocabulary: ids go from 0 to {vocabulary - 1}.")
        return given
    if tokenizer is None:
        raise InputError(f"{role}={given!r} is a string, which needs a tokenizer. Give a token id.")
    check_unicode(f"{role}={given!r}", given)
    ids = _ids_of(given, encoded, position, tokenizer, task)
    if _is_one_token(ids, given, tokenizer):
        return ids[0]
    # The most common mistake is a missing or superfluous leading space.
    near = _other_spaces(given, task, anew=_begins_anew(encoded, position, tokenizer))
    close = next((w for w in near if _is_one_token(_ids_of(w, encoded, position, tokenizer, task), w, tokenizer)), None)
    before_it = encoded.token_ids[: position + 1]
    not_one = _not_one_token(given, role, ids, close, tokenizer, task, before_it, several=several, other=other)
    before = encoded.text if goes_on(task) and position == len(encoded.token_ids) - 1 else None
    if before is not None and before.endswith(" ") and len(ids) > 1:
        spaced = _with_one_space(given, before, tokenizer)
        if spaced is not None and len(spaced[1]) == 1:
            raise InputError(not_one.problem, **_move_space(role, spaced[0]))
    if not goes_on(task) or close is not None or len(ids) < 2:
        raise not_one
    if before is not None:  # or else it was tokenised alone
        ids = list(resolve_continuation(given, role, encoded, tokenizer, vocabulary))
    raise SeveralTokens(str(not_one), tuple(ids))


class SeveralTokens(InputError):
    """Several tokens were given where one is asked for. A causal model can be asked about all of them together."""

    def __init__(self, message: str, ids: tuple[int, ...]) -> None:
        super().__init__(message)
        self.ids = ids


def resolve_tokens(
    given: TokenChoice, role: str, encoded: Encoded, position: int, tokenizer: Any, vocabulary: int, task: str
) -> tuple[int, ...] | None:
    """A target or contrast of one token or, for a causal model, of several; otherwise as ``resolve_token``."""
    try:
        token = resolve_token(given, role, encoded, position, tokenizer, vocabulary, task)
    except SeveralTokens as several:
        return several.ids
    return None if token is None else (token,)


def resolve_continuation(given: Any, role: str, encoded: Encoded, tokenizer: Any, vocabulary: int) -> tuple[int, ...]:
    """What comes after a text, as token ids: a string, which is tokenised in its context, or ids.

    Raises:
        InputError: It is empty, changes the tokens of the text before it, or holds an id outside the vocabulary.
    """
    given = as_python(given)
    if isinstance(given, str):
        if not given:
            raise InputError(f"{role}='' is empty. Give at least one token.")
        if tokenizer is None:
            raise InputError(f"{role}={given!r} is a string, which needs a tokenizer. Give a list of token ids.")
        check_unicode(f"{role}={given!r}", given)
        if encoded.text is None:
            ids = _alone(given, tokenizer)
        else:
            ids = _in_context(given, encoded, len(encoded.token_ids) - 1, tokenizer, "causal") or []
            if not ids:
                raise _changes_its_context(given, role, encoded.text, tokenizer)
        return tuple(ids)
    if not isinstance(given, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in given):
        raise InputError(f"{role}={given!r} is {type(given).__name__}. Give a string, or a list of token ids.")
    if not given:
        raise InputError(f"{role}=[] is empty. Give at least one token.")
    wrong = [i for i in given if not 0 <= i < vocabulary]
    if wrong:
        raise InputError(f"{role} holds {wrong[0]}, outside the vocabulary: ids go from 0 to {vocabulary - 1}.")
    return tuple(given)


def _changes_its_context(given: str, role: str, text: str, tokenizer: Any) -> InputError:
    """The error that says why a string is no continuation of a text."""
    before, after = _plain(text, tokenizer), _plain(text + given, tokenizer)
    same = next((i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before) - 1)
    ending, becomes = (_shown(ids, same, tokenizer) for ids in (before, after[: same + 8]))
    problem = (
        f"{role}={given!r} changes the tokens before it: the text ends with {ending}, and with the {role} this becomes "
        f"{becomes}."
    )
    spaced = _with_one_space(given, text, tokenizer)
    if spaced is not None and text.endswith(" "):
        return InputError(problem, **_move_space(role, spaced[0]))
    if spaced is not None and spaced[0] != given:
        why, move = "Most likely a space was forgotten: give", "Or move the piece of a word to the other side"
        python, app = f"{why} {role}={spaced[0]!r}. {move}, or give ids.", f"{why} {spaced[0]!r}. {move}."
        return InputError(problem, python=python, app=app, command=f"{why} {role}={spaced[0]!r}. {move}.")
    move = "Move the space or the piece of a word to the other side"
    return InputError(problem, python=f"{move}, or give ids.", app=f"{move}.", command=f"{move}.")


def _shown(ids: list[int], start: int, tokenizer: Any) -> str:
    """The tokens from ``start`` on, as text."""
    return pieces_shown(tokenizer, ids[start:], ids[:start])


def _with_one_space(given: str, text: str, tokenizer: Any) -> tuple[str, list[int]] | None:
    """``given`` with one leading space, and its ids after ``text`` without spaces at its end; ``None`` if tokens change."""
    spaced = " " + given.lstrip(" ")
    before = _plain(text.rstrip(" "), tokenizer)
    after = _plain(text.rstrip(" ") + spaced, tokenizer)
    return (spaced, after[len(before) :]) if spaced != " " and after[: len(before)] == before else None


def _move_space(role: str, spaced: str) -> dict[str, str]:
    """What to do if the space before a word stands at the end of the text."""
    why = "The text ends with a space, which belongs to the next token: leave it out there, and give"
    return {"python": f"{why} {role}={spaced!r}.", "app": f"{why} {spaced!r}."}


def _begins_anew(encoded: Encoded, position: int, tokenizer: Any) -> bool:
    """Whether what comes after the token at ``position`` needs no space: it ends a line, or is special, as a chat's roles are."""
    last = encoded.token_ids[position]
    return last in special_ids(tokenizer) or str(tokenizer.decode([last])).endswith("\n")


def _other_spaces(given: str, task: str, *, anew: bool) -> list[str]:
    """What may have been meant by a string of several tokens: the same with another space before it."""
    word = given.lstrip(" ")
    if not goes_on(task):
        return [other for other in (" " + word, word) if other != given and word]
    if not word or given == " " + word or without_spaces(word) or (anew and given == word):
        return []
    return [" " + word, *[word] * given.startswith("  ")]


def _ids_of(given: str, encoded: Encoded, position: int, tokenizer: Any, task: str) -> list[int]:
    in_context = _in_context(given, encoded, position, tokenizer, task)
    return _alone(given, tokenizer) if in_context is None else in_context


def _is_one_token(ids: list[int], given: str, tokenizer: Any) -> bool:
    return len(ids) == 1 and (ids[0] != tokenizer.unk_token_id or given == tokenizer.unk_token)


def _in_context(given: str, encoded: Encoded, position: int, tokenizer: Any, task: str) -> list[int] | None:
    """The ids of ``given`` in its context; ``None`` if the text is not known or its other tokens change."""
    if encoded.text is None:
        return None
    ids = list(encoded.token_ids)
    if task == "masked":
        span = encoded.spans[position]
        if span is None:
            return None
        text = encoded.text[: span[0]] + given + encoded.text[span[1] :]
        new = tokenizer(text, add_special_tokens=encoded.adds_special_tokens, verbose=False)["input_ids"]
        before, after = ids[:position], ids[position + 1 :]
        if new[: len(before)] != before or new[len(new) - len(after) :] != after:
            return None
        return new[len(before) : len(new) - len(after)]
    text = encoded.text
    if position != len(ids) - 1:
        span = encoded.spans[position]
        if span is None:
            return None
        text = text[: span[1]]
    before = _plain(text, tokenizer)
    new = _plain(text + given, tokenizer)
    return new[len(before) :] if new[: len(before)] == before else None


def _alone(given: str, tokenizer: Any) -> list[int]:
    """The ids of ``given`` alone; as a continuation if the tokenizer prepends a space to every text."""
    pieces = tokenizer.convert_ids_to_tokens(_plain("a", tokenizer))
    if pieces and pieces[0].startswith(("▁", "Ġ")):
        for anchor in (".", "a", "1"):
            before, new = _plain(anchor, tokenizer), _plain(anchor + given, tokenizer)
            if new[: len(before)] == before:
                return new[len(before) :]
    return _plain(given, tokenizer)


def with_other_space(given: str, encoded: Encoded, position: int, tokenizer: Any) -> tuple[str, tuple[int, ...]] | None:
    """A continuation without its leading space, or with one, and its ids; ``None`` if there is none or the ids are the same.

    The text before has to be one that ``given`` continues, as for ``resolve_token`` and a causal model.
    """
    other = given.removeprefix(" ") if given.startswith(" ") else f" {given}"
    if tokenizer is None or not other.strip():
        return None
    ids, same = (_ids_of(text, encoded, position, tokenizer, "causal") for text in (other, given))
    return (other, tuple(ids)) if ids and ids != same else None


def space_counts(tokenizer: Any) -> bool:
    """Whether a word with a space before it is another token than without, as for GPT-2 and not for BERT."""
    return tokenizer is not None and _alone(" are", tokenizer) != _alone("are", tokenizer)


def other_spelling(tokenizer: Any, piece: str) -> int | None:
    """The token that differs from a vocabulary entry in its leading space: of ``are`` that of ``Ġare``, and the reverse.

    ``None`` if there is no such token.
    """
    bare = piece.lstrip("Ġ▁")
    if tokenizer is None or not bare:
        return None
    for spelling in [bare] if bare != piece else ["Ġ" + piece, "▁" + piece]:
        i = tokenizer.convert_tokens_to_ids(spelling)
        if i is not None and i != tokenizer.unk_token_id:
            return int(i)
    return None


def _plain(text: str, tokenizer: Any) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _not_one_token(
    given: str,
    role: str,
    ids: list[int],
    close: str | None,
    tokenizer: Any,
    task: str,
    before: Sequence[int],
    *,
    several: bool,
    other: TokenChoice,
) -> InputError:
    """The error that says why a string cannot be a target, and what to give instead."""
    what = f"{role}={given!r}"
    if not ids:
        return InputError(f"{what} is no token. Give a word, with its leading space if it starts one.")
    shown = pieces_shown(tokenizer, ids, before if goes_on(task) else ())
    hint = "Pick a word that is one token" if close is None else f"Give {role}={close!r}, which is one token"
    if len(ids) == 1:
        problem = f"{what} is not in the vocabulary: the tokenizer reads it as {shown}."
        return InputError(problem, python=f"{hint}, or give a token id.", app=f"{hint}, or choose one in the list.")
    problem = f"{what} is {len(ids)} tokens here: {shown}."
    app = f"{hint}, or choose one in the list."
    if close is None or not goes_on(task):
        first = predicted_token(tokenizer, ids[0], before).shown
        hint = f"A logit belongs to one token. {hint}"
        if other == ids[0] or (isinstance(other, str) and other.strip() == first.strip()):  # "exclude", "excludes"
            return InputError(problem, python=f"{hint}.", app=app)
        piece = f"{role}={ids[0]} ({as_string(first)})"
        return InputError(problem, python=f"{hint}, or explain the first piece: {piece}.", app=app)
    space = "there is a space too many" if given.startswith(" ") else "a space was forgotten"
    hint = f"Most likely {space}. {hint}"
    python = f"{hint}, or give the ids of these: {role}={[ids]}." if several else f"{hint}."
    return InputError(problem, python=python, app=f"{hint}, or choose one in the list.", command=f"{hint}.")
