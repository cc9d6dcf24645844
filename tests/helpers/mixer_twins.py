"""Slow twins of linear-attention mixers: token by token in float64, from the equations, with what is constant detached.

``twin(module, x, live)`` returns the mixer's output with its ordinary gradient, but: only the roles in ``live`` carry
gradient (``value``, ``query``, ``key``, ``gate`` for all that decays or writes, ``output`` for the output gate), normalisers are
constants, and a SiLU has the slope y / x. A rule set is then a sum of such gradients, each with its share.
"""

import math

import torch
from torch.nn import functional as F

_OUTPUT = {"qwen3_next": F.silu, "qwen3_5_text": F.silu, "olmo_hybrid": F.silu}  # the others: a sigmoid


def silu(x):
    return x * torch.sigmoid(x).detach()


def rms(x, norm):
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return x * norm.weight * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps).detach()


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6).detach()


def convolved(x, conv):
    """A causal convolution of every channel by itself, [B, T, C]."""
    kernel = conv.weight[:, 0]  # [C, K]
    size = kernel.shape[1]
    padded = F.pad(x, (0, 0, size - 1, 0))
    y = sum(padded[:, i : i + x.shape[1]] * kernel[:, i] for i in range(size))
    return y if conv.bias is None else y + conv.bias


class Held:
    """Detaches what is not among the live roles."""

    def __init__(self, live):
        self.live = live

    def __call__(self, role, tensor):
        return tensor if role in self.live else tensor.detach()


def delta_rule(q, k, v, decay, beta):
    """``S <- a S``, ``S <- S + b k (v - S^T k)^T``, ``o = S^T q``.

    Shapes: q, k [B, T, H, K], v [B, T, H, V], a [B, T, H, K or 1], b [B, T, H].
    """
    state = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[-1])  # [B, H, K, V]
    outputs = []
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, :, None]
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1)


def _delta(module, x, q, k, v, decay, beta, hold):
    """Behind the projections: convolution, unit vectors, and as many heads of queries and keys as of values."""
    mixed = silu(convolved(torch.cat([q, k, v], -1), module.conv1d))
    q, k, v = mixed.split([q.shape[-1], k.shape[-1], v.shape[-1]], -1)
    heads = beta.shape[-1]
    size = getattr(module, "head_k_dim", getattr(module, "head_dim", None))
    q, k = (p.unflatten(-1, (-1, size)) for p in (q, k))
    q, k = (p.repeat_interleave(heads // p.shape[2], 2) for p in (q, k))
    q, k, v = (
        hold("query", unit(q)) / math.sqrt(size),
        hold("key", unit(k)),
        hold("value", v.unflatten(-1, (heads, -1))),
    )
    return delta_rule(q, k, v, hold("gate", decay), hold("gate", beta))


def _decay(module, a):
    return torch.exp(-module.A_log.exp() * F.softplus(a + module.dt_bias))[..., None]


def _gated(norm, core, z, hold, gate):
    return (rms(core, norm) * hold("output", gate(z))).flatten(-2)


def qwen3_5(module, x, live):
    hold = Held(live)
    q, k, v = module.in_proj_qkv(x).split([module.key_dim, module.key_dim, module.value_dim], -1)
    core = _delta(module, x, q, k, v, _decay(module, module.in_proj_a(x)), module.in_proj_b(x).sigmoid(), hold)
    return module.out_proj(_gated(module.norm, core, module.in_proj_z(x).view_as(core), hold, silu))


def qwen3_next(module, x, live):
    hold, groups = Held(live), module.num_k_heads
    size, many = module.head_k_dim, module.value_dim // groups
    q, k, v, z = module.in_proj_qkvz(x).unflatten(-1, (groups, -1)).split([size, size, many, many], -1)
    b, a = (part.flatten(-2) for part in module.in_proj_ba(x).unflatten(-1, (groups, -1)).chunk(2, -1))
    q, k, v = (part.flatten(-2) for part in (q, k, v))
    core = _delta(module, x, q, k, v, _decay(module, a), b.sigmoid(), hold)
    return module.out_proj(_gated(module.norm, core, z.flatten(-2).view_as(core), hold, silu))


def olmo_hybrid(module, x, live):
    hold = Held(live)
    beta = module.b_proj(x).sigmoid() * (2 if module.allow_neg_eigval else 1)
    q, k, v = module.q_proj(x), module.k_proj(x), module.v_proj(x)
    core = _delta(module, x, q, k, v, _decay(module, module.a_proj(x)), beta, hold)
    return module.o_proj(_gated(module.o_norm, core, module.g_proj(x).view_as(core), hold, silu))


def kimi(module, x, live):
    hold = Held(live)
    q, k, v = module.q_proj(x), module.k_proj(x), module.v_proj(x)
    core = _delta(module, x, q, k, v, module.forget_gate(x).double().exp(), module.b_proj(x).sigmoid(), hold)
    z = module.g_proj(x) if hasattr(module, "g_proj") else module.g_b_proj(module.g_a_proj(x))
    return module.o_proj(_gated(module.o_norm, core, z.view_as(core), hold, torch.sigmoid))


def lightning(module, x, live):
    hold = Held(live)
    mixed = silu(module.qkv_proj(x)).unflatten(-1, (module.num_attention_heads, -1))
    q, k, v = (hold(role, part) for role, part in zip(("query", "key", "value"), mixed.chunk(3, -1), strict=True))
    keep, outputs = torch.exp(-module.slope_rate), []
    state = q.new_zeros(len(q), q.shape[2], q.shape[3], v.shape[3])
    for t in range(q.shape[1]):
        state = keep * state + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    core = rms(torch.stack(outputs, 1).flatten(-2), module.norm)
    return module.out_proj(core * hold("output", torch.sigmoid(module.output_gate(x))))


def short_convolution(module, x, live):
    hold = Held(live)
    before, after, value = module.in_proj(x).chunk(3, -1)
    return module.out_proj(hold("output", after) * convolved(hold("gate", before) * hold("value", value), module.conv))


def rwkv(module, x, live):
    """A softmax over the tokens before, whose scores are keys that decay: ``exp(k_s - (t - 1 - s) w)``, and ``exp(k_t + u)``."""
    hold = Held(live)
    earlier = F.pad(x, (0, 0, 1, -1))

    def mixed(weight):
        return x * weight + earlier * (1 - weight)

    k = hold("key", module.key(mixed(module.time_mix_key)))
    v = hold("value", module.value(mixed(module.time_mix_value)))
    r = hold("output", torch.sigmoid(module.receptance(mixed(module.time_mix_receptance))))
    decay, outputs = -module.time_decay.exp(), []
    for t in range(x.shape[1]):
        distance = torch.arange(t - 1, -1, -1, dtype=x.dtype)[None, :, None]
        scores = torch.cat([k[:, :t] + distance * decay, k[:, t : t + 1] + module.time_first], 1)
        outputs.append((scores.softmax(1) * v[:, : t + 1]).sum(1))
    return module.output(r * torch.stack(outputs, 1))


def mlstm(module, x, live):
    """``C <- f C + i k v^T``, ``n <- f n + i k``, ``h = C^T q / max(|n q|, 1)``, the denominator constant."""
    hold, config = Held(live), module.config

    def heads(y):
        return y.unflatten(-1, (config.num_heads, -1))

    def capped(y):  # the identity rule of a soft cap
        return y * (config.gate_soft_cap * torch.tanh(y / config.gate_soft_cap) / y).detach()

    q, k, v = (hold(role, heads(p(x))) for role, p in (("query", module.q), ("key", module.k), ("value", module.v)))
    i, f = (capped(hold("gate", p(x))) for p in (module.igate_preact, module.fgate_preact))
    i, f, outputs = i.exp(), torch.sigmoid(f), []
    state, norm = q.new_zeros(len(q), *q.shape[2:], v.shape[-1]), q.new_zeros(len(q), *q.shape[2:])
    for t in range(x.shape[1]):
        state = f[:, t, :, None, None] * state + torch.einsum("bh,bhk,bhv->bhkv", i[:, t], k[:, t], v[:, t])
        norm = f[:, t, :, None] * norm + i[:, t, :, None] * k[:, t]
        query = q[:, t] / math.sqrt(q.shape[-1])
        size = torch.einsum("bhk,bhk->bh", norm, query).abs().clamp(min=1)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query) / size[..., None].detach())
    core = torch.stack(outputs, 1)
    deviation = torch.sqrt(core.var(-1, keepdim=True, unbiased=False) + config.norm_eps).detach()
    core = ((core - core.mean(-1, keepdim=True)) / deviation).flatten(-2) * module.multihead_norm.weight
    return module.out_proj(hold("output", torch.sigmoid(module.ogate_preact(x))) * core)
