"""``lrpx.explain``: from a model, a text and a target to explanations. Everything it needs lies in the files below it.

1. Tokenise, find the position, resolve target and contrast; refuse what cannot be explained before computing anything.
2. Group by length, pad, and let the method explain each group in one pass.
3. Put names and provenance to the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from .errors import InputError, NonFiniteError
from .explanation import Explanation, Token
from .methods import Method, get_method
from .models.loading import load
from .models.placement import is_unloaded
from .models.provenance import provenance
from .models.signature import context_length, task_of
from .passes.dispatch import Execution, say_what_is_idle
from .passes.forward_backward import accepted
from .passes.hidden_states import place_first
from .passes.validation import check_model
from .text import targets
from .text.batching import Attribution, Item, allowed_waste, buckets, pad
from .text.tokenization import Encoded, as_python, encode, split

BATCH_TOKENS = 4096


def explain(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    target: Any = None,
    contrast: Any = None,
    position: Any = None,
    method: str = "attnlrp",
    batch_tokens: int = BATCH_TOKENS,
    progress: bool | None = None,
    fast: bool | None = None,
    compile: bool = False,
    checkpoint: bool | None = None,
    tf32: bool = False,
    **options: Any,
) -> Any:
    """Explain what ``model`` predicts for ``text``.

    Args:
        model: A causal or masked language model in eval mode, or a name or path for ``lrpx.load``.
        tokenizer: Its tokenizer; ``None`` if ``model`` is a name, or if ids are given for text, target and contrast.
        text: A string, token ids, a ``BatchEncoding``, or chat messages; or several, to explain in batches: a list of these,
            ids as a 2-D tensor or array, or the ``BatchEncoding`` of a batch. Special tokens that the tokenizer puts after
            a string are left out for a causal model, which goes on from the last token of the text.
        target: The token to explain: an id, or a string that is exactly one token where it stands (``" are"``; a leading
            space matters). Default: the model's top prediction. For several texts, one for all or a list.
        contrast: Explain ``logit[target] - logit[contrast]`` instead of ``logit[target]``. Likewise.
        position: Whose logits, as an index over the tokens without padding; negative from the end. Default: the last token
            (causal), the mask token (masked). Likewise.
        method: One of ``lrpx.METHODS``.
        batch_tokens: Tokens per batch, padding included.
        progress: Show a progress bar. Default: when a list needs more than one batch, on a terminal.
        fast: On a GPU, replay short passes as CUDA graphs. ``None``: from the second use of a shape on; ``True``: from the
            first; ``False``: never. See ``execution.Execution`` for this and the next three.
        compile: Fuse the pass with TorchInductor, once for all lengths; worth it for long or many texts.
        checkpoint: Recompute each block in the backward pass, to save memory. ``None``: where an estimate says so.
        tf32: Use TF32 matrix products in a float32 model, for this call.
        **options: The method's own, e.g. ``at=["input", "model.layers.*"]`` or ``norm="l2"``.

    Returns:
        An ``Explanation``, or a list of them in the order of ``text`` if several texts were given.

    Raises:
        InputError: A text, target, position, method or option that cannot be used. Of several texts, it names the one.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.

    Example:
        >>> e = lrpx.explain(model, tokenizer, "The keys to the cabinet", target=" are", contrast=" is")  # doctest: +SKIP
        >>> e.show()                                                                                        # doctest: +SKIP
    """
    chosen = get_method(method)
    settings = _settings(chosen, options)
    if not isinstance(batch_tokens, int) or batch_tokens < 1:
        raise InputError(f"batch_tokens={batch_tokens!r}: give a number of tokens from 1, such as {BATCH_TOKENS}.")
    execution = Execution(fast, compile, checkpoint, tf32)
    if text is None:
        raise InputError("no text given: lrpx.explain(model, tokenizer, text).")
    model, tokenizer = _model_and_tokenizer(model, tokenizer)
    check_model(model, {})
    _, several = split(text)
    encoded = encode(tokenizer, text)
    reads = Reads.of(model)
    if reads.task == "causal":
        encoded = [e.without_closing() for e in encoded]
    given = {"target": target, "contrast": contrast, "position": position}
    each = zip(*(_each(value, name, len(encoded)) for name, value in given.items()), strict=True)
    items = []
    for i, (e, (t, c, p)) in enumerate(zip(encoded, each, strict=True)):
        with _naming(i, several):
            items.append(item_of(reads, tokenizer, e, target=t, contrast=c, position=p))

    say_what_is_idle(model, execution, chosen.name, has_passes=chosen.has_passes)
    about = provenance(model, method, settings, asdict(execution))

    def finished(i: int, result: Attribution) -> Explanation:
        with _naming(i, several):
            return _explanation(encoded[i], items[i], result, tokenizer, method, settings, about)

    explanations = _run(chosen.run_by(execution), chosen.name, model, items, settings, batch_tokens, progress, finished)
    return explanations if several else explanations[0]


def _run(
    function: Callable[..., list[Attribution]],
    name: str,
    model: PreTrainedModel,
    items: list[Item],
    settings: dict[str, Any],
    batch_tokens: int,
    progress: bool | None,
    finished: Callable[[int, Attribution], Explanation],
) -> list[Explanation]:
    """The items' explanations, in their order, computed in groups of similar length."""
    waste = allowed_waste(model, task_of(model)) if len(items) > 1 else 0.0
    groups = _groups(items, batch_tokens, waste)
    hidden = None if progress is None else not progress

    def finish(group: list[int], results: list[Attribution]) -> list[tuple[int, Explanation]]:
        return [(i, finished(i, result)) for i, result in zip(group, results, strict=True)]

    def computed(group: list[int]) -> list[Attribution]:
        return function(model, pad([items[i] for i in group], model), **settings)

    if len(groups) == 1 and not progress:
        found = dict(finish(groups[0], computed(groups[0])))
    else:  # while a GPU is at a group, another thread makes explanations of the one before
        with tqdm(total=len(items), desc=name, unit="text", disable=hidden) as bar, ThreadPoolExecutor(1) as other:
            made: list[Future[list[tuple[int, Explanation]]]] = []
            for group in groups:
                made.append(other.submit(finish, group, computed(group)))
                bar.update(len(group))
            found = dict(pair for future in made for pair in future.result())
    return [found[i] for i in range(len(items))]


@dataclass(frozen=True)
class Reads:
    """What a model reads and predicts.

    Attributes:
        name: Of its class, for messages.
        task: ``"causal"`` or ``"masked"``.
        vocabulary: Number of token ids.
        context: How many tokens it can read; ``None`` if it has no limit.
        extras: Per-token inputs besides the ids that its ``forward`` takes.
    """

    name: str
    task: str
    vocabulary: int
    context: int | None
    extras: frozenset[str]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Reads:
        """Read it off the model and its configuration."""
        extras = frozenset(accepted(model, token_type_ids=None))
        vocabulary = model.config.get_text_config().vocab_size
        return cls(type(model).__name__, task_of(model), vocabulary, context_length(model), extras)


def item_of(
    reads: Reads, tokenizer: Any, encoded: Encoded, *, target: Any = None, contrast: Any = None, position: Any = None
) -> Item:
    """One tokenised input as an item to explain, with everything checked; see ``explain``."""
    ids, length = encoded.token_ids, len(encoded.token_ids)
    if reads.context is not None and length > reads.context:
        raise InputError(
            f"the text has {length} tokens, {length - reads.context} more than the {reads.context} that {reads.name} can "
            "read. Shorten it."
        )
    if max(ids) >= reads.vocabulary:
        raise InputError(
            f"token id {max(ids)} is outside the model's vocabulary of {reads.vocabulary}. Is this the model's own tokenizer?"
        )
    where = targets.resolve_position(encoded, position, reads.task, getattr(tokenizer, "mask_token_id", None))
    chosen, other = (
        targets.resolve_token(given, role, encoded, where, tokenizer, reads.vocabulary, reads.task)
        for role, given in (("target", target), ("contrast", contrast))
    )
    if chosen is not None and chosen == other:
        raise InputError(
            f"target {target!r} and contrast {contrast!r} are the same token ({chosen}): their difference is 0. "
            "Give two that differ."
        )
    return Item(ids, where, chosen, other, {k: v for k, v in encoded.extras.items() if k in reads.extras})


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
            f"the model's top prediction is the contrast itself, {target.text!r}: their difference is 0. "
            "Say which target: target=."
        )
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
        at=place_first(settings.get("at", "input"))[0],
        text=encoded.text,
        layers=result.layers,
        by_layer=result.by_layer,
        by_head=result.by_head,
        components=result.components,
        provenance={**about, **ids},
    )


def _model_and_tokenizer(model: Any, tokenizer: Any) -> tuple[PreTrainedModel, Any]:
    """Both, loaded where a name was given."""
    if isinstance(model, str | os.PathLike):
        loaded = load(model)
        return loaded.model, loaded.tokenizer if tokenizer is None else tokenizer
    if isinstance(getattr(model, "_orig_mod", None), PreTrainedModel):
        raise InputError(
            "the model was compiled by torch.compile, which hides its operations. Give what that wraps, model._orig_mod; "
            "lrpx.explain(..., compile=True) fuses the pass itself."
        )
    if not isinstance(model, PreTrainedModel):
        raise InputError(
            f"the model is a {type(model).__name__}. Give a model of transformers (of a wrapper, what it wraps), or the name "
            "of one: lrpx.explain(model, tokenizer, text)."
        )
    if is_unloaded(model):
        raise InputError(f"the weights of this {type(model).__name__} are not loaded (device 'meta'). Load them first.")
    return model, tokenizer


def _settings(method: Method, options: dict[str, Any]) -> dict[str, Any]:
    """The method's options with their defaults filled in.

    Raises:
        InputError: An option the method does not take, or places that are not names.
    """
    for name in options:
        if name not in method.options:
            raise InputError(
                f"{method.name} takes no option {name!r}. It takes: {', '.join(method.options) or 'none'}."
            )
    settings = {**method.options, **options}
    at = settings.get("at", ())
    if not isinstance(at, str) and not (isinstance(at, list | tuple) and all(isinstance(name, str) for name in at)):
        raise InputError(f'at={at!r}: give "input", "embedding" or a module name, or a list of these.')
    rules = settings.get("rules", "")
    if not isinstance(rules, str | Mapping):
        raise InputError(
            f"rules={rules!r}: give the name of a rule set, or a dictionary from kind of operation to rule."
        )
    return settings


def _groups(items: list[Item], max_tokens: int, waste: float) -> list[list[int]]:
    """Indices of items to explain together: of similar length, and with the same extra inputs."""
    by_extras: dict[frozenset[str], list[int]] = {}
    for i, item in enumerate(items):
        by_extras.setdefault(frozenset(item.extras), []).append(i)
    return [
        [indices[k] for k in group]
        for indices in by_extras.values()
        for group in buckets([len(items[i].token_ids) for i in indices], max_tokens=max_tokens, waste=waste)
    ]


def _each(given: Any, name: str, count: int) -> list[Any]:
    """One value for each of ``count`` items."""
    given = as_python(given)
    if isinstance(given, list):
        if len(given) != count:
            raise InputError(f"{len(given)} values of {name} for {count} texts. Give one for all, or one each.")
        return given
    return [given] * count


@contextmanager
def _naming(index: int, several: bool) -> Iterator[None]:
    """Let an error say which of several texts it is about."""
    try:
        yield
    except (InputError, NonFiniteError) as error:
        if not several:
            raise
        raise type(error)(f"text[{index}]: {error}") from None
