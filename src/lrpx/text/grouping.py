"""Which texts are explained in one batch: of similar length, and none where padding would change a prediction."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial

from transformers import PreTrainedModel

from ..models.pooling import finds_padding
from ..models.positions import longest_alike
from ..models.signature import task_of
from .batching import Item

# Convolutions, Fourier transforms, pooling and landmarks mix positions regardless of the attention mask; Doge's own mask did so
# in early releases of transformers 5, and UMT5's logits depend on padding in 5.17.
_LEAKS_PADDING = frozenset(
    {"convbert", "doge", "fnet", "funnel", "led", "longformer", "mobilebert", "nystromformer", "umt5"}
)


def allowed_waste(model: PreTrainedModel, task: str) -> float:
    """The share of a batch that may be padding: a tenth, or none if padding would change the predictions.

    A causal model that was made bidirectional (``is_causal = False`` on its attention) is so only without a mask:
    as soon as there is padding, transformers makes its attention causal.

    Args:
        model: The one that reads the batch.
        task: By ``task_of``.
    """
    if model.config.model_type in _LEAKS_PADDING:
        return 0.0
    if task not in ("causal", "masked") and not finds_padding(model):
        return 0.0
    if task == "causal":
        both_ways = (name for name, m in model.named_modules() if m.__dict__.get("is_causal") is False)
        if any(_SELF_ATTENTION.search(name) for name in both_ways):
            return 0.0
    return 0.1


_SELF_ATTENTION = re.compile(r"^(?!.*(vision|image|audio|encoder)).*(self_attn|self_attention|attention|attn)$")


Alike = Callable[[int], int | None]  # up to which length a text may be padded; ``signature.longest_alike`` of a model


def any_length(length: int) -> None:
    """A text of this length may be padded to any."""


def buckets(
    lengths: Sequence[int],
    *,
    max_tokens: int,
    waste: float = 0.1,
    alike: Callable[[int], int | None] = lambda length: None,
) -> list[list[int]]:
    """Group indices so that groups have little padding; longest first, so that running out of memory happens early.

    Args:
        lengths: Number of tokens of each item.
        max_tokens: A padded group has at most this many tokens (an item longer than that is alone).
        waste: At most this share of a group's tokens is padding.
        alike: Up to which length a text may be padded; see ``signature.longest_alike``.
    """
    alike = cache(alike)  # many texts have the same length
    groups: list[list[int]] = []
    real = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        group = groups[-1] if groups else []
        padded = (len(group) + 1) * (lengths[group[0]] if group else lengths[i])
        fits = padded <= max_tokens and padded - (real + lengths[i]) <= waste * padded
        if group and fits and ((longest := alike(lengths[i])) is None or lengths[group[0]] <= longest):
            group.append(i)
            real += lengths[i]
        else:
            groups.append([i])
            real = lengths[i]
    return groups


def groups_of(model: PreTrainedModel, items: Sequence[Item], max_tokens: int) -> list[list[int]]:
    """Indices of items that a model may read together: of similar length, with the same extra inputs, and without images."""
    if len(items) == 1:
        return [[0]]
    waste = allowed_waste(model, task_of(model))
    alike = partial(longest_alike, model)
    by_extras: dict[frozenset[str], list[int]] = {}
    for i, item in enumerate(items):
        if not item.images:
            by_extras.setdefault(frozenset(item.extras), []).append(i)
    return [[i] for i, item in enumerate(items) if item.images] + [
        [indices[k] for k in group]
        for indices in by_extras.values()
        for group in buckets(
            [len(items[i].token_ids) for i in indices], max_tokens=max_tokens, waste=waste, alike=alike
        )
    ]
