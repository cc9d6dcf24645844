"""The texts of one call: read, explained batch by batch, and made into ``Explanation`` objects.

Of one text several predictions may be asked for: lists of targets, contrasts or positions. They are read as if the text had been
given so often, and explained from one forward pass where the method is one backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from ..errors import LrpxError
from ..methods import Method
from ..methods.together import explain_together, takes_one_pass
from ..models.reader import image_processor_of, tokenizer_of
from ..models.signature import ModelSignature, padding_id
from ..passes.dispatch import PassRunner
from ..passes.hidden_states import place_first
from ..passes.scoring import Objective
from ..results.explanation import Explanation
from ..results.spans import explained
from ..results.tokens import NO_TOKEN, Token
from ..tasks.changed_images import images_in
from ..tasks.image_row import with_images
from ..tasks.image_text import (
    check_images,
    encode_with_images,
    images_of_each,
    places_with_images,
    settings_with_images,
)
from ..text.batching import Attribution, Function, Item, pad
from ..text.given import name_of, split
from ..text.grouping import groups_of
from ..text.items import check_asked, lists_of, one_each
from ..text.plain_ids import PlainIds
from ..text.suspect import notes_of
from ..text.tokenization import Encoded, encoder
from ..text.units import predicted_token, special_ids
from .collected import Collected, Explain, without_collections, without_full_collections
from .encodings import Encodings
from .heads import with_heads, without_heads
from .predictions import (
    LIKELIEST,
    SHOWN,
    check_function,
    ends_with_space,
    likeliest_is_contrast,
    likelihoods,
    mistakes,
    other_rules,
    remarks,
)
from .several_tokens import Several, described, explain_several, incomparable, read_item
from .spelling import averages_in_generate, misspelt


class Texts(Collected):
    """Tokenised texts, and what is to be explained of each.

    Attributes:
        given: The texts, one by one, as they were given; one text so often as predictions of it are asked for.
        signature: What the model reads and predicts.
        several: Whether several texts, or several predictions of one, are explained.
        of: What there are several of, for errors: ``"text"``, or the first of ``"target"``, ``"contrast"`` and ``"position"``
            that is a list for one text.
        encoded, items: Of each text that can be used, by its index: the tokens, and which prediction is explained.
        together: Of each text of which more is explained than a logit or a difference of two: what.
        failed: Of each text that cannot be explained, by its index: why. Filled only if errors are collected.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        reader: Any,
        text: Any,
        asked: Mapping[str, Any],
        *,
        images: Any = None,
        objective: Objective = "logit",
        collect: bool,
    ) -> None:
        """Tokenise what a user gave; ``asked`` has ``target``, ``contrast``, ``position`` and ``explains``, for all or each.

        Raises:
            InputError: Something cannot be used. Of several texts, it names the one.
        """
        self.model, self.reader, self.tokenizer = model, reader, tokenizer_of(reader)
        self.signature = ModelSignature.of(model)
        self.special_ids = special_ids(self.tokenizer)
        self.given, self.several = self._split(model, text)
        self._images = images_of_each(images, self.several, len(self.given))
        lists = {} if self.several else lists_of({name: value for name, value in asked.items() if name != "explains"})
        self.of, self.objective = next(iter(lists), "text"), objective
        self.failed: dict[int, LrpxError] = {}
        self.encoded: dict[int, Encoded] = {}
        self.items: dict[int, Item] = {}
        self._plain: PlainIds | None = None
        self.together: dict[int, Several] = {}
        self._given: dict[int, dict[str, Any]] = {}  # of those, what was asked
        self.collect = collect and self.several
        with without_collections():
            read = self._read(model)
            if lists:
                [count] = {len(values) for values in lists.values()}
                self.given, read = self.given * count, dict.fromkeys(range(count), read[0])
                self.several, self.collect = True, collect
            self._ask(model, read, {name: one_each(value, name, len(self.given)) for name, value in asked.items()})
        self._warn_of({i: item.notes for i, item in self.items.items()})

    def _split(self, model: PreTrainedModel, text: Any) -> tuple[list[Any], bool]:
        """The texts that were given, one by one, and whether there were several."""
        return split(text)

    def _read(self, model: PreTrainedModel) -> dict[int, Any]:
        """The tokens of each text, which are read before it is known what is asked of it."""
        encode_one = encoder(self.tokenizer)
        found = Encodings(self.given, encode_one)
        if self.several and self._images.count(None) == len(self.given):
            self._plain = PlainIds.among(self.given, self.signature, self.tokenizer, padding_id(model, self.tokenizer))
        for i, one in enumerate(self.given):
            if self._plain is not None and self._plain.which[i]:
                continue
            with self._trying(i):
                encoded = encode_with_images(model, self.reader, one, self._images[i], encode_one)
                found[i] = encoded.without_closing() if self.signature.task == "causal" else encoded
        return found

    def _ask(self, model: PreTrainedModel, read: dict[int, Any], columns: dict[str, list[Any]]) -> None:
        """Find what is explained of each text, from its value in each column."""
        self.encoded, self.explains = read, columns.pop("explains")
        if self._plain is not None and self.explains.count(None) == len(self.given):
            self.items = self._plain.items(self.given, columns, self.signature)
        closer = [i for i in range(len(self.given)) if i not in self.items and i not in self.failed]
        notes = self._known_notes(model, [self.encoded[i] for i in closer], others=bool(self.items))
        for i, known in zip(closer, notes, strict=True):
            with self._trying(i):
                encoded = self.encoded[i]
                asked_of_it = {name: column[i] for name, column in columns.items()}
                check_asked(asked_of_it, self.explains[i], self.objective)
                item, several = read_item(self.signature, self.tokenizer, encoded, self.objective, asked_of_it)
                called = averages_in_generate(asked_of_it["contrast"]) if self.signature.task == "causal" else ()
                self.items[i] = replace(item, notes=(*known, *item.notes, *called)) if known or called else item
                if several is not None:
                    self.together[i] = several
                    self._given[i] = asked_of_it
        self.items = dict(sorted(self.items.items()))

    def _known_notes(
        self, model: PreTrainedModel, read: Sequence[Encoded], *, others: bool = False
    ) -> list[tuple[str, ...]]:
        """What the user has to know of texts that could be tokenised; ``others``: there are more, which are plain ids."""
        padding = padding_id(model, self.tokenizer)
        return notes_of(read, self.tokenizer, padding, self.signature, others=others)

    def check_method(self, method: Method, settings: dict[str, Any]) -> None:
        """Refuse a method that cannot explain the model, or what is asked of a text, before anything is computed.

        Raises:
            InputError: It cannot explain what is asked.
            UnsupportedModelError: It cannot explain the model.
            ImportError: A package that it needs is not installed.
        """
        pixels = "pixels" in place_first(settings.get("at") or "input")
        for i, item in self.items.items():
            if item.images or pixels or item.function is not None:
                with self._trying(i):
                    check_images(self.model, item, method, settings)
                    check_function(item, method)
        method.check_model(self.model)

    def explained_by(
        self,
        method: Method,
        settings: dict[str, Any],
        runner: PassRunner,
        batch_tokens: int,
        progress: bool | None,
    ) -> dict[int, Explanation]:
        """The explanation of each text by one method."""
        about: dict[str, Any] = {}
        one = self._takes_one_pass(method, settings, runner)
        together = one or self.objective == "logprob"
        function, groups = method.run_by(runner), self._groups(runner.model, batch_tokens, together=together, one=one)
        own = with_heads(
            settings, sum(len(self.items[i].token_ids) for group in groups for i in group), runner.execution
        )
        found: dict[int, Explanation] = {}
        notes: list[str] = []
        doubtful: dict[int, Sequence[str]] = {}

        def finish(group: list[int], results: Sequence[Attribution]) -> None:
            notes.extend(note for result in results for note in result.notes)
            for i, result in zip(group, results, strict=True):
                with self._trying(i):
                    e = self._explanation(i, result, method, settings, about)
                    if method.measures != "mixture":
                        doubtful[i], remarked = self._doubts(i, e, result)
                        if more := (*doubtful[i], *remarked):
                            e = e.noted(more)
                    found[i] = e

        waiting: list[tuple[list[int], Sequence[Attribution]]] = []

        def finish_waiting() -> None:
            if not about:
                about.update(runner.provenance(method.name, settings))
                runner.log_unused_options(method.name, has_passes=method.has_passes)
            while waiting:
                finish(*waiting.pop(0))

        def computed(group: list[int]) -> Sequence[Attribution]:
            items = [self.items[i] for i in group]
            with runner.meanwhile(finish_waiting):  # made into explanations while a GPU is at this group
                if together:
                    return explain_together(runner, method, own, items, self.objective, likeliest=LIKELIEST)
                return self._attributions(function, group, method, own)

        with without_full_collections() if len(groups) > 1 else nullcontext():
            for part in self._in_groups(groups, computed, method.name, progress):
                waiting.append(part)
            finish_waiting()
        for i, several in self.together.items():
            if i not in self.failed:
                with self._trying(i):
                    result, of_all = explain_several(runner, self.items[i], several, method, settings)
                    e = self._explanation(i, result, method, settings, about)
                    e = described(e, of_all, self.tokenizer)
                    doubtful[i] = (*incomparable(of_all.several), *self._misspelt(i, runner, of_all.probabilities))
                    found[i] = e.noted(doubtful[i])
        runner.warn_once(notes)
        self._warn_of(doubtful)
        return found

    def _misspelt(self, i: int, runner: PassRunner, probabilities: Mapping[str, float]) -> tuple[str, ...]:
        """Warnings about a text of which several tokens are explained together."""
        encoded, position = self.encoded[i], self.items[i].position
        found = ends_with_space(encoded, position, self.tokenizer)
        return (*found, *misspelt(runner, self.tokenizer, encoded, self.items[i], self._given[i], probabilities))

    def _takes_one_pass(self, method: Method, settings: dict[str, Any], runner: PassRunner) -> bool:
        """Whether several predictions of one text are explained from one forward pass."""
        positions = [item.position for item in self.items.values()]
        return self.of != "text" and takes_one_pass(runner, method, settings, positions)

    def _attributions(
        self, function: Explain, group: list[int], method: Method, settings: dict[str, Any]
    ) -> Sequence[Attribution]:
        """What a method gives for a group of texts."""
        item, batch = self.items[group[0]], pad([self.items[i] for i in group], self.model, likeliest=LIKELIEST)
        settings = settings_with_images(item, method, settings)
        if batch.with_images and method.changes_pixels:
            batch = replace(batch, images=images_in(self.model, self.encoded[group[0]], settings["at"]))
        elif "at" in settings:
            settings = {**settings, "at": places_with_images(item, settings["at"])}
        return function(batch, **settings)

    def _doubts(self, i: int, e: Explanation, result: Attribution) -> tuple[Sequence[str], Sequence[str]]:
        """What is probably a mistake, to warn of, and what says little, to note."""
        plain = self.objective == "logit" and self.items[i].function is None
        return mistakes(self.encoded[i], e, result.predictions, self.tokenizer), remarks(e) if plain else ()

    def _groups(self, model: PreTrainedModel, batch_tokens: int, *, together: bool, one: bool) -> list[list[int]]:
        """Indices of texts to explain in one batch, or ``together``: of ``one`` text all, of several each by itself."""
        indices = [i for i in self.items if i not in self.failed and i not in self.together]
        if together:
            return [indices] * bool(indices) if one else [[i] for i in indices]
        groups = groups_of(model, [self.items[i] for i in indices], batch_tokens)
        return [[indices[n] for n in group] for group in groups]

    def _explanation(
        self, i: int, result: Attribution, method: Method, settings: dict[str, Any], about: dict[str, Any]
    ) -> Explanation:
        encoded, item, tokenizer = self.encoded[i], self.items[i], self.tokenizer

        def token(i: int) -> Token:
            return predicted_token(tokenizer, i, encoded.token_ids[encoded.source : item.position + 1])

        contrast = None if item.contrast is None else token(item.contrast)
        target = token(result.target) if item.function is None else self._named_function(i, item.function)
        top = [] if result.predictions is None else [token(i) for i in result.predictions.ids[:SHOWN].tolist()]
        if result.target == item.contrast:
            raise likeliest_is_contrast(target, top[1] if len(top) > 1 else None)
        told: dict[str, Any] = {"target": target, "contrast": contrast}
        told |= likelihoods(result.predictions, top, of_target=item.function is None)
        told["explains"] = "function" if item.function else explained(self.objective, None, 1)
        return self._made(i, result, method, settings, about, told)

    def _named_function(self, i: int, function: Function) -> Token:
        """The function that is explained of a text, by its name, in place of a token."""
        name = self.explains[i] or name_of(function)
        return Token(NO_TOKEN, name, name)

    def _made(
        self,
        i: int,
        result: Attribution,
        method: Method,
        settings: dict[str, Any],
        about: dict[str, Any],
        told: dict[str, Any],
    ) -> Explanation:
        """The explanation of a text; ``told`` are its fields that depend on the task, such as ``target``."""
        item, processor = self.items[i], image_processor_of(self.reader)
        given, settings = settings, settings_with_images(item, method, settings)
        if settings is not given:
            about = {**about, "options": {**about["options"], "at": list(settings["at"])}}  # as JSON holds it
        heads = settings.get("heads") is True
        encoded, result, position = with_images(
            self.model, self.encoded[i], result, self.items[i].position, processor, heads=heads
        )
        target, contrast = told["target"], told["contrast"]
        ids: dict[str, Any] = {"target": None if item.function else target.id, "target_text": target.text}
        ids |= {"contrast": contrast and contrast.id, "contrast_text": contrast and contrast.text}
        ids |= {"objective": self.objective} if self.objective != "logit" else {}
        return Explanation(
            tokens=encoded.tokens,
            token_ids=list(encoded.token_ids),
            units=encoded.units,
            segments=encoded.segments,
            special=tuple(n for n, i in enumerate(encoded.token_ids) if i in self.special_ids),
            images=encoded.images,
            relevance=result.relevance,
            value=result.value,
            residual=result.residual,
            position=position,
            method=method.name,
            measures=method.measures,
            at=place_first(settings.get("at", "input"))[0],
            text=encoded.text,
            layers=result.layers,
            by_layer=result.by_layer,
            by_attention=result.by_attention,
            by_mlp=result.by_mlp,
            by_head=result.by_head,
            components=result.components,
            notes=(
                *encoded.notes,
                *item.notes,
                *result.notes,
                *other_rules(method, settings),
                *without_heads(settings, result, several=i in self.together),
            ),
            provenance={**about, **ids},
            **told,
        )
