"""Time of an evaluation against batched plain forward passes over the same samples, and what writing the records costs.

    python bench/evaluate.py SVA --model path/to/mini-gpt2                      # AttnLRP
    python bench/evaluate.py SVA --model path/to/mini-bert --method lrp --limit 500 --threads 1

SVA is a folder made by ``lrpx benchmark build``. They take turns, so that a busy machine slows all of them; figures
are medians, and ratios are medians over the rounds:

- forward: ``model(**inputs)`` under ``torch.no_grad`` over the evaluation's own batches. "all logits" computes the logits of
  every token; "one logit row" only those of the explained positions, where the model can (``logits_to_keep``).
- explain: records of every batch, scored, in memory.
- write: the same records, written to disk part by part.
- evaluate: the whole run, from reading the benchmark to the last file.

``--cpu`` counts the process's processor time instead of the clock's; with one thread that hardly depends on other programs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
from common import synchronise

import lrpx
from lrpx.evaluation.records import Run, write_part
from lrpx.evaluation.run import evaluate
from lrpx.evaluation.scoring import BatchExplainer, sources
from lrpx.evaluation.selection import plan, select, tokenized_set
from lrpx.files import sha256
from lrpx.methods import get_method
from lrpx.models.signature import task_of
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.scores import accepted, explained_logits
from lrpx.text.batching import Batch, Item, pad
from lrpx.text.grouping import allowed_waste


def main() -> None:
    parser = common.parser_of(__doc__)
    parser.add_argument("benchmark", help="a folder made by lrpx benchmark build")
    parser.add_argument("--model", required=True, help="name or path")
    parser.add_argument("--method", nargs="+", default=["attnlrp"])
    parser.add_argument("--dtype")
    parser.add_argument("--limit", type=int, help="samples; default all")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="processor time instead of wall-clock time")
    args = parser.parse_args()
    if args.smoke:
        args.limit, args.repeats, args.threads = 6, 1, 1
    torch.set_num_threads(args.threads)
    model, tokenizer = lrpx.load(args.model, device=args.device, dtype=args.dtype)
    samples = select(tokenized_set(args.benchmark, None, model, tokenizer).samples, args.limit, 0)
    parts = plan(samples, args.batch_tokens, allowed_waste(model, task_of(model)))
    groups = [group for part in parts for group in part]
    batches = [
        pad([Item(tuple(s.input_ids), s.position, s.verb_id, s.other_id) for s in group], model) for group in groups
    ]
    padded = sum(batch.inputs["input_ids"].numel() for batch in batches)
    real = sum(len(sample.input_ids) for sample in samples)
    facts = common.environment(args.device)
    print(f"{args.model}, {model.dtype}, {', '.join(args.method)}; {common.heading(facts)}")
    print(
        f"{len(samples)} samples, {real} tokens, {len(batches)} batches, {1 - real / padded:.1%} padding, {len(parts)} parts"
    )

    with tempfile.TemporaryDirectory() as folder:
        explainer = BatchExplainer(model, sources([get_method(name) for name in args.method], PassRunner(model)))
        records = [[record for group in part for record in explainer(group)] for part in parts]
        target = Run(Path(folder) / "written", {}, None)
        runs: dict[str, Callable[[int], Any]] = {
            "forward, all logits": lambda _: forward(model, batches, keep=False),
            "forward, one logit row": lambda _: forward(model, batches, keep=True),
            "explain": lambda _: [explainer(group) for group in groups],
            "write": lambda _: [write_part(target, n, part) for n, part in enumerate(records)],
            "evaluate": lambda n: evaluate(
                args.benchmark,
                model,
                args.method,
                Path(folder) / str(n),
                tokenizer=tokenizer,
                limit=args.limit,
                batch_tokens=args.batch_tokens,
                progress=False,
            ),
        }
        seconds = timed(runs, args.repeats, args.device, time.process_time if args.cpu else time.perf_counter)
        files = sorted(Path(folder).glob("*/records/*.parquet"))
        size = sum(path.stat().st_size for path in files) / (args.repeats + 2)
        same = len({sha256(path) for path in files}) == len(parts)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratios = {
        f"{name} / {over}": common.ratio(seconds[name], seconds[over])
        for name, over in [
            ("evaluate", "forward, all logits"),
            ("evaluate", "forward, one logit row"),
            ("explain", "forward, one logit row"),
            ("write", "explain"),
            ("evaluate", "explain"),
        ]
    }
    results = {"samples": len(samples), "median_s": medians, "ratios": ratios, "bytes": size, "same_bytes": same}
    common.report("evaluate", args, facts, results)
    rows = [[name, f"{median:.2f}", f"{len(samples) / median:.1f}"] for name, median in medians.items()]
    print(common.table([["", "seconds", "samples/s"], *rows]))
    for name, value in ratios.items():
        print(f"{name}: {value:.3f}")
    print(f"records: {size / 1e6:.2f} MB, byte-identical in all rounds: {same}")


def forward(model: Any, batches: list[Batch], *, keep: bool) -> None:
    with torch.no_grad():
        for batch in batches:
            if keep:
                explained_logits(model, batch)
            else:
                model(**batch.inputs, **accepted(model, use_cache=False))


def timed(
    runs: dict[str, Callable[[int], Any]], repeats: int, device: str, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of each run, taking turns, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(repeats + 1):
        for name, run in runs.items():
            synchronise(device)
            start = clock()
            run(round_)
            synchronise(device)
            if round_:
                seconds[name].append(clock() - start)
    return seconds


if __name__ == "__main__":
    main()
