"""Plain data: what each PyTorch function is, and which rule goes to which kind of operation.

``OPERATIONS`` sorts the functions a transformer calls into kinds, by name. A rule set is a dictionary from kind to rule
(``rules.py``); a kind without a rule keeps its gradient. ``propagate`` takes any such dictionary, so a rule set of your
own is ``{**LRP, "linear": rules.alpha1beta0}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ..errors import InputError, nearest
from . import rules
from .rules import Rule

RuleSet = Mapping[str, Rule]

LRP: RuleSet = {
    "activation": rules.identity,  # App. C.3
    "power": rules.power,
    "layer_norm": rules.layer_norm,  # App. C.5
    "rms_norm": rules.rms_norm,
    "unit_norm": rules.unit_norm,
    "normaliser": rules.constant,
    "division": rules.constant_denominator,
    "softmax": rules.constant,  # App. C.4: attention and router weights are gates, and a gate is a constant
    "sigmoid": rules.constant,
    "product": rules.signal_take_all,
    "contraction": rules.signal_take_all,
    "attention": rules.constant_attention,
}
LRP_UNIFORM_GATE: RuleSet = {**LRP, "product": rules.uniform}
ATTNLRP: RuleSet = {
    **{kind: rule for kind, rule in LRP.items() if kind not in ("softmax", "sigmoid")},  # these keep their gradient
    "product": rules.uniform,
    "contraction": rules.uniform,
    "attention": rules.uniform_attention,
}
RULESETS: dict[str, RuleSet] = {"lrp": LRP, "attnlrp": ATTNLRP, "lrp-uniform-gate": LRP_UNIFORM_GATE}

# A name stands for the function, its method, its in-place and its reflected form: "mul" is torch.mul, Tensor.mul_, *.
_NAMES = {
    # Element-wise, f(0) = 0: relevance can pass unchanged.
    "activation": "relu relu6 gelu silu elu selu celu leaky_relu prelu tanh hardtanh hardswish mish softsign tanhshrink "
    "hardshrink softshrink erf expm1 log1p sin sinh asinh atan abs absolute sqrt clamp clip clamp_min "
    "clamp_max",
    "power": "pow square",
    # Element-wise, f(0) != 0: an input of zero gives an output, so y / x has no bound. They act as gates.
    "sigmoid": "sigmoid hardsigmoid exp exp2 softplus logsigmoid log_sigmoid logaddexp cos cosh log log2 log10 rpow erfc "
    "special_expit logsumexp",
    "softmax": "softmax log_softmax softmin",
    "normaliser": "rsqrt reciprocal var var_mean",
    "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "unit_norm": "normalize",
    "division": "div true_divide divide truediv",
    "product": "mul multiply",
    "contraction": "matmul bmm einsum mm mv dot inner outer",
    "attention": "scaled_dot_product_attention",
    # Linear in the one operand that carries gradient; a product where several do.
    "linear": "linear conv1d conv2d conv3d grouped_mm grouped_mm_fallback",
    # A summand, then two factors.
    "fused_product": "addmm baddbmm addbmm addmv addr addcmul",
    # Linear and element-wise: a function of one tensor stays a function of that tensor.
    "elementwise": "add sub rsub subtract neg negative positive to float double half bfloat16 type type_as clone contiguous "
    "dropout where masked_fill maximum minimum fill nan_to_num alias",
    # Where a model's own code cuts the gradient, a map would lose what passes there.
    "cut": "detach detach_ data numpy",
    # Linear, but moves or mixes elements.
    "structure": "view view_as reshape reshape_as transpose t permute movedim swapaxes swapdims flatten unflatten squeeze "
    "unsqueeze expand expand_as broadcast_to repeat tile repeat_interleave chunk split split_with_sizes tensor_split "
    "unbind narrow select index_select gather take take_along_dim getitem setitem cat concat concatenate stack hstack "
    "vstack pad roll flip flipud fliplr rot90 index_add index_copy index_put scatter scatter_add "
    "masked_select masked_scatter sum mean cumsum topk sort max min amax amin kthvalue unfold fold tril triu diagonal "
    "diag_embed as_strided copy block_diag hsplit T mT H mH get real view_as_complex view_as_real select_scatter "
    "slice_scatter put atleast_2d atleast_3d adjoint avg_pool1d avg_pool2d "
    "fft fft_fft fft_fft2 fft_fftn fft_rfft fft_irfft fft2 fftn ifft ifft2 ifftn rfft irfft "
    # Not linear, but homogeneous like a linear function: x * dy/dx = y.
    "std norm vector_norm linalg_vector_norm linalg_norm",
}
OPERATIONS: dict[str, frozenset[str]] = {kind: frozenset(names.split()) for kind, names in _NAMES.items()}
_KIND = {name: kind for kind, names in OPERATIONS.items() for name in names}
# Carry no gradient, or no value: not worth a look.
_SILENT = frozenset(
    (
        "size dim numel stride shape dtype device item tolist backward requires_grad is_floating_point is_contiguous "
        "is_complex data_ptr eq ne lt le gt ge len hash repr bool argmax argmin argsort isnan isinf isfinite all any equal "
        "allclose zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_full new_empty "
        "new_tensor long int bincount histc multinomial nonzero one_hot unique sign floor ceil round bitwise_not "
        "logical_not get_device element_size register_hook retain_grad iter embedding cpu_ storage untyped_storage "
        "is_inference format dim_order is_tensor requires_grad_ _set_grad_enabled"
    ).split()
)


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """The kind of a PyTorch function by its ``__name__``: a key of ``OPERATIONS``, ``"silent"`` or ``"unknown"``.

    ``mul``, ``mul_``, ``__mul__``, ``__rmul__`` and ``__imul__`` are one operation.
    """
    bare = name.strip("_")
    for candidate in (name, bare, bare[1:] if name.startswith(("__r", "__i")) else bare):
        if candidate in _KIND:
            return _KIND[candidate]
        if candidate in _SILENT:
            return "silent"
    return "unknown"


def get_rules(rules_or_name: str | RuleSet) -> RuleSet:
    """A rule set by name, or the given one after a check of its kinds.

    Raises:
        InputError: No rule set has that name, or the dictionary names a kind that ``OPERATIONS`` does not have.
    """
    if isinstance(rules_or_name, str):
        if rules_or_name not in RULESETS:
            raise InputError(f"unknown rule set {rules_or_name!r}. {nearest(rules_or_name, RULESETS)}")
        return RULESETS[rules_or_name]
    ruled = OPERATIONS.keys() - {
        "fused_product",
        "cut",
    }  # the first is one of two other kinds, the second has no gradient
    for kind in rules_or_name:
        if kind not in ruled:
            raise InputError(f"unknown kind of operation {kind!r} in the rule set. {nearest(kind, ruled)}")
    return rules_or_name
