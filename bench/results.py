"""The records of the results page: all methods on several models, at the input, the embedding and several layers.

    python bench/results.py SVA --model smollm2-135m path/to/mini-gpt2 path/to/mini-bert --output runs
    python bench/results.py SVA --model openai-community/gpt2 --limit 300 --method lrp attnlrp --output runs --packed results

SVA is a folder made by ``lrpx benchmark build``. Every step is a run of ``lrpx evaluate`` of its own, in
``OUTPUT/MODEL/STEP``: methods that share their cost, at one place. The same command goes on where it was stopped.

1. Steps are ordered by what they cost, and alternate between the models. After ``--minutes`` no step is begun.
2. A step that fails is told and left out; the exit status is 1 then, or if time ran out.
3. With ``--packed``, each finished run is condensed into ``PACKED/MODEL/STEP`` as ``lrpx records pack`` does it.
4. Layers are the outputs of ``--layers`` blocks, evenly spaced from the first one on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import common
import torch

import lrpx
from lrpx.errors import LrpxError
from lrpx.evaluation.packing import pack
from lrpx.evaluation.run import evaluate

GROUPS = {  # cheap ones first; methods of one group share a run
    "lrp": ("lrp", "attnlrp", "lrp-uniform-gate"),
    "gradient": ("gradient", "gradient-x-input"),
    "random": ("random",),
    "alti": ("alti-logit", "alti", "attention-rollout"),
}
PLACED = (*GROUPS["lrp"], *GROUPS["gradient"])  # what relevance can be taken of at any place
SLOW = ("leave-one-out", "occlusion", "smoothgrad", "integrated-gradients", "lime", "kernel-shap")


class Step(NamedTuple):
    """One run: its folder, its methods, the place, and whether ``--limit-slow`` holds for it."""

    name: str
    methods: tuple[str, ...]
    at: str
    slow: bool


def main() -> None:
    parser = common.parser_of(__doc__)
    parser.add_argument("benchmark", help="a folder made by lrpx benchmark build")
    parser.add_argument("--model", nargs="+", required=True, help="names or paths")
    parser.add_argument("--output", type=Path, required=True, help="a folder for the runs")
    parser.add_argument("--packed", type=Path, help="a folder for the condensed records")
    parser.add_argument("--method", nargs="+", help="only these methods")
    parser.add_argument("--limit", type=int, help="samples; default all")
    parser.add_argument("--limit-slow", type=int, help="samples of methods with many passes, and of layers")
    parser.add_argument("--layers", type=int, default=4, help="how many")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no step is begun")
    parser.add_argument("--threads", type=int, help="of the processor")
    args = parser.parse_args()
    if args.smoke:
        args.limit = args.limit_slow = 4
    if args.threads:
        torch.set_num_threads(args.threads)
    start, facts = time.monotonic(), common.environment(args.device)
    print(common.heading(facts))
    models = {name: lrpx.load(name, device=args.device, dtype="float32") for name in args.model}
    plans = [[(name, step) for step in steps_of(loaded.model, args)] for name, loaded in models.items()]
    results: dict[str, Any] = {}
    left = False
    for name, step in alternating(plans):
        label = f"{Path(name).name}/{step.name}"
        if time.monotonic() - start > args.minutes * 60:
            print(f"{label}: no time left")
            left = True
            continue
        begun = time.monotonic()
        try:
            model, tokenizer = models[name]
            limit = min((n for n in (args.limit, args.limit_slow if step.slow else None) if n), default=None)
            out = args.output / Path(name).name / step.name
            options = {"tokenizer": tokenizer, "limit": limit, "at": step.at, "progress": False}
            run = evaluate(args.benchmark, model, step.methods, out, **options)
            if args.packed:
                pack(run, args.packed / Path(name).name / step.name)
        except (LrpxError, ImportError) as error:
            print(f"{label}: {error}")
            left = True
            continue
        seconds = time.monotonic() - begun
        results[label] = {"seconds": seconds, "samples": run.counts["samples"], "failed": run.failed}
        print(f"{label}: {run.counts['samples']} samples in {seconds:.1f} s, {run.failed} failed", flush=True)
    common.report("results", args, facts, results)
    if left:
        sys.exit(1)


def steps_of(model: Any, args: Any) -> list[Step]:
    """The steps of one model, cheap ones first."""
    masked = model.config.architectures and "MaskedLM" in model.config.architectures[0]
    found = [Step(name, methods, "input", False) for name, methods in GROUPS.items()]
    found.append(Step("embedding", PLACED, "embedding", False))
    found += [Step(at, PLACED, at, True) for at in places(model, args.layers)]
    found += [Step(name, (name,), "input", True) for name in SLOW if not (masked and name == "leave-one-out")]
    wanted = [
        step._replace(methods=tuple(m for m in step.methods if m in (args.method or lrpx.METHODS))) for step in found
    ]
    return [step for step in wanted if step.methods]


def places(model: Any, count: int) -> list[str]:
    """The names of ``count`` blocks, the first one among them and the last one not: after it only one token counts."""
    depth = model.config.num_hidden_layers
    name = next(n for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == depth)
    return [f"{name}.{n}" for n in dict.fromkeys(i * depth // count for i in range(min(count, depth)))]


def alternating(plans: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """The first step of each model, then the second of each, and so on."""
    for n in range(max(map(len, plans), default=0)):
        yield from (plan[n] for plan in plans if n < len(plan))


if __name__ == "__main__":
    main()
