"""The names of PyTorch's functions by kind of operation: data to look things up in. ``operations.py`` reads it.

A name stands for the function, its method, its in-place and its reflected form, and for the node it leaves in the autograd
graph: ``mul`` is ``torch.mul``, ``Tensor.mul_``, ``*`` and ``MulBackward0``. ``gate`` and ``scale`` are the nodes that rules
leave (``propagation/jacobians.py``).
"""

import math

NAMES = {
    # Element-wise with f(0) = 0: relevance passes unchanged.
    "activation": "relu relu6 gelu silu elu selu celu leaky_relu prelu hardswish mish tanh hardtanh softsign tanhshrink "
    "hardshrink softshrink erf expm1 log1p sin sinh asinh atan abs absolute clamp clip clamp_min clamp_max",
    "power": "pow square sqrt",
    # Element-wise with f(0) != 0: an input of zero gives an output, so y / x has no bound. They act as gates.
    "sigmoid": "sigmoid hardsigmoid exp exp2 softplus logsigmoid log_sigmoid log_sigmoid_forward logaddexp cos cosh log "
    "log2 log10 rpow erfc special_expit gate",
    "softmax": "softmax log_softmax softmin logsumexp",
    "normaliser": "rsqrt reciprocal var var_mean",
    "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "unit_norm": "normalize",
    "magnitude": "std norm vector_norm linalg_vector_norm linalg_norm",  # x * dy/dx = y, as for a linear function
    "division": "div true_divide divide truediv",
    "product": "mul multiply addcmul",
    "contraction": "matmul linalg_matmul bmm einsum mm mv dot inner outer tensordot",
    "attention": "scaled_dot_product_attention",
    # No function of PyTorch, but tensors of a recurrence: what selects, and what is written (``mixers.py``).
    "selector": "",
    "written": "",
    # Linear in the one operand that carries gradient; a product where several do.
    "linear": "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d grouped_mm grouped_mm_fallback "
    "addmm baddbmm addbmm addmv addr",
    # Linear and element-wise: a function of one tensor stays a function of that tensor.
    "elementwise": "add sub rsub subtract neg negative positive to to_copy float double half bfloat16 type type_as clone "
    "contiguous dropout where masked_fill maximum minimum fill nan_to_num alias copy copy_backwards "
    "scale",
    "step": "sign sgn floor ceil round trunc",  # constant almost everywhere, whatever autograd says
    "cut": "detach detach_ data numpy",  # where a model's own code cuts the gradient
    # Linear, but moves or mixes elements.
    "structure": "view view_as unsafe_view reshape reshape_alias reshape_as transpose t permute movedim swapaxes swapdims "
    "flatten unflatten squeeze unsqueeze expand expand_as broadcast_to repeat tile repeat_interleave chunk split "
    "split_with_sizes tensor_split unbind narrow select slice index index_select gather take take_along_dim getitem setitem "
    "cat concat concatenate stack hstack vstack pad constant_pad_nd roll flip flipud fliplr rot90 index_add index_copy "
    "index_put index_fill scatter scatter_add masked_select "
    "masked_scatter sum mean cumsum topk sort max min amax amin kthvalue unfold "
    "fold tril triu diagonal diag_embed as_strided copy_slices mT mH T H get real view_as_complex view_as_real block_diag "
    "hsplit select_scatter slice_scatter put atleast_2d atleast_3d adjoint cpu cuda ravel moveaxis imag conj resolve_conj "
    "vsplit dsplit column_stack dstack diag unsafe_chunk unsafe_split zero avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d interpolate max_pool1d "
    "max_pool2d batch_norm fft fft_fft fft_fft2 "
    "fft_fftn fft_rfft fft_irfft fft2 fftn ifft ifft2 ifftn rfft irfft",
    "container": "multi_head_attention_forward",  # a whole layer in one function: what it calls is looked at
    "composed": "glu group_norm",  # several operations in one: each meets its own rule (``composed.py``)
    # Carries no gradient, or no value.
    "silent": "size dim numel stride shape dtype device item tolist backward requires_grad is_floating_point is_contiguous "
    "is_complex data_ptr eq ne lt le gt ge len hash repr bool argmax argmin argsort isnan isinf isfinite all any equal "
    "allclose zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_full new_empty "
    "new_tensor long int bincount histc multinomial nonzero one_hot unique bitwise_not logical_not "
    "get_device element_size register_hook retain_grad iter embedding storage untyped_storage is_inference format "
    "dim_order is_tensor requires_grad_ grad _set_grad_enabled ndim ndimension nelement itemsize nbytes layout is_leaf grad_fn "
    "output_nr is_cuda is_cpu is_mps is_xpu is_meta is_sparse is_quantized is_nested is_same_size is_conj is_neg",
}

SLOPES_AT_ZERO = {
    "gelu": 0.5, "silu": 0.5, "hardswish": 0.5, "mish": 0.6, "elu": 1.0, "celu": 1.0, "tanh": 1.0,
    "softsign": 1.0, "erf": 2 / math.sqrt(math.pi), "expm1": 1.0, "log1p": 1.0, "sin": 1.0, "sinh": 1.0, "asinh": 1.0,
    "atan": 1.0,
}  # fmt: skip
"""The limit of f(x) / x at 0, of activations that have one. The others have two (ReLU), or 0; there it is 0."""

BOUNDS = {
    "clamp": ("min", "max"), "clip": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",),
    "hardtanh": ("min_val", "max_val"),
}  # fmt: skip
"""Functions that leave numbers as they are between bounds: the names of these arguments, in their order."""

GATING = frozenset("relu relu6 gelu silu elu selu celu leaky_relu prelu hardswish mish".split())
"""Activations that make a gate of a gated product; a clamp or a soft cap (``tanh``) bounds a signal."""

MOVING = frozenset(
    "view unsafe_view reshape reshape_alias transpose t permute squeeze unsqueeze expand repeat slice select index "
    "index_select gather split split_with_sizes unbind flip roll".split()
)
"""What leaves elements as they are, but moves them or makes several of one."""

RULED = tuple(
    k for k in NAMES if k not in ("structure", "elementwise", "step", "cut", "container", "composed", "silent")
)
"""The kinds that a rule set may have a rule for."""
