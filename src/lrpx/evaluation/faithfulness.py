"""Do the parts that an explanation names matter to the model? Remove them, and watch the explained value.

Tokens are hidden: their word embeddings are replaced by a baseline's, or they are deleted, and the others move together.
Heads and neurons are replaced by a constant at all tokens (``removed_units.py``). ``curves.py`` says in which order, and what
is measured.

These say what the model does with inputs that it was not made for. The benchmark's ground truth says what it should use; the two
are different questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, nearest
from ..explainer import Explainer
from ..methods.baselines import Baseline, baseline_of, positive
from ..models.lock import lock_of
from ..models.positions import fresh_rotations
from ..models.signature import task_of
from ..passes.edits import values_of_texts, values_without
from ..passes.validation import check_model
from ..results.explanation import Explanation
from ..text.batching import Batch, Item, pad
from .curves import Faithfulness, Perturbed, perturbed
from .removed_units import without_units

Parts = Literal["tokens", "heads", "neurons"]
Hide = Literal["replace", "delete"]


def faithfulness(
    explainer: Explainer | PreTrainedModel,
    explanations: Explanation | Sequence[Explanation],
    *,
    of: Parts = "tokens",
    hide: Hide = "replace",
    baseline: Baseline = "mean",
    steps: int = 20,
    ranked_by: Sequence[Explanation] | None = None,
) -> Faithfulness:
    """Remove parts in the order of their relevance, and watch the explained value; docs/faithfulness.md says what is measured.

    The token at the explained position of a masked language model is never hidden: it is what the model is asked about. Where
    tokens are deleted, that of any model is kept, which has a place in every text that is left.

    Args:
        explainer: Of the model that was explained, or the model.
        explanations: Of next tokens or masked tokens: one target, and a contrast or none.
        of: ``"tokens"``; ``"heads"``, by ``by_head``, summed over the tokens; or ``"neurons"`` of the modules in ``layers``,
            likewise: ``explainer(texts, at=["input", "model.layers.*.mlp.up_proj"])``. For ``method="random"`` heads are numbers
            drawn at random, as its tokens are.
        hide: Tokens are hidden by ``"replace"``, with their places left as they were, or by ``"delete"``: the model reads the
            text that is left.
        baseline: What is put in place of hidden tokens' embeddings: ``"zero"``, ``"mean"``, ``"pad"`` or a token id. Of heads and
            neurons ``"zero"``, or ``"mean"``: the unit's mean over all tokens of the texts explained here.
        steps: Of the curves; a text of fewer tokens has a step for each.
        ranked_by: Heads or neurons are removed in the order of their mean relevance in these explanations by the same method,
            one order for all texts, as for pruning. Default: each text has an order of its own.

    Raises:
        InputError: No explanations, or some of which it is not known how the value is computed again, or without relevance
            of heads or neurons, or of another model.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    if isinstance(explainer, Explanation) or isinstance(explanations, Explainer):
        raise InputError("the model comes first: faithfulness(explainer, explanations).")
    model = explainer.model if isinstance(explainer, Explainer) else explainer
    steps = positive("steps", steps)
    if of not in ("tokens", "heads", "neurons"):
        raise InputError(f"of={of!r}: give what is removed. {nearest(str(of), ['tokens', 'heads', 'neurons'])}")
    if hide not in ("replace", "delete"):
        raise InputError(f'hide={hide!r}: give "replace" or "delete".')
    if hide == "delete" and (of != "tokens" or baseline != "mean"):
        raise InputError('hide="delete": for tokens, of which nothing is left, so that there is no baseline.')
    if not explanations:
        raise InputError("no explanations given: faithfulness(explainer, explainer(texts, method=[...])).")
    if isinstance(explanations, Explanation):
        explanations = [explanations]
    for e in (*explanations, *(ranked_by or ())):
        _check(e, model)
    texts = _texts_of(explanations)
    batches = [pad([_item_of(e)], model) for e in explanations]
    with lock_of(model), fresh_rotations(model):
        check_model(model, {})
        if of != "tokens":
            units = without_units(model, explanations, batches, texts, of, str(baseline), steps, ranked_by)
            return _of_this_model(units, explanations)
        if ranked_by is not None:
            raise InputError("ranked_by: for heads and neurons. Tokens of one text are not those of another.")
        b = None if hide == "delete" else baseline_of(model, baseline)
        keeps = hide == "delete" or task_of(model) == "masked"
        each = zip(explanations, batches, texts, strict=True)
        found = Faithfulness(tuple(_without_tokens(model, e, batch, n, b, steps, keeps=keeps) for e, batch, n in each))
        return _of_this_model(found, explanations)


def _texts_of(explanations: Sequence[Explanation]) -> list[int]:
    """Which text each is about: its place in the call that explained it or, where they are of several calls, here."""
    asked = [(tuple(e.token_ids), e.position) for e in explanations]
    places = {e.index: one for e, one in zip(explanations, asked, strict=True)}
    if None not in places and all(places[e.index] == one for e, one in zip(explanations, asked, strict=True)):
        return [e.index for e in explanations if e.index is not None]
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in asked]


def _of_this_model(found: Faithfulness, explanations: Sequence[Explanation]) -> Faithfulness:
    """Refuse explanations whose value is far from the one computed again, whatever the dtype."""
    for one, e in zip(found.each, explanations, strict=True):
        if not np.isclose(one.most[0], e.value, rtol=0.1, atol=1.0):
            raise InputError(
                f"the explained value is {e.value:.4g} in the explanation, and {one.most[0]:.4g} when it is computed again. Give "
                "the model that was explained."
            )
    return found


def _check(e: Explanation, model: PreTrainedModel) -> None:
    if not isinstance(e, Explanation):
        raise InputError(f"{type(e).__name__}: give explanations, as explainer(texts, method=[...]) returns them.")
    if e.task or e.span is not None or e.explains or e.images or e.pairs is not None:
        kind = (
            "function of the logits" if e.explains == "function" else e.explains or e.task or "several tokens together"
        )
        raise InputError(
            "faithfulness is for the next or a masked token, with one token as target and one or none as contrast. This explains "
            f"something else: {kind}."
        )
    if task_of(model) not in ("causal", "masked"):
        raise InputError(
            f"faithfulness is for causal and masked language models, and {type(model).__name__} is for {task_of(model)}."
        )
    explained, given = e.provenance.get("architecture"), type(model).__name__
    if explained not in (None, given):
        raise InputError(
            f"the explanation is of {explained}, and the model is {given}. Give the model that was explained."
        )


def _item_of(e: Explanation) -> Item:
    return Item(tuple(e.token_ids), e.position, e.target.id, None if e.contrast is None else e.contrast.id)


def _without_tokens(
    model: PreTrainedModel, e: Explanation, batch: Batch, text: int, b: Tensor | None, steps: int, *, keeps: bool
) -> Perturbed:
    """Hide tokens behind the baseline ``b``, or delete them if there is none; ``keeps``: not that at the position."""

    def values(masks: np.ndarray) -> np.ndarray:
        if b is None:
            return values_of_texts(model, [left_of(_item_of(e), ~mask) for mask in masks])
        return values_without(model, batch, [0] * len(masks), masks, b)

    return perturbed(text, e.method, e.relevance, values, steps, kept=e.position if keeps else None)


def left_of(item: Item, kept: np.ndarray) -> Item:
    """The text with the tokens ``kept`` bool ``[T]`` alone, that at the position among them."""
    ids = tuple(token for token, there in zip(item.token_ids, kept, strict=True) if there)
    return replace(item, token_ids=ids, position=int(kept[: item.position].sum()))
