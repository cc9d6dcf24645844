"""A whole set of samples, in batches: the time of AttnLRP beside a plain forward pass over the same batches.

    python bench/dataset.py --json out.json                          # Llama-3.2-1B shape, 28,629 samples, TF32 and strict
    python bench/dataset.py --batch-tokens 4096 8192 --no-strict --lxt CHECKOUT --lxt-transformers FOLDER
    python bench/dataset.py --smoke --device cpu

28,629 samples are the paper's for Llama-3 (App. B); their lengths are drawn from a distribution like theirs. From token ids to

- lrpx: one call of an ``lrpx.Explainer`` with the whole list: it sorts by length and fills batches by tokens
  (``--batch-tokens``);
- method (with ``--method``): what of that the method itself takes, over batches that are ready;
- forward, explained row: hidden states over the very same batches, ready on the device, and logits of one position per sample;
- forward, all logits: the same batches with the logits of every token, as ``model(**inputs)`` computes them;
- LXT, one sample at a time as it works, on ``--lxt-samples`` of them; their mean times the number of all (extrapolated).

Contenders take turns; ratios are medians over the rounds, each within one precision of matrix products.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Sequence
from typing import Any

import common
import torch
from common import SHAPES, Contenders, Sample

import lrpx
from lrpx.methods import get_method
from lrpx.models.signature import task_of
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution
from lrpx.text.batching import Attribution, Batch, Item, pad
from lrpx.text.grouping import allowed_waste, buckets

OUT_OF_MEMORY = "out of memory"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--samples", type=int, default=28629)
    parser.add_argument(
        "--benchmark", metavar="DIR", help="take the lengths of this tokenised set (.../tokenized/NAME)"
    )
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--rounds", type=int, default=3, help="after the first; in strict float32 a third of them")
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, help="as in lrpx.explain")
    parser.add_argument("--compile", action="store_true", help="as in lrpx.explain")
    parser.add_argument(
        "--strict", action=argparse.BooleanOptionalAction, default=True, help="float32 without TF32 too"
    )
    parser.add_argument("--method", action="store_true", help="time the method alone, over ready batches, too")
    parser.add_argument("--all-logits", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lxt-samples", type=int, default=200)
    common.add_lxt_options(parser)
    args = parser.parse_args(argv)
    if args.smoke:
        args.shape, args.samples, args.batch_tokens, args.lxt_samples = "tiny", 40, [128], 6
    torch.set_float32_matmul_precision("highest")
    samples, origin = common.samples_of(args.shape, args.samples, args.benchmark)
    model = common.build(args.shape, args.device, torch.float32)
    facts = common.environment(args.device)
    settings = {
        f"{'TF32' if tf32 else 'strict float32'}, {tokens} tokens per batch": timings(
            model, samples, tokens, tf32, args
        )
        for tf32 in ([True, False] if args.strict else [True])
        for tokens in args.batch_tokens
    }
    results = {
        "lengths": {"origin": origin, "mean": sum(len(s.ids) for s in samples) / len(samples)},
        "settings": settings,
        "lxt": {mode: extrapolated(args, mode, samples) for mode in ("efficient", "explicit")},
    }
    found = common.report("dataset", args, facts, results)
    show(found)
    return found


def timings(model: Any, samples: Sequence[Sample], tokens: int, tf32: bool, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every contender, round by round, in one precision and with one size of batches."""
    batches = batches_of(model, samples, tokens)
    explainer = lrpx.Explainer(model, fast=args.fast, compile=args.compile, batch_tokens=tokens)
    contenders: Contenders = {
        "lrpx": lambda _: explain(explainer, samples, tf32),
        "forward, explained row": lambda _: forward(model, batches, tf32, explained_row),
    }
    if args.method:
        runner = PassRunner(model, Execution(fast=args.fast, compile=args.compile))
        contenders["method"] = lambda _: method_alone(runner, batches, tf32)
    if args.all_logits:
        contenders["forward, all logits"] = lambda _: forward(model, batches, tf32, all_logits)
    warm_up, failed = {}, {}
    for name, run in list(contenders.items()):
        try:
            warm_up[name] = common.seconds_of(functools.partial(run, None), args.device)
        except torch.OutOfMemoryError:
            failed[name] = OUT_OF_MEMORY
            del contenders[name]
    seconds = common.in_turns(contenders, range(args.rounds if tf32 else max(1, args.rounds // 3)), args.device)
    padded = sum(batch.inputs["input_ids"].numel() for batch in batches)
    real = sum(len(sample.ids) for sample in samples)
    figures: dict[str, Any] = {
        name: {
            "median_s": statistics.median(each),
            "seconds": each,
            "samples_per_s": len(samples) / statistics.median(each),
            "warm_up_s": warm_up[name],
        }
        for name, each in seconds.items()
    }
    ratios = {
        f"lrpx / {name}": common.ratio(seconds["lrpx"], each)
        for name, each in seconds.items()
        if name != "lrpx" and "lrpx" in seconds
    }
    return {
        "contenders": figures,
        "failed": failed,
        "ratios": ratios,
        "batches": len(batches),
        "different_shapes": len({batch.inputs["input_ids"].shape for batch in batches}),
        "padding": 1 - real / padded,
    }


def explain(explainer: lrpx.Explainer, samples: Sequence[Sample], tf32: bool = False) -> Sequence[lrpx.Explanation]:
    with common.precision(tf32):
        return explainer(
            [sample.ids for sample in samples],
            target=[sample.target for sample in samples],
            contrast=[sample.contrast for sample in samples],
            position=[sample.position for sample in samples],
            progress=False,
        )


def method_alone(runner: PassRunner, batches: Sequence[Batch], tf32: bool) -> list[Attribution]:
    function = get_method("attnlrp").run_by(runner)
    with common.precision(tf32):
        return [attribution for batch in batches for attribution in function(batch)]


def batches_of(model: Any, samples: Sequence[Sample], tokens: int) -> list[Batch]:
    """The padded batches that an ``Explainer`` makes of the samples."""
    items = [Item(tuple(s.ids), s.position, s.target, s.contrast) for s in samples]
    groups = buckets([len(s.ids) for s in samples], max_tokens=tokens, waste=allowed_waste(model, task_of(model)))
    return [pad([items[i] for i in group], model) for group in groups]


def forward(model: Any, batches: Sequence[Batch], tf32: bool, logits_of: Any) -> None:
    """Values of all samples, moved to the CPU in the end."""
    values = []
    with torch.no_grad(), common.precision(tf32):
        for batch in batches:
            logits = logits_of(model, batch)  # [B, vocabulary]
            rows = torch.arange(len(logits), device=logits.device)
            values.append(logits[rows, batch.targets] - logits[rows, batch.contrasts])
        torch.cat(values).cpu()


def explained_row(model: Any, batch: Batch) -> torch.Tensor:
    return common.explained_rows(model, batch.inputs, batch.positions)


def all_logits(model: Any, batch: Batch) -> torch.Tensor:
    logits = model(**batch.inputs, **common.without_cache(model)).logits
    return logits[torch.arange(len(logits), device=logits.device), batch.positions]


def extrapolated(args: argparse.Namespace, mode: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """LXT on the first samples, and the seconds that all of them would take at that rate."""
    found = common.lxt(args, mode, args.shape, samples[: args.lxt_samples], "float32")
    if seconds := found.pop("seconds", None):
        found |= {"samples": len(seconds), "extrapolated_s": statistics.mean(seconds) * len(samples)}
    return found


def show(found: dict[str, Any]) -> None:
    results, args = found["results"], found["arguments"]
    rows = [["", "seconds", "samples/s", "lrpx / it", "first time s"]]
    for setting, timed in results["settings"].items():
        for name, figures in timed["contenders"].items():
            over = timed["ratios"].get(f"lrpx / {name}")
            rows.append(
                [
                    f"{name}, {setting}",
                    f"{figures['median_s']:.2f}",
                    f"{figures['samples_per_s']:.0f}",
                    "" if over is None else f"{over:.2f}",
                    f"{figures['warm_up_s']:.2f}",
                ]
            )
        rows += [[f"{name}, {setting}", why, "", "", ""] for name, why in timed["failed"].items()]
    for mode, theirs in results["lxt"].items():
        if "extrapolated_s" in theirs:
            name = f"LXT {mode}, one by one, extrapolated from {theirs['samples']} samples"
            rate = args["samples"] / theirs["extrapolated_s"]
            rows.append([name, f"{theirs['extrapolated_s']:.0f}", f"{rate:.1f}", "", f"{theirs['warm_up_s']:.2f}"])
    mean, origin = results["lengths"]["mean"], results["lengths"]["origin"]
    print(f"{args['shape']}, {args['samples']} samples, float32 weights; {common.heading(found['environment'])}")
    print(f"lengths: mean {mean:.1f} tokens ({origin})")
    for setting, timed in results["settings"].items():
        shapes = f"{timed['batches']} batches of {timed['different_shapes']} shapes"
        print(f"{setting}: {shapes}, {timed['padding']:.1%} padding")
    print(common.table(rows))
    for mode, theirs in results["lxt"].items():
        if "extrapolated_s" not in theirs:
            print(f"LXT {mode}: {theirs.get('skipped') or 'failed: ' + theirs['failed']}")


if __name__ == "__main__":
    main()
