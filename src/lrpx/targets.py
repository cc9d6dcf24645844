"""Which prediction is explained: position, target and contrast, from what a person gives to token ids."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from .encoding import Encoded
from .errors import InputError, UnsupportedModelError

Given = int | str | None


def task_of(model: PreTrainedModel) -> str:
    """``"causal"`` or ``"masked"``, by the class of the model.

    Raises:
        UnsupportedModelError: It is neither.
    """
    from transformers.models.auto import modeling_auto as auto

    names = {kind.__name__ for kind in type(model).__mro__}
    for task, table in (
        ("masked", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("causal", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    ):
        known = {n for value in table.values() for n in ([value] if isinstance(value, str) else value)}
        if names & known or any(n.endswith({"masked": "ForMaskedLM", "causal": "ForCausalLM"}[task]) for n in names):
            return task
    raise UnsupportedModelError(
        f"{type(model).__name__} is neither a causal nor a masked language model. "
        "Load it with AutoModelForCausalLM or AutoModelForMaskedLM, or with lrpx.load(name)."
    )


def resolve_position(encoded: Encoded, position: int | None, task: str, mask_id: int | None) -> int:
    """The explained position as an index from 0: the last token (causal), the mask token (masked), or the one given.

    Raises:
        InputError: It lies outside the text, or a masked model's text has no mask token, or several.
    """
    length = len(encoded.token_ids)
    if position is not None:
        if not -length <= position < length:
            raise InputError(
                f"position {position} is outside the text, which has {length} tokens: 0 to {length - 1}, or -{length} to -1."
            )
        return position % length
    if task == "causal":
        return length - 1
    masks = [i for i, token in enumerate(encoded.token_ids) if token == mask_id]
    if len(masks) == 1:
        return masks[0]
    mask = "its mask token" if mask_id is None else f"the mask token (id {mask_id})"
    if not masks:
        raise InputError(
            f"a masked language model predicts {mask}, and the text has none. Put one in, or give position=."
        )
    raise InputError(f"the text has {len(masks)} mask tokens, at positions {masks}. Say which: position={masks[0]}.")


def resolve_token(
    given: Given, role: str, encoded: Encoded, position: int, tokenizer: Any, vocabulary: int, task: str
) -> int | None:
    """A target or contrast as a token id; ``None`` stays ``None``.

    A string must be exactly one token where it stands: after the text up to ``position`` (causal), or in place of the token
    at ``position`` (masked).

    Raises:
        InputError: An id outside the vocabulary, or a string of no token or of several; the error shows them.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise InputError(f"{role}={given!r} is {type(given).__name__}. Give a token id or a string.")
    if isinstance(given, int):
        if not 0 <= given < vocabulary:
            raise InputError(f"{role}={given} is outside the vocabulary: ids go from 0 to {vocabulary - 1}.")
        return given
    if tokenizer is None:
        raise InputError(f"{role}={given!r} is a string, which needs a tokenizer. Give a token id.")
    in_context = _in_context(given, encoded, position, tokenizer, task)
    for ids in (in_context, _alone(given, tokenizer)):
        if (
            ids is not None
            and len(ids) == 1
            and not (ids[0] == tokenizer.unk_token_id and given != tokenizer.unk_token)
        ):
            return ids[0]
    raise InputError(_not_one_token(given, role, in_context, tokenizer))


def _in_context(given: str, encoded: Encoded, position: int, tokenizer: Any, task: str) -> list[int] | None:
    """The ids that ``given`` becomes where it stands; ``None`` if the text around it is not known or changes with it."""
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
    before = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    new = tokenizer(text + given, add_special_tokens=False, verbose=False)["input_ids"]
    return new[len(before) :] if new[: len(before)] == before else None


def _alone(given: str, tokenizer: Any) -> list[int]:
    """The ids of ``given`` by itself; as a continuation where the tokenizer puts a space before every text."""
    ids = tokenizer(given, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) > 1:
        before = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
        after = tokenizer("a" + given, add_special_tokens=False, verbose=False)["input_ids"]
        if after[: len(before)] == before:
            return after[len(before) :]
    return ids


def _not_one_token(given: str, role: str, in_context: list[int] | None, tokenizer: Any) -> str:
    ids = _alone(given, tokenizer) if in_context is None else in_context
    if not ids:
        return f"{role}={given!r} is no token. Give a word, with its leading space if it starts one."
    pieces = ", ".join(repr(t) for t in tokenizer.convert_ids_to_tokens(ids))
    other = given.lstrip() if given.startswith(" ") else " " + given
    single = _alone(other, tokenizer)
    hint = (
        f"{other!r} is one token"
        if len(single) == 1 and single[0] != tokenizer.unk_token_id
        else "Pick a word that is one token"
    )
    first = tokenizer.convert_ids_to_tokens(ids)[0]
    if len(ids) == 1:
        return f"{role}={given!r} is not in the vocabulary: the tokenizer reads it as {pieces}. {hint}, or give a token id."
    return (
        f"{role}={given!r} is {len(ids)} tokens here: {pieces}. A logit belongs to one token. "
        f"{hint}, or explain the first piece: {role}={ids[0]} ({first!r})."
    )
