"""The command line of the benchmark: build it, tokenise it, evaluate methods on it, report. Thin, as ``cli.py``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .options import DEFAULT_MODEL, CheckpointOption, CompileOption, FastOption, RulesOption, Tf32Option, set_precision
from .output import refuse_overwriting

if TYPE_CHECKING:
    from ..benchmark import Benchmark

benchmark = typer.Typer(
    no_args_is_help=True,
    help="Build and tokenise benchmarks: subject-verb agreement, BLiMP's agreement, a key in a haystack.",
)


@benchmark.command("download")
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="lgd (lgd_dataset.tsv, the paper's source), or blimp.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to put it into.")] = Path(),
) -> None:
    """Download a published source file and verify its checksum. [b]blimp[/b]: BLiMP's agreement paradigms, or one by its name.

    [b]lrpx benchmark download lgd[/b]

    [b]lrpx benchmark download blimp --out blimp[/b]
    """
    from ..benchmark.download import fetch, published

    path = fetch(name, out)
    if path.is_dir():
        _say(f"{path}: BLiMP's agreement paradigms as published. Warstadt et al. (2020). Licence: CC BY 4.0.")
        _say(f"Next: lrpx benchmark blimp {path} --out agreement")
        return
    about = published(path)
    assert about is not None
    _say(f"{path}: {about.title} as published. {about.paper}. Licence: {about.license}.")
    _say(f"Next: lrpx benchmark build {path} --out sva")


@benchmark.command("build")
def build(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="lgd_dataset.tsv, agr_50_mostcommon_10K.tsv(.gz), BLiMP JSON lines; or a URL."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="A new folder, or one where this build was stopped.")
    ],
    parser: Annotated[
        str | None,
        typer.Option(
            "--parser", metavar="NAME", help="spaCy pipeline that finds the subjects. Default: en_core_web_trf."
        ),
    ] = None,
    ground_truth: Annotated[
        Path | None,
        typer.Option("--ground-truth", metavar="FILE", help="Subjects found elsewhere, instead of a parser."),
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="lgd, linzen or blimp. Default: by content.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Processes that parse.")] = 1,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave unusable rows out; they are listed.")
    ] = False,
) -> None:
    """Find the subject of every sentence's verb and write Parquet files, counts and a dataset card.

    [b]lrpx benchmark build lgd_dataset.tsv --parser en_core_web_trf --out sva[/b]
    """
    from ..benchmark import build as run

    made = run(
        source,
        out,
        parser=parser,
        ground_truth=ground_truth,
        format=format,
        workers=workers,
        skip_bad_rows=skip_bad_rows,
    )
    _made(made)


@benchmark.command("blimp")
def blimp(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A folder with BLiMP's NAME.jsonl files, or one of them.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="A new folder.")],
    paradigm: Annotated[
        list[str] | None,
        typer.Option(
            "--paradigm",
            metavar="NAME",
            help="Such as determiner_noun_agreement_1. Repeatable. Default: all agreement paradigms in SOURCE.",
        ),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave unusable rows out; they are listed.")
    ] = False,
) -> None:
    """Take the agreement paradigms of BLiMP: verbs, nouns after determiners, reflexive pronouns. No parser is needed.

    The ground truth is the one word that decides: the subject, the determiner or the antecedent.

    [b]lrpx benchmark blimp blimp --out agreement[/b]
    """
    from ..benchmark import build_blimp

    _made(build_blimp(source, out, paradigms=paradigm, skip_bad_rows=skip_bad_rows))


@benchmark.command("haystack")
def haystack(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="A new folder.")],
    sentences: Annotated[
        int | None, typer.Option("--sentences", metavar="N", help="Filler sentences in a text. Default: 20.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", help="Instead: as many as fit into N tokens of [b]--tokenizer[/b]."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="NAME", help="Hub id or folder, for [b]--tokens[/b].")
    ] = None,
    needles: Annotated[
        int, typer.Option("--needles", metavar="N", help="Sentences with a key and its value, 1 to 9.")
    ] = 3,
    samples: Annotated[int, typer.Option("--samples", metavar="N", help="Texts.")] = 100,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another one gives other texts.")] = 0,
    truth: Annotated[
        str, typer.Option("--truth", metavar="WHAT", help="Ground truth: the value in the needle, or the whole needle.")
    ] = "value",
    filler: Annotated[
        Path | None, typer.Option("--filler", metavar="FILE", help="Your own filler: one sentence per line.")
    ] = None,
) -> None:
    """Make texts in which one known sentence has the answer, for decoders with a long context. Nothing is downloaded.

    [b]lrpx benchmark haystack --tokens 1000 --tokenizer smollm2-135m --out hay[/b]
    """
    from ..benchmark import build_haystack

    made = build_haystack(
        out,
        sentences=sentences,
        tokens=tokens,
        tokenizer=None if tokenizer is None else _local(tokenizer),
        needles=needles,
        samples=samples,
        seed=seed,
        truth=truth,
        filler=filler,
    )
    _made(made)


@benchmark.command("tokenize")
def tokenize(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by [b]lrpx benchmark[/b].")],
    tokenizer: Annotated[list[str], typer.Option("--tokenizer", metavar="NAME", help="Hub id or folder. Repeatable.")],
    input: Annotated[
        str | None,
        typer.Option("--input", metavar="KIND", help="causal or masked. Default: as the tokenizer's model is."),
    ] = None,
) -> None:
    """Prepare the sentences for one or more tokenizers. [b]lrpx evaluate[/b] does it by itself where it is missing."""
    from ..benchmark import tokenize as run

    for name in tokenizer:
        made = run(directory, _local(name), input=input)
        _say(f"{name}: {len(made):,} samples, {made.input} input")


def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by [b]lrpx benchmark[/b].")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="RUN", help="A new folder, or one where this run was stopped.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            help="Hub id or folder. Repeatable. Default: [b]smollm2-135m[/b].",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="METHOD", help="Repeatable; see [b]lrpx methods[/b]. Default: the paper's."),
    ] = None,
    relevances: Annotated[
        Path | None, typer.Option("--relevances", metavar="FILE", help="Score explanations made elsewhere.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help="Repeatable, beside the four: area_most, area_least, difference, comprehensiveness, sufficiency; or "
            "faithfulness for all five.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Evaluate this many samples, chosen by --seed.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="For --limit.")] = 0,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="PLACE",
            help="Where relevance is taken: input (of the first block), embedding, or a module.",
        ),
    ] = "input",
    rules: RulesOption = None,
    dtype: Annotated[
        str,
        typer.Option("--dtype", metavar="DTYPE", help="float32, float64, bfloat16, ...; auto: the checkpoint's own."),
    ] = "float32",
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="Default: a GPU if there is one.")
    ] = None,
    device_map: Annotated[
        str | None, typer.Option("--device-map", metavar="MAP", help="Divide a large model: auto, or JSON.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", metavar="N", help="Tokens per batch, padding included.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="ENGINE", help="local: this process. ray: workers, on many GPUs or machines."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Of a Ray cluster, or auto. Default: this machine alone."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", help="For --engine ray. Default: one per GPU, else per share of the CPUs."
        ),
    ] = None,
    fast: FastOption = None,
    compile: CompileOption = False,
    checkpoint: CheckpointOption = None,
    tf32: Tf32Option = False,
) -> None:
    """Explain a model's predictions, score them against the ground truth, and keep every record. Resumes if stopped.

    [b]lrpx evaluate sva --model openai-community/gpt2 --method attnlrp --method lrp --out runs/gpt2[/b]

    Exit status 1 if a sample could not be explained; the records say which and why.
    """
    from ..evaluation.records import failures_of
    from ..evaluation.run import evaluate_all

    set_precision(tf32)

    try:
        runs = evaluate_all(
            directory,
            model or [DEFAULT_MODEL],
            method,
            out,
            relevances=relevances,
            metrics=metric or (),
            limit=limit,
            seed=seed,
            at=at,
            rules=rules,
            dtype=dtype,
            device=device,
            device_map=device_map,
            batch_tokens=batch_tokens,
            engine=engine,
            address=address,
            workers=workers,
            fast=fast,
            compile=compile,
            checkpoint=checkpoint,
        )
    except KeyboardInterrupt:
        if out.exists():
            _say(f"Stopped. What is finished is kept in {out}: the same command goes on from there.")
        raise
    failed = sum(run.failed for run in runs)
    for run in runs:
        _say(f"{run.path}: " + (failures_of(run) if run.failed else "finished"))
    _say(f"Next: lrpx report {out}")
    raise typer.Exit(1 if failed else 0)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders made by [b]lrpx evaluate[/b].")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="terminal, markdown, latex, html, csv or parquet. Default: by --output."
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="paper", help="Put the paper's numbers beside yours.")
    ] = None,
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", help="Samples per model shown as heatmaps, in html and latex.")
    ] = 5,
    k: Annotated[int, typer.Option("--k", metavar="K", help="Tokens that the pointing game PGk looks at.")] = 2,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here.")] = None,
) -> None:
    """Print Tables 2 and 3 of Arras et al. (2025) for your runs.

    [b]lrpx report runs/gpt2 --compare paper --output report.html[/b]
    """
    from ..report import write

    if output is not None and output.is_file():  # parts of runs are Parquet files, as a report can be
        refuse_overwriting(output, (part for run in runs for part in run.rglob("part-*.parquet")))
    write(runs, format=format, compare=compare, examples=examples, k=k, output=output)


def _made(made: Benchmark) -> None:
    _say(f"{len(made):,} samples in {made.path}; what was dropped and why: {made.path / 'counts.json'}")


def _local(tokenizer: str) -> str:
    """The folder of the default model, if that is named; every other name as it is."""
    if tokenizer != DEFAULT_MODEL:
        return tokenizer
    from ..models.default.download import default_model

    return str(default_model())


def _say(message: str) -> None:
    Console(stderr=True).print(message, highlight=False, soft_wrap=True)
