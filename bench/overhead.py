"""What the rules cost over Gradient x Input, where Python and launches are all there is: one short text, without CUDA graphs.

    python bench/overhead.py --lxt CHECKOUT                                       # 16 blocks of width 64, one CPU thread
    python bench/overhead.py --shape llama-3.2-1b --device cuda --lxt CHECKOUT    # float32, eager
    python bench/overhead.py --smoke --device cpu

Contenders take turns, so that a ratio is of one run:

- forward: logits of all tokens, under ``torch.no_grad``;
- Gradient x Input: written by hand, at the input embeddings, by ``torch.autograd.grad``;
- propagate: the same inside ``lrpx.propagate`` with each rule set;
- explain: a whole call of ``lrpx.explain`` with ``fast=False``, from a list of ids to an ``Explanation``; with relevance of heads
  and layers, as by default, and without.

LXT's efficient implementation changes classes for a whole process, so it is timed in one of its own, between the two halves.
On a CPU, figures are the process's own CPU time, which another process on the machine disturbs less than a clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import common
import torch
from common import SHAPES, Sample, ms
from torch import Tensor

import lrpx

RULE_SETS = ("lrp", "attnlrp")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="narrow")
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=100)
    common.add_lxt_options(parser)
    args = parser.parse_args(argv)
    if args.smoke:
        args.shape, args.rounds = "tiny", 4
    if args.device == "cpu":
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    model = common.build(args.shape, args.device, torch.float32)
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, vocabulary, (args.tokens,), generator=generator).tolist()
    sample = Sample(ids, args.tokens - 1, 11, 13)
    facts = common.environment(args.device)
    contenders = contenders_of(model)
    for run in contenders.values():
        for _ in range(3):
            run(sample)
    halves = [in_turns(contenders, sample, args.rounds // 2, args.device)]
    theirs = common.lxt(args, "efficient", args.shape, [sample], "float32", warm_up=5, rounds=args.rounds)
    halves.append(in_turns(contenders, sample, args.rounds - args.rounds // 2, args.device))
    seconds = {name: [*halves[0][name], *halves[1][name]] for name in contenders}
    base = seconds["Gradient x Input"]
    results = {
        "contenders": {name: common.summary(each) for name, each in seconds.items()},
        "over_gradient_x_input": {name: common.ratio(each, base) for name, each in seconds.items()},
        "lxt": theirs | (common.summary(theirs["seconds"]) if "seconds" in theirs else {}),
    }
    found = common.report("overhead", args, facts, results)
    show(found, statistics.median(base))
    return found


def in_turns(
    contenders: dict[str, Callable[[Sample], Any]], sample: Sample, rounds: int, device: str
) -> dict[str, list[float]]:
    """Seconds of every contender, taking turns: of the clock on a GPU, of the process on a CPU."""
    if device != "cpu":
        return common.in_turns(contenders, [sample] * rounds, device)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.process_time()
            run(sample)
            seconds[name].append(time.process_time() - start)
    return seconds


def contenders_of(model: Any) -> dict[str, Callable[[Sample], Any]]:
    contenders: dict[str, Callable[[Sample], Any]] = {
        "forward": partial(forward, model),
        "Gradient x Input": partial(gradient_x_input, model),
    }
    contenders |= {f"propagate, {rules}": partial(propagated, model, rules) for rules in RULE_SETS}
    contenders |= {f"explain, {method}": partial(explained, model, method) for method in RULE_SETS}
    contenders |= {
        f"explain, {method}, heads=False": partial(explained, model, method, heads=False) for method in RULE_SETS
    }
    return contenders


def forward(model: Any, sample: Sample) -> Tensor:
    with torch.no_grad():
        return model(**common.inputs_of(sample, model.device), **common.without_cache(model)).logits


def gradient_x_input(model: Any, sample: Sample) -> list[float]:
    """By hand: nothing is checked, and the model's parameters stay as they are."""
    ids = torch.tensor([sample.ids], device=model.device)
    x = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=x, **common.without_cache(model)).logits[0, sample.position]
    (gradient,) = torch.autograd.grad(logits[sample.target] - logits[sample.contrast], x)
    return (x * gradient).sum(-1)[0].detach().cpu().tolist()


def propagated(model: Any, rules: str, sample: Sample) -> list[float]:
    with lrpx.propagate(model, rules):
        return gradient_x_input(model, sample)


def explained(model: Any, method: Any, sample: Sample, *, heads: bool | None = None) -> Any:
    place = {"target": sample.target, "contrast": sample.contrast, "position": sample.position}
    return lrpx.explain(model, None, sample.ids, method=method, fast=False, heads=heads, **place)


def show(found: dict[str, Any], base: float) -> None:
    results, args = found["results"], found["arguments"]
    rows = [["", "median", "quartiles", "/ Gradient x Input"]]
    for name, figures in results["contenders"].items():
        quartiles = f"{ms(figures['lower_quartile_s'])} - {ms(figures['upper_quartile_s'])}"
        rows.append([name, ms(figures["median_s"]), quartiles, f"{results['over_gradient_x_input'][name]:.2f}"])
    theirs = results["lxt"]
    if "median_s" in theirs:
        name = f"LXT efficient, in a process of its own (transformers {theirs['transformers']})"
        rows.append([name, ms(theirs["median_s"]), "", f"{theirs['median_s'] / base:.2f}"])
    print(f"{args['shape']}, float32, one text of {args['tokens']} tokens; {common.heading(found['environment'])}")
    print(common.table(rows))
    if "median_s" not in theirs:
        print(f"LXT: {theirs.get('skipped') or theirs.get('failed')}")


if __name__ == "__main__":
    main()
