"""``lrpx.Explainer``: what users call."""

from __future__ import annotations

import inspect
import logging
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ..errors import InputError, check_names, names_checked
from ..methods import METHODS, get_method, methods_with_options
from ..models.default.download import ALIAS
from ..models.loading import load
from ..models.lock import lock_of
from ..models.provenance import model_identity
from ..models.reader import tokenizer_of
from ..models.usable import usable_model
from ..passes.dispatch import PassRunner
from ..passes.execution import Execution
from ..propagation.rulesets import RuleSet
from ..results.explanation import Explanation
from ..results.explanations import Explanations, Failure
from ..results.flow import RelevanceFlow
from ..results.generation import GenerationExplanation
from ..results.tokens import Prediction
from .arguments import (
    CallOptions,
    Chat,
    Choices,
    ExplainOptions,
    Explains,
    GenerateOptions,
    Ids,
    Images,
    Methods,
    Model,
    OneCall,
    OneMethod,
    Part,
    Position,
    Prefix,
    Reader,
    Target,
    Text,
)
from .reading import read_texts

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from typing_extensions import Unpack  # of the standard library from Python 3.11 on

logger = logging.getLogger("lrpx")

BATCH_TOKENS = 4096
_HOME = {  # options that are often typed in the wrong one of three places -> where they belong
    **{
        name: f"It is one of lrpx.load: lrpx.Explainer(*lrpx.load('org/name', {name}=...))."
        for name in inspect.signature(load).parameters
    },
    **{
        name: f"It is one of lrpx.Explainer: lrpx.Explainer(model, {name}=...)."
        for name in ExplainOptions.__annotations__
    },
    **{name: f"It is one of the call: explainer(text, {name}=...)." for name in CallOptions.__annotations__},
}
NO_TEXT = "no text given: explainer(text), or lrpx.explain(model, tokenizer, text)."
IMAGES_ALONE = (
    'images= are those of a text, and no text is given: explainer("What is in the picture?", images=["cat.png"]). A model that '
    'classifies images is given them instead of a text: explainer("cat.png").'
)


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
        model: A causal or masked language model in eval mode, also one with PEFT's adapters, or a name or path for
            ``lrpx.load``. Default: the default model, ``"smollm2-135m"``.
        tokenizer: Its tokenizer or, if it reads images, its processor or image processor; ``None`` if ``model`` is a name, or
            if ids are given for text, target and contrast.
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

    Examples:
        >>> explainer = lrpx.Explainer("openai-community/gpt2")
        >>> e = explainer("The keys to the cabinet", target=" are", contrast=" is")
        >>> e.show()
        >>> explainer("The keys to the cabinet", method=["lrp", "attnlrp", "alti-logit"]).show()
    """

    @names_checked(_HOME)
    def __init__(
        self,
        model: Model = ALIAS,
        tokenizer: Reader | None = None,
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
        if isinstance(model, str | os.PathLike):
            model, loaded_tokenizer = load(model)
            tokenizer = loaded_tokenizer if tokenizer is None else tokenizer
        self.model, self.reader, self.tokenizer = usable_model(model), tokenizer, tokenizer_of(tokenizer)
        self._runner = PassRunner(self.model, execution)

    def __repr__(self) -> str:
        about = model_identity(self.model)
        return f"<Explainer of {about['model']} ({type(self.model).__name__}): {self.method}>"

    def refresh(self) -> None:
        """Forget everything that is kept: after you have changed the model otherwise than its weights in place."""
        with lock_of(self.model):
            self._runner.refresh()

    @overload
    def __call__(self, text: str, *, method: OneMethod | None = None, **options: Unpack[OneCall]) -> Explanation: ...
    @overload
    def __call__(
        self,
        text: list[str] | tuple[str, ...],
        *,
        method: OneMethod | Methods | None = None,
        **options: Unpack[CallOptions],
    ) -> Explanations: ...
    @overload
    def __call__(
        self, text: Text | None = None, *, method: OneMethod | Methods | None = None, **options: Unpack[CallOptions]
    ) -> Explanation | Explanations: ...
    def __call__(
        self,
        text: Text | None = None,
        *,
        text_pair: Part = None,
        question: Part = None,
        choices: Choices = None,
        images: Images = None,
        method: OneMethod | Methods | None = None,
        target: Target = None,
        contrast: Target = None,
        position: Position = None,
        target_prefix: Prefix = None,
        objective: Literal["logit", "logprob"] = "logit",
        explains: Explains = None,
        at: str | Sequence[str] | None = None,
        norm: Literal["l1", "l2"] | None = None,
        direct: bool | None = None,
        rules: str | RuleSet | None = None,
        heads: bool | None = None,
        errors: Literal["raise", "collect"] = "raise",
        progress: bool | None = None,
        **options: object,
    ) -> Explanation | Explanations:
        """Explain what the model predicts for ``text``.

        Args:
            text: A string, token ids, a ``BatchEncoding``, or chat messages; or several, to explain in batches: a list of
                these, ids as a 2-D tensor or array, or the ``BatchEncoding`` of a batch. Special tokens that the tokenizer puts
                after a string are left out for a causal model, which goes on from the last token of the text.
            images: Of a model that reads images and text: the images of the text, in the order of their places in it; Pillow's,
                paths, or arrays ``[height, width, 3]``. For several texts, a list for each. Chat messages may hold them instead:
                ``{"type": "image", "image": picture}``. Or ``text`` is what the model's processor returned for both.
            method: One of ``lrpx.METHODS``, or several. Default: the explainer's.
            text_pair: Of a classifier of pairs: the second text. For several texts, one for all or a list.
            question: Of a question-answering model: what is asked about ``text``. Likewise.
            choices: Of a multiple-choice model: the texts that may follow ``text``. For several texts, a list for all, or lists.
                Of a model that scores images with texts (CLIP): the texts whose scores a function given as target gets.
            target: The token to explain: an id, or a string (``" are"``; a leading space matters). Default: the model's top
                prediction. Of a causal model a string may be several tokens (``" playing golf"``), whose scores are added
                up. For several texts, one for all or a list. For one text a list means several explanations, from one forward
                pass. Anything else is a function of the logits at the position, ``[vocabulary]`` or ``[labels]``, that returns
                one number: ``lambda logits: logits[ids].logsumexp(0)``. Of question answering it gets starts and ends
                ``[tokens, 2]``, of multiple choice ``[choices]``.
                Of a classifier a label, by name or id; of question answering a string of the context, or (first, last) tokens; of
                multiple choice one of the choices, or its index.
            contrast: Explain ``logit[target] - logit[contrast]`` instead of ``logit[target]``. One or a list, as ``target``. Of
                multiple choice, by default the best other choice.
            objective: What is explained of the target, and subtracted for the contrast: the ``"logit"``, or ``"logprob"``, the
                logarithm of the probability, which fits targets and contrasts of different numbers of tokens.
            position: Whose logits, as an index over the tokens without padding; negative from the end. Default: the last token
                (causal), the mask token (masked), the most confident entity (token classification). One or a list, as ``target``.
            target_prefix: Of an encoder-decoder model: the beginning of the target, which the decoder has read; a string, or all
                its ids, the start token first. Default: the start tokens of ``model.generate``. One for all texts, or each.
            explains: What a function given as target computes, for the header. Default: its name.
            at: Where the relevance is taken: ``"input"`` (what enters the first block; default), ``"embedding"`` (the
                word-embedding rows), ``"pixels"`` (of images, through what reads them), and names or globs of modules, whose
                relevance goes to ``Explanation.layers``.
            norm: Of ``gradient``: ``"l1"`` (default) or ``"l2"`` (squared).
            direct: Of ``alti-logit``: add the residual stream's own part to the explained token.
            rules: Of ``lrp`` and its relatives: another rule set, or its name.
            heads: Of ``lrp``, its relatives and ``gradient-x-input``: the relevance of each head, and of each layer's attention
                and MLP (``Explanation.by_head``, ``by_attention``, ``by_mlp``, ``by_layer``). Default: for up to 1024 tokens in
                all, without ``compile``.
            errors: Of several texts, some of which cannot be explained (empty, too long, ...): ``"raise"`` for the first of
                them, or ``"collect"`` them in ``Explanations.failures`` and explain the others.
            progress: Show a progress bar. Default: when a list needs more than one batch, on a terminal.
            **options: Of other methods: ``steps``, ``baseline`` (``integrated-gradients``); ``samples``, ``noise``, ``seed``
                (``smoothgrad``); ``window``, ``baseline`` (``occlusion``); ``samples``, ``baseline``, ``seed`` (``lime``,
                ``kernel-shap``); ``seed`` (``random``); and those of your own.

        Returns:
            An ``Explanation``; if several texts, targets, contrasts, positions or methods were given ``Explanations``, in the
            order of the texts (or of the lists for one text) and, for each, of the methods.

        Raises:
            InputError: A text, target, position, method or option that cannot be used. Of several texts, it names the one.
            UnsupportedModelError: The model cannot be explained correctly.
            NonFiniteError: NaN or infinity appeared.
        """
        if errors not in ("raise", "collect"):
            raise InputError(f'errors={errors!r}: give "raise" or "collect".')
        if objective not in ("logit", "logprob"):
            raise InputError(f'objective={objective!r}: give "logit" or "logprob".')
        check_call(options, CallOptions.__annotations__)
        options |= {"at": at, "norm": norm, "direct": direct, "rules": rules, "heads": heads}
        chosen = methods_with_options(self.method if method is None else method, options)
        if text is None:
            raise InputError(NO_TEXT if images is None else IMAGES_ALONE)
        several_methods = isinstance(method, list | tuple)
        texts = read_texts(
            self._runner,
            self.reader,
            text,
            {"target": target, "contrast": contrast, "position": position, "explains": explains},
            {
                "text_pair": text_pair,
                "question": question,
                "choices": choices,
                "target_prefix": target_prefix,
                "images": images,
            },
            objective=objective,
            collect=errors == "collect",
            batch_tokens=self.batch_tokens,
        )
        by_method = [texts.explained_by(*one, self._runner, self.batch_tokens, progress) for one in chosen]
        if not texts.several and not several_methods:
            return by_method[0][0]
        complete = [i for i in texts.items if i not in texts.failed]
        failures = (Failure(i, texts.given[i], error) for i, error in sorted(texts.failed.items()))
        return Explanations((found[i] for i in complete for found in by_method), failures)

    def likeliest(
        self,
        text: str | Ids | Chat,
        count: int = 20,
        *,
        position: int | None = None,
        images: Images = None,
        target_prefix: Prefix = None,
    ) -> list[Prediction]:
        """The tokens that a language model finds likeliest, the likeliest first, from one forward pass.

        Args:
            text: One text, as of a call.
            count: How many tokens; all of the vocabulary, if it has fewer.
            position, images, target_prefix: As of a call.

        Raises:
            InputError: Something that cannot be used, or the model is no language model.
            UnsupportedModelError: The model cannot be explained correctly.

        Examples:
            >>> for token, probability in lrpx.Explainer(model, tokenizer).likeliest("The keys to the cabinet", 3):
            ...     print(f"{token.shown!r} {probability:.2f}")
        """
        from .likeliest import likeliest

        return likeliest(self._runner, self.reader, text, count, position, images, target_prefix)

    def generate(
        self,
        prompt: str | Ids | Chat | None = None,
        *,
        images: Images = None,
        max_new_tokens: int | None = None,
        continuation: str | Ids | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
        method: OneMethod | None = None,
        objective: Literal["logit", "logprob"] = "logit",
        contrast: Target = None,
        target_prefix: Prefix = None,
        spans: Sequence[tuple[int, int]] | None = None,
        weights: Sequence[float] | None = None,
        hops: int = 0,
        progress: bool | None = None,
        **options: Unpack[GenerateOptions],
    ) -> GenerationExplanation:
        """Explain what the model generates after ``prompt``, or a given continuation, from one forward pass over both.

        Args:
            prompt: A string, token ids, a ``BatchEncoding``, or chat messages (for which the chat template is used).
            images: As in a call.
            max_new_tokens: Let the model generate up to so many tokens; it stops by itself at an end token.
            continuation: Explain this instead: a string, which must not change the tokens of the prompt, or ids.
            generation_config: How ``model.generate`` chooses; a ``GenerationConfig`` or its arguments. Default: greedily.
            method: One of ``lrpx.METHODS``. Default: the explainer's. ``alti-logit``, ``alti`` and ``attention-rollout`` explain
                one token after the other.
            objective: The score of a token: its ``"logit"``, or ``"logprob"``, the logarithm of its probability.
            contrast: Subtracted from the logit at each position: ``"mean"``, the mean of all logits; ``"top10"``, the mean of the
                ten largest (any number); a token or one per position. With hops, ``"mean"`` by default.
            target_prefix: As in a call.
            spans: Explain these spans of generated tokens, as (start, stop), each by one backward pass. Default: each token.
            weights: One per generated token, by which its score is multiplied in spans.
            hops: Pass on what generated tokens took to the tokens before them, so many times; one backward pass each.
            progress: Show a progress bar.
            **options: ``at`` (``"input"``, ``"embedding"`` or, of images, ``"pixels"``), ``norm``, ``direct`` and ``rules``, as
                in a call.

        Raises:
            InputError: Something that cannot be used, or a text that the model cannot read.
            UnsupportedModelError: The model cannot be explained correctly.
            NonFiniteError: NaN or infinity appeared.

        Examples:
            >>> g = lrpx.Explainer(model, tokenizer).generate("The keys to the cabinet", max_new_tokens=8)
            >>> g[0].show(), g.span(0, 3).show()
        """
        from ..tasks.text2text import begins_otherwise
        from .continuation import continuation_of, generate, read_prompt
        from .generation import Asked, explain_continuation

        check_call(options, Explainer.generate.__kwdefaults__ or ())
        [(chosen, settings)] = methods_with_options([self.method if method is None else method], options)
        if max_new_tokens is not None and continuation is not None:
            raise InputError(
                f"max_new_tokens={max_new_tokens!r} and continuation={reprlib.repr(continuation)} are both given: either the "
                "model goes on, or you say how."
            )
        if generation_config is not None and continuation is not None:
            raise InputError("generation_config and continuation are both given: nothing is generated. Leave one out.")
        encoded = read_prompt(self.model, self.reader, prompt, target_prefix, generation_config, images)
        notes = begins_otherwise(self.model, self.tokenizer, encoded, generation_config)
        if continuation is None:
            new = generate(self.model, self.tokenizer, encoded, max_new_tokens, generation_config)
        else:
            new, misspelt = continuation_of(self._runner, encoded, continuation, self.tokenizer)
            notes += misspelt
        asked = Asked(objective, contrast, spans, weights, hops, notes)
        return explain_continuation(
            self._runner, self.reader, encoded, new, chosen, settings, asked, progress, self.batch_tokens
        )

    def flow(
        self,
        text: str | Ids | Chat,
        *,
        target: str | int | None = None,
        contrast: str | int | None = None,
        position: int | None = None,
        between: Sequence[Any] | None = None,
        layers: Sequence[int] | None = None,
        share: float | None = None,
        threshold: float | None = None,
        method: OneMethod | None = None,
        **options: Unpack[GenerateOptions],
    ) -> RelevanceFlow:
        """Follow the relevance of one prediction from token to token, from the explained logit down to the text.

        Args:
            text, target, contrast, position: As of a call; one text, and one token as target and contrast.
            between: Places, from the text upwards: ``"input"`` (or ``"embedding"``), ``"attention.3"`` (the residual stream
                after the attention of block 3), ``"block.3"`` (after the block), ``"last"``; an ellipsis stands for all in
                between. Default: ``("input", ..., "last")``. Between places far apart each token has a backward pass of its own.
            layers: Only the outputs of these blocks, beside the lowest place and the last.
            share: At every place the fewest tokens are kept that carry this share of its mass (sum of absolute relevance), and
                between them the fewest edges. 1 keeps everything. Default: 0.9.
            threshold: Instead: tokens and edges of this relevance or more, in logits.
            method: ``"lrp"``, ``"attnlrp"``, ``"lrp-uniform-gate"`` or ``"gradient-x-input"``. Default: the explainer's.
            **options: ``at`` (the lowest place, ``"input"`` or ``"embedding"``) and ``rules``, as in a call.

        Raises:
            InputError: Something that cannot be used.
            UnsupportedModelError: The model cannot be explained correctly, or runs no blocks one after the other.
            NonFiniteError: NaN or infinity appeared.

        Examples:
            >>> flow = lrpx.Explainer(model, tokenizer).flow("The keys to the cabinet", target=" are", contrast=" is")
            >>> flow.to_html("flow.html")
        """
        from .flow import AskedFlow, explain_flow

        check_call(options, Explainer.flow.__kwdefaults__ or ())
        [(chosen, settings)] = methods_with_options([self.method if method is None else method], options)
        asked = AskedFlow(target, contrast, position, between, layers, share, threshold)
        return explain_flow(self._runner, self.tokenizer, text, chosen, settings, asked)

    def similarity(
        self,
        text: str | Ids | Chat,
        other: str | Ids | Chat,
        *,
        metric: Literal["cosine", "dot"] = "cosine",
        pooling: Literal["mean", "cls", "last", "max"] | None = None,
        pairs: bool = False,
        method: OneMethod | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Explanation:
        """Explain why the embeddings of two texts are similar: what each token of both contributes.

        Args:
            text, other: The two texts, as of a call. Nothing is put before them; a model that wants a prompt (``"query: "``)
                has to be given it.
            metric: The ``"cosine"`` of the two embeddings, or their ``"dot"`` product.
            pooling: How the hidden states of a text's tokens become its embedding: their ``"mean"``, the first (``"cls"``) or
                the ``"last"`` one, or the ``"max"`` of each number. Default: what sentence-transformers wrote beside the model,
                with the layers after the pooling.
            pairs: Also ``Explanation.pairs``: what each token of ``text`` contributes together with each of ``other``. Takes a
                backward pass for each number of both embeddings.
            method: ``"lrp"``, ``"attnlrp"``, ``"lrp-uniform-gate"`` or ``"gradient-x-input"``. Default: the explainer's.
            **options: ``at`` (``"input"`` or ``"embedding"``) and ``rules``, as in a call.

        Returns:
            An ``Explanation`` with the tokens of both texts, one after the other; ``segments`` says which are whose.

        Raises:
            InputError: Something that cannot be used, or it is not known how the model pools.
            UnsupportedModelError: The model cannot be explained correctly, or gives no embeddings.
            NonFiniteError: NaN or infinity appeared.

        Examples:
            >>> e = lrpx.Explainer(model, tokenizer).similarity("A dog runs.", "The puppy is running.", pooling="mean")
            >>> e.show()
        """
        from .similarity import AskedSimilarity, explain_similarity

        check_call(options, Explainer.similarity.__kwdefaults__ or ())
        [(chosen, settings)] = methods_with_options([self.method if method is None else method], options)
        asked = AskedSimilarity(metric, pooling, pairs)
        return explain_similarity(self._runner, self.tokenizer, (text, other), chosen, settings, asked)


def check_call(options: Mapping[str, object], named: Iterable[str]) -> None:
    """Refuse a keyword that is neither an option of the call nor of any method."""
    check_names(options, {"method", *named, *(option for m in METHODS.values() for option in m.options)}, _HOME)
