"""The texts of one call: read, explained batch by batch, and made into ``Explanation`` objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..errors import InputError, NonFiniteError
from ..explanation import Explanation, Token
from ..methods import Method
from ..models.precision import matmul_precision
from ..models.provenance import provenance
from ..models.signature import ModelSignature, longest_alike, task_of
from ..passes.dispatch import PassRunner
from ..passes.hidden_states import place_first
from ..text.batching import Attribution, Item, allowed_waste, pad
from ..text.items import groups_of, item_of, one_each
from ..text.tokenization import Encoded, encode, split
from ..text.units import predicted_token


@dataclass(frozen=True)
class Texts:
    """Tokenised texts, and what is to be explained of each.

    Attributes:
        encoded: The texts as tokens.
        items: Of each, which prediction is explained.
        tokenizer: The model's, or ``None``.
        several: Whether several texts were given, so that an error has to say which it is about.
    """

    encoded: list[Encoded]
    items: list[Item]
    tokenizer: Any
    several: bool

    @classmethod
    def read(cls, model: PreTrainedModel, tokenizer: Any, text: Any, asked: Mapping[str, Any]) -> Texts:
        """Tokenise what a user gave; ``asked`` has ``target``, ``contrast`` and ``position``, for all texts or each.

        Raises:
            InputError: Something cannot be used. Of several texts, it names the one.
        """
        _, several = split(text)
        encoded = encode(tokenizer, text)
        signature = ModelSignature.of(model)
        if signature.task == "causal":
            encoded = [e.without_closing() for e in encoded]
        each = zip(*(one_each(value, name, len(encoded)) for name, value in asked.items()), strict=True)
        items = []
        for i, (e, (target, contrast, position)) in enumerate(zip(encoded, each, strict=True)):
            with _naming(i, several):
                item = item_of(signature, tokenizer, e, target=target, contrast=contrast, position=position)
                items.append(item)
        return cls(encoded, items, tokenizer, several)

    def explained_by(
        self,
        method: Method,
        settings: dict[str, Any],
        runner: PassRunner,
        batch_tokens: int,
        progress: bool | None,
    ) -> list[Explanation]:
        """The explanations of all texts by one method, in their order."""
        model, items = runner.model, self.items
        runner.log_unused_options(method.name, has_passes=method.has_passes)
        execution = {**asdict(runner.execution), "float32_matmul_precision": matmul_precision()}
        about = provenance(model, method.name, settings, execution)
        function = method.run_by(runner)
        waste = allowed_waste(model, task_of(model)) if len(items) > 1 else 0.0
        groups = groups_of(items, batch_tokens, waste, partial(longest_alike, model))

        def finished(i: int, result: Attribution) -> Explanation:
            with _naming(i, self.several):
                return self._explanation(i, result, method, settings, about)

        def finish(group: list[int], results: list[Attribution]) -> list[tuple[int, Explanation]]:
            return [(i, finished(i, result)) for i, result in zip(group, results, strict=True)]

        def computed(group: list[int]) -> list[Attribution]:
            return function(pad([items[i] for i in group], model), **settings)

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

    def _explanation(
        self, i: int, result: Attribution, method: Method, settings: dict[str, Any], about: dict[str, Any]
    ) -> Explanation:
        encoded, item, tokenizer = self.encoded[i], self.items[i], self.tokenizer

        def token(i: int) -> Token:
            return predicted_token(tokenizer, i, encoded.token_ids[: item.position + 1])

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
            method=method.name,
            measures=method.measures,
            at=place_first(settings.get("at", "input"))[0],
            text=encoded.text,
            layers=result.layers,
            by_layer=result.by_layer,
            by_head=result.by_head,
            components=result.components,
            provenance={**about, **ids},
        )


@contextmanager
def _naming(index: int, several: bool) -> Iterator[None]:
    """Let an error say which of several texts it is about."""
    try:
        yield
    except (InputError, NonFiniteError) as error:
        if not several:
            raise
        raise type(error)(f"text[{index}]: {error}") from None
