"""The texts of one call of an encoder-decoder model: sources, each with what the decoder has read and what is explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel

from ..tasks.sources import check_no_images, encode_source, split_sources
from ..tasks.text2text import asked_of_pair, begins_otherwise, one_prefix_each
from ..text.items import check_asked
from .several_tokens import read_item
from .spelling import averages_in_generate
from .texts import Texts


class PairTexts(Texts):
    """Sources and the beginnings of their targets."""

    def __init__(
        self, model: PreTrainedModel, reader: Any, text: Any, asked: Mapping[str, Any], prefix: Any, **options: Any
    ) -> None:
        """Tokenise what a user gave; ``prefix`` is the beginning of the targets, the rest as for ``Texts``.

        Raises:
            InputError: Something cannot be used. Of several texts, it names the one.
        """
        self._prefix = prefix
        super().__init__(model, reader, text, asked, **options)

    def _split(self, model: PreTrainedModel, text: Any) -> tuple[list[Any], bool]:
        source = self.signature.source
        return split_sources(source, text) if source and source.features else super()._split(model, text)

    def _read(self, model: PreTrainedModel) -> dict[int, Any]:
        source = self.signature.source
        if source is None or not source.features:
            return super()._read(model)
        for images in self._images:
            check_no_images(model, images)
        found = {}
        for i, one in enumerate(self.given):
            with self._trying(i):
                found[i] = encode_source(model, self.reader, one)
        return found

    def _ask(self, model: PreTrainedModel, read: dict[int, Any], columns: dict[str, list[Any]]) -> None:
        self.encoded, self.explains = dict(read), columns.pop("explains")
        notes = self._known_notes(model, list(self.encoded.values()))
        prefixes = one_prefix_each(self._prefix, len(self.given))
        for (i, source), known in zip(read.items(), notes, strict=True):
            with self._trying(i):
                asked_of_it = {name: column[i] for name, column in columns.items()}
                check_asked(asked_of_it, self.explains[i], self.objective)
                self.encoded[i], asked = asked_of_pair(model, self.tokenizer, source, prefixes[i], asked_of_it)
                item, several = read_item(self.signature, self.tokenizer, self.encoded[i], self.objective, asked)
                begun = begins_otherwise(model, self.tokenizer, self.encoded[i])
                called = averages_in_generate(asked_of_it["contrast"])
                self.items[i] = replace(item, notes=(*known, *item.notes, *begun, *called))
                if several is not None:
                    self.together[i] = several
                    self._given[i] = asked
