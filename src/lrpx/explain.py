"""``lrpx.explain``: from a model, a text and a target to explanations. Everything it needs lies in the files below it.

1. Tokenise, find the position, resolve target and contrast; refuse what cannot be explained before computing anything.
2. Group by length, pad, and let the method explain each group in one pass.
3. Put names and provenance to the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from . import targets
from .batching import Attribution, Item, buckets, pad
from .encoding import Encoded, encode
from .errors import InputError
from .explanation import Explanation, Token
from .loading import load
from .methods import Method, get_method

BATCH_TOKENS = 4096


def explain(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    target: int | str | Sequence[int | str | None] | None = None,
    contrast: int | str | Sequence[int | str | None] | None = None,
    position: int | Sequence[int | None] | None = None,
    method: str = "attnlrp",
    batch_tokens: int = BATCH_TOKENS,
    progress: bool | None = None,
    **options: Any,
) -> Any:
    """Explain what ``model`` predicts for ``text``.

    Args:
        model: A causal or masked language model in eval mode, or a name or path for ``lrpx.load``.
        tokenizer: Its tokenizer; ``None`` if ``model`` is a name, or if ids are given for text, target and contrast.
        text: A string, token ids, a ``BatchEncoding``, or chat messages; or a list of them, to explain in batches.
        target: The token to explain: an id, or a string that is exactly one token where it stands (``" are"``; a leading
            space matters). Default: the model's top prediction. For a list of texts, one for all or a list.
        contrast: Explain ``logit[target] - logit[contrast]`` instead of ``logit[target]``.
        position: Whose logits, as an index over the tokens. Default: the last token (causal), the mask token (masked).
        method: One of ``lrpx.METHODS``.
        batch_tokens: Tokens per batch, padding included.
        progress: Show a progress bar. Default: when a list needs more than one batch, on a terminal.
        **options: The method's own, e.g. ``at=["input", "model.layers.*"]`` or ``norm="l2"``.

    Returns:
        An ``Explanation``, or a list of them in the order of ``text`` if a list of texts was given.

    Raises:
        InputError: A text, target, position, method or option that cannot be used.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.

    Example:
        >>> e = lrpx.explain(model, tokenizer, "The keys to the cabinet", target=" are", contrast=" is")  # doctest: +SKIP
        >>> e.show()                                                                                        # doctest: +SKIP
    """
    chosen = get_method(method)
    settings = _settings(chosen, options)
    if not isinstance(model, PreTrainedModel):
        model, tokenizer = load(model)
    if text is None:
        raise InputError("no text given: lrpx.explain(model, tokenizer, text).")
    encoded = encode(tokenizer, text)
    many = _is_list(text)
    items = [
        item_of(model, tokenizer, e, target=t, contrast=c, position=p)
        for e, t, c, p in zip(
            encoded,
            _each(target, "target", len(encoded)),
            _each(contrast, "contrast", len(encoded)),
            _each(position, "position", len(encoded)),
            strict=True,
        )
    ]
    function = chosen.load()
    results: list[Attribution | None] = [None] * len(items)
    groups = buckets([len(item.token_ids) for item in items], max_tokens=batch_tokens)
    hidden = (len(groups) == 1 or None) if progress is None else not progress
    with tqdm(total=len(items), desc=method, unit="text", disable=hidden) as bar:
        for group in groups:
            batch = pad([items[i] for i in group], model)
            for i, attribution in zip(group, function(model, batch, **settings), strict=True):
                results[i] = attribution
            bar.update(len(group))
    about = provenance(model, method, settings)
    explanations = [
        _explanation(e, item, r, tokenizer, method, settings, about)
        for e, item, r in zip(encoded, items, results, strict=True)
        if r is not None
    ]
    return explanations if many else explanations[0]


def item_of(
    model: PreTrainedModel,
    tokenizer: Any,
    encoded: Encoded,
    *,
    target: int | str | None,
    contrast: int | str | None,
    position: int | None,
) -> Item:
    """One tokenised input as an item to explain, with everything checked; see ``explain``."""
    config = model.config.get_text_config()
    vocabulary, length = config.vocab_size, len(encoded.token_ids)
    limit = context_length(model)
    if limit is not None and length > limit:
        raise InputError(
            f"the text has {length} tokens, {length - limit} more than the {limit} that {type(model).__name__} can read. "
            "Shorten it."
        )
    if max(encoded.token_ids) >= vocabulary:
        raise InputError(
            f"token id {max(encoded.token_ids)} is outside the model's vocabulary of {vocabulary}. "
            "Is this the model's own tokenizer?"
        )
    task = targets.task_of(model)
    mask_id = getattr(tokenizer, "mask_token_id", None)
    where = targets.resolve_position(encoded, position, task, mask_id)
    ids = [
        targets.resolve_token(given, role, encoded, where, tokenizer, vocabulary, task)
        for role, given in (("target", target), ("contrast", contrast))
    ]
    if ids[0] is not None and ids[0] == ids[1]:
        raise InputError(
            f"target {target!r} and contrast {contrast!r} are the same token ({ids[0]}): their difference is 0."
        )
    return Item(encoded.token_ids, where, ids[0], ids[1], encoded.extras)


def context_length(model: PreTrainedModel) -> int | None:
    """How many tokens the model can read; ``None`` if it has no limit."""
    config = model.config.get_text_config()
    limit = next(
        (n for k in ("max_position_embeddings", "n_positions", "max_seq_len") if (n := getattr(config, k, None))), None
    )
    if limit is not None and _counts_from_padding(model):
        limit -= config.pad_token_id + 1  # RoBERTa numbers its positions from pad_token_id + 1
    return limit


def _counts_from_padding(model: PreTrainedModel) -> bool:
    return any(
        "position" in name and isinstance(module, torch.nn.Embedding) and module.padding_idx is not None
        for name, module in model.named_modules()
    )


def provenance(model: PreTrainedModel, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What the numbers come from: model, revision, dtype, device, attention, versions, method and options."""
    config = model.config
    weight = next(model.parameters())
    return {
        "model": config._name_or_path or type(model).__name__,
        "architecture": type(model).__name__,
        "revision": getattr(config, "_commit_hash", None),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": str(weight.device),
        "attn_implementation": getattr(config, "_attn_implementation", None),
        "method": method,
        "options": {
            k: v if isinstance(v, str | int | float | bool | list | tuple | None) else repr(v)
            for k, v in settings.items()
        },
        "versions": {name: version(name) for name in ("lrpx", "torch", "transformers")},
    }


def _explanation(
    encoded: Encoded,
    item: Item,
    result: Attribution,
    tokenizer: Any,
    method: str,
    settings: dict[str, Any],
    about: dict[str, Any],
) -> Explanation:
    def token(i: int) -> Token:
        return Token(i, str(i) if tokenizer is None else tokenizer.convert_ids_to_tokens(i) or f"<{i}>")

    target, contrast = token(result.target), None if item.contrast is None else token(item.contrast)
    if result.target == item.contrast:
        raise InputError(
            f"the model's top prediction is the contrast itself, {target.text!r}: their difference is 0. Give another target."
        )
    places = settings.get("at", ("input",))
    names = [places] if isinstance(places, str) else places
    ids = {"target": target.id, "target_text": target.text}
    ids |= {"contrast": contrast and contrast.id, "contrast_text": contrast and contrast.text}
    return Explanation(
        tokens=encoded.tokens,
        token_ids=list(encoded.token_ids),
        units=encoded.units,
        relevance=result.relevance,
        value=result.value,
        residual=result.residual,
        target=target,
        contrast=contrast,
        position=item.position,
        method=method,
        at=next((n for n in names if n in ("input", "embedding")), "input"),
        text=encoded.text,
        layers=result.layers,
        by_layer=result.by_layer,
        by_head=result.by_head,
        components=result.components,
        provenance={**about, **ids},
    )


def _settings(method: Method, options: dict[str, Any]) -> dict[str, Any]:
    """The method's options with their defaults filled in.

    Raises:
        InputError: An option the method does not take.
    """
    for name in options:
        if name not in method.options:
            raise InputError(
                f"{method.name} takes no option {name!r}. It takes: {', '.join(method.options) or 'none'}."
            )
    return {**method.options, **options}


def _is_list(text: Any) -> bool:
    """Whether several inputs were given: a list of strings, of id lists or of conversations, or a batch."""
    if isinstance(text, str):
        return False
    if hasattr(text, "keys"):
        text = text["input_ids"]
    rows = text.tolist() if hasattr(text, "tolist") else text
    first = rows[0]
    return not isinstance(first, int) and not (hasattr(first, "keys") and "role" in first)


def _each(given: Any, name: str, count: int) -> list[Any]:
    """One value for each of ``count`` items."""
    if isinstance(given, list | tuple):
        if len(given) != count:
            raise InputError(f"{len(given)} values of {name} for {count} texts. Give one for all, or one each.")
        return list(given)
    return [given] * count
