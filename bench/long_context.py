"""One long text: time and memory of AttnLRP beside a plain forward pass, in bfloat16.

    python bench/long_context.py --json out.json                     # 16,384 tokens, every way to run it
    python bench/long_context.py --tokens 131072 --checkpoint        # the least memory, once
    python bench/long_context.py --lxt CHECKOUT
    python bench/long_context.py --smoke --device cpu

- forward: ``model(**inputs, logits_to_keep=1)`` under ``torch.no_grad``, without a cache for further tokens;
- eager, compiled, checkpointed, checkpointed and compiled: an ``lrpx.Explainer`` with these options, and
  default: with ``checkpoint=None``, where an estimate of the memory decides;
- LXT efficient, with the logit of the last position only.

Memory is the peak of a call above what is allocated before it (weights), in GiB.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import common
import torch
from common import SHAPES, Contenders, Sample, inputs_of

import lrpx

WAYS: dict[str, dict[str, Any]] = {
    "eager": {"compile": False, "checkpoint": False},
    "compiled": {"compile": True, "checkpoint": False},
    "checkpointed": {"compile": False, "checkpoint": True},
    "checkpointed compiled": {"compile": True, "checkpoint": True},
    "default": {},
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ways", nargs="+", choices=["forward", *WAYS], help="default: all")
    parser.add_argument("--checkpoint", action="store_true", help="only the checkpointed way, run once")
    parser.add_argument("--rounds", type=int, default=7)
    common.add_lxt_options(parser)
    args = parser.parse_args(argv)
    if args.checkpoint:
        args.ways, args.rounds = args.ways or ["forward", "checkpointed"], 1
    if args.smoke:
        args.shape, args.tokens, args.rounds = "tiny", 64, min(args.rounds, 2)
        args.ways = args.ways or ["forward", "eager", "checkpointed", "default"]  # compiling takes longest of all
    ways = args.ways or ["forward", *WAYS]
    samples = samples_of(args)
    model = common.build(args.shape, args.device, getattr(torch, args.dtype))
    facts = common.environment(args.device)
    contenders: Contenders = {
        name: functools.partial(forward, model)
        if name == "forward"
        else functools.partial(explain, lrpx.Explainer(model, batch_tokens=args.tokens, **WAYS[name]))
        for name in ways
    }
    # A single run is warmed up on a shorter text: it may take long, or only just fit.
    short = samples if args.rounds > 1 else samples_of(args, max(1, args.tokens // 32))
    figures, lasting = {}, {}
    for name, run in contenders.items():
        figures[name], works = first_time(run, short[0], samples[0], args)
        if works:
            lasting[name] = run
    parts = [common.in_turns(lasting, samples * (args.rounds // 2), args.device)]
    empty(args.device)
    theirs = common.lxt(args, "efficient", args.shape, samples, args.dtype, warm_up=2, rounds=args.rounds)
    parts.append(common.in_turns(lasting, samples * (args.rounds - args.rounds // 2), args.device))
    for name in lasting:
        timed = [part[name] for part in parts]
        figures[name] |= common.summary(timed[0] + timed[1])
        figures[name]["halves_s"] = [common.summary(each)["median_s"] for each in timed if each]
    if seconds := theirs.pop("seconds", None):
        theirs |= common.summary(seconds)
    found = common.report("long_context", args, facts, {"ways": figures, "lxt": {"efficient": theirs}})
    show(found)
    return found


def samples_of(args: argparse.Namespace, tokens: int | None = None) -> list[Sample]:
    """One text of random ids, as a list."""
    tokens = tokens or args.tokens
    vocabulary = SHAPES[args.shape].config.get("vocab_size", 30522)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, vocabulary, (tokens,), generator=generator).tolist()
    return [Sample(ids, tokens - 1, 1, 2)]


def first_time(run: Any, short: Sample, sample: Sample, args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Seconds of the first call and memory of the next, and whether it went well."""
    empty(args.device)
    try:
        first = common.seconds_of(lambda: run(short), args.device)
        if args.rounds > 1:
            run(sample)
        empty(args.device)
        return {"first_s": first, "peak_mib": common.peak(lambda: run(sample), args.device)}, True
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}, False


def empty(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def forward(model: Any, sample: Sample) -> Any:
    keep = {"logits_to_keep": 1} if hasattr(model, "lm_head") else {}
    with torch.no_grad():
        return model(**inputs_of(sample, model.device), **common.without_cache(model), **keep).logits


def explain(explainer: lrpx.Explainer, sample: Sample) -> Any:
    asked = {"target": sample.target, "contrast": sample.contrast, "position": sample.position}
    return explainer(
        sample.ids, **asked, heads=False
    )  # as for any long text: of short ones, they keep what a block adds


def show(found: dict[str, Any]) -> None:
    results, args = found["results"], found["arguments"]
    forward_s = results["ways"].get("forward", {}).get("median_s")
    rows = [["", "median", "halves", "/ forward", "extra GiB", "first call s"]]
    for name, figures in [*results["ways"].items(), ("LXT efficient", results["lxt"]["efficient"])]:
        if "median_s" not in figures:
            if why := figures.get("failed"):
                rows.append([name, why, "", "", "", ""])
            continue
        rows.append(
            [
                name,
                common.ms(figures["median_s"]),
                " ".join(common.ms(half) for half in figures.get("halves_s", [])),
                f"{figures['median_s'] / forward_s:.2f}" if forward_s else "",
                f"{figures['peak_mib'] / 1024:.2f}",
                f"{figures.get('first_s', figures.get('warm_up_s')):.1f}",
            ]
        )
    print(
        f"{args['shape']}, one text of {args['tokens']} tokens, {args['dtype']}; {common.heading(found['environment'])}"
    )
    print(common.table(rows))
    if why := results["lxt"]["efficient"].get("skipped"):
        print(f"LXT efficient: {why}")


if __name__ == "__main__":
    main()
