"""Which method for which model: accuracy on the agreement benchmark, what is left over, and where the relevance goes.

    python bench/methods.py SVA --model smollm2-135m path/to/mini-gpt2 path/to/mini-bert
    python bench/methods.py SVA --model openai-community/gpt2 --limit 1000 --json gpt2.json

SVA is a folder made by ``lrpx benchmark build``. Every method explains two questions about the correctly predicted samples
among the first ``--limit``, chosen by ``--seed``, in float32:

- contrast: the logit of the right form of the verb minus that of the other form, as ``lrpx evaluate`` asks;
- single: the logit of the model's top prediction, without a contrast.

Per question and method:

- PG2, MRR and RMA, the averages of ``lrpx evaluate``, with half the width of a bootstrap 95 % interval (contrast only); the row
  ``chance`` has what random relevance scores, with the standard deviation over ten draws;
- residual: the median over samples of residual / value, with the 10 % and 90 % quantiles; only for methods that decompose the
  value;
- first, explained, subject: the mean over samples of the share of all absolute relevance that these tokens have: the first one,
  the one whose logits are explained (the last, or the mask), and those of the verb's subject.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch

import lrpx
from lrpx.evaluation.metrics import bootstrap, random_baseline
from lrpx.evaluation.run import evaluate

METRICS = ("pg2", "mrr", "rma")
SLOW = (
    "integrated-gradients",
    "smoothgrad",
    "occlusion",
    "leave-one-out",
    "lime",
    "kernel-shap",
    "random",
)  # many passes, or for comparison only
USUAL = [name for name in lrpx.METHODS if name not in SLOW]
SINGLE = [name for name in USUAL if name not in ("gradient", "alti", "attention-rollout")]  # tied to one logit


def main() -> None:
    parser = common.parser_of(__doc__)
    parser.add_argument("benchmark", help="a folder made by lrpx benchmark build")
    parser.add_argument("--model", nargs="+", required=True, help="names or paths")
    parser.add_argument("--method", nargs="+", default=USUAL)
    parser.add_argument("--limit", type=int, default=300, help="samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.smoke:
        args.limit = 6
    torch.set_num_threads(args.threads)
    facts = common.environment(args.device)
    results = {}
    for name in args.model:
        results[name] = found = measured(name, args)
        print(f"\n{name}: {found['correct']} of {found['samples']} predictions are correct; {common.heading(facts)}")
        for question, methods in found["questions"].items():
            rows = rows_of(methods)
            if question == "contrast":
                scores = [
                    f"{found['chance'][name]['mean']:.2f} ± {found['chance'][name]['std']:.2f}" for name in METRICS
                ]
                rows.append(["chance", *scores, *[""] * (len(rows[0]) - 1 - len(scores))])
            print(f"\n{question}\n{common.table(rows)}")
    common.report("methods", args, facts, results)


def measured(name: str, args: Any) -> dict[str, Any]:
    """Both questions, answered by one model."""
    model, tokenizer = lrpx.load(name, device=args.device, dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        options = {"tokenizer": tokenizer, "limit": args.limit, "seed": args.seed, "progress": False}
        run = evaluate(args.benchmark, model, args.method, Path(folder) / "run", **options)
        records = [record for record in run.table().to_pylist() if record["correct"]]
    contrast: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        contrast.setdefault(record["method"], []).append(record)
    one_each = next(iter(contrast.values()))
    methods = [method for method in args.method if method in SINGLE]
    questions = {"contrast": contrast, "single": single(model, tokenizer, one_each, methods)}
    chance = random_baseline([r["ground_truth"] for r in one_each], [len(r["tokens"]) for r in one_each])
    return {
        "samples": run.counts["predicted"],
        "correct": run.counts["correct"],
        "chance": {name: {"mean": chance.mean[name], "std": chance.std[name]} for name in METRICS},
        "questions": {
            question: {method: summary(rows) for method, rows in sorted(by.items())}
            for question, by in questions.items()
        },
    }


def single(
    model: Any, tokenizer: Any, records: Sequence[dict[str, Any]], methods: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The same samples, asked for the top prediction alone: records without metrics."""
    explainer = lrpx.Explainer(model, tokenizer)
    ids, positions = [record["token_ids"] for record in records], [record["position"] for record in records]
    return {
        method: [
            {**record, "relevance": e.relevance, "value": e.value, "residual": e.residual, **dict.fromkeys(METRICS)}
            for record, e in zip(
                records, explainer(ids, method=method, position=positions, progress=False), strict=True
            )
        ]
        for method in methods
    }


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the table shows of one method."""
    shares = {
        "first": share(records, lambda record: [0]),
        "explained": share(records, lambda record: [record["position"]]),
        "subject": share(records, lambda record: record["ground_truth"]),
    }
    found: dict[str, Any] = {"samples": len(records), "shares": shares}
    if records[0]["mrr"] is not None:
        found["metrics"] = {name: interval([record[name] for record in records]) for name in METRICS}
    if records[0]["residual"] is not None:
        left = [record["residual"] / record["value"] for record in records]
        found["residual"] = dict(
            zip(("median", "low", "high"), np.quantile(left, [0.5, 0.1, 0.9]).tolist(), strict=True)
        )
    return found


def share(records: Sequence[dict[str, Any]], tokens: Any) -> float:
    """The mean share of the absolute relevance that the chosen tokens have."""
    absolute = [np.abs(record["relevance"]) for record in records]
    parts = [a[tokens(record)].sum() / a.sum() for a, record in zip(absolute, records, strict=True)]
    return float(np.mean(parts))


def interval(values: Sequence[float]) -> dict[str, float]:
    found = bootstrap(values)
    return found._asdict() if found.known else {"mean": found.mean}


def rows_of(methods: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The table of one question."""
    metrics = METRICS if all("metrics" in found for found in methods.values()) else ()
    head = ["method", *(name.upper() for name in metrics), "residual", "(10 to 90 %)", "first", "explained", "subject"]
    return [head, *([name, *cells(found, metrics)] for name, found in methods.items())]


def cells(found: dict[str, Any], metrics: Sequence[str]) -> list[str]:
    scores = [found["metrics"][name] for name in metrics]
    left = found.get("residual")
    return [
        *(f"{s['mean']:.2f}" + (f" ± {(s['high'] - s['low']) / 2:.2f}" if "low" in s else "") for s in scores),
        *([f"{left['median']:.0%}", f"{left['low']:.0%} to {left['high']:.0%}"] if left else ["", ""]),
        *(f"{value:.0%}" for value in found["shares"].values()),
    ]


if __name__ == "__main__":
    main()
