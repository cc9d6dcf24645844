"""One sample at a time, in single precision: the time of AttnLRP beside a plain forward pass, and beside LXT.

    python bench/per_sample.py --shape llama-3.2-1b --samples 300 --json out.json
    python bench/per_sample.py --shape bert-base --lxt CHECKOUT --lxt-transformers FOLDER --benchmark SVA/tokenized/NAME
    python bench/per_sample.py --smoke --device cpu

Arras et al. 2025 (section "Computational Speedup") give the median speedup of their toolbox over LXT's explicit models on the
first 1,000 samples of the benchmark, in single precision. That is the row "lrpx eager" here, with ``--benchmark`` and the default
of 1,000 samples; the other rows use CUDA graphs, TF32 or compilation, which the paper does not. The last lines give the
paper's ratio beside ours, and say what in this run was not as in the paper. From a list of token ids to

- forward: logits of all tokens on the device, by ``model(**inputs)`` of transformers under ``torch.no_grad``;
- lrpx: an ``Explanation`` by ``lrpx.explain``: without CUDA graphs (eager), with them (fast), and with TF32 matrix products too;
- method: what of that the method itself takes (``methods/lrp.py`` on a batch that is ready);
- LXT: relevances on the CPU, by its efficient and its explicit implementation.

Samples are split in two halves; LXT runs between them, so that a drift would show as a difference between the halves. A speedup
is the median over the samples that both explained, as the paper's.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import common
import numpy as np
import torch
from common import SHAPES, Contenders, Sample, inputs_of, ms

import lrpx
from lrpx.explainer.heads import with_heads
from lrpx.explainer.predictions import LIKELIEST
from lrpx.methods import get_method
from lrpx.text.batching import Batch, Item, pad


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument(
        "--benchmark", metavar="DIR", help="take the samples of this tokenised set (.../tokenized/NAME)"
    )
    parser.add_argument("--compile", action="store_true", help="time fast=True, compile=True too")
    parser.add_argument("--lxt-samples", type=int, help="LXT explains so many of them. Default: all")
    parser.add_argument("--check", type=int, default=0, metavar="N", help="compare relevances with LXT's on N samples")
    common.add_lxt_options(parser)
    args = parser.parse_args(argv)
    if args.smoke:
        args.shape, args.samples = ("tiny-bert" if args.shape == "bert-base" else "tiny"), 6
    torch.set_float32_matmul_precision("highest")
    marks = [("", time.perf_counter())]

    def done(what: str) -> None:
        common.synchronise(args.device)
        marks.append((what, time.perf_counter()))

    samples, origin = common.samples_of(args.shape, args.samples, args.benchmark)
    model = common.build(args.shape, args.device, torch.float32)
    facts = common.environment(args.device)
    done("model")
    modes = modes_of(model, args)
    contenders = contenders_of(model, modes)
    lengths = [(sample, batch_of(model, sample)) for sample in common.one_of_each_length(samples)]
    before = common.reserved(args.device)
    warm_up = common.warmed_up(contenders, lengths, args.device)
    held = common.reserved(args.device) - before
    done("warming up")

    work = [(sample, batch_of(model, sample)) for sample in samples]
    first, second = work[::2], work[1::2]
    parts = [common.in_turns(contenders, first, args.device)]
    done("first half")
    theirs = {mode: compared(model, args, mode, samples[: args.lxt_samples]) for mode in ("efficient", "explicit")}
    done("LXT")
    parts.append(common.in_turns(contenders, second, args.device))
    done("second half")
    memory = {name: common.peak(functools.partial(run, lengths[0]), args.device) for name, run in contenders.items()}
    done("memory")

    seconds = {name: in_order(*(part[name] for part in parts)) for name in contenders}  # by sample
    their_seconds = {mode: found.pop("seconds", []) for mode, found in theirs.items()}
    results = {
        "lengths": {
            "origin": origin,
            "mean": sum(len(sample.ids) for sample in samples) / len(samples),
            "different": len(lengths),
        },
        "contenders": {
            name: {
                **common.summary(each),
                "halves_s": [common.summary(part[name])["median_s"] for part in parts if part[name]],
                "warm_up_s": warm_up[name],
                "peak_mib": memory[name],
            }
            for name, each in seconds.items()
        },
        "ratios": {
            f"{name} / forward": common.ratio(each, seconds["forward"])
            for name, each in seconds.items()
            if name != "forward"
        },
        "speedups": {
            f"{name} over LXT {mode}": common.ratio(each, seconds[name][: len(each)])
            for mode, each in their_seconds.items()
            if each
            for name in contenders
            if name.startswith("lrpx")
        },
        "graphs": sum(len(explainer._runner.graphs) for explainer in {mode.explainer for mode in modes.values()}),
        "reserved_by_warm_up_mib": held,
        "lxt": theirs,
        "spent_s": {what: end - start for (_, start), (what, end) in pairwise(marks)},
        "not_as_in_the_paper": departures(args, origin, theirs),
    }
    found = common.report("per_sample", args, facts, results)
    show(found)
    return found


PAPER = {
    "llama-3.2-1b": (1.54, 1.61),
    "bert-base": (1.83, 1.98),
}  # its speedups over LXT's explicit models, on V100 and A100


def departures(args: argparse.Namespace, origin: str, theirs: dict[str, Any]) -> list[str]:
    """What in this run is not as in the paper's measurement, but for the cards and the random weights."""
    found = []
    if args.shape not in PAPER:
        found.append(f"the shape {args.shape}, which is no model of its measurement")
    if not origin.startswith("the first "):
        found.append("random token ids instead of the benchmark's (--benchmark DIR)")
    if args.samples != 1000:
        found.append(f"{args.samples:,} samples instead of the first 1,000")
    if "median_s" not in theirs["explicit"]:
        found.append("LXT's explicit models were not timed")
    elif theirs["explicit"]["count"] < args.samples:
        found.append(f"LXT explained only {theirs['explicit']['count']:,} of the samples")
    return found


Work = tuple[Sample, Batch]


def batch_of(model: Any, sample: Sample) -> Batch:
    """As an explainer makes it, so that its graphs and compiled passes serve the method alone too."""
    return pad([Item(tuple(sample.ids), sample.position, sample.target, sample.contrast)], model, likeliest=LIKELIEST)


class Mode(NamedTuple):
    """A way to explain, with what it keeps."""

    explainer: lrpx.Explainer
    tf32: bool = False


def modes_of(model: Any, args: argparse.Namespace) -> dict[str, Mode]:
    fast = lrpx.Explainer(model, fast=True)
    modes = {"eager": Mode(lrpx.Explainer(model, fast=False)), "fast": Mode(fast), "fast TF32": Mode(fast, tf32=True)}
    if args.compile:
        both = lrpx.Explainer(model, fast=True, compile=True)
        modes |= {"fast compiled": Mode(both), "fast compiled TF32": Mode(both, tf32=True)}
    return modes


def contenders_of(model: Any, modes: dict[str, Mode]) -> Contenders:
    contenders: Contenders = {"forward": functools.partial(forward, model)}
    for name, mode in modes.items():
        contenders[f"lrpx {name}"] = functools.partial(whole_call, mode)
    for name in (name for name in modes if name != "eager"):
        contenders[f"method {name}"] = functools.partial(method_alone, modes[name])
    return contenders


def forward(model: Any, work: Work) -> Any:
    with torch.no_grad():
        return model(**inputs_of(work[0], model.device), **common.without_cache(model)).logits


def whole_call(mode: Mode, work: Work) -> lrpx.Explanation:
    with common.precision(mode.tf32):
        return explain(mode.explainer, work[0])


def explain(explainer: lrpx.Explainer, sample: Sample, **options: Any) -> Any:
    return explainer(
        sample.ids,
        target=sample.target,
        contrast=sample.contrast,
        position=sample.position,
        method="attnlrp",
        **options,
    )


def method_alone(mode: Mode, work: Work) -> Any:
    runner = mode.explainer._runner
    options = with_heads({"heads": None}, len(work[0].ids), runner.execution)
    with common.precision(mode.tf32):
        return get_method("attnlrp").run_by(runner)(work[1], **options)


def compared(model: Any, args: argparse.Namespace, mode: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """LXT on the same samples, and with ``--check`` how far its relevances are from ours for the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        more: dict[str, Any] = {}
        if args.check and args.lxt:
            more = {"weights": os.path.join(folder, "weights.pt"), "relevance": args.check}
            torch.save(model.state_dict(), more["weights"])
        found = common.lxt(args, mode, args.shape, samples, "float32", **more)
    if relevances := found.pop("relevance", None):
        some = samples[: len(relevances)]
        explainer = lrpx.Explainer(model, fast=False)
        ours = [explain(explainer, sample, at="embedding").relevance for sample in some]
        found["differences"] = [
            float(np.abs(np.array(theirs) - mine).max() / np.abs(mine).max())
            for theirs, mine in zip(relevances, ours, strict=True)
        ]
    if "seconds" in found:
        found |= common.summary(found["seconds"])
    return found


def in_order(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Figures of every other sample, and of the others, back in the samples' order."""
    both = [*first, *second]
    both[::2], both[1::2] = first, second
    return both


def show(found: dict[str, Any]) -> None:
    results, args = found["results"], found["arguments"]
    lengths = results["lengths"]
    forward_s = results["contenders"]["forward"]["median_s"]
    rows = [["", "median", "halves", "/ forward", "warm-up s", "peak MiB"]]
    for name, figures in results["contenders"].items():
        rows.append(
            [
                name,
                ms(figures["median_s"]),
                " ".join(ms(half) for half in figures["halves_s"]),
                f"{figures['median_s'] / forward_s:.2f}",
                f"{figures['warm_up_s']:.1f}",
                f"{figures['peak_mib']:.1f}",
            ]
        )
    for mode, theirs in results["lxt"].items():
        if "median_s" in theirs:
            name = f"LXT {mode} (transformers {theirs['transformers']})"
            over, first = f"{theirs['median_s'] / forward_s:.2f}", f"{theirs['warm_up_s']:.1f}"
            rows.append([name, ms(theirs["median_s"]), "", over, first, f"{theirs['peak_mib']:.1f}"])
    print(f"{args['shape']}, float32, one sample at a time; {common.heading(found['environment'])}")
    print(
        f"{args['samples']} samples, mean {lengths['mean']:.1f} tokens, {lengths['different']} lengths ({lengths['origin']})"
    )
    print(common.table(rows))
    print(
        f"{results['graphs']} CUDA graphs; {results['reserved_by_warm_up_mib']:.0f} MiB more reserved after warming up"
    )
    print("Seconds: " + ", ".join(f"{what} {seconds:.0f}" for what, seconds in results["spent_s"].items()))
    for name, value in results["speedups"].items():
        print(f"{name}: {value:.2f} times")
    if args["shape"] in PAPER:
        low, high = PAPER[args["shape"]]
        print(
            f"The paper's toolbox over LXT explicit, to be compared with lrpx eager: {low} to {high} times (V100, A100)"
        )
    told = "; ".join(results["not_as_in_the_paper"])
    print(
        f"Not as in the paper: {told}." if told else "As in the paper: the first 1,000 samples; its row is lrpx eager."
    )
    for mode, theirs in results["lxt"].items():
        if "median_s" not in theirs:
            print(f"LXT {mode}: {theirs.get('skipped') or 'failed: ' + theirs['failed']}")
        if "differences" in theirs:
            print(f"LXT {mode}: relevance differs by {max(theirs['differences']):.1e} of the largest at most")


if __name__ == "__main__":
    main()
