r"""ALTI-Logit: what every token, head, layer and MLP adds to a logit, in one forward pass.

With the attention weights and the deviations of norms held constant, a logit is a sum over the residual stream:

1. ``trace`` runs the model once and keeps, per layer, what the explained position p needs (``residual_trace.py``).
2. The explained scalar is a linear function of the last block's output at p; ``_pull_back_head`` finds its vector w.
   Elementwise functions on the way (the masked LM head's GELU, a soft cap on logits) pass relevance on unchanged.
3. ``_pull_back_blocks`` brings w down through the blocks. Only norms that sit on the stream change it.
4. Attention of layer l: ``delta^l_hj = A^h_pj (w' W_O^h v^h_j)``, one number per head and position.
5. Tokens, by Horner's scheme: ``r <- delta^L``; for l = L-1 ... 1: ``r <- r C^l + delta^l``, where ``C^l`` is the layer's
   mixing matrix (``contributions.py``). The last layer's matrix is never needed.

Sources: Ferrando et al. 2023 (ALTI-Logit), Ferrando et al. 2022 (ALTI), Abnar & Zuidema 2020 (attention rollout); norms
on the stream and masked language models are ours, derived in ``docs/equations.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import NonFiniteError, UnsupportedModelError
from ...passes.predictions import predictions, read_predictions
from ...text.batching import Attribution, Batch, Predictions
from .affine import Norm, projection
from .attention_weights import concatenated
from .contributions import Layers, kept, normalised_rows
from .families import ALTERNATIVES, Family, find_family, get
from .residual_trace import ResidualTrace, trace

Parts = dict[str, Tensor]  # component -> [B] or [B, L]


def explain(model: nn.Module, batch: Batch, *, direct: bool = False) -> list[Attribution]:
    """ALTI-Logit of every token of every item.

    Tokens and components sum to the explained value; ``residual`` is what rounding left of it.

    Args:
        model: A decoder or masked language model whose family is known (``families/``).
        batch: Padded items.
        direct: Add what the explained token's own embedding contributes along the residual stream to that token,
            instead of to ``components["direct"]``.

    Returns:
        Per item ``relevance [T]``, ``by_layer [L, T]`` (each layer's attention, carried to the input; without
        ``direct`` they sum to ``relevance``), ``by_head [L, H, T]`` (at each layer's own input positions) and
        ``components``: ``mlp [L]``, ``attention_bias [L]``, ``direct``, ``final_norm_bias``, and where the model has such
        biases ``head_bias``, ``attention_norm_bias [L]``, ``mlp_norm_bias [L]``.

    Raises:
        UnsupportedModelError: The model is of no known family, its attention cannot be followed, or the parts do not
            add up to the value, so that the family does not describe it.
    """
    family = find_family(model)
    seen = trace(model, family, batch, mixing=kept, last=False)
    explained = _explained(seen, batch)
    by_head, parts = _decompose(model, family, seen, explained)
    by_layer = _carried_to_input(by_head.sum(2)[..., : seen.mixing.shape[-1]], seen.mixing)

    attributions = []
    heads, layers, value = _numpy(by_head), _numpy(by_layer), _numpy(explained.value)
    targets, positions = explained.target.tolist(), batch.positions.tolist()
    components = {name: _numpy(part) for name, part in parts.items()}
    predicted = _predictions(seen, explained, batch)
    for item, span in enumerate(batch.spans):
        own = {name: part[item] for name, part in components.items()}
        rows = np.zeros_like(heads[item, :, 0])  # [L, T]
        rows[:, : layers.shape[-1]] = layers[item]
        relevance = rows[:, span].sum(0)
        residual = float(value[item] - relevance.sum() - sum(np.sum(part) for part in own.values()))
        if direct:
            relevance[positions[item] - span.start] += own["direct"]
            own["direct"] = np.float64(0)
        attributions.append(
            Attribution(
                relevance=relevance,
                value=float(value[item]),
                residual=residual,
                target=targets[item],
                by_layer=rows[:, span],
                by_head=heads[item][..., span],
                components={name: part if part.ndim else float(part) for name, part in own.items()},
                predictions=predicted[item],
            )
        )
    return attributions


def alti(model: nn.Module, batch: Batch) -> list[Attribution]:
    """ALTI: how much of every input token is in the explained position's last hidden state; not tied to a logit.

    The row of the explained position of ``C^L ... C^1``; not negative, sums to 1. Ferrando et al. 2022.

    Raises:
        UnsupportedModelError: As ``explain``.
    """
    family = find_family(model)
    seen = trace(model, family, batch, mixing=kept, last=True)
    explained = _explained(seen, batch)
    _decompose(model, family, seen, explained)  # raises if the family does not describe the model
    return _rolled_out(model, seen, explained, batch)


def attention_rollout(model: nn.Module, batch: Batch) -> list[Attribution]:
    """Attention rollout: as ``alti``, with attention averaged over heads, half and half with the identity, as matrices.

    Abnar & Zuidema 2020.

    Raises:
        UnsupportedModelError: As ``explain``.
    """
    seen = trace(model, find_family(model), batch, mixing=half_attention, last=True)
    return _rolled_out(model, seen, _explained(seen, batch), batch)


NON_FINITE = "Load it in float32 or bfloat16, check its weights and inputs, and pad on the right."


def half_attention(layers: Layers, length: int, causal: bool) -> Tensor:
    """``[B, n, n]``: attention averaged over the heads, half and half with the identity."""
    mean = layers.attention.weights(slice(0, length))[..., :length].mean(1)
    return normalised_rows(mean).lerp_(torch.eye(length, dtype=mean.dtype, device=mean.device), 0.5)


@dataclass(frozen=True)
class _Explained:
    """The explained scalars, ``logit[target] - logit[contrast]`` or ``logit[target]``, as signed sums of logits.

    Attributes:
        target: ``[B]`` token ids.
        ids: ``[B, 2]``: target and contrast (any id where there is none).
        signs: ``[B, 2]``: 1, and -1 or 0.
        value: ``[B]``.
    """

    target: Tensor
    ids: Tensor
    signs: Tensor
    value: Tensor


def _explained(seen: ResidualTrace, batch: Batch) -> _Explained:
    logits = seen.logits
    asked, contrast = batch.targets.to(logits.device), batch.contrasts.to(logits.device)
    target = torch.where(asked < 0, logits.argmax(-1), asked)
    ids = torch.stack([target, contrast.clamp(min=0)], dim=1)
    signs = torch.stack([torch.ones_like(target), -(contrast >= 0).long()], dim=1).to(logits.dtype)
    return _Explained(target=target, ids=ids, signs=signs, value=(signs * logits.gather(1, ids)).sum(1))


def _rolled_out(model: nn.Module, seen: ResidualTrace, explained: _Explained, batch: Batch) -> list[Attribution]:
    """The explained position's row of the product of all layers' matrices."""
    length = seen.mixing.shape[-1]
    row = nn.functional.one_hot(batch.positions, length).unsqueeze(1).to(seen.mixing)  # [B, 1, n]
    for matrix in seen.mixing.flip(0):
        row = row @ matrix
    padding = batch.inputs["input_ids"].shape[1] - length
    rows, values = _numpy(nn.functional.pad(row[:, 0], (0, padding))), explained.value.tolist()
    if not (np.isfinite(rows).all() and np.isfinite(values).all()):
        raise NonFiniteError(
            f"NaN or infinity in the attention weights or logits of {type(model).__name__}. {NON_FINITE}"
        )
    of_items = zip(
        *(batch.spans, rows, values, explained.target.tolist(), _predictions(seen, explained, batch)), strict=True
    )
    return [
        Attribution(relevance=row[span], value=value, residual=None, target=target, predictions=predicted)
        for span, row, value, target, predicted in of_items
    ]


def _predictions(seen: ResidualTrace, explained: _Explained, batch: Batch) -> list[Predictions] | list[None]:
    """What the model predicts for each item, if the batch asks for it."""
    if not batch.likeliest:
        return [None] * len(batch.spans)
    count = min(batch.likeliest, seen.logits.shape[1])
    return list(read_predictions(_numpy(predictions(seen.logits, explained.target, batch.contrasts, count))))


def _decompose(model: nn.Module, family: Family, seen: ResidualTrace, explained: _Explained) -> tuple[Tensor, Parts]:
    """The scalars as a sum: of what each head adds from each of its positions ``[B, L, H, T]``, and of components."""
    gradient, parts = _pull_back_head(model, family, seen, explained)
    vectors, of_blocks = _pull_back_blocks(model, family, seen, gradient)
    parts |= of_blocks
    by_head = _heads([get(block, family.attention_output) for block in get(model, family.blocks)], seen, vectors)
    _check_sum(model, explained, by_head, parts)
    return by_head, parts


def _pull_back_head(
    model: nn.Module, family: Family, seen: ResidualTrace, explained: _Explained
) -> tuple[Tensor, Parts]:
    """``w [B, d]``, the scalar's gradient at the last block's output, and what the head's biases add to the scalar."""
    paths = [path for path in family.head if path in seen.head]
    weight, bias = projection(get(model, paths[-1]))
    raw = seen.head[paths[-1]][1]
    # A soft cap or a factor after the unembedding: the identity rule.
    signs = explained.signs * _slope(raw.gather(1, explained.ids), seen.logits.gather(1, explained.ids))
    ids = explained.ids.to(weight.device)  # the unembedding may be elsewhere, and is large: only its rows are moved
    gradient = torch.einsum("bk,dbk->bd", signs, weight[:, ids].to(signs))
    zero = torch.zeros_like(explained.value)
    linear_bias = zero if bias is None else (signs * bias[ids].to(signs)).sum(1)
    norm_bias, has_linear_bias = zero, bias is not None
    for path, following in reversed(list(itertools.pairwise(paths))):
        (entered, left), module = seen.head[path], get(model, path)
        gradient = gradient * _slope(left, seen.head[following][0])
        if isinstance(module, nn.Linear):
            weight, bias = projection(module)
            if bias is not None:
                linear_bias, has_linear_bias = linear_bias + gradient @ bias.to(gradient), True
            gradient = gradient @ weight.t().to(gradient)
        else:
            norm = Norm.of([module], gradient, family.norm_offset)
            norm_bias = norm_bias + norm.bias_share(gradient)
            gradient = norm.pull_back(gradient, norm.inverse_deviation(entered))
    return gradient, {"final_norm_bias": norm_bias} | ({"head_bias": linear_bias} if has_linear_bias else {})


def _pull_back_blocks(model: nn.Module, family: Family, seen: ResidualTrace, w: Tensor) -> tuple[Tensor, Parts]:
    """The scalar's gradients at the attention outputs ``[L, B, d]``, and the parts that belong to no token.

    Symbols as in ``residual_trace.linear_layers``: the stream x, the attention output a, the MLP output m, the factor s.
    """
    s, x, a, m = family.factor(model.config), seen.stream, seen.attention, seen.mlp
    blocks = list(get(model, family.blocks))
    paths = family.branch_norms or family.sum_norms or ()
    norms = [Norm.of([get(block, path) for block in blocks], w, family.norm_offset) for path in paths]
    after: list[Tensor] = []  # the gradients at what the norms return [L, B, d]
    if family.branch_norms:  # x + s N1(a) + s N2(m)
        after = [(s * w).expand_as(a), (s * w).expand_as(m)]
        at_attention, at_mlp = (
            norm.pull_back(gradient, norm.inverse_deviation(entered))
            for norm, gradient, entered in zip(norms, after, (a, m), strict=True)
        )
    elif family.sum_norms:  # N2(N1(x + s a) + s m): the only ones on the stream, so that w changes
        first, second = norms
        inner = torch.add(x, a, alpha=s)
        outer = torch.add(first(inner), m, alpha=s)
        inverse = first.inverse_deviation(inner), second.inverse_deviation(outer)
        gradients = []
        for layer in reversed(range(len(blocks))):
            middle = second[layer].pull_back(w, inverse[1][layer])
            gradients.append((w, middle))
            w = first[layer].pull_back(middle, inverse[0][layer])
        outermost, middles = (torch.stack(rows[::-1]) for rows in zip(*gradients, strict=True))
        after, at_mlp = [middles, outermost], s * middles
        at_attention = s * torch.cat([w.unsqueeze(0), outermost[:-1]])
    else:  # x + s a + s m
        at_attention = at_mlp = (w if s == 1 else s * w).expand_as(a)
    parts = {"mlp": (at_mlp * m).sum(-1), "attention_bias": torch.zeros_like(at_mlp[..., 0])}
    biases = [projection(get(block, family.attention_output))[1] for block in blocks]
    if any(bias is not None for bias in biases):
        stacked = torch.stack([torch.zeros_like(w[0]) if bias is None else bias.to(w) for bias in biases])
        parts["attention_bias"] = (at_attention * stacked.unsqueeze(1)).sum(-1)
    for name, norm, gradient in zip(("attention_norm_bias", "mlp_norm_bias"), norms, after, strict=False):
        if norm.bias is not None:
            parts[name] = norm.bias_share(gradient)
    return at_attention, {name: part.t() for name, part in parts.items()} | {"direct": (w * x[0]).sum(-1)}


def _heads(outputs: Sequence[nn.Module], seen: ResidualTrace, vectors: Tensor) -> Tensor:
    """``delta [B, L, H, T]``: what each head adds to the scalar from each of its input positions."""
    along, start = [], 0
    for value in seen.values:
        layers, batch, groups, length, size = value.shape
        part, start = slice(start, start + layers), start + layers
        here = vectors[part].to(value.device)
        weights = [projection(output)[0].to(here) for output in outputs[part]]  # [H * dv, d]
        rows = torch.stack([vector @ weight.t() for vector, weight in zip(here, weights, strict=True)])  # W_O' w
        rows = rows.view(layers, batch, groups, -1, size)  # the heads by group
        along.append((rows @ value.transpose(-1, -2)).view(layers, batch, -1, length).to(vectors.device))
    return (concatenated(along) * seen.weights).transpose(0, 1)


def _carried_to_input(delta: Tensor, mixing: Tensor) -> Tensor:
    """``delta^l C^(l-1) ... C^1`` of every layer l: ``[B, L, n]`` -> the same shape."""
    here, there = delta.clone(), delta.clone()
    for above in range(delta.shape[1] - 1, 0, -1):
        torch.bmm(here[:, above:], mixing[above - 1], out=there[:, above:])
        here, there = there, here  # in both, the rows below are still delta
    return here


def _slope(before: Tensor, after: Tensor) -> Tensor:
    """The identity rule: ``after / before``, 0 where ``before`` is 0; 1 where nothing happened."""
    if torch.equal(before, after):
        return torch.ones_like(before)
    return torch.where(before == 0, 0, after / before)


def _check_sum(model: nn.Module, explained: _Explained, by_head: Tensor, parts: Parts) -> None:
    """Refuse parts that do not add up to the value: then the family describes another model than this one."""
    # Norms compute in float32 even in a float64 model. The square root leaves room for the depth of the model.
    precision = max(torch.finfo(dtype).eps for dtype in (next(model.parameters()).dtype, torch.float32))
    terms = torch.cat([part.reshape(len(by_head), -1) for part in (by_head, *parts.values())], dim=1)
    missing = explained.value - terms.sum(1)
    if not torch.isfinite(missing).all():
        raise NonFiniteError(f"NaN or infinity in the ALTI-Logit of {type(model).__name__}. {NON_FINITE}")
    if (missing.abs() > precision**0.5 * terms.abs().sum(1)).any():
        config: Any = model.config
        raise UnsupportedModelError(
            f"the parts of the logit miss its value by up to {float(missing.abs().max()):.3g} ({type(model).__name__}, model "
            f"type {config.model_type!r}): the family does not describe this model. {ALTERNATIVES}"
        )


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()
