"""dtype, device and device map, as a user writes them."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import torch

from ..errors import InputError, install_command, nearest
from . import device_map as device_maps

_DTYPES = {
    **dict.fromkeys(("float64", "double", "fp64", "f64"), torch.float64),
    **dict.fromkeys(("float32", "float", "fp32", "f32"), torch.float32),
    **dict.fromkeys(("float16", "half", "fp16", "f16"), torch.float16),
    **dict.fromkeys(("bfloat16", "bf16"), torch.bfloat16),
}


def parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    """A dtype; ``"auto"``, the checkpoint's own, for ``None``.

    Raises:
        InputError: No floating-point type has that name.
    """
    if dtype is None or dtype == "auto":
        return "auto"
    if isinstance(dtype, torch.dtype):
        if dtype in _DTYPES.values():
            return dtype
    elif (key := str(dtype).lower().removeprefix("torch.")) in _DTYPES:
        return _DTYPES[key]
    raise InputError(f"unknown dtype {str(dtype)!r}. {nearest(str(dtype), [*_DTYPES, 'auto'])}")


def parse_device(device: str | torch.device | None) -> torch.device:
    """A device; a GPU where there is one, else the CPU, for ``None`` and ``"auto"``.

    Raises:
        InputError: There is no such device here.
    """
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = re.sub(r"^gpu(?=$|:)", "cuda", device.lower()) if isinstance(device, str) else device
    try:
        chosen = torch.device(name)
    except (RuntimeError, TypeError) as error:
        hint = nearest(str(device), ["auto", "cpu", "cuda", "cuda:0", "mps"])
        raise InputError(f"unknown device {str(device)!r}. {hint}") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {str(chosen)!r}: torch sees {torch.cuda.device_count()} CUDA devices here. Type device='cpu'."
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' is not available here. Type device='cpu'.")
    return chosen


def parse_places(device: Any, device_map: Any) -> str | device_maps.Places:
    """Where the parts of a model go that is divided; see ``device_map.parse_device_map``.

    Raises:
        InputError: It is no device map, a device was given as well, or accelerate is not installed.
    """
    if device is not None:
        raise InputError(
            f"device={str(device)!r} and device_map={device_map!r}: give one of them. A device map says where each part goes."
        )
    if importlib.util.find_spec("accelerate") is None:
        raise InputError(f"device_map needs accelerate: {install_command('multi-gpu')}")
    return device_maps.parse_device_map(device_map)
