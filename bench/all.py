"""Every table of docs/performance.md, and some of other pages, one script after the other: one command, one JSON, one page.

    python bench/all.py --out measured                              # on a GPU: about 20 minutes
    python bench/all.py --out measured-cpu --device cpu             # the tables that were measured on a CPU
    python bench/all.py --out measured --only per-sample-llama dataset --lxt CHECKOUT --lxt-transformers FOLDER
    python bench/all.py --out measured --only flashtrace flashtrace-speed --flashtrace CHECKOUT
    python bench/all.py --out measured --smoke --device cpu         # tiny sizes: only that every script runs

1. Each row runs in a process of its own, so that it starts with an empty card, and has a time limit of its own.
2. A row that fails, or does not end in time, is reported as such, and the others go on. ``--limit`` is for all together: what
   does not begin in time is reported too. So what matters most comes first.
3. ``all.json`` and ``all.md`` are written after each row; beside them each row's own JSON and what it printed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch

LXT = ("per_sample", "dataset", "long_context", "overhead")  # scripts that compare with it


@dataclass(frozen=True)
class Row:
    """A run of one script.

    Attributes:
        section: Of ``page``.
        command: The script and its options.
        limit: Seconds that it may take.
        device: Where its table was measured.
        cards: GPUs that it needs.
        page: In docs.
    """

    section: str
    command: str
    limit: int
    device: str = "cuda"
    cards: int = 1
    page: str = "performance.md"


ROWS = {
    "per-sample-llama": Row("One sample at a time", "per_sample --compile --samples 60", 200),
    "per-sample-bert": Row("One sample at a time", "per_sample --shape bert-base --compile --samples 40", 160),
    "long-context": Row("One long text", "long_context --rounds 7", 160),
    "dataset": Row(
        "Many samples", "dataset --compile --no-strict --batch-tokens 16384 --rounds 3 --lxt-samples 60", 260
    ),
    "overhead": Row("What the rules cost", "overhead --shape llama-3.2-1b --rounds 50", 70),
    "flashtrace": Row("Beside FlashTrace", "flashtrace --examples 12 --sentences 10 40 120", 120, page="generation.md"),
    "flow": Row("What it costs", "flow --shape 4b --tokens 1000 --dtype bfloat16", 80, page="flow.md"),
    "kernels-long": Row("Where the time goes", "where_time_goes --work long --compile", 60),
    "kernels-sample": Row("Where the time goes", "where_time_goes --work sample --fast --tf32", 40),
    "kernels-batch": Row("Where the time goes", "where_time_goes --work batch --compile --tf32", 60),
    "alti-logit": Row("ALTI-Logit", "alti_logit --shape gpt2-xl --tokens 12 64 128 512 1024", 60),
    "longest-context": Row("One long text", "long_context --tokens 131072 --checkpoint", 180),
    "flashtrace-speed": Row(
        "Beside FlashTrace",
        "flashtrace --shape llama-3.2-1b --dtype bfloat16 --examples 5 --sentences 40 160",
        70,
        page="generation.md",
    ),
    "workers": Row("By number of workers", "scale --workers 1 2 --local --tf32", 200, cards=2),
    "overhead-cpu": Row("What the rules cost", "overhead --shape narrow", 120, "cpu"),
    "linear-attention-cpu": Row(
        "Linear attention",
        "linear_attention --families qwen3_5_text lfm2 minimax xlstm --tokens 256 --width 512 --rounds 3",
        300,
        "cpu",
    ),
    "scans-cpu": Row(
        "Linear attention",
        "linear_attention --families mamba mamba2 bamba recurrent_gemma --tokens 128 --width 512 --rounds 5",
        300,
        "cpu",
    ),
    "alti-logit-cpu": Row("ALTI-Logit", "alti_logit --shape gpt2 --tokens 16 64 128 250", 300, "cpu"),
    "workers-cpu": Row("By number of workers", "scale --shape bert-base --samples 4000 --workers 1 2", 900, "cpu"),
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, all rows: only that they run")
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="ROW", help=f"some rows: {', '.join(ROWS)}")
    parser.add_argument("--limit", type=float, metavar="MINUTES", help="for all rows together; default: no limit")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder for what is found")
    parser.add_argument("--flashtrace", metavar="PATH", help="as of flashtrace.py")
    common.add_lxt_options(parser)
    args = parser.parse_args(argv)
    if args.limit is not None and args.limit <= 0:
        parser.error(f"--limit {args.limit:g}: give minutes, more than 0.")
    kind = args.device.partition(":")[0]
    chosen = args.only or [name for name, row in ROWS.items() if args.smoke or row.device == kind]
    args.out.mkdir(parents=True, exist_ok=True)
    end = None if args.limit is None else time.monotonic() + 60 * args.limit
    found: dict[str, Any] = {"script": "all", "environment": common.environment(args.device), "rows": {}}
    for name in chosen:
        left = None if end is None else end - time.monotonic()
        found["rows"][name] = measured(name, args, left)
        (args.out / "all.json").write_text(json.dumps(found, indent=1) + "\n")
        (args.out / "all.md").write_text(page(found, args.out))
        print(f"{name}: {said(found['rows'][name])}", flush=True)
    print(page(found, args.out))
    return found


def measured(name: str, args: argparse.Namespace, left: float | None) -> dict[str, Any]:
    """One row: how it ended, and what it found; with ``left`` seconds for all that is still to come."""
    row = ROWS[name]
    script, *options = row.command.split()
    options += ["--device", args.device]
    options += ["--smoke"] if args.smoke else []
    given = {}
    if script in LXT:
        given = {"--lxt": args.lxt, "--lxt-transformers": args.lxt_transformers, "--lxt-older": args.lxt_older}
    if script == "flashtrace":
        given = {"--flashtrace": args.flashtrace}
    options += [part for option, value in given.items() if value is not None for part in (option, value)]
    facts = {"section": row.section, "command": " ".join(["python", f"bench/{script}.py", *options])}
    if args.device.startswith("cuda") and torch.cuda.device_count() < row.cards:
        return {
            **facts,
            "ended": "left out",
            "why": f"needs {row.cards} GPUs, and there are {torch.cuda.device_count()}",
        }
    if left is not None and left <= 0:
        return {**facts, "ended": "left out", "why": f"--limit {args.limit:g} minutes were over"}
    limit = row.limit if left is None else min(row.limit, left)
    result = args.out.resolve() / f"{name}.json"
    result.unlink(missing_ok=True)  # of an earlier run
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), *options, "--json", str(result)]
    start = time.monotonic()
    with (args.out / f"{name}.txt").open("w") as printed:
        status = ended(command, printed, limit)
    facts |= {"seconds": time.monotonic() - start, "limit_s": limit}
    if status is None:
        return {**facts, "ended": "out of time", "why": f"not done after {limit:.0f} s"}
    if status or not result.exists():
        last = (args.out / f"{name}.txt").read_text().strip().splitlines()[-1:] or ["it printed nothing"]
        return {**facts, "ended": "failed", "why": f"exit status {status}: {last[0]}"}
    return {**facts, "ended": "done", "found": json.loads(result.read_text())}


def ended(command: Sequence[str], printed: Any, limit: float) -> int | None:
    """The exit status of a command; ``None`` if it was stopped after ``limit`` seconds, with all processes that it started."""
    # Scripts start further processes (LXT, Ray, the workers that compile), which must not go on beside the next row.
    process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def said(row: dict[str, Any]) -> str:
    """How a row ended, in a few words."""
    took = f" in {row['seconds']:.0f} s" if row["ended"] == "done" else ""
    return row["ended"] + took + (f": {row['why']}" if "why" in row else "")


def page(found: dict[str, Any], out: Path) -> str:
    """What was measured where, how each row ended, and what each printed, as Markdown."""
    facts = found["environment"]
    versions = [
        facts["card"],
        str(facts.get("driver", "")),
        *(facts[name] for name in ("torch", "transformers", "lrpx")),
    ]
    rows = [["row", "ended", "seconds", "device", "driver", "torch", "transformers", "lrpx"]]
    for name, row in found["rows"].items():
        seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
        rows.append([name, row["ended"], seconds, *versions])
    parts = [f"# Measured with lrpx {facts['lrpx']}", common.heading(facts), common.table(rows)]
    for name, row in found["rows"].items():
        parts += [f"## {row['section']}: {name}", f"`{row['command']}`"]
        if row["ended"] == "done":
            parts.append(in_blocks((out / f"{name}.txt").read_text()))
        else:
            parts.append(f"**{row['ended']}**: {row['why']}")
    return "\n\n".join(parts) + "\n"


def in_blocks(printed: str) -> str:
    """Tables as they are, the lines before and after them apart."""
    lines = printed.strip().splitlines()
    found: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        if found and before.startswith("|") != line.startswith("|"):
            found.append("")
        found.append(line if line.startswith("|") else f"{line}  ")
    return "\n".join(found)


if __name__ == "__main__":
    main()
