"""Generated tokens from one forward pass, beside one call per token, and a span beside one target.

    python bench/generation.py --model smollm2-135m                      # 32 generated tokens on a prompt of 200
    python bench/generation.py --model ../shared/models/mini-gpt2
    python bench/generation.py --shape llama-3.2-1b --device cuda --dtype bfloat16 --long 5000
    python bench/generation.py --smoke --device cpu

Per token, the relevance of all tokens before it:

- one call per token: ``explainer(ids[:p], target=ids[p])`` for every token (on a GPU with CUDA graphs, captured before);
- generate: ``explainer.generate(...)``, in groups as memory allows;
- one backward pass per token: the same pass, with groups of one;
- repeated rows: the whole text once per token in batches, each row with its own position.

Of a span: all generated tokens together (``spans=[...]``), beside one call for the last of them; with ``--long N`` also a span
of N tokens in a text of 2 N. On a CPU, figures are of one thread, in seconds of the process. Contenders take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import common
import numpy as np
import torch
from common import SHAPES

import lrpx
from lrpx.models.lock import lock_of
from lrpx.passes.many_targets import ManyTargets, explain_many
from lrpx.passes.scoring import Scoring
from lrpx.passes.spec import PassSpec
from lrpx.text.batching import Item, pad


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--shape", choices=SHAPES, help="random weights")
    parser.add_argument("--model", default="smollm2-135m", help="a name or folder for lrpx.load; without --shape")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--method", default="attnlrp")
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", type=int, default=0, metavar="N", help="a span of N tokens in a text of 2 N as well")
    args = parser.parse_args(argv)
    if args.smoke:
        args.shape, args.prompt, args.new, args.rounds, args.long = "tiny", 12, 4, 1, args.long and 24
    if args.device == "cpu":
        torch.set_num_threads(1)
    if args.shape:
        model = common.build(args.shape, args.device, getattr(torch, args.dtype))
    else:
        model = lrpx.load(args.model, dtype=args.dtype, device=args.device).model
    explainer = lrpx.Explainer(model, method=args.method)
    facts = common.environment(args.device)
    results = measured(explainer, args.prompt, args.new, args, per_token=True)
    if args.long:
        results["long"] = measured(explainer, args.long, args.long, args, per_token=False)
    report = common.report("generation", args, facts, results)
    show(report)
    return report


def measured(explainer: lrpx.Explainer, prompt: int, new: int, args: Any, *, per_token: bool) -> dict[str, Any]:
    """How long the contenders take on a random text of ``prompt`` and ``new`` tokens, and how far their maps are apart."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = explainer.model.config.get_text_config().vocab_size
    ids = torch.randint(10, vocabulary, (prompt + new,), generator=generator).tolist()
    contenders = contenders_of(explainer, ids, new, args.method, per_token=per_token)
    on_cpu = args.device == "cpu"
    few = min(new, 8)
    short = contenders_of(explainer, ids[prompt - few : prompt + few], few, args.method, per_token=per_token)
    for run in (short if on_cpu else contenders).values():  # to warm up
        run(None)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    found: dict[str, np.ndarray] = {}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            seconds[name].append(timed(partial(keep, found, name, run), args.device))
    return {
        "contenders": {name: common.summary(each) for name, each in seconds.items()},
        "difference": largest_difference(found),
    }


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds of one call: of the clock on a GPU; of the process on a CPU, which other processes disturb less."""
    if device != "cpu":
        return common.seconds_of(run, device)
    start = time.process_time()
    run()
    return time.process_time() - start


def keep(found: dict[str, np.ndarray], name: str, run: Callable[[Any], np.ndarray]) -> None:
    found[name] = run(None)


def contenders_of(
    explainer: lrpx.Explainer, ids: list[int], new: int, method: str, *, per_token: bool
) -> dict[str, Callable[[Any], Any]]:
    """What is compared, on a text of ``ids`` of which the last ``new`` are generated.

    Each returns the relevance of the last token, or of the span.
    """
    prompt = len(ids) - new
    contenders: dict[str, Callable[[Any], Any]] = {}
    if per_token:
        contenders |= {
            "one call per token": partial(one_by_one, explainer, ids, prompt),
            "generate": lambda _: explainer.generate(ids[:-new], continuation=ids[-new:]).relevance[-1],
            "one backward pass per token": partial(in_groups, explainer, ids, prompt, method),
            "repeated rows": partial(repeated, explainer, ids, prompt),
        }
    contenders |= {
        "a span of all": lambda _: explainer.generate(ids[:-new], continuation=ids[-new:], spans=[(0, new)]).relevance[
            0
        ],
        "one target": lambda _: explainer(ids[:-1], target=ids[-1]).relevance,
    }
    return contenders


def one_by_one(explainer: lrpx.Explainer, ids: list[int], prompt: int, _: Any) -> np.ndarray:
    return [explainer(ids[:p], target=ids[p]) for p in range(prompt, len(ids))][-1].relevance


def in_groups(explainer: lrpx.Explainer, ids: list[int], prompt: int, method: str, _: Any) -> np.ndarray:
    """As ``generate``, but one backward pass after the other."""
    positions = range(prompt - 1, len(ids) - 1)
    scoring = Scoring(positions, ids[prompt:], probabilities=True)

    def ask(many: ManyTargets) -> np.ndarray:
        return many.relevance(np.eye(len(positions)), torch.mul)

    with lock_of(explainer.model):
        batch = pad([Item(tuple(ids[:-1]), len(ids) - 2, ids[-1])], explainer.model)
        rows = explain_many(explainer._runner, batch, PassSpec(method), scoring, ask, together=1)
    return rows[-1]


def repeated(explainer: lrpx.Explainer, ids: list[int], prompt: int, _: Any) -> np.ndarray:
    texts = [ids[:-1]] * (len(ids) - prompt)
    found = explainer(texts, position=list(range(prompt - 1, len(ids) - 1)), target=ids[prompt:], progress=False)
    assert isinstance(found, lrpx.Explanations)
    return found[-1].relevance


def largest_difference(found: dict[str, np.ndarray]) -> float:
    """How far the maps of the last token are apart, as a share of the largest relevance."""
    maps = [relevance for name, relevance in found.items() if name not in ("a span of all",)]
    largest = max(float(np.abs(relevance).max()) for relevance in maps)
    return max(float(np.abs(relevance - maps[0]).max()) for relevance in maps) / largest


def show(found: dict[str, Any]) -> None:
    args, results = found["arguments"], found["results"]
    what = f"{args['shape'] or args['model']}, {args['dtype']}, {args['method']}"
    print(f"{what}; {common.heading(found['environment'])}")
    print(f"\n{args['new']} generated tokens on a prompt of {args['prompt']}\n{table_of(results)}")
    print(f"Largest difference between the maps of the last token: {results['difference']:.1e} of the largest value")
    if args["long"]:
        print(f"\nA span of {args['long']} tokens in a text of {2 * args['long']}\n{table_of(results['long'])}")


def table_of(results: dict[str, Any]) -> str:
    figures = results["contenders"]
    base = figures.get("one call per token", figures["one target"])["median_s"]
    rows = [["", "median", "quartiles", "times faster"]]
    for name, each in figures.items():
        quartiles = f"{common.ms(each['lower_quartile_s'])} - {common.ms(each['upper_quartile_s'])}"
        faster = "" if name in ("a span of all", "one target") else f"{base / each['median_s']:.2f}"
        rows.append([name, common.ms(each["median_s"]), quartiles, faster])
    return common.table(rows)


if __name__ == "__main__":
    main()
