"""Relevance flow of a text: every token at every place, beside a loop of one backward pass per token and beside a forward pass.

    python bench/flow.py --shape smollm2 --tokens 200
    python bench/flow.py --model smollm2-135m --tokens 200              # its real weights
    python bench/flow.py --shape 4b --tokens 1000 --device cuda --dtype bfloat16
    python bench/flow.py --smoke --device cpu

Contenders take turns:

- forward: a forward pass without gradients, logits of the last position only;
- token relevance: ``explainer(ids)``, run as it is (no CUDA graph);
- flow, share 0.9: ``explainer.flow(ids)``, all places, 90 % of each place's relevance kept;
- flow, everything: ``explainer.flow(ids, share=1)``: T x T numbers per block;
- flow, passes: as the first, but every kept token has a backward pass of its own, in batches of cotangents. It takes its turn
  after the others, once;
- naive loop: for each block and each token one backward pass through that block, one after the other. It is run for a few
  tokens (``--naive-tokens``), and the figure is what all of them would take.

The table of the naive loop's rows is compared with those of the flow. On a CPU, figures are of one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import common
import numpy as np
import torch
from common import LLAMA_1B, SMALL

import lrpx
from lrpx.models.lock import lock_of
from lrpx.passes.flow import Flow, Keep, flow_of
from lrpx.passes.spec import PassSpec
from lrpx.text.batching import Item, pad

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": ("Llama", {**LLAMA_1B, **SMALL, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 120}),
    "smollm2": (
        "Llama",
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "4b": (  # Qwen3-4B
        "Qwen3",
        {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "tie_word_embeddings": True,
        },
    ),
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2", help="random weights")
    parser.add_argument("--model", help="instead: a name or folder for lrpx.load")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--dtype", help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--method", default="attnlrp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--naive-tokens", type=int, default=4, help="tokens that the naive loop is run for; 0: none")
    parser.add_argument("--no-passes", action="store_true", help="leave out the flow by passes")
    args = parser.parse_args(argv)
    if args.smoke:
        args.shape, args.tokens, args.rounds, args.naive_tokens = "tiny", 9, 1, 9
    if args.device == "cpu":
        torch.set_num_threads(1)
    args.dtype = args.dtype or ("float32" if args.device == "cpu" else "bfloat16")
    model = model_of(args)
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, vocabulary, (args.tokens,), generator=generator).tolist()
    explainer = lrpx.Explainer(model, method=args.method, fast=False)
    found: dict[str, Any] = {}
    contenders = contenders_of(explainer, ids, args, found)
    common.warmed_up(contenders, [None], args.device, rounds=1)
    seconds = common.in_turns(contenders, [None] * args.rounds, args.device)
    if not args.no_passes:  # many times as long as the others, which have done the warming up
        slow = {"flow, passes": flow("flow, passes", explainer, ids, args, found, 0.9, explicit=False)}
        seconds |= common.in_turns(slow, [None], args.device)
        contenders |= slow
    memory = {name: common.peak(lambda run=run: run(None), args.device) for name, run in contenders.items()}
    if args.naive_tokens:
        seconds["naive loop"] = [naive(model, ids, args, found)]
    results = {
        "contenders": {name: common.summary(each) for name, each in seconds.items()},
        "memory_mib": memory,
        "kept": {name: about(flow) for name, flow in found.items() if isinstance(flow, Flow)},
        "difference": difference(found),
    }
    report = common.report("flow", args, common.environment(args.device), results)
    show(report)
    return report


def model_of(args: Any) -> Any:
    import transformers

    dtype = getattr(torch, args.dtype)
    if args.model:
        return lrpx.load(args.model, dtype=args.dtype, device=args.device).model
    prefix, config = SHAPES[args.shape]
    made = getattr(transformers, f"{prefix}Config")(**config)
    return common.made(lambda: getattr(transformers, f"{prefix}ForCausalLM")(made), args.device, dtype)


def contenders_of(
    explainer: lrpx.Explainer, ids: list[int], args: Any, found: dict[str, Any]
) -> dict[str, Callable[[Any], Any]]:
    model = explainer.model
    inputs = common.inputs_of(common.Sample(ids, len(ids) - 1, 0, 0), args.device)
    last = torch.tensor([len(ids) - 1], device=args.device)

    def forward(_: Any) -> Any:
        with torch.no_grad():
            return common.explained_rows(model, inputs, last)

    return {
        "forward": forward,
        "token relevance": lambda _: explainer(ids, target=ids[0]),
        "flow, share 0.9": flow("flow, share 0.9", explainer, ids, args, found, 0.9),
        "flow, everything": flow("flow, everything", explainer, ids, args, found, 1.0),
    }


def flow(
    name: str, explainer: lrpx.Explainer, ids: list[int], args: Any, found: dict[str, Any], share: float, **how: Any
) -> Callable[[Any], None]:
    model = explainer.model

    def run(_: Any) -> None:
        with lock_of(model):
            batch = pad([Item(tuple(ids), len(ids) - 1, ids[0])], model)
            found[name] = flow_of(explainer._runner, batch, PassSpec(args.method), Keep(share), **how)

    return run


def naive(model: Any, ids: list[int], args: Any, found: dict[str, Any]) -> float:
    """Seconds of one backward pass per block and token, one after the other, as if it were run for all tokens."""
    states: list[torch.Tensor] = []

    def note(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        states.append(next(v for v in (*given, *named.values()) if isinstance(v, torch.Tensor)))

    def leave(_: Any, __: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    blocks = model.model.layers
    handles = [block.register_forward_pre_hook(note, with_kwargs=True) for block in blocks]
    handles.append(blocks[-1].register_forward_hook(leave))
    tokens = np.linspace(0, len(ids) - 1, min(args.naive_tokens, len(ids))).round().astype(int).tolist()
    rows: dict[tuple[int, int], np.ndarray] = {}
    with lrpx.propagate(model, args.method, unknown="ignore"):
        x = model.get_input_embeddings()(torch.tensor([ids], device=args.device)).detach().requires_grad_()
        value = model(inputs_embeds=x, use_cache=False, logits_to_keep=1).logits[0, -1, ids[0]]
        for handle in handles:
            handle.remove()
        gradients = torch.autograd.grad(value, states, retain_graph=True)

        def loop() -> None:
            for lower in range(len(blocks)):
                upper, gradient = states[lower + 1], gradients[lower + 1]
                for t in tokens:
                    seed = torch.zeros_like(gradient)
                    seed[0, t] = gradient[0, t]
                    (back,) = torch.autograd.grad(upper, states[lower], seed, retain_graph=True)
                    rows[lower, t] = (states[lower].detach().double() * back.double()).sum(-1)[0].cpu().numpy()

        loop()
        seconds = common.seconds_of(loop, args.device)
    found["naive"] = rows
    return seconds * len(ids) / len(tokens)


def about(flow: Flow) -> dict[str, Any]:
    """How much of the graph is kept, and how its steps were computed."""
    return {
        "edges": sum(len(step.edges) for step in flow.steps),
        "followed": float(np.mean([len(step.followed) for step in flow.steps])),
        "ways": dict(Counter(step.way for step in flow.steps)),
    }


def difference(found: dict[str, Any]) -> float | None:
    """How far rows of the naive loop and of the whole flow are apart, as a share of the block's largest relevance.

    A step over a block's attention, from the gradient after its MLP, is that of the whole block: an MLP mixes no tokens.
    """
    rows, flow = found.get("naive"), found["flow, everything"]
    if not rows:
        return None
    mixing = [step for step in reversed(flow.steps) if step.way != "diagonal"]
    if len(mixing) * 2 != len(flow.steps):
        return None
    largest = 0.0
    for lower, step in enumerate(mixing):
        for t in {t for block, t in rows if block == lower}:
            of_token, row = step.edges[:, 0] == t, np.zeros(flow.relevance.shape[1])
            row[step.edges[of_token, 1]] = step.relevance[of_token]
            scale = np.abs(flow.relevance[step.lower]).max()
            largest = max(largest, float(np.abs(row - rows[lower, t]).max() / scale))
    return largest


def show(found: dict[str, Any]) -> None:
    args, results = found["arguments"], found["results"]
    figures, memory = results["contenders"], results["memory_mib"]
    forward = figures["forward"]["median_s"]
    loop = figures.get("naive loop", {}).get("median_s")
    rows = [["", "median", "forward passes", "times faster than the loop", "memory"]]
    for name, each in figures.items():
        faster = f"{loop / each['median_s']:.0f}" if loop and name.startswith("flow") else ""
        held = f"{memory[name]:.0f} MiB" if name in memory else ""
        rows.append([name, common.ms(each["median_s"]), f"{each['median_s'] / forward:.1f}", faster, held])
    print(
        f"{args['model'] or args['shape']}, {args['dtype']}, {args['method']}, {args['tokens']} tokens; "
        f"{common.heading(found['environment'])}"
    )
    print(common.table(rows))
    for name, each in results["kept"].items():
        ways = ", ".join(f"{count} {way}" for way, count in each["ways"].items())
        print(f"{name}: {each['edges']} edges, {each['followed']:.1f} tokens followed per step; steps: {ways}")
    if loop:
        print(f"The naive loop was run for {min(args['naive_tokens'], args['tokens'])} tokens of {args['tokens']}.")
    if results["difference"] is not None:
        print(
            f"Largest difference between its rows and the flow's: {results['difference']:.1e} of the largest relevance"
        )


if __name__ == "__main__":
    main()
