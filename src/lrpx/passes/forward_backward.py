"""One forward and one backward pass of a padded batch as a function of tensors: what is computed, however it is run.

1. Run the model under a rule set, with hooks that note the hidden states asked for.
2. ``value = score[target] - score[contrast]``; its gradient with respect to those states. Scores are the logits at each item's
   position, or what a readout makes of the model's output.
3. What speaks against the result is noted as tensors, so that nothing waits for a GPU on the way, and read at the end.

So the same function can be run as it is, captured as a CUDA graph, or traced and compiled (``dispatch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .._torch_internals import SET_GRAD_ENABLED, no_function_modes
from ..errors import InputError
from ..models.modules import modules_of
from ..models.stacks import stacks_of, watching_encoder
from ..propagation.propagate import Propagation, propagate
from ..text.batching import Batch
from .blocks import Block
from .branch_sums import NOTHING, Rows, edges_to, rows_inside, sums_of
from .branches import HeadEdit, branches_of
from .checkpointing import Recomputation, checkpointed, outer_blocks
from .compiled.attention_calls import RepeatAttentionCalls
from .hidden_states import PLACES, State, is_entry, not_met, resolve_at, taps_of
from .image_inputs import (
    STATES,
    counting_from_the_encoder,
    language_model,
    language_modules,
    pixel_leaves,
    through_a_choice,
    watched_images,
)
from .objections import not_finite, objections_of
from .predictions import predictions
from .scores import asked_scores, exact_dtype
from .spec import EAGER, PassOptions, PassResult, PassSpec
from .validation import check_carries_gradient, check_no_bypass, check_rules_took_effect

CHUNK = 1 << 24  # numbers that are multiplied at once


@dataclass(frozen=True)
class Watched:
    """A model under a rule set, with its hidden states noted while it runs.

    Attributes:
        batch: What the model is given.
        active: The mode that applies the rules.
        modules: The modules of the model.
        wanted: Where to look -> module.
        taps: Of each stack: where -> hidden state, once the model has run.
        features: Image features, cut off: those that enter the language model by its first block are not met any more.
        pixels: What the images are given as, by name, if it is wanted.
        later: Image features that further blocks add to the same tokens, ``[B, T, width]`` each: a part of ``"input"``.
        blocks: What its blocks did, if it is wanted.
    """

    batch: Batch
    active: Propagation
    modules: list[nn.Module]
    wanted: dict[str, nn.Module | None]
    taps: list[dict[str, Tensor]]
    blocks: Sequence[Block] = ()
    features: Sequence[Tensor] = ()
    later: Sequence[Tensor] = ()
    pixels: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def follows(self) -> bool:
        """Whether images are followed to their pixels, beside the row of tokens."""
        return bool(self.pixels)

    def rows_inside(self, model: PreTrainedModel, first: State) -> Rows:
        """What is known of heads and blocks, if they read the tokens of which relevance is taken, and no others."""
        shapes = [None if piece is None else tuple(piece.shape[:2]) for piece in first.pieces]
        alone = shapes == [(self.batch.shape[0], length) for length in first.lengths]
        return rows_inside(model, self.blocks, first.lengths) if alone else NOTHING

    def states(self, model: PreTrainedModel, values: Tensor) -> tuple[dict[str, State], list[Tensor]]:
        """The hidden states that ``values`` were made of, and what must have no gradient: it would mean a way around them.

        Raises:
            InputError: A module whose hidden state is asked for did not run.
            UnsupportedModelError: No gradient passes, a rule was not met, or there is a way around the first block.
        """
        wanted = [name for name in self.wanted if name != "pixels" or not self.follows]
        for name in wanted:
            places = [name in taps for taps in self.taps]
            if not (all(places) if name in ("input", "embedding") else any(places)):
                raise InputError(not_met(model, name))
        check_carries_gradient(model, values)
        if self.active.rules:
            check_rules_took_effect(model, self.modules, self.active, values, images=self.batch.with_images)
        shapes = self.batch.shapes
        # In the order asked for.
        states = {name: State([taps.get(name) for taps in self.taps], shapes) for name in wanted}
        around: list[Tensor] = []
        watches = self.active.rules or self.batch.with_images
        for taps in self.taps:
            entries = [taps[name] for name in wanted if is_entry(name) and name in taps] if watches else []
            beside = {
                name: t
                for name, t in taps.items()
                if entries and name in ("embedding", "pixels") and name not in wanted
            }
            if not all(entry.is_leaf for entry in entries):
                beside |= {f"image feature {n}": feature for n, feature in enumerate(self.features)}
            if beside and not all(entry.is_leaf for entry in entries):  # not cut off
                check_no_bypass(model, values, beside, entries)
                beside = {}
            around += beside.values()
        return states, around

    def apart(self) -> dict[str, Tensor]:
        """What images are beside the row of tokens, if it has a gradient: their pixels, or features that enter later blocks."""
        entry = self.taps[0].get("input")
        cut = entry is not None and entry.is_leaf
        return {**self.pixels, **{f"{STATES} {n}": feature for n, feature in enumerate(self.features) if cut}}


@contextmanager
def watched(
    model: PreTrainedModel, batch: Batch, spec: PassSpec, options: PassOptions, edit: HeadEdit | None = None
) -> Iterator[Watched]:
    """Inside the block the model runs forward and backward under the rules, and its hidden states are noted.

    With ``edit``, of a pass that looks at heads, it goes on with what this makes of what they wrote.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        propagate(model, spec.rules, mode=spec.mode, unknown="ignore") as active,
        ExitStack() as stack,
    ):
        active.added[SET_GRAD_ENABLED] = _keep_gradient
        again = Recomputation()
        modules = modules_of(model)
        batch = batch.outside_inference_mode()
        seen = {k: v for k, v in batch.inputs.items() if not (options.unpadded and k == "attention_mask")}
        wanted = resolve_at(model, spec.at)
        # Linked, a pass looks for ways around the first block once, while it runs; image features are then no part of it.
        linked = options.linked or (options.static and not batch.with_images) or not (active.rules or batch.with_images)
        follow = "pixels" in wanted and (batch.with_images or bool(batch.sources))
        if batch.sources:
            stack.enter_context(counting_from_the_encoder(model, active, again, follow=follow))
        encoding = stack.enter_context(watching_encoder(model))
        taps, images = [], (list[Tensor](), list[Tensor]())
        for part, shape in zip(stacks_of(model, modules), batch.shapes, strict=True):
            if batch.with_images:  # vision towers have blocks too
                part = replace(part, modules=language_modules(model))
            here = {name: m for name, m in wanted.items() if name in PLACES or m is None or m in part.modules}
            runs = encoding if part.name == "encoder" else partial(_is_not, encoding)
            taps.append(stack.enter_context(taps_of(part, here, shape, again, runs, linked=linked)))
        if batch.with_images:
            images = stack.enter_context(watched_images(model, taps[0], active, again, follow=follow))
        pixels = pixel_leaves(seen) if follow else {}
        if not batch.with_images and not follow and "pixel_values" in seen:
            taps[0]["pixels"] = seen["pixel_values"].detach().requires_grad_()
            seen["pixel_values"] = taps[0]["pixels"].clone()  # a model may write into it; the leaf must stay as it is
        reader = language_model(model) if batch.with_images else model
        roots = [part.root for part in stacks_of(model, modules)] if batch.sources else [reader]
        noted = stack.enter_context(branches_of(roots, batch.shapes, active, again, edit)) if spec.heads else []
        repeated = None if options.attention is None else stack.enter_context(RepeatAttentionCalls(options.attention))
        blocks = outer_blocks(model if follow else reader) if options.checkpoint else []
        stack.enter_context(checkpointed(blocks, active, again, repeated) if blocks else nullcontext())
        yield Watched(replace(batch, inputs=seen), active, modules, wanted, taps, noted, *images, pixels)


def compute(model: PreTrainedModel, batch: Batch, spec: PassSpec, options: PassOptions = EAGER) -> PassResult:
    """Run forward and backward pass; see the top of this file.

    Raises:
        UnsupportedModelError: A rule was not met, or a gradient passed unseen.
        InputError: A name in ``at`` matches no module, or a module whose output is not ``[batch, tokens, width]``.
        HeadNotFollowed: See there.
    """
    with watched(model, batch, spec, options) as now:
        picked, targets, whole = asked_scores(model, now.batch, spec.readout, options, now.active, now.wanted)
        predicted = None
        if whole is not None:
            independent = spec.readout is not None and spec.readout.independent
            with no_function_modes():  # nothing of this is the model's
                predicted = options.aside(
                    partial(predictions, whole, targets, now.batch.contrasts, batch.likeliest, independent=independent)
                )
        contrasted = (now.batch.contrasts >= 0).to(picked.device)
        exact = picked.to(exact_dtype(picked))
        values = exact[:, 0] - torch.where(contrasted, exact[:, 1], 0)
        states, beside = now.states(model, values)
        apart = now.apart()
        pieces = [piece for state in states.values() for piece in state.pieces if piece is not None]
        pieces += now.later
        differentiable = [piece for piece in pieces if piece.requires_grad]
        rows = now.rows_inside(model, states[spec.at[0]]) if spec.heads else NOTHING
        edges = edges_to(now.blocks, rows)
        wanted: list[Any] = [*differentiable, *beside, *apart.values(), *edges.values()]
        found = torch.autograd.grad(values.sum(), wanted, allow_unused=True)
    # Made before the first block, of what enters it; or of the embedding itself.
    if any(gradient is not None for gradient in found[len(differentiable) :][: len(beside)]):
        return compute(model, batch, spec, replace(options, linked=True))
    gradients = dict(zip(map(id, differentiable), found, strict=False))
    start = len(differentiable) + len(beside)
    of_images = dict(zip(apart, found[start : start + len(apart)], strict=True))
    images = {name: (apart[name].detach(), g) for name, g in of_images.items() if g is not None}
    if now.follows and not images:
        raise through_a_choice(model)
    for piece in pieces:
        if gradients.get(id(piece)) is None:
            gradients[id(piece)] = torch.zeros_like(piece)
    each = {name: [None if p is None else gradients[id(p)] for p in state.pieces] for name, state in states.items()}
    complete = {name: state.whole(each[name]) for name, state in states.items()}
    objections = objections_of(batch, picked, each)
    objections |= {("gradient", name): not_finite(gradient) for name, (_, gradient) in images.items()}
    plain = {name: state.whole().detach() for name, state in states.items()}
    if now.later:  # each token has entered with all of them
        complete["input"] = with_later(complete["input"], [gradients[id(state)] for state in now.later])
        plain["input"] = with_later(plain["input"], [state.detach() for state in now.later])
    flags = torch.stack([flag.to(values.device) for flag in objections.values()])
    first = spec.at[0]
    pair = per_token(first, plain[first]), per_token(first, complete[first])
    products = _products(*pair, values.dtype, 1 << 62 if options.static else CHUNK)
    inside = dict(zip(edges, found[len(found) - len(edges) :], strict=True))
    at_once = None if options.static else CHUNK
    sums = [sums_of(now.blocks, rows, inside, values, at_once)] if rows.count else []
    parts = [values.detach(), targets, flags, products, *sums]
    if predicted is not None:
        parts.insert(3, predicted)
    options.aside.join()
    summary = torch.cat([t.to(values.device, values.dtype).flatten() for t in parts])
    plain |= {name: state for name, (state, _) in images.items()}
    complete |= {name: gradient for name, (_, gradient) in images.items()}
    count = 0 if predicted is None else predicted.shape[1]
    return PassResult(summary, plain, complete, list(objections), now.active, count, rows)


def with_later(state: Tensor, later: Sequence[Tensor | None]) -> Tensor:
    """What enters the first block, or its gradient, with what further blocks add to the same tokens: ``[..., T, widths]``."""
    parts = [torch.zeros_like(state) if each is None else each.to(state.device, state.dtype) for each in later]
    return torch.cat([state, *parts], -1)


def _is_not(question: Callable[[], bool]) -> bool:
    return not question()


def _keep_gradient(*_: Any) -> None:
    """Ignore ``torch.no_grad()`` in the model's own code, with which HRM's inner cycles save memory."""


def per_token(name: str, tensor: Tensor) -> Tensor:
    """What was noted at a place as ``[B, T, width]``: a pixel of an image ``[B, 3, height, width]`` is a token there."""
    return tensor.flatten(2).transpose(1, 2) if name == "pixels" and tensor.ndim == 4 else tensor.flatten(2)


def _products(state: Tensor, gradient: Tensor, dtype: torch.dtype, at_once: int) -> Tensor:
    """``sum_d x_d g_d`` ``[B, T]``, in steps: the numbers are widened first, and a long text's take much memory."""
    state, gradient = state.flatten(2).flatten(0, 1), gradient.flatten(2).flatten(0, 1)
    rows = max(1, at_once // max(1, state.shape[-1]))
    if rows >= state.shape[0]:
        return (state.to(dtype) * gradient.to(dtype)).sum(-1)
    return torch.cat(
        [(s.to(dtype) * g.to(dtype)).sum(-1) for s, g in zip(state.split(rows), gradient.split(rows), strict=True)]
    )
