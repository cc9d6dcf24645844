"""Encoder-decoder models: what the encoder reads and what the decoder has read, as one row of tokens.

1. The source is tokenised as any text, its end token included.
2. The decoder begins as in ``model.generate``: with its start token, and the language that generation forces, if it does.
   ``target_prefix`` goes on from there.
3. Targets are tokenised as the tokenizer's target side (``text_target=``), which Marian and mBART have apart, as what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from ..errors import InputError
from ..models.signature import ModelSignature
from ..text.given import are_ids, as_python, shortened
from ..text.items import one_each
from ..text.targets import resolve_continuation
from ..text.tokenization import Encoded, check_unicode


def read_pair(
    model: PreTrainedModel, tokenizer: Any, source: Encoded, prefix: Any = None, config: Any = None
) -> Encoded:
    """A tokenised source, followed by what the decoder begins with.

    Args:
        model: An encoder-decoder model.
        tokenizer: Its tokenizer, or ``None``.
        source: What the encoder reads.
        prefix: The beginning of the target: a string, which follows the start tokens, or all ids, the start token first, as
            ``decoder_input_ids`` of transformers. ``None``: the start tokens alone.
        config: As for ``start_tokens``.

    Raises:
        InputError: The prefix cannot be used, or the model does not say how its decoder begins.
    """
    size = ModelSignature.of(model).vocabulary
    prefix, begun = as_python(prefix), None
    source = replace(source, source=len(source.token_ids), closing=0)
    if isinstance(prefix, list):
        if len(prefix) == 1 and isinstance(prefix[0], list):  # as a batch of one
            prefix = prefix[0]
        start = resolve_continuation(prefix, "target_prefix", source, None, size)
    else:
        if prefix is not None and not isinstance(prefix, str):
            raise InputError(
                f"target_prefix={shortened(prefix)} is {type(prefix).__name__}. Give a string, or token ids."
            )
        start, begun = start_tokens(model, tokenizer, config), prefix or ""
        if begun:
            start += _ids_of(begun, "target_prefix", Encoded("", (), [], [], []), tokenizer, size)
    return replace(source.followed_by(start, tokenizer), begun=begun)


def begins_otherwise(model: PreTrainedModel, tokenizer: Any, pair: Encoded, config: Any = None) -> tuple[str, ...]:
    """A note on a prefix that was given as ids, and does not begin with the token that the decoder starts with.

    Args:
        model: As for ``read_pair``.
        tokenizer: Likewise.
        pair: What that returned.
        config: As for ``start_tokens``.
    """
    if not pair.source or pair.begun is not None:
        return ()
    try:
        [start, *_] = start_tokens(model, tokenizer, config)
    except InputError:
        return ()
    if (first := pair.token_ids[pair.source]) == start:
        return ()
    return (
        f"target_prefix= begins with id {first}, and the decoder begins with its start token, {start}. Ids are all that it has "
        f"read: put {start} before them, or give the prefix as a string.",
    )


def start_tokens(model: PreTrainedModel, tokenizer: Any = None, config: Any = None) -> tuple[int, ...]:
    """With which tokens the decoder begins when the model generates: its start token, then what generation forces.

    Whisper's tokenizer knows language and task, which follow its start token. ``config`` is a ``GenerationConfig``, or a
    dictionary with its arguments, which goes before the model's own.

    Raises:
        InputError: The model's configuration does not say it.
    """
    given = config if isinstance(config, Mapping) else vars(config or object)
    known = [given, vars(model.generation_config), vars(model.config)]
    names = ("decoder_start_token_id", "bos_token_id")
    start = next((i for each in known for name in names if (i := each.get(name)) is not None), None)
    start = start[0] if isinstance(start, list) and len(start) == 1 else start
    if not isinstance(start, int):
        raise InputError(
            f"{type(model).__name__} does not say with which token its decoder begins: decoder_start_token_id of its "
            f"generation_config is {start!r}.",
            python="Set it, or give target_prefix=[...], all ids that the decoder has read.",
        )
    prompt = getattr(tokenizer, "prefix_tokens", None) if model.config.model_type == "whisper" else None
    if prompt and prompt[0] == start:
        return tuple(prompt)
    forced = next((i for each in known[:2] if (i := each.get("forced_bos_token_id")) is not None), None)
    return (start,) if forced is None else (start, forced)


def target_ids(given: Any, role: str, pair: Encoded, tokenizer: Any, vocabulary: int) -> Any:
    """A target or contrast as a token id or, where it is several tokens, a list of them; ``None`` stays ``None``.

    Raises:
        InputError: It is no token, or changes the tokens before it.
    """
    given = as_python(given)
    if not isinstance(given, str):
        return given[0] if isinstance(given, list) and len(given) == 1 and are_ids(given) else given
    ids = _ids_of(given, role, replace(pair, text=pair.begun), tokenizer, vocabulary)
    return ids[0] if len(ids) == 1 else list(ids)


def continuation_ids(given: Any, pair: Encoded, tokenizer: Any, vocabulary: int) -> tuple[int, ...]:
    """What the decoder goes on with, a string or ids, as ids.

    Raises:
        InputError: It is empty, not in the vocabulary, or changes the tokens before it.
    """
    if isinstance(given, str):
        return _ids_of(given, "continuation", replace(pair, text=pair.begun), tokenizer, vocabulary)
    return resolve_continuation(given, "continuation", pair, tokenizer, vocabulary)


def _ids_of(given: str, role: str, context: Encoded, tokenizer: Any, vocabulary: int) -> tuple[int, ...]:
    """A piece of a target after what ``context.text`` says of it, as ids.

    Raises:
        InputError: It is empty, not in the vocabulary, or changes the tokens before it.
    """
    if tokenizer is None:
        raise InputError(f"{role}={given!r} is a string, which needs a tokenizer. Give token ids.")
    check_unicode(f"{role}={given!r}", given)
    side = TargetSide(tokenizer)
    if not side(given)["input_ids"]:
        raise InputError(f"{role}={given!r} is no token: the tokenizer makes none of it. Give at least one word.")
    ids = resolve_continuation(given, role, context, side, vocabulary)
    unknown = tokenizer.unk_token_id
    if unknown in ids and str(tokenizer.unk_token) not in given:
        pieces = ", ".join(repr(piece) for piece in tokenizer.convert_ids_to_tokens(list(ids)))
        raise InputError(
            f"{role}={given!r} is not in the vocabulary: the tokenizer reads it as {pieces}.",
            python="Give another word, or token ids.",
            app="Give another word.",
        )
    return ids


class TargetSide:
    """A tokenizer as it reads targets, without special tokens: Marian and its like have a vocabulary or rules for each side."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, **options: Any) -> Mapping[str, Any]:
        """``input_ids`` of a piece of a target."""
        options = {"verbose": False, **options, "add_special_tokens": False}
        if not text:
            return {"input_ids": []}
        found: Mapping[str, Any] = self._tokenizer(text_target=text, **options)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def target_side(encoded: Encoded, tokenizer: Any) -> tuple[Encoded, Any]:
    """In what context, and by which tokenizer, a target is tokenised after ``encoded``."""
    if not encoded.source:
        return encoded, tokenizer
    return replace(encoded, text=encoded.begun), None if tokenizer is None else TargetSide(tokenizer)


def one_prefix_each(prefix: Any, count: int) -> list[Any]:
    """The beginning of the target for each of ``count`` texts: one for all, a string or ids, or a list of one for each.

    Raises:
        InputError: A list of another length was given.
    """
    prefix = as_python(prefix)
    return (
        [prefix] * count if isinstance(prefix, list) and are_ids(prefix) else one_each(prefix, "target_prefix", count)
    )


def asked_of_pair(
    model: PreTrainedModel, tokenizer: Any, source: Encoded, prefix: Any, asked: Mapping[str, Any]
) -> tuple[Encoded, dict[str, Any]]:
    """A source with all that the decoder has read, also of a target of several tokens; and what is explained, as ids.

    Args:
        model: An encoder-decoder model.
        tokenizer: Its tokenizer, or ``None``.
        source: What the encoder reads.
        prefix: As for ``read_pair``.
        asked: ``target``, ``contrast`` and ``position``, as a user gives them.

    Raises:
        InputError: Something cannot be used.
    """
    if as_python(asked["position"]) is not None:
        raise InputError(
            f"position={asked['position']!r}: an encoder-decoder model is explained after what its decoder has read.",
            python='Say what that is: target_prefix="Das".',
            app="Leave “Position” empty.",
        )
    pair, size = read_pair(model, tokenizer, source, prefix), ModelSignature.of(model).vocabulary
    ids = {role: target_ids(asked[role], role, pair, tokenizer, size) for role in ("target", "contrast")}
    position, target = len(pair.token_ids) - 1, ids["target"]
    if isinstance(target, list):
        target = resolve_continuation(target, "target", pair, tokenizer, size)
        return pair.followed_by(target[:-1], tokenizer), {**ids, "position": position}
    return pair, {**ids, "position": position}
