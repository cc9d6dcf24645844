"""Tokenised inputs with their positions, targets and contrasts -> items to explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError, UnsupportedModelError, counted
from ..models.signature import ModelSignature
from .batching import Function, Item
from .given import as_python, name_of
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
    several: bool = True,
) -> Item:
    """One tokenised input as an item to explain, with everything checked; see ``Explainer`` and ``resolve_token``.

    Raises:
        InputError: The text is too long or of another vocabulary, or target, contrast or position cannot be used.
        UnsupportedModelError: The model predicts nothing.
    """
    notes = check_readable(signature, encoded)
    if signature.task == "feature-extraction":
        raise UnsupportedModelError(
            f"{signature.name} has no head that predicts anything: it gives embeddings.",
            python="Why two texts are similar: explainer.similarity(text, other). To explain predictions, load the model with "
            "its head.",
            command='Why two texts are similar: lrpx similarity "A dog runs." "The puppy is running.". To explain predictions, '
            "give a model with its head.",
            app="Start the app with a model that predicts something.",
        )
    mask = (getattr(tokenizer, "mask_token_id", None), getattr(tokenizer, "mask_token", None))
    where = resolve_position(encoded, position, signature.task, *mask)
    extras, ids = read_extras(signature, encoded), encoded.token_ids
    if (function := function_of(target, contrast)) is not None:
        images = encoded.image_inputs
        return Item(ids, where, extras=extras, notes=notes, function=function, source=encoded.source, images=images)
    kind, size = signature.task, signature.vocabulary
    chosen, other = (
        resolve_token(given, role, encoded, where, tokenizer, size, kind, several=several, other=beside)
        for role, given, beside in (("target", target, contrast), ("contrast", contrast, target))
    )
    if chosen is not None and chosen == other:
        raise InputError(
            f"target {target!r} and contrast {contrast!r} are the same token ({chosen}): their difference is 0. "
            "Give two that differ."
        )
    return Item(ids, where, chosen, other, extras, notes, source=encoded.source, images=encoded.image_inputs)


def function_of(target: Any, contrast: Any) -> Function | None:
    """The function of the scores that is given as target, if it is one.

    Raises:
        InputError: It comes with a contrast, or the contrast is one.
    """
    if callable(contrast):
        raise InputError(
            f"the contrast is the function {name_of(contrast)}. Subtract it in a function as target: "
            "target=lambda logits: f(logits) - g(logits)."
        )
    if not callable(target):
        return None
    if contrast is not None:
        raise InputError(
            f"the target is the function {name_of(target)}, which takes no contrast={contrast!r}: subtract its logit there."
        )
    function: Function = target
    return function


def check_asked(asked: Mapping[str, Any], explains: Any, objective: str) -> None:
    """Refuse what no text can be asked.

    Raises:
        InputError: Several targets for one of several texts, a log-probability of a function, or a name for no function.
    """
    for name, value in asked.items():
        if isinstance(value, list) and (name == "position" or not all(isinstance(i, int) for i in value)):
            raise InputError(
                f"{name}={value!r} is a list inside a list. Each of several texts has one {name}.",
                python=f"Of one text several can be explained: explainer(text, {name}=[...]).",
            )
    function = asked["target"]
    if callable(function) and objective != "logit":
        raise InputError(
            f"the target is the function {name_of(function)}, which is explained as it is. Leave out "
            f"objective={objective!r}, and use logits.log_softmax(0) in the function."
        )
    check_name(function, explains)


def check_name(target: Any, name: Any) -> None:
    """Refuse ``explains=`` for what is no function.

    Raises:
        InputError: The target is a token or a label, or the name is no string.
    """
    if name is not None and not (callable(target) and isinstance(name, str)):
        raise InputError(
            f"explains={name!r}: a name for the function that is given as target. Tokens and labels have their own."
        )


def _check_source(signature: ModelSignature, encoded: Encoded) -> None:
    """Refuse a source that the encoder cannot read.

    Raises:
        InputError: It is too long, or of another vocabulary.
    """
    assert signature.source is not None
    context, vocabulary, length = signature.source.context, signature.source.vocabulary, encoded.source
    if context is not None and length > context:
        raise InputError(
            f"the source has {length} tokens, {length - context} more than the {context} that {signature.name} can read. "
            "Shorten it."
        )
    largest = max(encoded.token_ids[:length])
    if vocabulary is not None and largest >= vocabulary:
        raise InputError(
            f"token id {largest} is outside the vocabulary of {vocabulary} of the model's encoder. Is this the model's own "
            "tokenizer?"
        )


def check_readable(signature: ModelSignature, encoded: Encoded) -> tuple[str, ...]:
    """What the user has to know of a text that the model can read.

    Raises:
        InputError: It is too long, or of another vocabulary.
    """
    source, ids, length = encoded.source, encoded.token_ids, len(encoded.token_ids) - encoded.source
    if source:
        _check_source(signature, encoded)
    if signature.context is not None and length > signature.context:
        raise InputError(
            f"the {'target' if source else 'text'} has {length} tokens, {length - signature.context} more than the "
            f"{signature.context} that {signature.name} can read. Shorten it."
        )
    if signature.needs and signature.needs not in encoded.image_inputs:
        raise InputError(
            f"{signature.name} reads a text with an image, and no image is given.",
            python="Give it: images=[picture].",
            app="Choose one in “Images”.",
        )
    notes: tuple[str, ...] = ()
    pictures = sum(i in signature.placeholders for i in ids)
    if pictures and not encoded.image_inputs:
        notes = (
            f"{pictures} of the tokens stand for an image or sound that {signature.name} is not given: text alone is explained.",
        )
    if signature.made_for is not None and length > signature.made_for:
        notes += (
            f"the text has {length} tokens, and {signature.name} was made for {signature.made_for}, by its configuration: what "
            "it predicts there may make no sense.",
        )
    if max(ids[source:]) >= signature.vocabulary:
        raise InputError(
            f"token id {max(ids[source:])} is outside the model's vocabulary of {signature.vocabulary}. Is this the model's own "
            "tokenizer?"
        )
    return notes


def read_extras(signature: ModelSignature, encoded: Encoded) -> dict[str, tuple[int, ...]]:
    """The per-token inputs besides the ids that the model takes."""
    return {k: v for k, v in encoded.extras.items() if k in signature.extras}


def lists_of(asked: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Which of the values asked for of one text are lists: several predictions are explained. All have one length.

    Raises:
        InputError: A list is empty, or lists have different lengths.
    """
    read = {name: as_python(value) for name, value in asked.items()}
    lists = {name: value for name, value in read.items() if isinstance(value, list)}
    for name, values in lists.items():
        if not values:
            raise InputError(f"{name}=[] is empty. Give at least one {name}, or leave it out.")
    if len({len(values) for values in lists.values()}) > 1:
        counts = " and ".join(f"{counted(len(values), 'value')} of {name}" for name, values in lists.items())
        raise InputError(f"{counts} for one text. Give equally many of each, or one for all.")
    return lists


def one_each(given: Any, name: str, count: int) -> list[Any]:
    """One value of ``name`` for each of ``count`` texts.

    Raises:
        InputError: A list of another length was given.
    """
    given = as_python(given)
    if isinstance(given, list):
        if len(given) != count:
            hint = (
                ""
                if count > 1 or name == "explains"
                else f" Of one text several can be explained: explainer(text, {name}=[...])."
            )
            raise InputError(
                f"{counted(len(given), 'value')} of {name} for {counted(count, 'text')}. Give one for all, or one each.{hint}"
            )
        return given
    return [given] * count
