"""The images of one call: read, explained in batches of one size, and made into ``Explanation`` objects.

Images need no padding, so a batch gives what each image gives alone. Relevance is taken where the first block is given the
patches, or at the pixels; then it is added up by patch, and the relevance of every pixel is in ``layers["pixels"]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import InputError, LrpxError, UnsupportedModelError
from ..methods import Method
from ..models.heads import IMAGE_TASKS, TEXT2TEXT
from ..models.lock import lock_of
from ..models.placement import entry_device, execution_device
from ..models.signature import EncoderInput, task_of
from ..passes.dispatch import PassRunner
from ..passes.edits import tokens_per_image
from ..passes.hidden_states import place_first
from ..results.explanation import Explanation
from ..results.images import ImagePatches
from ..results.tokens import NO_TOKEN, Token, Unit
from ..tasks.image_input import ImageInput, as_image, read_image, split_images
from ..tasks.labels import Labels
from ..tasks.patches import PatchGrid, Seen, cells, default_place, noted_patches, own_tokens, patch_names
from ..tasks.pictures import png_of
from ..tasks.text_classification import LabelScores
from ..text.batching import Attribution, Batch, Function, Readout
from ..text.given import as_python, name_of, shortened
from ..text.image_parts import ImageParts
from ..text.items import check_name, function_of, one_each
from .collected import Collected, Explain
from .heads import with_heads, without_heads
from .predictions import other_rules

SHOWN = 5  # of the likeliest labels
PATCHES_MOST = 256  # of an image of 256 x 256 in patches of 16 x 16


def is_given_pictures(model: PreTrainedModel) -> bool:
    """Whether pictures take the place of texts in calls of a model: it classifies them, or describes them without a question."""
    task = task_of(model)
    return task in IMAGE_TASKS or (task == TEXT2TEXT and EncoderInput.of(model).is_image)


def check_images_asked(model: PreTrainedModel, asked: Mapping[str, Any], objective: str) -> None:
    """Refuse what a call was given that is for texts.

    Raises:
        InputError: The error names it.
    """
    name = type(model).__name__
    for part, value in asked.items():
        if part not in ("target", "contrast", "explains") and value is not None:
            raise InputError(f"{part}= is for texts, and {name} reads images. Leave it out.")
    if objective != "logit":
        raise InputError(f"objective={objective!r} is for language models. {name} is explained by its logits.")


class Images(Collected):
    """Images, and which label of each is explained. Attributes are those of ``Texts``, for images.

    Attributes:
        items: Target and contrast of each image that can be used, by its index.
        functions: What is explained of it in place of a label, and the name of that.
    """

    of = "image"

    def __init__(
        self, runner: PassRunner, processor: Any, image: Any, asked: Mapping[str, Any], *, collect: bool
    ) -> None:
        """Read what a user gave; ``asked`` has ``target``, ``contrast`` and ``explains``, for all images or each.

        Raises:
            InputError: Something cannot be used. Of several images, it names the one.
        """
        self.model, self.task = runner.model, task_of(runner.model)
        self.given, self.several = split_images(image)
        self.collect = collect and self.several
        self.failed: dict[int, LrpxError] = {}
        for name in ("target", "contrast"):
            if not self.several and isinstance(as_python(asked[name]), list):
                raise InputError(f"{name}={shortened(asked[name])}: one image takes one {name}. Call it once for each.")
        columns = {name: one_each(asked[name], name, len(self.given)) for name in ("target", "contrast", "explains")}
        self.images: dict[int, ImageInput] = {}
        self.items: dict[int, tuple[int | None, int | None]] = {}
        self.functions: dict[int, tuple[Function, str]] = {}
        for i, one in enumerate(self.given):
            with self._trying(i):
                self.images[i] = read_image(one, processor, self.model)
                target, contrast, name = (column[i] for column in columns.values())
                check_name(target, name)
                self.items[i] = self._ask(i, target, contrast)
                if callable(target):
                    self.functions[i] = (target, name or name_of(target))

    @cached_property
    def labels(self) -> Labels:
        """The labels of the model."""
        if not self.model.config.num_labels:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no labels (num_labels=0), so it predicts nothing."
            )
        return Labels.of(self.model.config)

    def _ask(self, i: int, target: Any, contrast: Any) -> tuple[int | None, int | None]:
        """Target and contrast of an image as ids.

        Raises:
            InputError: One of them cannot be used.
        """
        return (None, None) if function_of(target, contrast) is not None else self.labels.pair(target, contrast)

    def check_method(self, method: Method, settings: dict[str, Any]) -> None:
        """Refuse a method that reads no images, before anything is computed.

        Raises:
            UnsupportedModelError: It is for texts.
        """
        if not method.reads_images:
            raise UnsupportedModelError(
                f"{method.name} is for texts, and {type(self.model).__name__} reads images.",
                python='Type: method="attnlrp".',
                app="Choose another method, such as attnlrp.",
            )

    def explained_by(
        self, method: Method, settings: dict[str, Any], runner: PassRunner, batch_tokens: int, progress: bool | None
    ) -> dict[int, Explanation]:
        """The explanation of each image by one method.

        Raises:
            UnsupportedModelError: The model's tokens are no patches.
        """
        if method.changes_pixels:
            if (at := settings.get("at")) != method.options.get("at") and place_first(at or ()) != ["pixels"]:
                raise InputError(
                    f'at={at!r}: {method.name} changes the pixels of an image, and its relevance is theirs: at="pixels".'
                )
            settings = {**settings, "at": ("pixels",)}
        elif "embedding" in place_first(settings["at"]):
            raise InputError(
                f"at='embedding' is for texts, and {type(self.model).__name__} reads images. Use at=\"input\", what enters the "
                'first block, or at="pixels".'
            )
        elif settings["at"] is method.options["at"]:  # not given
            settings = {**settings, "at": (default_place(self.tower),)}
        runner.log_unused_options(method.name, has_passes=method.has_passes)
        about = runner.provenance(method.name, settings)
        function, found, notes = method.run_by(runner), dict[int, Explanation](), list[str]()

        apart = runner.execution.compile or method.changes_pixels

        def explain(group: list[int]) -> dict[int, Explanation]:
            made = {}
            # A compiled pass runs no code of the model, nor hooks on it; and what is changed by patch needs them before.
            with lock_of(self.model), nullcontext(Seen()) if apart else noted_patches(self.tower) as seen:
                run = self._by_changes(function, group[0], runner) if method.changes_pixels else function
                results = self._results(run, group, own)
                if apart:
                    seen = self._seen_apart(group[0], runner)
            for i, result in zip(group, results, strict=True):
                with self._trying(i):
                    made[i] = self._explanation(i, result, seen, method, settings, about)
                notes.extend(result.notes)
            return made

        own = with_heads(settings, len(self.items) * PATCHES_MOST, runner.execution)
        for _, made in self._in_groups(self._groups(batch_tokens), explain, method.name, progress):
            found |= made
        runner.warn_once(notes)
        return found

    @property
    def tower(self) -> PreTrainedModel:
        """What reads the image: the model."""
        return self.model

    def _results(self, function: Explain, group: list[int], settings: dict[str, Any]) -> Sequence[Attribution]:
        """What the method finds for each image."""
        independent = getattr(self.model.config, "problem_type", None) == "multi_label_classification"
        batch = self._batch(group, LabelScores(independent))
        targets, contrasts = zip(*(self.items[i] for i in group), strict=True)
        asked, against = (
            torch.tensor([-1 if i is None else i for i in column], device=batch.positions.device)
            for column in (targets, contrasts)
        )
        chosen = None not in targets
        functions = tuple(self.functions[i][0] if i in self.functions else None for i in group)
        batch = replace(batch, targets=asked, contrasts=against, chosen=chosen, likeliest=SHOWN)
        return function(replace(batch, functions=functions if any(functions) else ()), **settings)

    def _seen_apart(self, i: int, runner: PassRunner) -> Seen:
        """The patches of an image, seen in a forward pass of its own, once for each size."""
        values = self.images[i].inputs["pixel_values"]
        key = "patches", values.shape
        if key not in runner.noted:
            with noted_patches(self.tower) as seen, torch.no_grad():
                if self.images[i].patched is None:
                    self.tower(values.to(execution_device(self.tower), self.model.dtype))
                else:  # the processor has made them
                    seen.length = values.shape[1]
            runner.noted[key] = seen
        return runner.noted[key]  # type: ignore[no-any-return]

    def _by_changes(self, function: Explain, i: int, runner: PassRunner) -> Explain:
        """A method that changes pixels, for images of the size of one: it is told what the patches are, and knows one place."""
        image = self.images[i]
        grid = self._seen_apart(i, runner).grid(self.tower, image.patched)
        if image.patched is None:
            size = image.inputs["pixel_values"].shape[2:]
            grid = grid or cells(*size)
            of = torch.from_numpy(grid.numbered(*size))
        else:
            assert grid is not None
            of = torch.arange(image.inputs["pixel_values"].shape[1])
            of[grid.rows * grid.columns :] = -1
        parts = ImageParts(grid.rows, grid.columns, of)

        def explain(batch: Batch, *, at: Any = (), **settings: Any) -> Sequence[Attribution]:
            return function(replace(batch, parts=parts), **settings)

        return explain

    def _groups(self, batch_tokens: int) -> list[list[int]]:
        """Indices of images of one size to explain in one batch."""
        by_size: dict[Any, list[int]] = {}
        for i in self.items:
            if i not in self.failed:
                image = self.images[i]
                by_size.setdefault((image.inputs["pixel_values"].shape, image.patched), []).append(i)
        groups = []
        for (shape, _), indices in by_size.items():
            count = max(1, batch_tokens // tokens_per_image(shape))
            groups += [indices[n : n + count] for n in range(0, len(indices), count)]
        return groups

    def _batch(self, group: list[int], readout: Readout) -> Batch:
        """Images of one size, of which the first score is explained."""
        device = entry_device(self.model)
        images = [self.images[i] for i in group]
        inputs = {name: torch.cat([image.inputs[name] for image in images]).to(device) for name in images[0].inputs}
        inputs["pixel_values"] = inputs["pixel_values"].to(self.model.dtype)
        spans = [
            slice(None) if image.patched is None else slice(0, image.patched[0] * image.patched[1]) for image in images
        ]
        first = torch.zeros(len(group), dtype=torch.int64, device=device)
        return Batch(inputs, spans, first, first, first - 1, True, readout=readout, of_images=True)

    def _explanation(
        self, i: int, result: Attribution, seen: Seen, method: Method, settings: dict[str, Any], about: dict[str, Any]
    ) -> Explanation:
        image = self.images[i]
        height, width = image.picture.shape[:2]
        place, grid = place_first(settings["at"])[0], seen.grid(self.tower, image.patched)
        relevance, layers = result.relevance, dict(result.layers)
        if "pixels" in layers and image.patched is not None:
            layers["pixels"] = as_image(layers["pixels"], *image.patched)
        if place == "pixels":
            grid = cells(height, width) if grid is None else replace(grid, before=0, order=())
            if "pixels" in layers:  # or they are of patches already
                relevance = grid.sums(layers["pixels"].sum(0))
        elif grid is None or grid.tokens != len(relevance):
            raise UnsupportedModelError(
                f"the {len(relevance)} tokens that enter the first block of {type(self.tower).__name__} are no patches of "
                'the image. Use at="pixels".'
            )
        picture = replace(
            image, picture=image.picture[: grid.covered(height, width)[0], : grid.covered(height, width)[1]]
        )
        tokens = [*own_tokens(self.tower, grid.before), *_patch_names(grid)]
        told = self._told(i, result)
        named = {role: told.get(role) for role in ("target", "contrast")}
        ids = {key: value for role, t in named.items() if t for key, value in ((role, t.id), (f"{role}_text", t.text))}
        return Explanation(
            tokens=tokens,
            token_ids=[NO_TOKEN] * len(tokens),
            units=[Unit(n, n + 1, token) for n, token in enumerate(tokens)],
            special=tuple(range(grid.before)),
            images=(self._patches(grid, picture),),
            relevance=relevance,
            value=result.value,
            residual=result.residual,
            **{"contrast": None, **told},
            position=0,
            task=self.task,
            method=method.name,
            measures=method.measures,
            at=place,
            layers=layers,
            components=result.components,
            by_layer=result.by_layer,
            by_attention=result.by_attention,
            by_mlp=result.by_mlp,
            by_head=result.by_head,
            notes=(*result.notes, *other_rules(method, settings), *without_heads(settings, result)),
            provenance={**about, **ids, "image": image.name, "pixels": [height, width]},
        )

    def _told(self, i: int, result: Attribution) -> dict[str, Any]:
        """Target and contrast, and their probabilities."""
        told = self.labels.told(result.target, self.items[i][1], result.predictions)
        if i not in self.functions:
            return told
        name = self.functions[i][1]
        of_function = {"target": Token(NO_TOKEN, name, name), "explains": "function"}
        return {**told, **of_function, "target_probability": None, "target_rank": None}

    @staticmethod
    def _patches(grid: PatchGrid, image: ImageInput) -> ImagePatches:
        order = tuple(grid.before + n for n in grid.order)
        start = order[0] if order else grid.before
        return ImagePatches(start, grid.rows, grid.columns, *png_of(image.picture), order)


def _patch_names(grid: PatchGrid) -> list[str]:
    """A name for the token of each patch."""
    names = patch_names(grid.rows, grid.columns)
    if not grid.order:
        return names
    of_token = dict(zip(grid.order, names, strict=True))
    return [of_token[n] for n in range(len(names))]
