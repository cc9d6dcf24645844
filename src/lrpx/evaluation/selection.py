"""What a run consists of: the tokenised set that fits a model, the samples chosen from it, and the batches they go in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..benchmark import TokenizedSample, TokenizedSet, fingerprint, load_benchmark, load_tokenized, tokenize
from ..benchmark.folder import set_name
from ..benchmark.tokenized import load_tokenizer
from ..errors import InputError
from ..models.provenance import provenance
from ..models.signature import ModelSignature
from ..text.grouping import Alike, any_length, buckets

PART = 128  # samples per part, at least: what a killed run computes again
Part = Sequence[Sequence[TokenizedSample]]  # batches of samples


def tokenized_set(directory: str | Path, name: str | None, model: PreTrainedModel, tokenizer: Any) -> TokenizedSet:
    """The tokenised set for this model: the one called ``name``, one that fits, or a new one.

    Raises:
        InputError: The model is no causal or masked language model, the set is of another tokenizer or kind of input, or the
            tokenizer has more ids than the model.
    """
    tokenizer = load_tokenizer(tokenizer)
    signature, own = ModelSignature.of(model), fingerprint(tokenizer)["sha256"]
    if signature.task not in ("causal", "masked"):
        raise InputError(
            f"{signature.name} is for {signature.task}, and the benchmark is about the next word or a masked one. Give a "
            "causal or masked language model."
        )
    if name is not None:
        found = load_tokenized(directory, name)
        if found.input != signature.task:
            raise InputError(
                f"the tokenised set {found.name} has {found.input} input; {signature.name} is {signature.task}."
            )
        if found.manifest["tokenizer"]["sha256"] != own:
            raise InputError(f"the tokenised set {found.name} was made with another tokenizer than this model's.")
    else:
        fitting = [
            s
            for s in load_benchmark(directory).tokenized.values()
            if s.manifest["tokenizer"]["sha256"] == own and s.input == signature.task
        ]
        label = set_name(str(provenance(model, "", {})["model"]))
        found = next(iter(sorted(fitting, key=lambda s: s.name != label)), None) or tokenize(
            directory, tokenizer, name=label, input=signature.task, progress=False
        )
    largest = max(max(*s.input_ids, s.verb_id, s.other_id) for s in found.samples)
    if largest >= signature.vocabulary:
        raise InputError(
            f"the tokenised set {found.name} has token id {largest}; {signature.name} knows {signature.vocabulary}. "
            "Is this the model's own tokenizer?"
        )
    return found


def select(samples: Sequence[TokenizedSample], limit: int | None, seed: int) -> list[TokenizedSample]:
    """``limit`` samples, in their order; see ``evaluate``."""
    if limit is None or limit >= len(samples):
        return list(samples)

    def rank(n: int) -> bytes:
        return hashlib.sha256(f"{seed}:{samples[n].sample_id}".encode()).digest()

    return [samples[n] for n in sorted(sorted(range(len(samples)), key=rank)[:limit])]


def plan(
    samples: Sequence[TokenizedSample], batch_tokens: int, waste: float, alike: Alike = any_length
) -> Sequence[Part]:
    """Parts of batches of samples, from the lengths alone: long samples first, at least ``PART`` samples in a part."""
    parts: list[list[list[TokenizedSample]]] = []
    lengths = [len(s.input_ids) for s in samples]
    for group in buckets(lengths, max_tokens=batch_tokens, waste=waste, alike=alike):
        if not parts or sum(map(len, parts[-1])) >= PART:
            parts.append([])
        parts[-1].append([samples[n] for n in group])
    return parts
