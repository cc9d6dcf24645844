"""``Explainer.similarity``: why the embeddings of two texts are similar, over the tokens of both and, if asked for, their pairs.

The value is a product of two embeddings, ``s = a . b``, divided by their lengths if it is a cosine. A product of two signals
gives half to each (the uniform rule); lengths are constants, as of any norm. So with ``a`` seeded by ``b / 2`` and the reverse,
two backward passes give the relevances of the tokens of both texts. Of a pair of tokens it is ``R_ij = sum_m R_i(a_m) R_j(b_m)``:
BiLRP (Eberle et al. 2022, Building and interpreting deep similarity models, Eq. 9), which takes a backward pass from each
number of both embeddings. Without rules (``gradient-x-input``) the gradient is that of the whole cosine.

What they add up to: let ``a = sum_i R_i(a) + a'``, where the rest ``a'`` is what biases and softmax took; likewise ``b'``. Then

    a . b = sum_ij R_ij + sum_i R_i(a) . b' + sum_j a' . R_j(b) + a' . b'

The pairs are the first of these four. A token has half of its pairs and half of its product with the other text's rest:
``R_i = (sum_j R_ij + R_i(a) . b') / 2``. So the residual of the tokens is ``(a' . b + a . b') / 2``, and that of the pairs twice
this, minus ``a' . b'``. Without biases, and under ``lrp``, all rests are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import InputError, UnsupportedModelError, counted, nearest, warn
from ..heatmap.numbers import short
from ..methods import Method
from ..methods.generated import check_decomposes, how
from ..models.heads import IMAGE_TEXT_SCORE
from ..models.lock import lock_of
from ..models.sentence_encoder import POOLINGS, Embedding, stored_embedding
from ..models.signature import ModelSignature, padding_id, takes, task_of
from ..models.stacks import encoder_of
from ..passes.dispatch import PassRunner
from ..passes.embeddings import embedding_of, explain_embedding
from ..passes.many_targets import ManyTargets
from ..results.explanation import Explanation
from ..results.tokens import NO_TOKEN, Segment, Token, Unit
from ..text.batching import Batch, Item, pad
from ..text.given import split
from ..text.items import check_readable, read_extras
from ..text.suspect import notes_of
from ..text.tokenization import Encoded, encode
from ..text.units import special_ids

_NAMES = {"cosine": "cosine similarity", "dot": "dot product"}


@dataclass(frozen=True)
class AskedSimilarity:
    """What is to be explained; as the arguments of ``Explainer.similarity``."""

    metric: str
    pooling: str | None
    pairs: bool


def explain_similarity(
    runner: PassRunner,
    tokenizer: Any,
    texts: tuple[Any, Any],
    method: Method,
    settings: dict[str, Any],
    asked: AskedSimilarity,
) -> Explanation:
    """Explain the similarity of two texts.

    Raises:
        InputError: Something that cannot be used.
        UnsupportedModelError: The model cannot be explained correctly, or gives no embeddings.
        NonFiniteError: NaN or infinity appeared.
    """
    check_decomposes(method, "does not explain embeddings")
    if asked.metric not in _NAMES:
        raise InputError(f"metric={asked.metric!r}. {nearest(asked.metric, list(_NAMES))}")
    model = runner.model
    body: Any = model.base_model
    other = task_of(model) == IMAGE_TEXT_SCORE or encoder_of(model) is not None
    if other or not takes(body, "input_ids"):
        raise UnsupportedModelError(
            f"{type(model).__name__} does not make one embedding of a text by a single stack of blocks: similarity() is for "
            "encoders and decoders that read text alone."
        )
    made = _embedding(model, asked.pooling)
    spec, combine = how(method, settings)
    signature = ModelSignature.of(model)
    both = [_encoded(tokenizer, text, name) for text, name in zip(texts, ("text", "other"), strict=True)]
    notes = [note for one in both for note in check_readable(signature, one)]
    known = notes_of(both, tokenizer, padding_id(model, tokenizer), signature)
    notes = list(dict.fromkeys([*(note for one in known for note in one), *notes]))
    for note in notes:
        warn(note)
    batches = [pad([_item(one, signature)], model) for one in both]
    with lock_of(model):
        a, b = (_numbers(embedding_of(model, batch, made)) for batch in batches)
        value, seeds = seeds_of(a, b, asked.metric, halves=bool(spec.rules))

        def relevance(which: int, batch: Batch) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
            def ask(many: ManyTargets) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...]]:
                seed = seeds[which][None]
                each = many.relevance(np.eye(seed.shape[1]), combine) if asked.pairs else None  # [D, T]
                return (many.relevance(seed, combine) if each is None else seed @ each)[0], each, many.notes

            return explain_embedding(runner, batch, spec, made, ask)

        found = [relevance(which, batch) for which, batch in enumerate(batches)]
    pairs = None
    if found[0][1] is not None and found[1][1] is not None:
        pairs = found[0][1].T @ found[1][1] / _lengths(a, b, asked.metric)
        if spec.rules:
            notes += _about_pairs(value, float(pairs.sum()))
    first, second = both
    taken = np.concatenate([each[0] for each in found])
    about = runner.provenance(method.name, settings)
    length = len(first.token_ids)
    given = first.text, second.text
    return Explanation(
        tokens=[*first.tokens, *second.tokens],
        token_ids=[*first.token_ids, *second.token_ids],
        units=[*first.units, *(Unit(u.start + length, u.end + length, u.text) for u in second.units)],
        segments=(Segment("text", 0, length), Segment("other", length, len(taken))),
        special=tuple(n for n, i in enumerate([*first.token_ids, *second.token_ids]) if i in special_ids(tokenizer)),
        relevance=taken,
        value=value,
        residual=value - float(taken.sum()) if spec.rules else None,
        target=Token(NO_TOKEN, ""),
        contrast=None,
        position=0,
        span=(0, 0),  # no token's prediction is explained
        method=method.name,
        explains=f"{_NAMES[asked.metric]} of the two texts",
        at=spec.at[0],
        text=None if None in given else "\n".join(map(str, given)),
        pairs=pairs,
        notes=(*dict.fromkeys((*notes, *found[0][2], *found[1][2])),),
        provenance={**about, "metric": asked.metric, "pooling": made.pooling, "layers_after_pooling": len(made.layers)},
    )


def seeds_of(a: np.ndarray, b: np.ndarray, metric: str, *, halves: bool) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """The similarity of two embeddings ``[D]``, and its gradient with respect to each, or half of it with constant lengths."""
    lengths = _lengths(a, b, metric)
    value = float(a @ b / lengths)
    if halves:
        return value, (b / lengths / 2, a / lengths / 2)
    if metric == "dot":
        return value, (b, a)
    return value, (b / lengths - value * a / (a @ a), a / lengths - value * b / (b @ b))


def _about_pairs(value: float, total: float) -> list[str]:
    """What the pairs add up to, where that is not the value."""
    if abs(value - total) <= 1e-3 * abs(value):
        return []
    return [
        f"The pairs add up to {short(total)}. The rest of the value, {short(value - total)}, belongs to no pair of tokens: what "
        "biases and softmax put into either embedding, multiplied by all of the other one."
    ]


def _lengths(a: np.ndarray, b: np.ndarray, metric: str) -> float:
    """The product of the lengths of two embeddings; 1 for a dot product."""
    if metric == "dot":
        return 1.0
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not lengths:
        raise InputError('an embedding is all zeros, which has no direction. Use metric="dot".')
    return lengths


def _embedding(model: Any, pooling: Any) -> Embedding:
    """How hidden states become an embedding: as stored beside the model, or pooled as the user says, and no more."""
    if pooling is None:
        stored = stored_embedding(model)
        if stored is None:
            raise InputError(
                f"{type(model).__name__} does not say how the hidden states of its tokens become one embedding. Say it: "
                'pooling="mean", as most sentence encoders have it, or one of cls, last and max.'
            )
        return stored
    if pooling not in POOLINGS:
        raise InputError(f"pooling={pooling!r} is unknown. {nearest(str(pooling), POOLINGS)}")
    return Embedding(str(pooling))


def _encoded(tokenizer: Any, text: Any, name: str) -> Encoded:
    singles, several = split(text)
    if several:
        raise InputError(
            f"{name} is a list of {counted(len(singles), 'text')}: similarity() compares two. Give each as it is, and call once "
            "for each pair."
        )
    try:
        return encode(tokenizer, singles[0])[0]
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _item(encoded: Encoded, signature: ModelSignature) -> Item:
    return Item(encoded.token_ids, len(encoded.token_ids) - 1, 0, extras=read_extras(signature, encoded))


def _numbers(embedding: torch.Tensor) -> np.ndarray:
    return embedding.cpu().double().numpy()
