"""What an ``Explainer`` can be asked beside a call, each by a method of its own."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from transformers import PreTrainedModel

from ..errors import InputError
from ..methods import Method
from ..methods.options import methods_with_options
from ..passes.dispatch import PassRunner
from ..results.explanation import Explanation
from ..results.flow import RelevanceFlow
from ..results.generation import GenerationExplanation
from ..results.tokens import Prediction
from .arguments import Chat, GenerateOptions, Ids, Images, OneMethod, Prefix, Reader, Target
from .keywords import check_call

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from typing_extensions import Unpack  # of the standard library from Python 3.11 on


class Questions:
    """What is asked of one text, or two: likely tokens, what is generated, how relevance flows, why embeddings are similar.

    Attributes:
        model: The model.
        reader: What reads its inputs, or ``None``.
        tokenizer: Its tokenizer, or ``None``.
        method: One of ``lrpx.METHODS``, used where none is named.
        batch_tokens: Tokens per batch, padding included.
    """

    model: PreTrainedModel
    reader: Reader | None
    tokenizer: Any
    method: str
    batch_tokens: int
    _runner: PassRunner

    def _chosen(
        self, method: OneMethod | None, options: Mapping[str, Any], question: Callable[..., Any]
    ) -> tuple[Method, dict[str, Any]]:
        """The method that explains, and its options.

        Raises:
            InputError: An option is neither one of the method nor of the question.
        """
        check_call(options, question.__kwdefaults__ or ())
        [chosen] = methods_with_options([self.method if method is None else method], options)
        return chosen

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
        spans: Sequence[tuple[int, int]] | tuple[int, int] | None = None,
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
            spans: Explain these spans of generated tokens, as (start, stop) or a list of such pairs, each by one backward
                pass. Default: each token.
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

        chosen, settings = self._chosen(method, options, Questions.generate)
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
            share: At every place the fewest tokens are kept that carry this share of its mass (sum of absolute relevance), the
                tokens that join them to the logit, and between them the fewest edges. 1 keeps everything. Default: 0.9.
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

        chosen, settings = self._chosen(method, options, Questions.flow)
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
                backward pass for each number of both embeddings. They do not add up to what the tokens add up to, and need not
                have their signs, where biases or softmax take a part.
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

        chosen, settings = self._chosen(method, options, Questions.similarity)
        asked = AskedSimilarity(metric, pooling, pairs)
        return explain_similarity(self._runner, self.tokenizer, (text, other), chosen, settings, asked)
