"""``lrpx similarity``: why the embeddings of two texts are similar; shown or written to a file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import InputError
from ..methods.options import methods_with_options
from . import options
from .output import Format, check_document, destination, look_of, quiet_if_shown, write
from .wording import in_command_words


def similarity(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    other: Annotated[str, typer.Argument(metavar="OTHER")],
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            metavar="HOW",
            help="How the tokens become one embedding: mean, cls, last or max. Default: what sentence-transformers wrote "
            "beside the model.",
        ),
    ] = None,
    metric: Annotated[str, typer.Option("--metric", metavar="METRIC", help="cosine or dot.")] = "cosine",
    pairs: Annotated[
        bool,
        typer.Option("--pairs", help="By pairs of tokens: a matrix, or in the file if it is JSON."),
    ] = False,
    method: Annotated[str, typer.Option("--method", metavar="METHOD", help="See [b]lrpx methods[/b].")] = "attnlrp",
    at: Annotated[str | None, typer.Option("--at", metavar="PLACE", help="input or embedding. Default: input.")] = None,
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
    scale: options.ScaleOption = "robust",
    hide: options.HideOption = None,
    group: options.GroupOption = "tokens",
    numbers: options.NumbersOption = None,
    palette: options.PaletteOption = "red and blue",
    header: options.HeaderOption = True,
    format: options.FormatOption = None,
    fragment: options.FragmentOption = False,
    engine: options.EngineOption = None,
    output: options.OutputOption = None,
) -> None:
    """Show why the embeddings of two texts are similar: what each token of both contributes.

    [b]lrpx similarity "A dog runs." "The puppy is running." -m sentence-transformers/all-MiniLM-L6-v2[/b]

    By pairs of tokens, as a matrix:

    [b]lrpx similarity "A dog runs." "The puppy is running." -m org/name --pooling mean --pairs -o pairs.png[/b]
    """
    options.set_logging(verbose)
    kind, output = destination(format, output, [model])
    check_document(kind, fragment=fragment, engine=engine)
    if pairs and kind in (Format.csv, Format.latex):
        raise InputError(f"--pairs are shown as a matrix, and {kind.name} has none. Type: --output pairs.png")
    look = look_of(scale, hide, group, numbers, palette, header)
    given: dict[str, Any] = {"at": at, "rules": rules}
    options.check_one_method(method, "lrpx similarity")
    methods_with_options([method], given)  # refused before a model is loaded

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
    wanted: dict[str, Any] = {"metric": metric, "pooling": pooling, "pairs": pairs, "method": method, **given}
    found = Explainer(loaded, tokenizer, checkpoint=checkpoint).similarity(text, other, **wanted)
    if kind not in (Format.json, Format.jsonl):
        found = in_command_words(found, context.command, context.find_root().command)
    of = "pairs" if pairs else "tokens"
    write([found], kind, output, look, fragment=fragment, engine=engine or "pdflatex", of=of)
