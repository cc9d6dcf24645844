"""Where a pass spends its time on the GPU: kernels of one call by kind, from a real trace.

    python bench/where_time_goes.py --work sample --fast --tf32              # one short text (a CUDA graph)
    python bench/where_time_goes.py --work long --compile --trace trace.json # one text of 16,384 tokens, bfloat16
    python bench/where_time_goes.py --work batch --compile --tf32            # one batch of short texts, 16,384 tokens in all
    python bench/where_time_goes.py --smoke --device cpu                     # operators instead of kernels: only that it runs

The model has the shape of Llama-3.2-1B, or of ``--shape``. The call is warmed up, timed without the profiler (median of
``--rounds``), and then traced once. "Idle" is the timed call less the time in which a kernel ran: what Python and launching cost.
``--trace`` writes the trace for chrome://tracing or Perfetto.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import common
import torch
from common import SHAPES, Sample
from torch.profiler import ProfilerActivity, profile

import lrpx

# The first that matches a kernel's name says what it is.
KINDS = {
    "attention": r"flash|fmha|sdpa|attention|cudnn_generated_fort_native",
    "matrix products": r"gemm|gemv|cutlass|nvjet|cublas|xmma|splitKreduce|aten::(mm|bmm|addmm|matmul)",
    "fused (Triton)": r"triton_",
    "copies": r"Memcpy|Memset|copy|CatArray|aten::(copy_|cat)",
    "gather, embedding": r"gather|scatter|index|embedding",
    "reductions": r"reduce|softmax|norm|aten::(sum|mean)",
    "elementwise": r"elementwise|aten::(mul|add|div|pow|rsqrt|silu|where|neg|sub)",
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--work", choices=["sample", "batch", "long"], default="sample")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--tokens", type=int, help="of the text, or of the batch; default: 16,384, of one sample 11")
    parser.add_argument("--method", default="attnlrp")
    parser.add_argument("--fast", action="store_true", help="as in lrpx.Explainer, likewise the next two")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--names", type=int, default=0, metavar="N", help="list the N longest kernels of each kind")
    parser.add_argument("--trace", metavar="FILE", help="write the trace")
    args = parser.parse_args(argv)
    if args.smoke:
        args.shape, args.rounds, args.tokens = "tiny", 2, args.tokens or 64
    torch.set_float32_matmul_precision("highest")
    samples = samples_of(args)
    model = common.build(args.shape, args.device, torch.bfloat16 if args.work == "long" else torch.float32)
    facts = common.environment(args.device)

    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    explainer = lrpx.Explainer(
        model,
        method=args.method,
        batch_tokens=max(1 << 14, len(samples[0].ids)),
        fast=args.fast,
        compile=args.compile,
        checkpoint=args.checkpoint,
    )

    def run() -> Any:
        return explainer(
            [sample.ids for sample in samples],
            target=samples[0].target,
            contrast=samples[0].contrast,
            progress=False,
        )

    for _ in range(3):
        run()
    seconds = statistics.median(common.seconds_of(run, args.device) for _ in range(args.rounds))
    found = kernels_of(run, args.device, args.trace)
    total, busy = sum(time for _, _, time in found), covered((begin, begin + time) for _, begin, time in found)
    results = {
        "samples": len(samples),
        "tokens": sum(len(sample.ids) for sample in samples),
        "median_s": seconds,
        "busy_s": busy,
        "kernels": len(found),
        "kinds": {kind: figures(found, kind, total, args.names) for kind in [*KINDS, "other"]},
    }
    found_all = common.report("where_time_goes", args, facts, results)
    show(found_all)
    return found_all


def samples_of(args: argparse.Namespace) -> list[Sample]:
    """One text of so many tokens, or one batch of texts as long as the shape's are on average."""
    tokens = args.tokens or (11 if args.work == "sample" else 1 << 14)
    length = round(SHAPES[args.shape].lengths.mean) if args.work == "batch" else tokens
    return [Sample([10 + (i + n) % 100 for i in range(length)], length - 1, 1, 2) for n in range(tokens // length)]


Kernel = tuple[str, float, float]  # name, begin and duration in seconds


def kernels_of(run: Callable[[], Any], device: str, trace: str | None) -> list[Kernel]:
    """Every kernel of one call; on a CPU every operator, without those that it calls."""
    on_gpu = device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as traced:
        run()
        common.synchronise(device)
    if trace:
        traced.export_chrome_trace(trace)
    kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    return [
        (e.name, e.time_range.start * 1e-6, (e.time_range.elapsed_us() if on_gpu else e.self_cpu_time_total) * 1e-6)
        for e in traced.events()
        if e.device_type == kind
    ]


def kind_of(name: str) -> str:
    """What a kernel does, by its name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), "other")


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one kernel runs."""
    seconds, end = 0.0, float("-inf")
    for begin, finish in sorted(spans):
        seconds += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return seconds


def figures(kernels: Sequence[Kernel], kind: str, total: float, names: int) -> dict[str, Any]:
    ours = [(name, time) for name, _, time in kernels if kind_of(name) == kind]
    by_name: Counter[str] = Counter()
    for name, time in ours:
        by_name[name] += time
    seconds = sum(time for _, time in ours)
    longest = [(name, each) for name, each in by_name.most_common(names)]
    return {"kernels": len(ours), "seconds": seconds, "share": seconds / total if total else 0.0, "longest": longest}


def show(found: dict[str, Any]) -> None:
    results, args = found["results"], found["arguments"]
    ways = [name for name in ("fast", "compile", "checkpoint", "tf32") if args[name]]
    print(f"{args['shape']}, {args['work']}, {', '.join(ways) or 'eager'}; {common.heading(found['environment'])}")
    print(f"{results['samples']} texts, {results['tokens']} tokens, {args['method']}: {common.ms(results['median_s'])}")
    rows = [["", "time", "share", "kernels"]]
    for kind, of in results["kinds"].items():
        if of["kernels"]:
            rows.append([kind, common.ms(of["seconds"]), f"{of['share']:.0%}", str(of["kernels"])])
    rows.append(["a kernel runs", common.ms(results["busy_s"]), "", str(results["kernels"])])
    rows.append(["idle", common.ms(max(0.0, results["median_s"] - results["busy_s"])), "", ""])
    print(common.table(rows))
    for kind, of in results["kinds"].items():
        for name, seconds in of["longest"]:
            print(f"{kind}: {common.ms(seconds)} {name[:110]}")


if __name__ == "__main__":
    main()
