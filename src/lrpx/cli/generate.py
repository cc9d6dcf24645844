"""``lrpx generate``: what a model goes on with, and what each token of that was made of; shown or written to a file."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..heatmap import render_generated
from ..methods.options import methods_with_options
from . import options
from .output import PICTURES, Format, check_header, check_kind, destination, quiet_if_shown, write_one
from .suspect import note_pictures
from .texts import one_text
from .wording import in_command_words

FORMATS = (Format.terminal, Format.json, Format.csv, Format.html, *PICTURES)


def generate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="- or nothing: standard input.")] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", metavar="N", help="How many tokens to generate at most. Default: 20."),
    ] = None,
    continuation: Annotated[
        str | None, typer.Option("--continuation", metavar="TEXT", help="Explain this instead of generating.")
    ] = None,
    image: options.ImageOption = None,
    target_prefix: options.PrefixOption = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is what a user says: put the model's chat template around it.")
    ] = False,
    objective: options.ObjectiveOption = "logit",
    contrast: Annotated[
        list[str] | None,
        typer.Option(
            "--contrast",
            metavar="WHAT",
            help="Subtracted at each position: mean (the mean logit), top10 (that of the ten largest; any number) or a token. "
            "Repeatable: a token for each generated one.",
        ),
    ] = None,
    span: Annotated[
        list[str] | None,
        typer.Option(
            "--span",
            metavar="START:STOP",
            help="Explain these generated tokens together, counted from 0. Repeatable. Default: each token.",
        ),
    ] = None,
    hops: Annotated[
        int,
        typer.Option(
            "--hops", metavar="N", help="Pass on what generated tokens took to the tokens before them, N times."
        ),
    ] = 0,
    method: Annotated[str, typer.Option("--method", metavar="METHOD", help="See [b]lrpx methods[/b].")] = "attnlrp",
    at: Annotated[
        str | None, typer.Option("--at", metavar="PLACE", help="input, embedding or pixels. Default: input.")
    ] = None,
    norm: options.NormOption = None,
    rules: options.RulesOption = None,
    verbose: options.VerboseOption = False,
    model: options.ModelOption = options.DEFAULT_MODEL,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    device_map: options.DeviceMapOption = None,
    attn_implementation: options.AttentionOption = None,
    revision: options.RevisionOption = None,
    token: options.TokenOption = None,
    checkpoint: options.CheckpointOption = None,
    tf32: options.Tf32Option = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            rich_help_panel="The output",
            help="terminal, json, csv (each generated token's tokens), html (a page in which one marks tokens), or png, pdf "
            "and svg (a matrix). Default: by the suffix of --output.",
        ),
    ] = None,
    header: options.HeaderOption = True,
    output: options.OutputOption = None,
) -> None:
    """Let a model go on with a prompt, and show what each generated token was made of.

    [b]lrpx generate "The capital of France is" --max-new-tokens 8 -o paris.html[/b]

    Why the model gave this answer, traced through its own words to the prompt:

    [b]lrpx generate "..." --continuation " So it is Paris." --span 3:4 --hops 2[/b]

    What a model that describes images sees in one:

    [b]lrpx generate --image cat.png -m nlpconnect/vit-gpt2-image-captioning[/b]
    """
    options.set_logging(verbose)
    kind, output = destination(format, output, [*(image or ()), model], FORMATS)
    check_kind(kind, "lrpx generate", FORMATS)
    check_header(kind, header)
    if continuation is None and max_new_tokens is None:
        max_new_tokens = 20
    given: dict[str, Any] = {"at": at, "norm": norm, "rules": rules}
    options.check_one_method(method, "lrpx generate")
    methods_with_options([method], given)  # refused before a model is loaded
    spans = None if not span else [_span(text) for text in span]
    pictures = image if image and prompt is None and not chat else None  # to describe, without a text
    text = None if pictures else one_text(prompt, "generate", chat=chat, images=len(image or ()))

    from ..explainer import Explainer
    from ..explainer.images import is_given_pictures
    from ..models.loading import load

    options.set_precision(tf32)
    loaded, tokenizer = load(
        model,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attn_implementation=attn_implementation,
        revision=revision,
        token=token,
    )
    if pictures and is_given_pictures(loaded):
        if len(pictures) > 1:
            raise InputError(f"{len(pictures)} images: generate() takes one. Call it once for each.")
        text, image = str(pictures[0]), None
    elif text is None:
        text = one_text(prompt, "generate", chat=chat, images=len(image or ()))
    if not is_given_pictures(loaded):
        note_pictures([prompt])
    quiet_if_shown(kind, output)
    found = Explainer(loaded, tokenizer, checkpoint=checkpoint).generate(
        text,
        max_new_tokens=max_new_tokens,
        continuation=continuation,
        target_prefix=target_prefix,
        method=method,
        objective=objective,  # type: ignore[arg-type]
        contrast=options.one_or_several(contrast),
        spans=spans,
        hops=hops,
        images=list(image) if image else None,
        progress=output is not None and sys.stderr.isatty(),
        **given,
    )
    if kind is not Format.json:
        found = in_command_words(found, context.command, context.find_root().command)
    write_one(found, kind, output, render_generated, header=header)


def _span(text: str) -> tuple[int, int]:
    """``3:5`` -> ``(3, 5)``."""
    if (found := re.fullmatch(r"(-?\d+):(-?\d+)", text)) is None:
        raise InputError(f"--span {text}: give START:STOP, counted over the generated tokens, such as 0:3.")
    return int(found[1]), int(found[2])
