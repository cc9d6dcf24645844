"""``lrpx flow``: how the relevance of a prediction flows from the logit down to the text; shown or written to a file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import InputError
from ..heatmap import render_flow
from ..methods.options import methods_with_options
from . import options
from .output import PICTURES, Format, check_header, check_kind, destination, quiet_if_shown, write_one
from .texts import one_text
from .wording import in_command_words

FORMATS = (Format.terminal, Format.json, Format.csv, Format.html, *PICTURES)


def flow(
    context: typer.Context,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="- or nothing: standard input.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The text is what a user says: put the model's chat template around it.")
    ] = False,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="TOKEN", help="Default: the model's top prediction.")
    ] = None,
    contrast: Annotated[
        list[str] | None, typer.Option("--contrast", metavar="TOKEN", help="Explain logit(target) - logit(contrast).")
    ] = None,
    target_id: Annotated[
        list[int] | None, typer.Option("--target-id", metavar="ID", help="The target as a token id.")
    ] = None,
    contrast_id: Annotated[
        list[int] | None, typer.Option("--contrast-id", metavar="ID", help="The contrast as a token id.")
    ] = None,
    position: Annotated[
        int | None, typer.Option("--position", metavar="N", help="Whose logits. Default: the last token, or the mask.")
    ] = None,
    between: Annotated[
        list[str] | None,
        typer.Option(
            "--between",
            metavar="PLACE",
            help="A place, such as input, attention.3, block.3 or last; ... stands for all in between. Repeatable, from the "
            "text upwards.",
        ),
    ] = None,
    layers: Annotated[
        list[int] | None,
        typer.Option("--layers", metavar="N", help="Only what this block returns, beside text and last. Repeatable."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option("--share", metavar="P", help="Keep so much of each place's relevance, up to 1. Default: 0.9."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="LOGITS", help="Instead: keep what is this strong or stronger."),
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="METHOD", help="See [b]lrpx methods[/b].")] = "attnlrp",
    at: Annotated[
        str | None, typer.Option("--at", metavar="PLACE", help="The lowest place, input or embedding. Default: input.")
    ] = None,
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
            help="terminal, json, csv (the edges), html (the graph), png, pdf or svg. Default: by the suffix of --output.",
        ),
    ] = None,
    header: options.HeaderOption = True,
    output: options.OutputOption = None,
) -> None:
    """Follow the relevance of a prediction from token to token, from the logit down to the text.

    [b]lrpx flow "The keys to the cabinet" --target " are" --contrast " is" -o flow.html[/b]
    """
    options.set_logging(verbose)
    kind, output = destination(format, output, [model], FORMATS)
    check_kind(kind, "lrpx flow", FORMATS)
    check_header(kind, header)
    given: dict[str, Any] = {"at": at, "rules": rules}
    options.check_one_method(method, "lrpx flow")
    methods_with_options([method], given)  # refused before a model is loaded
    typed = {
        "target": options.text_or_id("target", target, target_id),
        "contrast": options.text_or_id("contrast", contrast, contrast_id),
    }
    for role, value in typed.items():
        if isinstance(value, list):
            raise InputError(f"--{role} is repeated, and lrpx flow follows one prediction. Type it once for each.")
    from ..explainer.flow import keep_of

    keep_of(share, threshold)
    one = one_text(text, "flow", chat=chat)

    from ..explainer import Explainer
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
    quiet_if_shown(kind, output)
    found = Explainer(loaded, tokenizer, checkpoint=checkpoint).flow(
        one,
        **typed,
        position=position,
        between=between or None,
        layers=layers or None,
        share=share,
        threshold=threshold,
        method=method,
        **given,
    )
    if kind is not Format.json:
        found = in_command_words(found, context.command, context.find_root().command)
    write_one(found, kind, output, render_flow, header=header)
