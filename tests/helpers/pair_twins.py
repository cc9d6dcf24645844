"""BART and T5 v1.1 of one block per stack, written out by hand: the forward pass, and relevance as explicit sums.

No autograd and none of the library's rules: relevance R of an output y is handed to inputs x by the equations of the papers.

    linear           R_i = sum_j x_i W_ji / y_j R_j                    (biases keep their share)
    norm             the same, for the linear map that the norm is with its deviation held constant
    sum y = a + b    R_a = a / y R                                     (a constant summand keeps its share)
    activation       R unchanged
    weighted sum     R(v_s) = sum_t A_ts v_s / o_t R_t                 (lrp: A constant), half of it for attnlrp
    softmax          R_i = x_i (R_i - A_i sum_j R_j)                   (attnlrp)
    scores q . k     half to each factor                               (attnlrp)
    gate g * u       lrp: all to u; attnlrp: half to each
"""

import torch
from torch.nn import functional as F


def linear(x, layer):
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def linear_r(r, x, y, layer):
    return x * ((r / y) @ layer.weight)


def sum_r(r, a, y):
    return a / y * r


def layer_norm(x, norm):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def layer_norm_r(r, x, y, norm):
    deviation = (x.var(-1, keepdim=True, unbiased=False) + norm.eps).sqrt()
    n = x.shape[-1]
    centred = torch.eye(n, dtype=x.dtype) - 1 / n
    return x * ((r / y * norm.weight / deviation) @ centred)


def rms_norm(x, norm):
    return x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt() * norm.weight


class Attention:
    """Attention of several heads from ``x`` to ``memory``; ``names`` are those of its projections."""

    def __init__(self, module, names, heads, scale, bias=None, mask=None):
        self.q, self.k, self.v, self.o = (getattr(module, name) for name in names)
        self.heads, self.scale, self.bias, self.mask = heads, scale, 0 if bias is None else bias, mask

    def split(self, x):
        return x.view(len(x), self.heads, -1).transpose(0, 1)  # [heads, T, width of a head]

    def join(self, x):
        return x.transpose(0, 1).reshape(x.shape[1], -1)

    def __call__(self, x, memory):
        self.x, self.memory = x, memory
        self.flat = [linear(x, self.q), linear(memory, self.k), linear(memory, self.v)]
        q, k, v = map(self.split, self.flat)
        self.products = q @ k.transpose(1, 2) * self.scale
        self.scores = self.products + self.bias
        shown = self.scores if self.mask is None else self.scores.masked_fill(~self.mask, -torch.inf)
        self.weights = shown.softmax(-1)
        self.mixed = self.join(self.weights @ v)
        self.out = linear(self.mixed, self.o)
        return self.out

    def relevance(self, r, rules):
        """That of ``x`` and of ``memory``."""
        r = self.split(linear_r(r, self.mixed, self.out, self.o))
        q, k, v = map(self.split, self.flat)
        ratio = r / self.split(self.mixed)
        half = 1 if rules == "lrp" else 0.5
        r_v = half * v * (self.weights.transpose(1, 2) @ ratio)
        of_memory = linear_r(self.join(r_v), self.memory, self.flat[2], self.v)
        if rules == "lrp":
            return torch.zeros_like(self.x), of_memory
        r_a = half * self.weights * (ratio @ v.transpose(1, 2))
        r_s = self.scores * (r_a - self.weights * r_a.sum(-1, keepdim=True))
        r_s = torch.where(self.weights > 0, r_s, 0)  # what is masked
        ratio = r_s / self.scores * self.scale / 2  # of the products alone: a bias of the scores keeps its share
        r_q, r_k = q * (ratio @ k), k * (ratio.transpose(1, 2) @ q)
        of_x = linear_r(self.join(r_q), self.x, self.flat[0], self.q)
        return of_x, of_memory + linear_r(self.join(r_k), self.memory, self.flat[1], self.k)


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def bart(model, source, target, chosen, rules):
    """The logit of ``chosen`` after all of ``target``, and the relevance of what enters both first blocks."""
    bart = model.model
    names, heads = ("q_proj", "k_proj", "v_proj", "out_proj"), bart.config.encoder_attention_heads
    scale = (bart.config.d_model // heads) ** -0.5

    def entry(stack, ids):
        positions = stack.embed_positions.weight[2 : 2 + len(ids)]
        return layer_norm(bart.shared.weight[ids] + positions, stack.layernorm_embedding)

    class Block:  # x -> norm(x + f(x)), once for attention and once for the MLP
        def __init__(self, layer):
            self.layer = layer

        def mlp(self, x):
            self.x, self.inner = x, linear(x, self.layer.fc1)
            self.active = F.gelu(self.inner)
            self.wide = linear(self.active, self.layer.fc2)
            self.sum = x + self.wide
            self.out = layer_norm(self.sum, self.layer.final_layer_norm)
            return self.out

        def mlp_relevance(self, r):
            r = layer_norm_r(r, self.sum, self.out, self.layer.final_layer_norm)
            inside = linear_r(sum_r(r, self.wide, self.sum), self.active, self.wide, self.layer.fc2)
            return sum_r(r, self.x, self.sum) + linear_r(inside, self.x, self.inner, self.layer.fc1)

    e, d = bart.encoder.layers[0], bart.decoder.layers[0]
    x, y = entry(bart.encoder, source), entry(bart.decoder, target)
    own = Attention(e.self_attn, names, heads, scale)
    sum1 = x + own(x, x)
    mid = layer_norm(sum1, e.self_attn_layer_norm)
    encoder = Block(e)
    memory = encoder.mlp(mid)
    looking = Attention(d.self_attn, names, heads, scale, mask=causal(len(target)))
    sum2 = y + looking(y, y)
    first = layer_norm(sum2, d.self_attn_layer_norm)
    crossing = Attention(d.encoder_attn, names, heads, scale)
    sum3 = first + crossing(first, memory)
    second = layer_norm(sum3, d.encoder_attn_layer_norm)
    decoder = Block(d)
    last = decoder.mlp(second)
    row = bart.shared.weight[chosen]
    value = last[-1] @ row + model.final_logits_bias[0, chosen]

    r = torch.zeros_like(last)
    r[-1] = last[-1] * row
    r = layer_norm_r(decoder.mlp_relevance(r), sum3, second, d.encoder_attn_layer_norm)
    of_first, of_memory = crossing.relevance(sum_r(r, crossing.out, sum3), rules)
    r = layer_norm_r(sum_r(r, first, sum3) + of_first, sum2, first, d.self_attn_layer_norm)
    r_y = sum_r(r, y, sum2) + sum(looking.relevance(sum_r(r, looking.out, sum2), rules))
    r = layer_norm_r(encoder.mlp_relevance(of_memory), sum1, mid, e.self_attn_layer_norm)
    r_x = sum_r(r, x, sum1) + sum(own.relevance(sum_r(r, own.out, sum1), rules))
    return value, torch.cat([r_x.sum(-1), r_y.sum(-1)])


def t5(model, source, target, chosen, rules):
    """As ``bart``, for T5 v1.1: RMSNorm before each part, a relative bias of the scores, no scaling, a gated MLP."""
    names, heads = ("q", "k", "v", "o"), model.config.num_heads

    class Gated:
        def __init__(self, mlp):
            self.mlp = mlp

        def __call__(self, x):
            self.x = x
            self.g, self.u = linear(x, self.mlp.wi_0), linear(x, self.mlp.wi_1)
            self.product = F.gelu(self.g, approximate="tanh") * self.u
            self.out = linear(self.product, self.mlp.wo)
            return self.out

        def relevance(self, r):
            r = linear_r(r, self.product, self.out, self.mlp.wo)
            if rules == "lrp":
                return linear_r(r, self.x, self.u, self.mlp.wi_1)
            return linear_r(r / 2, self.x, self.u, self.mlp.wi_1) + linear_r(r / 2, self.x, self.g, self.mlp.wi_0)

    def bias(stack, n):
        module = stack.block[0].layer[0].SelfAttention
        return module.compute_bias(n, n)[0]

    x, y = model.shared.weight[source], model.shared.weight[target]
    e, d = model.encoder.block[0].layer, model.decoder.block[0].layer
    own = Attention(e[0].SelfAttention, names, heads, 1.0, bias(model.encoder, len(source)))
    a = rms_norm(x, e[0].layer_norm)
    mid = x + own(a, a)
    wide = Gated(e[1].DenseReluDense)
    b = mid + wide(rms_norm(mid, e[1].layer_norm))
    memory = rms_norm(b, model.encoder.final_layer_norm)
    looking = Attention(d[0].SelfAttention, names, heads, 1.0, bias(model.decoder, len(target)), causal(len(target)))
    c = rms_norm(y, d[0].layer_norm)
    first = y + looking(c, c)
    crossing = Attention(d[1].EncDecAttention, names, heads, 1.0)
    second = first + crossing(rms_norm(first, d[1].layer_norm), memory)
    last_mlp = Gated(d[2].DenseReluDense)
    last = second + last_mlp(rms_norm(second, d[2].layer_norm))
    out = rms_norm(last, model.decoder.final_layer_norm)
    row = model.lm_head.weight[chosen]
    if model.config.scale_decoder_outputs:
        row = row * model.config.d_model**-0.5
    value = out[-1] @ row

    # An RMSNorm passes relevance on as it is: y_i = x_i times a constant.
    r = torch.zeros_like(out)
    r[-1] = out[-1] * row
    r = sum_r(r, second, last) + last_mlp.relevance(sum_r(r, last_mlp.out, last))
    of_first, of_memory = crossing.relevance(sum_r(r, crossing.out, second), rules)
    r = sum_r(r, first, second) + of_first
    r_y = sum_r(r, y, first) + sum(looking.relevance(sum_r(r, looking.out, first), rules))
    r = sum_r(of_memory, mid, b) + wide.relevance(sum_r(of_memory, wide.out, b))
    r_x = sum_r(r, x, mid) + sum(own.relevance(sum_r(r, own.out, mid), rules))
    return value, torch.cat([r_x.sum(-1), r_y.sum(-1)])
