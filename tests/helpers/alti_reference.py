"""Slow ALTI-Logit in NumPy loops, from the model's own eager attention weights and its weight matrices: the twin of
``lrpx.methods.alti.logit``. Every transformed vector is written out; nothing is shared with the library.

``parts_of`` reads what the formulas need from five layouts: GPT-2, Llama (grouped values), OLMo 2 (norm after a
sublayer), Gemma 2 (both, gain 1 + weight) and BERT (norm on the stream, masked LM head).
"""

import contextlib
from dataclasses import dataclass

import numpy as np
import torch


@contextlib.contextmanager
def float64_norms(model):
    """Compute the RMSNorms of a float64 ``model`` in float64, where transformers casts to float32."""

    def forward(norm):
        offset = 1.0 if "Gemma" in type(norm).__name__ else 0.0
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        return lambda x: (offset + norm.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))

    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    for norm in norms:
        norm.forward = forward(norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


@dataclass
class Block:
    x: np.ndarray  # [T, d] input
    attention: np.ndarray  # [H, T, T]
    values: np.ndarray  # [H, T, dv]
    output: np.ndarray  # [d, H * dv]
    bias: np.ndarray  # [d]
    mlp: np.ndarray  # [T, d]
    branch: object = None  # norm modules after the sublayers, before (branch) or after (stream) adding
    stream: object = None


def array(tensor):
    return tensor.detach().numpy().copy()


def norm_map(module, x, offset=0.0):
    """(G, b) of ``norm(x) = G x + b`` at fixed deviation, G as a matrix."""
    d = len(x)
    gain = offset + array(module.weight)
    if isinstance(module, torch.nn.LayerNorm):
        center = np.eye(d) - np.ones((d, d)) / d
        deviation = np.sqrt(((center @ x) ** 2).mean() + module.eps)
        return np.diag(gain) @ center / deviation, array(module.bias)
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    return np.diag(gain) / np.sqrt((x**2).mean() + eps), np.zeros(d)


def parts_of(model, ids):
    """The blocks of a single unpadded input, from the model's own outputs and weights."""
    kept = {}
    kind = model.config.model_type
    blocks = {"gpt2": lambda: model.transformer.h, "bert": lambda: model.bert.encoder.layer}.get(
        kind, lambda: model.model.layers
    )()
    mlps = [b.output.dense if kind == "bert" else b.mlp for b in blocks]
    handles = [m.register_forward_hook(lambda m, a, o, i=i: kept.update({i: o})) for i, m in enumerate(mlps)]
    inputs = []
    handles += [b.register_forward_pre_hook(lambda m, a: inputs.append(a[0])) for b in blocks]
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_attentions=True)
    for handle in handles:
        handle.remove()
    result = []
    heads = model.config.num_attention_heads
    for i, block in enumerate(blocks):
        x = inputs[i]
        with torch.no_grad():
            if kind == "gpt2":
                value, projection = block.attn.c_attn(block.ln_1(x)).chunk(3, -1)[2], block.attn.c_proj
                output = array(projection.weight).T
            elif kind == "bert":
                value, projection = block.attention.self.value(x), block.attention.output.dense
                output = array(projection.weight)
            else:
                normed = x if kind == "olmo2" else block.input_layernorm(x)
                value, projection = block.self_attn.v_proj(normed), block.self_attn.o_proj
                output = array(projection.weight)
        size = output.shape[1] // heads
        groups = array(value[0]).reshape(len(ids), -1, size)  # [T, G, dv]
        values = np.stack([groups[:, h * groups.shape[1] // heads] for h in range(heads)])
        norms = {}
        if kind in ("olmo2", "gemma2"):
            norms["branch"] = (block.post_attention_layernorm, block.post_feedforward_layernorm)
        if kind == "bert":
            norms["stream"] = (block.attention.output.LayerNorm, block.output.LayerNorm)
        bias = np.zeros(len(output)) if projection.bias is None else array(projection.bias)
        weights = array(out.attentions[i][0])
        result.append(Block(array(x[0]), weights, values, output, bias, array(kept[i][0]), **norms))
    return result, array(out.logits[0])


def pieces(block):
    """W_O of each head: H arrays [d, dv]."""
    return np.split(block.output, len(block.values), axis=1)


def attention_output(block, i):
    return (
        sum(a[i] @ v @ o.T for a, v, o in zip(block.attention, block.values, pieces(block), strict=True)) + block.bias
    )


def transformed(block, i, j, offset):
    """T_i(x_j) of each head [H, d], the token's own share, and y_i."""
    each = zip(block.attention, block.values, pieces(block), strict=True)
    parts = np.stack([a[i, j] * o @ v[j] for a, v, o in each])
    out = attention_output(block, i)
    own, y = block.x[i], block.x[i] + out
    if block.branch:
        g, b = norm_map(block.branch[0], out, offset)
        parts, y = parts @ g.T, block.x[i] + g @ out + b
    if block.stream:
        g, b = norm_map(block.stream[0], y, offset)
        parts, own, y = parts @ g.T, g @ own, g @ y + b
    return parts, own, y


def mixing(block, offset=0.0):
    """C [T, T]."""
    length = len(block.x)
    matrix = np.zeros((length, length))
    for i in range(length):
        for j in range(length):
            parts, own, y = transformed(block, i, j, offset)
            t = parts.sum(0) + (own if i == j else 0)
            if i == j or block.attention[:, i, j].any():
                matrix[i, j] = max(0, np.abs(y).sum() - np.abs(y - t).sum())
        total = matrix[i].sum()
        matrix[i] = matrix[i] / total if total else np.eye(length)[i]
    return matrix


def head_gradient(model, block_output, target, contrast):
    """The vector w at the last block's output, from the head's matrices."""
    kind = model.config.model_type
    if kind == "bert":
        transform, decoder = model.cls.predictions.transform, model.cls.predictions.decoder
        u = array(decoder.weight)[target] - array(decoder.weight)[contrast]
        dense = array(transform.dense.weight)
        before = dense @ block_output + array(transform.dense.bias)
        after = array(transform.transform_act_fn(torch.tensor(before)))
        g, _ = norm_map(transform.LayerNorm, after)
        return dense.T @ ((g.T @ u) * after / before)
    norm = model.transformer.ln_f if kind == "gpt2" else model.model.norm
    g, b = norm_map(norm, block_output, 1.0 if kind == "gemma2" else 0.0)
    rows = array(model.lm_head.weight)[[target, contrast]]
    raw = rows @ (g @ block_output + b)
    cap = getattr(model.config, "final_logit_softcapping", None)
    slope = cap * np.tanh(raw / cap) / raw if cap else np.ones(2)
    return g.T @ (slope[0] * rows[0] - slope[1] * rows[1])


def alti_logit(model, ids, p, target, contrast):
    """Tokens [T], layers [L, T], heads [L, H, T], MLPs [L], attention biases [L], matrices [L, T, T], value."""
    blocks, logits = parts_of(model, ids)
    offset = 1.0 if model.config.model_type == "gemma2" else 0.0
    matrices = np.stack([mixing(block, offset) for block in blocks])
    last = blocks[-1]
    if last.stream:
        y = transformed(last, p, p, offset)[2]
        g2, b2 = norm_map(last.stream[1], y + last.mlp[p])
        end = g2 @ (y + last.mlp[p]) + b2
    else:
        parts = last.mlp[p]
        if last.branch:
            g, b = norm_map(last.branch[1], parts, offset)
            parts = g @ parts + b
        end = transformed(last, p, p, offset)[2] + parts
    w = head_gradient(model, end, target, contrast)
    heads, mlps, biases = [], [], []
    for block in reversed(blocks):
        to_mlp = to_attention = w
        out = attention_output(block, p)
        if block.branch:
            to_attention = norm_map(block.branch[0], out, offset)[0].T @ w
            to_mlp = norm_map(block.branch[1], block.mlp[p], offset)[0].T @ w
        if block.stream:
            g, b = norm_map(block.stream[0], block.x[p] + out)
            to_mlp = norm_map(block.stream[1], g @ (block.x[p] + out) + b + block.mlp[p])[0].T @ w
            to_attention = w = g.T @ to_mlp
        each = zip(block.attention, block.values, pieces(block), strict=True)
        heads.append([[a[p, j] * (to_attention @ o @ v[j]) for j in range(len(ids))] for a, v, o in each])
        mlps.append(to_mlp @ block.mlp[p])
        biases.append(to_attention @ block.bias)
    heads = np.array(heads[::-1])
    layers = []
    for index in range(len(blocks)):
        row = heads[index].sum(0)
        for below in reversed(range(index)):
            row = row @ matrices[below]
        layers.append(row)
    return {
        "tokens": np.sum(layers, 0),
        "layers": np.array(layers),
        "heads": heads,
        "mlp": np.array(mlps[::-1]),
        "attention_bias": np.array(biases[::-1]),
        "matrices": matrices,
        "direct": w @ blocks[0].x[p],
        "value": logits[p, target] - logits[p, contrast],
    }
