"""``lrpx explain``: one or several texts, shown or written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..methods import get_method, methods_with_options
from . import options
from .output import check_writable, format_of, write
from .texts import texts_of


def explain(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="What to explain. Several texts are explained in batches."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="One text per line; - reads standard input.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TOKEN",
            help="The token to explain, or several; a leading space matters. Default: the top prediction.",
        ),
    ] = None,
    contrast: Annotated[
        str | None, typer.Option("--contrast", metavar="TOKEN", help="Explain why the target and not this token.")
    ] = None,
    target_id: Annotated[
        int | None, typer.Option("--target-id", metavar="ID", help="The target as a token id.")
    ] = None,
    contrast_id: Annotated[
        int | None, typer.Option("--contrast-id", metavar="ID", help="The contrast as a token id.")
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            "--position", metavar="N", help="Whose prediction, counted over the tokens. Default: the last, or the mask."
        ),
    ] = None,
    objective: options.ObjectiveOption = "logit",
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="METHOD", help="Repeatable; see [b]lrpx methods[/b]. Default: attnlrp."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="PLACE",
            help="input, embedding, or names and globs of modules (kept whole in JSON). Repeatable. Default: input.",
        ),
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option("--norm", metavar="NORM", help="For the method gradient: l1 or l2 (squared). Default: l1."),
    ] = None,
    rules: options.RulesOption = None,
    direct: Annotated[
        bool | None,
        typer.Option("--direct", help="For alti-logit: add the residual stream's own part to the explained token."),
    ] = None,
    verbose: options.VerboseOption = False,
    model: options.ModelOption = options.DEFAULT_MODEL,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    device_map: options.DeviceMapOption = None,
    attn_implementation: options.AttentionOption = None,
    revision: options.RevisionOption = None,
    token: options.TokenOption = None,
    batch_tokens: Annotated[
        int, options.model_option("--batch-tokens", metavar="N", help="Tokens per batch, padding included.")
    ] = 4096,
    fast: options.FastOption = None,
    compile: options.CompileOption = False,
    checkpoint: options.CheckpointOption = None,
    tf32: options.Tf32Option = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            rich_help_panel="The output",
            help="terminal, json, html, latex or png. Default: by the suffix of --output, or terminal.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            rich_help_panel="The output",
            help="Write here instead of standard output.",
        ),
    ] = None,
) -> None:
    """Show how much each token of a text contributed to what the model predicts.

    [b]lrpx explain "The keys to the cabinet" --target " are" --contrast " is"[/b]
    """
    options.set_logging(verbose)
    output = None if str(output) == "-" else output
    check_writable(output)
    kind = format_of(format, output)
    methods = list(dict.fromkeys(method or ["attnlrp"]))
    given = {"at": at, "norm": norm, "rules": rules, "direct": direct}
    known = {option for m in methods for option in get_method(m).options}
    for name, value in given.items():
        if value is not None and name not in known:
            raise InputError(f"--{name} is not an option of {', '.join(methods)}. See: lrpx methods.")
    texts = texts_of(text, file)
    if (target is not None and target_id is not None) or (contrast is not None and contrast_id is not None):
        raise InputError("give a token as text or as an id, not both.")

    from ..explainer import Explainer
    from ..models.loading import load

    methods_with_options(methods, given)  # refused before a model is loaded
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
    several = file is not None or len(texts) > 1
    explainer = Explainer(
        loaded, tokenizer, batch_tokens=batch_tokens, fast=fast, compile=compile, checkpoint=checkpoint
    )
    asked: dict[str, Any] = {
        "objective": objective,
        **given,
        "text": texts if several else texts[0],
        "target": target if target_id is None else target_id,
        "contrast": contrast if contrast_id is None else contrast_id,
    }
    explained = explainer(method=methods, position=position, **asked)
    write(list(explained), kind, output, as_list=several or len(methods) > 1)
