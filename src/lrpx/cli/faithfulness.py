"""``lrpx faithfulness``: do the tokens, heads or neurons that methods name matter to the model?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..evaluation.metrics import FEWEST
from ..files import check_output
from ..methods.options import methods_with_options
from . import options
from .output import refuse_overwriting, write_result
from .texts import asked_of, origins_in_warnings, tell_failures, texts_of

WIDEST = 1000  # of a table, before it is measured against the terminal
_HEADS = {  # in narrow columns, so that the table fits into 60
    "area_most": "area, most first",
    "area_least": "area, least first",
    "difference": "differ-\nence",
    "comprehensiveness": "compre-\nhensive-\nness",
    "sufficiency": "suffi-\nciency",
}


def faithfulness(
    context: typer.Context,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; - is standard input.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="One text per line, blank ones left out, or JSON lines (.jsonl)."
        ),
    ] = None,
    jsonl: Annotated[
        bool | None,
        typer.Option(
            "--jsonl/--no-jsonl",
            help='Lines are JSON: a string, or an object with "text", and "target", "contrast" and "position" if the line has '
            "its own. Default: if the file is called .jsonl.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Repeatable. Default: attnlrp, lrp and random.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TOKEN", help="Default: the top prediction.")
    ] = None,
    contrast: Annotated[str | None, typer.Option("--contrast", metavar="TOKEN", help="Explain the difference.")] = None,
    position: Annotated[
        int | None,
        typer.Option(
            "--position", metavar="N", help="Whose prediction, counted over the tokens. Default: the last, or the mask."
        ),
    ] = None,
    of: Annotated[
        str, typer.Option("--of", metavar="PARTS", help="What is removed: tokens, heads or neurons.")
    ] = "tokens",
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="MODULE", help="For --of neurons: modules that return them, as names or globs."),
    ] = None,
    hide: Annotated[
        str, typer.Option("--hide", metavar="HOW", help="replace tokens by the baseline, or delete them.")
    ] = "replace",
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline", metavar="NAME", help="What is put in its place: mean, zero; of tokens also pad or a token id."
        ),
    ] = "mean",
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Of the perturbation curves.")] = 20,
    verbose: options.VerboseOption = False,
    model: options.ModelOption = options.DEFAULT_MODEL,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    device_map: options.DeviceMapOption = None,
    attn_implementation: options.AttentionOption = None,
    revision: options.RevisionOption = None,
    token: options.TokenOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a row per text and method as CSV.")
    ] = None,
) -> None:
    """Hide tokens in the order of their relevance, or remove heads or neurons, and watch the explained logit.

    [b]lrpx faithfulness --file sentences.txt --method attnlrp --method lrp --method random[/b]

    [b]lrpx faithfulness --file sentences.txt --of heads --baseline zero[/b]

    [b]lrpx faithfulness --file sentences.txt --of neurons --at "model.layers.*.mlp.up_proj"[/b]

    [b]lrpx faithfulness "The keys to the cabinet" --target " are" --contrast " is"[/b]

    Exit status: 0 all was explained; 1 some of several texts were not; 2 nothing was.

    Lines of a .jsonl file have a target, a contrast and a position of their own: {"text": "The keys", "target": " are"}.
    """
    options.set_logging(verbose)
    methods = list(dict.fromkeys(method or ["attnlrp", "lrp", "random"]))
    chosen = [each for each, _ in methods_with_options(methods, {})]  # refused before a model is loaded
    if output is not None and output.suffix.lower() != ".csv":
        raise InputError(f"--output {output}: a table is written as CSV. Give a name that ends in .csv.")
    if output is not None:
        refuse_overwriting(output, [file, model])
        check_output(output, "output")
    texts = texts_of(text, file, jsonl=jsonl, chat=False, command="faithfulness")
    if other := [one for one in texts if (one.text_pair, one.question, one.choices) != (None, None, None)]:
        raise InputError(
            f"{other[0].origin} is more than a text, and faithfulness is measured of the next or a masked token. Give "
            '"text", and "target", "contrast" and "position" if the line has its own.'
        )
    if at is not None and of != "neurons":
        raise InputError("--at names the modules of neurons: give --of neurons too, or leave it out.")
    if of == "neurons" and not any("at" in each.options for each in chosen):
        raise InputError(
            f"--of neurons needs relevance of neurons, which {' and '.join(methods)} does not give. Add --method attnlrp "
            "or --method lrp."
        )
    hides: Any = int(baseline) if baseline.isdecimal() else baseline

    from ..evaluation.faithfulness import faithfulness as perturb
    from ..explainer import Explainer
    from ..models.loading import load
    from ..models.modules import neuron_pattern
    from ..models.signature import task_of

    loaded, tokenizer = load(
        model,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attn_implementation=attn_implementation,
        revision=revision,
        token=token,
    )
    if (task := task_of(loaded)) not in ("causal", "masked"):
        raise InputError(
            f"{type(loaded).__name__} is for {task}, and faithfulness is measured of the next or a masked token. Load a "
            "causal or masked language model."
        )
    if at is None and of == "neurons":
        raise InputError(f"--of neurons needs modules: --at '{neuron_pattern(loaded) or 'NAME.*.OF.MODULES'}'")
    explainer = Explainer(loaded, tokenizer)
    asked: dict[str, Any] = asked_of(texts, {"target": target, "contrast": contrast, "position": position})
    inside: dict[str, Any] = {}
    if of == "heads" and any("heads" in each.options for each in chosen):
        inside = {"heads": True}
    elif of == "neurons":
        inside = {"heads": False, "at": ["input", *(at or ())]}
    given: Any = [one.text for one in texts]
    if any(one.origin for one in texts):
        inside["errors"] = "collect"
    with origins_in_warnings(texts):
        explained = explainer(given, method=methods, **asked, **inside)
    tell_failures(explained, texts, context)
    if not explained:
        raise typer.Exit(2)
    how: Any = {"of": of, "hide": hide}
    found = perturb(explainer, list(explained), **how, baseline=hides, steps=steps)
    if output is not None:
        write_result(found.table().to_csv(), output)
        typer.echo(f"{output}: {len(found.each)} rows")
    _show(found, len(texts) - len(explained.failures), of)
    if explained.failures:
        raise typer.Exit(1)


def _show(found: Any, texts: int, of: str) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    console = Console()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for head in _HEADS.values():
        table.add_column(head, justify="right", no_wrap=True)
    for name, measures in found.mean().items():
        table.add_row(name, *(f"{mean:+.2f}" + _interval(low, high, "\n") for mean, low, high in measures.values()))
    if Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum > console.width:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
        for name, measures in found.mean().items():
            table.add_row(name)
            for measure, (mean, low, high) in measures.items():
                head = _HEADS[measure].replace("-\n", "")
                table.add_row(f"  {head}", f"{mean:+.2f}", _interval(low, high, ""))
    console.print(table)
    told = "Of one text" if texts == 1 else f"Means over {texts} texts"
    told += " with 95 % bootstrap intervals" if texts >= FEWEST else f" (there are intervals from {FEWEST} texts on)"
    console.print(
        f"{told}, in logits. Better: a large area with the most relevant {of}"
        " removed first, a small one with the least, large comprehensiveness, small sufficiency.",
        style="dim",
    )
    for (first, second), value in found.agreement().items():
        console.print(f"rank correlation of {first} and {second}: {value:+.2f}")


def _interval(low: float, high: float, before: str) -> str:
    return "" if math.isnan(low) else f"{before}{low:+.2f} to {high:+.2f}"
