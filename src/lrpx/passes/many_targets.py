"""Many values of one text from one forward pass: one for each generated token, or any weighted sums of their scores.

1. One forward pass under the rules gives each of P positions its score (``scoring.py``).
2. A value is a weighted sum of scores. Its gradient is one backward pass, seeded at all its positions at once: that is why a span
   of any length costs as much as one token.
3. Several values go backwards together, as a batch of cotangents, in groups that fit into memory.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from .._torch_internals import no_function_modes
from ..errors import NonFiniteError, UnsupportedModelError, in_one_line
from ..models.positions import fresh_rotations
from ..text.batching import Batch
from .branch_sums import NOTHING, edges_to, sums_of
from .dispatch import PassRunner
from .forward_backward import CHUNK, Watched, watched, with_later
from .image_inputs import through_a_choice
from .memory import values_at_once
from .objections import puts_tokens_around
from .predictions import read_predictions
from .scores import HeadNotFollowed, exact_dtype, read_once
from .scoring import PositionScores, Scoring, score_positions
from .spec import PassOptions, PassSpec
from .validation import about_cuts, about_tables, check_model, check_not_compiled, own_failures_named, where_not_finite

logger = logging.getLogger("lrpx")

FEW = 3  # tokens that show whether a model reads forward only

Combine = Callable[[Tensor, Tensor], Tensor]  # hidden state and gradient -> relevance, element by element
OfImages = dict[str, np.ndarray]  # name -> relevance of what images are beside the row of tokens, ``Watched.apart``
Answer = TypeVar("Answer")


class ManyTargets:
    """One text after its forward pass: the scores of its positions, and backward passes from weighted sums of them.

    Args:
        model: The one that has run.
        now: The model under the rules.
        scoring: What was scored.
        scores: The scores, with their graph.
        together: How many values go backwards at once, if they can.

    Attributes:
        scores: float64 ``[P]``.
        log_probabilities: float64 ``[P]`` of the targets, or ``None`` where they were not asked for.
        targets: ``[P]`` token ids. Likewise.
        predictions: Of each position, if asked for.
        notes: What has to be known to read the relevance right.
        inside: Of each value of the last ``relevance``, ``by_head`` and its like as in an ``Attribution``, if asked for.
        apart: Of each value of the last ``relevance``, what ``kept`` made of the relevance of images beside the row of tokens.
    """

    def __init__(
        self, model: PreTrainedModel, now: Watched, scoring: Scoring, scores: PositionScores, *, together: int
    ) -> None:
        # Before anything here is counted as an operation of the model:
        cuts = (about_cuts(type(model).__name__, now.active),) if +now.active.cuts else ()
        self.notes = (*about_tables(model), *cuts)
        states, beside = now.states(model, scores.root)
        self._beside, self._apart, self._follows = beside, now.apart(), now.follows
        self.apart: list[Any] = []
        self._state, self._later = next(iter(states.values())), now.later
        self.inside: list[dict[str, np.ndarray]] = []
        self._blocks, self._rows = now.blocks, now.rows_inside(model, self._state) if now.blocks else NOTHING
        self._edges = edges_to(self._blocks, self._rows)
        if self._edges:  # the gradients of all blocks are there at once
            together = max(1, together // self._rows.blocks)
        *before, _ = self._state.lengths
        self._shift = sum(before)  # of positions among all tokens
        self._model, self._name, self._scoring = model, type(model).__name__, scoring
        self._root, self._seed, self._together = scores.root, scores.seed, together
        self._length = self._shift + now.batch.ids.shape[1]
        self.scores = scores.values.detach().cpu().double().numpy()
        found = scores.log_probabilities
        self.log_probabilities = None if found is None else found.cpu().double().numpy()
        self.targets: list[int] | None = None if scores.targets is None else scores.targets.tolist()
        shown = scores.predictions if scoring.likeliest else None
        self.predictions = None if shown is None else list(read_predictions(shown.cpu().double().numpy()))

    def relevance(
        self,
        weights: np.ndarray,
        combine: Combine,
        tell: Callable[[int], object] | None = None,
        kept: Callable[[OfImages], Any] = dict,
    ) -> np.ndarray:
        """Of each value, a weighted sum of the scores, the relevance of every token: float64 ``[V, T]``.

        Args:
            weights: ``[V, P]``.
            combine: Applied to hidden state and gradient; what it gives is summed over the width. ``torch.mul`` for LRP.
            tell: Is called with how many values more are done.
            kept: What is kept of the relevance of images beside the row of tokens, which has a number for every pixel.

        Raises:
            UnsupportedModelError: A score depends on tokens after its position.
            NonFiniteError: A gradient is not finite.
        """
        found, start = np.zeros((len(weights), self._length)), 0
        self.inside, self.apart = [], []
        while start < len(weights):
            group = slice(start, start + self._together)
            found[group] = self._relevance(weights[group], combine, kept)
            start = group.stop
            if tell is not None:
                tell(len(weights[group]))
        return found

    def _relevance(self, weights: np.ndarray, combine: Combine, kept: Callable[[OfImages], Any]) -> np.ndarray:
        if len(weights) > 1:
            known = len(self.inside)
            try:
                gradients, apart = self._gradients(weights)
                found = self._read(gradients, weights, combine)
                self._note_apart(apart, len(weights), combine, kept, batched=True)
                return found
            except torch.OutOfMemoryError:
                reason = "together they do not fit into memory"
            except RuntimeError as error:  # vmap has no rule for an operation
                reason = in_one_line(error, 200)
            logger.debug("%s goes backwards once per value: %s", self._name, reason)
            self._together = 1
            del self.inside[known:]
        rows = []
        for row in np.split(weights, len(weights)):
            gradients, apart = self._gradients(row, batched=False)
            rows.append(self._read(gradients, row, combine))
            self._note_apart(apart, 1, combine, kept, batched=False)
        return np.concatenate(rows)

    def _gradients(self, weights: np.ndarray, *, batched: bool = True) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The gradients of a group of V values, or of one value, at the first place ``[V, T, width]``; and those of images."""
        wide = torch.promote_types(self._seed.dtype, torch.float32)
        factors = torch.as_tensor(weights, dtype=wide, device=self._seed.device)
        seeds = (factors.unsqueeze(2) * self._seed.to(wide)).to(self._root.dtype)  # [V, P, n]
        found: tuple[Tensor | None, ...] = ()
        pieces = [piece for piece in self._state.pieces if piece is not None and piece.requires_grad]
        wanted: list[Any] = [*pieces, *self._later, *self._beside, *self._edges.values(), *self._apart.values()]
        if pieces:
            with warnings.catch_warnings():
                # Where vmap has no rule for a kernel (fused attention on some devices), it loops, and warns of that.
                warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
                found = torch.autograd.grad(
                    self._root,
                    wanted,
                    grad_outputs=seeds if batched else seeds[0],
                    is_grads_batched=batched,
                    retain_graph=True,
                    allow_unused=True,
                )
        count = len(pieces) + len(self._later)
        edges, end = count + len(self._beside), count + len(self._beside) + len(self._edges)
        if any(gradient is not None for gradient in found[count:edges]):
            raise NotCutOff
        apart = {name: g for name, g in zip(self._apart, found[end:], strict=True) if g is not None} if found else {}
        if self._follows and not apart:
            raise through_a_choice(self._model)
        if self._edges and found:
            self._note_inside(found[edges:end], len(weights), batched=batched)
        gradients = dict(zip(map(id, [*pieces, *self._later]), found, strict=False))
        whole = []
        for piece in [*self._state.pieces, *self._later]:
            assert piece is not None
            gradient = gradients.get(id(piece))
            if gradient is None:
                whole.append(self._state.one_row(torch.zeros_like(piece)).flatten(2).expand(len(weights), -1, -1))
            else:
                whole.append(self._state.one_row(gradient[:, 0] if batched else gradient).flatten(2))
        whole, later = whole[: len(self._state.pieces)], whole[len(self._state.pieces) :]
        if len(whole) > 1 and any(g[:, n:].any() for g, n in zip(whole, self._state.lengths, strict=True)):
            raise UnsupportedModelError(puts_tokens_around(self._name))
        return with_later(self._state.whole(whole), later), apart

    def _note_apart(
        self,
        gradients: Mapping[str, Tensor],
        values: int,
        combine: Combine,
        kept: Callable[[OfImages], Any],
        *,
        batched: bool,
    ) -> None:
        """Read the gradients of V values with respect to what images are beside the row of tokens."""
        for i in range(values):
            found = {}
            for name, each in gradients.items():
                gradient = each[i] if batched else each
                self._check_finite(gradient)
                found[name] = combine(self._apart[name].detach().cpu().double(), gradient.cpu().double()).numpy()
            self.apart.append(kept(found))

    def _check_finite(self, gradients: Tensor) -> None:
        if not gradients.isfinite().all():
            raise NonFiniteError(
                f"a gradient of {self._name} is not finite in {gradients.dtype}. Load the model in a wider dtype, or try "
                "another attn_implementation."
            )

    def _note_inside(self, gradients: Sequence[Tensor | None], values: int, *, batched: bool) -> None:
        """Read the gradients of V values at the edges of heads and branches."""
        with no_function_modes():
            for i in range(values):
                own = [g[i] if batched and g is not None else g for g in gradients]
                at = dict(zip(self._edges, own, strict=True))
                like = self._root.new_zeros((), dtype=exact_dtype(self._root))
                sums = sums_of(self._blocks, self._rows, at, like, CHUNK)[:, 0, : self._length]
                self.inside.append(self._rows.read(sums.cpu().double().numpy()))

    def _read(self, gradients: Tensor, weights: np.ndarray, combine: Combine) -> np.ndarray:
        """What the gradients of V values say ``[V, T]``, refused if something speaks against it."""
        self._check_finite(gradients)
        if gradients[:, self._length :].any():
            raise UnsupportedModelError(puts_tokens_around(self._name))
        positions = [self._shift + position for position in self._scoring.positions]
        if not self._scoring.reads_forward:
            positions = [self._length - 1] * len(self._seed)
        last = [positions[np.flatnonzero(row)[-1]] if row.any() else -1 for row in weights]
        if torch.stack([g[end + 1 :].any() for g, end in zip(gradients, last, strict=True)]).any():
            raise UnsupportedModelError(
                f"a prediction of {self._name} depends on tokens after it, so that tokens cannot be explained by one pass over "
                "the whole text.",
                python="Explain each by itself: explainer(text, target=...).",
                command="Explain each by itself, with one target=.",
                app="Explain each by itself.",
            )
        state = with_later(self._state.whole().detach()[0].flatten(1), [each.detach()[0] for each in self._later])
        dtype, rows = exact_dtype(state), max(1, CHUNK // (len(weights) * state.shape[-1]))
        parts = zip(state.split(rows), gradients.split(rows, 1), strict=True)
        sums = torch.cat([combine(x.to(dtype), g.to(dtype)).sum(-1) for x, g in parts], 1)
        return sums[:, : self._length].cpu().double().numpy()


def explain_many(
    runner: PassRunner,
    batch: Batch,
    spec: PassSpec,
    scoring: Scoring,
    ask: Callable[[ManyTargets], Answer],
    *,
    together: int | None = None,
) -> Answer:
    """Run one text forward and return what ``ask`` finds out by backward passes. It is called again if a pass has to be.

    Args:
        runner: Of the model, whose lock the caller holds.
        batch: One text.
        spec: The rules, and the one place where relevance is taken; beside it ``"pixels"``, of images.
        scoring: The positions and their scores.
        ask: Calls ``ManyTargets.relevance``, as often as it likes.
        together: How many values go backwards at once. Default: by an estimate of memory.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: A logit or a gradient is NaN or infinite.
    """
    model = runner.model

    def attempt(options: PassOptions) -> Answer:
        many = together or (1 if options.checkpoint else values_at_once(model, batch))
        with fresh_rotations(model), watched(model, batch, spec, options) as now:
            scores = score_positions(model, now, scoring, options)
            if not scores.values.isfinite().all():
                raise NonFiniteError(where_not_finite(model, lambda: read_once(model, batch)))
            return ask(ManyTargets(model, now, scoring, scores, together=many))

    return with_options(runner, batch, spec, attempt)


def with_options(runner: PassRunner, batch: Batch, spec: PassSpec, attempt: Callable[[PassOptions], Answer]) -> Answer:
    """Check the model, and call ``attempt`` with the options that it and the free memory allow; again with others if need be.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly.
    """
    model = runner.model
    check_model(model, spec.rules)
    if spec.rules:
        check_not_compiled(model)
    options = PassOptions(whole_head=runner.whole_head, checkpoint=runner.checkpoints(batch))
    while True:
        try:
            with own_failures_named(model, batch.inputs, (HeadNotFollowed, NotCutOff)):
                answer = attempt(options)
            runner.whole_head = options.whole_head
            return answer
        except HeadNotFollowed:
            logger.debug("%s computes all its logits: they are not made one by one", type(model).__name__)
            options = replace(options, whole_head=True)
        except NotCutOff:
            options = replace(options, linked=True)
        except torch.OutOfMemoryError:
            if options.checkpoint or runner.execution.checkpoint is False:
                raise
            logger.warning("the pass does not fit into memory; once more, with each block recomputed (checkpoint=True)")
            options = replace(options, checkpoint=True)
        gc.collect()


def check_reads_forward(runner: PassRunner, batch: Batch, spec: PassSpec) -> None:
    """Refuse a model whose predictions depend on tokens after them, by the first of a few tokens ``batch``.

    ``ManyTargets.relevance`` sees that by itself, but not of a value that the last token is a part of. The runner remembers it.

    Raises:
        UnsupportedModelError: It is such a model.
    """
    if not runner.reads_forward:
        scoring = Scoring([0], [int(batch.ids[0, -1])])
        spec = replace(spec, at=spec.at[:1])  # the few tokens are without their images
        explain_many(runner, batch, spec, scoring, lambda many: many.relevance(np.ones((1, 1)), torch.mul))
        runner.reads_forward = batch.ids.shape[1] > 1  # a single token shows nothing


class NotCutOff(Exception):
    """What enters the first block cannot be cut off: it has to stay linked to the embedding."""
