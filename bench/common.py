"""What the scripts here share: shapes of models, lengths of samples, timing in turns, peak memory, facts, LXT, output.

Every script follows the same rules.

1. Models have random weights, made on the device from a configuration; speed does not depend on their values.
2. Contenders take turns, sample by sample, so that a drift of the machine meets all of them. The device is synchronised before
   and after each timing. Figures are medians, and ratios are taken within one run.
3. Warming up (also capturing CUDA graphs and compiling) is not part of a figure; how long it took is reported beside it.
4. Memory is the peak of what is allocated during a call, above what was allocated before it.

Nothing here imports transformers or lrpx when it is imported: ``lxt_worker.py`` uses it beside another transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MIB = 2**20


# Shapes and samples


@dataclass(frozen=True)
class Lengths:
    """How long samples are: ``least`` plus a gamma variable, rounded and capped at ``most``."""

    least: int
    mean: float
    deviation: float
    most: int

    def draw(self, count: int, seed: int = 0) -> list[int]:
        """``count`` lengths, the same for the same seed."""
        import numpy as np

        shape = ((self.mean - self.least) / self.deviation) ** 2
        scale = self.deviation**2 / (self.mean - self.least)
        values = self.least + np.random.default_rng(seed).gamma(shape, scale, count)
        return [int(value) for value in values.round().clip(self.least, self.most)]

    def __str__(self) -> str:
        return f"{self.least} + gamma, mean {self.mean:g}, deviation {self.deviation:g}, at most {self.most}"


# Of the agreement benchmark, special tokens included (Arras et al. 2025, App. B: Llama-3, and BERT).
CAUSAL_LENGTHS = Lengths(least=3, mean=11, deviation=7, most=60)
MASKED_LENGTHS = Lengths(least=9, mean=30, deviation=12, most=170)

LLAMA_1B: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


@dataclass(frozen=True)
class Shape:
    """A model: ``"llama"`` (causal) or ``"bert"`` (masked), its configuration, and the lengths its samples have."""

    family: str
    config: dict[str, Any]
    lengths: Lengths


SHAPES = {
    "llama-3.2-1b": Shape("llama", LLAMA_1B, CAUSAL_LENGTHS),
    "bert-base": Shape("bert", {}, MASKED_LENGTHS),  # the defaults of BertConfig
    "narrow": Shape(  # 16 blocks of width 64: launches and Python are all that counts
        "llama",
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 16,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 500,
            "max_position_embeddings": 256,
        },
        CAUSAL_LENGTHS,
    ),
    "tiny": Shape(
        "llama", {**LLAMA_1B, **SMALL, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 120}, CAUSAL_LENGTHS
    ),
    "tiny-bert": Shape("bert", {**SMALL, "vocab_size": 120}, MASKED_LENGTHS),
}


def build(name: str, device: str, dtype: torch.dtype) -> Any:
    """The model of a shape as transformers has it, with random weights made on ``device``, in eval mode."""
    import transformers

    prefix, head = {"llama": ("Llama", "ForCausalLM"), "bert": ("Bert", "ForMaskedLM")}[SHAPES[name].family]
    config = getattr(transformers, f"{prefix}Config")(**SHAPES[name].config)
    return made(lambda: getattr(transformers, prefix + head)(config), device, dtype)


def made(create: Callable[[], Any], device: str, dtype: torch.dtype) -> Any:
    """What ``create`` returns, with its parameters made on ``device`` in ``dtype``."""
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = create()
    finally:
        torch.set_default_dtype(default)
    return model.to(device).eval()


@dataclass(frozen=True)
class Sample:
    """One prediction to explain: token ids, the explained position, and the two ids whose logits are compared."""

    ids: list[int]
    position: int
    target: int
    contrast: int


def samples_of(name: str, count: int, benchmark: str | None = None, seed: int = 0) -> tuple[list[Sample], str]:
    """``count`` samples for a shape, and where they are from.

    With ``benchmark`` (the folder of a tokenised set, ``.../tokenized/NAME``), they are its first samples; of a set whose ids
    are too large for the shape, only the lengths. Without, lengths are drawn from the shape's distribution. Ids are random then:
    no time depends on them.
    """
    shape = SHAPES[name]
    if benchmark is None:
        lengths, origin = shape.lengths.draw(count, seed), f"{shape.lengths}, seed {seed}"
    else:
        from lrpx.benchmark import load_tokenized

        folder = Path(benchmark)
        found = load_tokenized(folder.parent.parent, folder.name).samples[:count]
        origin = f"the first {len(found)} of {folder.name}"
        if max(max(*s.input_ids, s.verb_id, s.other_id) for s in found) < shape.config.get("vocab_size", 30522):
            return [Sample(s.input_ids, s.position, s.verb_id, s.other_id) for s in found], origin
        lengths, origin = [len(sample.input_ids) for sample in found], f"lengths of {origin}"
    vocabulary = shape.config.get("vocab_size", 30522)
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for length in lengths:
        ids = torch.randint(10, vocabulary, (length,), generator=generator).tolist()
        position = length - 1 if shape.family == "llama" else length // 2
        target, contrast = torch.randperm(vocabulary, generator=generator)[:2].tolist()
        samples.append(Sample(ids, position, target, contrast))
    return samples, origin


# Time and memory


def synchronise(device: str | torch.device) -> None:
    if str(device).startswith("cuda"):
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], Any], device: str | torch.device) -> float:
    """Seconds of one call, until the device is done."""
    synchronise(device)
    start = time.perf_counter()
    result = run()
    synchronise(device)
    seconds = time.perf_counter() - start
    del result
    return seconds


Contenders = dict[str, Callable[[Any], Any]]  # by name: what is done with one piece of work


def warmed_up(contenders: Contenders, work: Sequence[Any], device: str, rounds: int = 2) -> dict[str, float]:
    """Seconds that each contender takes for ``rounds`` rounds over ``work`` (captures and compilations happen here)."""

    def all_of(run: Callable[[Any], Any]) -> None:
        for _ in range(rounds):
            for piece in work:
                run(piece)

    return {name: seconds_of(lambda run=run: all_of(run), device) for name, run in contenders.items()}


def in_turns(contenders: Contenders, work: Iterable[Any], device: str | torch.device) -> dict[str, list[float]]:
    """Seconds of every contender for every piece of work, the contenders taking turns at each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for piece in work:
        for name, run in contenders.items():
            seconds[name].append(seconds_of(lambda run=run, piece=piece: run(piece), device))
    return seconds


def one_of_each_length(samples: Sequence[Sample]) -> list[Sample]:
    """A sample of every length that occurs, longest first."""
    by_length = {len(sample.ids): sample for sample in samples}
    return [by_length[length] for length in sorted(by_length, reverse=True)]


def peak(run: Callable[[], Any], device: str | torch.device) -> float:
    """The most MiB that ``run`` has allocated at once, above what was allocated before."""
    if str(device).startswith("cuda"):
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        synchronise(device)
        del result
        return (torch.cuda.max_memory_allocated(device) - before) / MIB
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    del result
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest / MIB


def reserved(device: str) -> float:
    """MiB that the allocator holds: the pools of CUDA graphs count here and not in ``peak``."""
    return torch.cuda.memory_reserved(device) / MIB if device.startswith("cuda") else 0.0


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and number of timings."""
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    return {
        "median_s": statistics.median(ordered),
        "lower_quartile_s": ordered[quarter],
        "upper_quartile_s": ordered[-1 - quarter],
        "count": len(ordered),
    }


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Median over the samples of how much longer the first took than the second."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


# The plain forward pass


def inputs_of(sample: Sample, device: str | torch.device) -> dict[str, Tensor]:
    ids = torch.tensor([sample.ids], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def explained_rows(model: Any, inputs: dict[str, Tensor], positions: Tensor) -> Tensor:
    """Logits ``[B, vocabulary]`` of one position per row and of no other: the least that a forward pass can compute."""
    hidden = model.base_model(**inputs, **without_cache(model)).last_hidden_state
    rows = torch.arange(len(positions), device=positions.device)
    head = model.lm_head if hasattr(model, "lm_head") else model.cls
    return head(hidden[rows, positions])


def without_cache(model: Any) -> dict[str, bool]:
    """A decoder fills a cache for the next token unless told not to."""
    return {"use_cache": False} if hasattr(model, "lm_head") else {}


# Facts and output


def environment(device: str) -> dict[str, Any]:
    """What a figure depends on: card and driver, or processor; versions; precision of matrix products."""
    import transformers

    import lrpx

    facts: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "lrpx": lrpx.__version__,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "card": properties.name,
            "memory_mib": properties.total_memory // MIB,
            "cuda": torch.version.cuda,
            "driver": _driver(),
            "cards": torch.cuda.device_count(),
        }
    else:
        facts |= {"card": platform.machine(), "threads": torch.get_num_threads()}
    return facts


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split("\n")[0].strip() or None


def report(script: str, args: argparse.Namespace, facts: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Everything a run found, as it goes into the JSON file."""
    arguments = {name: str(v) if isinstance(v, Path) else v for name, v in vars(args).items()}
    found = {"script": script, "arguments": arguments, "environment": facts, "results": results}
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")
    if args.smoke:
        print("A smoke run: it shows that the script runs. Its figures mean nothing.")
    return found


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table, the first row being the head; numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    rule = "|".join("-" * (width + 2) if i == 0 else "-" * (width + 1) + ":" for i, width in enumerate(widths))
    return "\n".join([line(rows[0]), f"|{rule}|", *map(line, rows[1:])])


def heading(facts: dict[str, Any]) -> str:
    """The facts in one line."""
    where = (
        f"{facts['card']}, driver {facts['driver']}"
        if "driver" in facts
        else f"{facts['card']}, {facts['threads']} threads"
    )
    versions = ", ".join(f"{name} {facts[name]}" for name in ("torch", "transformers", "python", "lrpx"))
    return f"{where}, {versions}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and few samples: only that it runs")
    parser.add_argument("--json", metavar="FILE", help="write everything found to this file")
    return parser


# LXT, for comparison


def add_lxt_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("LXT, in a process of its own (github.com/rachtibat/LRP-eXplains-Transformers)")
    group.add_argument("--lxt", metavar="PATH", help="a checkout; without it, LXT is left out")
    group.add_argument(
        "--lxt-transformers",
        metavar="DIR",
        help="a folder made by pip install --target with transformers 4.48.1, for LXT's explicit models and its efficient BERT",
    )
    group.add_argument(
        "--lxt-older", metavar="PATH", help="a checkout for that transformers (99c0b55); default as --lxt"
    )


def lxt(
    args: argparse.Namespace, mode: str, name: str, samples: Sequence[Sample], dtype: str, **more: Any
) -> dict[str, Any]:
    """What ``lxt_worker.py`` finds, run beside a checkout; ``{"skipped": why}`` or ``{"failed": why}`` otherwise.

    Args:
        args: With the options of ``add_lxt_options``, and ``device``.
        mode: ``"efficient"`` (with the running transformers, or where that is too new for LXT's model, with the older one)
            or ``"explicit"`` (with the older one).
        name: Of the shape.
        samples: To explain, one by one.
        dtype: Of the weights.
        **more: Goes into the job: see ``lxt_worker.py``.
    """
    if args.lxt is None:
        return {"skipped": "give --lxt PATH, a checkout of LXT, to compare with it"}
    older = args.lxt_older or args.lxt
    for path in (args.lxt, older):
        if not (Path(path) / "lxt").is_dir():
            return {"skipped": f"{path} is no checkout of LXT: it has no folder lxt"}
    if mode == "explicit" and args.lxt_transformers is None:
        return {"skipped": "give --lxt-transformers DIR as well: the explicit models need transformers 4.48.1"}
    shape = SHAPES[name]
    job = {
        "mode": mode,
        "family": shape.family,
        "config": shape.config,
        "dtype": dtype,
        "device": args.device,
        "samples": [vars(sample) for sample in samples],
        **more,
    }
    found: dict[str, Any] = {}
    if mode == "efficient" and (shape.family != "bert" or not _is_too_new_for_bert() or args.lxt_transformers is None):
        found = _work(job, [args.lxt])
    if args.lxt_transformers and (not found or found.get("unsupported")):
        found = _work(job, [args.lxt_transformers, older])
    return found


def _is_too_new_for_bert() -> bool:
    """Whether LXT's efficient BERT does not load in the running transformers: a process less to find that out."""
    import transformers

    return int(transformers.__version__.partition(".")[0]) >= 5


@contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """TF32 matrix products inside the block, or strict float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _work(job: dict[str, Any], path: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        given, result = Path(scratch) / "job.json", Path(scratch) / "result.json"
        given.write_text(json.dumps(job))
        python_path = os.pathsep.join(str(Path(folder).resolve()) for folder in path)
        run = subprocess.run(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("lxt_worker.py")), str(given), str(result)],
            env={**os.environ, "PYTHONPATH": python_path},
            capture_output=True,
            text=True,
        )
        if result.exists():
            return json.loads(result.read_text())
    last = run.stderr.strip().splitlines()[-1:] or [f"exit status {run.returncode}"]
    return {"failed": last[0]}
