"""How fast a device multiplies matrices: for an estimate of how long an evaluation takes."""

from __future__ import annotations

import time

import torch

from ..errors import InputError
from ..models.options import parse_device, parse_dtype


def products_per_second(dtype: str, device: str | None, *, width: int = 1024, repeats: int = 3) -> float:
    """Floating-point operations per second of ``[width, width] @ [width, width]``, in the best of some products.

    Args:
        dtype: ``"float32"``, ``"float64"``, ``"bfloat16"``, ...
        device: Default: a GPU if there is one.
        width: Of the matrices.
        repeats: How many products, after one to warm up.

    Raises:
        InputError: No such dtype or device.
    """
    kind, where = parse_dtype(dtype), parse_device(device)
    if not isinstance(kind, torch.dtype):
        raise InputError(f"dtype={dtype!r}: an estimate needs a type, such as dtype='float32'.")
    matrix = torch.ones(width, width, dtype=kind, device=where)
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2.0 * width**3 / best
