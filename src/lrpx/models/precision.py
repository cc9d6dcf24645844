"""What PyTorch is set to for float32 matrix products, which is one setting for the whole process. lrpx never changes it."""

from __future__ import annotations

from typing import Any

import torch


def matmul_precision() -> str:
    """The process's setting: ``"highest"``, ``"high"`` or ``"medium"``, and from torch 2.9 on those of its backends."""
    try:
        one = torch.get_float32_matmul_precision()
    except RuntimeError:  # the backends are set one by one, and there is no one word for them
        one = "mixed"
    return " ".join([one, *(f"{name}={value}" for name, value in _backends().items())])


def _backends() -> dict[str, str]:
    """What the products of each backend are set to; torch before 2.9 has no such settings."""
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return {}
    return {"cuda": backends.cuda.matmul.fp32_precision, "mkldnn": backends.mkldnn.matmul.fp32_precision}


def is_exact() -> bool:
    """Whether float32 matrix products on a GPU are computed in float32."""
    if backends := _backends():
        every: Any = torch.backends
        return backends["cuda"] == "ieee" or (backends["cuda"] == "none" and every.fp32_precision != "tf32")
    return torch.get_float32_matmul_precision() == "highest"
