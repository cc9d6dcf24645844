"""``lrpx.Explainer``: what users call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

from ..errors import InputError, names_checked
from ..methods import get_method
from ..methods.options import methods_with_options
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
from .arguments import (
    CallOptions,
    Choices,
    Explains,
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
from .keywords import HOME, check_call, named_after_the_text
from .questions import Questions
from .reading import read_texts

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of the standard library from Python 3.11 on

BATCH_TOKENS = 4096
NO_TEXT = "no text given: explainer(text), or lrpx.explain(model, tokenizer, text)."
IMAGES_ALONE = (
    'images= are those of a text, and no text is given: explainer("What is in the picture?", images=["cat.png"]). A model that '
    'classifies images is given them instead of a text: explainer("cat.png").'
)


class Explainer(Questions):
    """Explains what one model predicts, and keeps what makes the next call faster.

    Kept are CUDA graphs, compiled passes, and what was learnt about the model. The contract: **weights may change in place at
    any time; whatever else you change in the model (modules, adapters, hooks, configuration, attributes), call** ``refresh()``.
    As a safety net each call compares, while the device works, the addresses of the weights, the modules, the numbers of hooks,
    training mode, and the plain values that modules and configurations hold (numbers, strings, and short lists of them). A
    difference refreshes by itself. A model that runs code from outside PyTorch, transformers and PEFT (a hook, a module of your
    own) is neither captured nor compiled; the log says so. Weights that were moved or replaced stay in memory until then.

    An ``Explainer`` may be shared by threads: one at a time explains with a model.

    Args:
        model: A model of transformers in eval mode, also one with PEFT's adapters: a causal or masked language model, an
            encoder-decoder model that writes text, a classifier of texts, tokens or images, one for multiple choice or question
            answering, or a text encoder. Or a name or path for ``lrpx.load``. Default: the default model, ``"smollm2-135m"``.
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

    @names_checked(HOME)
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
        if isinstance(tokenizer, str | os.PathLike):
            raise InputError(
                f"tokenizer={str(tokenizer)!r} is a name. Give the tokenizer itself, "
                f"AutoTokenizer.from_pretrained({str(tokenizer)!r}), or only the name of a model: lrpx.Explainer('org/name')."
            )
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
    @named_after_the_text
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
                after a string are left out for a causal model, which goes on from the last token of the text. Of a model that
                reads images only, images in place of texts; a batch ``[1, 3, height, width]`` is one image, a list several.
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
        for one in chosen:
            texts.check_method(*one)
        by_method = [texts.explained_by(*one, self._runner, self.batch_tokens, progress) for one in chosen]
        if not texts.several and not several_methods:
            return by_method[0][0]
        complete = [i for i in texts.items if i not in texts.failed]
        failures = (Failure(i, texts.given[i], error) for i, error in sorted(texts.failed.items()))
        return Explanations((found[i].numbered(i) for i in complete for found in by_method), failures)
