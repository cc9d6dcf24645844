"""``lrpx.Explainer`` and ``lrpx.explain``: from a model, texts and targets to explanations.

1. Tokenise, find the position, resolve target and contrast; refuse what cannot be explained before computing anything.
2. Group by length, pad, and let each method explain each group in one pass.
3. Build the ``Explanation`` objects.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from tqdm.auto import tqdm
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from .errors import InputError, NonFiniteError
from .explanation import Explanation, Token
from .explanations import Explanations
from .methods import Method, get_method, methods_with_options
from .models.loading import load
from .models.lock import lock_of
from .models.placement import entry_device, is_unloaded
from .models.precision import matmul_precision
from .models.provenance import provenance
from .models.signature import ModelSignature, longest_alike, task_of
from .passes.dispatch import Execution, PassRunner
from .passes.hidden_states import place_first
from .propagation.rulesets import RuleSet
from .text.batching import Attribution, Item, allowed_waste, pad
from .text.items import groups_of, item_of, one_each
from .text.tokenization import Encoded, encode, split

if TYPE_CHECKING:
    import numpy as np
    import torch

logger = logging.getLogger("lrpx")

BATCH_TOKENS = 4096
MANY_CALLS = 8  # of ``explain`` with one model on a GPU, before the log says what an ``Explainer`` would save

Model: TypeAlias = PreTrainedModel | str | os.PathLike[str]
Ids: TypeAlias = "Sequence[int] | Sequence[Sequence[int]] | torch.Tensor | np.ndarray | BatchEncoding"
Chat: TypeAlias = Sequence[Mapping[str, object]]
Text: TypeAlias = "str | Ids | Chat | Sequence[str] | Sequence[Ids] | Sequence[Chat]"
Target: TypeAlias = "str | int | Sequence[str | int | None] | torch.Tensor | np.ndarray | None"
Position: TypeAlias = "int | Sequence[int | None] | torch.Tensor | np.ndarray | None"
MethodName: TypeAlias = Literal[
    "attnlrp",
    "lrp",
    "lrp-uniform-gate",
    "gradient",
    "gradient-x-input",
    "alti-logit",
    "alti",
    "attention-rollout",
]
OneMethod: TypeAlias = MethodName | str
Methods: TypeAlias = list[OneMethod] | tuple[OneMethod, ...]


class Explainer:
    """Explains what one model predicts, and keeps what makes the next call faster.

    Kept are CUDA graphs, compiled passes, and what was learnt about the model. The contract: **weights may change in place at
    any time; whatever else you change in the model (modules, adapters, hooks, configuration, attributes), call** ``refresh()``.
    As a safety net each call compares, while the device works, the addresses of the weights, the modules, the numbers of hooks,
    training mode, and the plain values that modules and configurations hold (numbers, strings, and short lists of them). A
    difference refreshes by itself. A model that runs code from outside PyTorch, transformers and PEFT (a hook, a module of your
    own) is neither captured nor compiled; the log says so. Weights that were moved or replaced stay in memory until then.

    An ``Explainer`` may be shared by threads: one at a time explains with a model.

    Args:
        model: A causal or masked language model in eval mode, or a name or path for ``lrpx.load``.
        tokenizer: Its tokenizer; ``None`` if ``model`` is a name, or if ids are given for text, target and contrast.
        method: One of ``lrpx.METHODS``, used where a call names none.
        batch_tokens: Tokens per batch, padding included.
        fast: On a GPU, replay short passes as CUDA graphs. ``None``: from the second use of a shape on; ``True``: from the
            first; ``False``: never.
        compile: Trace the pass and fuse it with TorchInductor, once for all lengths: up to a minute; worth it for long or many
            texts. A text alone, several together, and a text of one token are traced separately, and so is every method.
        checkpoint: Recompute each block in the backward pass, for a fraction of the memory and a third more time. ``None``:
            where an estimate says that it is needed.

    Raises:
        InputError: The model, the method or an option cannot be used.

    Example:
        >>> explainer = lrpx.Explainer("openai-community/gpt2")
        >>> e = explainer("The keys to the cabinet", target=" are", contrast=" is")
        >>> e.show()
        >>> explainer("The keys to the cabinet", method=["lrp", "attnlrp", "alti-logit"]).show()
    """

    def __init__(
        self,
        model: Model,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        method: OneMethod = "attnlrp",
        batch_tokens: int = BATCH_TOKENS,
        fast: bool | None = None,
        compile: bool = False,
        checkpoint: bool | None = None,
    ) -> None:
        if not isinstance(batch_tokens, int) or batch_tokens < 1:
            raise InputError(f"batch_tokens={batch_tokens!r}: give a number of tokens from 1, such as {BATCH_TOKENS}.")
        self.method = get_method(method).name
        self.batch_tokens = batch_tokens
        execution = Execution(fast, compile, checkpoint)
        self.model, self.tokenizer = _model_and_tokenizer(model, tokenizer)
        self._runner = PassRunner(self.model, execution)

    def refresh(self) -> None:
        """Forget everything that is kept: after you have changed the model otherwise than its weights in place."""
        with lock_of(self.model):
            self._runner.refresh()

    @overload
    def __call__(
        self, text: str, *, method: OneMethod | None = None, target: Target = None, contrast: Target = None,
        position: Position = None, at: str | Sequence[str] | None = None, norm: Literal["l1", "l2"] | None = None,
        direct: bool | None = None, rules: str | RuleSet | None = None, progress: bool | None = None, **options: object,
    ) -> Explanation: ...  # fmt: skip
    @overload
    def __call__(
        self, text: list[str] | tuple[str, ...], *, method: OneMethod | Methods | None = None, target: Target = None,
        contrast: Target = None, position: Position = None, at: str | Sequence[str] | None = None,
        norm: Literal["l1", "l2"] | None = None, direct: bool | None = None, rules: str | RuleSet | None = None,
        progress: bool | None = None, **options: object,
    ) -> Explanations: ...  # fmt: skip
    @overload
    def __call__(
        self, text: Text, *, method: OneMethod | Methods | None = None, target: Target = None, contrast: Target = None,
        position: Position = None, at: str | Sequence[str] | None = None, norm: Literal["l1", "l2"] | None = None,
        direct: bool | None = None, rules: str | RuleSet | None = None, progress: bool | None = None, **options: object,
    ) -> Explanation | Explanations: ...  # fmt: skip
    def __call__(
        self,
        text: Text,
        *,
        method: OneMethod | Methods | None = None,
        target: Target = None,
        contrast: Target = None,
        position: Position = None,
        at: str | Sequence[str] | None = None,
        norm: Literal["l1", "l2"] | None = None,
        direct: bool | None = None,
        rules: str | RuleSet | None = None,
        progress: bool | None = None,
        **options: object,
    ) -> Explanation | Explanations:
        """Explain what the model predicts for ``text``.

        Args:
            text: A string, token ids, a ``BatchEncoding``, or chat messages; or several, to explain in batches: a list of
                these, ids as a 2-D tensor or array, or the ``BatchEncoding`` of a batch. Special tokens that the tokenizer puts
                after a string are left out for a causal model, which goes on from the last token of the text.
            method: One of ``lrpx.METHODS``, or several. Default: the explainer's.
            target: The token to explain: an id, or a string that is exactly one token where it stands (``" are"``; a leading
                space matters). Default: the model's top prediction. For several texts, one for all or a list.
            contrast: Explain ``logit[target] - logit[contrast]`` instead of ``logit[target]``. Likewise.
            position: Whose logits, as an index over the tokens without padding; negative from the end. Default: the last token
                (causal), the mask token (masked). Likewise.
            at: Where the relevance is taken: ``"input"`` (what enters the first block; default), ``"embedding"`` (the
                word-embedding rows), and names or globs of modules, whose relevance goes to ``Explanation.layers``.
            norm: Of ``gradient``: ``"l1"`` (default) or ``"l2"`` (squared).
            direct: Of ``alti-logit``: add the residual stream's own part to the explained token.
            rules: Of ``lrp`` and its relatives: another rule set, or its name.
            progress: Show a progress bar. Default: when a list needs more than one batch, on a terminal.
            **options: Those of a method that was registered elsewhere.

        Returns:
            An ``Explanation``; if several texts or methods were given ``Explanations``, in the order of the texts and, for each
            text, of the methods.

        Raises:
            InputError: A text, target, position, method or option that cannot be used. Of several texts, it names the one.
            UnsupportedModelError: The model cannot be explained correctly.
            NonFiniteError: NaN or infinity appeared.
        """
        options |= {"at": at, "norm": norm, "direct": direct, "rules": rules}
        chosen = methods_with_options(self.method if method is None else method, options)
        if text is None:
            raise InputError("no text given: explainer(text), or lrpx.explain(model, tokenizer, text).")
        several_methods = isinstance(method, list | tuple)
        _, several_texts = split(text)
        given = {"target": target, "contrast": contrast, "position": position}
        encoded, items = self._read(text, given, several_texts)
        by_method = [self._by(one, settings, encoded, items, several_texts, progress) for one, settings in chosen]
        if not several_texts and not several_methods:
            return by_method[0][0]
        return Explanations(each for of_text in zip(*by_method, strict=True) for each in of_text)

    def _read(self, text: Text, given: Mapping[str, Any], several: bool) -> tuple[list[Encoded], list[Item]]:
        """The texts as token ids, and what is to be explained of each."""
        encoded = encode(self.tokenizer, text)
        signature = ModelSignature.of(self.model)
        if signature.task == "causal":
            encoded = [e.without_closing() for e in encoded]
        each = zip(*(one_each(value, name, len(encoded)) for name, value in given.items()), strict=True)
        items = []
        for i, (e, (target, contrast, position)) in enumerate(zip(encoded, each, strict=True)):
            with _naming(i, several):
                item = item_of(signature, self.tokenizer, e, target=target, contrast=contrast, position=position)
                items.append(item)
        return encoded, items

    def _by(
        self,
        method: Method,
        settings: dict[str, Any],
        encoded: list[Encoded],
        items: list[Item],
        several: bool,
        progress: bool | None,
    ) -> list[Explanation]:
        """The explanations of all texts by one method."""
        self._runner.log_unused_options(method.name, has_passes=method.has_passes)
        execution = {**asdict(self._runner.execution), "float32_matmul_precision": matmul_precision()}
        about = provenance(self.model, method.name, settings, execution)

        def finished(i: int, result: Attribution) -> Explanation:
            with _naming(i, several):
                return _explanation(encoded[i], items[i], result, self.tokenizer, method.name, settings, about)

        function = method.run_by(self._runner)
        waste = allowed_waste(self.model, task_of(self.model)) if len(items) > 1 else 0.0
        groups = groups_of(items, self.batch_tokens, waste, partial(longest_alike, self.model))

        def finish(group: list[int], results: list[Attribution]) -> list[tuple[int, Explanation]]:
            return [(i, finished(i, result)) for i, result in zip(group, results, strict=True)]

        def computed(group: list[int]) -> list[Attribution]:
            return function(pad([items[i] for i in group], self.model), **settings)

        if len(groups) == 1 and not progress:
            found = dict(finish(groups[0], computed(groups[0])))
        else:  # while a GPU is at a group, another thread makes explanations of the one before
            hidden = None if progress is None else not progress
            with (
                tqdm(total=len(items), desc=method.name, unit="text", disable=hidden) as bar,
                ThreadPoolExecutor(1) as other,
            ):
                made: list[Future[list[tuple[int, Explanation]]]] = []
                for group in groups:
                    made.append(other.submit(finish, group, computed(group)))
                    bar.update(len(group))
                found = dict(pair for future in made for pair in future.result())
        return [found[i] for i in range(len(items))]


@overload
def explain(
    model: Model, tokenizer: PreTrainedTokenizerBase | None, text: str, *, method: OneMethod = "attnlrp",
    target: Target = None, contrast: Target = None, position: Position = None, at: str | Sequence[str] | None = None,
    norm: Literal["l1", "l2"] | None = None, direct: bool | None = None, rules: str | RuleSet | None = None,
    progress: bool | None = None, batch_tokens: int = BATCH_TOKENS, fast: bool | None = None, compile: bool = False,
    checkpoint: bool | None = None, **options: object,
) -> Explanation: ...  # fmt: skip
@overload
def explain(
    model: Model, tokenizer: PreTrainedTokenizerBase | None, text: list[str] | tuple[str, ...], *,
    method: OneMethod | Methods = "attnlrp", target: Target = None, contrast: Target = None, position: Position = None,
    at: str | Sequence[str] | None = None, norm: Literal["l1", "l2"] | None = None, direct: bool | None = None,
    rules: str | RuleSet | None = None, progress: bool | None = None, batch_tokens: int = BATCH_TOKENS,
    fast: bool | None = None, compile: bool = False, checkpoint: bool | None = None, **options: object,
) -> Explanations: ...  # fmt: skip
@overload
def explain(
    model: Model, tokenizer: PreTrainedTokenizerBase | None = None, text: Text | None = None, *,
    method: OneMethod | Methods = "attnlrp", target: Target = None, contrast: Target = None, position: Position = None,
    at: str | Sequence[str] | None = None, norm: Literal["l1", "l2"] | None = None, direct: bool | None = None,
    rules: str | RuleSet | None = None, progress: bool | None = None, batch_tokens: int = BATCH_TOKENS,
    fast: bool | None = None, compile: bool = False, checkpoint: bool | None = None, **options: object,
) -> Explanation | Explanations: ...  # fmt: skip
def explain(
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None = None,
    text: Text | None = None,
    *,
    method: OneMethod | Methods = "attnlrp",
    target: Target = None,
    contrast: Target = None,
    position: Position = None,
    at: str | Sequence[str] | None = None,
    norm: Literal["l1", "l2"] | None = None,
    direct: bool | None = None,
    rules: str | RuleSet | None = None,
    progress: bool | None = None,
    batch_tokens: int = BATCH_TOKENS,
    fast: bool | None = None,
    compile: bool = False,
    checkpoint: bool | None = None,
    **options: object,
) -> Explanation | Explanations:
    """Explain what ``model`` predicts for ``text``, once: an ``Explainer`` is made for the call, and nothing is kept.

    The first two arguments and ``batch_tokens``, ``fast``, ``compile`` and ``checkpoint`` are those of ``Explainer``, all
    others, the result and the errors those of calling it.

    Example:
        >>> e = lrpx.explain(model, tokenizer, "The keys to the cabinet", target=" are", contrast=" is")
        >>> e.show()
    """
    options |= {"at": at, "norm": norm, "direct": direct, "rules": rules}
    methods_with_options(method, options)  # refused before a model is loaded
    Execution(fast, compile, checkpoint)
    if text is None:
        raise InputError("no text given: lrpx.explain(model, tokenizer, text).")
    explainer = Explainer(
        model, tokenizer, batch_tokens=batch_tokens, fast=fast, compile=compile, checkpoint=checkpoint
    )
    _recommend_an_explainer(explainer.model)
    asked: dict[str, Any] = {"target": target, "contrast": contrast, "position": position, **options}
    return explainer(text, method=method, progress=progress, **asked)


_calls: weakref.WeakKeyDictionary[PreTrainedModel, int] = weakref.WeakKeyDictionary()


def _recommend_an_explainer(model: PreTrainedModel) -> None:
    """Say once, after many calls with a model on a GPU, what an ``Explainer`` would save."""
    _calls[model] = _calls.get(model, 0) + 1
    if _calls[model] == MANY_CALLS and entry_device(model).type == "cuda":
        logger.info(
            "lrpx.explain was called %d times with one %s. An lrpx.Explainer(model, tokenizer) keeps CUDA graphs between "
            "calls, with which a short text takes a fraction of the time.",
            *(MANY_CALLS, type(model).__name__),
        )


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


def _model_and_tokenizer(
    model: Model, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
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


@contextmanager
def _naming(index: int, several: bool) -> Iterator[None]:
    """Let an error say which of several texts it is about."""
    try:
        yield
    except (InputError, NonFiniteError) as error:
        if not several:
            raise
        raise type(error)(f"text[{index}]: {error}") from None
