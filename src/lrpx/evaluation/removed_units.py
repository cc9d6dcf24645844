"""Heads or neurons removed in the order of their relevance, all tokens of a text alike.

To first order, the value loses the relevance of a removed unit under Gradient x Input: with its numbers x at all tokens and the
value's gradient g with respect to them, v(0) = v(x) - x . g + ..., and x . g is its relevance.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np
from transformers import PreTrainedModel

from ..errors import InputError
from ..heatmap.matrix import missing
from ..passes.units import Changed, Units, heads_changed, neurons_changed, values_without_units, watch_units
from ..results.explanation import Explanation
from ..results.inside import no_neurons
from ..text.batching import Batch
from .curves import Faithfulness, perturbed


def without_units(
    model: PreTrainedModel,
    explanations: Sequence[Explanation],
    batches: Sequence[Batch],
    texts: Sequence[int],
    of: str,
    baseline: str,
    steps: int,
    ranked_by: Sequence[Explanation] | None,
) -> Faithfulness:
    """``faithfulness`` of heads or neurons.

    Args:
        model: In eval mode.
        explanations: Checked.
        batches: The text of each, with its target.
        texts: Which of the texts each is of.
        of: ``"heads"`` or ``"neurons"``.
        baseline: ``"zero"`` or ``"mean"``.
        steps: Of the curves.
        ranked_by: Explanations that give one order for all, or ``None``.

    Raises:
        InputError: Another baseline, or relevance of these units is not known of an explanation.
        NonFiniteError: NaN or infinity appeared.
    """
    if baseline not in ("zero", "mean"):
        raise InputError(f'baseline={baseline!r}: heads and neurons are replaced by "zero" or their "mean".')
    changed = _changed(of, [*explanations, *(ranked_by or ())])
    one_each = dict(zip(texts, batches, strict=True))
    units = watch_units(model, [one_each[text] for text in sorted(one_each)], changed)
    own = [relevance_of_units(e, of, units) for e in explanations]
    if ranked_by is not None:
        own = _ranked(explanations, ranked_by, of, units)
    found = []
    for e, batch, text, relevance in zip(explanations, batches, texts, own, strict=True):
        values = partial(values_without_units, model, batch, units=units, changed=changed, mean=baseline == "mean")
        found.append(perturbed(text, e.method, relevance, values, steps))
    return Faithfulness(tuple(found))


def relevance_of_units(e: Explanation, of: str, units: Units) -> np.ndarray:
    """The relevance of each unit, summed over the tokens. float64 ``[N]``.

    Raises:
        InputError: The explanation has none of them, or of other units.
    """
    if e.method == "random":  # of tokens alone; the same numbers decide
        return np.random.default_rng(zlib.crc32(e.relevance.tobytes())).standard_normal(units.count)
    found = np.zeros(units.count)
    for where, place in units.places.items():
        count = place.stop - place.start
        known = _of_neurons(e, where) if of == "neurons" else _of_heads(e, where)
        if len(known) < count:
            raise InputError(
                f"the model has {count} {of} at {where}, and the explanation by {e.method} has relevance of {len(known)}. Is it "
                "of another model?"
            )
        found[place] = known[:count]
    return found


def _of_heads(e: Explanation, where: Hashable) -> np.ndarray:
    assert e.by_head is not None
    assert isinstance(where, tuple)
    block, first = where
    found: np.ndarray = e.by_head[block : block + 1, first:].sum(-1).reshape(-1)
    return found


def _of_neurons(e: Explanation, where: Hashable) -> np.ndarray:
    found: np.ndarray = e.layers[str(where)].sum(0)
    return found


def _changed(of: str, explanations: Sequence[Explanation]) -> Changed:
    """How units are changed, if relevance of them is known of all these."""
    known = [e for e in explanations if e.method != "random"]
    if not known:
        raise InputError(f"all of these are random: explain by another method too, which has relevance of {of}.")
    if of == "heads":
        for e in known:
            if e.by_head is None:
                raise missing(e, "heads")
        return heads_changed
    names = list(known[0].layers)
    for e in known:
        if not e.layers:
            raise no_neurons(e)
        if list(e.layers) != names:
            raise InputError(
                f"relevance of neurons of {', '.join(names)}, and of {', '.join(e.layers)}: give the same ones."
            )
    return partial(neurons_changed, names)


def _ranked(explanations: Sequence[Explanation], by: Sequence[Explanation], of: str, units: Units) -> list[np.ndarray]:
    """For each explanation, the mean relevance of the units in those of ``by`` that are by its method."""
    means = {}
    for method in dict.fromkeys(e.method for e in explanations):
        same = [relevance_of_units(e, of, units) for e in by if e.method == method]
        if not same:
            raise InputError(f"ranked_by: none of these is by {method}. Explain both with the same methods.")
        means[method] = np.mean(same, axis=0)
    return [means[e.method] for e in explanations]
