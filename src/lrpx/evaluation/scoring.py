"""Batches of samples -> records: each method explains the predicted verb form against the other one, in one pass.

Which form is predicted decides the sign of what is explained, but need not be known before. Each method explains
``logit[verb] - logit[other form]`` in one pass; the sign of the value tells the prediction, and where it is negative, value
and relevance change their sign. That is exact: the gradient, a backward pass under rules and ALTI-Logit are linear in the
explained direction, ``R(a, b) = -R(b, a)``, and rounding is symmetric. Methods whose numbers have no sign (gradient norms, ALTI,
rollout) are the same for both.

Where memory runs out, a batch is halved; where a sample fails, its batch is halved until that sample stands alone. Both
change other samples' results by rounding only.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from ..benchmark import TokenizedSample
from ..errors import InputError, LrpxError, NonFiniteError, UnsupportedModelError, in_one_line
from ..methods import Method
from ..methods.gradient import NORMS
from ..models.lock import lock_of
from ..models.placement import entry_device
from ..models.signature import ModelSignature
from ..passes.attribution import Combine, Later, attributions, run
from ..passes.dispatch import PassRunner
from ..passes.hidden_states import place_first
from ..passes.scores import explained_logits
from ..text.batching import Attribution, Batch, Item, pad
from .external import ExternalRelevances
from .hidden_tokens import HiddenTokens
from .metrics import score
from .records import METRICS, Record

logger = logging.getLogger("lrpx")

GIVE_UP = 20  # samples that fail while none succeeds, before the run stops

# What one plain backward pass gives: name -> how state and gradient are combined, and whether the parts sum to the value.
_GRADIENTS: dict[str, tuple[Combine, bool]] = {
    "gradient-l1": (NORMS["l1"], False),
    "gradient-l2": (NORMS["l2"], False),
    "gradient-x-input": (torch.mul, True),
}


Explain = Callable[[Batch, Sequence[TokenizedSample]], Sequence[tuple[Attribution, ...]]]


class Source(NamedTuple):
    """One computation, the methods whose relevance it gives, and where that is taken (``None``: not a choice).

    ``signed``: its numbers decompose nothing, but change their sign with the question, as those of occlusion do.
    """

    names: tuple[str, ...]
    at: str | None
    explain: Explain
    signed: bool = False


def recorded_names(method: str) -> tuple[str, ...]:
    """The names under which a method's relevance is recorded."""
    return ("gradient-l1", "gradient-l2") if method == "gradient" else (method,)


def sources(methods: Sequence[Method], runner: PassRunner, given: ExternalRelevances | None = None) -> list[Source]:
    """The computations that give, for the runner's model, the relevance of ``methods`` and of the file ``given``.

    Methods have their ``options`` as they are to be used. All that a plain gradient gives comes from one pass.
    """
    found: list[Source] = []
    plain = [method for method in methods if recorded_names(method.name)[0] in _GRADIENTS]
    for method in methods:
        place = next(iter(method.options.get("at", ())), None)
        if method not in plain:
            found.append(Source((method.name,), place, _registered(method, runner), method.measures == "scores"))
        elif method is plain[0]:
            names = [name for each in plain for name in recorded_names(each.name)]
            found.append(Source(tuple(names), place, _gradients(names, place or "input", runner)))
    if given:
        found.append(Source(tuple(sorted(given)), None, _read(given, runner.model)))
    return found


def _registered(method: Method, runner: PassRunner) -> Explain:
    function = method.run_by(runner)
    at = next(iter(method.options.get("at", ())), None)

    def explain(batch: Batch, _: Sequence[TokenizedSample]) -> Sequence[tuple[Attribution, ...]]:
        found = function(batch, **method.options)

        def taken() -> list[tuple[Attribution, ...]]:
            runner.warn_once(note for attribution in found for note in attribution.notes)
            return [(_taken(attribution, at),) for attribution in found]

        return Later(len(found), taken) if _is_first(at) else taken()

    return explain


def _gradients(names: Sequence[str], at: str, runner: PassRunner) -> Explain:
    def explain(batch: Batch, _: Sequence[TokenizedSample]) -> list[tuple[Attribution, ...]]:
        with lock_of(runner.model):
            result = run(runner.model, batch, {}, (at,), runner=runner)
        each = [attributions(result, batch, _GRADIENTS[n][0], decomposes=_GRADIENTS[n][1]) for n in names]
        return [tuple(_taken(a, at) for a in row) for row in zip(*each, strict=True)]

    return explain


def _taken(attribution: Attribution, at: str | None) -> Attribution:
    """The attribution with the relevance of tokens that they have at ``at``, where a method gives it beside the input's."""
    if _is_first(at):
        return attribution
    if at not in attribution.layers:
        raise InputError(f"at={at!r}: the method gives no relevance there. Use at='input', or another method.")
    relevance = attribution.layers[at].sum(-1)  # [T, width] -> [T]
    residual = None if attribution.residual is None else attribution.value - float(relevance.sum())
    return replace(attribution, relevance=relevance, residual=residual, layers={})


def _is_first(at: str | None) -> bool:
    """Whether the relevance of tokens that a method gives is the one at ``at``."""
    return at is None or place_first((at,))[0] == at


def _read(given: ExternalRelevances, model: PreTrainedModel) -> Explain:
    """Relevance from a file speaks for the predicted form already; a forward pass tells which one that is."""

    def explain(batch: Batch, samples: Sequence[TokenizedSample]) -> list[tuple[Attribution, ...]]:
        with torch.inference_mode(), lock_of(model):
            logits, index = explained_logits(model, batch)
            rows = torch.arange(len(samples), device=logits.device)
            picked = logits[rows, index.to(logits.device)].to(batch.targets.device)
            rows = rows.to(batch.targets.device)
            values = picked[rows, batch.targets].double() - picked[rows, batch.contrasts].double()
        return [
            tuple(
                Attribution(relevance=given[name][sample.sample_id], value=value, residual=None, target=sample.verb_id)
                for name in sorted(given)
            )
            for sample, value in zip(samples, values.tolist(), strict=True)
        ]

    return explain


# Explaining


class BatchExplainer:
    """Explains batches of samples with every source; halves a batch that does not fit or holds a sample that fails.

    Args:
        model: In eval mode.
        sources: At least one.
        proven: Samples have been explained before, so that a failure is the sample's own.
        metrics: Measures of faithfulness to compute, from ``faithfulness_metrics``.
    """

    def __init__(
        self, model: PreTrainedModel, sources: Sequence[Source], *, proven: bool = False, metrics: Sequence[str] = ()
    ) -> None:
        self.model = model
        self.sources = sources
        self.measured = HiddenTokens(model, metrics) if metrics else None
        self.signature = ModelSignature.of(model)
        self.largest: int | None = None  # tokens of a batch, padding included, that fit; None: no limit met yet
        self.succeeded = dict.fromkeys(sources, proven)
        self.failed: Counter[Source] = Counter()

    def __call__(self, samples: Sequence[TokenizedSample]) -> list[Record]:
        """The records of one batch: sample by sample, in the order of the methods."""
        return self.explained(samples)()

    def explained(self, samples: Sequence[TokenizedSample]) -> Callable[[], list[Record]]:
        """Run all passes of one batch. What is returned makes the records, without the model: while it is at other samples."""
        context = self.signature.context
        fit = [s for s in samples if context is None or len(s.input_ids) <= context]
        found = [self._explain(source, fit) if fit else [] for source in self.sources]
        records = self._records(samples, fit, found) if self.measured else None  # measuring takes more passes
        return lambda: self._records(samples, fit, found) if records is None else records

    def _records(
        self,
        samples: Sequence[TokenizedSample],
        fit: Sequence[TokenizedSample],
        found: Sequence[Sequence[tuple[Attribution, ...] | str]],
    ) -> list[Record]:
        """Records of what each source has found for the samples that ``fit`` the model."""
        results: dict[int, list[Attribution | str]] = {s.sample_id: [] for s in samples}
        for source, explained in zip(self.sources, found, strict=True):
            for sample, result in zip(fit, explained, strict=True):
                many = [result] * len(source.names) if isinstance(result, str) else result
                results[sample.sample_id] += [_checked(a, sample) for a in many]
        names = [(name, source.at) for source in self.sources for name in source.names]
        context = self.signature.context
        for sample in samples:
            if len(sample.input_ids) > (context or len(sample.input_ids)):
                reason = f"{len(sample.input_ids)} tokens; {self.signature.name} reads {context}"
                results[sample.sample_id] = [reason] * len(names)
        signed = [source.signed for source in self.sources for _ in source.names]
        records = records_of(samples, names, [results[s.sample_id] for s in samples], signed)
        return self.measured(samples, records) if self.measured else records

    def _explain(self, source: Source, samples: Sequence[TokenizedSample]) -> Sequence[tuple[Attribution, ...] | str]:
        """Per sample what ``source`` gives, or why it gives nothing."""
        size = len(samples) * max(len(s.input_ids) for s in samples)
        if self.largest is not None and size > self.largest and len(samples) > 1:
            return self._halves(source, samples)
        found = self._attempt(source, samples)
        if not isinstance(found, str):
            self.succeeded[source] = True
            return found
        reason = found
        if len(samples) > 1:
            return self._halves(source, samples)
        self.failed[source] += 1
        if not self.succeeded[source] and self.failed[source] >= GIVE_UP:
            raise LrpxError(
                f"{', '.join(source.names)} failed on each of the first {GIVE_UP} samples. The last one: {reason}"
            )
        return [reason]

    def _halves(self, source: Source, samples: Sequence[TokenizedSample]) -> list[tuple[Attribution, ...] | str]:
        half = (len(samples) + 1) // 2
        return [*self._explain(source, samples[:half]), *self._explain(source, samples[half:])]

    def _attempt(self, source: Source, samples: Sequence[TokenizedSample]) -> Sequence[tuple[Attribution, ...]] | str:
        """What ``source`` gives for ``samples``, or why that failed. No tensor outlives a failure."""
        items = [Item(tuple(s.input_ids), s.position, s.verb_id, s.other_id) for s in samples]
        try:
            return source.explain(pad(items, self.model), samples)
        except Exception as error:
            if isinstance(error, InputError | UnsupportedModelError) and not self.succeeded[source]:
                raise  # about the model or the method, not about these samples
            logger.debug("a batch of %d samples failed", len(samples), exc_info=True)
            full = _is_out_of_memory(error)
            reason = in_one_line(f"{type(error).__name__}: {error}", 500)
        if full:
            gc.collect()
            kind = entry_device(self.model).type
            if kind in ("cuda", "mps"):
                getattr(torch, kind).empty_cache()
            if len(samples) > 1:
                size = len(samples) * max(len(s.input_ids) for s in samples)
                self.largest = size // 2
                logger.warning("a batch of %d tokens does not fit into memory; going on with %d", size, self.largest)
        return reason


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    told = isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    return told or isinstance(error, torch.OutOfMemoryError | MemoryError)


def _checked(result: Attribution | str, sample: TokenizedSample) -> Attribution | str:
    """The attribution, or what is wrong with it."""
    if isinstance(result, str):
        return result
    if result.relevance.shape != (len(sample.tokens),):
        return f"relevance of shape {list(result.relevance.shape)} for {len(sample.tokens)} tokens"
    if not (np.isfinite(result.relevance).all() and np.isfinite(result.value)):
        return f"{NonFiniteError.__name__}: relevance or value is NaN or infinite"
    return result


def records_of(
    samples: Sequence[TokenizedSample],
    names: Sequence[tuple[str, str | None]],
    results: Sequence[Sequence[Attribution | str]],
    signed: Sequence[bool],
) -> list[Record]:
    """Records of what every method found, turned towards the predicted verb form and scored.

    Args:
        samples: N samples.
        names: M methods, each with the place where its relevance is taken.
        results: ``[N][M]`` explanations of ``logit[verb] - logit[other form]``, or the reason why there is none.
        signed: M, see ``Source``.
    """
    rows: list[tuple[TokenizedSample, tuple[str, str | None], bool | None, Attribution | str]] = []
    for sample, row in zip(samples, results, strict=True):
        # The first value decides for all methods: a forward pass of its own may differ by rounding.
        value = next((result.value for result in row if not isinstance(result, str)), None)
        correct = None if value is None else value > 0  # equal logits predict nothing, which is not correct
        turned = [_towards(r, correct, sign) for r, sign in zip(row, signed, strict=True)]
        rows += [(sample, name, correct, r) for name, r in zip(names, turned, strict=True)]
    explained = [(s, a) for s, _, _, a in rows if not isinstance(a, str)]
    scores = score([a.relevance for _, a in explained], [s.ground_truth for s, _ in explained]).to_dict()
    columns = iter(zip(*(scores[name].tolist() for name in METRICS), strict=True))
    return [_record(*row, () if isinstance(row[-1], str) else next(columns)) for row in rows]


def _towards(result: Attribution | str, correct: bool | None, signed: bool) -> Attribution | str:
    """The explanation of the predicted form against the other: as it is, or with the sign changed."""
    if isinstance(result, str) or correct:
        return result
    turned = signed or result.residual is not None
    return Attribution(
        relevance=-result.relevance if turned else result.relevance,
        value=-result.value,
        residual=-result.residual if result.residual is not None else None,
        target=result.target,
    )


def _record(
    sample: TokenizedSample,
    name: tuple[str, str | None],
    correct: bool | None,
    result: Attribution | str,
    scores: Sequence[float],
) -> Record:
    forms = [(sample.verb, sample.verb_id), (sample.other, sample.other_id)]
    predicted, other = ((None, None), (None, None)) if correct is None else (forms if correct else forms[::-1])
    failed = isinstance(result, str)
    return Record(
        sample_id=sample.sample_id,
        method=name[0],
        at=name[1],
        predicted=predicted[0],
        other=other[0],
        predicted_id=predicted[1],
        other_id=other[1],
        correct=correct,
        value=None if isinstance(result, str) else result.value,
        residual=None if isinstance(result, str) else result.residual,
        position=sample.position,
        tokens=sample.tokens,
        token_ids=sample.input_ids,
        roles=sample.roles,
        ground_truth=sample.ground_truth,
        attractors=sample.n_attractors,
        relevance=None if isinstance(result, str) else np.asarray(result.relevance, dtype=np.float64),
        **dict(zip(METRICS, (None,) * len(METRICS) if failed else scores, strict=True)),
        error=result if isinstance(result, str) else None,
    )
