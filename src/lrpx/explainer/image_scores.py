"""How well an image and a text fit, by CLIP, SigLIP and their relatives: relevance of the patches and of the text's tokens.

1. The score is ``s * (i / |i|) . (t / |t|) + b``, with the embeddings i and t of image and text; s and b are the model's own. The
   norms are constants, and the product of the two sides gives half of the relevance to each, as every product of two signals.
2. ``target`` is the text. With a ``contrast``, another text, the difference of their scores is explained: the parts of the second
   text count negatively.
3. Each text is read together with the image: a batch of pairs, of which the diagonal of the scores counts.
4. A function of the scores with several texts, ``choices``, is explained by their maps, weighted by its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError
from ..methods import Method
from ..models.reader import image_processor_of, tokenizer_of
from ..passes.dispatch import PassRunner
from ..passes.functions import value_and_gradient
from ..passes.hidden_states import place_first
from ..results.explanation import Explanation
from ..results.tokens import NO_TOKEN, Segment, Token, Unit
from ..tasks.image_score import FULL_LENGTH, IMAGE, TEXT, PairScores, check_towers
from ..tasks.patches import Seen
from ..text.batching import Attribution, Function
from ..text.given import name_of, shortened
from ..text.items import function_of
from ..text.tokenization import Encoded, encoder
from ..text.units import special_ids
from .collected import Explain
from .images import Images


class ImageScores(Images):
    """Images, each with one text or two."""

    def __init__(
        self, runner: PassRunner, reader: Any, image: Any, asked: Mapping[str, Any], choices: Any, *, collect: bool
    ) -> None:
        """Read what a user gave; ``asked`` has ``target`` and ``contrast``, texts for all images or each.

        ``choices`` are the texts whose scores a function given as target gets, the same for all images.

        Raises:
            InputError: Something cannot be used. Of several images, it names the one.
            UnsupportedModelError: The model has no tower for each side.
        """
        check_towers(runner.model)
        self.tokenizer, self._choices = tokenizer_of(reader), choices
        self.texts: dict[int, list[Encoded]] = {}
        super().__init__(runner, image_processor_of(reader), image, asked, collect=collect)

    @property
    def tower(self) -> PreTrainedModel:
        """What reads the image."""
        tower: Any = self.model.vision_model
        return tower  # type: ignore[no-any-return]

    def _ask(self, i: int, target: Any, contrast: Any) -> tuple[int | None, int | None]:
        if self.tokenizer is None:
            raise InputError(
                f"{type(self.model).__name__} reads a text through its tokenizer, which is missing.",
                python="Type: lrpx.Explainer(model, transformers.AutoProcessor.from_pretrained(name)).",
                command="Load a model that has the files of its processor beside it.",
            )
        if target is None:
            raise InputError(
                f"{type(self.model).__name__} scores how well an image and a text fit, and no text is given.",
                python='Type: explainer(image, target="a photo of a cat"), perhaps with contrast="a photo of a dog".',
                command='Give one: target="a photo of a cat", perhaps with contrast="a photo of a dog".',
                app="Type one in “Explain”, such as: a photo of a cat.",
            )
        if function_of(target, contrast) is not None:
            return self._ask_of_choices(i, name_of(target))
        if self._choices is not None:
            raise InputError(
                "choices= are the texts whose scores a function gets: target=lambda scores: scores.log_softmax(0)[0]. Leave them "
                "out, or give one."
            )
        if target == contrast:
            raise InputError(f"target and contrast are both {target!r}: their difference is 0. Give two that differ.")
        given = {"target": target, "contrast": contrast}
        self.texts[i] = [self._encoded(role, text) for role, text in given.items() if text is not None]
        return 0, None if contrast is None else 1

    def _ask_of_choices(self, i: int, name: str) -> tuple[int, None]:
        """The texts of a function."""
        texts = self._choices
        if not isinstance(texts, list | tuple) or not texts:
            raise InputError(
                f"the target is the function {name}, which gets the scores of the image with several texts: "
                f'choices=["a photo of a cat", "a photo of a dog"]. Given: {shortened(texts)}.'
            )
        self.texts[i] = [self._encoded(f"choices[{n}]", text) for n, text in enumerate(texts)]
        return 0, None

    def _encoded(self, role: str, text: Any) -> Encoded:
        """One text as its tower reads it."""
        if not isinstance(text, str) or not text.strip():
            raise InputError(f'{role}={text!r}: give a text, such as "a photo of a cat".')
        config = self.model.config.text_config
        encoded, longest = encoder(self.tokenizer)(text), config.max_position_embeddings
        if len(encoded.token_ids) > longest:
            raise InputError(
                f"{role} has {len(encoded.token_ids)} tokens, and {type(self.model).__name__} reads {longest}. Shorten it."
            )
        if self.model.config.model_type not in FULL_LENGTH:
            return encoded
        return encoded.followed_by([self.tokenizer.pad_token_id] * (longest - len(encoded.token_ids)), self.tokenizer)

    def _results(self, function: Explain, group: list[int], settings: dict[str, Any]) -> Sequence[Attribution]:
        place, *others = place_first(settings["at"])
        at = (IMAGE if place == "input" else place, TEXT, *(IMAGE if name == "input" else name for name in others))
        pairs = [(i, encoded) for i in group for encoded in self.texts[i]]
        batch = self._batch([i for i, _ in pairs], PairScores())
        batch = replace(batch, inputs={**batch.inputs, **self._text_inputs([text for _, text in pairs])})
        if "heads" in settings:  # of two towers, which have no tokens in common
            settings = {**settings, "heads": False}
        results = iter(function(batch, **{**settings, "at": at}))
        found = []
        for i in group:
            alone = [next(results) for _ in self.texts[i]]
            parts = [self._with_text(result, text) for result, text in zip(alone, self.texts[i], strict=True)]
            if i in self.functions:
                found.append(_weighted(parts, self.functions[i][0], len(alone[0].relevance)))
                continue
            first, *second = parts
            found.append(_difference(first, second[0], len(alone[0].relevance)) if second else first)
        return found

    def _text_inputs(self, texts: list[Encoded]) -> dict[str, Tensor]:
        """Ids and masks, padded on the right to one length."""
        length = max(len(text.token_ids) for text in texts)
        rows = [
            [*text.token_ids, *[self.tokenizer.pad_token_id or 0] * (length - len(text.token_ids))] for text in texts
        ]
        masks = [[1] * len(text.token_ids) + [0] * (length - len(text.token_ids)) for text in texts]
        device = self.model.device
        inputs = {"input_ids": torch.tensor(rows, device=device)}
        if self.model.config.model_type not in FULL_LENGTH:
            inputs["attention_mask"] = torch.tensor(masks, device=device)
        return inputs

    def _with_text(self, result: Attribution, text: Encoded) -> Attribution:
        """The relevance of the image's tokens and, behind them, of the text's."""
        layers, length = dict(result.layers), len(text.token_ids)
        of_text = layers.pop(TEXT).sum(-1) if TEXT in layers else np.zeros(length)  # where pixels alone are changed
        if of_text[length:].any():
            raise UnsupportedModelError(
                f"{type(self.model).__name__} lets padding of a text take part in its score. Give texts one by one."
            )
        residual = None if result.residual is None else result.residual - float(of_text.sum())
        return replace(
            result, relevance=np.concatenate([result.relevance, of_text[:length]]), residual=residual, layers=layers
        )

    def _explanation(
        self, i: int, result: Attribution, seen: Seen, method: Method, settings: dict[str, Any], about: dict[str, Any]
    ) -> Explanation:
        texts = self.texts[i]
        count = sum(len(text.token_ids) for text in texts)
        of_texts = result.relevance[-count:]
        image = replace(result, relevance=result.relevance[:-count])
        e = super()._explanation(i, image, seen, method, settings, about)
        start, special = len(e.tokens), special_ids(self.tokenizer)
        tokens, ids, units, marked = list(e.tokens), list(e.token_ids), list(e.units), list(e.special)
        segments = [Segment("image", 0, start)]
        names = [f"text {n + 1}" for n in range(len(texts))] if i in self.functions else ["text", "contrast"]
        for name, text in zip(names, texts, strict=False):
            begin = len(tokens)
            tokens += text.tokens
            ids += text.token_ids
            units += [Unit(unit.start + begin, unit.end + begin, unit.text) for unit in text.units]
            marked += [begin + n for n, token in enumerate(text.token_ids) if token in special]
            segments.append(Segment(name, begin, len(tokens)))
        return replace(
            e, tokens=tokens, token_ids=ids, units=units, special=tuple(marked), segments=tuple(segments),
            relevance=np.concatenate([e.relevance, of_texts]),
            explains="function" if i in self.functions else "image-text score of",
        )  # fmt: skip

    def _told(self, i: int, result: Attribution) -> dict[str, Any]:
        if i in self.functions:
            name = self.functions[i][1]
            return {"target": Token(NO_TOKEN, name, name)}
        roles = zip(("target", "contrast"), self.texts[i], strict=False)
        return {role: Token(n, text.text or "", text.text or "") for n, (role, text) in enumerate(roles)}


def _difference(first: Attribution, second: Attribution, image: int) -> Attribution:
    """What the first text gives, minus what the second one does; the first ``image`` tokens are those of both."""
    return _sum([first, second], [1.0, -1.0], first.value - second.value, image)


def _weighted(parts: Sequence[Attribution], function: Function, image: int) -> Attribution:
    """The relevance of a function of the scores with several texts: theirs, weighted by its gradient."""
    scores = torch.tensor([part.value for part in parts], dtype=torch.float64)
    value, gradient = value_and_gradient(function, scores)
    return _sum(parts, gradient.tolist(), float(value), image)


def _sum(parts: Sequence[Attribution], weights: Sequence[float], value: float, image: int) -> Attribution:
    """Maps of one image with several texts as one: its ``image`` tokens, and behind them those of all texts."""
    if any(part.residual is None for part in parts):
        raise InputError(
            "this method does not decompose the score, so what it gives for several texts cannot be added up.",
            python='Type: method="gradient-x-input", or give one text.',
            app="Choose another method, such as gradient-x-input, or leave “and not” empty.",
        )
    pairs = list(zip(parts, weights, strict=True))
    of_image = sum(weight * part.relevance[:image] for part, weight in pairs)
    relevance = np.concatenate([np.asarray(of_image), *(weight * part.relevance[image:] for part, weight in pairs)])
    layers = {name: np.asarray(sum(weight * part.layers[name] for part, weight in pairs)) for name in parts[0].layers}
    components = {name: sum(weight * part.components[name] for part, weight in pairs) for name in parts[0].components}
    residual = value - float(relevance.sum()) - float(sum(components.values()))
    return replace(parts[0], relevance=relevance, value=value, residual=residual, layers=layers, components=components)
