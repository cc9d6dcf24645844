"""How an evaluation speeds up with the number of Ray workers: ``lrpx evaluate --engine ray`` with 1, 2 and 4 of them.

    python bench/scale.py                                # a GPU for each worker, the shape of Llama-3.2-1B, 100,000 samples
    python bench/scale.py --workers 1 4 --tf32 --local   # and in this process, for what Ray costs
    python bench/scale.py --cpu                          # a tiny model on the CPU: only that it runs

1. A model with random weights is saved to a temporary folder, with a tokenizer, and a tokenised set of random ids is written
   whose lengths are those of the agreement benchmark.
2. Each number of workers evaluates all of it, on a Ray of its own.
3. The clock is that of the parts' files. It starts when a quarter of them is there, so that loading, first captures and
   workers that started later than others are left out, and stops at the last part, so that waiting for the slowest worker is
   not. Samples of the parts in between, per second.
4. The records are compared with those of the first run.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SHAPES, build, environment, heading, parser_of, report, table
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lrpx.benchmark import TokenizedSample
from lrpx.benchmark.storage import SCHEMA
from lrpx.benchmark.tokenized import _write, fingerprint
from lrpx.evaluation.records import Run
from lrpx.evaluation.run import evaluate
from lrpx.files import write_json


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cpu", action="store_true", help="as --smoke --device cpu")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--local", action="store_true", help="also in this process, without Ray")
    parser.add_argument("--method", nargs="+", default=["attnlrp"])
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--tf32", action="store_true", help="TF32 matrix products")
    args = parser.parse_args()
    if args.cpu or args.smoke:
        args.smoke = True
        args.device, args.shape, args.samples, args.batch_tokens = "cpu", "tiny", min(args.samples, 600), 1024
        args.workers = [n for n in args.workers if n <= 2]
    device = "cpu" if args.device == "cpu" else "cuda"
    options: dict[str, Any] = {
        "device": device,
        "dtype": args.dtype,
        "batch_tokens": args.batch_tokens,
        "progress": False,
    }
    if args.tf32:
        torch.set_float32_matmul_precision("high")

    with tempfile.TemporaryDirectory(prefix="lrpx-scale-") as folder:
        place = Path(folder)
        save_model(place / "model", args.shape, args.device, getattr(torch, args.dtype))
        origin = save_benchmark(place / "sva", place / "model", args.shape, args.samples)
        runs: dict[str, dict[str, Any]] = {}
        first: Run | None = None
        for workers in [*([0] if args.local else []), *args.workers]:
            name = f"{workers} workers" if workers else "in one process"
            engine = {"engine": "ray", "workers": workers} if workers else {}
            start = time.time()
            run = evaluate(place / "sva", place / "model", args.method, place / name, **options, **engine)
            runs[name] = {"workers": workers, "whole_s": time.time() - start, **speed_of(run, max(1, workers), start)}
            first = first or run
            runs[name]["difference"] = difference(first, run)
            runs[name]["failed"] = run.failed
            print(f"{name}: {runs[name]['samples_per_s']:.0f} samples per second", flush=True)
    slowest = next(iter(runs.values()))["samples_per_s"]
    for figures in runs.values():
        figures["ratio"] = figures["samples_per_s"] / slowest
    facts = environment(args.device)
    results = {"runs": runs, "samples": args.samples, "lengths": origin}
    report("scale", args, facts, results)
    print(heading(facts))
    print(f"{args.shape}, {args.dtype}, {', '.join(args.method)}, {args.samples:,} samples of {origin}")
    head = ["", "samples/s", "ratio", "parts", "timed", "before the clock", "whole run", "largest difference"]
    rows = [
        [
            name,
            f"{f['samples_per_s']:.0f}",
            f"{f['ratio']:.2f}",
            str(f["parts"]),
            f"{f['timed_s']:.1f} s",
            f"{f['before_s']:.1f} s",
            f"{f['whole_s']:.1f} s",
            f"{f['difference']:.1e}",
        ]
        for name, f in runs.items()
    ]
    print(table([head, *rows]))


def speed_of(run: Run, workers: int, start: float) -> dict[str, Any]:
    """Samples per second, by when the parts were written."""
    methods = len(run.manifest["methods"])
    finished = sorted((path.stat().st_mtime_ns / 1e9, rows_of(path) / methods) for path in run.parts)
    first = max(workers, len(finished) // 4)
    if len(finished) <= first:
        raise SystemExit(f"{len(finished)} parts for {workers} workers: nothing to time. Give more --samples.")
    begin, end = finished[first - 1][0], finished[-1][0]
    samples = sum(n for _, n in finished[first:])
    return {
        "samples_per_s": samples / (end - begin),
        "timed_s": end - begin,
        "timed_samples": samples,
        "before_s": begin - start,
        "parts": len(finished),
        "finished_s": [moment - start for moment, _ in finished],
    }


def rows_of(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def difference(one: Run, other: Run) -> float:
    """The largest difference between relevances, as a share of the largest relevance."""
    a, b = (np.concatenate(run.table(["relevance"]).column(0).to_numpy()) for run in (one, other))
    return float(np.abs(a - b).max() / np.abs(a).max())


# What is evaluated


def save_model(folder: Path, shape: str, device: str, dtype: torch.dtype) -> None:
    """A model with random weights, and a tokenizer that only has to exist: the ids are made up."""
    model = build(shape, device, dtype)
    model.save_pretrained(folder)
    del model
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # a worker has the same GPU
    words = Tokenizer(models.WordLevel({"<unk>": 0, "word": 1, "other": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)


def save_benchmark(folder: Path, model: Path, shape: str, count: int) -> str:
    """A benchmark with nothing but a tokenised set for the model; returns where its lengths are from."""
    family, vocabulary, lengths = (
        SHAPES[shape].family,
        SHAPES[shape].config.get("vocab_size", 30522),
        SHAPES[shape].lengths,
    )
    random = np.random.default_rng(0)
    folder.mkdir()
    made_up = {"name": "made up"}
    write_json(
        folder / "manifest.json",
        {"kind": "benchmark", "schema": SCHEMA, "source": made_up, "ground_truth": {"file": made_up}},
    )
    counts = {"rows": count, "kept": count, "steps": []}
    write_json(folder / "counts.json", counts | {"published": None})
    manifest = {
        "kind": "tokenized",
        "schema": SCHEMA,
        "benchmark": "",
        "tokenizer": {"name": "made-up", **fingerprint(AutoTokenizer.from_pretrained(str(model)))},
        "input": "causal" if family == "llama" else "masked",
    }
    place = folder / "tokenized" / "made-up"
    place.mkdir(parents=True)
    write_json(place / "manifest.json", manifest)
    kept = []
    for n, length in enumerate(lengths.draw(count)):
        ids = random.integers(10, vocabulary, length).tolist()
        verb = int(random.integers(10, vocabulary - 1))
        kept.append(
            TokenizedSample(
                sample_id=n,
                text="",
                input_ids=ids,
                tokens=[f"token{i}" for i in ids],
                position=length - 1 if family == "llama" else length // 2,
                verb="is",
                other="are",
                verb_id=verb,
                other_id=verb + 1,
                ground_truth=[n % length],
                roles=["subject" if i == n % length else "other" for i in range(length)],
                verb_tag="VBZ",
                n_attractors=0,
            )
        )
    _write(place, kept, [], counts)
    return f"{lengths}, seed 0"


if __name__ == "__main__":
    main()
