"""Every rule written out as a relevance formula on explicit matrices, element by element: the slow twin of ``rules.py``.

Each function takes the relevance of the output and returns the relevance of each input, as numpy float64 arrays. The
formulas are those of the papers, with stabilisers 0; nothing here knows about gradients.
"""

import numpy as np


def linear(x, weight, z, relevance):
    """LRP-epsilon with epsilon = 0 (App. D.1). x [n], weight [m, n], z [m] with its bias, relevance [m]."""
    result = np.zeros_like(x)
    for i in range(len(x)):
        for j in range(len(z)):
            result[i] += x[i] * weight[j, i] / z[j] * relevance[j]
    return result


def alpha1beta0(x, weight, bias, relevance):
    """LRP-alpha1-beta0 (App. D.2)."""
    result = np.zeros_like(x)
    for j in range(len(relevance)):
        z_pos = sum(max(x[i] * weight[j, i], 0) for i in range(len(x))) + max(bias[j], 0)
        for i in range(len(x)):
            if z_pos > 0:
                result[i] += max(x[i] * weight[j, i], 0) / z_pos * relevance[j]
    return result


def epsilon(x, weight, bias, relevance, eps):
    """LRP-epsilon (App. D.1)."""
    result = np.zeros_like(x)
    for j in range(len(relevance)):
        z = sum(x[i] * weight[j, i] for i in range(len(x))) + bias[j]
        for i in range(len(x)):
            result[i] += x[i] * weight[j, i] / (z + eps * (1 if z >= 0 else -1)) * relevance[j]
    return result


def gamma(x, weight, bias, relevance, factor):
    """LRP-gamma, for inputs and outputs of any sign: contributions of the output's sign are favoured."""
    result = np.zeros_like(x)
    for j in range(len(relevance)):
        parts = [x[i] * weight[j, i] for i in range(len(x))]
        z = sum(parts) + bias[j]

        def favoured(part, sign=1 if z >= 0 else -1):
            return part * (1 + factor) if part * sign > 0 else part

        total = sum(map(favoured, parts)) + favoured(bias[j])
        for i in range(len(x)):
            result[i] += favoured(parts[i]) / total * relevance[j]
    return result


def alpha_beta(x, weight, bias, relevance, alpha, beta):
    """LRP-alpha-beta (App. D.2)."""
    result = np.zeros_like(x)
    for j in range(len(relevance)):
        parts = [x[i] * weight[j, i] for i in range(len(x))]
        up = sum(max(p, 0) for p in parts) + max(bias[j], 0)
        down = sum(min(p, 0) for p in parts) + min(bias[j], 0)
        for i in range(len(x)):
            result[i] += alpha * max(parts[i], 0) / up * relevance[j] if up > 0 else 0
            result[i] -= beta * min(parts[i], 0) / down * relevance[j] if down < 0 else 0
    return result


def identity(relevance):
    """App. D.3."""
    return relevance


def layer_norm(x, weight, bias, eps, relevance):
    """Standard deviation constant (App. D.5): then LayerNorm is a linear layer with this matrix."""
    n = len(x)
    matrix = weight[:, None] * (np.eye(n) - 1 / n) / np.sqrt(x.var() + eps)
    return linear(x, matrix, matrix @ x + bias, relevance)


def group_norm(x, groups, weight, bias, eps, relevance):
    """LayerNorm of each group of channels (App. D.5). x [channels, places], weight and bias [channels]."""
    result, (channels, places) = np.zeros_like(x), x.shape
    size = channels // groups
    for g in range(groups):
        own = [(c, t) for c in range(g * size, (g + 1) * size) for t in range(places)]
        mean = sum(x[i] for i in own) / len(own)
        deviation = np.sqrt(sum((x[i] - mean) ** 2 for i in own) / len(own) + eps)
        for j in own:
            y = weight[j[0]] * (x[j] - mean) / deviation + bias[j[0]]
            for i in own:
                part = weight[j[0]] * ((i == j) - 1 / len(own)) * x[i] / deviation
                result[i] += part / y * relevance[j]
    return result


def rms_norm(x, weight, eps, relevance):
    """Root mean square constant (App. D.5): a diagonal matrix."""
    matrix = np.diag(weight / np.sqrt((x**2).mean() + eps))
    return linear(x, matrix, matrix @ x, relevance)


def uniform(relevance):
    """Product of two (section AttnLRP): half to each."""
    return relevance / 2, relevance / 2


def softmax(x, relevance):
    """AttnLRP's softmax rule (App. D.6): R_i = x_i (R_i - s_i sum_j R_j)."""
    s = np.exp(x - x.max())
    s /= s.sum()
    return x * (relevance - s * relevance.sum())


def attention(q, k, v, mask, scale, relevance, rule):
    """Attention step by step: values, weights, softmax, scores; q, k, v [T, d], mask [T, T] of 0 and -inf.

    ``rule`` is ``"uniform"`` (AttnLRP) or ``"constant"`` (LRP).
    """
    length, width = q.shape
    r_q, r_k, r_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i in range(length):
        seen = [j for j in range(length) if mask[i, j] == 0]
        scores = np.array([scale * q[i] @ k[j] for j in seen])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        out = sum(a * v[j] for a, j in zip(weights, seen, strict=True))
        r_weights = np.zeros(len(seen))
        for n, j in enumerate(seen):
            for d in range(width):
                message = weights[n] * v[j, d] / out[d] * relevance[i, d]
                if rule == "constant":
                    r_v[j, d] += message
                else:
                    r_v[j, d] += message / 2
                    r_weights[n] += message / 2
        r_scores = softmax(scores, r_weights)
        for n, j in enumerate(seen):
            for d in range(width):
                message = scale * q[i, d] * k[j, d] / scores[n] * r_scores[n] if rule == "uniform" else 0
                r_q[i, d] += message / 2
                r_k[j, d] += message / 2
    return r_q, r_k, r_v
