"""A tokenised input with its position, target and contrast -> an item to explain."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..models.signature import ModelSignature
from .batching import Item
from .targets import resolve_position, resolve_token
from .tokenization import Encoded


def item_of(
    signature: ModelSignature,
    tokenizer: Any,
    encoded: Encoded,
    *,
    target: Any = None,
    contrast: Any = None,
    position: Any = None,
) -> Item:
    """One tokenised input as an item to explain, with everything checked; see ``Explainer``.

    Raises:
        InputError: The text is too long or of another vocabulary, or target, contrast or position cannot be used.
    """
    ids, length = encoded.token_ids, len(encoded.token_ids)
    if signature.context is not None and length > signature.context:
        raise InputError(
            f"the text has {length} tokens, {length - signature.context} more than the {signature.context} that "
            f"{signature.name} can read. Shorten it."
        )
    if max(ids) >= signature.vocabulary:
        raise InputError(
            f"token id {max(ids)} is outside the model's vocabulary of {signature.vocabulary}. Is this the model's own tokenizer?"
        )
    where = resolve_position(encoded, position, signature.task, getattr(tokenizer, "mask_token_id", None))
    chosen, other = (
        resolve_token(given, role, encoded, where, tokenizer, signature.vocabulary, signature.task)
        for role, given in (("target", target), ("contrast", contrast))
    )
    if chosen is not None and chosen == other:
        raise InputError(
            f"target {target!r} and contrast {contrast!r} are the same token ({chosen}): their difference is 0. "
            "Give two that differ."
        )
    return Item(ids, where, chosen, other, {k: v for k, v in encoded.extras.items() if k in signature.extras})
