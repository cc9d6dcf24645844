"""Tokenised inputs with their positions, targets and contrasts -> items to explain, grouped."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..models.signature import ModelSignature
from .batching import Alike, Item, any_length, buckets
from .given import as_python
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
    notes: tuple[str, ...] = ()
    if pictures := sum(i in signature.placeholders for i in ids):
        notes = (
            f"{pictures} of the tokens stand for an image or sound that {signature.name} is not given: lrpx explains text alone.",
        )
    if signature.made_for is not None and length > signature.made_for:
        notes += (
            f"the text has {length} tokens, and {signature.name} was made for {signature.made_for}, by its configuration: what "
            "it predicts there may make no sense.",
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
    extras = {k: v for k, v in encoded.extras.items() if k in signature.extras}
    return Item(ids, where, chosen, other, extras, notes)


def groups_of(items: list[Item], max_tokens: int, waste: float, alike: Alike = any_length) -> list[list[int]]:
    """Indices of items to explain together: of similar length, and with the same extra inputs."""
    by_extras: dict[frozenset[str], list[int]] = {}
    for i, item in enumerate(items):
        by_extras.setdefault(frozenset(item.extras), []).append(i)
    return [
        [indices[k] for k in group]
        for indices in by_extras.values()
        for group in buckets(
            [len(items[i].token_ids) for i in indices], max_tokens=max_tokens, waste=waste, alike=alike
        )
    ]


def one_each(given: Any, name: str, count: int) -> list[Any]:
    """One value of ``name`` for each of ``count`` texts.

    Raises:
        InputError: A list of another length was given.
    """
    given = as_python(given)
    if isinstance(given, list):
        if len(given) != count:
            raise InputError(f"{len(given)} values of {name} for {count} texts. Give one for all, or one each.")
        return given
    return [given] * count
