"""A text, token ids, a ``BatchEncoding`` or chat messages -> token ids, raw pieces and readable units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..errors import InputError
from ..results.images import ImagePatches
from ..results.tokens import Segment, Unit
from .given import EXPECTED, are_ids, as_python, check_read, is_id, shortened, split
from .units import Decode, decoder, in_own_words, place_of, units_of


@dataclass(frozen=True)
class Encoded:
    """A tokenised input.

    Attributes:
        text: The text, or ``None`` if ids were given.
        token_ids: T ids, special tokens included.
        tokens: Their raw pieces.
        units: Readable text over all tokens.
        spans: Per token, its characters in ``text``; ``None`` where there is no text, or for a special token.
        extras: Per-token model inputs besides the ids, e.g. ``token_type_ids``.
        adds_special_tokens: Whether the tokenizer put special tokens around ``text`` (not for chat messages).
        closing: How many special tokens the tokenizer put after ``text``.
        unmasked: Whether ids were given and no attention mask with them.
        segments: The parts of an input that has several.
        source: How many of the tokens, the first ones, an encoder reads; the others are the decoder's. 0: there is no encoder.
        begun: The text that the decoder has read, without its start tokens; ``None`` if its tokens were given as ids.
        image_inputs: Model inputs that are no row of tokens, such as ``pixel_values``: tensors.
        images: The images, where they have a place in the text.
        notes: What has to be known of how the images were read.
    """

    text: str | None
    token_ids: tuple[int, ...]
    tokens: list[str]
    units: list[Unit]
    spans: list[tuple[int, int] | None]
    extras: dict[str, tuple[int, ...]] = field(default_factory=dict)
    adds_special_tokens: bool = True
    closing: int = 0
    unmasked: bool = False
    segments: tuple[Segment, ...] = ()
    source: int = 0
    begun: str | None = None
    image_inputs: dict[str, Any] = field(default_factory=dict)
    images: tuple[ImagePatches, ...] = ()
    notes: tuple[str, ...] = ()

    def followed_by(self, ids: Sequence[int], tokenizer: Any) -> Encoded:
        """The same tokens and more of them, which the decoder reads if there is one; no unit holds tokens of both."""
        if not ids:
            return self
        after, shift = encode(tokenizer, list(ids))[0], len(self.token_ids)
        units = [Unit(unit.start + shift, unit.end + shift, unit.text) for unit in after.units]
        parts = (Segment("source", 0, self.source), Segment("target", self.source, shift + len(ids)))
        return replace(
            self,
            token_ids=(*self.token_ids, *ids),
            tokens=[*self.tokens, *after.tokens],
            units=[*self.units, *units],
            spans=[*self.spans, *after.spans],
            closing=0,
            segments=parts if self.source else self.segments,
        )

    def without_closing(self) -> Encoded:
        """Drop special tokens after the text: a causal model continues from the text's own last token."""
        if not self.closing:
            return self
        end = len(self.token_ids) - self.closing
        return replace(
            self,
            token_ids=self.token_ids[:end],
            tokens=self.tokens[:end],
            units=[unit for unit in self.units if unit.end <= end],
            spans=self.spans[:end],
            extras={name: values[:end] for name, values in self.extras.items()},
            closing=0,
        )


def encode(tokenizer: Any, given: Any) -> list[Encoded]:
    """Tokenise one input or a list of them.

    Args:
        tokenizer: A Hugging Face tokenizer; ``None`` is enough when token ids are given.
        given: A string, token ids (list, 1-D tensor or array), a ``BatchEncoding`` (its padding is dropped), chat messages,
            or several: a list of these, a 2-D tensor or array, a ``BatchEncoding`` of a batch.

    Raises:
        InputError: An empty text, no tokens, or something that is none of these; in a list, the error says which item.
    """
    singles, several = split(given)
    encode_one = encoder(tokenizer)
    found = []
    for i, single in enumerate(singles):
        try:
            found.append(encode_one(single))
        except InputError as error:
            if not several:
                raise
            raise InputError(f"text[{i}]: {error}") from None
    return found


def encoder(tokenizer: Any, *, whole_chats: bool = False) -> Callable[[Any], Encoded]:
    """A function that tokenises one input at a time, as ``encode``. It remembers words, which texts repeat.

    ``whole_chats``: a chat is complete, as a classifier reads it; otherwise a reply is still to come or to be continued.
    """
    return partial(_encode_one, tokenizer, decode=decoder(tokenizer), whole_chats=whole_chats)


def is_tokenizer(tokenizer: Any) -> bool:
    """Whether it can be used as one; so can ``None``, where ids are given."""
    return tokenizer is None or (callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens"))


def check_unicode(what: str, text: str) -> None:
    """Refuse lone surrogates, which come from a command line or a file that is not UTF-8.

    Raises:
        InputError: There is one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} is not valid Unicode: {text[error.start]!r} at character {error.start}. Was it decoded from UTF-8?"
        ) from None


def _encode_one(tokenizer: Any, given: Any, decode: Decode, *, whole_chats: bool = False) -> Encoded:
    if not is_tokenizer(tokenizer):
        raise InputError(
            f"the tokenizer is {shortened(tokenizer)} ({type(tokenizer).__name__}).",
            python="Give one of transformers: AutoTokenizer.from_pretrained(name).",
        )
    if isinstance(given, str):
        return _encode_text(tokenizer, given, decode)
    if isinstance(given, Mapping) and "input_ids" in given:
        return _encode_mapping(tokenizer, given, decode)
    if isinstance(given, list) and given and isinstance(given[0], Mapping):
        return _encode_chat(tokenizer, given, decode, whole=whole_chats)
    if isinstance(given, list) and given and is_id(given[0]):
        return _encode_ids(tokenizer, given, decode)
    raise InputError(f"the text is {shortened(given)}. {EXPECTED}")


def _encode_text(tokenizer: Any, text: str, decode: Decode, *, specials: bool = True) -> Encoded:
    if not text.strip():
        raise InputError(f"the text {text!r} is empty. Give at least one word.")
    if tokenizer is None:
        raise InputError(
            "a text needs a tokenizer.", python="Type: lrpx.explain(model, tokenizer, text), or give token ids."
        )
    check_unicode("the text", text)
    fast = getattr(tokenizer, "is_fast", False)
    output = tokenizer(
        text,
        add_special_tokens=specials,
        return_offsets_mapping=fast,
        return_special_tokens_mask=True,
        truncation=False,
        verbose=False,
    )
    ids = tuple(output["input_ids"])
    if not ids:
        raise InputError(f"the tokenizer makes no token of {text!r}.")
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    spans: list[tuple[int, int] | None] = [None] * len(ids)
    if fast:
        spans = [
            None if start == end and i in special else place_of(token, start, end, text)
            for i, token, (start, end) in zip(ids, tokens, output["offset_mapping"], strict=True)
        ]
    extras = {"token_type_ids": tuple(output["token_type_ids"])} if "token_type_ids" in output else {}
    # "x" for tokens that the tokenizer added, "." for those of the text.
    added = "".join("x" if s else "." for s in output["special_tokens_mask"])
    closing = len(added) - len(added.rstrip("x"))
    if closing == len(ids):
        raise InputError(f"the tokenizer makes no token of {text!r}.")
    units = in_own_words(tokenizer, text, units_of(tokenizer, ids, tokens, decode), ids, spans)
    return Encoded(text, ids, tokens, units, spans, extras, specials, closing)


def _encode_chat(tokenizer: Any, messages: Sequence[Any], decode: Decode, *, whole: bool = False) -> Encoded:
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message or not {"content", "tool_calls"} & set(message):
            raise InputError(f'{shortened(message)} is no chat message. Give {{"role": "user", "content": "..."}}.')
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            "chat messages need a tokenizer with a chat template; this one has none.",
            python="Give a string instead.",
            app="Choose “Text” in place of “Chat”.",
            command="Give a text, without --chat.",
        )
    from jinja2 import TemplateError  # installed with torch

    # An assistant's message at the end is a reply for the model to continue.
    reply = messages[-1]["role"] == "assistant"
    how = {"add_generation_prompt": not reply and not whole, "continue_final_message": reply and not whole}
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, **how)
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(f"the tokenizer's chat template refuses these messages: {error}.") from error
    return _encode_text(tokenizer, text, decode, specials=False)  # the template has added them


def _encode_ids(
    tokenizer: Any,
    ids: Sequence[Any],
    decode: Decode,
    extras: dict[str, tuple[int, ...]] | None = None,
    *,
    unmasked: bool = True,
) -> Encoded:
    if not are_ids(ids):
        wrong = [i for i in ids if not is_id(i)]
        if wrong:
            raise InputError(f"{shortened(wrong[0])} is not a token id. Token ids are integers.")
    ids = tuple(ids)
    if min(ids) < 0:
        raise InputError(f"token id {min(ids)} is negative. Ids count from 0.")
    if tokenizer is None:
        tokens = list(map(str, ids))
        each = zip(range(len(ids)), range(1, len(ids) + 1), tokens, strict=True)
        units = list(map(partial(tuple.__new__, Unit), each))  # as Unit._make, in C: a text may have 100,000 tokens
    else:
        tokens = [
            f"<{i}>" if t is None else t for i, t in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)
        ]
        units = units_of(tokenizer, ids, tokens, decode)
    return Encoded(None, ids, tokens, units, [None] * len(ids), extras or {}, False, unmasked=unmasked)


def _encode_mapping(tokenizer: Any, row: Mapping[str, Any], decode: Decode) -> Encoded:
    """One row of a ``BatchEncoding``, without its padding."""
    check_read(row)
    ids = as_python(row["input_ids"])
    if not isinstance(ids, list) or not ids or isinstance(ids[0], list):
        raise InputError(f"input_ids is {shortened(ids)}. Give a list of token ids.")
    given = as_python(row.get("attention_mask"))
    mask = [1] * len(ids) if given is None else given
    _check_mask(mask)
    real = [i for i, m in enumerate(mask) if m]
    if len(mask) != len(ids) or not real:
        raise InputError(
            f"attention_mask has {len(mask)} entries for {len(ids)} ids and shows {len(real)} of them. "
            "Give one entry per id, and show at least one: 1 for a token, 0 for padding."
        )
    span = slice(real[0], real[-1] + 1)
    if span.stop - span.start != len(real):
        raise InputError(
            "attention_mask hides tokens in the middle of the text. It may only hide padding on either side."
        )
    extras = {"token_type_ids": tuple(row["token_type_ids"][span])} if "token_type_ids" in row else {}
    return _encode_ids(tokenizer, ids[span], decode, extras, unmasked=given is None)


def _check_mask(mask: Any) -> None:
    """Refuse a mask that is not made of 0 and 1."""
    expected = "Give 1 for a token and 0 for padding, as a tokenizer does."
    if not isinstance(mask, list) or any(isinstance(m, list) for m in mask):
        raise InputError(f"attention_mask is {shortened(mask)}: expected one number per id. {expected}")
    others = [m for m in mask if m not in (0, 1)]
    if not others:
        return
    additive = set(mask) - set(others) == {0} and all(isinstance(m, int | float) and m < 0 for m in others)
    looks = ", and looks like an additive mask, where 0 shows a token" if additive else ""
    raise InputError(f"attention_mask holds {shortened(others[0])}{looks}. {expected}")
