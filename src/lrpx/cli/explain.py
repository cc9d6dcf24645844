"""``lrpx explain``: one or several texts, shown or written to a file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError, nearest
from ..methods import METHODS, get_method
from ..methods.options import methods_with_options
from ..results.explanations import Explanations
from . import options
from .output import Format, check_document, destination, look_of, quiet_if_shown, view_of, with_failures, write
from .suspect import note_pictures
from .texts import InputText, asked_of, origins_in_warnings, tell_failures, texts_of
from .wording import in_command_words


def explain(
    context: typer.Context,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", help="What to explain; several are explained in batches. - or nothing: standard input."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="One text per line, blank ones left out, or JSON lines; - is standard input.",
        ),
    ] = None,
    jsonl: options.JsonlOption = None,
    image: options.ImageOption = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="A text is what a user says: put the model's chat template around it.")
    ] = False,
    text_pair: Annotated[
        str | None, typer.Option("--text-pair", metavar="TEXT", help="The second text, for a classifier of pairs.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Option("--question", metavar="TEXT", help="What is asked about the text, for question answering."),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option("--choice", metavar="TEXT", help="What may follow the text, for multiple choice. Repeatable."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TOKEN",
            help="The token to explain, or several; a leading space matters. Or a label, an answer, a choice. Default: the top "
            "prediction. Repeatable, for one text: each is explained. So are the next four.",
        ),
    ] = None,
    contrast: Annotated[
        list[str] | None, typer.Option("--contrast", metavar="TOKEN", help="Explain why the target and not this token.")
    ] = None,
    target_id: Annotated[
        list[int] | None, typer.Option("--target-id", metavar="ID", help="The target as a token id.")
    ] = None,
    contrast_id: Annotated[
        list[int] | None, typer.Option("--contrast-id", metavar="ID", help="The contrast as a token id.")
    ] = None,
    position: Annotated[
        list[int] | None,
        typer.Option(
            "--position", metavar="N", help="Whose prediction, counted over the tokens. Default: the last, or the mask."
        ),
    ] = None,
    target_prefix: options.PrefixOption = None,
    objective: options.ObjectiveOption = "logit",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="METHOD",
            help="One, or several for a grid: lrp,attnlrp. Repeatable; see [b]lrpx methods[/b]. Default: attnlrp.",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="PLACE",
            help="input, embedding, pixels, or names and globs of modules (kept whole in JSON). Repeatable. Default: input.",
        ),
    ] = None,
    norm: options.NormOption = None,
    rules: options.RulesOption = None,
    option: options.MethodOption = None,
    direct: Annotated[
        bool | None,
        typer.Option("--direct", help="For alti-logit: add the residual stream's own part to the explained token."),
    ] = None,
    heads: Annotated[
        bool | None,
        typer.Option(
            "--heads", help="Relevance of each head, and of each layer's attention and MLP, too: in JSON and HTML."
        ),
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
    of: options.OfOption = "tokens",
    head: options.HeadOption = None,
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
    """Show how much each token of a text contributed to what the model predicts.

    [b]lrpx explain "The keys to the cabinet" --target " are" --contrast " is"[/b]

    [b]lrpx explain "The keys to the cabinet" --method lrp -m gpt2 -o keys.png[/b]

    [b]cat texts.txt | lrpx explain --format jsonl > explained.jsonl[/b]

    [b]lrpx explain --image cat.png --target "tabby, tabby cat" -m google/vit-base-patch16-224[/b]

    Chats, translation, classifiers, questions, images with text: docs/command_line.md.

    Exit status: 0 all was explained; 1 some of several texts were not; 2 nothing was.
    """
    options.set_logging(verbose)
    kind, output = destination(format, output, [file, *(image or ()), model])
    check_document(kind, fragment=fragment, engine=engine)
    of, places = view_of(kind, of, head, output)
    look = look_of(scale, hide, group, numbers, palette, header)
    named = [name.strip() for given in method or ["attnlrp"] for name in given.split(",")]
    methods = list(dict.fromkeys(named))
    given: dict[str, Any] = {"at": at, "norm": norm, "rules": rules, "direct": direct, "heads": heads}
    given |= options.method_options(option)
    _check_options(methods, given)
    if heads is None and any("heads" in get_method(name).options for name in methods):
        given["heads"] = of in ("layers", "heads")  # or thousands of numbers that nobody asked for
    typed = {
        "target": options.text_or_id("target", target, target_id),
        "contrast": options.text_or_id("contrast", contrast, contrast_id),
        "position": options.one_or_several(position),
        "text_pair": text_pair,
        "question": question,
        "choices": choice,
    }
    pictures = image if image and not text and file is None else None  # to classify, without a text
    texts = _images_of(pictures) if pictures else texts_of(text, file, jsonl=jsonl, chat=chat, images=len(image or ()))
    several = [name for name in ("target", "contrast", "position") if isinstance(typed[name], list)]
    if several and len(texts) > 1:
        raise InputError(
            f"--{several[0]} is repeated, which is for one text, and there are {len(texts)}. In JSON lines, each text has its "
            f'own: {{"text": "...", "{several[0]}": ...}}.'
        )
    if image and not pictures and len(texts) > 1:
        raise InputError(
            f"--image is for one text, and there are {len(texts)}. In JSON lines, messages hold images: "
            '{"type": "image", "image": "cat.png"}.'
        )

    from ..explainer import Explainer
    from ..explainer.images import is_given_pictures
    from ..models.loading import load
    from ..models.modules import neuron_pattern

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
    if not is_given_pictures(loaded):
        note_pictures(text or ())
    if pictures and not is_given_pictures(loaded):
        raise InputError(_without_text(loaded, pictures))
    if of == "neurons" and not set(at or ()) - {"input", "embedding"}:
        raise InputError(
            f"--of neurons needs modules: --at input --at '{neuron_pattern(loaded) or 'NAME.*.OF.MODULES'}'"
        )
    explainer = Explainer(
        loaded, tokenizer, batch_tokens=batch_tokens, fast=fast, compile=compile, checkpoint=checkpoint
    )
    asked: dict[str, Any] = asked_of(texts, typed)
    given |= {"objective": objective, "target_prefix": target_prefix}
    quiet_if_shown(kind, output)
    asked = {name: values for name, values in asked.items() if any(value is not None for value in values)}
    alone = len(texts) == 1 and (bool(several) or not texts[0].origin)
    if image and not pictures:
        given["images"] = list(image) if alone else [list(image)]
    asked["text"] = [one.text for one in texts]
    asked = {name: values[0] for name, values in asked.items()} if alone else asked | {"errors": "collect"}
    with origins_in_warnings(texts):
        explained = explainer(method=methods, **asked, **given)
    assert isinstance(explained, Explanations)
    tell_failures(explained, texts, context)
    if len(explained):
        shown = list(explained)
        if kind not in (Format.json, Format.jsonl):
            shown = [in_command_words(e, context.command, context.find_root().command) for e in shown]
        origins = [texts[failure.index].origin for failure in explained.failures]
        shown = with_failures(kind, shown, explained.failures, origins)
        lines = _lines(texts, explained)
        write(
            shown, kind, output, look, fragment=fragment, engine=engine or "pdflatex", of=of, head=places, lines=lines
        )
    if explained.failures:
        raise typer.Exit(1 if len(explained) else 2)


def _lines(texts: list[InputText], explained: Explanations) -> list[int]:
    """Of each explanation, the line of the file that its text stands in; nothing if the texts are from no file."""
    failed = {failure.index for failure in explained.failures}
    lines = [one.line for i, one in enumerate(texts) if i not in failed and one.line is not None]
    each = len(explained) // max(1, len(lines))  # by several methods
    return [line for line in lines for _ in range(each)]


def _images_of(files: list[Path]) -> list[InputText]:
    """Images as what is explained, each with its path as where it came from; one alone needs none."""
    return [InputText(str(file), str(file) if len(files) > 1 else "") for file in files]


def _without_text(loaded: Any, pictures: list[Path]) -> str:
    """Why images alone are not enough for a model."""
    from ..models.signature import takes
    from ..tasks.image_text import IMAGES

    name = type(loaded).__name__
    if not any(takes(loaded, key) for key in IMAGES):
        return f"{name} reads no images. Leave out --image and give a text, or load a model that reads images."
    images = " ".join(f"--image {shlex.quote(str(file))}" for file in pictures)
    return f'{name} reads images with a text, and none is given. Type: lrpx explain "What is this?" {images}'


def _check_options(methods: list[str], given: dict[str, Any]) -> None:
    """Refuse an option that none of the methods has."""
    known = {option for name in methods for option in get_method(name).options}
    for option, value in given.items():
        if value is not None and option not in known:
            with_it = [name for name, method in METHODS.items() if option in method.options]
            if not with_it:
                raise InputError(f"no method has an option {option!r}. {nearest(option, _all_options())}")
            raise InputError(
                f"{option}={value!r} is for {', '.join(with_it)}, and the method is {', '.join(methods)}. Leave it out, or "
                f"choose another method: --method {with_it[0]}."
            )


def _all_options() -> list[str]:
    return list(dict.fromkeys(option for method in METHODS.values() for option in method.options))
