"""What looks like a mistake in a text that can be explained all the same.

Padding without a mask; doubled special tokens; a mask token in a text that a causal model is to go on with; a tokenizer with
much fewer tokens than the model knows.

The text is explained as it was given; what looks wrong is said as a note, and as a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.signature import ModelSignature
from .tokenization import Encoded

FEWEST = 0.8  # of the model's tokens, in a tokenizer that may be its own
MASKS = ("[MASK]", "<mask>")  # of BERT's and RoBERTa's relatives


def notes_of(
    texts: Sequence[Encoded], tokenizer: Any, pad: int | None, signature: ModelSignature, *, others: bool = False
) -> list[tuple[str, ...]]:
    """For each text of one call, what the user has to know of it.

    Args:
        texts: As the model will read them.
        tokenizer: The model's, or ``None``.
        pad: The id of the padding token, if there is one.
        signature: Of the model.
        others: Whether the call has more texts, which neither begin nor end in the padding token.
    """
    padding = _padding(texts, tokenizer, pad, others=others)
    masked = [_masked(text, tokenizer) if signature.task == "causal" else () for text in texts]
    one = signature.source is None and any(
        text.text is not None for text in texts
    )  # a decoder may have a tokenizer of its own
    foreign = _foreign(tokenizer, signature) if one else ()
    return [
        (*notes, *_doubled(text, tokenizer, pad), *more, *foreign)
        for notes, text, more in zip(padding, texts, masked, strict=True)
    ]


def _padding(texts: Sequence[Encoded], tokenizer: Any, pad: int | None, *, others: bool) -> list[tuple[str, ...]]:
    """Ids that were given without a mask, and begin or end in the padding token.

    Where that is a token for the beginning or the end of texts too, one is no padding, unless other texts have none.
    """
    ends = [(_run(t.token_ids, pad), _run(t.token_ids[::-1], pad)) if t.unmasked else (0, 0) for t in texts]
    limits = [0, 0]
    if not others and pad in _special(tokenizer, "bos", "eos", "cls", "sep"):
        limits = [int(all(counts)) for counts in zip(*ends, strict=True)]
    found: list[tuple[str, ...]] = []
    for counts in ends:
        where = [
            f"{side} with {n} padding token{'s' * (n > 1)}"
            for side, n, limit in zip(("begin", "end"), counts, limits, strict=True)
            if n > limit
        ]
        found.append(())
        if where:  # so there is a padding token, which has a name
            found[-1] = (
                f"the ids {' and '.join(where)} ({_name(tokenizer, pad)}), and no mask says so: they are explained like "
                'text. Give {"input_ids": ids, "attention_mask": mask}, or leave the padding out.',
            )
    return found


def _doubled(text: Encoded, tokenizer: Any, pad: int | None) -> tuple[str, ...]:
    """A special token twice at either end: one of the text's own, and one that the tokenizer added."""
    ids, notes = text.token_ids, []
    for side, first, second, kinds in (("begins", 0, 1, ("bos", "cls")), ("ends", -1, -2, ("eos", "sep"))):
        twice = len(ids) > 2 and ids[first] == ids[second] and ids[first] in _special(tokenizer, *kinds)
        if not twice or (text.unmasked and ids[first] == pad):
            continue
        if text.text is None:
            advice = "Tokenise with add_special_tokens=False"
        else:
            advice = "The text has one, and the tokenizer adds one. Leave it out of the text"
        notes.append(
            f"the text {side} with {_name(tokenizer, ids[first])} twice, which the model has not seen in training. {advice}"
            f"{', or give a chat as messages, not as a string' if side == 'begins' else ''}."
        )
    return tuple(notes)


def _masked(text: Encoded, tokenizer: Any) -> tuple[str, ...]:
    """A mask, as text or as the tokenizer's token, where nothing is filled in."""
    own = getattr(tokenizer, "mask_token", None)
    found = [mask for mask in dict.fromkeys((*MASKS, own)) if mask and text.text is not None and mask in text.text]
    if not found and own is not None and tokenizer.mask_token_id in text.token_ids:
        found = [own]
    return tuple(
        f"the text has {mask!r}, and a causal model does not fill it in: it predicts what comes after the text. End the text "
        "before it, or take a masked language model, such as google-bert/bert-base-uncased."
        for mask in found[:1]
    )


def _foreign(tokenizer: Any, signature: ModelSignature) -> tuple[str, ...]:
    """A tokenizer with much fewer tokens than the model knows. Rounding up a vocabulary adds a few percent at most."""
    size = len(tokenizer)
    if size >= FEWEST * signature.vocabulary:
        return ()
    return (
        f"the tokenizer has {size:,} tokens, and {signature.name} knows {signature.vocabulary:,}. Is it the model's own? With "
        "another one, the model reads another text.",
    )


def _run(ids: Sequence[int], token: int | None) -> int:
    """How many times ``token`` stands at the beginning; 0 if there is nothing else."""
    count = next((n for n, i in enumerate(ids) if i != token), len(ids))
    return 0 if count == len(ids) else count


def _special(tokenizer: Any, *kinds: str) -> set[int]:
    return {i for kind in kinds if (i := getattr(tokenizer, f"{kind}_token_id", None)) is not None}


def _name(tokenizer: Any, i: int | None) -> str:
    return f"id {i}" if tokenizer is None else f"{tokenizer.convert_ids_to_tokens(i)!r}, id {i}"
