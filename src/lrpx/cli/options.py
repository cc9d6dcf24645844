"""The options of the command line that say how passes are run, the same for every command."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _option(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Speed and memory")


FastOption = Annotated[
    bool | None,
    _option("--fast/--no-fast", help="CUDA graphs for short texts. Default: from the second use of a length on."),
]
CompileOption = Annotated[
    bool, _option("--compile", help="Fuse the passes with TorchInductor: up to a minute once, for long or many texts.")
]
CheckpointOption = Annotated[
    bool | None,
    _option(
        "--checkpoint/--no-checkpoint", help="Recompute blocks to save memory. Default: where an estimate says so."
    ),
]
Tf32Option = Annotated[bool, _option("--tf32", help="TF32 matrix products in float32 models: faster, three digits.")]


def set_precision(tf32: bool) -> None:
    """Use TF32 for float32 matrix products in this process, if asked for."""
    if tf32:
        import torch

        torch.set_float32_matmul_precision("high")
